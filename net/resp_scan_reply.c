/*
 * The scan of replies. Owns nothing; runs on whichever core reads the link. A counter of elements still to come replaces a stack: an element is a
 * line or a bulk, and an aggregate's header adds its elements.
 *
 *   between elements --type byte--> line --CR LF--> bulk --CR LF--> between elements
 *                                     '------------------------------^
 */
#include "net/resp_scan.h"

#include <string.h>

#include "net/resp_line.h"

enum { ELEMENT_BYTES_MIN = 3 /* _ CR LF */ };

#define ELEMENTS_LEFT_MAX (UINT64_C(1) << 62)

static bool is_text_type(uint8_t type)
{
    return type == '+' || type == '-' || type == '(' || type == ',';
}

/* Takes the element whose header line is [type][digits]; the type is not that of a text. False: the line breaks the grammar.
 * The element ends here unless bulk_left is set; an aggregate leaves its elements to come. */
static bool take_header(struct resp_reply_state *state, uint8_t type, const uint8_t *digits, uint32_t digits_count)
{
    if (type == '_') {
        state->elements_left--;
        return digits_count == 0;
    }
    if (type == '#') {
        state->elements_left--;
        return digits_count == 1 && (digits[0] == 't' || digits[0] == 'f');
    }
    bool negative = digits_count > 0 && digits[0] == '-';
    bool is_signed = negative || (digits_count > 0 && digits[0] == '+');
    uint64_t number = 0;
    if (digits_count == is_signed || digits_count - is_signed > 19)
        return false;
    for (uint32_t i = is_signed; i < digits_count; i++) {
        uint32_t digit = (uint32_t)digits[i] - '0';
        if (digit > 9)
            return false;
        number = number * 10 + digit; /* 19 digits fit 64 bits */
    }
    if (type == ':') {
        state->elements_left--;
        return number <= (uint64_t)INT64_MAX + negative;
    }
    if (is_signed) { /* of the lengths only null has a sign */
        state->elements_left--;
        return negative && digits_count == 2 && number == 1 && (type == '$' || type == '*');
    }
    switch (type) {
    case '=':
        if (number < 4) /* "txt:" belongs to the bulk */
            return false;
        __attribute__((fallthrough));
    case '$':
    case '!':
        state->bulk_left = number + 2;
        return number <= UINT32_MAX;
    case '*':
    case '~':
    case '>':
        state->elements_left += number - 1;
        break;
    case '%':
        state->elements_left += 2 * number - 1;
        break;
    case '|': /* the element it precedes is still to come */
        state->elements_left += 2 * number;
        break;
    default:
        return false;
    }
    /* Without the second bound 2^62 elements could be announced by some GiB of nested headers, and the counter could run over. */
    return number <= UINT64_C(1) << 32 && state->elements_left <= ELEMENTS_LEFT_MAX;
}

/* Skips a text up to its line end: the first CR, which LF must follow. A text holds no LF. Returns where it goes on; NULL is an error.
 * line_type is 0 afterwards where the text has ended. */
static const uint8_t *skip_text(struct resp_reply_state *state, const uint8_t *at, const uint8_t *end)
{
    if (state->line_bytes == 0) {
        const uint8_t *cr = memchr(at, '\r', (size_t)(end - at));
        const uint8_t *text_end = cr != NULL ? cr : end;
        if (memchr(at, '\n', (size_t)(text_end - at)) != NULL)
            return NULL;
        if (cr == NULL)
            return end;
        at = cr + 1;
        state->line_bytes = 1;
        if (at == end)
            return at;
    }
    if (*at != '\n')
        return NULL;
    state->line_bytes = 0;
    state->line_type = 0;
    state->elements_left--;
    return at + 1;
}

/* Reads the header whose type byte was taken; what is cut is kept in `line`. Returns as skip_text does. */
static const uint8_t *skip_header(struct resp_reply_state *state, const uint8_t *at, const uint8_t *end)
{
    uint32_t held = state->line_bytes;
    for (; at < end; at++) {
        if (*at == '\n') {
            uint8_t type = state->line_type;
            state->line_type = 0;
            state->line_bytes = 0;
            if (held == 0 || state->line[held - 1] != '\r' || !take_header(state, type, (const uint8_t *)state->line, held - 1))
                return NULL;
            return at + 1;
        }
        if (held == sizeof(state->line))
            return NULL;
        state->line[held++] = (char)*at;
    }
    state->line_bytes = (uint8_t)held;
    return at;
}

