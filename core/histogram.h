/*
 * Log-linear histogram of unsigned values: 32 linear steps per power of two, so that a bucket's width is at most 3.2 % of its value. One writer,
 * any reader (relaxed atomics).
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum { HISTOGRAM_STEPS = 32, HISTOGRAM_BUCKETS = HISTOGRAM_STEPS * 36 }; /* values up to 2^40; larger ones count in the last bucket */

struct histogram {
    _Atomic uint64_t counts[HISTOGRAM_BUCKETS];
    _Atomic uint64_t sum;
};

/* A reader's copy, which can be added to others. */
struct histogram_view {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t count;
    uint64_t sum;
};

void histogram_record(struct histogram *histogram, uint64_t value, uint64_t times);

/* Adds what `histogram` holds to `view` (zeroed by the caller before the first). */
void histogram_view_add(struct histogram_view *view, const struct histogram *histogram);

/* Subtracts an earlier view, to get an interval. */
void histogram_view_subtract(struct histogram_view *view, const struct histogram_view *earlier);

/* The upper bound of the bucket in which the quantile lies; quantile in 0..1; 0 where the view is empty. */
uint64_t histogram_view_quantile(const struct histogram_view *view, double quantile);

uint64_t histogram_bucket_upper(uint32_t bucket);
uint32_t histogram_bucket_of(uint64_t value);
