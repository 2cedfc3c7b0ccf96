/*
 * net/resp_write: every function in both protocols, and that what is written is one reply for the scanner.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "net/resp_scan.h"
#include "net/resp_write.h"

TestSuite(resp_write);

static void check(struct resp_writer *writer, const char *expected)
{
    cr_assert_eq(writer->length, strlen(expected), "%.*s is not %s", (int)writer->length, (const char *)writer->data, expected);
    cr_assert_arr_eq(writer->data, expected, writer->length, "%.*s is not %s", (int)writer->length, (const char *)writer->data, expected);
    resp_writer_reset(writer, writer->protocol);
}

static void write_all(struct resp_writer *writer)
{
    resp_write_null(writer);
    resp_write_null_array(writer);
    resp_write_array(writer, 0);
    resp_write_map(writer, 2);
    resp_write_set(writer, 3);
    resp_write_push(writer, 4);
    resp_write_bool(writer, true);
    resp_write_bool(writer, false);
    resp_write_verbatim(writer, "a\nb", 3);
    resp_write_double(writer, 1.5);
    resp_write_double(writer, (double)INFINITY);
    resp_write_double(writer, -(double)INFINITY);
    resp_write_double(writer, (double)NAN);
}

Test(resp_write, types_by_protocol_look_as_redis_writes_them)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    write_all(&writer);
    check(&writer, "$-1\r\n*-1\r\n*0\r\n*4\r\n*3\r\n*4\r\n:1\r\n:0\r\n$3\r\na\nb\r\n$3\r\n1.5\r\n$3\r\ninf\r\n$4\r\n-inf\r\n$3\r\nnan\r\n");
    resp_writer_reset(&writer, 3);
    write_all(&writer);
    check(&writer, "_\r\n_\r\n*0\r\n%2\r\n~3\r\n>4\r\n#t\r\n#f\r\n=7\r\ntxt:a\nb\r\n,1.5\r\n,inf\r\n,-inf\r\n,nan\r\n");
    resp_writer_fini(&writer);
}

Test(resp_write, integers_at_their_bounds_are_written_whole)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    resp_write_integer(&writer, 0);
    resp_write_integer(&writer, -1);
    resp_write_integer(&writer, INT64_MAX);
    resp_write_integer(&writer, INT64_MIN);
    resp_write_array(&writer, UINT32_MAX);
    resp_write_map(&writer, UINT32_MAX);
    check(&writer, ":0\r\n:-1\r\n:9223372036854775807\r\n:-9223372036854775808\r\n*4294967295\r\n*8589934590\r\n");
    resp_writer_fini(&writer);
}

Test(resp_write, texts_with_line_ends_stay_one_line)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    resp_write_simple(&writer, "O\r\nK");
    resp_write_error(&writer, "ERR %s %d", "a\r\nb\n", 7);
    resp_write_error(&writer, "%s", "");
    resp_write_simple(&writer, "");
    check(&writer, "+O  K\r\n-ERR a  b  7\r\n-\r\n+\r\n");
    resp_writer_fini(&writer);
}

Test(resp_write, bulks_of_any_bytes_keep_them)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 3);
    resp_write_bulk(&writer, "a\0\r\n", 4);
    resp_write_bulk(&writer, NULL, 0);
    resp_write_text(&writer, "text");
    resp_write_bulk_format(&writer, "%s:%u", "host", 6379u);
    resp_write_bulk_format(&writer, "%s", "");
    resp_write_raw(&writer, "+raw\r\n", 6);
    resp_write_raw(&writer, NULL, 0);
    static const char expected[] = "$4\r\na\0\r\n\r\n$0\r\n\r\n$4\r\ntext\r\n$9\r\nhost:6379\r\n$0\r\n\r\n+raw\r\n";
    cr_assert_eq(writer.length, sizeof(expected) - 1);
    cr_assert_arr_eq(writer.data, expected, sizeof(expected) - 1);
    resp_writer_fini(&writer);
}

Test(resp_write, buffer_grows_over_every_boundary_and_keeps_its_memory)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    cr_assert_eq(writer.capacity, 0);
    char *text = calloc(1, 5001);
    for (uint32_t length = 0; length < 5000; length += 7) {
        memset(text, 'x', length);
        text[length] = 0;
        resp_write_bulk_format(&writer, "%s", text);
        resp_write_bulk(&writer, text, length);
    }
    uint32_t at = 0, count = 0;
    struct resp_reply_state state = {0};
    while (at < writer.length) {
        uint32_t consumed;
        cr_assert_eq(resp_scan_reply(&state, writer.data + at, writer.length - at, &consumed), RESP_DONE);
        at += consumed;
        count++;
    }
    cr_assert_eq(count, 2 * ((5000 + 6) / 7));
    uint32_t capacity = writer.capacity;
    resp_writer_reset(&writer, 3);
    cr_assert_eq(writer.length, 0);
    cr_assert_eq(writer.capacity, capacity);
    free(text);
    resp_writer_fini(&writer);
    cr_assert_null(writer.data);
}

Test(resp_write, error_longer_than_its_bound_is_cut_but_whole_as_a_reply)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    char text[3000];
    memset(text, 'e', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    resp_write_error(&writer, "%s", text);
    cr_assert_eq(writer.length, 1 + 1023 + 2);
    uint32_t consumed;
    struct resp_reply_state state = {0};
    cr_assert_eq(resp_scan_reply(&state, writer.data, writer.length, &consumed), RESP_DONE);
    cr_assert_eq(consumed, writer.length);
    resp_writer_fini(&writer);
}

Test(resp_write, command_inline_becomes_an_array_of_bulks)
{
    const struct resp_limits limits = {.args_max = 1024, .bulk_max = 1024, .inline_max = 1024, .request_max = 4096};
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &limits);
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    struct resp_command_state state = {0};
    static const char line[] = "set \"a\\r\\n\" '' x\r\n";
    cr_assert_eq(resp_scan_command(&scanner, &state, (const uint8_t *)line, sizeof(line) - 1), RESP_DONE);
    resp_write_command(&writer, &scanner, (const uint8_t *)line);
    check(&writer, "*4\r\n$3\r\nset\r\n$3\r\na\r\n\r\n$0\r\n\r\n$1\r\nx\r\n");
    static const char command[] = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    cr_assert_eq(resp_scan_command(&scanner, &state, (const uint8_t *)command, sizeof(command) - 1), RESP_DONE);
    resp_write_command(&writer, &scanner, (const uint8_t *)command);
    check(&writer, command);
    resp_writer_fini(&writer);
    resp_command_scanner_fini(&scanner);
}

Test(resp_write, protocol_unknown_is_a_bug, .signal = SIGABRT)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 4);
}

Test(resp_write, more_than_a_gibibyte_is_a_bug, .signal = SIGABRT)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    resp_write_bulk(&writer, "", (size_t)1 << 30);
}
