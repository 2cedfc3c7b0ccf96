/*
 * The states of a node by the results of its checks: every edge, the times of the next check, and what holds for random results.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "shard/health.h"

TestSuite(health);

static const struct health_rules rules = {.failures_down = 3, .interval_ms = 1000, .urgent_ms = 100, .pause_min_ms = 50, .pause_max_ms = 400};

static struct health make(struct rng *rng)
{
    struct health health;
    rng->state = 11;
    health_init(&health, &rules, 5000, rng);
    return health;
}

/* One check as soon as it is due; returns when it ended. */
static uint64_t check(struct health *health, enum health_result result, struct rng *rng)
{
    uint64_t at_ms = health->next_ms;
    cr_assert_not(health_is_due(health, at_ms - 1));
    cr_assert(health_is_due(health, at_ms));
    health_begin(health, at_ms);
    cr_assert_not(health_is_due(health, at_ms + 1000000), "one at a time");
    health_end(health, &rules, result, at_ms + 5, rng);
    return at_ms + 5;
}

Test(health, node_is_used_until_shown_otherwise)
{
    struct rng rng;
    struct health health = make(&rng);
    cr_expect_eq(health.state, HEALTH_HEALTHY);
    cr_expect(health.next_ms >= 5000 && health.next_ms <= 5100);
    uint64_t ended_ms = check(&health, HEALTH_SERVES, &rng);
    cr_expect_eq(health.state, HEALTH_HEALTHY);
    cr_expect_eq(health.answered_ms, ended_ms);
    cr_expect(health.next_ms >= ended_ms + 900 && health.next_ms <= ended_ms + 1100, "a tenth either way");
}

Test(health, failures_in_a_row_make_it_suspect_and_then_down)
{
    struct rng rng;
    struct health health = make(&rng);
    for (uint32_t i = 1; i < 3; i++) {
        uint64_t ended_ms = check(&health, HEALTH_FAILS, &rng);
        cr_expect_eq(health.state, HEALTH_SUSPECT);
        cr_expect(health_is_usable(&health));
        cr_expect(health.next_ms >= ended_ms + 90 && health.next_ms <= ended_ms + 110);
    }
    uint64_t ended_ms = check(&health, HEALTH_FAILS, &rng);
    cr_expect_eq(health.state, HEALTH_DOWN);
    cr_expect_not(health_is_usable(&health));
    cr_expect_eq(health.since_ms, ended_ms);
    cr_expect(health.next_ms >= ended_ms + 25 && health.next_ms <= ended_ms + 50, "half to the whole of the first pause");
}

Test(health, one_answer_between_failures_keeps_it_up)
{
    struct rng rng;
    struct health health = make(&rng);
    for (uint32_t i = 0; i < 10; i++) {
        (void)check(&health, HEALTH_FAILS, &rng);
        (void)check(&health, HEALTH_FAILS, &rng);
        cr_expect_eq(health.state, HEALTH_SUSPECT);
        (void)check(&health, i % 2 == 0 ? HEALTH_SERVES : HEALTH_REFUSES, &rng);
        cr_expect_eq(health.state, i % 2 == 0 ? HEALTH_HEALTHY : HEALTH_SUSPECT);
    }
}

Test(health, refusing_is_suspect_and_never_down)
{
    struct rng rng;
    struct health health = make(&rng);
    for (uint32_t i = 0; i < 50; i++) {
        uint64_t ended_ms = check(&health, HEALTH_REFUSES, &rng);
        cr_expect_eq(health.state, HEALTH_SUSPECT);
        cr_expect_leq(health.next_ms, ended_ms + 110, "looked at often, so that it is seen when that ends");
    }
    (void)check(&health, HEALTH_SERVES, &rng);
    cr_expect_eq(health.state, HEALTH_HEALTHY);
}

static void bring_down(struct health *health, struct rng *rng)
{
    for (uint32_t i = 0; i < 3; i++)
        (void)check(health, HEALTH_FAILS, rng);
    cr_assert_eq(health->state, HEALTH_DOWN);
}

Test(health, down_is_probed_with_growing_pauses_and_stays_unused_meanwhile)
{
    struct rng rng;
    struct health health = make(&rng);
    bring_down(&health, &rng);
    uint64_t since_ms = health.since_ms;
    static const uint32_t pauses[] = {50, 100, 200, 400, 400, 400};
    for (uint32_t i = 0; i < 6; i++) {
        uint64_t pause = health.next_ms - health.ended_ms;
        cr_expect(pause >= pauses[i] / 2 && pause <= pauses[i], "probe %u after %llu ms", i, (unsigned long long)pause);
        health_begin(&health, health.next_ms);
        cr_expect_eq(health.state, HEALTH_PROBING);
        cr_expect_not(health_is_usable(&health));
        health_end(&health, &rules, HEALTH_FAILS, health.next_ms + 1, &rng);
        cr_expect_eq(health.state, HEALTH_DOWN);
        cr_expect_eq(health.since_ms, since_ms, "probing does not make it young");
    }
}

