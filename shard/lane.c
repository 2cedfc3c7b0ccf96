/*
 * Owns: the dispatcher's side of the lanes. Runs on: its core, as home and as owner.
 */
#include "shard/lane.h"

#include <string.h>

#include "net/client.h"

enum { REFRESH_PAUSE_MS = 20 };

bool lane_is_open(const struct dispatcher *dispatcher, uint32_t owner)
{
    return dispatcher->waiters[owner].legs.count == 0 && mailbox_credits_free(dispatcher->core->mailbox, owner) > 0;
}

enum dispatch_result lane_wait(struct dispatcher *dispatcher, struct client *client, uint32_t owner)
{
    metric_add(dispatcher->core->metrics, METRIC_mailbox_credit_waits_total, 1);
    list_push_back(&dispatcher->waiters[owner].clients, &client->waiting);
    dispatcher->lanes_waiting = true;
    return DISPATCH_CREDIT;
}

void lane_send_leg(struct dispatcher *dispatcher, uint32_t owner, const struct leg *leg, struct block *block, const uint8_t *bytes, uint32_t length)
{
    struct core *core = dispatcher->core;
    bool has_credit = mailbox_credit_take(core->mailbox, owner);
    ZG_CHECK(has_credit);
    struct msg *msg = mailbox_reserve(core->mailbox, owner, CLASS_REQUEST);
    struct msg_leg body = {
        .key_hash = leg->key_hash,
        .deadline_ms = leg->deadline_ms,
        .slot = leg->slot,
        .part = leg->part,
        .use_case = leg->use_case,
        .protocol = leg->channel,
        .flags = leg->flags & LEG_READONLY,
    };
    msg->kind = MSG_LEG;
    msg->origin = leg->origin;
    memcpy(msg->body, &body, sizeof(body));
    mailbox_lend(core->mailbox, owner, msg, block, bytes, length, length > core->config->limits.inline_bytes);
    metric_add(core->metrics, METRIC_legs_remote_total, 1);
}

bool lane_serve_waiters(struct dispatcher *dispatcher, uint32_t peer)
{
    struct lane_waiters *waiters = &dispatcher->waiters[peer];
    struct net *net = dispatcher->net;
    while (waiters->legs.count > 0 && mailbox_credits_free(dispatcher->core->mailbox, peer) > 0) {
        struct leg *leg = leg_list_pop(&waiters->legs);
        lane_send_leg(dispatcher, peer, leg, leg->bytes, leg->bytes->data + leg->offset, leg->length);
        arena_put(dispatcher->core->arena, &leg->bytes);
        pool_put(&net->legs, &leg);
    }
    /* One client a credit: those who come too late would only queue again. */
    for (uint32_t credits = mailbox_credits_free(dispatcher->core->mailbox, peer); credits > 0 && !list_is_empty(&waiters->clients); credits--) {
        struct list_node *node = list_pop_front(&waiters->clients);
        client_wake(net, LIST_ENTRY(node, struct client, waiting), PAUSE_CREDIT);
    }
    return waiters->legs.count > 0 || !list_is_empty(&waiters->clients);
}

/* ---- what comes ---- */

static void on_leg(struct dispatcher *dispatcher, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct msg_leg body;
    memcpy(&body, msg->body, sizeof(body));
    struct leg *leg = pool_get(&dispatcher->net->legs);
    ZG_CHECK(leg != NULL); /* the pool has room for every credit of every lane: see net_open */
    leg->origin = msg->origin;
    leg->key_hash = body.key_hash;
    leg->deadline_ms = body.deadline_ms;
    leg->slot = body.slot;
    leg->home = (uint16_t)from;
    leg->part = body.part;
    leg->use_case = body.use_case;
    leg->flags = body.flags;
    leg->channel = body.protocol;
    bool is_lent = (msg->flags & MSG_LENT) != 0;
    struct leg_source source = {.bytes = bytes, .length = msg->length, .is_lent = is_lent, .lender = (uint16_t)from, .lent_offset = msg->offset};
    owner_accept(dispatcher, leg, &source);
}

static void on_reply(struct dispatcher *dispatcher, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct net *net = dispatcher->net;
    struct msg_reply body;
    memcpy(&body, msg->body, sizeof(body));
    struct request *request = pool_resolve(&net->requests, (struct pool_handle){.value = msg->origin});
    ZG_CHECK(request != NULL); /* it lives while legs_left > 0 */
    if (body.status != STATUS_OK) {
        request_leg_failed(net, request, body.part, (enum status)body.status);
        return;
    }
    bool is_lent = (msg->flags & MSG_LENT) != 0;
    struct reply reply = {.bytes = bytes, .length = msg->length, .is_lent = is_lent, .lender = (uint16_t)from, .lent_offset = msg->offset};
    request_leg_done(net, request, body.part, &reply);
}

void dispatcher_message(struct dispatcher *dispatcher, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    ZG_CHECK(msg->kind == MSG_LEG || msg->kind == MSG_REPLY);
    if (msg->kind == MSG_LEG)
        on_leg(dispatcher, from, msg, bytes);
    else
        on_reply(dispatcher, from, msg, bytes);
}

struct msg_refresh dispatcher_refresh_body(const struct recover_target *moved)
{
    struct msg_refresh body = {0};
    if (moved == NULL)
        return body;
    body.slot = moved->slot;
    body.port = moved->port;
    size_t host_length = strlen(moved->host);
    if (host_length < sizeof(body.host))
        memcpy(body.host, moved->host, host_length + 1);
    return body;
}

void dispatcher_ask_refresh(struct dispatcher *dispatcher, const struct recover_target *moved)
{
    struct core *core = dispatcher->core;
    if (moved == NULL && core->now_ms < dispatcher->refresh_asked_ms + REFRESH_PAUSE_MS)
        return;
    struct msg *msg = mailbox_reserve(core->mailbox, core->shared->data_cores, CLASS_CONTROL);
    if (msg == NULL)
        return; /* enough are on their way */
    dispatcher->refresh_asked_ms = core->now_ms;
    struct msg_refresh body = dispatcher_refresh_body(moved);
    msg->kind = MSG_REFRESH;
    memcpy(msg->body, &body, sizeof(body));
}
