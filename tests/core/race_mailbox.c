/*
 * Four cores send each other legs and replies with lent bytes for a few seconds, keep some of the bytes until they return them, and sleep
 * in the kernel whenever they have nothing to do. Checked: every byte against its nonce in the handler and again before it is returned;
 * every leg is answered once; no wake-up is lost; at the end every loan is back, every credit free, every arena empty. ThreadSanitizer
 * looks at the hand-over of messages and of lent bytes in both directions.
 * Usage: race_mailbox [seconds [seed]]. Exit status 0 is success.
 */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/mailbox.h"
#include "core/mailbox_state.h"
#include "core/rng.h"
#include "core/thread.h"

enum {
    CORES = 4,
    HELD_MAX = 4096,
    LENT_BYTES_MAX = 3000,
    LOST_TIMEOUT_MS = 20000, /* a sleeper that nobody wakes for so long while it has messages */
    DRAIN_TIMEOUT_MS = 1     /* where only the passing of time can help: see sleep_timeout_ms */
};

/* What a leg or a reply says about its bytes. */
struct note {
    uint64_t nonce;
    uint64_t check;
};

/* Bytes kept until they are returned. */
struct held {
    const uint8_t *bytes;
    uint64_t offset;
    uint64_t check;
    uint32_t from;
    uint32_t length;
};

struct core_state {
    struct thread thread;
    struct mailbox *mailbox;
    struct arena *arena;
    struct rng rng;
    uint32_t id;
    int wake_fd;
    uint32_t outstanding;
    uint32_t held_count;
    bool is_finished;
    uint64_t nonce_next;
    uint64_t nonce_sum; /* of legs sent minus replies taken: 0 when all are answered */
    uint64_t legs_sent, legs_taken, replies_taken, control_sent, control_taken, control_full, sleeps, kept;
    struct held held[HELD_MAX];
};

static struct core_state cores[CORES];
static struct mailbox_group *group;
static uint64_t deadline_ns;
static _Atomic uint32_t finished_count;

static void ring_doorbell(void *context, uint32_t peer)
{
    (void)context;
    uint64_t one = 1;
    ZG_CHECK(write(cores[peer].wake_fd, &one, sizeof(one)) == sizeof(one));
}

static void fill(uint8_t *data, uint32_t length, uint64_t nonce)
{
    for (uint32_t i = 0; i < length; i++)
        data[i] = (uint8_t)(hash_u64(nonce + i / 8) >> (i % 8 * 8));
}

/* Fills a new block, lends it with the message and lets go of it. */
static void send_bytes(struct core_state *core, uint32_t peer, struct msg *msg, uint64_t nonce)
{
    uint32_t length = 1 + rng_below(&core->rng, rng_below(&core->rng, 4) == 0 ? LENT_BYTES_MAX : 100);
    struct block *block = arena_get(core->arena, length);
    ZG_CHECK(block != NULL);
    fill(block->data, length, nonce);
    struct note note = {.nonce = nonce, .check = hash_bytes(block->data, length)};
    memcpy(msg->body, &note, sizeof(note));
    mailbox_lend(core->mailbox, peer, msg, block, block->data, length, rng_below(&core->rng, 4) == 0);
    arena_put(core->arena, &block);
}

static void return_held(struct core_state *core, uint32_t index)
{
    struct held *held = &core->held[index];
    ZG_CHECK(hash_bytes(held->bytes, held->length) == held->check);
    mailbox_return(core->mailbox, held->from, held->offset);
    *held = core->held[--core->held_count];
}

static void take_bytes(struct core_state *core, uint32_t from, const struct msg *msg, const uint8_t *bytes, const struct note *note)
{
    ZG_CHECK(bytes != NULL);
    ZG_CHECK(hash_bytes(bytes, msg->length) == note->check);
    if ((msg->flags & MSG_LENT) == 0)
        return;
    if (core->held_count == HELD_MAX)
        return_held(core, rng_below(&core->rng, HELD_MAX));
    core->held[core->held_count++] = (struct held){.bytes = bytes, .offset = msg->offset, .check = note->check, .from = from, .length = msg->length};
    core->kept++;
}

