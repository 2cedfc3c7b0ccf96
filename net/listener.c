/*
 * Owns: the listening sockets of one core and where accepted connections go. Runs on: that core.
 */
#include "net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/address.h"
#include "core/alloc.h"
#include "net/client.h"
#include "net/net.h"
#include "net/socket.h"

/* How many more clients this core can hold: places in the pool, and in the table of descriptors, of which links keep a share. */
static uint32_t room(const struct net *net)
{
    const struct ring *ring = &net->core->ring;
    uint32_t clients = net->clients.objects_max - net->clients.live_count;
    uint32_t reserve = net->core->config->limits.links_per_core / 8;
    if (reserve > ring->files_max / 4)
        reserve = ring->files_max / 4;
    uint32_t files = ring->free_files_count > reserve ? ring->free_files_count - reserve : 0;
    return clients < files ? clients : files;
}

static bool has_room(const struct net *net)
{
    return room(net) > 0;
}

enum { ROOM_FOR_MULTISHOT = 256, HANDOVER_MARGIN = 64, HELD_MAX_MS = 5000, REST_MAX = 4096 };

static void arm(struct net *net, struct listener *listener)
{
    if (listener->is_armed || listener->state != LISTENER_ACCEPTING)
        return;
    struct io_uring_sqe *sqe = ring_sqe(&net->core->ring);
    /* A multishot accept goes on by itself for some time after the last place is taken: near that, one at a time, so that who does not fit waits in the kernel's queue instead of being closed. */
    if (net->core->ring.features.multishot_accept && room(net) > ROOM_FOR_MULTISHOT)
        io_uring_prep_multishot_accept(sqe, listener->fd, NULL, NULL, SOCK_CLOEXEC);
    else
        io_uring_prep_accept(sqe, listener->fd, NULL, NULL, SOCK_CLOEXEC);
    io_uring_sqe_set_data64(sqe, ring_user_data_plain(RING_OP_ACCEPT, listener->index));
    listener->is_armed = true;
}

static void disarm(struct net *net, struct listener *listener)
{
    if (!listener->is_armed)
        return;
    struct io_uring_sqe *sqe = ring_sqe(&net->core->ring);
    io_uring_prep_cancel64(sqe, ring_user_data_plain(RING_OP_ACCEPT, listener->index), 0);
    io_uring_sqe_set_data64(sqe, ring_user_data_plain(RING_OP_NONE, 0));
}

static void pause_accepting(struct net *net, struct listener *listener)
{
    if (listener->state != LISTENER_ACCEPTING)
        return;
    listener->state = LISTENER_PAUSED;
    metric_add(net->core->metrics, METRIC_accept_pauses_total, 1);
    disarm(net, listener);
}

/* Of two data cores, this one and another drawn at random, the one with fewer clients. */
static uint32_t choose_core(struct net *net)
{
    struct core *core = net->core;
    uint32_t cores = core->shared->data_cores;
    if (cores < 2 || net->is_draining)
        return core->id;
    uint32_t other = (core->id + 1 + rng_below(&core->rng, cores - 1)) % cores;
    uint64_t own_count = net->clients.live_count;
    uint64_t other_count = metric_read(core->shared->peers[other].metrics, METRIC_clients);
    return other_count < own_count && other_count + HANDOVER_MARGIN < core->config->limits.clients_per_core ? other : core->id;
}

static bool hand_over(struct net *net, uint32_t peer, int fd, uint16_t listener)
{
    struct msg *msg = mailbox_reserve(net->core->mailbox, peer, CLASS_CONTROL);
    if (msg == NULL)
        return false;
    struct msg_conn body = {.fd = fd, .listener = listener};
    msg->kind = MSG_CONN;
    memcpy(msg->body, &body, sizeof(body));
    metric_add(net->core->metrics, METRIC_handovers_total, 1);
    return true;
}

void listener_adopt(struct net *net, int fd, uint16_t listener)
{
    struct ring_file file = {.number = -1};
    struct core *core = net->core;
    struct socket_endpoint peer;
    struct socket_endpoint local;
    if (!has_room(net)) {
        close(fd);
        metric_add(core->metrics, METRIC_accept_errors_total, 1);
        return;
    }
    socket_endpoints(fd, &peer, &local);
    if (ring_install(&core->ring, fd, &file) != STATUS_OK) {
        metric_add(core->metrics, METRIC_accept_errors_total, 1);
        return;
    }
    struct client *client = client_open(net, file, listener);
    ZG_CHECK(client != NULL);
    client->peer = peer;
    client->local = local;
}

static void on_accept(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    struct net *net = core->net;
    struct listener *listener = &net->listeners[(uint32_t)user_data];
    if ((flags & IORING_CQE_F_MORE) == 0)
        listener->is_armed = false;
    if (result >= 0) {
        metric_add(core->metrics, METRIC_accepts_total, 1);
        socket_prepare_accepted(result);
        uint32_t target = listener->is_own ? core->id : choose_core(net);
        if (target == core->id || !hand_over(net, target, result, listener->index))
            listener_adopt(net, result, listener->index);
        if (!has_room(net))
            pause_accepting(net, listener);
        else if (listener->is_armed && room(net) <= ROOM_FOR_MULTISHOT)
            disarm(net, listener); /* its end arms a single one */
    } else if (result != -ECANCELED && result != -EINTR && result != -EAGAIN && result != -ECONNABORTED) {
        metric_add(core->metrics, METRIC_accept_errors_total, 1);
        core_log(core, LOG_WARNING, "accept_failed", "listener=%s error=\"%s\"", listener->config->address, strerror(-result));
        pause_accepting(net, listener);
    }
    arm(net, listener);
}

