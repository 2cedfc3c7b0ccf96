/*
 * The end of clients: the decision over random views, and what a client on the other side of a socket pair sees of it.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "core/rng.h"
#include "net/drain.h"
#include "tests/net/net_fixture.h"

TestSuite(drain, .timeout = 100);

static struct peer peer, other;

#define GET(key) "*2\r\n$3\r\nGET\r\n$1\r\n" key "\r\n"
#define PING "*1\r\n$4\r\nPING\r\n"
#define HELLO_3 "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"

static bool client_endpoint(void *context, char *text)
{
    (void)context;
    (void)snprintf(text, SESSION_ENDPOINT_MAX, "127.0.0.1:6380");
    return true;
}

static bool has_pending(void *context)
{
    const struct net_fixture *fixture = context;
    return fixture->pending_count >= peer.wanted;
}

static void await_pending(struct net_fixture *fixture, uint32_t count)
{
    peer.wanted = count;
    cr_assert(core_fixture_run(&fixture->base, has_pending, fixture), "%u of %u commands", fixture->pending_count, count);
}

/* As if `ms` had passed since the drain began and since the client's last command. */
static void pass(struct net *net, struct client *client, uint64_t ms)
{
    net->drain_began_ms -= ms;
    client->session.last_command_ms -= ms;
}

/* ---- the decision ---- */

Test(drain, decide_holds_for_random_views)
{
    struct rng rng = {.state = 42};
    for (int i = 0; i < 200000; i++) {
        struct drain_view view = {
            .elapsed_ms = rng_below(&rng, 400),
            .grace_ms = rng_below(&rng, 3) * 100,
            .quiet_ms = rng_below(&rng, 200),
            .lingered_ms = rng_below(&rng, 200),
            .is_late = rng_below(&rng, 20) == 0,
            .was_told = rng_below(&rng, 2) == 0,
            .has_requests = rng_below(&rng, 3) == 0,
            .has_input = rng_below(&rng, 3) == 0,
            .is_replying = rng_below(&rng, 3) == 0,
            .is_finishing = rng_below(&rng, 5) == 0,
        };
        enum drain_action action = drain_decide(&view);
        bool has_work = view.has_requests || view.has_input;
        uint64_t served_ms = view.was_told ? view.grace_ms : 0;
        if (view.is_late)
            cr_assert_eq(action, DRAIN_CLOSE);
        else if (view.is_finishing)
            cr_assert_eq(action == DRAIN_CLOSE, view.lingered_ms >= DRAIN_LINGER_MS);
        else
            cr_assert_neq(action, DRAIN_CLOSE, "nothing is cut off before the time");
        if (action == DRAIN_FINISH)
            cr_assert(!has_work && view.elapsed_ms >= served_ms, "what was read is answered first, and who was told is served for the grace");
        if (action == DRAIN_STOP_READING)
            cr_assert(has_work && view.elapsed_ms >= served_ms + DRAIN_QUIET_MS);
        if (!view.is_finishing && !view.is_late && view.elapsed_ms >= served_ms + DRAIN_QUIET_MS)
            cr_assert(action == DRAIN_FINISH || action == DRAIN_STOP_READING, "nobody is served for ever");
    }
}

/* ---- clients ---- */

Test(drain, quiet_client_sees_the_end_and_what_it_sends_then_is_dropped)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    drain_begin(net, 1);
    drain_tick(net, false);
    net_fixture_settle(fixture);
    peer_read(&peer);
    cr_expect_not(peer.has_ended, "it may be about to ask");
    pass(net, client, DRAIN_QUIET_MS);
    drain_tick(net, false);
    peer_expect_end(&peer);
    cr_expect(conn_is_open(&client->conn), "its own end is waited for");
    peer_send(&peer, GET("a"));
    net_fixture_settle(fixture);
    cr_expect_eq(fixture->offers, 0, "not executed");
    close(peer.fd);
    net_fixture_settle(fixture);
    cr_expect_eq(net->clients.live_count, 0);
    net_fixture_destroy(&fixture);
}

