/*
 * Owns: one data core, put together from core/, net/ and shard/. Runs on: its own thread.
 *
 * Messages go to whom they concern, hooks and timers call the parts in a fixed order. To read on: shard/dispatch.c.
 */
#include "core/boot/worker.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/address.h"
#include "core/alloc.h"
#include "core/boot/info.h"
#include "net/client.h"
#include "net/drain.h"
#include "net/listener.h"
#include "shard/local.h"

/* QUIET and SLOW are steps of timer_aligned_ms. */
enum { TICK_BUSY_MS = 10, TICK_IDLE_MS = 100, TICK_QUIET_MS = 256, TICK_SLOW_MS = 1024, POOL_TRIM_SECONDS = 5 };

static struct worker *worker_of(const struct core *core)
{
    return core->context;
}

/* ---- what a session asks for ---- */

/* Where the client at work finds this gateway: what its listener announces, else the address it dialled. False: it dialled a unix socket. */
static bool find_endpoint(struct net *net, char *host, size_t host_bytes, uint16_t *port)
{
    const struct client *client = net->current;
    const char *announced = net->listeners[client->listener].config->announce;
    struct config_address announce;
    char error[128];
    *port = client->local.port;
    socket_endpoint_host(&client->local, host, host_bytes);
    if (announced[0] != '\0' && address_parse(announced, false, &announce, error, sizeof(error)) == STATUS_OK) {
        (void)snprintf(host, host_bytes, "%s", announce.host);
        *port = announce.port;
    }
    return host[0] != '\0';
}

/* Clients divide what they are told at its colon: an IPv6 address would send them astray. */
static bool client_endpoint(void *context, char *text)
{
    char host[CONFIG_TEXT_MAX];
    uint16_t port;
    if (!find_endpoint(context, host, sizeof(host), &port) || strchr(host, ':') != NULL)
        return false;
    (void)snprintf(text, SESSION_ENDPOINT_MAX, "%s:%u", host, port);
    return true;
}

static void cluster_command(void *context, const struct session *session, const struct command *command, const struct command_args *args, struct resp_writer *writer)
{
    struct net *net = context;
    const struct listener *listener = &net->listeners[net->current->listener];
    char host[CONFIG_TEXT_MAX];
    struct local_view view = {
        .topology = worker_of(net->core)->dispatcher.topology,
        .presents_cluster = listener->presents_cluster,
        .announce_host = host,
        .cores_count = listener->config->port_per_core ? net->core->shared->data_cores : 0,
        .core = net->core->id,
    };
    (void)find_endpoint(net, host, sizeof(host), &view.announce_port);
    /* The client may have dialled a core's own port: those of all cores follow from the listener's. */
    if (view.cores_count > 0 && listener->config->announce[0] == '\0')
        view.announce_port = listener->base_port;
    local_cluster_command(&view, session, command, args, writer);
}

static void client_addresses(void *context, char *peer, char *local, uint32_t bytes)
{
    struct net *net = context;
    const struct client *client = net->current;
    const char *address = net->listeners[client->listener].config->address;
    const char *path = strncmp(address, "unix:", 5) == 0 ? address + 5 : "";
    socket_endpoint_format(&client->peer, path, peer, bytes);
    socket_endpoint_format(&client->local, path, local, bytes);
}

static void client_memory(void *context, struct session_memory *memory)
{
    const struct client *client = ((const struct net *)context)->current;
    const struct block *input = client->input;
    *memory = (struct session_memory){
        .qbuf = input != NULL ? input->length - input->offset : 0,
        .qbuf_free = input != NULL && input->user > input->length ? input->user - input->length : 0,
        .oll = client->conn.out.blocks,
        .omem = client->conn.out.bytes,
        .total = account_client_bytes(client),
    };
}

static void info_section(void *context, const char *section, struct resp_writer *text)
{
    struct net *net = context;
    const struct worker *worker = worker_of(net->core);
    info_write_section(worker->process, &net->core->shared->peers[0], section, net->core->now_ns, text);
}

static const uint8_t *command_reply(void *context, uint8_t protocol, bool docs, uint32_t *length)
{
    struct net *net = context;
    const struct published *published = worker_of(net->core)->published;
    if (published == NULL)
        return NULL;
    const struct raw_reply *raw = docs ? &published->facts->docs[protocol == 3] : &published->facts->command[protocol == 3];
    *length = raw->length;
    return raw->bytes;
}

/* ---- hooks of the loop ---- */

