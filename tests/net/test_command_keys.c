/* Where the keys of a command are, against recorded answers of a server's COMMAND GETKEYS. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/net/getkeys_table.h"
#include "tests/net/session_fixture.h"

TestSuite(command_keys);

enum { RECORDED_COUNT = sizeof(recorded_keys) / sizeof(recorded_keys[0]) };

/* The server falls back to reading these numbers of keys with atoi and finds keys in calls which the command itself then refuses. The
 * gateway refuses them at once. */
static const char *const refused_at_once[] = {"zunionstore d 01 a", "zunionstore d +1 a", "zunionstore d 4294967297 a", "migrate h 6379 _ 0 10 KEYS"};

static const char *expected_reply(const struct recorded_keys *recorded)
{
    for (size_t i = 0; i < sizeof(refused_at_once) / sizeof(refused_at_once[0]); i++)
        if (strcmp(recorded->words, refused_at_once[i]) == 0)
            return "-ERR Invalid arguments specified for command\r\n";
    return recorded->reply;
}

Test(command_keys, getkeys_recorded_calls_answer_as_the_server)
{
    struct fixture *fixture = fixture_create();
    for (uint32_t i = 0; i < RECORDED_COUNT; i++) {
        char words[256];
        (void)snprintf(words, sizeof(words), "command getkeys %s", recorded_keys[i].words);
        cr_expect_str_eq(run(fixture, words), expected_reply(&recorded_keys[i]), "%s", recorded_keys[i].words);
    }
    cr_expect_gt(RECORDED_COUNT, 800);
    fixture_destroy(&fixture);
}

/* The reply for the keys at these positions. */
static enum status keys_of(struct fixture *fixture, const char *words, uint32_t *positions, uint32_t max, uint32_t *count)
{
    bool unknown_sub;
    struct command_args args = fixture_args(fixture, words);
    const struct command *command = fixture_find(fixture, &args, &unknown_sub);
    cr_assert_not_null(command, "%s", words);
    return command_keys(command, &args, positions, max, count);
}

Test(command_keys, keys_without_room_are_counted)
{
    struct fixture *fixture = fixture_create();
    uint32_t positions[4] = {77, 77, 77, 77}, count = 0;
    cr_expect_eq(keys_of(fixture, "mget a b c d e", positions, 2, &count), STATUS_OK);
    cr_expect(count == 5 && positions[0] == 1 && positions[1] == 2 && positions[2] == 77);
    cr_expect_eq(keys_of(fixture, "get a", NULL, 0, &count), STATUS_OK);
    cr_expect_eq(count, 1);
    cr_expect_eq(keys_of(fixture, "sort a store b", positions, 1, &count), STATUS_OK);
    cr_expect(count == 2 && positions[0] == 1);
    cr_expect_eq(keys_of(fixture, "zunionstore d 2 a b", positions, 4, &count), STATUS_OK);
    cr_expect(count == 3 && positions[0] == 1 && positions[1] == 3 && positions[2] == 4);
    fixture_destroy(&fixture);
}

Test(command_keys, keys_too_few_arguments_are_invalid)
{
    struct fixture *fixture = fixture_create();
    uint32_t positions[4], count = 9;
    static const char *const calls[] = {"get", "sort", "sort_ro", "migrate h 1 k", "mget", "mset a", "zunionstore d", "zunionstore d 1", "lmpop 1", "xread streams", "eval s", "object encoding", "georadius a 1", "migrate"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        cr_expect_eq(keys_of(fixture, calls[i], positions, 4, &count), STATUS_INVALID, "%s", calls[i]);
        cr_expect_eq(count, 0, "%s", calls[i]);
    }
    fixture_destroy(&fixture);
}

Test(command_keys, keys_of_scripts_may_be_none)
{
    struct fixture *fixture = fixture_create();
    uint32_t positions[4], count = 9;
    cr_expect_eq(keys_of(fixture, "eval s 0", positions, 4, &count), STATUS_OK);
    cr_expect_eq(count, 0);
    cr_expect_eq(keys_of(fixture, "zunion 0 a", positions, 4, &count), STATUS_INVALID);
    fixture_destroy(&fixture);
}

/* A channel determines the slot of SPUBLISH, though it is no key. */
Test(command_keys, keys_of_shard_channels_are_routed)
{
    struct fixture *fixture = fixture_create();
    uint32_t positions[4], count = 0;
    cr_expect_eq(keys_of(fixture, "spublish ch m", positions, 4, &count), STATUS_OK);
    cr_expect(count == 1 && positions[0] == 1);
    fixture_destroy(&fixture);
}

