/*
 * Clients and their requests over a socket pair: order of replies, pauses, ends. What is forwarded is answered by the test, in any order.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/net/net_fixture.h"

TestSuite(client, .timeout = 100);

static struct peer peer, other;

#define GET(key) "*2\r\n$3\r\nGET\r\n$1\r\n" key "\r\n"
#define PING "*1\r\n$4\r\nPING\r\n"
#define QUIT "*1\r\n$4\r\nQUIT\r\n"

static bool has_pending(void *context)
{
    const struct net_fixture *fixture = context;
    return fixture->pending_count >= peer.wanted;
}

/* Runs the loop until `count` commands in all have been forwarded. */
static void await_pending(struct net_fixture *fixture, uint32_t count)
{
    peer.wanted = count;
    cr_assert(core_fixture_run(&fixture->base, has_pending, fixture), "%u of %u commands", fixture->pending_count, count);
    cr_assert_eq(fixture->pending_count, count);
}

static bool has_no_clients(void *context)
{
    const struct net_fixture *fixture = context;
    return fixture->base.core.net->clients.live_count == 0;
}

static void await_no_clients(struct net_fixture *fixture) { cr_assert(core_fixture_run(&fixture->base, has_no_clients, fixture)); }

static bool has_no_input(void *context)
{
    const struct client *client = context;
    return client->pause == 0 && client->input == NULL;
}

/* ---- commands ---- */

Test(client, local_commands_are_answered_at_once)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, PING);
    peer_expect(&peer, "+PONG\r\n");
    peer_send(&peer, "PING\r\nPING hello\r\n\r\n*0\r\n" PING "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n");
    peer_expect(&peer, "+PONG\r\n$5\r\nhello\r\n+PONG\r\n$0\r\n\r\n");
    cr_expect_eq(fixture->offers, 0);
    cr_expect_eq(net_fixture_metric(fixture, METRIC_requests_total), 5);
    net_fixture_destroy(&fixture);
}

Test(client, wrong_commands_are_refused_and_the_connection_goes_on)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, "nosuch a b\r\nget\r\ncluster nosuch\r\n" PING);
    peer_expect(&peer, "-ERR unknown command 'nosuch', with args beginning with: 'a' 'b' \r\n-ERR wrong number of arguments for 'get' command\r\n-ERR unknown subcommand 'nosuch'. Try CLUSTER "
                       "HELP.\r\n+PONG\r\n");
    cr_expect_eq(net_fixture_metric(fixture, METRIC_request_errors_total), 3);
    net_fixture_destroy(&fixture);
}

Test(client, commands_cut_at_every_byte_arrive_whole)
{
    static const char text[] = GET("a") "SET b 'x y'\r\n"
                                        "*3\r\n$3\r\nSET\r\n$1\r\nc\r\n$4\r\n\r\n\r\n\r\n" PING;
    static const char forwarded[] = GET("a") "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$3\r\nx y\r\n"
                                             "*3\r\n$3\r\nSET\r\n$1\r\nc\r\n$4\r\n\r\n\r\n\r\n";
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    fixture->answers_at_once = true;
    char expected[512];
    (void)snprintf(expected, sizeof(expected), "%s+PONG\r\n", forwarded);
    (void)net_fixture_connect(fixture, &peer);
    for (size_t cut = 1; cut < sizeof(text) - 1; cut++) {
        fixture->commands_length = 0;
        peer_write(&peer, text, cut);
        net_fixture_settle(fixture);
        peer_send(&peer, text + cut);
        peer_expect(&peer, expected);
        cr_expect(fixture->commands_length == strlen(forwarded) && memcmp(fixture->commands, forwarded, fixture->commands_length) == 0, "cut at %zu", cut);
    }
    /* And byte by byte. */
    fixture->commands_length = 0;
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        peer_write(&peer, text + i, 1);
        net_fixture_settle(fixture);
    }
    peer_expect(&peer, expected);
    net_fixture_destroy(&fixture);
}

