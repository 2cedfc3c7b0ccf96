/*
 * Hierarchical timer wheel of one core, in milliseconds. Source: Varghese and Lauck, "Hashed and hierarchical timing wheels" (1987), scheme 6.
 * Adding and removing are O(1); a timer fires in the first tick at or after its time, never before.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/list.h"

enum { WHEEL_LEVELS = 5, WHEEL_SLOTS = 64 }; /* 64^5 ms = 12 days; what is later waits in one slot and is placed again */

struct timer;
typedef void (*timer_fn)(struct timer *timer, void *context);

/* Embedded by its user; not armed while node is unlinked. Initialise with timer_init before first use. */
struct timer {
    struct list_node node;
    timer_fn fire;
    void *context;
    uint64_t expires_ms;
};

struct timer_wheel {
    uint64_t now_ms;
    uint64_t armed_count;
    struct list_node due;            /* set to a time that had come already: fired first in the next advance */
    uint64_t occupied[WHEEL_LEVELS]; /* bit s: slot s of that level is not empty */
    struct list_node slots[WHEEL_LEVELS][WHEEL_SLOTS];
};

void timer_wheel_init(struct timer_wheel *wheel, uint64_t now_ms);
void timer_init(struct timer *timer, timer_fn fire, void *context);

/* Arms or re-arms. A time that has come already (now_ms or before) fires at the next advance, even one that does not move; set from a callback, it fires
 * at the advance after this one, so that an advance ends. */
void timer_set(struct timer_wheel *wheel, struct timer *timer, uint64_t expires_ms);

/* Disarms; does nothing where it is not armed. A timer must be disarmed before its memory goes. */
void timer_cancel(struct timer_wheel *wheel, struct timer *timer);

static inline bool timer_is_armed(const struct timer *timer)
{
    return list_is_linked(&timer->node);
}

/* Moves to now_ms (an earlier one counts as the wheel's own) and fires what is due, in slot order. A callback may set or cancel any timer. Returns how many fired. */
uint32_t timer_wheel_advance(struct timer_wheel *wheel, uint64_t now_ms);

/* The first multiple of step_ms, a power of two, after now_ms. What runs regularly and not often is set to such times: then the timers of all cores come together, and with steps of
 * WHEEL_SLOTS and more the wheel need not stop on the way to place them again. Each core of an idle process wakes half as often as with times that are not. */
static inline uint64_t timer_aligned_ms(uint64_t now_ms, uint32_t step_ms)
{
    return (now_ms | (step_ms - 1)) + 1;
}

/* A time at or before the earliest expiry (UINT64_MAX where none is armed): how long the loop may sleep. */
uint64_t timer_wheel_next_ms(const struct timer_wheel *wheel);
