/*
 * Owns: requests of one core, from creation to release. Runs on: their home core.
 */
#include "net/request.h"

#include <string.h>

#include "net/client.h"
#include "net/net.h"

static void give_back(struct net *net, const struct reply *reply)
{
    if (reply->is_lent)
        mailbox_return(net->core->mailbox, reply->lender, reply->lent_offset);
}

/* SENT: freed once no leg is out. legs_left is looked at alone: a read of state and legs_left in one word right behind a write to one of them would stall. */
static void try_free(struct net *net, struct request *request)
{
    ZG_CHECK(request->state == REQUEST_SENT);
    if (request->legs_left > 0)
        return;
    ZG_CHECK(request->reply == NULL && !list_is_linked(&request->deadline));
    if (request->split != NULL)
        net->ops->split_free(net, request);
    pool_put(&net->requests, &request);
}

struct request *request_create(struct net *net, struct client *client, uint64_t timeout_ns)
{
    struct request *request = pool_get_raw(&net->requests);
    if (request == NULL)
        return NULL;
    struct core *core = net->core;
    request->next = NULL;
    request->client = client;
    request->reply = NULL;
    request->split = NULL;
    request->started_us = (uint32_t)(core->now_ns / 1000);
    request->legs_left = 0;
    request->state = REQUEST_WAITING;
    request->flags = net->is_silent ? REQUEST_SILENT : 0;
    list_init(&request->deadline);
    request->leg.deadline_ms = (uint32_t)(core->now_ms + timeout_ns / 1000000);
    if (timeout_ns > 0)
        list_push_back(&net->deadlines, &request->deadline);
    if (client->fifo_tail != NULL)
        client->fifo_tail->next = request;
    else
        client->fifo_head = request;
    client->fifo_tail = request;
    client->inflight++;
    return request;
}

/* The reply of a request that is not its client's oldest has to wait: as a block that can go to the send queue as it is. */
static struct block *keep_reply(struct net *net, const struct reply *reply)
{
    struct core *core = net->core;
    if (reply->is_lent)
        return send_reference_lent(core, reply->bytes, reply->length, reply->lender, reply->lent_offset);
    if (reply->block != NULL && reply->length > core->config->limits.inline_bytes)
        return send_reference_own(core, reply->block, reply->bytes, reply->length);
    struct block *block = arena_get(core->arena, reply->length);
    if (block == NULL)
        return NULL;
    memcpy(block->data, reply->bytes, reply->length);
    block->length = reply->length;
    block->flags = SEND_SEALED;
    return block;
}

/* Requests that came and were answered together have the same latency: counted, and recorded once. */
static void record_latency(struct net *net, const struct request *request)
{
    uint32_t latency_us = (uint32_t)(net->core->now_ns / 1000) - request->started_us;
    if (net->latency_us != latency_us)
        request_flush_latency(net);
    net->latency_us = latency_us;
    net->latency_count++;
}

void request_flush_latency(struct net *net)
{
    if (net->latency_count > 0)
        histogram_record(&net->core->metrics->request_us, net->latency_us, net->latency_count);
    net->latency_count = 0;
}

void request_answer(struct net *net, struct request *request, const struct reply *reply)
{
    if (request->state != REQUEST_WAITING) {
        give_back(net, reply);
        if (request->state == REQUEST_SENT)
            try_free(net, request);
        return;
    }
    request->state = REQUEST_ANSWERED;
    if (list_is_linked(&request->deadline))
        list_remove(&request->deadline);
    record_latency(net, request);
    struct client *client = request->client;
    if (client == NULL) {
        give_back(net, reply);
        request->state = REQUEST_SENT;
        try_free(net, request);
        return;
    }
    if ((request->flags & REQUEST_SILENT) != 0) {
        give_back(net, reply);
    } else if (client->fifo_head == request) {
        client_queue_reply(net, client, reply);
        if (!conn_is_open(&client->conn))
            return; /* the reply was one too many: the client is being closed, and the request was freed with it */
    } else {
        request->reply = keep_reply(net, reply);
        if (request->reply == NULL) {
            give_back(net, reply);
            conn_close(net->core, &client->conn, CLOSE_NO_MEMORY);
            return;
        }
    }
    client_advance(net, client);
}

void request_answer_status(struct net *net, struct request *request, enum status status)
{
    char text[160];
    const char *message = status_resp_text(status);
    ZG_CHECK(message != NULL && strlen(message) < sizeof(text) - 3);
    size_t length = strlen(message);
    text[0] = '-';
    memcpy(text + 1, message, length);
    memcpy(text + 1 + length, "\r\n", 2);
    struct reply reply = {.bytes = (const uint8_t *)text, .length = (uint32_t)length + 3};
    metric_add(net->core->metrics, METRIC_request_errors_total, 1);
    if (status == STATUS_TIMEOUT)
        metric_add(net->core->metrics, METRIC_request_timeouts_total, 1);
    if (status == STATUS_FULL || status == STATUS_NO_MEMORY)
        metric_add(net->core->metrics, METRIC_overload_refused_total, 1);
    request_answer(net, request, &reply);
}

void request_leg_done(struct net *net, struct request *request, uint16_t part, const struct reply *reply)
{
    ZG_CHECK(request->legs_left > 0);
    request->legs_left--;
    if (request->split == NULL || request->state != REQUEST_WAITING) {
        request_answer(net, request, reply);
        return;
    }
    struct reply whole;
    if (net->ops->merge_part(net, request, part, reply, &whole)) {
        request_answer(net, request, &whole);
        return;
    }
    ZG_CHECK(request->legs_left > 0);
}

void request_leg_failed(struct net *net, struct request *request, uint16_t part, enum status status)
{
    (void)part;
    ZG_CHECK(request->legs_left > 0);
    request->legs_left--;
    request_answer_status(net, request, status);
}

void request_orphan(struct net *net, struct request *request)
{
    ZG_CHECK(request->client != NULL);
    request->client = NULL;
    if (request->reply != NULL)
        send_block_put(net->core, &request->reply);
    if (request->state == REQUEST_ANSWERED)
        request->state = REQUEST_SENT;
    else if (request->legs_left == 0) {
        /* Nothing will answer it: it never had a leg. */
        if (list_is_linked(&request->deadline))
            list_remove(&request->deadline);
        request->state = REQUEST_SENT;
    }
    if (request->state == REQUEST_SENT)
        try_free(net, request);
}

void request_sent(struct net *net, struct request *request)
{
    ZG_CHECK(request->reply == NULL);
    request->state = REQUEST_SENT;
    try_free(net, request);
}

void request_expire(struct net *net)
{
    uint32_t now_ms = (uint32_t)net->core->now_ms;
    while (!list_is_empty(&net->deadlines)) {
        struct request *request = LIST_ENTRY(net->deadlines.next, struct request, deadline);
        if ((int32_t)(now_ms - request->leg.deadline_ms) < 0)
            return;
        request_answer_status(net, request, STATUS_TIMEOUT);
    }
}
