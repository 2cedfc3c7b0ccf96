/*
 * COMMAND: what the gateway knows about commands, in the shape of Redis 7 (ten elements a command). COMMAND and COMMAND DOCS hand on
 * the backend's own reply where it is known, since that has what the table does not keep (notes, tips, documentation). Runs on any
 * core; the table is immutable.
 */
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "net/session_handlers.h"

enum { KEYS_ON_STACK = 64, NAME_BYTES = COMMAND_NAME_MAX * 2 };

struct bit_name {
    uint32_t bit;
    const char *name;
};

static const struct bit_name flag_names[] = {
#define ZG_FLAG(symbol, text) {CMD_##symbol, text},
#include "net/command_flags.def"
};

static const struct bit_name key_flag_names[] = {
#define ZG_KEY_FLAG(symbol, text) {KEY_##symbol, text},
#include "net/command_flags.def"
};

static const struct bit_name category_names[] = {
#define ZG_CATEGORY(symbol, text) {CAT_##symbol, text},
#include "net/command_flags.def"
};

enum {
    FLAGS_COUNT = sizeof(flag_names) / sizeof(flag_names[0]),
    KEY_FLAGS_COUNT = sizeof(key_flag_names) / sizeof(key_flag_names[0]),
    CATEGORIES_COUNT = sizeof(category_names) / sizeof(category_names[0]),
};

/* The explicit categories and those that follow from the flags. */
static uint32_t categories_of(const struct command *row)
{
    uint32_t categories = row->categories;
    uint32_t flags = row->flags;
    if ((flags & CMD_WRITE) != 0)
        categories |= CAT_WRITE;
    if ((flags & CMD_READONLY) != 0 && (categories & CAT_SCRIPTING) == 0)
        categories |= CAT_READ;
    if ((flags & CMD_ADMIN) != 0)
        categories |= CAT_ADMIN | CAT_DANGEROUS;
    if ((flags & CMD_PUBSUB) != 0)
        categories |= CAT_PUBSUB;
    if ((flags & CMD_BLOCKING) != 0)
        categories |= CAT_BLOCKING;
    return categories | ((flags & CMD_FAST) != 0 ? CAT_FAST : CAT_SLOW);
}

static void write_bits(struct resp_writer *writer, uint32_t bits, const struct bit_name *names, size_t names_count)
{
    uint32_t count = 0;
    for (size_t i = 0; i < names_count; i++)
        count += (bits & names[i].bit) != 0 ? 1 : 0;
    resp_write_set(writer, count);
    for (size_t i = 0; i < names_count; i++)
        if ((bits & names[i].bit) != 0)
            resp_write_simple(writer, names[i].name);
}

struct legacy_range {
    int32_t first, last, step;
};

/* The first key, last key and step of clients older than key specs: as Redis 7 derives them. One range as it is; several ranges joined
 * where each follows the one before. */
static struct legacy_range legacy_range_of(const struct command *row)
{
    struct legacy_range range = {0, 0, 0};
    const struct key_spec *spec = row->key_specs;
    if (row->key_specs_count == 1 && spec->begin == BEGIN_INDEX && spec->find == FIND_RANGE)
        return (struct legacy_range){spec->index, spec->last >= 0 ? spec->index + spec->last : spec->last, spec->step};
    int32_t previous = 0;
    for (uint32_t i = 0; i < row->key_specs_count; i++, spec++) {
        if (spec->begin != BEGIN_INDEX || spec->find != FIND_RANGE || spec->step != 1 || (previous != 0 && previous != spec->index - 1))
            continue;
        int32_t last = spec->last >= 0 ? spec->index + spec->last : spec->last;
        if (range.first == 0 || spec->index < range.first)
            range.first = spec->index;
        /* Negative ends count from the end, which is behind every position: compared as unsigned they are the larger ones. */
        if ((uint32_t)last > (uint32_t)range.last)
            range.last = last;
        range.step = 1;
        previous = range.last;
    }
    return range;
}

static void write_named(struct resp_writer *writer, const char *name, int32_t value)
{
    resp_write_text(writer, name);
    resp_write_integer(writer, value);
}

