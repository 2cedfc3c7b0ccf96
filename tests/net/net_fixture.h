/*
 * net/ on a core of its own, with what lies above it played by the test: commands that are forwarded are kept until the test answers them, replies and losses of legs are written down.
 */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/client.h"
#include "net/link.h"
#include "net/link_pool.h"
#include "net/listener.h"
#include "net/net.h"
#include "tests/core/core_fixture.h"

enum { FIXTURE_PENDING_MAX = 8192, FIXTURE_TEXT_MAX = 1 << 20 };

struct net_fixture {
    struct core_fixture base; /* first member */
    struct command_table *table;
    struct link_pool links;
    /* Forwarded commands without an answer, in the order of their arrival. */
    struct pool_handle pending[FIXTURE_PENDING_MAX];
    uint32_t pending_count;
    uint32_t offers;              /* calls of dispatch */
    enum dispatch_result verdict; /* TAKEN unless the test wants something else */
    uint64_t timeout_ns;
    bool answers_at_once;            /* with the command's own bytes */
    char commands[FIXTURE_TEXT_MAX]; /* bytes of all commands taken */
    size_t commands_length;
    /* Of legs: "3:+OK\r\n" for a reply to the leg of origin 3, "3!" and "3?" for one that is lost after and before it was sent. */
    char replies[FIXTURE_TEXT_MAX];
    size_t replies_length;
    uint32_t replies_count, lost_count, progress_count, gone_count, frees_count;
    bool reply_had_block;
    struct link *last_link;
};

static inline struct net_fixture *net_fixture_of(struct net *net) { return net->owner; }

static inline enum dispatch_result net_fixture_dispatch(struct net *net, struct client *client, const struct dispatch_command *command)
{
    struct net_fixture *fixture = net_fixture_of(net);
    fixture->offers++;
    if (fixture->verdict != DISPATCH_TAKEN)
        return fixture->verdict;
    struct request *request = request_create(net, client, fixture->timeout_ns);
    if (request == NULL)
        return DISPATCH_DRAIN;
    request->legs_left = 1;
    cr_assert_lt(fixture->commands_length + command->length, FIXTURE_TEXT_MAX);
    memcpy(fixture->commands + fixture->commands_length, command->bytes, command->length);
    fixture->commands_length += command->length;
    if (fixture->answers_at_once) {
        struct reply reply = {.bytes = command->bytes, .length = command->length, .block = command->block};
        request_leg_done(net, request, 0, &reply);
        return DISPATCH_TAKEN;
    }
    cr_assert_lt(fixture->pending_count, FIXTURE_PENDING_MAX);
    fixture->pending[fixture->pending_count++] = pool_handle_of(&request->item);
    return DISPATCH_TAKEN;
}

static inline void net_fixture_end_leg(struct net *net, struct leg *leg)
{
    if (leg->bytes != NULL)
        send_block_put(net->core, &leg->bytes);
    pool_put(&net->legs, &leg);
}

static inline void net_fixture_note(struct net_fixture *fixture, const void *bytes, size_t length)
{
    cr_assert_lt(fixture->replies_length + length, FIXTURE_TEXT_MAX);
    memcpy(fixture->replies + fixture->replies_length, bytes, length);
    fixture->replies_length += length;
    fixture->replies[fixture->replies_length] = '\0';
}

static inline void net_fixture_leg_reply(struct net *net, struct link *link, struct leg *leg, const struct reply *reply)
{
    struct net_fixture *fixture = net_fixture_of(net);
    char origin[32];
    (void)snprintf(origin, sizeof(origin), "%u:", (unsigned)leg->origin);
    net_fixture_note(fixture, origin, strlen(origin));
    net_fixture_note(fixture, reply->bytes, reply->length);
    cr_expect_not(reply->is_lent);
    cr_expect(reply->block == NULL || (reply->bytes >= reply->block->data && reply->bytes + reply->length <= reply->block->data + block_capacity(reply->block)));
    fixture->reply_had_block = reply->block != NULL;
    fixture->replies_count++;
    fixture->last_link = link;
    net_fixture_end_leg(net, leg);
}

static inline void net_fixture_leg_lost(struct net *net, struct link *link, struct leg *leg, bool was_sent)
{
    struct net_fixture *fixture = net_fixture_of(net);
    char text[32];
    (void)snprintf(text, sizeof(text), "%u%c", (unsigned)leg->origin, was_sent ? '!' : '?');
    net_fixture_note(fixture, text, strlen(text));
    fixture->lost_count++;
    cr_expect_eq(link->state, LINK_GONE);
    net_fixture_end_leg(net, leg);
}

static inline void net_fixture_progress(struct net *net, struct link *link)
{
    (void)link;
    net_fixture_of(net)->progress_count++;
}

