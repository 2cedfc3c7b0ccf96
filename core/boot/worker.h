/*
 * One data core: what it is made of, and its thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "core/core.h"
#include "core/thread.h"
#include "net/net.h"
#include "shard/dispatch.h"
#include "shard/published.h"

/* Shared by all threads of the process; made by main. */
struct process {
    const struct config *config;
    struct core_shared shared;
    struct command_table *builtin_commands; /* until the first snapshot */
    struct backend_facts facts;             /* the housekeeping core's until they are published */
    pthread_barrier_t opened;               /* every core has tried to open */
    _Atomic uint32_t failed_count;          /* cores that could not */
    _Atomic uint32_t drained_count;         /* data cores without clients, while draining */
    _Atomic uint32_t finished_count;        /* data cores whose loop has ended */
    _Atomic uint64_t ops_per_second;        /* of the last second, by the housekeeping core */
    uint64_t started_ns;
};

struct worker {
    struct core core;
    struct process *process;
    struct thread thread;
    struct dispatcher dispatcher;
    const struct published *published;
    struct timer tick;
    struct timer tick_slow;
    uint64_t drain_deadline_ms;
    bool is_quiet;   /* nothing was under way at the last tick, and the next one is far */
    bool is_drained; /* counted in drained_count */
    char error[256];
};

/* The thread's function; context is the worker. */
void worker_run(void *context);
/* After the thread was joined: what peers may have read until now. */
void worker_release(struct worker *worker);
