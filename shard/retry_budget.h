/*
 * The retry budget of a core: over the last ten seconds repeats are at most a share of the requests plus a floor a second. So a fleet that is in trouble gets a bounded part of its load again, not
 * a multiple of it, while a quiet gateway may still repeat. Pure: time is passed in. Source of the idea: retry budgets of Finagle and Linkerd.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { RETRY_BUDGET_SLOTS = 10, RETRY_BUDGET_SLOT_MS = 1000 };

struct retry_budget {
    uint32_t percent;       /* of requests */
    uint32_t floor_per_s;   /* whatever the number of requests */
    uint64_t slot;          /* number of the newest slot: time / RETRY_BUDGET_SLOT_MS */
    uint64_t requests_seen; /* reading of the counter of requests */
    uint64_t requests[RETRY_BUDGET_SLOTS];
    uint64_t retries[RETRY_BUDGET_SLOTS];
};

/* percent 0 .. 1000, floor 0 ..: with both 0 nothing is ever repeated. requests_total: the counter of requests as it stands. */
void retry_budget_init(struct retry_budget *budget, uint32_t percent, uint32_t floor_per_s, uint64_t requests_total, uint64_t now_ms);

/* Reads the counter of requests, which only grows. To be called a few times a slot: what came since the last call counts for the slot of this one. */
void retry_budget_see(struct retry_budget *budget, uint64_t requests_total, uint64_t now_ms);

/* One more repeat: true where there is room for it, which it takes. */
bool retry_budget_take(struct retry_budget *budget, uint64_t requests_total, uint64_t now_ms);
