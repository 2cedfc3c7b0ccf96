/*
 * Listeners of one core: a listening socket each (SO_REUSEPORT; a unix socket is the first core's), accepting plain descriptors, whose options are set before they are installed in the ring of the
 * less loaded of two cores: this one and another drawn at random.
 *
 *     ACCEPTING ── table or pool full, EMFILE, no memory ──► PAUSED ── a client left, or 50 ms ──► ACCEPTING ── drain ──► CLOSED
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"

struct net;

enum listener_state { LISTENER_CLOSED, LISTENER_ACCEPTING, LISTENER_PAUSED };

struct listener {
    int fd;
    uint16_t index;
    uint8_t state; /* enum listener_state */
    bool is_armed; /* an accept is with the kernel */
    bool presents_cluster;
    const struct config_listener *config;
};

/* The body of MSG_CONN. */
struct msg_conn {
    int32_t fd;
    uint16_t listener;
};

/* Opens what the configuration lists and begins to accept. On error nothing stays open. */
enum status listeners_open(struct net *net, char *error, size_t error_bytes) ZG_NODISCARD;
/* Stops accepting and closes the sockets. */
void listeners_close(struct net *net);

/* A connection that another core accepted: takes fd. */
void listener_adopt(struct net *net, int fd, uint16_t listener);

/* Every 50 ms, and when a client's place is free again: paused listeners try again. */
void listeners_retry(struct net *net);
