/*
 * The floor: the least that a multiplexing forwarder must do, as the yardstick for the gateway's cost. One thread, one backend connection shared by all clients, one io_uring:
 * direct descriptors, multishot accept and receive, provided buffers, DEFER_TASKRUN, and one send per connection and loop iteration. It finds where requests and replies end and knows
 * no command; replies belong to requests by position.
 *
 *   client bytes ─ scan ─► whole requests ─► backend's out buffer ── one send ──► backend
 *                             └► FIFO of clients                                     │
 *   client ◄── one send ── client's out buffer ◄── bytes of the oldest's reply ◄─────┘
 *
 * It is no gateway: nothing has a limit, a client that does not read makes its buffer grow, and the end of the backend connection is the end of the program. liburing is used directly, and
 * nothing of core/ but its assertions, so that what is slow there is not slow here too.
 *
 * Usage: floor --listen PORT --backend PORT [--min-wait COMPLETIONS,MICROSECONDS] [--buffers COUNT] [--buffer-bytes BYTES]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/argument.h"
#include "core/check.h"

enum { BACKEND = 0, GROUP = 0, ENTRIES = 4096, FILES_RESERVE = 64, OUT_BYTES_MIN = 4096, BUFFERS_MAX = 32768 /* io_uring's */ };
enum op { OP_ACCEPT, OP_RECV, OP_SEND, OP_CLOSE };

/* Where a stream of RESP stands; a value may be cut at any byte. */
struct scan {
    uint64_t body;   /* bytes of a bulk string's body still to come, with its CRLF */
    uint64_t values; /* values still to come until the outermost one is complete; 0: between two */
    int64_t number;  /* digits of the header so far */
    bool in_header;
    bool is_negative;
    uint8_t type;
};

struct bytes {
    uint8_t *data;
    size_t length;
    size_t room;
};

/* A client, or at index BACKEND the backend: its place in the ring's table is its index. */
struct conn {
    struct scan scan;
    struct bytes out;     /* filled in this iteration */
    struct bytes sending; /* held by the kernel while is_sending */
    struct bytes cut;     /* the beginning of a request whose end has not arrived; clients only */
    uint32_t generation;  /* of the client: replies for an earlier one are skipped */
    bool is_open;         /* not: a free place */
    bool is_receiving;
    bool is_sending;
    bool is_dirty;
    bool is_leaving;
};

struct owner {
    uint32_t index;
    uint32_t generation;
};

static struct io_uring ring;
static struct io_uring_buf_ring *buffer_ring;
static uint8_t *buffers;
static uint32_t buffers_count = 2048, buffer_bytes = 4096, buffers_returned;
static uint32_t wait_completions = 1, min_wait_us;
static struct conn *conns;
static uint32_t conns_max;
static uint32_t *dirty, dirty_count; /* connections with something to send or to receive again */
static struct owner *fifo;           /* whose reply comes next; a ring of fifo_room, a power of two */
static uint32_t fifo_head, fifo_tail, fifo_room = 1 << 16;
static int listen_fd;

static void fail(const char *what, int code)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(code));
    exit(1);
}

static void *must(void *memory)
{
    if (memory == NULL)
        fail("memory", ENOMEM);
    return memory;
}

static void append(struct bytes *bytes, const uint8_t *data, size_t length)
{
    if (bytes->length + length > bytes->room) {
        size_t room = bytes->room > 0 ? bytes->room : OUT_BYTES_MIN;
        while (room < bytes->length + length)
            room *= 2;
        bytes->data = must(realloc(bytes->data, room));
        bytes->room = room;
    }
    memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

static void push_owner(uint32_t index, uint32_t generation)
{
    if (fifo_tail - fifo_head == fifo_room) {
        struct owner *larger = must(malloc(2 * fifo_room * sizeof(*larger)));
        for (uint32_t i = 0; i < fifo_room; i++)
            larger[i] = fifo[(fifo_head + i) & (fifo_room - 1)];
        free(fifo);
        fifo = larger;
        fifo_head = 0;
        fifo_tail = fifo_room;
        fifo_room *= 2;
    }
    fifo[fifo_tail++ & (fifo_room - 1)] = (struct owner){.index = index, .generation = generation};
}

/* Scans up to the end of one whole value; returns its end, or NULL where the input ends before. RESP2; anything but an array or a bulk string is a line, an inline command too. */
static const uint8_t *scan_value(struct scan *scan, const uint8_t *at, const uint8_t *end)
{
    if (scan->values == 0)
        scan->values = 1;
    while (at < end) {
        if (scan->body > 0) {
            uint64_t step = (uint64_t)(end - at) < scan->body ? (uint64_t)(end - at) : scan->body;
            at += step;
            scan->body -= step;
            if (scan->body > 0)
                return NULL;
        } else {
            if (!scan->in_header) {
                scan->in_header = true;
                scan->type = *at;
                scan->number = 0;
                scan->is_negative = false;
            }
            if (scan->type == '*' || scan->type == '$') {
                for (; at < end && *at != '\n'; at++) {
                    if (*at == '-')
                        scan->is_negative = true;
                    else if (*at >= '0')
                        scan->number = scan->number * 10 + (*at - '0');
                }
            } else {
                const uint8_t *found = memchr(at, '\n', (size_t)(end - at));
                at = found != NULL ? found : end;
            }
            if (at++ == end)
                return NULL;
            scan->in_header = false;
            if (scan->type == '$' && !scan->is_negative) {
                scan->body = (uint64_t)scan->number + 2;
                continue;
            }
            if (scan->type == '*' && !scan->is_negative)
                scan->values += (uint64_t)scan->number;
        }
        if (--scan->values == 0)
            return at;
    }
    return NULL;
}

static struct io_uring_sqe *next_sqe(enum op op, uint32_t index)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    while (sqe == NULL) {
        int code = io_uring_submit(&ring);
        if (code < 0 && code != -EBUSY && code != -EAGAIN && code != -EINTR)
            fail("submit", -code);
        sqe = io_uring_get_sqe(&ring);
    }
    sqe->user_data = (uint64_t)op << 32 | index;
    return sqe;
}

