/*
 * Owns: the arithmetic of balancing owners. Runs on: the housekeeping core; no state but the struct.
 */
#include "shard/balance.h"

#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "shard/owner_table.h"

enum {
    SMOOTH_SHIFT = 2,      /* a new measure counts for a quarter */
    SETTLE_DIVISOR = 4,    /* a core gives until it is above the mean by no more than this part of the threshold */
    WORTH_DIVISOR = 256,   /* a part that is less than this share of what a core has too much is not worth its move */
    SHUFFLE_CORES_MAX = 3,
};

static uint64_t bit(uint32_t core)
{
    return UINT64_C(1) << core;
}

static uint64_t percent_of_core(uint32_t percent)
{
    return (uint64_t)BALANCE_CORE / 100 * percent;
}

struct balance *balance_create(uint32_t shards_max, const struct balance_limits *limits)
{
    ZG_CHECK(shards_max >= 1 && shards_max < SHARD_NONE && limits->moves_max > 0);
    struct balance *balance = alloc_zeroed(sizeof(*balance));
    balance->limits = *limits;
    balance->shards_max = shards_max;
    balance->sets = alloc_zeroed(shards_max * sizeof(*balance->sets));
    balance->shard_cores = alloc_zeroed(shards_max * sizeof(*balance->shard_cores));
    balance->part_load = alloc_zeroed(shards_max * sizeof(*balance->part_load));
    balance->part_slots = alloc_zeroed(shards_max * sizeof(*balance->part_slots));
    balance->parts = alloc_zeroed(shards_max * sizeof(*balance->parts));
    return balance;
}

void balance_destroy(struct balance **balance)
{
    if (*balance == NULL)
        return;
    alloc_free((*balance)->sets);
    alloc_free((*balance)->shard_cores);
    alloc_free((*balance)->part_load);
    alloc_free((*balance)->part_slots);
    alloc_free((*balance)->parts);
    alloc_free(*balance);
    *balance = NULL;
}

/* ---- what was measured ---- */

static uint32_t smoothed(uint32_t before, uint32_t now)
{
    return before + (uint32_t)(((int64_t)now - before) / (1 << SMOOTH_SHIFT));
}

static void take_view(struct balance *balance, const struct balance_view *view)
{
    ZG_CHECK(view->cores_count >= 1 && view->cores_count <= CONFIG_DATA_CORES_MAX);
    ZG_CHECK(view->slots_count <= CLUSTER_SLOTS && view->shards_count <= balance->shards_max);
    balance->view = view;
    balance->moves_count = 0;
    balance->sets_count = 0;
    memcpy(balance->slot_owner, view->slot_owner, view->slots_count * sizeof(*view->slot_owner));
    memcpy(balance->shard_cores, view->shard_cores, view->shards_count * sizeof(*view->shard_cores));
}

static void measure(struct balance *balance)
{
    const struct balance_view *view = balance->view;
    bool is_first = balance->rounds_count++ == 0;
    uint64_t total = 0, busiest = 0;
    for (uint32_t core = 0; core < view->cores_count; core++) {
        balance->core_base[core] = is_first ? view->core_base[core] : smoothed(balance->core_base[core], view->core_base[core]);
        balance->core_load[core] = balance->core_base[core];
    }
    for (uint32_t slot = 0; slot < view->slots_count; slot++) {
        balance->slot_load[slot] = is_first ? view->slot_load[slot] : smoothed(balance->slot_load[slot], view->slot_load[slot]);
        ZG_CHECK(view->slot_owner[slot] < view->cores_count);
        balance->core_load[view->slot_owner[slot]] += balance->slot_load[slot];
    }
    for (uint32_t core = 0; core < view->cores_count; core++) {
        total += balance->core_load[core];
        busiest = balance->core_load[core] > busiest ? balance->core_load[core] : busiest;
    }
    balance->mean = total / view->cores_count;
    balance->busiest_permille = (uint32_t)(busiest * 1000 / BALANCE_CORE);
    balance->imbalance_permille = total > 0 ? (uint32_t)(busiest * 1000 * view->cores_count / total) : 1000;
    for (uint32_t core = 0; core < view->cores_count; core++) {
        uint64_t load = balance->core_load[core];
        bool is_over = load * 100 > balance->mean * (100 + balance->limits.threshold_percent) && load >= percent_of_core(BALANCE_FLOOR_PERCENT);
        balance->over_rounds[core] = is_over ? balance->over_rounds[core] + 1 : 0;
    }
}

