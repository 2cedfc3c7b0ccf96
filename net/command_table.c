/*
 * The command table: rows in one array (so that a row can find its container), and an open-addressing index over them. It is built at
 * start by one thread, completed by command_table_learn, then published and only read, by all cores.
 *
 * Lookup: a name's first and last eight bytes, in lower case, are two words that hold all of a name of up to 16 bytes; they are hash
 * input and comparison at once. Names of 17 to 31 bytes compare what lies between as well.
 */
#include "net/command_table.h"

#include <string.h>

#include "core/alloc.h"
#include "core/check.h"

enum { SLOTS_MIN = 1024, NO_PARENT = UINT16_MAX };

struct slot {
    uint64_t first; /* folded words of the name */
    uint64_t last;
    uint16_t parent; /* NO_PARENT for a top-level command */
    uint16_t index;
    uint32_t length; /* 0: free */
};

struct command_table {
    struct command *rows;
    uint32_t rows_count;
    uint32_t rows_capacity;
    struct slot *slots;
    uint32_t slots_count; /* a power of two, at least twice rows_count */
};

struct words {
    uint64_t first;
    uint64_t last;
};

/* Short names of the flags, for the rows of command.def. */
enum {
#define ZG_FLAG(symbol, text) symbol = CMD_##symbol,
#define ZG_KEY_FLAG(symbol, text) symbol = KEY_##symbol,
#include "net/command_flags.def"
    BARRIER = CMD_BARRIER,
    IDEMPOTENT = CMD_IDEMPOTENT
};

#define NO_KEYS \
    { \
        .begin = BEGIN_NONE \
    }
#define RANGE(index_, last_, step_, limit_, flags_) \
    { \
        .begin = BEGIN_INDEX, .find = FIND_RANGE, .index = (index_), .last = (last_), .step = (step_), .limit = (limit_), .flags = (flags_) \
    }
#define KEY(flags_) RANGE(1, 0, 1, 0, flags_)
#define KEYNUM(index_, flags_) \
    { \
        .begin = BEGIN_INDEX, .find = FIND_KEYNUM, .index = (index_), .keynum = 0, .limit = 1, .step = 1, .flags = (flags_) \
    }
#define KEYWORD(keyword_, from_, last_, step_, limit_, flags_) \
    { \
        .begin = BEGIN_KEYWORD, .find = FIND_RANGE, .keyword = keyword_, .index = (from_), \
        .last = (last_), .step = (step_), .limit = (limit_), .flags = (flags_) \
    }
#define UNKNOWN(flags_) \
    { \
        .begin = BEGIN_UNKNOWN, .find = FIND_UNKNOWN, .flags = (flags_) \
    }

/* What both kinds of rows have. */
#define ROW(name_, arity_, flags_, categories_, handling_, merge_, local_) \
    .name = name_, .arity = (arity_), .flags = (flags_), .categories = (categories_), \
    .handling = HANDLE_##handling_, .merge = MERGE_##merge_, .local = LOCAL_##local_

/* The rows as written; counts, indexes and the fast path are filled in at create. */
static const struct command built_in[COMMAND_BUILT_IN_COUNT] = {
#define ZG_COMMAND(symbol_, name_, arity_, flags_, categories_, handling_, merge_, local_, ...) \
    [COMMAND_##symbol_] = {ROW(name_, arity_, flags_, categories_, handling_, merge_, local_), \
        .parent = NO_PARENT, .key_specs = {__VA_ARGS__}},
#define ZG_SUBCOMMAND(container_, symbol_, name_, arity_, flags_, categories_, handling_, merge_, local_, ...) \
    [COMMAND_##container_##__##symbol_] = {ROW(name_, arity_, flags_, categories_, handling_, merge_, local_), \
        .parent = COMMAND_##container_, .key_specs = {__VA_ARGS__}},
#include "net/command.def"
};

/* ASCII upper case to lower case, eight bytes at once; all other bytes stay. */
static inline uint64_t fold(uint64_t word)
{
    const uint64_t high = UINT64_C(0x8080808080808080);
    uint64_t low_bits = word & ~high;
    uint64_t above_z = low_bits + UINT64_C(0x2525252525252525); /* 0x7f - 'Z': the high bit is set above 'Z' */
    uint64_t from_a = low_bits + UINT64_C(0x3f3f3f3f3f3f3f3f);  /* 0x80 - 'A': the high bit is set from 'A' */
    uint64_t is_upper = (from_a ^ above_z) & ~word & high;
    return word | (is_upper >> 2);
}

static inline uint64_t load_64(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

static inline uint64_t load_32(const uint8_t *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

/* Reads no byte outside the name. Overlapping loads put the same byte at the same place, so that OR is right (little endian: the bytes
 * of a short name). length > 0. */
static inline struct words words_of(const uint8_t *name, uint32_t length)
{
    struct words words = {0, 0};
    if (length >= 8) {
        words.first = fold(load_64(name));
        words.last = length == 8 ? 0 : fold(load_64(name + length - 8));
    } else if (length >= 4) {
        words.first = fold(load_32(name) | load_32(name + length - 4) << ((length - 4) * 8));
    } else {
        words.first = fold((uint64_t)name[0] | (uint64_t)name[length / 2] << (length / 2 * 8) | (uint64_t)name[length - 1] << ((length - 1) * 8));
    }
    return words;
}

static inline uint32_t hash_of(struct words words, uint32_t length, uint16_t parent)
{
    uint64_t mixed = (words.first ^ parent) * UINT64_C(0x9e3779b97f4a7c15) ^ (words.last + length) * UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)((mixed ^ mixed >> 29) >> 20);
}

static inline uint8_t lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte | 0x20) : byte;
}

