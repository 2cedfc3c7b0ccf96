/*
 * How busy a set of CPUs is, whoever uses them: from /proc/stat, whose counters advance by the tick (10 ms a CPU), so that less than 100 ms between two looks says little.
 */
#pragma once

#include <stdint.h>

enum { CPU_USAGE_CPUS_MAX = 1024 };

struct cpu_usage {
    int fd; /* -1: there is no /proc/stat */
    uint64_t busy_ticks;
    uint64_t all_ticks;
    uint64_t cpus[CPU_USAGE_CPUS_MAX / 64]; /* bit set */
};

/* cpus: their numbers; those from 1,024 on are left out. */
void cpu_usage_open(struct cpu_usage *usage, const uint16_t *cpus, uint32_t cpus_count);
void cpu_usage_close(struct cpu_usage *usage);

/* Of the time since the last call (of this or of cpu_usage_open), 0 .. 1,000; 0 where it is not known. */
uint32_t cpu_usage_permille(struct cpu_usage *usage);

/* The sums of the lines "cpuN ..." of a text as /proc/stat has it, over the CPUs of the set. Exposed for tests. */
void cpu_usage_sum(const struct cpu_usage *usage, const char *text, uint64_t *busy_ticks, uint64_t *all_ticks);