static void begin_drain(struct worker *worker, const struct msg *msg)
{
    struct net *net = worker->core.net;
    struct msg_drain body;
    memcpy(&body, msg->body, sizeof(body));
    if (net->is_draining)
        return;
    worker->drain_deadline_ms = worker->core.now_ms + worker->core.config->drain_timeout_ns / 1000000;
    drain_begin(net, body.sequence);
    listeners_close(net);
    timer_set(&worker->core.wheel, &worker->tick, worker->core.now_ms);
}

static void on_message(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct core *core = context;
    struct worker *worker = worker_of(core);
    switch ((enum msg_kind)msg->kind) {
    case MSG_LEG:
    case MSG_REPLY:
        dispatcher_message(&worker->dispatcher, from, msg, bytes);
        return;
    case MSG_SNAPSHOT: {
        struct msg_snapshot body;
        memcpy(&body, msg->body, sizeof(body));
        worker->published = body.published;
        net_set_commands(core->net, body.published->facts->commands);
        adopt_topology(&worker->dispatcher, body.published->topology);
        if (!worker->is_serving)
            atomic_fetch_add(&worker->process->serving_count, 1);
        worker->is_serving = true;
        return;
    }
    case MSG_CONN: {
        struct msg_conn body;
        memcpy(&body, msg->body, sizeof(body));
        listener_adopt(core->net, body.fd, body.listener);
        return;
    }
    case MSG_HEALTH: {
        struct msg_health body;
        memcpy(&body, msg->body, sizeof(body));
        dispatcher_node_health(&worker->dispatcher, body.node_key, body.is_down);
        return;
    }
    case MSG_DRAIN:
        begin_drain(worker, msg);
        return;
    case MSG_NONE:
    case MSG_RETURN:
    case MSG_ACK:
    case MSG_REFRESH:
    case MSG_DOUBT:
    case MSG_KIND_COUNT:
        break;
    }
    ZG_UNREACHABLE();
}

/* The first request after a quiet time needs ticks, for its time-out among others. */
static void end_quiet(struct worker *worker)
{
    worker->is_quiet = false;
    if (worker->tick.expires_ms > worker->core.now_ms + TICK_IDLE_MS)
        timer_set(&worker->core.wheel, &worker->tick, worker->core.now_ms + TICK_IDLE_MS);
}

static void flush(struct core *core)
{
    struct worker *worker = worker_of(core);
    if (worker->is_quiet && (!dispatcher_is_idle(&worker->dispatcher) || account_is_watched(&core->net->account)))
        end_quiet(worker);
    dispatcher_flush(&worker->dispatcher);
    net_flush(core->net);
}

static void release(struct core *core)
{
    net_release(core->net);
}

static bool is_busy(const struct core *core)
{
    return !list_is_empty(&core->net->dirty);
}

static bool is_finished(const struct core *core)
{
    return core->net->clients.live_count == 0 && core->net->links.live_count == 0;
}

static const struct core_hooks hooks = {
    .message = on_message,
    .flush = flush,
    .release = release,
    .is_busy = is_busy,
    .is_finished = is_finished,
};

/* ---- timers ---- */

/*
 * No connection comes any more, from the kernel or from another core. Each step takes a tick of its own: what a core accepted last is handed over at the end of that iteration, before it counts itself in
 * the next tick; and a core that sees all counted takes the messages that were sent until then before its next tick.
 */
static bool is_settled(struct worker *worker)
{
    struct process *process = worker->process;
    switch (worker->settling) {
    case SETTLING_ACCEPTING:
        worker->settling = listeners_are_closed(worker->core.net) ? SETTLING_CLOSED : SETTLING_ACCEPTING;
        return false;
    case SETTLING_CLOSED:
        atomic_fetch_add(&process->closed_count, 1);
        worker->settling = SETTLING_COUNTED;
        return false;
    case SETTLING_COUNTED:
        worker->settling = atomic_load(&process->closed_count) == process->shared.data_cores ? SETTLING_DONE : SETTLING_COUNTED;
        return false;
    case SETTLING_DONE:
        return true;
    }
    ZG_UNREACHABLE();
}

static void drain_clients(struct worker *worker)
{
    struct net *net = worker->core.net;
    bool is_late = worker->core.now_ms >= worker->drain_deadline_ms;
    drain_tick(net, is_late);
    if (!is_settled(worker))
        return;
    if (net->clients.live_count > 0 || (!dispatcher_is_idle(&worker->dispatcher) && !is_late))
        return;
    if (!worker->is_drained) {
        worker->is_drained = true;
        atomic_fetch_add(&worker->process->drained_count, 1);
    }
    /* Links stay until no core has clients: their legs may still need this one. */
    if (atomic_load(&worker->process->drained_count) == worker->process->shared.data_cores) {
        link_pool_close_all(&worker->dispatcher.links);
        worker->core.is_stopping = true;
    }
}

