/*
 * shard/split: parts by slot, single keys, and what happens to bad input.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "net/resp_scan.h"
#include "shard/slot.h"
#include "shard/split.h"

TestSuite(split, .timeout = 60);

static struct splitter splitter;

/* The first character says the slot: 'a' is 0. */
static uint16_t slot_by_letter(void *context, const uint8_t *key, uint32_t length)
{
    (void)context;
    return length == 0 ? 0 : (uint16_t)(key[0] - 'a');
}

static uint16_t slot_by_crc(void *context, const uint8_t *key, uint32_t length)
{
    (void)context;
    return slot_of_key(key, length);
}

static const struct command *command_named(const char *name)
{
    static struct command_table *table;
    if (!table)
        table = command_table_create();
    bool unknown_sub;
    const struct command *command = command_table_find(table, (const uint8_t *)name, (uint32_t)strlen(name), NULL, 0, &unknown_sub);
    cr_assert(command);
    return command;
}

/* Arguments of a command given as words. */
struct words {
    struct resp_arg args[64];
    char bytes[512];
    struct command_args view;
};

static struct command_args *words(struct words *words, const char *text)
{
    uint32_t count = 0;
    snprintf(words->bytes, sizeof words->bytes, "%s", text);
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, " ");
        words->args[count++] = (struct resp_arg){.offset = (uint32_t)(at - text), .length = (uint32_t)length};
        at += length + (at[length] == ' ');
    }
    words->view = (struct command_args){.base = (const uint8_t *)words->bytes, .args = words->args, .count = count};
    return &words->view;
}

static enum status split(const char *text, struct split_plan *plan)
{
    struct words storage;
    char name[16];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, " "), text);
    splitter_init(&splitter);
    return split_by_slot(&splitter, command_named(name), words(&storage, text), slot_by_letter, NULL, plan);
}

/* The part's command as words again, scanned by the scanner that commands of clients go through. */
static const char *part_text(const struct split_plan *plan, uint32_t index)
{
    static char text[512];
    const struct resp_limits limits = {.args_max = 1 << 20, .bulk_max = 1 << 29, .inline_max = 65536, .request_max = 1 << 30};
    struct resp_command_scanner scanner;
    struct resp_command_state state = {0};
    const uint8_t *bytes = plan->bytes + plan->parts[index].offset;
    resp_command_scanner_init(&scanner, &limits);
    cr_assert_eq(resp_scan_command(&scanner, &state, bytes, plan->parts[index].length), RESP_DONE);
    cr_assert_eq(scanner.consumed, plan->parts[index].length);
    text[0] = '\0';
    for (uint32_t i = 0; i < scanner.args_count; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%.*s", i ? " " : "", (int)scanner.args[i].length,
            (const char *)resp_arg_bytes(&scanner, bytes, i));
    }
    resp_command_scanner_fini(&scanner);
    return text;
}

Test(split, one_slot_gives_one_part_and_no_bytes)
{
    struct split_plan plan;
    cr_assert_eq(split("mget a1 a2 a1", &plan), STATUS_OK);
    cr_expect_eq(plan.parts_count, 1);
    cr_expect_eq(plan.keys_count, 3);
    cr_expect_eq(plan.bytes_count, 0);
    cr_expect_eq(plan.parts[0].length, 0);
    cr_expect_eq(plan.parts[0].keys_count, 3);
    cr_expect_eq(plan.parts[0].first_key, 1);
    splitter_fini(&splitter);
}

Test(split, keys_of_two_slots_keep_their_order_and_duplicates)
{
    struct split_plan plan;
    cr_assert_eq(split("mget b1 a1 b2 b1 a1 c", &plan), STATUS_OK);
    cr_assert_eq(plan.parts_count, 3);
    cr_expect_str_eq(part_text(&plan, 0), "mget b1 b2 b1");
    cr_expect_str_eq(part_text(&plan, 1), "mget a1 a1");
    cr_expect_str_eq(part_text(&plan, 2), "mget c");
    const uint32_t expected[] = {0, 1, 0, 0, 1, 2};
    cr_expect_arr_eq(plan.part_of_key, expected, sizeof expected);
    cr_expect_eq(plan.parts[0].slot, 1);
    cr_expect_eq(plan.parts[1].slot, 0);
    cr_expect_eq(plan.parts[2].slot, 2);
    cr_expect_eq(plan.parts[1].first_key, 2);
    cr_expect_eq(plan.parts[2].first_key, 6);
    cr_expect_eq(plan.bytes_count, plan.parts[0].length + plan.parts[1].length + plan.parts[2].length);
    splitter_fini(&splitter);
}

Test(split, mset_keeps_values_with_their_keys)
{
    struct split_plan plan;
    cr_assert_eq(split("mset a1 x b1 y a1 z", &plan), STATUS_OK);
    cr_assert_eq(plan.parts_count, 2);
    cr_expect_eq(plan.keys_count, 3);
    cr_expect_str_eq(part_text(&plan, 0), "mset a1 x a1 z");
    cr_expect_str_eq(part_text(&plan, 1), "mset b1 y");
    cr_expect_eq(plan.parts[1].first_key, 3);
    splitter_fini(&splitter);
}

