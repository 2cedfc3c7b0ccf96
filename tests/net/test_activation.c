/*
 * Sockets that are handed over: every combination of address and listener, names, and everything that can be wrong.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/activation.h"

TestSuite(activation);

enum { FD_FIRST = 300 };

static struct activation activation;
static char error[512];

/* A listening socket at descriptor FD_FIRST + index; its port, 0 for a unix socket. */
static uint16_t listen_at(int index, int family, bool is_dual, const char *path)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    socklen_t bytes = sizeof(address);
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0), only = is_dual ? 0 : 1;
    cr_assert_geq(fd, 0);
    if (family == AF_INET) {
        ((struct sockaddr_in *)(void *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else if (family == AF_INET6) {
        ((struct sockaddr_in6 *)(void *)&address)->sin6_addr = is_dual ? in6addr_any : in6addr_loopback;
        cr_assert_eq(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)), 0);
    } else {
        (void)snprintf(((struct sockaddr_un *)(void *)&address)->sun_path, 100, "%s", path);
        (void)unlink(path);
        bytes = sizeof(struct sockaddr_un);
    }
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, family == AF_INET ? (socklen_t)sizeof(struct sockaddr_in) : family == AF_INET6 ? (socklen_t)sizeof(struct sockaddr_in6)
                                                                                                                                      : bytes),
        0);
    cr_assert_eq(listen(fd, 16), 0);
    cr_assert_eq(dup2(fd, FD_FIRST + index), FD_FIRST + index);
    close(fd);
    bytes = sizeof(address);
    cr_assert_eq(getsockname(FD_FIRST + index, (struct sockaddr *)&address, &bytes), 0);
    return family == AF_INET ? ntohs(((struct sockaddr_in *)(void *)&address)->sin_port) : family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port)
                                                                                                              : 0;
}

static void add(struct config *config, const char *format, uint16_t port)
{
    char address[128];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(address, sizeof(address), format, port);
#pragma GCC diagnostic pop
    cr_assert_eq(config_add_listener(config, address, error, sizeof(error)), STATUS_OK, "%s", error);
}

static enum status take(const struct config *config, const char *pid, const char *fds, const char *names)
{
    struct activation_env env = {.pid = pid, .fds = fds, .names = names, .own_pid = 4711, .fd_first = FD_FIRST};
    error[0] = '\0';
    return activation_take(&activation, &env, config, error, sizeof(error));
}

static void expect_error(const struct config *config, const char *pid, const char *fds, const char *names, const char *word)
{
    cr_expect_eq(take(config, pid, fds, names), STATUS_INVALID);
    cr_expect(strstr(error, word) != NULL, "%s: %s", word, error);
}

Test(activation, nothing_handed_over_leaves_all_listeners_alone)
{
    struct config *config = config_create_default();
    add(config, "127.0.0.1:%u", 6380);
    cr_expect_eq(take(config, NULL, NULL, NULL), STATUS_OK);
    cr_expect_eq(take(config, "4711", "0", NULL), STATUS_OK);
    cr_expect_eq(activation.count, 0);
    for (int i = 0; i < CONFIG_LISTENERS_MAX; i++)
        cr_expect_eq(activation.fds[i], -1);
    cr_expect_str_empty(activation.notice);
    config_destroy(&config);
}

