/*
 * Receive buffers: what is lent is replaced, what the arena cannot give is owed and repaid.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/rx_ring.h"

TestSuite(rx_ring);

enum { BUFFERS = 4, BLOCK = 1024, MIB = 1 << 20 };

struct fixture {
    struct ring ring;
    struct rx_ring rx;
    struct arena *arena;
    struct ring_file file;
    int peer;
    struct block *fill; /* takes what is left of the arena */
};

static void open_fixture(struct fixture *fixture, uint32_t count)
{
    char error[256] = "";
    struct ring_options options = {.allowed = {.defer_taskrun = true, .direct_descriptors = true, .multishot_recv = true}, .entries = 64, .completions = 256, .files_max = 8, .rings_count = 1};
    int pair[2];
    memset(fixture, 0, sizeof(*fixture));
    cr_assert_eq(ring_open(&fixture->ring, &options, error, sizeof(error)), STATUS_OK, "%s", error);
    fixture->arena = arena_create(0, MIB);
    cr_assert_eq(rx_ring_open(&fixture->rx, &fixture->ring, fixture->arena, count, BLOCK), STATUS_OK);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(ring_install(&fixture->ring, pair[0], &fixture->file), STATUS_OK);
    fixture->peer = pair[1];
}

static void fill_arena(struct fixture *fixture)
{
    for (uint32_t size = 512 * 1024; size >= 8; size /= 2)
        for (struct block *block; (block = arena_get(fixture->arena, size)) != NULL; fixture->fill = block)
            block->next = fixture->fill;
}

static void empty_arena(struct fixture *fixture)
{
    while (fixture->fill != NULL) {
        struct block *next = fixture->fill->next;
        arena_put(fixture->arena, &fixture->fill);
        fixture->fill = next;
    }
}

static void close_fixture(struct fixture *fixture)
{
    empty_arena(fixture);
    rx_ring_close(&fixture->rx, &fixture->ring);
    close(fixture->peer);
    ring_close(&fixture->ring);
    cr_expect_eq(arena_bytes_held(fixture->arena), 0);
    arena_destroy(&fixture->arena);
}

