/*
 * Owns: the streamed reply of each link. Runs on: the core of the link, which is the client's home.
 */
#include "net/stream.h"

#include <string.h>

#include "net/client.h"
#include "net/link.h"
#include "net/net.h"

/* Values and collections, once they are known to be large. No error, which may be a redirect, no push, and no line: that is never large, unless the backend has gone wrong. */
static bool is_streamable(const struct net *net, const struct link *link)
{
    const struct config_limits *limits = &net->core->config->limits;
    uint8_t type = link->scan.type;
    uint64_t have = link->assembly != NULL ? link->assembly->length : 0;
    if (type == 0 || strchr("$=*~%", type) == NULL || link->assembly_status != STATUS_OK)
        return false;
    return (link->scan.needed > limits->oversize_bytes || have > limits->oversize_bytes) && link->scan.needed <= limits->reply_max_bytes;
}

static bool is_wanted(const struct request *request)
{
    return request->state == REQUEST_WAITING && request->client != NULL && (request->flags & REQUEST_SILENT) == 0;
}

static bool is_oldest_of_open_client(const struct request *request)
{
    return is_wanted(request) && request->client->fifo_head == request && conn_is_open(&request->client->conn);
}

/* What has been assembled so far is the stream's first piece. */
static void pass_assembly(struct net *net, struct link *link, struct request *request)
{
    struct block *assembly = link->assembly;
    if (assembly == NULL)
        return;
    struct reply reply = {.bytes = assembly->data, .length = assembly->length, .block = assembly};
    client_queue_piece(net, request->client, &reply);
    link_drop_assembly(net->core, link);
}

bool stream_begin(struct net *net, struct link *link)
{
    struct leg *leg = link->fifo.head;
    if (leg == NULL || link->state != LINK_READY || !is_streamable(net, link) || (leg->flags & LEG_EMBEDDED) == 0)
        return false;
    struct request *request = request_of_leg(leg);
    if (leg->action == LEG_RUN) {
        /* Its commands get requests of their own first: a run's time-out and its count of replies know no half replies. */
        if (!is_oldest_of_open_client(request) || !net->ops->divide_run(net, link) || !conn_is_open(&link->conn))
            return false;
        leg = link->fifo.head;
        request = request_of_leg(leg);
    }
    if (!is_wanted(request)) {
        link_drop_assembly(net->core, link);
        link->assembly_status = STATUS_TOO_LARGE; /* never seen: the request is answered, or silent */
        return false;
    }
    if (!is_oldest_of_open_client(request))
        return false;
    link->stream = request;
    link->stream_bytes = link->assembly != NULL ? link->assembly->length : 0;
    request_stream_begin(request, link);
    metric_add(net->core->metrics, METRIC_replies_streamed_total, 1);
    pass_assembly(net, link, request);
    /* The command has taken effect: what waits behind it may go. */
    net->ops->leg_streams(net, leg, link->scan.needed);
    return true;
}

/* Stops reading the link while its client has enough to take, if nobody else waits for the link. */
static void apply_window(struct net *net, struct link *link, struct client *client)
{
    struct core *core = net->core;
    if (!channel_is_bulk(link->channel) || link->fifo.count > 1 || client->conn.out.bytes < core->config->limits.stream_window_bytes || (link->conn.flags & CONN_PAUSED) != 0)
        return;
    client->is_throttling = true;
    metric_add(core->metrics, METRIC_stream_pauses_total, 1);
    conn_pause(core, &link->conn);
}

static void end(struct net *net, struct link *link)
{
    struct request *request = link->stream;
    net->ops->leg_streams(net, &request->leg, link->stream_bytes);
    struct leg *leg = leg_list_pop(&link->fifo);
    ZG_CHECK(leg == &request->leg);
    link->stream = NULL;
    link->seq_answered++;
    stream_resume(net, link);
    request_stream_end(net, request);
}

void stream_piece(struct net *net, struct link *link, const uint8_t *bytes, uint32_t length, bool is_last)
{
    struct request *request = link->stream;
    if (request == NULL)
        return; /* the link has been lost meanwhile */
    link->stream_bytes += length;
    if (request->client != NULL) {
        struct reply reply = {.bytes = bytes, .length = length};
        client_queue_piece(net, request->client, &reply);
    }
    if (is_last)
        end(net, link);
    else if (request->client != NULL)
        apply_window(net, link, request->client);
}

void stream_resume(struct net *net, struct link *link)
{
    if ((link->conn.flags & CONN_PAUSED) == 0)
        return;
    link->progress_ms = net->core->now_ms;
    conn_resume(net->core, &link->conn);
}

void stream_lost(struct net *net, struct link *link)
{
    struct request *request = link->stream;
    if (request == NULL)
        return;
    struct leg *leg = leg_list_pop(&link->fifo);
    ZG_CHECK(leg == &request->leg);
    link->stream = NULL;
    request_stream_cut(net, request);
}
