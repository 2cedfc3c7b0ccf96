/*
 * What every core thread has, and its event loop. A data core and the housekeeping core differ only in what their hooks do.
 *
 * One iteration, in this order (nothing re-enters: whoever has more to do enqueues a task):
 *
 *     completions -> lanes -> timers -> run queue -> flush hooks (batches, then clients) -> publish lanes -> release -> wait
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "core/arena.h"
#include "core/config.h"
#include "core/list.h"
#include "core/log.h"
#include "core/mailbox.h"
#include "core/metrics.h"
#include "core/ring.h"
#include "core/rng.h"
#include "core/rx_ring.h"
#include "core/timer_wheel.h"
#include "core/wait.h"

struct core;
struct net;

/* A piece of work for the run queue. Embedded; in the queue while node is linked. */
struct task {
    struct list_node node;
    void (*run)(struct core *core, struct task *task);
};

typedef void (*core_completion_fn)(struct core *core, uint64_t user_data, int32_t result, uint32_t flags);

/* What the composition root plugs into the loop; all run on the core's thread. `context` is core->context. */
struct core_hooks {
    mailbox_handler_fn message;                   /* a message from another core */
    void (*flush)(struct core *core);             /* before lanes are published: batches, links, clients */
    void (*release)(struct core *core);           /* last: frees what was closed in this iteration */
    bool (*is_busy)(const struct core *core);     /* work is waiting that no completion will announce */
    bool (*is_finished)(const struct core *core); /* after core->is_stopping: nothing is left to wait for */
};

/* What peers may know of each other; written at start by each core before the barrier, then read only. */
struct core_peer {
    int ring_fd;
    int event_fd;
    struct arena *arena;           /* for arena_at alone */
    const struct metrics *metrics; /* relaxed reads */
    clockid_t cpu_clock;           /* the time that the core's thread has run */
};

struct core_shared {
    uint32_t cores_count; /* data cores and the housekeeper, which is the last */
    uint32_t data_cores;
    struct mailbox_group *mailboxes;
    struct core_peer peers[CONFIG_DATA_CORES_MAX + 1];
};

struct core {
    uint32_t id;
    const struct config *config;
    struct core_shared *shared;
    struct ring ring;
    struct rx_ring rx;
    struct timer_wheel wheel;
    struct arena *arena;
    struct mailbox *mailbox;
    struct metrics *metrics;
    struct log_ring *log;
    struct rng rng;
    struct list_node run_queue;
    uint64_t now_ns; /* CLOCK_MONOTONIC, read once an iteration */
    uint64_t now_ms;
    uint64_t realtime_offset_ns; /* add to now_ns for the wall clock; refreshed once a second */
    uint64_t realtime_refresh_ns;
    core_completion_fn completions[RING_OP_COUNT];
    const struct core_hooks *hooks;
    void *context;             /* struct worker or struct housekeeper */
    struct net *net;           /* what net/ keeps for this core; NULL until net_open */
    uint64_t event_value;      /* target of the eventfd read */
    struct wait wait;          /* the wait controller ... */
    struct wait_counts counts; /* ... and what it goes by: net/ adds to it */
    uint64_t measured_ns;      /* when the core's times were read last, and what they were */
    uint64_t run_ns;
    uint64_t delayed_ns;
    int times_fd;      /* -1: there are none */
    uint64_t spin_ns;  /* adaptive idling: how long to spin before the next sleep */
    bool uses_eventfd; /* doorbells come by eventfd */
    bool is_stopping;
};

/* Opens ring, buffers, arena. The mailbox group must exist. On error `error` says why. Must run on the core's own thread. */
enum status core_open(struct core *core, uint32_t id, const struct config *config, struct core_shared *shared, char *error, size_t error_bytes) ZG_NODISCARD;
void core_close(struct core *core);
/* The last step, after the mailbox group is destroyed: frees what peers could reach until then. Blocks that are still held are logged by their bytes and stay, for a leak checker to show. */
void core_fini(struct core *core);

/* Runs until is_stopping and is_finished. */
void core_run(struct core *core);

void core_enqueue(struct core *core, struct task *task);
static inline void task_init(struct task *task, void (*run)(struct core *, struct task *))
{
    list_init(&task->node);
    task->run = run;
}

static inline uint64_t core_realtime_ns(const struct core *core)
{
    return core->now_ns + core->realtime_offset_ns;
}

#define core_log(core, level, event, ...)                                                             \
    do {                                                                                              \
        if (log_is_enabled(level))                                                                    \
            log_write((core)->log, (level), core_realtime_ns(core), (event), __VA_ARGS__);            \
    } while (0)
