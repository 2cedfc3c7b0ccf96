/*
 * Links to a backend that the test plays on a loopback socket: handshake, framing, what happens to legs when a link ends.
 */
#include <criterion/criterion.h>
#include <netinet/tcp.h>
#include <string.h>

#include "tests/net/net_fixture.h"

TestSuite(link, .timeout = 100);

static struct peer backend;

struct listening {
    int fd;
    int accepted;
    struct sockaddr_in address;
};

static void listening_open(struct listening *listening)
{
    socklen_t bytes = sizeof(listening->address);
    listening->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listening->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    cr_assert_geq(listening->fd, 0);
    cr_assert_eq(bind(listening->fd, (struct sockaddr *)&listening->address, sizeof(listening->address)), 0);
    cr_assert_eq(listen(listening->fd, 16), 0);
    cr_assert_eq(getsockname(listening->fd, (struct sockaddr *)&listening->address, &bytes), 0);
}

static bool has_accepted(void *context)
{
    struct listening *listening = context;
    listening->accepted = accept4(listening->fd, NULL, NULL, SOCK_CLOEXEC);
    return listening->accepted >= 0;
}

static void await_backend(struct net_fixture *fixture, struct listening *listening)
{
    cr_assert(core_fixture_run(&fixture->base, has_accepted, listening));
    peer_init(&backend, fixture, listening->accepted);
}

static struct link *get_link(struct net_fixture *fixture, const struct listening *listening, uint8_t protocol)
{
    enum status status;
    struct link *link = link_pool_get(&fixture->links, 7, (const struct sockaddr *)&listening->address, sizeof(listening->address), protocol, &status);
    cr_assert_not_null(link, "%s", status_name(status));
    cr_expect(link->node_key == 7 && link->protocol == protocol && link->key != 0);
    return link;
}

/* Puts one command with the given origin on the link. */
static void put_leg(struct net_fixture *fixture, struct link *link, uint32_t origin, const char *command, enum leg_action action)
{
    struct net *net = fixture->base.core.net;
    struct leg *leg = pool_get(&net->legs);
    struct block *block = arena_get(fixture->base.core.arena, (uint32_t)strlen(command));
    struct leg_list legs = {0};
    memcpy(block->data, command, strlen(command));
    block->length = (uint32_t)strlen(command);
    block->flags = SEND_SEALED;
    leg->origin = origin;
    leg->action = (uint8_t)action;
    leg->bytes = block_ref(block);
    leg->length = block->length;
    leg_list_push(&legs, leg);
    link_enqueue(net, link, &legs, block);
    cr_expect(legs.count == 0 && legs.head == NULL);
}

static bool is_ready(void *context) { return ((struct link *)context)->state == LINK_READY; }

/* A link of RESP2, ready, and its backend. */
static struct link *open_ready(struct net_fixture *fixture, struct listening *listening)
{
    listening_open(listening);
    struct link *link = get_link(fixture, listening, 2);
    await_backend(fixture, listening);
    peer_expect(&backend, PEER_HELLO_2);
    peer_send(&backend, PEER_HELLO_2_REPLY);
    cr_assert(core_fixture_run(&fixture->base, is_ready, link));
    return link;
}

static bool has_no_links(void *context)
{
    const struct net_fixture *fixture = context;
    return fixture->base.core.net->links.live_count == 0;
}

static void await_no_links(struct net_fixture *fixture) { cr_assert(core_fixture_run(&fixture->base, has_no_links, fixture)); }

static uint32_t replies_wanted;

static bool has_replies(void *context)
{
    const struct net_fixture *fixture = context;
    return fixture->replies_count >= replies_wanted;
}

/* Runs until so many legs are answered in all, and compares what was written down since the last call. */
static void expect_replies_at(struct net_fixture *fixture, uint32_t count, const char *text, int line)
{
    replies_wanted = count;
    bool in_time = core_fixture_run(&fixture->base, has_replies, fixture);
    cr_assert(in_time && fixture->replies_count == count, "line %d: %u of %u", line, fixture->replies_count, count);
    cr_assert_str_eq(fixture->replies, text, "line %d: %.300s", line, fixture->replies);
    fixture->replies_length = 0;
    fixture->replies[0] = '\0';
}
#define expect_replies(fixture, count, text) expect_replies_at((fixture), (count), (text), __LINE__)

/* ---- handshake ---- */

