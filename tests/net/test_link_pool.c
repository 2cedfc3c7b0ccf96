/*
 * Which links there are, and when a lost one may be tried again. Nobody listens on the address of most tests, so that each attempt fails at once.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/net/net_fixture.h"

TestSuite(link_pool, .timeout = 100);

enum { MIN_MS = 10, MAX_MS = 1000 };

static struct sockaddr_in address;
static struct peer backend;

/* A loopback address: with a listener (its descriptor), or one that refuses. */
static int make_address(bool listens)
{
    socklen_t bytes = sizeof(address);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    if (listens)
        cr_assert_eq(listen(fd, 16), 0);
    return fd; /* bound, so that nobody else listens there */
}

static struct link *get(struct net_fixture *fixture, uint32_t node_key, uint8_t protocol, enum status *status)
{
    return link_pool_get(&fixture->links, node_key, (const struct sockaddr *)&address, sizeof(address), protocol, status);
}

static struct link_slot *slot_of(struct net_fixture *fixture, uint32_t node_key, uint8_t protocol)
{
    for (uint32_t i = 0; i <= fixture->links.slots_mask; i++)
        if (fixture->links.slots[i].name == ((uint64_t)node_key << 3 | protocol))
            return &fixture->links.slots[i];
    cr_assert_fail("no slot");
    return NULL;
}

static bool has_no_links(void *context)
{
    const struct net_fixture *fixture = context;
    return fixture->base.core.net->links.live_count == 0;
}

static void await_no_links(struct net_fixture *fixture) { cr_assert(core_fixture_run(&fixture->base, has_no_links, fixture)); }

static bool is_ready(void *context) { return ((struct link *)context)->state == LINK_READY; }

static bool is_in_handshake(void *context) { return ((struct link *)context)->state == LINK_HANDSHAKE; }

/* The backend of a RESP2 link takes it and answers the handshake: `backend` is its end. */
static void make_ready(struct net_fixture *fixture, struct link *link, int listener)
{
    cr_assert(core_fixture_run(&fixture->base, is_in_handshake, link));
    peer_init(&backend, fixture, accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    peer_expect(&backend, PEER_HELLO_2);
    peer_send(&backend, PEER_HELLO_2_REPLY);
    cr_assert(core_fixture_run(&fixture->base, is_ready, link));
}

/* One attempt, now, that fails. */
static void fail_once(struct net_fixture *fixture, uint32_t node_key)
{
    enum status status;
    cr_assert_not_null(get(fixture, node_key, 2, &status), "%s", status_name(status));
    await_no_links(fixture);
}

Test(link_pool, one_link_a_node_and_protocol)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(true);
    enum status status;
    cr_expect_null(link_pool_find(&fixture->links, 1, 2));
    struct link *first = get(fixture, 1, 2, &status);
    cr_assert_not_null(first);
    cr_expect_eq(get(fixture, 1, 2, &status), first);
    cr_expect_eq(link_pool_find(&fixture->links, 1, 2), first);
    cr_expect_null(link_pool_find(&fixture->links, 1, 3));
    struct link *other_protocol = get(fixture, 1, 3, &status);
    struct link *other_node = get(fixture, 2, 2, &status);
    cr_expect(other_protocol != first && other_node != first && other_node != other_protocol);
    cr_expect(first->key != other_protocol->key && first->key != other_node->key && other_protocol->key != other_node->key);
    cr_expect_eq(net_fixture_metric(fixture, METRIC_links), 3);
    link_pool_close_all(&fixture->links);
    await_no_links(fixture);
    cr_expect_null(link_pool_find(&fixture->links, 1, 2));
    cr_expect_eq(net_fixture_metric(fixture, METRIC_link_failures_total), 0, "ends that were wanted are no failures");
    cr_expect_not(link_pool_is_failing(&fixture->links, 1, 2));
    cr_expect_not_null(get(fixture, 1, 2, &status), "at once");
    close(fd);
    net_fixture_destroy(&fixture);
}

