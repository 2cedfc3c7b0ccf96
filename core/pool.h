/*
 * A pool of objects of one kind for one core. Objects have a stable address and an index; a handle (index, generation) names one life
 * of an object, so that a late completion or message for a life that has ended is recognised. Grows by chunks to a maximum, and gives chunks
 * back that a burst has left (pool_trim); "full" is a normal result. Not thread-safe: one core owns it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/* First member of every pooled struct. Written by the pool alone. Generations are 24 bits wide, never 0 for a live object. */
struct pool_item {
    uint32_t index;
    uint32_t generation;
};

/* Names one life of one object. value = generation << 32 | index; 0 names nothing. */
struct pool_handle {
    uint64_t value;
};

struct pool {
    const char *name;       /* static storage, for logs and metrics */
    uint8_t **chunks;       /* chunks_count pointers, room for all from the start; NULL: given back */
    uint32_t *generations;  /* last generation given out, per index; apart from the objects, so that it outlives their bytes */
    uint32_t *free_indexes; /* a stack of free_count indexes: last freed first, so that memory stays warm */
    uint32_t object_bytes;  /* rounded up to 64 where it exceeds 32, otherwise to 8 */
    uint32_t objects_max;
    uint32_t chunk_shift;  /* objects a chunk = 1 << chunk_shift */
    uint32_t chunks_count; /* in use at once, ever */
    uint32_t holes_count;  /* of those: given back */
    uint32_t reserved;     /* objects that pool_reserve has made room for: never given back */
    uint32_t free_count;
    uint32_t live_count;
    uint32_t live_peak;  /* since the last pool_trim */
    uint64_t full_count; /* how often pool_get found it full */
};

/* object_bytes >= sizeof(struct pool_item); objects_max in 1..2^24. Allocates only tables; chunks come on demand. */
void pool_init(struct pool *pool, const char *name, uint32_t object_bytes, uint32_t objects_max);

/* Releases every chunk. All objects must have been put. */
void pool_fini(struct pool *pool);

/* Allocates chunks for at least `objects` objects now, so that the path allocates none later. */
void pool_reserve(struct pool *pool, uint32_t objects);

/* Gives back chunks without a live object, beyond what was in use at once since the last call, what is reserved, and one more. At most 64 a call, which looks at every free object: to be called every few seconds.
 * Returns how many. */
uint32_t pool_trim(struct pool *pool);

/* An object whose bytes behind `struct pool_item` are zero, or NULL where the pool is full (counted). */
void *pool_get(struct pool *pool) ZG_NODISCARD;

/* As pool_get, but the bytes behind `struct pool_item` are whatever the last life left: for hot objects that set every field. */
void *pool_get_raw(struct pool *pool) ZG_NODISCARD;

/* Ends the life of *object and sets *object to NULL. `object` is the address of a pointer to a pooled struct. */
void pool_put_at(struct pool *pool, void **object);
#define pool_put(pool, object) pool_put_at((pool), (void **)(void *)(object))

/* The live object that a handle names, or NULL where that life has ended. */
void *pool_resolve(const struct pool *pool, struct pool_handle handle);

static inline struct pool_handle pool_handle_of(const struct pool_item *item)
{
    return (struct pool_handle){.value = (uint64_t)item->generation << 32 | item->index};
}