Test(client, command_larger_than_a_receive_buffer_is_assembled)
{
    struct net_fixture *fixture = net_fixture_create();
    static char text[200 * 1024];
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    int head = snprintf(text, sizeof(text), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", 100000);
    memset(text + head, 'v', 100000);
    memcpy(text + head + 100000, "\r\n", 2);
    size_t length = (size_t)head + 100002;
    peer_write(&peer, text, length / 2);
    net_fixture_settle(fixture);
    peer_write(&peer, text + length / 2, length - length / 2);
    await_pending(fixture, 1);
    cr_expect(fixture->commands_length == length && memcmp(fixture->commands, text, length) == 0);
    net_fixture_answer(fixture, 0, "+OK\r\n");
    peer_expect(&peer, "+OK\r\n");
    net_fixture_destroy(&fixture);
}

/* More commands than are taken in one turn. */
Test(client, huge_pipeline_is_answered_whole_and_in_order)
{
    struct net_fixture *fixture = net_fixture_create();
    enum { COUNT = 7000 };
    static char text[COUNT * 16], expected[COUNT * 16];
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    size_t length = 0, expected_length = 0;
    for (int i = 0; i < COUNT; i++) {
        length += (size_t)snprintf(text + length, sizeof(text) - length, "ECHO %d\r\n", 1000 + i);
        expected_length += (size_t)snprintf(expected + expected_length, sizeof(expected) - expected_length, "$4\r\n%d\r\n", 1000 + i);
    }
    peer_write(&peer, text, length);
    peer_expect(&peer, expected);
    net_fixture_destroy(&fixture);
}

/* ---- order ---- */

Test(client, replies_keep_the_order_of_commands_whatever_their_own)
{
    static const uint8_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const char *const replies[] = {"$1\r\na\r\n", "$1\r\nb\r\n", "$1\r\nc\r\n"};
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    for (int i = 0; i < 6; i++) {
        fixture->pending_count = 0;
        peer_send(&peer, GET("a") GET("b") PING GET("c") "get\r\n");
        await_pending(fixture, 3);
        for (int j = 0; j < 3; j++) {
            net_fixture_answer(fixture, orders[i][j], replies[orders[i][j]]);
            net_fixture_settle(fixture);
        }
        peer_expect(&peer, "$1\r\na\r\n$1\r\nb\r\n+PONG\r\n$1\r\nc\r\n-ERR wrong number of arguments for 'get' command\r\n");
    }
    net_fixture_destroy(&fixture);
}

Test(client, large_reply_that_has_to_wait_is_referenced_not_copied)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") GET("b") GET("c"));
    await_pending(fixture, 3);
    struct block *block = arena_get(fixture->base.core.arena, 50000);
    memset(block->data, 'x', 50000);
    memcpy(block->data, "$49990\r\n", 8);
    memcpy(block->data + 49998, "\r\n", 2);
    struct reply reply = {.bytes = block->data, .length = 50000, .block = block};
    request_leg_done(net, pool_resolve(&net->requests, fixture->pending[2]), 0, &reply);
    cr_expect_eq(block->refs, 2);
    net_fixture_answer(fixture, 0, "+first\r\n");
    peer_expect(&peer, "+first\r\n");
    request_leg_done(net, pool_resolve(&net->requests, fixture->pending[1]), 0, &reply); /* the oldest: straight to the queue */
    cr_expect_eq(block->refs, 3);
    peer.wanted = 100000;
    cr_assert(core_fixture_run(&fixture->base, peer_has, &peer));
    cr_expect(peer.received_count == 100000 && memcmp(peer.received, block->data, 50000) == 0 && memcmp(peer.received + 50000, block->data, 50000) == 0);
    net_fixture_settle(fixture);
    cr_expect_eq(block->refs, 1);
    arena_put(fixture->base.core.arena, &block);
    net_fixture_destroy(&fixture);
}

