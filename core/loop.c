/*
 * Owns: the event loop of a core thread: what happens in an iteration, in which order, and how a core idles. Runs on: that thread.
 *
 *            has work, or a lane filled meanwhile
 *        ┌───────────────────────────────────────┐
 *        ▼                                       │
 *     running ── nothing left ──► spinning ── spin time over ──► sleeping (flag published, bounded)
 *                  (adaptive: as long as spins have paid; spin: for ever; sleep: not at all)
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/core.h"
#include "core/hash.h"
#include "core/thread.h"

enum {
    MESSAGES_PER_ITERATION = 1024,
    TASK_ROUNDS_MAX = 64,           /* run-queue entries per iteration are bounded: 64 rounds of what was queued when a round began */
    SLEEP_MAX_NS = 300 * 1000 * 1000, /* longer than the ticks of an idle core, which would otherwise be woken twice */
    REALTIME_REFRESH_NS = 1000 * 1000 * 1000,
    SPIN_MIN_NS = 2 * 1000,
};

static void read_clock(struct core *core)
{
    core->now_ns = clock_monotonic_ns();
    core->now_ms = core->now_ns / 1000000;
    if (core->now_ns >= core->realtime_refresh_ns) {
        core->realtime_offset_ns = clock_realtime_ns() - core->now_ns;
        core->realtime_refresh_ns = core->now_ns + REALTIME_REFRESH_NS;
    }
}

static void ring_doorbell(void *context, uint32_t peer)
{
    struct core *core = context;
    metric_add(core->metrics, METRIC_mailbox_doorbells_total, 1);
    if (core->uses_eventfd || !core->ring.features.msg_ring) {
        uint64_t one = 1;
        ssize_t written = write(core->shared->peers[peer].event_fd, &one, sizeof(one));
        (void)written; /* EAGAIN means that the counter is high already: the peer will wake */
        return;
    }
    struct io_uring_sqe *sqe = ring_sqe(&core->ring);
    io_uring_prep_msg_ring(sqe, core->shared->peers[peer].ring_fd, 0, ring_user_data_plain(RING_OP_DOORBELL, 0), 0);
    sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
    io_uring_sqe_set_data64(sqe, ring_user_data_plain(RING_OP_NONE, 0));
}

static void arm_eventfd(struct core *core)
{
    struct io_uring_sqe *sqe = ring_sqe(&core->ring);
    io_uring_prep_read(sqe, core->shared->peers[core->id].event_fd, &core->event_value, sizeof(core->event_value), 0);
    io_uring_sqe_set_data64(sqe, ring_user_data_plain(RING_OP_DOORBELL, 1));
}

static void on_doorbell(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)result;
    (void)flags;
    /* The lanes are looked at in every iteration; only the read of the eventfd has to be armed again. */
    if ((user_data & 1) != 0 && !core->is_stopping)
        arm_eventfd(core);
}

static void on_nothing(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)core;
    (void)user_data;
    (void)result;
    (void)flags;
}

enum status core_open(struct core *core, uint32_t id, const struct config *config, struct core_shared *shared, char *error, size_t error_bytes)
{
    core->id = id;
    core->config = config;
    core->shared = shared;
    core->rng.state = clock_monotonic_ns() ^ hash_u64(id + 1);
    list_init(&core->run_queue);
    for (int op = 0; op < RING_OP_COUNT; op++)
        core->completions[op] = on_nothing;
    core->completions[RING_OP_DOORBELL] = on_doorbell;