/* ---- changes ---- */

static uint32_t slots_of(const struct balance_view *view, uint32_t shard)
{
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < view->slots_count; slot++)
        count += view->slot_shard[slot] == shard;
    return count;
}

static void move_slot(struct balance *balance, uint32_t slot, uint16_t to)
{
    uint16_t from = balance->slot_owner[slot];
    ZG_CHECK(from != to && balance->moves_count < CLUSTER_SLOTS);
    balance->moves[balance->moves_count++] = (struct balance_move){.slot = (uint16_t)slot, .from = from, .to = to};
    balance->slot_owner[slot] = to;
    balance->core_load[from] -= balance->slot_load[slot];
    balance->core_load[to] += balance->slot_load[slot];
}

/* What the round has changed about the sets, for the caller. */
static void list_sets(struct balance *balance)
{
    for (uint32_t shard = 0; shard < balance->view->shards_count; shard++)
        if (balance->shard_cores[shard] != balance->view->shard_cores[shard])
            balance->sets[balance->sets_count++] = (struct balance_set){.shard = (uint16_t)shard, .cores = balance->shard_cores[shard]};
}

static uint32_t least_busy(const struct balance *balance, uint64_t without)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t core = 0; core < balance->view->cores_count; core++)
        if ((without & bit(core)) == 0 && (best == UINT32_MAX || balance->core_load[core] < balance->core_load[best]))
            best = core;
    return best;
}

/* The shards with slots on `core`, and what these cost. */
static void find_parts(struct balance *balance, uint32_t core)
{
    const struct balance_view *view = balance->view;
    for (uint32_t i = 0; i < balance->parts_count; i++) {
        balance->part_load[balance->parts[i]] = 0;
        balance->part_slots[balance->parts[i]] = 0;
    }
    balance->parts_count = 0;
    for (uint32_t slot = 0; slot < view->slots_count; slot++) {
        uint16_t shard = view->slot_shard[slot];
        if (shard == SHARD_NONE || balance->slot_owner[slot] != core)
            continue;
        if (balance->part_slots[shard]++ == 0)
            balance->parts[balance->parts_count++] = shard;
        balance->part_load[shard] += balance->slot_load[slot];
    }
}

/* All slots of a shard that `from` has. `to` takes its place. */
static void move_part(struct balance *balance, uint16_t shard, uint16_t from, uint16_t to)
{
    for (uint32_t slot = 0; slot < balance->view->slots_count; slot++)
        if (balance->view->slot_shard[slot] == shard && balance->slot_owner[slot] == from)
            move_slot(balance, slot, to);
    balance->shard_cores[shard] = (balance->shard_cores[shard] & ~bit(from)) | bit(to);
}

/* Slots of a shard up to a load of `wanted`, those first that the hash would give to `to`. Returns their load. */
static uint64_t move_slots(struct balance *balance, uint16_t shard, uint16_t from, uint16_t to, uint64_t wanted, uint32_t budget)
{
    const struct balance_view *view = balance->view;
    uint64_t cores = balance->shard_cores[shard] | bit(to);
    uint32_t shard_slots = slots_of(view, shard);
    uint64_t moved = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t slot = 0; slot < view->slots_count && budget > 0; slot++) {
            uint32_t load = balance->slot_load[slot];
            if (view->slot_shard[slot] != shard || balance->slot_owner[slot] != from || load == 0 || moved + load > wanted)
                continue;
            if (pass == 0 && owner_table_choose(cores, slot, shard_slots) != to)
                continue;
            move_slot(balance, slot, to);
            moved += load;
            budget--;
        }
    if (moved > 0)
        balance->shard_cores[shard] = cores;
    return moved;
}

/* ---- move ---- */

