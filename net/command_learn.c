/*
 * Completes the command table from a backend's COMMAND reply, before the table is published. The reply is read twice by the same code:
 * the first pass only checks and counts, so that a malformed reply changes nothing. Runs at start, on one thread.
 *
 * A command is an array of: name, arity, flags, first key, last key, step (Redis 2.8.13), ACL categories (6.0), tips, key specs,
 * subcommands (7.0). What is behind those is passed over.
 */
#include <string.h>

#include "net/command_table.h"
#include "net/resp_read.h"

enum {
    NO_PARENT = UINT16_MAX,
    SHORT_ELEMENTS = 6, /* up to the step */
    SMALL_ARITY_MAX = 4096,
};

struct learn {
    struct command_table *table;
    struct resp_cursor cursor;
    bool is_applied; /* second pass */
    uint32_t added;
};

/* One command as the reply describes it. */
struct description {
    struct command row;
    bool is_nameless;       /* its name fits no row: passed over */
    bool has_specs;         /* all key specs were understood */
    bool specs_are_partial; /* there are specs, but too many, too large or of an unknown kind */
    bool is_legacy;         /* the key spec was made from first key, last key and step */
    int64_t first, last, step;
};

struct flag_name {
    const char *name;
    uint32_t bit;
};

static const struct flag_name flag_names[] = {
#define ZG_FLAG(symbol, text) {text, CMD_##symbol},
#include "net/command_flags.def"
};

static const struct flag_name key_flag_names[] = {
#define ZG_KEY_FLAG(symbol, text) {text, KEY_##symbol},
#include "net/command_flags.def"
};

