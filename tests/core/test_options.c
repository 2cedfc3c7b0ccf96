/*
 * Every row of options.def, in turn: its default, the ends of its range, what lies beyond, and values of the wrong kind, from text and from YAML. A new row is tested by being there.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/options.h"

TestSuite(options);

enum { TEXT_BYTES = 4096 };

#define FOR_EACH_OPTION(option) for (const struct config_option *option = options_table; option < options_table + OPTION_COUNT; option++)

static const char *section_of(const struct config_option *option)
{
    return option_sections[option->section].name;
}

static bool has_range(const struct config_option *option)
{
    return option->type < OPTION_BOOL;
}

static bool is_text(const struct config_option *option)
{
    return option->type >= OPTION_TEXT && option->type <= OPTION_ANNOUNCE;
}

/* A number as a user writes it for this option. */
static void write_value(const struct config_option *option, int64_t value, char *text, size_t text_bytes)
{
    bool is_bytes = option->type == OPTION_BYTES || option->type == OPTION_POWER_BYTES;
    const char *unit = option->type == OPTION_TIME ? "ns" : "";

    snprintf(text, text_bytes, "%" PRId64 "%s", value, is_bytes ? "B" : unit);
}

/* A file whose line 3 sets the option to `value` (YAML); everything else in it is right. */
static void write_file(const struct config_option *option, const char *value, char *text, size_t text_bytes)
{
    const char *lead = "", *rest = "";

    if (option->section == SECTION_ID_listeners) {
        lead = "- ";
        rest = option->offset == 0 ? "" : "    address: 127.0.0.1:1\n";
    } else if (option->section == SECTION_ID_backends) {
        lead = "- ";
        rest = option->type == OPTION_ADDRESSES ? "" : "    cluster: [\"127.0.0.1:2\"]\n";
    } else if (option->section == SECTION_ID_use_cases) {
        lead = "- ";
    }
    snprintf(text, text_bytes, "# a comment\n%s:\n  %s%s: %s\n%s", section_of(option), lead, option->key, value, rest);
}

static enum status load_one(struct config *config, const struct config_option *option, const char *value, char *error, size_t error_bytes)
{
    char text[2 * TEXT_BYTES];

    write_file(option, value, text, sizeof(text));
    return config_load_text(config, "test.yaml", text, strlen(text), error, error_bytes);
}

static enum status set_one(struct config *config, const struct config_option *option, const char *value, char *error, size_t error_bytes)
{
    char name[128];

    snprintf(name, sizeof(name), "%s.%s", section_of(option), option->key);
    if (option->section == SECTION_ID_listeners && config->listeners_count == 0)
        cr_assert_eq(config_add_listener(config, "127.0.0.1:9", error, error_bytes), STATUS_OK);
    return config_set_option(config, name, value, error, error_bytes);
}

/* The value is refused by both ways in; the messages name the key, the place, and what is allowed; --set leaves the old value. */
static void expect_refused(const struct config_option *option, const char *value)
{
    struct config *config = config_create_default();
    char error[TEXT_BYTES] = "", place[256], before[TEXT_BYTES], after[TEXT_BYTES];

    cr_expect_eq(load_one(config, option, value, error, sizeof(error)), STATUS_INVALID, "%s.%s: '%s' is accepted in a file", section_of(option), option->key, value);
    snprintf(place, sizeof(place), "test.yaml:3: key '%s.%s': ", section_of(option), option->key);
    cr_expect(strncmp(error, place, strlen(place)) == 0 && strstr(error, "allowed: ") != NULL, "%s.%s: %s: %s", section_of(option), option->key, value, error);
    config_destroy(&config);

    config = config_create_default();
    void *entry = option_entry(config, option->section);
    cr_assert_eq(config_add_listener(config, "127.0.0.1:9", error, sizeof(error)), STATUS_OK);
    option_format_value(option, entry, before, sizeof(before));
    error[0] = '\0';
    cr_expect_eq(set_one(config, option, value, error, sizeof(error)), STATUS_INVALID, "%s.%s: '%s' is accepted by --set", section_of(option), option->key, value);
    snprintf(place, sizeof(place), "key '%s.%s': ", section_of(option), option->key);
    bool is_address = option->section == SECTION_ID_listeners && option->offset == 0; /* never to be set alone */
    cr_expect(strncmp(error, place, strlen(place)) == 0 && (is_address || strstr(error, "allowed: ") != NULL), "%s", error);
    option_format_value(option, entry, after, sizeof(after));
    cr_expect_str_eq(before, after, "%s.%s", section_of(option), option->key);
    config_destroy(&config);
}

