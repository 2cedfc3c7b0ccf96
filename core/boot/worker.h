/*
 * One data core: what it is made of, and its thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "core/core.h"
#include "core/thread.h"
#include "net/activation.h"
#include "net/net.h"
#include "shard/dispatch.h"
#include "shard/published.h"

/* Shared by all threads of the process; made by main. */
struct process {
    const struct config *config;
    struct core_shared shared;
    struct command_table *builtin_commands;               /* until the first snapshot */
    const struct load_page *loads[CONFIG_DATA_CORES_MAX]; /* written at start by each data core, before the barrier */
    struct backend_facts facts;                           /* the housekeeping core's until they are published */
    pthread_barrier_t opened;                             /* every core has tried to open */
    _Atomic uint32_t failed_count;                        /* cores that could not */
    struct activation activation;                         /* listening sockets that were handed over; read only */
    _Atomic uint32_t serving_count;                       /* data cores that have a topology */
    _Atomic uint32_t closed_count;                        /* data cores that accept no more, while draining */
    _Atomic uint32_t drained_count;                       /* data cores without clients, while draining */
    _Atomic uint32_t finished_count;                      /* data cores whose loop has ended */
    _Atomic uint64_t ops_per_second;                      /* of the last second, by the housekeeping core */
    uint64_t started_ns;
};

/* The body of MSG_DRAIN. */
struct msg_drain {
    int64_t sequence; /* of MOVING */
};

/* How far a draining core is with what may still bring it connections. */
enum settling { SETTLING_ACCEPTING, SETTLING_CLOSED, SETTLING_COUNTED, SETTLING_DONE };

struct worker {
    struct core core;
    struct process *process;
    struct thread thread;
    struct dispatcher dispatcher;
    const struct published *published;
    struct timer tick;
    struct timer tick_slow;
    uint64_t drain_deadline_ms;
    enum settling settling;
    bool is_serving;  /* counted in serving_count */
    bool is_quiet;    /* nothing was under way at the last tick, and the next one is far */
    bool is_drained;  /* counted in drained_count */
    bool is_trimming; /* the last trim of the pools gave something back */
    char error[256];
};

/* The thread's function; context is the worker. */
void worker_run(void *context);
/* After the thread was joined: what peers may have read until now. */
void worker_release(struct worker *worker);
