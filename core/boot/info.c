/*
 * Stateless: reads metrics pages (relaxed) and formats. Runs on: any core.
 */
#include "core/boot/info.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/memory.h"
#include "core/boot/worker.h"

static void put_line(struct resp_writer *text, const char *name, uint64_t value)
{
    char line[128];
    int length = snprintf(line, sizeof(line), "%s:%" PRIu64 "\r\n", name, value);
    resp_write_raw(text, line, (size_t)length);
}

static void put_line_float(struct resp_writer *text, const char *name, double value)
{
    char line[128];
    int length = snprintf(line, sizeof(line), "%s:%.3f\r\n", name, value);
    resp_write_raw(text, line, (size_t)length);
}

static uint64_t sum(const struct process *process, const struct core_peer *peers, enum metric metric)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < process->shared.cores_count; i++)
        total += metric_read(peers[i].metrics, metric);
    return total;
}

static uint64_t resident_bytes(void)
{
    char line[128] = "";
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    /* "SIZE RESIDENT ..." in pages. strtoull gives 0 where there is no number. */
    const char *resident = fgets(line, sizeof(line), file) != NULL ? strchr(line, ' ') : NULL;
    uint64_t pages = resident != NULL ? strtoull(resident, NULL, 10) : 0;
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void write_clients(const struct process *process, const struct core_peer *peers, struct resp_writer *text)
{
    put_line(text, "connected_clients", sum(process, peers, METRIC_clients));
    put_line(text, "maxclients", (uint64_t)process->config->limits.clients_per_core * process->shared.data_cores);
    put_line(text, "blocked_clients", 0);
    put_line(text, "tracking_clients", 0);
}

static void write_memory(const struct process *process, const struct core_peer *peers, struct resp_writer *text)
{
    uint64_t resident = resident_bytes();
    put_line(text, "used_memory", resident);
    put_line(text, "used_memory_rss", resident);
    put_line(text, "zgateway_memory_limit", process->config->limits.memory_bytes != 0 ? process->config->limits.memory_bytes : memory_limit_default());
    uint64_t clients = sum(process, peers, METRIC_memory_input_bytes) + sum(process, peers, METRIC_memory_commands_bytes);
    put_line(text, "mem_clients_normal", clients + sum(process, peers, METRIC_memory_replies_bytes) + sum(process, peers, METRIC_memory_output_bytes));
    put_line(text, "zgateway_arena_bytes", sum(process, peers, METRIC_arena_bytes));
}

static void write_stats(const struct process *process, const struct core_peer *peers, struct resp_writer *text)
{
    put_line(text, "total_connections_received", sum(process, peers, METRIC_accepts_total));
    put_line(text, "total_commands_processed", sum(process, peers, METRIC_requests_total));
    put_line(text, "instantaneous_ops_per_sec", atomic_load_explicit(&process->ops_per_second, memory_order_relaxed));
    put_line(text, "total_net_input_bytes", sum(process, peers, METRIC_bytes_from_clients_total));
    put_line(text, "total_net_output_bytes", sum(process, peers, METRIC_bytes_to_clients_total));
    put_line(text, "rejected_connections", sum(process, peers, METRIC_accept_errors_total));
    put_line(text, "total_error_replies", sum(process, peers, METRIC_request_errors_total));
}

static void write_cpu(struct resp_writer *text)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return;
    put_line_float(text, "used_cpu_sys", (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6);
    put_line_float(text, "used_cpu_user", (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6);
}

static void write_gateway(const struct process *process, const struct core_peer *peers, uint64_t now_ns, struct resp_writer *text)
{
    put_line(text, "zgateway_data_cores", process->shared.data_cores);
    put_line(text, "zgateway_uptime_seconds", (now_ns - process->started_ns) / 1000000000u);
    put_line(text, "zgateway_allocations_total", alloc_calls_count());
    for (int i = 0; i < METRIC_COUNT; i++) {
        char name[96];
        (void)snprintf(name, sizeof(name), "zgateway_%s", metric_info((enum metric)i)->name);
        put_line(text, name, sum(process, peers, (enum metric)i));
    }
    struct histogram_view *view = alloc_zeroed(2 * sizeof(*view));
    for (uint32_t i = 0; i < process->shared.data_cores; i++) {
        histogram_view_add(&view[0], &peers[i].metrics->request_us);
        histogram_view_add(&view[1], &peers[i].metrics->batch_legs);
    }
    put_line(text, "zgateway_request_p50_us", histogram_view_quantile(&view[0], 0.50));
    put_line(text, "zgateway_request_p99_us", histogram_view_quantile(&view[0], 0.99));
    put_line(text, "zgateway_request_p999_us", histogram_view_quantile(&view[0], 0.999));
    put_line_float(text, "zgateway_batch_legs_avg", view[1].count > 0 ? (double)view[1].sum / (double)view[1].count : 0.0);
    put_line(text, "zgateway_batch_legs_p99", histogram_view_quantile(&view[1], 0.99));
    alloc_free(view);
}

void info_write_section(const struct process *process, const struct core_peer *peers, const char *section, uint64_t now_ns, struct resp_writer *text)
{
    if (strcmp(section, "clients") == 0)
        write_clients(process, peers, text);
    else if (strcmp(section, "memory") == 0)
        write_memory(process, peers, text);
    else if (strcmp(section, "stats") == 0)
        write_stats(process, peers, text);
    else if (strcmp(section, "cpu") == 0)
        write_cpu(text);
    else if (strcmp(section, "zgateway") == 0)
        write_gateway(process, peers, now_ns, text);
    else if (strcmp(section, "server") == 0)
        put_line(text, "uptime_in_seconds", (now_ns - process->started_ns) / 1000000000u);
}

void info_client_list(void *context, struct resp_writer *text, const struct session *self)
{
    /* A connection sees itself alone: others may belong to other tenants. */
    struct net *net = context;
    char peer[128] = "";
    char local[128] = "";
    struct session_memory memory;
    net->request_ops.client_addresses(context, peer, local, sizeof(peer));
    net->request_ops.client_memory(context, &memory);
    session_write_line(self, &net->session_env, peer, local, &memory, text);
}
