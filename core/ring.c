/*
 * Owns: one io_uring and its table of direct descriptors. Runs on: the core thread that opened it.
 *
 * Waiting is done with the plain system call instead of liburing's wrappers, because the minimum wait time (kernel 6.12) is a field of the extended argument that
 * liburing 2.3 does not know.
 */
#include "core/ring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"

enum { KERNEL_MAJOR_MIN = 6, KERNEL_MINOR_MIN = 1, FEAT_MIN_TIMEOUT = 1u << 15, FILES_RESERVE = 64 };

/* struct io_uring_getevents_arg of kernel 6.12: what liburing 2.3 calls `pad` holds the minimum wait. */
struct wait_argument {
    uint64_t sigmask;
    uint32_t sigmask_bytes;
    uint32_t min_wait_usec;
    uint64_t timeout;
};
_Static_assert(sizeof(struct wait_argument) == sizeof(struct io_uring_getevents_arg), "the kernel's layout");

/* The first two numbers of "6.1.0-13-amd64"; false where it does not begin with them. */
static bool parse_release(const char *release, unsigned long *major, unsigned long *minor)
{
    char *end;
    *major = strtoul(release, &end, 10);
    if (end == release || *end != '.')
        return false;
    const char *second = end + 1;
    *minor = strtoul(second, &end, 10);
    return end != second;
}

static bool kernel_is_supported(char *release, size_t release_bytes)
{
    struct utsname name;
    unsigned long major, minor;
    if (uname(&name) != 0 || !parse_release(name.release, &major, &minor))
        return false;
    (void)snprintf(release, release_bytes, "%s", name.release);
    return major > KERNEL_MAJOR_MIN || (major == KERNEL_MAJOR_MIN && minor >= KERNEL_MINOR_MIN);
}

static void explain_failure(int code, const char *release, char *error, size_t error_bytes)
{
    if (code == EPERM || code == EACCES)
        (void)snprintf(error, error_bytes,
            "io_uring is forbidden here (%s): check the sysctl kernel.io_uring_disabled (must be 0) and, in a container, its seccomp profile",
            strerror(code));
    else if (code == ENOSYS)
        (void)snprintf(error, error_bytes, "the kernel (%s) has no io_uring; 6.1 or newer is needed", release);
    else if (code == ENOMEM)
        (void)snprintf(error, error_bytes, "io_uring could not be set up: %s; raise the limit of locked memory (ulimit -l) or lower ring.entries", strerror(code));
    else
        (void)snprintf(error, error_bytes, "io_uring could not be set up: %s", strerror(code));
}

static uint32_t files_limit(uint32_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return wanted;
    rlim_t room = limit.rlim_cur > FILES_RESERVE * 2 ? limit.rlim_cur - FILES_RESERVE : limit.rlim_cur / 2;
    return room < wanted ? (uint32_t)room : wanted;
}

static int open_table(struct ring *ring)
{
    int code = io_uring_register_files_sparse(&ring->uring, ring->files_max);
    if (code < 0)
        return code;
    ring->free_files = alloc_zeroed(ring->files_max * sizeof(*ring->free_files));
    for (uint32_t i = 0; i < ring->files_max; i++)
        ring->free_files[i] = ring->files_max - 1 - i;
    return 0;
}

static bool op_is_supported(struct ring *ring, int op)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring->uring);
    if (probe == NULL)
        return false;
    bool supported = io_uring_opcode_supported(probe, op) != 0;
    io_uring_free_probe(probe);
    return supported;
}

enum status ring_open(struct ring *ring, const struct ring_options *options, char *error, size_t error_bytes)
{
    char release[65] = "unknown";
    memset(ring, 0, sizeof(*ring));
    ring->uring.ring_fd = -1;
    if (!kernel_is_supported(release, sizeof(release))) {
        (void)snprintf(error, error_bytes, "kernel %s is too old: zgateway needs Linux 6.1 or newer", release);
        return STATUS_UNSUPPORTED_KERNEL;
    }

    struct io_uring_params params = {.cq_entries = options->completions};
    params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER;
    if (options->allowed.defer_taskrun)
        params.flags |= IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    else
        params.flags |= IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    int code = io_uring_queue_init_params(options->entries, &ring->uring, &params);
    if (code < 0) {
        explain_failure(-code, release, error, error_bytes);
        return code == -EPERM || code == -EACCES || code == -ENOSYS ? STATUS_UNSUPPORTED_KERNEL : STATUS_SYSTEM;
    }

