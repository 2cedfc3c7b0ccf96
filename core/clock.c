/*
 * Reads the clocks of the system (through the vDSO: no system call). Any thread.
 */
#include "core/clock.h"

#include <time.h>

#include "core/check.h"

static uint64_t clock_read_ns(clockid_t clock)
{
    struct timespec now;
    ZG_CHECK(clock_gettime(clock, &now) == 0);
    ZG_CHECK(now.tv_sec >= 0);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t clock_monotonic_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_realtime_ns(void)
{
    return clock_read_ns(CLOCK_REALTIME);
}