/* Sends text and receives it: the buffer's id, or -errno. */
static int receive(struct fixture *fixture, const char *text)
{
    struct io_uring_cqe *cqe = NULL;
    struct io_uring_sqe *sqe = ring_sqe(&fixture->ring);
    io_uring_prep_recv(sqe, fixture->file.number, NULL, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT | IOSQE_FIXED_FILE;
    sqe->buf_group = RX_GROUP;
    cr_assert_eq(write(fixture->peer, text, strlen(text)), (ssize_t)strlen(text));
    for (int i = 0; i < 20 && io_uring_peek_cqe(&fixture->ring.uring, &cqe) != 0; i++)
        ring_wait(&fixture->ring, 1, 0, 100000000);
    cr_assert_not_null(cqe);
    int result = cqe->res;
    uint32_t flags = cqe->flags;
    io_uring_cqe_seen(&fixture->ring.uring, cqe);
    if (result < 0)
        return result;
    cr_assert_neq(flags & IORING_CQE_F_BUFFER, 0);
    uint32_t id = flags >> IORING_CQE_BUFFER_SHIFT;
    cr_assert_lt(id, fixture->rx.count);
    cr_assert_eq((size_t)result, strlen(text));
    cr_expect_eq(memcmp(rx_ring_block(&fixture->rx, id)->data, text, strlen(text)), 0);
    return (int)id;
}

static void drain_peer(struct fixture *fixture)
{
    struct io_uring_cqe *cqe = NULL;
    char bytes[64];
    struct io_uring_sqe *sqe = ring_sqe(&fixture->ring);
    io_uring_prep_recv(sqe, fixture->file.number, bytes, sizeof(bytes), 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    for (int i = 0; i < 20 && io_uring_peek_cqe(&fixture->ring.uring, &cqe) != 0; i++)
        ring_wait(&fixture->ring, 1, 0, 100000000);
    cr_assert_not_null(cqe);
    io_uring_cqe_seen(&fixture->ring.uring, cqe);
}

Test(rx_ring, buffers_go_round)
{
    struct fixture fixture;
    open_fixture(&fixture, BUFFERS);
    uint64_t held = arena_bytes_held(fixture.arena);
    cr_expect_eq(fixture.rx.buffer_bytes, BLOCK - sizeof(struct block));
    for (int i = 0; i < 5 * BUFFERS; i++) {
        int id = receive(&fixture, "abc");
        cr_assert_geq(id, 0);
        rx_ring_recycle(&fixture.rx, (uint32_t)id);
        rx_ring_publish(&fixture.rx);
    }
    cr_expect(arena_bytes_held(fixture.arena) == held && fixture.rx.owed_count == 0 && fixture.rx.pending == 0);
    close_fixture(&fixture);
}

Test(rx_ring, without_a_free_buffer_the_kernel_says_so)
{
    struct fixture fixture;
    int ids[BUFFERS];
    open_fixture(&fixture, BUFFERS);
    for (int i = 0; i < BUFFERS; i++) {
        ids[i] = receive(&fixture, "abc");
        cr_assert_geq(ids[i], 0);
        for (int j = 0; j < i; j++)
            cr_expect_neq(ids[i], ids[j]);
    }
    cr_expect_eq(receive(&fixture, "d"), -ENOBUFS);
    /* Recycled, but not handed over yet. */
    rx_ring_recycle(&fixture.rx, (uint32_t)ids[2]);
    cr_expect_eq(receive(&fixture, "e"), -ENOBUFS);
    rx_ring_publish(&fixture.rx);
    drain_peer(&fixture);
    cr_expect_eq(receive(&fixture, "f"), ids[2]);
    for (int i = 0; i < BUFFERS; i++)
        rx_ring_recycle(&fixture.rx, (uint32_t)ids[i]);
    rx_ring_publish(&fixture.rx);
    close_fixture(&fixture);
}

Test(rx_ring, lent_buffer_is_replaced_and_keeps_its_bytes)
{
    struct fixture fixture;
    struct block *lent[3 * BUFFERS];
    open_fixture(&fixture, BUFFERS);
    for (int i = 0; i < 3 * BUFFERS; i++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "bytes %d", i);
        int id = receive(&fixture, text);
        cr_assert_geq(id, 0, "a slow borrower does not starve the ring");
        lent[i] = block_ref(rx_ring_block(&fixture.rx, (uint32_t)id));
        rx_ring_recycle(&fixture.rx, (uint32_t)id);
        cr_expect(rx_ring_block(&fixture.rx, (uint32_t)id) != lent[i] && lent[i]->refs == 1);
        rx_ring_publish(&fixture.rx);
    }
    for (int i = 0; i < 3 * BUFFERS; i++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "bytes %d", i);
        cr_expect_eq(memcmp(lent[i]->data, text, strlen(text)), 0, "%s", text);
        arena_put(fixture.arena, &lent[i]);
    }
    close_fixture(&fixture);
}

Test(rx_ring, buffer_that_the_arena_cannot_replace_is_owed_and_repaid_later)
{
    struct fixture fixture;
    struct block *lent[BUFFERS];
    open_fixture(&fixture, BUFFERS);
    fill_arena(&fixture);
    for (int i = 0; i < BUFFERS; i++) {
        int id = receive(&fixture, "abc");
        cr_assert_geq(id, 0);
        lent[i] = block_ref(rx_ring_block(&fixture.rx, (uint32_t)id));
        rx_ring_recycle(&fixture.rx, (uint32_t)id);
        rx_ring_publish(&fixture.rx);
        cr_expect_eq(fixture.rx.owed_count, (uint32_t)i + 1);
        cr_expect_null(rx_ring_block(&fixture.rx, (uint32_t)id));
    }
    cr_expect_eq(receive(&fixture, "d"), -ENOBUFS);
    rx_ring_publish(&fixture.rx);
    cr_expect_eq(fixture.rx.owed_count, (uint32_t)BUFFERS, "still nothing to be had");
    /* One loan ends: one buffer is there again. */
    arena_put(fixture.arena, &lent[1]);
    rx_ring_publish(&fixture.rx);
    cr_expect_eq(fixture.rx.owed_count, (uint32_t)BUFFERS - 1);
    drain_peer(&fixture);
    int id = receive(&fixture, "e");
    cr_expect_geq(id, 0);
    rx_ring_recycle(&fixture.rx, (uint32_t)id);
    empty_arena(&fixture);
    rx_ring_publish(&fixture.rx);
    cr_expect_eq(fixture.rx.owed_count, 0);
    for (int i = 0; i < 3 * BUFFERS; i++) {
        id = receive(&fixture, "again");
        cr_assert_geq(id, 0);
        rx_ring_recycle(&fixture.rx, (uint32_t)id);
        rx_ring_publish(&fixture.rx);
    }
    for (int i = 0; i < BUFFERS; i++)
        if (lent[i] != NULL)
            arena_put(fixture.arena, &lent[i]);
    close_fixture(&fixture);
}