Test(split, every_command_of_the_table_that_is_split_can_be)
{
    static const char *const texts[] = {"mget a b", "mset a 1 b 2", "del a b", "unlink a b", "exists a b", "touch a b"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct split_plan plan;
        cr_assert_eq(split(texts[i], &plan), STATUS_OK, "%s", texts[i]);
        cr_expect_eq(plan.parts_count, 2);
        splitter_fini(&splitter);
    }
}

Test(split, wrong_number_of_arguments_is_invalid)
{
    static const char *const texts[] = {"mget", "del", "mset", "mset a", "mset a 1 b"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct split_plan plan;
        cr_expect_eq(split(texts[i], &plan), STATUS_INVALID, "%s", texts[i]);
        splitter_fini(&splitter);
    }
}

Test(split, empty_and_binary_keys_and_values_pass)
{
    static const char bytes[] = "MSETa\0\r\n\0b";
    const struct resp_arg args[] = {{0, 4}, {4, 1}, {5, 4}, {9, 1}, {4, 0}};
    const struct command_args view = {.base = (const uint8_t *)bytes, .args = args, .count = 5};
    struct split_plan plan;
    splitter_init(&splitter);
    /* The second key is the byte b of the end, in slot 1; its value is empty. */
    cr_assert_eq(split_by_slot(&splitter, command_named("mset"), &view, slot_by_letter, NULL, &plan), STATUS_OK);
    cr_assert_eq(plan.parts_count, 2);
    static const char first[] = "*3\r\n$4\r\nMSET\r\n$1\r\na\r\n$4\r\n\0\r\n\0\r\n";
    static const char second[] = "*3\r\n$4\r\nMSET\r\n$1\r\nb\r\n$0\r\n\r\n";
    cr_assert_eq(plan.parts[0].length, sizeof first - 1);
    cr_expect_arr_eq(plan.bytes, first, sizeof first - 1);
    cr_assert_eq(plan.parts[1].length, sizeof second - 1);
    cr_expect_arr_eq(plan.bytes + plan.parts[1].offset, second, sizeof second - 1);
    splitter_fini(&splitter);
}

/* 10,000 keys over the real slots, checked key by key; again with the same memory. */
Test(split, ten_thousand_keys_are_all_there_and_nothing_is_allocated_the_second_time)
{
    enum { KEYS = 10000 };
    char *bytes = alloc_zeroed(KEYS * 16 + 16);
    struct resp_arg *args = alloc_zeroed((KEYS + 1) * sizeof *args);
    memcpy(bytes, "mget", 4);
    args[0].length = 4;
    uint32_t used = 4;
    for (uint32_t i = 0; i < KEYS; i++) {
        const int length = sprintf(bytes + used, "key:%u", i * 7919u % 30011u);
        args[i + 1] = (struct resp_arg){.offset = used, .length = (uint32_t)length};
        used += (uint32_t)length;
    }
    const struct command_args view = {.base = (const uint8_t *)bytes, .args = args, .count = KEYS + 1};
    const struct command *mget = command_named("mget");
    splitter_init(&splitter);
    uint64_t calls_before = 0;
    for (int run = 0; run < 2; run++) {
        struct split_plan plan;
        cr_assert_eq(split_by_slot(&splitter, mget, &view, slot_by_crc, NULL, &plan), STATUS_OK);
        if (run == 1)
            cr_expect_eq(alloc_calls_count(), calls_before);
        calls_before = alloc_calls_count();
        cr_assert_gt(plan.parts_count, 5000);
        uint32_t total = 0;
        uint32_t *cursors = calloc(plan.parts_count, sizeof *cursors);
        for (uint32_t part = 0; part < plan.parts_count; part++) {
            cr_assert_eq(plan.parts[part].offset, total);
            total += plan.parts[part].length;
            char head[64];
            cursors[part] = plan.parts[part].offset + (uint32_t)sprintf(head, "*%u\r\n$4\r\nmget\r\n", plan.parts[part].keys_count + 1);
            cr_assert_arr_eq(plan.bytes + plan.parts[part].offset, head, strlen(head));
        }
        cr_assert_eq(total, plan.bytes_count);
        for (uint32_t i = 0; i < KEYS; i++) {
            const uint32_t part = plan.part_of_key[i];
            char bulk[64];
            const int length = sprintf(bulk, "$%u\r\n%.*s\r\n", args[i + 1].length, (int)args[i + 1].length, bytes + args[i + 1].offset);
            cr_assert_eq(plan.parts[part].slot, slot_of_key((const uint8_t *)bytes + args[i + 1].offset, args[i + 1].length));
            cr_assert_arr_eq(plan.bytes + cursors[part], bulk, (size_t)length);
            cursors[part] += (uint32_t)length;
        }
        for (uint32_t part = 0; part < plan.parts_count; part++)
            cr_assert_eq(cursors[part], plan.parts[part].offset + plan.parts[part].length);
        free(cursors);
    }
    splitter_fini(&splitter);
    alloc_free(bytes);
    alloc_free(args);
}

