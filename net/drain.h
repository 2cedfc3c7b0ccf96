/*
 * The end of a core's clients after SIGTERM. No request that was read goes without its answer, and as few as possible cross the end of their connection on the wire:
 *
 *     told     clients that asked for it (CLIENT MAINT_NOTIFICATIONS ON) are pushed MOVING and served until drain.grace is over, so that they can connect anew and leave by themselves
 *     replied  any other client is left in the moment in which its last request in flight is answered: FIN follows the reply, and a client that looks at its connection before it uses it sees the end.
 *              At no other moment is it as unlikely that its next request is on its way
 *     quiet    one without a request for 100 ms is left then
 *     cut      one that is never without a request in flight is no longer read 100 ms after the drain began, or after the grace; what was read is answered
 *     late     whatever is still open at drain.timeout is closed
 *
 * "Left" is conn_finish: FIN, and a wait of at most 100 ms for the client's own end, in which what it sends is dropped and not executed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;
struct net;

enum { DRAIN_QUIET_MS = 100, DRAIN_LINGER_MS = 100 };

/* What a client looks like to the decision. Times in ms. */
struct drain_view {
    uint64_t elapsed_ms;  /* since the drain began */
    uint64_t grace_ms;    /* of clients that were told */
    uint64_t quiet_ms;    /* since its last command, or since it connected */
    uint64_t lingered_ms; /* since its FIN was seen to be sent */
    bool is_late;         /* drain.timeout is over */
    bool was_told;        /* MOVING was pushed */
    bool has_requests;    /* in flight */
    bool has_input;       /* bytes that were read and not yet executed */
    bool is_replying;     /* its last reply is about to be sent */
    bool is_finishing;    /* conn_finish was called */
};

enum drain_action {
    DRAIN_SERVE,        /* go on */
    DRAIN_STOP_READING, /* client_stop_reading */
    DRAIN_FINISH,       /* conn_finish */
    DRAIN_CLOSE,        /* conn_close */
};

/* Pure. */
enum drain_action drain_decide(const struct drain_view *view);

/* The drain begins: MOVING to whom it concerns. `sequence` is the same on all cores, and larger than that of any drain before. */
void drain_begin(struct net *net, int64_t sequence);

/* Every 10 ms from then on. */
void drain_tick(struct net *net, bool is_late);

/* While draining: the client's output is about to be sent. */
void drain_before_send(struct net *net, struct client *client);