static void write_key_spec(struct resp_writer *writer, const struct key_spec *spec)
{
    resp_write_map(writer, 3);
    resp_write_text(writer, "flags");
    write_bits(writer, spec->flags, key_flag_names, KEY_FLAGS_COUNT);
    resp_write_text(writer, "begin_search");
    resp_write_map(writer, 2);
    resp_write_text(writer, "type");
    resp_write_text(writer, spec->begin == BEGIN_INDEX ? "index" : spec->begin == BEGIN_KEYWORD ? "keyword"
                                                                                                : "unknown");
    resp_write_text(writer, "spec");
    if (spec->begin == BEGIN_INDEX) {
        resp_write_map(writer, 1);
        write_named(writer, "index", spec->index);
    } else if (spec->begin == BEGIN_KEYWORD) {
        resp_write_map(writer, 2);
        resp_write_text(writer, "keyword");
        resp_write_text(writer, spec->keyword);
        write_named(writer, "startfrom", spec->index);
    } else {
        resp_write_map(writer, 0);
    }
    resp_write_text(writer, "find_keys");
    resp_write_map(writer, 2);
    resp_write_text(writer, "type");
    resp_write_text(writer, spec->find == FIND_RANGE ? "range" : spec->find == FIND_KEYNUM ? "keynum"
                                                                                           : "unknown");
    resp_write_text(writer, "spec");
    if (spec->find == FIND_RANGE) {
        resp_write_map(writer, 3);
        write_named(writer, "lastkey", spec->last);
        write_named(writer, "keystep", spec->step);
        write_named(writer, "limit", spec->limit);
    } else if (spec->find == FIND_KEYNUM) {
        resp_write_map(writer, 3);
        write_named(writer, "keynumidx", spec->keynum);
        write_named(writer, "firstkey", spec->limit);
        write_named(writer, "keystep", spec->step);
    } else {
        resp_write_map(writer, 0);
    }
}

static bool is_top_level(const struct command *row)
{
    return row->parent == row->index;
}

/* One command with its subcommands, which have none themselves. */
static void write_row(struct resp_writer *writer, const struct command_table *table, const struct command *row)
{
    char name[NAME_BYTES];
    (void)command_full_name(row, name);
    struct legacy_range range = legacy_range_of(row);
    resp_write_array(writer, 10);
    resp_write_text(writer, name);
    resp_write_integer(writer, row->arity);
    write_bits(writer, row->flags, flag_names, FLAGS_COUNT);
    resp_write_integer(writer, range.first);
    resp_write_integer(writer, range.last);
    resp_write_integer(writer, range.step);
    write_bits(writer, categories_of(row), category_names, CATEGORIES_COUNT);
    resp_write_set(writer, 0);
    resp_write_set(writer, row->key_specs_count);
    for (uint32_t i = 0; i < row->key_specs_count; i++)
        write_key_spec(writer, &row->key_specs[i]);
    if (!row->is_container) {
        resp_write_set(writer, 0);
        return;
    }
    uint32_t count = 0;
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        const struct command *other = command_table_at(table, i);
        count += !is_top_level(other) && other->parent == row->index ? 1 : 0;
    }
    resp_write_array(writer, count);
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        const struct command *other = command_table_at(table, i);
        if (!is_top_level(other) && other->parent == row->index)
            write_row(writer, table, other);
    }
}

static uint32_t top_level_count(const struct command_table *table)
{
    uint32_t count = 0;
    for (uint16_t i = 0; i < command_table_count(table); i++)
        count += is_top_level(command_table_at(table, i)) ? 1 : 0;
    return count;
}

static void write_all(struct session_call *call)
{
    const struct command_table *table = call->env->commands;
    resp_write_array(call->writer, top_level_count(table));
    for (uint16_t i = 0; i < command_table_count(table); i++)
        if (is_top_level(command_table_at(table, i)))
            write_row(call->writer, table, command_table_at(table, i));
}

/* Hands on the backend's reply where there is one in this protocol. */
static bool write_from_backend(struct session_call *call, bool docs)
{
    uint32_t length = 0;
    const uint8_t *reply = call->env->ops->command_reply(call->env->context, call->session->protocol, docs, &length);
    if (reply == NULL || length == 0)
        return false;
    resp_write_raw(call->writer, reply, length);
    return true;
}

void session_local_command(struct session_call *call)
{
    if (!write_from_backend(call, false))
        write_all(call);
}

