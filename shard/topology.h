/*
 * An immutable view of the backends: nodes, shards, slots, and which core owns each slot. Made by the housekeeping core, read by all.
 * For a list of standalone servers a "slot" is the server's place in the list, found by ketama; everything behind the locator is the same.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/config.h"
#include "shard/ketama.h"

enum {
    CLUSTER_SLOTS = 16384,
    TOPOLOGY_NODES_MAX = 4096,
    TOPOLOGY_SHARDS_MAX = 2048,
    NODE_ID_BYTES = 41,
    HOST_BYTES = 256,
    SHARD_NONE = 0xffff,
    NODE_NONE = 0xffff,
};

struct node {
    uint32_t key;               /* names this node over all epochs (assigned by the housekeeper): what links are kept by */
    char id[NODE_ID_BYTES];     /* cluster node id, empty for standalone servers */
    char host[HOST_BYTES];      /* as the cluster announces it, or as configured */
    uint16_t port;
    uint16_t shard;             /* index, SHARD_NONE: none */
    bool is_primary;
    bool is_failed;             /* the cluster says "fail", or health says so */
};

struct shard {
    uint32_t key;               /* names this shard over epochs: kept when a replica takes over */
    uint16_t primary;           /* index of the node, NODE_NONE while there is none */
    uint16_t owner;             /* owner core of its slots */
    uint16_t slots_count;
};

struct topology {
    uint64_t epoch;             /* 1, 2, ... */
    enum config_backend_kind kind;
    uint32_t slots_count;       /* 16,384, or the number of servers */
    uint32_t slots_covered;     /* slots with a shard */
    uint32_t nodes_count, shards_count;
    struct node *nodes;
    struct shard *shards;
    struct ketama *ketama;      /* servers only */
    uint16_t slot_shard[CLUSTER_SLOTS];        /* SHARD_NONE where nobody serves it */
    uint16_t slot_owner[CLUSTER_SLOTS];        /* core */
    uint64_t slot_owner_since[CLUSTER_SLOTS];  /* epoch in which the owner last changed */
    uint64_t slot_route_since[CLUSTER_SLOTS];  /* epoch in which the primary node last changed */
    uint32_t slot_previous_node[CLUSTER_SLOTS];/* key of the primary before that, 0: none */
};

/* The primary of a slot, or NULL. */
static inline const struct node *topology_primary(const struct topology *topology, uint32_t slot)
{
    uint16_t shard = topology->slot_shard[slot];
    if (shard == SHARD_NONE || topology->shards[shard].primary == NODE_NONE)
        return NULL;
    return &topology->nodes[topology->shards[shard].primary];
}

/* A node by address, or NULL. Linear: for redirects only. */
const struct node *topology_node_at(const struct topology *topology, const char *host, uint32_t host_length, uint16_t port);
const struct node *topology_node_of_key(const struct topology *topology, uint32_t key);

bool topology_is_complete(const struct topology *topology);

/* Releases a topology; for snapshot_publisher. */
void topology_destroy(const void *topology);
