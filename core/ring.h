/*
 * One io_uring of one core thread: SINGLE_ISSUER and DEFER_TASKRUN, a table of direct descriptors, and the features that newer kernels add, each detected at start and each
 * switchable by configuration, so that the fallbacks are tested. Minimum kernel 6.1. All calls are made by the thread that opened the ring.
 *
 * user_data of every submission: operation (8 bits), generation (24), index (32): a completion for a life that has ended is recognised by the pool.
 */
#pragma once

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/pool.h"
#include "core/status.h"

enum ring_op {
    RING_OP_NONE,     /* the completion is of no interest */
    RING_OP_ACCEPT,
    RING_OP_DOORBELL,
    RING_OP_CONN_RECV,
    RING_OP_CONN_SEND,
    RING_OP_CONN_CONNECT,
    RING_OP_CONN_CANCEL,
    RING_OP_CONN_CLOSE,
    RING_OP_CONN_SHUTDOWN,
    RING_OP_COUNT,
    RING_OP_LINK_BIT = 0x80, /* the index is one of the link pool, not of the client pool */
};

struct ring_features {
    bool defer_taskrun;
    bool direct_descriptors;
    bool multishot_accept;
    bool multishot_recv;
    bool min_wait; /* kernel 6.12 */
    bool msg_ring;
};

/* A socket as this ring names it: a place in its table of direct descriptors, or a plain descriptor where those are off. */
struct ring_file {
    int32_t number; /* -1: none */
};

struct ring {
    struct io_uring uring;
    struct ring_features features;
    uint32_t *free_files;      /* a stack of free places in the table; NULL without direct descriptors */
    uint32_t free_files_count; /* sockets that may still be installed, in both cases */
    uint32_t files_max;
    uint64_t submits;
};

struct ring_options {
    struct ring_features allowed; /* a feature that is false here is not used */
    uint32_t entries;             /* power of two */
    uint32_t completions;         /* power of two, >= entries */
    uint32_t files_max;           /* sockets wanted; cut to what the limit of open files allows: for each ring with direct descriptors, shared by all rings without */
    uint32_t rings_count;         /* rings of the process */
};

/* STATUS_UNSUPPORTED_KERNEL with a text in `error` where the kernel is below 6.1 or a container or sysctl forbids io_uring; STATUS_SYSTEM for anything else. */
enum status ring_open(struct ring *ring, const struct ring_options *options, char *error, size_t error_bytes) ZG_NODISCARD;
void ring_close(struct ring *ring);

/* A submission entry; submits what is queued where the queue is full. Never NULL. */
struct io_uring_sqe *ring_sqe(struct ring *ring);

/* Submits and does not wait. */
void ring_submit(struct ring *ring);

/* Submits, then waits until `completions_min` completions are there or timeout_ns has passed (UINT64_MAX: no limit). min_wait_ns > 0: returns after that time with
 * whatever has arrived, if anything has. completions_min 0 runs pending work of the kernel and returns. */
void ring_wait(struct ring *ring, uint32_t completions_min, uint64_t min_wait_ns, uint64_t timeout_ns);

/* Has the kernel work for this thread (completions waiting to be posted)? For spinning without system calls. */
bool ring_has_work(const struct ring *ring);

/* Moves a plain socket into the ring: takes fd (closes it in any case). STATUS_FULL where the table is full. */
enum status ring_install(struct ring *ring, int fd, struct ring_file *file) ZG_NODISCARD;
/* A place is free again (its close has completed). */
void ring_file_freed(struct ring *ring, struct ring_file file);
/* Flags for sqe->flags that make `file` mean a direct descriptor. */
static inline uint8_t ring_file_flags(const struct ring *ring)
{
    return ring->features.direct_descriptors ? IOSQE_FIXED_FILE : 0;
}

static inline uint64_t ring_user_data(uint8_t op, const struct pool_item *item)
{
    return (uint64_t)op << 56 | (uint64_t)(item->generation & 0xffffff) << 32 | item->index;
}

static inline uint64_t ring_user_data_plain(uint8_t op, uint32_t index)
{
    return (uint64_t)op << 56 | index;
}
