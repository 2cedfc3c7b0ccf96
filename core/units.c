/*
 * Sizes and times as text. Constant tables; any thread.
 */
#include "core/units.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"

struct unit {
    const char *suffix;
    uint64_t factor;
};

#define SECOND_NS UINT64_C(1000000000)

/* From large to small; of two texts of the same length the formatter takes the one that comes first. */
static const struct unit byte_units[] = {
    {"GiB", UINT64_C(1) << 30},
    {"GB", UINT64_C(1000000000)},
    {"MiB", UINT64_C(1) << 20},
    {"MB", UINT64_C(1000000)},
    {"KiB", UINT64_C(1) << 10},
    {"KB", UINT64_C(1000)},
    {"B", 1},
};
static const struct unit time_units[] = {
    {"h", 3600 * SECOND_NS},
    {"m", 60 * SECOND_NS},
    {"s", SECOND_NS},
    {"ms", SECOND_NS / 1000},
    {"us", SECOND_NS / 1000000},
    {"ns", 1},
};

enum {
    BYTE_UNITS_COUNT = sizeof(byte_units) / sizeof(byte_units[0]),
    TIME_UNITS_COUNT = sizeof(time_units) / sizeof(time_units[0]),
    FORMATTED_BYTES_MAX = 32, /* 20 digits, a suffix and the NUL */
};

/* Digits, then exactly one suffix of the table. Only the number 0 may stand without one. No sign, no space, no fraction. */
static bool parse(const char *text, const struct unit *units, size_t units_count, uint64_t *value)
{
    ZG_CHECK(text != NULL && value != NULL);
    uint64_t number = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(number, UINT64_C(10), &number) || __builtin_add_overflow(number, (uint64_t)(*at - '0'), &number))
            return false;
    }
    if (at == text)
        return false;
    if (*at == '\0') {
        if (number != 0)
            return false;
        *value = 0;
        return true;
    }
    for (size_t i = 0; i < units_count; i++) {
        if (strcmp(at, units[i].suffix) != 0)
            continue;
        if (__builtin_mul_overflow(number, units[i].factor, &number))
            return false;
        *value = number;
        return true;
    }
    return false;
}

static void format(uint64_t value, const struct unit *units, size_t units_count, char *text, size_t text_bytes)
{
    ZG_CHECK(text != NULL && text_bytes > 0);
    char best[FORMATTED_BYTES_MAX] = "0";
    size_t best_length = value == 0 ? 1 : SIZE_MAX;
    for (size_t i = 0; i < units_count && value != 0; i++) {
        if (value % units[i].factor != 0)
            continue;
        char candidate[FORMATTED_BYTES_MAX];
        int length = snprintf(candidate, sizeof(candidate), "%llu%s", (unsigned long long)(value / units[i].factor), units[i].suffix);
        ZG_CHECK(length > 0 && (size_t)length < sizeof(candidate));
        if ((size_t)length < best_length) {
            best_length = (size_t)length;
            memcpy(best, candidate, (size_t)length + 1);
        }
    }
    /* A text that is cut would name another value, so a buffer that is too small is a bug of the caller. */
    ZG_CHECK(best_length < text_bytes);
    memcpy(text, best, best_length + 1);
}

bool units_parse_bytes(const char *text, uint64_t *bytes)
{
    return parse(text, byte_units, BYTE_UNITS_COUNT, bytes);
}

bool units_parse_time(const char *text, uint64_t *ns)
{
    return parse(text, time_units, TIME_UNITS_COUNT, ns);
}

void units_format_bytes(uint64_t bytes, char *text, size_t text_bytes)
{
    format(bytes, byte_units, BYTE_UNITS_COUNT, text, text_bytes);
}

void units_format_time(uint64_t ns, char *text, size_t text_bytes)
{
    format(ns, time_units, TIME_UNITS_COUNT, text, text_bytes);
}
