/*
 * xxh3 in one place, inlined here so that the library's 64-bit variant is compiled for this machine's baseline.
 */
#include "core/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_bytes(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
