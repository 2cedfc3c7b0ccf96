/*
 * Owns: legs on their owner core, from acceptance to their outcome. Runs on: that core.
 *
 *     accepted ──► fenced? ──► batched ──► on a link ──► replied ──► done
 *                    ▲                                     │
 *                    │        MOVED, ASK: fence, sent to the named node at once
 *                    └─────── TRYAGAIN, LOADING, ...: fence, sent again after a delay, while the deadline allows
 *                             link lost: reads once more unless a write of the slot was behind them, writes are answered
 *
 * A leg ends in exactly one call of owner_finish(), which lets its fence go, drops its bytes and brings the reply to the request.
 */
#include <string.h>

#include "core/alloc.h"
#include "net/send_queue.h"
#include "shard/owner.h"
#include "shard/subsplit.h"

void owner_drop_bytes(struct dispatcher *dispatcher, struct leg *leg)
{
    if (leg->bytes != NULL)
        send_block_put(dispatcher->core, &leg->bytes);
}

/* ---- the outcome of a leg ---- */

static void reply_to_home(struct dispatcher *dispatcher, const struct leg *leg, const struct reply *reply, enum status status)
{
    struct core *core = dispatcher->core;
    struct msg *msg = mailbox_reserve(core->mailbox, leg->home, CLASS_REPLY);
    struct block *copy = NULL;
    struct block *block = status == STATUS_OK ? reply->block : NULL;
    const uint8_t *bytes = status == STATUS_OK ? reply->bytes : NULL;
    if (status == STATUS_OK && block == NULL) {
        copy = arena_get(core->arena, reply->length);
        if (copy == NULL) {
            status = STATUS_REPLY_DROPPED; /* not OVERLOAD: that would say that nothing was done */
        } else {
            memcpy(copy->data, reply->bytes, reply->length);
            block = copy;
            bytes = copy->data;
        }
    }
    struct msg_reply body = {.part = leg->part, .status = (uint16_t)status};
    msg->kind = MSG_REPLY;
    msg->origin = leg->origin;
    memcpy(msg->body, &body, sizeof(body));
    if (status == STATUS_OK)
        mailbox_lend(core->mailbox, leg->home, msg, block, bytes, reply->length, reply->length > core->config->limits.inline_bytes);
    if (copy != NULL)
        arena_put(core->arena, &copy);
}

void owner_finish(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply, enum status status)
{
    struct net *net = dispatcher->net;
    owner_drop_bytes(dispatcher, leg);
    if (reply != NULL && dispatcher->counts_load)
        load_add_reply(dispatcher->load, leg->slot, reply->length);
    if ((leg->flags & LEG_CHILD) != 0) {
        divide_finish_child(dispatcher, leg, reply, status);
        return;
    }
    enum fence_scope held = leg_held_scope(leg);
    uint16_t slot = leg->slot;
    uint32_t key_hash = leg->key_hash;
    bool was_paused = (leg->flags & LEG_PAUSED) != 0;
    leg_set_held(leg, FENCE_NONE);
    leg->flags &= (uint8_t)~LEG_PAUSED;
    if (leg->home != dispatcher->core->id) {
        reply_to_home(dispatcher, leg, reply, status);
        pool_put(&net->legs, &leg);
    } else {
        struct request *request = (leg->flags & LEG_EMBEDDED) != 0 ? request_of_leg(leg) : pool_resolve(&net->requests, (struct pool_handle){.value = leg->origin});
        ZG_CHECK(request != NULL && request->legs_left > 0);
        uint16_t part = leg->part;
        if ((leg->flags & LEG_EMBEDDED) == 0)
            pool_put(&net->legs, &leg);
        if (status == STATUS_OK)
            request_leg_done(net, request, part, reply);
        else
            request_leg_failed(net, request, part, status);
    }
    if (held != FENCE_NONE && was_paused)
        fence_release_paused(&dispatcher->fences, held, slot, key_hash);
    else if (held != FENCE_NONE)
        fence_release(&dispatcher->fences, held, slot, key_hash);
}

void owner_streams(struct net *net, struct leg *leg, uint64_t reply_bytes)
{
    struct dispatcher *dispatcher = net->owner;
    bulk_note_reply(dispatcher, leg, reply_bytes);
    enum fence_scope held = leg_held_scope(leg);
    owner_drop_bytes(dispatcher, leg);
    leg_set_held(leg, FENCE_NONE);
    if (held != FENCE_NONE)
        fence_release(&dispatcher->fences, held, leg->slot, leg->key_hash);
}

void owner_fail(struct dispatcher *dispatcher, struct leg *leg, enum status status)
{
    owner_finish(dispatcher, leg, NULL, status);
}

/* ---- on the way to a link ---- */

