/*
 * Owns: the socket operations of every connection of a core. Runs on: that core.
 *
 * operations counts what the kernel still holds; an object is released only when it is 0, so a completion always finds the life it belongs to (a stale generation would be a
 * late one: counted and dropped).
 */
#include "net/conn.h"

#include <errno.h>
#include <string.h>

#include "net/net.h"

static struct conn *conn_of(struct core *core, uint64_t user_data)
{
    bool is_link = (user_data >> 56 & RING_OP_LINK_BIT) != 0;
    struct pool_handle handle = {.value = user_data & UINT64_C(0x00ffffffffffffff)};
    struct conn *conn = pool_resolve(is_link ? &core->net->links : &core->net->clients, handle);
    if (conn == NULL)
        metric_add(core->metrics, METRIC_ring_stale_completions_total, 1);
    return conn;
}

static uint64_t user_data_of(const struct conn *conn, enum ring_op op)
{
    uint8_t code = (uint8_t)(op | (conn->kind == CONN_LINK ? RING_OP_LINK_BIT : 0));
    return ring_user_data(code, &conn->item);
}

static struct io_uring_sqe *begin_operation(struct core *core, struct conn *conn)
{
    ZG_CHECK(conn->operations < UINT8_MAX);
    conn->operations++;
    return ring_sqe(&core->ring);
}

static void finish_close(struct core *core, struct conn *conn)
{
    conn->state = CONN_RELEASED;
    if (list_is_linked(&conn->flush_node))
        list_remove(&conn->flush_node);
    list_push_back(&core->net->released, &conn->flush_node);
}

/* So many bytes of a client's output are sent, or dropped. */
static void count_output(struct core *core, const struct conn *conn, uint64_t bytes)
{
    if (conn->kind == CONN_CLIENT)
        core->net->account.output -= bytes;
}

/* CLOSING and nothing outstanding: the descriptor itself is closed. */
static void close_file(struct core *core, struct conn *conn)
{
    ZG_CHECK(conn->state == CONN_CLOSING && conn->operations == 0);
    conn->state = CONN_CLOSED;
    count_output(core, conn, conn->out.bytes);
    send_queue_clear(core, &conn->out);
    if (conn->file.number < 0) {
        finish_close(core, conn);
        return;
    }
    struct io_uring_sqe *sqe = begin_operation(core, conn);
    if (core->ring.features.direct_descriptors)
        io_uring_prep_close_direct(sqe, (unsigned)conn->file.number);
    else
        io_uring_prep_close(sqe, conn->file.number);
    io_uring_sqe_set_data64(sqe, user_data_of(conn, RING_OP_CONN_CLOSE));
}

/* Counts a completion; true where the connection is closing, and then takes the next step of that. */
static bool end_operation(struct core *core, struct conn *conn)
{
    ZG_CHECK(conn->operations > 0);
    conn->operations--;
    if (conn->state != CONN_CLOSING)
        return false;
    if (conn->operations == 0)
        close_file(core, conn);
    return true;
}

