/*
 * Owns: requests of one core, from creation to release. Runs on: their home core.
 */
#include "net/request.h"

#include <string.h>

#include "net/client.h"
#include "net/net.h"
#include "net/resp_write.h"
#include "net/stream.h"

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
    if (!request_is_run(request) && request->split != NULL)
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
    request->leg.action = LEG_FORWARD;
    request->leg.flags = 0;
    request->leg.length = 0;
    request->leg.deadline_ms = (uint32_t)(core->now_ms + timeout_ns / 1000000);
    if (timeout_ns > 0)
        list_push_back(&net->deadlines, &request->deadline);
    if (client->fifo_tail != NULL)
        client->fifo_tail->next = request;
    else
        client->fifo_head = request;
    client->fifo_tail = request;
    client_inflight_add(core, client, 1);
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
    block->next = NULL;
    memcpy(block->data, reply->bytes, reply->length);
    block->length = reply->length;
    block->flags = SEND_SEALED;
    return block;
}

/* Requests that came and were answered together have the same latency: counted, and recorded once. */
static void record_latency(struct net *net, const struct request *request, uint32_t count)
{
    uint32_t latency_us = (uint32_t)(net->core->now_ns / 1000) - request->started_us;
    if (net->latency_us != latency_us)
        request_flush_latency(net);
    net->latency_us = latency_us;
    net->latency_count += count;
}

void request_flush_latency(struct net *net)
{
    if (net->latency_count > 0)
        histogram_record(&net->core->metrics->request_us, net->latency_us, net->latency_count);
    net->latency_count = 0;
}

static void end_waiting(struct request *request)
{
    request->state = REQUEST_ANSWERED;
    if (list_is_linked(&request->deadline))
        list_remove(&request->deadline);
}

/* Adds replies to those that a run keeps until it is its client's oldest request. False: no memory. */
static bool keep_run_replies(struct net *net, struct request *request, const struct reply *reply)
{
    struct block *end = request->reply_end;
    if (request->reply != NULL && (end->flags & SEND_REFERENCE) == 0 && reply->length <= block_capacity(end) - end->length) {
        memcpy(end->data + end->length, reply->bytes, reply->length);
        end->length += reply->length;
        account_reply_kept(net, request->client, reply->length);
        return true;
    }
    struct block *block = keep_reply(net, reply);
    if (block == NULL)
        return false;
    account_reply_kept(net, request->client, reply->length);
    if (request->reply == NULL)
        request->reply = block;
    else
        end->next = block;
    request->reply_end = block;
    return true;
}

/* Replies of a run to its client, or into its keeping. False: the client is being closed. */
static bool pass_run_replies(struct net *net, struct request *request, const struct reply *reply)
{
    struct client *client = request->client;
    uint32_t count = reply->more + 1;
    record_latency(net, request, count);
    if (client->fifo_head == request) {
        client_inflight_remove(net->core, client, count);
        client_queue_reply(net, client, reply);
    } else if (keep_run_replies(net, request, reply)) {
        request->leg.part = (uint16_t)(request->leg.part + count);
    } else {
        conn_close(net->core, &client->conn, CLOSE_NO_MEMORY);
    }
    return conn_is_open(&client->conn);
}

void request_run_replies(struct net *net, struct request *request, const struct reply *replies, uint32_t count)
{
    struct leg *leg = &request->leg;
    ZG_CHECK(request_is_run(request) && leg->run_replies >= count);
    leg->run_replies -= count;
    bool is_last = leg->run_replies == 0;
    if (is_last) {
        request->legs_left = 0;
        arena_put(net->core->arena, &leg->bytes);
    }
    struct client *client = request->client;
    if (request->state == REQUEST_WAITING && client != NULL) {
        /* A client that is closed here takes the request along. */
        if (is_last)
            end_waiting(request);
        if (pass_run_replies(net, request, replies))
            client_advance(net, client);
        return;
    }
    if (!is_last)
        return;
    if (request->state == REQUEST_WAITING)
        end_waiting(request);
    if (request->client == NULL)
        request->state = REQUEST_SENT;
    if (request->state == REQUEST_SENT)
        try_free(net, request);
}

/* The same answer for every command of a run that has none. Late replies are counted off by its leg. */
static void answer_run(struct net *net, struct request *request, const struct reply *reply)
{
    struct client *client = request->client;
    uint32_t count = request->leg.run_replies;
    end_waiting(request);
    if (client == NULL) {
        request->state = REQUEST_SENT;
        try_free(net, request);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!pass_run_replies(net, request, reply))
            return;
    client_advance(net, client);
}