Test(drain, client_that_does_not_end_its_side_is_closed_after_a_while)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    drain_begin(net, 1);
    pass(net, client, DRAIN_QUIET_MS);
    drain_tick(net, false);
    peer_expect_end(&peer);
    drain_tick(net, false); /* its time begins */
    drain_tick(net, false);
    cr_expect_eq(net->clients.live_count, 1);
    client->drain_ms -= DRAIN_LINGER_MS;
    drain_tick(net, false);
    net_fixture_settle(fixture);
    cr_expect_eq(net->clients.live_count, 0);
    net_fixture_destroy(&fixture);
}

Test(drain, end_follows_the_last_reply)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    (void)net_fixture_connect(fixture, &other);
    peer_send(&peer, GET("a") GET("b"));
    await_pending(fixture, 2);
    drain_begin(net, 1);
    drain_tick(net, false);
    net_fixture_answer(fixture, 0, "+a\r\n");
    peer_expect(&peer, "+a\r\n");
    net_fixture_settle(fixture);
    peer_read(&peer);
    cr_expect_not(peer.has_ended);
    net_fixture_answer(fixture, 1, "+b\r\n");
    peer_expect(&peer, "+b\r\n");
    peer_expect_end(&peer);
    /* A command that the gateway answers itself. */
    peer_send(&other, PING PING);
    peer_expect(&other, "+PONG\r\n+PONG\r\n");
    peer_expect_end(&other);
    net_fixture_destroy(&fixture);
}

Test(drain, client_without_a_pause_is_no_longer_read)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a"));
    await_pending(fixture, 1);
    drain_begin(net, 1);
    pass(net, client, DRAIN_QUIET_MS);
    drain_tick(net, false);
    net_fixture_settle(fixture);
    peer_send(&peer, GET("b"));
    net_fixture_settle(fixture);
    drain_tick(net, false);
    cr_expect_eq(fixture->offers, 1);
    net_fixture_answer(fixture, 0, "+a\r\n");
    peer_expect(&peer, "+a\r\n");
    peer_expect_end(&peer);
    cr_expect_eq(fixture->offers, 1);
    net_fixture_destroy(&fixture);
}

Test(drain, command_that_has_begun_to_arrive_is_the_last)
{
    static const char command[] = GET("a");
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    for (size_t cut = 1; cut < sizeof(command) - 1; cut++) {
        struct client *client = net_fixture_connect(fixture, &peer);
        fixture->offers = 0;
        peer_write(&peer, command, cut);
        net_fixture_settle(fixture);
        cr_assert_not_null(client->input);
        drain_begin(net, 1);
        pass(net, client, DRAIN_QUIET_MS);
        drain_tick(net, false);
        drain_tick(net, false);
        peer_send(&peer, command + cut);
        peer_send(&peer, GET("b"));
        await_pending(fixture, (uint32_t)cut);
        net_fixture_settle(fixture);
        cr_assert_eq(fixture->offers, 1);
        net_fixture_answer(fixture, (uint32_t)cut - 1, "+a\r\n");
        peer_expect(&peer, "+a\r\n");
        peer_expect_end(&peer);
        close(peer.fd);
        net_fixture_settle(fixture);
        cr_assert_eq(net->clients.live_count, 0);
        net->is_draining = false;
    }
    net_fixture_destroy(&fixture);
}

Test(drain, commands_that_wait_in_the_input_are_answered)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->limits.pipeline_per_client = 2;
    struct net *net = net_fixture_open(fixture);
    struct client *client = net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a") GET("b") GET("c") GET("d") GET("e"));
    await_pending(fixture, 2);
    net_fixture_settle(fixture);
    cr_assert_not_null(client->input);
    drain_begin(net, 1);
    pass(net, client, DRAIN_QUIET_MS);
    for (uint32_t i = 0; i < 5; i++) {
        static const char *const replies[] = {"+a\r\n", "+b\r\n", "+c\r\n", "+d\r\n", "+e\r\n"};
        drain_tick(net, false);
        await_pending(fixture, i + 1);
        net_fixture_answer(fixture, i, replies[i]);
        peer_expect(&peer, replies[i]);
    }
    peer_expect_end(&peer);
    net_fixture_destroy(&fixture);
}

