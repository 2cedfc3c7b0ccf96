/*
 * Owns: legs on their owner core, from acceptance to their outcome. Runs on: that core.
 *
 *     accepted ──► fenced? ──► batched ──► on a link ──► replied ──► done
 *                    ▲                                     │
 *                    │        MOVED, ASK: fence, sent to the named node at once
 *                    └─────── TRYAGAIN, LOADING, ...: fence, sent again after a delay, while the deadline allows
 *                             link lost: reads once more unless a write of the slot was behind them, writes are answered
 *
 * A leg ends in exactly one call of finish(), which lets its fence go, drops its bytes and brings the reply to the request.
 */
#include <string.h>

#include "net/send_queue.h"
#include "net/socket.h"
#include "shard/dispatch.h"
#include "shard/merge.h"
#include "shard/recover.h"
#include "shard/subsplit.h"

enum { ATTEMPTS_MAX = 60, LOST_RETRIES_MAX = 2, REDIRECTS_MAX = 16 };

static void resend(struct dispatcher *dispatcher, struct leg *leg);
static void fail(struct dispatcher *dispatcher, struct leg *leg, enum status status);

static struct leg *leg_of_waiter(struct fence_waiter *waiter)
{
    return LIST_ENTRY(waiter, struct leg, next);
}

static struct fence_waiter *waiter_of_leg(struct leg *leg)
{
    return (struct fence_waiter *)(void *)&leg->next;
}

static enum fence_scope held_scope(const struct leg *leg)
{
    if ((leg->flags & LEG_HELD_SLOT) != 0)
        return FENCE_SLOT;
    return (leg->flags & LEG_HELD_KEY) != 0 ? FENCE_KEY : FENCE_NONE;
}

static void set_held(struct leg *leg, enum fence_scope scope)
{
    leg->flags &= (uint8_t)~(LEG_HELD_SLOT | LEG_HELD_KEY);
    if (scope == FENCE_SLOT)
        leg->flags |= LEG_HELD_SLOT;
    else if (scope == FENCE_KEY)
        leg->flags |= LEG_HELD_KEY;
}

static bool is_overdue(const struct dispatcher *dispatcher, const struct leg *leg, uint32_t delay_ms)
{
    return (int32_t)((uint32_t)dispatcher->core->now_ms + delay_ms - leg->deadline_ms) >= 0;
}

static void drop_bytes(struct dispatcher *dispatcher, struct leg *leg)
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
            status = STATUS_NO_MEMORY;
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

static void finish_child(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply, enum status status);

/* The one end of every leg. */
static void finish(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply, enum status status)
{
    struct net *net = dispatcher->net;
    drop_bytes(dispatcher, leg);
    if ((leg->flags & LEG_CHILD) != 0) {
        finish_child(dispatcher, leg, reply, status);
        return;
    }
    enum fence_scope held = held_scope(leg);
    uint16_t slot = leg->slot;
    uint32_t key_hash = leg->key_hash;
    bool was_paused = (leg->flags & LEG_PAUSED) != 0;
    set_held(leg, FENCE_NONE);
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

static void fail(struct dispatcher *dispatcher, struct leg *leg, enum status status)
{
    finish(dispatcher, leg, NULL, status);
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
            drop_bytes(dispatcher, leg);
            pool_put(&dispatcher->net->legs, &leg);
        } else {
            fail(dispatcher, leg, status);
        }
    }
}

static void flush_batch(void *context, uint64_t name, struct leg_list *legs, struct block *chain)
{
    struct dispatcher *dispatcher = context;
    struct core *core = dispatcher->core;
    uint32_t node_key = batch_name_node(name);
    uint8_t protocol = batch_name_protocol(name);
    enum status status = STATUS_NO_NODE;
    const struct sockaddr *address;
    socklen_t address_bytes;
    struct link *link = link_pool_find(&dispatcher->links, node_key, protocol);
    if (link == NULL && dispatcher_node_address(dispatcher, node_key, &address, &address_bytes))
        link = link_pool_get(&dispatcher->links, node_key, address, address_bytes, protocol, &status);
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
    const struct link *link = link_pool_find(&dispatcher->links, batch_name_node(batch->name), batch_name_protocol(batch->name));
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
            batch_flush_one(batch, flush_batch, dispatcher);
        }
    }
    struct list_node *node;
    while ((node = list_pop_front(&held)) != NULL)
        list_push_back(dirty, node);
}

