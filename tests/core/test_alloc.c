#include "core/alloc.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

/* A sanitizer's allocator ends the process itself, and not by a signal, where a request is absurd. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define HAS_SANITIZER true
#endif
#endif
#ifndef HAS_SANITIZER
#define HAS_SANITIZER false
#endif

TestSuite(alloc);

static bool is_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

Test(alloc, memory_of_any_size_is_zero_and_writable)
{
    static const size_t sizes[] = {1, 7, 8, 63, 64, 4096, 65537, 3u << 20};
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            uint8_t *memory = alloc_zeroed(sizes[i]);
            cr_assert(is_zero(memory, sizes[i]));
            memset(memory, 0xa5, sizes[i]);
            alloc_free(memory);
        }
    }
}

Test(alloc, aligned_memory_is_aligned_and_zero)
{
    for (size_t alignment = 8; alignment <= 4096; alignment *= 2) {
        static const size_t sizes[] = {1, 65, 4097, 100000};
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            uint8_t *memory = alloc_zeroed_aligned(sizes[i], alignment);
            cr_assert_eq((uintptr_t)memory % alignment, 0);
            cr_assert(is_zero(memory, sizes[i]));
            memset(memory, 0xa5, sizes[i]);
            alloc_free(memory);
        }
    }
}

Test(alloc, resize_keeps_what_fits_and_takes_null)
{
    uint8_t *memory = alloc_resize(NULL, 10);
    for (uint8_t i = 0; i < 10; i++)
        memory[i] = i;
    memory = alloc_resize(memory, 1000000);
    for (uint8_t i = 0; i < 10; i++)
        cr_assert_eq(memory[i], i);
    memory[999999] = 1;
    memory = alloc_resize(memory, 3);
    cr_assert(memory[0] == 0 && memory[1] == 1 && memory[2] == 2);
    alloc_free(memory);
    alloc_free(NULL);
}

Test(alloc, copied_text_ends_with_nul_and_may_be_empty)
{
    char *text = alloc_copy_text("gateway", 4);
    cr_assert_str_eq(text, "gate");
    alloc_free(text);
    text = alloc_copy_text(NULL, 0);
    cr_assert_str_eq(text, "");
    alloc_free(text);
    text = alloc_copy_text("a\0b", 3);
    cr_assert_arr_eq(text, "a\0b", 4);
    alloc_free(text);
}

enum { THREADS_COUNT = 4, CALLS_PER_THREAD = 10000 };

static void *allocate_in_turn(void *context)
{
    (void)context;
    for (int i = 0; i < CALLS_PER_THREAD; i++)
        alloc_free(alloc_zeroed(32));
    return NULL;
}

Test(alloc, calls_of_all_threads_are_counted_and_frees_are_not)
{
    uint64_t before = alloc_calls_count();
    pthread_t threads[THREADS_COUNT];
    for (int i = 0; i < THREADS_COUNT; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, allocate_in_turn, NULL), 0);
    for (int i = 0; i < THREADS_COUNT; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(alloc_calls_count() - before, (uint64_t)THREADS_COUNT * CALLS_PER_THREAD);
    void *memory = alloc_resize(alloc_zeroed_aligned(8, 8), 16);
    alloc_free(memory);
    cr_assert_eq(alloc_calls_count() - before, (uint64_t)THREADS_COUNT * CALLS_PER_THREAD + 2);
}

Test(alloc, zero_bytes_abort, .signal = SIGABRT)
{
    (void)alloc_zeroed(0);
}

Test(alloc, alignment_that_is_no_power_of_two_aborts, .signal = SIGABRT)
{
    (void)alloc_zeroed_aligned(64, 48);
}

Test(alloc, more_than_the_system_has_aborts, .signal = SIGABRT, .disabled = HAS_SANITIZER)
{
    (void)alloc_zeroed(SIZE_MAX / 4);
}
