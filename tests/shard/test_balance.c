/*
 * The balance of owners in simulation: a world of shards and slots with loads, rounds of measures with noise, and what is moved applied. Everything follows from seeds.
 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "shard/balance.h"
#include "shard/owner_table.h"

TestSuite(balance, .timeout = 110);

enum { SHARDS_MAX = 10000, ROUND_MS = 1000, MOVES_MAX = 1024 };

static const struct balance_limits limits = {.threshold_percent = 25, .moves_max = MOVES_MAX, .pause_ms = 3 * ROUND_MS};

struct world {
    struct balance *balance;
    struct rng rng;
    uint64_t now_ms;
    uint32_t cores_count, slots_count, shards_count;
    uint32_t noise_percent; /* of every load of every round */
    uint16_t slot_shard[CLUSTER_SLOTS];
    uint16_t slot_owner[CLUSTER_SLOTS];
    uint64_t shard_cores[SHARDS_MAX];
    uint32_t shard_keys[SHARDS_MAX];
    uint32_t slot_load[CLUSTER_SLOTS]; /* true */
    uint32_t core_base[CONFIG_DATA_CORES_MAX];
    uint64_t loads[CONFIG_DATA_CORES_MAX]; /* of cores, true */
    uint64_t moved_slots, moved_load, changes;
    uint64_t changed_ms;
};

/* Slots in ranges, as clusters have them. Each shard on a core, as if by its number of slots. */
static struct world *world_create(uint64_t seed, uint32_t cores, uint32_t shards, uint32_t slots)
{
    struct world *world = calloc(1, sizeof(*world));
    world->balance = balance_create(SHARDS_MAX, &limits);
    world->rng.state = seed;
    world->cores_count = cores;
    world->shards_count = shards;
    world->slots_count = slots;
    for (uint32_t i = 0; i < shards; i++) {
        world->shard_keys[i] = i + 1;
        world->shard_cores[i] = UINT64_C(1) << i % cores;
    }
    for (uint32_t slot = 0; slot < slots; slot++) {
        world->slot_shard[slot] = (uint16_t)((uint64_t)slot * shards / slots);
        world->slot_owner[slot] = world->slot_shard[slot] % (uint16_t)cores;
    }
    return world;
}

static void world_destroy(struct world *world)
{
    balance_destroy(&world->balance);
    free(world);
}

static uint32_t noisy(struct world *world, uint32_t load)
{
    uint64_t span = (uint64_t)load * world->noise_percent / 100;
    return (uint32_t)(load - span + (span > 0 ? rng_next(&world->rng) % (2 * span + 1) : 0));
}

static uint64_t share(uint32_t percent)
{
    return (uint64_t)BALANCE_CORE / 100 * percent;
}

/* Random loads of the slots that make up `total` percent of a core; `skew` times some are larger than others. */
static void spread(struct world *world, uint32_t total_percent, uint32_t skew)
{
    uint64_t sum = 0;
    uint32_t *weights = calloc(world->slots_count, sizeof(*weights));
    for (uint32_t slot = 0; slot < world->slots_count; slot++) {
        weights[slot] = 100 + rng_below(&world->rng, 100);
        for (uint32_t i = rng_below(&world->rng, 4); skew > 1 && i > 2; i--)
            weights[slot] *= 1 + rng_below(&world->rng, skew);
        sum += weights[slot];
    }
    for (uint32_t slot = 0; slot < world->slots_count; slot++)
        world->slot_load[slot] = (uint32_t)(share(total_percent) * weights[slot] / sum);
    free(weights);
}

static void measure(struct world *world)
{
    for (uint32_t core = 0; core < world->cores_count; core++)
        world->loads[core] = world->core_base[core];
    for (uint32_t slot = 0; slot < world->slots_count; slot++)
        world->loads[world->slot_owner[slot]] += world->slot_load[slot];
}

/* Busiest core by the mean, in percent. */
static uint32_t imbalance(struct world *world)
{
    uint64_t total = 0, busiest = 0;
    measure(world);
    for (uint32_t core = 0; core < world->cores_count; core++) {
        total += world->loads[core];
        busiest = world->loads[core] > busiest ? world->loads[core] : busiest;
    }
    return total > 0 ? (uint32_t)(busiest * 100 * world->cores_count / total) : 100;
}