Test(link, legs_get_their_replies_in_one_send_each_way)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    cr_expect(link->seq_sent == 1 && link->seq_answered == 1, "the handshake");
    put_leg(fixture, link, 1, "PING\r\n", LEG_FORWARD);
    put_leg(fixture, link, 2, "ECHO\r\n", LEG_FORWARD);
    peer_expect(&backend, "PING\r\nECHO\r\n");
    peer_send(&backend, "+PONG\r\n$2\r\nhi\r\n");
    expect_replies(fixture, 2, "1:+PONG\r\n2:$2\r\nhi\r\n");
    cr_expect(link->seq_sent == 3 && link->seq_answered == 3 && link->fifo.count == 0);
    cr_expect_geq(fixture->progress_count, 1);
    cr_expect(fixture->reply_had_block, "a reply in a receive buffer can be lent");
    cr_expect_eq(net_fixture_metric(fixture, METRIC_link_sends_total), 2, "both in one send, behind the handshake");
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, legs_wait_behind_the_handshake)
{
    static const struct {
        uint8_t protocol;
        const char *user, *password, *handshake;
    } rows[] = {
        {3, "", "", "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"},
        {3, "", "pw", "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$2\r\npw\r\n"},
        {3, "joe", "p w", "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$3\r\njoe\r\n$3\r\np w\r\n"},
        {2, "", "", PEER_HELLO_2},
        {2, "", "pw", "*3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$2\r\npw\r\n"},
        {2, "joe", "pw", "*3\r\n$4\r\nAUTH\r\n$3\r\njoe\r\n$2\r\npw\r\n"},
        {2, "", "", PEER_HELLO_2}, /* a server from before HELLO */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_fixture *fixture = net_fixture_create();
        struct listening listening;
        char expected[256];
        (void)snprintf(fixture->base.config->backend.user, CONFIG_TEXT_MAX, "%s", rows[i].user);
        (void)snprintf(fixture->base.config->backend.password, CONFIG_TEXT_MAX, "%s", rows[i].password);
        (void)net_fixture_open(fixture);
        listening_open(&listening);
        struct link *link = get_link(fixture, &listening, rows[i].protocol);
        cr_expect_eq(link->state, LINK_CONNECTING);
        put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
        await_backend(fixture, &listening);
        (void)snprintf(expected, sizeof(expected), "%sGET\r\n", rows[i].handshake);
        peer_expect(&backend, expected);
        cr_expect_eq(link->state, LINK_HANDSHAKE);
        peer_send(&backend, rows[i].protocol == 3 ? "%1\r\n$5\r\nproto\r\n:3\r\n" : i == sizeof(rows) / sizeof(rows[0]) - 1 ? "-ERR unknown command `HELLO`, with args beginning with: `2`, \r\n"
                                                                                                                            : PEER_HELLO_2_REPLY);
        cr_assert(core_fixture_run(&fixture->base, is_ready, link));
        cr_expect_eq(fixture->replies_count, 0, "the handshake's reply is nobody's");
        peer_send(&backend, "$-1\r\n");
        expect_replies(fixture, 1, "1:$-1\r\n");
        cr_expect(link->seq_sent == 2 && link->seq_answered == 2);
        cr_expect_null(strstr(net_fixture_log(fixture), "pw"));
        close(listening.fd);
        net_fixture_destroy(&fixture);
    }
}

Test(link, refused_handshake_closes_the_link_and_its_legs_are_lost)
{
    static const char *const refusals[] = {"-WRONGPASS invalid username-password pair or user is disabled.\r\n", "-NOPROTO unsupported protocol version\r\n", "-ERR unknown command 'HELLO'\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n", "-ERR max number of clients reached\r\n", "-DENIED Redis is running in protected mode\r\n"};
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct net_fixture *fixture = net_fixture_create();
        struct listening listening;
        (void)net_fixture_open(fixture);
        listening_open(&listening);
        struct link *link = get_link(fixture, &listening, (uint8_t)(3 - i % 2));
        put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
        put_leg(fixture, link, 2, "GET\r\n", LEG_FORWARD);
        await_backend(fixture, &listening);
        peer_send(&backend, refusals[i]);
        await_no_links(fixture);
        cr_expect_str_eq(fixture->replies, "1!2!");
        const char *log = net_fixture_log(fixture);
        cr_expect_not_null(strstr(log, "link_handshake_refused"));
        cr_expect_not_null(strstr(log, "the backend refused the handshake"));
        cr_expect_eq(fixture->gone_count, 1);
        close(listening.fd);
        net_fixture_destroy(&fixture);
    }
}

