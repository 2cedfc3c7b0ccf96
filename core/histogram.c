/*
 * Log-linear histogram. One core records; any thread takes a view.
 *
 * A value below 32 has a bucket of its own. Above, the top six bits (the leading one and five more) name the bucket: 32 buckets for each power of two.
 */
#include "core/histogram.h"

#include "core/check.h"

enum { STEPS_SHIFT = 5, VALUE_BITS = 40 };

_Static_assert(HISTOGRAM_STEPS == 1 << STEPS_SHIFT, "the shift belongs to the steps");
/* The linear part takes one group of steps, every power of two from 2^5 to 2^39 another. */
_Static_assert(HISTOGRAM_BUCKETS == HISTOGRAM_STEPS * (VALUE_BITS - STEPS_SHIFT + 1), "the last bucket ends at 2^40 - 1");

uint32_t histogram_bucket_of(uint64_t value)
{
    if (value < HISTOGRAM_STEPS)
        return (uint32_t)value;
    if (value >> VALUE_BITS != 0)
        return HISTOGRAM_BUCKETS - 1;
    uint32_t exponent = 63u - (uint32_t)__builtin_clzll(value);
    uint32_t shift = exponent - STEPS_SHIFT;
    uint32_t step = (uint32_t)(value >> shift) - HISTOGRAM_STEPS;
    return HISTOGRAM_STEPS * (shift + 1) + step;
}

uint64_t histogram_bucket_upper(uint32_t bucket)
{
    ZG_CHECK(bucket < HISTOGRAM_BUCKETS);
    if (bucket < HISTOGRAM_STEPS)
        return bucket;
    uint32_t shift = bucket / HISTOGRAM_STEPS - 1;
    uint64_t step = bucket % HISTOGRAM_STEPS + HISTOGRAM_STEPS;
    return ((step + 1) << shift) - 1;
}

static uint64_t add_saturated(uint64_t left, uint64_t right)
{
    uint64_t sum;
    return __builtin_add_overflow(left, right, &sum) ? UINT64_MAX : sum;
}

static uint64_t multiply_saturated(uint64_t left, uint64_t right)
{
    uint64_t product;
    return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX : product;
}

void histogram_record(struct histogram *histogram, uint64_t value, uint64_t times)
{
    /* One writer: a relaxed load and store are enough, and neither is a locked instruction. */
    _Atomic uint64_t *counter = &histogram->counts[histogram_bucket_of(value)];
    atomic_store_explicit(counter, add_saturated(atomic_load_explicit(counter, memory_order_relaxed), times), memory_order_relaxed);
    uint64_t sum = atomic_load_explicit(&histogram->sum, memory_order_relaxed);
    atomic_store_explicit(&histogram->sum, add_saturated(sum, multiply_saturated(value, times)), memory_order_relaxed);
}

void histogram_view_add(struct histogram_view *view, const struct histogram *histogram)
{
    for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        uint64_t count = atomic_load_explicit(&histogram->counts[bucket], memory_order_relaxed);
        view->counts[bucket] = add_saturated(view->counts[bucket], count);
        /* The total is what was read here, not a counter of its own, so that it agrees with the buckets while the writer runs. */
        view->count = add_saturated(view->count, count);
    }
    view->sum = add_saturated(view->sum, atomic_load_explicit(&histogram->sum, memory_order_relaxed));
}

void histogram_view_subtract(struct histogram_view *view, const struct histogram_view *earlier)
{
    view->count = 0;
    for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        /* Counters only rise, so an earlier view can never hold more. */
        ZG_CHECK(view->counts[bucket] >= earlier->counts[bucket]);
        view->counts[bucket] -= earlier->counts[bucket];
        view->count = add_saturated(view->count, view->counts[bucket]);
    }
    ZG_CHECK(view->sum >= earlier->sum);
    view->sum -= earlier->sum;
}

/* Which of `count` ordered values (from 1) is the quantile: the smallest rank that at least that share of the values does not exceed. */
static uint64_t quantile_rank(double quantile, uint64_t count)
{
    if (!(quantile > 0.0))
        return 1;
    if (quantile >= 1.0)
        return count;
    double share = quantile * (double)count;
    uint64_t rank = (uint64_t)share;
    if ((double)rank < share)
        rank++;
    if (rank < 1)
        return 1;
    return rank > count ? count : rank;
}

uint64_t histogram_view_quantile(const struct histogram_view *view, double quantile)
{
    if (view->count == 0)
        return 0;
    uint64_t rank = quantile_rank(quantile, view->count);
    uint64_t seen = 0;
    for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        seen = add_saturated(seen, view->counts[bucket]);
        if (seen >= rank)
            return histogram_bucket_upper(bucket);
    }
    ZG_UNREACHABLE();
}