/* The prep functions clear user_data. */
static void set_user_data(struct io_uring_sqe *sqe, enum op op, uint32_t index)
{
    sqe->user_data = (uint64_t)op << 32 | index;
}

static void mark_dirty(uint32_t index)
{
    if (conns[index].is_dirty)
        return;
    conns[index].is_dirty = true;
    dirty[dirty_count++] = index;
}

static void arm_accept(void)
{
    struct io_uring_sqe *sqe = next_sqe(OP_ACCEPT, 0);
    io_uring_prep_multishot_accept_direct(sqe, listen_fd, NULL, NULL, 0);
    set_user_data(sqe, OP_ACCEPT, 0);
}

static void arm_receive(uint32_t index)
{
    struct io_uring_sqe *sqe = next_sqe(OP_RECV, index);
    io_uring_prep_recv_multishot(sqe, (int)index, NULL, 0, 0);
    sqe->flags |= IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
    set_user_data(sqe, OP_RECV, index);
    conns[index].is_receiving = true;
}

/* The place in the table is free for the next client as soon as the close has run, which is when it is submitted: nothing of the connection may be outstanding. */
static void close_if_joined(uint32_t index)
{
    struct conn *conn = &conns[index];
    if (!conn->is_leaving || conn->is_receiving || conn->is_sending)
        return;
    conn->generation++;
    conn->is_open = false;
    conn->is_leaving = false;
    conn->out.length = 0;
    conn->cut.length = 0;
    memset(&conn->scan, 0, sizeof(conn->scan));
    struct io_uring_sqe *sqe = next_sqe(OP_CLOSE, index);
    io_uring_prep_close_direct(sqe, index);
    set_user_data(sqe, OP_CLOSE, index);
}

static void on_client_bytes(uint32_t index, const uint8_t *at, uint32_t length)
{
    struct conn *client = &conns[index], *backend = &conns[BACKEND];
    const uint8_t *end = at + length, *whole = at, *next;
    for (const uint8_t *from = at; (next = scan_value(&client->scan, from, end)) != NULL; from = whole) {
        push_owner(index, client->generation);
        whole = next;
    }
    if (whole > at) {
        if (client->cut.length > 0) {
            append(&backend->out, client->cut.data, client->cut.length);
            client->cut.length = 0;
        }
        append(&backend->out, at, (size_t)(whole - at));
        mark_dirty(BACKEND);
    }
    if (whole < end)
        append(&client->cut, whole, (size_t)(end - whole));
}

/* A reply's bytes are passed on as they come, whole or not. */
static void on_backend_bytes(const uint8_t *at, uint32_t length)
{
    ZG_CHECK(at != NULL);
    const uint8_t *end = at + length;
    while (at < end) {
        if (fifo_head == fifo_tail)
            fail("a reply without a request", EPROTO);
        const uint8_t *next = scan_value(&conns[BACKEND].scan, at, end);
        const uint8_t *stop = next != NULL ? next : end;
        struct owner owner = fifo[fifo_head & (fifo_room - 1)];
        struct conn *client = &conns[owner.index];
        if (client->generation == owner.generation && client->is_open && !client->is_leaving) {
            append(&client->out, at, (size_t)(stop - at));
            mark_dirty(owner.index);
        }
        if (next != NULL)
            fifo_head++;
        at = stop;
    }
}

