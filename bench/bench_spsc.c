/*
 * What a hop between two cores costs: nanoseconds a message through a bare lane and through mailboxes, one at a time and in batches, and
 * the round trip while both sides spin. Two threads, pinned to the first two usable CPUs; with one CPU the figures would say nothing, and
 * the program ends. Runs are many and short, so that on a busy machine some are not interrupted: then read the best, else the median.
 * Usage: bench_spsc [thousands of messages a run]
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mailbox.h"
#include "core/spsc.h"
#include "core/thread.h"

enum { SLOTS = 256, LENT_BYTES = 64, RUNS = 201, ROUND_TRIPS = 2000, SPINS_MAX = 4096 };
#define ROW_NS_MAX UINT64_C(3000000000) /* on a busy machine a row has fewer runs */

static uint16_t cpus[2];
static uint64_t messages_count = 19200;

/* One run: a thread serves, another drives and is measured once the first is there. */
struct row {
    uint32_t batch;
    struct spsc there;
    struct spsc back;
    struct mailbox_group *group;
    struct arena *arenas[2];
    struct block *block;
    uint64_t replies;
    bool with_bytes;
    uint64_t sum; /* of the bytes read, so that they are read */
    _Atomic bool is_serving;
};

/* Whoever waits for a peer that has no CPU gives its own away from time to time: long after anything that is measured. */
static void relax(void)
{
    static _Thread_local uint32_t spins;
    __builtin_ia32_pause();
    if (++spins % SPINS_MAX == 0)
        (void)sched_yield();
}

static void serve_lane(void *context)
{
    struct row *row = context;
    for (uint64_t taken = 0; taken < messages_count;) {
        const uint64_t *slot;
        uint64_t before = taken;
        while ((slot = spsc_take(&row->there)) != NULL) {
            row->sum += *slot;
            taken++;
        }
        if (taken != before)
            spsc_release(&row->there);
        else
            relax();
    }
}

static void drive_lane(struct row *row)
{
    for (uint64_t sent = 0; sent < messages_count; sent += row->batch) {
        for (uint32_t i = 0; i < row->batch; i++) {
            uint64_t *slot;
            while ((slot = spsc_reserve(&row->there)) == NULL) {
                (void)spsc_publish(&row->there);
                relax();
            }
            memset(slot, 0, SPSC_SLOT_BYTES);
            *slot = sent + i;
        }
        (void)spsc_publish(&row->there);
    }
}

static void serve_lane_echo(void *context)
{
    struct row *row = context;
    for (uint64_t taken = 0; taken < ROUND_TRIPS; taken++) {
        const uint64_t *slot;
        while ((slot = spsc_take(&row->there)) == NULL)
            relax();
        uint64_t *out = spsc_reserve(&row->back);
        *out = *slot;
        spsc_release(&row->there);
        (void)spsc_publish(&row->back);
    }
}

static void drive_lane_echo(struct row *row)
{
    for (uint64_t i = 0; i < ROUND_TRIPS; i++) {
        uint64_t *slot = spsc_reserve(&row->there);
        *slot = i;
        (void)spsc_publish(&row->there);
        const uint64_t *in;
        while ((in = spsc_take(&row->back)) == NULL)
            relax();
        ZG_CHECK(*in == i);
        spsc_release(&row->back);
    }
}

/* A leg is answered at once; its bytes are read, as the owner core copies a command into its batch. */
static void on_message(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct row *row = context;
    if (bytes != NULL) {
        uint64_t word;
        memcpy(&word, bytes, sizeof(word));
        row->sum += word;
    }
    if (msg->kind == MSG_REPLY) {
        row->replies++;
        return;
    }
    struct msg *reply = mailbox_reserve(mailbox_of(row->group, 1), from, CLASS_REPLY);
    reply->origin = msg->origin;
}

static void serve_mailbox(void *context)
{
    struct row *shared = context;
    struct row row = {.group = shared->group}; /* counters of its own */
    struct mailbox *mailbox = mailbox_of(row.group, 1);
    for (uint64_t taken = 0; taken < messages_count;) {
        uint32_t count = mailbox_poll(mailbox, SLOTS, on_message, &row);
        if (count == 0)
            relax();
        taken += count;
        (void)mailbox_publish(mailbox);
    }
}

static void drive_mailbox(struct row *row)
{
    struct mailbox *mailbox = mailbox_of(row->group, 0);
    uint64_t sent = 0;
    while (row->replies < messages_count) {
        for (uint32_t i = 0; i < row->batch && sent < messages_count && mailbox_credit_take(mailbox, 1); i++) {
            struct msg *msg = mailbox_reserve(mailbox, 1, CLASS_REQUEST);
            msg->origin = sent++;
            if (row->with_bytes)
                mailbox_lend(mailbox, 1, msg, row->block, row->block->data, LENT_BYTES, false);
        }
        (void)mailbox_publish(mailbox);
        (void)mailbox_poll(mailbox, SLOTS, on_message, row);
        (void)mailbox_reclaim(mailbox);
        /* A batch of one is the round trip: the next leg waits for the reply. */
        while (row->batch == 1 && row->replies < sent)
            (void)mailbox_poll(mailbox, SLOTS, on_message, row);
    }
}

