/*
 * The housekeeping core: polls the backends, publishes snapshots, drains the cores' logs, sums figures once a second, and begins the end when a signal says so.
 */
#pragma once

#include "core/boot/notify.h"
#include "core/boot/worker.h"
#include "core/cpu_usage.h"
#include "core/snapshot.h"
#include "shard/owners.h"
#include "shard/poller.h"

/* What the service manager has been told so far. */
enum told { TOLD_NOTHING, TOLD_LISTENING, TOLD_SERVING };

struct housekeeper {
    struct core core;
    struct process *process;
    struct poller poller;
    struct owners owners;
    struct snapshot_publisher publisher;
    const struct published *newest;
    uint64_t unsent_epochs[CONFIG_DATA_CORES_MAX]; /* 0: the core has been sent the newest snapshot */
    struct log_ring *logs[CONFIG_DATA_CORES_MAX + 1];
    struct timer tick;
    struct timer tick_slow;
    int signal_fd;
    int log_fd;
    uint64_t requests_before; /* of the figures: total at figures_ms, about a second ago */
    uint64_t figures_ms;
    struct cpu_usage cpu_usage;
    uint64_t cpus_looked_ms; /* when, and the total of requests then */
    uint64_t cpus_requests;
    struct notify notify; /* opened by main */
    enum told told;
    uint64_t ready_deadline_ms; /* then READY is said without a topology */
    int64_t drain_sequence;     /* of MOVING */
    bool is_draining;
    bool is_quiet; /* nothing was under way at the last tick, and the next one is far */
    bool drain_sent[CONFIG_DATA_CORES_MAX];
    char error[256];
};

/* Opens the core on the calling thread; the thread that calls housekeeper_run must be the same. */
enum status housekeeper_open(struct housekeeper *housekeeper) ZG_NODISCARD;
/* Runs until a signal has come and every data core has ended. */
void housekeeper_run(struct housekeeper *housekeeper);
/* After all threads were joined. */
void housekeeper_release(struct housekeeper *housekeeper);
