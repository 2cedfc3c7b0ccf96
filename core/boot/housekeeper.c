/*
 * Owns: the control loops of the process. Runs on: the main thread.
 */
#include "core/boot/housekeeper.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/thread.h"

/* QUIET and SLOW are steps of timer_aligned_ms. */
enum { TICK_MS = 20, TICK_QUIET_MS = 256, TICK_SLOW_MS = 1024, CPUS_LOOK_MS = 240, CPUS_REQUESTS_MIN = 100, READY_MAX_MS = 5000 };

static struct housekeeper *housekeeper_of(const struct core *core)
{
    return core->context;
}

/* ---- snapshots ---- */

static void destroy_published(const void *data)
{
    const struct published *published = data;
    topology_destroy(published->topology);
    alloc_free((void *)(uintptr_t)published);
}

static void send_snapshots(struct housekeeper *housekeeper)
{
    for (uint32_t i = 0; i < housekeeper->process->shared.data_cores; i++) {
        if (housekeeper->unsent_epochs[i] == 0)
            continue;
        struct msg *msg = mailbox_reserve(housekeeper->core.mailbox, i, CLASS_CONTROL);
        if (msg == NULL)
            continue; /* the tick tries again */
        struct msg_snapshot body = {.published = housekeeper->newest};
        msg->kind = MSG_SNAPSHOT;
        memcpy(msg->body, &body, sizeof(body));
        housekeeper->unsent_epochs[i] = 0;
    }
}

static bool publish(void *context, const struct topology *topology)
{
    struct housekeeper *housekeeper = context;
    struct published *published = alloc_zeroed(sizeof(*published));
    published->topology = topology;
    published->facts = &housekeeper->process->facts;
    /* A core that has not been sent the one before must not be told of it any more: it goes straight to this one. */
    if (!snapshot_publish(&housekeeper->publisher, published, topology->epoch)) {
        alloc_free(published);
        return false;
    }
    housekeeper->newest = published;
    for (uint32_t i = 0; i < housekeeper->process->shared.data_cores; i++)
        housekeeper->unsent_epochs[i] = topology->epoch;
    send_snapshots(housekeeper);
    return true;
}

/* ---- hooks of the loop ---- */

static void on_message(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct housekeeper *housekeeper = housekeeper_of(context);
    (void)bytes;
    if (msg->kind == MSG_ACK) {
        struct msg_ack body;
        memcpy(&body, msg->body, sizeof(body));
        (void)snapshot_acknowledge(&housekeeper->publisher, from, body.epoch);
    } else if (msg->kind == MSG_REFRESH) {
        struct msg_refresh body;
        memcpy(&body, msg->body, sizeof(body));
        poller_refresh(&housekeeper->poller, &body);
    } else if (msg->kind == MSG_DOUBT) {
        struct msg_doubt body;
        memcpy(&body, msg->body, sizeof(body));
        health_check_doubt(&housekeeper->poller.health, body.node_key);
    } else {
        ZG_UNREACHABLE();
    }
    /* What was asked for is looked at now. */
    if (msg->kind != MSG_ACK && housekeeper->is_quiet)
        timer_set(&housekeeper->core.wheel, &housekeeper->tick, housekeeper->core.now_ms);
}

static void flush(struct core *core)
{
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
    return core->net->links.live_count == 0;
}

static const struct core_hooks hooks = {
    .message = on_message,
    .flush = flush,
    .release = release,
    .is_busy = is_busy,
    .is_finished = is_finished,
};

/* ---- timers ---- */

/* Bytes written. */
static uint64_t drain_logs(struct housekeeper *housekeeper)
{
    uint64_t drained_bytes = 0;
    for (uint32_t i = 0; i < housekeeper->process->shared.cores_count; i++)
        drained_bytes += log_ring_drain(housekeeper->logs[i], housekeeper->log_fd);
    return drained_bytes;
}

