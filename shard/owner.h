/*
 * Between the files of the owner side: owner.c (acceptance, batches, outcome), bulk.c (large ones), redirect.c (MOVED, ASK, repeats, fences), divide.c (one key at a time), loss.c (lost links). Not for others.
 */
#pragma once

#include "shard/dispatch.h"

static inline struct leg *leg_of_waiter(struct fence_waiter *waiter)
{
    return LIST_ENTRY(waiter, struct leg, next);
}

static inline struct fence_waiter *waiter_of_leg(struct leg *leg)
{
    return (struct fence_waiter *)(void *)&leg->next;
}

static inline enum fence_scope leg_held_scope(const struct leg *leg)
{
    if ((leg->flags & LEG_HELD_SLOT) != 0)
        return FENCE_SLOT;
    return (leg->flags & LEG_HELD_KEY) != 0 ? FENCE_KEY : FENCE_NONE;
}

static inline void leg_set_held(struct leg *leg, enum fence_scope scope)
{
    leg->flags &= (uint8_t) ~(LEG_HELD_SLOT | LEG_HELD_KEY);
    if (scope == FENCE_SLOT)
        leg->flags |= LEG_HELD_SLOT;
    else if (scope == FENCE_KEY)
        leg->flags |= LEG_HELD_KEY;
}

static inline bool leg_is_overdue(const struct dispatcher *dispatcher, const struct leg *leg, uint32_t delay_ms)
{
    return (int32_t)((uint32_t)dispatcher->core->now_ms + delay_ms - leg->deadline_ms) >= 0;
}

/* The one end of every leg: lets its fence go, drops its bytes and brings the reply (or the status' text, where it is not OK) to the request. */
void owner_finish(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply, enum status status);
void owner_fail(struct dispatcher *dispatcher, struct leg *leg, enum status status);

/* Sends a leg that holds its bytes: to its target where it was redirected, else to the node of its slot. */
void owner_resend(struct dispatcher *dispatcher, struct leg *leg);

/* Legs and chunks of a batch (both taken) to the link of its name; without a link they fail. */
void owner_flush_batch(void *context, uint64_t name, struct leg_list *legs, struct block *chain);

/* Everything meant for a node's link is put on it, so that its seq_sent counts all that is before a fence. */
void owner_settle(struct dispatcher *dispatcher, uint32_t node_key, uint8_t channel);
void owner_drop_bytes(struct dispatcher *dispatcher, struct leg *leg);

/* New legs of `slot` wait until the links to its former node have answered what is on them. False: no room for the fence. */
bool owner_raise(struct dispatcher *dispatcher, uint16_t slot, uint32_t former_node);

/* One more repeat: true where the retry budget has room for it, which is taken; counted either way. */
bool redirect_may_retry(struct dispatcher *dispatcher);
/* Periodic: the budget reads the counter of requests. */
void redirect_see_requests(struct dispatcher *dispatcher);
/* Puts a leg into the list of those that are sent again after a pause that grows with its attempts. */
void redirect_retry_later(struct dispatcher *dispatcher, struct leg *leg);
/* Repeats a leg of a lost link, behind all that was redirected before it. Where it is to go elsewhere it may have to wait, or fail. */
void redirect_lost(struct dispatcher *dispatcher, struct leg *leg);
/* The leg is to go to the node of its slot, behind nothing of any link: raises its fence and holds it, as fence_redirect. FULL: it holds what it held. */
enum fence_verdict redirect_go_home(struct dispatcher *dispatcher, struct leg *leg);
void redirect_init(struct dispatcher *dispatcher);

/* Whether a leg with a command of so many bytes, or with a key whose value was large of late, goes by the bulk link. */
bool bulk_is_wanted(const struct dispatcher *dispatcher, const struct leg *leg, uint32_t length);
bool bulk_remembers(const struct dispatcher *dispatcher, uint16_t slot, uint32_t key_hash);
/* A reply has so many bytes, as far as is known: reads of its key will go by the bulk link from now on, or no more. */
void bulk_note_reply(struct dispatcher *dispatcher, const struct leg *leg, uint64_t reply_bytes);
/* A leg that was just admitted, or emitted, holds its bytes and no fence: it goes to the bulk link, behind what came before it. True: it is to be put into that link's batch now, or waits; `*waits` says which. False: no
 * room for its fence; by the shared link its order is kept as well. */
bool bulk_depart(struct dispatcher *dispatcher, struct leg *leg, bool *waits);

/* The command joins the client's last request as a run, its bytes in the batch behind those: false where it has to be a request of its own. Plain commands with one key alone. */
bool run_join(struct dispatcher *dispatcher, struct client *client, uint16_t slot, const struct leg_source *source);
/* For net_ops. */
bool run_divide(struct net *net, struct link *link);
void run_divide_all(struct net *net, struct link *link);

/* Where keys are: the locator and the hash of dispatch.c. */
uint16_t dispatcher_locate(const struct topology *topology, const uint8_t *key, uint32_t length);
uint32_t dispatcher_hash_key(const uint8_t *key, uint32_t length);

/* Divides a leg with several keys of a migrating slot into one child a key; it ends when all have. False: it cannot be divided, nothing has changed. */
bool divide_leg(struct dispatcher *dispatcher, struct leg *leg);
void divide_finish_child(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply, enum status status);
