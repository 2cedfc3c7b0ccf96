/*
 * shard/merge: replies of parts, in any order of arrival and of any shape.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/rng.h"
#include "core/status.h"
#include "shard/merge.h"

TestSuite(merge, .timeout = 60);

enum { BYTES_MAX = 1 << 20, PARTS_MAX = 8, KEYS_MAX = 32 };

#define UNEXPECTED "-ERR unexpected reply from a backend\r\n"

/* A plan given by the part of each key: "0102". */
struct fixture {
    struct split_part parts[PARTS_MAX];
    uint32_t part_of_key[KEYS_MAX];
    struct split_plan plan;
    struct merge merge;
};

static void begin(struct fixture *f, enum command_merge kind, const char *parts, uint32_t bytes_max)
{
    memset(f, 0, sizeof *f);
    f->plan = (struct split_plan){.parts = f->parts, .part_of_key = f->part_of_key, .keys_count = (uint32_t)strlen(parts)};
    for (uint32_t i = 0; i < f->plan.keys_count; i++) {
        const uint32_t part = (uint32_t)(parts[i] - '0');
        f->part_of_key[i] = part;
        f->parts[part].keys_count++;
        if (part >= f->plan.parts_count)
            f->plan.parts_count = part + 1;
    }
    merge_begin(&f->merge, kind, &f->plan, bytes_max);
}

/* A copy of the exact length, so that reading beyond it is noticed. */
static void reply(struct fixture *f, uint32_t part, const char *text)
{
    const size_t length = strlen(text);
    uint8_t *bytes = malloc(length);
    memcpy(bytes, text, length);
    merge_part_reply(&f->merge, part, bytes, (uint32_t)length);
    free(bytes);
}

static void expect_reply(struct fixture *f, const char *text)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 3);
    cr_assert(merge_is_complete(&f->merge));
    merge_write(&f->merge, &writer);
    cr_expect(writer.length == strlen(text) && memcmp(writer.data, text, writer.length) == 0, "got %.*s", (int)writer.length,
        (const char *)writer.data);
    resp_writer_fini(&writer);
    merge_fini(&f->merge);
}

Test(merge, by_key_puts_elements_in_the_order_of_the_keys)
{
    struct fixture f;
    begin(&f, MERGE_BY_KEY, "01001", BYTES_MAX);
    reply(&f, 1, "*2\r\n$2\r\nb1\r\n$2\r\nb2\r\n");
    cr_expect_not(merge_is_complete(&f.merge));
    reply(&f, 0, "*3\r\n$2\r\na1\r\n$0\r\n\r\n$2\r\na3\r\n");
    expect_reply(&f, "*5\r\n$2\r\na1\r\n$2\r\nb1\r\n$0\r\n\r\n$2\r\na3\r\n$2\r\nb2\r\n");
}

Test(merge, by_key_passes_nulls_of_both_protocols)
{
    struct fixture f;
    begin(&f, MERGE_BY_KEY, "0101", BYTES_MAX);
    reply(&f, 0, "*2\r\n$-1\r\n$1\r\nx\r\n");
    reply(&f, 1, "*2\r\n_\r\n_\r\n");
    expect_reply(&f, "*4\r\n$-1\r\n_\r\n$1\r\nx\r\n_\r\n");
}

Test(merge, by_key_passes_nested_elements_whole)
{
    struct fixture f;
    begin(&f, MERGE_BY_KEY, "010", BYTES_MAX);
    reply(&f, 1, "*1\r\n*2\r\n*0\r\n%1\r\n+k\r\n:1\r\n");
    reply(&f, 0, "*2\r\n~1\r\n$1\r\n*\r\n,1.5\r\n");
    expect_reply(&f, "*3\r\n~1\r\n$1\r\n*\r\n*2\r\n*0\r\n%1\r\n+k\r\n:1\r\n,1.5\r\n");
}

