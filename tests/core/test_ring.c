/*
 * One io_uring: each feature off in turn, the table of descriptors to its end, waiting. That a kernel is too old cannot be tested here.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/ring.h"

TestSuite(ring);

static const struct ring_features all = {true, true, true, true, true, true};

static struct ring_options options_of(struct ring_features allowed)
{
    return (struct ring_options){.allowed = allowed, .entries = 64, .completions = 256, .files_max = 32, .rings_count = 1};
}

static void open_ring(struct ring *ring, const struct ring_options *options)
{
    char error[256] = "";
    cr_assert_eq(ring_open(ring, options, error, sizeof(error)), STATUS_OK, "%s", error);
}

/* The next completion, which must come within two seconds. */
static struct io_uring_cqe next_completion(struct ring *ring)
{
    struct io_uring_cqe *cqe = NULL;
    for (int i = 0; i < 20 && io_uring_peek_cqe(&ring->uring, &cqe) != 0; i++)
        ring_wait(ring, 1, 0, 100000000);
    cr_assert_not_null(cqe, "no completion");
    struct io_uring_cqe copy = {.user_data = cqe->user_data, .res = cqe->res, .flags = cqe->flags};
    io_uring_cqe_seen(&ring->uring, cqe);
    return copy;
}

/* A socket in the ring receives, and closing it gives its place back. */
static void expect_socket_works(struct ring *ring)
{
    int pair[2];
    char bytes[16] = "";
    struct ring_file file;
    uint32_t places = ring->free_files_count;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(ring_install(ring, pair[0], &file), STATUS_OK);
    cr_expect_geq(file.number, 0);
    cr_expect_eq(ring->free_files_count, places - 1);

    struct io_uring_sqe *sqe = ring_sqe(ring);
    io_uring_prep_recv(sqe, file.number, bytes, sizeof(bytes), 0);
    sqe->flags |= ring_file_flags(ring);
    io_uring_sqe_set_data64(sqe, 17);
    ring_submit(ring);
    cr_assert_eq(write(pair[1], "hello", 5), 5);
    struct io_uring_cqe cqe = next_completion(ring);
    cr_expect(cqe.user_data == 17 && cqe.res == 5 && memcmp(bytes, "hello", 5) == 0, "res=%d", cqe.res);

    sqe = ring_sqe(ring);
    if (ring->features.direct_descriptors)
        io_uring_prep_close_direct(sqe, (unsigned)file.number);
    else
        io_uring_prep_close(sqe, file.number);
    io_uring_sqe_set_data64(sqe, 18);
    cqe = next_completion(ring);
    cr_expect(cqe.user_data == 18 && cqe.res == 0, "res=%d", cqe.res);
    ring_file_freed(ring, file);
    cr_expect_eq(ring->free_files_count, places);
    cr_expect_eq(read(pair[1], bytes, sizeof(bytes)), 0, "the other end sees the close");
    close(pair[1]);
}

Test(ring, each_feature_can_be_switched_off)
{
    for (int off = -1; off < 6; off++) {
        struct ring ring;
        struct ring_features allowed = all;
        bool *const fields[] = {&allowed.defer_taskrun, &allowed.direct_descriptors, &allowed.multishot_accept, &allowed.multishot_recv, &allowed.min_wait, &allowed.msg_ring};
        if (off >= 0)
            *fields[off] = false;
        struct ring_options options = options_of(allowed);
        open_ring(&ring, &options);
        const bool used[] = {ring.features.defer_taskrun, ring.features.direct_descriptors, ring.features.multishot_accept, ring.features.multishot_recv, ring.features.min_wait, ring.features.msg_ring};
        for (int i = 0; i < 6; i++)
            cr_expect(i != off || !used[i], "%d", i);
        cr_expect_eq(ring_file_flags(&ring) != 0, ring.features.direct_descriptors);
        cr_expect_eq(ring.free_files != NULL, ring.features.direct_descriptors);
        expect_socket_works(&ring);
        ring_close(&ring);
        cr_expect_null(ring.free_files);
    }
}

Test(ring, nothing_but_the_minimum_is_enough)
{
    struct ring ring;
    struct ring_options options = options_of((struct ring_features){0});
    open_ring(&ring, &options);
    expect_socket_works(&ring);
    ring_close(&ring);
}

