/*
 * Owns nothing but a scanner's argument array and its unquoted inline command; runs on whichever core reads the bytes.
 *
 * Command: header *N, then N times {header $L, L bytes, CR LF}. The common case, a whole command in one buffer, is one pass that
 * fills args. A cut command keeps {position, args_left}: position is the start of the header that could not be passed, `needed` says before
 * which length trying again is pointless. So bytes before position are never looked at again until the command is whole.
 *
 * Reply: a counter of elements still to come replaces a stack. An element is a line or a bulk; an aggregate's header adds its elements.
 *
 *   between elements --type byte--> line --CR LF--> bulk --CR LF--> between elements
 *                                     '------------------------------^
 */
#include "net/resp_scan.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"

enum {
    ARGS_CAPACITY_START = 64,
    ARG_BYTES_MIN = 6,       /* $0 CR LF CR LF */
    ELEMENT_BYTES_MIN = 3,   /* _ CR LF */
    HEADER_DIGITS_FAST = 9,  /* fit uint32_t without a check */
};

#define ELEMENTS_LEFT_MAX (UINT64_C(1) << 62)

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

/* A decimal number as Redis reads lengths: an optional '-', no leading zero, no "-0", within int64_t. */
static bool read_strict_number(const uint8_t *text, uint32_t length, int64_t *value)
{
    bool negative = length > 0 && text[0] == '-';
    uint32_t i = negative ? 1 : 0;
    if (length == 1 && text[0] == '0') {
        *value = 0;
        return true;
    }
    if (i == length || text[i] < '1' || text[i] > '9')
        return false;
    uint64_t number = 0;
    for (; i < length; i++) {
        uint64_t digit = (uint64_t)text[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(number, 10u, &number) || __builtin_add_overflow(number, digit, &number))
            return false;
    }
    if (number > (uint64_t)INT64_MAX + (negative ? 1 : 0))
        return false;
    *value = negative ? (int64_t)(0 - number) : (int64_t)number;
    return true;
}

/* ---- commands ---- */

void resp_command_scanner_init(struct resp_command_scanner *scanner, const struct resp_limits *limits)
{
    ZG_CHECK(limits->request_max > 0 && limits->args_max > 0 && limits->args_max <= 1024 * 1024);
    ZG_CHECK(limits->inline_max >= 64 && limits->inline_max <= 1024 * 1024);
    *scanner = (struct resp_command_scanner){.limits = *limits};
    scanner->args_capacity = ARGS_CAPACITY_START;
    scanner->args = alloc_zeroed(scanner->args_capacity * sizeof(*scanner->args));
    scanner->inline_bytes = alloc_zeroed(limits->inline_max + 1);
}

void resp_command_scanner_fini(struct resp_command_scanner *scanner)
{
    alloc_free(scanner->args);
    alloc_free(scanner->inline_bytes);
    *scanner = (struct resp_command_scanner){0};
}

const uint8_t *resp_arg_bytes(const struct resp_command_scanner *scanner, const uint8_t *data, uint32_t i)
{
    ZG_CHECK(i < scanner->args_count);
    return (scanner->is_inline ? scanner->inline_bytes : data) + scanner->args[i].offset;
}

static enum resp_result command_error(struct resp_command_scanner *scanner, const char *error)
{
    scanner->error = error;
    scanner->args_count = 0;
    return RESP_ERROR;
}

__attribute__((cold, noinline)) static enum resp_result expected_bulk_error(struct resp_command_scanner *scanner, uint8_t got)
{
    /* Redis puts a space where a CR or LF would break the error line. A NUL ends the text in our form, so it is shown as a space too. */
    char shown = got == '\r' || got == '\n' || got == 0 ? ' ' : (char)got;
    snprintf(scanner->error_text, sizeof(scanner->error_text), "Protocol error: expected '$', got '%c'", shown);
    return command_error(scanner, scanner->error_text);
}

/* Doubles up to args_max, which no command exceeds. */
__attribute__((cold, noinline)) static void grow_args(struct resp_command_scanner *scanner)
{
    uint32_t capacity = scanner->args_capacity * 2;
    scanner->args = alloc_resize(scanner->args, capacity * sizeof(*scanner->args));
    scanner->args_capacity = capacity;
}

