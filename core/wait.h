/*
 * The wait controller of a core: for how many completions, and how long at most, a core without work waits before its next iteration. Waiting forms larger batches, which cost the gateway and the
 * backend less; it is paid for in latency, so it is done only where the core is short of CPU time, and never for more than may still come.
 *
 * Pure: no clock, no system call; the loop tells it what happened, tests and the simulation (tests/core/test_wait.c) do the same. Two parts:
 *
 *   need     every WAIT_PERIOD_NS, from 0 to 1,000: how short CPU time is. Either the core itself hardly rests (from 60 % of the time on, all of it at 90 %), or the CPUs that the process
 *            may use are all busy (from 85 % to 97 %) and the core wants a part of them: then what it saves others get. The wait may last need x wait_max.
 *   count    need x half of the clients that are active, so that one half is being answered while the other asks; never more than can still ask (those without a request in flight).
 *
 * docs/waiting.md has the reasons, docs/decisions/0006 what was tried.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum wait_mode { WAIT_AUTO, WAIT_FIXED, WAIT_OFF };

#define WAIT_PERIOD_NS UINT64_C(10000000)

struct wait_settings {
    enum wait_mode mode;
    uint32_t completions; /* FIXED */
    uint64_t wait_ns;     /* FIXED */
    uint64_t wait_max_ns; /* AUTO */
};

/* What net/ counts. */
struct wait_counts {
    uint32_t sends;   /* submitted in this iteration: each completes within the submission, and must not end the wait */
    uint32_t waiting; /* clients with a request in flight */
};

/* The core's time since the last call. */
struct wait_time {
    uint64_t passed_ns;          /* by the clock; not 0 */
    uint64_t run_ns;             /* the thread ran */
    uint64_t delayed_ns;         /* it could have run, and another had the CPU */
    uint32_t cpus_busy_permille; /* of the CPUs that the process may use, as measured last; 0 where that is not known */
};

/* wait_ns 0: no wait for a batch. */
struct wait_decision {
    uint32_t completions; /* at least 1 */
    uint64_t wait_ns;
};

struct wait {
    struct wait_settings settings;
    uint32_t need_permille;
    uint64_t period_ends_ns; /* of the need */
    uint64_t window_ends_ns; /* of the active clients */
    uint32_t window;         /* number of the window; clients are stamped with it */
    uint32_t active_now;     /* clients seen in this window ... */
    uint32_t active_before;  /* ... and in the one before */
};

void wait_init(struct wait *wait, const struct wait_settings *settings, uint64_t now_ns);

/* A client has sent something. `stamp` is the client's own, 0 at first. */
static inline void wait_client_active(struct wait *wait, uint32_t *stamp)
{
    if (*stamp != wait->window) {
        *stamp = wait->window;
        wait->active_now++;
    }
}

/* Whether wait_measure is due. */
static inline bool wait_period_is_over(const struct wait *wait, uint64_t now_ns)
{
    return wait->settings.mode == WAIT_AUTO && now_ns >= wait->period_ends_ns;
}
void wait_measure(struct wait *wait, uint64_t now_ns, const struct wait_time *time);

/* AUTO: the longest wait that is permitted now. */
static inline uint64_t wait_longest_ns(const struct wait *wait)
{
    return wait->settings.wait_max_ns * wait->need_permille / 1000;
}

/* At the end of an iteration that leaves nothing to do. */
struct wait_decision wait_decide(struct wait *wait, uint64_t now_ns, const struct wait_counts *counts);
