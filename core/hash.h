/*
 * Hashes for tables (not for security): xxh3.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t bytes);

/* Mixes one 64-bit number; a bijection. */
static inline uint64_t hash_u64(uint64_t value)
{
    value ^= value >> 32;
    value *= UINT64_C(0xd6e8feb86659fd93);
    value ^= value >> 32;
    value *= UINT64_C(0xd6e8feb86659fd93);
    return value ^ (value >> 32);
}