/* Names above 16 bytes: what the two words do not cover. */
static bool middle_equal(const struct command *row, const uint8_t *name, uint32_t length)
{
    for (uint32_t i = 8; i < length - 8; i++)
        if (lower(name[i]) != (uint8_t)row->name[i])
            return false;
    return true;
}

static inline const struct command *lookup(const struct command_table *table, uint16_t parent, const uint8_t *name, uint32_t length)
{
    if (length == 0 || length >= COMMAND_NAME_MAX)
        return NULL;
    struct words words = words_of(name, length);
    uint32_t mask = table->slots_count - 1;
    /* The table is at most half full, so that a free slot ends the search. */
    for (uint32_t i = hash_of(words, length, parent) & mask;; i = (i + 1) & mask) {
        const struct slot *slot = &table->slots[i];
        if (slot->length == 0)
            return NULL;
        if (slot->first != words.first || slot->last != words.last || slot->length != length || slot->parent != parent)
            continue;
        const struct command *row = &table->rows[slot->index];
        if (length <= 16 || middle_equal(row, name, length))
            return row;
    }
}

static void slot_insert(struct command_table *table, const struct command *row)
{
    uint32_t length = (uint32_t)strlen(row->name);
    uint16_t parent = row->parent == row->index ? NO_PARENT : row->parent;
    struct words words = words_of((const uint8_t *)row->name, length);
    uint32_t mask = table->slots_count - 1;
    uint32_t i = hash_of(words, length, parent) & mask;
    while (table->slots[i].length != 0)
        i = (i + 1) & mask;
    table->slots[i] = (struct slot){.first = words.first, .last = words.last, .parent = parent, .index = row->index, .length = length};
}

static void slots_build(struct command_table *table, uint32_t slots_count)
{
    alloc_free(table->slots);
    table->slots = alloc_zeroed(slots_count * sizeof(struct slot));
    table->slots_count = slots_count;
    for (uint32_t i = 0; i < table->rows_count; i++)
        slot_insert(table, &table->rows[i]);
}

/* What follows from the key specs. */
static void row_complete(struct command *row)
{
    row->key_specs_count = 0;
    while (row->key_specs_count < COMMAND_KEY_SPECS_MAX && row->key_specs[row->key_specs_count].begin != BEGIN_NONE)
        row->key_specs_count++;
    const struct key_spec *spec = &row->key_specs[0];
    bool is_range = row->key_specs_count == 1 && spec->begin == BEGIN_INDEX && spec->find == FIND_RANGE;
    bool is_simple = is_range && spec->last == 0 && spec->index > 0 && spec->index < UINT8_MAX &&
        (spec->flags & (KEY_NOT_KEY | KEY_INCOMPLETE)) == 0;
    row->key_first_simple = is_simple ? (uint8_t)spec->index : 0;
}

