/*
 * The one door to the heap. Behind it is mimalloc or libc (build option `allocator`); in front of it are counters, so that "nothing
 * is allocated in steady state" can be measured. Any thread may call; the counters are relaxed atomics.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Zeroed memory; never NULL: the process ends with a report where the system has none. bytes > 0. Free with alloc_free. */
void *alloc_zeroed(size_t bytes) __attribute__((malloc, returns_nonnull));

/* As alloc_zeroed, at an address that is a multiple of `alignment`: a power of two, 8 .. 4,096. Not for alloc_resize. */
void *alloc_zeroed_aligned(size_t bytes, size_t alignment) __attribute__((malloc, returns_nonnull));

/* Grows or shrinks; memory NULL allocates. bytes > 0. the new part is not initialised. Same rule for NULL. */
void *alloc_resize(void *memory, size_t bytes) __attribute__((returns_nonnull));

/* A copy of `bytes` bytes with a terminating NUL behind them. */
char *alloc_copy_text(const char *text, size_t bytes) __attribute__((returns_nonnull));

/* NULL is permitted. */
void alloc_free(void *memory);

/* Gives what was freed back to the system where the allocator has kept it. Milliseconds: not on the path. */
void alloc_collect(void);

/* How many calls allocated or resized since the start, over all threads. */
uint64_t alloc_calls_count(void);
