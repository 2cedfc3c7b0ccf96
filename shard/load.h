/*
 * What each slot costs the core that owns it: a page that its core writes and the housekeeping core reads (relaxed), as metrics are. Counts only rise, and wrap around: a reader takes differences.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "shard/topology.h"

/* A command costs a core about as much as a KiB of payload; both are counted in sixteenths of that, so that the bytes of small values are not rounded away. */
enum { LOAD_LEG = 16, LOAD_BYTES_SHIFT = 6 };

/* Aligned to cache lines by its allocator. Only the owning core writes. */
struct load_page {
    _Atomic uint32_t units[CLUSTER_SLOTS];
};

static inline void load_add(struct load_page *page, uint16_t slot, uint32_t units)
{
    uint32_t value = atomic_load_explicit(&page->units[slot], memory_order_relaxed);
    atomic_store_explicit(&page->units[slot], value + units, memory_order_relaxed);
}

/* A command that goes to a backend. */
static inline void load_add_command(struct load_page *page, uint16_t slot, uint32_t bytes)
{
    load_add(page, slot, LOAD_LEG + (bytes >> LOAD_BYTES_SHIFT));
}

/* Its reply. Those of runs come in pieces that name no slot: what they cost is shared out by commands (shard/owners.c). */
static inline void load_add_reply(struct load_page *page, uint16_t slot, uint32_t bytes)
{
    if (bytes >> LOAD_BYTES_SHIFT != 0)
        load_add(page, slot, bytes >> LOAD_BYTES_SHIFT);
}
