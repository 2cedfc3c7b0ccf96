/*
 * Lendable bytes of one core. Everything but arena_at is called by the owning core alone.
 *
 * One reservation of address space holds a region for each class (a power of two of block size), and behind them the tables. A region is divided into spans: 64 KiB with many
 * blocks for classes below 64 KiB, one block for the others. What is known of a span is in a table beside the region, not in the span, so that a free span can lose its pages.
 *
 *                 the last block is taken              a block comes back
 *       PARTIAL ------------------------------> FULL -------------------> PARTIAL   (EMPTY where a span is one block)
 *          |  ^
 *          |  '--- a block is wanted and no span is partial <-------------------.
 *          v                                                                    |
 *        EMPTY  (all blocks free, pages kept) -- arena_trim --> RELEASED (pages given back) -- and FRESH (never used)
 *
 * Each span has the free list of its own blocks, threaded through their headers; a span that is released just forgets it and is carved anew.
 */
#include "core/arena.h"

#include <string.h>
#include <sys/mman.h>

#include "core/alloc.h"
#include "core/poison.h"

#define MIB (UINT64_C(1) << 20)
#define BYTES_MAX_MIN MIB
#define BYTES_MAX_MAX (UINT64_C(64) << 30)
#define COMMIT_BYTES MIB              /* address space is made accessible in steps of this */
#define SMALL_RESERVE_BYTES MIB       /* pages of empty spans that a class of small blocks keeps */
#define LARGE_RESERVE_BYTES (4 * MIB) /* and a class of large ones */
#define TRIM_BYTES_MAX (16 * MIB)     /* one arena_trim gives back about this at most: one or two milliseconds */
#define RECLAIM_BYTES_MIN MIB         /* what is given back at once where a new span would take the arena above its maximum */

enum {
    PAGE_SHIFT = 12,
    SPAN_SHIFT = 16,    /* spans of small classes */
    COUNTED_SHIFT = 20, /* blocks from this size on count by what was asked for, in pages; smaller ones by their size */
    REGION_SHIFT_MIN = ARENA_CLASS_MAX_SHIFT + 1,
    CACHE_LINE_BYTES = 64,
};

#define SPAN_NONE UINT32_MAX

enum span_state { SPAN_FRESH, SPAN_PARTIAL, SPAN_EMPTY, SPAN_RELEASED, SPAN_FULL };
enum { LISTS_COUNT = SPAN_RELEASED + 1 }; /* spans of the states PARTIAL, EMPTY and RELEASED are in the list of their state */

struct span {
    struct block *free; /* free blocks that were in use before */
    uint32_t next;      /* in the list of its state: an index, or SPAN_NONE */
    uint32_t prev;
    uint16_t used_count;   /* blocks held */
    uint16_t carved_count; /* blocks that were ever in use since the span got its pages */
    uint8_t state;
    uint32_t resident_pages; /* at most so many pages have been touched */
    uint32_t counted_pages;  /* what its block counts for, where that goes by pages */
};
_Static_assert(sizeof(struct span) == 32, "two spans a cache line");

struct span_list {
    uint32_t first; /* used last: warm */
    uint32_t last;
    uint32_t spans_count;
};

struct class
{
    uint8_t *base;       /* of the region */
    struct span *spans;  /* spans_max entries; zero is FRESH */
    uint64_t block_cost; /* bytes that a block counts for; 0: by pages, see span */
    uint64_t committed_bytes;
    uint32_t spans_max;
    uint32_t spans_count; /* not FRESH */
    uint32_t empty_low;   /* the fewest EMPTY spans since the last trim */
    uint32_t reserve_spans;
    uint16_t blocks_per_span;
    uint8_t block_shift;
    uint8_t span_shift;
    struct span_list lists[LISTS_COUNT];
};

struct arena {
    /* Read by any thread; constant after arena_create. */
    uint8_t *base;
    uint64_t regions_bytes;
    uint32_t core_id;
    uint32_t region_shift;
    uint64_t reservation_bytes;

    /* The owner's. */
    _Alignas(CACHE_LINE_BYTES) uint64_t bytes_max;
    uint64_t bytes_held;
    uint64_t resident_pages; /* sum over all spans */
    uint64_t full_count;
    struct class classes[ARENA_CLASSES_COUNT];
};

/* --- lists of spans --- */

