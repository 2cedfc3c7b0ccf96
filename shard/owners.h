/*
 * The control loop of the owners, on the housekeeping core: measures what slots and cores cost, lets shard/balance.h decide, and has the result published as a topology of the same view.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shard/balance.h"
#include "shard/load.h"
#include "shard/poller.h"

/* What one data core had counted when it was last looked at. */
struct owners_seen {
    uint64_t cpu_ns;
    uint64_t spin_ns;
    uint64_t requests;
    uint64_t bytes;
    uint32_t units[CLUSTER_SLOTS];
};

struct owners {
    struct core *core;
    struct poller *poller;
    const struct load_page *const *pages; /* by data core */
    struct balance *balance;
    struct owners_seen *seen; /* by data core */
    struct rng shuffle;
    uint64_t measured_ns; /* when; 0: never */
    uint64_t next_ms;
    /* ---- scratch of a round ---- */
    uint32_t slot_load[CLUSTER_SLOTS];
    uint16_t slot_owner[CLUSTER_SLOTS];
    uint64_t shard_cores[TOPOLOGY_SHARDS_MAX];
    uint32_t shard_keys[TOPOLOGY_SHARDS_MAX];
    uint32_t core_base[CONFIG_DATA_CORES_MAX];
};

/* pages: one a data core, readable until owners_fini. */
void owners_init(struct owners *owners, struct core *core, struct poller *poller, const struct load_page *const *pages);
void owners_fini(struct owners *owners);

/* Every 20 ms, while the process is not draining. */
void owners_tick(struct owners *owners);
