/*
 * A request: one command of a client from the moment it has wholly arrived until its reply is in the client's send queue. Born and freed on its home core. Two cache lines, with room for
 * the one leg of a command whose key this core owns.
 *
 *                 every leg done, or the gateway's own answer        oldest of its client
 *     WAITING ──────────────────────────────────────────► ANSWERED ─────────────────────► SENT
 *        │  time-out: answered -TIMEOUT while legs are still out                            │
 *        └── the client left: client is NULL, the answer is dropped                         ▼
 *                                                              freed when legs_left is 0 (request_try_free)
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/list.h"
#include "core/pool.h"
#include "core/status.h"
#include "net/leg.h"

struct client;
struct link;
struct net;
struct reply;
struct split;

enum request_state { REQUEST_WAITING, REQUEST_ANSWERED, REQUEST_SENT };

enum request_flag {
    REQUEST_SILENT = 1u << 0, /* CLIENT REPLY OFF or SKIP: the reply is dropped */
    REQUEST_CLOSE = 1u << 1,  /* the client is closed once this reply is queued */
    REQUEST_STREAM = 1u << 2, /* a part of its reply has gone to the client: `stream` is the link that it comes from */
};

struct request {
    struct pool_item item;
    struct request *next;      /* in the client's FIFO */
    struct client *client;     /* NULL once the client has left */
    struct list_node deadline; /* in the core's list, ordered by time */
    struct block *reply;       /* not the oldest: the reply, ready for the send queue; of a run a chain of blocks */
    union {
        struct split *split;     /* parts of a split command and their merge, NULL for one leg */
        struct block *reply_end; /* of a run: the last block of `reply` */
        struct link *stream;     /* REQUEST_STREAM */
    };
    uint32_t started_us; /* low 32 bits of the loop's microseconds */
    uint16_t legs_left;
    uint8_t state;
    uint8_t flags;
    struct leg leg; /* used where the slot is owned by this core */
};
_Static_assert(sizeof(struct request) == 128, "two cache lines");

/*
 * A run: commands of one client that arrived together and go to one link one behind the other share one request and one leg (LEG_RUN). Their bytes are contiguous in the batch, their replies are
 * counted off and go on in whole pieces, so that a pipeline costs little more than its bytes. Whatever is not plain - an error reply that may be a redirect, a lost link - first divides the run
 * into requests of their own (net_ops.divide_run); `part` of its leg counts the replies that are kept because the run is not its client's oldest request.
 */
static inline bool request_is_run(const struct request *request)
{
    return request->leg.action == LEG_RUN;
}

/* `count` whole replies of a run, one behind the other, at its link. The last ones end the leg, which is out of the link's FIFO by then. */
void request_run_replies(struct net *net, struct request *request, const struct reply *replies, uint32_t count);

/* A request of its own for a command of a run that is being divided, in the client's FIFO behind `after`. NULL: the pool is full. */
struct request *request_create_behind(struct net *net, struct request *after);

/* All commands of the run behind the replies it has got have requests of their own: it ends with what it has. */
void request_run_divided(struct net *net, struct request *request);

/* The request that a LEG_EMBEDDED leg lives in. */
static inline struct request *request_of_leg(struct leg *leg)
{
    return LIST_ENTRY(leg, struct request, leg);
}

/* A reply as bytes, wherever they lie. */
struct reply {
    const uint8_t *bytes;
    uint32_t length;
    struct block *block; /* the block of this core's arena that holds them, or NULL */
    bool is_lent;        /* they belong to `lender` until mailbox_return(lender, lent_offset) */
    uint16_t lender;
    uint64_t lent_offset;
    uint32_t more; /* further replies behind the first: a piece of a run */
};

/* A new request at the end of the client's FIFO and of the time-out list, WAITING; NULL where the pool is full. */
struct request *request_create(struct net *net, struct client *client, uint64_t timeout_ns) ZG_NODISCARD;

/* One leg is done; the reply's bytes are borrowed (copied, referenced or, where lent, taken). Counts the leg and, for the last one, answers. */
void request_leg_done(struct net *net, struct request *request, uint16_t part, const struct reply *reply);
/* One leg ended without a reply of a backend: the status' text is its reply. */
void request_leg_failed(struct net *net, struct request *request, uint16_t part, enum status status);

/* Gives the request its answer unless it has one. Keeps it until its legs are done. */
void request_answer(struct net *net, struct request *request, const struct reply *reply);
void request_answer_status(struct net *net, struct request *request, enum status status);

/* ANSWERED -> SENT: its reply is in the client's send queue and it has left the FIFO. */
void request_sent(struct net *net, struct request *request);

/* The reply of a plain request, its client's oldest, goes on while it arrives (net/stream.h): no time-out from now on. */
void request_stream_begin(struct request *request, struct link *link);
/* Its last piece is in the client's queue, or its client has left: the one leg is done. */
void request_stream_end(struct net *net, struct request *request);
/* No more of it will come: the client, which has half a reply, is closed. */
void request_stream_cut(struct net *net, struct request *request);

/* The client has left: the answer goes nowhere. */
void request_orphan(struct net *net, struct request *request);

/* Hands latencies that were counted but not recorded yet to the histogram; once an iteration. */
void request_flush_latency(struct net *net);

/* Answers what is past its deadline; called a few times a second. */
void request_expire(struct net *net);
