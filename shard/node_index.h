/*
 * Finds nodes by a hash of what names them (id, or address): a fixed table of places, open addressing. The caller compares the names.
 */
#pragma once

#include <stdint.h>

#include "shard/topology.h"

enum { NODE_INDEX_ENTRIES = 2 * TOPOLOGY_NODES_MAX }; /* a power of two, at most half full */

struct node_index {
    uint32_t count;
    uint32_t hashes[NODE_INDEX_ENTRIES]; /* 0: free */
    uint16_t places[NODE_INDEX_ENTRIES];
};

void node_index_clear(struct node_index *index);

/* Adds a place; at most TOPOLOGY_NODES_MAX between two clears. */
void node_index_add(struct node_index *index, uint64_t hash, uint16_t place);

/* The next place with this hash, or NODE_NONE. *cursor is 0 at first and belongs to the caller. */
uint16_t node_index_next(const struct node_index *index, uint64_t hash, uint32_t *cursor);

/* What names a node. */
uint64_t node_index_hash_id(const char *id);
uint64_t node_index_hash_address(const char *host, uint16_t port);
