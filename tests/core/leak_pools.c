/*
 * Arena and pool under churn, as a plain program: LeakSanitizer sees that everything is given back, and without a sanitizer the resident size must fall back after a
 * burst of some hundred MiB. Exit status 0: passed; else the reason is on standard error.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/arena.h"
#include "core/pool.h"
#include "core/rng.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#ifndef HAS_SANITIZER
#define HAS_SANITIZER 0
#endif

#define MIB (UINT64_C(1) << 20)

enum {
    BURST_MIB = HAS_SANITIZER ? 64 : 400,
    SIZES_COUNT = 6,
    SLACK_MIB = 24, /* what may stay: 1 MiB a class of small blocks, 4 MiB a class of large ones, for the six sizes below, and the tables */
    OBJECTS_MAX = 20000,
    TRIMS_MAX = 1000,
};

static const uint32_t sizes[SIZES_COUNT] = {100, 1000, 15000, 60000, 500000, 3000000};

struct object {
    struct pool_item item;
    uint64_t words[30];
};

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "leak_pools: %s\n", what);
    exit(1);
}

/* Resident set size from /proc/self/statm (second number, in pages). */
static uint64_t resident_bytes(void)
{
    char text[256];
    int file = open("/proc/self/statm", O_RDONLY);
    require(file >= 0, "/proc/self/statm cannot be opened");
    ssize_t length = read(file, text, sizeof(text) - 1);
    close(file);
    require(length > 0, "/proc/self/statm cannot be read");
    text[length] = '\0';
    char *at = text;
    (void)strtoull(at, &at, 10);
    return strtoull(at, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void trim_fully(struct arena *arena)
{
    /* The first call ends the interval in which the blocks were held. */
    arena_trim(arena);
    for (int i = 0; i < TRIMS_MAX; i++)
        if (arena_trim(arena) == 0)
            return;
    require(false, "arena_trim never came to an end");
}

static void arena_burst(struct arena *arena, struct rng *rng)
{
    struct block *head = NULL;
    uint64_t touched = 0;
    while (touched < BURST_MIB * MIB) {
        uint32_t data_bytes = sizes[rng_below(rng, SIZES_COUNT)];
        struct block *block = arena_get(arena, data_bytes);
        require(block != NULL, "the arena is full below its maximum");
        memset(block->data, 0x5a, data_bytes);
        touched += data_bytes;
        block->next = head;
        head = block;
    }
    while (head != NULL) {
        struct block *next = head->next;
        arena_put(arena, &head);
        head = next;
    }
    require(arena_bytes_held(arena) == 0, "blocks are still counted after the burst");
}

static void arena_churn(struct arena *arena, struct rng *rng)
{
    enum { HELD_MAX = 500, STEPS = 300000 };
    static struct block *held[HELD_MAX];
    for (uint32_t step = 0; step < STEPS; step++) {
        struct block **place = &held[rng_below(rng, HELD_MAX)];
        if (*place != NULL) {
            arena_put(arena, place);
        } else {
            /* Large ones are rarer, so that the churn goes on and not the page faults. */
            uint32_t kind = rng_below(rng, 100);
            *place = arena_get(arena, sizes[kind < 95 ? kind % 3 : 3 + kind % 3]);
            require(*place != NULL, "the arena is full below its maximum");
            (*place)->data[0] = 1;
        }
        if (step % 10000 == 0)
            arena_trim(arena);
    }
    for (uint32_t i = 0; i < HELD_MAX; i++)
        if (held[i] != NULL)
            arena_put(arena, &held[i]);
}

static void pool_churn(struct rng *rng)
{
    static struct object *held[OBJECTS_MAX];
    struct pool pool;
    pool_init(&pool, "objects", sizeof(struct object), OBJECTS_MAX);
    for (uint32_t step = 0; step < 2000000; step++) {
        struct object **place = &held[rng_below(rng, OBJECTS_MAX)];
        if (*place != NULL) {
            pool_put(&pool, place);
        } else {
            *place = step % 2 == 0 ? pool_get(&pool) : pool_get_raw(&pool);
            require(*place != NULL, "the pool is full below its maximum");
        }
    }
    for (uint32_t i = 0; i < OBJECTS_MAX; i++)
        if (held[i] != NULL)
            pool_put(&pool, &held[i]);
    pool_fini(&pool);
}

int main(void)
{
    struct rng rng = {.state = 2026};
    struct arena *arena = arena_create(0, 1024 * MIB);
    uint64_t before = resident_bytes();
    for (int round = 0; round < 3; round++) {
        arena_burst(arena, &rng);
        uint64_t during = resident_bytes();
        trim_fully(arena);
        uint64_t after = resident_bytes();
        printf("round %d: resident %.1f MiB before, %.1f MiB at the burst, %.1f MiB after\n", round, (double)before / MIB, (double)during / MIB, (double)after / MIB);
        if (!HAS_SANITIZER) {
            require(during >= before + BURST_MIB * MIB / 2, "the burst was not in memory, so this test tests nothing");
            require(after <= before + SLACK_MIB * MIB, "memory did not fall back after the burst");
        }
    }
    arena_churn(arena, &rng);
    trim_fully(arena);
    if (!HAS_SANITIZER)
        require(resident_bytes() <= before + SLACK_MIB * MIB, "memory did not fall back after the churn");
    arena_destroy(&arena);
    pool_churn(&rng);
    return 0;
}