enum header_result { HEADER_WHOLE, HEADER_CUT, HEADER_TOO_BIG, HEADER_INVALID };

/* What read_plain_header leaves over. As in Redis the line ends at the first CR, a NUL before it hides it, and a line whose first
 * inline_max + 1 bytes have no CR is too big. *searched: in, bytes known to hold no CR; out, the same. *bytes is set where the result is
 * HEADER_WHOLE. */
static enum header_result read_any_header(const uint8_t *header, uint32_t available, uint32_t inline_max, uint32_t *searched, int64_t *value,
                                          uint32_t *bytes)
{
    uint32_t searchable = available > inline_max ? inline_max + 1 : available;
    uint32_t i = *searched > 1 ? *searched : 1;
    while (i < searchable && header[i] != '\r' && header[i] != 0)
        i++;
    *searched = i;
    if (i >= searchable || header[i] == 0)
        return available > inline_max ? HEADER_TOO_BIG : HEADER_CUT;
    if (i + 1 == available)
        return HEADER_CUT;
    *bytes = i + 2;
    return header[i + 1] == '\n' && read_strict_number(header + 1, i - 1, value) ? HEADER_WHOLE : HEADER_INVALID;
}

/* Stops at the header at `position`; the command has at least `needed` bytes. */
static enum resp_result command_cut(struct resp_command_state *state, uint32_t position, uint32_t args_left, uint32_t needed)
{
    state->position = position;
    state->args_left = args_left;
    state->needed = needed;
    state->line_bytes = 0;
    return RESP_MORE;
}

/* What a wrong count (at the command's start) and a wrong bulk length are called. */
static const char *const too_big_texts[] = {"Protocol error: too big mbulk count string", "Protocol error: too big bulk count string"};
static const char *const invalid_texts[] = {"Protocol error: invalid multibulk length", "Protocol error: invalid bulk length"};

/* Reads the header at `position` where the plain reading failed. RESP_DONE: *value and *bytes are set; else what the scan returns. */
__attribute__((cold, noinline)) static enum resp_result read_odd_header(struct resp_command_scanner *scanner, struct resp_command_state *state,
                                                                        const uint8_t *data, uint32_t length, uint32_t position,
                                                                        uint32_t args_left, uint32_t *value, uint32_t *bytes)
{
    bool is_bulk = position > 0;
    int64_t number = 0;
    uint32_t searched = position == state->position ? state->line_bytes : 0;
    switch (read_any_header(data + position, length - position, scanner->limits.inline_max, &searched, &number, bytes)) {
    case HEADER_CUT:
        /* Where the largest command leaves no room for the rest of the header, the command is too large whatever follows. */
        if (length >= scanner->limits.request_max)
            return command_error(scanner, invalid_texts[is_bulk]);
        (void)command_cut(state, position, args_left, length + 1);
        state->line_bytes = searched;
        return RESP_MORE;
    case HEADER_TOO_BIG:
        return command_error(scanner, too_big_texts[is_bulk]);
    case HEADER_INVALID:
        return command_error(scanner, invalid_texts[is_bulk]);
    case HEADER_WHOLE:
        break;
    }
    if (number > UINT32_MAX || (is_bulk && number < 0))
        return command_error(scanner, invalid_texts[is_bulk]);
    *value = number < 0 ? 0 : (uint32_t)number;
    return RESP_DONE;
}

