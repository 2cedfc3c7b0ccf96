/*
 * Stateless: system calls on sockets that are not yet in a ring.
 */
#include "net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/address.h"

enum { LISTEN_BACKLOG = 4096, BIND_ATTEMPTS = 20, BIND_PAUSE_NS = 5 * 1000 * 1000 };

static void set_flag(int fd, int level, int option)
{
    int one = 1;
    (void)setsockopt(fd, level, option, &one, sizeof(one)); /* an option that cannot be set costs speed, not correctness */
}

static int bind_and_listen(int fd, const struct sockaddr *address, socklen_t bytes)
{
    for (int attempt = 0;; attempt++) {
        if (bind(fd, address, bytes) == 0)
            return listen(fd, LISTEN_BACKLOG);
        if (errno != EADDRINUSE || attempt == BIND_ATTEMPTS)
            return -1;
        struct timespec pause = {.tv_nsec = BIND_PAUSE_NS};
        (void)nanosleep(&pause, NULL);
    }
}

/* A socket file that nobody listens on any more is left over from a process that was killed. */
static void remove_stale_path(const struct sockaddr_un *address)
{
    struct stat info;
    if (lstat(address->sun_path, &info) != 0 || !S_ISSOCK(info.st_mode))
        return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 && errno == ECONNREFUSED)
        (void)unlink(address->sun_path);
    close(fd);
}

static int listen_unix(const char *path, char *error, size_t error_bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path)) {
        (void)snprintf(error, error_bytes, "unix:%s: the path is longer than %zu bytes", path, sizeof(address.sun_path) - 1);
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    remove_stale_path(&address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        (void)snprintf(error, error_bytes, "unix:%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

int socket_listen(const char *address, char *error, size_t error_bytes)
{
    if (strncmp(address, "unix:", 5) == 0)
        return listen_unix(address + 5, error, error_bytes);
    struct config_address parsed;
    struct sockaddr_storage storage;
    socklen_t bytes = 0;
    if (address_parse(address, false, &parsed, error, error_bytes) != STATUS_OK)
        return -1;
    if (socket_resolve(parsed.host, parsed.port, &storage, &bytes) != STATUS_OK) {
        (void)snprintf(error, error_bytes, "%s: the host cannot be resolved", address);
        return -1;
    }
    int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        (void)snprintf(error, error_bytes, "%s: %s", address, strerror(errno));
        return -1;
    }
    set_flag(fd, SOL_SOCKET, SO_REUSEADDR);
    set_flag(fd, SOL_SOCKET, SO_REUSEPORT);
    if (storage.ss_family == AF_INET6)
        set_flag(fd, IPPROTO_IPV6, IPV6_V6ONLY);
    if (bind_and_listen(fd, (const struct sockaddr *)&storage, bytes) != 0) {
        (void)snprintf(error, error_bytes, "%s: %s", address, strerror(errno));
        close(fd);
        return -1;
    }
    return fd;
}

int socket_open_stream(const struct sockaddr *address)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && address->sa_family != AF_UNIX) {
        set_flag(fd, IPPROTO_TCP, TCP_NODELAY);
        set_flag(fd, SOL_SOCKET, SO_KEEPALIVE);
    }
    return fd;
}

void socket_prepare_accepted(int fd)
{
    /* Fails on unix sockets, where there is nothing to delay. */
    set_flag(fd, IPPROTO_TCP, TCP_NODELAY);
    set_flag(fd, SOL_SOCKET, SO_KEEPALIVE);
}

bool socket_resolve_numeric(const char *host, uint16_t port, struct sockaddr_storage *address, socklen_t *address_bytes)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)address;
    memset(address, 0, sizeof(*address));
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *address_bytes = sizeof(*v4);
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        *address_bytes = sizeof(*v6);
        return true;
    }
    *address_bytes = 0;
    return false;
}

enum status socket_resolve(const char *host, uint16_t port, struct sockaddr_storage *address, socklen_t *address_bytes)
{
    if (socket_resolve_numeric(host, port, address, address_bytes))
        return STATUS_OK;
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    (void)snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0 || found == NULL)
        return STATUS_NOT_FOUND;
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *address_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return STATUS_OK;
}

void socket_endpoint_of(const struct sockaddr_storage *address, struct socket_endpoint *endpoint)
{
    memset(endpoint, 0, sizeof(*endpoint));
    endpoint->family = address->ss_family;
    const struct sockaddr_in6 *mapped = (const struct sockaddr_in6 *)(const void *)address;
    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&mapped->sin6_addr)) {
        endpoint->family = AF_INET;
        endpoint->port = ntohs(mapped->sin6_port);
        memcpy(endpoint->bytes, mapped->sin6_addr.s6_addr + 12, 4);
    } else if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        endpoint->port = ntohs(v4->sin_port);
        memcpy(endpoint->bytes, &v4->sin_addr, sizeof(v4->sin_addr));
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
        endpoint->port = ntohs(v6->sin6_port);
        memcpy(endpoint->bytes, &v6->sin6_addr, sizeof(v6->sin6_addr));
    }
}

void socket_endpoints(int fd, struct socket_endpoint *peer, struct socket_endpoint *local)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0)
        address.ss_family = 0;
    socket_endpoint_of(&address, peer);
    memset(&address, 0, sizeof(address));
    bytes = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        address.ss_family = 0;
    socket_endpoint_of(&address, local);
}

void socket_endpoint_host(const struct socket_endpoint *endpoint, char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (endpoint->family == AF_INET || endpoint->family == AF_INET6)
        (void)inet_ntop(endpoint->family, endpoint->bytes, text, (socklen_t)text_bytes);
}

void socket_endpoint_format(const struct socket_endpoint *endpoint, const char *unix_path, char *text, size_t text_bytes)
{
    char host[INET6_ADDRSTRLEN];
    socket_endpoint_host(endpoint, host, sizeof(host));
    if (endpoint->family == AF_INET6)
        (void)snprintf(text, text_bytes, "[%s]:%u", host, endpoint->port);
    else if (endpoint->family == AF_INET)
        (void)snprintf(text, text_bytes, "%s:%u", host, endpoint->port);
    else
        (void)snprintf(text, text_bytes, "%s:0", unix_path);
}
