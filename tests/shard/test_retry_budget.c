/*
 * Repeats stay within the share of requests and the floor over any ten seconds, for random loads; a quiet core has its floor; nothing is had where both are 0.
 */
#include <criterion/criterion.h>

#include "core/rng.h"
#include "shard/retry_budget.h"

TestSuite(retry_budget);

enum { SEEDS = 200, WINDOW_MS = RETRY_BUDGET_SLOTS * RETRY_BUDGET_SLOT_MS, STEPS = 3000 };

Test(retry_budget, random_loads_stay_within_share_and_floor)
{
    static uint64_t requests_at[STEPS], retries_at[STEPS], at_ms[STEPS];
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rng rng = {.state = seed};
        uint32_t percent = rng_below(&rng, 60), floor = rng_below(&rng, 20);
        uint64_t now_ms = rng_below(&rng, 100000), requests = rng_below(&rng, 1000), retries = 0, refused = 0;
        struct retry_budget budget;
        retry_budget_init(&budget, percent, floor, requests, now_ms);
        for (uint32_t i = 0; i < STEPS; i++) {
            now_ms += rng_below(&rng, 100) == 0 ? rng_below(&rng, 30000) : rng_below(&rng, 40);
            requests += rng_below(&rng, 5);
            bool taken = retry_budget_take(&budget, requests, now_ms);
            retries += taken ? 1 : 0;
            refused += taken ? 0 : 1;
            at_ms[i] = now_ms;
            requests_at[i] = requests;
            retries_at[i] = retries;
        }
        cr_expect(refused > 0 || percent + floor > 30, "seed %llu: the bound was met", (unsigned long long)seed);
        /* The window is of whole slots, so it spans nine to ten seconds. The bound holds whenever one is granted. */
        for (uint32_t i = 1; i < STEPS; i++) {
            uint32_t j = i;
            if (retries_at[i] == retries_at[i - 1])
                continue;
            while (j > 0 && at_ms[i] / RETRY_BUDGET_SLOT_MS - at_ms[j - 1] / RETRY_BUDGET_SLOT_MS < RETRY_BUDGET_SLOTS)
                j--;
            uint64_t window_requests = requests_at[i] - (j > 0 ? requests_at[j - 1] : 0);
            uint64_t window_retries = retries_at[i] - (j > 0 ? retries_at[j - 1] : 0);
            cr_assert_leq(window_retries, (uint64_t)floor * 10 + window_requests * percent / 100, "seed %llu, step %u: %llu repeats of %llu requests",
                (unsigned long long)seed, i, (unsigned long long)window_retries, (unsigned long long)window_requests);
        }
    }
}

Test(retry_budget, quiet_core_has_its_floor_and_gets_it_again)
{
    struct retry_budget budget;
    retry_budget_init(&budget, 20, 10, 0, 5000);
    uint32_t first = 0, at_once_after = 0, later = 0;
    while (retry_budget_take(&budget, 0, 5000))
        first++;
    cr_expect_eq(first, 100, "ten seconds of the floor");
    while (retry_budget_take(&budget, 0, 5000 + WINDOW_MS - RETRY_BUDGET_SLOT_MS))
        at_once_after++;
    cr_expect_eq(at_once_after, 0);
    while (retry_budget_take(&budget, 0, 5000 + WINDOW_MS))
        later++;
    cr_expect_eq(later, 100);
}

Test(retry_budget, share_follows_the_requests)
{
    struct retry_budget budget;
    retry_budget_init(&budget, 20, 0, 1000, 0);
    cr_expect_not(retry_budget_take(&budget, 1000, 0), "requests from before are none");
    uint32_t count = 0;
    while (retry_budget_take(&budget, 2000, 100))
        count++;
    cr_expect_eq(count, 200);
    cr_expect_not(retry_budget_take(&budget, 2004, 200));
    cr_expect(retry_budget_take(&budget, 2005, 200));
    retry_budget_see(&budget, 2100, 5000);
    retry_budget_see(&budget, 2100, 12000);
    count = 0;
    while (retry_budget_take(&budget, 2100, 12000))
        count++;
    cr_expect_eq(count, 19, "of what came within the window: %u", count);
}

Test(retry_budget, nothing_is_repeated_where_both_are_zero)
{
    struct retry_budget budget;
    retry_budget_init(&budget, 0, 0, 0, 0);
    for (uint64_t i = 0; i < 1000; i++)
        cr_expect_not(retry_budget_take(&budget, i * 100, i));
}

Test(retry_budget, clock_that_stands_still_or_leaps_is_no_harm)
{
    struct retry_budget budget;
    retry_budget_init(&budget, 50, 1, 0, 1000);
    uint32_t count = 0;
    while (retry_budget_take(&budget, 100, 1000))
        count++;
    cr_expect_eq(count, 60);
    count = 0;
    while (retry_budget_take(&budget, 200, UINT64_C(1) << 50))
        count++;
    cr_expect_eq(count, 60, "ten of the floor, and half of a hundred");
}
