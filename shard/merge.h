/*
 * Puts the replies of the parts of a split request (shard/split.h) together to one: by key (MGET), as a sum (DEL, UNLINK, EXISTS,
 * TOUCH), or all OK (MSET). The first error that arrives is the whole reply; a part with a reply of another shape than the command has
 * makes it an error too, never a wrong reply.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "net/command_table.h"
#include "net/resp_write.h"
#include "shard/split.h"

enum {
    MERGE_ERROR_MAX = 512, /* bytes of an error that are kept */
};

struct merge_part {
    uint32_t offset; /* BY_KEY: of the next element in `bytes` */
    uint32_t end;    /* BY_KEY: of the reply in `bytes` */
    uint32_t keys_count;
    bool is_done;
};

/* Zeroed memory is a merge that can be begun, and after merge_fini it can be begun again. */
struct merge {
    struct arena *arena; /* where its memory comes from; NULL: the heap. Set before it is begun, kept */
    enum command_merge kind;
    bool is_failed;       /* the reply is `error` */
    uint32_t parts_count; /* 0: not begun */
    uint32_t parts_done;
    uint32_t parts_capacity;
    uint32_t keys_count;
    uint32_t keys_capacity;
    uint32_t bytes_count;
    uint32_t bytes_capacity;
    uint32_t bytes_max;
    int64_t sum;
    struct merge_part *parts;
    uint32_t *part_of_key;
    uint8_t *bytes;                  /* BY_KEY: replies of the parts without their headers */
    char error[MERGE_ERROR_MAX + 1]; /* text without '-' and line end */
};

/* Begins; copies what it needs from the plan. kind: BY_KEY, SUM or ALL_OK. bytes_max: the most reply bytes to keep (BY_KEY). False: the arena has no room; it has not begun, merge_fini gives back what it has. */
bool merge_begin(struct merge *merge, enum command_merge kind, const struct split_plan *plan, uint32_t bytes_max);

/* The reply of a part, whole, as the backend sent it (RESP2 or RESP3); once a part. Copies what it keeps. More than bytes_max in sum
 * makes the reply an error (STATUS_TOO_LARGE's text). */
void merge_part_reply(struct merge *merge, uint32_t part, const uint8_t *reply, uint32_t length);

/* A part that has no reply: `text` is the error, as status_resp_text gives it. */
void merge_part_failed(struct merge *merge, uint32_t part, const char *text);

/* Every part has its reply or has failed: merge_write may be called. */
static inline bool merge_is_complete(const struct merge *merge) { return merge->parts_done == merge->parts_count; }

/* Appends the whole reply, once: the elements of BY_KEY as they came, so the client's protocol must be that of the parts' links. */
void merge_write(struct merge *merge, struct resp_writer *writer);

/* Ends it at any time, complete or not. */
void merge_fini(struct merge *merge);