/* What one core gives to another: as much as brings one of them to the mean. */
struct relief {
    uint16_t from, to;
    uint64_t wanted, gap;
};

static bool find_relief(const struct balance *balance, uint32_t from, struct relief *relief)
{
    uint32_t to = least_busy(balance, bit(from));
    if (to == UINT32_MAX || balance->core_load[to] >= balance->mean || balance->core_load[from] <= balance->mean)
        return false;
    uint64_t excess = balance->core_load[from] - balance->mean, room = balance->mean - balance->core_load[to];
    *relief = (struct relief){.from = (uint16_t)from, .to = (uint16_t)to, .wanted = excess < room ? excess : room, .gap = balance->core_load[from] - balance->core_load[to]};
    return true;
}

/* The part that comes nearest to what is wanted, as a place in parts; UINT32_MAX: none that helps. Parts of a shard that both cores have can be cut to size. */
static uint32_t choose_part(const struct balance *balance, const struct relief *relief, uint32_t budget)
{
    uint32_t best = UINT32_MAX;
    uint64_t best_distance = UINT64_MAX;
    uint64_t worth = (balance->core_load[relief->from] - balance->mean) / WORTH_DIVISOR;
    for (uint32_t i = 0; i < balance->parts_count; i++) {
        uint16_t shard = balance->parts[i];
        uint64_t load = balance->part_load[shard];
        bool is_shared = (balance->shard_cores[shard] & bit(relief->to)) != 0;
        if (is_shared && load > relief->wanted)
            load = relief->wanted;
        if (balance->part_slots[shard] == 0 || load <= worth)
            continue;
        if (!is_shared && (3 * load > 2 * relief->gap || (balance->part_slots[shard] > budget && balance->moves_count > 0)))
            continue;
        uint64_t distance = load > relief->wanted ? load - relief->wanted : relief->wanted - load;
        if (distance < best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    return best;
}

/* One core gives until it is near the mean, nothing is left that helps, or the round has moved enough. */
static void relieve(struct balance *balance, uint32_t core)
{
    uint64_t enough = balance->mean + balance->mean * balance->limits.threshold_percent / 100 / SETTLE_DIVISOR;
    struct relief relief;
    find_parts(balance, core);
    while (balance->moves_count < balance->limits.moves_max && balance->core_load[core] > enough && find_relief(balance, core, &relief)) {
        uint32_t budget = balance->limits.moves_max - balance->moves_count;
        uint32_t place = choose_part(balance, &relief, budget);
        if (place == UINT32_MAX)
            return;
        uint16_t shard = balance->parts[place];
        bool is_shared = (balance->shard_cores[shard] & bit(relief.to)) != 0;
        if (is_shared)
            (void)move_slots(balance, shard, relief.from, relief.to, relief.wanted, budget);
        else
            move_part(balance, shard, relief.from, relief.to);
        balance->part_slots[shard] = 0; /* once a round */
    }
}

static uint32_t busiest_giver(const struct balance *balance, uint64_t without)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t core = 0; core < balance->view->cores_count; core++)
        if ((without & bit(core)) == 0 && balance->over_rounds[core] >= BALANCE_ROUNDS && (best == UINT32_MAX || balance->core_load[core] > balance->core_load[best]))
            best = core;
    return best;
}

static void move(struct balance *balance)
{
    uint64_t done = 0;
    uint32_t core;
    while (balance->moves_count < balance->limits.moves_max && (core = busiest_giver(balance, done)) != UINT32_MAX) {
        relieve(balance, core);
        done |= bit(core);
    }
}

/* ---- split ---- */

static uint32_t extra_cores(const struct balance *balance)
{
    uint32_t extra = 0;
    for (uint32_t shard = 0; shard < balance->view->shards_count; shard++)
        extra += (uint32_t)__builtin_popcountll(balance->shard_cores[shard]) - 1;
    return extra;
}

