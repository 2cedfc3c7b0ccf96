/*
 * Owns: what goes back to a client: order, output limits, the window of its pipeline, and the reasons for which it is not read. Runs on: its home core.
 */
#include <string.h>

#include "net/client.h"
#include "net/net.h"

enum {
    WINDOW_MIN = 8,      /* requests in flight however large the replies are */
    WINDOW_REPLIES = 64, /* after so many replies the window is set anew */
};

void client_pause(struct net *net, struct client *client, enum client_pause reason)
{
    if (client->pause == 0)
        metric_add(net->core->metrics, METRIC_clients_paused_total, 1);
    net->account.paused_count += reason == PAUSE_MEMORY && (client->pause & PAUSE_MEMORY) == 0;
    client->pause |= (uint8_t)reason;
}

void client_wake(struct net *net, struct client *client, enum client_pause reason)
{
    if ((client->pause & reason) == 0)
        return;
    client->pause &= (uint8_t)~reason;
    net->account.paused_count -= reason == PAUSE_MEMORY;
    if (client->pause == 0)
        core_enqueue(net->core, &client->task);
}

/* Something was put into the output: to be sent, if the client has not too much already. */
static void output_grew(struct net *net, struct client *client)
{
    struct core *core = net->core;
    uint64_t bytes = client->conn.out.bytes;
    conn_mark_dirty(core, &client->conn);
    if (bytes > core->config->limits.client_output_hard_bytes)
        conn_close(core, &client->conn, CLOSE_OUTPUT_LIMIT);
    else if (bytes > core->config->limits.client_output_soft_bytes)
        client_pause(net, client, PAUSE_OUTPUT);
}

/* So many requests in flight that replies of the size of the last ones fill the output about once. */
static void set_window(struct client *client, const struct config_limits *limits)
{
    uint64_t average = client->window_bytes / client->window_replies + 1;
    uint64_t window = limits->client_output_soft_bytes / average + WINDOW_MIN;
    client->window = window < limits->pipeline_per_client ? (uint32_t)window : limits->pipeline_per_client;
    client->window_replies = 0;
    client->window_bytes = 0;
}

void client_queue_piece(struct net *net, struct client *client, const struct reply *reply)
{
    struct core *core = net->core;
    struct send_queue *out = &client->conn.out;
    enum status status = STATUS_OK;
    client->window_bytes += reply->length;
    if (reply->is_lent || (reply->block != NULL && reply->length > core->config->limits.inline_bytes)) {
        struct block *block = reply->is_lent ? send_reference_lent(core, reply->bytes, reply->length, reply->lender, reply->lent_offset)
                                             : send_reference_own(core, reply->block, reply->bytes, reply->length);
        if (block != NULL)
            send_queue_push(out, block);
        else
            status = STATUS_NO_MEMORY;
        if (block == NULL && reply->is_lent)
            mailbox_return(core->mailbox, reply->lender, reply->lent_offset);
    } else {
        status = send_queue_append(core, out, reply->bytes, reply->length);
    }
    if (status != STATUS_OK) {
        conn_close(core, &client->conn, CLOSE_NO_MEMORY);
        return;
    }
    net->account.output += reply->length;
    output_grew(net, client);
}

void client_queue_reply(struct net *net, struct client *client, const struct reply *reply)
{
    uint32_t replies = client->window_replies + reply->more + 1;
    client->window_replies = (uint16_t)(replies < UINT16_MAX ? replies : UINT16_MAX);
    client_queue_piece(net, client, reply);
    if (client->window_replies >= WINDOW_REPLIES)
        set_window(client, &net->core->config->limits);
}

/* One block of kept replies; false where there is none left, or the client is being closed. */
static bool queue_kept_reply(struct net *net, struct client *client, struct request *request)
{
    struct block *block = request->reply;
    if (block == NULL)
        return false;
    request->reply = NULL;
    uint32_t length;
    (void)send_block_bytes(block, &length);
    account_reply_left(net, client, length);
    if (request_is_run(request)) {
        request->reply = block->next;
        client_inflight_remove(net->core, client, request->leg.part);
        request->leg.part = 0;
    }
    if ((block->flags & SEND_REFERENCE) != 0) {
        send_queue_push(&client->conn.out, block);
        net->account.output += length;
        output_grew(net, client);
        return conn_is_open(&client->conn);
    }
    struct reply reply = {.bytes = block->data, .length = block->length, .block = block};
    client_queue_reply(net, client, &reply);
    arena_put(net->core->arena, &block);
    return conn_is_open(&client->conn);
}

void client_advance(struct net *net, struct client *client)
{
    while (client->fifo_head != NULL && conn_is_open(&client->conn)) {
        struct request *request = client->fifo_head;
        while (queue_kept_reply(net, client, request))
            continue;
        if (!conn_is_open(&client->conn))
            return;
        if (request->state != REQUEST_ANSWERED)
            break;
        bool closes = (request->flags & REQUEST_CLOSE) != 0;
        client->fifo_head = request->next;
        if (client->fifo_head == NULL)
            client->fifo_tail = NULL;
        /* The commands of a run were counted off with their replies. */
        account_request_left(net, client, request);
        client_inflight_remove(net->core, client, !request_is_run(request));
        request->client = NULL;
        request_sent(net, request);
        if (closes)
            conn_close_after_send(net->core, &client->conn, CLOSE_QUIT);
    }
    if (client->pause == 0)
        return;
    if (client->inflight <= client->window / 2 && client->held_bytes <= net->core->config->limits.client_commands_bytes / 2)
        client_wake(net, client, PAUSE_PIPELINE);
    if (client->inflight == 0)
        client_wake(net, client, PAUSE_DRAIN);
}
