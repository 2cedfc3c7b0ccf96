/*
 * CRC16 (XMODEM: polynomial 0x1021, initial value 0, nothing reflected) and the hash-tag rule of the cluster specification. Runs on every core; its only
 * state is constant.
 *
 * A CRC is linear over GF(2), so the effect of a byte is the exclusive or of the effects of its bits. Each table below is written as the effects of its eight bits, and the compiler
 * expands them to 256 entries. Table k holds the effect of a byte that k bytes follow, so that eight bytes are taken in one step without a chain of eight loads.
 */
#include "shard/slot.h"

#include <string.h>

#define ENTRY(byte, b0, b1, b2, b3, b4, b5, b6, b7) \
    (uint16_t)(((byte)&1 ? b0 : 0) ^ ((byte)&2 ? b1 : 0) ^ ((byte)&4 ? b2 : 0) ^ ((byte)&8 ? b3 : 0) ^ ((byte)&16 ? b4 : 0) ^ \
        ((byte)&32 ? b5 : 0) ^ ((byte)&64 ? b6 : 0) ^ ((byte)&128 ? b7 : 0))
#define ENTRIES_4(byte, ...) ENTRY(byte, __VA_ARGS__), ENTRY((byte) + 1, __VA_ARGS__), ENTRY((byte) + 2, __VA_ARGS__), ENTRY((byte) + 3, __VA_ARGS__)
#define ENTRIES_16(byte, ...) ENTRIES_4(byte, __VA_ARGS__), ENTRIES_4((byte) + 4, __VA_ARGS__), ENTRIES_4((byte) + 8, __VA_ARGS__), ENTRIES_4((byte) + 12, __VA_ARGS__)
#define ENTRIES_64(byte, ...) \
    ENTRIES_16(byte, __VA_ARGS__), ENTRIES_16((byte) + 16, __VA_ARGS__), ENTRIES_16((byte) + 32, __VA_ARGS__), ENTRIES_16((byte) + 48, __VA_ARGS__)
#define TABLE(...) ENTRIES_64(0, __VA_ARGS__), ENTRIES_64(64, __VA_ARGS__), ENTRIES_64(128, __VA_ARGS__), ENTRIES_64(192, __VA_ARGS__)

/* 4 KiB, so that it stays in the first-level cache. */
static const uint16_t effects[8][256] __attribute__((aligned(64))) = {
    {TABLE(0x1021, 0x2042, 0x4084, 0x8108, 0x1231, 0x2462, 0x48c4, 0x9188)},
    {TABLE(0x3331, 0x6662, 0xccc4, 0x89a9, 0x0373, 0x06e6, 0x0dcc, 0x1b98)},
    {TABLE(0x3730, 0x6e60, 0xdcc0, 0xa9a1, 0x4363, 0x86c6, 0x1dad, 0x3b5a)},
    {TABLE(0x76b4, 0xed68, 0xcaf1, 0x85c3, 0x1ba7, 0x374e, 0x6e9c, 0xdd38)},
    {TABLE(0xaa51, 0x4483, 0x8906, 0x022d, 0x045a, 0x08b4, 0x1168, 0x22d0)},
    {TABLE(0x45a0, 0x8b40, 0x06a1, 0x0d42, 0x1a84, 0x3508, 0x6a10, 0xd420)},
    {TABLE(0xb861, 0x60e3, 0xc1c6, 0x93ad, 0x377b, 0x6ef6, 0xddec, 0xabf9)},
    {TABLE(0x47d3, 0x8fa6, 0x0f6d, 0x1eda, 0x3db4, 0x7b68, 0xf6d0, 0xfd81)},
};

static uint16_t crc16(const uint8_t *data, uint32_t length)
{
    uint32_t crc = 0;
    while (length >= 8) {
        crc = (uint32_t)(effects[7][data[0] ^ (crc >> 8)] ^ effects[6][data[1] ^ (crc & 0xff)] ^ effects[5][data[2]] ^ effects[4][data[3]] ^
            effects[3][data[4]] ^ effects[2][data[5]] ^ effects[1][data[6]] ^ effects[0][data[7]]);
        data += 8;
        length -= 8;
    }
    if (length & 4) {
        crc = (uint32_t)(effects[3][data[0] ^ (crc >> 8)] ^ effects[2][data[1] ^ (crc & 0xff)] ^ effects[1][data[2]] ^ effects[0][data[3]]);
        data += 4;
    }
    if (length & 2) {
        crc = (uint32_t)(effects[1][data[0] ^ (crc >> 8)] ^ effects[0][data[1] ^ (crc & 0xff)]);
        data += 2;
    }
    if (length & 1)
        crc = ((crc & 0xff) << 8) ^ effects[0][data[0] ^ (crc >> 8)];
    return (uint16_t)crc;
}

uint16_t slot_of_key(const uint8_t *key, uint32_t length)
{
    const uint8_t *open = length > 0 ? memchr(key, '{', length) : NULL;
    if (open) {
        const uint8_t *tag = open + 1;
        const uint8_t *close = memchr(tag, '}', length - (uint32_t)(tag - key));
        /* Only the first '{' counts, and only the first '}' behind it: "{}{a}" has an empty tag and is hashed whole. */
        if (close && close > tag) {
            key = tag;
            length = (uint32_t)(close - tag);
        }
    }
    return crc16(key, length) & 0x3fff;
}
