/*
 * The heap: mimalloc or libc, chosen when the project is built. Any thread.
 */
#include "core/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "zg_build.h"

#if ZG_MIMALLOC
#include <mimalloc.h>
#endif

enum { ALIGNMENT_MIN = 8, ALIGNMENT_MAX = 4096 };

/* The one mutable global here: the heap itself is of the process, and so is its count. Relaxed: it orders nothing. */
static _Atomic uint64_t calls_count;

/* Counts a call, and ends the process where the system gave nothing: what is allocated here has no smaller way to go on. */
static void *account(void *memory)
{
    atomic_fetch_add_explicit(&calls_count, 1, memory_order_relaxed);
    if (memory == NULL)
        check_failed(__FILE__, __LINE__, "the system has no memory left");
    return memory;
}

void *alloc_zeroed(size_t bytes)
{
    ZG_CHECK(bytes > 0);
#if ZG_MIMALLOC
    return account(mi_zalloc(bytes));
#else
    return account(calloc(1, bytes));
#endif
}

void *alloc_zeroed_aligned(size_t bytes, size_t alignment)
{
    ZG_CHECK(bytes > 0 && bytes <= SIZE_MAX / 2);
    ZG_CHECK(alignment >= ALIGNMENT_MIN && alignment <= ALIGNMENT_MAX && (alignment & (alignment - 1)) == 0);
#if ZG_MIMALLOC
    return account(mi_zalloc_aligned(bytes, alignment));
#else
    /* aligned_alloc wants a multiple of the alignment. */
    size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
    return memset(account(aligned_alloc(alignment, rounded)), 0, rounded);
#endif
}

void *alloc_resize(void *memory, size_t bytes)
{
    ZG_CHECK(bytes > 0);
#if ZG_MIMALLOC
    return account(mi_realloc(memory, bytes));
#else
    return account(realloc(memory, bytes));
#endif
}

char *alloc_copy_text(const char *text, size_t bytes)
{
    ZG_CHECK(bytes < SIZE_MAX);
    ZG_CHECK(text != NULL || bytes == 0);
    char *copy = alloc_zeroed(bytes + 1);
    if (bytes > 0)
        memcpy(copy, text, bytes);
    return copy;
}

void alloc_free(void *memory)
{
#if ZG_MIMALLOC
    mi_free(memory);
#else
    free(memory);
#endif
}

void alloc_collect(void)
{
#if ZG_MIMALLOC
    mi_collect(true);
#endif
}

uint64_t alloc_calls_count(void)
{
    return atomic_load_explicit(&calls_count, memory_order_relaxed);
}
