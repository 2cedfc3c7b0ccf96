/*
 * The option table as data. No state; every function is pure but for what it writes through its arguments.
 */
#include "core/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/address.h"
#include "core/units.h"

static const char *const option_present_names[] = {"auto", "standalone", "cluster"};
static const char *const option_wait_names[] = {"auto", "fixed", "off"};
static const char *const option_idle_names[] = {"sleep", "adaptive", "spin"};
static const char *const option_doorbell_names[] = {"auto", "msg_ring", "eventfd"};
static const char *const option_level_names[] = {"debug", "info", "notice", "warning", "error"};
_Static_assert(PRESENT_AUTO == 0 && PRESENT_STANDALONE == 1 && PRESENT_CLUSTER == 2, "in the order of the names");
_Static_assert(IDLE_SLEEP == 0 && IDLE_ADAPTIVE == 1 && IDLE_SPIN == 2, "in the order of the names");
_Static_assert(DOORBELL_AUTO == 0 && DOORBELL_MSG_RING == 1 && DOORBELL_EVENTFD == 2, "in the order of the names");
_Static_assert(LOG_DEBUG == 0 && LOG_ERROR == 4 && LOG_LEVEL_COUNT == 5, "in the order of the names");

const struct config_section option_sections[SECTION_COUNT] = {
#define SECTION(name, is_list, offset, help) {#name, is_list, offset, help},
#include "core/options.def"
};

enum { /* where the entry of each section begins, by name */
#define SECTION(name, is_list, offset, help) SECTION_OFFSET_##name = offset,
#include "core/options.def"
};

const struct config_option options_table[OPTION_COUNT] = {
#define OPTION(section, key, field, type, unit, default_text, min, max, choices, reloadable, help) \
    {SECTION_ID_##section, #key, OPTION_##type, offsetof(struct config, field) - SECTION_OFFSET_##section, sizeof(((struct config *)NULL)->field), \
        unit, default_text, min, max, choices, reloadable, help},
#include "core/options.def"
};