static uint32_t extra_cores(const struct world *world)
{
    uint32_t extra = 0;
    for (uint32_t shard = 0; shard < world->shards_count; shard++)
        extra += (uint32_t)__builtin_popcountll(world->shard_cores[shard]) - 1;
    return extra;
}

/* What holds for every plan. */
static void apply(struct world *world)
{
    const struct balance *balance = world->balance;
    uint32_t first_shard = balance->moves_count > 0 ? world->slot_shard[balance->moves[0].slot] : 0, of_first = 0;
    for (uint32_t i = 0; i < balance->sets_count; i++) {
        cr_assert_lt(balance->sets[i].shard, world->shards_count);
        cr_assert(balance->sets[i].cores != 0 && (balance->sets[i].cores & ~(UINT64_MAX >> (64 - world->cores_count))) == 0);
        world->shard_cores[balance->sets[i].shard] = balance->sets[i].cores;
    }
    for (uint32_t i = 0; i < balance->moves_count; i++) {
        const struct balance_move *move = &balance->moves[i];
        cr_assert_eq(world->slot_owner[move->slot], move->from, "moved once");
        cr_assert_neq(move->from, move->to);
        world->slot_owner[move->slot] = move->to;
        world->moved_load += world->slot_load[move->slot];
        of_first += world->slot_shard[move->slot] == first_shard;
    }
    cr_assert(balance->moves_count <= MOVES_MAX || of_first == balance->moves_count, "%u slots at once", balance->moves_count);
    for (uint32_t slot = 0; slot < world->slots_count; slot++)
        if (world->slot_shard[slot] != SHARD_NONE)
            cr_assert((world->shard_cores[world->slot_shard[slot]] >> world->slot_owner[slot] & 1) != 0, "slot %u", slot);
    cr_assert_leq(extra_cores(world), BALANCE_EXTRA_PER_CORE * world->cores_count);
    cr_assert(world->changes == 0 || world->now_ms - world->changed_ms >= limits.pause_ms, "no pause");
    world->moved_slots += balance->moves_count;
    world->changes++;
    world->changed_ms = world->now_ms;
}

/* Rounds; returns how many of them changed something. */
static uint32_t run(struct world *world, uint32_t rounds)
{
    uint32_t changed = 0;
    static uint32_t slot_load[CLUSTER_SLOTS], core_base[CONFIG_DATA_CORES_MAX];
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t slot = 0; slot < world->slots_count; slot++)
            slot_load[slot] = noisy(world, world->slot_load[slot]);
        for (uint32_t core = 0; core < world->cores_count; core++)
            core_base[core] = noisy(world, world->core_base[core]);
        struct balance_view view = {
            .now_ms = world->now_ms,
            .cores_count = world->cores_count,
            .slots_count = world->slots_count,
            .shards_count = world->shards_count,
            .slot_shard = world->slot_shard,
            .slot_owner = world->slot_owner,
            .shard_cores = world->shard_cores,
            .shard_keys = world->shard_keys,
            .slot_load = slot_load,
            .core_base = core_base,
        };
        if (balance_round(world->balance, &view)) {
            apply(world);
            changed++;
        }
        world->now_ms += ROUND_MS;
    }
    return changed;
}

/* The part of `from` that would have to go, at least, to reach the mean everywhere. */
static uint64_t least_movement(struct world *world)
{
    uint64_t total = 0, excess = 0;
    measure(world);
    for (uint32_t core = 0; core < world->cores_count; core++)
        total += world->loads[core];
    for (uint32_t core = 0; core < world->cores_count; core++)
        excess += world->loads[core] > total / world->cores_count ? world->loads[core] - total / world->cores_count : 0;
    return excess;
}

