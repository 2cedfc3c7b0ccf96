/*
 * Sockets before they are in a ring: listening on every kind of address, what is left over by a process that was killed, and how addresses are written.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/socket.h"

TestSuite(socket);

static char directory[64];

static void set_up(void)
{
    (void)snprintf(directory, sizeof(directory), "/tmp/test_socket.XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
}

static void tear_down(void)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "%s/s", directory);
    (void)unlink(command);
    cr_assert_eq(rmdir(directory), 0);
}

static int option_of(int fd, int level, int option)
{
    int value = -1;
    socklen_t bytes = sizeof(value);
    cr_assert_eq(getsockopt(fd, level, option, &value, &bytes), 0);
    return value;
}

/* A port that nobody listens on at the moment: bound by a socket that does not listen, so that the kernel gives it to nobody else. */
static uint16_t free_port(int family, int *holder)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    socklen_t bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int one = 1;
    if (family == AF_INET)
        ((struct sockaddr_in *)(void *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)(void *)&address)->sin6_addr = in6addr_loopback;
    *holder = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(*holder, 0);
    cr_assert_eq(setsockopt(*holder, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    cr_assert_eq(setsockopt(*holder, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)), 0);
    cr_assert_eq(bind(*holder, (struct sockaddr *)&address, bytes), 0);
    cr_assert_eq(getsockname(*holder, (struct sockaddr *)&address, &bytes), 0);
    return family == AF_INET ? ntohs(((struct sockaddr_in *)(void *)&address)->sin_port) : ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port);
}

/* Connects to a TCP address through the functions under test. */
static int dial(const char *host, uint16_t port)
{
    struct sockaddr_storage address;
    socklen_t bytes;
    cr_assert(socket_resolve_numeric(host, port, &address, &bytes));
    int fd = socket_open_stream((const struct sockaddr *)&address);
    cr_assert_geq(fd, 0);
    cr_assert_eq(option_of(fd, IPPROTO_TCP, TCP_NODELAY) != 0, 1);
    cr_assert_eq(option_of(fd, SOL_SOCKET, SO_KEEPALIVE) != 0, 1);
    cr_assert_eq(connect(fd, (const struct sockaddr *)&address, bytes), 0, "%s", strerror(errno));
    return fd;
}

