/*
 * Pure; owned by the checker of the housekeeping core (health_check.c).
 */
#include "shard/health.h"

#include "core/check.h"

static void set_state(struct health *health, enum health_state state, uint64_t now_ms)
{
    static const bool is_legal[HEALTH_STATE_COUNT][HEALTH_STATE_COUNT] = {
        [HEALTH_HEALTHY] = {[HEALTH_SUSPECT] = true},
        [HEALTH_SUSPECT] = {[HEALTH_HEALTHY] = true, [HEALTH_DOWN] = true},
        [HEALTH_DOWN] = {[HEALTH_PROBING] = true},
        [HEALTH_PROBING] = {[HEALTH_HEALTHY] = true, [HEALTH_SUSPECT] = true, [HEALTH_DOWN] = true},
    };
    if (health->state == state)
        return;
    ZG_CHECK(is_legal[health->state][state]);
    bool was_usable = health_is_usable(health);
    health->state = (uint8_t)state;
    if (was_usable || health_is_usable(health))
        health->since_ms = now_ms;
}

/* From a tenth less to a tenth more. */
static uint64_t about(uint32_t time_ms, struct rng *rng)
{
    return time_ms - time_ms / 10 + rng_below(rng, time_ms / 5 + 1);
}

/* From half to the whole of a pause that doubles with each failure. */
static uint64_t pause_ms(const struct health *health, const struct health_rules *rules, struct rng *rng)
{
    uint32_t pause = rules->pause_min_ms;
    for (uint32_t i = rules->failures_down; i < health->failures && pause < rules->pause_max_ms; i++)
        pause *= 2;
    pause = pause < rules->pause_max_ms ? pause : rules->pause_max_ms;
    return pause - rng_below(rng, pause / 2 + 1);
}

void health_init(struct health *health, const struct health_rules *rules, uint64_t now_ms, struct rng *rng)
{
    ZG_CHECK(rules->failures_down > 0 && rules->pause_min_ms <= rules->pause_max_ms && rules->pause_max_ms < UINT32_MAX / 2);
    *health = (struct health){.state = HEALTH_HEALTHY, .next_ms = now_ms + rng_below(rng, rules->urgent_ms + 1), .since_ms = now_ms};
}

void health_begin(struct health *health, uint64_t now_ms)
{
    ZG_CHECK(health_is_due(health, now_ms));
    health->is_checking = true;
    if (health->state == HEALTH_DOWN)
        set_state(health, HEALTH_PROBING, now_ms);
}

static void failed(struct health *health, const struct health_rules *rules, uint64_t now_ms, struct rng *rng)
{
    if (health->failures < UINT32_MAX)
        health->failures++;
    if (health->state == HEALTH_HEALTHY)
        set_state(health, HEALTH_SUSPECT, now_ms);
    if (health->state == HEALTH_PROBING || health->failures >= rules->failures_down)
        set_state(health, HEALTH_DOWN, now_ms);
    health->next_ms = now_ms + (health->state == HEALTH_DOWN ? pause_ms(health, rules, rng) : about(rules->urgent_ms, rng));
}

void health_end(struct health *health, const struct health_rules *rules, enum health_result result, uint64_t now_ms, struct rng *rng)
{
    ZG_CHECK(health->is_checking && health->state != HEALTH_DOWN);
    health->is_checking = false;
    health->ended_ms = now_ms;
    if (result == HEALTH_FAILS) {
        failed(health, rules, now_ms, rng);
        return;
    }
    health->failures = 0;
    health->answered_ms = now_ms;
    set_state(health, result == HEALTH_SERVES ? HEALTH_HEALTHY : HEALTH_SUSPECT, now_ms);
    health->next_ms = now_ms + about(result == HEALTH_SERVES ? rules->interval_ms : rules->urgent_ms, rng);
}

void health_postpone(struct health *health, const struct health_rules *rules, uint64_t now_ms)
{
    ZG_CHECK(health->is_checking);
    health->is_checking = false;
    health->next_ms = now_ms + rules->urgent_ms;
    if (health->state == HEALTH_PROBING)
        set_state(health, HEALTH_DOWN, now_ms);
}

void health_hint(struct health *health, const struct health_rules *rules, uint64_t now_ms)
{
    if (!health_is_usable(health) || health->is_checking)
        return;
    uint64_t soonest_ms = health->ended_ms == 0 ? now_ms : health->ended_ms + rules->urgent_ms;
    uint64_t wanted_ms = soonest_ms > now_ms ? soonest_ms : now_ms;
    if (wanted_ms < health->next_ms)
        health->next_ms = wanted_ms;
}

const char *health_state_name(enum health_state state)
{
    static const char *const names[HEALTH_STATE_COUNT] = {[HEALTH_HEALTHY] = "healthy", [HEALTH_SUSPECT] = "suspect", [HEALTH_DOWN] = "down", [HEALTH_PROBING] = "probing"};
    ZG_CHECK(state < HEALTH_STATE_COUNT);
    return names[state];
}