static void expect_full_table(bool direct)
{
    struct ring ring;
    struct ring_features allowed = all;
    allowed.direct_descriptors = direct;
    struct ring_options options = options_of(allowed);
    struct ring_file files[32], file;
    open_ring(&ring, &options);
    cr_assert_eq(ring.files_max, 32);
    for (int i = 0; i < 32; i++) {
        cr_assert_eq(ring_install(&ring, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), &files[i]), STATUS_OK);
        for (int j = 0; j < i; j++)
            cr_assert_neq(files[i].number, files[j].number);
    }
    int refused = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_expect_eq(ring_install(&ring, refused, &file), STATUS_FULL);
    cr_expect_eq(file.number, -1);
    cr_expect(close(refused) == -1 && errno == EBADF, "it was taken and closed");
    /* One place is enough to go on. */
    if (direct) {
        io_uring_prep_close_direct(ring_sqe(&ring), (unsigned)files[7].number);
        cr_assert_eq(next_completion(&ring).res, 0);
    } else {
        close(files[7].number);
    }
    ring_file_freed(&ring, files[7]);
    cr_expect_eq(ring_install(&ring, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), &file), STATUS_OK);
    if (direct)
        cr_expect_eq(file.number, files[7].number);
    cr_expect_eq(ring_install(&ring, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), &file), STATUS_FULL);
    ring_close(&ring);
}

Test(ring, table_of_direct_descriptors_is_full_and_recovers)
{
    expect_full_table(true);
}

Test(ring, plain_descriptors_are_bounded_too)
{
    expect_full_table(false);
}

Test(ring, descriptor_that_is_none_is_refused_and_takes_no_place)
{
    struct ring ring;
    struct ring_file file;
    struct ring_options options = options_of(all);
    open_ring(&ring, &options);
    int fd = dup(STDERR_FILENO);
    close(fd);
    cr_expect_eq(ring_install(&ring, fd, &file), STATUS_SYSTEM);
    cr_expect(file.number == -1 && ring.free_files_count == 32);
    ring_close(&ring);
}

Test(ring, freeing_more_places_than_there_are_ends_the_process, .signal = SIGABRT)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    open_ring(&ring, &options);
    ring_file_freed(&ring, (struct ring_file){.number = 0});
}

Test(ring, files_are_cut_to_the_limit_of_open_files)
{
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 256;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (uint32_t rings_count = 1; rings_count <= 4; rings_count *= 2) {
        struct ring ring;
        struct ring_options options = options_of(all);
        options.files_max = 100000;
        options.rings_count = rings_count;
        open_ring(&ring, &options);
        cr_expect_eq(ring.files_max, 192, "a table of its own");
        ring_close(&ring);
        options.allowed.direct_descriptors = false;
        open_ring(&ring, &options);
        cr_expect_eq(ring.files_max, 192 / rings_count, "the process's descriptors are shared");
        ring_close(&ring);
    }
}

Test(ring, more_submissions_than_entries_are_all_taken)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    open_ring(&ring, &options);
    bool seen[200] = {false};
    for (uint64_t i = 0; i < 200; i++) {
        struct io_uring_sqe *sqe = ring_sqe(&ring);
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data64(sqe, i);
    }
    cr_expect_geq(ring.submits, 3, "the queue of 64 was full three times");
    for (int i = 0; i < 200; i++)
        seen[next_completion(&ring).user_data] = true;
    for (int i = 0; i < 200; i++)
        cr_expect(seen[i], "%d", i);
    ring_close(&ring);
}

/* More completions than their queue holds are kept by the kernel and come later. */
Test(ring, overflowed_completions_are_not_lost)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    options.completions = 64;
    open_ring(&ring, &options);
    bool seen[1000] = {false};
    for (uint64_t i = 0; i < 1000; i++) {
        struct io_uring_sqe *sqe = ring_sqe(&ring);
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data64(sqe, i);
    }
    for (int i = 0; i < 1000; i++) {
        uint64_t user_data = next_completion(&ring).user_data;
        cr_assert_lt(user_data, 1000);
        cr_assert_not(seen[user_data]);
        seen[user_data] = true;
    }
    ring_close(&ring);
}