Test(drain, late_client_is_closed)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    (void)net_fixture_connect(fixture, &peer);
    peer_send(&peer, GET("a"));
    await_pending(fixture, 1);
    drain_begin(net, 1);
    drain_tick(net, true);
    peer_expect_end(&peer);
    net_fixture_answer(fixture, 0, "+a\r\n"); /* goes nowhere */
    net_fixture_destroy(&fixture);
}

/* ---- MOVING ---- */

static struct client *connect_asking(struct net_fixture *fixture, struct peer *end, const char *command)
{
    struct client *client = net_fixture_connect(fixture, end);
    client->session.protocol = 3;
    peer_send(end, command);
    peer_expect(end, "+OK\r\n");
    return client;
}

#define MAINT "*5\r\n$6\r\nCLIENT\r\n$19\r\nMAINT_NOTIFICATIONS\r\n$2\r\nON\r\n$20\r\nmoving-endpoint-type\r\n"
#define MAINT_PLACE MAINT "$11\r\ninternal-ip\r\n"
#define MAINT_NONE MAINT "$4\r\nnone\r\n"

Test(drain, who_asked_is_told_and_served_until_the_grace_is_over)
{
    struct net_fixture *fixture = net_fixture_create();
    fixture->base.config->drain_grace_ns = UINT64_C(1500000000);
    fixture->answers_at_once = true;
    struct net *net = net_fixture_open(fixture);
    net->request_ops.client_endpoint = client_endpoint;
    struct client *client = connect_asking(fixture, &peer, MAINT_PLACE);
    struct client *none = connect_asking(fixture, &other, MAINT_NONE);
    drain_begin(net, 1234567890);
    peer_expect(&peer, ">4\r\n$6\r\nMOVING\r\n:1234567890\r\n:2\r\n$14\r\n127.0.0.1:6380\r\n");
    peer_expect(&other, ">4\r\n$6\r\nMOVING\r\n:1234567890\r\n:2\r\n_\r\n");
    cr_expect_eq(net_fixture_metric(fixture, METRIC_clients_moved_total), 2);
    pass(net, client, 1499);
    none->session.last_command_ms -= 1499;
    drain_tick(net, false);
    peer_send(&peer, GET("a"));
    peer_expect(&peer, GET("a"));
    net_fixture_settle(fixture);
    peer_read(&peer);
    cr_expect_not(peer.has_ended);
    net->drain_began_ms -= 1;
    peer_send(&peer, GET("a"));
    peer_expect(&peer, GET("a"));
    peer_expect_end(&peer);
    drain_tick(net, false);
    peer_expect_end(&other);
    net_fixture_destroy(&fixture);
}

Test(drain, moving_stands_between_replies)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    net->request_ops.client_endpoint = client_endpoint;
    (void)connect_asking(fixture, &peer, MAINT_NONE);
    peer_send(&peer, GET("a") GET("b"));
    await_pending(fixture, 2);
    net_fixture_answer(fixture, 1, "+b\r\n");
    drain_begin(net, 7);
    net_fixture_answer(fixture, 0, "+a\r\n");
    peer_expect(&peer, ">4\r\n$6\r\nMOVING\r\n:7\r\n:1\r\n_\r\n+a\r\n+b\r\n");
    net_fixture_destroy(&fixture);
}

Test(drain, nobody_is_told_without_a_grace_or_in_resp2)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    net->request_ops.client_endpoint = client_endpoint;
    struct client *client = connect_asking(fixture, &peer, MAINT_NONE);
    client->session.protocol = 2;
    drain_begin(net, 7);
    net_fixture_settle(fixture);
    peer_read(&peer);
    cr_expect_eq(peer.received_count, 0);
    net->is_draining = false;
    client->session.protocol = 3;
    fixture->base.config->drain_grace_ns = 0;
    drain_begin(net, 8);
    net_fixture_settle(fixture);
    peer_read(&peer);
    cr_expect_eq(peer.received_count, 0);
    net_fixture_destroy(&fixture);
}
