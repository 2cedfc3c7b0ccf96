#include "core/arena.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "core/alloc.h"
#include "core/rng.h"

TestSuite(arena);

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

static uint32_t data_bytes_of_class(uint32_t class_index)
{
    return (UINT32_C(1) << (class_index + ARENA_CLASS_MIN_SHIFT)) - (uint32_t)sizeof(struct block);
}

Test(arena, block_of_every_size_is_as_promised)
{
    struct arena *arena = arena_create(0, 256 * MIB);
    for (uint32_t class_index = 0; class_index < ARENA_CLASSES_COUNT; class_index++) {
        uint32_t fitting = data_bytes_of_class(class_index);
        uint32_t smallest = class_index == 0 ? 0 : data_bytes_of_class(class_index - 1) + 1;
        for (int i = 0; i < 2; i++) {
            uint32_t data_bytes = i == 0 ? smallest : fitting;
            struct block *block = arena_get(arena, data_bytes);
            cr_assert_not_null(block);
            cr_assert_eq((uintptr_t)block % 64, 0);
            cr_assert_eq(block->class_index, class_index);
            cr_assert_eq(block_capacity(block), fitting);
            cr_assert(block->refs == 1 && block->length == 0 && block->next == NULL && block->flags == 0 && block->offset == 0 && block->user == 0);
            block->data[0] = 1;
            block->data[fitting - 1] = 2;
            cr_assert_eq(arena_block_of(arena, block->data), block);
            cr_assert_eq(arena_block_of(arena, block->data + fitting - 1), block);
            cr_assert_eq(arena_at(arena, arena_offset_of(arena, block->data + fitting / 2)), block->data + fitting / 2);
            block->next = block;
            block->length = 7;
            block->flags = 7;
            block->offset = 7;
            block->user = 7;
            arena_put(arena, &block);
            cr_assert_null(block);
            cr_assert_eq(arena_bytes_held(arena), 0);
        }
    }
    arena_destroy(&arena);
    cr_assert_null(arena);
    arena_destroy(&arena);
}

Test(arena, small_block_counts_by_its_size_and_large_one_by_what_was_asked)
{
    struct arena *arena = arena_create(0, 128 * MIB);
    struct {
        uint32_t data_bytes;
        uint64_t held;
    } const examples[] = {
        {0, 256},
        {224, 256},
        {225, 512},
        {65536 - 32, 65536},
        {65537, 131072},
        {600 * 1024, 604 * KIB},
        {MIB - 32, MIB},
        {MIB - 31, MIB + 4 * KIB},
        {64 * MIB, 64 * MIB + 4 * KIB},
        {128 * MIB - 32, 128 * MIB},
    };
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        struct block *block = arena_get(arena, examples[i].data_bytes);
        cr_assert_not_null(block);
        cr_assert_eq(arena_bytes_held(arena), examples[i].held, "%u", examples[i].data_bytes);
        arena_put(arena, &block);
        cr_assert_eq(arena_bytes_held(arena), 0);
    }
    /* Two blocks of 64 MiB and a bit do not fit, though one of 128 MiB does. */
    struct block *block = arena_get(arena, 64 * MIB);
    cr_assert_null(arena_get(arena, 64 * MIB));
    arena_put(arena, &block);
    arena_destroy(&arena);
}

Test(arena, largest_class_is_the_limit)
{
    struct arena *arena = arena_create(0, 1024 * MIB);
    struct block *block = arena_get(arena, data_bytes_of_class(ARENA_CLASSES_COUNT - 1));
    cr_assert_not_null(block);
    cr_assert_null(arena_get(arena, data_bytes_of_class(ARENA_CLASSES_COUNT - 1) + 1));
    cr_assert_null(arena_get(arena, UINT32_MAX));
    cr_assert_null(arena_get(arena, UINT32_MAX - 31));
    cr_assert_eq(arena_full_count(arena), 3);
    arena_put(arena, &block);
    arena_destroy(&arena);
}