Test(link_pool, node_without_an_address_is_no_node)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    enum status status = STATUS_OK;
    cr_expect_null(link_pool_get(&fixture->links, 1, (const struct sockaddr *)&address, 0, 2, &status));
    cr_expect_eq(status, STATUS_NO_NODE);
    net_fixture_destroy(&fixture);
}

Test(link_pool, first_attempt_after_a_loss_comes_at_once_and_the_next_wait)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(true);
    enum status status;
    struct link *link = get(fixture, 1, 2, &status);
    make_ready(fixture, link, fd);
    close(backend.fd);
    close(fd); /* and the address refuses */
    await_no_links(fixture);
    cr_expect(link_pool_is_failing(&fixture->links, 1, 2));
    fail_once(fixture, 1);
    uint64_t now_ms = fixture->base.core.now_ms;
    struct link_slot *slot = slot_of(fixture, 1, 2);
    cr_expect_eq(slot->failures, 2);
    slot->retry_ms = now_ms + 5;
    cr_expect_null(get(fixture, 1, 2, &status));
    cr_expect_eq(status, STATUS_NO_NODE);
    fixture->base.core.now_ms = now_ms + 4;
    cr_expect_null(get(fixture, 1, 2, &status));
    fixture->base.core.now_ms = now_ms + 5;
    fail_once(fixture, 1);
    net_fixture_destroy(&fixture);
}

/* 10 ms, 20, 40 ... 1,000: each wait is drawn from half the step up to the step, so it doubles, is bounded, and many gateways do not come back in step. */
Test(link_pool, backoff_doubles_is_jittered_and_bounded)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(false);
    enum { ROUNDS = 12, NODES = 12 };
    uint64_t waits[ROUNDS][NODES];
    for (uint32_t node = 1; node <= NODES; node++) {
        fail_once(fixture, node);
        struct link_slot *slot = slot_of(fixture, node, 2);
        cr_expect_eq(slot->retry_ms, 0, "the first retry comes at once");
        for (uint32_t round = 0; round < ROUNDS; round++) {
            slot->retry_ms = 0;
            fail_once(fixture, node);
            cr_assert_eq(slot->failures, round + 2);
            uint64_t step_ms = (uint64_t)MIN_MS << round < MAX_MS ? (uint64_t)MIN_MS << round : MAX_MS;
            uint64_t wait_ms = slot->retry_ms - fixture->base.core.now_ms;
            /* The loop may have moved on by some milliseconds. */
            cr_expect(wait_ms <= step_ms && wait_ms + 20 >= step_ms / 2, "round %u: %llu of %llu", round, (unsigned long long)wait_ms, (unsigned long long)step_ms);
            waits[round][node - 1] = wait_ms;
        }
    }
    uint64_t lowest = MAX_MS, highest = 0;
    for (uint32_t node = 0; node < NODES; node++) {
        lowest = waits[ROUNDS - 1][node] < lowest ? waits[ROUNDS - 1][node] : lowest;
        highest = waits[ROUNDS - 1][node] > highest ? waits[ROUNDS - 1][node] : highest;
    }
    cr_expect_gt(highest - lowest, MAX_MS / 10, "%llu to %llu", (unsigned long long)lowest, (unsigned long long)highest);
    close(fd);
    net_fixture_destroy(&fixture);
}

/* Puts a leg on the link that the backend answers. */
static void answer_once(struct net_fixture *fixture, struct link *link)
{
    struct net *net = fixture->base.core.net;
    struct leg *leg = pool_get(&net->legs);
    struct leg_list legs = {0};
    struct block *block = arena_get(fixture->base.core.arena, 1);
    leg->action = LEG_FORWARD;
    leg_list_push(&legs, leg);
    block->length = 1;
    block->data[0] = 'x';
    link_enqueue(net, link, &legs, block);
    peer_expect(&backend, "x");
    peer_send(&backend, "+OK\r\n");
    while (link->seq_answered < 2)
        net_fixture_settle(fixture);
}

