/*
 * Which core should own what, by measured load: a pure function of what was measured, of the owners now, and of what it remembers of the rounds before. Knows no clock, no topology and no thread, so that
 * rounds can be simulated.
 *
 * One round, in this order, each only where the one before found nothing to do:
 *   move   a core that has been busier than the mean by more than the threshold for several rounds gives shards, or slots of shards that both cores have, to the least busy core, until it is near the mean;
 *   split  where that core is nearly out of time and nothing can be moved as a whole, one of its shards gets a further core (k rises);
 *   join   a shard whose cores have so little to do that one of them could go, for many rounds, loses it (k falls).
 * What is moved is as little as reaches the mean; a part is only moved where it is at most two thirds of the gap between both cores, so that nothing swings back. After a round that changed something there is a
 * pause. A slot cannot be divided: a core whose load is one slot keeps it and loses the others.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/rng.h"
#include "shard/topology.h"

enum {
    BALANCE_CORE = 1000 * 1000 * 1000, /* a load: all the time of a core */
    BALANCE_ROUNDS = 3,                /* above the threshold before a core gives */
    BALANCE_JOIN_ROUNDS = 10,          /* with too little to do before a shard loses a core */
    BALANCE_FLOOR_PERCENT = 10,        /* a core below gives nothing: what little there is moves nowhere */
    BALANCE_SPLIT_PERCENT = 80,        /* a core above may split a shard ... */
    BALANCE_SPLIT_PART_PERCENT = 15,   /* ... that takes as much of it */
    BALANCE_JOIN_PERCENT = 50,         /* no core may be above after a shard has lost one: far below what makes it split */
    BALANCE_EXTRA_PER_CORE = 2,        /* owner cores beyond one a shard, over all shards, by the number of cores */
};

struct balance_limits {
    uint32_t threshold_percent; /* above the mean */
    uint32_t moves_max;         /* slots a round; one shard is moved whatever it has */
    uint64_t pause_ms;          /* after a round with changes */
};

/* What is now; borrowed. Loads are of the time since the last round, as a share of a core: BALANCE_CORE is all of one. */
struct balance_view {
    uint64_t now_ms;
    uint32_t cores_count;        /* 1 .. 64 */
    uint32_t slots_count;        /* at most CLUSTER_SLOTS */
    uint32_t shards_count;       /* at most the balance's shards_max */
    const uint16_t *slot_shard;  /* SHARD_NONE: nobody serves it; such slots are left alone */
    const uint16_t *slot_owner;  /* one of its shard's cores */
    const uint64_t *shard_cores; /* a bit each */
    const uint32_t *shard_keys;  /* names over rounds, ascending */
    const uint32_t *slot_load;   /* what owning the slot costs */
    const uint32_t *core_base;   /* what the core does besides: its clients */
};

struct balance_move {
    uint16_t slot, from, to;
};

/* A shard whose cores change. */
struct balance_set {
    uint16_t shard;
    uint64_t cores;
};

struct balance {
    struct balance_limits limits;
    uint32_t shards_max;
    /* ---- remembered ---- */
    uint32_t rounds_count;
    uint32_t slot_load[CLUSTER_SLOTS]; /* smoothed */
    uint32_t core_base[CONFIG_DATA_CORES_MAX];
    uint32_t over_rounds[CONFIG_DATA_CORES_MAX]; /* rounds in a row above the threshold */
    uint64_t pause_until_ms;
    uint32_t join_key;    /* the shard that is about to lose a core ... */
    uint32_t join_rounds; /* ... for so many rounds */
    /* ---- of the last round ---- */
    uint64_t core_load[CONFIG_DATA_CORES_MAX]; /* after its moves */
    uint32_t busiest_permille;                 /* before them: of a core's time ... */
    uint32_t imbalance_permille;               /* ... and of the mean; 1000: all alike, or no load at all */
    uint32_t moves_count, sets_count;
    struct balance_move moves[CLUSTER_SLOTS]; /* a slot at most once */
    struct balance_set *sets;
    /* ---- scratch ---- */
    const struct balance_view *view;
    uint64_t mean;
    uint16_t slot_owner[CLUSTER_SLOTS]; /* with the moves of this round */
    uint64_t *shard_cores;
    uint64_t *part_load; /* by shard: of the core at work */
    uint32_t *part_slots;
    uint16_t *parts; /* shards with slots on that core */
    uint32_t parts_count;
};

/* shards_max: 1 .. 65,534. Ends with balance_destroy. */
struct balance *balance_create(uint32_t shards_max, const struct balance_limits *limits);
void balance_destroy(struct balance **balance);

/* One round: the result is in moves and sets, valid until the next call. True where there is any. `view` may be gone afterwards. */
bool balance_round(struct balance *balance, const struct balance_view *view);

/* For tests of what moving owners does: gives shards other cores and slots other owners at random, whatever the load. Loads of the view are not used. */
bool balance_shuffle(struct balance *balance, const struct balance_view *view, struct rng *rng);
