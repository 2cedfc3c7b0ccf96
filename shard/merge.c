/*
 * Owns what is known so far about a split request, on the core that holds the request. BY_KEY keeps the elements of each part's reply
 * in the order of that part's keys; merge_write walks the request's keys and takes the next element of the key's part, whose end the
 * reply scanner finds: so elements may be anything, nested or null, and no index of elements is kept.
 */
#include "shard/merge.h"

#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/status.h"
#include "net/resp_scan.h"

static const char unexpected_text[] = "ERR unexpected reply from a backend";

static void release(const struct merge *merge, void *memory)
{
    if (merge->arena == NULL) {
        alloc_free(memory);
    } else if (memory != NULL) {
        struct block *block = arena_block_of(merge->arena, memory);
        arena_put(merge->arena, &block);
    }
}

/* Room for `needed` elements in *memory; what is there is kept. False: the arena has none, nothing has changed. */
static bool grow(const struct merge *merge, void **memory, uint32_t *capacity, uint64_t needed, size_t element_bytes)
{
    if (needed <= *capacity)
        return true;
    uint64_t wanted = needed + needed / 2;
    if (wanted > UINT32_MAX)
        wanted = needed;
    ZG_CHECK(wanted <= UINT32_MAX);
    if (merge->arena == NULL) {
        *memory = alloc_resize(*memory, wanted * element_bytes);
        *capacity = (uint32_t)wanted;
        return true;
    }
    if (wanted * element_bytes > UINT32_MAX)
        return false;
    struct block *block = arena_get(merge->arena, (uint32_t)(wanted * element_bytes));
    if (block == NULL)
        return false;
    if (*memory != NULL)
        memcpy(block->data, *memory, *capacity * element_bytes);
    release(merge, *memory);
    *memory = block->data;
    *capacity = (uint32_t)(block_capacity(block) / element_bytes);
    return true;
}

/* The first failure is the reply. Line ends inside of the text (an error of type '!') become spaces: it is answered as a plain error. */
static void fail(struct merge *merge, const uint8_t *text, uint32_t length)
{
    if (merge->is_failed)
        return;
    merge->is_failed = true;
    if (length > MERGE_ERROR_MAX)
        length = MERGE_ERROR_MAX;
    for (uint32_t i = 0; i < length; i++)
        merge->error[i] = text[i] < ' ' ? ' ' : (char)text[i];
    merge->error[length] = '\0';
}

static void fail_text(struct merge *merge, const char *text) { fail(merge, (const uint8_t *)text, (uint32_t)strlen(text)); }

/* Reads the first line of a reply as type and number: ":12\r\n", "*3\r\n", "!21\r\n". *used: its bytes. False: no number, or none that
 * fits. */
static bool read_number_line(const uint8_t *reply, uint32_t length, int64_t *number, uint32_t *used)
{
    uint32_t at = 1;
    const bool is_negative = at < length && reply[at] == '-';
    if (at < length && (reply[at] == '-' || reply[at] == '+'))
        at++;
    const uint32_t digits_start = at;
    int64_t value = 0;
    while (at < length && reply[at] >= '0' && reply[at] <= '9') {
        /* Towards the negative side, which reaches one further. */
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_sub_overflow(value, (int64_t)(reply[at] - '0'), &value))
            return false;
        at++;
    }
    if (at == digits_start || length - at < 2 || reply[at] != '\r' || reply[at + 1] != '\n')
        return false;
    if (!is_negative && __builtin_sub_overflow((int64_t)0, value, &value))
        return false;
    *number = value;
    *used = at + 2;
    return true;
}

/* Handles - and !. True where the reply is one of them. */
static bool take_error(struct merge *merge, const uint8_t *reply, uint32_t length)
{
    if (reply[0] == '-') {
        fail(merge, reply + 1, length - 3);
        return true;
    }
    if (reply[0] != '!')
        return false;
    int64_t bytes = 0;
    uint32_t used = 0;
    if (read_number_line(reply, length, &bytes, &used) && bytes >= 0 && (uint64_t)bytes + used + 2 == length)
        fail(merge, reply + used, (uint32_t)bytes);
    else
        fail_text(merge, unexpected_text);
    return true;
}

/* Exactly `count` whole elements, and nothing behind them. */
static bool elements_fit(const uint8_t *bytes, uint32_t length, uint32_t count)
{
    uint32_t position = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct resp_reply_state state = {0};
        uint32_t consumed = 0;
        if (position >= length || resp_scan_reply(&state, bytes + position, length - position, &consumed) != RESP_DONE ||
            state.type == '>')
            return false;
        position += consumed;
    }
    return position == length;
}

