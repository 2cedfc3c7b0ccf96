/*
 * Divides MGET, MSET, DEL, UNLINK, EXISTS and TOUCH by slot: one command for each slot, with the keys in their order (duplicates
 * included). The replies are put together by shard/merge.h.
 */
#pragma once

#include <stdint.h>

#include "core/status.h"
#include "net/command_table.h"

enum { SPLIT_SLOTS_COUNT = 16384, SPLIT_KEEP_BYTES = 1 << 20 /* scratch memory beyond it is given back at the next call */ };

struct split_part {
    uint32_t offset;     /* of the part's command in split_plan.bytes */
    uint32_t length;     /* bytes of the command; 0 where the plan has one part only: the original is to be forwarded */
    uint32_t keys_count; /* > 0 */
    uint32_t first_key;  /* argument position of its first key in the original command */
    uint16_t slot;
};

/* Borrowed from the splitter until its next call. */
struct split_plan {
    const struct split_part *parts; /* in the order in which their first keys appear */
    uint32_t parts_count;
    const uint32_t *part_of_key; /* keys_count entries: the part of each key of the original. Its position in the part's reply is the
                                    number of keys before it with the same part. */
    uint32_t keys_count;
    const uint8_t *bytes; /* the commands of the parts, in RESP, one behind the other */
    uint32_t bytes_count;
};

/* Scratch memory of one core; grows to the largest command of late and is used again. */
struct splitter {
    struct split_part *parts;
    uint32_t parts_capacity;
    uint32_t *part_of_key;
    uint32_t keys_capacity;
    uint8_t *bytes;
    uint32_t bytes_capacity;
    uint32_t *cursors; /* where the next argument of a part goes */
    uint32_t cursors_capacity;
    struct resp_arg *args; /* of a part's command: split_part_single_keys */
    uint32_t args_capacity;
    uint16_t *part_of_slot; /* SPLIT_SLOTS_COUNT entries, all "none" between calls */
};

typedef uint16_t (*split_slot_fn)(void *context, const uint8_t *key, uint32_t length); /* below SPLIT_SLOTS_COUNT */

void splitter_init(struct splitter *splitter);
void splitter_fini(struct splitter *splitter);

/* O(keys). `command` has one key spec, a range to the end (HANDLE_SPLIT). STATUS_INVALID: no key, or an odd number of arguments for MSET
 * (a wrong number of arguments: the caller's error); STATUS_TOO_LARGE: the parts exceed 4 GiB. */
enum status split_by_slot(struct splitter *splitter, const struct command *command, const struct command_args *args,
    split_slot_fn slot_of, void *context, struct split_plan *plan) ZG_NODISCARD;

/* One part for each key of a command whose keys are of one slot: what a migrating slot answered with TRYAGAIN. `bytes` is the whole
 * command as RESP (a part's, or the original; not in memory of the splitter). The replies are merged by a struct merge of their own to
 * the reply of the part. STATUS_INVALID: as above, or the bytes are not exactly one command. A command with one key gives one part with
 * length 0. */
enum status split_part_single_keys(struct splitter *splitter, const struct command *command, const uint8_t *bytes, uint32_t length,
    uint16_t slot, struct split_plan *plan) ZG_NODISCARD;