static void span_unlink(struct class *class, struct span *span)
{
    struct span_list *list = &class->lists[span->state];
    if (span->prev != SPAN_NONE)
        class->spans[span->prev].next = span->next;
    else
        list->first = span->next;
    if (span->next != SPAN_NONE)
        class->spans[span->next].prev = span->prev;
    else
        list->last = span->prev;
    list->spans_count--;
}

static void span_link(struct class *class, struct span *span)
{
    struct span_list *list = &class->lists[span->state];
    uint32_t index = (uint32_t)(span - class->spans);
    span->prev = SPAN_NONE;
    span->next = list->first;
    if (list->first != SPAN_NONE)
        class->spans[list->first].prev = index;
    else
        list->last = index;
    list->first = index;
    list->spans_count++;
}

static bool span_is_listed(enum span_state state)
{
    return state == SPAN_PARTIAL || state == SPAN_EMPTY || state == SPAN_RELEASED;
}

static bool span_edge_is_legal(const struct class *class, enum span_state from, enum span_state to)
{
    switch (from) {
    case SPAN_FRESH:
    case SPAN_RELEASED:
        return to == SPAN_PARTIAL;
    case SPAN_PARTIAL:
        return to == SPAN_FULL || to == SPAN_EMPTY;
    case SPAN_FULL:
        return to == (class->blocks_per_span == 1 ? SPAN_EMPTY : SPAN_PARTIAL);
    case SPAN_EMPTY:
        return to == SPAN_PARTIAL || to == SPAN_RELEASED;
    default:
        return false;
    }
}

/* The only function that changes a state. */
static void span_set_state(struct class *class, struct span *span, enum span_state state)
{
    ZG_CHECK(span_edge_is_legal(class, span->state, state));
    if (span_is_listed(span->state))
        span_unlink(class, span);
    span->state = (uint8_t)state;
    if (span_is_listed(state))
        span_link(class, span);
    uint32_t empty_count = class->lists[SPAN_EMPTY].spans_count;
    if (empty_count < class->empty_low)
        class->empty_low = empty_count;
}

/* --- pages --- */

static uint8_t *span_base(const struct class *class, uint32_t index)
{
    return class->base + ((uint64_t)index << class->span_shift);
}

/* Gives the pages of up to `spans_max` neighbouring EMPTY spans back, around the one that has been empty for longest. Returns pages; 0 where nothing was done. */
static uint64_t class_release_run(struct arena *arena, struct class *class, uint32_t spans_max)
{
    uint32_t first = class->lists[SPAN_EMPTY].last;
    if (first == SPAN_NONE || spans_max == 0)
        return 0;
    uint32_t count = 1;
    while (count < spans_max && first + count < class->spans_count && class->spans[first + count].state == SPAN_EMPTY)
        count++;
    while (count < spans_max && first > 0 && class->spans[first - 1].state == SPAN_EMPTY) {
        first--;
        count++;
    }
    /* Fails where memory is locked (mlockall): then the pages simply stay. */
    if (madvise(span_base(class, first), (size_t)count << class->span_shift, MADV_DONTNEED) != 0)
        return 0;
    uint64_t pages = 0;
    for (uint32_t index = first; index < first + count; index++) {
        struct span *span = &class->spans[index];
        ZG_CHECK(span->used_count == 0);
        pages += span->resident_pages;
        span->resident_pages = 0;
        span->carved_count = 0;
        span->free = NULL;
        span_set_state(class, span, SPAN_RELEASED);
    }
    ZG_CHECK(pages <= arena->resident_pages);
    arena->resident_pages -= pages;
    return pages;
}

/* Releases EMPTY spans of any class, large blocks first, until `pages` are given back or none is left. */
static void arena_reclaim(struct arena *arena, uint64_t pages)
{
    uint64_t released_pages = 0;
    for (uint32_t i = ARENA_CLASSES_COUNT; i-- > 0 && released_pages < pages;) {
        struct class *class = &arena->classes[i];
        uint32_t span_pages = UINT32_C(1) << (class->span_shift - PAGE_SHIFT);
        uint64_t step;
        do {
            uint64_t spans = released_pages < pages ? (pages - released_pages + span_pages - 1) / span_pages : 0;
            step = class_release_run(arena, class, spans < UINT32_MAX ? (uint32_t)spans : UINT32_MAX);
            released_pages += step;
        } while (step > 0);
    }
}

