/*
 * Pure; owned by the dispatcher of a core.
 */
#include "shard/retry_budget.h"

#include "core/check.h"

/* Empties the slots that time has passed over. */
static void advance(struct retry_budget *budget, uint64_t now_ms)
{
    uint64_t slot = now_ms / RETRY_BUDGET_SLOT_MS;
    if (slot <= budget->slot)
        return;
    uint64_t passed = slot - budget->slot < RETRY_BUDGET_SLOTS ? slot - budget->slot : RETRY_BUDGET_SLOTS;
    for (uint64_t i = 0; i < passed; i++) {
        budget->requests[(slot - i) % RETRY_BUDGET_SLOTS] = 0;
        budget->retries[(slot - i) % RETRY_BUDGET_SLOTS] = 0;
    }
    budget->slot = slot;
}

void retry_budget_init(struct retry_budget *budget, uint32_t percent, uint32_t floor_per_s, uint64_t requests_total, uint64_t now_ms)
{
    *budget = (struct retry_budget){.percent = percent, .floor_per_s = floor_per_s, .slot = now_ms / RETRY_BUDGET_SLOT_MS, .requests_seen = requests_total};
}

void retry_budget_see(struct retry_budget *budget, uint64_t requests_total, uint64_t now_ms)
{
    ZG_CHECK(requests_total >= budget->requests_seen);
    advance(budget, now_ms);
    budget->requests[budget->slot % RETRY_BUDGET_SLOTS] += requests_total - budget->requests_seen;
    budget->requests_seen = requests_total;
}

bool retry_budget_take(struct retry_budget *budget, uint64_t requests_total, uint64_t now_ms)
{
    uint64_t requests = 0;
    uint64_t retries = 0;
    retry_budget_see(budget, requests_total, now_ms);
    for (uint32_t i = 0; i < RETRY_BUDGET_SLOTS; i++) {
        requests += budget->requests[i];
        retries += budget->retries[i];
    }
    uint64_t floor = (uint64_t)budget->floor_per_s * RETRY_BUDGET_SLOTS * RETRY_BUDGET_SLOT_MS / 1000;
    if (retries >= floor + requests * budget->percent / 100)
        return false;
    budget->retries[budget->slot % RETRY_BUDGET_SLOTS]++;
    return true;
}