Test(client, client_reply_off_and_skip_are_silent)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, "CLIENT REPLY SKIP\r\n" GET("a") GET("b"));
    await_pending(fixture, 2);
    net_fixture_answer(fixture, 1, "+b\r\n");
    net_fixture_answer(fixture, 0, "+a\r\n");
    peer_expect(&peer, "+b\r\n");
    peer_send(&peer, "CLIENT REPLY OFF\r\n" GET("c") PING "nosuch\r\nget\r\n"
                                                          "CLIENT REPLY ON\r\n");
    await_pending(fixture, 3);
    net_fixture_answer(fixture, 2, "+c\r\n");
    peer_expect(&peer, "+OK\r\n");
    net_fixture_destroy(&fixture);
}

/* ---- time-outs and orphans ---- */

Test(client, late_reply_of_an_overdue_request_reaches_nobody)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    fixture->timeout_ns = 20 * 1000000;
    peer_send(&peer, GET("a"));
    await_pending(fixture, 1);
    fixture->timeout_ns = UINT64_C(60000000000);
    peer_send(&peer, GET("b"));
    await_pending(fixture, 2);
    request_expire(net);
    net_fixture_answer(fixture, 1, "+b\r\n");
    net_fixture_settle(fixture);
    while (!list_is_empty(&net->deadlines)) {
        net_fixture_settle(fixture);
        request_expire(net);
    }
    peer_expect(&peer, "-TIMEOUT no reply within the time-out of the use case; a write may still be applied\r\n+b\r\n");
    cr_expect_eq(net->requests.live_count, 1, "the overdue one stays until its leg is done");
    cr_expect_eq(net_fixture_metric(fixture, METRIC_request_timeouts_total), 1);
    peer_send(&peer, GET("c"));
    await_pending(fixture, 3);
    net_fixture_answer(fixture, 0, "+late\r\n");
    net_fixture_answer(fixture, 2, "+c\r\n");
    peer_expect(&peer, "+c\r\n");
    cr_expect_eq(net->requests.live_count, 0);
    net_fixture_destroy(&fixture);
}

Test(client, deadlines_pass_in_order_and_only_when_they_have_come)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    struct core *core = &fixture->base.core;
    (void)net_fixture_connect(fixture, &peer);
    fixture->timeout_ns = UINT64_C(1000000000);
    /* Around the overflow of the 32 bits that a leg keeps. */
    core->now_ms = UINT64_C(0x1ffffff00);
    for (int i = 0; i < 3; i++) {
        struct request *request = request_create(net, LIST_ENTRY(net->clients_all.next, struct client, all), fixture->timeout_ns);
        cr_assert_not_null(request);
        request->legs_left = 1;
        fixture->pending[fixture->pending_count++] = pool_handle_of(&request->item);
        core->now_ms += 100;
    }
    core->now_ms = UINT64_C(0x1ffffff00) + 999;
    request_expire(net);
    cr_expect_eq(net_fixture_metric(fixture, METRIC_request_timeouts_total), 0);
    core->now_ms++;
    request_expire(net);
    cr_expect_eq(net_fixture_metric(fixture, METRIC_request_timeouts_total), 1);
    core->now_ms += 150;
    request_expire(net);
    cr_expect_eq(net_fixture_metric(fixture, METRIC_request_timeouts_total), 2);
    core->now_ms += 5000;
    request_expire(net);
    cr_expect_eq(net_fixture_metric(fixture, METRIC_request_timeouts_total), 3);
    cr_expect_eq(net->requests.live_count, 3);
    for (uint32_t i = 0; i < 3; i++)
        net_fixture_answer(fixture, i, "+late\r\n");
    cr_expect_eq(net->requests.live_count, 0);
    net_fixture_destroy(&fixture);
}

