/*
 * net/resp_scan, commands: every kind whole, cut at every byte and at every pair of bytes; what breaks the protocol; limits; random
 * input with random cuts; and that a cut command is never scanned again from its start.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/rng.h"
#include "net/resp_scan.h"
#include "net/resp_write.h"

TestSuite(resp_scan);

enum { ARGS_SHOWN_MAX = 6 };

static const struct resp_limits wide = {.args_max = 1024 * 1024, .bulk_max = 512u << 20, .inline_max = 65536, .request_max = 1u << 30};

struct bytes {
    const char *data;
    uint32_t length;
};
#define BYTES(text) \
    { \
        (text), sizeof(text) - 1 \
    }

/* ---- commands ---- */

struct command_case {
    struct bytes input;
    enum resp_result result;           /* RESP_DONE or RESP_EMPTY */
    struct bytes args[ARGS_SHOWN_MAX]; /* up to the first without data */
};

static const struct command_case commands[] = {
    {BYTES("*1\r\n$4\r\nPING\r\n"), RESP_DONE, {BYTES("PING")}},
    {BYTES("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"), RESP_DONE, {BYTES("GET"), BYTES("key")}},
    {BYTES("*3\r\n$3\r\nSET\r\n$0\r\n\r\n$10\r\n\r\n$3\r\nab\0\r\r\n"), RESP_DONE, {BYTES("SET"), BYTES(""), BYTES("\r\n$3\r\nab\0\r")}},
    {BYTES("*1\r\n$0\r\n\r\n"), RESP_DONE, {BYTES("")}},
    {BYTES("*3\r\n$3\r\nSET\r\n$12\r\n0123456789ab\r\n$10\r\n0123456789\r\n"), RESP_DONE, {BYTES("SET"), BYTES("0123456789ab"), BYTES("0123456789")}},
    {BYTES("*0\r\n"), RESP_EMPTY, {{0}}},
    {BYTES("*-1\r\n"), RESP_EMPTY, {{0}}},
    {BYTES("*-12345678901234\r\n"), RESP_EMPTY, {{0}}},
    {BYTES("*-9223372036854775808\r\n"), RESP_EMPTY, {{0}}},
    {BYTES("\n"), RESP_EMPTY, {{0}}},
    {BYTES("\r\n"), RESP_EMPTY, {{0}}},
    {BYTES("  \t\v\f\r \r\n"), RESP_EMPTY, {{0}}},
    {BYTES("PING\n"), RESP_DONE, {BYTES("PING")}},
    {BYTES("PING\r\n"), RESP_DONE, {BYTES("PING")}},
    {BYTES("  SET  key\tvalue  \r\n"), RESP_DONE, {BYTES("SET"), BYTES("key"), BYTES("value")}},
    {BYTES("a\rb\r\r\n"), RESP_DONE, {BYTES("a"), BYTES("b")}},
    {BYTES("a\vb\fc \vd\r\n"), RESP_DONE, {BYTES("a\vb\fc"), BYTES("d")}},
    {BYTES("SET \"\" ''\r\n"), RESP_DONE, {BYTES("SET"), BYTES(""), BYTES("")}},
    {BYTES("\"a b\" 'c d' x\"y z\" e'f g'\r\n"), RESP_DONE, {BYTES("a b"), BYTES("c d"), BYTES("xy z"), BYTES("ef g")}},
    {BYTES("\"\\n\\r\\t\\b\\a\\\\\\\"\\q\"\r\n"), RESP_DONE, {BYTES("\n\r\t\b\a\\\"q")}},
    {BYTES("\"\\x41\\x0A\\xff\\xFf\\x4g\\x\"\r\n"), RESP_DONE, {BYTES("A\n\xff\xffx4gx")}},
    {BYTES("'\\n\\'\\\\\\x41\"'\r\n"), RESP_DONE, {BYTES("\\n'\\\\\\x41\"")}},
    {BYTES("\"it's\" \\n \\x41 '\"'\r\n"), RESP_DONE, {BYTES("it's"), BYTES("\\n"), BYTES("\\x41"), BYTES("\"")}},
    {BYTES("\"a\"\v'b'\f\xff\n"), RESP_DONE, {BYTES("a"), BYTES("b"), BYTES("\xff")}},
    {BYTES("$4\r\n"), RESP_DONE, {BYTES("$4")}},
    {BYTES("GET *1\r\n"), RESP_DONE, {BYTES("GET"), BYTES("*1")}},
};