static int dial_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket_open_stream((const struct sockaddr *)&address);
    cr_assert_geq(fd, 0);
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static void expect_tcp_works(int family, const char *host)
{
    char error[256] = "", address[128], text[128], peer_text[128];
    int holder;
    uint16_t port = free_port(family, &holder);
    (void)snprintf(address, sizeof(address), family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
    /* Every core listens with a socket of its own. */
    int first = socket_listen(address, error, sizeof(error));
    int second = socket_listen(address, error, sizeof(error));
    cr_assert(first >= 0 && second >= 0, "%s", error);
    cr_assert_eq(close(second), 0);
    cr_assert_eq(close(holder), 0);

    int client = dial(host, port);
    int accepted = accept4(first, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(accepted, 0);
    socket_prepare_accepted(accepted);
    cr_expect_neq(option_of(accepted, IPPROTO_TCP, TCP_NODELAY), 0);
    cr_expect_neq(option_of(accepted, SOL_SOCKET, SO_KEEPALIVE), 0);

    struct socket_endpoint peer, local, client_peer, client_local;
    socket_endpoints(accepted, &peer, &local);
    socket_endpoints(client, &client_peer, &client_local);
    cr_expect(local.family == family && peer.family == family && local.port == port);
    cr_expect_eq(memcmp(&peer, &client_local, sizeof(peer)), 0);
    cr_expect_eq(memcmp(&local, &client_peer, sizeof(local)), 0);
    socket_endpoint_host(&local, text, sizeof(text));
    cr_expect_str_eq(text, host);
    socket_endpoint_format(&local, "/unused", text, sizeof(text));
    cr_expect_str_eq(text, address);
    socket_endpoint_format(&peer, "/unused", peer_text, sizeof(peer_text));
    cr_expect_str_neq(peer_text, text);
    close(accepted);
    close(client);
    close(first);
}

Test(socket, ipv4_listener_is_reached)
{
    expect_tcp_works(AF_INET, "127.0.0.1");
}

Test(socket, ipv6_listener_is_reached)
{
    expect_tcp_works(AF_INET6, "::1");
}

Test(socket, ipv6_listener_leaves_ipv4_to_others)
{
    char error[256] = "", v4[64], v6[64];
    int holder;
    uint16_t port = free_port(AF_INET, &holder);
    (void)snprintf(v6, sizeof(v6), "[::]:%u", port);
    (void)snprintf(v4, sizeof(v4), "0.0.0.0:%u", port);
    int first = socket_listen(v6, error, sizeof(error));
    int second = socket_listen(v4, error, sizeof(error));
    cr_expect(first >= 0 && second >= 0, "%s", error);
    cr_expect_neq(option_of(first, IPPROTO_IPV6, IPV6_V6ONLY), 0);
    close(first);
    close(second);
    close(holder);
}

Test(socket, name_is_resolved_for_listening)
{
    char error[256] = "", address[64];
    int holder;
    uint16_t port = free_port(AF_INET, &holder);
    close(holder);
    (void)snprintf(address, sizeof(address), "localhost:%u", port);
    int fd = socket_listen(address, error, sizeof(error));
    cr_assert_geq(fd, 0, "%s", error);
    close(fd);
}

Test(socket, address_that_cannot_be_listened_on_says_why)
{
    char error[256];
    static const struct {
        const char *address, *text;
    } rows[] = {
        {"127.0.0.1", "port"},
        {"127.0.0.1:0", "port"},
        {"127.0.0.1:65536", "port"},
        {"::1:6379", "brackets"},
        {"", "port"},
        {"192.0.2.77:6399", "192.0.2.77:6399: Cannot assign requested address"},
        {"no-such-host.invalid:6399", "cannot be resolved"},
        {"unix:/no/such/directory/s", "unix:/no/such/directory/s: No such file or directory"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        error[0] = '\0';
        int fd = socket_listen(rows[i].address, error, sizeof(error));
        cr_expect_lt(fd, 0, "%s", rows[i].address);
        cr_expect_not_null(strstr(error, rows[i].text), "%s: %s", rows[i].address, error);
        if (fd >= 0)
            close(fd);
    }
}

Test(socket, tcp_port_that_is_taken_says_so)
{
    char error[256] = "", address[64];
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(taken);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&taken, sizeof(taken)), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&taken, &bytes), 0);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(taken.sin_port));
    cr_expect_lt(socket_listen(address, error, sizeof(error)), 0);
    cr_expect_not_null(strstr(error, "Address already in use"), "%s", error);
    close(fd);
}

Test(socket, unix_listener_is_reached_and_has_no_address, .init = set_up, .fini = tear_down)
{
    char error[256] = "", address[160], path[128], text[160];
    (void)snprintf(path, sizeof(path), "%s/s", directory);
    (void)snprintf(address, sizeof(address), "unix:%s", path);
    int fd = socket_listen(address, error, sizeof(error));
    cr_assert_geq(fd, 0, "%s", error);
    int client = dial_unix(path);
    cr_assert_geq(client, 0);
    int accepted = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(accepted, 0);
    socket_prepare_accepted(accepted); /* there is nothing to delay: must not hurt */
    struct socket_endpoint peer, local;
    socket_endpoints(accepted, &peer, &local);
    cr_expect(peer.family == AF_UNIX && local.family == AF_UNIX && peer.port == 0 && local.port == 0);
    socket_endpoint_host(&local, text, sizeof(text));
    cr_expect_str_eq(text, "");
    socket_endpoint_format(&local, path, text, sizeof(text));
    cr_expect_str_eq(text + strlen(path), ":0");
    cr_expect_eq(strncmp(text, path, strlen(path)), 0);
    close(accepted);
    close(client);
    close(fd);
}

