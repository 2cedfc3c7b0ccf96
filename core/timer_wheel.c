/*
 * Hierarchical timer wheel. One core owns it.
 *
 * Times are numbers in base 64, one digit a level. A timer that has not come yet lies at the level of the highest digit in which its time differs from now_ms, in the
 * slot of that digit; so all slots in use at a level are later than the level's own digit of now_ms, and everything at a level is earlier than anything at the next.
 * When now_ms reaches the start of a slot of level 1 or higher, its timers are placed again and land at a lower level: each at most once a level.
 *
 * A time that differs above the last digit waits in slot 0 of the last level, which no other timer can use (no digit is before 0) and whose start is the
 * moment at which the digits wrap around.
 */
#include "core/timer_wheel.h"

#include "core/check.h"

enum { DIGIT_BITS = 6, DIGIT_MASK = WHEEL_SLOTS - 1, WHEEL_BITS = WHEEL_LEVELS * DIGIT_BITS };
_Static_assert(WHEEL_SLOTS == 1 << DIGIT_BITS, "a slot is a digit");
_Static_assert(WHEEL_SLOTS == 64, "the slots of a level are the bits of one word");

/* The wheel's own time stays below this, so that the next wrap-around is always a number. Timers may have any time. */
#define TIME_MS_MAX (UINT64_C(1) << 63)

static uint32_t digit_of(uint64_t time_ms, uint32_t level)
{
    return (uint32_t)(time_ms >> (level * DIGIT_BITS)) & DIGIT_MASK;
}

/* The moment at which the digits of all levels are 0 again. */
static uint64_t wrap_ms(uint64_t now_ms)
{
    return (now_ms | ((UINT64_C(1) << WHEEL_BITS) - 1)) + 1;
}

/* Links a timer by its time. now_ms must not be beyond it, except that what is due goes to `due`. */
static void wheel_place(struct timer_wheel *wheel, struct timer *timer)
{
    ZG_CHECK(timer->expires_ms > wheel->now_ms);
    uint32_t level = (63u - (uint32_t)__builtin_clzll(timer->expires_ms ^ wheel->now_ms)) / DIGIT_BITS;
    uint32_t slot = 0;
    if (level < WHEEL_LEVELS)
        slot = digit_of(timer->expires_ms, level);
    else
        level = WHEEL_LEVELS - 1;
    list_push_back(&wheel->slots[level][slot], &timer->node);
    wheel->occupied[level] |= UINT64_C(1) << slot;
}

/* Unlinks a timer, wherever it is, and clears the bit of a slot that becomes empty. */
static void wheel_unlink(struct timer_wheel *wheel, struct timer *timer)
{
    struct list_node *neighbour = timer->node.next;
    bool is_last = neighbour == timer->node.prev;
    list_remove(&timer->node);
    /* The neighbour of the only node is the head of its list: a slot, or a list of what is being fired or is due. */
    uintptr_t offset = (uintptr_t)neighbour - (uintptr_t)&wheel->slots[0][0];
    if (is_last && offset < sizeof(wheel->slots)) {
        size_t index = offset / sizeof(struct list_node);
        wheel->occupied[index / WHEEL_SLOTS] &= ~(UINT64_C(1) << index % WHEEL_SLOTS);
    }
}

