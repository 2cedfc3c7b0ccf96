/*
 * How cores talk: 64-byte messages over one SPSC lane per ordered pair of cores. A message never carries a pointer to private memory or a
 * function: bytes that cross are lent as (core, offset, length) of the sender's arena.
 *
 * Lane capacity is divided when the mailbox is made, so that a return never waits and nothing can deadlock:
 *
 *     slots = 2 x credits + returns + control
 *
 *   CLASS_REQUEST  needs a credit of this lane (mailbox_credit_take). The credit also reserves a slot of the opposite lane for the reply.
 *   CLASS_REPLY    always fits: the requester's credit reserved it. Taking the reply gives the credit back.
 *   CLASS_RETURN   gives a lent block back; where its reserve is used up the return is kept in a list and sent later.
 *   CLASS_CONTROL  snapshots, acknowledgements, handed-over connections; NULL where its reserve is used up: the caller tries again later.
 *
 * Lent bytes are either copied by the consumer when it takes the message (the lender learns it from the consumer's index and drops
 * its reference in mailbox_reclaim), or, with MSG_LENT set, kept by the consumer until it sends a RETURN.
 *
 * Sleep handshake: a core that is about to sleep publishes it (seq_cst), looks at its lanes once more, and sleeps for a bounded time. A
 * producer that published to it sees the flag and rings one doorbell. Lanes carry an epoch in each message; a message of another epoch is
 * dropped and counted.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/spsc.h"
#include "core/status.h"

enum msg_kind {
    MSG_NONE,
    MSG_LEG,      /* a leg for the owner core: REQUEST */
    MSG_REPLY,    /* its reply: REPLY */
    MSG_RETURN,   /* a lent block comes back: RETURN */
    MSG_CONN,     /* an accepted connection is handed over: CONTROL */
    MSG_SNAPSHOT, /* a new snapshot: CONTROL */
    MSG_ACK,      /* a snapshot has been adopted: CONTROL */
    MSG_REFRESH,  /* please refresh the topology: CONTROL */
    MSG_HEALTH,   /* a node is down, or back: CONTROL */
    MSG_DOUBT,    /* a node may be down: please check it: CONTROL */
    MSG_DRAIN,    /* stop accepting, finish, stop: CONTROL */
    MSG_KIND_COUNT
};

enum msg_class { CLASS_REQUEST, CLASS_REPLY, CLASS_RETURN, CLASS_CONTROL };

enum { MSG_LENT = 1u << 0 }; /* flags: the bytes stay lent until a MSG_RETURN */

struct msg {
    uint8_t kind;
    uint8_t flags;
    uint16_t epoch;
    uint32_t length;  /* lent bytes */
    uint64_t offset;  /* of the lent bytes, in the sender's arena */
    uint64_t origin;  /* LEG, REPLY: handle of the request on its home core */
    uint8_t body[40]; /* by kind; see the struct of each kind (at most 40 bytes) */
};
_Static_assert(sizeof(struct msg) == SPSC_SLOT_BYTES, "one slot a message");

struct mailbox;       /* of one core */
struct mailbox_group; /* of all cores: the lanes and the sleep flags */

struct mailbox_options {
    uint32_t cores_count; /* data cores + 1; 2 .. 128 */
    uint32_t lane_slots;  /* power of two, 64 .. 4,096 */
    uint32_t returns;     /* reserve per lane, at least 1; one message carries up to 6 returns; lane_slots / 8 is a good value */
    uint32_t control;     /* reserve per lane, at least 1; lane_slots / 16 is a good value */
    uint32_t loans_max;   /* the most blocks a core may have lent until their return, and the most returns it may still have to send; 0: 2^20.
                             * Each belongs to a request in flight or a reply not yet sent, so the limits on those bound it; more is a bug. */
};

/* Wakes core `peer`, called on the producer's thread at most once per peer and publish. */
typedef void (*mailbox_doorbell_fn)(void *context, uint32_t peer);

/* Called for each message taken. `bytes` is where the lent bytes are (NULL where length is 0). They are valid during the call; with
 * MSG_LENT until mailbox_return. It may reserve, lend, return and take credits; it may not publish, poll or reset. The credit of a REPLY is
 * free again when the handler is called. */
