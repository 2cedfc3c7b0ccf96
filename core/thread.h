/*
 * A named thread, pinned to one CPU where that is asked for. The caller embeds struct thread and keeps it in place from start to join.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    THREAD_NAME_MAX = 15,  /* bytes without the NUL: the kernel's limit; longer names are cut */
    THREAD_CPUS_MAX = 4096 /* CPU numbers 0 .. 4,095 are known to this module */
};

typedef void (*thread_fn)(void *context);

struct thread {
    pthread_t handle;
    thread_fn run;
    void *context;
    char name[THREAD_NAME_MAX + 1];
};

/* Starts run(context) on a new thread called `name`. cpu: the CPU it is pinned to before it runs its first instruction, negative: not
 * pinned (it inherits the caller's CPUs and, in both cases, the caller's signal mask). `context` is borrowed until the thread ends. Returns
 * OK; INVALID where this process may not use that CPU; SYSTEM where the system has no thread left. Then no thread was started and `error`
 * holds a sentence (cut to error_bytes, always with a NUL). */
enum status thread_start(struct thread *thread, const char *name, int cpu, thread_fn run, void *context, char *error, size_t error_bytes) ZG_NODISCARD;

/* Pins the calling thread to one CPU. INVALID where this process may not use it; `error` holds a sentence then. */
enum status thread_pin_self(int cpu, char *error, size_t error_bytes) ZG_NODISCARD;

/* Waits for the end of a thread that was started; once per start. */
void thread_join(struct thread *thread);

/* Names the calling thread, as ps and top show it. */
void thread_set_name(const char *name);

/* A descriptor for thread_times of the calling thread; -1 where the kernel or the container has no /proc/thread-self/schedstat. The caller closes it. */
int thread_times_open(void);

/* How long that thread has run, and how long it stood ready to run without a CPU, since it began. False: not to be had. */
bool thread_times(int fd, uint64_t *run_ns, uint64_t *delayed_ns);

/* How many CPUs the calling thread may run on (sched_getaffinity, so a container's CPU set counts); at least 1. */
uint32_t thread_cpus_count(void);

/* Writes their numbers, ascending, at most cpus_max; returns how many were written. */
uint32_t thread_cpus(uint16_t *cpus, uint32_t cpus_max);
