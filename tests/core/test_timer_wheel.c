#include "core/timer_wheel.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

TestSuite(timer_wheel);

#define DAY_MS UINT64_C(86400000)
#define WHEEL_SPAN_MS (UINT64_C(1) << 30) /* 64^5 */

/* A timer that remembers when it fired. */
struct probe {
    struct timer timer;
    struct timer_wheel *wheel;
    uint64_t fired_at_ms;
    uint32_t fired_count;
};

static void probe_fire(struct timer *timer, void *context)
{
    struct probe *probe = context;
    cr_assert_eq(timer, &probe->timer);
    cr_assert_not(timer_is_armed(timer));
    probe->fired_at_ms = probe->wheel->now_ms;
    probe->fired_count++;
}

static void probe_init(struct probe *probe, struct timer_wheel *wheel)
{
    memset(probe, 0, sizeof(*probe));
    probe->wheel = wheel;
    timer_init(&probe->timer, probe_fire, probe);
}

/* The bits say which slots are occupied, exactly; next_ms is not later than any timer. */
static void wheel_validate(const struct timer_wheel *wheel)
{
    uint64_t timers_count = 0, earliest_ms = UINT64_MAX;
    for (uint32_t level = 0; level < WHEEL_LEVELS; level++) {
        for (uint32_t slot = 0; slot < WHEEL_SLOTS; slot++) {
            const struct list_node *head = &wheel->slots[level][slot];
            cr_assert_eq(!list_is_empty(head), (wheel->occupied[level] >> slot & 1) != 0);
            for (const struct list_node *node = head->next; node != head; node = node->next) {
                const struct timer *timer = LIST_ENTRY(node, struct timer, node);
                cr_assert_gt(timer->expires_ms, wheel->now_ms);
                if (timer->expires_ms < earliest_ms)
                    earliest_ms = timer->expires_ms;
                timers_count++;
            }
        }
    }
    for (const struct list_node *node = wheel->due.next; node != &wheel->due; node = node->next) {
        timers_count++;
        earliest_ms = wheel->now_ms;
    }
    cr_assert_eq(timers_count, wheel->armed_count);
    if (timers_count == 0)
        cr_assert_eq(timer_wheel_next_ms(wheel), UINT64_MAX);
    else
        cr_assert(timer_wheel_next_ms(wheel) <= earliest_ms && timer_wheel_next_ms(wheel) >= wheel->now_ms);
}

Test(timer_wheel, timers_around_every_cascade_fire_in_their_millisecond)
{
    static const uint64_t starts[] = {0, 1, 62, 63, 64, 4095, 4096, 262143, WHEEL_SPAN_MS - 1, WHEEL_SPAN_MS, 5 * WHEEL_SPAN_MS - 100, UINT64_C(1767322800123)};
    static const uint64_t delays[] = {1, 2, 62, 63, 64, 65, 127, 128, 4031, 4095, 4096, 4097, 8192, 262143, 262144, 262145, 16777215, 16777216, 16777217};
    for (size_t s = 0; s < sizeof(starts) / sizeof(starts[0]); s++) {
        for (size_t d = 0; d < sizeof(delays) / sizeof(delays[0]); d++) {
            struct timer_wheel wheel;
            struct probe probe;
            timer_wheel_init(&wheel, starts[s]);
            probe_init(&probe, &wheel);
            uint64_t expires_ms = starts[s] + delays[d];
            timer_set(&wheel, &probe.timer, expires_ms);
            cr_assert_eq(timer_wheel_advance(&wheel, expires_ms - 1), 0, "start %zu delay %zu", s, d);
            cr_assert(timer_is_armed(&probe.timer));
            wheel_validate(&wheel);
            cr_assert_eq(timer_wheel_advance(&wheel, expires_ms), 1, "start %zu delay %zu", s, d);
            cr_assert_eq(probe.fired_count, 1);
            wheel_validate(&wheel);

            /* In one leap far beyond it, too: the wheel's time during the callback is the timer's. */
            timer_wheel_init(&wheel, starts[s]);
            probe_init(&probe, &wheel);
            timer_set(&wheel, &probe.timer, expires_ms);
            cr_assert_eq(timer_wheel_advance(&wheel, expires_ms + 100 * DAY_MS), 1);
            cr_assert_eq(probe.fired_at_ms, expires_ms);
            cr_assert_eq(wheel.now_ms, expires_ms + 100 * DAY_MS);
        }
    }
}