static void handle(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct core_state *core = context;
    struct note note;
    memcpy(&note, msg->body, sizeof(note));
    if (msg->kind == MSG_LEG) {
        take_bytes(core, from, msg, bytes, &note);
        core->legs_taken++;
        struct msg *reply = mailbox_reserve(core->mailbox, from, CLASS_REPLY);
        reply->origin = msg->origin;
        send_bytes(core, from, reply, note.nonce ^ 1);
    } else if (msg->kind == MSG_REPLY) {
        take_bytes(core, from, msg, bytes, &note);
        ZG_CHECK(core->outstanding > 0);
        ZG_CHECK((note.nonce ^ 1) == msg->origin);
        core->outstanding--;
        core->nonce_sum -= msg->origin;
        core->replies_taken++;
    } else {
        ZG_CHECK(msg->kind == MSG_ACK && note.nonce == hash_u64(note.check));
        core->control_taken++;
    }
}

static bool send_leg(struct core_state *core, uint32_t peer)
{
    if (!mailbox_credit_take(core->mailbox, peer))
        return false;
    struct msg *msg = mailbox_reserve(core->mailbox, peer, CLASS_REQUEST);
    uint64_t nonce = core->nonce_next;
    core->nonce_next += 2;
    msg->origin = nonce;
    send_bytes(core, peer, msg, nonce);
    core->outstanding++;
    core->nonce_sum += nonce;
    core->legs_sent++;
    return true;
}

static void send_control(struct core_state *core, uint32_t peer)
{
    struct msg *msg = mailbox_reserve(core->mailbox, peer, CLASS_CONTROL);
    if (msg == NULL) {
        core->control_full++;
        return;
    }
    struct note note = {.check = core->nonce_next};
    note.nonce = hash_u64(note.check);
    msg->kind = MSG_ACK;
    memcpy(msg->body, &note, sizeof(note));
    core->control_sent++;
}

/* Returns how many things it did. */
static uint32_t send_some(struct core_state *core)
{
    uint32_t count = 0;
    for (uint32_t n = rng_below(&core->rng, 20); n > 0; n--) {
        uint32_t peer = (core->id + 1 + rng_below(&core->rng, CORES - 1)) % CORES;
        if (rng_below(&core->rng, 10) == 0)
            send_control(core, peer);
        else
            count += send_leg(core, peer) ? 1 : 0;
    }
    return count;
}

/* After the deadline everything is returned; before it a few at random, or none, so that some are kept long. */
static uint32_t return_some(struct core_state *core, bool all)
{
    uint32_t count = all ? core->held_count : rng_below(&core->rng, 12);
    uint32_t returned = 0;
    for (; returned < count && core->held_count > 0; returned++)
        return_held(core, rng_below(&core->rng, core->held_count));
    return returned;
}

/* A core that waits for its own bytes to be consumed, or for room for returns, is told by nobody: it looks again after a while, as the loop
 * does. All other sleeps are long, so that a lost wake-up shows. */
static int sleep_timeout_ms(const struct core_state *core)
{
    bool waits_for_index = core->outstanding == 0 && mailbox_stats(core->mailbox).loans_out > 0;
    return waits_for_index || !core_set_is_empty(&core->mailbox->delaying) ? DRAIN_TIMEOUT_MS : LOST_TIMEOUT_MS;
}

static void sleep_until_rung(struct core_state *core)
{
    if (!mailbox_sleep_begin(core->mailbox))
        return;
    int timeout_ms = sleep_timeout_ms(core);
    struct pollfd poll_fd = {.fd = core->wake_fd, .events = POLLIN};
    int ready = poll(&poll_fd, 1, timeout_ms);
    mailbox_sleep_end(core->mailbox);
    ZG_CHECK(ready >= 0);
    core->sleeps++;
    if (ready == 1) {
        uint64_t count;
        ZG_CHECK(read(core->wake_fd, &count, sizeof(count)) == sizeof(count));
    } else {
        ZG_CHECK(timeout_ms != LOST_TIMEOUT_MS);
    }
}

/* Nothing of this core is under way any more; it still serves the others until all have said so. */
static void finish(struct core_state *core)
{
    core->is_finished = true;
    if (atomic_fetch_add(&finished_count, 1) + 1 < CORES)
        return;
    for (uint32_t i = 0; i < CORES; i++)
        ring_doorbell(NULL, i);
}

static void run_core(void *context)
{
    struct core_state *core = context;
    while (atomic_load(&finished_count) < CORES) {
        bool is_over = clock_monotonic_ns() >= deadline_ns;
        uint32_t done = mailbox_poll(core->mailbox, 1 + rng_below(&core->rng, 300), handle, core);
        /* Half of the time only others' work, so that lanes run empty and cores fall asleep. */
        if (!is_over && rng_below(&core->rng, 2) == 0)
            done += send_some(core);
        done += return_some(core, is_over || done == 0);
        (void)mailbox_reclaim(core->mailbox);
        done += mailbox_publish(core->mailbox);
        if (is_over && !core->is_finished && core->outstanding == 0 && core->held_count == 0 && mailbox_stats(core->mailbox).loans_out == 0)
            finish(core);
        /* Before the deadline a core with nothing outstanding starts the next round itself; nobody would wake it. */
        if (done == 0 && (is_over || core->outstanding > 0))
            sleep_until_rung(core);
    }
}