/* The shard that takes most of the core's time and may have a further one. SHARD_NONE: none. */
static uint16_t choose_split(const struct balance *balance)
{
    uint16_t best = SHARD_NONE;
    for (uint32_t i = 0; i < balance->parts_count; i++) {
        uint16_t shard = balance->parts[i];
        bool is_large = balance->part_load[shard] >= percent_of_core(BALANCE_SPLIT_PART_PERCENT) && balance->part_slots[shard] > 1;
        if (is_large && (best == SHARD_NONE || balance->part_load[shard] > balance->part_load[best]))
            best = shard;
    }
    return best;
}

static void split(struct balance *balance)
{
    uint32_t from = busiest_giver(balance, 0);
    if (from == UINT32_MAX || balance->core_load[from] < percent_of_core(BALANCE_SPLIT_PERCENT) || extra_cores(balance) >= BALANCE_EXTRA_PER_CORE * balance->view->cores_count)
        return;
    find_parts(balance, from);
    uint16_t shard = choose_split(balance);
    uint32_t to = shard != SHARD_NONE ? least_busy(balance, balance->shard_cores[shard]) : UINT32_MAX;
    if (to == UINT32_MAX || balance->core_load[to] >= balance->core_load[from])
        return;
    uint64_t half = balance->part_load[shard] / 2, gap = balance->core_load[from] - balance->core_load[to];
    uint64_t wanted = half < gap / 2 ? half : gap / 2;
    /* A tenth of the core at least, or it is not worth the links. Nothing has been moved in this round: half a shard is moved whatever it has. */
    if (wanted < percent_of_core(BALANCE_SPLIT_PERCENT) / 10)
        return;
    uint64_t before = balance->shard_cores[shard];
    if (move_slots(balance, shard, (uint16_t)from, (uint16_t)to, wanted, CLUSTER_SLOTS) >= percent_of_core(BALANCE_SPLIT_PERCENT) / 10)
        return;
    /* What was found is too little: one slot has it all. Taken back. */
    while (balance->moves_count > 0) {
        struct balance_move last = balance->moves[--balance->moves_count];
        balance->slot_owner[last.slot] = last.from;
        balance->core_load[last.to] -= balance->slot_load[last.slot];
        balance->core_load[last.from] += balance->slot_load[last.slot];
    }
    balance->shard_cores[shard] = before;
}

/* ---- join ---- */

/* What `core` does for the shard, where its other cores could do that with much to spare; UINT64_MAX: they could not. */
static uint64_t leaving_load(const struct balance *balance, uint32_t shard, uint32_t core)
{
    const struct balance_view *view = balance->view;
    uint64_t others = balance->shard_cores[shard] & ~bit(core), received[CONFIG_DATA_CORES_MAX] = {0}, total = 0;
    uint32_t shard_slots = slots_of(view, shard);
    for (uint32_t slot = 0; slot < view->slots_count; slot++)
        if (view->slot_shard[slot] == shard && balance->slot_owner[slot] == core)
            received[owner_table_choose(others, slot, shard_slots)] += balance->slot_load[slot];
    for (uint32_t other = 0; other < view->cores_count; other++) {
        if (received[other] > 0 && balance->core_load[other] + received[other] > percent_of_core(BALANCE_JOIN_PERCENT))
            return UINT64_MAX;
        total += received[other];
    }
    return total;
}

/* The first shard that can do without a core, and that core: the one that does least for it. */
static bool find_join(struct balance *balance, uint32_t *shard, uint32_t *core)
{
    for (uint32_t i = 0; i < balance->view->shards_count; i++) {
        uint64_t cores = balance->shard_cores[i];
        if ((cores & (cores - 1)) == 0)
            continue;
        uint64_t least = UINT64_MAX;
        for (uint64_t left = cores; left != 0; left &= left - 1) {
            uint32_t candidate = (uint32_t)__builtin_ctzll(left);
            uint64_t load = leaving_load(balance, i, candidate);
            if (load < least) {
                least = load;
                *core = candidate;
            }
        }
        *shard = i;
        if (least != UINT64_MAX)
            return true;
    }
    return false;
}