static void expect_accepted(const struct config_option *option, const char *value, const char *formatted)
{
    struct config *config = config_create_default();
    char error[TEXT_BYTES] = "", quoted[TEXT_BYTES], got[TEXT_BYTES];
    uint32_t id = (uint32_t)(option - options_table);

    snprintf(quoted, sizeof(quoted), "\"%s\"", value);
    cr_expect_eq(load_one(config, option, quoted, error, sizeof(error)), STATUS_OK, "%s", error);
    cr_expect_eq(config->lines[id], 3);
    option_format_value(option, option_entry(config, option->section), got, sizeof(got));
    cr_expect_str_eq(got, formatted, "%s.%s", section_of(option), option->key);
    config_destroy(&config);

    config = config_create_default();
    cr_expect_eq(set_one(config, option, value, error, sizeof(error)), STATUS_OK, "%s", error);
    option_format_value(option, option_entry(config, option->section), got, sizeof(got));
    cr_expect_str_eq(got, formatted, "%s.%s", section_of(option), option->key);
    config_destroy(&config);
}

Test(options, table_is_well_formed)
{
    FOR_EACH_OPTION(option)
    {
        size_t help = strlen(option->help);
        cr_expect(help > 10 && option->help[help - 1] == '.', "%s.%s: the help is a sentence", section_of(option), option->key);
        cr_expect_eq(option_find(option->section, option->key, strlen(option->key)), option, "%s.%s is there twice", section_of(option), option->key);
        cr_expect_eq(option->type == OPTION_ENUM, option->choices != NULL);
        cr_expect(!option->is_reloadable, "nothing is reloaded in this version");
        if (option->type == OPTION_UINT || option->type == OPTION_POWER || option->type == OPTION_AUTO)
            cr_expect(*option->unit != '\0', "%s.%s: a bare number needs a unit", section_of(option), option->key);
        if (is_text(option))
            cr_expect_eq((size_t)option->max + 1, option->bytes, "%s.%s: the longest text fills the field", section_of(option), option->key);
        if (option > options_table)
            cr_expect_geq(option->section, option[-1].section, "rows are grouped by section");
    }
    for (enum section_id id = 0; id < SECTION_COUNT; id++)
        cr_expect_eq(option_section_find(option_sections[id].name, strlen(option_sections[id].name)), &option_sections[id]);
    cr_expect_null(option_section_find("core", 4));
    cr_expect_null(option_find(SECTION_ID_cores, "dat", 3));
}

Test(options, default_is_what_the_table_says)
{
    struct config *config = config_create_default();
    char error[TEXT_BYTES] = "", got[TEXT_BYTES], parsed[TEXT_BYTES];

    cr_assert_eq(config_add_listener(config, "127.0.0.1:9", error, sizeof(error)), STATUS_OK);
    FOR_EACH_OPTION(option)
    {
        if (option->default_text == NULL)
            continue;
        struct config *other = config_create_default();
        option_format_value(option, option_entry(config, option->section), got, sizeof(got));
        cr_expect_eq(set_one(other, option, option->default_text, error, sizeof(error)), STATUS_OK, "%s", error);
        option_format_value(option, option_entry(other, option->section), parsed, sizeof(parsed));
        cr_expect_str_eq(got, parsed, "%s.%s", section_of(option), option->key);
        cr_expect(option_is_in_range(option, option_entry(config, option->section)), "%s.%s", section_of(option), option->key);
        if (option->type == OPTION_UINT || option->type == OPTION_POWER || option->type == OPTION_BYTES || option->type == OPTION_ENUM || option->type == OPTION_BOOL)
            cr_expect_str_eq(got, option->default_text, "%s.%s", section_of(option), option->key);
        config_destroy(&other);
    }
    config_destroy(&config);
}

Test(options, number_at_the_ends_of_its_range_is_accepted)
{
    char text[64], formatted[64];

    FOR_EACH_OPTION(option)
    {
        if (!has_range(option))
            continue;
        for (int end = 0; end < 2; end++) {
            struct config *config = config_create_default();
            char error[TEXT_BYTES];
            write_value(option, end == 0 ? option->min : option->max, text, sizeof(text));
            cr_assert_eq(set_one(config, option, text, error, sizeof(error)), STATUS_OK, "%s", error);
            option_format_value(option, option_entry(config, option->section), formatted, sizeof(formatted));
            expect_accepted(option, text, formatted);
            expect_accepted(option, formatted, formatted); /* what is printed can be read */
            config_destroy(&config);
        }
    }
}

