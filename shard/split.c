/*
 * Divides a command by slot in three passes over its keys: find the part of each key and count, lay the parts out one behind the other,
 * copy the arguments. Pure but for the scratch memory of the splitter, which belongs to one core.
 */
#include "shard/split.h"

#include <string.h>

#include "core/alloc.h"
#include "core/check.h"

enum { PART_NONE = UINT16_MAX }; /* above every part's index: there are at most SPLIT_SLOTS_COUNT parts by slot */
_Static_assert((int)SPLIT_SLOTS_COUNT < (int)PART_NONE, "an index of a part fits");

/* Where the keys of a command are: from args[1] on, each followed by step - 1 other arguments. */
struct layout {
    const struct command_args *args;
    uint32_t keys_count;
    uint32_t step;
};

/* Room for `needed` elements and half as many again, so that a steady load allocates nothing; given back where the last command was much larger than
 * usual. Contents are lost. */
static void *scratch_resize(void *memory, uint32_t *capacity, uint64_t needed, size_t element_bytes)
{
    const bool is_excessive = *capacity * (uint64_t)element_bytes > SPLIT_KEEP_BYTES && *capacity / 4 > needed;
    if (needed <= *capacity && !is_excessive)
        return memory;
    uint64_t wanted = needed < 64 ? 64 : needed + needed / 2;
    if (wanted > UINT32_MAX)
        wanted = needed;
    ZG_CHECK(wanted <= UINT32_MAX);
    alloc_free(memory);
    *capacity = (uint32_t)wanted;
    return alloc_zeroed(wanted * element_bytes);
}

static uint32_t digits_count(uint32_t value)
{
    uint32_t count = 1;
    while (value >= 10) {
        value /= 10;
        count++;
    }
    return count;
}

/* Bytes of "$3\r\nabc\r\n". */
static uint64_t bulk_bytes(uint32_t length) { return 1 + digits_count(length) + 2 + (uint64_t)length + 2; }

/* Writes "*12\r\n" or "$12\r\n"; returns how many bytes. */
static uint32_t put_header(uint8_t *at, char type, uint32_t value)
{
    const uint32_t digits = digits_count(value);
    at[0] = (uint8_t)type;
    for (uint32_t i = digits; i > 0; i--) {
        at[i] = (uint8_t)('0' + value % 10);
        value /= 10;
    }
    at[digits + 1] = '\r';
    at[digits + 2] = '\n';
    return digits + 3;
}

static uint32_t put_bulk(uint8_t *at, const uint8_t *bytes, uint32_t length)
{
    uint32_t used = put_header(at, '$', length);
    if (length > 0)
        memcpy(at + used, bytes, length);
    used += length;
    at[used] = '\r';
    at[used + 1] = '\n';
    return used + 2;
}

static enum status find_layout(const struct command *command, const struct command_args *args, struct layout *layout)
{
    const struct key_spec *spec = &command->key_specs[0];
    ZG_CHECK(command->key_specs_count == 1 && spec->begin == BEGIN_INDEX && spec->index == 1 && spec->find == FIND_RANGE &&
        spec->last == -1 && spec->limit == 0 && spec->step >= 1);
    const uint32_t step = (uint32_t)spec->step;
    if (args->count < 1 + step || (args->count - 1) % step != 0)
        return STATUS_INVALID;
    *layout = (struct layout){.args = args, .keys_count = (args->count - 1) / step, .step = step};
    return STATUS_OK;
}

static uint32_t part_add(struct splitter *splitter, uint32_t parts_count, uint16_t slot, uint32_t first_key)
{
    ZG_CHECK(parts_count < splitter->parts_capacity);
    splitter->parts[parts_count] = (struct split_part){.slot = slot, .first_key = first_key};
    return parts_count;
}