Test(arena, maximum_is_reached_in_every_class_and_no_further)
{
    uint64_t bytes_max = 130 * MIB;
    struct arena *arena = arena_create(0, bytes_max);
    struct block **blocks = alloc_zeroed((bytes_max / 256 + 1) * sizeof(*blocks)); /* and the NULL at the end */
    for (uint32_t class_index = 0; class_index < ARENA_CLASSES_COUNT; class_index++) {
        /* Once with the fewest bytes that need the class and once with the most. */
        uint32_t sizes[] = {class_index == 0 ? 0 : data_bytes_of_class(class_index - 1) + 1, data_bytes_of_class(class_index)};
        for (size_t s = 0; s < 2; s++) {
            uint64_t count = 0, full_count = arena_full_count(arena);
            while ((blocks[count] = arena_get(arena, sizes[s])) != NULL)
                count++;
            uint64_t each = arena_bytes_held(arena) / count;
            cr_assert(arena_bytes_held(arena) <= bytes_max && bytes_max - arena_bytes_held(arena) < each, "class %u", class_index);
            cr_assert_eq(arena_full_count(arena), full_count + 1);
            /* One freed is one more to have. */
            arena_put(arena, &blocks[count / 2]);
            blocks[count / 2] = arena_get(arena, sizes[s]);
            cr_assert_not_null(blocks[count / 2]);
            while (count > 0)
                arena_put(arena, &blocks[--count]);
            cr_assert_eq(arena_bytes_held(arena), 0);
        }
        while (arena_trim(arena) > 0)
            continue;
    }
    alloc_free(blocks);
    arena_destroy(&arena);
}

Test(arena, smallest_arena_works_to_its_last_byte)
{
    struct arena *arena = arena_create(0, MIB);
    cr_assert_null(arena_get(arena, MIB));
    struct block *block = arena_get(arena, MIB - 32);
    cr_assert_not_null(block);
    cr_assert_null(arena_get(arena, 0));
    arena_put(arena, &block);
    arena_destroy(&arena);
}

Test(arena, block_lives_until_its_last_reference_is_put)
{
    struct arena *arena = arena_create(0, MIB);
    struct block *block = arena_get(arena, 100);
    struct block *second = block_ref(block), *third = block_ref(second);
    cr_assert_eq(block->refs, 3);
    arena_put(arena, &second);
    arena_put(arena, &block);
    cr_assert_eq(arena_bytes_held(arena), 256);
    third->data[0] = 1;
    arena_put(arena, &third);
    cr_assert_eq(arena_bytes_held(arena), 0);
    arena_destroy(&arena);
}

Test(arena, trim_gives_back_what_was_free_for_a_whole_interval_beyond_the_reserve)
{
    struct arena *arena = arena_create(0, 512 * MIB);
    enum { SMALL = 20000, LARGE = 200 };
    static struct block *small[SMALL], *large[LARGE];
    for (int i = 0; i < SMALL; i++) {
        small[i] = arena_get(arena, 990);
        memset(small[i]->data, 1, 990);
    }
    for (int i = 0; i < LARGE; i++) {
        large[i] = arena_get(arena, 100000);
        memset(large[i]->data, 1, 100000);
    }
    cr_assert_eq(arena_trim(arena), 0);
    for (int i = 0; i < SMALL; i++)
        arena_put(arena, &small[i]);
    for (int i = 0; i < LARGE; i++)
        arena_put(arena, &large[i]);
    cr_assert_eq(arena_trim(arena), 0, "in use at the last call");
    uint64_t released = 0, step;
    while ((step = arena_trim(arena)) > 0)
        released += step;
    /* 20,000 KiB less 1 MiB (spans are whole), 200 x 128 KiB less 4 MiB. */
    cr_assert(released >= 39 * MIB && released <= 41 * MIB, "%lu", (unsigned long)released);
    /* What was given back can be had again. */
    for (int i = 0; i < SMALL; i++) {
        small[i] = arena_get(arena, 990);
        memset(small[i]->data, 2, 990);
    }
    for (int i = 0; i < SMALL; i++)
        arena_put(arena, &small[i]);
    arena_destroy(&arena);
}

