/*
 * What the process tells the service manager that started it, if there is one: a datagram of lines to the socket that NOTIFY_SOCKET names. Source: sd_notify(3).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct notify {
    struct sockaddr_un address;
    socklen_t address_bytes;
    int fd; /* -1: nobody is to be told */
};

/* Reads NOTIFY_SOCKET; where it is not set, or cannot be used, nobody is told. Boot only, before there are threads. */
void notify_open(struct notify *notify);
void notify_close(struct notify *notify);

/* READY=1, and in words whether a topology is served already. True where it was sent or there is nobody to be told; false: to be tried again. */
bool notify_ready(const struct notify *notify, bool is_serving);

/* STOPPING=1, and how long that may take: the service manager waits for at least this long before it kills. */
void notify_stopping(const struct notify *notify, uint64_t timeout_ns);