static bool is_unix(const struct config_listener *config)
{
    return strncmp(config->address, "unix:", 5) == 0;
}

/* Sets what a listener is; it is still closed. */
static void init_listener(struct net *net, uint32_t index, const struct config_listener *listener_config)
{
    const struct config *config = net->core->config;
    struct listener *listener = &net->listeners[index];
    struct config_address address;
    char error[128];
    enum config_present present = listener_config->present;
    listener->index = (uint16_t)index;
    listener->config = listener_config;
    listener->presents_cluster = present == PRESENT_CLUSTER || (present == PRESENT_AUTO && config->backend.kind == BACKEND_CLUSTER);
    listener->is_own = index >= config->listeners_count;
    listener->fd = -1;
    if (!is_unix(listener_config) && address_parse(listener_config->address, false, &address, error, sizeof(error)) == STATUS_OK)
        listener->base_port = address.port;
}

static enum status open_listener(struct net *net, struct listener *listener, char *error, size_t error_bytes)
{
    char text[CONFIG_TEXT_MAX + 16];
    if (is_unix(listener->config) && net->core->id != 0)
        return STATUS_OK;
    const char *address = listener->config->address;
    if (listener->is_own) {
        const char *port = strrchr(address, ':');
        ZG_CHECK(port != NULL);
        (void)snprintf(text, sizeof(text), "%.*s:%u", (int)(port - address), address, listener->base_port + 1 + net->core->id);
        address = text;
    }
    listener->fd = socket_listen(address, error, error_bytes);
    if (listener->fd < 0)
        return STATUS_SYSTEM;
    listener->state = LISTENER_ACCEPTING;
    arm(net, listener);
    return STATUS_OK;
}

enum status listeners_open(struct net *net, const int *handed_over, char *error, size_t error_bytes)
{
    const struct config *config = net->core->config;
    net->core->completions[RING_OP_ACCEPT] = on_accept;
    net->listeners = alloc_zeroed(2 * CONFIG_LISTENERS_MAX * sizeof(*net->listeners));
    net->listeners_count = 2 * config->listeners_count;
    for (uint32_t i = 0; i < net->listeners_count; i++) {
        const struct config_listener *listener_config = &config->listeners[i % config->listeners_count];
        init_listener(net, i, listener_config);
        if (net->listeners[i].is_own && !listener_config->port_per_core)
            continue;
        /* Ports of cores are never handed over: another process may have another number of cores. */
        if (handed_over != NULL && i < config->listeners_count && handed_over[i] >= 0) {
            net->listeners[i].fd = handed_over[i];
            net->listeners[i].is_handed_over = true;
            net->listeners[i].state = LISTENER_HELD;
            continue;
        }
        enum status status = open_listener(net, &net->listeners[i], error, error_bytes);
        if (status != STATUS_OK) {
            listeners_close(net);
            return status;
        }
    }
    net->held_until_ms = net->core->now_ms + HELD_MAX_MS;
    return STATUS_OK;
}

void listeners_begin(struct net *net)
{
    for (uint32_t i = 0; i < net->listeners_count; i++) {
        struct listener *listener = &net->listeners[i];
        if (listener->state != LISTENER_HELD)
            continue;
        listener->state = LISTENER_ACCEPTING;
        arm(net, listener);
    }
}

/* The socket is about to be closed: who has connected to it already is served as far as a drain goes. */
static void take_rest(struct net *net, struct listener *listener)
{
    int flags = fcntl(listener->fd, F_GETFL);
    if (flags < 0 || fcntl(listener->fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return;
    for (int i = 0; i < REST_MAX && has_room(net); i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return;
        metric_add(net->core->metrics, METRIC_accepts_total, 1);
        socket_prepare_accepted(fd);
        listener_adopt(net, fd, listener->index);
    }
}

void listeners_close(struct net *net)
{
    for (uint32_t i = 0; i < net->listeners_count; i++) {
        struct listener *listener = &net->listeners[i];
        if (listener->state == LISTENER_CLOSED)
            continue;
        disarm(net, listener);
        listener->state = LISTENER_CLOSED;
        ring_submit(&net->core->ring);
        if (listener->is_handed_over)
            continue;
        take_rest(net, listener);
        close(listener->fd);
        if (is_unix(listener->config))
            (void)unlink(listener->config->address + 5);
        listener->fd = -1;
    }
}

bool listeners_are_closed(const struct net *net)
{
    for (uint32_t i = 0; i < net->listeners_count; i++)
        if (net->listeners[i].state != LISTENER_CLOSED || net->listeners[i].is_armed)
            return false;
    return true;
}

void listeners_retry(struct net *net)
{
    if (!has_room(net))
        return;
    for (uint32_t i = 0; i < net->listeners_count; i++) {
        struct listener *listener = &net->listeners[i];
        if (listener->state != LISTENER_PAUSED)
            continue;
        listener->state = LISTENER_ACCEPTING;
        arm(net, listener);
    }
}

bool net_listener_presents_cluster(const struct net *net, uint16_t index)
{
    return net->listeners[index].presents_cluster;
}