/* Checks what the scanner found against the case. `data` is the command's first byte. */
static void check_command(const struct command_case *expected, const struct resp_command_scanner *scanner, const struct resp_command_state *state,
    const uint8_t *data, enum resp_result result)
{
    const struct resp_command_state start = {0};
    cr_assert_eq(result, expected->result, "result %d of %s", result, expected->input.data);
    cr_assert_eq(scanner->consumed, expected->input.length, "consumed %u of %s", scanner->consumed, expected->input.data);
    cr_assert_eq(memcmp(state, &start, sizeof(start)), 0, "the state is reset after %s", expected->input.data);
    uint32_t count = 0;
    while (count < ARGS_SHOWN_MAX && expected->args[count].data != NULL)
        count++;
    cr_assert_eq(scanner->args_count, count, "%u args in %s", scanner->args_count, expected->input.data);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_eq(scanner->args[i].length, expected->args[i].length, "arg %u of %s", i, expected->input.data);
        cr_assert_arr_eq(resp_arg_bytes(scanner, data, i), expected->args[i].data, expected->args[i].length, "arg %u of %s", i, expected->input.data);
    }
    if (count > 0)
        cr_assert_eq(scanner->is_inline, expected->input.data[0] != '*');
}

/* Scans a prefix that is cut; it must ask for more, and not for more than there is. */
static void check_command_prefix(struct resp_command_scanner *scanner, struct resp_command_state *state, const uint8_t *data, uint32_t length,
    uint32_t whole)
{
    enum resp_result result = resp_scan_command(scanner, state, data, length);
    cr_assert_eq(result, RESP_MORE, "%u of %u bytes of %s", length, whole, (const char *)data);
    cr_assert(state->needed > length && state->needed <= whole, "needed %u with %u of %u bytes of %s", state->needed, length, whole, (const char *)data);
}

Test(resp_scan, command_whole_and_followed_by_others_gives_its_args)
{
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        uint8_t data[256];
        struct resp_command_state state = {0};
        memcpy(data, commands[i].input.data, commands[i].input.length);
        enum resp_result result = resp_scan_command(&scanner, &state, data, commands[i].input.length);
        check_command(&commands[i], &scanner, &state, data, result);
        memcpy(data + commands[i].input.length, "*1\r\n$4\r\nPING\r\n\n", 15);
        result = resp_scan_command(&scanner, &state, data, commands[i].input.length + 15);
        check_command(&commands[i], &scanner, &state, data, result);
    }
    resp_command_scanner_fini(&scanner);
}

Test(resp_scan, command_cut_at_any_two_bytes_is_found_once_whole)
{
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        const uint8_t *data = (const uint8_t *)commands[i].input.data;
        uint32_t length = commands[i].input.length;
        for (uint32_t first = 0; first < length; first++) {
            for (uint32_t second = first; second < length; second++) {
                struct resp_command_state state = {0};
                check_command_prefix(&scanner, &state, data, first, length);
                check_command_prefix(&scanner, &state, data, second, length);
                enum resp_result result = resp_scan_command(&scanner, &state, data, length);
                check_command(&commands[i], &scanner, &state, data, result);
            }
        }
    }
    resp_command_scanner_fini(&scanner);
}

Test(resp_scan, command_byte_by_byte_is_found_at_its_last_byte)
{
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        const uint8_t *data = (const uint8_t *)commands[i].input.data;
        uint32_t length = commands[i].input.length;
        struct resp_command_state state = {0};
        for (uint32_t prefix = 0; prefix < length; prefix++)
            check_command_prefix(&scanner, &state, data, prefix, length);
        enum resp_result result = resp_scan_command(&scanner, &state, data, length);
        check_command(&commands[i], &scanner, &state, data, result);
    }
    resp_command_scanner_fini(&scanner);
}

