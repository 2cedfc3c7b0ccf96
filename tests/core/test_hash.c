#include "core/hash.h"

#include <criterion/criterion.h>
#include <string.h>

#include "core/rng.h"

TestSuite(hash);

Test(hash, bytes_give_the_published_values_of_xxh3)
{
    /* XXH3_64bits of nothing, seed 0: from the test vectors of the algorithm's specification. */
    cr_assert_eq(hash_bytes("", 0), UINT64_C(0x2d06800538d394c2));
    cr_assert_eq(hash_bytes(NULL, 0), UINT64_C(0x2d06800538d394c2));
}

Test(hash, bytes_of_every_length_and_place_depend_on_content_alone)
{
    struct rng rng = {.state = 7};
    uint8_t bytes[600], moved[608];
    uint64_t seen[600];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)rng_next(&rng);
    for (size_t length = 0; length < sizeof(bytes); length++) {
        seen[length] = hash_bytes(bytes, length);
        for (size_t shift = 1; shift < 8; shift += 3) {
            memcpy(moved + shift, bytes, length);
            cr_assert_eq(hash_bytes(moved + shift, length), seen[length]);
        }
        for (size_t earlier = 0; earlier < length; earlier++)
            cr_assert_neq(seen[earlier], seen[length]);
        if (length > 0) {
            moved[1 + length - 1] = 0;
            memcpy(moved + 1, bytes, length);
            moved[length] ^= 1;
            cr_assert_neq(hash_bytes(moved + 1, length), seen[length]);
        }
    }
}

Test(hash, numbers_in_sequence_spread_over_all_slots_of_a_table)
{
    enum { SLOTS = 1024, NUMBERS = SLOTS * 64 };
    static uint32_t low[SLOTS], high[SLOTS];
    for (uint64_t number = 0; number < NUMBERS; number++) {
        uint64_t hash = hash_u64(number);
        low[hash % SLOTS]++;
        high[hash >> 54]++;
    }
    /* 64 are expected; a uniform spread stays within six standard deviations of 8. */
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        cr_assert(low[slot] > 16 && low[slot] < 112, "slot %u holds %u", slot, low[slot]);
        cr_assert(high[slot] > 16 && high[slot] < 112, "slot %u holds %u", slot, high[slot]);
    }
    cr_assert_eq(hash_u64(0), 0);
    cr_assert_neq(hash_u64(1), hash_u64(UINT64_C(1) << 63));
}
