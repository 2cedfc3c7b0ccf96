/*
 * The bound on attempts holds over any stretch of time, whatever is asked and when; the burst is had at once; turns are jittered.
 */
#include <criterion/criterion.h>

#include "core/rng.h"
#include "net/connect_rate.h"

TestSuite(connect_rate);

enum { SEEDS = 300, ATTEMPTS_MAX = 4096 };

/* Attempts that were granted, by time, must be within burst + rate x time between any two of them. */
static void expect_bound(const uint64_t *at_ms, uint32_t count, double per_s, double burst, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i; j < count; j++) {
            double most = burst + per_s * (double)(at_ms[j] - at_ms[i]) / 1000.0 + 1e-6;
            cr_assert_leq((double)(j - i + 1), most, "seed %llu: %u attempts in %llu ms, most %f", (unsigned long long)seed, j - i + 1,
                (unsigned long long)(at_ms[j] - at_ms[i]), most);
        }
}

Test(connect_rate, any_stretch_of_time_is_within_the_bound)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rng rng = {.state = seed};
        uint32_t per_s = 1 + rng_below(&rng, 300);
        uint32_t burst = 1 + rng_below(&rng, 60);
        uint32_t shares = 1 + rng_below(&rng, 65);
        uint64_t at_ms[ATTEMPTS_MAX];
        uint32_t count = 0;
        uint64_t now_ms = rng_below(&rng, 1000000);
        struct connect_rate rate;
        connect_rate_init(&rate, per_s, burst, shares, now_ms);
        for (uint32_t i = 0; i < 3000; i++) {
            now_ms += rng_below(&rng, 10) == 0 ? rng_below(&rng, 2000) : rng_below(&rng, 12);
            while (count < ATTEMPTS_MAX && connect_rate_take(&rate, now_ms, &rng))
                at_ms[count++] = now_ms;
        }
        double share = (double)burst / shares;
        expect_bound(at_ms, count < 600 ? count : 600, (double)per_s / shares, share > 1 ? share : 1, seed);
    }
}

Test(connect_rate, burst_is_had_at_once_and_then_the_rate)
{
    struct rng rng = {.state = 7};
    struct connect_rate rate;
    uint32_t at_once = 0, in_a_minute = 0;
    connect_rate_init(&rate, 50, 20, 2, 0);
    while (connect_rate_take(&rate, 0, &rng))
        at_once++;
    cr_expect_eq(at_once, 10);
    for (uint64_t now_ms = 1; now_ms <= 60000; now_ms++)
        in_a_minute += connect_rate_take(&rate, now_ms, &rng) ? 1 : 0;
    cr_expect(in_a_minute >= 25 * 60 * 9 / 10 && in_a_minute <= 25 * 60, "the rate is used: %u", in_a_minute);
}

Test(connect_rate, turns_are_jittered)
{
    uint64_t first[8], other[8];
    for (uint32_t round = 0; round < 2; round++) {
        struct rng rng = {.state = 100 + round};
        struct connect_rate rate;
        uint32_t count = 0;
        connect_rate_init(&rate, 10, 1, 1, 0);
        for (uint64_t now_ms = 0; count < 8; now_ms++)
            if (connect_rate_take(&rate, now_ms, &rng))
                (round == 0 ? first : other)[count++] = now_ms;
    }
    uint32_t different = 0;
    for (uint32_t i = 1; i < 8; i++) {
        different += first[i] != other[i] ? 1 : 0;
        cr_expect(first[i] - first[i - 1] >= 100 && first[i] - first[i - 1] <= 151, "a turn after %llu ms", (unsigned long long)(first[i] - first[i - 1]));
    }
    cr_expect_geq(different, 5, "two that begin together do not stay together");
}

Test(connect_rate, share_below_one_waits_for_its_first_attempt)
{
    struct rng rng = {.state = 3};
    struct connect_rate rate;
    connect_rate_init(&rate, 1, 1, 65, 0);
    uint64_t now_ms = 0;
    while (!connect_rate_take(&rate, now_ms, &rng))
        now_ms++;
    cr_expect(now_ms > 60000 && now_ms < 70000, "%llu", (unsigned long long)now_ms);
    cr_expect_not(connect_rate_take(&rate, now_ms, &rng));
}

Test(connect_rate, clock_that_stands_still_or_jumps_gives_no_more)
{
    struct rng rng = {.state = 3};
    struct connect_rate rate;
    connect_rate_init(&rate, 1000, 4, 1, 5000);
    for (uint32_t i = 0; i < 4; i++)
        cr_expect(connect_rate_take(&rate, 5000, &rng));
    for (uint32_t i = 0; i < 1000; i++)
        cr_expect_not(connect_rate_take(&rate, 5000, &rng));
    uint32_t count = 0;
    while (connect_rate_take(&rate, UINT64_C(1) << 60, &rng))
        count++;
    cr_expect_eq(count, 4, "after any time no more than the burst");
}
