/*
 * What a connection has still to send: order and number of bytes under every mix of blocks, and that each block and each loan goes back once its bytes are sent.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "core/rng.h"
#include "net/send_queue.h"
#include "tests/net/bare_core.h"

TestSuite(send_queue);

enum { MIB = 1 << 20 };

/* The bytes of the queue, as the kernel would see them. */
static size_t flatten(const struct send_queue *queue, uint8_t *bytes, size_t max)
{
    static struct iovec pieces[4096];
    size_t length = 0;
    uint32_t count = send_queue_pieces(queue, pieces, 4096);
    cr_assert_eq(count, queue->blocks);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_leq(length + pieces[i].iov_len, max);
        memcpy(bytes + length, pieces[i].iov_base, pieces[i].iov_len);
        length += pieces[i].iov_len;
    }
    cr_assert_eq(length, queue->bytes);
    return length;
}

static void expect_queue(const struct send_queue *queue, const char *text)
{
    static uint8_t bytes[65536];
    size_t length = flatten(queue, bytes, sizeof(bytes));
    cr_expect(length == strlen(text) && memcmp(bytes, text, length) == 0, "%.*s", (int)length, (const char *)bytes);
}

static void append(struct bare_core *bare, struct send_queue *queue, const char *text)
{
    cr_assert_eq(send_queue_append(&bare->core, queue, text, (uint32_t)strlen(text)), STATUS_OK);
}

Test(send_queue, small_replies_share_a_block_that_grows_with_the_queue)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    bare_core_open(&bare, 16 * MIB);
    append(&bare, &queue, "+OK\r\n");
    append(&bare, &queue, ":1\r\n");
    append(&bare, &queue, "$-1\r\n");
    cr_expect_eq(queue.blocks, 1);
    expect_queue(&queue, "+OK\r\n:1\r\n$-1\r\n");
    /* An idle client's first block is small, since there are many of them. */
    cr_expect_eq(arena_bytes_held(bare.core.arena), (uint64_t)SEND_BLOCK_FIRST);
    while (queue.blocks == 1)
        append(&bare, &queue, "0123456789");
    cr_expect_eq(arena_bytes_held(bare.core.arena), (uint64_t)SEND_BLOCK_FIRST + SEND_BLOCK_NEXT);
    while (queue.blocks == 2)
        append(&bare, &queue, "0123456789");
    cr_expect_eq(arena_bytes_held(bare.core.arena), (uint64_t)SEND_BLOCK_FIRST + 2 * SEND_BLOCK_NEXT);
    send_queue_clear(&bare.core, &queue);
    cr_expect(queue.head == NULL && queue.tail == NULL && queue.bytes == 0 && queue.blocks == 0 && queue.head_sent == 0);
    bare_core_close(&bare);
}

Test(send_queue, reply_of_any_size_is_kept_whole)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    bare_core_open(&bare, 16 * MIB);
    static uint8_t bytes[SEND_BLOCK_NEXT + 100], seen[sizeof(bytes) + 16];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    static const uint32_t edges[] = {0, 1, SEND_BLOCK_FIRST - 32, SEND_BLOCK_FIRST, SEND_BLOCK_NEXT - 32, SEND_BLOCK_NEXT};
    for (size_t edge = 0; edge < sizeof(edges) / sizeof(edges[0]); edge++) {
        for (uint32_t length = edges[edge] < 2 ? 0 : edges[edge] - 2; length <= edges[edge] + 2; length++) {
            cr_assert_eq(send_queue_append(&bare.core, &queue, "x", 1), STATUS_OK);
            cr_assert_eq(send_queue_append(&bare.core, &queue, bytes, length), STATUS_OK);
            cr_assert_eq(send_queue_append(&bare.core, &queue, "y", 1), STATUS_OK);
            cr_assert_eq(flatten(&queue, seen, sizeof(seen)), length + 2u);
            cr_expect(seen[0] == 'x' && seen[length + 1] == 'y' && memcmp(seen + 1, bytes, length) == 0);
            send_queue_sent(&bare.core, &queue, length + 2u);
            cr_expect(queue.head == NULL && queue.bytes == 0 && queue.blocks == 0);
        }
    }
    bare_core_close(&bare);
}

Test(send_queue, partial_sends_of_every_length_continue_where_they_stopped)
{
    struct bare_core bare;
    bare_core_open(&bare, 16 * MIB);
    for (uint64_t cut = 0; cut <= 12; cut++) {
        struct send_queue queue = {0};
        append(&bare, &queue, "abc");
        struct block *held = arena_get(bare.core.arena, 10);
        memcpy(held->data, "0123456789", 10);
        struct block *reference = send_reference_own(&bare.core, held, held->data + 2, 6);
        arena_put(bare.core.arena, &held);
        send_queue_push(&queue, reference);
        append(&bare, &queue, "xyz");
        cr_assert_eq(queue.blocks, 3);
        send_queue_sent(&bare.core, &queue, cut);
        expect_queue(&queue, &"abc234567xyz"[cut]);
        send_queue_sent(&bare.core, &queue, 12 - cut);
        cr_expect(queue.head == NULL && queue.bytes == 0);
        cr_expect_eq(arena_bytes_held(bare.core.arena), 0);
    }
    bare_core_close(&bare);
}