/* Scans arguments from `position` on, args_left > 0. With `collect` position is that of the first argument and scanner->args is filled. */
static inline enum resp_result scan_args(struct resp_command_scanner *scanner, struct resp_command_state *state, const uint8_t *data,
                                         uint32_t length, uint32_t position, uint32_t args_left, const bool collect)
{
    const uint32_t bulk_max = scanner->limits.bulk_max;
    const uint64_t request_max = scanner->limits.request_max;
    uint32_t collected = 0;
    while (args_left > 0) {
        const uint8_t *header = data + position;
        if (position == length)
            return command_cut(state, position, args_left, length + 1);
        if (*header != '$')
            return expected_bulk_error(scanner, *header);
        uint32_t bulk_bytes = 0;
        uint32_t header_bytes = read_plain_header(header, data + length, &bulk_bytes);
        if (header_bytes == 0) {
            enum resp_result result = read_odd_header(scanner, state, data, length, position, args_left, &bulk_bytes, &header_bytes);
            if (result != RESP_DONE)
                return result;
        }
        uint64_t bulk_end = (uint64_t)position + header_bytes + bulk_bytes;
        /* The arguments still to come count with the least they can have, so that a command that must become too large fails early. */
        if (bulk_bytes > bulk_max || bulk_end + 2 + (uint64_t)(args_left - 1) * ARG_BYTES_MIN > request_max)
            return command_error(scanner, invalid_texts[1]);
        if (bulk_end + 2 > length)
            return command_cut(state, position, args_left, (uint32_t)bulk_end + 2);
        if (!is_line_end(data + bulk_end))
            return command_error(scanner, invalid_texts[1]);
        if (collect) {
            if (collected == scanner->args_capacity)
                grow_args(scanner);
            scanner->args[collected++] = (struct resp_arg){.offset = position + header_bytes, .length = bulk_bytes};
        }
        position = (uint32_t)bulk_end + 2;
        args_left--;
    }
    scanner->args_count = collected;
    scanner->consumed = position;
    return RESP_DONE;
}

/* From the command's first byte. A command that is cut within its first header leaves position at 0 and starts here again. */
static enum resp_result scan_multibulk(struct resp_command_scanner *scanner, struct resp_command_state *state, const uint8_t *data, uint32_t length)
{
    uint32_t count = 0;
    uint32_t bytes = read_plain_header(data, data + length, &count);
    if (bytes == 0) {
        enum resp_result result = read_odd_header(scanner, state, data, length, 0, 0, &count, &bytes);
        if (result != RESP_DONE)
            return result;
    }
    if (count > scanner->limits.args_max || bytes + (uint64_t)count * ARG_BYTES_MIN > scanner->limits.request_max)
        return command_error(scanner, invalid_texts[0]);
    if (count == 0) {
        scanner->args_count = 0;
        scanner->consumed = bytes;
        return RESP_EMPTY;
    }
    return scan_args(scanner, state, data, length, bytes, count, true);
}