/* First pass: parts in the order of their first keys. Returns how many. */
static uint32_t assign_by_slot(struct splitter *splitter, const struct layout *layout, split_slot_fn slot_of, void *context)
{
    const struct command_args *args = layout->args;
    uint32_t parts_count = 0;
    for (uint32_t key = 0; key < layout->keys_count; key++) {
        const uint32_t position = 1 + key * layout->step;
        const uint16_t slot = slot_of(context, args->base + args->args[position].offset, args->args[position].length);
        ZG_CHECK(slot < SPLIT_SLOTS_COUNT);
        if (splitter->part_of_slot[slot] == PART_NONE)
            splitter->part_of_slot[slot] = (uint16_t)part_add(splitter, parts_count++, slot, position);
        splitter->part_of_key[key] = splitter->part_of_slot[slot];
        splitter->parts[splitter->part_of_key[key]].keys_count++;
    }
    for (uint32_t part = 0; part < parts_count; part++)
        splitter->part_of_slot[splitter->parts[part].slot] = PART_NONE;
    return parts_count;
}

/* Second and third pass: the commands of the parts. */
static enum status generate(struct splitter *splitter, const struct layout *layout, uint32_t parts_count, struct split_plan *plan)
{
    const struct command_args *args = layout->args;
    const uint8_t *name = args->base + args->args[0].offset;
    const uint32_t name_length = args->args[0].length;
    uint64_t total = 0;
    for (uint32_t part = 0; part < parts_count; part++)
        total += 1 + digits_count(1 + splitter->parts[part].keys_count * layout->step) + 2 + bulk_bytes(name_length);
    for (uint32_t i = 1; i < args->count; i++)
        total += bulk_bytes(args->args[i].length);
    if (total > UINT32_MAX)
        return STATUS_TOO_LARGE;
    /* The length of each part, then its place. */
    for (uint32_t key = 0; key < layout->keys_count; key++) {
        struct split_part *part = &splitter->parts[splitter->part_of_key[key]];
        for (uint32_t i = 0; i < layout->step; i++)
            part->length += (uint32_t)bulk_bytes(args->args[1 + key * layout->step + i].length);
    }
    splitter->bytes = scratch_resize(splitter->bytes, &splitter->bytes_capacity, total, 1);
    splitter->cursors = scratch_resize(splitter->cursors, &splitter->cursors_capacity, parts_count, sizeof *splitter->cursors);
    uint32_t offset = 0;
    for (uint32_t i = 0; i < parts_count; i++) {
        struct split_part *part = &splitter->parts[i];
        uint32_t used = put_header(splitter->bytes + offset, '*', 1 + part->keys_count * layout->step);
        used += put_bulk(splitter->bytes + offset + used, name, name_length);
        part->offset = offset;
        part->length += used;
        splitter->cursors[i] = offset + used;
        offset += part->length;
    }
    ZG_CHECK(offset == total);
    for (uint32_t key = 0; key < layout->keys_count; key++) {
        uint32_t *cursor = &splitter->cursors[splitter->part_of_key[key]];
        for (uint32_t i = 0; i < layout->step; i++) {
            const struct resp_arg *arg = &args->args[1 + key * layout->step + i];
            *cursor += put_bulk(splitter->bytes + *cursor, args->base + arg->offset, arg->length);
        }
    }
    plan->bytes = splitter->bytes;
    plan->bytes_count = offset;
    return STATUS_OK;
}

static void reserve_keys(struct splitter *splitter, uint32_t keys_count, uint32_t parts_max)
{
    splitter->part_of_key = scratch_resize(splitter->part_of_key, &splitter->keys_capacity, keys_count, sizeof *splitter->part_of_key);
    splitter->parts = scratch_resize(splitter->parts, &splitter->parts_capacity, parts_max, sizeof *splitter->parts);
}

static void plan_set(const struct splitter *splitter, const struct layout *layout, uint32_t parts_count, struct split_plan *plan)
{
    *plan = (struct split_plan){
        .parts = splitter->parts, .parts_count = parts_count, .part_of_key = splitter->part_of_key, .keys_count = layout->keys_count};
}