static inline void net_fixture_gone(struct net *net, struct link *link)
{
    (void)link;
    net_fixture_of(net)->gone_count++;
}

static inline bool net_fixture_merge(struct net *net, struct request *request, uint16_t part, const struct reply *reply, struct reply *whole)
{
    (void)part;
    *whole = *reply;
    (void)net;
    return request->legs_left == 0; /* the last part's reply stands for all */
}

static inline void net_fixture_split_free(struct net *net, struct request *request)
{
    request->split = NULL;
    net_fixture_of(net)->frees_count++;
}

/* Nothing here makes runs. */
static inline void no_runs(struct net *net, struct link *link)
{
    (void)net;
    (void)link;
}

static const struct net_ops net_fixture_ops = {
    .dispatch = net_fixture_dispatch,
    .leg_reply = net_fixture_leg_reply,
    .leg_lost = net_fixture_leg_lost,
    .link_progress = net_fixture_progress,
    .link_gone = net_fixture_gone,
    .divide_runs = no_runs,
    .merge_part = net_fixture_merge,
    .split_free = net_fixture_split_free,
};

static inline void net_fixture_flush(struct core *core) { net_flush(core->net); }
static inline void net_fixture_release(struct core *core) { net_release(core->net); }
static inline bool net_fixture_is_busy(const struct core *core) { return !list_is_empty(&core->net->dirty); }

/* Allocates; the test may change fixture->base.config, then opens. */
static inline struct net_fixture *net_fixture_create(void)
{
    struct net_fixture *fixture = alloc_zeroed(sizeof(*fixture));
    core_fixture_init(&fixture->base, 1);
    fixture->base.config->listeners_count = 1;
    fixture->base.hooks.flush = net_fixture_flush;
    fixture->base.hooks.release = net_fixture_release;
    fixture->base.hooks.is_busy = net_fixture_is_busy;
    fixture->base.config->backend.reconnect_min_ns = 10 * 1000000;
    fixture->base.config->backend.reconnect_max_ns = 1000 * 1000000;
    fixture->timeout_ns = UINT64_C(60000000000);
    return fixture;
}

static inline struct net *net_fixture_open(struct net_fixture *fixture)
{
    core_fixture_open(&fixture->base);
    log_set_level(LOG_DEBUG);
    struct core *core = &fixture->base.core;
    net_open(core, &net_fixture_ops, fixture, fixture->base.config->limits.clients_per_core);
    fixture->table = command_table_create();
    core->net->session_env.commands = fixture->table;
    core->net->listeners = alloc_zeroed(sizeof(*core->net->listeners));
    core->net->listeners[0].config = &fixture->base.config->listeners[0];
    core->net->listeners[0].fd = -1;
    core->net->listeners_count = 1;
    link_pool_init(&fixture->links, core->net, &fixture->base.config->backend);
    return core->net;
}

static inline bool net_fixture_is_quiet(void *context)
{
    const struct net_fixture *fixture = context;
    const struct net *net = fixture->base.core.net;
    return net->clients.live_count == 0 && net->links.live_count == 0;
}

/* Closes every connection; what the pools hold must be back by then. */
static inline void net_fixture_destroy(struct net_fixture **fixture_pointer)
{
    struct net_fixture *fixture = *fixture_pointer;
    struct core *core = &fixture->base.core;
    struct net *net = core->net;
    link_pool_close_all(&fixture->links);
    while (!list_is_empty(&net->clients_all))
        conn_close(core, &LIST_ENTRY(net->clients_all.next, struct client, all)->conn, CLOSE_DRAIN);
    cr_expect(core_fixture_run(&fixture->base, net_fixture_is_quiet, fixture), "connections end");
    cr_expect_eq(net->requests.live_count, 0, "every request is freed");
    cr_expect_eq(net->legs.live_count, 0, "every leg is freed");
    cr_expect(list_is_empty(&net->deadlines));
    const struct account *account = &net->account;
    cr_expect(account->input == 0 && account->commands == 0 && account->replies == 0 && account->output == 0 && account->paused_count == 0, "nothing is left on the account");
    cr_expect_eq(core->ring.free_files_count, core->ring.files_max, "every descriptor is closed");
    link_pool_fini(&fixture->links);
    net_close(core);
    core_fixture_close(&fixture->base);
    command_table_destroy(&fixture->table);
    alloc_free(fixture);
    *fixture_pointer = NULL;
}

/* What has been logged since the last call, with NUL; valid until the next call. */
static inline const char *net_fixture_log(struct net_fixture *fixture)
{
    static char text[64 << 10];
    int fd = memfd_create("log", MFD_CLOEXEC);
    cr_assert_geq(fd, 0);
    (void)log_ring_drain(fixture->base.core.log, fd);
    ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
    cr_assert_geq(length, 0);
    text[length] = '\0';
    close(fd);
    return text;
}

