#include "core/pool.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "core/alloc.h"
#include "core/rng.h"

TestSuite(pool);

struct thing {
    struct pool_item item;
    uint64_t numbers[12];
};

Test(pool, objects_are_zero_aligned_and_apart)
{
    enum { OBJECTS = 3000 };
    static struct thing *things[OBJECTS];
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), OBJECTS);
    cr_assert_eq(pool.object_bytes, 128);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < OBJECTS; i++) {
            things[i] = pool_get(&pool);
            cr_assert_not_null(things[i]);
            cr_assert_eq((uintptr_t)things[i] % 64, 0);
            cr_assert_neq(things[i]->item.generation, 0);
            for (size_t n = 0; n < 12; n++)
                cr_assert_eq(things[i]->numbers[n], 0);
            memset(things[i]->numbers, 0xff, sizeof(things[i]->numbers));
        }
        for (uint32_t i = 0; i < OBJECTS; i++) {
            for (size_t n = 0; n < 12; n++)
                cr_assert_eq(things[i]->numbers[n], UINT64_MAX);
            cr_assert_eq(pool_resolve(&pool, pool_handle_of(&things[i]->item)), things[i]);
        }
        cr_assert_eq(pool.live_count, OBJECTS);
        cr_assert_eq(pool.live_peak, OBJECTS);
        for (uint32_t i = 0; i < OBJECTS; i++) {
            pool_put(&pool, &things[i]);
            cr_assert_null(things[i]);
        }
        cr_assert_eq(pool.live_count, 0);
    }
    pool_fini(&pool);
}

Test(pool, full_pool_gives_null_counts_it_and_recovers)
{
    static const uint32_t maxima[] = {1, 2, 7, 511, 512, 513};
    for (size_t m = 0; m < sizeof(maxima) / sizeof(maxima[0]); m++) {
        struct pool pool;
        struct thing *things[513];
        pool_init(&pool, "things", sizeof(struct thing), maxima[m]);
        for (uint32_t i = 0; i < maxima[m]; i++) {
            things[i] = pool_get(&pool);
            cr_assert_not_null(things[i]);
            cr_assert_lt(things[i]->item.index, maxima[m]);
        }
        cr_assert_null(pool_get(&pool));
        cr_assert_null(pool_get_raw(&pool));
        cr_assert_eq(pool.full_count, 2);
        cr_assert_eq(pool.live_count, maxima[m]);
        pool_put(&pool, &things[maxima[m] / 2]);
        things[maxima[m] / 2] = pool_get(&pool);
        cr_assert_not_null(things[maxima[m] / 2]);
        cr_assert_null(pool_get(&pool));
        for (uint32_t i = 0; i < maxima[m]; i++)
            pool_put(&pool, &things[i]);
        pool_fini(&pool);
    }
}

Test(pool, handle_of_an_ended_life_resolves_to_nothing)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), 4);
    struct thing *thing = pool_get(&pool);
    struct pool_handle old = pool_handle_of(&thing->item);
    struct thing *place = thing;
    cr_assert_eq(pool_resolve(&pool, old), thing);
    pool_put(&pool, &thing);
    cr_assert_null(pool_resolve(&pool, old));
    thing = pool_get(&pool);
    cr_assert_eq(thing, place, "the object freed last is taken first");
    cr_assert_null(pool_resolve(&pool, old));
    cr_assert_eq(pool_resolve(&pool, pool_handle_of(&thing->item)), thing);
    pool_put(&pool, &thing);
    pool_fini(&pool);
}

Test(pool, handle_that_never_was_resolves_to_nothing)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), 1000000);
    cr_assert_null(pool_resolve(&pool, (struct pool_handle){.value = UINT64_C(1) << 32}), "no chunk yet");
    struct thing *thing = pool_get(&pool);
    static const uint64_t values[] = {0, 1, UINT64_MAX, UINT64_C(1) << 32 | 999999, UINT64_C(1) << 32 | 1000000, UINT64_C(1) << 32 | UINT32_MAX, UINT64_C(1) << 32 | 1,
        UINT64_C(0x1000001) << 32};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        cr_assert_null(pool_resolve(&pool, (struct pool_handle){.value = values[i]}), "%zu", i);
    pool_put(&pool, &thing);
    pool_fini(&pool);
}

Test(pool, generation_wraps_within_24_bits_and_skips_zero)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), 1);
    struct thing *thing = pool_get(&pool);
    pool_put(&pool, &thing);
    pool.generations[0] = 0xfffffe;
    thing = pool_get(&pool);
    cr_assert_eq(thing->item.generation, 0xffffff);
    struct pool_handle last = pool_handle_of(&thing->item);
    pool_put(&pool, &thing);
    thing = pool_get(&pool);
    cr_assert_eq(thing->item.generation, 1);
    cr_assert_null(pool_resolve(&pool, last));
    pool_put(&pool, &thing);
    pool_fini(&pool);
}

