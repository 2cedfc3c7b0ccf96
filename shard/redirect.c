/*
 * Owns: legs that leave their channel: followed redirects, repeats after a pause, and the fences that keep the order meanwhile. Runs on: the owner core.
 *
 *     MOVED  fences the slot, changes its route, sends at once          (unless others of the slot are out elsewhere: then behind them)
 *     ASK    fences the key, sends at once behind ASKING                (likewise)
 *     TRYAGAIN, LOADING, ... fences, sends again after 2, 4, 8 .. 64 ms within the retry budget (a multi-key leg of a migrating slot: one key at a time, divide.c)
 */
#include <stdio.h>
#include <string.h>

#include "net/socket.h"
#include "shard/owner.h"
#include "shard/recover.h"

enum { ATTEMPTS_MAX = 60, REDIRECTS_FREE = 4, FENCES_MAX = 65536, BEHIND_MAX = 1024, FOREIGN_IDLE_MS = 60 * 1000 };

static bool has_route(const struct dispatcher *dispatcher, uint32_t node_key)
{
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        if (dispatcher->routes[slot] == node_key)
            return true;
    return false;
}

/* A place for a node that the topology does not know: a new one, or that of a node that no redirect has named for so long that no leg and no route can. */
static struct foreign_node *foreign_place(struct dispatcher *dispatcher)
{
    if (dispatcher->foreign_count < FOREIGN_NODES_MAX)
        return &dispatcher->foreign[dispatcher->foreign_count++];
    uint64_t idle_ms = FOREIGN_IDLE_MS + dispatcher->core->config->use_case.timeout_ns / 1000000;
    for (uint32_t i = 0; i < FOREIGN_NODES_MAX; i++) {
        struct foreign_node *node = &dispatcher->foreign[i];
        if (!link_pool_has_any(&dispatcher->links, FOREIGN_NODE_BIT | i) && !has_route(dispatcher, FOREIGN_NODE_BIT | i) && dispatcher->core->now_ms - node->used_ms > idle_ms)
            return node;
    }
    return NULL;
}

/* The key of such a node; 0: it cannot be reached. */
static uint32_t foreign_node(struct dispatcher *dispatcher, const struct recover_target *target)
{
    struct sockaddr_storage address;
    socklen_t address_bytes;
    struct foreign_node *node = NULL;
    for (uint32_t i = 0; i < dispatcher->foreign_count && node == NULL; i++)
        if (dispatcher->foreign[i].port == target->port && strcmp(dispatcher->foreign[i].host, target->host) == 0)
            node = &dispatcher->foreign[i];
    if (node == NULL) {
        if (!socket_resolve_numeric(target->host, target->port, &address, &address_bytes))
            return 0;
        node = foreign_place(dispatcher);
        if (node == NULL)
            return 0;
        memcpy(node->host, target->host, sizeof(node->host));
        node->port = target->port;
        node->address = address;
        node->address_bytes = address_bytes;
    }
    node->used_ms = dispatcher->core->now_ms;
    return FOREIGN_NODE_BIT | (uint32_t)(node - dispatcher->foreign);
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
        (void)snprintf(target->host, sizeof(target->host), "%s", node_host(dispatcher, from->node_key));
    const struct node *node = topology_node_at(dispatcher->topology, target->host, (uint32_t)strlen(target->host), target->port);
    return node != NULL ? node->key : foreign_node(dispatcher, target);
}

/* Requests are what went to links, without what went there again: nothing on the path is counted for it. */
static uint64_t requests_total(const struct dispatcher *dispatcher)
{
    const struct metrics *metrics = dispatcher->core->metrics;
    uint64_t legs = metric_read(metrics, METRIC_legs_total);
    uint64_t again = metric_read(metrics, METRIC_legs_retried_total);
    uint64_t requests = legs > again ? legs - again : 0;
    /* A leg that is to be sent again is counted before it has been. */
    return requests > dispatcher->budget.requests_seen ? requests : dispatcher->budget.requests_seen;
}

