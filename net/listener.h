/*
 * Listeners of one core: a listening socket each (SO_REUSEPORT; a unix socket is the first core's), accepting plain descriptors, whose options are set before they are installed in the ring of the
 * less loaded of two cores: this one and another drawn at random. Where a listener has a port per core there is a second socket on this core's own port, whose connections stay here: its index is the listener's
 * plus the number of listeners.
 *
 *     ACCEPTING ── table or pool full, EMFILE, no memory ──► PAUSED ── a client left, or 50 ms ──► ACCEPTING ── drain ──► CLOSED
 *
 * A socket that was handed over (net/activation.h) is one for all cores: each has an accept with it. The kernel wakes one of those that wait, often the same, and the choice between two cores spreads
 * what it accepts. Such a socket begins HELD: connections wait in its queue until there is a topology to serve them by, or five seconds have passed. It is never closed and its path never removed, so that
 * connections made from now on wait for the next process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"

struct net;

enum listener_state { LISTENER_CLOSED, LISTENER_HELD, LISTENER_ACCEPTING, LISTENER_PAUSED };

struct listener {
    int fd;
    uint16_t index;
    uint8_t state; /* enum listener_state */
    bool is_armed; /* an accept is with the kernel */
    bool is_handed_over;
    bool presents_cluster;
    bool is_own;        /* of this core alone: what is accepted stays here */
    uint16_t base_port; /* as configured; 0: a unix socket */
    const struct config_listener *config;
};

/* The body of MSG_CONN. */
struct msg_conn {
    int32_t fd;
    uint16_t listener;
};

/* Opens what the configuration lists and begins to accept. handed_over: descriptors by the listener's index, -1 where this core opens its own; NULL: it opens all. On error nothing of its own stays open. */
enum status listeners_open(struct net *net, const int *handed_over, char *error, size_t error_bytes) ZG_NODISCARD;
/* HELD listeners accept: there is something to serve, or net->held_until_ms has passed. */
void listeners_begin(struct net *net);
/* Stops accepting. Closes the core's own sockets, after taking the connections that wait in their queues: those would be reset. */
void listeners_close(struct net *net);
/* After listeners_close: no accept is with the kernel any more, so no further connection comes. */
bool listeners_are_closed(const struct net *net);

/* A connection that another core accepted: takes fd. */
void listener_adopt(struct net *net, int fd, uint16_t listener);

/* Every tick, and when a client's place is free again: paused listeners try again. */
void listeners_retry(struct net *net);
