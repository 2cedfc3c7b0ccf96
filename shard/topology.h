/*
 * An immutable view of the backends: nodes, shards, slots, and which core owns each slot. Made by the housekeeping core, read by all.
 * For a list of standalone servers a "slot" is the server's place in the list, found by ketama; everything behind the locator is the same.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

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

struct topology_view;

struct node {
    uint32_t key;           /* from 1; names this node over all epochs: what links are kept by. Host and port behind one key never change */
    char id[NODE_ID_BYTES]; /* cluster node id, empty for standalone servers */
    char host[HOST_BYTES];  /* as the cluster announces it, or as configured */
    uint16_t port;
    struct sockaddr_storage address; /* host resolved by the housekeeping core before publication */
    socklen_t address_bytes;         /* 0: it could not be */
    uint16_t shard;                  /* index, SHARD_NONE: none */
    bool is_primary;
    bool is_failed; /* the cluster says "fail", or health says so */
};

struct shard {
    uint32_t key;     /* from 1; names this shard over epochs: kept when a replica takes over */
    uint16_t primary; /* index of the node (it may be is_failed), NODE_NONE while there is none */
    uint16_t slots_count;
    uint64_t cores; /* the data cores that may own slots of it, a bit each: never none, one unless its load needs more */
};

struct topology {
    uint64_t epoch;      /* 1, 2, ... */
    uint64_t view_epoch; /* the epoch in which nodes, shards and routes were last taken from a view; after that only owners have changed */
    bool is_balanced;    /* some owner was chosen by measured load: numbers of slots decide no more */
    enum config_backend_kind kind;
    uint32_t slots_count;   /* 16,384, or the number of servers */
    uint32_t slots_covered; /* slots with a shard */
    uint32_t nodes_count, shards_count;
    struct node *nodes;                         /* by key, ascending */
    struct shard *shards;                       /* by key, ascending; a primary without slots has a shard too */
    uint32_t next_node_key, next_shard_key;     /* what the next topology gives to newcomers */
    struct ketama *ketama;                      /* servers only */
    uint16_t slot_shard[CLUSTER_SLOTS];         /* SHARD_NONE where nobody serves it */
    uint16_t slot_owner[CLUSTER_SLOTS];         /* core; a slot that nobody serves stays with the core it had */
    uint64_t slot_owner_since[CLUSTER_SLOTS];   /* epoch in which the owner last changed */
    uint64_t slot_route_since[CLUSTER_SLOTS];   /* epoch in which the primary node last changed */
    uint32_t slot_previous_node[CLUSTER_SLOTS]; /* key of the last other primary, 0: none. The current one's own where its slot was without a primary in between */
};

/* The primary of a slot, or NULL. */
static inline const struct node *topology_primary(const struct topology *topology, uint32_t slot)
{
    uint16_t shard = topology->slot_shard[slot];
    if (shard == SHARD_NONE || topology->shards[shard].primary == NODE_NONE)
        return NULL;
    return &topology->nodes[topology->shards[shard].primary];
}

/* The topology of a list of standalone servers: one shard with one slot a server, owners spread over `data_cores` (1 ..). Never fails. Release with topology_destroy. */
struct topology *topology_create_servers(const struct config_backend *backend, uint64_t epoch, uint32_t data_cores);

/* The topology that follows `previous` (of a cluster; NULL: none, this is epoch 1) by an accepted view. Pure: the same input gives the same result. Both stay the caller's.
 * Nodes keep their keys as long as they keep their address, shards keep theirs as long as they keep their primary, another node or most of their slots, and with it
 * their owner core (see owner_table.h). Never fails. Release with topology_destroy. */
struct topology *topology_create_cluster(const struct topology *previous, const struct topology_view *view, uint32_t data_cores);

/* The topology that follows `previous` where only owners change: slot_owner[slot] for each slot, shard_cores[shard] for each shard (which must name the owner of each of its slots). Both topologies stay the
 * caller's. Never fails. Release with topology_destroy. */
struct topology *topology_create_moved(const struct topology *previous, const uint16_t *slot_owner, const uint64_t *shard_cores);

/* A node by address, or NULL. Linear: for redirects only. */
const struct node *topology_node_at(const struct topology *topology, const char *host, uint32_t host_length, uint16_t port);
/* A node by its key, or NULL. Logarithmic. */
const struct node *topology_node_of_key(const struct topology *topology, uint32_t key);

/* Whether every slot has a shard with a primary. */
bool topology_is_complete(const struct topology *topology);

/* Releases a topology, which snapshot_publisher knows as its data. NULL is permitted. */
void topology_destroy(const void *data);
