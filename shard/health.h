/*
 * The health of one node: what its checks have shown, and when the next is due. Pure: results, time and randomness are passed in.
 *
 *                     a check fails, or finds that the node does not serve      `failures_down` failures in a row
 *     HEALTHY ─────────────────────────────────────────────────────► SUSPECT ─────────────────────────────────────► DOWN ◄───────┐
 *        ▲                         it serves                            │ ▲                                           │ pause     │ the check
 *        ├──────────────────────────────────────────────────────────────┘ │ it answers, but does not serve            ▼           │ fails
 *        └────────────────────────────────────────────────────────────────┴────────────────────────────────────── PROBING ───────┘
 *                                  it serves
 *
 * A node that is HEALTHY or SUSPECT is used. One that is DOWN or PROBING is not, but for the one check of PROBING: half-open.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/rng.h"

enum health_state { HEALTH_HEALTHY, HEALTH_SUSPECT, HEALTH_DOWN, HEALTH_PROBING, HEALTH_STATE_COUNT };

enum health_result {
    HEALTH_SERVES,  /* it has answered as the owner of its slots does */
    HEALTH_REFUSES, /* it answers, but says that it does not serve: loading, moved, cluster down. Clients are told by itself, so this never makes it DOWN */
    HEALTH_FAILS,   /* no answer in time, connection refused or lost */
};

struct health_rules {
    uint32_t failures_down; /* 1 .. */
    uint32_t interval_ms;   /* between checks of a healthy node */
    uint32_t urgent_ms;     /* of a suspect one; also the least time between a check and the next that a hint asks for */
    uint32_t pause_min_ms;  /* between probes of one that is down: doubles ... */
    uint32_t pause_max_ms;  /* ... up to this */
};

struct health {
    uint8_t state;        /* enum health_state */
    bool is_checking;     /* a check is under way */
    uint32_t failures;    /* in a row */
    uint64_t next_ms;     /* when the next check is due */
    uint64_t ended_ms;    /* of the last check */
    uint64_t answered_ms; /* the last answer of any kind */
    uint64_t since_ms;    /* of the state; DOWN and PROBING count as one */
};

/* HEALTHY until shown otherwise; the first check is due at a random time within urgent_ms. */
void health_init(struct health *health, const struct health_rules *rules, uint64_t now_ms, struct rng *rng);

/* Whether a check is to be begun now. */
static inline bool health_is_due(const struct health *health, uint64_t now_ms)
{
    return !health->is_checking && now_ms >= health->next_ms;
}

/* A check begins: DOWN becomes PROBING. Must be due. */
void health_begin(struct health *health, uint64_t now_ms);

/* The check under way has ended. */
void health_end(struct health *health, const struct health_rules *rules, enum health_result result, uint64_t now_ms, struct rng *rng);

/* The check under way says nothing about the node: it could not be made. It is made again soon, and the state is what it was. */
void health_postpone(struct health *health, const struct health_rules *rules, uint64_t now_ms);

/* Somebody has reason to doubt it: the next check of a node that is in use is due at once, unless the last has only just ended. */
void health_hint(struct health *health, const struct health_rules *rules, uint64_t now_ms);

static inline bool health_is_usable(const struct health *health)
{
    return health->state == HEALTH_HEALTHY || health->state == HEALTH_SUSPECT;
}

const char *health_state_name(enum health_state state);
