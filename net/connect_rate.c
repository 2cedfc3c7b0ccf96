/*
 * Pure; owned by the link pool of a core.
 */
#include "net/connect_rate.h"

#include "core/check.h"

enum { MS_PER_S = 1000 };

void connect_rate_init(struct connect_rate *rate, uint32_t per_s, uint32_t burst, uint32_t shares, uint64_t now_ms)
{
    ZG_CHECK(per_s > 0 && burst > 0 && shares > 0 && shares <= CONNECT_RATE_TOKEN / MS_PER_S);
    uint64_t units = (uint64_t)burst * CONNECT_RATE_TOKEN / shares;
    *rate = (struct connect_rate){
        .units_per_ms = (uint64_t)per_s * (CONNECT_RATE_TOKEN / MS_PER_S) / shares,
        .units_max = units > CONNECT_RATE_TOKEN ? units : CONNECT_RATE_TOKEN,
        .units = units,
        .refilled_ms = now_ms,
    };
}

static void refill(struct connect_rate *rate, uint64_t now_ms)
{
    uint64_t elapsed_ms = now_ms > rate->refilled_ms ? now_ms - rate->refilled_ms : 0;
    uint64_t missing = rate->units_max - rate->units;
    rate->units += elapsed_ms > missing / rate->units_per_ms ? missing : elapsed_ms * rate->units_per_ms;
    rate->refilled_ms += elapsed_ms;
}

bool connect_rate_take(struct connect_rate *rate, uint64_t now_ms, struct rng *rng)
{
    refill(rate, now_ms);
    if (rate->units < CONNECT_RATE_TOKEN || now_ms < rate->turn_ms)
        return false;
    rate->units -= CONNECT_RATE_TOKEN;
    if (rate->units >= CONNECT_RATE_TOKEN)
        return true;
    /* The burst is used up: the next turn comes when there is a token, or up to half an interval later. Tokens go on coming meanwhile, so that a share of more than one is not lowered by it. */
    uint64_t missing_ms = (CONNECT_RATE_TOKEN - rate->units) / rate->units_per_ms;
    uint32_t half_ms = (uint32_t)(CONNECT_RATE_TOKEN / rate->units_per_ms / 2);
    rate->turn_ms = now_ms + missing_ms + rng_below(rng, half_ms + 1);
    return true;
}
