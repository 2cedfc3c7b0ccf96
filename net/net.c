/*
 * Owns: the net state of one core, and the two hooks that end an iteration. Runs on: that core.
 */
#include "net/net.h"

#include <string.h>

#include "core/alloc.h"
#include "net/client.h"
#include "net/drain.h"
#include "net/link.h"

enum { REQUESTS_RESERVE = 4096, LEGS_RESERVE = 2048 };

static void init_scanner(struct net *net, const struct config *config)
{
    struct resp_limits limits = {
        .args_max = 1024 * 1024,
        .bulk_max = (uint32_t)config->use_case.max_value_bytes,
        .inline_max = 64 * 1024,
        .request_max = (uint32_t)config->limits.request_max_bytes,
    };
    resp_command_scanner_init(&net->scanner, &limits);
}

void net_open(struct core *core, const struct net_ops *ops, void *owner, uint32_t clients_max)
{
    const struct config *config = core->config;
    struct net *net = alloc_zeroed(sizeof(*net));
    net->core = core;
    net->ops = ops;
    net->owner = owner;
    core->net = net;
    bool has_clients = clients_max > 0;
    uint64_t lane_legs = (uint64_t)config->cores.lane_slots * core->shared->cores_count;
    pool_init(&net->clients, "clients", sizeof(struct client), has_clients ? clients_max : 1);
    pool_init(&net->links, "links", sizeof(struct link), config->limits.links_per_core);
    pool_init(&net->requests, "requests", sizeof(struct request), has_clients ? config->limits.requests_per_core : 1);
    if (has_clients)
        pool_reserve(&net->requests, config->limits.requests_per_core < REQUESTS_RESERVE ? config->limits.requests_per_core : REQUESTS_RESERVE);
    /* Legs of other cores are bounded by their credits, and always find room; those that this core begins itself have the rest: net_own_leg. */
    uint64_t legs_max = lane_legs + config->limits.requests_per_core;
    pool_init(&net->legs, "legs", sizeof(struct leg), legs_max < (1u << 24) ? (uint32_t)legs_max : (1u << 24));
    if (has_clients)
        pool_reserve(&net->legs, net->legs.objects_max < LEGS_RESERVE ? net->legs.objects_max : LEGS_RESERVE);
    net->own_legs_max = net->legs.objects_max - (uint32_t)lane_legs;
    list_init(&net->dirty);
    list_init(&net->released);
    list_init(&net->deadlines);
    list_init(&net->clients_all);
    net->account.limit = config->limits.memory_bytes != 0 ? config->limits.memory_bytes : memory_limit_default();
    init_scanner(net, config);
    resp_writer_init(&net->writer, 2);
    resp_writer_init(&net->inline_writer, 2);
    net->send_slots = alloc_zeroed(NET_SEND_SLOTS * sizeof(*net->send_slots));
    net->next_client_id = 1;
    net->session_env.context = net;
    net->session_env.ops = &net->request_ops;
    conn_setup(core);
}

void net_set_commands(struct net *net, const struct command_table *commands)
{
    net->session_env.commands = commands;
    net->last_command = NULL;
    net->last_name_length = 0;
}

void net_close(struct core *core)
{
    struct net *net = core->net;
    resp_command_scanner_fini(&net->scanner);
    resp_writer_fini(&net->writer);
    resp_writer_fini(&net->inline_writer);
    pool_fini(&net->clients);
    pool_fini(&net->links);
    pool_fini(&net->requests);
    pool_fini(&net->legs);
    alloc_free(net->listeners);
    alloc_free(net->send_slots);
    alloc_free(net);
    core->net = NULL;
}

struct leg *net_own_leg(struct net *net)
{
    return net->legs.live_count < net->own_legs_max ? pool_get(&net->legs) : NULL;
}

static void count_send(struct net *net, const struct conn *conn)
{
    struct metrics *metrics = net->core->metrics;
    bool is_link = conn->kind == CONN_LINK;
    metric_add(metrics, is_link ? METRIC_link_sends_total : METRIC_client_sends_total, 1);
    metric_add(metrics, is_link ? METRIC_bytes_to_backends_total : METRIC_bytes_to_clients_total, conn->out.bytes);
}

void net_flush(struct net *net)
{
    if (io_uring_sq_ready(&net->core->ring.uring) == 0)
        net->send_slots_used = 0;
    request_flush_latency(net);
    struct list_node *node;
    while ((node = list_pop_front(&net->dirty)) != NULL) {
        struct conn *conn = LIST_ENTRY(node, struct conn, flush_node);
        if (__builtin_expect(net->is_draining, 0) && conn->kind == CONN_CLIENT)
            drain_before_send(net, client_of_conn(conn));
        /* A send in flight carries on: its completion marks the connection dirty again. */
        if (conn->state != CONN_OPEN || (conn->flags & CONN_SENDING) != 0 || conn->out.head == NULL)
            continue;
        count_send(net, conn);
        conn->transport->send(net->core, conn);
    }
}

void net_release(struct net *net)
{
    struct list_node *node;
    while ((node = list_pop_front(&net->released)) != NULL) {
        struct conn *conn = LIST_ENTRY(node, struct conn, flush_node);
        conn->ops->on_released(net->core, conn);
    }
}