Test(client, client_that_left_leaves_orphans_that_end_with_their_legs)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") GET("b") GET("c") PING GET("d"));
    await_pending(fixture, 4);
    net_fixture_answer(fixture, 1, "+kept\r\n"); /* answered, but not the oldest */
    close(peer.fd);
    await_no_clients(fixture);
    cr_expect_eq(net->requests.live_count, 3, "a, c, d; b and PING are done");
    cr_expect_not_null(strstr(net_fixture_log(fixture), "closed by the peer"));
    request_answer_status(net, pool_resolve(&net->requests, fixture->pending[0]), STATUS_TIMEOUT);
    cr_expect_eq(net->requests.live_count, 3, "still with its leg");
    net_fixture_answer(fixture, 0, "+a\r\n");
    net_fixture_answer(fixture, 3, "+d\r\n");
    request_leg_failed(net, pool_resolve(&net->requests, fixture->pending[2]), 0, STATUS_LINK_LOST);
    cr_expect_eq(net->requests.live_count, 0);
    net_fixture_destroy(&fixture);
}

Test(client, failed_leg_is_answered_with_its_status)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    static const enum status statuses[] = {STATUS_FULL, STATUS_NO_MEMORY, STATUS_LINK_LOST, STATUS_REPLY_DROPPED, STATUS_NO_NODE, STATUS_NOT_READY, STATUS_CROSSSLOT, STATUS_TOO_LARGE, STATUS_DRAINING};
    for (uint32_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        char expected[256];
        peer_send(&peer, GET("a"));
        await_pending(fixture, i + 1);
        request_leg_failed(net, pool_resolve(&net->requests, fixture->pending[i]), 0, statuses[i]);
        (void)snprintf(expected, sizeof(expected), "-%s\r\n", status_resp_text(statuses[i]));
        peer_expect(&peer, expected);
    }
    cr_expect_eq(net_fixture_metric(fixture, METRIC_overload_refused_total), 2);
    net_fixture_destroy(&fixture);
}

/* The parts of a split request: the first failure answers, the others are counted down. */
Test(client, split_request_is_freed_with_its_last_part)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") GET("b"));
    await_pending(fixture, 2);
    for (uint32_t i = 0; i < 2; i++) {
        struct request *request = pool_resolve(&net->requests, fixture->pending[i]);
        request->legs_left = 3;
        request->split = (struct split *)(void *)fixture;
    }
    net_fixture_answer(fixture, 0, "+1\r\n");
    net_fixture_answer(fixture, 0, "+2\r\n");
    request_leg_failed(net, pool_resolve(&net->requests, fixture->pending[1]), 1, STATUS_LINK_LOST);
    cr_expect_eq(fixture->frees_count, 0);
    net_fixture_answer(fixture, 0, "+3\r\n");
    cr_expect_eq(fixture->frees_count, 1);
    peer_expect(&peer, "+3\r\n-TIMEOUT the connection to the backend was lost before its reply; a write may still be applied\r\n");
    net_fixture_answer(fixture, 1, "+late\r\n");
    request_leg_failed(net, pool_resolve(&net->requests, fixture->pending[1]), 2, STATUS_LINK_LOST);
    cr_expect_eq(fixture->frees_count, 2);
    net_fixture_destroy(&fixture);
}

/* ---- pauses ---- */

Test(client, pipeline_is_bounded_and_goes_on_at_half)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.pipeline_per_client = 4;
    (void)net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    for (int i = 0; i < 10; i++)
        peer_send(&peer, GET("a"));
    await_pending(fixture, 4);
    net_fixture_settle(fixture);
    cr_expect_eq(fixture->pending_count, 4);
    cr_expect_eq(client->pause, PAUSE_PIPELINE);
    net_fixture_answer(fixture, 0, "+0\r\n");
    net_fixture_settle(fixture);
    cr_expect_eq(fixture->pending_count, 4, "three in flight: not yet half");
    net_fixture_answer(fixture, 1, "+1\r\n");
    await_pending(fixture, 6);
    for (uint32_t i = 2; i < 10; i++) {
        await_pending(fixture, fixture->pending_count < i + 1 ? i + 1 : fixture->pending_count);
        net_fixture_answer(fixture, i, "+x\r\n");
        net_fixture_settle(fixture);
    }
    peer_expect(&peer, "+0\r\n+1\r\n+x\r\n+x\r\n+x\r\n+x\r\n+x\r\n+x\r\n+x\r\n+x\r\n");
    cr_expect_eq(client->pause, 0);
    net_fixture_destroy(&fixture);
}