Test(socket, stale_unix_socket_is_replaced, .init = set_up, .fini = tear_down)
{
    char error[256] = "", address[160], path[128];
    (void)snprintf(path, sizeof(path), "%s/s", directory);
    (void)snprintf(address, sizeof(address), "unix:%s", path);
    int fd = socket_listen(address, error, sizeof(error));
    cr_assert_geq(fd, 0, "%s", error);
    close(fd); /* as if killed: the file stays */
    cr_assert_lt(dial_unix(path), 0);
    fd = socket_listen(address, error, sizeof(error));
    cr_assert_geq(fd, 0, "%s", error);
    int client = dial_unix(path);
    cr_expect_geq(client, 0);
    close(client);
    close(fd);
}

Test(socket, unix_socket_in_use_is_left_alone, .init = set_up, .fini = tear_down)
{
    char error[256] = "", address[160], path[128];
    (void)snprintf(path, sizeof(path), "%s/s", directory);
    (void)snprintf(address, sizeof(address), "unix:%s", path);
    int fd = socket_listen(address, error, sizeof(error));
    cr_assert_geq(fd, 0, "%s", error);
    cr_expect_lt(socket_listen(address, error, sizeof(error)), 0);
    cr_expect_not_null(strstr(error, "Address already in use"), "%s", error);
    int client = dial_unix(path);
    cr_expect_geq(client, 0, "the first listener still has its file");
    close(client);
    close(fd);
}

Test(socket, file_that_is_no_socket_is_left_alone, .init = set_up, .fini = tear_down)
{
    char error[256] = "", address[160], path[128];
    struct stat info;
    (void)snprintf(path, sizeof(path), "%s/s", directory);
    (void)snprintf(address, sizeof(address), "unix:%s", path);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs("precious", file), 0);
    cr_assert_eq(fclose(file), 0);
    cr_expect_lt(socket_listen(address, error, sizeof(error)), 0);
    cr_expect_not_null(strstr(error, "Address already in use"), "%s", error);
    cr_assert_eq(stat(path, &info), 0);
    cr_expect_eq(info.st_size, 8);
}

Test(socket, unix_path_of_107_bytes_fits_and_108_do_not)
{
    char error[512] = "", address[256], path[256] = "/tmp/";
    struct sockaddr_un unused;
    cr_assert_eq(sizeof(unused.sun_path), 108u);
    (void)snprintf(path + 5, sizeof(path) - 5, "%d-", getpid());
    size_t begin = strlen(path);
    memset(path + begin, 'x', 107 - begin);
    path[107] = '\0';
    (void)snprintf(address, sizeof(address), "unix:%s", path);
    int fd = socket_listen(address, error, sizeof(error));
    cr_expect_geq(fd, 0, "%s", error);
    close(fd);
    cr_expect_eq(unlink(path), 0);
    path[107] = 'y';
    path[108] = '\0';
    (void)snprintf(address, sizeof(address), "unix:%s", path);
    cr_expect_lt(socket_listen(address, error, sizeof(error)), 0);
    cr_expect_not_null(strstr(error, "longer than 107 bytes"), "%s", error);
    cr_expect_neq(access(path, F_OK), 0);
}

Test(socket, error_is_cut_to_its_buffer)
{
    char error[16];
    memset(error, 'z', sizeof(error));
    cr_expect_lt(socket_listen("unix:/no/such/directory/s", error, 8), 0);
    cr_expect_eq(strlen(error), 7u);
    cr_expect_eq(error[8], 'z');
}