/* The same scanner serves connections in turn: a cut command of one must not be disturbed by commands of others. */
Test(resp_scan, command_cut_while_another_connection_is_scanned_keeps_its_place)
{
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    const uint8_t *data = (const uint8_t *)commands[2].input.data;
    uint32_t length = commands[2].input.length;
    for (uint32_t cut = 1; cut < length; cut++) {
        struct resp_command_state state = {0}, other = {0};
        check_command_prefix(&scanner, &state, data, cut, length);
        cr_assert_eq(resp_scan_command(&scanner, &other, (const uint8_t *)"GET \"other key\"\n", 16), RESP_DONE);
        enum resp_result result = resp_scan_command(&scanner, &state, data, length);
        check_command(&commands[2], &scanner, &state, data, result);
    }
    resp_command_scanner_fini(&scanner);
}

/* ---- what breaks the protocol ---- */

struct bad_command {
    struct bytes input; /* its last byte is the first at which the error can be known */
    const char *error;
};

#define INVALID_COUNT "Protocol error: invalid multibulk length"
#define INVALID_BULK "Protocol error: invalid bulk length"
#define UNBALANCED "Protocol error: unbalanced quotes in request"

static const struct bad_command bad_commands[] = {
    {BYTES("*\r\n"), INVALID_COUNT},
    {BYTES("*abc\r\n"), INVALID_COUNT},
    {BYTES("*+1\r\n"), INVALID_COUNT},
    {BYTES("* 1\r\n"), INVALID_COUNT},
    {BYTES("*1 \r\n"), INVALID_COUNT},
    {BYTES("*01\r\n"), INVALID_COUNT},
    {BYTES("*00\r\n"), INVALID_COUNT},
    {BYTES("*-0\r\n"), INVALID_COUNT},
    {BYTES("*-\r\n"), INVALID_COUNT},
    {BYTES("*1048577\r\n"), INVALID_COUNT},
    {BYTES("*3000000000\r\n"), INVALID_COUNT},
    {BYTES("*4294967297\r\n"), INVALID_COUNT},
    {BYTES("*9223372036854775808\r\n"), INVALID_COUNT},
    {BYTES("*18446744073709551617\r\n"), INVALID_COUNT},
    {BYTES("*-9223372036854775809\r\n"), INVALID_COUNT},
    {BYTES("*1\nPING\r\n"), INVALID_COUNT},
    {BYTES("*1\rX"), INVALID_COUNT},
    {BYTES("*1\r\nf"), "Protocol error: expected '$', got 'f'"},
    {BYTES("*1\r\n\r"), "Protocol error: expected '$', got ' '"},
    {BYTES("*1\r\n\n"), "Protocol error: expected '$', got ' '"},
    {BYTES("*1\r\n\0"), "Protocol error: expected '$', got ' '"},
    {BYTES("*1\r\n*"), "Protocol error: expected '$', got '*'"},
    {BYTES("*3\r\n$3\r\nSET\r\n$1\r\nx\r\nf"), "Protocol error: expected '$', got 'f'"},
    {BYTES("*2\r\n$3\r\nGET\r\n:"), "Protocol error: expected '$', got ':'"},
    {BYTES("*1\r\n$\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$-1\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$-10\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$04\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$blabla\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$536870913\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$2000000000\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$4294967300\r\n"), INVALID_BULK},
    {BYTES("*1\r\n$4\rX"), INVALID_BULK},
    {BYTES("*1\r\n$4\r\nPING\n\n"), INVALID_BULK},
    {BYTES("*1\r\n$4\r\nPINGxx"), INVALID_BULK},
    {BYTES("*1\r\n$4\r\nPING\rx"), INVALID_BULK},
    {BYTES("SET k 'unbalanced\r\n"), UNBALANCED},
    {BYTES("SET k \"unbalanced\n"), UNBALANCED},
    {BYTES("\"a\"b\r\n"), UNBALANCED},
    {BYTES("'a'b\r\n"), UNBALANCED},
    {BYTES("\"a\"\"b\"\r\n"), UNBALANCED},
    {BYTES("\"a\\\"\r\n"), UNBALANCED},
    {BYTES("\"a\\\r\n"), UNBALANCED},
    {BYTES("'a\\'\r\n"), UNBALANCED},
    {BYTES("a'\r\n"), UNBALANCED},
};