Test(send_queue, nothing_is_appended_to_references_and_sealed_blocks)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    bare_core_open(&bare, 16 * MIB);
    struct block *sealed = arena_get(bare.core.arena, 100);
    memcpy(sealed->data, "sealed", 6);
    sealed->length = 6;
    sealed->flags = SEND_SEALED;
    send_queue_push(&queue, block_ref(sealed));
    append(&bare, &queue, "1");
    append(&bare, &queue, "2");
    cr_expect(queue.blocks == 2 && sealed->length == 6);
    struct block *reference = send_reference_own(&bare.core, sealed, sealed->data, 3);
    send_queue_push(&queue, reference);
    append(&bare, &queue, "3");
    expect_queue(&queue, "sealed12sea3");
    cr_expect_eq(queue.blocks, 4);
    send_queue_clear(&bare.core, &queue);
    cr_expect_eq(sealed->refs, 1, "only ours is left");
    arena_put(bare.core.arena, &sealed);
    bare_core_close(&bare);
}

Test(send_queue, lent_bytes_go_back_when_they_are_sent_and_not_before)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    bare_core_open(&bare, 16 * MIB);
    bare_core_lend(&bare, "lent bytes", 10);
    struct block *block = send_reference_lent(&bare.core, bare.lent_bytes, 10, 1, bare.lent_offset);
    cr_assert_not_null(block);
    send_queue_push(&queue, block);
    append(&bare, &queue, "!");
    expect_queue(&queue, "lent bytes!");
    send_queue_sent(&bare.core, &queue, 9);
    cr_expect_eq(bare_core_loans(&bare), 1);
    send_queue_sent(&bare.core, &queue, 1);
    cr_expect_eq(bare_core_loans(&bare), 0);
    send_queue_sent(&bare.core, &queue, 1);
    bare_core_close(&bare);
}

Test(send_queue, clear_gives_loans_and_references_back)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    bare_core_open(&bare, 16 * MIB);
    for (int i = 0; i < 5; i++) {
        bare_core_lend(&bare, "lent", 4);
        send_queue_push(&queue, send_reference_lent(&bare.core, bare.lent_bytes, 4, 1, bare.lent_offset));
    }
    send_queue_sent(&bare.core, &queue, 6);
    cr_expect_eq(bare_core_loans(&bare), 4);
    send_queue_clear(&bare.core, &queue);
    bare_core_close(&bare);
}

/* A leg that may be sent again shares its chunk with the link's queue: the loan ends with the last of the two. */
Test(send_queue, shared_reference_is_given_back_once_by_the_last_holder)
{
    struct bare_core bare;
    bare_core_open(&bare, 16 * MIB);
    bare_core_lend(&bare, "lent", 4);
    struct block *first = send_reference_lent(&bare.core, bare.lent_bytes, 4, 1, bare.lent_offset);
    struct block *second = block_ref(first);
    send_block_put(&bare.core, &first);
    cr_expect_null(first);
    cr_expect_eq(bare_core_loans(&bare), 1);
    send_block_put(&bare.core, &second);
    cr_expect_eq(bare_core_loans(&bare), 0);
    bare_core_close(&bare);
}

Test(send_queue, reference_to_a_reference_keeps_both)
{
    struct bare_core bare;
    bare_core_open(&bare, 16 * MIB);
    bare_core_lend(&bare, "0123456789", 10);
    struct block *inner = send_reference_lent(&bare.core, bare.lent_bytes, 10, 1, bare.lent_offset);
    struct block *outer = send_reference_own(&bare.core, inner, bare.lent_bytes + 3, 4);
    send_block_put(&bare.core, &inner);
    uint32_t length;
    cr_expect_eq(memcmp(send_block_bytes(outer, &length), "3456", 4), 0);
    cr_expect_eq(length, 4);
    cr_expect_eq(bare_core_loans(&bare), 1);
    send_block_put(&bare.core, &outer);
    cr_expect_eq(bare_core_loans(&bare), 0);
    bare_core_close(&bare);
}