Test(options, number_beyond_its_range_is_refused)
{
    char text[64];

    FOR_EACH_OPTION(option)
    {
        if (!has_range(option))
            continue;
        write_value(option, option->min - 1, text, sizeof(text));
        expect_refused(option, text);
        write_value(option, option->max + 1, text, sizeof(text));
        expect_refused(option, text);
        write_value(option, INT64_MAX, text, sizeof(text));
        expect_refused(option, text);
        write_value(option, INT64_MIN, text, sizeof(text));
        expect_refused(option, text);
        expect_refused(option, "123456789012345678901234567890");
    }
}

Test(options, power_of_two_refuses_what_lies_between)
{
    char text[64];

    FOR_EACH_OPTION(option)
    {
        if (option->type != OPTION_POWER && option->type != OPTION_POWER_BYTES)
            continue;
        for (int64_t power = option->min; power < option->max; power *= 2) {
            write_value(option, power + 1, text, sizeof(text));
            expect_refused(option, text);
            write_value(option, power * 2 - 1, text, sizeof(text));
            expect_refused(option, text);
        }
    }
}

Test(options, value_of_the_wrong_kind_is_refused)
{
    static const char *const wrong[] = {"\"\"", "x", "1.5", "0x10", "1e3", "+1", " 1", "1 ", "1,000", "--1", "٣", "on", "yes", "True", "AUTO", "\"1\\t\""};

    FOR_EACH_OPTION(option)
    {
        if (option->type > OPTION_ENUM)
            continue;
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
            if (wrong[i][0] == ' ' || wrong[i][strlen(wrong[i]) - 1] == ' ') { /* YAML strips blanks */
                struct config *config = config_create_default();
                char error[TEXT_BYTES];
                cr_expect_eq(set_one(config, option, wrong[i], error, sizeof(error)), STATUS_INVALID, "%s.%s: '%s'", section_of(option), option->key, wrong[i]);
                config_destroy(&config);
            } else {
                expect_refused(option, wrong[i]);
            }
        }
        if (option->type == OPTION_TIME || option->type == OPTION_BYTES || option->type == OPTION_POWER_BYTES) {
            expect_refused(option, "4096");
            expect_refused(option, option->type == OPTION_TIME ? "4KiB" : "4ms");
            expect_refused(option, option->type == OPTION_TIME ? "5 ms" : "4 KiB");
        }
    }
}

Test(options, choice_accepts_its_words_only)
{
    static const char *const truths[] = {"false", "true"};

    FOR_EACH_OPTION(option)
    {
        if (option->type != OPTION_BOOL && option->type != OPTION_ENUM)
            continue;
        for (int64_t i = 0; i <= option->max; i++) {
            const char *word = option->type == OPTION_BOOL ? truths[i] : option->choices[i];
            char longer[64];
            expect_accepted(option, word, word);
            snprintf(longer, sizeof(longer), "%sx", word);
            expect_refused(option, longer);
            snprintf(longer, sizeof(longer), "%.*s", (int)strlen(word) - 1, word);
            expect_refused(option, longer);
        }
        expect_refused(option, "0");
    }
}

Test(options, text_is_bounded_and_checked)
{
    char longest[512], value[600];

    FOR_EACH_OPTION(option)
    {
        if (!is_text(option))
            continue;
        memset(longest, 'a', sizeof(longest));
        longest[option->max + 1] = '\0';
        expect_refused(option, longest);
        if (option->min > 0)
            expect_refused(option, "\"\"");
        if (option->type == OPTION_TEXT || option->type == OPTION_SECRET) {
            longest[option->max] = '\0';
            expect_accepted(option, longest, option->type == OPTION_SECRET ? "***" : longest);
        } else if (option->type == OPTION_NAME) {
            snprintf(value, sizeof(value), "\"a b\"");
            expect_refused(option, value);
            expect_refused(option, "a/b");
        } else {
            expect_refused(option, "nowhere");
            expect_refused(option, "1.2.3.4:0");
            expect_refused(option, "1.2.3.4:65536");
            expect_refused(option, "::1:80");
        }
    }
}

Test(options, value_of_the_wrong_shape_is_refused_in_a_file)
{
    static const char *const shapes[] = {"{a: 1}", "[[1]]", "", "~", "null", "\"a\\0b\""};

    FOR_EACH_OPTION(option)
    {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            struct config *config = config_create_default();
            char error[TEXT_BYTES] = "", place[128];
            cr_expect_eq(load_one(config, option, shapes[i], error, sizeof(error)), STATUS_INVALID, "%s.%s: %s", section_of(option), option->key, shapes[i]);
            /* A value that is not there is where the next token begins. */
            snprintf(place, sizeof(place), "key '%s.%s': ", section_of(option), option->key);
            cr_expect(strncmp(error, "test.yaml:", 10) == 0 && strstr(error, place) != NULL && strstr(error, "allowed: ") != NULL, "%s", error);
            config_destroy(&config);
        }
    }
}

