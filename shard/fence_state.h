/*
 * What fence.c and fence_state.c share and nobody else includes: the objects of a fence table and where they are found. fence.c says what
 * they mean.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/check.h"
#include "core/list.h"
#include "core/pool.h"
#include "shard/fence.h"

enum { FENCE_LINK_BUCKETS_COUNT = 1024 };

struct fence_queue {
    struct fence_waiter *head;
    struct fence_waiter *tail; /* valid while head is not NULL */
};

struct fence {
    struct pool_item item;
    struct list_node all;          /* state.all */
    struct list_node ready;        /* state.ready while it has something to do */
    struct list_node dependencies; /* fence_dependency.of_fence */
    struct fence_at_slot *at_slot;
    struct fence *hash_next; /* key fences */
    struct fence_queue waiters;
    uint32_t key_hash;    /* 0: the `whole` of a slot */
    uint32_t holds_count; /* redirected legs without an outcome, waiting ones included */
    bool is_emitting;     /* a waiter's callback is running: new arrivals are behind it */
};

struct fence_at_slot {
    struct fence whole; /* first: so that a `whole` and its slot are one address */
    struct fence_queue again;
    struct fence_queue first;
    uint64_t target;    /* the node where the legs counted by out_count are */
    uint32_t out_count; /* redirected legs that are sent and have no outcome; paused and waiting ones are not counted */
    uint32_t key_fences_count;
    uint16_t slot;
};

struct fence_dependency {
    struct pool_item item;
    struct list_node of_fence;
    struct list_node of_link; /* by seq, ascending */
    struct fence *fence;
    struct fence_link *link;
    uint64_t seq;
};

struct fence_link {
    struct pool_item item;
    uint64_t link_key;
    struct list_node dependencies; /* never empty outside of a function */
    struct fence_link *hash_next;
};

struct fence_state {
    struct pool slots;
    struct pool keys;
    struct pool dependencies;
    struct pool links;
    struct list_node all;
    struct list_node ready;
    bool is_draining;
    uint32_t key_buckets_mask;
    struct fence **key_buckets;
    struct fence_at_slot *at_slot[FENCE_SLOTS_COUNT];
    struct fence_link *link_buckets[FENCE_LINK_BUCKETS_COUNT];
};

static inline bool fence_queue_is_empty(const struct fence_queue *queue) { return !queue->head; }

static inline void fence_queue_push(struct fence_queue *queue, struct fence_waiter *waiter)
{
    waiter->next = NULL;
    if (queue->head)
        queue->tail->next = waiter;
    else
        queue->head = waiter;
    queue->tail = waiter;
}

static inline struct fence_waiter *fence_queue_pop(struct fence_queue *queue)
{
    struct fence_waiter *waiter = queue->head;
    ZG_CHECK(waiter);
    queue->head = waiter->next;
    waiter->next = NULL;
    return waiter;
}

/* Moves all of `front` before what is in `queue`. */
static inline void fence_queue_prepend(struct fence_queue *queue, struct fence_queue *front)
{
    if (!front->head)
        return;
    front->tail->next = queue->head;
    if (!queue->head)
        queue->tail = front->tail;
    queue->head = front->head;
    front->head = NULL;
}

static inline bool fence_is_up(const struct fence *fence) { return fence->holds_count > 0 || !list_is_empty(&fence->dependencies); }

/* New legs of the slot, whatever their key, go to the end of whole.waiters. */
static inline bool fence_slot_is_blocked(const struct fence_at_slot *at_slot)
{
    return fence_is_up(&at_slot->whole) || !fence_queue_is_empty(&at_slot->whole.waiters) || at_slot->whole.is_emitting;
}

static inline bool fence_slot_is_unused(const struct fence_at_slot *at_slot)
{
    return !fence_slot_is_blocked(at_slot) && at_slot->key_fences_count == 0 && at_slot->out_count == 0 &&
        fence_queue_is_empty(&at_slot->again) && fence_queue_is_empty(&at_slot->first);
}

/* For fence_table_init and fence_table_fini. */
struct fence_state *fence_state_create(uint32_t fences_max, uint32_t dependencies_max);
void fence_state_destroy(struct fence_table *table);

/* NULL where there is none. */
struct fence *fence_state_find(struct fence_state *state, enum fence_scope scope, uint16_t slot, uint32_t key_hash);
struct fence_link *fence_state_find_link(struct fence_state *state, uint64_t link_key);

/* The fence, made where there is none (*is_new); NULL where there is no room for it. */
struct fence *fence_state_find_or_create(
    struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, bool *is_new);

/* Takes back a fence that was made for something that then did not fit. */
void fence_state_discard_unused(struct fence_table *table, struct fence *fence);

/* The fence stays up until the link has answered seq. False: no room. */
bool fence_state_depend(struct fence_table *table, struct fence *fence, uint64_t link_key, uint64_t seq);

/* Each is down, empty and out of use. The pointer is stale afterwards. */
void fence_state_destroy_slot(struct fence_table *table, struct fence_at_slot *at_slot);
void fence_state_destroy_key(struct fence_table *table, struct fence *fence);
void fence_state_destroy_link(struct fence_state *state, struct fence_link *link);
void fence_state_destroy_dependency(struct fence_table *table, struct fence_dependency *dependency);