Test(merge, by_key_passes_line_ends_and_headers_inside_of_values)
{
    struct fixture f;
    begin(&f, MERGE_BY_KEY, "10", BYTES_MAX);
    reply(&f, 0, "*1\r\n$8\r\n\r\n$1\r\na\r\r\n");
    reply(&f, 1, "*1\r\n$4\r\n*2\r\n\r\n");
    expect_reply(&f, "*2\r\n$4\r\n*2\r\n\r\n$8\r\n\r\n$1\r\na\r\r\n");
}

Test(merge, by_key_of_another_shape_is_an_error)
{
    static const char *const bad[] = {"*1\r\n$1\r\na\r\n", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", "*0\r\n", "*-1\r\n", "_\r\n",
        "$-1\r\n", ":2\r\n", "+OK\r\n", "~2\r\n:1\r\n:2\r\n", "%1\r\n:1\r\n:2\r\n", "*2\r\n$1\r\na\r\n",
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n:1\r\n", "*2\r\n$1\r\na\r\n$9\r\nb\r\n", "*2\r\n>1\r\n+x\r\n:1\r\n", "*x\r\n",
        "*99999999999999999999\r\n", "|1\r\n+a\r\n+b\r\n*2\r\n:1\r\n:2\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fixture f;
        begin(&f, MERGE_BY_KEY, "010", BYTES_MAX);
        reply(&f, 0, bad[i]);
        reply(&f, 1, "*1\r\n$1\r\nb\r\n");
        expect_reply(&f, UNEXPECTED);
    }
}

Test(merge, error_of_a_part_is_the_whole_reply_whatever_else_comes)
{
    static const enum command_merge kinds[] = {MERGE_BY_KEY, MERGE_SUM, MERGE_ALL_OK};
    static const char *const good[] = {"*1\r\n$1\r\nx\r\n", ":1\r\n", "+OK\r\n"};
    for (size_t i = 0; i < 3; i++) {
        struct fixture f;
        begin(&f, kinds[i], "012", BYTES_MAX);
        reply(&f, 2, good[i]);
        reply(&f, 1, "-WRONGTYPE no\r\n");
        cr_expect_not(merge_is_complete(&f.merge), "the other parts are still waited for");
        reply(&f, 0, "-ERR later\r\n");
        expect_reply(&f, "-WRONGTYPE no\r\n");
    }
}

Test(merge, blob_error_becomes_a_plain_error)
{
    struct fixture f;
    begin(&f, MERGE_SUM, "0", BYTES_MAX);
    reply(&f, 0, "!12\r\nERR a\r\nb\tcde\r\n");
    expect_reply(&f, "-ERR a  b cde\r\n");
    begin(&f, MERGE_SUM, "0", BYTES_MAX);
    reply(&f, 0, "!99\r\nERR\r\n");
    expect_reply(&f, UNEXPECTED);
}

Test(merge, error_with_percent_signs_is_text)
{
    struct fixture f;
    begin(&f, MERGE_SUM, "0", BYTES_MAX);
    reply(&f, 0, "-ERR %s%n%d\r\n");
    expect_reply(&f, "-ERR %s%n%d\r\n");
}

Test(merge, long_error_is_cut)
{
    struct fixture f;
    char text[2000], expected[MERGE_ERROR_MAX + 4];
    memset(text, 'x', sizeof text);
    text[0] = '-';
    strcpy(text + 1500, "\r\n");
    memset(expected, 'x', sizeof expected);
    expected[0] = '-';
    strcpy(expected + 1 + MERGE_ERROR_MAX, "\r\n");
    begin(&f, MERGE_ALL_OK, "0", BYTES_MAX);
    reply(&f, 0, text);
    expect_reply(&f, expected);
}

Test(merge, part_without_a_reply_is_an_error)
{
    struct fixture f;
    begin(&f, MERGE_BY_KEY, "01", BYTES_MAX);
    merge_part_failed(&f.merge, 1, status_resp_text(STATUS_NO_NODE));
    reply(&f, 0, "*1\r\n$1\r\na\r\n");
    expect_reply(&f, "-CLUSTERDOWN no healthy node serves the hash slot\r\n");
}

