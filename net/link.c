/*
 * Owns: links of one core: connecting, the FIFO of legs, framing of replies. Runs on: the core that opened them.
 */
#include "net/link.h"

#include <errno.h>
#include <string.h>

#include "net/link_pool.h"
#include "net/net.h"
#include "net/resp_write.h"
#include "net/socket.h"
#include "net/stream.h"

enum { PIECE_BYTES_MAX = 8192 };

void link_drop_assembly(struct core *core, struct link *link)
{
    if (link->assembly != NULL)
        arena_put(core->arena, &link->assembly);
    link->assembly_status = STATUS_OK;
}

/* A server from before HELLO says that it does not know it, and speaks RESP2. */
static bool is_refusal(const struct link *link, const struct reply *reply)
{
    static const char unknown[] = "-ERR unknown command";
    if (reply->bytes[0] != '-')
        return false;
    return link->protocol != 2 || reply->length < sizeof(unknown) || memcmp(reply->bytes, unknown, sizeof(unknown) - 1) != 0;
}

/* The handshake has no leg, so that a link can be had however many there are: its reply is the one before any other. */
static void handshake_reply(struct core *core, struct link *link, const struct reply *reply)
{
    if (is_refusal(link, reply)) {
        core_log(core, LOG_WARNING, "link_handshake_refused", "node=%u protocol=%u", link->node_key, link->protocol);
        conn_close(core, &link->conn, CLOSE_HANDSHAKE);
        return;
    }
    link->seq_answered++;
    link->state = LINK_READY;
    link_pool_ready(link);
}

static void free_plain_leg(struct net *net, struct leg *leg)
{
    if (leg->bytes != NULL)
        arena_put(net->core->arena, &leg->bytes);
    pool_put(&net->legs, &leg);
}

/* `count` whole replies of the run that is the link's oldest leg, no more than it waits for. */
static void deliver_run(struct net *net, struct link *link, const uint8_t *bytes, uint32_t length, struct block *block, uint32_t count)
{
    struct leg *leg = link->fifo.head;
    struct request *request = request_of_leg(leg);
    struct reply replies = {.bytes = bytes, .length = length, .block = block, .more = count - 1};
    link->seq_answered += count;
    if (leg->run_replies == count)
        (void)leg_list_pop(&link->fifo);
    else
        link->fifo.count -= count;
    request_run_replies(net, request, &replies, count);
}

/* One whole reply. */
static void deliver(struct net *net, struct link *link, const uint8_t *bytes, uint32_t length, struct block *block)
{
    struct core *core = net->core;
    if (link->scan.type == '>')
        return; /* a push is no reply to a leg; nothing of this version subscribes */
    struct reply reply = {.bytes = bytes, .length = length, .block = block};
    if (__builtin_expect(link->state == LINK_HANDSHAKE, 0)) {
        handshake_reply(core, link, &reply);
        return;
    }
    struct leg *oldest = link->fifo.head;
    if (oldest != NULL && oldest->action == LEG_RUN && (bytes[0] != '-' || !net->ops->divide_run(net, link))) {
        deliver_run(net, link, bytes, length, block, 1);
        return;
    }
    struct leg *leg = leg_list_pop(&link->fifo);
    if (leg == NULL) {
        conn_close(core, &link->conn, CLOSE_PROTOCOL);
        return;
    }
    /* The leg after this one, and what it is embedded in, are wanted next: they were last touched a round trip ago. */
    if (link->fifo.head != NULL) {
        __builtin_prefetch(link->fifo.head);
        __builtin_prefetch((const char *)link->fifo.head - sizeof(struct leg));
    }
    link->seq_answered++;
    if (__builtin_expect(leg->action == LEG_DISCARD, 0))
        free_plain_leg(net, leg);
    else
        net->ops->leg_reply(net, link, leg, &reply);
}

/* A reply whose bytes were not kept: its leg gets the reason. */
static void deliver_skipped(struct net *net, struct link *link)
{
    uint8_t line[RESP_STATUS_LINE_MAX];
    deliver(net, link, line, resp_status_line(line, link->assembly_status), NULL);
}

/* Adds bytes of a reply under assembly; where there is no room for it the rest is skipped and its leg will fail. */
static void assemble(struct core *core, struct link *link, const uint8_t *bytes, uint32_t length)
{
    if (link->assembly_status != STATUS_OK)
        return;
    uint32_t have = link->assembly != NULL ? link->assembly->length : 0;
    uint64_t total = (uint64_t)have + length;
    if (total > core->config->limits.reply_max_bytes || link->scan.needed > core->config->limits.reply_max_bytes) {
        link_drop_assembly(core, link);
        link->assembly_status = STATUS_TOO_LARGE;
        return;
    }
    if (link->assembly == NULL || block_capacity(link->assembly) < total) {
        uint64_t wanted = have == 0 ? total + 256 : total * 2;
        if (wanted < link->scan.needed + 64)
            wanted = link->scan.needed + 64;
        if (wanted > core->config->limits.reply_max_bytes + 64)
            wanted = core->config->limits.reply_max_bytes + 64;
        struct block *larger = arena_get(core->arena, (uint32_t)wanted);
        if (larger == NULL) {
            link_drop_assembly(core, link);
            link->assembly_status = STATUS_REPLY_DROPPED;
            return;
        }
        if (have > 0)
            memcpy(larger->data, link->assembly->data, have);
        larger->length = have;
        if (link->assembly != NULL)
            arena_put(core->arena, &link->assembly);
        link->assembly = larger;
    }
    memcpy(link->assembly->data + have, bytes, length);
    link->assembly->length = (uint32_t)total;
}

