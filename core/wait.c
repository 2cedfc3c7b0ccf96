/*
 * Owns: nothing; the state is its core's. See core/wait.h.
 */
#include "core/wait.h"

#include "core/check.h"

enum {
    OWN_LOW_PERMILLE = 600,
    OWN_HIGH_PERMILLE = 900,
    CPUS_LOW_PERMILLE = 850,
    CPUS_HIGH_PERMILLE = 970,
    PART_MIN_PERMILLE = 100,     /* a core that wants less is not what keeps the CPUs busy */
    COMPLETIONS_MIN = 4,         /* a batch of fewer saves less than its latency costs */
    COMPLETIONS_MAX = 1024,      /* far below the completion queue's room */
    WAIT_MIN_NS = 20000,         /* a shorter one ends before it has slept */
    WINDOW_NS = 4 * 1000 * 1000, /* who has asked within so long is active */
};

void wait_init(struct wait *wait, const struct wait_settings *settings, uint64_t now_ns)
{
    ZG_CHECK(settings->mode != WAIT_FIXED || (settings->completions > 0 && settings->wait_ns > 0));
    *wait = (struct wait){.settings = *settings, .period_ends_ns = now_ns + WAIT_PERIOD_NS, .window_ends_ns = now_ns + WINDOW_NS, .window = 1};
}

/* 0 up to `low`, 1,000 from `high` on, evenly between. */
static uint32_t ramp(uint64_t value, uint32_t low, uint32_t high)
{
    if (value <= low)
        return 0;
    return value >= high ? 1000 : (uint32_t)((value - low) * 1000 / (high - low));
}

void wait_measure(struct wait *wait, uint64_t now_ns, const struct wait_time *time)
{
    ZG_CHECK(time->passed_ns > 0);
    uint64_t wanted = (time->run_ns + time->delayed_ns) * 1000 / time->passed_ns;
    uint32_t need = ramp(time->run_ns * 1000 / time->passed_ns, OWN_LOW_PERMILLE, OWN_HIGH_PERMILLE);
    uint32_t others = wanted < PART_MIN_PERMILLE ? 0 : ramp(time->cpus_busy_permille, CPUS_LOW_PERMILLE, CPUS_HIGH_PERMILLE);
    need = others > need ? others : need;
    /* A quarter of the way each time: single bursts do not count, a load that stays is followed within some 50 ms. After a long sleep it is as measured. */
    if (time->passed_ns > 10 * WAIT_PERIOD_NS)
        wait->need_permille = need;
    else
        wait->need_permille = (3 * wait->need_permille + need) / 4;
    wait->period_ends_ns = now_ns + WAIT_PERIOD_NS;
}

static void turn_window(struct wait *wait, uint64_t now_ns)
{
    /* Nobody was active in a window that passed asleep. */
    wait->active_before = now_ns - wait->window_ends_ns < WINDOW_NS ? wait->active_now : 0;
    wait->active_now = 0;
    wait->window++;
    wait->window += wait->window == 0; /* 0 is the stamp of a new client */
    wait->window_ends_ns = now_ns + WINDOW_NS;
}

static struct wait_decision decide_auto(const struct wait *wait, const struct wait_counts *counts)
{
    const struct wait_decision at_once = {.completions = 1};
    uint32_t active = wait->active_now > wait->active_before ? wait->active_now : wait->active_before;
    uint32_t able_to_ask = active > counts->waiting ? active - counts->waiting : 0;
    uint32_t wanted = (uint32_t)((uint64_t)active * wait->need_permille / 2000);
    wanted = wanted < able_to_ask ? wanted : able_to_ask;
    uint64_t wait_ns = wait_longest_ns(wait);
    if (wanted < COMPLETIONS_MIN || wait_ns < WAIT_MIN_NS)
        return at_once;
    return (struct wait_decision){.completions = (wanted < COMPLETIONS_MAX ? wanted : COMPLETIONS_MAX) + counts->sends, .wait_ns = wait_ns};
}

struct wait_decision wait_decide(struct wait *wait, uint64_t now_ns, const struct wait_counts *counts)
{
    if (now_ns >= wait->window_ends_ns)
        turn_window(wait, now_ns);
    switch (wait->settings.mode) {
    case WAIT_OFF:
        break;
    case WAIT_FIXED:
        return (struct wait_decision){.completions = wait->settings.completions, .wait_ns = wait->settings.wait_ns};
    case WAIT_AUTO:
        return decide_auto(wait, counts);
    }
    return (struct wait_decision){.completions = 1};
}
