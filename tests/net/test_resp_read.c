/*
 * net/resp_read: values of every type, walking and skipping, what is malformed or cut, and the bounds of announced elements.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "net/resp_read.h"
#include "net/resp_write.h"

TestSuite(resp_read);

static struct resp_cursor cursor_of(const char *text, uint32_t length)
{
    struct resp_cursor cursor;
    resp_cursor_init(&cursor, (const uint8_t *)text, length);
    return cursor;
}
#define CURSOR_OF(text) cursor_of((text), sizeof(text) - 1)

struct value_case {
    const char *input;
    uint8_t type;
    bool is_null;
    const char *bytes; /* NULL: none */
    int64_t integer;
    uint32_t elements;
};

static const struct value_case values[] = {
    {"+OK\r\n", '+', false, "OK", 0, 0},
    {"+\r\n", '+', false, "", 0, 0},
    {"-ERR no\r\n", '-', false, "ERR no", 0, 0},
    {"-\r\n", '-', false, "", 0, 0},
    {":42\r\n", ':', false, "42", 42, 0},
    {":+42\r\n", ':', false, "+42", 42, 0},
    {":-9223372036854775808\r\n", ':', false, "-9223372036854775808", INT64_MIN, 0},
    {":9223372036854775807\r\n", ':', false, "9223372036854775807", INT64_MAX, 0},
    {"$-1\r\n", '$', true, NULL, 0, 0},
    {"$0\r\n\r\n", '$', false, "", 0, 0},
    {"$6\r\na\r\nb\r\n\r\n", '$', false, "a\r\nb\r\n", 0, 0},
    {"*-1\r\n", '*', true, NULL, 0, 0},
    {"*0\r\n", '*', false, NULL, 0, 0},
    {"*2\r\n:1\r\n:2\r\n", '*', false, NULL, 2, 2},
    {"_\r\n", '_', true, NULL, 0, 0},
    {"#t\r\n", '#', false, NULL, 1, 0},
    {"#f\r\n", '#', false, NULL, 0, 0},
    {",1.5\r\n", ',', false, "1.5", 0, 0},
    {"(12345678901234567890123\r\n", '(', false, "12345678901234567890123", 0, 0},
    {"!5\r\nERR x\r\n", '!', false, "ERR x", 0, 0},
    {"=7\r\ntxt:abc\r\n", '=', false, "abc", 0, 0},
    {"=4\r\ntxt:\r\n", '=', false, "", 0, 0},
    {"%1\r\n+k\r\n+v\r\n", '%', false, NULL, 1, 2},
    {"~1\r\n+k\r\n", '~', false, NULL, 1, 1},
    {">2\r\n+k\r\n+v\r\n", '>', false, NULL, 2, 2},
    {"|1\r\n+a\r\n*2\r\n:1\r\n:2\r\n:7\r\n", ':', false, "7", 7, 0},
    {"|1\r\n|1\r\n+x\r\n+y\r\n+a\r\n+b\r\n|0\r\n+OK\r\n", '+', false, "OK", 0, 0},
};

Test(resp_read, value_of_each_type_is_read_and_skipped)
{
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        const struct value_case *expected = &values[i];
        uint32_t length = (uint32_t)strlen(expected->input);
        struct resp_cursor cursor = cursor_of(expected->input, length);
        struct resp_value value;
        cr_assert(resp_read_value(&cursor, &value), "%s", expected->input);
        cr_assert_eq(value.type, expected->type, "%s", expected->input);
        cr_assert_eq(value.is_null, expected->is_null, "%s", expected->input);
        cr_assert_eq(value.integer, expected->integer, "%s", expected->input);
        cr_assert_eq(resp_value_elements(&value), expected->elements, "%s", expected->input);
        cr_assert_eq(value.bytes == NULL, expected->bytes == NULL, "%s", expected->input);
        if (expected->bytes != NULL) {
            cr_assert_eq(value.length, strlen(expected->bytes), "%s", expected->input);
            cr_assert_arr_eq(value.bytes, expected->bytes, value.length, "%s", expected->input);
        }
        for (uint32_t element = 0; element < expected->elements; element++)
            cr_assert(resp_skip_value(&cursor), "%s", expected->input);
        cr_assert_eq(cursor.position, length, "%s", expected->input);
        cr_assert_not(resp_read_value(&cursor, &value), "nothing is left");
        cursor = cursor_of(expected->input, length);
        cr_assert(resp_skip_value(&cursor), "%s", expected->input);
        cr_assert_eq(cursor.position, length, "%s", expected->input);
        cr_assert_not(resp_skip_value(&cursor), "nothing is left");
    }
}

Test(resp_read, value_cut_anywhere_is_refused)
{
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        uint32_t length = (uint32_t)strlen(values[i].input);
        for (uint32_t cut = 0; cut < length; cut++) {
            struct resp_cursor cursor = cursor_of(values[i].input, cut);
            cr_assert_not(resp_skip_value(&cursor), "%u bytes of %s", cut, values[i].input);
            cr_assert_eq(cursor.position, cut, "a failed cursor stays failed");
        }
    }
}