/* Shards with their own loads on random cores, 1 .. 64 cores: balance is reached, with little more movement than it takes, and then nothing moves however noisy the measures are. */
Test(balance, random_loads_are_balanced_with_little_movement_and_then_rest)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct rng rng = {.state = seed};
        uint32_t cores = seed <= 7 ? 1u << (seed - 1) : 1 + rng_below(&rng, 64);
        uint32_t shards = cores * (8 + rng_below(&rng, 40));
        shards = shards < SHARDS_MAX ? shards : SHARDS_MAX;
        struct world *world = world_create(seed, cores, shards, CLUSTER_SLOTS);
        world->noise_percent = 20;
        for (uint32_t shard = 0; shard < shards; shard++)
            world->shard_cores[shard] = UINT64_C(1) << rng_below(&rng, cores);
        for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
            world->slot_owner[slot] = (uint16_t)__builtin_ctzll(world->shard_cores[world->slot_shard[slot]]);
        spread(world, cores * 40, seed % 2 ? 1 : 3);
        for (uint32_t core = 0; core < cores; core++)
            world->core_base[core] = (uint32_t)share(rng_below(&rng, 20));
        uint32_t before = imbalance(world);
        uint64_t least = least_movement(world);
        run(world, 120);
        uint32_t after = imbalance(world);
        cr_expect_leq(after, 130, "seed %lu: %u cores, %u shards: %u %% before, %u %% now", seed, cores, shards, before, after);
        cr_expect_leq(world->moved_load, least * 3 / 2 + share(5), "seed %lu: moved %lu of at least %lu", seed, world->moved_load, least);
        cr_expect_eq(extra_cores(world), 0, "seed %lu: no shard needed a second core", seed);
        /* A core that was left just below the threshold may be carried over it by noise, once. */
        cr_expect_leq(run(world, 200), 3, "seed %lu: %u cores, %u shards: still moving at %u %%", seed, cores, shards, imbalance(world));
        cr_expect_leq(run(world, 100), 1, "seed %lu: %u cores, %u shards: still moving at %u %%", seed, cores, shards, imbalance(world));
        world_destroy(world);
    }
}

Test(balance, idle_or_lightly_loaded_cores_are_left_alone)
{
    struct world *world = world_create(3, 4, 3, CLUSTER_SLOTS);
    cr_expect_eq(run(world, 50), 0, "no load at all");
    cr_expect_eq(world->balance->imbalance_permille, 1000);
    /* All on one core, and still below the floor. */
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        world->slot_owner[slot] = 2;
    for (uint32_t shard = 0; shard < 3; shard++)
        world->shard_cores[shard] = 4;
    spread(world, BALANCE_FLOOR_PERCENT - 2, 1);
    cr_expect_eq(run(world, 50), 0);
    cr_expect_eq(world->balance->imbalance_permille, 4000);
    world_destroy(world);
}

/* k follows the load up, is enough, and comes down again only when it fell far. */
Test(balance, shard_that_needs_more_cores_gets_them_and_gives_them_back)
{
    struct world *world = world_create(4, 8, 1, CLUSTER_SLOTS);
    world->noise_percent = 10;
    spread(world, 60, 1);
    run(world, 60);
    cr_expect_eq(extra_cores(world), 0, "one core is enough for 60 %%");
    spread(world, 300, 1);
    run(world, 200);
    measure(world);
    uint32_t k = extra_cores(world) + 1;
    cr_expect(k >= 4 && k <= 8, "%u cores for 300 %%", k);
    for (uint32_t core = 0; core < 8; core++)
        cr_expect_leq(world->loads[core], share(90));
    cr_expect_eq(run(world, 100), 0, "steady");
    /* Half of it is no reason to give anything back. */
    spread(world, 250, 1);
    run(world, 100);
    cr_expect_geq(extra_cores(world) + 1, 4);
    spread(world, 30, 1);
    run(world, 400);
    cr_expect_eq(extra_cores(world), 0, "one core is enough again");
    cr_expect_eq(run(world, 100), 0, "steady");
    world_destroy(world);
}

/* A load that swings around the point where k rises does not make k swing. */
Test(balance, load_around_the_threshold_does_not_make_k_swing)
{
    struct world *world = world_create(5, 4, 1, CLUSTER_SLOTS);
    world->noise_percent = 5;
    for (uint32_t i = 0; i < 100; i++) {
        spread(world, i % 2 ? 75 : 88, 1);
        run(world, 10);
    }
    cr_expect_leq(world->changes, 3, "%lu changes", world->changes);
    world_destroy(world);
}

