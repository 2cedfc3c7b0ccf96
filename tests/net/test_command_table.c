/* The command table: what command.def says against what a server says, look-up, and how the gateway handles each command. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/alloc.h"
#include "net/resp_read.h"
#include "tests/net/command_reply.h"
#include "tests/net/session_fixture.h"

TestSuite(command_table);

enum { RECORDED_COUNT = sizeof(recorded_commands) / sizeof(recorded_commands[0]) };

static const struct command *find(const struct command_table *table, const char *name, const char *sub)
{
    bool unknown_sub;
    /* Exactly as long as the names are: a read outside would be seen by a sanitizer. */
    uint8_t *name_bytes = alloc_zeroed(strlen(name) + 1), *sub_bytes = sub == NULL ? NULL : alloc_zeroed(strlen(sub) + 1);
    name_bytes = alloc_resize(name_bytes, strlen(name) > 0 ? strlen(name) : 1);
    memcpy(name_bytes, name, strlen(name));
    if (sub != NULL)
        memcpy(sub_bytes, sub, strlen(sub));
    const struct command *command = command_table_find(table, name_bytes, (uint32_t)strlen(name), sub_bytes, sub == NULL ? 0 : (uint32_t)strlen(sub), &unknown_sub);
    alloc_free(name_bytes);
    alloc_free(sub_bytes);
    return command;
}

Test(command_table, find_every_row_in_any_case_is_found)
{
    struct command_table *table = command_table_create();
    cr_assert_eq(command_table_count(table), COMMAND_BUILT_IN_COUNT);
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        const struct command *row = command_table_at(table, i);
        const struct command *parent = command_parent(row);
        cr_assert_eq(row->index, i);
        for (int style = 0; style < 3; style++) {
            char name[COMMAND_NAME_MAX];
            for (uint32_t k = 0; k < COMMAND_NAME_MAX; k++) {
                bool upper = (style == 1 || (style == 2 && k % 2 == 0)) && row->name[k] >= 'a' && row->name[k] <= 'z';
                name[k] = upper ? (char)(row->name[k] - 0x20) : row->name[k];
            }
            cr_expect_eq(parent == NULL ? find(table, name, NULL) : find(table, parent->name, name), row, "%s", row->name);
        }
    }
    command_table_destroy(&table);
    cr_assert_null(table);
}

Test(command_table, find_near_misses_are_not_found)
{
    struct command_table *table = command_table_create();
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        const struct command *row = command_table_at(table, i);
        if (command_parent(row) != NULL)
            continue;
        size_t length = strlen(row->name);
        for (size_t k = 0; k < length; k++) {
            /* Bit 5 apart (the case bit), but not a letter's other case; and the high bit. */
            static const uint8_t flips[] = {0x01, 0x40, 0x80};
            for (size_t f = 0; f < sizeof(flips); f++) {
                char name[COMMAND_NAME_MAX];
                memcpy(name, row->name, COMMAND_NAME_MAX);
                name[k] = (char)((uint8_t)name[k] ^ flips[f]);
                const struct command *other = name[k] == 0 ? NULL : find(table, name, NULL);
                cr_expect(other == NULL || strcasecmp(other->name, name) == 0, "%s", name);
            }
        }
    }
    cr_expect_null(find(table, "", NULL));
    cr_expect_null(find(table, "ge", NULL));
    cr_expect_null(find(table, "gett", NULL));
    cr_expect_null(find(table, "sentinel", "masters"));
    cr_expect_null(find(table, "georadiusbymember_rx", NULL));
    cr_expect_null(find(table, "georadiusbxmember_ro", NULL));
    cr_expect_null(find(table, "setname", NULL), "a subcommand is no command");
    cr_expect_null(find(table, "a name that is far longer than any command can be in this table", NULL));
    cr_expect_null(find(table, "zremrangebylex\x0d", NULL));
    command_table_destroy(&table);
}

