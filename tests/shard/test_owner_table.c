#include <criterion/criterion.h>

#include <string.h>

#include "core/rng.h"
#include "shard/owner_table.h"

TestSuite(owner_table);

enum { SHARDS_MAX = 200, CORES_MAX = 64 };

static uint32_t max_slots, min_slots, loads[CORES_MAX];

/* Of a shard with one core. */
static uint32_t owner_of(const struct shard *shard)
{
    cr_assert_eq(owner_table_cores_count(shard), 1);
    return (uint32_t)__builtin_ctzll(shard->cores);
}

static void measure(const struct shard *shards, uint32_t count, uint32_t cores)
{
    memset(loads, 0, sizeof loads);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_lt(owner_of(&shards[i]), cores);
        loads[owner_of(&shards[i])] += shards[i].slots_count;
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
            changes += now[i].key == before[j].key && now[i].cores != before[j].cores;
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
            cr_assert_eq(owner_table_assign(shards, count, NULL, 0, cores, true), 0);
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
    owner_table_assign(shards, 8, NULL, 0, 4, true);
    uint32_t counts[4] = {0};
    for (uint32_t i = 0; i < 8; i++)
        counts[owner_of(&shards[i])]++;
    for (uint32_t core = 0; core < 4; core++)
        cr_expect_eq(counts[core], 2);
    cr_expect_eq(owner_table_assign(shards, 0, NULL, 0, 4, true), 0, "no shards at all");
}

Test(owner_table, assignment_repeated_changes_nothing)
{
    struct shard before[SHARDS_MAX], now[SHARDS_MAX];
    for (uint32_t count = 1; count <= SHARDS_MAX; count += 13) {
        make_shards(before, count);
        owner_table_assign(before, count, NULL, 0, 6, true);
        memcpy(now, before, sizeof now);
        cr_expect_eq(owner_table_assign(now, count, before, count, 6, true), 0);
        cr_expect_eq(count_changes(now, count, before, count), 0);
    }
}

Test(owner_table, shard_added_goes_to_the_least_loaded_core)
{
    struct shard before[3], now[4];
    make_shards(before, 3);
    owner_table_assign(before, 3, NULL, 0, 4, true);
    memcpy(now, before, sizeof before);
    now[3] = (struct shard){.key = 9, .slots_count = 100};
    cr_expect_eq(owner_table_assign(now, 4, before, 3, 4, true), 0);
    cr_expect_eq(count_changes(now, 4, before, 3), 0);
    for (uint32_t i = 0; i < 3; i++)
        cr_expect_neq(now[3].cores, now[i].cores);
}

Test(owner_table, core_overloaded_by_one_shard_keeps_it_and_by_more_gives_one)
{
    /* 2 : 1 on two cores cannot be better. */
    struct shard before[4], now[4];
    make_shards(before, 3);
    before[0].cores = before[1].cores = 1;
    before[2].cores = 2;
    memcpy(now, before, sizeof now);
    cr_expect_eq(owner_table_assign(now, 3, before, 3, 2, true), 0);
    cr_expect_eq(count_changes(now, 3, before, 3), 0);
    /* 4 : 0 gives one a call, and then rests. */
    make_shards(before, 4);
    for (uint32_t i = 0; i < 4; i++)
        before[i].cores = 2;
    for (uint32_t expected = 1; expected <= 3; expected++) {
        memcpy(now, before, sizeof now);
        uint32_t moved = expected <= 2 ? 1 : 0;
        cr_expect_eq(owner_table_assign(now, 4, before, 4, 2, true), moved, "call %u", expected);
        cr_expect_eq(count_changes(now, 4, before, 4), moved);
        memcpy(before, now, sizeof now);
    }
    measure(now, 4, 2);
    cr_expect_eq(max_slots, min_slots);
    /* A move that would gain little is not made: one and a half times the shard's slots must lie between the cores. */
    for (uint32_t extra = 0; extra < 2; extra++) {
        struct shard uneven[3] = {{.key = 1, .cores = 1, .slots_count = 1000}, {.key = 2, .cores = 1, .slots_count = 900}, {.key = 3, .cores = 2, .slots_count = (uint16_t)(551 - extra)}};
        memcpy(now, uneven, sizeof uneven);
        cr_expect_eq(owner_table_assign(now, 3, uneven, 3, 2, true), extra);
        cr_expect_eq(owner_of(&now[1]), extra);
    }
}