    bool is_data_core = id < shared->data_cores;
    uint32_t buffers = is_data_core ? config->limits.rx_buffers_per_core : 256;
    struct ring_options options = {
        .allowed = {.defer_taskrun = config->ring.defer_taskrun,
                    .direct_descriptors = config->ring.direct_descriptors,
                    .multishot_accept = config->ring.multishot_accept,
                    .multishot_recv = config->ring.multishot_recv,
                    .min_wait = config->ring.min_wait,
                    .msg_ring = config->cores.doorbell != DOORBELL_EVENTFD},
        .entries = config->ring.entries,
        .completions = config->ring.entries * 4 > buffers * 2 ? config->ring.entries * 4 : buffers * 2,
        .rings_count = shared->cores_count,
        .files_max = is_data_core ? config->limits.clients_per_core + config->limits.links_per_core : config->limits.links_per_core,
    };
    enum status status = ring_open(&core->ring, &options, error, error_bytes);
    if (status != STATUS_OK)
        return status;
    core->arena = arena_create(id, config->limits.arena_bytes_per_core);
    status = rx_ring_open(&core->rx, &core->ring, core->arena, buffers, config->limits.rx_buffer_bytes);
    if (status != STATUS_OK) {
        (void)snprintf(error, error_bytes, "core %u: the receive buffers could not be registered", id);
        goto fail_rx;
    }
    shared->peers[id].event_fd = eventfd(0, EFD_CLOEXEC);
    if (shared->peers[id].event_fd < 0) {
        (void)snprintf(error, error_bytes, "core %u: eventfd: %s", id, strerror(errno));
        status = STATUS_SYSTEM;
        goto fail_eventfd;
    }
    shared->peers[id].ring_fd = core->ring.uring.ring_fd;
    shared->peers[id].arena = core->arena;
    core->metrics = alloc_zeroed(sizeof(*core->metrics));
    shared->peers[id].metrics = core->metrics;
    int clock_error = pthread_getcpuclockid(pthread_self(), &shared->peers[id].cpu_clock);
    ZG_CHECK(clock_error == 0); /* the calling thread exists */
    core->uses_eventfd = config->cores.doorbell == DOORBELL_EVENTFD;
    core->mailbox = mailbox_of(shared->mailboxes, id);
    mailbox_attach(core->mailbox, core->arena, ring_doorbell, core);
    read_clock(core);
    timer_wheel_init(&core->wheel, core->now_ms);
    /* The housekeeping core has no batches to wait for. */
    struct wait_settings wait = config->cores.wait;
    if (!is_data_core)
        wait.mode = WAIT_OFF;
    wait_init(&core->wait, &wait, core->now_ns);
    core->measured_ns = core->now_ns;
    core->times_fd = wait.mode == WAIT_AUTO ? thread_times_open() : -1;
    (void)thread_times(core->times_fd, &core->run_ns, &core->delayed_ns);
    arm_eventfd(core);
    return STATUS_OK;

fail_eventfd:
    rx_ring_close(&core->rx, &core->ring);
fail_rx:
    arena_destroy(&core->arena);
    ring_close(&core->ring);
    return status;
}

void core_close(struct core *core)
{
    rx_ring_close(&core->rx, &core->ring);
    close(core->shared->peers[core->id].event_fd);
    if (core->times_fd >= 0)
        close(core->times_fd);
    ring_close(&core->ring);
}

void core_fini(struct core *core)
{
    if (core->arena == NULL)
        return;
    uint64_t held = arena_bytes_held(core->arena);
    if (held == 0)
        arena_destroy(&core->arena);
    else
        core_log(core, LOG_ERROR, "arena_leak", "core=%u bytes=%llu", core->id, (unsigned long long)held);
    core->arena = NULL;
    alloc_free(core->metrics);
    core->metrics = NULL;
}

void core_enqueue(struct core *core, struct task *task)
{
    if (!list_is_linked(&task->node))
        list_push_back(&core->run_queue, &task->node);
}

