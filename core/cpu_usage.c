/*
 * Owns: a descriptor of /proc/stat. Runs on: the housekeeping core. Source: proc(5).
 */
#include "core/cpu_usage.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 128 << 10, FIELD_IDLE = 3, FIELD_IOWAIT = 4, FIELDS = 8 /* user nice system idle iowait irq softirq steal; guests are in user */ };

static bool contains(const struct cpu_usage *usage, unsigned long cpu)
{
    return cpu < CPU_USAGE_CPUS_MAX && (usage->cpus[cpu / 64] >> (cpu % 64) & 1) != 0;
}

void cpu_usage_sum(const struct cpu_usage *usage, const char *text, uint64_t *busy_ticks, uint64_t *all_ticks)
{
    *busy_ticks = 0;
    *all_ticks = 0;
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *end_of_line = strchr(line, '\n');
        /* The first line, "cpu ", is the sum of all. */
        if (strncmp(line, "cpu", 3) == 0 && line[3] >= '0' && line[3] <= '9' && end_of_line != NULL) {
            char *at;
            bool is_meant = contains(usage, strtoul(line + 3, &at, 10));
            for (int field = 0; field < FIELDS && is_meant && *at == ' '; field++) {
                uint64_t ticks = strtoull(at, &at, 10);
                *all_ticks += ticks;
                *busy_ticks += field == FIELD_IDLE || field == FIELD_IOWAIT ? 0 : ticks;
            }
        }
        line = end_of_line != NULL ? end_of_line + 1 : NULL;
    }
}

static bool look(const struct cpu_usage *usage, uint64_t *busy_ticks, uint64_t *all_ticks)
{
    static char text[TEXT_BYTES];
    ssize_t length = usage->fd < 0 ? -1 : pread(usage->fd, text, sizeof(text) - 1, 0);
    if (length <= 0)
        return false;
    text[length] = '\0';
    cpu_usage_sum(usage, text, busy_ticks, all_ticks);
    return true;
}

void cpu_usage_open(struct cpu_usage *usage, const uint16_t *cpus, uint32_t cpus_count)
{
    *usage = (struct cpu_usage){.fd = open("/proc/stat", O_RDONLY | O_CLOEXEC)};
    for (uint32_t i = 0; i < cpus_count; i++)
        if (cpus[i] < CPU_USAGE_CPUS_MAX)
            usage->cpus[cpus[i] / 64] |= UINT64_C(1) << (cpus[i] % 64);
    (void)cpu_usage_permille(usage);
}

void cpu_usage_close(struct cpu_usage *usage)
{
    if (usage->fd >= 0)
        close(usage->fd);
    usage->fd = -1;
}

uint32_t cpu_usage_permille(struct cpu_usage *usage)
{
    uint64_t busy_ticks;
    uint64_t all_ticks;
    if (!look(usage, &busy_ticks, &all_ticks) || all_ticks <= usage->all_ticks || busy_ticks < usage->busy_ticks)
        return 0;
    uint64_t permille = (busy_ticks - usage->busy_ticks) * 1000 / (all_ticks - usage->all_ticks);
    usage->busy_ticks = busy_ticks;
    usage->all_ticks = all_ticks;
    return permille < 1000 ? (uint32_t)permille : 1000;
}