void session_local_command_count(struct session_call *call)
{
    resp_write_integer(call->writer, top_level_count(call->env->commands));
}

/* The row that argument i names: "get", "config" or "config|get". NULL where there is none. */
static const struct command *row_named(const struct session_call *call, uint32_t i)
{
    const uint8_t *name = session_arg(call, i);
    uint32_t length = session_arg_length(call, i);
    const uint8_t *bar = memchr(name, '|', length);
    uint32_t name_length = bar == NULL ? length : (uint32_t)(bar - name);
    bool unknown_sub;
    const struct command *row = command_table_find(call->env->commands, name, name_length, NULL, 0, &unknown_sub);
    if (row == NULL || bar == NULL)
        return row;
    return row->is_container ? command_table_find(call->env->commands, name, name_length, bar + 1, length - name_length - 1, &unknown_sub) : NULL;
}

void session_local_command_info(struct session_call *call)
{
    uint32_t count = call->args->count;
    if (count == 2) {
        write_all(call);
        return;
    }
    resp_write_array(call->writer, count - 2);
    for (uint32_t i = 2; i < count; i++) {
        const struct command *row = row_named(call, i);
        if (row == NULL)
            resp_write_null(call->writer);
        else
            write_row(call->writer, call->env->commands, row);
    }
}

/* Without the backend's documentation the gateway tells what it does with a command. */
static const char *summary_of(const struct command *row)
{
    switch ((enum command_handling)row->handling) {
    case HANDLE_FORWARD:
        return "Forwarded to the node that serves its keys, which must be in one slot";
    case HANDLE_SPLIT:
        return "Divided by hash slot; the replies are joined";
    case HANDLE_LOCAL:
        return "Answered by the gateway itself";
    case HANDLE_UNSUPPORTED:
        return "Not supported by this version of the gateway";
    case HANDLE_REFUSED:
        return "Not allowed through the gateway";
    }
    ZG_UNREACHABLE();
}

/* Redis's groups of commands, as far as categories tell. */
static const char *group_of(const struct command *row)
{
    static const struct bit_name groups[] = {
        {CAT_TRANSACTION, "transactions"},
        {CAT_CONNECTION, "connection"},
        {CAT_PUBSUB, "pubsub"},
        {CAT_SCRIPTING, "scripting"},
        {CAT_STREAM, "stream"},
        {CAT_GEO, "geo"},
        {CAT_HYPERLOGLOG, "hyperloglog"},
        {CAT_BITMAP, "bitmap"},
        {CAT_KEYSPACE, "generic"},
        {CAT_HASH, "hash"},
        {CAT_LIST, "list"},
        {CAT_SORTEDSET, "sorted-set"},
        {CAT_SET, "set"},
        {CAT_STRING, "string"},
    };
    uint32_t categories = categories_of(row);
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        if ((categories & groups[i].bit) != 0)
            return groups[i].name;
    return "server";
}

static void write_docs(struct resp_writer *writer, const struct command *row)
{
    char name[NAME_BYTES];
    (void)command_full_name(row, name);
    resp_write_text(writer, name);
    resp_write_map(writer, 2);
    resp_write_text(writer, "summary");
    resp_write_text(writer, summary_of(row));
    resp_write_text(writer, "group");
    resp_write_text(writer, group_of(row));
}

void session_local_command_docs(struct session_call *call)
{
    const struct command_table *table = call->env->commands;
    uint32_t count = call->args->count;
    if (count == 2) {
        if (write_from_backend(call, true))
            return;
        resp_write_map(call->writer, top_level_count(table));
        for (uint16_t i = 0; i < command_table_count(table); i++)
            if (is_top_level(command_table_at(table, i)))
                write_docs(call->writer, command_table_at(table, i));
        return;
    }
    uint32_t known = 0;
    for (uint32_t i = 2; i < count; i++)
        known += row_named(call, i) != NULL ? 1 : 0;
    resp_write_map(call->writer, known);
    for (uint32_t i = 2; i < count; i++) {
        const struct command *row = row_named(call, i);
        if (row != NULL)
            write_docs(call->writer, row);
    }
}

enum list_filter { FILTER_NONE, FILTER_MODULE, FILTER_CATEGORY, FILTER_PATTERN };

