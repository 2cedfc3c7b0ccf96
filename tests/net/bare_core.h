/*
 * A core without a ring, for what only needs memory and a mailbox. Core 0 is `core`; core 1 exists as a mailbox with an arena, so that bytes can be lent.
 */
#pragma once

#include <criterion/criterion.h>
#include <string.h>

#include "core/alloc.h"
#include "core/core.h"

struct bare_core {
    struct core core;
    struct config *config;
    struct mailbox_group *group;
    struct mailbox *peer;
    struct arena *peer_arena;
    uint64_t lent_offset; /* of what lend() brought last */
    const uint8_t *lent_bytes;
};

static inline void bare_core_open(struct bare_core *bare, uint64_t arena_bytes)
{
    struct mailbox_options options = {.cores_count = 2, .lane_slots = 64, .returns = 8, .control = 4};
    memset(bare, 0, sizeof(*bare));
    bare->config = config_create_default();
    bare->config->limits.inline_bytes = 1000;
    bare->core.config = bare->config;
    bare->core.arena = arena_create(0, arena_bytes);
    bare->peer_arena = arena_create(1, 64 << 20);
    bare->group = mailbox_group_create(&options);
    bare->core.mailbox = mailbox_of(bare->group, 0);
    bare->peer = mailbox_of(bare->group, 1);
    mailbox_attach(bare->core.mailbox, bare->core.arena, NULL, NULL);
    mailbox_attach(bare->peer, bare->peer_arena, NULL, NULL);
}

static inline void bare_core_ignore(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    (void)context;
    (void)from;
    (void)msg;
    (void)bytes;
}

static inline void bare_core_take(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct bare_core *bare = context;
    cr_assert_eq(from, 1);
    bare->lent_offset = msg->offset;
    bare->lent_bytes = bytes;
}

/* The peer lends `bytes` until they are returned; what core 0 was told is in the bare core. */
static inline void bare_core_lend(struct bare_core *bare, const void *bytes, uint32_t length)
{
    struct block *block = arena_get(bare->peer_arena, length);
    cr_assert_not_null(block);
    memcpy(block->data, bytes, length);
    cr_assert(mailbox_credit_take(bare->peer, 0));
    struct msg *msg = mailbox_reserve(bare->peer, 0, CLASS_REQUEST);
    mailbox_lend(bare->peer, 0, msg, block, block->data, length, true);
    arena_put(bare->peer_arena, &block);
    (void)mailbox_publish(bare->peer);
    cr_assert_eq(mailbox_poll(bare->core.mailbox, 10, bare_core_take, bare), 1);
    struct msg *reply = mailbox_reserve(bare->core.mailbox, 1, CLASS_REPLY); /* gives the credit back */
    cr_assert_not_null(reply);
    (void)mailbox_publish(bare->core.mailbox);
    (void)mailbox_poll(bare->peer, 10, bare_core_ignore, NULL);
}

/* Loans that the peer still misses. */
static inline uint64_t bare_core_loans(struct bare_core *bare)
{
    (void)mailbox_publish(bare->core.mailbox);
    (void)mailbox_poll(bare->peer, 100, bare_core_ignore, NULL);
    return mailbox_stats(bare->peer).loans_out;
}

/* Every block and every loan must be back. */
static inline void bare_core_close(struct bare_core *bare)
{
    cr_expect_eq(bare_core_loans(bare), 0);
    cr_expect_eq(arena_bytes_held(bare->core.arena), 0);
    cr_expect_eq(arena_bytes_held(bare->peer_arena), 0);
    mailbox_group_destroy(&bare->group);
    arena_destroy(&bare->core.arena);
    arena_destroy(&bare->peer_arena);
    config_destroy(&bare->config);
}
