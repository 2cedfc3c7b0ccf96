/*
 * Owns nothing; any thread may read with a cursor of its own. It is written apart from resp_scan.c, on whole replies only, so that the fuzz
 * target can hold one against the other.
 */
#include "net/resp_read.h"

#include <string.h>
#include <strings.h>

enum { ELEMENT_BYTES_MIN = 3 /* _ CR LF */ };

void resp_cursor_init(struct resp_cursor *cursor, const uint8_t *data, uint32_t length)
{
    *cursor = (struct resp_cursor){.data = data, .length = length};
}

static bool fail(struct resp_cursor *cursor)
{
    cursor->position = cursor->length;
    return false;
}

/* The line at the cursor without its type byte and line end; moves behind it. CR and LF appear only as the line end. */
static bool read_line(struct resp_cursor *cursor, const uint8_t **text, uint32_t *length)
{
    const uint8_t *start = cursor->data + cursor->position + 1;
    uint32_t available = cursor->length - cursor->position - 1;
    const uint8_t *end = memchr(start, '\n', available);
    if (end == NULL || end == start || end[-1] != '\r')
        return false;
    *text = start;
    *length = (uint32_t)(end - start) - 1;
    cursor->position += *length + 3;
    return memchr(start, '\r', *length) == NULL;
}

/* [+-]digits, at most 19 of them, within int64_t. */
static bool parse_integer(const uint8_t *text, uint32_t length, int64_t *integer)
{
    bool negative = length > 0 && text[0] == '-';
    if (length > 0 && (text[0] == '-' || text[0] == '+')) {
        text++;
        length--;
    }
    if (length == 0 || length > 19)
        return false;
    int64_t number = 0;
    for (uint32_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        /* Counted downwards, since the least int64_t has no positive counterpart. */
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_sub_overflow(number, text[i] - '0', &number))
            return false;
    }
    if (!negative && number == INT64_MIN)
        return false;
    *integer = negative ? number : -number;
    return true;
}

/* A length: digits without a sign. */
static bool parse_length(const uint8_t *text, uint32_t length, int64_t *number)
{
    return length > 0 && text[0] >= '0' && text[0] <= '9' && parse_integer(text, length, number);
}

static bool is_null_text(const uint8_t *text, uint32_t length)
{
    return length == 2 && memcmp(text, "-1", 2) == 0;
}

/* The content of a bulk whose header said `number` bytes; moves behind its line end. */
static bool read_content(struct resp_cursor *cursor, struct resp_value *value, int64_t number)
{
    uint32_t available = cursor->length - cursor->position;
    if (available < 2 || number > (int64_t)available - 2)
        return false;
    const uint8_t *content = cursor->data + cursor->position;
    if (memcmp(content + number, "\r\n", 2) != 0)
        return false;
    cursor->position += (uint32_t)number + 2;
    value->bytes = content;
    value->length = (uint32_t)number;
    return true;
}

static bool read_verbatim(struct resp_cursor *cursor, struct resp_value *value, int64_t number)
{
    if (number < 4 || !read_content(cursor, value, number))
        return false;
    value->bytes += 4;
    value->length -= 4;
    return true;
}

/* Can the rest of the data hold so many elements? For attributes and maps twice the number. */
static bool read_count(const struct resp_cursor *cursor, struct resp_value *value, int64_t number, uint32_t values_each)
{
    if (number > (cursor->length - cursor->position) / ELEMENT_BYTES_MIN / values_each)
        return false;
    value->integer = number;
    return true;
}

/* One value or header, attributes included. Leaves the cursor anywhere on failure. */
static bool read_any(struct resp_cursor *cursor, struct resp_value *value)
{
    *value = (struct resp_value){0};
    if (cursor->position >= cursor->length)
        return false;
    value->type = cursor->data[cursor->position];
    const uint8_t *text = NULL;
    uint32_t length = 0;
    int64_t number = 0;
    if (!read_line(cursor, &text, &length))
        return false;
    switch (value->type) {
    case ':':
    case '+':
    case '-':
    case '(':
    case ',':
        value->bytes = text;
        value->length = length;
        return value->type != ':' || parse_integer(text, length, &value->integer);
    case '_':
        value->is_null = true;
        return length == 0;
    case '#':
        value->integer = length == 1 && text[0] == 't';
        return length == 1 && (text[0] == 't' || text[0] == 'f');
    case '$':
    case '*':
        value->is_null = is_null_text(text, length);
        if (value->is_null)
            return true;
        break;
    default:
        break;
    }
    if (!parse_length(text, length, &number))
        return false;
    switch (value->type) {
    case '$':
    case '!':
        return read_content(cursor, value, number);
    case '=':
        return read_verbatim(cursor, value, number);
    case '*':
    case '~':
    case '>':
        return read_count(cursor, value, number, 1);
    case '%':
    case '|':
        return read_count(cursor, value, number, 2);
    default:
        return false;
    }
}

uint32_t resp_value_elements(const struct resp_value *value)
{
    switch (value->type) {
    case '*':
    case '~':
    case '>':
        return (uint32_t)value->integer;
    case '%':
    case '|':
        return (uint32_t)value->integer * 2;
    default:
        return 0;
    }
}

/* Passes over `values` whole values. The count stays below the bytes left: each header's elements were checked against them, and the sum here. */
static bool skip_values(struct resp_cursor *cursor, uint64_t values)
{
    struct resp_value value;
    while (values > 0) {
        if (values > cursor->length - cursor->position || !read_any(cursor, &value))
            return false;
        values += resp_value_elements(&value);
        if (value.type != '|')
            values--;
    }
    return true;
}

bool resp_read_value(struct resp_cursor *cursor, struct resp_value *value)
{
    ZG_CHECK(cursor->position <= cursor->length);
    do {
        if (!read_any(cursor, value) || (value->type == '|' && !skip_values(cursor, resp_value_elements(value)))) {
            *value = (struct resp_value){0};
            return fail(cursor);
        }
    } while (value->type == '|');
    return true;
}

bool resp_skip_value(struct resp_cursor *cursor)
{
    ZG_CHECK(cursor->position <= cursor->length);
    return skip_values(cursor, 1) || fail(cursor);
}

bool resp_value_equals(const struct resp_value *value, const char *text)
{
    if (value->bytes == NULL || value->type == ':' || value->type == ',' || value->type == '(')
        return false;
    return strlen(text) == value->length && strncasecmp((const char *)value->bytes, text, value->length) == 0;
}

bool resp_value_integer(const struct resp_value *value, int64_t *integer)
{
    if (value->bytes == NULL || value->type == ',' || value->type == '(' || value->type == '-' || value->type == '!')
        return false;
    return parse_integer(value->bytes, value->length, integer);
}