Test(options, key_given_twice_is_refused)
{
    FOR_EACH_OPTION(option)
    {
        struct config *config = config_create_default();
        char text[TEXT_BYTES], error[TEXT_BYTES] = "", place[128];
        const char *value = option->type == OPTION_ADDRESSES ? "[\"a:1\"]" : option->default_text == NULL ? "a:1"
            : *option->default_text == '\0'                                                               ? "\"\""
                                                                                                          : option->default_text;
        bool is_list = option_sections[option->section].is_list;
        snprintf(text, sizeof(text), "%s:\n  %s%s: %s\n  %s%s: %s\n", section_of(option), is_list ? "- " : "", option->key, value, is_list ? "  " : "", option->key, value);
        cr_expect_eq(config_load_text(config, "test.yaml", text, strlen(text), error, sizeof(error)), STATUS_INVALID);
        snprintf(place, sizeof(place), "test.yaml:3: key '%s.%s': is given twice", section_of(option), option->key);
        cr_expect(strncmp(error, place, strlen(place)) == 0, "%s", error);
        config_destroy(&config);
    }
}

Test(options, unknown_key_lists_what_is_allowed_and_suggests_the_nearest)
{
    FOR_EACH_OPTION(option)
    {
        struct config *config = config_create_default();
        char text[TEXT_BYTES], error[TEXT_BYTES] = "", place[128], nearest[64];
        bool is_list = option_sections[option->section].is_list;
        snprintf(text, sizeof(text), "%s:\n  %s%sx: 1\n", section_of(option), is_list ? "- " : "", option->key);
        cr_expect_eq(config_load_text(config, "test.yaml", text, strlen(text), error, sizeof(error)), STATUS_INVALID);
        snprintf(place, sizeof(place), "test.yaml:2: key '%s.%sx': does not exist", section_of(option), option->key);
        snprintf(nearest, sizeof(nearest), "did you mean '%s'?", option->key);
        cr_expect(strncmp(error, place, strlen(place)) == 0 && strstr(error, nearest) != NULL, "%s", error);
        FOR_EACH_OPTION(other)
        {
            if (other->section == option->section)
                cr_expect(strstr(strstr(error, "allowed: "), other->key) != NULL, "%s is missing in: %s", other->key, error);
        }
        snprintf(text, sizeof(text), "%s.%sx", section_of(option), option->key);
        cr_expect_eq(config_set_option(config, text, "1", error, sizeof(error)), STATUS_INVALID);
        cr_expect(strstr(error, nearest) != NULL, "%s", error);
        config_destroy(&config);
    }
}

Test(options, range_check_notices_what_code_has_set)
{
    FOR_EACH_OPTION(option)
    {
        if (!has_range(option) || option->max >= UINT32_MAX)
            continue;
        struct config *config = config_create_default();
        char error[TEXT_BYTES] = "", key[128];
        uint32_t wrong = (uint32_t)option->max + 1;
        uint64_t wrong_wide = wrong;
        cr_assert_eq(config_add_listener(config, "127.0.0.1:9", error, sizeof(error)), STATUS_OK);
        cr_assert_eq(config_set_backend(config, BACKEND_CLUSTER, "127.0.0.1:2", error, sizeof(error)), STATUS_OK);
        cr_assert_eq(config_set_option(config, "cores.wait_mode", "fixed", error, sizeof(error)), STATUS_OK);
        cr_assert_eq(config_set_option(config, "cores.wait", "1ms", error, sizeof(error)), STATUS_OK);
        cr_assert_eq(config_set_option(config, "cores.wait_completions", "2", error, sizeof(error)), STATUS_OK);
        cr_assert_eq(config_check(config, error, sizeof(error)), STATUS_OK, "%s", error);
        void *field = (char *)option_entry(config, option->section) + option->offset;
        if (option->bytes == sizeof(wrong_wide))
            memcpy(field, &wrong_wide, sizeof(wrong_wide));
        else
            memcpy(field, &wrong, sizeof(wrong));
        cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_INVALID, "%s.%s", section_of(option), option->key);
        snprintf(key, sizeof(key), "key '%s.%s': ", section_of(option), option->key);
        cr_expect(strstr(error, key) != NULL, "%s.%s: %s", section_of(option), option->key, error);
        config_destroy(&config);
    }
}
