/*
 * A connection: one socket of one core, with a receive that is always armed (unless paused), a send queue with at most one send in flight, and a close in two phases. What the bytes mean is the business of the
 * client or the link that embeds it. How bytes get to the socket is the business of its transport.
 *
 *     OPENING (links: connecting) ──► OPEN ──► CLOSING (cancel; wait for operations) ──► CLOSED (close; wait) ──► released at the end of the iteration
 *
 * A client that is to leave in order (conn_finish) stays OPEN with CONN_FINISH, later CONN_SHUT: its replies go out, then FIN, and what it sends meanwhile is dropped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "net/close_reason.h"
#include "net/send_queue.h"

struct conn;

enum conn_kind { CONN_CLIENT, CONN_LINK, CONN_KIND_COUNT };
enum conn_state { CONN_OPENING, CONN_OPEN, CONN_CLOSING, CONN_CLOSED, CONN_RELEASED };

enum conn_flag {
    CONN_RECEIVING = 1u << 0, /* a receive is armed */
    CONN_SENDING = 1u << 1,   /* a send is in flight */
    CONN_PAUSED = 1u << 2,    /* the owner wants no more bytes */
    CONN_DIRTY = 1u << 3,     /* in the list of connections to flush */
    CONN_CANCELLING = 1u << 4,  /* the receive is being cancelled */
    CONN_CLOSE_AFTER_SEND = 1u << 5,
    CONN_FINISH = 1u << 6, /* with CLOSE_AFTER_SEND: FIN instead of a close, then the peer's is waited for */
    CONN_SHUT = 1u << 7,   /* FIN is sent */
};

/* What the embedding object does; one constant table per kind. */
struct conn_ops {
    /* Bytes have arrived; they lie in `block` (a receive buffer: take a reference to lend or keep them) and are valid during the call. */
    void (*on_data)(struct core *core, struct conn *conn, struct block *block, const uint8_t *bytes, uint32_t length);
    /* A connect has completed; result 0 or -errno. */
    void (*on_connect)(struct core *core, struct conn *conn, int32_t result);
    /* The queue got shorter. */
    void (*on_sent)(struct core *core, struct conn *conn);
    /* The close has begun (once): drop what depends on the connection; the object stays until on_released. */
    void (*on_closing)(struct core *core, struct conn *conn);
    /* Nothing refers to it any more: free the object. */
    void (*on_released)(struct core *core, struct conn *conn);
};

/* How bytes move: plain sockets now; TLS has the same four verbs. */
struct transport {
    const char *name;
    void (*receive)(struct core *core, struct conn *conn);                                        /* arms a receive */
    void (*received)(struct core *core, struct conn *conn, struct block *block, uint32_t length); /* bytes of the socket: hands plain ones to on_data */
    void (*send)(struct core *core, struct conn *conn);                                           /* sends from the queue */
};

struct conn {
    struct pool_item item;
    const struct conn_ops *ops;
    const struct transport *transport;
    struct list_node flush_node; /* in the dirty list, later in the release list */
    struct send_queue out;
    struct ring_file file;
    uint8_t kind;       /* enum conn_kind */
    uint8_t state;      /* enum conn_state */
    uint8_t flags;      /* enum conn_flag */
    uint8_t operations; /* submitted and not completed */
    uint8_t close_reason;
};

extern const struct transport transport_plain;

/* Registers the completion handlers with the core. */
void conn_setup(struct core *core);

/* Embeds: `item` is already set by the pool. */
void conn_init(struct conn *conn, enum conn_kind kind, const struct conn_ops *ops, const struct transport *transport, struct ring_file file);

/* OPENING -> connecting to `address` (which must stay valid until on_connect). */
void conn_connect(struct core *core, struct conn *conn, const struct sockaddr *address, socklen_t address_bytes);
/* OPENING -> OPEN: arms the receive. */
void conn_opened(struct core *core, struct conn *conn);

/* Appended to conn->out: it will be flushed in this iteration. */
void conn_mark_dirty(struct core *core, struct conn *conn);

/* No more bytes wanted; what has already arrived still comes. */
void conn_pause(struct core *core, struct conn *conn);
void conn_resume(struct core *core, struct conn *conn);

/* Begins the close; does nothing where it has begun. */
void conn_close(struct core *core, struct conn *conn, enum close_reason reason);
/* Begins the close once everything queued has been sent. */
void conn_close_after_send(struct core *core, struct conn *conn, enum close_reason reason);

/* The orderly end: once everything queued has been sent the peer is told that nothing more comes (FIN), and what it still sends is dropped until it ends its side too. A close with bytes unread would
 * make the kernel reset the connection, and the peer might lose replies that it has not read. The owner bounds the wait by conn_close. */
void conn_finish(struct core *core, struct conn *conn, enum close_reason reason);

static inline bool conn_is_open(const struct conn *conn)
{
    return conn->state == CONN_OPEN;
}