static void leave(struct balance *balance, uint32_t shard, uint32_t core)
{
    const struct balance_view *view = balance->view;
    balance->shard_cores[shard] &= ~bit(core);
    uint32_t shard_slots = slots_of(view, shard);
    for (uint32_t slot = 0; slot < view->slots_count; slot++)
        if (view->slot_shard[slot] == shard && balance->slot_owner[slot] == core)
            move_slot(balance, slot, owner_table_choose(balance->shard_cores[shard], slot, shard_slots));
}

static void join(struct balance *balance, bool may_change)
{
    uint32_t shard = 0, core = 0;
    if (!find_join(balance, &shard, &core)) {
        balance->join_rounds = 0;
        return;
    }
    uint32_t key = balance->view->shard_keys[shard];
    bool is_same = balance->join_rounds > 0 && balance->join_key == key;
    balance->join_rounds = is_same ? balance->join_rounds + 1 : 1;
    balance->join_key = key;
    if (balance->join_rounds < BALANCE_JOIN_ROUNDS || !may_change)
        return;
    balance->join_rounds = 0;
    leave(balance, shard, core);
}

/* A core that has no slot of a shard any more, because others have taken them, needs no link to it. */
static void drop_idle_cores(struct balance *balance)
{
    const struct balance_view *view = balance->view;
    for (uint32_t shard = 0; shard < view->shards_count; shard++)
        balance->part_load[shard] = 0; /* the cores that own something, a bit each */
    for (uint32_t slot = 0; slot < view->slots_count; slot++)
        if (view->slot_shard[slot] != SHARD_NONE)
            balance->part_load[view->slot_shard[slot]] |= bit(balance->slot_owner[slot]);
    for (uint32_t shard = 0; shard < view->shards_count; shard++) {
        if (balance->part_load[shard] != 0)
            balance->shard_cores[shard] = balance->part_load[shard];
        balance->part_load[shard] = 0;
        balance->part_slots[shard] = 0;
    }
    balance->parts_count = 0;
}

/* ---- public ---- */

bool balance_round(struct balance *balance, const struct balance_view *view)
{
    take_view(balance, view);
    measure(balance);
    bool may_change = view->now_ms >= balance->pause_until_ms;
    if (may_change)
        move(balance);
    if (may_change && balance->moves_count == 0)
        split(balance);
    join(balance, may_change && balance->moves_count == 0);
    drop_idle_cores(balance);
    list_sets(balance);
    balance->view = NULL;
    if (balance->moves_count == 0 && balance->sets_count == 0)
        return false;
    balance->pause_until_ms = view->now_ms + balance->limits.pause_ms;
    memset(balance->over_rounds, 0, sizeof(balance->over_rounds));
    return true;
}

static uint64_t random_cores(struct rng *rng, uint32_t cores_count)
{
    uint64_t cores = 0;
    for (uint32_t count = 1 + rng_below(rng, SHUFFLE_CORES_MAX); count > 0; count--)
        cores |= bit(rng_below(rng, cores_count));
    return cores;
}

bool balance_shuffle(struct balance *balance, const struct balance_view *view, struct rng *rng)
{
    take_view(balance, view);
    memset(balance->slot_load, 0, sizeof(balance->slot_load));
    for (uint32_t shard = 0; shard < view->shards_count; shard++)
        if (rng_below(rng, 2) == 0)
            balance->shard_cores[shard] = random_cores(rng, view->cores_count);
    /* The rest of the slots stays where it may. */
    uint32_t odds = 1 + rng_below(rng, 64);
    for (uint32_t slot = 0; slot < view->slots_count; slot++) {
        uint16_t shard = view->slot_shard[slot];
        if (shard == SHARD_NONE)
            continue;
        uint64_t cores = balance->shard_cores[shard];
        bool may_stay = (cores & bit(balance->slot_owner[slot])) != 0;
        if (may_stay && rng_below(rng, odds) != 0)
            continue;
        uint16_t to = owner_table_choose(cores, rng_below(rng, view->slots_count), 1);
        if (to != balance->slot_owner[slot])
            move_slot(balance, slot, to);
    }
    drop_idle_cores(balance);
    list_sets(balance);
    balance->view = NULL;
    return balance->moves_count > 0 || balance->sets_count > 0;
}