Test(arena, trim_keeps_what_was_used_within_the_interval)
{
    struct arena *arena = arena_create(0, 128 * MIB);
    enum { BLOCKS = 300 };
    static struct block *blocks[BLOCKS];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = arena_get(arena, 100000);
            cr_assert_not_null(blocks[i]);
        }
        for (int i = 0; i < BLOCKS; i++)
            arena_put(arena, &blocks[i]);
        /* Nothing is held now, but it was between the two calls: the next interval will want it again. */
        cr_assert_eq(arena_trim(arena), 0);
    }
    cr_assert_eq(arena_bytes_resident(arena), BLOCKS * 128 * KIB);
    while (arena_trim(arena) > 0)
        continue;
    cr_assert_eq(arena_bytes_resident(arena), 4 * MIB);
    arena_destroy(&arena);
}

Test(arena, free_blocks_of_other_classes_do_not_keep_memory_above_the_maximum)
{
    enum { BLOCKS = 64 * 16 };
    static struct block *blocks[BLOCKS];
    struct arena *arena = arena_create(0, 64 * MIB);
    /* Each class in turn takes the whole maximum; nobody trims. */
    static const uint32_t sizes[] = {65000, 100000, 60 * KIB, 8 * KIB * KIB, 2000000, 65000, 30000};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint32_t count = 0;
        while (count < BLOCKS && (blocks[count] = arena_get(arena, sizes[s])) != NULL) {
            count++;
            cr_assert_leq(arena_bytes_resident(arena), 64 * MIB);
            cr_assert_leq(arena_bytes_held(arena), arena_bytes_resident(arena));
        }
        while (count > 0)
            arena_put(arena, &blocks[--count]);
    }
    arena_destroy(&arena);
}

Test(arena, trim_gives_back_no_span_with_a_held_block)
{
    struct arena *arena = arena_create(0, 64 * MIB);
    enum { BLOCKS = 64 * 1024 };
    static struct block *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = arena_get(arena, 200);
        cr_assert_not_null(blocks[i]);
        memset(blocks[i]->data, i & 0xff, 200);
    }
    /* One block in 256 stays: one a span. Nothing can go back. */
    for (int i = 0; i < BLOCKS; i++)
        if (i % 256 != 17)
            arena_put(arena, &blocks[i]);
    cr_assert_eq(arena_trim(arena) + arena_trim(arena), 0);
    for (int i = 17; i < BLOCKS; i += 512)
        arena_put(arena, &blocks[i]);
    cr_assert_eq(arena_trim(arena), 0);
    cr_assert_gt(arena_trim(arena), 6 * MIB);
    for (int i = 17 + 256; i < BLOCKS; i += 512) {
        for (int b = 0; b < 200; b++)
            cr_assert_eq(blocks[i]->data[b], i & 0xff);
        arena_put(arena, &blocks[i]);
    }
    arena_destroy(&arena);
}

struct held {
    struct block *block;
    uint64_t seed;
    uint32_t data_bytes;
};

/* Marks the ends and the middle of the data, so that two blocks that overlap, or a page lost, show. */
static void held_mark(const struct held *held)
{
    uint64_t mark = held->seed;
    for (uint32_t at = 0; at + 8 <= held->data_bytes; at += held->data_bytes / 8 + 8)
        memcpy(held->block->data + at, &mark, 8);
}

static void held_verify(const struct held *held)
{
    for (uint32_t at = 0; at + 8 <= held->data_bytes; at += held->data_bytes / 8 + 8)
        cr_assert_eq(memcmp(held->block->data + at, &held->seed, 8), 0);
}

