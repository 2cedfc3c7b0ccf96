/*
 * A core that writes its metrics page and a reader that takes views of it, for ThreadSanitizer: what is read only rises, never exceeds what was written, and is exact at the end.
 * The reader also reads bytes that the core has lent, while the core goes on with its arena. Exit status 0: passed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/arena.h"
#include "core/metrics.h"

enum { REQUESTS_COUNT = 200000, LENT_BYTES = 1000, ARENA_MIB = 16 };

struct race {
    struct metrics *metrics;
    struct arena *arena;
    uint64_t lent_offset;
    _Atomic bool is_written;
};

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "race_metrics: %s\n", what);
    exit(1);
}

static void *run_core(void *context)
{
    struct race *race = context;
    for (uint64_t request = 0; request < REQUESTS_COUNT; request++) {
        struct block *block = arena_get(race->arena, 900);
        block->data[0] = 1;
        arena_put(race->arena, &block);
        if (request % 1000 == 0)
            arena_trim(race->arena);
        metric_add(race->metrics, METRIC_requests_total, 1);
        metric_set(race->metrics, METRIC_requests_inflight, request % 7);
        histogram_record(&race->metrics->request_us, request % 5000, 1);
    }
    atomic_store_explicit(&race->is_written, true, memory_order_release);
    return NULL;
}

static void read_lent(const struct race *race)
{
    const uint8_t *bytes = arena_at(race->arena, race->lent_offset);
    for (int i = 0; i < LENT_BYTES; i++)
        require(bytes[i] == 0x5a, "a lent byte changed");
}

int main(void)
{
    struct race race = {.metrics = alloc_zeroed_aligned(sizeof(*race.metrics), 64), .arena = arena_create(0, (uint64_t)ARENA_MIB << 20)};
    struct block *lent = arena_get(race.arena, LENT_BYTES);
    require(lent != NULL, "no block");
    memset(lent->data, 0x5a, LENT_BYTES);
    race.lent_offset = arena_offset_of(race.arena, lent->data);
    struct histogram_view *view = alloc_zeroed(sizeof(*view));
    pthread_t core;
    require(pthread_create(&core, NULL, run_core, &race) == 0, "no thread");
    uint64_t requests = 0, recorded = 0;
    while (!atomic_load_explicit(&race.is_written, memory_order_acquire)) {
        read_lent(&race);
        uint64_t now = metric_read(race.metrics, METRIC_requests_total);
        require(now >= requests && now <= REQUESTS_COUNT, "a counter went back or too far");
        requests = now;
        require(metric_read(race.metrics, METRIC_requests_inflight) < 7, "a gauge has a value that was never set");
        memset(view, 0, sizeof(*view));
        histogram_view_add(view, &race.metrics->request_us);
        require(view->count >= recorded && view->count <= REQUESTS_COUNT, "a histogram went back or too far");
        recorded = view->count;
        require(histogram_view_quantile(view, 1.0) < 5120, "a quantile lies beyond the values");
    }
    pthread_join(core, NULL);
    memset(view, 0, sizeof(*view));
    histogram_view_add(view, &race.metrics->request_us);
    require(view->count == REQUESTS_COUNT && metric_read(race.metrics, METRIC_requests_total) == REQUESTS_COUNT, "the totals are not exact at the end");
    arena_put(race.arena, &lent);
    arena_destroy(&race.arena);
    alloc_free(view);
    alloc_free(race.metrics);
    return 0;
}