/* No link: every leg ends, and the chunks go. */
static void fail_batch(struct dispatcher *dispatcher, struct leg_list *legs, struct block *chain, enum status status)
{
    while (chain != NULL) {
        struct block *next = chain->next;
        send_block_put(dispatcher->core, &chain);
        chain = next;
    }
    struct leg *leg;
    while ((leg = leg_list_pop(legs)) != NULL) {
        if (leg->action == LEG_DISCARD) {
            owner_drop_bytes(dispatcher, leg);
            pool_put(&dispatcher->net->legs, &leg);
        } else {
            owner_fail(dispatcher, leg, status);
        }
    }
}

void owner_flush_batch(void *context, uint64_t name, struct leg_list *legs, struct block *chain)
{
    struct dispatcher *dispatcher = context;
    struct core *core = dispatcher->core;
    uint32_t node_key = batch_name_node(name);
    uint8_t channel = batch_name_channel(name);
    enum status status = STATUS_NO_NODE;
    const struct sockaddr *address;
    socklen_t address_bytes;
    struct link *link = link_pool_find(&dispatcher->links, node_key, channel);
    bool fails = node_health_fails(dispatcher, node_key, link);
    if (__builtin_expect(fails, 0)) {
        metric_add(core->metrics, METRIC_legs_failed_fast_total, legs->count);
        link = NULL;
    } else if (link == NULL && dispatcher_node_address(dispatcher, node_key, &address, &address_bytes)) {
        link = link_pool_get(&dispatcher->links, node_key, address, address_bytes, channel, &status);
    }
    metric_add(core->metrics, METRIC_batches_total, 1);
    metric_add(core->metrics, METRIC_legs_total, legs->count);
    histogram_record(&core->metrics->batch_legs, legs->count, 1);
    if (link != NULL) {
        link_enqueue(dispatcher->net, link, legs, chain);
        return;
    }
    if (status == STATUS_NO_NODE)
        dispatcher_ask_refresh(dispatcher, NULL);
    fail_batch(dispatcher, legs, chain, status);
}

/* The link of a batch has as many legs without a reply as it may: the batch waits, and grows meanwhile. Nobody is refused for it; requests are bounded where they are born. */
static bool must_hold(struct dispatcher *dispatcher, const struct batch *batch)
{
    const struct link *link = link_pool_find(&dispatcher->links, batch_name_node(batch->name), batch_name_channel(batch->name));
    return link != NULL && link->fifo.count >= dispatcher->core->config->limits.link_inflight_max;
}

void owner_flush(struct dispatcher *dispatcher, bool force)
{
    struct list_node *dirty = &dispatcher->batches.dirty;
    struct list_node held;
    list_init(&held);
    /* A leg that ends here may fill a batch again; each turn ends legs, so there is a last one. */
    while (!list_is_empty(dirty)) {
        struct batch *batch = LIST_ENTRY(dirty->next, struct batch, dirty);
        if (!force && must_hold(dispatcher, batch)) {
            list_remove(&batch->dirty);
            list_push_back(&held, &batch->dirty);
        } else {
            batch_flush_one(batch, owner_flush_batch, dispatcher);
        }
    }
    struct list_node *node;
    while ((node = list_pop_front(&held)) != NULL)
        list_push_back(dirty, node);
}

void owner_settle(struct dispatcher *dispatcher, uint32_t node_key, uint8_t channel)
{
    struct batch *batch = batch_map_find(&dispatcher->batches, batch_name(USE_CASE_DEFAULT, node_key, channel));
    if (batch != NULL)
        batch_flush_one(batch, owner_flush_batch, dispatcher);
}

static enum status put_into_batch(struct dispatcher *dispatcher, struct leg *leg, uint32_t node_key, const struct leg_source *source)
{
    struct batch *batch = batch_map_get(&dispatcher->batches, batch_name(leg->use_case, node_key, leg->channel));
    if (batch == NULL)
        return STATUS_FULL;
    const struct use_case *use_case = &dispatcher->core->config->use_case;
    if ((batch->legs.count >= use_case->batch_max_requests || batch->bytes >= use_case->batch_max_bytes) && !must_hold(dispatcher, batch))
        batch_flush_one(batch, owner_flush_batch, dispatcher);
    if ((leg->flags & LEG_ASKING) != 0) {
        struct leg *asking = net_own_leg(dispatcher->net);
        if (asking == NULL)
            return STATUS_FULL;
        if (batch_add_asking(&dispatcher->batches, batch, asking) != STATUS_OK) {
            pool_put(&dispatcher->net->legs, &asking);
            return STATUS_NO_MEMORY;
        }
    }
    enum status status = batch_add(&dispatcher->batches, batch, leg, source);
    if (dispatcher->counts_load)
        load_add_command(dispatcher->load, leg->slot, source->length);
    if (__builtin_expect(status != STATUS_OK && (leg->flags & LEG_ASKING) != 0, 0)) {
        /* An ASKING without its command would be the next one's: the link goes, with all that is on it. */
        uint64_t name = batch->name;
        batch_flush_one(batch, owner_flush_batch, dispatcher);
        struct link *link = link_pool_find(&dispatcher->links, batch_name_node(name), batch_name_channel(name));
        if (link != NULL)
            conn_close(dispatcher->core, &link->conn, CLOSE_NO_MEMORY);
    }
    return status;
}

