/*
 * Pools of objects of one kind. A pool belongs to one core; nothing here is atomic.
 *
 * An object is free (its index lies in the stack of free indexes, its own generation is 0) or live (its generation equals the one in the side table). A chunk that is given back takes its indexes out of the stack;
 * its generations stay in the side table, so that a stale handle is recognised for ever.
 */
#include "core/pool.h"

#include <string.h>

#include "core/alloc.h"
#include "core/poison.h"

enum {
    OBJECTS_MAX = 1 << 24,
    GENERATION_MASK = 0xffffff,
    OBJECT_ALIGNMENT = 64,
    SMALL_OBJECT_BYTES = 32,
    SMALL_OBJECT_ALIGNMENT = 8,
    TRIM_CHUNKS_MAX = 64,
    CHUNK_BYTES = 64 * 1024, /* a chunk has at most this many bytes, unless one object has more */
};

static uint32_t object_bytes_rounded(uint32_t bytes)
{
    uint32_t alignment = bytes > SMALL_OBJECT_BYTES ? OBJECT_ALIGNMENT : SMALL_OBJECT_ALIGNMENT;
    return (bytes + alignment - 1) & ~(alignment - 1);
}

/* The largest power of two of objects that fits a chunk and is not needlessly more than the pool may ever hold. */
static uint32_t chunk_shift_for(uint32_t object_bytes, uint32_t objects_max)
{
    uint32_t shift = 0;
    while ((UINT64_C(2) << shift) * object_bytes <= CHUNK_BYTES && (UINT32_C(1) << shift) < objects_max)
        shift++;
    return shift;
}

/* Indexes below this one have, or had, a place. */
static uint32_t pool_capacity(const struct pool *pool)
{
    uint64_t objects = (uint64_t)pool->chunks_count << pool->chunk_shift;
    return objects < pool->objects_max ? (uint32_t)objects : pool->objects_max;
}

static uint32_t chunk_first(const struct pool *pool, uint32_t chunk)
{
    return chunk << pool->chunk_shift;
}

/* The last chunk may have fewer objects than the others. */
static uint32_t chunk_objects(const struct pool *pool, uint32_t chunk)
{
    uint32_t objects = UINT32_C(1) << pool->chunk_shift;
    uint32_t left = pool->objects_max - chunk_first(pool, chunk);
    return left < objects ? left : objects;
}

static struct pool_item *pool_item_at(const struct pool *pool, uint32_t index)
{
    uint32_t place = index & ((UINT32_C(1) << pool->chunk_shift) - 1);
    return (struct pool_item *)(void *)(pool->chunks[index >> pool->chunk_shift] + (size_t)place * pool->object_bytes);
}

static void *pool_body(struct pool_item *item)
{
    return item + 1;
}

static size_t pool_body_bytes(const struct pool *pool)
{
    return pool->object_bytes - sizeof(struct pool_item);
}

/* Where the next chunk goes: a place that was given back, or a new one. */
static uint32_t take_chunk_place(struct pool *pool)
{
    if (pool->holes_count == 0)
        return pool->chunks_count++;
    pool->holes_count--;
    uint32_t chunk = 0;
    while (pool->chunks[chunk] != NULL)
        chunk++;
    ZG_CHECK(chunk < pool->chunks_count);
    return chunk;
}

/* Adds one chunk; its objects are pushed so that the lowest index is taken first. The pool must not be at its maximum. */
static void pool_grow(struct pool *pool)
{
    ZG_CHECK(pool->live_count + pool->free_count < pool->objects_max);
    uint32_t chunk = take_chunk_place(pool);
    uint32_t first = chunk_first(pool, chunk);
    pool->chunks[chunk] = alloc_zeroed_aligned((size_t)pool->object_bytes << pool->chunk_shift, OBJECT_ALIGNMENT);
    for (uint32_t index = first + chunk_objects(pool, chunk); index-- > first;) {
        struct pool_item *item = pool_item_at(pool, index);
        item->index = index;
        ZG_POISON(pool_body(item), pool_body_bytes(pool));
        pool->free_indexes[pool->free_count++] = index;
    }
}

void pool_init(struct pool *pool, const char *name, uint32_t object_bytes, uint32_t objects_max)
{
    ZG_CHECK(object_bytes >= sizeof(struct pool_item) && object_bytes <= INT32_MAX);
    ZG_CHECK(objects_max >= 1 && objects_max <= OBJECTS_MAX);
    memset(pool, 0, sizeof(*pool));
    pool->name = name;
    pool->object_bytes = object_bytes_rounded(object_bytes);
    pool->objects_max = objects_max;
    pool->chunk_shift = chunk_shift_for(pool->object_bytes, objects_max);
    uint64_t chunks_max = (((uint64_t)objects_max - 1) >> pool->chunk_shift) + 1;
    /* The tables have their final size from the start: growing never copies them, and the pages of a part that is not used yet are not touched. */
    pool->chunks = alloc_zeroed(chunks_max * sizeof(pool->chunks[0]));
    pool->generations = alloc_zeroed((size_t)objects_max * sizeof(pool->generations[0]));
    pool->free_indexes = alloc_zeroed((size_t)objects_max * sizeof(pool->free_indexes[0]));
}

