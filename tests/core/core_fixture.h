/*
 * A core with its ring, run by the test itself: core_fixture_run() turns the loop until a condition holds. Hooks can be replaced before the first run.
 */
#pragma once

#include <criterion/criterion.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/core.h"

struct core_fixture {
    struct core core; /* first member: hooks find the fixture by it */
    struct config *config;
    struct core_shared shared;
    struct core_hooks hooks;
    bool (*until)(void *context);
    void *until_context;
    uint64_t deadline_ns;
    bool timed_out;
};

static inline void core_fixture_ignore_message(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    (void)context;
    (void)from;
    (void)msg;
    (void)bytes;
}

static inline void core_fixture_nothing(struct core *core) { (void)core; }

static inline bool core_fixture_not_busy(const struct core *core)
{
    (void)core;
    return false;
}

static inline bool core_fixture_is_finished(const struct core *core)
{
    struct core_fixture *fixture = core->context;
    if (fixture->until(fixture->until_context))
        return true;
    fixture->timed_out = clock_monotonic_ns() > fixture->deadline_ns;
    return fixture->timed_out;
}

/* Small limits; a test changes fixture->config before core_fixture_open. */
static inline void core_fixture_init(struct core_fixture *fixture, uint32_t data_cores)
{
    memset(fixture, 0, sizeof(*fixture));
    fixture->config = config_create_default();
    fixture->config->limits.arena_bytes_per_core = 64 << 20;
    fixture->config->limits.rx_buffers_per_core = 64;
    fixture->config->limits.clients_per_core = 64;
    fixture->config->limits.links_per_core = 32;
    fixture->config->limits.requests_per_core = 256;
    fixture->config->ring.entries = 64;
    fixture->config->cores.lane_slots = 64;
    fixture->config->cores.idle = IDLE_SLEEP;
    fixture->shared.data_cores = data_cores;
    fixture->shared.cores_count = data_cores + 1;
    struct mailbox_options options = {.cores_count = data_cores + 1, .lane_slots = 64, .returns = 8, .control = 4};
    fixture->shared.mailboxes = mailbox_group_create(&options);
    fixture->hooks = (struct core_hooks){
        .message = core_fixture_ignore_message,
        .flush = core_fixture_nothing,
        .release = core_fixture_nothing,
        .is_busy = core_fixture_not_busy,
        .is_finished = core_fixture_is_finished,
    };
}

static inline void core_fixture_open(struct core_fixture *fixture)
{
    char error[256] = "";
    fixture->core.hooks = &fixture->hooks;
    fixture->core.context = fixture;
    fixture->core.log = log_ring_create(0, 64 << 10);
    enum status status = core_open(&fixture->core, 0, fixture->config, &fixture->shared, error, sizeof(error));
    cr_assert_eq(status, STATUS_OK, "%s", error);
}

/* Turns the loop until `until` holds; false where it did not within ten seconds. */
static inline bool core_fixture_run(struct core_fixture *fixture, bool (*until)(void *context), void *context)
{
    fixture->until = until;
    fixture->until_context = context;
    fixture->timed_out = false;
    fixture->deadline_ns = clock_monotonic_ns() + UINT64_C(10000000000);
    fixture->core.is_stopping = true; /* the loop ends as soon as is_finished says so */
    core_run(&fixture->core);
    return !fixture->timed_out;
}

static inline void core_fixture_close(struct core_fixture *fixture)
{
    core_close(&fixture->core);
    cr_expect_eq(arena_bytes_held(fixture->core.arena), 0, "every block is back");
    mailbox_group_destroy(&fixture->shared.mailboxes);
    arena_destroy(&fixture->core.arena);
    alloc_free(fixture->core.metrics);
    log_ring_destroy(&fixture->core.log);
    config_destroy(&fixture->config);
}