static void look_for_signals(struct housekeeper *housekeeper)
{
    struct signalfd_siginfo info;
    if (read(housekeeper->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    core_log(&housekeeper->core, LOG_NOTICE, "signal", "signal=%u action=drain", info.ssi_signo);
    if (housekeeper->is_draining)
        return;
    housekeeper->is_draining = true;
    /* Seconds of the wall clock: larger than that of the process before, and clients keep it in any kind of integer. */
    housekeeper->drain_sequence = (int64_t)(core_realtime_ns(&housekeeper->core) / 1000000000u);
    notify_stopping(&housekeeper->notify, housekeeper->process->config->drain_timeout_ns);
}

static void drain(struct housekeeper *housekeeper)
{
    struct process *process = housekeeper->process;
    for (uint32_t i = 0; i < process->shared.data_cores; i++) {
        if (housekeeper->drain_sent[i])
            continue;
        struct msg *msg = mailbox_reserve(housekeeper->core.mailbox, i, CLASS_CONTROL);
        if (msg == NULL)
            continue;
        struct msg_drain body = {.sequence = housekeeper->drain_sequence};
        msg->kind = MSG_DRAIN;
        memcpy(msg->body, &body, sizeof(body));
        housekeeper->drain_sent[i] = true;
    }
    if (atomic_load(&process->finished_count) == process->shared.data_cores) {
        link_pool_close_all(&housekeeper->poller.links);
        housekeeper->core.is_stopping = true;
    }
}

/* Nothing under way that a tick would move on, and no traffic either: then a signal, a due poll and log lines may wait a little longer, and an idle process uses next to no CPU. */
static bool is_quiet(const struct housekeeper *housekeeper)
{
    const struct process *process = housekeeper->process;
    for (uint32_t i = 0; i < process->shared.data_cores; i++)
        if (housekeeper->unsent_epochs[i] != 0)
            return false;
    return !housekeeper->is_draining && housekeeper->poller.state == POLLER_IDLE && health_check_is_quiet(&housekeeper->poller.health) && atomic_load_explicit(&process->ops_per_second, memory_order_relaxed) == 0;
}

static uint64_t next_tick_ms(const struct housekeeper *housekeeper)
{
    uint64_t now_ms = housekeeper->core.now_ms, poll_ms = housekeeper->poller.next_ms;
    uint64_t quiet_ms = timer_aligned_ms(now_ms, TICK_QUIET_MS), soon_ms = now_ms + TICK_MS;
    if (!housekeeper->is_quiet || poll_ms <= soon_ms)
        return soon_ms;
    return poll_ms < quiet_ms ? poll_ms : quiet_ms;
}

static uint64_t requests_total(const struct process *process)
{
    uint64_t requests = 0;
    for (uint32_t i = 0; i < process->shared.data_cores; i++)
        requests += metric_read(process->shared.peers[i].metrics, METRIC_requests_total);
    return requests;
}

/* How busy the CPUs are, for the cores' wait controllers; not looked for while next to nothing is asked, so that an idle process stays idle. */
static void look_at_cpus(struct housekeeper *housekeeper)
{
    struct core *core = &housekeeper->core;
    if (core->now_ms < housekeeper->cpus_looked_ms + CPUS_LOOK_MS)
        return;
    uint64_t requests = requests_total(housekeeper->process);
    bool has_load = requests - housekeeper->cpus_requests >= CPUS_REQUESTS_MIN;
    housekeeper->cpus_looked_ms = core->now_ms;
    housekeeper->cpus_requests = requests;
    metric_set(core->metrics, METRIC_cpus_busy_permille, has_load ? cpu_usage_permille(&housekeeper->cpu_usage) : 0);
}

/* Every data core has been sent a topology; or there is none to be had, which is no reason to hold up the start of the host. */
static void tell_ready(struct housekeeper *housekeeper)
{
    bool is_serving = housekeeper->newest != NULL;
    for (uint32_t i = 0; i < housekeeper->process->shared.data_cores; i++)
        is_serving = is_serving && housekeeper->unsent_epochs[i] == 0;
    enum told wanted = is_serving ? TOLD_SERVING : housekeeper->core.now_ms >= housekeeper->ready_deadline_ms ? TOLD_LISTENING
                                                                                                              : TOLD_NOTHING;
    if (wanted > housekeeper->told && notify_ready(&housekeeper->notify, wanted == TOLD_SERVING))
        housekeeper->told = wanted;
}

static void on_tick(struct timer *timer, void *context)
{
    struct housekeeper *housekeeper = context;
    struct core *core = &housekeeper->core;
    look_for_signals(housekeeper);
    send_snapshots(housekeeper);
    if (housekeeper->is_draining) {
        drain(housekeeper);
    } else {
        poller_tick(&housekeeper->poller);
        tell_ready(housekeeper);
        owners_tick(&housekeeper->owners);
    }
    if (core->config->cores.wait.mode == WAIT_AUTO)
        look_at_cpus(housekeeper);
    housekeeper->is_quiet = drain_logs(housekeeper) == 0 && is_quiet(housekeeper);
    timer_set(&core->wheel, timer, next_tick_ms(housekeeper));
}

static void on_tick_slow(struct timer *timer, void *context)
{
    struct housekeeper *housekeeper = context;
    struct process *process = housekeeper->process;
    uint64_t requests = requests_total(process), now_ms = housekeeper->core.now_ms;
    uint64_t passed_ms = now_ms > housekeeper->figures_ms ? now_ms - housekeeper->figures_ms : 1;
    /* Rounded up: one request is traffic. */
    atomic_store_explicit(&process->ops_per_second, ((requests - housekeeper->requests_before) * 1000 + passed_ms - 1) / passed_ms, memory_order_relaxed);
    housekeeper->requests_before = requests;
    housekeeper->figures_ms = now_ms;
    (void)arena_trim(housekeeper->core.arena);
    timer_set(&housekeeper->core.wheel, timer, timer_aligned_ms(now_ms, TICK_SLOW_MS));
}

/* ---- life ---- */

static int open_signals(void)
{
    /* Blocked in main before the threads start, so that they come here alone. */
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

enum status housekeeper_open(struct housekeeper *housekeeper)
{
    struct process *process = housekeeper->process;
    struct core *core = &housekeeper->core;
    core->context = housekeeper;
    core->hooks = &hooks;
    enum status status = core_open(core, process->shared.data_cores, process->config, &process->shared, housekeeper->error, sizeof(housekeeper->error));
    if (status != STATUS_OK)
        return status;
    housekeeper->signal_fd = open_signals();
    if (housekeeper->signal_fd < 0) {
        (void)snprintf(housekeeper->error, sizeof(housekeeper->error), "signalfd failed");
        return STATUS_SYSTEM;
    }
    uint16_t cpus[CONFIG_CPUS_MAX];
    uint32_t pinned = process->config->cores.cpus_count;
    cpu_usage_open(&housekeeper->cpu_usage, pinned > 0 ? process->config->cores.cpus : cpus, pinned > 0 ? pinned : thread_cpus(cpus, CONFIG_CPUS_MAX));
    net_open(core, &poller_net_ops, &housekeeper->poller, 0);
    snapshot_publisher_init(&housekeeper->publisher, process->shared.data_cores, destroy_published);
    timer_init(&housekeeper->tick, on_tick, housekeeper);
    timer_init(&housekeeper->tick_slow, on_tick_slow, housekeeper);
    return STATUS_OK;
}

void housekeeper_run(struct housekeeper *housekeeper)
{
    struct core *core = &housekeeper->core;
    poller_init(&housekeeper->poller, core, core->net, &housekeeper->process->facts, publish, housekeeper);
    housekeeper->ready_deadline_ms = core->now_ms + READY_MAX_MS;
    owners_init(&housekeeper->owners, core, &housekeeper->poller, housekeeper->process->loads);
    timer_set(&core->wheel, &housekeeper->tick, core->now_ms);
    timer_set(&core->wheel, &housekeeper->tick_slow, core->now_ms + TICK_SLOW_MS);
    housekeeper->figures_ms = core->now_ms;
    core_run(core);
    (void)drain_logs(housekeeper);
}

void housekeeper_release(struct housekeeper *housekeeper)
{
    (void)drain_logs(housekeeper);
    owners_fini(&housekeeper->owners);
    poller_fini(&housekeeper->poller);
    snapshot_publisher_fini(&housekeeper->publisher);
    net_close(&housekeeper->core);
    close(housekeeper->signal_fd);
    cpu_usage_close(&housekeeper->cpu_usage);
    notify_close(&housekeeper->notify);
    core_close(&housekeeper->core);
}