/* Everything meant for a link is put on it, so that its seq_sent counts all that is before a fence. */
static void settle_link(struct dispatcher *dispatcher, const struct link *link)
{
    struct batch *batch = batch_map_find(&dispatcher->batches, batch_name(USE_CASE_DEFAULT, link->node_key, link->protocol));
    if (batch != NULL)
        batch_flush_one(batch, flush_batch, dispatcher);
}

static enum status put_into_batch(struct dispatcher *dispatcher, struct leg *leg, uint32_t node_key, const struct leg_source *source)
{
    struct batch *batch = batch_map_get(&dispatcher->batches, batch_name(leg->use_case, node_key, leg->protocol));
    if (batch == NULL)
        return STATUS_FULL;
    const struct use_case *use_case = &dispatcher->core->config->use_case;
    if ((batch->legs.count >= use_case->batch_max_requests || batch->bytes >= use_case->batch_max_bytes) && !must_hold(dispatcher, batch))
        batch_flush_one(batch, flush_batch, dispatcher);
    if ((leg->flags & LEG_ASKING) != 0) {
        struct leg *asking = net_own_leg(dispatcher->net);
        if (asking == NULL)
            return STATUS_FULL;
        if (batch_add_asking(&dispatcher->batches, batch, asking) != STATUS_OK) {
            pool_put(&dispatcher->net->legs, &asking);
            return STATUS_NO_MEMORY;
        }
    }
    return batch_add(&dispatcher->batches, batch, leg, source);
}

static void give_back_source(struct dispatcher *dispatcher, const struct leg_source *source)
{
    if (source->is_lent && source->length > dispatcher->core->config->limits.inline_bytes)
        mailbox_return(dispatcher->core->mailbox, source->lender, source->lent_offset);
}