Test(timer_wheel, time_in_the_far_future_waits_through_wraps_and_fires)
{
    static const uint64_t delays[] = {WHEEL_SPAN_MS - 1, WHEEL_SPAN_MS, WHEEL_SPAN_MS + 1, 3 * WHEEL_SPAN_MS + 12345, 365 * DAY_MS};
    static const uint64_t starts[] = {0, 7, WHEEL_SPAN_MS - 1, WHEEL_SPAN_MS / 2, UINT64_C(1767322800123)};
    for (size_t s = 0; s < sizeof(starts) / sizeof(starts[0]); s++) {
        for (size_t d = 0; d < sizeof(delays) / sizeof(delays[0]); d++) {
            struct timer_wheel wheel;
            struct probe probe;
            timer_wheel_init(&wheel, starts[s]);
            probe_init(&probe, &wheel);
            timer_set(&wheel, &probe.timer, starts[s] + delays[d]);
            /* As the loop does it: sleep until the next moment, over and over. */
            uint32_t steps = 0;
            while (probe.fired_count == 0 && steps++ < 100) {
                uint64_t next_ms = timer_wheel_next_ms(&wheel);
                cr_assert(next_ms > wheel.now_ms && next_ms <= starts[s] + delays[d]);
                timer_wheel_advance(&wheel, next_ms);
                wheel_validate(&wheel);
            }
            cr_assert_eq(probe.fired_at_ms, starts[s] + delays[d]);
        }
    }
}

Test(timer_wheel, time_that_never_comes_does_not_fire_and_can_be_cancelled)
{
    struct timer_wheel wheel;
    struct probe probe;
    timer_wheel_init(&wheel, 1000);
    probe_init(&probe, &wheel);
    timer_set(&wheel, &probe.timer, UINT64_MAX);
    cr_assert_eq(timer_wheel_advance(&wheel, 10000 * DAY_MS), 0);
    wheel_validate(&wheel);
    timer_cancel(&wheel, &probe.timer);
    timer_cancel(&wheel, &probe.timer);
    cr_assert_eq(wheel.armed_count, 0);
    wheel_validate(&wheel);
}

Test(timer_wheel, time_in_the_past_fires_at_the_next_advance_even_without_a_move)
{
    struct timer_wheel wheel;
    struct probe past, now;
    timer_wheel_init(&wheel, 1000);
    probe_init(&past, &wheel);
    probe_init(&now, &wheel);
    timer_set(&wheel, &past.timer, 0);
    timer_set(&wheel, &now.timer, 1000);
    cr_assert_eq(timer_wheel_next_ms(&wheel), 1000);
    wheel_validate(&wheel);
    cr_assert_eq(timer_wheel_advance(&wheel, 1000), 2);
    cr_assert_eq(timer_wheel_next_ms(&wheel), UINT64_MAX);

    timer_set(&wheel, &past.timer, 5);
    timer_cancel(&wheel, &past.timer);
    cr_assert_eq(timer_wheel_advance(&wheel, 2000), 0);
}

Test(timer_wheel, advance_to_an_earlier_time_changes_nothing)
{
    struct timer_wheel wheel;
    struct probe probe;
    timer_wheel_init(&wheel, 1000);
    probe_init(&probe, &wheel);
    timer_set(&wheel, &probe.timer, 1001);
    cr_assert_eq(timer_wheel_advance(&wheel, 10), 0);
    cr_assert_eq(wheel.now_ms, 1000);
    cr_assert_eq(timer_wheel_advance(&wheel, 1001), 1);
}

Test(timer_wheel, setting_again_moves_the_timer_and_counts_it_once)
{
    struct timer_wheel wheel;
    struct probe probe;
    timer_wheel_init(&wheel, 0);
    probe_init(&probe, &wheel);
    timer_set(&wheel, &probe.timer, 10);
    timer_set(&wheel, &probe.timer, 100000);
    timer_set(&wheel, &probe.timer, 20);
    cr_assert_eq(wheel.armed_count, 1);
    wheel_validate(&wheel);
    cr_assert_eq(timer_wheel_advance(&wheel, 19), 0);
    cr_assert_eq(timer_wheel_advance(&wheel, 200000), 1);
    cr_assert_eq(probe.fired_at_ms, 20);
}