Test(link_pool, link_that_answers_forgets_failures)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(false);
    enum status status;
    for (int i = 0; i < 5; i++) {
        fail_once(fixture, 1);
        slot_of(fixture, 1, 2)->retry_ms = 0;
    }
    cr_assert_eq(listen(fd, 16), 0);
    struct link *link = get(fixture, 1, 2, &status);
    cr_expect_not(link_pool_is_failing(&fixture->links, 1, 2), "an attempt is under way");
    make_ready(fixture, link, fd);
    cr_expect_eq(slot_of(fixture, 1, 2)->failures, 0);
    answer_once(fixture, link);
    close(backend.fd);
    await_no_links(fixture);
    cr_expect(slot_of(fixture, 1, 2)->failures == 1 && slot_of(fixture, 1, 2)->retry_ms == 0);
    close(fd);
    net_fixture_destroy(&fixture);
}

/* As a node behind a proxy that is down, or one at its limit of clients: each link becomes ready, and none is of use. */
Test(link_pool, node_that_accepts_and_closes_at_once_is_backed_off_from)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(true);
    enum status status;
    for (uint32_t i = 0; i < 6; i++) {
        struct link *link = get(fixture, 1, 2, &status);
        cr_assert_not_null(link);
        make_ready(fixture, link, fd);
        close(backend.fd);
        await_no_links(fixture);
        struct link_slot *slot = slot_of(fixture, 1, 2);
        if (i == 0)
            cr_expect_eq(slot->retry_ms, 0, "the first time at once");
        else
            cr_expect(slot->retry_ms > fixture->base.core.now_ms - 100 && slot->retry_ms - fixture->base.core.now_ms + 100 <= ((uint64_t)MIN_MS << (i - 1)) + 100, "%u", i);
        slot->retry_ms = 0;
    }
    close(fd);
    net_fixture_destroy(&fixture);
}

Test(link_pool, refused_handshakes_back_off_too)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(true);
    enum status status;
    for (uint32_t i = 0; i < 3; i++) {
        if (i > 0)
            slot_of(fixture, 1, 3)->retry_ms = 0;
        cr_assert_not_null(get(fixture, 1, 3, &status));
        net_fixture_settle(fixture);
        peer_init(&backend, fixture, accept4(fd, NULL, NULL, SOCK_CLOEXEC));
        peer_send(&backend, "-NOPROTO unsupported protocol version\r\n");
        await_no_links(fixture);
        cr_expect_eq(slot_of(fixture, 1, 3)->failures, i + 1);
        close(backend.fd);
    }
    cr_expect_gt(slot_of(fixture, 1, 3)->retry_ms, 0);
    close(fd);
    net_fixture_destroy(&fixture);
}

static bool keeps_even_nodes(void *context, const struct link *link)
{
    (*(uint32_t *)context)++;
    return link->node_key % 2 == 0;
}

Test(link_pool, prune_closes_idle_links_that_nobody_keeps)
{
    struct net_fixture *fixture = net_fixture_create();
    struct net *net = net_fixture_open(fixture);
    int fd = make_address(true);
    enum status status;
    struct link *links[6];
    for (uint32_t node = 1; node <= 5; node++) {
        links[node] = get(fixture, node, 2, &status);
        make_ready(fixture, links[node], fd);
    }
    struct leg *leg = pool_get(&net->legs);
    struct leg_list legs = {0};
    leg->action = LEG_FORWARD;
    leg->origin = 1;
    leg_list_push(&legs, leg);
    struct block *block = arena_get(fixture->base.core.arena, 1);
    block->length = 1;
    block->data[0] = 'x';
    link_enqueue(net, links[3], &legs, block);
    uint32_t asked = 0;
    link_pool_prune(&fixture->links, keeps_even_nodes, &asked);
    cr_expect_eq(asked, 4, "the one with a leg is not asked about");
    net_fixture_settle(fixture);
    for (uint32_t node = 1; node <= 5; node++)
        cr_expect_eq(link_pool_find(&fixture->links, node, 2) != NULL, node % 2 == 0 || node == 3, "%u", node);
    cr_expect_eq(net->links.live_count, 3);
    cr_expect_not_null(strstr(net_fixture_log(fixture), "link no longer needed"));
    cr_expect_not(link_pool_is_failing(&fixture->links, 1, 2));
    cr_expect_eq(net_fixture_metric(fixture, METRIC_link_failures_total), 0);
    close(fd);
    net_fixture_destroy(&fixture);
}