static void plain_receive(struct core *core, struct conn *conn)
{
    struct io_uring_sqe *sqe = begin_operation(core, conn);
    if (core->ring.features.multishot_recv)
        io_uring_prep_recv_multishot(sqe, conn->file.number, NULL, 0, 0);
    else
        io_uring_prep_recv(sqe, conn->file.number, NULL, core->rx.buffer_bytes, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT | ring_file_flags(&core->ring);
    sqe->buf_group = RX_GROUP;
    io_uring_sqe_set_data64(sqe, user_data_of(conn, RING_OP_CONN_RECV));
    conn->flags |= CONN_RECEIVING;
}

static void plain_received(struct core *core, struct conn *conn, struct block *block, uint32_t length)
{
    conn->ops->on_data(core, conn, block, block->data, length);
}

static struct send_slot *take_send_slot(struct core *core)
{
    struct net *net = core->net;
    if (net->send_slots_used == NET_SEND_SLOTS) {
        while (io_uring_sq_ready(&core->ring.uring) > 0)
            ring_submit(&core->ring);
        net->send_slots_used = 0;
    }
    return &net->send_slots[net->send_slots_used++];
}

static void plain_send(struct core *core, struct conn *conn)
{
    struct send_slot *slot = take_send_slot(core);
    uint32_t count = send_queue_pieces(&conn->out, slot->pieces, SEND_IOVECS_MAX);
    struct io_uring_sqe *sqe = begin_operation(core, conn);
    if (count == 1) {
        io_uring_prep_send(sqe, conn->file.number, slot->pieces[0].iov_base, slot->pieces[0].iov_len, MSG_NOSIGNAL);
        core->net->send_slots_used--;
    } else {
        memset(&slot->header, 0, sizeof(slot->header));
        slot->header.msg_iov = slot->pieces;
        slot->header.msg_iovlen = count;
        io_uring_prep_sendmsg(sqe, conn->file.number, &slot->header, MSG_NOSIGNAL);
    }
    sqe->flags |= ring_file_flags(&core->ring);
    io_uring_sqe_set_data64(sqe, user_data_of(conn, RING_OP_CONN_SEND));
    conn->flags |= CONN_SENDING;
    core->counts.sends++;
}

const struct transport transport_plain = {
    .name = "plain",
    .receive = plain_receive,
    .received = plain_received,
    .send = plain_send,
};

static void maybe_receive(struct core *core, struct conn *conn)
{
    if (conn->state == CONN_OPEN && (conn->flags & (CONN_RECEIVING | CONN_PAUSED)) == 0)
        conn->transport->receive(core, conn);
}

/* Everything queued is sent. The receive must be armed, to see the peer's end. */
static void shut_down(struct core *core, struct conn *conn)
{
    ZG_CHECK(conn->state == CONN_OPEN && (conn->flags & (CONN_FINISH | CONN_SHUT)) == CONN_FINISH);
    conn->flags |= CONN_SHUT;
    struct io_uring_sqe *sqe = begin_operation(core, conn);
    io_uring_prep_shutdown(sqe, conn->file.number, SHUT_WR);
    sqe->flags |= ring_file_flags(&core->ring);
    io_uring_sqe_set_data64(sqe, user_data_of(conn, RING_OP_CONN_SHUTDOWN));
    conn_resume(core, conn);
}

static void on_receive_failed(struct core *core, struct conn *conn, int32_t result)
{
    if (result == -ENOBUFS) {
        metric_add(core->metrics, METRIC_rx_buffers_exhausted_total, 1);
        if (core->rx.owed_count == core->rx.count)
            conn_close(core, conn, CLOSE_NO_MEMORY);
        else
            maybe_receive(core, conn);
    } else if (result == -ECANCELED || result == -EINTR || result == -EAGAIN) {
        conn->flags &= (uint8_t)~CONN_CANCELLING;
        maybe_receive(core, conn);
    } else if ((conn->flags & CONN_FINISH) != 0) {
        /* The peer has ended its side. It may still read: what is queued goes out first, and then the receive is armed again. */
        if (result != 0 || (conn->flags & CONN_SHUT) != 0)
            conn_close(core, conn, conn->close_reason);
    } else {
        conn_close(core, conn, result == 0 || result == -ECONNRESET || result == -EPIPE ? CLOSE_PEER : CLOSE_READ);
    }
}

static void on_receive(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    struct conn *conn = conn_of(core, user_data);
    uint32_t buffer = flags >> IORING_CQE_BUFFER_SHIFT;
    bool has_buffer = (flags & IORING_CQE_F_BUFFER) != 0;
    bool is_closing = conn == NULL;
    if (conn != NULL && (flags & IORING_CQE_F_MORE) == 0) {
        conn->flags &= (uint8_t)~CONN_RECEIVING;
        is_closing = end_operation(core, conn);
    }
    if (!is_closing && conn->state == CONN_OPEN) {
        if (result > 0 && has_buffer) {
            conn->transport->received(core, conn, rx_ring_block(&core->rx, buffer), (uint32_t)result);
            maybe_receive(core, conn);
        } else {
            on_receive_failed(core, conn, result);
        }
    }
    if (has_buffer)
        rx_ring_recycle(&core->rx, buffer);
}

static void on_send(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)flags;
    struct conn *conn = conn_of(core, user_data);
    if (conn == NULL)
        return;
    conn->flags &= (uint8_t)~CONN_SENDING;
    if (end_operation(core, conn) || conn->state != CONN_OPEN)
        return;
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
        conn_close(core, conn, CLOSE_WRITE);
        return;
    }
    if (result > 0) {
        send_queue_sent(core, &conn->out, (uint64_t)result);
        count_output(core, conn, (uint64_t)result);
    }
    if (conn->out.head != NULL)
        conn_mark_dirty(core, conn);
    else if ((conn->flags & CONN_FINISH) != 0)
        shut_down(core, conn);
    else if ((conn->flags & CONN_CLOSE_AFTER_SEND) != 0)
        conn_close(core, conn, conn->close_reason);
    if (conn->state == CONN_OPEN)
        conn->ops->on_sent(core, conn);
}

static void on_connect(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)flags;
    struct conn *conn = conn_of(core, user_data);
    if (conn == NULL || end_operation(core, conn))
        return;
    conn->ops->on_connect(core, conn, result);
}

static void on_shutdown(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)flags;
    struct conn *conn = conn_of(core, user_data);
    if (conn == NULL || end_operation(core, conn))
        return;
    /* The peer has reset the connection: nothing is left to wait for. */
    if (result < 0)
        conn_close(core, conn, conn->close_reason);
}

static void on_cancel(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)result;
    (void)flags;
    struct conn *conn = conn_of(core, user_data);
    if (conn == NULL || end_operation(core, conn))
        return;
    /* A receive that had ended by itself was not there to be cancelled. */
    conn->flags &= (uint8_t)~CONN_CANCELLING;
    maybe_receive(core, conn);
}