/* Makes the address range up to the end of the span accessible. */
static bool class_commit(struct class *class, uint32_t index)
{
    uint64_t wanted = ((uint64_t)index + 1) << class->span_shift;
    if (wanted <= class->committed_bytes)
        return true;
    uint64_t region_bytes = (uint64_t) class->spans_max << class->span_shift;
    uint64_t end = (wanted + COMMIT_BYTES - 1) & ~(COMMIT_BYTES - 1);
    if (end > region_bytes)
        end = region_bytes;
    uint8_t *start = class->base + class->committed_bytes;
    if (mprotect(start, end - class->committed_bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    ZG_POISON(start, end - class->committed_bytes);
    class->committed_bytes = end;
    return true;
}

/* A span without held blocks becomes PARTIAL: one that has its pages, else one that had, else a new one. NULL where the system has no memory. `pages`: how
 * many of its pages may be touched. */
static struct span *class_open_span(struct arena *arena, struct class *class, uint32_t pages)
{
    uint32_t index = class->lists[SPAN_EMPTY].first;
    if (index == SPAN_NONE)
        index = class->lists[SPAN_RELEASED].first;
    if (index == SPAN_NONE) {
        /* The region has room for twice bytes_max, and a block counts for more than half of its size. */
        ZG_CHECK(class->spans_count < class->spans_max);
        if (!class_commit(class, class->spans_count))
            return NULL;
        index = class->spans_count++;
    }
    struct span *span = &class->spans[index];
    span_set_state(class, span, SPAN_PARTIAL);
    if (pages > span->resident_pages) {
        uint32_t growth = pages - span->resident_pages;
        uint64_t pages_max = arena->bytes_max >> PAGE_SHIFT;
        /* Free blocks of other classes must not keep the process above its maximum until the next trim. */
        if (arena->resident_pages + growth > pages_max) {
            uint64_t excess = arena->resident_pages + growth - pages_max;
            arena_reclaim(arena, excess > RECLAIM_BYTES_MIN >> PAGE_SHIFT ? excess : RECLAIM_BYTES_MIN >> PAGE_SHIFT);
        }
        span->resident_pages += growth;
        arena->resident_pages += growth;
    }
    return span;
}

/* --- creation --- */

static uint32_t region_shift_for(uint64_t bytes_max)
{
    uint32_t shift = REGION_SHIFT_MIN;
    while ((UINT64_C(1) << shift) < 2 * bytes_max)
        shift++;
    return shift;
}

static void class_init(struct class *class, uint32_t class_index, uint32_t region_shift)
{
    uint32_t block_shift = class_index + ARENA_CLASS_MIN_SHIFT;
    uint32_t span_shift = block_shift < SPAN_SHIFT ? SPAN_SHIFT : block_shift;
    uint64_t reserve_bytes = block_shift < SPAN_SHIFT ? SMALL_RESERVE_BYTES : LARGE_RESERVE_BYTES;
    class->block_shift = (uint8_t)block_shift;
    class->span_shift = (uint8_t)span_shift;
    class->blocks_per_span = (uint16_t)(1u << (span_shift - block_shift));
    class->block_cost = block_shift < COUNTED_SHIFT ? UINT64_C(1) << block_shift : 0;
    class->spans_max = UINT32_C(1) << (region_shift - span_shift);
    class->reserve_spans = (uint32_t)(reserve_bytes >> span_shift);
    for (int i = 0; i < LISTS_COUNT; i++)
        class->lists[i] = (struct span_list){.first = SPAN_NONE, .last = SPAN_NONE};
}

struct arena *arena_create(uint32_t core_id, uint64_t bytes_max)
{
    ZG_CHECK(bytes_max >= BYTES_MAX_MIN && bytes_max <= BYTES_MAX_MAX);
    struct arena *arena = alloc_zeroed_aligned(sizeof(*arena), CACHE_LINE_BYTES);
    arena->core_id = core_id;
    arena->bytes_max = bytes_max;
    arena->region_shift = region_shift_for(bytes_max);
    arena->regions_bytes = (uint64_t)ARENA_CLASSES_COUNT << arena->region_shift;
    uint64_t tables_bytes = 0;
    for (uint32_t i = 0; i < ARENA_CLASSES_COUNT; i++) {
        class_init(&arena->classes[i], i, arena->region_shift);
        tables_bytes += (uint64_t)arena->classes[i].spans_max * sizeof(struct span);
    }
    arena->reservation_bytes = arena->regions_bytes + tables_bytes;
    void *base = mmap(NULL, arena->reservation_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ZG_CHECK(base != MAP_FAILED);
    /* Huge pages would make a few blocks hold 2 MiB each and would not go back in spans. A kernel without them refuses the advice; that is as good. */
    (void)madvise(base, arena->reservation_bytes, MADV_NOHUGEPAGE);
    arena->base = base;
    uint8_t *tables = arena->base + arena->regions_bytes;
    ZG_CHECK(mprotect(tables, tables_bytes, PROT_READ | PROT_WRITE) == 0);
    for (uint32_t i = 0; i < ARENA_CLASSES_COUNT; i++) {
        struct class *class = &arena->classes[i];
        class->base = arena->base + ((uint64_t)i << arena->region_shift);
        class->spans = (struct span *)(void *)tables;
        tables += (uint64_t) class->spans_max * sizeof(struct span);
    }
    return arena;
}

void arena_destroy(struct arena **arena)
{
    struct arena *doomed = *arena;
    *arena = NULL;
    if (doomed == NULL)
        return;
    ZG_CHECK(doomed->bytes_held == 0);
    for (uint32_t i = 0; i < ARENA_CLASSES_COUNT; i++)
        ZG_UNPOISON(doomed->classes[i].base, doomed->classes[i].committed_bytes);
    ZG_CHECK(munmap(doomed->base, doomed->reservation_bytes) == 0);
    alloc_free(doomed);
}

/* --- blocks --- */

static uint32_t class_index_for(uint64_t block_bytes)
{
    if (block_bytes <= UINT64_C(1) << ARENA_CLASS_MIN_SHIFT)
        return 0;
    return 64u - (uint32_t)__builtin_clzll(block_bytes - 1) - ARENA_CLASS_MIN_SHIFT;
}

static struct block *arena_refuse(struct arena *arena)
{
    arena->full_count++;
    return NULL;
}

struct block *arena_get(struct arena *arena, uint32_t data_bytes)
{
    uint64_t block_bytes = data_bytes + sizeof(struct block);
    if (block_bytes > UINT64_C(1) << ARENA_CLASS_MAX_SHIFT)
        return arena_refuse(arena);
    uint32_t class_index = class_index_for(block_bytes);
    struct class *class = &arena->classes[class_index];
    uint32_t pages = (uint32_t)((block_bytes + (UINT64_C(1) << PAGE_SHIFT) - 1) >> PAGE_SHIFT);
    uint64_t cost = class->block_cost != 0 ? class->block_cost : (uint64_t)pages << PAGE_SHIFT;
    if (cost > arena->bytes_max - arena->bytes_held)
        return arena_refuse(arena);

    struct span *span;
    uint32_t index = class->lists[SPAN_PARTIAL].first;
    if (__builtin_expect(index != SPAN_NONE, 1)) {
        span = &class->spans[index];
    } else {
        span = class_open_span(arena, class, class->block_cost != 0 ? UINT32_C(1) << (class->span_shift - PAGE_SHIFT) : pages);
        if (span == NULL)
            return arena_refuse(arena);
        index = (uint32_t)(span - class->spans);
    }
    struct block *block = span->free;
    if (block != NULL) {
        /* Written to after it was put: a bug that would otherwise show much later. */
        ZG_CHECK(block->refs == 0);
        span->free = block->next;
    } else {
        /* Not read before it is written: reading a page that is not there yet would cost a second fault. */
        block = (struct block *)(void *)(span_base(class, index) + ((size_t)span->carved_count++ << class->block_shift));
    }
    ZG_UNPOISON(block, (size_t)1 << class->block_shift);
    if (++span->used_count == class->blocks_per_span)
        span_set_state(class, span, SPAN_FULL);
    span->counted_pages = pages;
    arena->bytes_held += cost;
    memset(block, 0, sizeof(*block));
    block->refs = 1;
    block->class_index = (uint8_t)class_index;
    return block;
}

/* A block of the span has come back: puts the span where it belongs. The first partial span stays where it is even with no block held, so that getting and putting one
 * block in turn moves nothing; it leaves when another becomes the first. */
static void class_settle_span(struct class *class, struct span *span)
{
    if (span->state == SPAN_FULL) {
        if (class->blocks_per_span == 1) {
            span_set_state(class, span, SPAN_EMPTY);
            return;
        }
        uint32_t first = class->lists[SPAN_PARTIAL].first;
        if (first != SPAN_NONE && class->spans[first].used_count == 0)
            span_set_state(class, &class->spans[first], SPAN_EMPTY);
        span_set_state(class, span, SPAN_PARTIAL);
    } else if (span->used_count == 0 && span->prev != SPAN_NONE) {
        span_set_state(class, span, SPAN_EMPTY);
    }
}

void arena_put(struct arena *arena, struct block **block)
{
    struct block *held = *block;
    *block = NULL;
    ZG_CHECK(held != NULL && held->refs > 0 && held->class_index < ARENA_CLASSES_COUNT);
    if (--held->refs > 0)
        return;
    struct class *class = &arena->classes[held->class_index];
    uint64_t offset = (uint64_t)((uintptr_t)held - (uintptr_t) class->base);
    ZG_CHECK(offset < class->committed_bytes && (offset & ((UINT64_C(1) << class->block_shift) - 1)) == 0);
    struct span *span = &class->spans[offset >> class->span_shift];
    uint64_t cost = class->block_cost != 0 ? class->block_cost : (uint64_t)span->counted_pages << PAGE_SHIFT;
    ZG_CHECK(span->used_count > 0 && cost <= arena->bytes_held);
    arena->bytes_held -= cost;
    held->next = span->free;
    span->free = held;
    ZG_POISON(held->data, ((size_t)1 << class->block_shift) - sizeof(*held));
    span->used_count--;
    class_settle_span(class, span);
}

/* --- addresses --- */

struct block *arena_block_of(const struct arena *arena, const void *data)
{
    uint64_t offset = arena_offset_of(arena, data);
    uint32_t class_index = (uint32_t)(offset >> arena->region_shift);
    uint64_t block_offset = offset & ~((UINT64_C(1) << (class_index + ARENA_CLASS_MIN_SHIFT)) - 1);
    struct block *block = (struct block *)(void *)(arena->base + block_offset);
    ZG_CHECK(offset - block_offset >= sizeof(*block));
    ZG_CHECK(block->refs > 0 && block->class_index == class_index);
    return block;
}

uint64_t arena_offset_of(const struct arena *arena, const void *data)
{
    uint64_t offset = (uint64_t)((uintptr_t)data - (uintptr_t)arena->base);
    ZG_CHECK(offset < arena->regions_bytes);
    return offset;
}

const uint8_t *arena_at(const struct arena *arena, uint64_t offset)
{
    ZG_CHECK(offset < arena->regions_bytes);
    return arena->base + offset;
}

/* --- memory back to the kernel --- */

uint64_t arena_trim(struct arena *arena)
{
    uint64_t released_pages = 0;
    for (uint32_t i = 0; i < ARENA_CLASSES_COUNT; i++) {
        struct class *class = &arena->classes[i];
        uint32_t first = class->lists[SPAN_PARTIAL].first;
        if (first != SPAN_NONE && class->spans[first].used_count == 0)
            span_set_state(class, &class->spans[first], SPAN_EMPTY);
        /* What was empty at every moment since the last call was not needed for a whole interval. */
        uint32_t surplus = class->empty_low > class->reserve_spans ? class->empty_low - class->reserve_spans : 0;
        while (surplus > 0 && released_pages < TRIM_BYTES_MAX >> PAGE_SHIFT) {
            uint32_t span_pages = UINT32_C(1) << (class->span_shift - PAGE_SHIFT);
            uint64_t budget = ((TRIM_BYTES_MAX >> PAGE_SHIFT) - released_pages + span_pages - 1) / span_pages;
            uint32_t before = class->lists[SPAN_EMPTY].spans_count;
            uint64_t pages = class_release_run(arena, class, budget < surplus ? (uint32_t)budget : surplus);
            if (pages == 0)
                break;
            released_pages += pages;
            surplus -= before - class->lists[SPAN_EMPTY].spans_count;
        }
        class->empty_low = class->lists[SPAN_EMPTY].spans_count;
    }
    return released_pages << PAGE_SHIFT;
}

uint64_t arena_bytes_held(const struct arena *arena)
{
    return arena->bytes_held;
}

uint64_t arena_bytes_resident(const struct arena *arena)
{
    return arena->resident_pages << PAGE_SHIFT;
}

uint64_t arena_full_count(const struct arena *arena)
{
    return arena->full_count;
}
