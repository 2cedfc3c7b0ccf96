/*
 * A link: one connection to a backend, shared by all callers of this core, of one protocol. Replies are matched to legs by position alone, so a link whose position is in doubt is closed.
 *
 *     WAITING ──► CONNECTING ──► HANDSHAKE ──► READY ──► (closing: every leg is answered or taken over) ──► gone
 *       └─ for its turn, where the core connects as often as it may (net/connect_rate.h)
 *
 * Legs may be put on a link from the start: they wait in its queue behind the handshake.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/core.h"
#include "net/conn.h"
#include "net/leg.h"
#include "net/resp_scan.h"

enum link_state { LINK_WAITING, LINK_CONNECTING, LINK_HANDSHAKE, LINK_READY, LINK_GONE };

struct request;

struct link {
    struct conn conn;      /* first member */
    uint64_t key;          /* names this life of this link on its core; never 0 */
    uint32_t node_key;     /* of the topology */
    uint8_t protocol;      /* 2 or 3 */
    uint8_t channel;       /* the protocol, and whether it is a bulk link */
    uint8_t state;         /* enum link_state */
    struct leg_list fifo;  /* sent or queued, without a reply; oldest first */
    uint64_t seq_sent;     /* legs ever put on the link */
    uint64_t seq_answered; /* of those, answered */
    uint64_t progress_ms;  /* when it last answered, or became non-empty */
    uint64_t guard_seq;    /* for the dispatcher: seq_sent when the last topology was adopted */
    struct resp_reply_state scan;
    struct block *assembly;      /* a reply that did not lie whole in one receive buffer; NULL: none */
    struct request *stream;      /* the request whose reply goes on to its client as it arrives (net/stream.h); NULL: none */
    uint64_t stream_bytes;       /* of that reply so far */
    enum status assembly_status; /* not OK: the reply is skipped, its leg fails with this */
    struct list_node all;        /* in the link pool's list */
    void *holder;                /* the link pool's entry */
    struct sockaddr_storage address;
    socklen_t address_bytes;
};

/* Opens a link and starts to connect as soon as it may; `handshake` (one command) is sent first. NULL with *status where the pool is full, the table of descriptors is, or a socket cannot be made. */
struct link *link_open(struct net *net, const struct sockaddr *address, socklen_t address_bytes, uint8_t protocol, const uint8_t *handshake,
    uint32_t handshake_bytes, enum status *status);

/* Puts legs (taken) at the end of the FIFO and their bytes (a chain of blocks through `next`, references taken) at the end of the queue. */
void link_enqueue(struct net *net, struct link *link, struct leg_list *legs, struct block *chain);

/* WAITING -> CONNECTING: its turn has come. For the link pool. */
void link_connect(struct net *net, struct link *link);

/* Called every 100 ms: closes a link that has been waiting for its turn, connecting or without progress for too long. */
void link_check(struct net *net, struct link *link, uint64_t connect_timeout_ms, uint64_t stall_ms);

/* What is there of a reply under assembly is no longer needed, or has gone on. For net/stream.c. */
void link_drop_assembly(struct core *core, struct link *link);

static inline struct link *link_of_conn(struct conn *conn)
{
    return (struct link *)(void *)conn;
}
