/*
 * The owner table's arithmetic. Runs on the housekeeping core; no state.
 */
#include "shard/owner_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/hash.h"

enum { GROUP_SLOTS_LOG_MAX = 6, GROUPS_PER_SHARD = 64 };
static_assert((int)CONFIG_DATA_CORES_MAX <= 64, "a bit a core");

struct load {
    uint32_t slots;
    uint32_t shards;
};

static const struct shard *find_shard(const struct shard *shards, uint32_t count, uint32_t key)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (shards[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && shards[low].key == key ? &shards[low] : NULL;
}

static void give(struct shard *shard, uint64_t cores, struct load *loads)
{
    shard->cores = cores;
    uint32_t count = owner_table_cores_count(shard);
    for (uint64_t left = cores; left != 0; left &= left - 1) {
        uint32_t core = (uint32_t)__builtin_ctzll(left);
        loads[core].slots += shard->slots_count / count;
        loads[core].shards++;
    }
}

/* Slots decide; the number of shards spreads those without slots. */
static uint16_t least_loaded(const struct load *loads, uint32_t cores_count)
{
    uint32_t best = 0;
    for (uint32_t core = 1; core < cores_count; core++)
        if (loads[core].slots < loads[best].slots || (loads[core].slots == loads[best].slots && loads[core].shards < loads[best].shards))
            best = core;
    return (uint16_t)best;
}

static uint16_t most_loaded(const struct load *loads, uint32_t cores_count)
{
    uint32_t best = 0;
    for (uint32_t core = 1; core < cores_count; core++)
        if (loads[core].slots > loads[best].slots)
            best = core;
    return (uint16_t)best;
}

static int compare_largest_first(const void *left, const void *right)
{
    const struct shard *a = *(struct shard *const *)left, *b = *(struct shard *const *)right;
    if (a->slots_count != b->slots_count)
        return a->slots_count > b->slots_count ? -1 : 1;
    return a->key < b->key ? -1 : a->key > b->key;
}

static void place_newcomers(struct shard *shards, uint32_t shards_count, struct load *loads, uint32_t cores_count)
{
    struct shard **newcomers = alloc_zeroed((shards_count + 1) * sizeof(struct shard *));
    uint32_t count = 0;
    for (uint32_t i = 0; i < shards_count; i++)
        if (shards[i].cores == 0)
            newcomers[count++] = &shards[i];
    qsort(newcomers, count, sizeof(struct shard *), compare_largest_first);
    for (uint32_t i = 0; i < count; i++)
        give(newcomers[i], UINT64_C(1) << least_loaded(loads, cores_count), loads);
    alloc_free(newcomers);
}

/* Moves the shard that leaves the two cores most alike; NULL where there is nothing to gain. */
static const struct shard *move_one(struct shard *shards, uint32_t shards_count, struct load *loads, uint32_t cores_count)
{
    uint16_t from = most_loaded(loads, cores_count), to = least_loaded(loads, cores_count);
    uint32_t gap = loads[from].slots - loads[to].slots;
    struct shard *best = NULL;
    uint32_t best_peak = loads[from].slots;
    for (uint32_t i = 0; i < shards_count; i++) {
        uint32_t slots = shards[i].slots_count;
        if (shards[i].cores != UINT64_C(1) << from || slots == 0 || 3 * slots > 2 * gap)
            continue;
        uint32_t left = loads[from].slots - slots, arrived = loads[to].slots + slots;
        uint32_t peak = left > arrived ? left : arrived;
        if (peak < best_peak) {
            best = &shards[i];
            best_peak = peak;
        }
    }
    if (best)
        best->cores = UINT64_C(1) << to;
    return best;
}

uint32_t owner_table_assign(struct shard *shards, uint32_t shards_count, const struct shard *previous, uint32_t previous_count, uint32_t data_cores, bool is_evened)
{
    ZG_CHECK(data_cores >= 1 && data_cores <= CONFIG_DATA_CORES_MAX);
    ZG_CHECK(shards_count <= TOPOLOGY_SHARDS_MAX && previous_count <= TOPOLOGY_SHARDS_MAX);
    struct load loads[CONFIG_DATA_CORES_MAX];
    memset(loads, 0, sizeof loads);
    uint64_t all = UINT64_MAX >> (64 - data_cores);
    uint32_t moved = 0;
    for (uint32_t i = 0; i < shards_count; i++) {
        ZG_CHECK(i == 0 || shards[i - 1].key < shards[i].key);
        const struct shard *before = find_shard(previous, previous_count, shards[i].key);
        shards[i].cores = 0;
        if (before && (before->cores & all) != 0)
            give(&shards[i], before->cores & all, loads);
        moved += before && before->cores != shards[i].cores;
    }
    place_newcomers(shards, shards_count, loads, data_cores);
    const struct shard *relieved = is_evened ? move_one(shards, shards_count, loads, data_cores) : NULL;
    if (relieved && find_shard(previous, previous_count, relieved->key))
        moved++;
    return moved;
}

uint16_t owner_table_choose(uint64_t cores, uint32_t slot, uint32_t slots_count)
{
    ZG_CHECK(cores != 0 && slot < CLUSTER_SLOTS);
    uint32_t shift = 0;
    while (shift < GROUP_SLOTS_LOG_MAX && slots_count >> (shift + 1) >= GROUPS_PER_SHARD)
        shift++;
    uint64_t best = 0;
    uint16_t chosen = 0;
    for (uint64_t left = cores; left != 0; left &= left - 1) {
        uint32_t core = (uint32_t)__builtin_ctzll(left);
        uint64_t hash = hash_u64((uint64_t)(slot >> shift) << 32 | (shift << 16) | (core + 1));
        if (hash >= best) {
            best = hash;
            chosen = (uint16_t)core;
        }
    }
    return chosen;
}