static const char *const bad_values[] = {
    "x\r\n", "\r\n", "\n", ";1\r\na\r\n", "+a\n", "+a\rb\r\n", "+\r\r\n", ":\r\n", ":a\r\n", ":1a\r\n", ":-\r\n", ":--1\r\n",
    ":9223372036854775808\r\n", ":-9223372036854775809\r\n",
    ":00000000000000000001\r\n", "$\r\n", "$-2\r\n", "$-01\r\n", "$+1\r\na\r\n", "$?\r\n", "$1\r\nab\r\n", "$1\r\na\n\n", "$3\r\nab\r\n",
    "$4294967296\r\n\r\n",
    "*\r\n", "*-2\r\n", "*?\r\n", "*1\r\n", "*2\r\n:1\r\n", "*4294967296\r\n:1\r\n", "%1\r\n+a\r\n", "%9223372036854775807\r\n+a\r\n",
    "~-1\r\n", ">-1\r\n", "_a\r\n", "#\r\n", "#x\r\n", "#tt\r\n",
    "!-1\r\n", "=3\r\ntxt\r\n", "=-1\r\n", "|-1\r\n+a\r\n", "|1\r\n+a\r\n+b\r\n", "|1\r\n+a\r\nx\r\n+c\r\n", "%1\r\n+a\r\n%1\r\n+b\r\n+c\n",
};

Test(resp_read, value_that_is_malformed_is_refused)
{
    for (size_t i = 0; i < sizeof(bad_values) / sizeof(bad_values[0]); i++) {
        uint32_t length = (uint32_t)strlen(bad_values[i]);
        struct resp_cursor cursor = cursor_of(bad_values[i], length);
        cr_assert_not(resp_skip_value(&cursor), "%s", bad_values[i]);
        cr_assert_eq(cursor.position, length, "a failed cursor stays failed");
        struct resp_value value;
        cr_assert_not(resp_read_value(&cursor, &value));
        cr_assert_eq(value.type, 0);
    }
}

Test(resp_read, nested_reply_is_walked_in_order)
{
    struct resp_cursor cursor = CURSOR_OF("*2\r\n%1\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n*1\r\n$4\r\nnode\r\n+end\r\n");
    struct resp_value value;
    cr_assert(resp_read_value(&cursor, &value) && value.type == '*' && resp_value_elements(&value) == 2);
    cr_assert(resp_read_value(&cursor, &value) && value.type == '%' && resp_value_elements(&value) == 2);
    cr_assert(resp_read_value(&cursor, &value) && resp_value_equals(&value, "SLOTS"));
    cr_assert(resp_skip_value(&cursor));
    cr_assert(resp_read_value(&cursor, &value) && value.type == '*');
    cr_assert(resp_read_value(&cursor, &value) && resp_value_equals(&value, "node"));
    cr_assert(resp_read_value(&cursor, &value) && resp_value_equals(&value, "end"));
    cr_assert_eq(cursor.position, cursor.length);
}

Test(resp_read, skip_of_deep_nesting_takes_no_stack)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 3);
    for (uint32_t i = 0; i < 1000000; i++)
        resp_write_array(&writer, 1);
    resp_write_null(&writer);
    struct resp_cursor cursor;
    resp_cursor_init(&cursor, writer.data, writer.length);
    cr_assert(resp_skip_value(&cursor));
    resp_cursor_init(&cursor, writer.data, writer.length - 3);
    cr_assert_not(resp_skip_value(&cursor));
    resp_writer_fini(&writer);
}

/* Every header could be right by itself; together they announce more than there can be. */
Test(resp_read, skip_of_announced_elements_beyond_the_data_ends_early)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 3);
    for (uint32_t i = 0; i < 100000; i++)
        resp_write_array(&writer, 50000);
    struct resp_cursor cursor;
    resp_cursor_init(&cursor, writer.data, writer.length);
    cr_assert_not(resp_skip_value(&cursor));
    resp_writer_fini(&writer);
}

Test(resp_read, equals_compares_texts_without_case)
{
    struct resp_value value;
    struct resp_cursor cursor = CURSOR_OF("$4\r\nNode\r\n+Node\r\n=8\r\ntxt:Node\r\n$-1\r\n:1\r\n$0\r\n\r\n$5\r\nno\0de\r\n");
    for (int i = 0; i < 3; i++) {
        cr_assert(resp_read_value(&cursor, &value));
        cr_assert(resp_value_equals(&value, "nODE"));
        cr_assert_not(resp_value_equals(&value, "nod"));
        cr_assert_not(resp_value_equals(&value, "nodes"));
        cr_assert_not(resp_value_equals(&value, ""));
    }
    cr_assert(resp_read_value(&cursor, &value));
    cr_assert_not(resp_value_equals(&value, ""), "null equals nothing");
    cr_assert(resp_read_value(&cursor, &value));
    cr_assert_not(resp_value_equals(&value, "1"), "an integer is no text");
    cr_assert(resp_read_value(&cursor, &value));
    cr_assert(resp_value_equals(&value, ""));
    cr_assert(resp_read_value(&cursor, &value));
    cr_assert_not(resp_value_equals(&value, "no"));
}

Test(resp_read, integer_is_taken_from_integers_and_texts)
{
    struct resp_value value;
    int64_t integer = 7;
    struct resp_cursor cursor = CURSOR_OF(":-5\r\n$4\r\n6379\r\n+12\r\n=6\r\ntxt:34\r\n$2\r\n1x\r\n$0\r\n\r\n$-1\r\n,1\r\n(1\r\n-1\r\n!1\r\n1\r\n#t\r\n*0\r\n");
    static const int64_t expected[] = {-5, 6379, 12, 34};
    for (size_t i = 0; i < 4; i++) {
        cr_assert(resp_read_value(&cursor, &value));
        cr_assert(resp_value_integer(&value, &integer));
        cr_assert_eq(integer, expected[i]);
    }
    while (cursor.position < cursor.length) {
        cr_assert(resp_read_value(&cursor, &value));
        cr_assert_not(resp_value_integer(&value, &integer), "type %c", value.type);
        cr_assert_eq(integer, 34, "untouched");
    }
}