typedef void (*mailbox_handler_fn)(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes);

/* Boot only, before the threads start. Returns a group whose mailboxes are ready; each is then used by its own core's thread alone. */
struct mailbox_group *mailbox_group_create(const struct mailbox_options *options);

/* After the threads ended. Drops what is still lent, so the attached arenas must still be there. Sets *group to NULL. */
void mailbox_group_destroy(struct mailbox_group **group);
struct mailbox *mailbox_of(struct mailbox_group *group, uint32_t core_id);

/* Tells a mailbox which arena its messages lend from and how to ring (NULL: nobody is rung). Borrowed until the group is destroyed. Boot
 * only, before the threads start. */
void mailbox_attach(struct mailbox *mailbox, struct arena *arena, mailbox_doorbell_fn doorbell, void *context);

/* Takes one credit for a request to `peer`; false where none is left. Whoever takes one sends the request. `peer` is never the core itself,
 * here and below. */
bool mailbox_credit_take(struct mailbox *mailbox, uint32_t peer) ZG_NODISCARD;
uint32_t mailbox_credits_free(const struct mailbox *mailbox, uint32_t peer);

/* A slot for a message of `class` to `peer`, zeroed, epoch set; kind set where the class has only one (LEG, REPLY). Not NULL for REQUEST
 * (after a credit was taken) and REPLY (one for each LEG that came from `peer`); NULL for CONTROL where its reserve is used up. Not for
 * RETURN: see mailbox_return. The message goes out at the next mailbox_publish. */
struct msg *mailbox_reserve(struct mailbox *mailbox, uint32_t peer, enum msg_class class) ZG_NODISCARD;

/* Lends bytes of `block` with the message reserved last for `peer`; takes a reference to the block. Without MSG_LENT it is dropped when the
 * consumer has taken the message (noticed in mailbox_reclaim), with MSG_LENT when the RETURN arrives (in mailbox_poll). `data` lies inside
 * the block. Once a message; length 0 lends nothing. */
void mailbox_lend(struct mailbox *mailbox, uint32_t peer, struct msg *msg, struct block *block, const uint8_t *data, uint32_t length, bool until_returned);

/* Gives back what came with MSG_LENT in a message from `peer` at `offset`. Never fails. */
void mailbox_return(struct mailbox *mailbox, uint32_t peer, uint64_t offset);

/* Publishes every lane with reserved messages and rings at most one doorbell a sleeping peer. Returns messages published. */
uint32_t mailbox_publish(struct mailbox *mailbox);

/* Takes up to `messages_max` messages from all lanes, fairly, and calls the handler for each but RETURN and those of another epoch. Frees
 * credits of replies. Returns messages taken, of all kinds. The slots of a lane's batch are given back after the handler has seen all of
 * it. */
uint32_t mailbox_poll(struct mailbox *mailbox, uint32_t messages_max, mailbox_handler_fn handler, void *context);

/* Drops the references of bytes whose messages have been consumed. Returns how many. Call once an iteration. */
uint32_t mailbox_reclaim(struct mailbox *mailbox);

/* Is a message waiting in any lane? Cheap, for spinning. */
bool mailbox_has_news(struct mailbox *mailbox);

/* The sleep handshake: publishes that this core sleeps; false (and the flag is withdrawn) where a lane has messages after all, or where
 * this core has something to publish. A wake-up may be spurious. */
bool mailbox_sleep_begin(struct mailbox *mailbox) ZG_NODISCARD;
void mailbox_sleep_end(struct mailbox *mailbox);

struct mailbox_stats {
    uint64_t published, taken, doorbells, stale_epoch, returns_delayed;
    uint64_t returns_unknown; /* returns of what was not lent: a fault of the peer, dropped */
    uint64_t loans_out;       /* blocks lent and not yet back */
};
struct mailbox_stats mailbox_stats(const struct mailbox *mailbox);

/* A peer was replaced: raises the epoch of the lanes to and from it, discards what is in them, frees all credits and drops every loan it
 * held and every return to it. Its side must not run; the replacement's own state is made new in the same way before it runs. Replies to
 * the dead peer's requests must not be sent any more, and nothing it lent may be used. For processes as cores, later; tested now. */
void mailbox_reset_peer(struct mailbox *mailbox, uint32_t peer);