Test(resp_scan, command_that_breaks_the_protocol_is_an_error_however_it_is_cut)
{
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    for (size_t i = 0; i < sizeof(bad_commands) / sizeof(bad_commands[0]); i++) {
        const uint8_t *data = (const uint8_t *)bad_commands[i].input.data;
        uint32_t length = bad_commands[i].input.length;
        for (uint32_t cut = 0; cut < length; cut++) {
            struct resp_command_state state = {0};
            cr_assert_eq(resp_scan_command(&scanner, &state, data, cut), RESP_MORE, "%u bytes of %s", cut, bad_commands[i].input.data);
            cr_assert_eq(resp_scan_command(&scanner, &state, data, length), RESP_ERROR, "cut at %u: %s", cut, bad_commands[i].input.data);
            cr_assert_str_eq(scanner.error, bad_commands[i].error, "%s", bad_commands[i].input.data);
            cr_assert_eq(scanner.args_count, 0);
        }
    }
    resp_command_scanner_fini(&scanner);
}

/* `head`, then `fill` up to `length` bytes, in one piece and byte by byte; the text of the error that comes exactly with the last byte. */
static const char *error_of_long_line(const char *head, uint32_t head_bytes, uint8_t fill, uint32_t length)
{
    static char text[64];
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    uint8_t *data = malloc(length);
    memset(data, fill, length);
    memcpy(data, head, head_bytes);
    struct resp_command_state state = {0};
    for (uint32_t prefix = 0; prefix < length; prefix++)
        cr_assert_eq(resp_scan_command(&scanner, &state, data, prefix), RESP_MORE, "%u bytes of %s", prefix, head);
    cr_assert_eq(resp_scan_command(&scanner, &state, data, length), RESP_ERROR);
    snprintf(text, sizeof(text), "%s", scanner.error);
    state = (struct resp_command_state){0};
    cr_assert_eq(resp_scan_command(&scanner, &state, data, length), RESP_ERROR);
    cr_assert_str_eq(scanner.error, text);
    free(data);
    resp_command_scanner_fini(&scanner);
    return text;
}

Test(resp_scan, line_without_end_is_too_big_beyond_its_limit)
{
    cr_assert_str_eq(error_of_long_line("", 0, 'x', 65537), "Protocol error: too big inline request");
    cr_assert_str_eq(error_of_long_line("*", 1, '1', 65537), "Protocol error: too big mbulk count string");
    cr_assert_str_eq(error_of_long_line("*1\r\n$", 5, '1', 65541), "Protocol error: too big bulk count string");
    /* A NUL hides the line end, as redis-server's tests of desynchronised protocols want it. */
    cr_assert_str_eq(error_of_long_line("\0", 1, '\n', 65537), "Protocol error: too big inline request");
    cr_assert_str_eq(error_of_long_line("PI\0NG\r\n", 7, '\n', 65537), "Protocol error: too big inline request");
    cr_assert_str_eq(error_of_long_line("*\0", 2, '\r', 65537), "Protocol error: too big mbulk count string");
    cr_assert_str_eq(error_of_long_line("*1\r\n$\0", 6, '\r', 65541), "Protocol error: too big bulk count string");
}

/* ---- limits ---- */

static enum resp_result scan_with(const struct resp_limits *limits, const char *text, uint32_t length, const char *error)
{
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, limits);
    struct resp_command_state state = {0};
    enum resp_result whole = resp_scan_command(&scanner, &state, (const uint8_t *)text, length);
    if (whole == RESP_ERROR)
        cr_assert_str_eq(scanner.error, error, "%s", text);
    state = (struct resp_command_state){0};
    enum resp_result result = RESP_MORE;
    for (uint32_t prefix = 0; prefix <= length && result == RESP_MORE; prefix++) {
        result = resp_scan_command(&scanner, &state, (const uint8_t *)text, prefix);
        cr_assert(result != RESP_MORE || state.needed <= limits->request_max + 1, "more than the limit allows is never asked for");
    }
    cr_assert_eq(result, whole, "byte by byte as whole: %s", text);
    resp_command_scanner_fini(&scanner);
    return whole;
}
#define SCAN_WITH(limits, text, error) scan_with((limits), (text), sizeof(text) - 1, (error))

