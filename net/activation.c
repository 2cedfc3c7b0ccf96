/*
 * Stateless: runs once, on the main thread, before there are others.
 */
#include "net/activation.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/address.h"
#include "core/options.h"
#include "net/socket.h"

enum { FD_FIRST = 3, NAME_MAX_BYTES = 256 };

/* A socket handed over, while its listener is looked for. */
struct handed_socket {
    int fd;
    char name[NAME_MAX_BYTES]; /* empty: none */
    struct sockaddr_storage address;
    bool is_dual; /* an IPv6 wildcard that takes IPv4 too */
};

struct activation_env activation_env_read(void)
{
    struct activation_env env = {
        .pid = getenv("LISTEN_PID"),
        .fds = getenv("LISTEN_FDS"),
        .names = getenv("LISTEN_FDNAMES"),
        .own_pid = getpid(),
        .fd_first = FD_FIRST,
    };
    return env;
}

/* Digits alone, at most `max`. */
static bool read_number(const char *text, int64_t max, int64_t *value)
{
    int64_t number = 0;
    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        number = number * 10 + (*text - '0');
        if (number > max)
            return false;
    }
    *value = number;
    return true;
}

static enum status inspect(struct handed_socket *socket, char *error, size_t error_bytes)
{
    int type = 0, is_listening = 0;
    socklen_t bytes = sizeof(type);
    if (getsockopt(socket->fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0)
        return option_fail(error, error_bytes, "LISTEN_FDS: descriptor %d: %s; allowed: listening sockets", socket->fd, strerror(errno));
    bytes = sizeof(is_listening);
    if (type != SOCK_STREAM || getsockopt(socket->fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &bytes) != 0 || is_listening == 0)
        return option_fail(error, error_bytes, "LISTEN_FDS: descriptor %d is no listening stream socket; allowed: ListenStream= with Accept=no", socket->fd);
    bytes = sizeof(socket->address);
    if (getsockname(socket->fd, (struct sockaddr *)&socket->address, &bytes) != 0)
        return option_fail(error, error_bytes, "LISTEN_FDS: descriptor %d: %s", socket->fd, strerror(errno));
    int only_v6 = 1;
    bytes = sizeof(only_v6);
    socket->is_dual = socket->address.ss_family == AF_INET6 && getsockopt(socket->fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, &bytes) == 0 && only_v6 == 0 &&
        IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)&socket->address)->sin6_addr);
    return STATUS_OK;
}

/* "127.0.0.1:6380", "[::]:6380" or a path: for messages. */
static void describe(const struct handed_socket *socket, char *text, size_t text_bytes)
{
    if (socket->address.ss_family == AF_UNIX) {
        const struct sockaddr_un *name = (const struct sockaddr_un *)(const void *)&socket->address;
        (void)snprintf(text, text_bytes, "unix:%.107s", name->sun_path);
        return;
    }
    struct socket_endpoint endpoint;
    socket_endpoint_of(&socket->address, &endpoint);
    socket_endpoint_format(&endpoint, "?", text, text_bytes);
}

static bool has_address(const struct handed_socket *socket, const char *text)
{
    char error[256];
    if (strncmp(text, "unix:", 5) == 0) {
        const struct sockaddr_un *name = (const struct sockaddr_un *)(const void *)&socket->address;
        return socket->address.ss_family == AF_UNIX && strncmp(name->sun_path, text + 5, sizeof(name->sun_path)) == 0;
    }
    struct config_address parsed;
    struct sockaddr_storage wanted;
    socklen_t bytes = 0;
    if (address_parse(text, false, &parsed, error, sizeof(error)) != STATUS_OK || socket_resolve(parsed.host, parsed.port, &wanted, &bytes) != STATUS_OK)
        return false;
    struct socket_endpoint want, have;
    socket_endpoint_of(&wanted, &want);
    socket_endpoint_of(&socket->address, &have);
    if (want.family == AF_INET && socket->is_dual) {
        static const uint8_t any[sizeof(want.bytes)];
        return want.port == have.port && memcmp(want.bytes, any, sizeof(any)) == 0;
    }
    return want.family == have.family && want.port == have.port && memcmp(want.bytes, have.bytes, sizeof(want.bytes)) == 0;
}