static void on_close(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)result;
    (void)flags;
    struct conn *conn = conn_of(core, user_data);
    if (conn == NULL)
        return;
    ZG_CHECK(conn->state == CONN_CLOSED && conn->operations == 1);
    conn->operations = 0;
    ring_file_freed(&core->ring, conn->file);
    finish_close(core, conn);
}

void conn_setup(struct core *core)
{
    core->completions[RING_OP_CONN_RECV] = on_receive;
    core->completions[RING_OP_CONN_SEND] = on_send;
    core->completions[RING_OP_CONN_CONNECT] = on_connect;
    core->completions[RING_OP_CONN_CANCEL] = on_cancel;
    core->completions[RING_OP_CONN_CLOSE] = on_close;
    core->completions[RING_OP_CONN_SHUTDOWN] = on_shutdown;
}

void conn_init(struct conn *conn, enum conn_kind kind, const struct conn_ops *ops, const struct transport *transport, struct ring_file file)
{
    conn->ops = ops;
    conn->transport = transport;
    list_init(&conn->flush_node);
    memset(&conn->out, 0, sizeof(conn->out));
    conn->file = file;
    conn->kind = (uint8_t)kind;
    conn->state = CONN_OPENING;
    conn->flags = 0;
    conn->operations = 0;
    conn->close_reason = CLOSE_NONE;
}

void conn_connect(struct core *core, struct conn *conn, const struct sockaddr *address, socklen_t address_bytes)
{
    ZG_CHECK(conn->state == CONN_OPENING);
    struct io_uring_sqe *sqe = begin_operation(core, conn);
    io_uring_prep_connect(sqe, conn->file.number, address, address_bytes);
    sqe->flags |= ring_file_flags(&core->ring);
    io_uring_sqe_set_data64(sqe, user_data_of(conn, RING_OP_CONN_CONNECT));
}

void conn_opened(struct core *core, struct conn *conn)
{
    ZG_CHECK(conn->state == CONN_OPENING);
    conn->state = CONN_OPEN;
    maybe_receive(core, conn);
    if (conn->out.head != NULL)
        conn_mark_dirty(core, conn);
}

void conn_mark_dirty(struct core *core, struct conn *conn)
{
    if (conn->state > CONN_OPEN || list_is_linked(&conn->flush_node))
        return;
    list_push_back(&core->net->dirty, &conn->flush_node);
}

void conn_pause(struct core *core, struct conn *conn)
{
    conn->flags |= CONN_PAUSED;
    if (conn->state != CONN_OPEN || (conn->flags & CONN_RECEIVING) == 0 || (conn->flags & CONN_CANCELLING) != 0)
        return;
    conn->flags |= CONN_CANCELLING;
    struct io_uring_sqe *sqe = begin_operation(core, conn);
    io_uring_prep_cancel64(sqe, user_data_of(conn, RING_OP_CONN_RECV), 0);
    io_uring_sqe_set_data64(sqe, user_data_of(conn, RING_OP_CONN_CANCEL));
}

void conn_resume(struct core *core, struct conn *conn)
{
    conn->flags &= (uint8_t)~CONN_PAUSED;
    maybe_receive(core, conn);
}

void conn_close(struct core *core, struct conn *conn, enum close_reason reason)
{
    if (conn->state > CONN_OPEN)
        return;
    conn->state = CONN_CLOSING;
    conn->close_reason = (uint8_t)reason;
    if (list_is_linked(&conn->flush_node))
        list_remove(&conn->flush_node);
    conn->ops->on_closing(core, conn);
    if (conn->operations == 0) {
        close_file(core, conn);
        return;
    }
    struct io_uring_sqe *sqe = begin_operation(core, conn);
    io_uring_prep_cancel_fd(sqe, conn->file.number, IORING_ASYNC_CANCEL_ALL);
    if (core->ring.features.direct_descriptors)
        sqe->cancel_flags |= IORING_ASYNC_CANCEL_FD_FIXED;
    io_uring_sqe_set_data64(sqe, user_data_of(conn, RING_OP_CONN_CANCEL));
}

void conn_close_after_send(struct core *core, struct conn *conn, enum close_reason reason)
{
    if (conn->state != CONN_OPEN)
        return;
    if (conn->out.head == NULL && (conn->flags & CONN_SENDING) == 0) {
        conn_close(core, conn, reason);
        return;
    }
    conn->close_reason = (uint8_t)reason;
    conn->flags |= CONN_CLOSE_AFTER_SEND;
}

void conn_finish(struct core *core, struct conn *conn, enum close_reason reason)
{
    if (conn->state != CONN_OPEN || (conn->flags & CONN_CLOSE_AFTER_SEND) != 0)
        return;
    conn->close_reason = (uint8_t)reason;
    conn->flags |= CONN_CLOSE_AFTER_SEND | CONN_FINISH;
    if (conn->out.head == NULL && (conn->flags & CONN_SENDING) == 0)
        shut_down(core, conn);
}
