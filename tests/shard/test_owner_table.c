#include <criterion/criterion.h>

#include <string.h>

#include "core/rng.h"
#include "shard/owner_table.h"

TestSuite(owner_table);

enum { SHARDS_MAX = 200, CORES_MAX = 64 };

static uint32_t max_slots, min_slots, loads[CORES_MAX];

static void measure(const struct shard *shards, uint32_t count, uint32_t cores)
{
    memset(loads, 0, sizeof loads);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_lt(shards[i].owner, cores);
        loads[shards[i].owner] += shards[i].slots_count;
    }
    max_slots = 0;
    min_slots = UINT32_MAX;
    for (uint32_t core = 0; core < cores; core++) {
        max_slots = loads[core] > max_slots ? loads[core] : max_slots;
        min_slots = loads[core] < min_slots ? loads[core] : min_slots;
    }
}

static uint32_t count_changes(const struct shard *now, uint32_t now_count, const struct shard *before, uint32_t before_count)
{
    uint32_t changes = 0;
    for (uint32_t i = 0; i < now_count; i++)
        for (uint32_t j = 0; j < before_count; j++)
            changes += now[i].key == before[j].key && now[i].owner != before[j].owner;
    return changes;
}

/* `count` shards of nearly one size, keys from 1. */
static void make_shards(struct shard *shards, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        shards[i] = (struct shard){.key = i + 1, .primary = (uint16_t)i, .slots_count = (uint16_t)(16384 * (i + 1) / count - 16384 * i / count)};
}

Test(owner_table, shards_of_one_size_are_spread_evenly)
{
    struct shard shards[SHARDS_MAX];
    for (uint32_t count = 1; count <= SHARDS_MAX; count += 7)
        for (uint32_t cores = 1; cores <= CORES_MAX; cores *= 2) {
            make_shards(shards, count);
            cr_assert_eq(owner_table_assign(shards, count, NULL, 0, cores), 0);
            measure(shards, count, cores);
            uint32_t size = (16384 + count - 1) / count;
            cr_expect_leq(max_slots - min_slots, size + count, "%u shards on %u cores: %u .. %u", count, cores, min_slots, max_slots);
        }
}

Test(owner_table, shards_without_slots_are_spread_too)
{
    struct shard shards[8];
    for (uint32_t i = 0; i < 8; i++)
        shards[i] = (struct shard){.key = i + 1};
    owner_table_assign(shards, 8, NULL, 0, 4);
    uint32_t counts[4] = {0};
    for (uint32_t i = 0; i < 8; i++)
        counts[shards[i].owner]++;
    for (uint32_t core = 0; core < 4; core++)
        cr_expect_eq(counts[core], 2);
    cr_expect_eq(owner_table_assign(shards, 0, NULL, 0, 4), 0, "no shards at all");
}

Test(owner_table, assignment_repeated_changes_nothing)
{
    struct shard before[SHARDS_MAX], now[SHARDS_MAX];
    for (uint32_t count = 1; count <= SHARDS_MAX; count += 13) {
        make_shards(before, count);
        owner_table_assign(before, count, NULL, 0, 6);
        memcpy(now, before, sizeof now);
        cr_expect_eq(owner_table_assign(now, count, before, count, 6), 0);
        cr_expect_eq(count_changes(now, count, before, count), 0);
    }
}

Test(owner_table, shard_added_goes_to_the_least_loaded_core)
{
    struct shard before[3], now[4];
    make_shards(before, 3);
    owner_table_assign(before, 3, NULL, 0, 4);
    memcpy(now, before, sizeof before);
    now[3] = (struct shard){.key = 9, .slots_count = 100};
    cr_expect_eq(owner_table_assign(now, 4, before, 3, 4), 0);
    cr_expect_eq(count_changes(now, 4, before, 3), 0);
    for (uint32_t i = 0; i < 3; i++)
        cr_expect_neq(now[3].owner, now[i].owner);
}

