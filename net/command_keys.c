/*
 * Where the keys of a command are: by its key specs, which COMMAND of Redis describes, and by hand for the three commands whose specs
 * say "unknown" or "incomplete". Pure functions of any core. Source: redis.io/docs/reference/key-specs; the answers are those of
 * COMMAND GETKEYS of redis-server 7.0.15.
 */
#include <string.h>

#include "net/command_table.h"

/* Positions are collected here; what has no room is counted only. */
struct positions {
    uint32_t *at;
    uint32_t max;
    uint32_t count;
};

static inline void positions_add(struct positions *positions, uint32_t position)
{
    if (positions->count < positions->max)
        positions->at[positions->count] = position;
    positions->count++;
}

/* Does argument i read as `word` (upper case), in any case? */
static bool arg_is(const struct command_args *args, uint32_t i, const char *word)
{
    uint32_t length = (uint32_t)strlen(word);
    if (args->args[i].length != length)
        return false;
    const uint8_t *bytes = args->base + args->args[i].offset;
    for (uint32_t k = 0; k < length; k++) {
        uint8_t byte = bytes[k] >= 'a' && bytes[k] <= 'z' ? (uint8_t)(bytes[k] - 0x20) : bytes[k];
        if (byte != (uint8_t)word[k])
            return false;
    }
    return true;
}

/* A count of keys as Redis's string2ll reads one: digits only, no leading zero. Counts above the number of arguments are as good as any
 * other wrong one, so that ten digits are enough. */
static bool arg_count(const struct command_args *args, uint32_t i, int64_t *value)
{
    uint32_t length = args->args[i].length;
    const uint8_t *bytes = args->base + args->args[i].offset;
    if (length == 0 || length > 10 || (bytes[0] == '0' && length > 1))
        return false;
    *value = 0;
    for (uint32_t k = 0; k < length; k++) {
        if (bytes[k] < '0' || bytes[k] > '9')
            return false;
        *value = *value * 10 + (bytes[k] - '0');
    }
    return true;
}

/* The argument behind the keyword; 0 where it is not there. The last argument is never the keyword (nor the first, from the end): a
 * keyword with nothing behind it names no key. */
static int64_t keyword_find(const struct key_spec *spec, const struct command_args *args)
{
    int64_t count = args->count;
    if (spec->index > 0) {
        for (int64_t i = spec->index; i < count - 1; i++)
            if (arg_is(args, (uint32_t)i, spec->keyword))
                return i + 1;
    } else {
        for (int64_t i = count + spec->index; i > 1; i--)
            if (i < count && arg_is(args, (uint32_t)i, spec->keyword))
                return i + 1;
    }
    return 0;
}

/* Adds the keys of one spec. STATUS_INVALID: they would lie outside the arguments, or the spec does not tell. */
static enum status spec_keys(const struct command *command, const struct key_spec *spec, const struct command_args *args, struct positions *positions)
{
    int64_t first;
    if (spec->begin == BEGIN_INDEX) {
        first = spec->index;
    } else if (spec->begin == BEGIN_KEYWORD) {
        first = keyword_find(spec, args);
        if (first == 0)
            return STATUS_OK;
    } else {
        return STATUS_INVALID;
    }
    int64_t count = args->count;
    int64_t last;
    if (spec->find == FIND_RANGE) {
        if (spec->last >= 0)
            last = first + spec->last;
        else if (spec->limit <= 1)
            last = count + spec->last;
        else
            last = first + (count - first) / spec->limit + spec->last;
    } else if (spec->find == FIND_KEYNUM) {
        int64_t number;
        if (first + spec->keynum < 1 || first + spec->keynum >= count || !arg_count(args, (uint32_t)(first + spec->keynum), &number))
            return STATUS_INVALID;
        if (number == 0)
            return (command->flags & CMD_NO_MANDATORY_KEYS) != 0 ? STATUS_OK : STATUS_INVALID;
        first += spec->limit;
        last = first + (number - 1) * spec->step;
    } else {
        return STATUS_INVALID;
    }
    if (first < 1 || last < first || last >= count || spec->step < 1)
        return STATUS_INVALID;
    for (int64_t i = first; i <= last; i += spec->step)
        positions_add(positions, (uint32_t)i);
    return STATUS_OK;
}

/* SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] ... [STORE destination]: the last STORE counts, as for the server. */
static void sort_keys(const struct command_args *args, struct positions *positions)
{
    uint32_t store = 0;
    for (uint32_t i = 2; i < args->count; i++) {
        if (arg_is(args, i, "LIMIT"))
            i += 2;
        else if (arg_is(args, i, "GET") || arg_is(args, i, "BY"))
            i += 1;
        else if (i + 1 < args->count && arg_is(args, i, "STORE"))
            store = i + 1;
    }
    positions_add(positions, 1);
    if (store != 0)
        positions_add(positions, store);
}

/* MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password] [AUTH2 user password] [KEYS key ...]. */
static enum status migrate_keys(const struct command_args *args, struct positions *positions)
{
    for (uint32_t i = 6; i < args->count; i++) {
        if (arg_is(args, i, "KEYS")) {
            if (args->args[3].length > 0 || i + 1 == args->count)
                return STATUS_INVALID;
            for (uint32_t k = i + 1; k < args->count; k++)
                positions_add(positions, k);
            return STATUS_OK;
        }
        if (arg_is(args, i, "AUTH"))
            i += 1;
        else if (arg_is(args, i, "AUTH2"))
            i += 2;
    }
    positions_add(positions, 3);
    return STATUS_OK;
}

enum status command_keys(const struct command *command, const struct command_args *args, uint32_t *positions, uint32_t positions_max, uint32_t *count)
{
    struct positions found = {.at = positions, .max = positions_max};
    *count = 0;
    if (command->key_first_simple > 0) {
        if (command->key_first_simple >= args->count)
            return STATUS_INVALID;
        positions_add(&found, command->key_first_simple);
        *count = 1;
        return STATUS_OK;
    }
    if (!command_arity_ok(command, args->count))
        return STATUS_INVALID;
    if (command->index == COMMAND_sort) {
        sort_keys(args, &found);
    } else if (command->index == COMMAND_sort_ro) {
        positions_add(&found, 1);
    } else if (command->index == COMMAND_migrate) {
        enum status status = migrate_keys(args, &found);
        if (status != STATUS_OK)
            return status;
    } else {
        bool has_keys = false;
        for (uint32_t i = 0; i < command->key_specs_count; i++) {
            const struct key_spec *spec = &command->key_specs[i];
            enum status status = spec_keys(command, spec, args, &found);
            if (status != STATUS_OK)
                return status;
            has_keys = true;
        }
        if (has_keys && found.count == 0 && (command->flags & CMD_NO_MANDATORY_KEYS) == 0)
            return STATUS_INVALID;
    }
    *count = found.count;
    return STATUS_OK;
}

/* XREAD [COUNT n] [BLOCK ms] STREAMS ... and XREADGROUP GROUP group consumer ... : BLOCK counts only where the server reads an option,
 * not as the name of a group or of a stream. */
static bool stream_read_blocks(const struct command_args *args, uint32_t first)
{
    for (uint32_t i = first; i < args->count; i++) {
        if (arg_is(args, i, "STREAMS"))
            return false;
        if (arg_is(args, i, "BLOCK"))
            return true;
        if (arg_is(args, i, "COUNT"))
            i += 1;
        else if (arg_is(args, i, "GROUP"))
            i += 2;
    }
    return false;
}

bool command_is_blocking_call(const struct command *command, const struct command_args *args)
{
    if ((command->flags & CMD_BLOCKING) == 0)
        return false;
    if (command->index == COMMAND_xread || command->index == COMMAND_xreadgroup)
        return stream_read_blocks(args, 1);
    return true;
}

/* BY without '*' sorts nothing and GET # gives the element itself: neither reads another key. */
static bool sort_reads_keys(const struct command_args *args)
{
    for (uint32_t i = 2; i < args->count; i++) {
        bool is_by = arg_is(args, i, "BY");
        if (arg_is(args, i, "LIMIT")) {
            i += 2;
        } else if ((is_by || arg_is(args, i, "GET")) && i + 1 < args->count) {
            i += 1;
            const uint8_t *pattern = args->base + args->args[i].offset;
            uint32_t length = args->args[i].length;
            if (is_by ? memchr(pattern, '*', length) != NULL : !(length == 1 && pattern[0] == '#'))
                return true;
        } else if (i + 1 < args->count && arg_is(args, i, "STORE")) {
            i += 1;
        }
    }
    return false;
}

bool command_is_unsupported_call(const struct command *command, const struct command_args *args)
{
    if (command->index == COMMAND_sort || command->index == COMMAND_sort_ro)
        return sort_reads_keys(args);
    return command_is_blocking_call(command, args);
}
