/*
 * Lendable bytes of one core: blocks of a power of two, in address ranges reserved at start, so that a peer can be told where bytes are by
 * (core, offset). Only the owning core gets, references and puts blocks; a peer only reads bytes that were lent to it, until it gives
 * them back. Pages of free blocks return to the kernel beyond a small reserve, so that memory after a burst falls back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    ARENA_CLASS_MIN_SHIFT = 8,  /* 256 B with its header */
    ARENA_CLASS_MAX_SHIFT = 27, /* 128 MiB with its header */
    ARENA_CLASSES_COUNT = ARENA_CLASS_MAX_SHIFT - ARENA_CLASS_MIN_SHIFT + 1,
};

/* The header of a block; data follows. `next` and `length` belong to whoever holds the block. */
struct block {
    struct block *next;
    uint32_t length; /* bytes of data in use, <= block_capacity() */
    uint32_t refs;   /* > 0 while held */
    uint8_t class_index;
    uint8_t flags; /* for the holder: see net/send_queue.h */
    uint16_t reserved;
    uint32_t offset; /* for the holder */
    uint64_t user;   /* for the holder */
    uint8_t data[];
};
_Static_assert(sizeof(struct block) == 32, "the header is half a cache line");

struct arena; /* opaque: arena.c */

/* bytes_max: the most that blocks may hold at once, 1 MiB .. 64 GiB. A block below 1 MiB counts by its size, a larger one by the bytes asked for (with the header, in whole
 * pages of 4 KiB). Pages of free blocks that are kept for reuse do not count, but are given back rather than that pages in use and kept exceed the maximum. Reserves
 * 40 to 80 times bytes_max of address space and no memory. Ends the process where the system has no address space. `core_id` is only for reports. */
struct arena *arena_create(uint32_t core_id, uint64_t bytes_max);

/* Sets *arena to NULL. All blocks must have been put. */
void arena_destroy(struct arena **arena);

/* A block with room for at least data_bytes, refs = 1, length = 0, next = NULL, flags, offset and user 0; its data is not
 * initialised. NULL where data_bytes exceeds the largest class, bytes_max would be exceeded or the system has no memory (counted). The holder of a block of 1 MiB or
 * more should not use more than it asked for, though block_capacity() is there: the rest is not counted. */
struct block *arena_get(struct arena *arena, uint32_t data_bytes) ZG_NODISCARD;

/* Drops one reference and sets *block to NULL; the last one frees it. */
void arena_put(struct arena *arena, struct block **block);

static inline struct block *block_ref(struct block *block)
{
    ZG_CHECK(block->refs > 0);
    block->refs++;
    return block;
}

static inline uint32_t block_capacity(const struct block *block)
{
    return (UINT32_C(1) << (block->class_index + ARENA_CLASS_MIN_SHIFT)) - (uint32_t)sizeof(struct block);
}

/* The block whose data contains `data` (which must lie in a block of this arena). */
struct block *arena_block_of(const struct arena *arena, const void *data);

/* Where bytes of this arena are, as told to a peer; and back. Any thread may call arena_at on a peer's arena. */
uint64_t arena_offset_of(const struct arena *arena, const void *data);
const uint8_t *arena_at(const struct arena *arena, uint64_t offset);

/* Gives pages of free blocks back: what was free during the whole time since the last call, beyond a reserve per class (1 MiB for blocks below 64 KiB, 4 MiB for larger
 * ones), about 16 MiB a call, so that a call takes a millisecond or two (one block may be larger). Call about once a second, and sooner where it returned more than 0.
 * Returns the bytes released. */
uint64_t arena_trim(struct arena *arena);

uint64_t arena_bytes_held(const struct arena *arena); /* sum of the sizes of held blocks */
/* At most so many bytes of memory do the blocks occupy, held ones and free ones that are kept (without the tables: 32 bytes a span of 64 KiB or more). */
uint64_t arena_bytes_resident(const struct arena *arena);
uint64_t arena_full_count(const struct arena *arena); /* how often arena_get found the maximum reached */