/* Callbacks that arm and disarm. */
struct actor {
    struct timer timer;
    struct timer_wheel *wheel;
    struct timer *victim;    /* cancelled where not NULL */
    uint64_t again_after_ms; /* 0: not set again; UINT64_MAX: set to the past */
    uint32_t fired_count;
};

static void actor_fire(struct timer *timer, void *context)
{
    struct actor *actor = context;
    actor->fired_count++;
    if (actor->victim != NULL)
        timer_cancel(actor->wheel, actor->victim);
    if (actor->again_after_ms == UINT64_MAX)
        timer_set(actor->wheel, timer, 0);
    else if (actor->again_after_ms > 0)
        timer_set(actor->wheel, timer, timer->expires_ms + actor->again_after_ms);
}

static void actor_init(struct actor *actor, struct timer_wheel *wheel)
{
    memset(actor, 0, sizeof(*actor));
    actor->wheel = wheel;
    timer_init(&actor->timer, actor_fire, actor);
}

Test(timer_wheel, callback_that_cancels_a_timer_of_the_same_tick_keeps_it_from_firing)
{
    struct timer_wheel wheel;
    struct actor first, second, third;
    timer_wheel_init(&wheel, 0);
    actor_init(&first, &wheel);
    actor_init(&second, &wheel);
    actor_init(&third, &wheel);
    /* At 4096 they come out of a cascade, at 10 out of a slot, at 0 out of the list of what is due. */
    static const uint64_t times[] = {0, 10, 4096};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        first.victim = &second.timer;
        first.fired_count = second.fired_count = third.fired_count = 0;
        timer_set(&wheel, &first.timer, times[i]);
        timer_set(&wheel, &second.timer, times[i]);
        timer_set(&wheel, &third.timer, times[i]);
        cr_assert_eq(timer_wheel_advance(&wheel, times[i]), 2);
        cr_assert(first.fired_count == 1 && second.fired_count == 0 && third.fired_count == 1);
        cr_assert_not(timer_is_armed(&second.timer));
        wheel_validate(&wheel);
    }
}

Test(timer_wheel, callback_that_cancels_a_later_timer_keeps_it_from_firing_in_the_same_advance)
{
    struct timer_wheel wheel;
    struct actor first, second;
    timer_wheel_init(&wheel, 0);
    actor_init(&first, &wheel);
    actor_init(&second, &wheel);
    first.victim = &second.timer;
    timer_set(&wheel, &first.timer, 10);
    timer_set(&wheel, &second.timer, 5000);
    cr_assert_eq(timer_wheel_advance(&wheel, 10000), 1);
    cr_assert_eq(second.fired_count, 0);
    wheel_validate(&wheel);
}

Test(timer_wheel, callback_that_sets_itself_again_fires_at_each_of_its_times)
{
    struct timer_wheel wheel;
    struct actor periodic, eager;
    timer_wheel_init(&wheel, 0);
    actor_init(&periodic, &wheel);
    periodic.again_after_ms = 100;
    timer_set(&wheel, &periodic.timer, 100);
    cr_assert_eq(timer_wheel_advance(&wheel, 1000), 10);
    cr_assert_eq(timer_wheel_advance(&wheel, 1099), 0);
    cr_assert_eq(timer_wheel_advance(&wheel, 1100), 1);
    timer_cancel(&wheel, &periodic.timer);

    /* One that always asks for the past fires once an advance, so that an advance ends. */
    actor_init(&eager, &wheel);
    eager.again_after_ms = UINT64_MAX;
    timer_set(&wheel, &eager.timer, 0);
    cr_assert_eq(timer_wheel_advance(&wheel, 1100), 1);
    cr_assert_eq(timer_wheel_advance(&wheel, 9000), 1);
    cr_assert_eq(timer_wheel_advance(&wheel, 9000), 1);
    cr_assert_eq(eager.fired_count, 3);
}

/* The model: expiry times in a plain array; what is due is found by looking at all of them. */
enum { MODEL_TIMERS = 300, MODEL_OPERATIONS = 60000 };

struct model {
    struct timer_wheel wheel;
    struct probe probes[MODEL_TIMERS];
    uint64_t expires_ms[MODEL_TIMERS]; /* UINT64_MAX: not armed */
};

static uint64_t random_delay_ms(struct rng *rng)
{
    switch (rng_below(rng, 8)) {
    case 0: return rng_below(rng, 3);
    case 1: return 64u << 6 * rng_below(rng, 4); /* exactly one unit of a level */
    case 2: return WHEEL_SPAN_MS + rng_below(rng, 1000);
    default: return rng_next(rng) >> (63 - rng_below(rng, 33));
    }
}