/* Moves all nodes of `from`, in order, to the end of `to`. */
static void list_move_all(struct list_node *from, struct list_node *to)
{
    if (list_is_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    list_init(from);
}

static void slot_move_all(struct timer_wheel *wheel, uint32_t level, uint32_t slot, struct list_node *to)
{
    list_move_all(&wheel->slots[level][slot], to);
    wheel->occupied[level] &= ~(UINT64_C(1) << slot);
}

/* Fires everything in `firing`. A callback may cancel or set any timer, including those that still wait in `firing`. */
static uint32_t fire_all(struct timer_wheel *wheel, struct list_node *firing)
{
    uint32_t fired_count = 0;
    for (struct list_node *node; (node = list_pop_front(firing)) != NULL; fired_count++) {
        struct timer *timer = LIST_ENTRY(node, struct timer, node);
        ZG_CHECK(wheel->armed_count > 0 && timer->expires_ms <= wheel->now_ms);
        wheel->armed_count--;
        timer->fire(timer, timer->context);
    }
    return fired_count;
}

/* now_ms has reached the start of slots at levels 1 .. : their timers are placed again, those that are due go to `firing`. */
static void wheel_cascade(struct timer_wheel *wheel, struct list_node *firing)
{
    struct list_node moving;
    list_init(&moving);
    for (uint32_t level = 1; level < WHEEL_LEVELS; level++) {
        /* A slot of this level starts now only if all lower digits are 0. */
        if (digit_of(wheel->now_ms, level - 1) != 0)
            break;
        slot_move_all(wheel, level, digit_of(wheel->now_ms, level), &moving);
    }
    for (struct list_node *node; (node = list_pop_front(&moving)) != NULL;) {
        struct timer *timer = LIST_ENTRY(node, struct timer, node);
        if (timer->expires_ms == wheel->now_ms)
            list_push_back(firing, &timer->node);
        else
            wheel_place(wheel, timer);
    }
}

/* The next moment at which something is to be done after now_ms: a slot of level 0 fires or another one is placed again. UINT64_MAX: never. */
static uint64_t wheel_next_event_ms(const struct timer_wheel *wheel)
{
    for (uint32_t level = 0; level < WHEEL_LEVELS; level++) {
        uint64_t later = wheel->occupied[level];
        if (level == WHEEL_LEVELS - 1)
            later &= ~UINT64_C(1);
        if (later == 0)
            continue;
        uint32_t slot = (uint32_t)__builtin_ctzll(later);
        ZG_CHECK(slot > digit_of(wheel->now_ms, level));
        uint32_t shift = level * DIGIT_BITS;
        uint64_t level_start_ms = wheel->now_ms & ~((UINT64_C(1) << (shift + DIGIT_BITS)) - 1);
        return level_start_ms + ((uint64_t)slot << shift);
    }
    return (wheel->occupied[WHEEL_LEVELS - 1] & 1) != 0 ? wrap_ms(wheel->now_ms) : UINT64_MAX;
}

void timer_wheel_init(struct timer_wheel *wheel, uint64_t now_ms)
{
    ZG_CHECK(now_ms < TIME_MS_MAX);
    wheel->now_ms = now_ms;
    wheel->armed_count = 0;
    list_init(&wheel->due);
    for (uint32_t level = 0; level < WHEEL_LEVELS; level++) {
        wheel->occupied[level] = 0;
        for (uint32_t slot = 0; slot < WHEEL_SLOTS; slot++)
            list_init(&wheel->slots[level][slot]);
    }
}

void timer_init(struct timer *timer, timer_fn fire, void *context)
{
    ZG_CHECK(fire != NULL);
    list_init(&timer->node);
    timer->fire = fire;
    timer->context = context;
    timer->expires_ms = 0;
}

void timer_set(struct timer_wheel *wheel, struct timer *timer, uint64_t expires_ms)
{
    timer_cancel(wheel, timer);
    timer->expires_ms = expires_ms;
    if (expires_ms <= wheel->now_ms)
        list_push_back(&wheel->due, &timer->node);
    else
        wheel_place(wheel, timer);
    wheel->armed_count++;
}

void timer_cancel(struct timer_wheel *wheel, struct timer *timer)
{
    if (!timer_is_armed(timer))
        return;
    ZG_CHECK(wheel->armed_count > 0);
    wheel_unlink(wheel, timer);
    wheel->armed_count--;
}

uint32_t timer_wheel_advance(struct timer_wheel *wheel, uint64_t now_ms)
{
    ZG_CHECK(now_ms < TIME_MS_MAX);
    struct list_node firing;
    list_init(&firing);
    list_move_all(&wheel->due, &firing);
    uint32_t fired_count = fire_all(wheel, &firing);
    for (uint64_t event_ms; (event_ms = wheel_next_event_ms(wheel)) <= now_ms && event_ms != UINT64_MAX;) {
        wheel->now_ms = event_ms;
        slot_move_all(wheel, 0, digit_of(event_ms, 0), &firing);
        wheel_cascade(wheel, &firing);
        fired_count += fire_all(wheel, &firing);
    }
    if (now_ms > wheel->now_ms)
        wheel->now_ms = now_ms;
    return fired_count;
}

uint64_t timer_wheel_next_ms(const struct timer_wheel *wheel)
{
    return list_is_empty(&wheel->due) ? wheel_next_event_ms(wheel) : wheel->now_ms;
}
