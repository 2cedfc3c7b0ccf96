/*
 * The scan of commands; that of replies is in resp_scan_reply.c. Owns the scanner's argument array and its unquoted inline command; runs on
 * whichever core reads the connection.
 *
 * A command is a header *N, then N times {header $L, L bytes, CR LF}. The common case, a whole command in one buffer, is one pass that
 * fills args. A cut command keeps {position, args_left}: position is the start of the header that could not be passed, `needed` says before
 * which length trying again is pointless. So bytes before position are never looked at again until the command is whole.
 */
#include "net/resp_scan.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "net/resp_line.h"

enum {
    ARGS_CAPACITY_START = 64,
    ARG_BYTES_MIN = 6, /* $0 CR LF CR LF */
};

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