bool redirect_may_retry(struct dispatcher *dispatcher)
{
    bool may = retry_budget_take(&dispatcher->budget, requests_total(dispatcher), dispatcher->core->now_ms);
    metric_add(dispatcher->core->metrics, may ? METRIC_retries_total : METRIC_retries_refused_total, 1);
    return may;
}

/* The first redirects of a leg are the price of a slot that moves. What is sent on and on - two nodes that name each other - is a repeat as any other, until it has had too many. */
static bool may_redirect(struct dispatcher *dispatcher, const struct leg *leg)
{
    return leg->attempts < REDIRECTS_FREE || (leg->attempts < ATTEMPTS_MAX && redirect_may_retry(dispatcher));
}

void redirect_retry_later(struct dispatcher *dispatcher, struct leg *leg)
{
    /* Only the time is needed, and it fits where the key of the target is kept meanwhile. No leg before one that came earlier: they may be of one key, and differ in attempts. */
    uint32_t due_ms = (uint32_t)dispatcher->core->now_ms + recover_delay_ms(leg->attempts);
    const struct leg *last = dispatcher->retries.tail;
    leg->target = last != NULL && (int32_t)(due_ms - last->target) < 0 ? last->target : due_ms;
    leg_list_push(&dispatcher->retries, leg);
    if (!timer_is_armed(&dispatcher->retry_timer))
        timer_set(&dispatcher->core->wheel, &dispatcher->retry_timer, dispatcher->core->now_ms + RETRY_TICK_MS);
}

