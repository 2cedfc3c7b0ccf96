/*
 * Threads are started and joined by the main thread at boot and at the end; nothing here is called on the path of a request.
 */
#include "core/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* glibc's cpu_set_t ends at 1,024 CPUs; the kernel refuses a set that is smaller than its own, so this one covers every supported machine. */
struct cpu_set {
    cpu_set_t parts[THREAD_CPUS_MAX / CPU_SETSIZE];
};
_Static_assert(sizeof(struct cpu_set) * 8 == THREAD_CPUS_MAX, "the parts are one contiguous bit set");

static void copy_name(char *destination, const char *name)
{
    size_t length = strnlen(name, THREAD_NAME_MAX);
    memcpy(destination, name, length);
    destination[length] = '\0';
}

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    /* From inside, so that the name is there before the first line of the thread's own code runs. */
    thread_set_name(thread->name);
    thread->run(thread->context);
    return NULL;
}

static enum status explain(enum status status, char *error, size_t error_bytes, const char *name, const char *what, int cpu, int code)
{
    char cpu_text[32] = "";
    char reason[128];
    if (cpu >= 0)
        (void)snprintf(cpu_text, sizeof(cpu_text), " CPU %d", cpu);
    (void)snprintf(error, error_bytes, "thread %s: %s%s: %s", name, what, cpu_text, strerror_r(code, reason, sizeof(reason)));
    return status;
}

enum status thread_start(struct thread *thread, const char *name, int cpu, thread_fn run, void *context, char *error, size_t error_bytes)
{
    ZG_CHECK(run != NULL);
    ZG_CHECK(error_bytes > 0);
    error[0] = '\0';
    *thread = (struct thread){.run = run, .context = context};
    copy_name(thread->name, name);
    if (cpu >= THREAD_CPUS_MAX)
        return explain(STATUS_INVALID, error, error_bytes, thread->name, "cannot be pinned to", cpu, EINVAL);
    pthread_attr_t attributes;
    int code = pthread_attr_init(&attributes);
    if (code != 0)
        return explain(STATUS_SYSTEM, error, error_bytes, thread->name, "cannot be started", -1, code);
    if (cpu >= 0) {
        struct cpu_set set = {0};
        CPU_SET_S((size_t)cpu, sizeof(set), set.parts);
        code = pthread_attr_setaffinity_np(&attributes, sizeof(set), set.parts);
    }
    if (code == 0)
        code = pthread_create(&thread->handle, &attributes, thread_main, thread);
    (void)pthread_attr_destroy(&attributes);
    if (code == 0)
        return STATUS_OK;
    /* EAGAIN and ENOMEM are about threads; what else can fail is the CPU set: not online, or outside the CPU set of the container. */
    if (cpu >= 0 && code != EAGAIN && code != ENOMEM)
        return explain(STATUS_INVALID, error, error_bytes, thread->name, "cannot be pinned to", cpu, code);
    return explain(STATUS_SYSTEM, error, error_bytes, thread->name, "cannot be started", -1, code);
}

enum status thread_pin_self(int cpu, char *error, size_t error_bytes)
{
    struct cpu_set set = {0};
    char reason[128];
    ZG_CHECK(error_bytes > 0);
    if (cpu >= 0 && cpu < THREAD_CPUS_MAX) {
        CPU_SET_S((size_t)cpu, sizeof(set), set.parts);
        if (sched_setaffinity(0, sizeof(set), set.parts) == 0)
            return STATUS_OK;
    } else {
        errno = EINVAL;
    }
    (void)snprintf(error, error_bytes, "cannot be pinned to CPU %d: %s", cpu, strerror_r(errno, reason, sizeof(reason)));
    return STATUS_INVALID;
}

void thread_join(struct thread *thread)
{
    ZG_CHECK(thread->run != NULL);
    int code = pthread_join(thread->handle, NULL);
    ZG_CHECK(code == 0);
    thread->run = NULL;
}

void thread_set_name(const char *name)
{
    char text[THREAD_NAME_MAX + 1];
    copy_name(text, name);
    /* A name is a convenience: where /proc forbids it the thread runs all the same. */
    (void)pthread_setname_np(pthread_self(), text);
}

uint32_t thread_cpus(uint16_t *cpus, uint32_t cpus_max)
{
    struct cpu_set set = {0};
    uint32_t count = 0;
    if (sched_getaffinity(0, sizeof(set), set.parts) != 0)
        return 0;
    for (uint32_t cpu = 0; cpu < THREAD_CPUS_MAX && count < cpus_max; cpu++) {
        if (CPU_ISSET_S(cpu, sizeof(set), set.parts))
            cpus[count++] = (uint16_t)cpu;
    }
    return count;
}

uint32_t thread_cpus_count(void)
{
    struct cpu_set set = {0};
    if (sched_getaffinity(0, sizeof(set), set.parts) != 0)
        return 1;
    int count = CPU_COUNT_S(sizeof(set), set.parts);
    return count > 0 ? (uint32_t)count : 1;
}

int thread_times_open(void)
{
    return open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

bool thread_times(int fd, uint64_t *run_ns, uint64_t *delayed_ns)
{
    char text[96];
    ssize_t length = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
    if (length <= 0)
        return false;
    text[length] = '\0';
    char *end;
    *run_ns = strtoull(text, &end, 10);
    *delayed_ns = strtoull(end, NULL, 10);
    return end != text;
}
