/*
 * Owns: what becomes of each client of a core while the gateway drains. Runs on: that core.
 */
#include "net/drain.h"

#include "net/client.h"
#include "net/net.h"

enum drain_action drain_decide(const struct drain_view *view)
{
    if (view->is_late)
        return DRAIN_CLOSE;
    if (view->is_finishing)
        return view->lingered_ms >= DRAIN_LINGER_MS ? DRAIN_CLOSE : DRAIN_SERVE;
    uint64_t served_ms = view->was_told ? view->grace_ms : 0;
    if (view->elapsed_ms < served_ms)
        return DRAIN_SERVE;
    bool is_over = view->elapsed_ms >= served_ms + DRAIN_QUIET_MS;
    if (view->has_requests || view->has_input)
        return is_over ? DRAIN_STOP_READING : DRAIN_SERVE;
    return view->is_replying || view->quiet_ms >= DRAIN_QUIET_MS || is_over ? DRAIN_FINISH : DRAIN_SERVE;
}

static uint64_t grace_ms(const struct net *net)
{
    const struct config *config = net->core->config;
    return (config->drain_grace_ns < config->drain_timeout_ns ? config->drain_grace_ns : config->drain_timeout_ns) / 1000000;
}

static uint64_t since_ms(const struct net *net, uint64_t then_ms)
{
    return net->core->now_ms > then_ms ? net->core->now_ms - then_ms : 0;
}

/* How long ago FIN was sent; the clock starts when this is asked for the first time after that. */
static uint64_t lingered_ms(const struct net *net, struct client *client)
{
    uint32_t now_ms = (uint32_t)net->core->now_ms;
    if ((client->conn.flags & CONN_SHUT) == 0)
        return 0;
    if ((client->drain & DRAIN_LINGERS) == 0) {
        client->drain |= DRAIN_LINGERS;
        client->drain_ms = now_ms;
    }
    return now_ms - client->drain_ms;
}

static void step(struct net *net, struct client *client, bool is_replying, bool is_late)
{
    struct conn *conn = &client->conn;
    if (!conn_is_open(conn))
        return;
    struct drain_view view = {
        .elapsed_ms = since_ms(net, net->drain_began_ms),
        .grace_ms = grace_ms(net),
        .quiet_ms = since_ms(net, client->session.last_command_ms),
        .lingered_ms = lingered_ms(net, client),
        .is_late = is_late,
        .was_told = (client->drain & DRAIN_TOLD) != 0,
        .has_requests = client->inflight > 0,
        .has_input = client->input != NULL,
        .is_replying = is_replying,
        .is_finishing = (conn->flags & CONN_FINISH) != 0,
    };
    switch (drain_decide(&view)) {
    case DRAIN_SERVE:
        return;
    case DRAIN_STOP_READING:
        client_stop_reading(net, client);
        return;
    case DRAIN_FINISH:
        conn_finish(net->core, conn, CLOSE_DRAIN);
        return;
    case DRAIN_CLOSE:
        conn_close(net->core, conn, CLOSE_DRAIN);
        return;
    }
    ZG_UNREACHABLE();
}

/*
 * Source of the form: the maintenance notifications of Redis Enterprise as redis-py 8, node-redis 5 and go-redis 9 read them: MOVING, a number that tells one move from another, seconds until the
 * connection ends, "host:port" or null.
 */
static void tell(struct net *net, struct client *client, int64_t sequence)
{
    char endpoint[SESSION_ENDPOINT_MAX];
    struct resp_writer *writer = &net->writer;
    net->current = client;
    bool has_endpoint = client->session.moving == MOVING_ENDPOINT && net->request_ops.client_endpoint(net, endpoint);
    net->current = NULL;
    resp_writer_reset(writer, 3);
    resp_write_push(writer, 4);
    resp_write_text(writer, "MOVING");
    resp_write_integer(writer, sequence);
    resp_write_integer(writer, (int64_t)((grace_ms(net) + 999) / 1000));
    if (has_endpoint)
        resp_write_text(writer, endpoint);
    else
        resp_write_null(writer);
    client->drain |= DRAIN_TOLD;
    metric_add(net->core->metrics, METRIC_clients_moved_total, 1);
    client_push(net, client, writer);
}

void drain_begin(struct net *net, int64_t sequence)
{
    ZG_CHECK(!net->is_draining);
    net->is_draining = true;
    net->drain_began_ms = net->core->now_ms;
    if (grace_ms(net) == 0)
        return;
    for (struct list_node *node = net->clients_all.next; node != &net->clients_all;) {
        struct client *client = LIST_ENTRY(node, struct client, all);
        node = node->next;
        bool wants = client->session.moving != MOVING_OFF && client->session.protocol == 3;
        /* A push has no place in the middle of a reply: such a client is not told, and drained as those that did not ask. */
        bool is_streaming = client->fifo_head != NULL && (client->fifo_head->flags & REQUEST_STREAM) != 0;
        if (wants && !is_streaming && conn_is_open(&client->conn) && (client->conn.flags & CONN_CLOSE_AFTER_SEND) == 0)
            tell(net, client, sequence);
    }
}

void drain_tick(struct net *net, bool is_late)
{
    for (struct list_node *node = net->clients_all.next; node != &net->clients_all;) {
        struct client *client = LIST_ENTRY(node, struct client, all);
        node = node->next;
        step(net, client, false, is_late);
    }
}

void drain_before_send(struct net *net, struct client *client)
{
    step(net, client, client->conn.out.head != NULL, false);
}