Test(owner_table, core_overloaded_by_one_shard_keeps_it_and_by_more_gives_one)
{
    /* 2 : 1 on two cores cannot be better. */
    struct shard before[4], now[4];
    make_shards(before, 3);
    before[0].owner = before[1].owner = 0;
    before[2].owner = 1;
    memcpy(now, before, sizeof now);
    cr_expect_eq(owner_table_assign(now, 3, before, 3, 2), 0);
    cr_expect_eq(count_changes(now, 3, before, 3), 0);
    /* 4 : 0 gives one a call, and then rests. */
    make_shards(before, 4);
    for (uint32_t i = 0; i < 4; i++)
        before[i].owner = 1;
    for (uint32_t expected = 1; expected <= 3; expected++) {
        memcpy(now, before, sizeof now);
        uint32_t moved = expected <= 2 ? 1 : 0;
        cr_expect_eq(owner_table_assign(now, 4, before, 4, 2), moved, "call %u", expected);
        cr_expect_eq(count_changes(now, 4, before, 4), moved);
        memcpy(before, now, sizeof now);
    }
    measure(now, 4, 2);
    cr_expect_eq(max_slots, min_slots);
    /* A move that would gain little is not made: one and a half times the shard's slots must lie between the cores. */
    for (uint32_t extra = 0; extra < 2; extra++) {
        struct shard uneven[3] = {{.key = 1, .slots_count = 1000}, {.key = 2, .slots_count = 900}, {.key = 3, .owner = 1, .slots_count = (uint16_t)(551 - extra)}};
        memcpy(now, uneven, sizeof uneven);
        cr_expect_eq(owner_table_assign(now, 3, uneven, 3, 2), extra);
        cr_expect_eq(now[1].owner, extra);
    }
}

Test(owner_table, cores_gone_release_their_shards)
{
    struct shard before[12], now[12];
    make_shards(before, 12);
    owner_table_assign(before, 12, NULL, 0, 6);
    memcpy(now, before, sizeof now);
    uint32_t moved = owner_table_assign(now, 12, before, 12, 3);
    cr_expect_eq(moved, 6);
    cr_expect_eq(count_changes(now, 12, before, 12), 6);
    measure(now, 12, 3);
    cr_expect_leq(max_slots - min_slots, 1366 + 12);
}

/* Random growth, shrinking and resizing: never more than one known shard moves a step, and after quiet steps the load is even to within one and a half of the largest shard. */
Test(owner_table, changes_at_random_move_at_most_one_shard_a_step_and_converge)
{
    struct rng rng = {.state = 11};
    for (uint32_t run = 0; run < 20; run++) {
        struct shard shards[SHARDS_MAX], before[SHARDS_MAX];
        uint32_t count = 0, next_key = 1, cores = 1 + rng_below(&rng, 16);
        for (uint32_t step = 0; step < 400; step++) {
            uint32_t before_count = count;
            memcpy(before, shards, count * sizeof *shards);
            bool is_quiet = step >= 300;
            for (uint32_t change = is_quiet ? 0 : 1 + rng_below(&rng, 3); change > 0; change--) {
                uint32_t kind = rng_below(&rng, 3);
                if (kind == 0 && count < SHARDS_MAX) {
                    shards[count++] = (struct shard){.key = next_key++, .slots_count = (uint16_t)rng_below(&rng, 1000)};
                } else if (kind == 1 && count > 1) {
                    uint32_t gone = rng_below(&rng, count--);
                    memmove(&shards[gone], &shards[gone + 1], (count - gone) * sizeof *shards);
                } else if (count > 0) {
                    shards[rng_below(&rng, count)].slots_count = (uint16_t)rng_below(&rng, 1000);
                }
            }
            uint32_t moved = owner_table_assign(shards, count, before, before_count, cores);
            cr_assert_leq(moved, 1);
            cr_assert_eq(count_changes(shards, count, before, before_count), moved);
            cr_assert(!is_quiet || step < 390 || moved == 0, "still moving at step %u", step);
        }
        measure(shards, count, cores);
        cr_expect_leq(max_slots - min_slots, 1500, "run %u: %u shards, %u cores, %u .. %u", run, count, cores, min_slots, max_slots);
    }
}
