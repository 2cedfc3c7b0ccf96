/*
 * Reads one whole reply that lies in memory, value by value: for the control plane (COMMAND, CLUSTER SHARDS and the like). Nothing is allocated
 * and nothing recurses here; a caller that walks unknown structures itself bounds its depth (RESP_DEPTH_MAX is a sensible bound).
 * Source: the RESP2 and RESP3 specifications. Accepts exactly what resp_scan_reply frames.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/check.h"

enum { RESP_DEPTH_MAX = 32 };

struct resp_value {
    uint8_t type;         /* + - : $ * _ , # ! = ( % ~ > */
    bool is_null;         /* _ and the nulls of RESP2, $-1 and *-1 */
    uint32_t length;      /* of `bytes` */
    const uint8_t *bytes; /* text of + - , ( and digits of :, content of $ ! = (without "txt:"); borrowed from the cursor's data; else NULL */
    int64_t integer;      /* of : and # (0 or 1); of * ~ > the number of elements, of % of pairs; else 0 */
};

struct resp_cursor {
    const uint8_t *data; /* borrowed */
    uint32_t length;
    uint32_t position; /* bytes read, <= length; = length after a failure, so that every later read fails too */
};

void resp_cursor_init(struct resp_cursor *cursor, const uint8_t *data, uint32_t length);

/* Reads one value, or the header of an aggregate, whose elements are then read one by one (resp_value_elements says how many). Attributes are
 * passed over. False: malformed, cut or at the end. An aggregate that announces more elements than the rest of the data can hold is malformed, so
 * a loop over elements is bounded by the data. */
bool resp_read_value(struct resp_cursor *cursor, struct resp_value *value) ZG_NODISCARD;

/* Passes over one value with everything nested in it, however deep. False as above. */
bool resp_skip_value(struct resp_cursor *cursor) ZG_NODISCARD;

/* How many values follow that belong to `value`: elements, or two for each pair of a map; 0 for a scalar or null. */
uint32_t resp_value_elements(const struct resp_value *value);

/* Is this a text (+ - $ ! =, but no null) equal to `text`, ASCII case aside? */
bool resp_value_equals(const struct resp_value *value, const char *text);

/* The integer of a : or of a text (+ $ =) that is one in decimal. False where it is none; *integer is then untouched. */
bool resp_value_integer(const struct resp_value *value, int64_t *integer) ZG_NODISCARD;