/* What cannot be divided stays, and what shares its core goes elsewhere: once. */
Test(balance, hot_slot_stays_and_others_make_room_for_it)
{
    for (uint32_t hot = 30; hot <= 95; hot += 13) {
        struct world *world = world_create(hot, 4, 40, CLUSTER_SLOTS);
        world->noise_percent = 15;
        spread(world, 80, 1);
        world->slot_load[100] += (uint32_t)share(hot);
        run(world, 150);
        measure(world);
        uint16_t owner = world->slot_owner[100];
        cr_expect_leq(world->loads[owner], share(hot) + share(30), "slot of %u %%: its core has %lu", hot, world->loads[owner]);
        uint64_t changes = world->changes;
        run(world, 200);
        cr_expect_leq(world->changes - changes, 1, "slot of %u %%: %lu changes", hot, world->changes - changes);
        cr_expect_eq(world->slot_owner[100], owner);
        world_destroy(world);
    }
    /* One slot has it all, as with one server. */
    struct world *world = world_create(1, 4, 1, 1);
    world->slot_load[0] = (uint32_t)share(99);
    cr_expect_eq(run(world, 200), 0);
    world_destroy(world);
    /* One shard, one hot slot in it: the rest is little, and stays too. */
    world = world_create(2, 2, 1, CLUSTER_SLOTS);
    spread(world, 3, 1);
    world->slot_load[5] = (uint32_t)share(90);
    world->noise_percent = 10;
    cr_expect_eq(run(world, 200), 0);
    world_destroy(world);
}

/* A core that is busy with its clients owns less. */
Test(balance, busy_home_core_gives_its_slots_away)
{
    struct world *world = world_create(8, 4, 40, CLUSTER_SLOTS);
    world->noise_percent = 10;
    spread(world, 100, 1);
    world->core_base[1] = (uint32_t)share(60);
    run(world, 100);
    measure(world);
    cr_expect_leq(world->loads[1], share(60) + share(12));
    cr_expect_eq(run(world, 100), 0);
    world_destroy(world);
}

/* Standalone servers: a slot each. */
Test(balance, servers_are_moved_as_a_whole)
{
    struct world *world = world_create(9, 3, 12, 12);
    world->noise_percent = 10;
    for (uint32_t slot = 0; slot < 12; slot++) {
        world->slot_owner[slot] = 0;
        world->shard_cores[slot] = 1;
        world->slot_load[slot] = (uint32_t)share(20);
    }
    run(world, 100);
    cr_expect_leq(imbalance(world), 125);
    cr_expect_eq(extra_cores(world), 0);
    cr_expect_eq(run(world, 100), 0);
    world_destroy(world);
}

/* Shards come and go, as with nodes added and removed; indices shift, and some slots are nobody's. */
Test(balance, shards_that_come_and_go_are_followed)
{
    struct rng rng = {.state = 77};
    struct world *world = world_create(10, 6, 30, CLUSTER_SLOTS);
    world->noise_percent = 10;
    spread(world, 240, 1);
    for (uint32_t step = 0; step < 25; step++) {
        run(world, 12);
        uint16_t index = (uint16_t)rng_below(&rng, world->shards_count);
        if (step % 2 == 0) {
            /* A newcomer takes half of a shard's slots, on a core of its own choice. */
            uint16_t fresh = (uint16_t)world->shards_count++;
            world->shard_keys[fresh] = world->shard_keys[fresh - 1] + 1;
            world->shard_cores[fresh] = UINT64_C(1) << rng_below(&rng, 6);
            for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
                if (world->slot_shard[slot] == index && rng_below(&rng, 2) == 0) {
                    world->slot_shard[slot] = fresh;
                    world->slot_owner[slot] = (uint16_t)__builtin_ctzll(world->shard_cores[fresh]);
                }
        } else {
            /* One goes; its slots are nobody's, or the first shard's. */
            world->shards_count--;
            memmove(&world->shard_keys[index], &world->shard_keys[index + 1], (world->shards_count - index) * sizeof(world->shard_keys[0]));
            memmove(&world->shard_cores[index], &world->shard_cores[index + 1], (world->shards_count - index) * sizeof(world->shard_cores[0]));
            for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++) {
                if (world->slot_shard[slot] == SHARD_NONE || world->slot_shard[slot] < index)
                    continue;
                bool is_gone = world->slot_shard[slot] == index;
                world->slot_shard[slot] = is_gone ? (step % 4 == 1 ? SHARD_NONE : 0) : (uint16_t)(world->slot_shard[slot] - 1);
                if (is_gone && world->slot_shard[slot] == 0)
                    world->slot_owner[slot] = (uint16_t)__builtin_ctzll(world->shard_cores[0]);
            }
        }
    }
    run(world, 100);
    cr_expect_leq(imbalance(world), 150);
    cr_expect_eq(run(world, 100), 0);
    world_destroy(world);
}