/* Behind one slow command a client could otherwise take the requests of the whole core with commands that the gateway answers itself. */
Test(client, local_commands_behind_others_count_in_the_pipeline)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.pipeline_per_client = 8;
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a"));
    for (int i = 0; i < 30; i++)
        peer_send(&peer, i % 2 == 0 ? PING : "get\r\n");
    await_pending(fixture, 1);
    net_fixture_settle(fixture);
    cr_expect_leq(net->requests.live_count, 8);
    net_fixture_answer(fixture, 0, "+a\r\n");
    char expected[4096] = "+a\r\n";
    for (int i = 0; i < 30; i++)
        strcat(expected, i % 2 == 0 ? "+PONG\r\n" : "-ERR wrong number of arguments for 'get' command\r\n");
    peer_expect(&peer, expected);
    net_fixture_destroy(&fixture);
}

Test(client, barrier_waits_for_what_is_in_flight)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") GET("b") "RESET\r\n" GET("c"));
    await_pending(fixture, 2);
    net_fixture_settle(fixture);
    cr_expect_eq(client->pause, PAUSE_DRAIN);
    net_fixture_answer(fixture, 1, "+b\r\n");
    net_fixture_settle(fixture);
    cr_expect_eq(fixture->pending_count, 2);
    net_fixture_answer(fixture, 0, "+a\r\n");
    await_pending(fixture, 3);
    net_fixture_answer(fixture, 2, "+c\r\n");
    peer_expect(&peer, "+a\r\n+b\r\n+RESET\r\n+c\r\n");
    net_fixture_destroy(&fixture);
}

Test(client, command_that_has_to_wait_is_offered_again)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a"));
    await_pending(fixture, 1);
    fixture->verdict = DISPATCH_DRAIN;
    peer_send(&peer, GET("b") PING);
    net_fixture_settle(fixture);
    cr_expect(client->pause == PAUSE_DRAIN && fixture->offers == 2);
    fixture->verdict = DISPATCH_CREDIT;
    net_fixture_answer(fixture, 0, "+a\r\n");
    net_fixture_settle(fixture);
    cr_expect(client->pause == PAUSE_CREDIT && fixture->offers == 3);
    fixture->verdict = DISPATCH_TAKEN;
    client_wake(net, client, PAUSE_CREDIT);
    client_wake(net, client, PAUSE_CREDIT); /* once more does nothing */
    await_pending(fixture, 2);
    net_fixture_answer(fixture, 1, "+b\r\n");
    peer_expect(&peer, "+a\r\n+b\r\n+PONG\r\n");
    cr_expect_eq(fixture->offers, 4);
    net_fixture_destroy(&fixture);
}