Test(socket, numeric_addresses_are_resolved_without_a_resolver)
{
    static const struct {
        const char *host;
        int family;
    } rows[] = {{"127.0.0.1", AF_INET}, {"0.0.0.0", AF_INET}, {"::1", AF_INET6}, {"2001:db8::17", AF_INET6}, {"::ffff:10.0.0.1", AF_INET6},
        {"localhost", 0}, {"", 0}, {"1.2.3", 0}, {"1.2.3.4.5", 0}, {"256.1.1.1", 0}, {"[::1]", 0}, {"10.0.0.1 ", 0}, {"?", 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sockaddr_storage address, again;
        socklen_t bytes = 77, bytes_again = 77;
        bool is_numeric = socket_resolve_numeric(rows[i].host, 6379, &address, &bytes);
        cr_expect_eq(is_numeric, rows[i].family != 0, "%s", rows[i].host);
        if (!is_numeric) {
            cr_expect_eq(bytes, 0);
            continue;
        }
        cr_expect_eq(address.ss_family, rows[i].family, "%s", rows[i].host);
        cr_expect_eq(socket_resolve(rows[i].host, 6379, &again, &bytes_again), STATUS_OK);
        cr_expect(bytes == bytes_again && memcmp(&address, &again, bytes) == 0, "%s", rows[i].host);
    }
}

Test(socket, names_go_through_the_resolver)
{
    struct sockaddr_storage address;
    socklen_t bytes = 0;
    cr_expect_eq(socket_resolve("localhost", 6379, &address, &bytes), STATUS_OK);
    cr_expect_gt(bytes, 0);
    uint16_t port = address.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&address)->sin_port : ((struct sockaddr_in6 *)(void *)&address)->sin6_port;
    cr_expect_eq(ntohs(port), 6379);
    cr_expect_eq(socket_resolve("no-such-host.invalid", 6379, &address, &bytes), STATUS_NOT_FOUND);
}

Test(socket, endpoints_of_no_socket_are_unknown)
{
    struct socket_endpoint peer, local;
    char text[64] = "x";
    memset(&peer, 0xff, sizeof(peer));
    socket_endpoints(-1, &peer, &local);
    cr_expect(peer.family == 0 && peer.port == 0 && local.family == 0);
    socket_endpoint_host(&peer, text, sizeof(text));
    cr_expect_str_eq(text, "");
    /* A socket that is not connected has one end. */
    int holder;
    uint16_t port = free_port(AF_INET6, &holder);
    socket_endpoints(holder, &peer, &local);
    cr_expect(peer.family == 0 && local.family == AF_INET6 && local.port == port);
    close(holder);
}

Test(socket, endpoint_text_is_cut_to_its_buffer)
{
    struct socket_endpoint endpoint = {.family = AF_INET6, .port = 65535};
    memset(endpoint.bytes, 0xff, sizeof(endpoint.bytes));
    char text[64];
    socket_endpoint_format(&endpoint, "", text, sizeof(text));
    cr_expect_str_eq(text, "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
    memset(text, 'z', sizeof(text));
    socket_endpoint_format(&endpoint, "", text, 10);
    cr_expect_str_eq(text, "[ffff:fff");
    endpoint.family = AF_INET;
    endpoint.port = 1;
    socket_endpoint_format(&endpoint, "", text, sizeof(text));
    cr_expect_str_eq(text, "255.255.255.255:1");
}

Test(socket, ipv4_through_an_ipv6_socket_is_ipv4)
{
    struct sockaddr_storage mapped = {0}, plain = {0};
    socklen_t bytes;
    struct socket_endpoint from_mapped, from_plain;
    char text[64];
    cr_assert(socket_resolve_numeric("::ffff:10.1.2.3", 6380, &mapped, &bytes));
    cr_assert(socket_resolve_numeric("10.1.2.3", 6380, &plain, &bytes));
    socket_endpoint_of(&mapped, &from_mapped);
    socket_endpoint_of(&plain, &from_plain);
    cr_expect_eq(memcmp(&from_mapped, &from_plain, sizeof(from_plain)), 0);
    socket_endpoint_format(&from_mapped, "/unused", text, sizeof(text));
    cr_expect_str_eq(text, "10.1.2.3:6380");
}