static void on_tick(struct timer *timer, void *context)
{
    struct worker *worker = context;
    struct core *core = &worker->core;
    struct net *net = core->net;
    request_expire(net);
    dispatcher_tick(&worker->dispatcher);
    /* Handed-over sockets have their connections wait until every core can serve: a connection or a leg may go to any of them. */
    bool all_serve = atomic_load_explicit(&worker->process->serving_count, memory_order_relaxed) == worker->process->shared.data_cores;
    bool is_held = !all_serve && core->now_ms < net->held_until_ms;
    if (net->is_draining) {
        drain_clients(worker);
    } else {
        if (!is_held)
            listeners_begin(net);
        listeners_retry(net);
    }
    metric_set(core->metrics, METRIC_requests_inflight, net->requests.live_count);
    bool is_scarce = account_tick(net);
    worker->is_quiet = dispatcher_is_idle(&worker->dispatcher) && !net->is_draining && !is_held && !is_scarce && !account_is_watched(&net->account);
    timer_set(&core->wheel, timer, worker->is_quiet ? timer_aligned_ms(core->now_ms, TICK_QUIET_MS) : core->now_ms + TICK_BUSY_MS);
}

/* A trim looks at every free object, so not every second, unless the last one found something to give back. */
static void trim_pools(struct worker *worker)
{
    struct net *net = worker->core.net;
    struct pool *pools[] = {&net->clients, &net->links, &net->requests, &net->legs, &worker->dispatcher.splits, &worker->dispatcher.subsplits};
    uint32_t released = 0;
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++)
        released += pool_trim(pools[i]);
    worker->is_trimming = released > 0;
    if (released > 0)
        alloc_collect();
}

static void on_tick_slow(struct timer *timer, void *context)
{
    struct worker *worker = context;
    struct core *core = &worker->core;
    dispatcher_tick_slow(&worker->dispatcher);
    (void)arena_trim(core->arena);
    if (worker->is_trimming || core->now_ms / 1000 % POOL_TRIM_SECONDS == 0)
        trim_pools(worker);
    metric_set(core->metrics, METRIC_log_dropped_total, log_ring_dropped(core->log));
    timer_set(&core->wheel, timer, timer_aligned_ms(core->now_ms, TICK_SLOW_MS));
}

/* ---- life ---- */

static enum status open_worker(struct worker *worker)
{
    struct core *core = &worker->core;
    struct process *process = worker->process;
    core->context = worker;
    core->hooks = &hooks;
    enum status status = core_open(core, core->id, process->config, &process->shared, worker->error, sizeof(worker->error));
    if (status != STATUS_OK)
        return status;
    net_open(core, &dispatcher_net_ops, &worker->dispatcher, process->config->limits.clients_per_core);
    struct net *net = core->net;
    net_set_commands(net, process->builtin_commands);
    net->request_ops = (struct request_ops){
        .cluster_command = cluster_command,
        .info_section = info_section,
        .client_addresses = client_addresses,
        .client_memory = client_memory,
        .client_list = info_client_list,
        .command_reply = command_reply,
        .client_endpoint = client_endpoint,
    };
    dispatcher_init(&worker->dispatcher, core, net);
    process->loads[core->id] = worker->dispatcher.load;
    timer_init(&worker->tick, on_tick, worker);
    timer_init(&worker->tick_slow, on_tick_slow, worker);
    timer_set(&core->wheel, &worker->tick, core->now_ms + TICK_BUSY_MS);
    timer_set(&core->wheel, &worker->tick_slow, core->now_ms + TICK_SLOW_MS);
    status = listeners_open(net, process->activation.fds, worker->error, sizeof(worker->error));
    return status;
}

void worker_run(void *context)
{
    struct worker *worker = context;
    struct process *process = worker->process;
    bool is_open = open_worker(worker) == STATUS_OK;
    if (!is_open)
        atomic_fetch_add(&process->failed_count, 1);
    pthread_barrier_wait(&process->opened);
    /* One core that cannot run ends the process: main says why. */
    if (atomic_load(&process->failed_count) > 0)
        return;
    core_run(&worker->core);
    atomic_fetch_add(&process->finished_count, 1);
}

void worker_release(struct worker *worker)
{
    struct core *core = &worker->core;
    /* What a late drain left behind goes with the process. */
    if (core->net == NULL || !dispatcher_is_idle(&worker->dispatcher) || core->net->links.live_count > 0 || core->net->clients.live_count > 0)
        return;
    dispatcher_fini(&worker->dispatcher);
    net_close(core);
    core_close(core);
}