/* Skips a bulk and its line end; checks the line end, since a wrong length would shift every reply behind it. Returns as skip_text does. */
static const uint8_t *skip_bulk(struct resp_reply_state *state, const uint8_t *at, const uint8_t *end)
{
    uint64_t available = (uint64_t)(end - at);
    if (state->bulk_left > 2) {
        uint64_t bytes = state->bulk_left - 2 < available ? state->bulk_left - 2 : available;
        state->bulk_left -= bytes;
        at += bytes;
    }
    while (state->bulk_left <= 2 && at < end) {
        if (*at++ != (state->bulk_left == 2 ? '\r' : '\n'))
            return NULL;
        if (--state->bulk_left == 0) {
            state->elements_left--;
            break;
        }
    }
    return at;
}

/* The bytes of an element that lies whole and plain before `end`: most bulks, integers, +OK, nulls. 0: the general way must look. */
static inline uint32_t plain_element(const uint8_t *at, const uint8_t *end)
{
    uint32_t bulk_bytes = 0;
    switch (*at) {
    case '$': {
        uint32_t header_bytes = read_plain_header(at, end, &bulk_bytes);
        const uint64_t bytes = (uint64_t)header_bytes + bulk_bytes + 2;
        return header_bytes > 0 && bytes <= (uint64_t)(end - at) && is_line_end(at + bytes - 2) ? (uint32_t)bytes : 0;
    }
    case ':':
        return read_plain_header(at, end, &bulk_bytes);
    case '+':
        return end - at >= 5 && memcmp(at, "+OK\r\n", 5) == 0 ? 5 : 0;
    case '_':
        return end - at >= 3 && is_line_end(at + 1) ? 3 : 0;
    default:
        return 0;
    }
}

/* Notes the type byte at an element's start. The reply's own type is that of the first element which no attribute comes with. */
static inline void note_type(struct resp_reply_state *state, uint8_t type)
{
    if (state->elements_left == 1 && (state->type == 0 || state->type == '|'))
        state->type = type;
}

/* Goes on from `at`, elements_left > 0. Returns where it stopped: at `end`, or where the reply ends; NULL is an error. */
static const uint8_t *scan_elements(struct resp_reply_state *state, const uint8_t *at, const uint8_t *end)
{
    while (at != NULL && at < end && state->elements_left > 0) {
        if (state->bulk_left > 0) {
            at = skip_bulk(state, at, end);
        } else if (state->line_type == 0) {
            note_type(state, *at);
            uint32_t bytes = plain_element(at, end);
            if (bytes > 0) {
                at += bytes;
                state->elements_left--;
            } else if (memchr("+-:$*_,#!=(%~|>", *at, 15) == NULL) {
                return NULL;
            } else {
                state->line_type = *at++;
            }
        } else {
            at = is_text_type(state->line_type) ? skip_text(state, at, end) : skip_header(state, at, end);
        }
    }
    return at;
}

/* The least bytes the reply can still have. At most 3 x 2^62 and the length of a bulk: fits. */
static uint64_t reply_bytes_left_min(const struct resp_reply_state *state)
{
    uint64_t others = (state->elements_left - 1) * ELEMENT_BYTES_MIN;
    if (state->bulk_left > 0)
        return state->bulk_left + others;
    if (state->line_type == 0)
        return ELEMENT_BYTES_MIN + others;
    bool has_cr = state->line_bytes > 0 && (is_text_type(state->line_type) || state->line[state->line_bytes - 1] == '\r');
    return (has_cr ? 1 : 2) + others;
}

enum resp_result resp_scan_reply(struct resp_reply_state *state, const uint8_t *data, uint32_t length, uint32_t *consumed)
{
    if (state->elements_left == 0) {
        uint32_t bytes = length > 0 ? plain_element(data, data + length) : 0;
        if (bytes > 0) {
            state->type = data[0];
            *consumed = bytes;
            return RESP_DONE;
        }
        *state = (struct resp_reply_state){.elements_left = 1};
    }
    *consumed = 0;
    if (length > 0) { /* data may be NULL where there is nothing */
        const uint8_t *at = scan_elements(state, data, data + length);
        if (at == NULL)
            return RESP_ERROR;
        *consumed = (uint32_t)(at - data);
    }
    if (state->elements_left == 0) {
        *state = (struct resp_reply_state){.type = state->type};
        return RESP_DONE;
    }
    state->scanned += length;
    state->needed = state->scanned + reply_bytes_left_min(state);
    return RESP_MORE;
}