static void take_elements(struct merge *merge, struct merge_part *part, const uint8_t *reply, uint32_t length)
{
    int64_t count = 0;
    uint32_t used = 0;
    if (reply[0] != '*' || !read_number_line(reply, length, &count, &used) || count != (int64_t)part->keys_count ||
        !elements_fit(reply + used, length - used, part->keys_count)) {
        fail_text(merge, unexpected_text);
        return;
    }
    const uint32_t bytes_count = length - used;
    if (bytes_count > merge->bytes_max - merge->bytes_count) {
        fail_text(merge, status_resp_text(STATUS_TOO_LARGE));
        return;
    }
    void *bytes = merge->bytes;
    if (!grow(merge, &bytes, &merge->bytes_capacity, (uint64_t)merge->bytes_count + bytes_count, 1)) {
        fail_text(merge, status_resp_text(STATUS_NO_MEMORY));
        return;
    }
    merge->bytes = bytes;
    memcpy(merge->bytes + merge->bytes_count, reply + used, bytes_count);
    part->offset = merge->bytes_count;
    merge->bytes_count += bytes_count;
    part->end = merge->bytes_count;
}

static void take_integer(struct merge *merge, const struct merge_part *part, const uint8_t *reply, uint32_t length)
{
    int64_t value = 0;
    uint32_t used = 0;
    /* What is counted are keys: more than were named, or less than none, is not an answer to the question. */
    if (reply[0] != ':' || !read_number_line(reply, length, &value, &used) || used != length || value < 0 ||
        value > (int64_t)part->keys_count)
        fail_text(merge, unexpected_text);
    else
        merge->sum += value;
}

static void take_ok(struct merge *merge, const uint8_t *reply, uint32_t length)
{
    if (length != 5 || memcmp(reply, "+OK\r\n", 5) != 0)
        fail_text(merge, unexpected_text);
}

static struct merge_part *part_done(struct merge *merge, uint32_t index)
{
    ZG_CHECK(index < merge->parts_count && !merge->parts[index].is_done && merge->parts_done < merge->parts_count);
    struct merge_part *part = &merge->parts[index];
    part->is_done = true;
    merge->parts_done++;
    return part;
}

bool merge_begin(struct merge *merge, enum command_merge kind, const struct split_plan *plan, uint32_t bytes_max)
{
    ZG_CHECK(merge->parts_count == 0 && plan->parts_count > 0 && kind != MERGE_NONE);
    void *parts = merge->parts;
    if (!grow(merge, &parts, &merge->parts_capacity, plan->parts_count, sizeof *merge->parts))
        return false;
    merge->parts = parts;
    for (uint32_t i = 0; i < plan->parts_count; i++)
        merge->parts[i] = (struct merge_part){.keys_count = plan->parts[i].keys_count};
    if (kind == MERGE_BY_KEY) {
        void *part_of_key = merge->part_of_key;
        if (!grow(merge, &part_of_key, &merge->keys_capacity, plan->keys_count, sizeof *merge->part_of_key))
            return false;
        merge->part_of_key = part_of_key;
        memcpy(merge->part_of_key, plan->part_of_key, plan->keys_count * sizeof *merge->part_of_key);
    }
    merge->kind = kind;
    merge->is_failed = false;
    merge->parts_count = plan->parts_count;
    merge->parts_done = 0;
    merge->keys_count = plan->keys_count;
    merge->bytes_count = 0;
    merge->bytes_max = bytes_max;
    merge->sum = 0;
    return true;
}

void merge_part_reply(struct merge *merge, uint32_t part_index, const uint8_t *reply, uint32_t length)
{
    struct merge_part *part = part_done(merge, part_index);
    ZG_CHECK(length >= 3);
    if (merge->is_failed || take_error(merge, reply, length))
        return;
    switch (merge->kind) {
    case MERGE_BY_KEY: take_elements(merge, part, reply, length); return;
    case MERGE_SUM: take_integer(merge, part, reply, length); return;
    case MERGE_ALL_OK: take_ok(merge, reply, length); return;
    case MERGE_NONE: break;
    }
    ZG_UNREACHABLE();
}

void merge_part_failed(struct merge *merge, uint32_t part, const char *text)
{
    (void)part_done(merge, part);
    fail_text(merge, text);
}

static void write_elements(struct merge *merge, struct resp_writer *writer)
{
    resp_write_array(writer, merge->keys_count);
    for (uint32_t key = 0; key < merge->keys_count; key++) {
        struct merge_part *part = &merge->parts[merge->part_of_key[key]];
        const uint8_t *element = merge->bytes + part->offset;
        struct resp_reply_state state = {0};
        uint32_t consumed = 0;
        /* It was scanned once when it arrived. */
        ZG_CHECK(part->offset < part->end && resp_scan_reply(&state, element, part->end - part->offset, &consumed) == RESP_DONE);
        resp_write_raw(writer, element, consumed);
        part->offset += consumed;
    }
}

void merge_write(struct merge *merge, struct resp_writer *writer)
{
    ZG_CHECK(merge->parts_count > 0 && merge_is_complete(merge));
    if (merge->is_failed)
        resp_write_error(writer, "%s", merge->error);
    else if (merge->kind == MERGE_BY_KEY)
        write_elements(merge, writer);
    else if (merge->kind == MERGE_SUM)
        resp_write_integer(writer, merge->sum);
    else
        resp_write_simple(writer, "OK");
}

void merge_fini(struct merge *merge)
{
    release(merge, merge->parts);
    release(merge, merge->part_of_key);
    release(merge, merge->bytes);
    *merge = (struct merge){.arena = merge->arena};
}