Test(rx_ring, owed_buffers_are_no_hindrance_to_closing)
{
    struct fixture fixture;
    open_fixture(&fixture, BUFFERS);
    fill_arena(&fixture);
    int id = receive(&fixture, "abc");
    struct block *lent = block_ref(rx_ring_block(&fixture.rx, (uint32_t)id));
    rx_ring_recycle(&fixture.rx, (uint32_t)id);
    cr_expect_eq(fixture.rx.owed_count, 1);
    arena_put(fixture.arena, &lent);
    close_fixture(&fixture);
}

Test(rx_ring, arena_that_gives_some_buffers_is_enough_to_begin)
{
    struct fixture fixture;
    open_fixture(&fixture, 2048); /* 2 MiB of 1 MiB */
    cr_expect(fixture.rx.owed_count > 0 && fixture.rx.owed_count < 2048);
    int id = receive(&fixture, "abc");
    cr_expect_geq(id, 0);
    rx_ring_recycle(&fixture.rx, (uint32_t)id);
    close_fixture(&fixture);
}

Test(rx_ring, open_without_memory_fails_and_leaves_nothing)
{
    struct fixture fixture;
    struct rx_ring rx;
    char error[256] = "";
    struct ring_options options = {.entries = 64, .completions = 256, .files_max = 8, .rings_count = 1};
    memset(&fixture, 0, sizeof(fixture));
    cr_assert_eq(ring_open(&fixture.ring, &options, error, sizeof(error)), STATUS_OK, "%s", error);
    fixture.arena = arena_create(0, MIB);
    fill_arena(&fixture);
    cr_expect_eq(rx_ring_open(&rx, &fixture.ring, fixture.arena, BUFFERS, BLOCK), STATUS_NO_MEMORY);
    cr_expect_null(rx.ring);
    empty_arena(&fixture);
    /* The group is free again. */
    cr_assert_eq(rx_ring_open(&rx, &fixture.ring, fixture.arena, BUFFERS, BLOCK), STATUS_OK);
    struct rx_ring second;
    cr_expect_eq(rx_ring_open(&second, &fixture.ring, fixture.arena, BUFFERS, BLOCK), STATUS_SYSTEM);
    cr_expect_null(second.ring);
    rx_ring_close(&rx, &fixture.ring);
    rx_ring_close(&rx, &fixture.ring); /* what is closed may be closed again */
    ring_close(&fixture.ring);
    arena_destroy(&fixture.arena);
}

Test(rx_ring, recycling_a_buffer_that_is_owed_ends_the_process, .signal = SIGABRT)
{
    struct fixture fixture;
    open_fixture(&fixture, BUFFERS);
    fill_arena(&fixture);
    int id = receive(&fixture, "abc");
    (void)block_ref(rx_ring_block(&fixture.rx, (uint32_t)id));
    rx_ring_recycle(&fixture.rx, (uint32_t)id);
    rx_ring_recycle(&fixture.rx, (uint32_t)id);
}

Test(rx_ring, count_that_is_no_power_of_two_ends_the_process, .signal = SIGABRT)
{
    struct fixture fixture;
    open_fixture(&fixture, 3);
}