Test(link, backend_that_cannot_be_reached_loses_legs_unsent)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    (void)net_fixture_open(fixture);
    listening_open(&listening);
    close(listening.fd);
    struct link *link = get_link(fixture, &listening, 3);
    put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
    put_leg(fixture, link, 2, "GET\r\n", LEG_DISCARD);
    put_leg(fixture, link, 3, "GET\r\n", LEG_FORWARD);
    await_no_links(fixture);
    cr_expect_str_eq(fixture->replies, "1?3?");
    const char *log = net_fixture_log(fixture);
    cr_expect_not_null(strstr(log, "error=\"Connection refused\""), "%s", log);
    cr_expect_not_null(strstr(log, "could not connect"));
    cr_expect(link_pool_is_failing(&fixture->links, 7, 3) && !link_pool_is_failing(&fixture->links, 7, 2) && !link_pool_is_failing(&fixture->links, 8, 3));
    net_fixture_destroy(&fixture);
}

/* ---- framing ---- */

Test(link, replies_cut_at_every_byte_reach_their_legs_whole)
{
    static const char text[] = "+OK\r\n"
                               ">3\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n:1\r\n"
                               "*2\r\n$3\r\na\r\n\r\n*-1\r\n"
                               "|1\r\n+ttl\r\n:5\r\n$1\r\nx\r\n"
                               "-ERR no\r\n"
                               "%1\r\n+k\r\n~1\r\n#t\r\n"
                               "_\r\n";
    static const char *const expected = "1:+OK\r\n2:*2\r\n$3\r\na\r\n\r\n*-1\r\n3:|1\r\n+ttl\r\n:5\r\n$1\r\nx\r\n4:-ERR no\r\n5:%1\r\n+k\r\n~1\r\n#t\r\n6:_\r\n";
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    int one = 1;
    cr_assert_eq(setsockopt(backend.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
    uint32_t count = 0;
    for (size_t cut = 0; cut < sizeof(text) - 1; cut++) {
        for (uint32_t origin = 1; origin <= 6; origin++)
            put_leg(fixture, link, origin, "x", LEG_FORWARD);
        peer_write(&backend, text, cut);
        net_fixture_settle(fixture);
        peer_send(&backend, text + cut);
        count += 6;
        expect_replies(fixture, count, expected);
    }
    for (uint32_t origin = 1; origin <= 6; origin++)
        put_leg(fixture, link, origin, "x", LEG_FORWARD);
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        peer_write(&backend, text + i, 1);
        net_fixture_settle(fixture);
    }
    expect_replies(fixture, count + 6, expected);
    cr_expect(link->assembly == NULL && link->fifo.count == 0);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, reply_larger_than_its_buffers_is_assembled_in_one_block)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    static char text[300000];
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    for (uint32_t size = 4000; size <= 256000; size *= 4) {
        static char expected[300010];
        put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
        int head = snprintf(text, sizeof(text), "$%u\r\n", size);
        for (uint32_t i = 0; i < size; i++)
            text[head + (int)i] = (char)('a' + i % 26);
        memcpy(text + head + size, "\r\n", 3);
        (void)snprintf(expected, sizeof(expected), "1:%s", text);
        uint32_t before = fixture->replies_count;
        for (size_t sent = 0, length = strlen(text); sent < length;) {
            ssize_t result = write(backend.fd, text + sent, length - sent);
            sent += result > 0 ? (size_t)result : 0;
            net_fixture_settle(fixture);
        }
        expect_replies(fixture, before + 1, expected);
        cr_expect(fixture->reply_had_block && link->assembly == NULL);
    }
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, reply_beyond_the_limit_is_skipped_and_its_leg_told)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    fixture->base.config->limits.reply_max_bytes = 10000;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    static char text[100100], many[20000] = "*1000\r\n";
    /* Known from its header; only found out on the way; at the limit. */
    int head = snprintf(text, sizeof(text), "$100000\r\n");
    memset(text + head, 'x', 100000);
    memcpy(text + head + 100000, "\r\n", 3);
    for (int i = 0; i < 1000; i++)
        strcat(many, "$5\r\nabcde\r\n");
    for (uint32_t origin = 1; origin <= 3; origin++)
        put_leg(fixture, link, origin, "GET\r\n", LEG_FORWARD);
    for (size_t sent = 0, length = strlen(text); sent < length;) {
        ssize_t result = write(backend.fd, text + sent, length - sent);
        sent += result > 0 ? (size_t)result : 0;
        net_fixture_settle(fixture);
    }
    peer_send(&backend, many);
    peer_send(&backend, "+next\r\n");
    expect_replies(fixture, 3, "1:-ERR the reply or request exceeds the size limit of the gateway\r\n2:-ERR the reply or request exceeds the size limit of the gateway\r\n3:+next\r\n");
    put_leg(fixture, link, 4, "GET\r\n", LEG_FORWARD);
    static char at_limit[10100], expected[10110];
    head = snprintf(at_limit, sizeof(at_limit), "$9991\r\n");
    memset(at_limit + head, 'y', 9991);
    memcpy(at_limit + head + 9991, "\r\n", 3);
    cr_assert_eq(strlen(at_limit), 10000u);
    peer_send(&backend, at_limit);
    (void)snprintf(expected, sizeof(expected), "4:%s", at_limit);
    expect_replies(fixture, 4, expected);
    cr_expect_eq(link->state, LINK_READY);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