/* White space as isspace() knows it in the C locale. */
static bool is_space(uint8_t byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The bytes of an inline command between two marks. Reading at the end gives NUL, which no line contains. */
struct inline_line {
    const uint8_t *at;
    const uint8_t *end;
};

static uint8_t line_peek(const struct inline_line *line, uint32_t ahead)
{
    return line->end - line->at > (ptrdiff_t)ahead ? line->at[ahead] : 0;
}

/* The part of a word from behind its opening quote on; a closing quote ends the word and must be followed by white space or the end.
 * Writes to *out and moves it. False: unbalanced. */
static bool unquote(struct inline_line *line, uint8_t quote, uint8_t **out)
{
    for (;;) {
        uint8_t byte = line_peek(line, 0);
        uint8_t next = line_peek(line, 1);
        if (byte == 0)
            return false;
        if (byte == quote) {
            line->at++;
            return next == 0 || is_space(next);
        }
        if (byte != '\\' || (quote == '\'' && next != '\'') || next == 0) {
            *(*out)++ = byte;
            line->at++;
            continue;
        }
        if (next == 'x' && quote == '"' && hex_digit(line_peek(line, 2)) >= 0 && hex_digit(line_peek(line, 3)) >= 0) {
            *(*out)++ = (uint8_t)(hex_digit(line->at[2]) * 16 + hex_digit(line->at[3]));
            line->at += 4;
            continue;
        }
        static const char escapes[] = "nrtba", meanings[] = "\n\r\t\b\a";
        const char *escape = quote == '"' ? strchr(escapes, next) : NULL;
        *(*out)++ = escape == NULL ? next : (uint8_t)meanings[escape - escapes];
        line->at += 2;
    }
}

/* One word; quotes may open in its middle. Unquoted it ends at space, tab, CR or the line's end (but not at \v or \f, as in Redis). */
static bool read_word(struct inline_line *line, uint8_t **out)
{
    for (;;) {
        uint8_t byte = line_peek(line, 0);
        if (byte == 0 || byte == ' ' || byte == '\t' || byte == '\r')
            return true;
        line->at++;
        if (byte == '"' || byte == '\'')
            return unquote(line, byte, out);
        *(*out)++ = byte;
    }
}

static enum resp_result split_inline(struct resp_command_scanner *scanner, const uint8_t *data, uint32_t length)
{
    struct inline_line line = {.at = data, .end = data + length};
    uint8_t *out = scanner->inline_bytes;
    uint32_t count = 0;
    for (;;) {
        while (is_space(line_peek(&line, 0)))
            line.at++;
        if (line.at == line.end)
            break;
        uint8_t *word = out;
        if (!read_word(&line, &out))
            return command_error(scanner, "Protocol error: unbalanced quotes in request");
        if (count == scanner->limits.args_max)
            return command_error(scanner, invalid_texts[0]);
        if (count == scanner->args_capacity)
            grow_args(scanner);
        scanner->args[count++] = (struct resp_arg){.offset = (uint32_t)(word - scanner->inline_bytes), .length = (uint32_t)(out - word)};
    }
    scanner->args_count = count;
    scanner->inline_bytes_count = (uint32_t)(out - scanner->inline_bytes);
    scanner->is_inline = true;
    return count == 0 ? RESP_EMPTY : RESP_DONE;
}

/* A line ended by LF or CR LF. As in Redis a NUL hides the line end, so such a line only ever becomes too big. */
__attribute__((cold, noinline)) static enum resp_result scan_inline(struct resp_command_scanner *scanner, struct resp_command_state *state,
                                                                    const uint8_t *data, uint32_t length)
{
    uint32_t line_max = scanner->limits.inline_max < scanner->limits.request_max ? scanner->limits.inline_max : scanner->limits.request_max - 1;
    uint32_t searchable = length > line_max ? line_max + 1 : length;
    uint32_t from = state->position;
    const uint8_t *end = from < searchable ? memchr(data + from, '\n', searchable - from) : NULL;
    uint32_t searched = end != NULL ? (uint32_t)(end - data) : searchable;
    const uint8_t *hidden = from < searched ? memchr(data + from, 0, searched - from) : NULL;
    if (end == NULL || hidden != NULL) {
        if (length > line_max)
            return command_error(scanner, "Protocol error: too big inline request");
        return command_cut(state, hidden != NULL ? (uint32_t)(hidden - data) : length, 0, length + 1);
    }
    scanner->consumed = searched + 1;
    return split_inline(scanner, data, searched > 0 && end[-1] == '\r' ? searched - 1 : searched);
}

enum resp_result resp_scan_command(struct resp_command_scanner *scanner, struct resp_command_state *state, const uint8_t *data, uint32_t length)
{
    scanner->is_inline = false;
    if (length == 0 || length < state->needed) {
        state->needed = state->needed > 0 ? state->needed : 1;
        return RESP_MORE;
    }
    enum resp_result result;
    if (__builtin_expect(data[0] != '*', 0)) {
        result = scan_inline(scanner, state, data, length);
    } else if (state->position == 0) {
        result = scan_multibulk(scanner, state, data, length);
    } else {
        result = scan_args(scanner, state, data, length, state->position, state->args_left, false);
        if (result == RESP_DONE) {
            *state = (struct resp_command_state){0};
            result = scan_multibulk(scanner, state, data, scanner->consumed);
            ZG_CHECK(result == RESP_DONE);
        }
    }
    if (result == RESP_DONE || result == RESP_EMPTY)
        *state = (struct resp_command_state){0};
    return result;
}

/* ---- replies ---- */

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
        while (at < end && *at != '\r') {
            if (*at == '\n')
                return NULL;
            at++;
        }
        if (at == end)
            return at;
        at++;
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