Test(pool, raw_object_keeps_no_promise_about_its_bytes_but_lives)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), 2);
    struct thing *thing = pool_get_raw(&pool);
    memset(thing->numbers, 1, sizeof(thing->numbers));
    cr_assert_eq(pool_resolve(&pool, pool_handle_of(&thing->item)), thing);
    pool_put(&pool, &thing);
    thing = pool_get(&pool);
    for (size_t n = 0; n < 12; n++)
        cr_assert_eq(thing->numbers[n], 0);
    pool_put(&pool, &thing);
    pool_fini(&pool);
}

Test(pool, reserved_objects_need_no_further_allocation)
{
    enum { OBJECTS = 5000 };
    static struct thing *things[OBJECTS];
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), OBJECTS);
    pool_reserve(&pool, OBJECTS);
    uint64_t calls = alloc_calls_count();
    for (uint32_t i = 0; i < OBJECTS; i++) {
        things[i] = pool_get(&pool);
        cr_assert_not_null(things[i]);
    }
    for (uint32_t i = 0; i < OBJECTS; i++)
        pool_put(&pool, &things[i]);
    pool_reserve(&pool, 10);
    cr_assert_eq(alloc_calls_count(), calls);
    pool_fini(&pool);
}

Test(pool, object_sizes_from_a_bare_item_to_more_than_a_chunk_work)
{
    static const uint32_t sizes[] = {8, 9, 24, 32, 33, 64, 65, 4096, 65536, 65537, 200000};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct pool pool;
        uint8_t *objects[40];
        pool_init(&pool, "sizes", sizes[s], 40);
        cr_assert_geq(pool.object_bytes, sizes[s]);
        for (uint32_t i = 0; i < 40; i++) {
            objects[i] = pool_get(&pool);
            memset(objects[i] + sizeof(struct pool_item), (int)i, sizes[s] - sizeof(struct pool_item));
        }
        for (uint32_t i = 0; i < 40; i++) {
            for (uint32_t b = sizeof(struct pool_item); b < sizes[s]; b++)
                cr_assert_eq(objects[i][b], i);
            pool_put(&pool, &objects[i]);
        }
        pool_fini(&pool);
    }
}

Test(pool, random_lives_resolve_exactly_while_they_last)
{
    enum { OBJECTS = 1500, OPERATIONS = 200000, OLD_HANDLES = 64 };
    static struct thing *live[OBJECTS];
    static struct pool_handle old[OLD_HANDLES];
    struct rng rng = {.state = 11};
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), OBJECTS);
    uint32_t live_count = 0, old_count = 0;
    for (uint32_t operation = 0; operation < OPERATIONS; operation++) {
        /* Phases of growing and of shrinking, so that the pool runs full and empty. */
        bool wants_more = rng_below(&rng, 100) < (operation / 10000 % 2 == 0 ? 70u : 30u);
        if (wants_more) {
            struct thing *thing = pool_get(&pool);
            cr_assert_eq(thing == NULL, live_count == OBJECTS);
            if (thing != NULL) {
                thing->numbers[0] = pool_handle_of(&thing->item).value;
                live[live_count++] = thing;
            }
        } else if (live_count > 0) {
            uint32_t pick = rng_below(&rng, live_count);
            cr_assert_eq(live[pick]->numbers[0], pool_handle_of(&live[pick]->item).value);
            old[old_count++ % OLD_HANDLES] = pool_handle_of(&live[pick]->item);
            pool_put(&pool, &live[pick]);
            live[pick] = live[--live_count];
        }
        cr_assert_eq(pool.live_count, live_count);
        cr_assert_null(pool_resolve(&pool, old[rng_below(&rng, OLD_HANDLES)]));
        if (live_count > 0) {
            struct thing *thing = live[rng_below(&rng, live_count)];
            cr_assert_eq(pool_resolve(&pool, pool_handle_of(&thing->item)), thing);
        }
    }
    cr_assert_gt(pool.full_count, 0);
    while (live_count > 0)
        pool_put(&pool, &live[--live_count]);
    pool_fini(&pool);
}

Test(pool, second_put_of_an_object_aborts, .signal = SIGABRT)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), 4);
    struct thing *thing = pool_get(&pool);
    struct thing *again = thing;
    pool_put(&pool, &thing);
    pool_put(&pool, &again);
}