/* The link itself stays in step where there is no memory for a reply. */
Test(link, reply_without_memory_is_skipped_and_its_leg_told)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    fixture->base.config->limits.arena_bytes_per_core = 1 << 20;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    static char text[2000100];
    int head = snprintf(text, sizeof(text), "$2000000\r\n");
    memset(text + head, 'x', 2000000);
    memcpy(text + head + 2000000, "\r\n", 3);
    put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
    put_leg(fixture, link, 2, "GET\r\n", LEG_FORWARD);
    for (size_t sent = 0, length = strlen(text); sent < length;) {
        ssize_t result = write(backend.fd, text + sent, length - sent);
        sent += result > 0 ? (size_t)result : 0;
        net_fixture_settle(fixture);
    }
    peer_send(&backend, "+next\r\n");
    expect_replies(fixture, 2, "1:-TIMEOUT the gateway has no memory for the reply; a write may have been applied\r\n2:+next\r\n");
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, push_is_nobodys_reply_however_large)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    fixture->base.config->limits.reply_max_bytes = 10000;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    static char text[30000] = ">2\r\n$7\r\nmessage\r\n$20000\r\n";
    size_t head = strlen(text);
    memset(text + head, 'p', 20000);
    memcpy(text + head + 20000, "\r\n", 3);
    peer_send(&backend, ">1\r\n+x\r\n"); /* without any leg too */
    net_fixture_settle(fixture);
    put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
    peer_send(&backend, text);
    peer_send(&backend, "+mine\r\n>1\r\n+y\r\n");
    expect_replies(fixture, 1, "1:+mine\r\n");
    net_fixture_settle(fixture);
    cr_expect_eq(link->state, LINK_READY);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, discarded_legs_take_their_replies_with_them)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    put_leg(fixture, link, 1, "ASKING\r\n", LEG_DISCARD);
    put_leg(fixture, link, 2, "GET\r\n", LEG_FORWARD);
    put_leg(fixture, link, 3, "ASKING\r\n", LEG_DISCARD);
    put_leg(fixture, link, 4, "GET\r\n", LEG_FORWARD);
    peer_send(&backend, "+OK\r\n$1\r\na\r\n-ERR no\r\n$1\r\nb\r\n");
    expect_replies(fixture, 2, "2:$1\r\na\r\n4:$1\r\nb\r\n");
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

/* ---- ends ---- */

static void expect_link_closed(const char *bytes, const char *replies, const char *reason)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
    peer_expect(&backend, "GET\r\n");
    peer_send(&backend, bytes);
    await_no_links(fixture);
    cr_expect_str_eq(fixture->replies, replies);
    const char *log = net_fixture_log(fixture);
    cr_expect_not_null(strstr(log, reason), "%s", log);
    cr_expect_eq(fixture->gone_count, 1);
    cr_expect_eq(net_fixture_metric(fixture, METRIC_link_failures_total), 1);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, reply_that_no_leg_waits_for_closes_the_link)
{
    expect_link_closed("+mine\r\n+whose?\r\n+more\r\n", "1:+mine\r\n", "reason=\"protocol error\"");
}

Test(link, bytes_that_are_no_reply_close_the_link)
{
    expect_link_closed("hello\r\n", "1!", "link_protocol_error");
    expect_link_closed("$x\r\n", "1!", "link_protocol_error");
    expect_link_closed("*1\r\n$3\r\nabcdef\r\n", "1!", "link_protocol_error");
    expect_link_closed("+mine\r\n\r\n", "1:+mine\r\n", "link_protocol_error");
}