Test(owner_table, cores_gone_release_their_shards)
{
    struct shard before[12], now[12];
    make_shards(before, 12);
    owner_table_assign(before, 12, NULL, 0, 6, true);
    memcpy(now, before, sizeof now);
    uint32_t moved = owner_table_assign(now, 12, before, 12, 3, true);
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
            uint32_t moved = owner_table_assign(shards, count, before, before_count, cores, true);
            cr_assert_leq(moved, 1);
            cr_assert_eq(count_changes(shards, count, before, before_count), moved);
            cr_assert(!is_quiet || step < 390 || moved == 0, "still moving at step %u", step);
        }
        measure(shards, count, cores);
        cr_expect_leq(max_slots - min_slots, 1500, "run %u: %u shards, %u cores, %u .. %u", run, count, cores, min_slots, max_slots);
    }
}

Test(owner_table, shard_with_several_cores_keeps_them_and_counts_for_each)
{
    struct shard before[3] = {{.key = 1, .cores = 0x5, .slots_count = 9000}, {.key = 2, .cores = 0x2, .slots_count = 4000}, {.key = 3, .cores = 0x8, .slots_count = 3000}}, now[4];
    memcpy(now, before, sizeof before);
    now[3] = (struct shard){.key = 4, .slots_count = 384};
    cr_expect_eq(owner_table_assign(now, 4, before, 3, 4, true), 0);
    cr_expect_eq(count_changes(now, 4, before, 3), 0);
    /* 4,500, 4,000, 4,500, 3,000. */
    cr_expect_eq(owner_of(&now[3]), 3);
    /* A core that is gone leaves the set; one that has lost all is new. */
    cr_expect_eq(owner_table_assign(now, 3, before, 3, 2, true), 2);
    cr_expect_eq(now[0].cores, 0x1);
    cr_expect_eq(now[1].cores, 0x2);
    cr_expect_eq(owner_table_cores_count(&now[2]), 1);
}

Test(owner_table, without_evening_only_newcomers_are_placed)
{
    struct shard before[4], now[4];
    make_shards(before, 4);
    for (uint32_t i = 0; i < 4; i++)
        before[i].cores = 1;
    memcpy(now, before, sizeof now);
    cr_expect_eq(owner_table_assign(now, 4, before, 4, 2, false), 0);
    cr_expect_eq(count_changes(now, 4, before, 4), 0);
}

/* A core that joins takes its share and moves nothing else; all have about the same share, in ranges of neighbours. */
Test(owner_table, choice_of_a_core_moves_least_when_the_set_changes)
{
    struct rng rng = {.state = 5};
    for (uint32_t run = 0; run < 200; run++) {
        uint32_t count = 1 + rng_below(&rng, CORES_MAX - 1), slots = run % 2 ? 16384 : 1 + rng_below(&rng, 16384);
        uint64_t cores = 0;
        while ((uint32_t)__builtin_popcountll(cores) < count)
            cores |= UINT64_C(1) << rng_below(&rng, CORES_MAX);
        uint32_t joined;
        do
            joined = rng_below(&rng, CORES_MAX);
        while ((cores >> joined & 1) != 0);
        uint32_t taken = 0, ranges = 1, largest = 0, shares[CORES_MAX] = {0};
        for (uint32_t slot = 0; slot < slots; slot++) {
            uint16_t before = owner_table_choose(cores, slot, slots), after = owner_table_choose(cores | UINT64_C(1) << joined, slot, slots);
            cr_assert((cores >> before & 1) != 0);
            cr_assert(after == before || after == joined);
            taken += after == joined;
            ranges += slot > 0 && before != owner_table_choose(cores, slot - 1, slots);
            shares[before]++;
            largest = shares[before] > largest ? shares[before] : largest;
        }
        cr_expect_leq(ranges, 256 + 64);
        if (slots == 16384 && count <= 4)
            cr_expect(taken > slots / (count + 1) / 2 && taken < slots / (count + 1) * 2 && largest < slots / count * 3 / 2, "%u cores: %u taken, largest %u", count, taken, largest);
    }
}
