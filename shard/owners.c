/*
 * Owns: when owners are changed, and what balance.c is told. Runs on: the housekeeping core.
 *
 * What makes a core busy is measured as the time its thread has run, without what it spent spinning for work: that counts the kernel's share too, which is most of it. The time is divided between what the core
 * does for its clients, which stays where it is, and what it does for the slots it owns, by commands and bytes on either side; a slot costs its share of the latter.
 */
#include "shard/owners.h"

#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "shard/owner_table.h"

static uint64_t rise(uint64_t *seen, uint64_t now)
{
    uint64_t risen = now > *seen ? now - *seen : 0;
    *seen = now;
    return risen;
}

/* The time that the core's thread has run since the last call, as a share of `elapsed_ns`: BALANCE_CORE is all of it. */
static uint64_t busy_share(const struct core_peer *peer, struct owners_seen *seen, uint64_t elapsed_ns)
{
    struct timespec time;
    uint64_t spun = rise(&seen->spin_ns, metric_read(peer->metrics, METRIC_loop_spin_ns_total));
    if (clock_gettime(peer->cpu_clock, &time) != 0)
        return 0;
    uint64_t ran = rise(&seen->cpu_ns, (uint64_t)time.tv_sec * BALANCE_CORE + (uint64_t)time.tv_nsec);
    ran = ran > spun ? ran - spun : 0;
    ran = ran < elapsed_ns ? ran : elapsed_ns;
    return (uint64_t)((double)ran / (double)elapsed_ns * BALANCE_CORE);
}

static void measure_core(struct owners *owners, uint32_t id, uint64_t elapsed_ns, uint32_t slots_count)
{
    const struct core_peer *peer = &owners->core->shared->peers[id];
    const struct load_page *page = owners->pages[id];
    struct owners_seen *seen = &owners->seen[id];
    uint64_t busy = busy_share(peer, seen, elapsed_ns);
    uint64_t bytes = metric_read(peer->metrics, METRIC_bytes_from_clients_total) + metric_read(peer->metrics, METRIC_bytes_to_clients_total);
    uint64_t home_units = rise(&seen->requests, metric_read(peer->metrics, METRIC_requests_total)) * LOAD_LEG + (rise(&seen->bytes, bytes) >> LOAD_BYTES_SHIFT);
    uint64_t owner_units = 0;
    for (uint32_t slot = 0; slot < slots_count; slot++) {
        uint32_t units = atomic_load_explicit(&page->units[slot], memory_order_relaxed);
        owner_units += units - seen->units[slot];
    }
    double unit = home_units + owner_units > 0 ? (double)busy / (double)(home_units + owner_units) : 0;
    owners->core_base[id] = home_units + owner_units > 0 ? (uint32_t)((double)home_units * unit) : (uint32_t)busy;
    for (uint32_t slot = 0; slot < slots_count; slot++) {
        uint32_t units = atomic_load_explicit(&page->units[slot], memory_order_relaxed);
        owners->slot_load[slot] += (uint32_t)((double)(units - seen->units[slot]) * unit);
        seen->units[slot] = units;
    }
}

/* False: this was the first look, there is nothing to compare with. */
static bool measure(struct owners *owners, uint32_t slots_count)
{
    uint64_t now_ns = owners->core->now_ns;
    bool is_first = owners->measured_ns == 0;
    uint64_t elapsed_ns = is_first ? BALANCE_CORE : now_ns - owners->measured_ns;
    owners->measured_ns = now_ns;
    memset(owners->slot_load, 0, sizeof(owners->slot_load));
    for (uint32_t id = 0; id < owners->core->shared->data_cores; id++)
        measure_core(owners, id, elapsed_ns, slots_count);
    return !is_first;
}

