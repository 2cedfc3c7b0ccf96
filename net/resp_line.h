/*
 * What the scans of commands and of replies share: the header line in its usual spelling. Private to net/resp_scan*.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { HEADER_DIGITS_FAST = 9 /* fit uint32_t without a check */ };

static inline bool is_line_end(const uint8_t *bytes)
{
    return bytes[0] == '\r' && bytes[1] == '\n';
}

/* Reads a header line [type][digits] CR LF that is whole and plainly written: 1 to 9 digits, no sign, no leading zero. The type byte is the
 * caller's to check. Returns the bytes of the line; 0 where it is cut, unusual or wrong and the slow path must tell. */
static inline uint32_t read_plain_header(const uint8_t *header, const uint8_t *end, uint32_t *value)
{
    if (end - header < 4)
        return 0;
    uint32_t number = (uint32_t)header[1] - '0';
    if (number > 9)
        return 0;
    if (is_line_end(header + 2)) {
        *value = number;
        return 4;
    }
    if (number == 0)
        return 0;
    const uint8_t *digits_end = end - header > HEADER_DIGITS_FAST + 2 ? header + HEADER_DIGITS_FAST + 2 : end - 1;
    for (const uint8_t *at = header + 2; at < digits_end; at++) {
        uint32_t digit = (uint32_t)*at - '0';
        if (digit > 9) {
            if (!is_line_end(at))
                return 0;
            *value = number;
            return (uint32_t)(at - header) + 2;
        }
        number = number * 10 + digit;
    }
    return 0;
}