static inline uint64_t net_fixture_metric(const struct net_fixture *fixture, enum metric metric) { return metric_read(fixture->base.core.metrics, metric); }

/* ---- the other end of a connection ---- */

struct peer {
    struct net_fixture *fixture;
    int fd;
    size_t received_count;
    bool has_ended;
    size_t wanted; /* for peer_has */
    char received[FIXTURE_TEXT_MAX];
};

/* The handshake of a RESP2 link without a password. */
#define PEER_HELLO_2 "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n"
#define PEER_HELLO_2_REPLY "*2\r\n$5\r\nproto\r\n:2\r\n"

static inline void peer_init(struct peer *peer, struct net_fixture *fixture, int fd)
{
    peer->fixture = fixture;
    peer->fd = fd;
    peer->received_count = 0;
    peer->has_ended = false;
    int flags = fcntl(fd, F_GETFL);
    cr_assert_eq(fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
}

/* Takes what is there. */
static inline void peer_read(struct peer *peer)
{
    while (!peer->has_ended && peer->received_count < sizeof(peer->received) - 1) {
        ssize_t length = read(peer->fd, peer->received + peer->received_count, sizeof(peer->received) - 1 - peer->received_count);
        if (length < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (length <= 0)
            peer->has_ended = true;
        else
            peer->received_count += (size_t)length;
    }
    peer->received[peer->received_count] = '\0';
}

static inline bool peer_has(void *context)
{
    struct peer *peer = context;
    peer_read(peer);
    return peer->received_count >= peer->wanted || peer->has_ended;
}

static inline bool peer_has_ended(void *context)
{
    struct peer *peer = context;
    peer_read(peer);
    return peer->has_ended;
}

/* Writes all; the socket takes it at once where it is not more than a socket buffer. */
static inline void peer_write(struct peer *peer, const void *bytes, size_t length)
{
    cr_assert_eq(write(peer->fd, bytes, length), (ssize_t)length, "%s", strerror(errno));
}

static inline void peer_send(struct peer *peer, const char *text) { peer_write(peer, text, strlen(text)); }

/* Runs the loop until the peer has received exactly `text` since the last call. */
static inline void peer_expect_at(struct peer *peer, const char *text, int line)
{
    peer->wanted = strlen(text);
    bool in_time = core_fixture_run(&peer->fixture->base, peer_has, peer);
    cr_assert(in_time && strcmp(peer->received, text) == 0, "line %d: expected %.200s, received %.200s%s", line, text, peer->received, peer->has_ended ? " and the end" : "");
    peer->received_count = 0;
}
#define peer_expect(peer, text) peer_expect_at((peer), (text), __LINE__)

static inline void peer_expect_end_at(struct peer *peer, int line)
{
    cr_assert(core_fixture_run(&peer->fixture->base, peer_has_ended, peer), "line %d: the connection stays open", line);
    cr_assert_eq(peer->received_count, 0, "line %d: %.200s", line, peer->received);
}
#define peer_expect_end(peer) peer_expect_end_at((peer), __LINE__)

/* A few iterations: long enough for what is on its way to arrive. */
static inline bool net_fixture_counts_down(void *context)
{
    uint32_t *left = context;
    return (*left)-- == 0;
}

static inline bool net_fixture_never_busy(const struct core *core)
{
    (void)core;
    return true;
}

/* Turns the loop for some iterations without sleeping. */
static inline void net_fixture_settle(struct net_fixture *fixture)
{
    uint32_t iterations = 20;
    fixture->base.hooks.is_busy = net_fixture_never_busy;
    cr_assert(core_fixture_run(&fixture->base, net_fixture_counts_down, &iterations));
    fixture->base.hooks.is_busy = net_fixture_is_busy;
}

/* A client whose other end is `peer`. */
static inline struct client *net_fixture_connect(struct net_fixture *fixture, struct peer *peer)
{
    int pair[2];
    struct ring_file file;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(ring_install(&fixture->base.core.ring, pair[0], &file), STATUS_OK);
    peer_init(peer, fixture, pair[1]);
    struct client *client = client_open(fixture->base.core.net, file, 0);
    cr_assert_not_null(client);
    return client;
}

/* Answers the pending command `index`; `text` is the whole reply. */
static inline void net_fixture_answer(struct net_fixture *fixture, uint32_t index, const char *text)
{
    struct net *net = fixture->base.core.net;
    cr_assert_lt(index, fixture->pending_count);
    struct request *request = pool_resolve(&net->requests, fixture->pending[index]);
    cr_assert_not_null(request, "a request waits for its legs");
    struct reply reply = {.bytes = (const uint8_t *)text, .length = (uint32_t)strlen(text)};
    request_leg_done(net, request, 0, &reply);
}