static void release_chunk(struct pool *pool, uint32_t chunk)
{
    ZG_UNPOISON(pool->chunks[chunk], (size_t)pool->object_bytes << pool->chunk_shift);
    alloc_free(pool->chunks[chunk]);
    pool->chunks[chunk] = NULL;
}

void pool_fini(struct pool *pool)
{
    ZG_CHECK(pool->live_count == 0);
    uint32_t free_count = 0;
    for (uint32_t chunk = 0; chunk < pool->chunks_count; chunk++) {
        if (pool->chunks[chunk] == NULL)
            continue;
        free_count += chunk_objects(pool, chunk);
        release_chunk(pool, chunk);
    }
    ZG_CHECK(pool->free_count == free_count);
    alloc_free(pool->chunks);
    alloc_free(pool->generations);
    alloc_free(pool->free_indexes);
    memset(pool, 0, sizeof(*pool));
}

void pool_reserve(struct pool *pool, uint32_t objects)
{
    ZG_CHECK(objects <= pool->objects_max);
    while (pool->live_count + pool->free_count < objects)
        pool_grow(pool);
    if (objects > pool->reserved)
        pool->reserved = objects;
}

/* Keeps of the stack what lies in a chunk that is still there. */
static void drop_free_indexes(struct pool *pool)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < pool->free_count; i++) {
        uint32_t index = pool->free_indexes[i];
        if (pool->chunks[index >> pool->chunk_shift] != NULL)
            pool->free_indexes[kept++] = index;
    }
    pool->free_count = kept;
}

uint32_t pool_trim(struct pool *pool)
{
    uint32_t kept = pool->live_peak > pool->reserved ? pool->live_peak : pool->reserved;
    uint32_t chunk_size = UINT32_C(1) << pool->chunk_shift;
    uint32_t exist = pool->live_count + pool->free_count;
    pool->live_peak = pool->live_count;
    if ((uint64_t)exist < (uint64_t)kept + 2 * (uint64_t)chunk_size)
        return 0;
    uint32_t spare = (exist - kept) / chunk_size - 1;
    spare = spare < TRIM_CHUNKS_MAX ? spare : TRIM_CHUNKS_MAX;
    uint32_t *free_objects = alloc_zeroed(pool->chunks_count * sizeof(*free_objects));
    for (uint32_t i = 0; i < pool->free_count; i++)
        free_objects[pool->free_indexes[i] >> pool->chunk_shift]++;
    uint32_t released = 0;
    for (uint32_t chunk = pool->chunks_count; chunk-- > 0 && released < spare;) {
        if (pool->chunks[chunk] == NULL || free_objects[chunk] < chunk_objects(pool, chunk))
            continue;
        release_chunk(pool, chunk);
        pool->holes_count++;
        released++;
    }
    alloc_free(free_objects);
    if (released > 0)
        drop_free_indexes(pool);
    return released;
}

static inline struct pool_item *pool_take(struct pool *pool)
{
    if (__builtin_expect(pool->free_count == 0, 0)) {
        if (pool->live_count == pool->objects_max) {
            pool->full_count++;
            return NULL;
        }
        pool_grow(pool);
    }
    uint32_t index = pool->free_indexes[--pool->free_count];
    struct pool_item *item = pool_item_at(pool, index);
    ZG_CHECK(item->generation == 0 && item->index == index);
    uint32_t generation = (pool->generations[index] + 1) & GENERATION_MASK;
    if (__builtin_expect(generation == 0, 0))
        generation = 1;
    pool->generations[index] = generation;
    item->generation = generation;
    /* The next one to be given out: by then its line is here. */
    if (pool->free_count > 0)
        __builtin_prefetch(pool_item_at(pool, pool->free_indexes[pool->free_count - 1]), 1);
    pool->live_count++;
    if (pool->live_count > pool->live_peak)
        pool->live_peak = pool->live_count;
    ZG_UNPOISON(pool_body(item), pool_body_bytes(pool));
    return item;
}

void *pool_get(struct pool *pool)
{
    struct pool_item *item = pool_take(pool);
    if (item != NULL)
        memset(pool_body(item), 0, pool_body_bytes(pool));
    return item;
}

void *pool_get_raw(struct pool *pool)
{
    return pool_take(pool);
}

void pool_put_at(struct pool *pool, void **object)
{
    /* The caller's pointer has another type than void *, so it is read and written as bytes. */
    struct pool_item *item;
    memcpy(&item, object, sizeof(void *));
    memset(object, 0, sizeof(void *));
    ZG_CHECK(item != NULL);
    /* A second put finds generation 0; an object of another pool finds another address. */
    uint32_t index = item->index;
    ZG_CHECK(index < pool_capacity(pool) && pool_item_at(pool, index) == item);
    ZG_CHECK(item->generation != 0 && item->generation == pool->generations[index]);
    item->generation = 0;
    pool->free_indexes[pool->free_count++] = index;
    pool->live_count--;
    ZG_POISON(pool_body(item), pool_body_bytes(pool));
}

void *pool_resolve(const struct pool *pool, struct pool_handle handle)
{
    uint32_t index = (uint32_t)handle.value;
    uint32_t generation = (uint32_t)(handle.value >> 32);
    if (generation == 0 || index >= pool_capacity(pool) || pool->chunks[index >> pool->chunk_shift] == NULL)
        return NULL;
    struct pool_item *item = pool_item_at(pool, index);
    return item->generation == generation ? item : NULL;
}