Test(command_table, find_case_bit_of_other_bytes_is_told_apart)
{
    struct command_table *table = command_table_create();
    bool unknown_sub;
    /* '-' is 0x2d: with bit 5 cleared it is a carriage return, which is another name. */
    cr_expect_null(command_table_find(table, (const uint8_t *)"client", 6, (const uint8_t *)"no\revict", 8, &unknown_sub));
    cr_expect(unknown_sub);
    cr_expect_not_null(command_table_find(table, (const uint8_t *)"client", 6, (const uint8_t *)"NO-EVICT", 8, &unknown_sub));
    cr_expect_not(unknown_sub);
    /* '_' is 0x5f: with bit 5 set it is DEL. */
    cr_expect_null(command_table_find(table, (const uint8_t *)"sort\x7fro", 7, NULL, 0, &unknown_sub));
    /* '@' and '[' frame the capital letters. */
    cr_expect_null(command_table_find(table, (const uint8_t *)"get@", 4, NULL, 0, &unknown_sub));
    command_table_destroy(&table);
}

Test(command_table, find_containers_and_subcommands)
{
    struct command_table *table = command_table_create();
    bool unknown_sub = true;
    const struct command *row = command_table_find(table, (const uint8_t *)"CLIENT", 6, NULL, 0, &unknown_sub);
    cr_assert(row != NULL && row->is_container && !unknown_sub && command_parent(row) == NULL);
    row = command_table_find(table, (const uint8_t *)"CLIENT", 6, (const uint8_t *)"nosuch", 6, &unknown_sub);
    cr_expect(row == NULL && unknown_sub);
    row = command_table_find(table, (const uint8_t *)"CLIENT", 6, (const uint8_t *)"", 0, &unknown_sub);
    cr_expect(row == NULL && unknown_sub);
    row = command_table_find(table, (const uint8_t *)"get", 3, (const uint8_t *)"nosuch", 6, &unknown_sub);
    cr_expect(row != NULL && !unknown_sub && row->index == COMMAND_get);
    row = command_table_find(table, (const uint8_t *)"nosuch", 6, (const uint8_t *)"get", 3, &unknown_sub);
    cr_expect(row == NULL && !unknown_sub);
    row = command_table_find(table, (const uint8_t *)"config", 6, (const uint8_t *)"SET", 3, &unknown_sub);
    cr_assert(row != NULL && row->index == COMMAND_config__set);
    char name[COMMAND_NAME_MAX * 2];
    cr_expect_eq(command_full_name(row, name), 10);
    cr_expect_str_eq(name, "config|set");
    cr_expect_eq(command_full_name(command_table_at(table, COMMAND_get), name), 3);
    cr_expect_str_eq(name, "get");
    command_table_destroy(&table);
}

Test(command_table, arity_fixed_and_least_are_kept)
{
    struct command_table *table = command_table_create();
    const struct command *get = command_table_at(table, COMMAND_get), *del = command_table_at(table, COMMAND_del);
    cr_expect(!command_arity_ok(get, 1) && command_arity_ok(get, 2) && !command_arity_ok(get, 3));
    cr_expect(!command_arity_ok(del, 1) && command_arity_ok(del, 2) && command_arity_ok(del, 1048576));
    command_table_destroy(&table);
}

/* Compares two values, but for notes, which only the server has, and counts. RESP2 alone: sets and maps are arrays. */
static void expect_same(const char *name, struct resp_cursor *theirs, struct resp_cursor *ours)
{
    struct resp_value their, our;
    cr_assert(resp_read_value(theirs, &their) && resp_read_value(ours, &our));
    cr_assert_eq(their.type, our.type, "%s", name);
    uint32_t elements = resp_value_elements(&their), our_elements = resp_value_elements(&our);
    struct resp_cursor ahead = *theirs;
    struct resp_value first;
    if (elements > 0 && resp_read_value(&ahead, &first) && resp_value_equals(&first, "notes")) {
        cr_assert(resp_skip_value(theirs) && resp_skip_value(theirs));
        elements -= 2;
    }
    cr_assert_eq(elements, our_elements, "%s: %u elements, %u of ours", name, elements, our_elements);
    cr_assert(their.integer == our.integer || their.type == '*');
    cr_assert(their.type == '*' || (their.length == our.length && memcmp(their.bytes, our.bytes, their.length) == 0), "%s: %.*s, ours %.*s", name, (int)their.length, their.bytes, (int)our.length, our.bytes);
    for (uint32_t i = 0; i < elements; i++)
        expect_same(name, theirs, ours);
}

/* Compares the first nine elements of one command, without tips; then its subcommands, by name since the server lists them in the order
 * of a hash table. */