Test(pool, object_of_another_pool_aborts, .signal = SIGABRT)
{
    struct pool pool, other;
    pool_init(&pool, "things", sizeof(struct thing), 4);
    pool_init(&other, "others", sizeof(struct thing), 4);
    struct thing *thing = pool_get(&pool);
    struct thing *stranger = pool_get(&other);
    cr_assert_not_null(thing);
    pool_put(&pool, &stranger);
}

Test(pool, end_with_a_live_object_aborts, .signal = SIGABRT)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), 4);
    cr_assert_not_null(pool_get(&pool));
    pool_fini(&pool);
}

Test(pool, maximum_beyond_24_bits_aborts, .signal = SIGABRT)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), (1u << 24) + 1);
}

Test(pool, maximum_of_24_bits_allocates_little_until_it_is_used)
{
    struct pool pool;
    pool_init(&pool, "things", sizeof(struct thing), 1u << 24);
    struct thing *thing = pool_get(&pool);
    cr_assert_eq(thing->item.index, 0);
    cr_assert_eq(pool.chunks_count, 1);
    pool_put(&pool, &thing);
    pool_fini(&pool);
}

/* ---- chunks that a burst has left ---- */

enum { BURST = 4096 };

/* Takes a burst beside one object that lives on in the middle of it, and puts the rest. */
static struct thing *burst(struct pool *pool)
{
    static struct thing *objects[BURST];
    for (uint32_t i = 0; i < BURST; i++)
        cr_assert_not_null(objects[i] = pool_get(pool));
    struct thing *kept = objects[BURST / 2];
    for (uint32_t i = 0; i < BURST; i++)
        if (objects[i] != kept)
            pool_put(pool, &objects[i]);
    return kept;
}

Test(pool, trim_gives_back_what_a_burst_left_and_keeps_what_lives)
{
    struct pool pool;
    pool_init(&pool, "test", sizeof(struct thing), BURST);
    pool_reserve(&pool, 1);
    struct thing *kept = burst(&pool);
    struct pool_handle handle = pool_handle_of(&kept->item);
    uint32_t chunks = pool.chunks_count;
    cr_assert_gt(chunks, 3u);
    cr_expect_eq(pool_trim(&pool), 0, "the burst is a part of the time since the last call");
    uint32_t released = 0;
    for (uint32_t step; (step = pool_trim(&pool)) > 0;)
        released += step;
    cr_expect_eq(pool.holes_count, released);
    cr_expect(released >= chunks - 3 && released < chunks, "%u of %u", released, chunks);
    cr_expect_eq(pool_resolve(&pool, handle), kept);
    cr_expect_eq(pool.live_count + pool.free_count, (chunks - released) << pool.chunk_shift);
    /* It grows again to its maximum, into the same places, and no handle of before is valid. */
    struct pool_handle stale = handle;
    pool_put(&pool, &kept);
    static struct thing *again[BURST];
    for (uint32_t i = 0; i < BURST; i++)
        cr_assert_not_null(again[i] = pool_get(&pool));
    cr_expect_null(pool_get(&pool));
    cr_expect(pool.holes_count == 0 && pool.chunks_count == chunks);
    cr_expect_null(pool_resolve(&pool, stale));
    for (uint32_t i = 0; i < BURST; i++)
        pool_put(&pool, &again[i]);
    pool_fini(&pool);
}

Test(pool, trim_leaves_a_steady_load_and_reserves_alone)
{
    struct pool pool;
    pool_init(&pool, "test", sizeof(struct thing), BURST);
    pool_reserve(&pool, BURST);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(pool_trim(&pool), 0, "reserved");
    pool_fini(&pool);
    pool_init(&pool, "test", sizeof(struct thing), BURST);
    for (int i = 0; i < 4; i++) {
        struct thing *kept = burst(&pool);
        pool_put(&pool, &kept);
        cr_expect_eq(pool_trim(&pool), 0, "in use all the time");
    }
    pool_fini(&pool);
}

Test(pool, handles_into_a_chunk_that_is_gone_name_nothing)
{
    struct pool pool;
    static struct pool_handle handles[BURST];
    static struct thing *objects[BURST];
    pool_init(&pool, "test", sizeof(struct thing), BURST);
    for (uint32_t i = 0; i < BURST; i++) {
        cr_assert_not_null(objects[i] = pool_get(&pool));
        handles[i] = pool_handle_of(&objects[i]->item);
    }
    for (uint32_t i = 0; i < BURST; i++)
        pool_put(&pool, &objects[i]);
    (void)pool_trim(&pool);
    cr_expect_gt(pool_trim(&pool), 0);
    for (uint32_t i = 0; i < BURST; i++)
        cr_assert_null(pool_resolve(&pool, handles[i]));
    pool_fini(&pool);
}
