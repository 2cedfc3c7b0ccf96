/*
 * How often a core may begin to connect to backends: its share of the rate of the whole process. Tokens come back at the share's rate up to the burst; an attempt takes one. What
 * comes too early waits for its turn, and turns are jittered, so that gateways that lost the same backends do not come back in step.
 *
 * In any stretch of time a core begins no more attempts than burst + rate x time. Pure: time and randomness are passed in.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/rng.h"

struct connect_rate {
    uint64_t units_per_ms; /* a token is CONNECT_RATE_TOKEN units */
    uint64_t units_max;
    uint64_t units;
    uint64_t refilled_ms;
    uint64_t turn_ms; /* no attempt before: the jitter of the turn */
};

enum { CONNECT_RATE_TOKEN = 1000000 };

/* The share of one of `shares` cores (1 ..) of `per_s` attempts a second and of `burst` at once, both of the process and at least 1. A share of the burst is at least one attempt,
 * which a core whose share is smaller has only after a while. */
void connect_rate_init(struct connect_rate *rate, uint32_t per_s, uint32_t burst, uint32_t shares, uint64_t now_ms);

/* Takes a token. False: none is there, or the turn has not come. */
bool connect_rate_take(struct connect_rate *rate, uint64_t now_ms, struct rng *rng);