Test(activation, sockets_find_their_listeners_in_any_order)
{
    struct config *config = config_create_default();
    char path[100];
    (void)snprintf(path, sizeof(path), "/tmp/zgateway-test-activation-%d", getpid());
    uint16_t v6 = listen_at(0, AF_INET6, false, NULL), v4 = listen_at(2, AF_INET, false, NULL);
    (void)listen_at(1, AF_UNIX, false, path);
    add(config, "127.0.0.1:%u", 1);
    add(config, "127.0.0.1:%u", v4);
    char listener[128];
    (void)snprintf(listener, sizeof(listener), "unix:%s", path);
    add(config, listener, 0);
    add(config, "[::1]:%u", v6);
    cr_assert_eq(take(config, "4711", "3", NULL), STATUS_OK, "%s", error);
    cr_expect_eq(activation.count, 3);
    cr_expect_eq(activation.fds[0], -1);
    cr_expect_eq(activation.fds[1], FD_FIRST + 2);
    cr_expect_eq(activation.fds[2], FD_FIRST + 1);
    cr_expect_eq(activation.fds[3], FD_FIRST);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(fcntl(FD_FIRST + i, F_GETFL) & O_NONBLOCK, 0, "an accept through the ring has to wait");
        cr_expect_eq(fcntl(FD_FIRST + i, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    }
    (void)unlink(path);
    config_destroy(&config);
}

Test(activation, wildcard_for_both_families_is_for_either)
{
    const char *const listeners[] = {"0.0.0.0:%u", "[::]:%u"};
    uint16_t port = listen_at(0, AF_INET6, true, NULL);
    for (size_t i = 0; i < 2; i++) {
        struct config *config = config_create_default();
        add(config, listeners[i], port);
        cr_expect_eq(take(config, "4711", "1", NULL), STATUS_OK, "%s", error);
        cr_expect_eq(activation.fds[0], FD_FIRST);
        config_destroy(&config);
    }
    struct config *config = config_create_default();
    add(config, "127.0.0.1:%u", port);
    expect_error(config, "4711", "1", NULL, "belongs to no listener");
    config_destroy(&config);
}

Test(activation, name_wins_over_the_address)
{
    struct config *config = config_create_default();
    uint16_t first = listen_at(0, AF_INET, false, NULL);
    (void)listen_at(1, AF_INET, false, NULL);
    add(config, "127.0.0.1:%u", 1);
    add(config, "127.0.0.1:%u", first);
    (void)snprintf(config->listeners[0].socket, sizeof(config->listeners[0].socket), "clients");
    cr_assert_eq(take(config, "4711", "2", "zgateway.socket:clients"), STATUS_OK, "%s", error);
    cr_expect_eq(activation.fds[1], FD_FIRST);
    cr_expect_eq(activation.fds[0], FD_FIRST + 1);
    /* Fewer names than sockets, empty ones, and more. */
    expect_error(config, "4711", "2", "clients", "belongs to no listener");
    expect_error(config, "4711", "2", "", "belongs to no listener");
    cr_expect_eq(take(config, "4711", "2", ":clients:third"), STATUS_OK, "%s", error);
    config_destroy(&config);
}

Test(activation, another_process_is_left_its_sockets)
{
    struct config *config = config_create_default();
    add(config, "127.0.0.1:%u", 6380);
    cr_expect_eq(take(config, "4712", "nonsense", NULL), STATUS_OK);
    cr_expect_eq(activation.count, 0);
    cr_expect(strstr(activation.notice, "4712") != NULL && strstr(activation.notice, "4711") != NULL, "%s", activation.notice);
    config_destroy(&config);
}

Test(activation, malformed_environment_is_a_clear_error)
{
    struct config *config = config_create_default();
    add(config, "127.0.0.1:%u", 6380);
    const char *const bad_pids[] = {NULL, "", "x", "-1", "4711 ", "99999999999", "0x1267"};
    for (size_t i = 0; i < sizeof(bad_pids) / sizeof(bad_pids[0]); i++)
        expect_error(config, bad_pids[i], "1", NULL, "LISTEN_PID");
    const char *const bad_counts[] = {"", "x", "-1", "17", "1 ", "99999999999999999999"};
    for (size_t i = 0; i < sizeof(bad_counts) / sizeof(bad_counts[0]); i++)
        expect_error(config, "4711", bad_counts[i], NULL, "LISTEN_FDS");
    config_destroy(&config);
}

Test(activation, what_is_no_listening_socket_is_a_clear_error)
{
    struct config *config = config_create_default();
    add(config, "127.0.0.1:%u", 6380);
    close(FD_FIRST);
    expect_error(config, "4711", "1", NULL, "descriptor 300: Bad file descriptor");
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(dup2(fds[0], FD_FIRST), FD_FIRST);
    expect_error(config, "4711", "1", NULL, "descriptor 300");
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    cr_assert_eq(dup2(fd, FD_FIRST), FD_FIRST);
    expect_error(config, "4711", "1", NULL, "no listening stream socket");
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(dup2(fd, FD_FIRST), FD_FIRST);
    expect_error(config, "4711", "1", NULL, "no listening stream socket");
    close(fd);
    config_destroy(&config);
}

Test(activation, one_socket_a_listener)
{
    struct config *config = config_create_default();
    uint16_t port = listen_at(0, AF_INET, false, NULL);
    cr_assert_eq(dup2(FD_FIRST, FD_FIRST + 1), FD_FIRST + 1);
    add(config, "127.0.0.1:%u", port);
    expect_error(config, "4711", "2", NULL, "descriptors 300 and 301");
    config_destroy(&config);
}