/* A name that a listener asks for wins over addresses, so that an address may be written in a way that does not match. -1: none. */
static int find_listener(const struct handed_socket *socket, const struct config *config)
{
    for (uint32_t i = 0; i < config->listeners_count; i++)
        if (socket->name[0] != '\0' && strcmp(config->listeners[i].socket, socket->name) == 0)
            return (int)i;
    for (uint32_t i = 0; i < config->listeners_count; i++)
        if (has_address(socket, config->listeners[i].address))
            return (int)i;
    return -1;
}

/* An accept through io_uring on a socket that does not block ends at once where nobody waits, and would be armed again for ever. */
static enum status prepare(int fd, char *error, size_t error_bytes)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return option_fail(error, error_bytes, "LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
    return STATUS_OK;
}

static enum status take_one(struct activation *activation, struct handed_socket *socket, const struct config *config, char *error, size_t error_bytes)
{
    char address[192];
    enum status status = inspect(socket, error, error_bytes);
    if (status != STATUS_OK)
        return status;
    describe(socket, address, sizeof(address));
    int index = find_listener(socket, config);
    if (index < 0)
        return option_fail(error, error_bytes, "LISTEN_FDS: descriptor %d, %s%s%s%s, belongs to no listener; allowed: a socket whose address is that of a listener, or whose name its key 'socket' has",
            socket->fd, address, socket->name[0] != '\0' ? " (" : "", socket->name, socket->name[0] != '\0' ? ")" : "");
    if (activation->fds[index] >= 0)
        return option_fail(error, error_bytes, "LISTEN_FDS: descriptors %d and %d are both for the listener %s; allowed: one socket a listener", activation->fds[index], socket->fd,
            config->listeners[index].address);
    status = prepare(socket->fd, error, error_bytes);
    if (status != STATUS_OK)
        return status;
    activation->fds[index] = socket->fd;
    activation->count++;
    return STATUS_OK;
}

/* The name at *names, which moves behind it and its colon. */
static void take_name(const char **names, char *name)
{
    size_t length = strcspn(*names, ":");
    size_t copied = length < NAME_MAX_BYTES ? length : NAME_MAX_BYTES - 1;
    memcpy(name, *names, copied);
    name[copied] = '\0';
    *names += length;
    *names += **names == ':' ? 1 : 0;
}

enum status activation_take(struct activation *activation, const struct activation_env *env, const struct config *config, char *error, size_t error_bytes)
{
    int64_t pid = 0, count = 0;
    activation->count = 0;
    activation->notice[0] = '\0';
    for (uint32_t i = 0; i < CONFIG_LISTENERS_MAX; i++)
        activation->fds[i] = -1;
    if (env->fds == NULL)
        return STATUS_OK;
    if (env->pid == NULL || !read_number(env->pid, INT32_MAX, &pid))
        return option_fail(error, error_bytes, "LISTEN_PID '%.80s' is no number of a process; allowed: that of this one, %jd", env->pid == NULL ? "" : env->pid, (intmax_t)env->own_pid);
    if (pid != env->own_pid) {
        (void)snprintf(activation->notice, sizeof(activation->notice), "LISTEN_PID is %jd and this is process %jd: the sockets handed over are for another, and left alone", (intmax_t)pid,
            (intmax_t)env->own_pid);
        return STATUS_OK;
    }
    if (!read_number(env->fds, CONFIG_LISTENERS_MAX, &count))
        return option_fail(error, error_bytes, "LISTEN_FDS '%.80s' is out of range; allowed: 0 .. %d sockets", env->fds, CONFIG_LISTENERS_MAX);
    const char *names = env->names == NULL ? "" : env->names;
    for (int i = 0; i < (int)count; i++) {
        struct handed_socket socket = {.fd = env->fd_first + i};
        take_name(&names, socket.name);
        enum status status = take_one(activation, &socket, config, error, error_bytes);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}