    ring->features = options->allowed;
    ring->features.min_wait = options->allowed.min_wait && (params.features & FEAT_MIN_TIMEOUT) != 0;
    ring->features.msg_ring = options->allowed.msg_ring && op_is_supported(ring, IORING_OP_MSG_RING);
    uint32_t files = files_limit(options->files_max);
    /* Plain descriptors are the process's: what one core takes no other has. */
    if (!ring->features.direct_descriptors && files > files_limit(UINT32_MAX) / options->rings_count)
        files = files_limit(UINT32_MAX) / options->rings_count;
    ring->files_max = files;
    ring->free_files_count = files;
    if (ring->features.direct_descriptors) {
        code = open_table(ring);
        if (code < 0) {
            explain_failure(-code, release, error, error_bytes);
            io_uring_queue_exit(&ring->uring);
            return STATUS_SYSTEM;
        }
    }
    return STATUS_OK;
}

void ring_close(struct ring *ring)
{
    io_uring_queue_exit(&ring->uring);
    alloc_free(ring->free_files);
    memset(ring, 0, sizeof(*ring));
}

/* Makes queued entries visible to the kernel; returns how many it has not taken yet. */
static unsigned flush_submissions(struct ring *ring)
{
    struct io_uring_sq *sq = &ring->uring.sq;
    unsigned tail = *sq->ktail;
    while (sq->sqe_head != sq->sqe_tail) {
        sq->array[tail & sq->ring_mask] = sq->sqe_head & sq->ring_mask;
        tail++;
        sq->sqe_head++;
    }
    io_uring_smp_store_release(sq->ktail, tail);
    return tail - io_uring_smp_load_acquire(sq->khead);
}

static int enter(struct ring *ring, unsigned submit, unsigned completions_min, unsigned flags, struct wait_argument *argument)
{
    ring->submits++;
    if (argument != NULL)
        flags |= IORING_ENTER_EXT_ARG;
    long result = syscall(__NR_io_uring_enter, ring->uring.ring_fd, submit, completions_min, flags, argument, argument != NULL ? sizeof(*argument) : 0);
    return result < 0 ? -errno : (int)result;
}

void ring_submit(struct ring *ring)
{
    for (;;) {
        unsigned count = flush_submissions(ring);
        if (count == 0)
            return;
        int code = enter(ring, count, 0, 0, NULL);
        if (code >= 0)
            continue;
        /* EBUSY, EAGAIN: completions must be taken first; GETEVENTS moves overflowed ones. The queue is the caller's to reap: leave the rest for later. */
        ZG_CHECK(code == -EINTR || code == -EAGAIN || code == -EBUSY);
        (void)enter(ring, 0, 0, IORING_ENTER_GETEVENTS, NULL);
        if (code != -EINTR)
            return;
    }
}

struct io_uring_sqe *ring_sqe(struct ring *ring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    for (int attempt = 0; sqe == NULL; attempt++) {
        ZG_CHECK(attempt < 1000);
        ring_submit(ring);
        sqe = io_uring_get_sqe(&ring->uring);
    }
    return sqe;
}

void ring_wait(struct ring *ring, uint32_t completions_min, uint64_t min_wait_ns, uint64_t timeout_ns)
{
    unsigned submit = flush_submissions(ring);
    struct __kernel_timespec timeout = {.tv_sec = (long long)(timeout_ns / 1000000000u), .tv_nsec = (long long)(timeout_ns % 1000000000u)};
    struct wait_argument argument = {.timeout = timeout_ns == UINT64_MAX ? 0 : (uint64_t)(uintptr_t)&timeout};
    if (min_wait_ns > 0 && ring->features.min_wait)
        argument.min_wait_usec = (uint32_t)((min_wait_ns + 999) / 1000);
    int code = enter(ring, submit, completions_min, IORING_ENTER_GETEVENTS, completions_min > 0 ? &argument : NULL);
    ZG_CHECK(code >= 0 || code == -ETIME || code == -EINTR || code == -EAGAIN || code == -EBUSY);
}

bool ring_has_work(const struct ring *ring)
{
    const struct io_uring_cq *cq = &ring->uring.cq;
    unsigned flags = __atomic_load_n(ring->uring.sq.kflags, __ATOMIC_ACQUIRE);
    return io_uring_smp_load_acquire(cq->ktail) != *cq->khead || (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

enum status ring_install(struct ring *ring, int fd, struct ring_file *file)
{
    file->number = -1;
    if (ring->free_files_count == 0) {
        close(fd);
        return STATUS_FULL;
    }
    if (!ring->features.direct_descriptors) {
        file->number = fd;
        ring->free_files_count--;
        return STATUS_OK;
    }
    uint32_t place = ring->free_files[ring->free_files_count - 1];
    int code = io_uring_register_files_update(&ring->uring, place, &fd, 1);
    close(fd);
    if (code < 0)
        return STATUS_SYSTEM;
    ring->free_files_count--;
    file->number = (int32_t)place;
    return STATUS_OK;
}

void ring_file_freed(struct ring *ring, struct ring_file file)
{
    ZG_CHECK(ring->free_files_count < ring->files_max);
    if (ring->features.direct_descriptors)
        ring->free_files[ring->free_files_count] = (uint32_t)file.number;
    ring->free_files_count++;
}