Test(ring, wait_ends_at_its_time_out)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    open_ring(&ring, &options);
    uint64_t begin_ns = clock_monotonic_ns();
    ring_wait(&ring, 1, 0, 20000000);
    uint64_t waited_ns = clock_monotonic_ns() - begin_ns;
    cr_expect_geq(waited_ns, 20000000);
    cr_expect_lt(waited_ns, UINT64_C(5000000000));
    begin_ns = clock_monotonic_ns();
    ring_wait(&ring, 0, 0, UINT64_MAX); /* waits for nothing */
    cr_expect_lt(clock_monotonic_ns() - begin_ns, UINT64_C(5000000000));
    ring_close(&ring);
}

/* With a minimum wait the call returns after that time with the few completions there are; without kernel support it waits for all of them, up to the time-out. */
Test(ring, minimum_wait_returns_with_what_is_there)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    open_ring(&ring, &options);
    io_uring_prep_nop(ring_sqe(&ring));
    uint64_t begin_ns = clock_monotonic_ns();
    ring_wait(&ring, 100, 2000000, 400000000);
    uint64_t waited_ns = clock_monotonic_ns() - begin_ns;
    cr_expect_eq(io_uring_cq_ready(&ring.uring), 1);
    if (ring.features.min_wait)
        cr_expect_lt(waited_ns, 350000000);
    else
        cr_expect_geq(waited_ns, 400000000);
    ring_close(&ring);
}

Test(ring, work_is_seen_without_a_system_call)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    int pair[2];
    char bytes[8];
    struct ring_file file;
    open_ring(&ring, &options);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(ring_install(&ring, pair[0], &file), STATUS_OK);
    struct io_uring_sqe *sqe = ring_sqe(&ring);
    io_uring_prep_recv(sqe, file.number, bytes, sizeof(bytes), 0);
    sqe->flags |= ring_file_flags(&ring);
    ring_submit(&ring);
    cr_expect_not(ring_has_work(&ring));
    cr_assert_eq(write(pair[1], "x", 1), 1);
    for (uint64_t end_ns = clock_monotonic_ns() + UINT64_C(5000000000); !ring_has_work(&ring) && clock_monotonic_ns() < end_ns;)
        ;
    cr_expect(ring_has_work(&ring));
    cr_expect_eq(next_completion(&ring).res, 1);
    cr_expect_not(ring_has_work(&ring));
    close(pair[1]);
    ring_close(&ring);
}

Test(ring, user_data_holds_operation_generation_and_index)
{
    static const struct pool_item items[] = {{0, 1}, {1, 0xffffff}, {0xffffff, 1}, {123456, 654321}};
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
        static const uint8_t ops[] = {RING_OP_ACCEPT, RING_OP_CONN_CLOSE, RING_OP_CONN_RECV | RING_OP_LINK_BIT, RING_OP_CONN_CLOSE | RING_OP_LINK_BIT};
        for (size_t j = 0; j < sizeof(ops); j++) {
            uint64_t user_data = ring_user_data(ops[j], &items[i]);
            cr_expect_eq(user_data >> 56, ops[j]);
            cr_expect_eq(user_data & UINT64_C(0x00ffffffffffffff), pool_handle_of(&items[i]).value);
            cr_expect_lt((uint8_t)(user_data >> 56) & (uint8_t)~RING_OP_LINK_BIT, RING_OP_COUNT);
        }
    }
    cr_expect_eq(ring_user_data_plain(RING_OP_DOORBELL, 1), (uint64_t)RING_OP_DOORBELL << 56 | 1);
    cr_expect_lt(RING_OP_COUNT, RING_OP_LINK_BIT);
}

Test(ring, entries_beyond_the_kernels_maximum_are_clamped)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    options.entries = 1 << 20;
    options.completions = 1 << 22;
    char error[256] = "";
    enum status status = ring_open(&ring, &options, error, sizeof(error));
    /* Locked memory may not suffice for it; then a text says what to do. */
    if (status == STATUS_OK) {
        cr_expect_leq(ring.uring.sq.ring_entries, 32768);
        ring_close(&ring);
    } else {
        cr_expect(status == STATUS_SYSTEM && strstr(error, "ring.entries") != NULL, "%s", error);
    }
}

Test(ring, ring_without_a_free_descriptor_says_why)
{
    struct ring ring;
    struct ring_options options = options_of(all);
    char error[256] = "";
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum status status = ring_open(&ring, &options, error, sizeof(error));
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_expect_eq(status, STATUS_SYSTEM);
    cr_expect_not_null(strstr(error, "Too many open files"), "%s", error);
}
