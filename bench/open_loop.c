/*
 * Open-loop load for bench/open-loop.py: requests begin when they are due, whether earlier ones have been answered or not, and a reply's latency counts from the moment at which its request
 * was due. So a server that stands still for a while is charged with all the requests that would have come meanwhile, which a closed loop hides.
 *
 * One thread, epoll. Connections are opened once and live until the standard input ends; between two runs they are idle. All requests are the same GET.
 *
 *   due ─► start time into the ring of a connection ─► send (what it did not take waits for EPOLLOUT) ─► reply ─► latency, taken from the ring's other end
 *
 * Usage: open_loop PORT CONNECTIONS, then on the standard input a line for each run:
 *   REQUESTS-PER-SECOND MILLISECONDS constant|poisson SEED
 * Prints "ready" once all connections have been answered, and for each run a line of "name=value" pairs; latencies in nanoseconds. constant: one request each 1/rate seconds, connections in
 * turn; poisson: exponential gaps, a connection at random, as many independent clients would. `refused` requests were due on a connection that already waits for PIPELINE_MAX replies;
 * they are not sent and have no latency. Exit status 1 where a connection ends, a reply is not understood, or one does not come.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/argument.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/rng.h"

enum {
    CONNECTIONS_MAX = 10000,
    PIPELINE_MAX = 4096, /* a power of two */
    RATE_MAX = 10000000,
    MILLISECONDS_MAX = 600000,
    SAMPLES_MAX = 20000000,
    EVENTS_MAX = 256,
    REQUESTS_PER_SEND_MAX = 64,
    VALUE_BYTES = 64,
    HEAD_BYTES = 5,
    REPLY_BYTES = HEAD_BYTES + VALUE_BYTES + 2,
};
#define GRACE_NS UINT64_C(10000000000) /* how long the last replies may take */

static const char request[] = "*2\r\n$3\r\nGET\r\n$16\r\nkey:__rand_int__\r\n";
static const char reply_head[] = "$64\r\n"; /* then VALUE_BYTES and "\r\n" */
enum { REQUEST_BYTES = sizeof(request) - 1 };

struct connection {
    uint64_t *due_ns; /* of requests without a reply; a ring of PIPELINE_MAX */
    uint32_t head, tail;
    uint32_t unsent_bytes; /* of the requests in the ring; all are alike, so this says where in one the rest begins */
    uint32_t reply_bytes;  /* still to come of the reply that has begun */
    int fd;
    bool is_error; /* the reply that has begun is an error, which ends with its line */
    bool is_dirty;
};

/* One run. Latencies are kept one by one: a histogram's steps would be as large as what is looked for. */
struct run {
    uint64_t *latency_ns;
    uint64_t *late_ns; /* how long after its time a request was handed to its connection: the generator's own delay */
    uint32_t answered, issued, refused, errors;
    uint32_t samples_max;
    uint64_t end_ns;
    double gap_ns; /* mean */
    bool is_poisson;
    struct rng rng;
};

static struct connection *connections;
static uint32_t connections_count;
static uint32_t *dirty, dirty_count; /* connections with something to send */
static char requests[REQUESTS_PER_SEND_MAX * REQUEST_BYTES];
static int epoll_fd;

static _Noreturn void fail(const char *what, int code)
{
    fprintf(stderr, "open_loop: %s: %s\n", what, strerror(code));
    exit(1);
}

static void *must(void *memory)
{
    if (memory == NULL)
        fail("memory", ENOMEM);
    return memory;
}