struct request *request_create_behind(struct net *net, struct request *after)
{
    struct request *request = pool_get_raw(&net->requests);
    if (request == NULL)
        return NULL;
    struct pool_item item = request->item;
    struct client *client = after->client;
    *request = (struct request){.item = item, .next = after->next, .client = client, .started_us = after->started_us, .legs_left = 1};
    request->leg.deadline_ms = after->leg.deadline_ms;
    list_init(&request->deadline);
    /* The same deadline: next to each other in the list. */
    if (list_is_linked(&after->deadline))
        list_push_back(after->deadline.next, &request->deadline);
    after->next = request;
    if (client->fifo_tail == after)
        client->fifo_tail = request;
    return request;
}

void request_run_divided(struct net *net, struct request *request)
{
    ZG_CHECK(request->state == REQUEST_WAITING && request->client != NULL);
    request->leg.run_replies = 0;
    request->legs_left = 0;
    arena_put(net->core->arena, &request->leg.bytes);
    end_waiting(request);
    client_advance(net, request->client);
}

void request_answer(struct net *net, struct request *request, const struct reply *reply)
{
    if (request_is_run(request) && request->state == REQUEST_WAITING) {
        answer_run(net, request, reply);
        return;
    }
    if (request->state != REQUEST_WAITING) {
        give_back(net, reply);
        if (request->state == REQUEST_SENT)
            try_free(net, request);
        return;
    }
    end_waiting(request);
    record_latency(net, request, 1);
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
        account_reply_kept(net, client, reply->length);
    }
    client_advance(net, client);
}

void request_answer_status(struct net *net, struct request *request, enum status status)
{
    uint8_t line[RESP_STATUS_LINE_MAX];
    struct reply reply = {.bytes = line, .length = resp_status_line(line, status)};
    uint64_t count = request->state != REQUEST_WAITING ? 0 : request_is_run(request) ? request->leg.run_replies
                                                                                     : 1;
    metric_add(net->core->metrics, METRIC_request_errors_total, count);
    if (status == STATUS_TIMEOUT)
        metric_add(net->core->metrics, METRIC_request_timeouts_total, count);
    if (status == STATUS_FULL || status == STATUS_NO_MEMORY)
        metric_add(net->core->metrics, METRIC_overload_refused_total, count);
    request_answer(net, request, &reply);
}

void request_leg_done(struct net *net, struct request *request, uint16_t part, const struct reply *reply)
{
    ZG_CHECK(request->legs_left > 0);
    request->legs_left--;
    if (request_is_run(request) || request->split == NULL || request->state != REQUEST_WAITING) {
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

void request_stream_begin(struct request *request, struct link *link)
{
    ZG_CHECK(request->state == REQUEST_WAITING && !request_is_run(request) && request->split == NULL && request->legs_left == 1);
    request->flags |= REQUEST_STREAM;
    request->stream = link;
    if (list_is_linked(&request->deadline))
        list_remove(&request->deadline);
}

static void leave_stream(struct request *request)
{
    ZG_CHECK((request->flags & REQUEST_STREAM) != 0 && request->legs_left == 1);
    request->flags &= (uint8_t)~REQUEST_STREAM;
    request->stream = NULL;
    request->legs_left = 0;
    if (request->client != NULL)
        request->client->is_throttling = false;
}

void request_stream_end(struct net *net, struct request *request)
{
    struct client *client = request->client;
    leave_stream(request);
    end_waiting(request);
    record_latency(net, request, 1);
    if (client != NULL) {
        client_advance(net, client);
        return;
    }
    request->state = REQUEST_SENT;
    try_free(net, request);
}

void request_stream_cut(struct net *net, struct request *request)
{
    struct client *client = request->client;
    leave_stream(request);
    if (client == NULL) {
        request->state = REQUEST_SENT;
        try_free(net, request);
        return;
    }
    metric_add(net->core->metrics, METRIC_clients_closed_half_reply_total, 1);
    conn_close(net->core, &client->conn, CLOSE_HALF_REPLY); /* and frees the request with it */
}

void request_orphan(struct net *net, struct request *request)
{
    ZG_CHECK(request->client != NULL);
    if ((request->flags & REQUEST_STREAM) != 0)
        stream_resume(net, (struct link *)request->stream);
    struct client *client = request->client;
    request->client = NULL;
    while (request->reply != NULL) {
        uint32_t length;
        (void)send_block_bytes(request->reply, &length);
        account_reply_left(net, client, length);
        struct block *next = request_is_run(request) ? request->reply->next : NULL;
        send_block_put(net->core, &request->reply);
        request->reply = next;
    }
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
