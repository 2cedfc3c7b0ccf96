/*
 * Metrics of one core: a page that its core writes and any thread may read (relaxed). Rows are in metrics.def.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "core/histogram.h"

enum metric {
#define METRIC(name, kind, unit, help) METRIC_##name,
#include "core/metrics.def"
#undef METRIC
    METRIC_COUNT
};

/* Cache-line aligned by its allocator. Only the owning core writes. */
struct metrics {
    _Atomic uint64_t values[METRIC_COUNT];
    struct histogram request_us; /* from arrival of the whole command to its reply in the send queue, microseconds */
    struct histogram batch_legs; /* legs a flushed batch */
};

struct metric_info {
    const char *name;
    const char *kind; /* "counter" or "gauge" */
    const char *unit;
    const char *help;
};

const struct metric_info *metric_info(enum metric metric);

/* A plain add by the only writer: a relaxed load and store, no locked instruction. */
static inline void metric_add(struct metrics *metrics, enum metric metric, uint64_t amount)
{
    uint64_t value = atomic_load_explicit(&metrics->values[metric], memory_order_relaxed);
    atomic_store_explicit(&metrics->values[metric], value + amount, memory_order_relaxed);
}

static inline void metric_set(struct metrics *metrics, enum metric metric, uint64_t value)
{
    atomic_store_explicit(&metrics->values[metric], value, memory_order_relaxed);
}

static inline uint64_t metric_read(const struct metrics *metrics, enum metric metric)
{
    return atomic_load_explicit(&metrics->values[metric], memory_order_relaxed);
}
