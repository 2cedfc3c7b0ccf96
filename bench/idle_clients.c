/*
 * Holds many idle connections for bench/idle.py and bench/idle-cpu.py: connects from one source address, lets each do a PING, a SET and a GET at once, and then waits.
 *
 * Usage: idle_clients PORT SOURCE-ADDRESS CONNECTIONS
 * Prints "ready" once all have been answered, and ends with its standard input.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/argument.h"

enum { CONNECTIONS_MAX = 18000 };

static void fail(const char *what)
{
    fprintf(stderr, "idle_clients: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void ask(int fd, const char *commands, const char *expected)
{
    char reply[128];
    size_t length = strlen(expected), have = 0;
    if (write(fd, commands, strlen(commands)) != (ssize_t)strlen(commands))
        fail("write");
    while (have < length) {
        ssize_t got = read(fd, reply + have, length - have);
        if (got <= 0)
            fail("read");
        have += (size_t)got;
    }
    if (memcmp(reply, expected, length) != 0) {
        fprintf(stderr, "idle_clients: '%.*s' instead of '%s'\n", (int)length, reply, expected);
        exit(1);
    }
}

static int open_client(const struct sockaddr_in *from, const struct sockaddr_in *to)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fail("socket");
    /* The port is chosen at connect(): one source address then has all of them for this destination. */
    if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)) != 0 || bind(fd, (const struct sockaddr *)from, sizeof(*from)) != 0)
        fail("bind");
    if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) != 0)
        fail("connect");
    return fd;
}

int main(int arguments_count, char **arguments)
{
    uint32_t port, count;
    if (arguments_count != 4 || !argument_number(arguments[1], '\0', UINT16_MAX, &port)) {
        fprintf(stderr, "usage: idle_clients PORT SOURCE-ADDRESS CONNECTIONS\n");
        return 2;
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, arguments[2], &from.sin_addr) != 1 || !argument_number(arguments[3], '\0', CONNECTIONS_MAX, &count)) {
        fprintf(stderr, "idle_clients: not an address, or not 1 .. %d connections\n", CONNECTIONS_MAX);
        return 2;
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    for (uint32_t i = 0; i < count; i++) {
        char commands[256], replies[64], value[32];
        int length = snprintf(value, sizeof(value), "%08" PRIu32, i);
        (void)snprintf(commands, sizeof(commands), "*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$13\r\nidle:%s\r\n$%d\r\n%s\r\n*2\r\n$3\r\nGET\r\n$13\r\nidle:%s\r\n", value, length,
            value, value);
        (void)snprintf(replies, sizeof(replies), "+PONG\r\n+OK\r\n$%d\r\n%s\r\n", length, value);
        ask(open_client(&from, &to), commands, replies);
    }
    printf("ready\n");
    (void)fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
    return 0;
}