static void flush_connection(struct connection *connection)
{
    while (connection->unsent_bytes > 0) {
        uint32_t from = (REQUEST_BYTES - connection->unsent_bytes % REQUEST_BYTES) % REQUEST_BYTES;
        uint32_t length = (uint32_t)sizeof(requests) - from;
        if (length > connection->unsent_bytes)
            length = connection->unsent_bytes;
        ssize_t sent = send(connection->fd, requests + from, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            return; /* EPOLLOUT announces room */
        if (sent < 0)
            fail("send", errno);
        connection->unsent_bytes -= (uint32_t)sent;
    }
}

static void issue(struct run *run, struct connection *connection, uint64_t due_ns, uint64_t now_ns)
{
    if (connection->tail - connection->head == PIPELINE_MAX) {
        run->refused++;
        return;
    }
    run->late_ns[run->issued++] = now_ns - due_ns;
    connection->due_ns[connection->tail++ & (PIPELINE_MAX - 1)] = due_ns;
    connection->unsent_bytes += REQUEST_BYTES;
    if (connection->is_dirty)
        return;
    connection->is_dirty = true;
    dirty[dirty_count++] = (uint32_t)(connection - connections);
}

static void end_reply(struct run *run, struct connection *connection, uint64_t now_ns)
{
    if (connection->head == connection->tail)
        fail("a reply without a request", EPROTO);
    uint64_t due_ns = connection->due_ns[connection->head++ & (PIPELINE_MAX - 1)];
    if (connection->is_error)
        run->errors++;
    else
        run->latency_ns[run->answered++] = now_ns - due_ns;
}

static void take_replies(struct run *run, struct connection *connection, const char *at, const char *end, uint64_t now_ns)
{
    while (at < end) {
        if (connection->reply_bytes == 0 && !connection->is_error) {
            connection->is_error = *at == '-';
            connection->reply_bytes = connection->is_error ? 0 : REPLY_BYTES;
        }
        if (connection->is_error) {
            const char *line_end = memchr(at, '\n', (size_t)(end - at));
            if (line_end == NULL)
                return;
            at = line_end + 1;
            end_reply(run, connection, now_ns);
            connection->is_error = false;
            continue;
        }
        uint32_t have = REPLY_BYTES - connection->reply_bytes;
        if (have < HEAD_BYTES && *at != reply_head[have])
            fail("neither the value nor an error", EPROTO);
        uint32_t rest = have < HEAD_BYTES ? 1 : connection->reply_bytes;
        uint32_t step = (uint64_t)(end - at) < rest ? (uint32_t)(end - at) : rest;
        at += step;
        connection->reply_bytes -= step;
        if (connection->reply_bytes == 0)
            end_reply(run, connection, now_ns);
    }
}

static void receive(struct run *run, struct connection *connection)
{
    static char buffer[65536];
    for (;;) {
        ssize_t received = recv(connection->fd, buffer, sizeof(buffer), 0);
        if (received < 0 && errno == EAGAIN)
            return;
        if (received <= 0)
            fail("receive", received == 0 ? ECONNRESET : errno);
        take_replies(run, connection, buffer, buffer + received, clock_monotonic_ns());
        if ((size_t)received < sizeof(buffer))
            return; /* edge-triggered: what comes later is announced again */
    }
}

/* Events until `wake_ns`, or until some have been handled. */
static void handle_events(struct run *run, uint64_t wake_ns)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t now_ns = clock_monotonic_ns();
    uint64_t wait_ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
    struct timespec timeout = {.tv_sec = (time_t)(wait_ns / 1000000000u), .tv_nsec = (long)(wait_ns % 1000000000u)};
    int count = epoll_pwait2(epoll_fd, events, EVENTS_MAX, &timeout, NULL);
    if (count < 0 && errno != EINTR)
        fail("epoll", errno);
    for (int i = 0; i < count; i++) {
        struct connection *connection = &connections[events[i].data.u32];
        if ((events[i].events & EPOLLOUT) != 0)
            flush_connection(connection);
        if ((events[i].events & (uint32_t)~EPOLLOUT) != 0)
            receive(run, connection);
    }
}

/* (0, 1]: its logarithm is finite. */
static double random_unit(struct rng *rng)
{
    return ((double)(rng_next(rng) >> 11) + 1.0) / 9007199254740992.0;
}

/* Issues what is due; returns when the next one is, UINT64_MAX after the last. `due_ns` moves on. */
static void issue_due(struct run *run, double *due_ns, uint32_t *turn)
{
    uint64_t now_ns = clock_monotonic_ns();
    while (*due_ns <= (double)now_ns && *due_ns < (double)run->end_ns && run->issued < run->samples_max) {
        uint32_t index = run->is_poisson ? rng_below(&run->rng, connections_count) : (*turn)++ % connections_count;
        issue(run, &connections[index], (uint64_t)*due_ns, now_ns);
        *due_ns += run->is_poisson ? -log(random_unit(&run->rng)) * run->gap_ns : run->gap_ns;
    }
    for (uint32_t i = 0; i < dirty_count; i++) {
        connections[dirty[i]].is_dirty = false;
        flush_connection(&connections[dirty[i]]);
    }
    dirty_count = 0;
}

