/*
 * zgateway: a gateway tier for Redis-protocol clients. This file starts the threads and ends the process; what a data core does is in core/boot/worker.c.
 *
 *     main thread: configuration ─► process ─► housekeeper_open ─► threads ─► (barrier) ─► housekeeper_run ─► join ─► release
 *     data core i:                             worker_run: open    ─► (barrier) ─► loop until drained
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/boot/cli.h"
#include "core/boot/housekeeper.h"
#include "core/boot/worker.h"
#include "core/clock.h"
#include "core/thread.h"
#include "zg_build.h"

enum { LOG_RING_BYTES = 256 * 1024, EXIT_CANNOT_RUN = 1, EXIT_USAGE = 2 };

static uint32_t data_cores(const struct config *config)
{
    if (config->cores.data > 0)
        return config->cores.data;
    uint32_t cpus = thread_cpus_count();
    uint32_t cores = cpus > 1 ? cpus - 1 : 1;
    return cores < CONFIG_DATA_CORES_MAX ? cores : CONFIG_DATA_CORES_MAX;
}

static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void block_signals(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void create_process(struct process *process, const struct config *config)
{
    process->config = config;
    process->started_ns = clock_monotonic_ns();
    process->shared.data_cores = data_cores(config);
    process->shared.cores_count = process->shared.data_cores + 1;
    struct mailbox_options options = {
        .cores_count = process->shared.cores_count,
        .lane_slots = config->cores.lane_slots,
        .returns = config->cores.lane_slots / 8,
        .control = config->cores.lane_slots / 16,
    };
    process->shared.mailboxes = mailbox_group_create(&options);
    process->builtin_commands = command_table_create();
    process->facts.commands = command_table_create();
    pthread_barrier_init(&process->opened, NULL, process->shared.cores_count);
}

static void destroy_process(struct process *process)
{
    for (int i = 0; i < 2; i++) {
        alloc_free(process->facts.command[i].bytes);
        alloc_free(process->facts.docs[i].bytes);
    }
    command_table_destroy(&process->builtin_commands);
    command_table_destroy(&process->facts.commands);
    mailbox_group_destroy(&process->shared.mailboxes);
    pthread_barrier_destroy(&process->opened);
}

static int open_log(const struct config *config)
{
    if (config->log.file[0] == '\0')
        return STDERR_FILENO;
    int fd = open(config->log.file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0)
        (void)fprintf(stderr, "zgateway: log.file %s: %s\n", config->log.file, strerror(errno));
    return fd;
}

static uint32_t start_workers(struct process *process, struct worker *workers)
{
    const struct config *config = process->config;
    for (uint32_t i = 0; i < process->shared.data_cores; i++) {
        char name[THREAD_NAME_MAX + 8];
        char error[256];
        int cpu = config->cores.cpus_count > 0 ? config->cores.cpus[i % config->cores.cpus_count] : -1;
        (void)snprintf(name, sizeof(name), "zg-data-%u", i);
        if (thread_start(&workers[i].thread, name, cpu, worker_run, &workers[i], error, sizeof(error)) != STATUS_OK) {
            (void)fprintf(stderr, "zgateway: data core %u: %s\n", i, error);
            return i;
        }
    }
    return process->shared.data_cores;
}

/* This thread, once the others run: they would inherit its CPU where they are not pinned themselves. */
static bool pin_housekeeper(const struct config *config)
{
    char error[256];
    if (config->cores.housekeeping_cpu < 0 || thread_pin_self(config->cores.housekeeping_cpu, error, sizeof(error)) == STATUS_OK)
        return true;
    (void)fprintf(stderr, "zgateway: housekeeping core: %s\n", error);
    return false;
}

static int report_failures(const struct housekeeper *housekeeper, const struct worker *workers, uint32_t count)
{
    if (housekeeper->error[0] != '\0')
        (void)fprintf(stderr, "zgateway: housekeeping core: %s\n", housekeeper->error);
    for (uint32_t i = 0; i < count; i++)
        if (workers[i].error[0] != '\0')
            (void)fprintf(stderr, "zgateway: data core %u: %s\n", i, workers[i].error);
    return EXIT_CANNOT_RUN;
}