Test(merge, sum_adds_integers)
{
    struct fixture f;
    begin(&f, MERGE_SUM, "00112", BYTES_MAX);
    reply(&f, 2, ":1\r\n");
    reply(&f, 0, ":2\r\n");
    reply(&f, 1, ":0\r\n");
    expect_reply(&f, ":3\r\n");
}

Test(merge, sum_of_another_shape_is_an_error)
{
    static const char *const bad[] = {":3\r\n", ":-1\r\n", "+1\r\n", "$1\r\n1\r\n", ":\r\n", ":x\r\n", ":1x\r\n", "_\r\n", "#t\r\n",
        "*1\r\n:1\r\n", ":99999999999999999999\r\n", ":1\r\n:1\r\n", ",1\r\n", "(1\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fixture f;
        begin(&f, MERGE_SUM, "001", BYTES_MAX);
        reply(&f, 1, ":1\r\n");
        reply(&f, 0, bad[i]);
        expect_reply(&f, UNEXPECTED);
    }
}

Test(merge, all_ok_wants_ok_from_each)
{
    struct fixture f;
    begin(&f, MERGE_ALL_OK, "01", BYTES_MAX);
    reply(&f, 0, "+OK\r\n");
    reply(&f, 1, "+OK\r\n");
    expect_reply(&f, "+OK\r\n");
    static const char *const bad[] = {"+QUEUED\r\n", ":1\r\n", "$2\r\nOK\r\n", "_\r\n", "+OK \r\n", "+ok\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        begin(&f, MERGE_ALL_OK, "01", BYTES_MAX);
        reply(&f, 0, "+OK\r\n");
        reply(&f, 1, bad[i]);
        expect_reply(&f, UNEXPECTED);
    }
}