void owner_accept(struct dispatcher *dispatcher, struct leg *leg, const struct leg_source *source)
{
    enum status status = STATUS_NO_NODE;
    if (__builtin_expect(!fence_table_is_empty(&dispatcher->fences), 0)) {
        /* The bytes must outlive this call where the leg waits. */
        status = leg_keep(dispatcher->core, leg, source);
        if (status == STATUS_OK) {
            switch (fence_admit(&dispatcher->fences, leg->slot, leg->key_hash, waiter_of_leg(leg))) {
            case FENCE_WAIT:
                metric_add(dispatcher->core->metrics, METRIC_fence_waits_total, 1);
                return;
            case FENCE_FULL:
                fail(dispatcher, leg, STATUS_FULL);
                return;
            case FENCE_PASS:
                resend(dispatcher, leg);
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
    fail(dispatcher, leg, status);
}

/* Sends a leg that holds its bytes: to its target where it was redirected, else to the node of its slot. */
static void resend(struct dispatcher *dispatcher, struct leg *leg)
{
    uint32_t node_key = leg->target != 0 ? leg->target : dispatcher_route(dispatcher, leg->slot);
    if (node_key == 0) {
        fail(dispatcher, leg, STATUS_NO_NODE);
        return;
    }
    struct block *old = leg->bytes;
    struct leg_source source = {.bytes = leg_bytes(leg), .length = leg->length, .block = old};
    leg->bytes = NULL;
    enum status status = put_into_batch(dispatcher, leg, node_key, &source);
    send_block_put(dispatcher->core, &old);
    if (status != STATUS_OK)
        fail(dispatcher, leg, status);
}

/* ---- redirects ---- */

static uint32_t foreign_node(struct dispatcher *dispatcher, const struct recover_target *target)
{
    for (uint32_t i = 0; i < dispatcher->foreign_count; i++)
        if (dispatcher->foreign[i].port == target->port && strcmp(dispatcher->foreign[i].host, target->host) == 0)
            return FOREIGN_NODE_BIT | i;
    if (dispatcher->foreign_count == FOREIGN_NODES_MAX)
        return 0;
    struct foreign_node *node = &dispatcher->foreign[dispatcher->foreign_count];
    memcpy(node->host, target->host, sizeof(node->host));
    node->port = target->port;
    if (!socket_resolve_numeric(node->host, node->port, &node->address, &node->address_bytes))
        return 0;
    return FOREIGN_NODE_BIT | dispatcher->foreign_count++;
}

static const char *node_host(const struct dispatcher *dispatcher, uint32_t node_key)
{
    if ((node_key & FOREIGN_NODE_BIT) != 0)
        return dispatcher->foreign[node_key & ~FOREIGN_NODE_BIT].host;
    const struct node *node = topology_node_of_key(dispatcher->topology, node_key);
    return node != NULL ? node->host : "";
}

/* The key of the node a redirect names; 0: it cannot be reached. */
static uint32_t target_node(struct dispatcher *dispatcher, const struct link *from, struct recover_target *target)
{
    if (target->host[0] == '\0')
        (void)strcpy(target->host, node_host(dispatcher, from->node_key));
    const struct node *node = topology_node_at(dispatcher->topology, target->host, (uint32_t)strlen(target->host), target->port);
    return node != NULL ? node->key : foreign_node(dispatcher, target);
}

static void retry_later(struct dispatcher *dispatcher, struct leg *leg)
{
    /* `length` is kept; offset too: only the time is needed, and it fits where the key of the target is kept meanwhile. */
    leg->target = (uint32_t)dispatcher->core->now_ms + recover_delay_ms(leg->attempts);
    leg_list_push(&dispatcher->retries, leg);
    if (!timer_is_armed(&dispatcher->retry_timer))
        timer_set(&dispatcher->core->wheel, &dispatcher->retry_timer, dispatcher->core->now_ms + RETRY_TICK_MS);
}

static struct fence_redirect redirect_of(const struct leg *leg, enum fence_scope scope, const struct link *link, uint32_t target)
{
    return (struct fence_redirect){
        .scope = leg->key_hash == 0 ? FENCE_SLOT : scope,
        .held = held_scope(leg),
        .slot = leg->slot,
        .key_hash = leg->key_hash,
        .link_key = link->key,
        .link_seq = link->seq_sent,
        .answered_seq = link->seq_answered,
        .target = target,
    };
}

/* The leg leaves its channel for `target`: later ones of its key or slot wait. PASS: it is to be sent now. WAIT: it is not to be touched any more. FULL: it has been failed. */
static enum fence_verdict leave_channel(struct dispatcher *dispatcher, struct link *link, struct leg *leg, enum fence_scope scope, uint32_t target)
{
    leg->target = target;
    if ((leg->flags & LEG_CHILD) != 0)
        return FENCE_PASS; /* its parent fences the slot */
    settle_link(dispatcher, link);
    struct fence_redirect redirect = redirect_of(leg, scope, link, target);
    uint64_t raised_before = dispatcher->fences.raised_count;
    set_held(leg, redirect.scope);
    enum fence_verdict verdict = fence_redirect(&dispatcher->fences, &redirect, waiter_of_leg(leg));
    metric_add(dispatcher->core->metrics, METRIC_fences_raised_total, dispatcher->fences.raised_count - raised_before);
    if (verdict == FENCE_FULL) {
        set_held(leg, redirect.held);
        fail(dispatcher, leg, STATUS_FULL);
    }
    return verdict;
}

static void forward_error(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply)
{
    finish(dispatcher, leg, reply, STATUS_OK);
}

bool owner_raise(struct dispatcher *dispatcher, uint16_t slot, uint32_t former_node)
{
    bool is_raised = true;
    for (uint8_t protocol = 2; protocol <= 3; protocol++) {
        struct link *link = link_pool_find(&dispatcher->links, former_node, protocol);
        if (link == NULL)
            continue;
        settle_link(dispatcher, link);
        if (link->seq_answered == link->seq_sent)
            continue;
        enum fence_verdict verdict = fence_raise(&dispatcher->fences, FENCE_SLOT, slot, 0, link->key, link->seq_sent, link->seq_answered);
        metric_add(dispatcher->core->metrics, METRIC_fences_raised_total, verdict == FENCE_WAIT);
        is_raised = is_raised && verdict != FENCE_FULL;
    }
    return is_raised;
}

/* From now on `slot` is routed to node_key, behind all that is on its way to the former node. Where there is no room for the fence the former route stays: what goes there comes back by MOVED. */
static void reroute(struct dispatcher *dispatcher, uint16_t slot, uint32_t node_key)
{
    uint32_t former = dispatcher_route(dispatcher, slot);
    if (former == node_key || (former != 0 && !owner_raise(dispatcher, slot, former)))
        return;
    if (dispatcher->overrides[slot] == 0)
        dispatcher->overrides_count++;
    dispatcher->overrides[slot] = node_key;
}

static void follow_moved(struct dispatcher *dispatcher, struct link *link, struct leg *leg, const struct reply *reply, struct recover_target *target)
{
    metric_add(dispatcher->core->metrics, METRIC_moved_total, 1);
    uint32_t node_key = target_node(dispatcher, link, target);
    uint16_t slot = leg->slot;
    dispatcher_ask_refresh(dispatcher, target);
    if (node_key == 0 || leg->attempts >= REDIRECTS_MAX || target->slot != slot) {
        forward_error(dispatcher, leg, reply);
        return;
    }
    leg->attempts++;
    leg->flags &= (uint8_t)~LEG_ASKING;
    enum fence_verdict verdict = leave_channel(dispatcher, link, leg, FENCE_SLOT, node_key);
    if (verdict == FENCE_FULL)
        return;
    reroute(dispatcher, slot, node_key);
    metric_add(dispatcher->core->metrics, METRIC_legs_retried_total, 1);
    if (verdict == FENCE_PASS)
        resend(dispatcher, leg);
}

static void follow_ask(struct dispatcher *dispatcher, struct link *link, struct leg *leg, const struct reply *reply, struct recover_target *target)
{
    metric_add(dispatcher->core->metrics, METRIC_ask_total, 1);
    uint32_t node_key = target_node(dispatcher, link, target);
    if (node_key == 0 || leg->attempts >= REDIRECTS_MAX) {
        forward_error(dispatcher, leg, reply);
        return;
    }
    leg->attempts++;
    leg->flags |= LEG_ASKING;
    metric_add(dispatcher->core->metrics, METRIC_legs_retried_total, 1);
    if (leave_channel(dispatcher, link, leg, FENCE_KEY, node_key) == FENCE_PASS)
        resend(dispatcher, leg);
}

static bool divide(struct dispatcher *dispatcher, struct leg *leg);

static void follow_retry(struct dispatcher *dispatcher, struct link *link, struct leg *leg, const struct reply *reply, enum recover_verdict verdict)
{
    metric_add(dispatcher->core->metrics, METRIC_tryagain_total, verdict == RECOVER_RETRY);
    if (verdict == RECOVER_RETRY_REFRESH)
        dispatcher_ask_refresh(dispatcher, NULL);
    if (leg->attempts >= ATTEMPTS_MAX || is_overdue(dispatcher, leg, recover_delay_ms(leg->attempts) + 1)) {
        forward_error(dispatcher, leg, reply);
        return;
    }
    leg->attempts++;
    leg->flags &= (uint8_t)~LEG_ASKING;
    metric_add(dispatcher->core->metrics, METRIC_legs_retried_total, 1);
    if ((leg->flags & LEG_CHILD) != 0) {
        retry_later(dispatcher, leg);
        return;
    }
    settle_link(dispatcher, link);
    struct fence_redirect redirect = redirect_of(leg, FENCE_KEY, link, 0);
    if (fence_pause(&dispatcher->fences, &redirect) == FENCE_FULL) {
        forward_error(dispatcher, leg, reply);
        return;
    }
    set_held(leg, redirect.scope);
    leg->flags |= LEG_PAUSED;
    bool has_many_keys = leg->key_hash == 0;
    if (verdict != RECOVER_RETRY || !has_many_keys || !divide(dispatcher, leg))
        retry_later(dispatcher, leg);
}

void owner_reply(struct net *net, struct link *link, struct leg *leg, const struct reply *reply)
{
    struct dispatcher *dispatcher = net->owner;
    if (__builtin_expect(reply->bytes[0] == '-', 0)) {
        struct recover_target target;
        enum recover_verdict verdict = recover_classify(reply->bytes, reply->length, &target);
        switch (verdict) {
        case RECOVER_MOVED:
            follow_moved(dispatcher, link, leg, reply, &target);
            return;
        case RECOVER_ASK:
            follow_ask(dispatcher, link, leg, reply, &target);
            return;
        case RECOVER_RETRY:
        case RECOVER_RETRY_REFRESH:
            follow_retry(dispatcher, link, leg, reply, verdict);
            return;
        case RECOVER_NONE:
            break;
        }
    }
    finish(dispatcher, leg, reply, STATUS_OK);
}

/* ---- one key at a time: TRYAGAIN on a migrating slot ---- */

static bool divide(struct dispatcher *dispatcher, struct leg *parent)
{
    struct net *net = dispatcher->net;
    struct resp_command_scanner *scanner = &net->scanner;
    struct resp_command_state state = {0};
    const uint8_t *bytes = leg_bytes(parent);
    if (resp_scan_command(scanner, &state, bytes, parent->length) != RESP_DONE)
        return false;
    bool unknown_sub;
    const struct command *command = command_table_find(net->session_env.commands, bytes + scanner->args[0].offset, scanner->args[0].length, NULL, 0, &unknown_sub);
    if (command == NULL || command->handling != HANDLE_SPLIT)
        return false;
    struct split_plan plan;
    if (split_part_single_keys(&dispatcher->splitter, command, bytes, parent->length, parent->slot, &plan) != STATUS_OK || plan.parts_count < 2)
        return false;
    struct subsplit *subsplit = pool_get_raw(&dispatcher->subsplits);
    if (subsplit == NULL)
        return false;
    /* The plan lies in scratch memory that a child's end may use again. */
    struct block *block = plan.parts_count <= UINT16_MAX ? arena_get(dispatcher->core->arena, plan.bytes_count) : NULL;
    if (block == NULL) {
        pool_put(&dispatcher->subsplits, &subsplit);
        return false;
    }
    memcpy(block->data, plan.bytes, plan.bytes_count);
    block->length = plan.bytes_count;
    merge_begin(&subsplit->merge, (enum command_merge)command->merge, &plan, (uint32_t)dispatcher->core->config->limits.reply_max_bytes);
    subsplit->parent = parent;
    subsplit->left = plan.parts_count;
    struct leg_list children = {0};
    for (uint32_t i = 0; i < plan.parts_count; i++) {
        struct leg *child = net_own_leg(net);
        if (child == NULL) {
            /* What has not been made counts as refused. */
            merge_part_failed(&subsplit->merge, i, status_resp_text(STATUS_FULL));
            subsplit->left--;
            continue;
        }
        child->origin = pool_handle_of(&subsplit->item).value;
        child->bytes = block_ref(block);
        child->offset = plan.parts[i].offset;
        child->length = plan.parts[i].length;
        child->deadline_ms = parent->deadline_ms;
        child->slot = parent->slot;
        child->home = (uint16_t)dispatcher->core->id;
        child->part = (uint16_t)i;
        child->use_case = parent->use_case;
        child->flags = (uint8_t)(LEG_CHILD | (parent->flags & LEG_READONLY));
        child->protocol = parent->protocol;
        leg_list_push(&children, child);
    }
    arena_put(dispatcher->core->arena, &block);
    if (children.count == 0) {
        merge_fini(&subsplit->merge);
        pool_put(&dispatcher->subsplits, &subsplit);
        return false;
    }
    struct leg *child;
    while ((child = leg_list_pop(&children)) != NULL)
        resend(dispatcher, child);
    return true;
}

static void finish_child(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply, enum status status)
{
    struct subsplit *subsplit = pool_resolve(&dispatcher->subsplits, (struct pool_handle){.value = leg->origin});
    ZG_CHECK(subsplit != NULL && subsplit->left > 0);
    if (status == STATUS_OK)
        merge_part_reply(&subsplit->merge, leg->part, reply->bytes, reply->length);
    else
        merge_part_failed(&subsplit->merge, leg->part, status_resp_text(status));
    pool_put(&dispatcher->net->legs, &leg);
    if (--subsplit->left > 0)
        return;
    struct resp_writer whole;
    resp_writer_init(&whole, subsplit->parent->protocol);
    merge_write(&subsplit->merge, &whole);
    merge_fini(&subsplit->merge);
    struct leg *parent = subsplit->parent;
    pool_put(&dispatcher->subsplits, &subsplit);
    struct reply merged = {.bytes = whole.data, .length = whole.length};
    finish(dispatcher, parent, &merged, STATUS_OK);
    resp_writer_fini(&whole);
}

/* ---- lost links, fences, retries ---- */

static void keep_behind(void *context, uint64_t name, struct leg_list *legs, struct block *chain)
{
    struct dispatcher *dispatcher = context;
    (void)name;
    dispatcher->lost.behind = *legs;
    dispatcher->lost.chain = chain;
}

/* The first leg of a link that is lost: what is not on it yet has to stay behind what is. */
static void begin_loss(struct dispatcher *dispatcher, const struct link *link)
{
    struct lost_link *lost = &dispatcher->lost;
    ZG_CHECK(lost->key == 0 && lost->behind.count == 0);
    lost->key = link->key;
    memset(lost->write_behind, 0, sizeof(lost->write_behind));
    uint32_t behind = link->fifo.count;
    for (const struct leg *leg = link->fifo.head; leg != NULL; leg = leg->next) {
        if (leg->action == LEG_FORWARD && (leg->flags & (LEG_READONLY | LEG_HANDSHAKE)) == 0)
            lost->write_behind[leg->slot] = behind;
        behind--;
    }
    struct batch *batch = batch_map_find(&dispatcher->batches, batch_name(USE_CASE_DEFAULT, link->node_key, link->protocol));
    if (batch != NULL)
        batch_flush_one(batch, keep_behind, dispatcher);
}

/* A write behind it may have been done already: repeated, the read would see what came after it. By slot, which is more than needed, and cheap. */
static bool has_write_behind(const struct dispatcher *dispatcher, const struct link *link, const struct leg *leg)
{
    uint32_t behind = dispatcher->lost.write_behind[leg->slot];
    return behind != 0 && behind <= link->fifo.count;
}

void owner_lost(struct net *net, struct link *link, struct leg *leg, bool was_sent)
{
    struct dispatcher *dispatcher = net->owner;
    if (dispatcher->lost.key != link->key)
        begin_loss(dispatcher, link);
    bool may_repeat = !was_sent || ((leg->flags & LEG_READONLY) != 0 && !has_write_behind(dispatcher, link, leg));
    if (!may_repeat || leg->attempts >= LOST_RETRIES_MAX || is_overdue(dispatcher, leg, 0) || net->is_draining) {
        fail(dispatcher, leg, was_sent ? STATUS_LINK_LOST : STATUS_NO_NODE);
        return;
    }
    leg->attempts++;
    leg->flags &= (uint8_t)~LEG_ASKING;
    leg->target = 0;
    dispatcher_ask_refresh(dispatcher, NULL);
    metric_add(dispatcher->core->metrics, METRIC_legs_retried_total, 1);
    resend(dispatcher, leg);
}

void owner_progress(struct net *net, struct link *link)
{
    struct dispatcher *dispatcher = net->owner;
    fence_link_progress(&dispatcher->fences, link->key, link->seq_answered);
}

void owner_gone(struct net *net, struct link *link)
{
    struct dispatcher *dispatcher = net->owner;
    struct lost_link *lost = &dispatcher->lost;
    if (lost->key == link->key) {
        lost->key = 0;
        struct leg_list behind = lost->behind;
        memset(&lost->behind, 0, sizeof(lost->behind));
        if (behind.count > 0) {
            settle_link(dispatcher, link);
            flush_batch(dispatcher, batch_name(USE_CASE_DEFAULT, link->node_key, link->protocol), &behind, lost->chain);
        }
    }
    fence_link_gone(&dispatcher->fences, link->key);
}

static void emit_new(void *context, struct fence_waiter *waiter)
{
    resend(context, leg_of_waiter(waiter));
}

/* By the time it may go the slot may be elsewhere again: it goes where the slot is now. */
static void emit_redirected(void *context, struct fence_waiter *waiter)
{
    struct leg *leg = leg_of_waiter(waiter);
    leg->target = 0;
    leg->flags &= (uint8_t)~LEG_ASKING;
    resend(context, leg);
}

static uint64_t waiting_target(void *context, struct fence_waiter *waiter)
{
    return dispatcher_route(context, leg_of_waiter(waiter)->slot);
}

static const struct fence_ops fence_callbacks = {.emit = emit_new, .emit_redirect = emit_redirected, .target_of = waiting_target};

static bool waiter_is_overdue(void *context, const struct fence_waiter *waiter)
{
    const struct leg *leg = LIST_ENTRY((uintptr_t)waiter, const struct leg, next);
    return is_overdue(context, leg, 0);
}

static void waiter_expired(void *context, struct fence_waiter *waiter, bool redirected)
{
    (void)redirected;
    fail(context, leg_of_waiter(waiter), STATUS_TIMEOUT);
}

/* The pause is over: to the node of its slot, unless others of the slot are out elsewhere. */
static void resume(struct dispatcher *dispatcher, struct leg *leg)
{
    struct fence_redirect redirect = {
        .scope = held_scope(leg),
        .held = held_scope(leg),
        .slot = leg->slot,
        .key_hash = leg->key_hash,
        .link_key = 1, /* no dependency: both sequence numbers are 0 */
        .target = dispatcher_route(dispatcher, leg->slot),
    };
    leg->flags &= (uint8_t)~LEG_PAUSED;
    switch (fence_resume(&dispatcher->fences, &redirect, waiter_of_leg(leg))) {
    case FENCE_PASS:
        resend(dispatcher, leg);
        return;
    case FENCE_WAIT:
        return;
    case FENCE_FULL:
        leg->flags |= LEG_PAUSED;
        retry_later(dispatcher, leg);
        return;
    }
}

static void run_retries(struct timer *timer, void *context)
{
    struct dispatcher *dispatcher = context;
    struct leg_list due = dispatcher->retries;
    memset(&dispatcher->retries, 0, sizeof(dispatcher->retries));
    struct leg *leg;
    while ((leg = leg_list_pop(&due)) != NULL) {
        if ((int32_t)((uint32_t)dispatcher->core->now_ms - leg->target) < 0) {
            leg_list_push(&dispatcher->retries, leg);
            continue;
        }
        leg->target = 0;
        if (is_overdue(dispatcher, leg, 0))
            fail(dispatcher, leg, STATUS_TIMEOUT);
        else if ((leg->flags & LEG_CHILD) != 0)
            resend(dispatcher, leg);
        else
            resume(dispatcher, leg);
    }
    if (dispatcher->retries.count > 0 && !timer_is_armed(timer))
        timer_set(&dispatcher->core->wheel, timer, dispatcher->core->now_ms + RETRY_TICK_MS);
}

void owner_expire(struct dispatcher *dispatcher)
{
    if (dispatcher->fences.waiters_count > 0)
        (void)fence_expire(&dispatcher->fences, waiter_is_overdue, waiter_expired, dispatcher);
}

void owner_init(struct dispatcher *dispatcher)
{
    const struct config *config = dispatcher->core->config;
    enum { FENCES_MAX = 65536, SUBSPLITS_MAX = 65536 };
    fence_table_init(&dispatcher->fences, config->limits.fence_waiters_max, FENCES_MAX, &fence_callbacks, dispatcher);
    batch_map_init(&dispatcher->batches, dispatcher->core, config->limits.links_per_core * 2);
    pool_init(&dispatcher->subsplits, "subsplits", sizeof(struct subsplit), SUBSPLITS_MAX);
    timer_init(&dispatcher->retry_timer, run_retries, dispatcher);
}

void owner_fini(struct dispatcher *dispatcher)
{
    fence_table_fini(&dispatcher->fences);
    batch_map_fini(&dispatcher->batches);
    pool_fini(&dispatcher->subsplits);
}
