/*
 * Prints options.def as YAML with comments: a file that loads and sets every option to its default. docs/configuration.md contains the same text.
 */
#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "core/options.h"

enum { COLUMN_COMMENT = 34, COLUMN_END = 118 };

/* What stands where an option has no default: the example of the documentation. */
static const char *example_of(const struct config_option *option)
{
    if (option == &options_table[OPTION_ID_listeners_address])
        return "127.0.0.1:6380";
    if (option == &options_table[OPTION_ID_backends_cluster])
        return "[\"127.0.0.1:7000\", \"127.0.0.1:7001\"]";
    ZG_CHECK(option == &options_table[OPTION_ID_backends_servers]);
    return "[\"127.0.0.1:7100\", \"127.0.0.1:7101 weight=2\"]";
}

/* Comment lines of at most COLUMN_END columns, each behind `indent` blanks, broken between words. */
static void print_comment(int fd, int indent, const char *text)
{
    while (*text != '\0') {
        size_t room = (size_t)(COLUMN_END - indent - 2);
        size_t length = strlen(text);
        if (length > room) {
            for (length = room; length > 0 && text[length] != ' '; length--)
                ;
            ZG_CHECK(length > 0); /* no word of the table is as long as a line */
        }
        dprintf(fd, "%*s# %.*s\n", indent, "", (int)length, text);
        text += length;
        text += strspn(text, " ");
    }
}

/* "unit: cores; allowed: 1 .. 64 or auto; default: auto" */
static void format_facts(const struct config_option *option, char *text, size_t text_bytes)
{
    char allowed[256], preset[128] = "no default";
    bool has_unit = *option->unit != '\0' && option->type != OPTION_CPUS && option->type != OPTION_ADDRESSES; /* of these two the range says it */

    option_format_allowed(option, allowed, sizeof(allowed));
    if (option->default_text != NULL)
        snprintf(preset, sizeof(preset), "default: %s", *option->default_text != '\0' ? option->default_text : "\"\"");
    snprintf(text, text_bytes, "%s%s%sallowed: %s; %s", has_unit ? "unit: " : "", has_unit ? option->unit : "", has_unit ? "; " : "", allowed, preset);
}

static void print_option(int fd, const struct config_option *option, const char *lead)
{
    char line[256], facts[512];
    bool is_alternative = option == &options_table[OPTION_ID_backends_servers]; /* to cluster, which is printed */
    bool is_quoted = option->default_text != NULL && *option->default_text == '\0';
    const char *value = option->default_text == NULL ? example_of(option) : option->default_text;

    format_facts(option, facts, sizeof(facts));
    print_comment(fd, (int)strlen(lead), option->help);
    snprintf(line, sizeof(line), "%s%s%s: %s", lead, is_alternative ? "# " : "", option->key, is_quoted ? "\"\"" : value);
    dprintf(fd, "%-*s # %s\n", COLUMN_COMMENT, line, facts);
}

/* A list shows one entry; its first line is a dash alone, so that every key can have its comment above it. */
static void print_section(int fd, enum section_id id)
{
    const struct config_section *section = &option_sections[id];

    print_comment(fd, 0, section->help);
    dprintf(fd, "%s:\n%s", section->name, section->is_list ? "  -\n" : "");
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (options_table[i].section == id)
            print_option(fd, &options_table[i], section->is_list ? "    " : "  ");
}

void config_print_options(int fd)
{
    for (enum section_id id = 0; id < SECTION_COUNT; id++) {
        if (id > 0)
            dprintf(fd, "\n");
        print_section(fd, id);
    }
}