/* What the service manager gave. Its variables are not for processes that this one might start. */
static enum status take_handed_over(struct activation *activation, struct notify *notify, const struct config *config)
{
    char error[512] = "";
    struct activation_env env = activation_env_read();
    enum status status = activation_take(activation, &env, config, error, sizeof(error));
    if (status != STATUS_OK)
        (void)fprintf(stderr, "zgateway: %s\n", error);
    else if (activation->notice[0] != '\0')
        (void)fprintf(stderr, "zgateway: %s\n", activation->notice);
    notify_open(notify);
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
    (void)unsetenv("LISTEN_FDNAMES");
    (void)unsetenv("NOTIFY_SOCKET");
    return status;
}

static int run(const struct config *config)
{
    struct activation activation;
    struct notify notify;
    if (take_handed_over(&activation, &notify, config) != STATUS_OK)
        return EXIT_CANNOT_RUN;
    int log_fd = open_log(config);
    if (log_fd < 0)
        return EXIT_CANNOT_RUN;
    log_set_level(config->log.level);
    raise_file_limit();
    block_signals();

    struct process *process = alloc_zeroed(sizeof(*process));
    create_process(process, config);
    process->activation = activation;
    uint32_t count = process->shared.data_cores;
    struct worker *workers = alloc_zeroed(count * sizeof(*workers));
    struct housekeeper *housekeeper = alloc_zeroed(sizeof(*housekeeper));
    housekeeper->process = process;
    housekeeper->notify = notify;
    housekeeper->log_fd = log_fd;
    for (uint32_t i = 0; i <= count; i++) {
        struct core *core = i < count ? &workers[i].core : &housekeeper->core;
        housekeeper->logs[i] = log_ring_create(i, LOG_RING_BYTES);
        core->id = i;
        core->log = housekeeper->logs[i];
        if (i < count)
            workers[i].process = process;
    }

    /* The ring belongs to the thread that opens it: the housekeeper runs here. */
    enum status status = housekeeper_open(housekeeper);
    if (status != STATUS_OK)
        return report_failures(housekeeper, workers, 0);
    if (start_workers(process, workers) < count || !pin_housekeeper(config))
        return EXIT_CANNOT_RUN;
    pthread_barrier_wait(&process->opened);
    if (atomic_load(&process->failed_count) > 0)
        return report_failures(housekeeper, workers, count);

    core_log(&housekeeper->core, LOG_NOTICE, "started", "version=" ZG_VERSION " data_cores=%u pid=%d sockets_handed_over=%u", count, getpid(), process->activation.count);
    housekeeper_run(housekeeper);

    for (uint32_t i = 0; i < count; i++)
        thread_join(&workers[i].thread);
    core_log(&housekeeper->core, LOG_NOTICE, "stopped", "requests=%llu", (unsigned long long)housekeeper->requests_before);
    for (uint32_t i = 0; i < count; i++)
        worker_release(&workers[i]);
    housekeeper_release(housekeeper);
    destroy_process(process);
    for (uint32_t i = 0; i < count; i++)
        core_fini(&workers[i].core);
    core_fini(&housekeeper->core);
    for (uint32_t i = 0; i <= count; i++) {
        (void)log_ring_drain(housekeeper->logs[i], log_fd);
        log_ring_destroy(&housekeeper->logs[i]);
    }
    alloc_free(workers);
    alloc_free(housekeeper);
    alloc_free(process);
    return 0;
}

int main(int argc, char **argv)
{
    struct config *config = config_create_default();
    enum cli_action action = cli_parse(argc, argv, config);
    int code = 0;
    if (action == CLI_RUN)
        code = run(config);
    else if (action == CLI_EXIT_ERROR)
        code = EXIT_USAGE;
    config_destroy(&config);
    return code;
}