/* The field's size follows from the type, so that a row cannot write beside its field. Texts bring their own size. */
enum {
    SIZE_UINT = sizeof(uint32_t), SIZE_POWER = sizeof(uint32_t), SIZE_AUTO = sizeof(uint32_t), SIZE_INT = sizeof(int32_t), SIZE_BYTES = sizeof(uint64_t),
    SIZE_POWER_BYTES = sizeof(uint32_t), SIZE_TIME = sizeof(uint64_t), SIZE_BOOL = sizeof(bool), SIZE_ENUM = sizeof(enum config_idle), SIZE_TEXT = 0,
    SIZE_SECRET = 0, SIZE_NAME = 0, SIZE_LISTEN = 0, SIZE_ANNOUNCE = 0, SIZE_CPUS = 0, SIZE_ADDRESSES = 0,
};
#define OPTION(section, key, field, type, unit, default_text, min, max, choices, reloadable, help) \
    _Static_assert(SIZE_##type == 0 || SIZE_##type == sizeof(((struct config *)NULL)->field), #section "." #key ": type"); \
    _Static_assert((min) <= (max), #section "." #key ": range"); \
    _Static_assert((int)OPTION_##type != (int)OPTION_BOOL || ((min) == 0 && (max) == 1), #section "." #key ": false and true");
#include "core/options.def"

enum status option_fail(char *error, size_t error_bytes, const char *format, ...)
{
    va_list args;

    if (error_bytes == 0)
        return STATUS_INVALID;
    va_start(args, format);
    vsnprintf(error, error_bytes, format, args);
    va_end(args);
    for (char *c = error; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return STATUS_INVALID;
}

const struct config_section *option_section_find(const char *name, size_t length)
{
    for (size_t i = 0; i < SECTION_COUNT; i++)
        if (strlen(option_sections[i].name) == length && memcmp(option_sections[i].name, name, length) == 0)
            return &option_sections[i];
    return NULL;
}

const struct config_option *option_find(enum section_id section, const char *key, size_t length)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct config_option *option = &options_table[i];
        if (option->section == section && strlen(option->key) == length && memcmp(option->key, key, length) == 0)
            return option;
    }
    return NULL;
}

void *option_entry(struct config *config, enum section_id section)
{
    ZG_CHECK(section < SECTION_COUNT);
    return (char *)config + option_sections[section].offset;
}

/* Digits, with is_signed also behind a '-'. False for anything else and beyond 18 digits, which no option allows. */
static bool parse_integer(const char *text, bool is_signed, int64_t *value)
{
    bool is_negative = is_signed && *text == '-';
    const char *digits = is_negative ? text + 1 : text;
    size_t count = strspn(digits, "0123456789");
    int64_t number = 0;

    if (count == 0 || digits[count] != '\0' || count > 18)
        return false;
    for (size_t i = 0; i < count; i++)
        number = number * 10 + (digits[i] - '0');
    *value = is_negative ? -number : number;
    return true;
}

static bool is_number(enum option_type type)
{
    return type == OPTION_UINT || type == OPTION_POWER || type == OPTION_AUTO || type == OPTION_INT;
}

static bool is_size(enum option_type type)
{
    return type == OPTION_BYTES || type == OPTION_POWER_BYTES;
}

static bool is_power(enum option_type type)
{
    return type == OPTION_POWER || type == OPTION_POWER_BYTES;
}

static int64_t find_word(const char *const *words, int64_t count, const char *text)
{
    for (int64_t i = 0; i < count; i++)
        if (strcmp(words[i], text) == 0)
            return i;
    return -1;
}

static const char *const bool_names[] = {"false", "true"};

/* A number, size, time, truth value or choice from text into *value; false with a text where it is none. */
static bool parse_scalar(const struct config_option *option, const char *text, int64_t *value, const char **problem)
{
    uint64_t magnitude = 0;

    if (is_number(option->type)) {
        *problem = "is not a whole number";
        return parse_integer(text, option->type == OPTION_INT, value);
    }
    if (is_size(option->type)) {
        *problem = "is not a size with a unit (B, KiB, MiB, GiB)";
        if (!units_parse_bytes(text, &magnitude))
            return false;
        *value = magnitude > INT64_MAX ? INT64_MAX : (int64_t)magnitude;
        return true;
    }
    if (option->type == OPTION_TIME) {
        *problem = "is not a time with a unit (us, ms, s, m, h)";
        if (!units_parse_time(text, &magnitude))
            return false;
        *value = magnitude > INT64_MAX ? INT64_MAX : (int64_t)magnitude;
        return true;
    }
    bool is_bool = option->type == OPTION_BOOL;
    ZG_CHECK(is_bool || option->type == OPTION_ENUM);
    *problem = is_bool ? "is not a truth value" : "is not one of the words";
    *value = find_word(is_bool ? bool_names : option->choices, option->max + 1, text);
    return *value >= 0;
}

static bool is_value_allowed(const struct config_option *option, int64_t value)
{
    if (value < option->min || value > option->max)
        return false;
    return !is_power(option->type) || (value & (value - 1)) == 0;
}

static void store_scalar(const struct config_option *option, void *field, int64_t value)
{
    if (option->bytes == sizeof(uint64_t))
        *(uint64_t *)field = (uint64_t)value;
    else if (option->type == OPTION_BOOL)
        *(bool *)field = value != 0;
    else if (option->type == OPTION_INT)
        *(int32_t *)field = (int32_t)value;
    else {
        uint32_t narrow = (uint32_t)value; /* an enumeration is an unsigned int too; copied, so that its type does not matter */
        memcpy(field, &narrow, sizeof(narrow));
    }
}

static int64_t load_scalar(const struct config_option *option, const void *field)
{
    uint32_t narrow;

    if (option->bytes == sizeof(uint64_t)) {
        uint64_t wide = *(const uint64_t *)field;
        return wide > INT64_MAX ? INT64_MAX : (int64_t)wide;
    }
    if (option->type == OPTION_BOOL)
        return *(const bool *)field;
    if (option->type == OPTION_INT)
        return *(const int32_t *)field;
    memcpy(&narrow, field, sizeof(narrow));
    return narrow;
}

static enum status set_scalar(const struct config_option *option, void *entry, const char *text, char *error, size_t error_bytes)
{
    char allowed[256];
    const char *problem = NULL;
    int64_t value = 0;

    if (option->type == OPTION_AUTO && strcmp(text, "auto") == 0) {
        store_scalar(option, (char *)entry + option->offset, 0);
        return STATUS_OK;
    }
    option_format_allowed(option, allowed, sizeof(allowed));
    if (!parse_scalar(option, text, &value, &problem))
        return option_fail(error, error_bytes, "'%.80s' %s; allowed: %s", text, problem, allowed);
    if (!is_value_allowed(option, value)) {
        bool is_in_range = value >= option->min && value <= option->max;
        return option_fail(error, error_bytes, "%.80s is %s; allowed: %s", text, is_in_range ? "not a power of two" : "out of range", allowed);
    }
    store_scalar(option, (char *)entry + option->offset, value);
    return STATUS_OK;
}

static bool is_name(const char *text)
{
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")] == '\0';
}

static enum status set_text(const struct config_option *option, void *entry, const char *text, char *error, size_t error_bytes)
{
    struct config_address ignored;
    size_t length = strlen(text);
    enum status status = STATUS_OK;

    ZG_CHECK((size_t)option->max < option->bytes);
    if (length < (size_t)option->min || length > (size_t)option->max)
        return option_fail(error, error_bytes, "a text of %zu bytes is %s; allowed: %jd .. %jd bytes", length, length == 0 ? "empty" : "too long",
            (intmax_t)option->min, (intmax_t)option->max);
    if (option->type == OPTION_NAME && !is_name(text))
        return option_fail(error, error_bytes, "'%.80s' is not a name; allowed: letters, digits, '-', '_' and '.'", text);
    if (option->type == OPTION_LISTEN)
        status = address_check_listener(text, error, error_bytes);
    else if (option->type == OPTION_ANNOUNCE && length > 0)
        status = address_parse(text, false, &ignored, error, error_bytes);
    if (status != STATUS_OK)
        return status;
    memcpy((char *)entry + option->offset, text, length + 1);
    return STATUS_OK;
}

enum status option_set(const struct config_option *option, void *entry, const char *text, char *error, size_t error_bytes)
{
    switch (option->type) {
    case OPTION_UINT:
    case OPTION_POWER:
    case OPTION_AUTO:
    case OPTION_INT:
    case OPTION_BYTES:
    case OPTION_POWER_BYTES:
    case OPTION_TIME:
    case OPTION_BOOL:
    case OPTION_ENUM:
        return set_scalar(option, entry, text, error, error_bytes);
    case OPTION_TEXT:
    case OPTION_SECRET:
    case OPTION_NAME:
    case OPTION_LISTEN:
    case OPTION_ANNOUNCE:
        return set_text(option, entry, text, error, error_bytes);
    case OPTION_CPUS: /* the entry of cores is struct config itself */
        return config_set_cpus(entry, text, error, error_bytes);
    case OPTION_ADDRESSES:
        return config_backend_set(entry, strcmp(option->key, "cluster") == 0 ? BACKEND_CLUSTER : BACKEND_SERVERS, text, error, error_bytes);
    }
    ZG_UNREACHABLE();
}

bool option_is_in_range(const struct config_option *option, const void *entry)
{
    if (option->type > OPTION_ENUM)
        return true;
    return is_value_allowed(option, load_scalar(option, (const char *)entry + option->offset));
}

static void format_scalar(const struct config_option *option, int64_t value, char *text, size_t text_bytes)
{
    if (is_size(option->type))
        units_format_bytes((uint64_t)value, text, text_bytes);
    else if (option->type == OPTION_TIME)
        units_format_time((uint64_t)value, text, text_bytes);
    else if (option->type == OPTION_BOOL)
        snprintf(text, text_bytes, "%s", bool_names[value != 0]);
    else if (option->type == OPTION_ENUM)
        snprintf(text, text_bytes, "%s", value <= option->max ? option->choices[value] : "?");
    else
        snprintf(text, text_bytes, "%jd", (intmax_t)value);
}

/* Appends to text that ends in NUL; what does not fit is cut. */
static void append(char *text, size_t text_bytes, const char *more)
{
    size_t length = strnlen(text, text_bytes);

    if (length < text_bytes)
        snprintf(text + length, text_bytes - length, "%s", more);
}

void option_format_allowed(const struct config_option *option, char *text, size_t text_bytes)
{
    char min[64], max[64];

    text[0] = '\0';
    if (option->type == OPTION_BOOL || option->type == OPTION_ENUM) {
        const char *const *words = option->type == OPTION_BOOL ? bool_names : option->choices;
        ZG_CHECK(words != bool_names || option->max == 1);
        for (int64_t i = 0; i <= option->max; i++) {
            append(text, text_bytes, i > 0 ? ", " : "");
            append(text, text_bytes, words[i]);
        }
    } else if (option->type < OPTION_ENUM) {
        format_scalar(option, option->min, min, sizeof(min));
        format_scalar(option, option->max, max, sizeof(max));
        snprintf(text, text_bytes, "%s .. %s%s%s", min, max, is_power(option->type) ? ", a power of two" : "", option->type == OPTION_AUTO ? " or auto" : "");
    } else if (option->type == OPTION_CPUS || option->type == OPTION_ADDRESSES) {
        snprintf(text, text_bytes, "%jd .. %jd %s", (intmax_t)option->min, (intmax_t)option->max, option->unit);
    } else {
        snprintf(text, text_bytes, "%jd .. %jd bytes", (intmax_t)option->min, (intmax_t)option->max);
    }
}

void option_format_value(const struct config_option *option, const void *entry, char *text, size_t text_bytes)
{
    const char *field = (const char *)entry + option->offset;

    if (option->type <= OPTION_ENUM)
        format_scalar(option, load_scalar(option, field), text, text_bytes);
    else if (option->type == OPTION_CPUS)
        snprintf(text, text_bytes, "%u CPUs", ((const struct config *)entry)->cores.cpus_count);
    else if (option->type == OPTION_ADDRESSES)
        snprintf(text, text_bytes, "%u addresses", ((const struct config_backend *)entry)->addresses_count);
    else if (option->type == OPTION_SECRET)
        snprintf(text, text_bytes, "%s", *field == '\0' ? "" : "***");
    else
        snprintf(text, text_bytes, "%s", field);
}

/* Levenshtein; words beyond 32 bytes count as far from everything. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { WORD_MAX = 32 };
    size_t a_length = strlen(a), b_length = strlen(b);
    size_t row[WORD_MAX + 1];

    if (a_length > WORD_MAX || b_length > WORD_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t shifted = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = replaced < shifted ? replaced : shifted;
        }
    }
    return row[b_length];
}

struct suggestion {
    const char *word;
    size_t distance;
};

static void consider(struct suggestion *best, const char *word, const char *given)
{
    size_t distance = edit_distance(word, given);

    if (distance <= strlen(given) / 3 + 1 && distance < best->distance)
        *best = (struct suggestion){.word = word, .distance = distance};
}

static void append_suggestion(const struct suggestion *best, char *text, size_t text_bytes)
{
    if (best->word != NULL) {
        append(text, text_bytes, "; did you mean '");
        append(text, text_bytes, best->word);
    }
    append(text, text_bytes, best->word != NULL ? "'? allowed: " : "; allowed: ");
}

void option_suggest_key(enum section_id section, const char *key, char *text, size_t text_bytes)
{
    struct suggestion best = {.distance = SIZE_MAX};
    const char *separator = "";

    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (options_table[i].section == section)
            consider(&best, options_table[i].key, key);
    append_suggestion(&best, text, text_bytes);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (options_table[i].section != section)
            continue;
        append(text, text_bytes, separator);
        append(text, text_bytes, options_table[i].key);
        separator = ", ";
    }
}

void option_suggest_section(const char *name, char *text, size_t text_bytes)
{
    struct suggestion best = {.distance = SIZE_MAX};

    for (size_t i = 0; i < SECTION_COUNT; i++)
        consider(&best, option_sections[i].name, name);
    append_suggestion(&best, text, text_bytes);
    for (size_t i = 0; i < SECTION_COUNT; i++) {
        append(text, text_bytes, i > 0 ? ", " : "");
        append(text, text_bytes, option_sections[i].name);
    }
}
