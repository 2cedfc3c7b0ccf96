#include "core/memory.h"

#include <criterion/criterion.h>

#include "core/rng.h"

TestSuite(memory);

#define MIB (UINT64_C(1) << 20)

static struct memory_view view_of(uint64_t used, uint64_t own, uint64_t others, uint64_t now_ms)
{
    return (struct memory_view){.used = used, .limit = 1000 * MIB, .fullest_arena = used / 2, .arena_max = 2000 * MIB, .own_largest = own, .others_largest = others, .now_ms = now_ms};
}

Test(memory, plenty_of_it_is_calm)
{
    struct memory_state state = {0};
    struct memory_view view = view_of(790 * MIB, 500 * MIB, 0, 1);
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CALM);
}

Test(memory, pauses_first_and_is_calm_again_only_well_below)
{
    struct memory_state state = {0};
    struct memory_view view = view_of(820 * MIB, 500 * MIB, 0, 1);
    cr_expect_eq(memory_decide(&state, &view), MEMORY_PAUSE);
    view.used = 750 * MIB;
    cr_expect_eq(memory_decide(&state, &view), MEMORY_PAUSE, "between the marks it stays as it is");
    view.used = 650 * MIB;
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CALM);
    view.used = 750 * MIB;
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CALM);
}

Test(memory, at_the_limit_the_core_with_the_largest_closes_it)
{
    struct memory_state state = {0};
    struct memory_view view = view_of(1010 * MIB, 500 * MIB, 400 * MIB, 1);
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CLOSE);
    struct memory_state other = {0};
    view = view_of(1010 * MIB, 400 * MIB, 500 * MIB, 1);
    cr_expect_eq(memory_decide(&other, &view), MEMORY_PAUSE);
}

Test(memory, an_arena_at_its_maximum_counts_as_the_limit)
{
    struct memory_state state = {0};
    struct memory_view view = view_of(100 * MIB, 50 * MIB, 0, 1);
    view.fullest_arena = 1950 * MIB;
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CLOSE);
}

Test(memory, what_was_closed_has_time_to_go)
{
    struct memory_state state = {0};
    struct memory_view view = view_of(1100 * MIB, 500 * MIB, 0, 1000);
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CLOSE);
    view.closes = 1; /* by this core or another */
    cr_expect_eq(memory_decide(&state, &view), MEMORY_PAUSE);
    view.now_ms += 99;
    cr_expect_eq(memory_decide(&state, &view), MEMORY_PAUSE);
    view.now_ms += 1;
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CLOSE);
}

Test(memory, a_pause_that_does_not_help_ends_in_a_close)
{
    struct memory_state state = {0};
    struct memory_view view = view_of(900 * MIB, 500 * MIB, 0, 1000);
    for (; view.now_ms < 2000; view.now_ms += 10)
        cr_assert_eq(memory_decide(&state, &view), MEMORY_PAUSE, "at %u", (unsigned)view.now_ms);
    cr_expect_eq(memory_decide(&state, &view), MEMORY_CLOSE);
}

Test(memory, small_consumers_are_never_closed)
{
    struct memory_state state = {0};
    struct memory_view view = view_of(2000 * MIB, MEMORY_CONSUMER_MIN - 1, 0, 1000);
    for (; view.now_ms < 20000; view.now_ms += 100)
        cr_assert_eq(memory_decide(&state, &view), MEMORY_PAUSE);
}

/* Cores with consumers of random sizes that grow while they are read: whatever happens, only ever the largest goes, and memory comes back below its limit. */
Test(memory, random_consumers_only_the_largest_goes)
{
    enum { CORES = 3, CONSUMERS = 8 };
    struct rng rng = {.state = 11};
    for (int round = 0; round < 200; round++) {
        uint64_t bytes[CORES][CONSUMERS] = {{0}};
        struct memory_state states[CORES] = {{0}};
        uint64_t closes = 0;
        for (uint64_t now_ms = 0; now_ms < 2000; now_ms += 10) {
            uint64_t used = 0, largest[CORES] = {0};
            for (int core = 0; core < CORES; core++)
                for (int i = 0; i < CONSUMERS; i++) {
                    bytes[core][i] += rng_below(&rng, i == 0 ? 8 << 20 : 200 << 10);
                    used += bytes[core][i];
                    largest[core] = bytes[core][i] > largest[core] ? bytes[core][i] : largest[core];
                }
            cr_assert_lt(used, 1500 * MIB);
            for (int core = 0; core < CORES; core++) {
                uint64_t others = 0;
                for (int other = 0; other < CORES; other++)
                    others = other != core && largest[other] > others ? largest[other] : others;
                struct memory_view view = view_of(used, largest[core], others, now_ms);
                view.closes = closes;
                if (memory_decide(&states[core], &view) != MEMORY_CLOSE)
                    continue;
                closes++;
                for (int i = 0; i < CONSUMERS; i++)
                    if (bytes[core][i] == largest[core]) {
                        cr_assert_eq(i, 0, "a bystander");
                        bytes[core][i] = 0;
                    }
                break;
            }
        }
        cr_assert_gt(closes, 0);
    }
}

Test(memory, default_limit_is_of_this_machine)
{
    uint64_t limit = memory_limit_default();
    cr_expect(limit >= 64 * MIB && limit < UINT64_C(1) << 48);
}
