/*
 * Plain sockets: what is done before a descriptor is installed in a ring.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/status.h"

/* A listening socket for "HOST:PORT", "[IPV6]:PORT" or "unix:PATH" with SO_REUSEPORT (TCP), so that each core has one of its own. Returns the descriptor, or -1 with a text.
 * A TCP bind that fails with EADDRINUSE is retried for up to 100 ms: a process that has just ended leaves an armed accept behind for some milliseconds. */
int socket_listen(const char *address, char *error, size_t error_bytes);

/* A stream socket for connecting to `address`: TCP_NODELAY and keep-alive for TCP. -1 with errno. */
int socket_open_stream(const struct sockaddr *address);

/* Options of an accepted socket. */
void socket_prepare_accepted(int fd);

/* Numeric addresses at once, names through the resolver, which may block: not on a data core. */
enum status socket_resolve(const char *host, uint16_t port, struct sockaddr_storage *address, socklen_t *address_bytes) ZG_NODISCARD;

/* Numeric addresses only; false for a name. Never blocks. */
bool socket_resolve_numeric(const char *host, uint16_t port, struct sockaddr_storage *address, socklen_t *address_bytes);

/* An address in 20 bytes: what each client remembers of its two ends. */
struct socket_endpoint {
    uint16_t family; /* AF_INET, AF_INET6, AF_UNIX, or 0: unknown */
    uint16_t port;
    uint8_t bytes[16];
};

/* An address in short; IPv4 that came through an IPv6 socket (::ffff:127.0.0.1) is IPv4 again. */
void socket_endpoint_of(const struct sockaddr_storage *address, struct socket_endpoint *endpoint);

/* Both ends of a connected socket; what cannot be told is family 0. */
void socket_endpoints(int fd, struct socket_endpoint *peer, struct socket_endpoint *local);

/* The host alone, "127.0.0.1" or "::1"; for unix sockets "". */
void socket_endpoint_host(const struct socket_endpoint *endpoint, char *text, size_t text_bytes);
/* As Redis's CLIENT LIST writes it: "127.0.0.1:6379", "[::1]:6379", for unix sockets "/path:0" with the path given. */
void socket_endpoint_format(const struct socket_endpoint *endpoint, const char *unix_path, char *text, size_t text_bytes);