Test(send_queue, pieces_are_bounded_and_begin_at_the_first_unsent_byte)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    struct iovec pieces[SEND_IOVECS_MAX + 1];
    bare_core_open(&bare, 16 * MIB);
    cr_expect_eq(send_queue_pieces(&queue, pieces, SEND_IOVECS_MAX), 0);
    struct block *held = arena_get(bare.core.arena, 100);
    memset(held->data, 'h', 100);
    for (int i = 0; i < SEND_IOVECS_MAX + 8; i++)
        send_queue_push(&queue, send_reference_own(&bare.core, held, held->data, 3));
    memset(pieces, 0, sizeof(pieces));
    send_queue_sent(&bare.core, &queue, 2);
    cr_expect_eq(send_queue_pieces(&queue, pieces, SEND_IOVECS_MAX), SEND_IOVECS_MAX);
    cr_expect(pieces[0].iov_len == 1 && pieces[0].iov_base == held->data + 2 && pieces[1].iov_len == 3);
    cr_expect_null(pieces[SEND_IOVECS_MAX].iov_base);
    cr_expect_eq(send_queue_pieces(&queue, pieces, 1), 1);
    send_queue_clear(&bare.core, &queue);
    arena_put(bare.core.arena, &held);
    bare_core_close(&bare);
}

Test(send_queue, append_beyond_the_memory_changes_nothing)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    static uint8_t bytes[2 * MIB];
    bare_core_open(&bare, 1 * MIB);
    append(&bare, &queue, "before");
    cr_expect_eq(send_queue_append(&bare.core, &queue, bytes, sizeof(bytes)), STATUS_NO_MEMORY);
    expect_queue(&queue, "before");
    append(&bare, &queue, "after");
    expect_queue(&queue, "beforeafter");
    /* Until the arena is full: then references fail too, and take nothing. */
    struct block *held = arena_get(bare.core.arena, 8), *fill = NULL;
    for (uint32_t size = 512 * 1024; size >= 8; size /= 2)
        for (struct block *block; (block = arena_get(bare.core.arena, size)) != NULL; fill = block)
            block->next = fill;
    cr_expect_null(send_reference_own(&bare.core, held, held->data, 8));
    cr_expect_eq(held->refs, 1);
    bare_core_lend(&bare, "lent", 4);
    cr_expect_null(send_reference_lent(&bare.core, bare.lent_bytes, 4, 1, bare.lent_offset));
    cr_expect_eq(bare_core_loans(&bare), 1, "the loan stays with the caller");
    mailbox_return(bare.core.mailbox, 1, bare.lent_offset);
    while (fill != NULL) {
        struct block *next = fill->next;
        arena_put(bare.core.arena, &fill);
        fill = next;
    }
    arena_put(bare.core.arena, &held);
    send_queue_clear(&bare.core, &queue);
    bare_core_close(&bare);
}

Test(send_queue, sending_more_than_there_is_ends_the_process, .signal = SIGABRT)
{
    struct bare_core bare;
    struct send_queue queue = {0};
    bare_core_open(&bare, 1 * MIB);
    append(&bare, &queue, "abc");
    send_queue_sent(&bare.core, &queue, 4);
}

/* Against a flat buffer, with every kind of block and partial sends of random length. */
Test(send_queue, random_mixes_keep_order_and_lose_nothing)
{
    static uint8_t model[256 * 1024], seen[sizeof(model)], piece[20000];
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct bare_core bare;
        struct send_queue queue = {0};
        struct rng rng = {.state = seed};
        size_t begin = 0, end = 0;
        bare_core_open(&bare, 32 * MIB);
        for (int step = 0; step < 300; step++) {
            uint32_t length = rng_below(&rng, rng_below(&rng, 8) == 0 ? 20000 : 200);
            uint32_t kind = rng_below(&rng, 6);
            if (kind >= 4 || end + length > sizeof(model)) {
                uint32_t sent = rng_below(&rng, (uint32_t)(end - begin) + 1);
                send_queue_sent(&bare.core, &queue, sent);
                begin += sent;
            } else {
                for (uint32_t i = 0; i < length; i++)
                    piece[i] = (uint8_t)rng_next(&rng);
                memcpy(model + end, piece, length);
                end += length;
                if (kind <= 1) {
                    cr_assert_eq(send_queue_append(&bare.core, &queue, piece, length), STATUS_OK);
                } else if (kind == 2 && length > 0) {
                    bare_core_lend(&bare, piece, length);
                    send_queue_push(&queue, send_reference_lent(&bare.core, bare.lent_bytes, length, 1, bare.lent_offset));
                } else {
                    struct block *block = arena_get(bare.core.arena, length);
                    memcpy(block->data, piece, length);
                    block->length = length;
                    block->flags = rng_below(&rng, 2) == 0 ? SEND_SEALED : 0;
                    send_queue_push(&queue, block);
                }
            }
            cr_assert_eq(flatten(&queue, seen, sizeof(seen)), end - begin, "seed %llu", (unsigned long long)seed);
            cr_assert_eq(memcmp(seen, model + begin, end - begin), 0, "seed %llu step %d", (unsigned long long)seed, step);
            (void)bare_core_loans(&bare);
        }
        send_queue_clear(&bare.core, &queue);
        bare_core_close(&bare);
    }
}