Test(link_pool, tick_closes_what_takes_too_long)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(true);
    enum status status;
    struct link *links[3];
    for (uint32_t node = 0; node < 3; node++)
        links[node] = get(fixture, node + 1, 3, &status); /* the handshake is never answered */
    fixture->base.core.now_ms = links[0]->progress_ms + 500;
    link_pool_tick(&fixture->links);
    for (int i = 0; i < 3; i++)
        cr_expect_neq(links[i]->state, LINK_GONE);
    fixture->base.core.now_ms += 100;
    link_pool_tick(&fixture->links);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(links[i]->state, LINK_GONE);
    await_no_links(fixture);
    cr_expect(link_pool_is_failing(&fixture->links, 1, 3));
    close(fd);
    net_fixture_destroy(&fixture);
}

static bool keeps_none(void *context, const struct link *link)
{
    (void)context;
    (void)link;
    return false;
}

/* Where addresses change often (containers), node keys grow for ever: places of nodes that are gone must be had again. */
Test(link_pool, places_of_nodes_that_are_gone_are_used_again)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(false);
    enum status status;
    uint32_t places = fixture->links.slots_mask + 1;
    for (uint32_t node = 1; node <= 5 * places; node++) {
        struct link *link = get(fixture, node, 2, &status);
        cr_assert_not_null(link, "node %u: %s", node, status_name(status));
        conn_close(&fixture->base.core, &link->conn, node % 3 == 0 ? CLOSE_CONNECT_TIMEOUT : CLOSE_IDLE_LINK);
        if (node % 16 == 0) {
            await_no_links(fixture);
            link_pool_prune(&fixture->links, keeps_none, NULL);
        }
    }
    cr_expect_leq(fixture->links.slots_used, places);
    await_no_links(fixture);
    close(fd);
    net_fixture_destroy(&fixture);
}

/* Links that are there, and backoffs that still run, survive. */
Test(link_pool, links_and_backoffs_survive_the_reuse_of_places)
{
    struct net_fixture *fixture = net_fixture_create();
    (void)net_fixture_open(fixture);
    int fd = make_address(true);
    enum status status;
    uint32_t places = fixture->links.slots_mask + 1;
    struct link *kept = get(fixture, 1000000, 2, &status);
    make_ready(fixture, kept, fd);
    struct link *failing = get(fixture, 1000001, 2, &status);
    conn_close(&fixture->base.core, &failing->conn, CLOSE_CONNECT_TIMEOUT);
    slot_of(fixture, 1000001, 2)->failures = 5;
    slot_of(fixture, 1000001, 2)->retry_ms = fixture->base.core.now_ms + 1000000;
    for (uint32_t node = 1; node <= 3 * places; node++) {
        struct link *link = get(fixture, node, 2, &status);
        cr_assert_not_null(link, "node %u: %s", node, status_name(status));
        conn_close(&fixture->base.core, &link->conn, CLOSE_IDLE_LINK);
        if (node % 16 == 0)
            net_fixture_settle(fixture);
    }
    cr_expect_eq(link_pool_find(&fixture->links, 1000000, 2), kept);
    cr_expect_eq(get(fixture, 1000000, 2, &status), kept);
    cr_expect(link_pool_is_failing(&fixture->links, 1000001, 2));
    cr_expect_null(get(fixture, 1000001, 2, &status));
    cr_expect_eq(slot_of(fixture, 1000001, 2)->failures, 5);
    close(fd);
    net_fixture_destroy(&fixture);
}