Test(merge, more_bytes_than_allowed_are_an_error_and_not_kept)
{
    struct fixture f;
    begin(&f, MERGE_BY_KEY, "01", 14);
    reply(&f, 0, "*1\r\n$1\r\na\r\n");
    reply(&f, 1, "*1\r\n$1\r\nb\r\n");
    expect_reply(&f, "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    begin(&f, MERGE_BY_KEY, "01", 13);
    reply(&f, 0, "*1\r\n$1\r\na\r\n");
    reply(&f, 1, "*1\r\n$1\r\nb\r\n");
    cr_expect_leq(f.merge.bytes_count, 13);
    char expected[128];
    snprintf(expected, sizeof expected, "-%s\r\n", status_resp_text(STATUS_TOO_LARGE));
    expect_reply(&f, expected);
}

Test(merge, merge_that_is_begun_again_has_forgotten_everything)
{
    struct fixture f;
    begin(&f, MERGE_BY_KEY, "01", BYTES_MAX);
    reply(&f, 0, "*1\r\n$3\r\nabc\r\n");
    reply(&f, 1, "-ERR x\r\n");
    merge_fini(&f.merge);
    merge_begin(&f.merge, MERGE_BY_KEY, &f.plan, BYTES_MAX);
    cr_expect_not(merge_is_complete(&f.merge));
    merge_part_reply(&f.merge, 1, (const uint8_t *)"*1\r\n_\r\n", 7);
    merge_part_reply(&f.merge, 0, (const uint8_t *)"*1\r\n$1\r\na\r\n", 11);
    expect_reply(&f, "*2\r\n$1\r\na\r\n_\r\n");
}

Test(merge, merge_that_ends_early_keeps_no_memory)
{
    struct fixture f;
    enum { BYTES = 200000 };
    char *big = malloc(BYTES + 32);
    const int head = sprintf(big, "*1\r\n$%d\r\n", BYTES);
    memset(big + head, 'v', BYTES);
    memcpy(big + head + BYTES, "\r\n", 3);
    begin(&f, MERGE_BY_KEY, "01", BYTES_MAX);
    reply(&f, 0, big);
    cr_expect_geq(f.merge.bytes_capacity, BYTES);
    merge_fini(&f.merge);
    cr_expect_eq(f.merge.bytes_capacity, 0);
    cr_expect_eq(f.merge.parts_count, 0);
    free(big);
}

/* 10,000 keys over the slots; the parts arrive in a random order. */
Test(merge, ten_thousand_keys_over_all_slots)
{
    enum { KEYS = 10000, SLOTS = 16384 };
    struct rng rng = {.state = 42};
    uint32_t *part_of_slot = malloc(SLOTS * sizeof *part_of_slot);
    struct split_part *parts = calloc(KEYS, sizeof *parts);
    uint32_t *part_of_key = malloc(KEYS * sizeof *part_of_key);
    memset(part_of_slot, 0xff, SLOTS * sizeof *part_of_slot);
    uint32_t parts_count = 0;
    for (uint32_t key = 0; key < KEYS; key++) {
        const uint32_t slot = rng_below(&rng, SLOTS);
        if (part_of_slot[slot] == UINT32_MAX)
            part_of_slot[slot] = parts_count++;
        part_of_key[key] = part_of_slot[slot];
        parts[part_of_key[key]].keys_count++;
    }
    const struct split_plan plan = {.parts = parts, .parts_count = parts_count, .part_of_key = part_of_key, .keys_count = KEYS};
    struct merge merge = {0};
    struct resp_writer writer, expected;
    resp_writer_init(&writer, 2);
    resp_writer_init(&expected, 2);
    merge_begin(&merge, MERGE_BY_KEY, &plan, 64 << 20);
    uint32_t *order = malloc(parts_count * sizeof *order);
    for (uint32_t i = 0; i < parts_count; i++) {
        const uint32_t j = rng_below(&rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < parts_count; i++) {
        resp_writer_reset(&writer, 2);
        resp_write_array(&writer, parts[order[i]].keys_count);
        for (uint32_t key = 0; key < KEYS; key++)
            if (part_of_key[key] == order[i])
                key % 10 == 3 ? resp_write_null(&writer) : resp_write_bulk_format(&writer, "value of %u", key);
        merge_part_reply(&merge, order[i], writer.data, writer.length);
    }
    resp_write_array(&expected, KEYS);
    for (uint32_t key = 0; key < KEYS; key++)
        key % 10 == 3 ? resp_write_null(&expected) : resp_write_bulk_format(&expected, "value of %u", key);
    resp_writer_reset(&writer, 2);
    cr_assert(merge_is_complete(&merge));
    merge_write(&merge, &writer);
    cr_assert_eq(writer.length, expected.length);
    cr_assert_arr_eq(writer.data, expected.data, expected.length);
    merge_fini(&merge);
    resp_writer_fini(&writer);
    resp_writer_fini(&expected);
    free(part_of_slot);
    free(parts);
    free(part_of_key);
    free(order);
}

/* The reply of a part that was divided into single keys is the merge of theirs: the two fit together. */
Test(merge, single_key_replies_merge_to_the_reply_of_the_part)
{
    struct fixture outer, inner;
    begin(&inner, MERGE_BY_KEY, "01", BYTES_MAX);
    reply(&inner, 1, "*1\r\n$1\r\nb\r\n");
    reply(&inner, 0, "*1\r\n_\r\n");
    struct resp_writer writer;
    resp_writer_init(&writer, 3);
    merge_write(&inner.merge, &writer);
    begin(&outer, MERGE_BY_KEY, "101", BYTES_MAX);
    merge_part_reply(&outer.merge, 1, writer.data, writer.length);
    reply(&outer, 0, "*1\r\n$1\r\nx\r\n");
    expect_reply(&outer, "*3\r\n_\r\n$1\r\nx\r\n$1\r\nb\r\n");
    merge_fini(&inner.merge);
    resp_writer_fini(&writer);
}
