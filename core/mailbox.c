/*
 * What a core does with its mailbox: send, lend, publish, poll, sleep, replace a peer. A mailbox is used by its own core's thread alone;
 * what cores share is in struct lane and struct waker (core/mailbox_state.h), and every access to those is an atomic of core/spsc or of
 * this file. core/mailbox_group.c makes and unmakes it all.
 *
 * Why nothing overflows. A slot of the lane A -> B is in use from mailbox_reserve until B has released it.
 *   requests  at most `credits`: a credit comes back with the reply, and B released the request's slot before it published the reply.
 *   replies   at most `credits`: each answers a credit of the lane B -> A, and B released the last reply's slot before it published the request that reuses the credit.
 *   returns, control: counted here (struct slot_fifo): used until the consumer's index has passed them.
 * Both arguments need that a core publishes only after it released what it took: mailbox_publish is refused inside a handler.
 *
 * Why no wake-up is lost. All of these are seq_cst, so they have one order:
 *   producer: tail = new; pending |= lane (unless it reads it as set); if sleeping then exchange it to 0 and ring.
 *   consumer: takes `pending` (exchange with 0), then reads the tails of those lanes.
 *   sleeper:  sleeping = 1; reads pending; sleeps only where it is 0.
 * A producer that reads its bit as set does so before the consumer clears it, so the consumer's read of the tail comes later still and sees
 * the message. A sleeper that reads pending as 0 does so before the producer sets it, so the producer's read of `sleeping` sees 1.
 */
#include "core/mailbox.h"

#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/mailbox_state.h"

enum {
    LANE_BATCH = 32,         /* messages taken from one lane before the next lane has its turn */
    RETURNS_PER_MESSAGE = 6  /* one in `offset`, five in the body */
};

/* The number of the oldest slot that the consumer has not released; all before it are free. */
static uint64_t slots_consumed(struct peer *peer)
{
    struct spsc *queue = &peer->out->queue;
    return peer->reserved - (uint32_t)(queue->producer_tail - spsc_consumed(queue));
}

static struct peer *peer_of(struct mailbox *mailbox, uint32_t peer)
{
    ZG_CHECK(peer < mailbox->cores_count);
    ZG_CHECK(peer != mailbox->id);
    return &mailbox->peers[peer];
}

void mailbox_drop_block(struct mailbox *mailbox, struct block *block)
{
    ZG_CHECK(mailbox->stats.loans_out > 0);
    mailbox->stats.loans_out--;
    arena_put(mailbox->arena, &block);
}

/* Drops every loan to a peer, of both kinds. */
void mailbox_drop_loans(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = &mailbox->peers[peer];
    struct block *block;
    while (p->loans_count > 0) {
        mailbox_drop_block(mailbox, p->loans[p->loans_first].block);
        p->loans_first = (p->loans_first + 1) & (mailbox->lane_slots - 1);
        p->loans_count--;
    }
    core_set_remove(&mailbox->lending, peer);
    while ((block = loans_remove_any(&mailbox->loans, peer)) != NULL)
        mailbox_drop_block(mailbox, block);
}

/* Sending. */

bool mailbox_credit_take(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = peer_of(mailbox, peer);
    if (p->credits_free == 0)
        return false;
    p->credits_free--;
    p->credits_unsent++;
    return true;
}

uint32_t mailbox_credits_free(const struct mailbox *mailbox, uint32_t peer)
{
    ZG_CHECK(peer < mailbox->cores_count);
    ZG_CHECK(peer != mailbox->id);
    return mailbox->peers[peer].credits_free;
}

/* Looks at the consumer's index only where the reserve seems used up. */
static bool slot_fifo_has_room(struct slot_fifo *fifo, struct peer *peer)
{
    if (fifo->count < fifo->limit)
        return true;
    uint64_t consumed = slots_consumed(peer);
    while (fifo->count > 0 && fifo->slots[fifo->first] < consumed) {
        fifo->first = fifo->first + 1 == fifo->limit ? 0 : fifo->first + 1;
        fifo->count--;
    }
    return fifo->count < fifo->limit;
}