/* Reads "*12\r\n" or "$12\r\n" at *position. The bytes were scanned before, so this need not say what is wrong with them. */
static bool read_header(const uint8_t *bytes, uint32_t length, uint32_t *position, char type, uint32_t *value)
{
    uint32_t at = *position;
    if (at >= length || bytes[at++] != (uint8_t)type)
        return false;
    uint64_t number = 0;
    const uint32_t digits_start = at;
    while (at < length && bytes[at] >= '0' && bytes[at] <= '9') {
        number = number * 10 + (uint64_t)(bytes[at++] - '0');
        if (number > UINT32_MAX)
            return false;
    }
    if (at == digits_start || length - at < 2 || bytes[at] != '\r' || bytes[at + 1] != '\n')
        return false;
    *position = at + 2;
    *value = (uint32_t)number;
    return true;
}

static bool read_args(struct splitter *splitter, const uint8_t *bytes, uint32_t length, struct command_args *args)
{
    uint32_t position = 0;
    uint32_t count = 0;
    /* An argument takes at least "$0\r\n\r\n": so a false count does not make us allocate more than the command itself. */
    if (!read_header(bytes, length, &position, '*', &count) || count < 1 || count > length / 6)
        return false;
    splitter->args = scratch_resize(splitter->args, &splitter->args_capacity, count, sizeof *splitter->args);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t arg_length = 0;
        if (!read_header(bytes, length, &position, '$', &arg_length) || (uint64_t)length - position < (uint64_t)arg_length + 2)
            return false;
        splitter->args[i] = (struct resp_arg){.offset = position, .length = arg_length};
        position += arg_length;
        if (bytes[position] != '\r' || bytes[position + 1] != '\n')
            return false;
        position += 2;
    }
    *args = (struct command_args){.base = bytes, .args = splitter->args, .count = count};
    return position == length;
}

void splitter_init(struct splitter *splitter)
{
    *splitter = (struct splitter){.part_of_slot = alloc_zeroed(SPLIT_SLOTS_COUNT * sizeof(uint16_t))};
    memset(splitter->part_of_slot, 0xff, SPLIT_SLOTS_COUNT * sizeof(uint16_t));
}

void splitter_fini(struct splitter *splitter)
{
    alloc_free(splitter->parts);
    alloc_free(splitter->part_of_key);
    alloc_free(splitter->bytes);
    alloc_free(splitter->cursors);
    alloc_free(splitter->args);
    alloc_free(splitter->part_of_slot);
    *splitter = (struct splitter){0};
}

enum status split_by_slot(struct splitter *splitter, const struct command *command, const struct command_args *args,
    split_slot_fn slot_of, void *context, struct split_plan *plan)
{
    struct layout layout;
    ZG_CHECK(splitter->part_of_slot);
    enum status status = find_layout(command, args, &layout);
    if (status != STATUS_OK)
        return status;
    reserve_keys(splitter, layout.keys_count, layout.keys_count < SPLIT_SLOTS_COUNT ? layout.keys_count : SPLIT_SLOTS_COUNT);
    const uint32_t parts_count = assign_by_slot(splitter, &layout, slot_of, context);
    plan_set(splitter, &layout, parts_count, plan);
    return parts_count == 1 ? STATUS_OK : generate(splitter, &layout, parts_count, plan);
}

enum status split_part_single_keys(struct splitter *splitter, const struct command *command, const uint8_t *bytes, uint32_t length,
    uint16_t slot, struct split_plan *plan)
{
    struct command_args args;
    struct layout layout;
    ZG_CHECK(splitter->part_of_slot && slot < SPLIT_SLOTS_COUNT);
    ZG_CHECK(!splitter->bytes || bytes + length <= splitter->bytes ||
        bytes >= splitter->bytes + splitter->bytes_capacity); /* they would be overwritten while they are read */
    if (!read_args(splitter, bytes, length, &args))
        return STATUS_INVALID;
    enum status status = find_layout(command, &args, &layout);
    if (status != STATUS_OK)
        return status;
    reserve_keys(splitter, layout.keys_count, layout.keys_count);
    for (uint32_t key = 0; key < layout.keys_count; key++) {
        splitter->part_of_key[key] = part_add(splitter, key, slot, 1 + key * layout.step);
        splitter->parts[key].keys_count = 1;
    }
    plan_set(splitter, &layout, layout.keys_count, plan);
    return layout.keys_count == 1 ? STATUS_OK : generate(splitter, &layout, layout.keys_count, plan);
}
