/*
 * Receive buffers of one core: an io_uring provided-buffer ring whose buffers are blocks of the core's arena. A buffer whose bytes were lent (a second reference was taken) is replaced by a
 * fresh block at once, so that a slow borrower never starves the ring; the lent block goes back to the arena when its loan ends.
 */
#pragma once

#include <liburing.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/ring.h"
#include "core/status.h"

enum { RX_GROUP = 0 };

struct rx_ring {
    struct io_uring_buf_ring *ring;
    struct block **blocks; /* by buffer id; NULL: owed, the arena had none */
    struct arena *arena;
    uint32_t count;        /* power of two */
    uint32_t buffer_bytes; /* room for data in each */
    uint32_t pending;      /* added since the last publish */
    uint32_t owed_count;
};

/* count: power of two up to 32,768; block_bytes: size of each block with its header. STATUS_NO_MEMORY where the arena gives none at all, STATUS_SYSTEM where the kernel refuses; nothing stays open then. */
enum status rx_ring_open(struct rx_ring *rx, struct ring *ring, struct arena *arena, uint32_t count, uint32_t block_bytes) ZG_NODISCARD;
void rx_ring_close(struct rx_ring *rx, struct ring *ring);

/* The block of a completion's buffer id; its data is received bytes until rx_ring_recycle. */
static inline struct block *rx_ring_block(const struct rx_ring *rx, uint32_t id)
{
    return rx->blocks[id];
}

/* The caller has done with buffer `id`: it (or a fresh block in its place) may be filled again after the next publish. */
void rx_ring_recycle(struct rx_ring *rx, uint32_t id);

/* Hands recycled buffers to the kernel; once an iteration. Tries to repay owed ones. */
void rx_ring_publish(struct rx_ring *rx);