static void set_up(struct row *row)
{
    struct mailbox_options options = {.cores_count = 2, .lane_slots = SLOTS, .returns = SLOTS / 8, .control = SLOTS / 16};
    spsc_init(&row->there, SLOTS);
    spsc_init(&row->back, SLOTS);
    row->group = mailbox_group_create(&options);
    for (uint32_t i = 0; i < 2; i++) {
        row->arenas[i] = arena_create(i, 1 << 20);
        mailbox_attach(mailbox_of(row->group, i), row->arenas[i], NULL, NULL);
    }
    row->block = arena_get(row->arenas[0], LENT_BYTES);
    ZG_CHECK(row->block != NULL);
    memset(row->block->data, 1, LENT_BYTES);
}

static void tear_down(struct row *row)
{
    (void)mailbox_reclaim(mailbox_of(row->group, 0));
    arena_put(row->arenas[0], &row->block);
    mailbox_group_destroy(&row->group);
    arena_destroy(&row->arenas[0]);
    arena_destroy(&row->arenas[1]);
    spsc_fini(&row->there);
    spsc_fini(&row->back);
}

struct measurement {
    uint32_t batch;
    bool with_bytes;
    thread_fn serve;
    void (*drive)(struct row *row);
    struct row *row;
    uint64_t elapsed_ns;
};

static void serve_thread(void *context)
{
    struct measurement *measurement = context;
    atomic_store(&measurement->row->is_serving, true);
    measurement->serve(measurement->row);
}

static void drive_thread(void *context)
{
    struct measurement *measurement = context;
    while (!atomic_load(&measurement->row->is_serving))
        relax();
    uint64_t start_ns = clock_monotonic_ns();
    measurement->drive(measurement->row);
    measurement->elapsed_ns = clock_monotonic_ns() - start_ns;
}

static uint64_t run_once(struct measurement *measurement)
{
    struct row row = {.batch = measurement->batch, .with_bytes = measurement->with_bytes};
    struct thread driver, server;
    char error[128];
    set_up(&row);
    measurement->row = &row;
    if (thread_start(&server, "server", cpus[1], serve_thread, measurement, error, sizeof(error)) != STATUS_OK ||
        thread_start(&driver, "driver", cpus[0], drive_thread, measurement, error, sizeof(error)) != STATUS_OK) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    thread_join(&driver);
    thread_join(&server);
    tear_down(&row);
    return measurement->elapsed_ns;
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void print_row(const char *name, struct measurement measurement, uint64_t count)
{
    uint64_t elapsed_ns[RUNS], begin_ns = clock_monotonic_ns();
    uint32_t runs = 0;
    while (runs < RUNS && (runs == 0 || clock_monotonic_ns() - begin_ns < ROW_NS_MAX))
        elapsed_ns[runs++] = run_once(&measurement);
    qsort(elapsed_ns, runs, sizeof(elapsed_ns[0]), compare);
    uint64_t median_ns = elapsed_ns[runs / 2];
    double divisor = (double)count;
    printf("%-46s %8.1f %8.1f %8.1f %5u\n", name, (double)elapsed_ns[0] / divisor, (double)median_ns / divisor, (double)elapsed_ns[runs - 1] / divisor, runs);
}

int main(int arguments_count, char **arguments)
{
    if (arguments_count > 1)
        messages_count = strtoull(arguments[1], NULL, 10) * 1000;
    messages_count -= messages_count % 64;
    if (messages_count == 0) {
        fprintf(stderr, "usage: bench_spsc [thousands of messages a run]\n");
        return 2;
    }
    if (thread_cpus(cpus, 2) < 2) {
        fprintf(stderr, "bench_spsc: needs two CPUs\n");
        return 1;
    }
    printf("CPUs %u and %u, %d slots\n%-46s %8s %8s %8s %5s\n", cpus[0], cpus[1], SLOTS, "nanoseconds", "best", "median", "worst", "runs");
    print_row("lane, a message, batch 1", (struct measurement){.batch = 1, .serve = serve_lane, .drive = drive_lane}, messages_count);
    print_row("lane, a message, batch 16", (struct measurement){.batch = 16, .serve = serve_lane, .drive = drive_lane}, messages_count);
    print_row("lane, a message, batch 64", (struct measurement){.batch = 64, .serve = serve_lane, .drive = drive_lane}, messages_count);
    print_row("lane, round trip", (struct measurement){.batch = 1, .serve = serve_lane_echo, .drive = drive_lane_echo}, ROUND_TRIPS);
    uint64_t all = messages_count;
    messages_count = ROUND_TRIPS;
    print_row("mailbox, leg and reply, one at a time", (struct measurement){.batch = 1, .serve = serve_mailbox, .drive = drive_mailbox}, messages_count);
    messages_count = all;
    /* Legs and replies both count as messages. */
    print_row("mailbox, a message, legs in batches of 16", (struct measurement){.batch = 16, .serve = serve_mailbox, .drive = drive_mailbox}, 2 * messages_count);
    print_row("mailbox, a message, legs in batches of 64", (struct measurement){.batch = 64, .serve = serve_mailbox, .drive = drive_mailbox}, 2 * messages_count);
    print_row("mailbox, a message, batches of 64, 64 B lent",
        (struct measurement){.batch = 64, .with_bytes = true, .serve = serve_mailbox, .drive = drive_mailbox}, 2 * messages_count);
    return 0;
}