enum status command_table_add(struct command_table *table, const struct command *row, uint16_t parent)
{
    size_t length = strnlen(row->name, COMMAND_NAME_MAX);
    if (length == 0 || length == COMMAND_NAME_MAX)
        return STATUS_INVALID;
    if (parent != NO_PARENT && (parent >= table->rows_count || table->rows[parent].parent != parent))
        return STATUS_INVALID;
    if (lookup(table, parent, (const uint8_t *)row->name, (uint32_t)length) != NULL)
        return STATUS_INVALID;
    if (table->rows_count == COMMAND_ROWS_MAX)
        return STATUS_FULL;
    if (table->rows_count == table->rows_capacity) {
        table->rows_capacity *= 2;
        table->rows = alloc_resize(table->rows, table->rows_capacity * sizeof(struct command));
    }
    struct command *added = &table->rows[table->rows_count];
    *added = *row;
    for (size_t i = 0; i < length; i++)
        added->name[i] = (char)lower((uint8_t)added->name[i]);
    added->index = (uint16_t)table->rows_count++;
    added->parent = parent == NO_PARENT ? added->index : parent;
    added->is_learned = true;
    row_complete(added);
    if (parent != NO_PARENT)
        table->rows[parent].is_container = true;
    if (table->rows_count * 2 > table->slots_count)
        slots_build(table, table->slots_count * 2);
    else
        slot_insert(table, added);
    return STATUS_OK;
}

void command_table_correct(struct command_table *table, uint16_t index, int16_t arity, const struct key_spec *key_specs, uint8_t key_specs_count)
{
    ZG_CHECK(index < table->rows_count && key_specs_count <= COMMAND_KEY_SPECS_MAX && arity != 0);
    struct command *row = &table->rows[index];
    row->arity = arity;
    memset(row->key_specs, 0, sizeof(row->key_specs));
    if (key_specs_count > 0)
        memcpy(row->key_specs, key_specs, key_specs_count * sizeof(struct key_spec));
    row_complete(row);
}

struct command_table *command_table_create(void)
{
    struct command_table *table = alloc_zeroed(sizeof(*table));
    table->rows_capacity = COMMAND_BUILT_IN_COUNT;
    table->rows = alloc_zeroed(table->rows_capacity * sizeof(struct command));
    memcpy(table->rows, built_in, sizeof(built_in));
    table->rows_count = COMMAND_BUILT_IN_COUNT;
    for (uint32_t i = 0; i < table->rows_count; i++) {
        struct command *row = &table->rows[i];
        row->index = (uint16_t)i;
        if (row->parent == NO_PARENT)
            row->parent = row->index;
        else
            table->rows[row->parent].is_container = true;
        row_complete(row);
    }
    slots_build(table, SLOTS_MIN);
    ZG_CHECK(table->rows_count * 2 <= table->slots_count);
    return table;
}

void command_table_destroy(struct command_table **table)
{
    if (*table == NULL)
        return;
    alloc_free((*table)->rows);
    alloc_free((*table)->slots);
    alloc_free(*table);
    *table = NULL;
}

const struct command *command_table_find(const struct command_table *table, const uint8_t *name, uint32_t name_length, const uint8_t *sub,
    uint32_t sub_length, bool *unknown_sub)
{
    *unknown_sub = false;
    const struct command *command = lookup(table, NO_PARENT, name, name_length);
    if (command == NULL || !command->is_container || sub == NULL)
        return command;
    const struct command *found = lookup(table, command->index, sub, sub_length);
    *unknown_sub = found == NULL;
    return found;
}

const struct command *command_table_at(const struct command_table *table, uint16_t index)
{
    ZG_CHECK(index < table->rows_count);
    return &table->rows[index];
}

uint16_t command_table_count(const struct command_table *table)
{
    return (uint16_t)table->rows_count;
}

const struct command *command_parent(const struct command *command)
{
    return command->parent == command->index ? NULL : command + ((int32_t)command->parent - (int32_t)command->index);
}

uint32_t command_full_name(const struct command *command, char *text)
{
    const struct command *parent = command_parent(command);
    uint32_t length = 0;
    if (parent != NULL) {
        length = (uint32_t)strlen(parent->name);
        memcpy(text, parent->name, length);
        text[length++] = '|';
    }
    size_t own = strlen(command->name);
    memcpy(text + length, command->name, own + 1);
    return length + (uint32_t)own;
}

bool command_arity_ok(const struct command *command, uint32_t args_count)
{
    return command->arity > 0 ? args_count == (uint32_t)command->arity : args_count >= (uint32_t)-command->arity;
}