Test(split, memory_of_a_huge_command_is_given_back)
{
    enum { BYTES = 8 << 20 };
    char *bytes = alloc_zeroed(BYTES);
    memset(bytes, 'v', BYTES);
    memcpy(bytes, "mset", 4);
    const struct resp_arg args[] = {{0, 4}, {4, 1}, {4, BYTES - 8}, {5, 1}, {4, 1}};
    bytes[4] = 'a';
    bytes[5] = 'b';
    const struct command_args view = {.base = (const uint8_t *)bytes, .args = args, .count = 5};
    struct words storage;
    struct split_plan plan;
    splitter_init(&splitter);
    cr_assert_eq(split_by_slot(&splitter, command_named("mset"), &view, slot_by_letter, NULL, &plan), STATUS_OK);
    cr_expect_gt(plan.bytes_count, BYTES);
    cr_assert_eq(split_by_slot(&splitter, command_named("mget"), words(&storage, "mget a b"), slot_by_letter, NULL, &plan), STATUS_OK);
    cr_expect_leq(splitter.bytes_capacity, SPLIT_KEEP_BYTES);
    splitter_fini(&splitter);
    alloc_free(bytes);
}

static enum status split_singles(const char *name, const char *bytes, struct split_plan *plan)
{
    splitter_init(&splitter);
    return split_part_single_keys(&splitter, command_named(name), (const uint8_t *)bytes, (uint32_t)strlen(bytes), 77, plan);
}

Test(split, part_of_a_migrating_slot_becomes_one_command_for_each_key)
{
    struct split_plan plan;
    cr_assert_eq(split_singles("mget", "*4\r\n$4\r\nMGET\r\n$2\r\na1\r\n$2\r\na2\r\n$2\r\na1\r\n", &plan), STATUS_OK);
    cr_assert_eq(plan.parts_count, 3);
    cr_assert_eq(plan.keys_count, 3);
    cr_expect_str_eq(part_text(&plan, 0), "MGET a1");
    cr_expect_str_eq(part_text(&plan, 1), "MGET a2");
    cr_expect_str_eq(part_text(&plan, 2), "MGET a1");
    for (uint32_t i = 0; i < 3; i++) {
        cr_expect_eq(plan.part_of_key[i], i);
        cr_expect_eq(plan.parts[i].slot, 77);
        cr_expect_eq(plan.parts[i].keys_count, 1);
        cr_expect_eq(plan.parts[i].first_key, 1 + i);
    }
    splitter_fini(&splitter);
}

Test(split, single_keys_of_mset_keep_their_values)
{
    struct split_plan plan;
    cr_assert_eq(split_singles("mset", "*05\r\n$4\r\nmset\r\n$1\r\na\r\n$0\r\n\r\n$1\r\nb\r\n$003\r\n$\r\n\r\n", &plan), STATUS_OK);
    cr_assert_eq(plan.parts_count, 2);
    cr_expect_str_eq(part_text(&plan, 0), "mset a ");
    cr_expect_str_eq(part_text(&plan, 1), "mset b $\r\n");
    splitter_fini(&splitter);
}

Test(split, single_key_command_gives_one_part_and_no_bytes)
{
    struct split_plan plan;
    cr_assert_eq(split_singles("del", "*2\r\n$3\r\ndel\r\n$1\r\na\r\n", &plan), STATUS_OK);
    cr_expect_eq(plan.parts_count, 1);
    cr_expect_eq(plan.parts[0].length, 0);
    splitter_fini(&splitter);
}

Test(split, bytes_that_are_not_one_whole_command_are_invalid)
{
    static const char whole[] = "*3\r\n$4\r\nmget\r\n$1\r\na\r\n$1\r\nb\r\n";
    struct split_plan plan;
    splitter_init(&splitter);
    for (uint32_t length = 0; length < sizeof whole - 1; length++) {
        /* A copy of the exact length, so that reading beyond it is noticed. */
        uint8_t *cut = malloc(length + 1);
        memcpy(cut, whole, length);
        uint8_t *exact = realloc(cut, length ? length : 1);
        cr_expect_eq(
            split_part_single_keys(&splitter, command_named("mget"), exact, length, 1, &plan), STATUS_INVALID, "cut at %u", length);
        free(exact);
    }
    splitter_fini(&splitter);
    static const char *const bad[] = {"*3\r\n$4\r\nmget\r\n$1\r\na\r\n$1\r\nb\r\n*", "*0\r\n", "*-1\r\n", "*99999999999\r\n$1\r\na\r\n",
        "*4294967295\r\n$4\r\nmget\r\n", "*2\r\n$4294967295\r\nmget\r\n$1\r\na\r\n", "*2\r\n$4\r\nmgetxx$1\r\na\r\n",
        "*2\r\n:4\r\nmget\r\n$1\r\na\r\n", "mget a b\r\n", "*1\r\n$4\r\nmget\r\n", "*x\r\n", "*\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(split_singles("mget", bad[i], &plan), STATUS_INVALID, "%zu", i);
        splitter_fini(&splitter);
    }
}
