/*
 * Open addressing with linear probing; nothing is ever removed, so a free entry ends a search. Belongs to the housekeeping core.
 */
#include "shard/node_index.h"

#include <assert.h>
#include <string.h>

#include "core/check.h"
#include "core/hash.h"

static_assert((NODE_INDEX_ENTRIES & (NODE_INDEX_ENTRIES - 1)) == 0, "a power of two");

/* 0 marks a free entry, so no hash is 0. */
static uint32_t fold(uint64_t hash)
{
    uint32_t folded = (uint32_t)(hash ^ (hash >> 32));
    return folded ? folded : 1;
}

void node_index_clear(struct node_index *index)
{
    index->count = 0;
    memset(index->hashes, 0, sizeof index->hashes);
}

void node_index_add(struct node_index *index, uint64_t hash, uint16_t place)
{
    ZG_CHECK(index->count < TOPOLOGY_NODES_MAX);
    uint32_t folded = fold(hash);
    uint32_t i = folded % NODE_INDEX_ENTRIES;
    while (index->hashes[i] != 0)
        i = (i + 1) % NODE_INDEX_ENTRIES;
    index->hashes[i] = folded;
    index->places[i] = place;
    index->count++;
}

uint16_t node_index_next(const struct node_index *index, uint64_t hash, uint32_t *cursor)
{
    uint32_t folded = fold(hash);
    for (; *cursor < NODE_INDEX_ENTRIES; (*cursor)++) {
        uint32_t i = (folded + *cursor) % NODE_INDEX_ENTRIES;
        if (index->hashes[i] == 0)
            return NODE_NONE;
        if (index->hashes[i] == folded) {
            (*cursor)++;
            return index->places[i];
        }
    }
    return NODE_NONE;
}

uint64_t node_index_hash_id(const char *id)
{
    return hash_bytes(id, strlen(id));
}

uint64_t node_index_hash_address(const char *host, uint16_t port)
{
    return hash_u64(hash_bytes(host, strlen(host)) + port);
}