/* Gauges of the table as it is. */
static void show(const struct owners *owners, const struct topology *topology)
{
    struct metrics *metrics = owners->core->metrics;
    uint64_t links = 0, split = 0;
    for (uint32_t i = 0; i < topology->shards_count; i++) {
        uint32_t cores = owner_table_cores_count(&topology->shards[i]);
        links += topology->shards[i].slots_count > 0 ? cores : 0;
        split += cores > 1;
    }
    metric_set(metrics, METRIC_owner_links, links);
    metric_set(metrics, METRIC_owner_shards_split, split);
    metric_set(metrics, METRIC_owner_imbalance_permille, owners->balance->imbalance_permille);
    metric_set(metrics, METRIC_owner_busy_permille, owners->balance->busiest_permille);
}

/* The plan becomes the newest topology. Where that cannot be published now nothing is lost: what has to be done is found again. */
static void apply(struct owners *owners)
{
    const struct topology *topology = owners->poller->topology;
    const struct balance *balance = owners->balance;
    memcpy(owners->slot_owner, topology->slot_owner, sizeof(owners->slot_owner));
    for (uint32_t i = 0; i < balance->moves_count; i++)
        owners->slot_owner[balance->moves[i].slot] = balance->moves[i].to;
    for (uint32_t i = 0; i < balance->sets_count; i++)
        owners->shard_cores[balance->sets[i].shard] = balance->sets[i].cores;
    struct topology *moved = topology_create_moved(topology, owners->slot_owner, owners->shard_cores);
    if (!poller_replace(owners->poller, moved)) {
        topology_destroy(moved);
        return;
    }
    metric_add(owners->core->metrics, METRIC_owner_moves_total, balance->moves_count);
    metric_add(owners->core->metrics, METRIC_owner_changes_total, 1);
    core_log(owners->core, LOG_INFO, "owners_changed", "epoch=%llu slots=%u shards=%u imbalance_permille=%u", (unsigned long long)moved->epoch, balance->moves_count,
        balance->sets_count, balance->imbalance_permille);
}

void owners_tick(struct owners *owners)
{
    struct core *core = owners->core;
    const struct topology *topology = owners->poller->topology;
    uint64_t interval_ns = core->config->cores.shuffle_owners_ns > 0 ? core->config->cores.shuffle_owners_ns : core->config->cores.balance_interval_ns;
    if (topology == NULL || core->now_ms < owners->next_ms)
        return;
    owners->next_ms = core->now_ms + interval_ns / 1000000;
    for (uint32_t i = 0; i < topology->shards_count; i++) {
        owners->shard_cores[i] = topology->shards[i].cores;
        owners->shard_keys[i] = topology->shards[i].key;
    }
    struct balance_view view = {
        .now_ms = core->now_ms,
        .cores_count = core->shared->data_cores,
        .slots_count = topology->slots_count,
        .shards_count = topology->shards_count,
        .slot_shard = topology->slot_shard,
        .slot_owner = topology->slot_owner,
        .shard_cores = owners->shard_cores,
        .shard_keys = owners->shard_keys,
        .slot_load = owners->slot_load,
        .core_base = owners->core_base,
    };
    bool has_plan = false;
    if (core->config->cores.shuffle_owners_ns > 0)
        has_plan = balance_shuffle(owners->balance, &view, &owners->shuffle);
    else if (measure(owners, topology->slots_count))
        has_plan = balance_round(owners->balance, &view) && core->config->cores.balance;
    if (has_plan)
        apply(owners);
    show(owners, owners->poller->topology);
}

void owners_init(struct owners *owners, struct core *core, struct poller *poller, const struct load_page *const *pages)
{
    const struct config *config = core->config;
    /* A change reaches the measure a round later: no other before that. */
    struct balance_limits limits = {.threshold_percent = config->cores.balance_threshold, .moves_max = config->cores.balance_moves_max, .pause_ms = 3 * config->cores.balance_interval_ns / 1000000};
    owners->core = core;
    owners->poller = poller;
    owners->pages = pages;
    owners->balance = balance_create(TOPOLOGY_SHARDS_MAX, &limits);
    owners->seen = alloc_zeroed(core->shared->data_cores * sizeof(*owners->seen));
    owners->shuffle = core->rng;
}

void owners_fini(struct owners *owners)
{
    balance_destroy(&owners->balance);
    alloc_free(owners->seen);
}