static uint32_t reap(struct core *core)
{
    struct io_uring_cq *cq = &core->ring.uring.cq;
    unsigned head = *cq->khead;
    unsigned tail = io_uring_smp_load_acquire(cq->ktail);
    uint32_t count = tail - head;
    for (; head != tail; head++) {
        const struct io_uring_cqe *cqe = &cq->cqes[head & cq->ring_mask];
        uint64_t user_data = cqe->user_data;
        int32_t result = cqe->res;
        uint32_t flags = cqe->flags;
        /* The place is given back before the handler runs: a handler that submits may need the room. */
        io_uring_smp_store_release(cq->khead, head + 1);
        uint8_t op = (uint8_t)(user_data >> 56) & (uint8_t)~RING_OP_LINK_BIT;
        ZG_CHECK(op < RING_OP_COUNT);
        core->completions[op](core, user_data, result, flags);
    }
    if (count > 0)
        metric_add(core->metrics, METRIC_ring_completions_total, count);
    return count;
}

static void run_tasks(struct core *core)
{
    for (int round = 0; round < TASK_ROUNDS_MAX && !list_is_empty(&core->run_queue); round++) {
        /* A mark ends the round: no task can take it out, as it can another task (a client that it closes). */
        struct list_node end;
        list_init(&end);
        list_push_back(&core->run_queue, &end);
        for (struct list_node *node; (node = list_pop_front(&core->run_queue)) != &end;) {
            struct task *task = LIST_ENTRY(node, struct task, node);
            task->run(core, task);
        }
    }
}

static bool must_not_wait(const struct core *core)
{
    return !list_is_empty(&core->run_queue) || core->hooks->is_busy(core);
}

static uint64_t sleep_limit_ns(const struct core *core)
{
    uint64_t next_ms = timer_wheel_next_ms(&core->wheel);
    if (next_ms == UINT64_MAX)
        return SLEEP_MAX_NS;
    uint64_t now_ns = core->now_ns;
    uint64_t next_ns = next_ms * 1000000;
    if (next_ns <= now_ns)
        return 0;
    return next_ns - now_ns < SLEEP_MAX_NS ? next_ns - now_ns : SLEEP_MAX_NS;
}

/* Spins until something is there or `spin_ns` has passed; true where something is there. */
static bool spin(struct core *core, uint64_t spin_ns)
{
    ring_submit(&core->ring);
    uint64_t begin = clock_monotonic_ns();
    uint64_t now = begin;
    bool has_work = false;
    do {
        for (int i = 0; i < 32 && !has_work; i++) {
            has_work = ring_has_work(&core->ring) || mailbox_has_news(core->mailbox);
            __builtin_ia32_pause();
        }
        now = clock_monotonic_ns();
    } while (!has_work && now < begin + spin_ns);
    metric_add(core->metrics, METRIC_loop_spin_ns_total, now - begin);
    return has_work;
}

/* How much of its time the core wanted to work since the last look. */
static void measure(struct core *core)
{
    uint64_t run_ns;
    uint64_t delayed_ns;
    struct wait_time time = {.passed_ns = core->now_ns - core->measured_ns};
    if (time.passed_ns == 0)
        return;
    if (thread_times(core->times_fd, &run_ns, &delayed_ns)) {
        time.run_ns = run_ns - core->run_ns;
        time.delayed_ns = delayed_ns - core->delayed_ns;
        core->run_ns = run_ns;
        core->delayed_ns = delayed_ns;
    }
    core->measured_ns = core->now_ns;
    const struct metrics *housekeeper = core->shared->peers[core->shared->data_cores].metrics;
    if (housekeeper != NULL)
        time.cpus_busy_permille = (uint32_t)metric_read(housekeeper, METRIC_cpus_busy_permille);
    wait_measure(&core->wait, core->now_ns, &time);
    metric_set(core->metrics, METRIC_loop_wait_us, wait_longest_ns(&core->wait) / 1000);
}

