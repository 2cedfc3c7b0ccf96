/*
 * Owns: the account of one core. Runs on: that core.
 */
#include "net/account.h"

#include "net/client.h"
#include "net/net.h"

enum { WALK_MAX = 4096 /* clients looked at in one tick */, SHARE_OF_LARGEST = 4 /* who holds a quarter of what the largest does is paused too */ };

uint64_t account_client_bytes(const struct client *client)
{
    uint64_t input = client->input != NULL ? client->input->user : 0;
    return sizeof(*client) + input + client->held_bytes + client->conn.out.bytes + (uint64_t)client->inflight * sizeof(struct request);
}

void account_command(struct net *net, struct client *client, uint32_t bytes)
{
    client->held_bytes += bytes;
    net->account.commands += bytes;
}

void account_reply_kept(struct net *net, struct client *client, uint32_t bytes)
{
    client->held_bytes += bytes;
    net->account.replies += bytes;
}

void account_reply_left(struct net *net, struct client *client, uint32_t bytes)
{
    ZG_CHECK(client->held_bytes >= bytes && net->account.replies >= bytes);
    client->held_bytes -= bytes;
    net->account.replies -= bytes;
}

void account_request_left(struct net *net, struct client *client, const struct request *request)
{
    uint32_t bytes = request->leg.length;
    ZG_CHECK(client->held_bytes >= bytes && net->account.commands >= bytes);
    client->held_bytes -= bytes;
    net->account.commands -= bytes;
}

static void publish(const struct net *net)
{
    struct metrics *metrics = net->core->metrics;
    metric_set(metrics, METRIC_arena_bytes, arena_bytes_held(net->core->arena));
    metric_set(metrics, METRIC_memory_input_bytes, net->account.input);
    metric_set(metrics, METRIC_memory_commands_bytes, net->account.commands);
    metric_set(metrics, METRIC_memory_replies_bytes, net->account.replies);
    metric_set(metrics, METRIC_memory_output_bytes, net->account.output);
}

static struct memory_view look(const struct net *net)
{
    const struct core *core = net->core;
    struct memory_view view = {.limit = net->account.limit, .arena_max = core->config->limits.arena_bytes_per_core, .now_ms = core->now_ms};
    for (uint32_t i = 0; i < core->shared->data_cores; i++) {
        const struct metrics *metrics = i == core->id ? core->metrics : core->shared->peers[i].metrics;
        uint64_t held = metric_read(metrics, METRIC_arena_bytes);
        uint64_t largest = metric_read(metrics, METRIC_largest_client_bytes);
        view.used += held;
        view.fullest_arena = held > view.fullest_arena ? held : view.fullest_arena;
        view.closes += metric_read(metrics, METRIC_clients_closed_memory_total);
        if (i != core->id && largest > view.others_largest)
            view.others_largest = largest;
    }
    return view;
}

/* Looks at the next clients, each in its turn, for the one that holds the most; pauses those near it, or wakes whoever is paused. */
static struct client *walk(struct net *net, bool pauses, uint64_t *largest_bytes)
{
    struct client *largest = pool_resolve(&net->clients, net->account.largest);
    *largest_bytes = largest != NULL && conn_is_open(&largest->conn) ? account_client_bytes(largest) : 0;
    uint64_t share = *largest_bytes / SHARE_OF_LARGEST > MEMORY_CONSUMER_MIN ? *largest_bytes / SHARE_OF_LARGEST : MEMORY_CONSUMER_MIN;
    uint32_t count = net->clients.live_count < WALK_MAX ? net->clients.live_count : WALK_MAX;
    for (uint32_t i = 0; i < count && !list_is_empty(&net->clients_all); i++) {
        struct list_node *node = list_pop_front(&net->clients_all);
        list_push_back(&net->clients_all, node);
        struct client *client = LIST_ENTRY(node, struct client, all);
        uint64_t bytes = account_client_bytes(client);
        if (bytes > *largest_bytes) {
            largest = client;
            *largest_bytes = bytes;
        }
        if (!pauses) {
            client_wake(net, client, PAUSE_MEMORY);
        } else if (bytes >= share && (client->pause & PAUSE_MEMORY) == 0) {
            client_pause(net, client, PAUSE_MEMORY);
            metric_add(net->core->metrics, METRIC_clients_paused_memory_total, 1);
            conn_pause(net->core, &client->conn);
        }
    }
    net->account.largest = largest != NULL ? pool_handle_of(&largest->conn.item) : (struct pool_handle){0};
    return *largest_bytes > 0 ? largest : NULL;
}

bool account_tick(struct net *net)
{
    struct account *account = &net->account;
    struct metrics *metrics = net->core->metrics;
    publish(net);
    struct memory_view view = look(net);
    if (view.used < view.limit / 2 && view.fullest_arena < view.arena_max / 2 && !account->state.is_pausing && account->paused_count == 0) {
        metric_set(metrics, METRIC_largest_client_bytes, 0);
        return false;
    }
    struct client *largest = walk(net, account->state.is_pausing, &view.own_largest);
    metric_set(metrics, METRIC_largest_client_bytes, view.own_largest);
    if (memory_decide(&account->state, &view) == MEMORY_CLOSE && largest != NULL) {
        metric_add(metrics, METRIC_clients_closed_memory_total, 1);
        metric_set(metrics, METRIC_largest_client_bytes, 0);
        account->largest = (struct pool_handle){0};
        conn_close(net->core, &largest->conn, CLOSE_MEMORY);
    }
    return true;
}