static bool is_assembling(const struct link *link)
{
    return link->assembly != NULL || link->assembly_status != STATUS_OK;
}

static bool is_plain_run_reply(const struct link *link, uint8_t first)
{
    const struct leg *oldest = link->fifo.head;
    return oldest != NULL && oldest->action == LEG_RUN && first != '-' && link->scan.type != '>' && link->state == LINK_READY && !is_assembling(link);
}

static void on_data(struct core *core, struct conn *conn, struct block *block, const uint8_t *bytes, uint32_t length)
{
    struct link *link = link_of_conn(conn);
    struct net *net = core->net;
    metric_add(core->metrics, METRIC_bytes_from_backends_total, length);
    link->progress_ms = core->now_ms;
    uint64_t answered_before = link->seq_answered;
    uint32_t position = 0;
    uint32_t piece = 0;       /* where plain replies of the oldest leg, a run, begin ... */
    uint32_t piece_count = 0; /* ... and how many there are: they go on together */
    while (position < length && conn_is_open(conn)) {
        uint32_t consumed = 0;
        enum resp_result result = resp_scan_reply(&link->scan, bytes + position, length - position, &consumed);
        if (result == RESP_DONE && is_plain_run_reply(link, bytes[position])) {
            piece = piece_count == 0 ? position : piece;
            position += consumed;
            if (++piece_count == link->fifo.head->run_replies || position == length || position - piece > PIECE_BYTES_MAX) {
                deliver_run(net, link, bytes + piece, position - piece, block, piece_count);
                piece_count = 0;
            }
            continue;
        }
        if (piece_count > 0) {
            deliver_run(net, link, bytes + piece, position - piece, block, piece_count);
            piece_count = 0;
        }
        if (result == RESP_ERROR) {
            core_log(core, LOG_ERROR, "link_protocol_error", "node=%u", link->node_key);
            conn_close(core, conn, CLOSE_PROTOCOL);
            break;
        }
        if (link->stream != NULL || (result == RESP_MORE && stream_begin(net, link))) {
            stream_piece(net, link, bytes + position, consumed, result == RESP_DONE);
        } else if (result == RESP_DONE && !is_assembling(link)) {
            deliver(net, link, bytes + position, consumed, block);
        } else {
            assemble(core, link, bytes + position, consumed);
            if (result == RESP_DONE) {
                /* Taken off the link first: delivering may close it. */
                struct block *assembled = link->assembly;
                link->assembly = NULL;
                if (assembled != NULL)
                    deliver(net, link, assembled->data, assembled->length, assembled);
                else
                    deliver_skipped(net, link);
                link->assembly_status = STATUS_OK;
                if (assembled != NULL)
                    arena_put(core->arena, &assembled);
            }
        }
        position += consumed;
    }
    metric_add(core->metrics, METRIC_link_replies_total, link->seq_answered - answered_before);
    if (conn_is_open(conn))
        net->ops->link_progress(net, link);
}

static void on_connect(struct core *core, struct conn *conn, int32_t result)
{
    struct link *link = link_of_conn(conn);
    if (result < 0) {
        core_log(core, LOG_WARNING, "link_connect_failed", "node=%u error=\"%s\"", link->node_key, strerror(-result));
        conn_close(core, conn, CLOSE_CONNECT);
        return;
    }
    link->progress_ms = core->now_ms;
    link->state = LINK_HANDSHAKE;
    conn_opened(core, conn);
}

/* A large command may take longer than link_stall on its way. On a shared link only replies are progress: small commands vanish into the socket of a backend that has stopped. */
static void on_sent(struct core *core, struct conn *conn)
{
    struct link *link = link_of_conn(conn);
    if (channel_is_bulk(link->channel))
        link->progress_ms = core->now_ms;
}