Test(resp_scan, command_at_its_limits_is_taken_and_beyond_refused)
{
    const struct resp_limits limits = {.args_max = 3, .bulk_max = 5, .inline_max = 64, .request_max = 40};
    cr_assert_eq(SCAN_WITH(&limits, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", NULL), RESP_DONE);
    cr_assert_eq(SCAN_WITH(&limits, "*4\r\n$1\r\na\r\n", INVALID_COUNT), RESP_ERROR);
    cr_assert_eq(SCAN_WITH(&limits, "*1\r\n$5\r\n12345\r\n", NULL), RESP_DONE);
    cr_assert_eq(SCAN_WITH(&limits, "*1\r\n$6\r\n123456\r\n", INVALID_BULK), RESP_ERROR);
    cr_assert_eq(SCAN_WITH(&limits, "a b c\r\n", NULL), RESP_DONE);
    cr_assert_eq(SCAN_WITH(&limits, "a b c d\r\n", INVALID_COUNT), RESP_ERROR);
    /* 40 bytes: 4 + 3 * 12. Then one more. */
    const struct resp_limits wider = {.args_max = 3, .bulk_max = 7, .inline_max = 64, .request_max = 40};
    cr_assert_eq(SCAN_WITH(&wider, "*3\r\n$6\r\n123456\r\n$6\r\n123456\r\n$6\r\n123456\r\n", NULL), RESP_DONE);
    cr_assert_eq(SCAN_WITH(&wider, "*3\r\n$6\r\n123456\r\n$6\r\n123456\r\n$7\r\n1234567\r\n", INVALID_BULK), RESP_ERROR);
    /* Refused at the header after which the rest cannot fit. */
    const struct resp_limits large_bulk = {.args_max = 10, .bulk_max = 1000, .inline_max = 64, .request_max = 100};
    cr_assert_eq(SCAN_WITH(&large_bulk, "*2\r\n$84\r\n", INVALID_BULK), RESP_ERROR);
    cr_assert_eq(SCAN_WITH(&large_bulk, "*2\r\n$83\r\n", NULL), RESP_MORE);
    const struct resp_limits many = {.args_max = 100, .bulk_max = 10, .inline_max = 64, .request_max = 65};
    cr_assert_eq(SCAN_WITH(&many, "*11\r\n", INVALID_COUNT), RESP_ERROR);
    cr_assert_eq(SCAN_WITH(&many, "*10\r\n", NULL), RESP_MORE);
    cr_assert_eq(SCAN_WITH(&many, "*111111111111111111111111111111111111111111111111111111111111111111", "Protocol error: too big mbulk count string"), RESP_ERROR);
}

Test(resp_scan, inline_command_beyond_the_request_limit_is_too_big)
{
    const struct resp_limits limits = {.args_max = 3, .bulk_max = 5, .inline_max = 64, .request_max = 10};
    cr_assert_eq(SCAN_WITH(&limits, "12345678\r\n", NULL), RESP_DONE);
    cr_assert_eq(SCAN_WITH(&limits, "123456789\r\n", "Protocol error: too big inline request"), RESP_ERROR);
}

Test(resp_scan, command_of_many_args_grows_the_array_and_finds_all)
{
    enum { COUNT = 100000 };
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    resp_write_array(&writer, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        resp_write_bulk_format(&writer, "%u", i);
    for (uint32_t cut = 0; cut < writer.length; cut += writer.length / 7) {
        struct resp_command_state state = {0};
        cr_assert_eq(resp_scan_command(&scanner, &state, writer.data, cut), RESP_MORE);
        cr_assert_eq(resp_scan_command(&scanner, &state, writer.data, writer.length), RESP_DONE);
        cr_assert_eq(scanner.args_count, COUNT);
        for (uint32_t i = 0; i < COUNT; i++) {
            char text[16];
            int length = snprintf(text, sizeof(text), "%u", i);
            cr_assert(scanner.args[i].length == (uint32_t)length && memcmp(resp_arg_bytes(&scanner, writer.data, i), text, (size_t)length) == 0, "arg %u", i);
        }
    }
    resp_writer_fini(&writer);
    resp_command_scanner_fini(&scanner);
}

Test(resp_scan, command_cut_in_an_argument_says_how_much_it_needs)
{
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    struct resp_command_state state = {0};
    const char *head = "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1000000\r\n";
    uint32_t head_bytes = (uint32_t)strlen(head);
    cr_assert_eq(resp_scan_command(&scanner, &state, (const uint8_t *)head, head_bytes), RESP_MORE);
    cr_assert_eq(state.needed, head_bytes + 1000000 + 2);
    cr_assert_eq(resp_scan_command(&scanner, &state, (const uint8_t *)head, 0), RESP_MORE, "no bytes are no harm");
    cr_assert_eq(state.needed, head_bytes + 1000000 + 2);
    resp_command_scanner_fini(&scanner);
}

/* ---- linear time ---- */

/* Bytes in pages that are taken away as the scan passes them, so that scanning again faults. The first page stays: its first byte tells inline
 * commands from others. */
struct guarded {
    uint8_t *data;
    size_t bytes;
    size_t guarded; /* bytes from data on of which all pages but the first are inaccessible */
};

static void guarded_open(struct guarded *guarded, const uint8_t *data, size_t length)
{
    guarded->bytes = (length + 4095) / 4096 * 4096;
    guarded->data = mmap(NULL, guarded->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(guarded->data, MAP_FAILED);
    memcpy(guarded->data, data, length);
    guarded->guarded = 4096;
}

static void guarded_pass(struct guarded *guarded, size_t position)
{
    size_t end = position / 4096 * 4096;
    if (end <= guarded->guarded)
        return;
    cr_assert_eq(mprotect(guarded->data + guarded->guarded, end - guarded->guarded, PROT_NONE), 0);
    guarded->guarded = end;
}

static void guarded_close(struct guarded *guarded)
{
    munmap(guarded->data, guarded->bytes);
}

/* Feeds the command byte by byte. No call but the last can look at pages before that of `passed`, which only grows: so each looks at less than
 * 4,096 bytes and the first one, however long the command is. Returns the result of the last. */
static enum resp_result scan_guarded(struct resp_command_scanner *scanner, const uint8_t *data, uint32_t length)
{
    struct guarded guarded;
    guarded_open(&guarded, data, length);
    struct resp_command_state state = {0};
    uint32_t passed = 0;
    for (uint32_t prefix = 1; prefix < length; prefix++) {
        cr_assert_eq(resp_scan_command(scanner, &state, guarded.data, prefix), RESP_MORE);
        /* A header that came whole in the end is read once more from its start; only one that can but be an error is not. */
        uint32_t position = state.position + (state.line_bytes > 64 ? state.line_bytes : 0);
        cr_assert_geq(position, passed);
        passed = position;
        guarded_pass(&guarded, passed);
    }
    cr_assert_gt(passed + 4096, length / 2, "the pages were taken away as the scan went");
    cr_assert_eq(mprotect(guarded.data, guarded.bytes, PROT_READ), 0);
    enum resp_result result = resp_scan_command(scanner, &state, guarded.data, length);
    guarded_close(&guarded);
    return result;
}

Test(resp_scan, command_of_a_million_args_byte_by_byte_is_never_scanned_again, .timeout = 60)
{
    enum { COUNT = 1024 * 1024 };
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &wide);
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    resp_write_array(&writer, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        resp_write_raw(&writer, "$1\r\nx\r\n", 7);
    cr_assert_eq(scan_guarded(&scanner, writer.data, writer.length), RESP_DONE);
    cr_assert_eq(scanner.args_count, COUNT);
    cr_assert_eq(scanner.consumed, writer.length);
    resp_writer_fini(&writer);
    resp_command_scanner_fini(&scanner);
}

Test(resp_scan, long_lines_byte_by_byte_are_never_searched_again, .timeout = 60)
{
    const struct resp_limits limits = {.args_max = 1024 * 1024, .bulk_max = 1u << 20, .inline_max = 1u << 20, .request_max = 1u << 30};
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &limits);
    static uint8_t data[(1u << 20) + 2];
    memset(data, 'a', sizeof(data));
    cr_assert_eq(scan_guarded(&scanner, data, 1u << 20), RESP_MORE);
    memset(data + 500000, ' ', 10);
    data[(1u << 20) - 1] = '\n';
    cr_assert_eq(scan_guarded(&scanner, data, 1u << 20), RESP_DONE);
    cr_assert_eq(scanner.args_count, 2);
    memset(data, '1', sizeof(data));
    data[0] = '*';
    cr_assert_eq(scan_guarded(&scanner, data, (1u << 20) + 1), RESP_ERROR);
    resp_command_scanner_fini(&scanner);
}

/* ---- random commands ---- */

static void write_random_command(struct rng *rng, struct resp_writer *writer)
{
    uint32_t kind = (uint32_t)rng_below(rng, 10);
    if (kind == 0) {
        static const char *const lines[] = {"\r\n", "\n", "*0\r\n", "*-1\r\n", "PING\r\n", "SET a \"b c\"\n", "  get 'x' \r\n"};
        const char *line = lines[rng_below(rng, sizeof(lines) / sizeof(lines[0]))];
        resp_write_raw(writer, line, strlen(line));
        return;
    }
    uint32_t count = kind == 1 ? 1 + (uint32_t)rng_below(rng, 300) : 1 + (uint32_t)rng_below(rng, 5);
    resp_write_array(writer, count);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t bytes[1200];
        uint32_t length = (uint32_t)rng_below(rng, rng_below(rng, 20) == 0 ? sizeof(bytes) : 20);
        for (uint32_t at = 0; at < length; at++)
            bytes[at] = (uint8_t) "\r\n$*1\0ab"[rng_below(rng, 8)];
        resp_write_bulk(writer, bytes, length);
    }
}

/* A stream of commands, scanned whole, then in pieces as a connection does; both must find the same. */
Test(resp_scan, random_commands_in_random_pieces_give_the_same_as_whole)
{
    struct rng rng = {.state = 20240607};
    struct resp_command_scanner whole, pieces;
    resp_command_scanner_init(&whole, &wide);
    resp_command_scanner_init(&pieces, &wide);
    for (uint32_t round = 0; round < 2000; round++) {
        struct resp_writer writer;
        resp_writer_init(&writer, 2);
        for (uint32_t i = 0; i < 8; i++)
            write_random_command(&rng, &writer);
        uint32_t start = 0, arrived = 0;
        struct resp_command_state state = {0};
        while (start < writer.length) {
            arrived += arrived < writer.length ? 1 + (uint32_t)rng_below(&rng, writer.length - arrived) % 700 : 0;
            enum resp_result result;
            while ((result = resp_scan_command(&pieces, &state, writer.data + start, arrived - start)) != RESP_MORE) {
                struct resp_command_state fresh = {0};
                cr_assert_neq(result, RESP_ERROR);
                cr_assert_eq(resp_scan_command(&whole, &fresh, writer.data + start, writer.length - start), result);
                cr_assert_eq(whole.consumed, pieces.consumed);
                cr_assert_eq(whole.args_count, pieces.args_count);
                for (uint32_t i = 0; i < whole.args_count; i++)
                    cr_assert(whole.args[i].offset == pieces.args[i].offset && whole.args[i].length == pieces.args[i].length);
                start += pieces.consumed;
            }
        }
        cr_assert_eq(start, writer.length);
        resp_writer_fini(&writer);
    }
    resp_command_scanner_fini(&whole);
    resp_command_scanner_fini(&pieces);
}