static void give_back_source(struct dispatcher *dispatcher, const struct leg_source *source)
{
    if (source->is_lent && source->length > dispatcher->core->config->limits.inline_bytes)
        mailbox_return(dispatcher->core->mailbox, source->lender, source->lent_offset);
}

void owner_accept(struct dispatcher *dispatcher, struct leg *leg, const struct leg_source *source)
{
    enum status status = STATUS_NO_NODE;
    if (__builtin_expect(!fence_slot_is_clear(&dispatcher->fences, leg->slot) || bulk_is_wanted(dispatcher, leg, source->length), 0)) {
        /* The bytes must outlive this call where the leg waits. */
        status = leg_keep(dispatcher->core, leg, source);
        if (status == STATUS_OK) {
            switch (fence_admit(&dispatcher->fences, leg->slot, leg->key_hash, waiter_of_leg(leg))) {
            case FENCE_WAIT:
                metric_add(dispatcher->core->metrics, METRIC_fence_waits_total, 1);
                return;
            case FENCE_FULL:
                owner_fail(dispatcher, leg, STATUS_FULL);
                return;
            case FENCE_PASS:
                owner_resend(dispatcher, leg);
                return;
            }
        }
    } else {
        uint32_t node_key = dispatcher_route(dispatcher, leg->slot);
        if (__builtin_expect(node_key != 0, 1))
            status = put_into_batch(dispatcher, leg, node_key, source);
    }
    if (__builtin_expect(status == STATUS_OK, 1))
        return;
    give_back_source(dispatcher, source);
    owner_fail(dispatcher, leg, status);
}

/* Chooses the link of a leg that holds its bytes. True: it has to wait for that, and is not to be touched any more. */
static bool departs(struct dispatcher *dispatcher, struct leg *leg)
{
    if (leg_held_scope(leg) != FENCE_NONE || (!channel_is_bulk(leg->channel) && !bulk_is_wanted(dispatcher, leg, leg->length)))
        return false;
    if ((leg->flags & LEG_CHILD) != 0) {
        leg->channel |= CHANNEL_BULK; /* its parent fences the slot */
        return false;
    }
    bool waits;
    return bulk_depart(dispatcher, leg, &waits) && waits;
}

void owner_resend(struct dispatcher *dispatcher, struct leg *leg)
{
    if (__builtin_expect(departs(dispatcher, leg), 0))
        return;
    uint32_t node_key = leg->target != 0 ? leg->target : dispatcher_route(dispatcher, leg->slot);
    if (node_key == 0) {
        owner_fail(dispatcher, leg, STATUS_NO_NODE);
        return;
    }
    struct block *old = leg->bytes;
    struct leg_source source = {.bytes = leg_bytes(leg), .length = leg->length, .block = old};
    leg->bytes = NULL;
    enum status status = put_into_batch(dispatcher, leg, node_key, &source);
    send_block_put(dispatcher->core, &old);
    if (status != STATUS_OK)
        owner_fail(dispatcher, leg, status);
}

void owner_progress(struct net *net, struct link *link)
{
    struct dispatcher *dispatcher = net->owner;
    fence_link_progress(&dispatcher->fences, link->key, link->seq_answered);
}

void owner_init(struct dispatcher *dispatcher)
{
    const struct config *config = dispatcher->core->config;
    enum { SUBSPLITS_MAX = 65536 };
    dispatcher->load = alloc_zeroed_aligned(sizeof(*dispatcher->load), 64);
    dispatcher->counts_load = dispatcher->core->shared->data_cores > 1;
    batch_map_init(&dispatcher->batches, dispatcher->core, config->limits.links_per_core * 2);
    pool_init(&dispatcher->subsplits, "subsplits", sizeof(struct subsplit), SUBSPLITS_MAX);
    redirect_init(dispatcher);
}

void owner_fini(struct dispatcher *dispatcher)
{
    fence_table_fini(&dispatcher->fences);
    batch_map_fini(&dispatcher->batches);
    pool_fini(&dispatcher->subsplits);
    alloc_free(dispatcher->load);
    dispatcher->load = NULL;
}