static void on_closing(struct core *core, struct conn *conn)
{
    struct link *link = link_of_conn(conn);
    struct net *net = core->net;
    enum close_reason reason = (enum close_reason)conn->close_reason;
    bool was_open = link->state != LINK_WAITING && link->state != LINK_CONNECTING;
    core_log(core, close_reason_is_error(reason) || link->fifo.count > 0 ? LOG_NOTICE : LOG_INFO, "link_closed", "node=%u protocol=%u reason=\"%s\" legs=%u",
        link->node_key, link->protocol, close_reason_text(reason), link->fifo.count);
    if (reason != CLOSE_IDLE_LINK && reason != CLOSE_DRAIN)
        metric_add(core->metrics, METRIC_link_failures_total, 1);
    link->state = LINK_GONE;
    link_drop_assembly(core, link);
    link_pool_lost(net, link, reason);
    stream_lost(net, link);
    net->ops->divide_runs(net, link);
    struct leg *leg;
    while ((leg = leg_list_pop(&link->fifo)) != NULL) {
        if (leg->action == LEG_DISCARD)
            free_plain_leg(net, leg);
        else
            net->ops->leg_lost(net, link, leg, was_open);
    }
    net->ops->link_gone(net, link);
}

static void on_released(struct core *core, struct conn *conn)
{
    struct link *link = link_of_conn(conn);
    struct net *net = core->net;
    pool_put(&net->links, &link);
    metric_set(core->metrics, METRIC_links, net->links.live_count);
}

static const struct conn_ops link_ops = {
    .on_data = on_data,
    .on_connect = on_connect,
    .on_sent = on_sent,
    .on_closing = on_closing,
    .on_released = on_released,
};

struct link *link_open(struct net *net, const struct sockaddr *address, socklen_t address_bytes, uint8_t protocol, const uint8_t *handshake,
    uint32_t handshake_bytes, enum status *status)
{
    struct core *core = net->core;
    *status = STATUS_FULL;
    struct link *link = pool_get(&net->links);
    if (link == NULL)
        return NULL;
    struct ring_file file = {.number = -1};
    int fd = socket_open_stream(address);
    *status = fd < 0 ? STATUS_SYSTEM : ring_install(&core->ring, fd, &file);
    if (*status != STATUS_OK) {
        pool_put(&net->links, &link);
        return NULL;
    }
    conn_init(&link->conn, CONN_LINK, &link_ops, &transport_plain, file);
    link->key = ++net->next_link_key;
    link->protocol = protocol;
    link->channel = protocol;
    link->state = LINK_WAITING;
    link->progress_ms = core->now_ms;
    list_init(&link->all);
    memcpy(&link->address, address, address_bytes);
    link->address_bytes = address_bytes;
    metric_set(core->metrics, METRIC_links, net->links.live_count);
    link->seq_sent = 1; /* the handshake */
    if (send_queue_append(core, &link->conn.out, handshake, handshake_bytes) != STATUS_OK) {
        *status = STATUS_NO_MEMORY;
        conn_close(core, &link->conn, CLOSE_NO_MEMORY);
        return NULL;
    }
    if (link_pool_may_connect(net->link_pool))
        link_connect(net, link);
    else
        metric_add(core->metrics, METRIC_link_connect_waits_total, 1);
    return link;
}

void link_connect(struct net *net, struct link *link)
{
    ZG_CHECK(link->state == LINK_WAITING);
    link->state = LINK_CONNECTING;
    link->progress_ms = net->core->now_ms;
    metric_add(net->core->metrics, METRIC_link_connects_total, 1);
    conn_connect(net->core, &link->conn, (struct sockaddr *)&link->address, link->address_bytes);
}

void link_enqueue(struct net *net, struct link *link, struct leg_list *legs, struct block *chain)
{
    ZG_CHECK(link->state != LINK_GONE && legs->count > 0);
    if (link->fifo.count == 0)
        link->progress_ms = net->core->now_ms;
    link->seq_sent += legs->count;
    leg_list_splice(&link->fifo, legs);
    while (chain != NULL) {
        struct block *next = chain->next;
        send_queue_push(&link->conn.out, chain);
        chain = next;
    }
    /* A streamed reply must not be waited for any longer: others are behind it. */
    stream_resume(net, link);
    conn_mark_dirty(net->core, &link->conn);
}

void link_check(struct net *net, struct link *link, uint64_t connect_timeout_ms, uint64_t stall_ms)
{
    /* Not read, for the sake of a client: it is not the backend that is silent. */
    if ((link->conn.flags & CONN_PAUSED) != 0)
        link->progress_ms = net->core->now_ms;
    uint64_t silent_ms = net->core->now_ms - link->progress_ms;
    if (link->state == LINK_WAITING) {
        if (silent_ms > connect_timeout_ms)
            conn_close(net->core, &link->conn, CLOSE_CONNECT_RATE);
    } else if (link->state == LINK_CONNECTING || link->state == LINK_HANDSHAKE) {
        if (silent_ms > connect_timeout_ms)
            conn_close(net->core, &link->conn, CLOSE_CONNECT_TIMEOUT);
    } else if (link->fifo.count > 0 && silent_ms > stall_ms) {
        conn_close(net->core, &link->conn, CLOSE_STALLED);
    }
}
