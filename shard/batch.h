/*
 * Batches: what one loop iteration brings for a (use case, node, channel) is one batch, and all batches for a link leave in one send. A batch holds the legs and their bytes; its chunks become part of the
 * link's send queue as they are, and live until every leg in them is answered.
 */
#pragma once

#include <stdint.h>

#include "core/core.h"
#include "net/leg.h"

/* Bytes of a command for batch_add, wherever they lie. */
struct leg_source {
    const uint8_t *bytes;
    uint32_t length;
    struct block *block; /* own block that holds them (referenced above inline_bytes), or NULL: they are copied */
    bool is_lent;        /* above inline_bytes: they stay the lender's until returned */
    uint16_t lender;
    uint64_t lent_offset;
};

struct batch {
    uint64_t name; /* use case, node key, channel; 0: free */
    struct leg_list legs;
    struct block *chain; /* chunks and references, in order */
    struct block *chain_tail;
    uint32_t bytes;
    uint32_t idle_ticks;    /* flushes of the map without legs in this batch */
    struct list_node dirty; /* in the map's list while it holds legs */
};

/* Takes the legs and the chain. The batch is empty by then: an ending leg may fill it again. */
typedef void (*batch_flush_fn)(void *context, uint64_t name, struct leg_list *legs, struct block *chain);

struct batch_map {
    struct core *core;
    struct batch *batches; /* open addressing */
    struct batch *last;    /* found last; NULL: none */
    uint32_t mask;
    uint32_t used;
    struct list_node dirty;
};

/* capacity: how many batches at most; rounded up to a power of two, twice as many places. */
void batch_map_init(struct batch_map *map, struct core *core, uint32_t capacity);
void batch_map_fini(struct batch_map *map);

static inline uint64_t batch_name(uint16_t use_case, uint32_t node_key, uint8_t channel)
{
    return (uint64_t)use_case << 48 | (uint64_t)node_key << 8 | channel;
}
static inline uint32_t batch_name_node(uint64_t name)
{
    return (uint32_t)(name >> 8);
}
static inline uint8_t batch_name_channel(uint64_t name)
{
    return (uint8_t)name;
}

/* The batch of a name, made on first use; NULL where the map is full. Stable until batch_map_sweep. */
struct batch *batch_map_get(struct batch_map *map, uint64_t name);
struct batch *batch_map_find(struct batch_map *map, uint64_t name);

/* Copies or references the command's bytes into the batch and appends the leg, whose `bytes`, `offset` and `length` are set (one reference). A leg that is sent again passes its own bytes as the source and drops
 * its old reference itself. STATUS_NO_MEMORY: nothing has changed, and a loan stays the caller's. */
enum status batch_add(struct batch_map *map, struct batch *batch, struct leg *leg, const struct leg_source *source) ZG_NODISCARD;

/* Copies bytes behind the last leg's, whose chunk has room for them: they are that leg's too, and one more reply is waited for. */
void batch_extend(struct batch *batch, const struct leg_source *source);

/* Appends "ASKING" with a leg whose reply is discarded (taken). */
enum status batch_add_asking(struct batch_map *map, struct batch *batch, struct leg *asking) ZG_NODISCARD;

/* The bytes of a leg that has some. */
const uint8_t *leg_bytes(const struct leg *leg);

/* Keeps the bytes of a leg that has to wait before it can be put into a batch. */
enum status leg_keep(struct core *core, struct leg *leg, const struct leg_source *source) ZG_NODISCARD;

/* Hands legs and chain of a batch to `flush`, if it has any. */
void batch_flush_one(struct batch *batch, batch_flush_fn flush, void *context);

/* About once a second: frees the places of batches that had no legs for `idle_ticks_max` sweeps. Rebuilds the table, so that no pointer to a batch may be held. */
void batch_map_sweep(struct batch_map *map, uint32_t idle_ticks_max);