static void slot_fifo_push(struct slot_fifo *fifo, uint64_t slot)
{
    ZG_CHECK(fifo->count < fifo->limit);
    uint32_t index = fifo->first + fifo->count;
    fifo->slots[index >= fifo->limit ? index - fifo->limit : index] = slot;
    fifo->count++;
}

/* The classes' accounting promises that there is a slot. */
static struct msg *reserve_slot(struct mailbox *mailbox, uint32_t peer, enum msg_kind kind)
{
    struct peer *p = &mailbox->peers[peer];
    struct msg *msg = spsc_reserve(&p->out->queue);
    ZG_CHECK(msg != NULL);
    p->reserved++;
    *msg = (struct msg){.kind = (uint8_t)kind, .epoch = atomic_load_explicit(&p->out->epoch, memory_order_relaxed)};
    core_set_add(&mailbox->dirty, peer);
    return msg;
}

struct msg *mailbox_reserve(struct mailbox *mailbox, uint32_t peer, enum msg_class class)
{
    struct peer *p = peer_of(mailbox, peer);
    enum msg_kind kind = MSG_NONE;
    switch (class) {
    case CLASS_REQUEST:
        ZG_CHECK(p->credits_unsent > 0);
        p->credits_unsent--;
        kind = MSG_LEG;
        break;
    case CLASS_REPLY:
        ZG_CHECK(p->replies_owed > 0);
        p->replies_owed--;
        kind = MSG_REPLY;
        break;
    case CLASS_CONTROL:
        if (!slot_fifo_has_room(&p->control, p))
            return NULL;
        slot_fifo_push(&p->control, p->reserved);
        break;
    case CLASS_RETURN:
    default:
        ZG_UNREACHABLE();
    }
    p->last_slot = p->reserved;
    p->last = reserve_slot(mailbox, peer, kind);
    return p->last;
}

/* Drops the loans whose messages the peer has consumed. */
static uint32_t reclaim_from(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = &mailbox->peers[peer];
    uint64_t consumed = slots_consumed(p);
    uint32_t count = 0;
    while (p->loans_count > 0 && p->loans[p->loans_first].slot < consumed) {
        mailbox_drop_block(mailbox, p->loans[p->loans_first].block);
        p->loans_first = (p->loans_first + 1) & (mailbox->lane_slots - 1);
        p->loans_count--;
        count++;
    }
    if (p->loans_count == 0)
        core_set_remove(&mailbox->lending, peer);
    return count;
}

void mailbox_lend(struct mailbox *mailbox, uint32_t peer, struct msg *msg, struct block *block, const uint8_t *data, uint32_t length, bool until_returned)
{
    struct peer *p = peer_of(mailbox, peer);
    ZG_CHECK(msg == p->last);
    ZG_CHECK(data >= block->data && data <= block->data + block_capacity(block));
    ZG_CHECK(length <= (size_t)(block->data + block_capacity(block) - data));
    p->last = NULL;
    if (length == 0)
        return;
    msg->length = length;
    msg->offset = arena_offset_of(mailbox->arena, data);
    mailbox->stats.loans_out++;
    if (until_returned) {
        msg->flags |= MSG_LENT;
        loans_add(&mailbox->loans, peer, msg->offset, block_ref(block));
        return;
    }
    /* One loan a slot at most, so the ring has room once the slots that were consumed and not reclaimed yet are. */
    if (p->loans_count == mailbox->lane_slots)
        (void)reclaim_from(mailbox, peer);
    ZG_CHECK(p->loans_count < mailbox->lane_slots);
    p->loans[(p->loans_first + p->loans_count) & (mailbox->lane_slots - 1)] = (struct slot_loan){.block = block_ref(block), .slot = p->last_slot};
    p->loans_count++;
    core_set_add(&mailbox->lending, peer);
}

/* Puts a return into an unpublished RETURN or a new one; false where the reserve is used up. `length` counts the offsets. */
static bool send_return(struct mailbox *mailbox, uint32_t peer, uint64_t offset)
{
    struct peer *p = &mailbox->peers[peer];
    struct msg *msg = p->open_return;
    if (msg != NULL && msg->length < RETURNS_PER_MESSAGE) {
        memcpy(msg->body + (msg->length - 1) * sizeof(offset), &offset, sizeof(offset));
        msg->length++;
        return true;
    }
    if (!slot_fifo_has_room(&p->returns, p))
        return false;
    slot_fifo_push(&p->returns, p->reserved);
    msg = reserve_slot(mailbox, peer, MSG_RETURN);
    msg->offset = offset;
    msg->length = 1;
    p->open_return = msg;
    return true;
}
_Static_assert((RETURNS_PER_MESSAGE - 1) * sizeof(uint64_t) <= sizeof(((struct msg *)0)->body), "the offsets fit the body");