static uint32_t expect_same_command(struct fixture *fixture, struct resp_cursor *theirs)
{
    struct resp_value list, name;
    cr_assert(resp_read_value(theirs, &list) && resp_value_elements(&list) == 10);
    struct resp_cursor ahead = *theirs;
    cr_assert(resp_read_value(&ahead, &name));
    char words[128], text[64];
    (void)snprintf(text, sizeof(text), "%.*s", (int)name.length, name.bytes);
    (void)snprintf(words, sizeof(words), "command info %s", text);
    (void)run(fixture, words);
    struct resp_cursor ours;
    resp_cursor_init(&ours, fixture->writer.data, fixture->writer.length);
    cr_assert(resp_read_value(&ours, &list) && resp_value_elements(&list) == 1);
    cr_assert(resp_read_value(&ours, &list) && resp_value_elements(&list) == 10, "%s", text);
    /* Handed to the fixture: a further command would overwrite the reply that is compared. */
    for (uint32_t i = 0; i < 9; i++) {
        if (i == 7)
            cr_assert(resp_skip_value(theirs) && resp_skip_value(&ours));
        else
            expect_same(text, theirs, &ours);
    }
    cr_assert(resp_read_value(theirs, &list));
    uint32_t compared = 1;
    for (uint32_t i = resp_value_elements(&list); i > 0; i--)
        compared += expect_same_command(fixture, theirs);
    return compared;
}

Test(command_table, rows_are_what_a_server_says)
{
    struct fixture *fixture = fixture_create();
    uint32_t compared = 0;
    for (uint32_t i = 0; i < RECORDED_COUNT; i++) {
        struct resp_cursor cursor;
        resp_cursor_init(&cursor, (const uint8_t *)recorded_commands[i], (uint32_t)strlen(recorded_commands[i]));
        compared += expect_same_command(fixture, &cursor);
        cr_expect_eq(cursor.position, cursor.length);
    }
    /* CLIENT SETINFO, NO-TOUCH and MAINT_NOTIFICATIONS are of later servers than the one that was recorded. */
    cr_expect_eq(compared, COMMAND_BUILT_IN_COUNT - 3u);
    cr_expect_eq(RECORDED_COUNT, 240);
    fixture_destroy(&fixture);
}

Test(command_table, handling_columns_agree)
{
    struct command_table *table = command_table_create();
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        const struct command *row = command_table_at(table, i);
        cr_expect_eq(row->handling == HANDLE_LOCAL, row->local != LOCAL_none, "%s", row->name);
        cr_expect_eq(row->handling == HANDLE_SPLIT, row->merge != MERGE_NONE, "%s", row->name);
        if (row->handling == HANDLE_FORWARD || row->handling == HANDLE_SPLIT) {
            cr_expect_gt(row->key_specs_count, 0, "%s", row->name);
            cr_expect_eq(row->flags & CMD_BARRIER, 0, "%s", row->name);
        }
        if (row->handling == HANDLE_LOCAL)
            cr_expect_eq(row->key_specs_count, 0, "%s", row->name);
        if (row->key_first_simple > 0)
            cr_expect(row->key_specs_count == 1 && abs(row->arity) > row->key_first_simple, "%s: the key is within the least number of arguments", row->name);
        if ((row->flags & CMD_READONLY) != 0)
            cr_expect_neq(row->flags & CMD_IDEMPOTENT, 0, "%s", row->name);
    }
    command_table_destroy(&table);
}

