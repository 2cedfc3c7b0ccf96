/*
 * The only places that read a clock. Everything else is given `now` by the loop.
 */
#pragma once

#include <stdint.h>

uint64_t clock_monotonic_ns(void);
uint64_t clock_realtime_ns(void);