static void delay_return(struct mailbox *mailbox, uint32_t peer, uint64_t offset)
{
    struct peer *p = &mailbox->peers[peer];
    uint32_t index = mailbox->delayed_free;
    if (index != 0) {
        mailbox->delayed_free = mailbox->delayed[index].next;
    } else {
        if (mailbox->delayed_fresh == mailbox->delayed_capacity) {
            ZG_CHECK(mailbox->delayed_capacity <= mailbox->group->loans_max);
            mailbox->delayed_capacity *= 2;
            mailbox->delayed = alloc_resize(mailbox->delayed, mailbox->delayed_capacity * sizeof(mailbox->delayed[0]));
        }
        index = mailbox->delayed_fresh++;
    }
    mailbox->delayed[index] = (struct delayed_return){.offset = offset};
    if (p->delayed_first == 0)
        p->delayed_first = index;
    else
        mailbox->delayed[p->delayed_last].next = index;
    p->delayed_last = index;
    core_set_add(&mailbox->delaying, peer);
    mailbox->stats.returns_delayed++;
}

/* Removes the oldest delayed return of a peer that has one. */
static void delayed_remove_first(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = &mailbox->peers[peer];
    uint32_t index = p->delayed_first;
    ZG_CHECK(index != 0);
    p->delayed_first = mailbox->delayed[index].next;
    mailbox->delayed[index].next = mailbox->delayed_free;
    mailbox->delayed_free = index;
    if (p->delayed_first == 0)
        core_set_remove(&mailbox->delaying, peer);
}

void mailbox_return(struct mailbox *mailbox, uint32_t peer, uint64_t offset)
{
    (void)peer_of(mailbox, peer);
    if (!send_return(mailbox, peer, offset))
        delay_return(mailbox, peer, offset);
}

static void send_delayed(struct mailbox *mailbox)
{
    for (uint32_t peer = core_set_next(&mailbox->delaying, 0); peer < CORE_SET_MAX; peer = core_set_next(&mailbox->delaying, peer + 1)) {
        struct peer *p = &mailbox->peers[peer];
        while (p->delayed_first != 0 && send_return(mailbox, peer, mailbox->delayed[p->delayed_first].offset))
            delayed_remove_first(mailbox, peer);
    }
}

/* Publishes one lane; true where the peer has to be rung. */
static bool publish_to(struct mailbox *mailbox, uint32_t peer, uint32_t *published)
{
    struct peer *p = &mailbox->peers[peer];
    struct waker *waker = &mailbox->group->wakers[peer];
    _Atomic uint64_t *pending = &waker->pending[mailbox->id / 64];
    uint64_t bit = UINT64_C(1) << (mailbox->id % 64);
    uint32_t count = spsc_publish(&p->out->queue);
    p->last = NULL;
    p->open_return = NULL;
    if (count == 0)
        return false;
    *published += count;
    if ((atomic_load_explicit(pending, memory_order_seq_cst) & bit) == 0)
        (void)atomic_fetch_or_explicit(pending, bit, memory_order_seq_cst);
    return atomic_load_explicit(&waker->sleeping, memory_order_seq_cst) != 0 && atomic_exchange_explicit(&waker->sleeping, 0, memory_order_seq_cst) != 0;
}