Test(health, one_good_probe_brings_it_back)
{
    static const enum health_result results[] = {HEALTH_SERVES, HEALTH_REFUSES};
    for (uint32_t i = 0; i < 2; i++) {
        struct rng rng;
        struct health health = make(&rng);
        bring_down(&health, &rng);
        uint64_t ended_ms = check(&health, results[i], &rng);
        cr_expect_eq(health.state, results[i] == HEALTH_SERVES ? HEALTH_HEALTHY : HEALTH_SUSPECT);
        cr_expect(health_is_usable(&health));
        cr_expect_eq(health.since_ms, ended_ms);
        cr_expect_eq(health.failures, 0, "and it has all its chances again");
    }
}

Test(health, check_that_could_not_be_made_says_nothing)
{
    struct rng rng;
    struct health health = make(&rng);
    health_begin(&health, health.next_ms);
    health_postpone(&health, &rules, 6000);
    cr_expect_eq(health.state, HEALTH_HEALTHY);
    cr_expect_eq(health.next_ms, 6100);
    bring_down(&health, &rng);
    health_begin(&health, health.next_ms);
    health_postpone(&health, &rules, 9000);
    cr_expect_eq(health.state, HEALTH_DOWN);
    cr_expect_eq(health.next_ms, 9100);
}

Test(health, hint_brings_the_next_check_forward_but_not_too_often)
{
    struct rng rng;
    struct health health = make(&rng);
    uint64_t ended_ms = check(&health, HEALTH_SERVES, &rng);
    health_hint(&health, &rules, ended_ms + 10);
    cr_expect_eq(health.next_ms, ended_ms + 100, "not within urgent_ms of the last");
    health_hint(&health, &rules, ended_ms + 50);
    cr_expect_eq(health.next_ms, ended_ms + 100);
    (void)check(&health, HEALTH_SERVES, &rng);
    health_hint(&health, &rules, health.ended_ms + 500);
    cr_expect_eq(health.next_ms, health.ended_ms + 500, "at once");
    health_begin(&health, health.next_ms);
    uint64_t next_ms = health.next_ms;
    health_hint(&health, &rules, next_ms + 1);
    cr_expect_eq(health.next_ms, next_ms, "nothing while one is under way");
    health_end(&health, &rules, HEALTH_SERVES, next_ms + 2, &rng);
    bring_down(&health, &rng);
    next_ms = health.next_ms;
    health_hint(&health, &rules, health.ended_ms);
    cr_expect_eq(health.next_ms, next_ms, "what is down has its own pace");
}

Test(health, random_results_keep_the_rules)
{
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct rng rng = {.state = seed};
        struct health_rules some = {.failures_down = 1 + rng_below(&rng, 5), .interval_ms = 1 + rng_below(&rng, 2000), .urgent_ms = rng_below(&rng, 200), .pause_min_ms = 1 + rng_below(&rng, 100)};
        some.pause_max_ms = some.pause_min_ms + rng_below(&rng, 1000);
        struct health health;
        uint64_t now_ms = 1000;
        uint32_t in_a_row = 0;
        health_init(&health, &some, now_ms, &rng);
        for (uint32_t i = 0; i < 400; i++) {
            if (rng_below(&rng, 4) == 0)
                health_hint(&health, &some, now_ms);
            if (!health_is_due(&health, now_ms))
                now_ms = health.next_ms;
            uint64_t before_ms = now_ms;
            health_begin(&health, now_ms);
            now_ms += rng_below(&rng, 500);
            enum health_result result = rng_below(&rng, 3) == 0 ? (enum health_result)rng_below(&rng, 3) : HEALTH_FAILS;
            bool was_usable = health_is_usable(&health);
            health_end(&health, &some, result, now_ms, &rng);
            in_a_row = result == HEALTH_FAILS ? in_a_row + 1 : 0;
            bool want = result != HEALTH_FAILS || (was_usable && in_a_row < some.failures_down);
            cr_assert_eq(health_is_usable(&health), want, "seed %llu step %u", (unsigned long long)seed, i);
            cr_assert(health.state != HEALTH_PROBING && !health.is_checking);
            uint64_t longest = some.interval_ms + some.interval_ms / 5 + some.urgent_ms + some.urgent_ms / 5 + some.pause_max_ms + 2;
            cr_assert(health.next_ms >= now_ms && health.next_ms <= now_ms + longest && now_ms >= before_ms, "never far away");
        }
    }
}

Test(health, every_state_has_a_name)
{
    for (uint32_t i = 0; i < HEALTH_STATE_COUNT; i++)
        cr_expect_gt(strlen(health_state_name((enum health_state)i)), 0);
}
