/*
 * What a connection has still to send: a chain of blocks. A block either holds bytes of its own (small replies are appended to the last one) or refers to bytes elsewhere: a chunk that a link keeps until it is
 * answered, an assembled value, or bytes lent by another core.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "core/core.h"

enum { SEND_IOVECS_MAX = 32, SEND_BLOCK_FIRST = 2048, SEND_BLOCK_NEXT = 16384 };

/* block->flags */
enum { SEND_REFERENCE = 1u << 0 /* data holds a struct send_reference */, SEND_SEALED = 1u << 1 /* never appended to */ };

/* What a SEND_REFERENCE block's data holds. */
struct send_reference {
    const uint8_t *bytes;
    uint32_t length;
    bool is_lent;
    uint16_t lender;
    uint64_t lent_offset;
    struct block *held; /* own block that contains the bytes; one reference; NULL where lent */
};

struct send_queue {
    struct block *head;
    struct block *tail;
    uint32_t head_sent; /* bytes of the first block that are sent */
    uint32_t blocks;
    uint64_t bytes; /* still to be sent */
};

/* Copies bytes to the end. STATUS_NO_MEMORY where the arena is at its maximum: nothing was appended. */
enum status send_queue_append(struct core *core, struct send_queue *queue, const void *bytes, uint32_t length) ZG_NODISCARD;

/* Appends a block; takes the caller's reference. It must be in no other queue. */
void send_queue_push(struct send_queue *queue, struct block *block);

/* A block that refers to `length` bytes at `bytes` inside `held` (takes a reference of its own). NULL: no memory. */
struct block *send_reference_own(struct core *core, struct block *held, const uint8_t *bytes, uint32_t length) ZG_NODISCARD;
/* The same for bytes lent by a peer: they are given back when the block is put. NULL: no memory, and the loan stays with the caller. */
struct block *send_reference_lent(struct core *core, const uint8_t *bytes, uint32_t length, uint16_t lender, uint64_t lent_offset) ZG_NODISCARD;

/* Where the bytes of a block are, own or referred to. */
const uint8_t *send_block_bytes(const struct block *block, uint32_t *length);

/* Drops a reference; the last one also gives back what the block refers to. */
void send_block_put(struct core *core, struct block **block);

/* The first unsent pieces, up to `max`; returns how many. */
uint32_t send_queue_pieces(const struct send_queue *queue, struct iovec *pieces, uint32_t max);

/* `bytes` were sent: puts the blocks that are done. */
void send_queue_sent(struct core *core, struct send_queue *queue, uint64_t bytes);

void send_queue_clear(struct core *core, struct send_queue *queue);
