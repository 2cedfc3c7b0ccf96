/* Completing the command table from a backend's COMMAND reply: real replies, made-up commands, and everything that can be wrong with a
 * reply. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "tests/net/command_reply.h"
#include "tests/net/session_fixture.h"

TestSuite(command_learn);

enum { RECORDED_COUNT = sizeof(recorded_commands) / sizeof(recorded_commands[0]) };

/* A fingerprint of all rows, which a malformed reply must leave alone. */
static uint64_t table_sum(const struct command_table *table)
{
    uint64_t sum = command_table_count(table);
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        const uint8_t *bytes = (const uint8_t *)command_table_at(table, i);
        for (size_t k = 0; k < sizeof(struct command); k++)
            sum = (sum ^ bytes[k]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

/* The whole recorded reply; to be freed. */
static char *recorded_reply(void)
{
    size_t length = 16;
    for (uint32_t i = 0; i < RECORDED_COUNT; i++)
        length += strlen(recorded_commands[i]);
    char *reply = alloc_zeroed(length);
    int at = snprintf(reply, length, "*%d\r\n", RECORDED_COUNT);
    for (uint32_t i = 0; i < RECORDED_COUNT; i++)
        at += snprintf(reply + at, length - (size_t)at, "%s", recorded_commands[i]);
    return reply;
}

static enum status learn(struct command_table *table, const char *reply, uint32_t *added)
{
    /* A copy of exactly that length, so that a sanitizer sees a read behind it. */
    uint32_t length = (uint32_t)strlen(reply);
    uint8_t *bytes = alloc_zeroed(length + 1);
    bytes = alloc_resize(bytes, length > 0 ? length : 1);
    memcpy(bytes, reply, length);
    enum status status = command_table_learn(table, bytes, length, added);
    alloc_free(bytes);
    return status;
}

static const struct command *find(const struct command_table *table, const char *name, const char *sub)
{
    bool unknown_sub;
    return command_table_find(table, (const uint8_t *)name, (uint32_t)strlen(name), (const uint8_t *)sub, sub == NULL ? 0 : (uint32_t)strlen(sub), &unknown_sub);
}

#define RANGE_SPEC "*6\r\n$5\r\nflags\r\n*2\r\n+RW\r\n+update\r\n$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n" \
                   "$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n"
#define RANGE_SPEC_3 "%3\r\n$5\r\nflags\r\n~2\r\n+RW\r\n+update\r\n$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n%1\r\n$5\r\nindex\r\n:1\r\n" \
                     "$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n%3\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n"
#define UNKNOWN_SPEC "*6\r\n$5\r\nflags\r\n*1\r\n+RO\r\n$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$7\r\nunknown\r\n$4\r\nspec\r\n*0\r\n" \
                     "$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$7\r\nunknown\r\n$4\r\nspec\r\n*0\r\n"
/* name with its length, arity, flags with their count, specs with their count */
#define COMMAND_10(name, arity, flags, specs) "*10\r\n" name "\r\n:" arity "\r\n*" flags ":1\r\n:1\r\n:1\r\n*1\r\n+@hash\r\n*0\r\n*" specs "*0\r\n"

Test(command_learn, reply_of_the_same_server_changes_nothing)
{
    struct command_table *table = command_table_create();
    char *reply = recorded_reply();
    uint64_t before = table_sum(table);
    uint32_t added = 9;
    cr_expect_eq(learn(table, reply, &added), STATUS_OK);
    cr_expect_eq(added, 0);
    cr_expect_eq(table_sum(table), before);
    alloc_free(reply);
    command_table_destroy(&table);
}

Test(command_learn, reply_of_the_gateway_itself_changes_nothing_in_both_protocols)
{
    struct fixture *fixture = fixture_create();
    for (uint8_t protocol = 2; protocol <= 3; protocol++) {
        fixture->session.protocol = protocol;
        (void)run(fixture, "command");
        uint64_t before = table_sum(fixture->table);
        uint32_t added = 9;
        cr_expect_eq(command_table_learn(fixture->table, fixture->writer.data, fixture->writer.length, &added), STATUS_OK);
        cr_expect_eq(added, 0);
        cr_expect_eq(table_sum(fixture->table), before);
    }
    fixture_destroy(&fixture);
}

Test(command_learn, unknown_commands_are_added_by_their_keys_and_flags)
{
    struct command_table *table = command_table_create();
    uint32_t added = 0;
    const char *reply = "*6\r\n" COMMAND_10("$7\r\nHEXPIRE", "-6", "2\r\n+write\r\n+fast\r\n", "1\r\n" RANGE_SPEC) COMMAND_10("$7\r\nwaitaof", "4", "0\r\n", "0\r\n")
        COMMAND_10("$6\r\nnewsub", "2", "1\r\n+pubsub\r\n", "1\r\n" RANGE_SPEC) COMMAND_10("$8\r\nnewadmin", "2", "1\r\n+admin\r\n", "1\r\n" RANGE_SPEC)
            COMMAND_10("$8\r\nnewblock", "2", "1\r\n+blocking\r\n", "1\r\n" RANGE_SPEC) COMMAND_10("$7\r\nnewsort", "-2", "1\r\n+readonly\r\n", "2\r\n" RANGE_SPEC UNKNOWN_SPEC);
    /* waitaof has no key: its range is 0. */
    char *text = alloc_copy_text(reply, strlen(reply));
    char *at = strstr(text, "waitaof\r\n:4\r\n*0\r\n:1\r\n:1\r\n:1\r\n");
    cr_assert_not_null(at);
    memcpy(at + 17, ":0\r\n:0\r\n:0\r\n", 12);
    cr_assert_eq(learn(table, text, &added), STATUS_OK);
    cr_assert_eq(added, 6);
    const struct command *row = find(table, "hexpire", NULL);
    cr_assert(row != NULL && row->is_learned && row->handling == HANDLE_FORWARD && row->arity == -6 && row->key_first_simple == 1);
    cr_expect_eq(row->flags, (uint32_t)(CMD_WRITE | CMD_FAST));
    cr_expect_eq(row->categories, (uint32_t)CAT_HASH);
    cr_expect_eq(row->key_specs[0].flags, KEY_RW | KEY_UPDATE);
    static const struct {
        const char *name;
        enum command_handling handling;
    } others[] = {{"waitaof", HANDLE_UNSUPPORTED}, {"newsub", HANDLE_UNSUPPORTED}, {"newadmin", HANDLE_REFUSED}, {"newblock", HANDLE_UNSUPPORTED}, {"newsort", HANDLE_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        row = find(table, others[i].name, NULL);
        cr_assert_not_null(row, "%s", others[i].name);
        cr_expect_eq(row->handling, others[i].handling, "%s", others[i].name);
    }
    cr_expect((find(table, "newsort", NULL)->flags & CMD_IDEMPOTENT) != 0);
    /* A second time all of them are known. */
    uint64_t before = table_sum(table);
    cr_expect_eq(learn(table, text, &added), STATUS_OK);
    cr_expect_eq(added, 0);
    cr_expect_eq(table_sum(table), before);
    alloc_free(text);
    command_table_destroy(&table);
}

Test(command_learn, resp3_commands_are_added)
{
    struct command_table *table = command_table_create();
    uint32_t added = 0;
    cr_assert_eq(learn(table, "*1\r\n*10\r\n$3\r\nnew\r\n:-2\r\n~1\r\n+write\r\n:1\r\n:1\r\n:1\r\n~2\r\n+@write\r\n+@slow\r\n~1\r\n$4\r\ntips\r\n~1\r\n" RANGE_SPEC_3 "~0\r\n", &added), STATUS_OK);
    cr_assert_eq(added, 1);
    cr_expect(find(table, "new", NULL)->handling == HANDLE_FORWARD && find(table, "new", NULL)->key_first_simple == 1);
    command_table_destroy(&table);
}

Test(command_learn, subcommands_of_known_and_new_containers_are_added)
{
    struct command_table *table = command_table_create();
    uint32_t added = 0;
    const char *sub_1 = "*10\r\n$10\r\nobject|new\r\n:3\r\n*1\r\n+readonly\r\n:2\r\n:2\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n";
    const char *sub_2 = "*10\r\n$10\r\nmodule|new\r\n:3\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*0\r\n";
    const char *sub_3 = "*10\r\n$7\r\nfoo|new\r\n:-3\r\n*1\r\n+write\r\n:2\r\n:-1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n";
    char reply[2048];
    (void)snprintf(reply, sizeof(reply), "*4\r\n*10\r\n$6\r\nobject\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*1\r\n%s*10\r\n$6\r\nconfig\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*1\r\n%s"
                                         "*10\r\n$3\r\nfoo\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*1\r\n%s*10\r\n$7\r\nba r|az\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*1\r\n%s",
        sub_1, sub_2, sub_3, sub_3);
    cr_assert_eq(learn(table, reply, &added), STATUS_OK);
    cr_expect_eq(added, 4);
    const struct command *row = find(table, "object", "NEW");
    cr_assert(row != NULL && row->handling == HANDLE_FORWARD && row->key_first_simple == 2 && command_parent(row)->index == COMMAND_object);
    row = find(table, "config", "new");
    cr_assert(row != NULL && row->handling == HANDLE_UNSUPPORTED);
    row = find(table, "foo", "new");
    cr_assert(row != NULL && row->handling == HANDLE_FORWARD && row->arity == -3 && command_parent(row)->is_container);
    cr_expect_str_eq(command_parent(row)->name, "foo");
    cr_expect_null(find(table, "foo", "other"));
    command_table_destroy(&table);
}

Test(command_learn, legacy_replies_give_one_range)
{
    struct command_table *table = command_table_create();
    uint32_t added = 0;
    /* As servers from 2.8.13 (six elements) and 6 (seven) answer. */
    cr_assert_eq(learn(table, "*6\r\n*6\r\n$4\r\nnew1\r\n:-2\r\n*1\r\n+readonly\r\n:1\r\n:-1\r\n:2\r\n*7\r\n$4\r\nnew2\r\n:3\r\n*1\r\n+write\r\n:2\r\n:3\r\n:1\r\n*1\r\n+@slow\r\n"
                              "*6\r\n$4\r\nnew3\r\n:-2\r\n*1\r\n+movablekeys\r\n:1\r\n:1\r\n:1\r\n*6\r\n$4\r\nnew4\r\n:-2\r\n*0\r\n:1\r\n:1\r\n:0\r\n*6\r\n$4\r\nnew5\r\n:-2\r\n*0\r\n:3\r\n:1\r\n:1\r\n"
                              "*6\r\n$5\r\nbitop\r\n:-5\r\n*1\r\n+write\r\n:2\r\n:-1\r\n:1\r\n",
                     &added),
        STATUS_OK);
    cr_expect_eq(added, 5);
    const struct command *row = find(table, "new1", NULL);
    cr_assert(row->handling == HANDLE_FORWARD && row->key_specs_count == 1 && row->key_first_simple == 0);
    cr_expect(row->key_specs[0].index == 1 && row->key_specs[0].last == -1 && row->key_specs[0].step == 2 && row->key_specs[0].flags == KEY_RO);
    row = find(table, "new2", NULL);
    cr_assert(row->handling == HANDLE_FORWARD && row->key_specs[0].index == 2 && row->key_specs[0].last == 1 && row->key_specs[0].flags == KEY_RW);
    cr_expect_eq(find(table, "new3", NULL)->handling, HANDLE_UNSUPPORTED);
    cr_expect_eq(find(table, "new3", NULL)->key_specs_count, 0);
    cr_expect_eq(find(table, "new4", NULL)->handling, HANDLE_UNSUPPORTED);
    cr_expect_eq(find(table, "new5", NULL)->handling, HANDLE_UNSUPPORTED);
    row = find(table, "bitop", NULL);
    cr_expect(row->arity == -5 && row->key_specs_count == 2, "the arity is corrected, the better key specs stay");
    command_table_destroy(&table);
}

Test(command_learn, known_rows_are_corrected_where_only_forwarded)
{
    struct command_table *table = command_table_create();
    uint32_t added = 9;
    char *spec_at_2 = alloc_copy_text(RANGE_SPEC, strlen(RANGE_SPEC));
    char *index = strstr(spec_at_2, "index\r\n:1");
    cr_assert_not_null(index);
    index[8] = '2';
    char reply[4096];
    (void)snprintf(reply, sizeof(reply), "*5\r\n*10\r\n$3\r\nGET\r\n:-3\r\n*0\r\n:2\r\n:2\r\n:1\r\n*0\r\n*0\r\n*1\r\n%s*0\r\n*10\r\n$4\r\nmget\r\n:7\r\n*0\r\n:2\r\n:2\r\n:1\r\n*0\r\n*0\r\n*1\r\n%s*0\r\n"
                                         "*10\r\n$4\r\necho\r\n:1\r\n*0\r\n:2\r\n:2\r\n:1\r\n*0\r\n*0\r\n*1\r\n%s*0\r\n*10\r\n$4\r\nsort\r\n:-2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*2\r\n" RANGE_SPEC UNKNOWN_SPEC "*0\r\n"
                                         "*10\r\n$3\r\nset\r\n:0\r\n*0\r\n:2\r\n:2\r\n:1\r\n*0\r\n*0\r\n*1\r\n%s*0\r\n",
        spec_at_2, spec_at_2, spec_at_2, spec_at_2);
    cr_assert_eq(learn(table, reply, &added), STATUS_OK);
    cr_expect_eq(added, 0);
    const struct command *get = find(table, "get", NULL);
    cr_expect(get->arity == -3 && get->key_first_simple == 2 && get->index == COMMAND_get && !get->is_learned);
    cr_expect(find(table, "mget", NULL)->arity == -2 && find(table, "mget", NULL)->key_specs[0].index == 1, "the gateway relies on the shape of what it divides");
    cr_expect(find(table, "echo", NULL)->arity == 2 && find(table, "echo", NULL)->key_specs_count == 0, "and of what it answers itself");
    cr_expect_eq(find(table, "sort", NULL)->key_specs_count, 3);
    cr_expect(find(table, "set", NULL)->arity == -3 && find(table, "set", NULL)->key_first_simple == 1, "an arity of 0 says nothing");
    alloc_free(spec_at_2);
    command_table_destroy(&table);
}

Test(command_learn, names_that_fit_no_row_are_passed_over)
{
    struct command_table *table = command_table_create();
    uint32_t added = 9;
    cr_expect_eq(learn(table, "*5\r\n*6\r\n$0\r\n\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*6\r\n$32\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*6\r\n$3\r\na'b\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n"
                              "*6\r\n$4\r\nzero\r\n:0\r\n*0\r\n:1\r\n:1\r\n:1\r\n*6\r\n$31\r\nbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
                     &added),
        STATUS_OK);
    cr_expect_eq(added, 1);
    cr_expect_not_null(find(table, "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB", NULL));
    command_table_destroy(&table);
}

Test(command_learn, malformed_replies_leave_the_table_unchanged)
{
    static const char *const replies[] = {
        "",
        "*",
        "+OK\r\n",
        "-ERR no\r\n",
        "_\r\n",
        "*-1\r\n",
        "$3\r\nabc\r\n",
        ":1\r\n",
        "*1\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*0\r\n",
        "*2\r\n*6\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n:1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$4\r\nnew1\r\n$1\r\nx\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$4\r\nnew1\r\n:2\r\n$4\r\nfast\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$4\r\nnew1\r\n:2\r\n*1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$4\r\nnew1\r\n:2\r\n*0\r\n*0\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\nx",
        "*1\r\n*6\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*1\r\n",
        "*1\r\n*7\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*10\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*1\r\n:1\r\n*0\r\n",
        "*1\r\n*10\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*1\r\n*1\r\n$5\r\nflags\r\n*0\r\n",
        "*1\r\n*10\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*1\r\n*0\r\n",
        "*1\r\n*10\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n$0\r\n\r\n",
        "*1\r\n*10\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*1\r\n*2\r\n$9\r\nfind_keys\r\n*2\r\n$4\r\ntype\r\n:1\r\n*0\r\n",
        "*1\r\n*10\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*1\r\n*2\r\n$9\r\nfind_keys\r\n*2\r\n$4\r\nspec\r\n*2\r\n$7\r\nlastkey\r\n$1\r\nx\r\n*0\r\n",
        "*1\r\n*10\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*1\r\n*2\r\n$9\r\nfind_keys\r\n*2\r\n$4\r\nspec\r\n*2\r\n$7\r\nkeyword\r\n:1\r\n*0\r\n",
        "*2\r\n*6\r\n$4\r\nnew1\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*6\r\n$4\r\nnew2\r\n:2\r\n*0\r\n:1\r\n:1\r\n$1\r\nx\r\n",
        "*4294967295\r\n",
        "*1000000000\r\n*6\r\n",
    };
    struct command_table *table = command_table_create();
    uint64_t before = table_sum(table);
    for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        uint32_t added = 9;
        cr_expect_eq(learn(table, replies[i], &added), STATUS_INVALID, "%zu: %s", i, replies[i]);
        cr_expect_eq(added, 0);
        cr_expect_eq(table_sum(table), before, "%zu: %s", i, replies[i]);
    }
    command_table_destroy(&table);
}

Test(command_learn, reply_cut_at_any_byte_is_invalid)
{
    struct command_table *table = command_table_create();
    uint64_t before = table_sum(table);
    static const char reply[] = "*2\r\n" COMMAND_10("$4\r\nnew1", "-6", "1\r\n+write\r\n", "1\r\n" RANGE_SPEC) "*10\r\n$3\r\nfoo\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*1\r\n" COMMAND_10("$7\r\nfoo|bar", "3", "0\r\n", "0\r\n");
    for (uint32_t length = 0; length < sizeof(reply) - 1; length++) {
        uint8_t *cut = alloc_zeroed(length + 1);
        uint32_t added = 9;
        memcpy(cut, reply, length);
        cut = alloc_resize(cut, length > 0 ? length : 1);
        cr_assert_eq(command_table_learn(table, cut, length, &added), STATUS_INVALID, "%u bytes", length);
        alloc_free(cut);
    }
    cr_expect_eq(table_sum(table), before);
    uint32_t added;
    cr_expect_eq(learn(table, reply, &added), STATUS_OK);
    cr_expect_eq(added, 3);
    command_table_destroy(&table);
}

Test(command_learn, key_specs_out_of_range_are_not_used)
{
    static const char *const changes[][2] = {{"index\r\n:1", "index\r\n:0"}, {"keystep\r\n:1", "keystep\r\n:0"}, {"lastkey\r\n:0", "lastkey\r\n:9223372036854775807"}, {"range", "qange"}, {"limit\r\n:0", "limit\r\n:-3"},
        {"index\r\n:1", "index\r\n:-1"}, {"+update", "+incomplete"}};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct command_table *table = command_table_create();
        const char *original = "*1\r\n" COMMAND_10("$4\r\nnew1", "-6", "1\r\n+write\r\n", "1\r\n" RANGE_SPEC);
        const char *at = strstr(original, changes[i][0]);
        cr_assert_not_null(at);
        char reply[2048];
        (void)snprintf(reply, sizeof(reply), "%.*s%s%s", (int)(at - original), original, changes[i][1], at + strlen(changes[i][0]));
        uint32_t added = 0;
        cr_assert_eq(learn(table, reply, &added), STATUS_OK, "%s", changes[i][1]);
        cr_assert_eq(added, 1);
        cr_expect_eq(find(table, "new1", NULL)->handling, HANDLE_UNSUPPORTED, "%s", changes[i][1]);
        cr_expect_eq(find(table, "new1", NULL)->key_specs_count, 0, "%s", changes[i][1]);
        command_table_destroy(&table);
    }
}

Test(command_learn, more_commands_than_rows_stop_at_the_maximum)
{
    struct command_table *table = command_table_create();
    enum { COMMANDS = COMMAND_ROWS_MAX + 10, EACH = 64 };
    char *reply = alloc_zeroed(COMMANDS * EACH);
    int at = snprintf(reply, EACH, "*%d\r\n", COMMANDS);
    for (int i = 0; i < COMMANDS; i++)
        at += snprintf(reply + at, EACH, "*6\r\n$9\r\nmod.%05d\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n", i);
    uint32_t added = 0;
    cr_expect_eq(learn(table, reply, &added), STATUS_OK);
    cr_expect_eq(added, COMMAND_ROWS_MAX - COMMAND_BUILT_IN_COUNT);
    cr_expect_eq(command_table_count(table), COMMAND_ROWS_MAX);
    alloc_free(reply);
    command_table_destroy(&table);
}
