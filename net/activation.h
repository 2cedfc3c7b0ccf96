/*
 * Listening sockets that whoever started the process hands over, as systemd's socket units do: they stay open while no process runs, so that connections made meanwhile wait instead of being refused.
 * Source: sd_listen_fds(3): LISTEN_PID names the process they are meant for, LISTEN_FDS counts them from descriptor 3 on, LISTEN_FDNAMES names them, separated by colons.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/config.h"
#include "core/status.h"

/* What the environment says; texts are borrowed, NULL where a variable is not set. */
struct activation_env {
    const char *pid, *fds, *names;
    int64_t own_pid;
    int fd_first;
};

struct activation {
    int fds[CONFIG_LISTENERS_MAX]; /* by the listener's index in the configuration; -1: none, the gateway opens its own. Open until the process ends */
    uint32_t count;                /* sockets taken */
    char notice[256];              /* something to tell the operator although it is no error; empty: nothing */
};

/* The environment of this process. Boot only, before there are threads. */
struct activation_env activation_env_read(void);

/* Finds the listener of each socket handed over, by the name that `listeners.socket` asks for, else by its address. STATUS_INVALID with a text where the environment is malformed, a descriptor is no
 * listening stream socket, or a socket belongs to no listener or to one that has another already. Sockets for another process are left alone, with a notice. Sets close-on-exec; makes them blocking, which
 * an accept through io_uring needs. */
enum status activation_take(struct activation *activation, const struct activation_env *env, const struct config *config, char *error, size_t error_bytes) ZG_NODISCARD;
