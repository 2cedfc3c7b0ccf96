/*
 * Preloaded into the gateway by bench/allocs.py: counts what each thread asks of the heap, libc's or mimalloc's, in a file that the benchmark maps too, and while it is told to, notes who asked.
 * The count is independent of the gateway's own (core/alloc), and sees what goes past it.
 *
 * COUNT_MALLOC_FILE names the file; without it nothing is counted. Frees are not counted: without an allocation there is none.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS_MAX = 64, TRACES_MAX = 64, FRAMES_MAX = 12, EARLY_BYTES = 65536, STACK_BYTES_MAX = 1 << 20 };

/* bench/allocs.py knows this layout. */
struct shared {
    _Atomic uint64_t threads_count;
    struct {
        _Atomic uint64_t tid;
        _Atomic uint64_t calls;
    } threads[THREADS_MAX];
    _Atomic uint64_t is_tracing;
    _Atomic uint64_t traces_count;
    struct {
        uint64_t tid;
        uint64_t bytes;
        uint64_t frames[FRAMES_MAX]; /* return addresses, innermost first; 0: no more */
    } traces[TRACES_MAX];
};

static struct shared *shared;
static _Thread_local _Atomic uint64_t *thread_calls;
static _Thread_local uint64_t thread_tid;

/* What dlsym() itself asks for before the real functions are known; never given back. */
static _Alignas(16) unsigned char early[EARLY_BYTES];
static size_t early_used;

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static int (*real_posix_memalign)(void **, size_t, size_t);
static void (*real_free)(void *);
static void *(*real_mi_malloc)(size_t);
static void *(*real_mi_zalloc)(size_t);
static void *(*real_mi_zalloc_aligned)(size_t, size_t);
static void *(*real_mi_realloc)(void *, size_t);

void *mi_malloc(size_t bytes);
void *mi_zalloc(size_t bytes);
void *mi_zalloc_aligned(size_t bytes, size_t alignment);
void *mi_realloc(void *memory, size_t bytes);

static void *find(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* memcpy: ISO C has no conversion from an object pointer to a function pointer. */
#define FIND(name)                              \
    do {                                        \
        void *symbol = find(#name);             \
        memcpy(&real_##name, &symbol, sizeof(symbol)); \
    } while (0)

__attribute__((constructor)) static void set_up(void)
{
    FIND(free);
    FIND(calloc);
    FIND(realloc);
    FIND(aligned_alloc);
    FIND(posix_memalign);
    FIND(mi_malloc);
    FIND(mi_zalloc);
    FIND(mi_zalloc_aligned);
    FIND(mi_realloc);
    FIND(malloc);
    const char *path = getenv("COUNT_MALLOC_FILE");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED)
        shared = memory;
}

/* Follows frame pointers, which the gateway is built with; what comes from a library without them ends the walk early. */
static void trace(size_t bytes, void **frame)
{
    uint64_t index = atomic_fetch_add(&shared->traces_count, 1);
    if (index >= TRACES_MAX)
        return;
    shared->traces[index].tid = thread_tid;
    shared->traces[index].bytes = bytes;
    for (int i = 0; i < FRAMES_MAX; i++) {
        shared->traces[index].frames[i] = (uint64_t)(uintptr_t)frame[1];
        void **outer = frame[0];
        if (outer <= frame || (uintptr_t)outer - (uintptr_t)frame > STACK_BYTES_MAX || ((uintptr_t)outer & 7) != 0)
            return;
        frame = outer;
    }
}

static void count(size_t bytes, void *frame)
{
    if (shared == NULL)
        return;
    if (thread_calls == NULL) {
        uint64_t index = atomic_fetch_add(&shared->threads_count, 1);
        if (index >= THREADS_MAX)
            return;
        thread_tid = (uint64_t)gettid();
        shared->threads[index].tid = thread_tid;
        thread_calls = &shared->threads[index].calls;
    }
    atomic_fetch_add_explicit(thread_calls, 1, memory_order_relaxed);
    if (atomic_load_explicit(&shared->is_tracing, memory_order_relaxed) != 0)
        trace(bytes, frame);
}

static void *take_early(size_t bytes)
{
    size_t rounded = (bytes + 15) & ~(size_t)15;
    if (rounded > EARLY_BYTES - early_used)
        return NULL;
    early_used += rounded;
    return early + early_used - rounded;
}

/* The parameters of the functions that stand in for libc's are named as in stdlib.h. */
void *malloc(size_t size)
{
    count(size, __builtin_frame_address(0));
    return real_malloc != NULL ? real_malloc(size) : take_early(size);
}

void *calloc(size_t nmemb, size_t size)
{
    count(nmemb * size, __builtin_frame_address(0));
    return real_calloc != NULL ? real_calloc(nmemb, size) : take_early(nmemb * size);
}

void *realloc(void *ptr, size_t size)
{
    count(size, __builtin_frame_address(0));
    return real_realloc != NULL ? real_realloc(ptr, size) : NULL;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count(size, __builtin_frame_address(0));
    return real_aligned_alloc != NULL ? real_aligned_alloc(alignment, size) : NULL;
}

int posix_memalign(void **memptr, size_t alignment, size_t size)
{
    count(size, __builtin_frame_address(0));
    return real_posix_memalign != NULL ? real_posix_memalign(memptr, alignment, size) : ENOMEM;
}

void free(void *ptr)
{
    if ((unsigned char *)ptr >= early && (unsigned char *)ptr < early + EARLY_BYTES)
        return;
    if (real_free != NULL)
        real_free(ptr);
}

void *mi_malloc(size_t bytes)
{
    count(bytes, __builtin_frame_address(0));
    return real_mi_malloc(bytes);
}

void *mi_zalloc(size_t bytes)
{
    count(bytes, __builtin_frame_address(0));
    return real_mi_zalloc(bytes);
}

void *mi_zalloc_aligned(size_t bytes, size_t alignment)
{
    count(bytes, __builtin_frame_address(0));
    return real_mi_zalloc_aligned(bytes, alignment);
}

void *mi_realloc(void *memory, size_t bytes)
{
    count(bytes, __builtin_frame_address(0));
    return real_mi_realloc(memory, bytes);
}