Test(arena, random_sizes_with_trims_never_overlap_and_stay_within_the_maximum)
{
    enum { BLOCKS = 4000, OPERATIONS = 300000 };
    static struct held held[BLOCKS];
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct rng rng = {.state = seed};
        struct arena *arena = arena_create(0, 48 * MIB);
        uint32_t count = 0;
        for (uint32_t operation = 0; operation < OPERATIONS; operation++) {
            bool wants_more = rng_below(&rng, 100) < (operation / 20000 % 2 == 0 ? 65u : 35u);
            if (wants_more && count < BLOCKS) {
                uint32_t data_bytes = (uint32_t)(rng_next(&rng) >> (64 - 1 - rng_below(&rng, rng_below(&rng, 50) == 0 ? 25 : 15)));
                struct block *block = arena_get(arena, data_bytes);
                if (block != NULL) {
                    cr_assert_geq(block_capacity(block), data_bytes);
                    held[count] = (struct held){.block = block, .seed = rng_next(&rng), .data_bytes = data_bytes};
                    held_mark(&held[count++]);
                }
            } else if (count > 0) {
                uint32_t pick = rng_below(&rng, count);
                held_verify(&held[pick]);
                arena_put(arena, &held[pick].block);
                held[pick] = held[--count];
            }
            cr_assert_leq(arena_bytes_held(arena), 48 * MIB);
            if (operation % 5000 == 0)
                arena_trim(arena);
        }
        cr_assert_gt(arena_full_count(arena), 0);
        while (count > 0) {
            held_verify(&held[--count]);
            arena_put(arena, &held[count].block);
        }
        cr_assert_eq(arena_bytes_held(arena), 0);
        arena_destroy(&arena);
    }
}

struct peer {
    const struct arena *arena;
    uint64_t offset;
    uint64_t sum;
};

static void *peer_read(void *context)
{
    struct peer *peer = context;
    for (int round = 0; round < 100; round++) {
        const uint8_t *bytes = arena_at(peer->arena, peer->offset);
        for (int i = 0; i < 1000; i++)
            peer->sum += bytes[i];
    }
    return NULL;
}

Test(arena, peer_reads_lent_bytes_while_the_owner_goes_on)
{
    struct arena *arena = arena_create(0, 16 * MIB);
    struct block *lent = arena_get(arena, 1000);
    memset(lent->data, 1, 1000);
    struct peer peer = {.arena = arena, .offset = arena_offset_of(arena, lent->data)};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, peer_read, &peer), 0);
    for (int i = 0; i < 10000; i++) {
        struct block *block = arena_get(arena, 900);
        struct block *large = arena_get(arena, 100000);
        memset(block->data, 2, 900);
        arena_put(arena, &block);
        arena_put(arena, &large);
        if (i % 100 == 0)
            arena_trim(arena);
    }
    pthread_join(thread, NULL);
    cr_assert_eq(peer.sum, 100000);
    arena_put(arena, &lent);
    arena_destroy(&arena);
}

Test(arena, second_put_aborts, .signal = SIGABRT)
{
    struct arena *arena = arena_create(0, MIB);
    struct block *block = arena_get(arena, 1);
    struct block *again = block;
    arena_put(arena, &block);
    arena_put(arena, &again);
}

Test(arena, write_to_the_header_after_the_put_is_noticed, .signal = SIGABRT)
{
    struct arena *arena = arena_create(0, MIB);
    struct block *block = arena_get(arena, 1);
    struct block *stale = block;
    arena_put(arena, &block);
    stale->refs = 1;
    (void)!arena_get(arena, 1);
}

Test(arena, block_of_another_arena_aborts, .signal = SIGABRT)
{
    struct arena *arena = arena_create(0, MIB);
    struct arena *other = arena_create(1, MIB);
    struct block *block = arena_get(other, 1);
    arena_put(arena, &block);
}

Test(arena, end_with_a_held_block_aborts, .signal = SIGABRT)
{
    struct arena *arena = arena_create(0, MIB);
    cr_assert_not_null(arena_get(arena, 1));
    arena_destroy(&arena);
}

Test(arena, address_outside_aborts, .signal = SIGABRT)
{
    struct arena *arena = arena_create(0, MIB);
    int stranger = 0;
    (void)arena_offset_of(arena, &stranger);
}

Test(arena, offset_outside_aborts, .signal = SIGABRT)
{
    struct arena *arena = arena_create(0, MIB);
    (void)arena_at(arena, UINT64_C(1) << 60);
}

Test(arena, largest_arena_can_be_created)
{
    struct arena *arena = arena_create(0, 64 * 1024 * MIB);
    struct block *block = arena_get(arena, 128 * MIB - 32);
    cr_assert_not_null(block);
    block->data[0] = 1;
    arena_put(arena, &block);
    arena_destroy(&arena);
}

Test(arena, maximum_below_the_range_aborts, .signal = SIGABRT)
{
    (void)arena_create(0, MIB - 1);
}