/* A world of the greatest size: a round is a matter of milliseconds, so the whole is over in seconds even under a sanitizer. */
Test(balance, ten_thousand_shards_on_sixty_four_cores)
{
    struct world *world = world_create(11, 64, 10000, CLUSTER_SLOTS);
    struct rng rng = {.state = 12};
    world->noise_percent = 20;
    for (uint32_t shard = 0; shard < 10000; shard++)
        world->shard_cores[shard] = UINT64_C(1) << (rng_below(&rng, 4) == 0 ? rng_below(&rng, 8) : rng_below(&rng, 64));
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        world->slot_owner[slot] = (uint16_t)__builtin_ctzll(world->shard_cores[world->slot_shard[slot]]);
    spread(world, 64 * 30, 2);
    uint32_t before = imbalance(world);
    run(world, 100);
    cr_expect_leq(imbalance(world), 130, "%u before", before);
    cr_expect_eq(run(world, 50), 0);
    world_destroy(world);
}

/* Every slot of a few shards in turn: nothing is asserted but what holds for every plan, and that the whole does not run wild. */
Test(balance, loads_that_jump_do_not_run_wild)
{
    struct rng rng = {.state = 13};
    for (uint32_t pass = 0; pass < 8; pass++) {
        struct world *world = world_create(pass, 1 + rng_below(&rng, 16), 1 + rng_below(&rng, 20), CLUSTER_SLOTS);
        for (uint32_t step = 0; step < 60; step++) {
            memset(world->slot_load, 0, sizeof(world->slot_load));
            uint32_t first = rng_below(&rng, CLUSTER_SLOTS);
            for (uint32_t i = 0; i < 200; i++)
                world->slot_load[(first + i) % CLUSTER_SLOTS] = rng_below(&rng, 3) == 0 ? (uint32_t)share(rng_below(&rng, 99)) : UINT32_MAX / 100;
            for (uint32_t core = 0; core < world->cores_count; core++)
                world->core_base[core] = (uint32_t)share(rng_below(&rng, 101));
            run(world, 1 + rng_below(&rng, 8));
        }
        cr_expect_leq(world->changes, world->now_ms / limits.pause_ms + 1);
        world_destroy(world);
    }
}

Test(balance, one_round_follows_from_its_input_alone)
{
    struct world *first = world_create(14, 5, 50, CLUSTER_SLOTS), *second = world_create(14, 5, 50, CLUSTER_SLOTS);
    spread(first, 200, 3);
    spread(second, 200, 3);
    first->core_base[2] = second->core_base[2] = (uint32_t)share(50);
    first->noise_percent = second->noise_percent = 10;
    run(first, 60);
    run(second, 60);
    cr_expect_gt(first->changes, 0);
    cr_expect_arr_eq(first->slot_owner, second->slot_owner, sizeof(first->slot_owner));
    cr_expect_eq(first->changes, second->changes);
    world_destroy(first);
    world_destroy(second);
}

Test(balance, shuffle_keeps_every_slot_with_a_core_of_its_shard)
{
    struct world *world = world_create(15, 4, 7, CLUSTER_SLOTS);
    struct rng rng = {.state = 16};
    uint64_t seen = 0;
    for (uint32_t slot = 0; slot < 50; slot++)
        world->slot_shard[slot] = SHARD_NONE;
    for (uint32_t round = 0; round < 200; round++) {
        struct balance_view view = {.cores_count = 4, .slots_count = CLUSTER_SLOTS, .shards_count = 7, .slot_shard = world->slot_shard, .slot_owner = world->slot_owner, .shard_cores = world->shard_cores, .shard_keys = world->shard_keys};
        if (!balance_shuffle(world->balance, &view, &rng))
            continue;
        for (uint32_t i = 0; i < world->balance->sets_count; i++)
            world->shard_cores[world->balance->sets[i].shard] = world->balance->sets[i].cores;
        for (uint32_t i = 0; i < world->balance->moves_count; i++)
            world->slot_owner[world->balance->moves[i].slot] = world->balance->moves[i].to;
        for (uint32_t slot = 50; slot < CLUSTER_SLOTS; slot++)
            cr_assert((world->shard_cores[world->slot_shard[slot]] >> world->slot_owner[slot] & 1) != 0);
        seen |= UINT64_C(1) << world->slot_owner[9000];
    }
    cr_expect_eq(seen, 0xf, "each core in turn");
    world_destroy(world);
}
