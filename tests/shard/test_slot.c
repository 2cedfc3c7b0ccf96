#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "shard/slot.h"

TestSuite(slot);

struct row {
    const char *key;
    uint32_t length;
    uint16_t slot;
};

/* What redis-server 7.0.15 answered to CLUSTER KEYSLOT. */
static const struct row recorded[] = {
    {"", 0, 0},
    {"a", 1, 15495},
    {"foo", 3, 12182},
    {"bar", 3, 5061},
    {"hello", 5, 866},
    {"123456789", 9, 12739},
    {"key:000000000001", 16, 8924},
    {"key:0000000000012", 17, 6013},
    {"{user1000}.following", 20, 3443},
    {"{user1000}.followers", 20, 3443},
    {"foo{}{bar}", 10, 8363},
    {"foo{{bar}}zap", 13, 4015},
    {"foo{bar}{zap}", 13, 5061},
    {"{}", 2, 15257},
    {"{}a", 3, 10875},
    {"{", 1, 4092},
    {"}", 1, 12090},
    {"}{", 2, 12793},
    {"}a{b}", 5, 3300},
    {"a{b", 3, 13340},
    {"a}b", 3, 7866},
    {"{a}", 3, 15495},
    {"x{a}y", 5, 15495},
    {"{{}}", 4, 4092},
    {"{a}{b}", 6, 15495},
    {"\000", 1, 0},
    {"\000\377\200", 3, 4727},
    {"\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377", 33, 15356},
    {"{\000}z", 4, 0},
    {"xxxxxxx", 7, 2249},
    {"xxxxxxxx", 8, 9759},
    {"xxxxxxxxx", 9, 9275},
    {"xxxxxxxxxxxxxxx", 15, 6301},
    {"xxxxxxxxxxxxxxxx", 16, 8238},
    {"xxxxxxxxxxxxxxxxx", 17, 15673},
    {"xxxxxxxxxxxxxxxxxxxxxxx", 23, 3704},
    {"xxxxxxxxxxxxxxxxxxxxxxxx", 24, 14297},
    {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
     "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        255, 15237},
    {"a{yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy}", 103, 12115},
};

static uint16_t slot_of(const char *key, uint32_t length)
{
    /* An exact copy on the heap, so that a sanitizer sees a read beyond the key. */
    uint8_t *copy = malloc(length > 0 ? length : 1);
    memcpy(copy, key, length);
    uint16_t slot = slot_of_key(copy, length);
    free(copy);
    return slot;
}

/* The definition, a bit at a time. */
static uint16_t crc16_bitwise(const uint8_t *data, uint32_t length)
{
    uint32_t crc = 0;
    for (uint32_t i = 0; i < length; i++) {
        crc ^= (uint32_t)data[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
        crc &= 0xffff;
    }
    return (uint16_t)crc;
}

Test(slot, keys_recorded_from_redis_match)
{
    for (size_t i = 0; i < sizeof recorded / sizeof recorded[0]; i++)
        cr_expect_eq(slot_of(recorded[i].key, recorded[i].length), recorded[i].slot, "key %zu '%s': %u, not %u", i, recorded[i].key,
            slot_of(recorded[i].key, recorded[i].length), recorded[i].slot);
    cr_expect_eq(slot_of_key(NULL, 0), 0);
}

Test(slot, random_keys_of_every_length_match_the_definition)
{
    struct rng rng = {.state = 1};
    char key[300];
    for (uint32_t length = 0; length <= sizeof key; length++)
        for (uint32_t round = 0; round < 20; round++) {
            for (uint32_t i = 0; i < length; i++)
                do
                    key[i] = (char)rng_next(&rng);
                while (key[i] == '{');
            cr_assert_eq(slot_of(key, length), crc16_bitwise((const uint8_t *)key, length) % 16384, "length %u", length);
        }
}

Test(slot, random_braces_follow_the_tag_rule)
{
    struct rng rng = {.state = 2};
    static const char letters[] = "{}ab";
    for (uint32_t round = 0; round < 50000; round++) {
        char key[16];
        uint32_t length = rng_below(&rng, sizeof key);
        for (uint32_t i = 0; i < length; i++)
            key[i] = letters[rng_below(&rng, 4)];
        uint32_t open = 0, close, first = 0, count = length;
        while (open < length && key[open] != '{')
            open++;
        for (close = open + 1; close < length && key[close] != '}';)
            close++;
        if (close < length && close > open + 1) {
            first = open + 1;
            count = close - first;
        }
        cr_assert_eq(slot_of(key, length), crc16_bitwise((const uint8_t *)key + first, count) % 16384, "%.*s", (int)length, key);
    }
}