static void model_advance(struct model *model, uint64_t to_ms)
{
    uint32_t due_count = 0;
    for (uint32_t i = 0; i < MODEL_TIMERS; i++) {
        due_count += model->expires_ms[i] <= to_ms;
        model->probes[i].fired_count = 0;
    }
    uint64_t from_ms = model->wheel.now_ms;
    cr_assert_eq(timer_wheel_advance(&model->wheel, to_ms), due_count);
    for (uint32_t i = 0; i < MODEL_TIMERS; i++) {
        bool is_due = model->expires_ms[i] <= to_ms;
        cr_assert_eq(model->probes[i].fired_count, is_due ? 1 : 0);
        if (!is_due)
            continue;
        uint64_t expected_ms = model->expires_ms[i] < from_ms ? from_ms : model->expires_ms[i];
        cr_assert_eq(model->probes[i].fired_at_ms, expected_ms);
        model->expires_ms[i] = UINT64_MAX;
    }
}

Test(timer_wheel, random_operations_agree_with_a_plain_list)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        static struct model model;
        struct rng rng = {.state = seed};
        uint64_t fired_total = 0;
        timer_wheel_init(&model.wheel, seed * (WHEEL_SPAN_MS - 5000));
        for (uint32_t i = 0; i < MODEL_TIMERS; i++) {
            probe_init(&model.probes[i], &model.wheel);
            model.expires_ms[i] = UINT64_MAX;
        }
        for (uint32_t operation = 0; operation < MODEL_OPERATIONS; operation++) {
            uint32_t pick = rng_below(&rng, MODEL_TIMERS);
            uint32_t kind = rng_below(&rng, 100);
            if (kind < 60) {
                uint64_t delay_ms = random_delay_ms(&rng);
                model.expires_ms[pick] = rng_below(&rng, 20) == 0 && model.wheel.now_ms > delay_ms ? model.wheel.now_ms - delay_ms : model.wheel.now_ms + delay_ms;
                timer_set(&model.wheel, &model.probes[pick].timer, model.expires_ms[pick]);
            } else if (kind < 75) {
                timer_cancel(&model.wheel, &model.probes[pick].timer);
                model.expires_ms[pick] = UINT64_MAX;
            } else if (kind < 90) {
                model_advance(&model, model.wheel.now_ms + (rng_below(&rng, 4) == 0 ? random_delay_ms(&rng) % 1000000 : rng_below(&rng, 100)));
            } else {
                uint64_t next_ms = timer_wheel_next_ms(&model.wheel);
                if (next_ms != UINT64_MAX)
                    model_advance(&model, next_ms);
            }
            for (uint32_t i = 0; i < MODEL_TIMERS; i++)
                fired_total += operation % 97 == 0 && model.probes[i].fired_count > 0;
            cr_assert_eq(timer_is_armed(&model.probes[pick].timer), model.expires_ms[pick] != UINT64_MAX);
            if (operation % 16 == 0)
                wheel_validate(&model.wheel);
        }
        cr_assert_gt(fired_total, 100, "the run must have fired timers");
    }
}

/* What regular timers of an idle core rely on. */
Test(timer_wheel, timer_at_an_aligned_time_is_reached_without_a_stop_on_the_way)
{
    struct rng rng = {.state = 7};
    for (uint32_t step_ms = WHEEL_SLOTS; step_ms <= 1024; step_ms *= 2) {
        struct timer_wheel wheel;
        struct probe probe;
        uint64_t stops = 0;
        timer_wheel_init(&wheel, rng_next(&rng) % 1000000);
        probe_init(&probe, &wheel);
        for (uint32_t i = 0; i < 4096; i++) {
            uint64_t due_ms = timer_aligned_ms(wheel.now_ms, step_ms);
            cr_assert(due_ms > wheel.now_ms && due_ms <= wheel.now_ms + step_ms && due_ms % step_ms == 0);
            timer_set(&wheel, &probe.timer, due_ms);
            for (uint32_t fired = probe.fired_count; probe.fired_count == fired; stops++)
                (void)timer_wheel_advance(&wheel, timer_wheel_next_ms(&wheel));
            cr_assert_eq(wheel.now_ms, due_ms);
        }
        cr_expect_eq(stops, 4096, "step %u: %llu stops", step_ms, (unsigned long long)stops);
    }
}