static void on_receive(uint32_t index, int32_t result, uint32_t flags)
{
    struct conn *conn = &conns[index];
    if ((flags & IORING_CQE_F_MORE) == 0)
        conn->is_receiving = false;
    if ((flags & IORING_CQE_F_BUFFER) != 0) {
        uint32_t id = flags >> IORING_CQE_BUFFER_SHIFT;
        uint8_t *data = buffers + (size_t)id * buffer_bytes;
        if (result > 0 && index == BACKEND)
            on_backend_bytes(data, (uint32_t)result);
        else if (result > 0 && !conn->is_leaving)
            on_client_bytes(index, data, (uint32_t)result);
        io_uring_buf_ring_add(buffer_ring, data, buffer_bytes, (unsigned short)id, (int)(buffers_count - 1), (int)buffers_returned++);
    }
    if (result > 0 || result == -ENOBUFS) {
        if (!conn->is_receiving && !conn->is_leaving)
            mark_dirty(index); /* armed again once the buffers are back */
    } else if (index == BACKEND) {
        fail("backend connection", result == 0 ? ECONNRESET : -result);
    } else {
        conn->is_leaving = true;
    }
    close_if_joined(index);
}

static void on_send(uint32_t index, int32_t result)
{
    struct conn *conn = &conns[index];
    conn->is_sending = false;
    /* MSG_WAITALL: the kernel goes on after a short send, so anything less is an error; a client's receive reports the same. */
    if (result < 0 || (size_t)result < conn->sending.length) {
        if (index == BACKEND)
            fail("send to the backend", result < 0 ? -result : EPIPE);
        conn->out.length = 0;
    } else if (conn->out.length > 0) {
        mark_dirty(index);
    }
    close_if_joined(index);
}

static void on_completion(const struct io_uring_cqe *cqe)
{
    uint32_t index = (uint32_t)cqe->user_data;
    switch ((enum op)(cqe->user_data >> 32)) {
    case OP_ACCEPT:
        if (cqe->res >= 0) {
            conns[cqe->res].is_open = true;
            arm_receive((uint32_t)cqe->res);
        }
        if ((cqe->flags & IORING_CQE_F_MORE) == 0)
            arm_accept();
        break;
    case OP_RECV:
        on_receive(index, cqe->res, cqe->flags);
        break;
    case OP_SEND:
        on_send(index, cqe->res);
        break;
    case OP_CLOSE:
        break;
    }
}

static void flush(void)
{
    for (uint32_t i = 0; i < dirty_count; i++) {
        uint32_t index = dirty[i];
        struct conn *conn = &conns[index];
        conn->is_dirty = false;
        if (!conn->is_open || conn->is_leaving)
            continue;
        if (!conn->is_receiving)
            arm_receive(index);
        if (conn->is_sending || conn->out.length == 0)
            continue;
        struct bytes sent = conn->sending;
        conn->sending = conn->out;
        conn->out = sent;
        conn->out.length = 0;
        struct io_uring_sqe *sqe = next_sqe(OP_SEND, index);
        io_uring_prep_send(sqe, (int)index, conn->sending.data, conn->sending.length, MSG_NOSIGNAL | MSG_WAITALL);
        sqe->flags |= IOSQE_FIXED_FILE;
        set_user_data(sqe, OP_SEND, index);
        conn->is_sending = true;
    }
    dirty_count = 0;
}

/* Submits and waits in one call. liburing 2.3 does not know the minimum wait of kernel 6.12: the field of the extended argument that it calls `pad`, in microseconds. */
static void wait_min(void)
{
    struct io_uring_sq *sq = &ring.sq;
    unsigned tail = *sq->ktail;
    for (; sq->sqe_head != sq->sqe_tail; sq->sqe_head++, tail++)
        sq->array[tail & sq->ring_mask] = sq->sqe_head & sq->ring_mask;
    io_uring_smp_store_release(sq->ktail, tail);
    /* Without a time-out the kernel returns after the minimum wait even where nothing has come. */
    struct __kernel_timespec timeout = {.tv_sec = 1};
    struct io_uring_getevents_arg argument = {.pad = min_wait_us, .ts = (uint64_t)(uintptr_t)&timeout};
    if (syscall(__NR_io_uring_enter, ring.ring_fd, tail - *sq->khead, wait_completions, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &argument, sizeof(argument)) < 0 &&
        errno != ETIME && errno != EINTR && errno != EBUSY && errno != EAGAIN)
        fail("wait", errno);
}

