/*
 * A leg: the part of a request that goes to one slot, as its owner core sees it. In a link's FIFO it keeps its place until its reply arrives, whatever happens to the request: `action` says what the
 * reply is for. 64 bytes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/pool.h"

enum leg_action {
    LEG_FORWARD, /* the reply goes to the request */
    LEG_DISCARD, /* the reply is dropped: ASKING, an expired leg */
    LEG_RUN,     /* consecutive commands of one client, whose replies go to the request one behind the other: see net/request.h */
};

/* Which link of a node: the number of the protocol (2 or 3) of its shared link, with CHANNEL_BULK the bulk link of that protocol. */
enum { CHANNEL_BULK = 4 };

static inline uint8_t channel_protocol(uint8_t channel)
{
    return channel & 3;
}

static inline bool channel_is_bulk(uint8_t channel)
{
    return (channel & CHANNEL_BULK) != 0;
}

enum leg_flag {
    LEG_EMBEDDED = 1u << 0,  /* lives in its request, not in the pool of legs */
    LEG_READONLY = 1u << 1,  /* may be repeated after a lost link */
    LEG_HELD_SLOT = 1u << 2, /* holds a fence of its slot */
    LEG_HELD_KEY = 1u << 3,  /* holds a fence of its key */
    LEG_ASKING = 1u << 4,    /* goes to the node that ASK named, behind ASKING */
    LEG_CHILD = 1u << 5,     /* one key of a leg that was divided (shard/subsplit.h); origin is that */
    LEG_PAUSED = 1u << 6,    /* holds its fence paused: it waits for the time to be sent again, or for its children */
};

struct leg {
    struct pool_item item; /* while it lives in the pool of legs */
    struct leg *next;      /* in a link's FIFO, a batch, a fence, a list of waiters; one at a time */
    struct block *bytes;   /* holds the command's bytes while it may have to be sent again; one reference */
    uint64_t origin;       /* handle of the request on its home core */
    uint32_t offset;       /* of the command in bytes->data */
    uint32_t length;
    union {
        uint32_t key_hash;    /* of the only key, 0 where there are several */
        uint32_t run_replies; /* LEG_RUN: replies still to come */
    };
    uint32_t deadline_ms; /* low 32 bits of the loop's milliseconds: the same clock on every core */
    uint32_t target;      /* key of the node a redirected leg goes to */
    uint16_t slot;
    uint16_t home; /* core */
    uint16_t part; /* which part of a split request */
    uint16_t use_case;
    uint8_t action;   /* enum leg_action */
    uint8_t flags;    /* enum leg_flag */
    uint8_t channel;  /* that it goes through */
    uint8_t attempts; /* times it was sent again */
};
_Static_assert(sizeof(struct leg) == 64, "one cache line");

/* A first-in first-out list of legs. */
struct leg_list {
    struct leg *head;
    struct leg *tail;
    uint32_t count; /* replies that its legs wait for */
};

/* How many replies a leg still waits for. */
static inline uint32_t leg_replies(const struct leg *leg)
{
    return leg->action == LEG_RUN ? leg->run_replies : 1;
}

static inline void leg_list_push(struct leg_list *list, struct leg *leg)
{
    leg->next = NULL;
    if (list->tail != NULL)
        list->tail->next = leg;
    else
        list->head = leg;
    list->tail = leg;
    list->count += leg_replies(leg);
}

static inline struct leg *leg_list_pop(struct leg_list *list)
{
    struct leg *leg = list->head;
    if (leg == NULL)
        return NULL;
    list->head = leg->next;
    if (list->head == NULL)
        list->tail = NULL;
    leg->next = NULL;
    list->count -= leg_replies(leg);
    return leg;
}

/* Appends all of `from`, which is then empty. */
static inline void leg_list_splice(struct leg_list *list, struct leg_list *from)
{
    if (from->head == NULL)
        return;
    if (list->tail != NULL)
        list->tail->next = from->head;
    else
        list->head = from->head;
    list->tail = from->tail;
    list->count += from->count;
    from->head = NULL;
    from->tail = NULL;
    from->count = 0;
}