Test(command_table, handling_is_as_documented)
{
    static const struct {
        enum command_handling handling;
        const char *names;
    } expected[] = {
        {HANDLE_SPLIT, "mget mset del unlink exists touch"},
        {HANDLE_LOCAL, "hello auth reset quit ping echo time select readonly readwrite asking command command|count command|docs command|info command|list command|getkeys info role cluster|slots cluster|shards "
                       "cluster|nodes cluster|info cluster|myid cluster|keyslot config|get client|id client|info client|list client|setname client|getname client|setinfo client|no-evict client|no-touch client|reply "
                       "client|getredir client|maint_notifications"},
        {HANDLE_UNSUPPORTED, "multi exec discard watch unwatch blpop brpop blmove brpoplpush blmpop bzpopmin bzpopmax bzmpop subscribe unsubscribe psubscribe punsubscribe ssubscribe sunsubscribe publish spublish scan keys "
                             "randomkey dbsize flushall flushdb eval evalsha eval_ro evalsha_ro fcall fcall_ro script|load function|load wait client|tracking client|caching client|kill swapdb move lolwut lastsave"},
        {HANDLE_REFUSED, "debug shutdown replicaof slaveof config|set config|rewrite config|resetstat cluster|failover cluster|meet cluster|forget cluster|reset cluster|setslot cluster|addslots cluster|delslots "
                         "cluster|replicate monitor sync psync replconf bgsave save bgrewriteaof module|load acl|setuser failover migrate"},
        {HANDLE_FORWARD, "get set msetnx append hset hscan lpush lmpop lmove sadd sinter zadd zunionstore xadd xread xreadgroup xgroup|create xinfo|stream geoadd georadius pfcount bitop expire object|encoding dump restore "
                         "copy rename sort sort_ro getex memory|usage"},
    };
    struct command_table *table = command_table_create();
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        char names[1024];
        (void)snprintf(names, sizeof(names), "%s", expected[i].names);
        char *rest = names;
        for (char *name = strsep(&rest, " "); name != NULL; name = strsep(&rest, " ")) {
            char *sub = name;
            char *top = strsep(&sub, "|");
            const struct command *row = find(table, top, sub);
            cr_assert_not_null(row, "%s", top);
            cr_expect_eq(row->handling, expected[i].handling, "%s|%s", top, sub == NULL ? "" : sub);
        }
    }
    static const char *const barriers[][2] = {{"hello", NULL}, {"auth", NULL}, {"reset", NULL}, {"select", NULL}, {"quit", NULL}, {"client", "reply"}};
    uint32_t barriers_count = 0;
    for (uint16_t i = 0; i < command_table_count(table); i++)
        barriers_count += (command_table_at(table, i)->flags & CMD_BARRIER) != 0 ? 1 : 0;
    for (size_t i = 0; i < 6; i++)
        cr_expect_neq(find(table, barriers[i][0], barriers[i][1])->flags & CMD_BARRIER, 0, "%s", barriers[i][0]);
    cr_expect_eq(barriers_count, 6);
    command_table_destroy(&table);
}

Test(command_table, add_bad_rows_are_refused)
{
    struct command_table *table = command_table_create();
    struct command row = {.name = "get", .arity = 2};
    cr_expect_eq(command_table_add(table, &row, UINT16_MAX), STATUS_INVALID);
    row.name[0] = 0;
    cr_expect_eq(command_table_add(table, &row, UINT16_MAX), STATUS_INVALID);
    memset(row.name, 'a', sizeof(row.name));
    cr_expect_eq(command_table_add(table, &row, UINT16_MAX), STATUS_INVALID);
    row.name[5] = 0;
    cr_expect_eq(command_table_add(table, &row, 65534), STATUS_INVALID);
    cr_expect_eq(command_table_add(table, &row, COMMAND_client__setname), STATUS_INVALID);
    cr_expect_eq(command_table_count(table), COMMAND_BUILT_IN_COUNT);
    command_table_destroy(&table);
}

Test(command_table, add_up_to_the_maximum_all_are_found)
{
    struct command_table *table = command_table_create();
    struct command row = {.arity = -2, .key_specs = {{.begin = BEGIN_INDEX, .find = FIND_RANGE, .index = 1, .step = 1}}};
    uint32_t added = 0;
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        (void)snprintf(row.name, sizeof(row.name), "module.COMMAND-%u", added);
        status = command_table_add(table, &row, UINT16_MAX);
        added += status == STATUS_OK ? 1 : 0;
    }
    cr_expect_eq(status, STATUS_FULL);
    cr_assert_eq(added, COMMAND_ROWS_MAX - COMMAND_BUILT_IN_COUNT);
    for (uint32_t i = 0; i < added; i++) {
        char name[COMMAND_NAME_MAX];
        (void)snprintf(name, sizeof(name), "MODULE.command-%u", i);
        const struct command *found = find(table, name, NULL);
        cr_assert(found != NULL && found->is_learned && found->key_first_simple == 1 && found->index == COMMAND_BUILT_IN_COUNT + i, "%s", name);
    }
    cr_expect_eq(find(table, "get", NULL)->index, COMMAND_get);
    command_table_destroy(&table);
}