Test(link, backend_that_closes_loses_legs_in_order)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    for (uint32_t origin = 1; origin <= 4; origin++)
        put_leg(fixture, link, origin, "GET\r\n", origin == 3 ? LEG_DISCARD : LEG_FORWARD);
    peer_expect(&backend, "GET\r\nGET\r\nGET\r\nGET\r\n");
    peer_send(&backend, "+1\r\n$10\r\ncut"); /* the second reply is cut: nobody sees it */
    close(backend.fd);
    await_no_links(fixture);
    cr_expect_str_eq(fixture->replies, "1:+1\r\n2!4!");
    cr_expect_eq(fixture->lost_count, 2);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, link_without_progress_is_closed_and_an_idle_one_is_not)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    struct net *net = net_fixture_open(fixture);
    struct core *core = &fixture->base.core;
    struct link *link = open_ready(fixture, &listening);
    core->now_ms = link->progress_ms + 1000000;
    link_check(net, link, 500, 2000);
    cr_expect_eq(link->state, LINK_READY, "it owes nothing");
    put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
    put_leg(fixture, link, 2, "GET\r\n", LEG_FORWARD);
    cr_expect_eq(link->progress_ms, core->now_ms, "the clock begins with the first leg");
    core->now_ms += 2000;
    link_check(net, link, 500, 2000);
    cr_expect_eq(link->state, LINK_READY);
    core->now_ms += 1;
    link_check(net, link, 500, 2000);
    cr_expect_eq(link->state, LINK_GONE);
    cr_expect_str_eq(fixture->replies, "1!2!");
    await_no_links(fixture);
    cr_expect_not_null(strstr(net_fixture_log(fixture), "no progress within link_stall"));
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, every_byte_of_a_reply_is_progress)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    struct net *net = net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
    net_fixture_settle(fixture);
    link->progress_ms -= 100000; /* long ago */
    peer_send(&backend, "$100\r\n");
    net_fixture_settle(fixture);
    link_check(net, link, 500, 2000);
    cr_expect_eq(link->state, LINK_READY);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, connecting_and_shaking_hands_is_bounded)
{
    for (int connected = 0; connected <= 1; connected++) {
        struct net_fixture *fixture = net_fixture_create();
        struct listening listening;
        struct net *net = net_fixture_open(fixture);
        listening_open(&listening);
        struct link *link = get_link(fixture, &listening, 3);
        put_leg(fixture, link, 1, "GET\r\n", LEG_FORWARD);
        if (connected) {
            await_backend(fixture, &listening);
            net_fixture_settle(fixture);
            cr_assert_eq(link->state, LINK_HANDSHAKE);
        }
        fixture->base.core.now_ms = link->progress_ms + 500;
        link_check(net, link, 500, 1000000);
        cr_expect_neq(link->state, LINK_GONE);
        fixture->base.core.now_ms++;
        link_check(net, link, 500, 1000000);
        cr_expect_eq(link->state, LINK_GONE);
        await_no_links(fixture);
        cr_expect_str_eq(fixture->replies, connected ? "1!" : "1?");
        cr_expect_not_null(strstr(net_fixture_log(fixture), "connecting took too long"));
        close(listening.fd);
        net_fixture_destroy(&fixture);
    }
}

Test(link, large_batches_are_sent_whole_and_in_order)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    (void)net_fixture_open(fixture);
    struct link *link = open_ready(fixture, &listening);
    static char expected[200000];
    /* More pieces than one send takes, and more bytes than the sockets hold. */
    for (uint32_t i = 0; i < 150; i++) {
        char command[1001];
        memset(command, 'a' + (int)(i % 26), 1000);
        command[1000] = '\0';
        strcat(expected, command);
        put_leg(fixture, link, i, command, LEG_FORWARD);
    }
    peer_expect(&backend, expected);
    net_fixture_settle(fixture);
    cr_expect_eq(link->conn.out.bytes, 0);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}

Test(link, full_pool_of_links_is_a_result)
{
    struct net_fixture *fixture = net_fixture_create();
    struct listening listening;
    enum status status = STATUS_OK;
    fixture->base.config->limits.links_per_core = 2;
    struct net *net = net_fixture_open(fixture);
    listening_open(&listening);
    (void)get_link(fixture, &listening, 2);
    (void)get_link(fixture, &listening, 3);
    cr_expect_null(link_open(net, (struct sockaddr *)&listening.address, sizeof(listening.address), 2, NULL, 0, &status));
    cr_expect_eq(status, STATUS_FULL);
    cr_expect_null(link_pool_get(&fixture->links, 8, (struct sockaddr *)&listening.address, sizeof(listening.address), 2, &status));
    cr_expect_neq(status, STATUS_OK);
    close(listening.fd);
    net_fixture_destroy(&fixture);
}