Test(command_keys, specs_at_the_limits_stay_inside_the_arguments)
{
    struct fixture *fixture = fixture_create();
    struct command command = {.name = "x", .arity = -1, .key_specs_count = 1};
    static const struct key_spec specs[] = {
        {.begin = BEGIN_INDEX, .find = FIND_RANGE, .index = 4096, .last = -1, .step = 1},
        {.begin = BEGIN_INDEX, .find = FIND_RANGE, .index = 1, .last = -4096, .step = 1},
        {.begin = BEGIN_INDEX, .find = FIND_RANGE, .index = 1, .last = 4096, .step = 1},
        {.begin = BEGIN_INDEX, .find = FIND_RANGE, .index = -1, .last = 1, .step = 1},
        {.begin = BEGIN_INDEX, .find = FIND_RANGE, .index = 1, .last = 0, .step = 0},
        {.begin = BEGIN_INDEX, .find = FIND_KEYNUM, .index = 1, .keynum = 4096, .limit = 1, .step = 1},
        {.begin = BEGIN_INDEX, .find = FIND_KEYNUM, .index = -3, .keynum = 0, .limit = 1, .step = 1},
        {.begin = BEGIN_INDEX, .find = FIND_KEYNUM, .index = 1, .keynum = 0, .limit = 4096, .step = 4096},
        {.begin = BEGIN_UNKNOWN, .find = FIND_UNKNOWN},
        {.begin = BEGIN_KEYWORD, .find = FIND_RANGE, .index = 4096, .keyword = "B", .last = 0, .step = 1},
        {.begin = BEGIN_KEYWORD, .find = FIND_RANGE, .index = -4096, .keyword = "B", .last = 0, .step = 1},
    };
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        uint32_t positions[8], count = 0;
        struct command_args args = fixture_args(fixture, "x 2 b c");
        command.key_specs[0] = specs[i];
        cr_expect_eq(command_keys(&command, &args, positions, 8, &count), STATUS_INVALID, "spec %zu", i);
    }
    fixture_destroy(&fixture);
}

Test(command_keys, keynum_with_steps_and_keyword_from_the_end)
{
    struct fixture *fixture = fixture_create();
    struct command command = {.name = "x", .arity = -1, .key_specs_count = 1, .key_specs = {{.begin = BEGIN_INDEX, .find = FIND_KEYNUM, .index = 1, .keynum = 0, .limit = 1, .step = 2}}};
    uint32_t positions[8], count = 0;
    struct command_args args = fixture_args(fixture, "x 2 a 1 b 2");
    cr_expect_eq(command_keys(&command, &args, positions, 8, &count), STATUS_OK);
    cr_expect(count == 2 && positions[0] == 2 && positions[1] == 4);
    command.key_specs[0] = (struct key_spec){.begin = BEGIN_KEYWORD, .find = FIND_RANGE, .keyword = "KEYS", .index = -2, .last = -1, .step = 1};
    args = fixture_args(fixture, "x keys y keys a");
    cr_expect_eq(command_keys(&command, &args, positions, 8, &count), STATUS_OK);
    cr_expect(count == 1 && positions[0] == 4);
    fixture_destroy(&fixture);
}

static bool tells(struct fixture *fixture, const char *words, bool (*question)(const struct command *, const struct command_args *))
{
    bool unknown_sub;
    struct command_args args = fixture_args(fixture, words);
    const struct command *command = fixture_find(fixture, &args, &unknown_sub);
    cr_assert_not_null(command, "%s", words);
    return question(command, &args);
}

Test(command_keys, blocking_call_is_told_by_its_options)
{
    struct fixture *fixture = fixture_create();
    static const char *const blocking[] = {"xread BLOCK 0 STREAMS a 0", "xread COUNT 1 block 5 streams a 0", "xread COUNT BLOCK BLOCK 1 STREAMS a 0", "XREADGROUP GROUP g c BLOCK 0 STREAMS a >",
        "xreadgroup BLOCK 0 GROUP g c STREAMS a >", "xreadgroup GROUP g c NOACK COUNT 1 BLOCK 5 STREAMS a >", "blpop a 0", "bzmpop 0 1 a MIN"};
    static const char *const others[] = {"xread STREAMS a 0", "xread COUNT 1 STREAMS block 0", "xread STREAMS BLOCK 0 BLOCK 0", "xread COUNT BLOCK STREAMS a 0", "xreadgroup GROUP block c STREAMS a >",
        "xreadgroup GROUP g block STREAMS a >", "xreadgroup GROUP g c STREAMS block >", "get block", "lpop block", "xread", "xreadgroup group", "sort block"};
    for (size_t i = 0; i < sizeof(blocking) / sizeof(blocking[0]); i++) {
        cr_expect(tells(fixture, blocking[i], command_is_blocking_call), "%s", blocking[i]);
        cr_expect(tells(fixture, blocking[i], command_is_unsupported_call), "%s", blocking[i]);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        cr_expect_not(tells(fixture, others[i], command_is_blocking_call), "%s", others[i]);
    fixture_destroy(&fixture);
}

Test(command_keys, unsupported_call_sort_that_reads_other_keys)
{
    struct fixture *fixture = fixture_create();
    static const char *const foreign[] = {"sort a BY w_*", "sort a GET o_*", "sort a get # get x", "sort_ro a BY w_*->f", "sort a LIMIT 0 1 GET *", "sort a STORE d GET *"};
    static const char *const own[] = {"sort a", "sort a BY nosort", "sort a GET #", "sort a BY nosort GET # LIMIT 0 1 ALPHA DESC STORE d", "sort a STORE by", "sort a STORE get *", "sort a LIMIT by get", "sort a BY", "sort a GET",
        "sort_ro a ASC", "sort", "sort a BY _"};
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        cr_expect(tells(fixture, foreign[i], command_is_unsupported_call), "%s", foreign[i]);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        cr_expect_not(tells(fixture, own[i], command_is_unsupported_call), "%s", own[i]);
    fixture_destroy(&fixture);
}