static struct fence_redirect redirect_of(const struct leg *leg, enum fence_scope scope, const struct link *link, uint32_t target)
{
    return (struct fence_redirect){
        .scope = leg->key_hash == 0 ? FENCE_SLOT : scope,
        .held = leg_held_scope(leg),
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
    owner_settle(dispatcher, link->node_key, link->channel);
    struct fence_redirect redirect = redirect_of(leg, scope, link, target);
    uint64_t raised_before = dispatcher->fences.raised_count;
    leg_set_held(leg, redirect.scope);
    enum fence_verdict verdict = fence_redirect(&dispatcher->fences, &redirect, waiter_of_leg(leg));
    metric_add(dispatcher->core->metrics, METRIC_fences_raised_total, dispatcher->fences.raised_count - raised_before);
    if (verdict == FENCE_FULL) {
        leg_set_held(leg, redirect.held);
        owner_fail(dispatcher, leg, STATUS_FULL);
    }
    return verdict;
}

static void forward_error(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply)
{
    owner_finish(dispatcher, leg, reply, STATUS_OK);
}

bool owner_raise(struct dispatcher *dispatcher, uint16_t slot, uint32_t former_node)
{
    bool is_raised = true;
    for (uint8_t protocol = 2; protocol <= 3; protocol++) {
        /* What waits in the batch may be the first for a link that is not there yet. */
        owner_settle(dispatcher, former_node, protocol);
        struct link *link = link_pool_find(&dispatcher->links, former_node, protocol);
        if (link == NULL || link->seq_answered == link->seq_sent)
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
    dispatcher->routes[slot] = node_key;
}

static void follow_moved(struct dispatcher *dispatcher, struct link *link, struct leg *leg, const struct reply *reply, struct recover_target *target)
{
    metric_add(dispatcher->core->metrics, METRIC_moved_total, 1);
    uint32_t node_key = target_node(dispatcher, link, target);
    uint16_t slot = leg->slot;
    dispatcher_ask_refresh(dispatcher, target);
    if (node_key == 0 || target->slot != slot || !may_redirect(dispatcher, leg)) {
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
        owner_resend(dispatcher, leg);
}

static void follow_ask(struct dispatcher *dispatcher, struct link *link, struct leg *leg, const struct reply *reply, struct recover_target *target)
{
    metric_add(dispatcher->core->metrics, METRIC_ask_total, 1);
    uint32_t node_key = target_node(dispatcher, link, target);
    if (node_key == 0 || !may_redirect(dispatcher, leg)) {
        forward_error(dispatcher, leg, reply);
        return;
    }
    leg->attempts++;
    leg->flags |= LEG_ASKING;
    metric_add(dispatcher->core->metrics, METRIC_legs_retried_total, 1);
    if (leave_channel(dispatcher, link, leg, FENCE_KEY, node_key) == FENCE_PASS)
        owner_resend(dispatcher, leg);
}

/* Something of the same slot is in flight behind the leg, or redirected: it may be done by a node that is better by now, and the repeated leg would come after it. Runs and very long FIFOs count as such. Not for legs
 * on bulk links: what is behind those waits for their fence. */
static bool has_slot_behind(const struct dispatcher *dispatcher, const struct link *link, const struct leg *leg)
{
    if ((leg->flags & LEG_CHILD) == 0 && fence_has_redirected(&dispatcher->fences, leg->slot, leg_held_scope(leg)))
        return true;
    uint32_t looked = 0;
    for (const struct leg *behind = link->fifo.head; behind != NULL; behind = behind->next)
        if (++looked > BEHIND_MAX || behind->action == LEG_RUN || (behind->action == LEG_FORWARD && behind->slot == leg->slot))
            return true;
    return false;
}

static void follow_retry(struct dispatcher *dispatcher, struct link *link, struct leg *leg, const struct reply *reply, enum recover_verdict verdict)
{
    metric_add(dispatcher->core->metrics, METRIC_tryagain_total, verdict == RECOVER_RETRY);
    if (verdict == RECOVER_RETRY_REFRESH)
        dispatcher_ask_refresh(dispatcher, NULL);
    /* What waits for the link in a batch is behind it as well. */
    owner_settle(dispatcher, link->node_key, link->channel);
    /* Asking for one key at a time is the way through a slot that migrates, no repeat of the same. */
    bool may_divide = verdict == RECOVER_RETRY && leg->key_hash == 0 && (leg->flags & LEG_CHILD) == 0;
    if (leg->attempts >= ATTEMPTS_MAX || leg_is_overdue(dispatcher, leg, recover_delay_ms(leg->attempts) + 1) ||
        (verdict == RECOVER_RETRY_REFRESH && !channel_is_bulk(leg->channel) && has_slot_behind(dispatcher, link, leg)) || (!may_divide && !redirect_may_retry(dispatcher))) {
        forward_error(dispatcher, leg, reply);
        return;
    }
    leg->attempts++;
    leg->flags &= (uint8_t)~LEG_ASKING;
    metric_add(dispatcher->core->metrics, METRIC_legs_retried_total, 1);
    if ((leg->flags & LEG_CHILD) != 0) {
        redirect_retry_later(dispatcher, leg);
        return;
    }
    struct fence_redirect redirect = redirect_of(leg, FENCE_KEY, link, 0);
    if (fence_pause(&dispatcher->fences, &redirect) == FENCE_FULL) {
        forward_error(dispatcher, leg, reply);
        return;
    }
    leg_set_held(leg, redirect.scope);
    leg->flags |= LEG_PAUSED;
    if (may_divide && divide_leg(dispatcher, leg))
        return;
    if (may_divide && !redirect_may_retry(dispatcher))
        forward_error(dispatcher, leg, reply);
    else
        redirect_retry_later(dispatcher, leg);
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
    bulk_note_reply(dispatcher, leg, reply->length);
    owner_finish(dispatcher, leg, reply, STATUS_OK);
}

/* ---- fences and repeats ---- */

static void emit_new(void *context, struct fence_waiter *waiter)
{
    owner_resend(context, leg_of_waiter(waiter));
}

/* By the time it may go the slot may be elsewhere again, and what ASK said out of date: it goes where the slot is now. */
static void emit_redirected(void *context, struct fence_waiter *waiter)
{
    struct leg *leg = leg_of_waiter(waiter);
    leg->target = 0;
    leg->flags &= (uint8_t)~LEG_ASKING;
    owner_resend(context, leg);
}

/* Those that ASK sent away go one at a time: of several that are sent together and told so again, each would wait for the others, for as long as the slot migrates. */
static uint64_t waiting_target(void *context, struct fence_waiter *waiter)
{
    const struct leg *leg = leg_of_waiter(waiter);
    return (leg->flags & LEG_ASKING) != 0 ? (uint64_t)(uintptr_t)leg : dispatcher_route(context, leg->slot);
}

static const struct fence_ops fence_callbacks = {.emit = emit_new, .emit_redirect = emit_redirected, .target_of = waiting_target};

static bool waiter_is_overdue(void *context, const struct fence_waiter *waiter)
{
    const struct leg *leg = LIST_ENTRY((uintptr_t)waiter, const struct leg, next);
    return leg_is_overdue(context, leg, 0);
}

static void waiter_expired(void *context, struct fence_waiter *waiter, bool redirected)
{
    (void)redirected;
    owner_fail(context, leg_of_waiter(waiter), STATUS_TIMEOUT);
}

/* To the node of its slot, behind nothing of any link. */
static struct fence_redirect redirect_home(const struct dispatcher *dispatcher, const struct leg *leg)
{
    enum fence_scope held = leg_held_scope(leg);
    return (struct fence_redirect){
        .scope = held != FENCE_NONE ? held : leg->key_hash == 0 ? FENCE_SLOT
                                                                : FENCE_KEY,
        .held = held,
        .slot = leg->slot,
        .key_hash = leg->key_hash,
        .link_key = 1, /* no dependency: both sequence numbers are 0 */
        .target = dispatcher_route(dispatcher, leg->slot),
    };
}

enum fence_verdict redirect_go_home(struct dispatcher *dispatcher, struct leg *leg)
{
    struct fence_redirect home = redirect_home(dispatcher, leg);
    leg_set_held(leg, home.scope);
    enum fence_verdict verdict = fence_redirect(&dispatcher->fences, &home, waiter_of_leg(leg));
    if (verdict == FENCE_FULL)
        leg_set_held(leg, home.held);
    return verdict;
}

void redirect_lost(struct dispatcher *dispatcher, struct leg *leg)
{
    bool is_free = (leg->flags & LEG_CHILD) != 0 || fence_table_is_empty(&dispatcher->fences);
    switch (is_free ? FENCE_PASS : redirect_go_home(dispatcher, leg)) {
    case FENCE_PASS:
        owner_resend(dispatcher, leg);
        return;
    case FENCE_WAIT:
        return;
    case FENCE_FULL:
        owner_fail(dispatcher, leg, STATUS_FULL);
        return;
    }
}

/* The pause is over: to the node of its slot, unless others of the slot are out elsewhere. */
static void resume(struct dispatcher *dispatcher, struct leg *leg)
{
    struct fence_redirect redirect = redirect_home(dispatcher, leg);
    leg->flags &= (uint8_t)~LEG_PAUSED;
    switch (fence_resume(&dispatcher->fences, &redirect, waiter_of_leg(leg))) {
    case FENCE_PASS:
        owner_resend(dispatcher, leg);
        return;
    case FENCE_WAIT:
        return;
    case FENCE_FULL:
        leg->flags |= LEG_PAUSED;
        redirect_retry_later(dispatcher, leg);
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
        if (leg_is_overdue(dispatcher, leg, 0))
            owner_fail(dispatcher, leg, STATUS_TIMEOUT);
        else if ((leg->flags & LEG_CHILD) != 0)
            owner_resend(dispatcher, leg);
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

void redirect_init(struct dispatcher *dispatcher)
{
    fence_table_init(&dispatcher->fences, dispatcher->core->config->limits.fence_waiters_max, FENCES_MAX, &fence_callbacks, dispatcher);
    timer_init(&dispatcher->retry_timer, run_retries, dispatcher);
    const struct use_case *use_case = &dispatcher->core->config->use_case;
    retry_budget_init(&dispatcher->budget, use_case->retry_percent, use_case->retry_floor, 0, dispatcher->core->now_ms);
}

void redirect_see_requests(struct dispatcher *dispatcher)
{
    retry_budget_see(&dispatcher->budget, requests_total(dispatcher), dispatcher->core->now_ms);
}
