/*
 * Seeded generator: randomness is always passed in, so that a run can be replayed. Not for secrets.
 * Source: splitmix64 (Steele, Lea, Flood 2014).
 */
#pragma once

#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in 0 .. bound - 1 (bias below 2^-32 for bounds below 2^32); bound > 0. */
static inline uint32_t rng_below(struct rng *rng, uint32_t bound)
{
    return (uint32_t)(((rng_next(rng) >> 32) * bound) >> 32);
}