static void run(void)
{
    for (;;) {
        struct io_uring_cqe *cqe;
        unsigned head, count = 0;
        io_uring_for_each_cqe(&ring, head, cqe)
        {
            on_completion(cqe);
            count++;
        }
        io_uring_cq_advance(&ring, count);
        if (buffers_returned > 0)
            io_uring_buf_ring_advance(buffer_ring, (int)buffers_returned);
        buffers_returned = 0;
        flush();
        if (min_wait_us > 0) {
            wait_min();
            continue;
        }
        int code = io_uring_submit_and_wait(&ring, 1);
        if (code < 0 && code != -EINTR && code != -EBUSY && code != -EAGAIN)
            fail("wait", -code);
    }
}

static int open_socket(uint16_t port, bool is_listener)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        fail("socket", errno);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    /* Accepted sockets inherit it. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (is_listener ? bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 4096) != 0 : connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        fail(is_listener ? "listen" : "connect", errno);
    return fd;
}

static void open_ring(int backend_fd)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("getrlimit", errno);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    conns_max = limit.rlim_cur > 65536 ? 65536 : (uint32_t)limit.rlim_cur - FILES_RESERVE;
    struct io_uring_params params = {.cq_entries = 4 * ENTRIES,
        .flags = IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int code = io_uring_queue_init_params(ENTRIES, &ring, &params);
    if (code < 0)
        fail("io_uring", -code);
    if ((code = io_uring_register_files_sparse(&ring, conns_max)) < 0 || (code = io_uring_register_files_update(&ring, BACKEND, &backend_fd, 1)) < 0 ||
        (code = io_uring_register_file_alloc_range(&ring, BACKEND + 1, conns_max - BACKEND - 1)) < 0)
        fail("table of files", -code);

    size_t ring_bytes = buffers_count * sizeof(struct io_uring_buf), data_bytes = (size_t)buffers_count * buffer_bytes;
    uint8_t *memory = mmap(NULL, ring_bytes + data_bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap", errno);
    buffer_ring = (struct io_uring_buf_ring *)memory;
    buffers = memory + ring_bytes;
    struct io_uring_buf_reg registration = {.ring_addr = (uint64_t)(uintptr_t)buffer_ring, .ring_entries = buffers_count, .bgid = GROUP};
    if ((code = io_uring_register_buf_ring(&ring, &registration, 0)) != 0)
        fail("buffers", -code);
    io_uring_buf_ring_init(buffer_ring);
    for (uint32_t id = 0; id < buffers_count; id++)
        io_uring_buf_ring_add(buffer_ring, buffers + (size_t)id * buffer_bytes, buffer_bytes, (unsigned short)id, (int)(buffers_count - 1), (int)id);
    io_uring_buf_ring_advance(buffer_ring, (int)buffers_count);
}

int main(int arguments_count, char **arguments)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},  {"backend", required_argument, NULL, 'b'},      {"min-wait", required_argument, NULL, 'w'},
        {"buffers", required_argument, NULL, 'n'}, {"buffer-bytes", required_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
    uint32_t listen_port = 0, backend_port = 0;
    bool is_valid = true;
    for (int option; (option = getopt_long(arguments_count, arguments, "", options, NULL)) != -1;) {
        switch (option) {
        case 'l':
            is_valid = is_valid && argument_number(optarg, '\0', UINT16_MAX, &listen_port);
            break;
        case 'b':
            is_valid = is_valid && argument_number(optarg, '\0', UINT16_MAX, &backend_port);
            break;
        case 'w':
            is_valid = is_valid && argument_number(optarg, ',', UINT32_MAX, &wait_completions) && argument_number(strchr(optarg, ',') + 1, '\0', UINT32_MAX, &min_wait_us);
            break;
        case 'n':
            is_valid = is_valid && argument_number(optarg, '\0', BUFFERS_MAX, &buffers_count);
            break;
        case 's':
            is_valid = is_valid && argument_number(optarg, '\0', UINT32_MAX, &buffer_bytes);
            break;
        default:
            is_valid = false;
        }
    }
    bool is_power = (buffers_count & (buffers_count - 1)) == 0;
    if (!is_valid || listen_port == 0 || backend_port == 0 || !is_power || buffer_bytes < 64) {
        fprintf(stderr, "usage: floor --listen PORT --backend PORT [--min-wait COMPLETIONS,MICROSECONDS] [--buffers COUNT] [--buffer-bytes BYTES]\n");
        return 2;
    }
    int backend_fd = open_socket((uint16_t)backend_port, false);
    listen_fd = open_socket((uint16_t)listen_port, true);
    open_ring(backend_fd);
    conns = must(calloc(conns_max, sizeof(*conns)));
    dirty = must(malloc(conns_max * sizeof(*dirty)));
    fifo = must(malloc(fifo_room * sizeof(*fifo)));
    arm_accept();
    conns[BACKEND].is_open = true;
    arm_receive(BACKEND);
    run();
}