/* The gateway knows of no modules by name: their filter lets nothing through. */
static bool list_has(const struct session_call *call, enum list_filter filter, uint32_t category, const struct command *row)
{
    char name[NAME_BYTES];
    switch (filter) {
    case FILTER_NONE:
        return true;
    case FILTER_MODULE:
        return false;
    case FILTER_CATEGORY:
        return (categories_of(row) & category) != 0;
    case FILTER_PATTERN:
        (void)command_full_name(row, name);
        return session_glob(session_arg(call, 4), session_arg_length(call, 4), name);
    }
    ZG_UNREACHABLE();
}

void session_local_command_list(struct session_call *call)
{
    const struct command_table *table = call->env->commands;
    enum list_filter filter = FILTER_NONE;
    uint32_t category = 0;
    if (call->args->count == 5 && session_arg_is(call, 2, "filterby")) {
        if (session_arg_is(call, 3, "module"))
            filter = FILTER_MODULE;
        else if (session_arg_is(call, 3, "aclcat"))
            filter = FILTER_CATEGORY;
        else if (session_arg_is(call, 3, "pattern"))
            filter = FILTER_PATTERN;
    }
    if (call->args->count != 2 && filter == FILTER_NONE) {
        session_syntax_error(call);
        return;
    }
    for (uint32_t i = 0; filter == FILTER_CATEGORY && i < CATEGORIES_COUNT; i++)
        if (session_arg_is(call, 4, category_names[i].name + 1))
            category = category_names[i].bit;
    uint32_t count = 0;
    for (uint16_t i = 0; i < command_table_count(table); i++)
        count += list_has(call, filter, category, command_table_at(table, i)) ? 1 : 0;
    resp_write_array(call->writer, count);
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        char name[NAME_BYTES];
        if (!list_has(call, filter, category, command_table_at(table, i)))
            continue;
        (void)command_full_name(command_table_at(table, i), name);
        resp_write_text(call->writer, name);
    }
}

static bool has_keys(const struct command *row)
{
    for (uint32_t i = 0; i < row->key_specs_count; i++)
        if ((row->key_specs[i].flags & KEY_NOT_KEY) == 0)
            return true;
    return false;
}

static void write_keys(struct session_call *call, const struct command *row, const struct command_args *inner)
{
    uint32_t on_stack[KEYS_ON_STACK];
    uint32_t *positions = on_stack;
    uint32_t count;
    enum status status = command_keys(row, inner, positions, KEYS_ON_STACK, &count);
    /* As the server: a script's wrong number of keys reads as none. */
    if (status != STATUS_OK && (row->flags & CMD_NO_MANDATORY_KEYS) != 0) {
        resp_write_array(call->writer, 0);
        return;
    }
    if (status != STATUS_OK) {
        resp_write_error(call->writer, "ERR Invalid arguments specified for command");
        return;
    }
    /* Rare: more keys than fit the stack. Their number is bounded by that of the arguments. */
    if (count > KEYS_ON_STACK) {
        positions = alloc_zeroed(count * sizeof(*positions));
        status = command_keys(row, inner, positions, count, &count);
        ZG_CHECK(status == STATUS_OK);
    }
    resp_write_array(call->writer, count);
    for (uint32_t i = 0; i < count; i++)
        resp_write_bulk(call->writer, inner->base + inner->args[positions[i]].offset, inner->args[positions[i]].length);
    if (positions != on_stack)
        alloc_free(positions);
}

void session_local_command_getkeys(struct session_call *call)
{
    struct command_args inner = {.base = call->args->base, .args = call->args->args + 2, .count = call->args->count - 2};
    bool unknown_sub;
    /* Its arity says that there is at least one argument behind the name. */
    const struct resp_arg *name = &inner.args[0], *sub = &inner.args[1];
    const struct command *row = command_table_find(call->env->commands, inner.base + name->offset, name->length, inner.base + sub->offset,
        sub->length, &unknown_sub);
    if (row == NULL)
        resp_write_error(call->writer, "ERR Invalid command specified");
    else if (!has_keys(row))
        resp_write_error(call->writer, "ERR The command has no key arguments");
    else if (!command_arity_ok(row, inner.count))
        resp_write_error(call->writer, "ERR Invalid number of arguments specified for command");
    else
        write_keys(call, row, &inner);
}