Test(client, paused_client_is_read_up_to_a_bound)
{
    struct net_fixture *fixture = net_fixture_create();
    static char text[800 * 1024];
    (void)net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    fixture->verdict = DISPATCH_CREDIT;
    size_t length = 0;
    while (length + 64 < sizeof(text))
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%s", GET("a"));
    size_t written = 0;
    for (int i = 0; i < 50; i++) {
        ssize_t result = write(peer.fd, text + written, length - written);
        written += result > 0 ? (size_t)result : 0;
        net_fixture_settle(fixture);
    }
    cr_assert_not_null(client->input);
    uint32_t kept = client->input->length - client->input->offset;
    cr_expect(kept >= 64 * 1024 && kept <= (64 + 64 * 4) * 1024, "%u bytes", kept);
    cr_expect_lt(written, length, "the rest waits in the sockets");
    /* What was held back is then answered. */
    fixture->verdict = DISPATCH_TAKEN;
    fixture->answers_at_once = true;
    client_wake(fixture->base.core.net, client, PAUSE_CREDIT);
    for (int i = 0; i < 1000 && peer.received_count < length; i++) {
        ssize_t result = write(peer.fd, text + written, length - written);
        written += result > 0 ? (size_t)result : 0;
        net_fixture_settle(fixture);
        peer_read(&peer);
    }
    cr_expect(peer.received_count == length && memcmp(peer.received, text, length) == 0, "%zu of %zu", peer.received_count, length);
    cr_expect(core_fixture_run(&fixture->base, has_no_input, client));
    net_fixture_destroy(&fixture);
}

/* A reply of `bytes` bytes in all. */
static char *reply_of(size_t bytes)
{
    static char text[1 << 20];
    memset(text, 'x', bytes);
    text[0] = '+';
    memcpy(text + bytes - 2, "\r\n", 3);
    return text;
}

Test(client, client_that_does_not_read_is_paused_and_goes_on_when_it_reads)
{
    for (int referenced = 0; referenced <= 1; referenced++) {
        struct net_fixture *fixture = net_fixture_create();
        fixture->base.config->limits.client_output_soft_bytes = 64 * 1024;
        fixture->base.config->limits.client_output_hard_bytes = 64 << 20;
        fixture->base.config->limits.inline_bytes = referenced ? 1000 : 1 << 20;
        (void)net_fixture_open(fixture);
        struct client *client = net_fixture_connect(fixture, &peer);
        uint32_t count = 0;
        for (; count < 200 && client->pause == 0; count++) {
            peer_send(&peer, GET("a"));
            await_pending(fixture, count + 1);
            net_fixture_answer(fixture, count, reply_of(10000));
            net_fixture_settle(fixture);
        }
        cr_assert_eq(client->pause, PAUSE_OUTPUT);
        peer_send(&peer, GET("b"));
        net_fixture_settle(fixture);
        cr_expect_eq(fixture->pending_count, count);
        peer.wanted = count * 10000u;
        cr_assert(core_fixture_run(&fixture->base, peer_has, &peer));
        cr_expect_eq(peer.received_count, count * 10000u);
        peer.received_count = 0;
        await_pending(fixture, count + 1);
        net_fixture_answer(fixture, count, "+b\r\n");
        peer_expect(&peer, "+b\r\n");
        net_fixture_destroy(&fixture);
    }
}

Test(client, client_that_never_reads_is_closed_at_the_hard_limit)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.client_output_soft_bytes = 64 * 1024;
    fixture->base.config->limits.client_output_hard_bytes = 1 << 20;
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    for (int i = 0; i < 60; i++)
        peer_send(&peer, GET("a"));
    await_pending(fixture, 60);
    uint32_t answered = 0;
    /* Every second one out of order, so that kept replies are counted too. */
    for (; answered < 60 && net->clients.live_count > 0; answered++) {
        net_fixture_answer(fixture, answered ^ 1u, reply_of(100000));
        net_fixture_settle(fixture);
    }
    cr_expect(answered < 60 && answered >= 10, "%u", answered);
    cr_expect_not_null(strstr(net_fixture_log(fixture), "client_output_hard"));
    for (uint32_t i = 0; i < 60; i++)
        if (pool_resolve(&net->requests, fixture->pending[i]) != NULL)
            net_fixture_answer(fixture, i, "+late\r\n");
    cr_expect_eq(net->requests.live_count, 0);
    net_fixture_destroy(&fixture);
}