static const struct flag_name category_names[] = {
#define ZG_CATEGORY(symbol, text) {text, CAT_##symbol},
#include "net/command_flags.def"
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static bool is_text(const struct resp_value *value)
{
    return !value->is_null && (value->type == '+' || value->type == '$' || value->type == '=');
}

static bool is_list(const struct resp_value *value)
{
    return !value->is_null && (value->type == '*' || value->type == '~');
}

/* A map of RESP3, or the flat array that RESP2 has for one. *pairs is set. */
static bool read_map(struct resp_cursor *cursor, uint32_t *pairs)
{
    struct resp_value value;
    if (!resp_read_value(cursor, &value) || value.is_null || (value.type != '%' && value.type != '*'))
        return false;
    uint32_t elements = resp_value_elements(&value);
    *pairs = elements / 2;
    return elements % 2 == 0;
}

static bool read_small(struct resp_cursor *cursor, int16_t *number, bool *fits)
{
    struct resp_value value;
    int64_t integer;
    if (!resp_read_value(cursor, &value) || !resp_value_integer(&value, &integer))
        return false;
    if (integer < -SMALL_ARITY_MAX || integer > SMALL_ARITY_MAX) {
        *fits = false;
        integer = 0;
    }
    *number = (int16_t)integer;
    return true;
}

/* A list of texts, of which those in `names` become bits; others are unknown to this version and passed over. */
static bool read_bits(struct resp_cursor *cursor, const struct flag_name *names, size_t names_count, uint32_t *bits)
{
    struct resp_value list;
    if (!resp_read_value(cursor, &list) || !is_list(&list))
        return false;
    uint32_t elements = resp_value_elements(&list);
    for (uint32_t i = 0; i < elements; i++) {
        struct resp_value value;
        if (!resp_read_value(cursor, &value) || !is_text(&value))
            return false;
        for (size_t k = 0; k < names_count; k++)
            if (resp_value_equals(&value, names[k].name))
                *bits |= names[k].bit;
    }
    return true;
}

static void copy_upper(char *to, const struct resp_value *value)
{
    for (uint32_t i = 0; i < value->length; i++)
        to[i] = value->bytes[i] >= 'a' && value->bytes[i] <= 'z' ? (char)(value->bytes[i] - 0x20) : (char)value->bytes[i];
}

/* The details of begin_search or find_keys: a map of names to numbers and one text. */
static bool read_details(struct resp_cursor *cursor, struct key_spec *spec, bool *fits)
{
    uint32_t pairs;
    if (!read_map(cursor, &pairs))
        return false;
    for (uint32_t i = 0; i < pairs; i++) {
        struct resp_value key, text;
        int16_t ignored;
        if (!resp_read_value(cursor, &key) || !is_text(&key))
            return false;
        if (resp_value_equals(&key, "keyword")) {
            if (!resp_read_value(cursor, &text) || !is_text(&text))
                return false;
            if (text.length == 0 || text.length >= sizeof(spec->keyword))
                *fits = false;
            else
                copy_upper(spec->keyword, &text);
            continue;
        }
        int16_t *number = resp_value_equals(&key, "index") || resp_value_equals(&key, "startfrom") ? &spec->index
            : resp_value_equals(&key, "lastkey")                                                   ? &spec->last
            : resp_value_equals(&key, "limit") || resp_value_equals(&key, "firstkey")              ? &spec->limit
            : resp_value_equals(&key, "keystep")                                                   ? &spec->step
            : resp_value_equals(&key, "keynumidx")                                                 ? &spec->keynum
                                                                                                   : &ignored;
        if (!read_small(cursor, number, fits))
            return false;
    }
    return true;
}

/* {type: text, spec: map}. The kinds of both are told apart by their names. */
static bool read_search(struct resp_cursor *cursor, struct key_spec *spec, bool *fits)
{
    uint32_t pairs;
    if (!read_map(cursor, &pairs))
        return false;
    for (uint32_t i = 0; i < pairs; i++) {
        struct resp_value key, type;
        if (!resp_read_value(cursor, &key) || !is_text(&key))
            return false;
        if (resp_value_equals(&key, "spec")) {
            if (!read_details(cursor, spec, fits))
                return false;
            continue;
        }
        if (!resp_value_equals(&key, "type")) {
            if (!resp_skip_value(cursor))
                return false;
            continue;
        }
        if (!resp_read_value(cursor, &type) || !is_text(&type))
            return false;
        if (resp_value_equals(&type, "index"))
            spec->begin = BEGIN_INDEX;
        else if (resp_value_equals(&type, "keyword"))
            spec->begin = BEGIN_KEYWORD;
        else if (resp_value_equals(&type, "range"))
            spec->find = FIND_RANGE;
        else if (resp_value_equals(&type, "keynum"))
            spec->find = FIND_KEYNUM;
    }
    return true;
}

/* What extraction relies on: positive steps, a place to begin, ends in range. */
static bool spec_is_usable(const struct key_spec *spec)
{
    if (spec->begin == BEGIN_UNKNOWN || spec->find == FIND_UNKNOWN || spec->step < 1)
        return false;
    if (spec->begin == BEGIN_INDEX ? spec->index < 1 : spec->index == 0 || spec->keyword[0] == 0)
        return false;
    return spec->find == FIND_RANGE ? spec->limit >= 0 : spec->limit >= 1 && spec->keynum >= 0;
}

static bool read_key_spec(struct resp_cursor *cursor, struct key_spec *spec, bool *fits)
{
    uint32_t pairs;
    *spec = (struct key_spec){.begin = BEGIN_UNKNOWN, .find = FIND_UNKNOWN};
    if (!read_map(cursor, &pairs))
        return false;
    for (uint32_t i = 0; i < pairs; i++) {
        struct resp_value key;
        uint32_t flags = 0;
        if (!resp_read_value(cursor, &key) || !is_text(&key))
            return false;
        bool is_read;
        if (resp_value_equals(&key, "flags"))
            is_read = read_bits(cursor, key_flag_names, COUNT_OF(key_flag_names), &flags);
        else if (resp_value_equals(&key, "begin_search") || resp_value_equals(&key, "find_keys"))
            is_read = read_search(cursor, spec, fits);
        else
            is_read = resp_skip_value(cursor);
        if (!is_read)
            return false;
        spec->flags = (uint16_t)(spec->flags | flags);
    }
    return true;
}

static bool read_key_specs(struct resp_cursor *cursor, struct description *description)
{
    struct resp_value list;
    if (!resp_read_value(cursor, &list) || !is_list(&list))
        return false;
    uint32_t elements = resp_value_elements(&list);
    description->has_specs = elements > 0;
    for (uint32_t i = 0; i < elements; i++) {
        struct key_spec spec;
        bool fits = true;
        if (!read_key_spec(cursor, &spec, &fits))
            return false;
        if (!fits || i >= COMMAND_KEY_SPECS_MAX || !spec_is_usable(&spec) || (spec.flags & KEY_INCOMPLETE) != 0)
            description->specs_are_partial = true;
        else
            description->row.key_specs[i] = spec;
    }
    return true;
}

/* The own part of a name: what is behind '|' for a subcommand. Names with anything but letters, digits and -_. are passed over: they
 * could not be told from protocol in an error text. */
static void take_name(struct description *description, const struct resp_value *name, bool is_sub)
{
    const uint8_t *bytes = name->bytes;
    uint32_t length = name->length;
    const uint8_t *bar = is_sub && length > 0 ? memchr(bytes, '|', length) : NULL;
    if (bar != NULL) {
        length -= (uint32_t)(bar - bytes) + 1;
        bytes = bar + 1;
    }
    description->is_nameless = length == 0 || length >= COMMAND_NAME_MAX;
    for (uint32_t i = 0; i < length && !description->is_nameless; i++) {
        uint8_t byte = bytes[i] >= 'A' && bytes[i] <= 'Z' ? (uint8_t)(bytes[i] | 0x20) : bytes[i];
        if (!((byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '-' || byte == '_' || byte == '.'))
            description->is_nameless = true;
        description->row.name[i] = (char)byte;
    }
}

/* Servers before 7 have no key specs, but one range. */
static void take_legacy_range(struct description *description)
{
    struct key_spec *spec = &description->row.key_specs[0];
    if (description->has_specs || description->first <= 0)
        return;
    int64_t last = description->last < 0 ? description->last : description->last - description->first;
    bool is_backwards = description->last >= 0 && last < 0;
    if (is_backwards || description->first > SMALL_ARITY_MAX || description->last > SMALL_ARITY_MAX || last < -SMALL_ARITY_MAX || description->step < 1 ||
        description->step > SMALL_ARITY_MAX) {
        description->specs_are_partial = true;
        return;
    }
    *spec = (struct key_spec){
        .begin = BEGIN_INDEX,
        .find = FIND_RANGE,
        .index = (int16_t)description->first,
        .last = (int16_t)last,
        .step = (int16_t)description->step,
        .flags = (description->row.flags & CMD_WRITE) != 0 ? KEY_RW : KEY_RO,
    };
    description->has_specs = true;
    description->is_legacy = true;
    /* Further keys are somewhere the range does not say. */
    description->specs_are_partial = (description->row.flags & CMD_MOVABLEKEYS) != 0;
}

/* What to do about a command that command.def does not have. Where its keys are must be known in full to find their node. */
static enum command_handling handling_of(const struct description *description, const struct command *container)
{
    const struct command *row = &description->row;
    if ((row->flags & CMD_ADMIN) != 0 || (container != NULL && container->handling == HANDLE_REFUSED))
        return HANDLE_REFUSED;
    bool is_keyed = description->has_specs && !description->specs_are_partial;
    return is_keyed && (row->flags & (CMD_BLOCKING | CMD_PUBSUB)) == 0 ? HANDLE_FORWARD : HANDLE_UNSUPPORTED;
}

static uint8_t specs_count(const struct command *row)
{
    uint8_t count = 0;
    while (count < COMMAND_KEY_SPECS_MAX && row->key_specs[count].begin != BEGIN_NONE)
        count++;
    return count;
}

/* Corrects a known row, where the gateway only forwards: what it answers or divides itself relies on the shape that it knows. A reply
 * without key specs (before 7) corrects the arity alone. */
static void correct(struct learn *learn, const struct description *description, const struct command *known)
{
    if (known->handling == HANDLE_LOCAL || known->handling == HANDLE_SPLIT || description->row.arity == 0)
        return;
    bool keeps_specs = !description->has_specs || description->is_legacy || description->specs_are_partial || known->key_specs_count == 0;
    struct key_spec specs[COMMAND_KEY_SPECS_MAX];
    memcpy(specs, keeps_specs ? known->key_specs : description->row.key_specs, sizeof(specs));
    uint8_t count = keeps_specs ? known->key_specs_count : specs_count(&description->row);
    command_table_correct(learn->table, known->index, description->row.arity, specs, count);
}

/* The row of that name, top-level where container is NULL. A container that has had no subcommand yet is not asked: look-up would give
 * the container itself. */
static const struct command *row_known(const struct command_table *table, const struct command *container, const char *name)
{
    bool unknown_sub;
    const uint8_t *own = (const uint8_t *)name;
    uint32_t length = (uint32_t)strlen(name);
    if (container == NULL)
        return command_table_find(table, own, length, NULL, 0, &unknown_sub);
    if (!container->is_container)
        return NULL;
    return command_table_find(table, (const uint8_t *)container->name, (uint32_t)strlen(container->name), own, length, &unknown_sub);
}

/* Second pass: puts the described command into the table. Returns its index, NO_PARENT where it is passed over. */
static uint16_t apply(struct learn *learn, struct description *description, uint16_t parent)
{
    const struct command *container = parent == NO_PARENT ? NULL : command_table_at(learn->table, parent);
    const struct command *known = row_known(learn->table, container, description->row.name);
    if (known != NULL) {
        correct(learn, description, known);
        return known->index;
    }
    if (description->row.arity == 0)
        return NO_PARENT;
    description->row.handling = (uint8_t)handling_of(description, container);
    if (description->specs_are_partial)
        memset(description->row.key_specs, 0, sizeof(description->row.key_specs));
    if ((description->row.flags & CMD_READONLY) != 0)
        description->row.flags |= CMD_IDEMPOTENT;
    if (command_table_add(learn->table, &description->row, parent) != STATUS_OK)
        return NO_PARENT;
    learn->added++;
    return (uint16_t)(command_table_count(learn->table) - 1);
}

static bool read_command(struct learn *learn, uint16_t parent, bool is_sub);

/* Subcommands of a command that was passed over are passed over too. They have no subcommands themselves, so that this goes no deeper. */
static bool read_subcommands(struct learn *learn, uint16_t container, bool is_applied)
{
    struct resp_value list;
    if (!resp_read_value(&learn->cursor, &list) || !is_list(&list))
        return false;
    uint32_t elements = resp_value_elements(&list);
    for (uint32_t i = 0; i < elements; i++) {
        bool is_read = learn->is_applied && !is_applied ? resp_skip_value(&learn->cursor) : read_command(learn, container, true);
        if (!is_read)
            return false;
    }
    return true;
}

/* Elements one to six. */
static bool read_short_part(struct learn *learn, struct description *description, bool is_sub)
{
    struct resp_cursor *cursor = &learn->cursor;
    struct resp_value value;
    bool fits = true;
    if (!resp_read_value(cursor, &value) || !is_text(&value))
        return false;
    take_name(description, &value, is_sub);
    if (!read_small(cursor, &description->row.arity, &fits))
        return false;
    if (!read_bits(cursor, flag_names, COUNT_OF(flag_names), &description->row.flags))
        return false;
    int64_t *numbers[] = {&description->first, &description->last, &description->step};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (!resp_read_value(cursor, &value) || !resp_value_integer(&value, numbers[i]))
            return false;
    return true;
}

static bool read_command(struct learn *learn, uint16_t parent, bool is_sub)
{
    struct resp_cursor *cursor = &learn->cursor;
    struct resp_value list;
    struct description description = {0};
    if (!resp_read_value(cursor, &list) || !is_list(&list))
        return false;
    uint32_t elements = resp_value_elements(&list);
    if (elements < SHORT_ELEMENTS || !read_short_part(learn, &description, is_sub))
        return false;
    if (elements > 6 && !read_bits(cursor, category_names, COUNT_OF(category_names), &description.row.categories))
        return false;
    if (elements > 7 && !resp_skip_value(cursor))
        return false;
    if (elements > 8 && !read_key_specs(cursor, &description))
        return false;
    take_legacy_range(&description);
    uint16_t index = NO_PARENT;
    if (learn->is_applied && !description.is_nameless)
        index = apply(learn, &description, parent);
    if (elements > 9) {
        bool is_read = is_sub ? resp_skip_value(cursor) : read_subcommands(learn, index, index != NO_PARENT);
        if (!is_read)
            return false;
    }
    for (uint32_t i = 10; i < elements; i++)
        if (!resp_skip_value(cursor))
            return false;
    return true;
}

static bool read_reply(struct learn *learn, const uint8_t *reply, uint32_t length)
{
    struct resp_value list;
    resp_cursor_init(&learn->cursor, reply, length);
    if (!resp_read_value(&learn->cursor, &list) || !is_list(&list))
        return false;
    uint32_t elements = resp_value_elements(&list);
    for (uint32_t i = 0; i < elements; i++)
        if (!read_command(learn, NO_PARENT, false))
            return false;
    return learn->cursor.position == length;
}

enum status command_table_learn(struct command_table *table, const uint8_t *reply, uint32_t length, uint32_t *added_count)
{
    struct learn learn = {.table = table};
    *added_count = 0;
    if (!read_reply(&learn, reply, length))
        return STATUS_INVALID;
    learn.is_applied = true;
    bool is_read = read_reply(&learn, reply, length);
    ZG_CHECK(is_read); /* the first pass read the same bytes */
    *added_count = learn.added;
    return STATUS_OK;
}