uint32_t mailbox_publish(struct mailbox *mailbox)
{
    ZG_CHECK(!mailbox->is_polling);
    struct core_set to_ring = {0};
    uint32_t published = 0;
    if (!core_set_is_empty(&mailbox->delaying))
        send_delayed(mailbox);
    for (uint32_t peer = core_set_next(&mailbox->dirty, 0); peer < CORE_SET_MAX; peer = core_set_next(&mailbox->dirty, peer + 1)) {
        if (publish_to(mailbox, peer, &published))
            core_set_add(&to_ring, peer);
    }
    mailbox->dirty = (struct core_set){0};
    mailbox->stats.published += published;
    /* A doorbell may be a system call, so it waits until everybody has its messages. */
    for (uint32_t peer = core_set_next(&to_ring, 0); peer < CORE_SET_MAX; peer = core_set_next(&to_ring, peer + 1)) {
        if (mailbox->doorbell == NULL)
            continue;
        mailbox->stats.doorbells++;
        mailbox->doorbell(mailbox->doorbell_context, peer);
    }
    return published;
}

/* Receiving. */

static void take_returns(struct mailbox *mailbox, uint32_t from, const struct msg *msg)
{
    ZG_CHECK(msg->length >= 1 && msg->length <= RETURNS_PER_MESSAGE);
    for (uint32_t i = 0; i < msg->length; i++) {
        uint64_t offset = msg->offset;
        if (i > 0)
            memcpy(&offset, msg->body + (i - 1) * sizeof(offset), sizeof(offset));
        struct block *block = loans_remove(&mailbox->loans, from, offset);
        if (block == NULL)
            mailbox->stats.returns_unknown++;
        else
            mailbox_drop_block(mailbox, block);
    }
}

static void take_message(struct mailbox *mailbox, uint32_t from, const struct msg *msg, mailbox_handler_fn handler, void *context)
{
    struct peer *p = &mailbox->peers[from];
    ZG_CHECK(msg->kind > MSG_NONE && msg->kind < MSG_KIND_COUNT);
    if (msg->kind == MSG_RETURN) {
        take_returns(mailbox, from, msg);
        return;
    }
    if (msg->kind == MSG_REPLY) {
        p->credits_free++;
        ZG_CHECK(p->credits_free + p->credits_unsent <= mailbox->group->credits);
    } else if (msg->kind == MSG_LEG) {
        p->replies_owed++;
        ZG_CHECK(p->replies_owed <= mailbox->group->credits);
    }
    handler(context, from, msg, msg->length > 0 ? arena_at(mailbox->group->arenas[from], msg->offset) : NULL);
}

/* Takes up to `messages_max` messages of one lane and gives their slots back. Fewer means that the lane was seen empty. */
static uint32_t poll_lane(struct mailbox *mailbox, uint32_t from, uint32_t messages_max, mailbox_handler_fn handler, void *context)
{
    struct lane *lane = mailbox->peers[from].in;
    uint16_t epoch = atomic_load_explicit(&lane->epoch, memory_order_relaxed);
    uint32_t count = 0;
    const struct msg *msg;
    while (count < messages_max && (msg = spsc_take(&lane->queue)) != NULL) {
        count++;
        if (msg->epoch == epoch)
            take_message(mailbox, from, msg, handler, context);
        else
            mailbox->stats.stale_epoch++;
    }
    if (count > 0)
        spsc_release(&lane->queue);
    return count;
}

static void take_pending(struct mailbox *mailbox)
{
    struct waker *waker = &mailbox->group->wakers[mailbox->id];
    for (uint32_t word = 0; word < CORE_SET_WORDS; word++) {
        /* An idle core only reads here, so the line stays in its cache until somebody has news. */
        if (atomic_load_explicit(&waker->pending[word], memory_order_relaxed) != 0)
            mailbox->ready.words[word] |= atomic_exchange_explicit(&waker->pending[word], 0, memory_order_seq_cst);
    }
}

uint32_t mailbox_poll(struct mailbox *mailbox, uint32_t messages_max, mailbox_handler_fn handler, void *context)
{
    ZG_CHECK(!mailbox->is_polling);
    uint32_t taken = 0;
    take_pending(mailbox);
    if (core_set_is_empty(&mailbox->ready))
        return 0;
    mailbox->is_polling = true;
    while (taken < messages_max && !core_set_is_empty(&mailbox->ready)) {
        uint32_t from = core_set_next(&mailbox->ready, mailbox->next_from);
        if (from == CORE_SET_MAX)
            from = core_set_next(&mailbox->ready, 0);
        uint32_t batch = messages_max - taken < LANE_BATCH ? messages_max - taken : LANE_BATCH;
        uint32_t count = poll_lane(mailbox, from, batch, handler, context);
        if (count < batch)
            core_set_remove(&mailbox->ready, from);
        taken += count;
        mailbox->next_from = from + 1 == CORE_SET_MAX ? 0 : from + 1;
    }
    mailbox->is_polling = false;
    mailbox->stats.taken += taken;
    return taken;
}