static void drive(struct run *run, uint64_t begin_ns)
{
    double due_ns = (double)begin_ns;
    uint32_t turn = 0;
    while (due_ns < (double)run->end_ns && run->issued < run->samples_max) {
        issue_due(run, &due_ns, &turn);
        handle_events(run, due_ns < (double)run->end_ns ? (uint64_t)due_ns : run->end_ns);
    }
    uint64_t give_up_ns = clock_monotonic_ns() + GRACE_NS;
    while (run->answered + run->errors < run->issued) {
        if (clock_monotonic_ns() > give_up_ns)
            fail("some replies did not come", ETIMEDOUT);
        handle_events(run, give_up_ns);
    }
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The values must be sorted. */
static uint64_t quantile(const uint64_t *values, uint32_t count, double share)
{
    if (count == 0)
        return 0;
    uint32_t index = (uint32_t)(share * count);
    return values[index < count ? index : count - 1];
}

static void report(struct run *run, double seconds)
{
    qsort(run->latency_ns, run->answered, sizeof(*run->latency_ns), compare);
    qsort(run->late_ns, run->issued, sizeof(*run->late_ns), compare);
    printf("issued=%" PRIu32 " answered=%" PRIu32 " errors=%" PRIu32 " refused=%" PRIu32 " seconds=%.6f", run->issued, run->answered, run->errors, run->refused, seconds);
    printf(" p50_ns=%" PRIu64 " p90_ns=%" PRIu64 " p99_ns=%" PRIu64 " p999_ns=%" PRIu64 " max_ns=%" PRIu64, quantile(run->latency_ns, run->answered, 0.5),
        quantile(run->latency_ns, run->answered, 0.9), quantile(run->latency_ns, run->answered, 0.99), quantile(run->latency_ns, run->answered, 0.999),
        quantile(run->latency_ns, run->answered, 1.0));
    printf(" late_p50_ns=%" PRIu64 " late_p99_ns=%" PRIu64 "\n", quantile(run->late_ns, run->issued, 0.5), quantile(run->late_ns, run->issued, 0.99));
    (void)fflush(stdout);
}

/* false where the line is not "RATE MILLISECONDS constant|poisson SEED". */
static bool run_line(char *line)
{
    uint32_t rate, milliseconds, seed;
    char *rest = NULL, *words[5] = {0};
    uint32_t count = 0;
    for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < 5; word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    if (count != 4 || !argument_number(words[0], '\0', RATE_MAX, &rate) || !argument_number(words[1], '\0', MILLISECONDS_MAX, &milliseconds) ||
        !argument_number(words[3], '\0', UINT32_MAX, &seed) || (strcmp(words[2], "constant") != 0 && strcmp(words[2], "poisson") != 0))
        return false;
    struct run run = {.is_poisson = words[2][0] == 'p', .gap_ns = 1e9 / rate, .rng = {.state = seed}};
    /* Poisson may give more than the mean: twice and a hundred is never reached. */
    double samples = 2.0 * rate * milliseconds / 1000 + 100;
    if (samples > SAMPLES_MAX)
        return false;
    run.samples_max = (uint32_t)samples;
    run.latency_ns = must(calloc(run.samples_max, sizeof(*run.latency_ns)));
    run.late_ns = must(calloc(run.samples_max, sizeof(*run.late_ns)));
    /* Touched before the clock runs: no page fault then counts as latency. */
    memset(run.latency_ns, 1, run.samples_max * sizeof(*run.latency_ns));
    memset(run.late_ns, 1, run.samples_max * sizeof(*run.late_ns));
    uint64_t begin_ns = clock_monotonic_ns();
    run.end_ns = begin_ns + milliseconds * UINT64_C(1000000);
    drive(&run, begin_ns);
    report(&run, (double)(clock_monotonic_ns() - begin_ns) / 1e9);
    free(run.latency_ns);
    free(run.late_ns);
    return true;
}

static void open_connections(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct run warm = {.samples_max = connections_count};
    uint64_t latency_ns[1], late_ns[1];
    warm.latency_ns = latency_ns;
    warm.late_ns = late_ns;
    for (uint32_t i = 0; i < connections_count; i++) {
        struct connection *connection = &connections[i];
        int one = 1;
        connection->due_ns = must(calloc(PIPELINE_MAX, sizeof(*connection->due_ns)));
        connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection->fd < 0 || connect(connection->fd, (struct sockaddr *)&address, sizeof(address)) != 0)
            fail("connect", errno);
        (void)setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        if (fcntl(connection->fd, F_SETFL, O_NONBLOCK) != 0)
            fail("fcntl", errno);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = i};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event) != 0)
            fail("epoll", errno);
        warm.issued = warm.answered = 0;
        issue(&warm, connection, clock_monotonic_ns(), clock_monotonic_ns());
        flush_connection(connection);
        connection->is_dirty = false;
        dirty_count = 0;
        for (uint64_t give_up_ns = clock_monotonic_ns() + GRACE_NS; warm.answered == 0;) {
            if (warm.errors > 0 || clock_monotonic_ns() > give_up_ns)
                fail("the first reply of a connection", EPROTO);
            handle_events(&warm, give_up_ns);
        }
    }
}

int main(int arguments_count, char **arguments)
{
    uint32_t port;
    if (arguments_count != 3 || !argument_number(arguments[1], '\0', UINT16_MAX, &port) || !argument_number(arguments[2], '\0', CONNECTIONS_MAX, &connections_count)) {
        fprintf(stderr, "usage: open_loop PORT CONNECTIONS (1 .. %d)\n", CONNECTIONS_MAX);
        return 2;
    }
    /* Sleeps end when they should; the default adds 50 us. */
    (void)prctl(PR_SET_TIMERSLACK, 1);
    for (uint32_t i = 0; i < REQUESTS_PER_SEND_MAX; i++)
        memcpy(requests + (size_t)i * REQUEST_BYTES, request, REQUEST_BYTES);
    connections = must(calloc(connections_count, sizeof(*connections)));
    dirty = must(calloc(connections_count, sizeof(*dirty)));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        fail("epoll", errno);
    open_connections((uint16_t)port);
    printf("ready\n");
    (void)fflush(stdout);
    char line[128];
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (!run_line(line)) {
            fprintf(stderr, "open_loop: not a run, or one of too many requests\n");
            return 2;
        }
    }
    return 0;
}