Test(client, client_beyond_the_memory_of_the_gateway_is_closed)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.arena_bytes_per_core = 1 << 20;
    struct net *net = net_fixture_open(fixture);
    struct arena *arena = fixture->base.core.arena;
    (void)net_fixture_connect(fixture, &peer);
    (void)net_fixture_connect(fixture, &other);
    peer_send(&peer, GET("a") GET("b"));
    await_pending(fixture, 2);
    struct block *fill = NULL;
    for (uint32_t size = 512 * 1024; size >= 8; size /= 2)
        for (struct block *block; (block = arena_get(arena, size)) != NULL; fill = block)
            block->next = fill;
    net_fixture_answer(fixture, 1, reply_of(500)); /* to be kept: there is no room */
    peer_expect_end(&peer);
    cr_expect_not_null(strstr(net_fixture_log(fixture), "memory limit"));
    cr_expect_eq(net->requests.live_count, 1);
    while (fill != NULL) {
        struct block *next = fill->next;
        arena_put(arena, &fill);
        fill = next;
    }
    net_fixture_answer(fixture, 0, "+late\r\n");
    peer_send(&other, PING);
    peer_expect(&other, "+PONG\r\n");
    net_fixture_destroy(&fixture);
}

Test(client, full_pool_of_requests_holds_back_and_recovers)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.requests_per_core = 4;
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    (void)net_fixture_connect(fixture, &other);
    peer_send(&peer, GET("a") GET("b") GET("c") GET("d") GET("e") PING "nosuch\r\n");
    await_pending(fixture, 4);
    net_fixture_settle(fixture);
    cr_expect_eq(net->requests.live_count, 4);
    /* A client with nothing in flight needs no request for what the gateway answers itself. */
    peer_send(&other, PING "get\r\n");
    peer_expect(&other, "+PONG\r\n-ERR wrong number of arguments for 'get' command\r\n");
    for (uint32_t i = 0; i < 4; i++)
        net_fixture_answer(fixture, i, "+x\r\n");
    await_pending(fixture, 5);
    net_fixture_answer(fixture, 4, "+e\r\n");
    peer_expect(&peer, "+x\r\n+x\r\n+x\r\n+x\r\n+e\r\n+PONG\r\n-ERR unknown command 'nosuch', with args beginning with: \r\n");
    net_fixture_destroy(&fixture);
}

/* ---- ends ---- */

Test(client, quit_is_answered_last_and_nothing_behind_it_is_executed)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") QUIT GET("b") PING);
    await_pending(fixture, 1);
    net_fixture_settle(fixture);
    cr_expect_eq(fixture->pending_count, 1);
    net_fixture_answer(fixture, 0, "+a\r\n");
    peer_expect(&peer, "+a\r\n+OK\r\n");
    peer_expect_end(&peer);
    await_no_clients(fixture);
    cr_expect_eq(fixture->offers, 1);
    cr_expect_not_null(strstr(net_fixture_log(fixture), "reason=\"QUIT\""));
    net_fixture_destroy(&fixture);
}

Test(client, protocol_error_is_answered_once_behind_what_is_in_flight)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") GET("b") "*1\r\n:3\r\n" GET("c"));
    await_pending(fixture, 2);
    net_fixture_settle(fixture);
    net_fixture_answer(fixture, 0, "+a\r\n");
    peer_expect(&peer, "+a\r\n");
    net_fixture_settle(fixture);
    peer_send(&peer, GET("d"));
    net_fixture_settle(fixture);
    net_fixture_answer(fixture, 1, "+b\r\n");
    peer_expect(&peer, "+b\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    peer_expect_end(&peer);
    cr_expect_eq(fixture->offers, 2);
    await_no_clients(fixture);
    net_fixture_destroy(&fixture);
}

Test(client, protocol_errors_of_all_kinds_are_answered_and_end_the_connection)
{
    static const struct {
        const char *bytes, *reply;
    } rows[] = {
        {"*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"},
        {"*x\r\n", "-ERR Protocol error: invalid multibulk length\r\n"},
        {"*2000000\r\n", "-ERR Protocol error: invalid multibulk length\r\n"},
        {"SET 'a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"},
    };
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        (void)net_fixture_connect(fixture, &peer);
        peer_send(&peer, rows[i].bytes);
        peer_expect(&peer, rows[i].reply);
        peer_expect_end(&peer);
        close(peer.fd);
    }
    net_fixture_destroy(&fixture);
}