uint32_t mailbox_reclaim(struct mailbox *mailbox)
{
    uint32_t count = 0;
    for (uint32_t peer = core_set_next(&mailbox->lending, 0); peer < CORE_SET_MAX; peer = core_set_next(&mailbox->lending, peer + 1))
        count += reclaim_from(mailbox, peer);
    return count;
}

/* Sleeping. */

static bool has_sendable_return(struct mailbox *mailbox)
{
    for (uint32_t peer = core_set_next(&mailbox->delaying, 0); peer < CORE_SET_MAX; peer = core_set_next(&mailbox->delaying, peer + 1)) {
        struct peer *p = &mailbox->peers[peer];
        if (slot_fifo_has_room(&p->returns, p))
            return true;
    }
    return false;
}

bool mailbox_has_news(struct mailbox *mailbox)
{
    struct waker *waker = &mailbox->group->wakers[mailbox->id];
    uint64_t pending = 0;
    /* Only a hint for a core that spins, so relaxed loads do. */
    for (uint32_t word = 0; word < CORE_SET_WORDS; word++)
        pending |= atomic_load_explicit(&waker->pending[word], memory_order_relaxed);
    return pending != 0 || !core_set_is_empty(&mailbox->ready);
}

bool mailbox_sleep_begin(struct mailbox *mailbox)
{
    struct waker *waker = &mailbox->group->wakers[mailbox->id];
    if (!core_set_is_empty(&mailbox->dirty) || !core_set_is_empty(&mailbox->ready) || has_sendable_return(mailbox))
        return false;
    (void)atomic_exchange_explicit(&waker->sleeping, 1, memory_order_seq_cst);
    for (uint32_t word = 0; word < CORE_SET_WORDS; word++) {
        if (atomic_load_explicit(&waker->pending[word], memory_order_seq_cst) != 0) {
            mailbox_sleep_end(mailbox);
            return false;
        }
    }
    return true;
}

void mailbox_sleep_end(struct mailbox *mailbox)
{
    struct waker *waker = &mailbox->group->wakers[mailbox->id];
    /* A producer usually has cleared it already; then the line is left alone. */
    if (atomic_load_explicit(&waker->sleeping, memory_order_relaxed) != 0)
        atomic_store_explicit(&waker->sleeping, 0, memory_order_relaxed);
}

struct mailbox_stats mailbox_stats(const struct mailbox *mailbox)
{
    return mailbox->stats;
}

/* Replacing a peer. */

static void raise_epoch(struct lane *lane)
{
    atomic_store_explicit(&lane->epoch, (uint16_t)(atomic_load_explicit(&lane->epoch, memory_order_relaxed) + 1), memory_order_relaxed);
}

/* Consumes everything that is published in a lane; returns how many messages. */
static uint32_t discard(struct lane *lane)
{
    uint32_t count = 0;
    while (spsc_take(&lane->queue) != NULL)
        count++;
    spsc_release(&lane->queue);
    return count;
}

void mailbox_reset_peer(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = peer_of(mailbox, peer);
    ZG_CHECK(!mailbox->is_polling);
    raise_epoch(p->out);
    raise_epoch(p->in);
    /* The dead side consumes no more, so its lane is emptied for it: the new one starts with the whole capacity. */
    spsc_rewind(&p->out->queue);
    (void)discard(p->out);
    mailbox->stats.stale_epoch += discard(p->in);
    mailbox_drop_loans(mailbox, peer);
    while (p->delayed_first != 0)
        delayed_remove_first(mailbox, peer);
    core_set_remove(&mailbox->dirty, peer);
    core_set_remove(&mailbox->ready, peer);
    p->last = NULL;
    p->open_return = NULL;
    p->credits_free = mailbox->group->credits;
    p->credits_unsent = 0;
    p->replies_owed = 0;
    p->returns.count = 0;
    p->control.count = 0;
}
