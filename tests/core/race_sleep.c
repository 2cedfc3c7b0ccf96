/*
 * The sleep handshake where every message matters: two cores each have one token on its way to a third or back, so a wake-up that is lost
 * is not healed by later traffic and shows as a sleeper that nobody rings. Delays and spins are random and about as long as the windows
 * between "no news", "I sleep" and "look again".
 * Usage: race_sleep [seconds [seed]]. Exit status 0 is success.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/mailbox.h"
#include "core/rng.h"
#include "core/thread.h"

enum { CORES = 3, HUB = 0, LOST_TIMEOUT_MS = 5000, SPINS_MAX = 200, DELAY_MAX = 400 };

struct core_state {
    struct thread thread;
    struct mailbox *mailbox;
    struct rng rng;
    uint32_t id;
    int wake_fd;
    bool has_token;
    uint64_t passed, sleeps;
};

static struct core_state cores[CORES];
static uint64_t deadline_ns;
static _Atomic uint32_t finished_count;

static void ring_doorbell(void *context, uint32_t peer)
{
    (void)context;
    uint64_t one = 1;
    ZG_CHECK(write(cores[peer].wake_fd, &one, sizeof(one)) == sizeof(one));
}

/* Up to a few hundred nanoseconds. */
static void delay(struct core_state *core)
{
    for (volatile uint32_t i = rng_below(&core->rng, DELAY_MAX); i > 0; i--)
        ;
}

static void handle(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct core_state *core = context;
    ZG_CHECK(bytes == NULL);
    core->passed++;
    if (msg->kind == MSG_LEG) {
        delay(core);
        struct msg *reply = mailbox_reserve(core->mailbox, from, CLASS_REPLY);
        ZG_CHECK(reply != NULL);
    } else {
        ZG_CHECK(msg->kind == MSG_REPLY && from == HUB && !core->has_token);
        core->has_token = true;
    }
}

static void send_token(struct core_state *core)
{
    delay(core);
    ZG_CHECK(mailbox_credit_take(core->mailbox, HUB));
    struct msg *msg = mailbox_reserve(core->mailbox, HUB, CLASS_REQUEST);
    ZG_CHECK(msg != NULL);
    core->has_token = false;
}

static void sleep_until_rung(struct core_state *core)
{
    if (!mailbox_sleep_begin(core->mailbox))
        return;
    struct pollfd poll_fd = {.fd = core->wake_fd, .events = POLLIN};
    int ready = poll(&poll_fd, 1, LOST_TIMEOUT_MS);
    mailbox_sleep_end(core->mailbox);
    ZG_CHECK(ready == 1); /* not rung: the wake-up was lost */
    uint64_t count;
    ZG_CHECK(read(core->wake_fd, &count, sizeof(count)) == sizeof(count));
    core->sleeps++;
}

/* Publishes, spins for a random while and, where nothing came, sleeps. */
static void serve_once(struct core_state *core)
{
    uint32_t spins = rng_below(&core->rng, 2) == 0 ? 0 : rng_below(&core->rng, SPINS_MAX);
    (void)mailbox_publish(core->mailbox);
    uint32_t taken;
    while ((taken = mailbox_poll(core->mailbox, 100, handle, core)) == 0 && spins > 0)
        spins--;
    if (taken == 0)
        sleep_until_rung(core);
}

static void run_spoke(void *context)
{
    struct core_state *core = context;
    core->has_token = true;
    while (clock_monotonic_ns() < deadline_ns || !core->has_token) {
        if (core->has_token)
            send_token(core);
        serve_once(core);
    }
    atomic_fetch_add(&finished_count, 1);
    ring_doorbell(NULL, HUB);
}

static void run_hub(void *context)
{
    while (atomic_load(&finished_count) < CORES - 1)
        serve_once(context);
}

int main(int arguments_count, char **arguments)
{
    double seconds = arguments_count > 1 ? strtod(arguments[1], NULL) : 3;
    uint64_t seed = arguments_count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    struct mailbox_options options = {.cores_count = CORES, .lane_slots = 64, .returns = 2, .control = 2};
    struct mailbox_group *group = mailbox_group_create(&options);
    char error[128];
    deadline_ns = clock_monotonic_ns() + (uint64_t)(seconds * 1e9);
    for (uint32_t i = 0; i < CORES; i++) {
        cores[i].id = i;
        cores[i].rng.state = hash_u64(seed * CORES + i + 1);
        cores[i].wake_fd = eventfd(0, EFD_CLOEXEC);
        ZG_CHECK(cores[i].wake_fd >= 0);
        cores[i].mailbox = mailbox_of(group, i);
        mailbox_attach(cores[i].mailbox, NULL, ring_doorbell, NULL);
    }
    for (uint32_t i = 0; i < CORES; i++)
        ZG_CHECK(thread_start(&cores[i].thread, "race", -1, i == HUB ? run_hub : run_spoke, &cores[i], error, sizeof(error)) == STATUS_OK);
    for (uint32_t i = 0; i < CORES; i++)
        thread_join(&cores[i].thread);
    ZG_CHECK(cores[HUB].passed == cores[1].passed + cores[2].passed && cores[1].passed > 0 && cores[2].passed > 0);
    uint64_t sleeps = 0, doorbells = 0;
    for (uint32_t i = 0; i < CORES; i++) {
        sleeps += cores[i].sleeps;
        doorbells += mailbox_stats(cores[i].mailbox).doorbells;
        ZG_CHECK(close(cores[i].wake_fd) == 0);
    }
    ZG_CHECK(sleeps > 0 && sleeps <= doorbells + CORES); /* beside doorbells only the spokes' last ring wakes */
    mailbox_group_destroy(&group);
    printf("race_sleep: %llu tokens passed, %llu sleeps, %llu doorbells\n", (unsigned long long)cores[HUB].passed, (unsigned long long)sleeps, (unsigned long long)doorbells);
    return 0;
}