Test(client, protocol_error_with_a_full_pool_of_requests_is_survived)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.requests_per_core = 2;
    (void)net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") GET("b") "*1\r\n:3\r\n");
    await_pending(fixture, 2);
    net_fixture_settle(fixture);
    net_fixture_answer(fixture, 0, "+a\r\n");
    net_fixture_answer(fixture, 1, "+b\r\n");
    cr_assert(core_fixture_run(&fixture->base, peer_has_ended, &peer));
    cr_expect_eq(strncmp(peer.received, "+a\r\n+b\r\n", 8), 0, "%s", peer.received);
    await_no_clients(fixture);
    net_fixture_destroy(&fixture);
}

Test(client, client_is_closed_in_every_state_without_a_leak)
{
    static const char *const texts[] = {"", "*2\r\n$3\r\nGE", GET("a"), GET("a") PING, GET("a") "RESET\r\n" PING, "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$90000\r\nxxx"};
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (int by_peer = 0; by_peer <= 1; by_peer++) {
            struct client *client = net_fixture_connect(fixture, &peer);
            fixture->pending_count = 0;
            peer_send(&peer, texts[i]);
            net_fixture_settle(fixture);
            if (by_peer)
                close(peer.fd);
            else
                conn_close(&fixture->base.core, &client->conn, CLOSE_DRAIN);
            await_no_clients(fixture);
            if (!by_peer)
                close(peer.fd);
            for (uint32_t j = 0; j < fixture->pending_count; j++)
                net_fixture_answer(fixture, j, "+late\r\n");
            cr_expect_eq(net->requests.live_count, 0, "%s", texts[i]);
        }
    }
    cr_expect_eq(arena_bytes_held(fixture->base.core.arena), 64u * fixture->base.config->limits.rx_buffer_bytes, "receive buffers alone");
    net_fixture_destroy(&fixture);
}

Test(client, full_pool_of_clients_is_a_result)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.clients_per_core = 1;
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    cr_expect_null(client_open(net, (struct ring_file){.number = -1}, 0));
    close(peer.fd);
    await_no_clients(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, PING);
    peer_expect(&peer, "+PONG\r\n");
    net_fixture_destroy(&fixture);
}

Test(client, ids_of_clients_are_never_used_again)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    uint64_t last = 0;
    for (int i = 0; i < 5; i++) {
        struct client *client = net_fixture_connect(fixture, &peer);
        cr_expect_gt(client->session.id, last);
        last = client->session.id;
        close(peer.fd);
        await_no_clients(fixture);
    }
    net_fixture_destroy(&fixture);
}

Test(client, without_multishot_and_direct_descriptors_all_is_the_same)
{
    for (int off = 0; off < 4; off++) {
        struct net_fixture *fixture = net_fixture_create();
        fixture->base.config->ring.multishot_recv = off != 0 && off != 3;
        fixture->base.config->ring.direct_descriptors = off != 1 && off != 3;
        fixture->base.config->ring.defer_taskrun = off != 2 && off != 3;
        fixture->base.config->limits.pipeline_per_client = 2;
        (void)net_fixture_open(fixture);
        (void)net_fixture_connect(fixture, &peer);
        peer_send(&peer, GET("a") GET("b") PING);
        await_pending(fixture, 2);
        net_fixture_answer(fixture, 1, "+b\r\n");
        net_fixture_answer(fixture, 0, "+a\r\n");
        peer_expect(&peer, "+a\r\n+b\r\n+PONG\r\n");
        peer_send(&peer, QUIT);
        peer_expect(&peer, "+OK\r\n");
        peer_expect_end(&peer);
        net_fixture_destroy(&fixture);
    }
}
