#include "core/histogram.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/rng.h"

TestSuite(histogram);

static struct histogram *histogram;
static struct histogram_view *view, *earlier;

static void setup(void)
{
    histogram = alloc_zeroed(sizeof(*histogram));
    view = alloc_zeroed(sizeof(*view));
    earlier = alloc_zeroed(sizeof(*earlier));
}

static void teardown(void)
{
    alloc_free(histogram);
    alloc_free(view);
    alloc_free(earlier);
}

TestSuite(histogram_values, .init = setup, .fini = teardown);

Test(histogram, buckets_cover_all_values_in_order_without_gaps)
{
    for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        uint64_t lower = bucket == 0 ? 0 : histogram_bucket_upper(bucket - 1) + 1;
        uint64_t upper = histogram_bucket_upper(bucket);
        cr_assert_leq(lower, upper);
        cr_assert_eq(histogram_bucket_of(lower), bucket);
        cr_assert_eq(histogram_bucket_of(upper), bucket);
        /* The width is at most a 32nd of the lowest value: 3.2 %. */
        cr_assert(upper - lower <= lower / HISTOGRAM_STEPS, "bucket %u", bucket);
    }
    cr_assert_eq(histogram_bucket_upper(HISTOGRAM_BUCKETS - 1), (UINT64_C(1) << 40) - 1);
}

Test(histogram, values_beyond_the_range_count_in_the_last_bucket)
{
    cr_assert_eq(histogram_bucket_of(0), 0);
    cr_assert_eq(histogram_bucket_of(1), 1);
    cr_assert_eq(histogram_bucket_of(31), 31);
    cr_assert_eq(histogram_bucket_of(32), 32);
    cr_assert_eq(histogram_bucket_of((UINT64_C(1) << 40) - 1), HISTOGRAM_BUCKETS - 1);
    cr_assert_eq(histogram_bucket_of(UINT64_C(1) << 40), HISTOGRAM_BUCKETS - 1);
    cr_assert_eq(histogram_bucket_of(UINT64_MAX), HISTOGRAM_BUCKETS - 1);
}

Test(histogram, bucket_outside_the_range_aborts, .signal = SIGABRT)
{
    (void)histogram_bucket_upper(HISTOGRAM_BUCKETS);
}

Test(histogram_values, empty_view_has_quantile_zero)
{
    histogram_view_add(view, histogram);
    cr_assert_eq(view->count, 0);
    cr_assert_eq(histogram_view_quantile(view, 0.5), 0);
}

Test(histogram_values, quantiles_at_and_beyond_the_ends_are_the_least_and_the_greatest)
{
    histogram_record(histogram, 3, 1);
    histogram_record(histogram, 10, 98);
    histogram_record(histogram, 20, 1);
    histogram_view_add(view, histogram);
    cr_assert_eq(view->count, 100);
    cr_assert_eq(view->sum, 3 + 980 + 20);
    cr_assert_eq(histogram_view_quantile(view, 0.0), 3);
    cr_assert_eq(histogram_view_quantile(view, -1.0), 3);
    cr_assert_eq(histogram_view_quantile(view, (double)NAN), 3);
    cr_assert_eq(histogram_view_quantile(view, 0.01), 3);
    cr_assert_eq(histogram_view_quantile(view, 0.011), 10);
    cr_assert_eq(histogram_view_quantile(view, 0.5), 10);
    cr_assert_eq(histogram_view_quantile(view, 0.99), 10);
    cr_assert_eq(histogram_view_quantile(view, 0.991), 20);
    cr_assert_eq(histogram_view_quantile(view, 1.0), 20);
    cr_assert_eq(histogram_view_quantile(view, 7.0), 20);
}

Test(histogram_values, extremes_saturate_instead_of_wrapping)
{
    histogram_record(histogram, UINT64_MAX, 2);
    histogram_record(histogram, 5, UINT64_MAX);
    histogram_record(histogram, 5, 1);
    histogram_record(histogram, 6, 0);
    histogram_view_add(view, histogram);
    cr_assert_eq(view->counts[5], UINT64_MAX);
    cr_assert_eq(view->counts[6], 0);
    cr_assert_eq(view->counts[HISTOGRAM_BUCKETS - 1], 2);
    cr_assert_eq(view->count, UINT64_MAX);
    cr_assert_eq(view->sum, UINT64_MAX);
    cr_assert_eq(histogram_view_quantile(view, 0.5), 5);
    histogram_view_add(view, histogram);
    cr_assert_eq(view->counts[5], UINT64_MAX);
    cr_assert_eq(view->counts[HISTOGRAM_BUCKETS - 1], 4);
}

Test(histogram_values, interval_is_what_was_recorded_after_the_earlier_view)
{
    histogram_record(histogram, 100, 5);
    histogram_view_add(earlier, histogram);
    histogram_record(histogram, 7, 3);
    histogram_view_add(view, histogram);
    cr_assert_eq(view->count, 8);
    histogram_view_subtract(view, earlier);
    cr_assert_eq(view->count, 3);
    cr_assert_eq(view->sum, 21);
    cr_assert_eq(histogram_view_quantile(view, 1.0), 7);
    /* Views of two cores add up. */
    histogram_view_add(view, histogram);
    cr_assert_eq(view->count, 11);
}

Test(histogram_values, subtracting_a_view_that_is_not_earlier_aborts, .signal = SIGABRT)
{
    histogram_record(histogram, 1, 1);
    histogram_view_add(earlier, histogram);
    histogram_view_subtract(view, earlier);
}

static int compare_values(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

Test(histogram_values, quantiles_of_random_values_are_within_a_bucket_of_the_exact_ones)
{
    enum { VALUES_COUNT = 20000 };
    static uint64_t values[VALUES_COUNT];
    struct rng rng = {.state = 42};
    for (uint32_t i = 0; i < VALUES_COUNT; i++) {
        values[i] = rng_next(&rng) >> (24 + rng_below(&rng, 40));
        histogram_record(histogram, values[i], 1);
    }
    histogram_view_add(view, histogram);
    qsort(values, VALUES_COUNT, sizeof(values[0]), compare_values);
    static const double quantiles[] = {0.001, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0};
    for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++) {
        uint64_t exact = values[(size_t)ceil(quantiles[i] * VALUES_COUNT) - 1];
        cr_assert_eq(histogram_view_quantile(view, quantiles[i]), histogram_bucket_upper(histogram_bucket_of(exact)));
    }
}
