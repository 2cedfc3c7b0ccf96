/*
 * A client: its connection, what it says of itself (session), the bytes that are not yet a whole command, and its requests in order. At most 384 bytes while idle.
 *
 * A client is read until a reason to pause appears, and parsed again when the last reason is gone:
 *
 *     PIPELINE  too many requests in flight, or     gone when half of them are answered; how many is too many follows the size of the
 *                                                   client's replies, so that what is still to come fits into its output
 *     OUTPUT    too many unsent bytes               gone when half of them are sent
 *     DRAIN     a barrier waits for all requests    gone when none is in flight
 *     CREDIT    no credit for the lane to the owner gone when the lane has one
 *     MEMORY    memory is scarce and it holds much  gone when there is enough again
 *     END       a protocol error                    never gone: it is answered in its turn, then the client is closed
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "net/conn.h"
#include "net/request.h"
#include "net/resp_scan.h"
#include "net/session.h"
#include "net/socket.h"

struct listener;

enum client_pause { PAUSE_PIPELINE = 1u << 0, PAUSE_OUTPUT = 1u << 1, PAUSE_DRAIN = 1u << 2, PAUSE_CREDIT = 1u << 3, PAUSE_END = 1u << 4, PAUSE_MEMORY = 1u << 5 };

/* While the gateway drains. */
enum drain_flag {
    DRAIN_TOLD = 1u << 0, /* MOVING was pushed */
    DRAIN_LAST = 1u << 1, /* the command that is arriving is the last one that is read */
    DRAIN_CUT = 1u << 2,  /* nothing more is read */
    DRAIN_LINGERS = 1u << 3, /* drain_ms is set */
};

struct client {
    struct conn conn; /* first member: a client is found by its connection */
    struct session session;
    struct list_node all;     /* in net->clients_all */
    struct list_node waiting; /* in a lane's list of clients without a credit */
    struct task task;         /* parse again */
    struct block *input;      /* unparsed bytes: data[offset .. length) */
    struct resp_command_state scan;
    uint32_t inflight;         /* requests in the FIFO */
    uint32_t window;           /* most requests in flight, from the size of its replies; at most pipeline_per_client */
    uint64_t window_bytes;     /* bytes of replies since the window was set */
    uint64_t held_bytes;       /* commands in flight and replies that wait for their turn */
    struct request *fifo_head; /* oldest request */
    struct request *fifo_tail;
    struct socket_endpoint peer;
    struct socket_endpoint local; /* the address the client dialled */
    uint64_t epoch_floor;         /* no request in flight was routed by an older topology than this epoch */
    uint32_t active_stamp;        /* for the wait controller: the window in which it was last active */
    uint32_t drain_ms;            /* net/drain.c: when the drain saw first that FIN was sent, low 32 bits */
    uint16_t listener;            /* index */
    uint8_t pause;                /* enum client_pause */
    uint8_t drain;                /* enum drain_flag */
    uint16_t window_replies;      /* replies since the window was set */
    bool is_throttling;           /* the link that streams its oldest reply may be waiting for it to take bytes */
};
_Static_assert(sizeof(struct client) <= 384, "an idle client must stay cheap");

/* A client on an installed socket; NULL where the pool is full (the caller closes the socket). Reading begins at once. */
struct client *client_open(struct net *net, struct ring_file file, uint16_t listener);

/* Puts a reply at the end of the client's output: bytes are copied, or the block that holds large ones is referenced. Takes a loan in any case. Closes a client beyond its limits. */
void client_queue_reply(struct net *net, struct client *client, const struct reply *reply);

/* The same for a piece of a reply, first or last. */
void client_queue_piece(struct net *net, struct client *client, const struct reply *reply);

/* The oldest requests that have their answer are sent; called when the oldest one may have changed. */
void client_advance(struct net *net, struct client *client);

void client_pause(struct net *net, struct client *client, enum client_pause reason);
void client_wake(struct net *net, struct client *client, enum client_pause reason);

/* Draining: nothing more is read from the socket. What has been read is answered; of a command that has begun to arrive the rest is read, and it is the last one. To be called again until it is done. */
void client_stop_reading(struct net *net, struct client *client);

/* Puts a push between two replies. The session must speak RESP3. */
void client_push(struct net *net, struct client *client, const struct resp_writer *push);

/* Requests that came and were answered; the core counts the clients that wait. */
static inline void client_inflight_add(struct core *core, struct client *client, uint32_t count)
{
    core->counts.waiting += client->inflight == 0;
    client->inflight += count;
}

static inline void client_inflight_remove(struct core *core, struct client *client, uint32_t count)
{
    ZG_CHECK(client->inflight >= count);
    client->inflight -= count;
    core->counts.waiting -= count > 0 && client->inflight == 0;
}

static inline struct client *client_of_conn(struct conn *conn)
{
    return (struct client *)(void *)conn;
}
