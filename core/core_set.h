/*
 * A set of cores as bits, so that a core's work per iteration does not grow with the number of cores but with the number that has something
 * to do.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { CORE_SET_MAX = 128, CORE_SET_WORDS = CORE_SET_MAX / 64 };

struct core_set {
    uint64_t words[CORE_SET_WORDS];
};
_Static_assert(CORE_SET_WORDS == 2, "core_set_is_empty knows two words");

static inline void core_set_add(struct core_set *set, uint32_t core)
{
    set->words[core / 64] |= UINT64_C(1) << (core % 64);
}

static inline void core_set_remove(struct core_set *set, uint32_t core)
{
    set->words[core / 64] &= ~(UINT64_C(1) << (core % 64));
}

static inline bool core_set_is_empty(const struct core_set *set)
{
    return (set->words[0] | set->words[1]) == 0;
}

/* The first member at or after `core` (0 .. CORE_SET_MAX), CORE_SET_MAX where there is none. Members may be added and removed while a
 * caller steps through a set. */
static inline uint32_t core_set_next(const struct core_set *set, uint32_t core)
{
    for (uint32_t word = core / 64; word < CORE_SET_WORDS; word++) {
        uint64_t bits = set->words[word];
        if (word == core / 64)
            bits &= UINT64_MAX << (core % 64);
        if (bits != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return CORE_SET_MAX;
}
