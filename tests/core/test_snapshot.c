/*
 * core/snapshot: a version is destroyed when every core reads a newer one, never earlier, and exactly once.
 */
#include <criterion/criterion.h>
#include <signal.h>

#include "core/snapshot.h"

TestSuite(snapshot);

static int destroyed_count[64];

static void destroy(const void *data)
{
    int *count = (int *)(uintptr_t)data;
    (*count)++;
}

Test(snapshot, version_is_destroyed_when_the_last_core_left_it)
{
    struct snapshot_publisher publisher;
    snapshot_publisher_init(&publisher, 3, destroy);
    cr_assert(snapshot_publish(&publisher, &destroyed_count[0], 1));
    for (uint32_t core = 0; core < 3; core++)
        cr_assert_eq(snapshot_acknowledge(&publisher, core, 1), 0);
    cr_assert(snapshot_publish(&publisher, &destroyed_count[1], 2));
    cr_assert_eq(snapshot_acknowledge(&publisher, 0, 2), 0);
    cr_assert_eq(snapshot_acknowledge(&publisher, 2, 2), 0);
    cr_assert_eq(destroyed_count[0], 0, "core 1 still reads it");
    cr_assert_eq(snapshot_acknowledge(&publisher, 1, 2), 1);
    cr_assert_eq(destroyed_count[0], 1);
    cr_assert_eq(snapshot_acknowledge(&publisher, 1, 2), 0, "a second acknowledgement changes nothing");
    snapshot_publisher_fini(&publisher);
    cr_assert_eq(destroyed_count[0], 1);
    cr_assert_eq(destroyed_count[1], 1, "the current version goes with the publisher");
}

Test(snapshot, core_that_skips_versions_frees_all_older_ones)
{
    struct snapshot_publisher publisher;
    snapshot_publisher_init(&publisher, 2, destroy);
    for (uint64_t epoch = 0; epoch < 5; epoch++)
        cr_assert(snapshot_publish(&publisher, &destroyed_count[epoch], 10 + 7 * epoch));
    cr_assert_eq(snapshot_acknowledge(&publisher, 0, 10 + 7 * 4), 0, "core 1 has not read anything yet");
    cr_assert_eq(snapshot_acknowledge(&publisher, 1, 10 + 7 * 2), 2);
    cr_assert_eq(destroyed_count[1], 1);
    cr_assert_eq(destroyed_count[2], 0);
    cr_assert_eq(snapshot_acknowledge(&publisher, 1, 10 + 7 * 4), 2);
    cr_assert_eq(destroyed_count[4], 0);
    snapshot_publisher_fini(&publisher);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(destroyed_count[i], 1);
}

Test(snapshot, publish_with_all_versions_in_use_waits)
{
    struct snapshot_publisher publisher;
    snapshot_publisher_init(&publisher, 1, destroy);
    for (uint64_t i = 0; i < SNAPSHOT_PENDING_MAX; i++)
        cr_assert(snapshot_publish(&publisher, &destroyed_count[i], i + 1));
    cr_assert_not(snapshot_publish(&publisher, &destroyed_count[20], 20));
    cr_assert_eq(destroyed_count[20], 0, "a refused version stays the caller's");
    cr_assert_eq(snapshot_acknowledge(&publisher, 0, 2), 1);
    cr_assert(snapshot_publish(&publisher, &destroyed_count[20], 20));
    cr_assert_not(snapshot_publish(&publisher, &destroyed_count[21], 21));
    cr_assert_eq(snapshot_acknowledge(&publisher, 0, 20), SNAPSHOT_PENDING_MAX - 1);
    snapshot_publisher_fini(&publisher);
    cr_assert_eq(destroyed_count[20], 1);
    cr_assert_eq(destroyed_count[21], 0);
}

Test(snapshot, fini_with_nothing_published_is_quiet)
{
    struct snapshot_publisher publisher;
    snapshot_publisher_init(&publisher, 1, destroy);
    snapshot_publisher_fini(&publisher);
    cr_assert_eq(publisher.versions_count, 0);
}

Test(snapshot, epoch_that_does_not_rise_aborts, .signal = SIGABRT)
{
    struct snapshot_publisher publisher;
    snapshot_publisher_init(&publisher, 1, destroy);
    cr_assert(snapshot_publish(&publisher, &destroyed_count[0], 5));
    (void)snapshot_publish(&publisher, &destroyed_count[1], 5);
}

Test(snapshot, acknowledgement_of_the_future_aborts, .signal = SIGABRT)
{
    struct snapshot_publisher publisher;
    snapshot_publisher_init(&publisher, 1, destroy);
    cr_assert(snapshot_publish(&publisher, &destroyed_count[0], 5));
    (void)snapshot_acknowledge(&publisher, 0, 6);
}

Test(snapshot, acknowledgement_that_goes_back_aborts, .signal = SIGABRT)
{
    struct snapshot_publisher publisher;
    snapshot_publisher_init(&publisher, 1, destroy);
    cr_assert(snapshot_publish(&publisher, &destroyed_count[0], 5));
    cr_assert(snapshot_publish(&publisher, &destroyed_count[1], 6));
    (void)snapshot_acknowledge(&publisher, 0, 6);
    (void)snapshot_acknowledge(&publisher, 0, 5);
}