static void start(uint64_t seed)
{
    /* Few slots, so that credits, reserves and returns are used up often. */
    struct mailbox_options options = {.cores_count = CORES, .lane_slots = 64, .returns = 2, .control = 2};
    char error[128];
    group = mailbox_group_create(&options);
    for (uint32_t i = 0; i < CORES; i++) {
        struct core_state *core = &cores[i];
        core->id = i;
        core->rng.state = hash_u64(seed * CORES + i + 1);
        core->nonce_next = (uint64_t)(i + 1) << 40;
        core->wake_fd = eventfd(0, EFD_CLOEXEC);
        ZG_CHECK(core->wake_fd >= 0);
        core->arena = arena_create(i, UINT64_C(256) << 20);
        core->mailbox = mailbox_of(group, i);
        mailbox_attach(core->mailbox, core->arena, ring_doorbell, NULL);
    }
    for (uint32_t i = 0; i < CORES; i++)
        ZG_CHECK(thread_start(&cores[i].thread, "race", -1, run_core, &cores[i], error, sizeof(error)) == STATUS_OK);
}

/* Control messages may still lie in a lane when the last core finishes. */
static void take_rest(void)
{
    for (uint32_t i = 0; i < CORES; i++)
        (void)mailbox_publish(cores[i].mailbox);
    for (uint32_t i = 0; i < CORES; i++)
        (void)mailbox_poll(cores[i].mailbox, UINT32_MAX, handle, &cores[i]);
}

int main(int arguments_count, char **arguments)
{
    double seconds = arguments_count > 1 ? strtod(arguments[1], NULL) : 3;
    uint64_t seed = arguments_count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    struct core_state sum = {0};
    struct mailbox_stats stats_sum = {0};
    deadline_ns = clock_monotonic_ns() + (uint64_t)(seconds * 1e9);
    start(seed);
    for (uint32_t i = 0; i < CORES; i++)
        thread_join(&cores[i].thread);
    take_rest();
    for (uint32_t i = 0; i < CORES; i++) {
        struct core_state *core = &cores[i];
        struct mailbox_stats stats = mailbox_stats(core->mailbox);
        ZG_CHECK(core->outstanding == 0 && core->nonce_sum == 0 && core->legs_sent == core->replies_taken);
        ZG_CHECK(stats.loans_out == 0 && stats.returns_unknown == 0 && stats.stale_epoch == 0);
        ZG_CHECK(arena_bytes_held(core->arena) == 0);
        for (uint32_t peer = 0; peer < CORES; peer++)
            ZG_CHECK(peer == i || mailbox_credits_free(core->mailbox, peer) == (64 - 4) / 2);
        sum.legs_sent += core->legs_sent, sum.legs_taken += core->legs_taken, sum.sleeps += core->sleeps, sum.kept += core->kept;
        sum.control_sent += core->control_sent, sum.control_taken += core->control_taken, sum.control_full += core->control_full;
        stats_sum.published += stats.published, stats_sum.taken += stats.taken, stats_sum.doorbells += stats.doorbells;
        stats_sum.returns_delayed += stats.returns_delayed;
    }
    ZG_CHECK(sum.legs_sent == sum.legs_taken && sum.control_sent == sum.control_taken && stats_sum.published == stats_sum.taken);
    ZG_CHECK(sum.legs_sent > 0 && sum.sleeps > 0 && sum.kept > 0);
    mailbox_group_destroy(&group);
    for (uint32_t i = 0; i < CORES; i++) {
        arena_destroy(&cores[i].arena);
        ZG_CHECK(close(cores[i].wake_fd) == 0);
    }
    printf("race_mailbox: %llu legs, %llu loans kept, %llu control (%llu refused), %llu messages, %llu returns delayed, %llu sleeps, %llu doorbells\n",
        (unsigned long long)sum.legs_sent, (unsigned long long)sum.kept, (unsigned long long)sum.control_sent, (unsigned long long)sum.control_full,
        (unsigned long long)stats_sum.published, (unsigned long long)stats_sum.returns_delayed, (unsigned long long)sum.sleeps,
        (unsigned long long)stats_sum.doorbells);
    return 0;
}