/* Waits for a batch, if the controller wants that. The wait is short: peers need not know of it, what they send is seen when it ends. */
static bool wait_for_batch(struct core *core, uint64_t limit_ns)
{
    if (wait_period_is_over(&core->wait, core->now_ns))
        measure(core);
    struct wait_decision decision = wait_decide(&core->wait, core->now_ns, &core->counts);
    core->counts.sends = 0;
    if (decision.wait_ns == 0 || limit_ns == 0 || mailbox_has_news(core->mailbox))
        return false;
    bool has_peers = core->shared->data_cores > 1;
    /* In the kernel, where it can: then nothing wakes the core before there is something. Not with peers, whose messages are no completions. */
    bool by_kernel = core->ring.features.min_wait && !has_peers;
    uint64_t wait_ns = decision.wait_ns < limit_ns ? decision.wait_ns : limit_ns;
    metric_add(core->metrics, METRIC_loop_batch_waits_total, 1);
    if (!by_kernel) {
        ring_wait(&core->ring, decision.completions, 0, wait_ns);
        return true;
    }
    if (!mailbox_sleep_begin(core->mailbox))
        return false;
    ring_wait(&core->ring, decision.completions, wait_ns, limit_ns);
    mailbox_sleep_end(core->mailbox);
    return true;
}

/* Adaptive: a spin that found work is worth repeating, one that did not is halved, down to none; a sleep that was cut short earns a spin back. */
static void idle(struct core *core)
{
    uint64_t limit_ns = sleep_limit_ns(core);
    /* The housekeeping core has nothing that a wake-up would make late: it never takes a CPU from those that spin. */
    enum config_idle mode = core->id < core->shared->data_cores ? core->config->cores.idle : IDLE_SLEEP;
    bool has_peers = core->shared->data_cores > 1 && core->id < core->shared->data_cores;
    if (wait_for_batch(core, limit_ns))
        return;
    if (mode == IDLE_SPIN) {
        (void)spin(core, limit_ns < 1000 * 1000 ? limit_ns : 1000 * 1000);
        ring_wait(&core->ring, 0, 0, 0);
        return;
    }
    if (mode == IDLE_ADAPTIVE && has_peers && core->spin_ns >= SPIN_MIN_NS) {
        if (spin(core, core->spin_ns)) {
            core->spin_ns = core->spin_ns * 2 < core->config->cores.spin_max_ns ? core->spin_ns * 2 : core->config->cores.spin_max_ns;
            ring_wait(&core->ring, 0, 0, 0);
            return;
        }
        core->spin_ns /= 2;
    }
    if (!mailbox_sleep_begin(core->mailbox)) {
        ring_wait(&core->ring, 0, 0, 0);
        return;
    }
    metric_add(core->metrics, METRIC_loop_sleeps_total, 1);
    ring_wait(&core->ring, 1, 0, limit_ns);
    mailbox_sleep_end(core->mailbox);
    if (mode == IDLE_ADAPTIVE && has_peers && core->spin_ns < SPIN_MIN_NS && clock_monotonic_ns() - core->now_ns < core->config->cores.spin_max_ns)
        core->spin_ns = SPIN_MIN_NS * 2;
}

static void iterate(struct core *core)
{
    read_clock(core);
    (void)reap(core);
    uint32_t messages = mailbox_poll(core->mailbox, MESSAGES_PER_ITERATION, core->hooks->message, core);
    (void)timer_wheel_advance(&core->wheel, core->now_ms);
    run_tasks(core);
    core->hooks->flush(core);
    rx_ring_publish(&core->rx);
    uint32_t published = mailbox_publish(core->mailbox);
    if (published > 0)
        metric_add(core->metrics, METRIC_mailbox_messages_total, published);
    (void)mailbox_reclaim(core->mailbox);
    core->hooks->release(core);
    metric_add(core->metrics, METRIC_loop_iterations_total, 1);
    if (must_not_wait(core) || messages == MESSAGES_PER_ITERATION)
        ring_wait(&core->ring, 0, 0, 0);
    else
        idle(core);
}

void core_run(struct core *core)
{
    while (!core->is_stopping || !core->hooks->is_finished(core))
        iterate(core);
}
