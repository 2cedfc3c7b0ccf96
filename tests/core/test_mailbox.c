/*
 * core/mailbox by one thread that plays all cores: what each class of message may rely on, loans, the sleep handshake, a peer that is
 * replaced. Threads are in race_mailbox.c.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "core/alloc.h"
#include "core/arena.h"
#include "core/mailbox.h"
#include "core/mailbox_state.h"
#include "core/rng.h"

TestSuite(mailbox);

enum { MANY = 65, CORES = 4, SLOTS = 64, RETURNS = 8, CONTROL = 6, CREDITS = (SLOTS - RETURNS - CONTROL) / 2, ALL = 1000000 };

static struct mailbox_group *group;
static struct arena *arenas[CORES];
static struct mailbox *box[CORES];
static uint32_t rung[CORES];

static void ring(void *context, uint32_t peer)
{
    cr_assert_eq(context, rung);
    rung[peer]++;
}

static void set_up(void)
{
    struct mailbox_options options = {.cores_count = CORES, .lane_slots = SLOTS, .returns = RETURNS, .control = CONTROL};
    group = mailbox_group_create(&options);
    for (uint32_t i = 0; i < CORES; i++) {
        arenas[i] = arena_create(i, 64 << 20);
        box[i] = mailbox_of(group, i);
        mailbox_attach(box[i], arenas[i], ring, rung);
    }
}

/* The arenas check that every block came back. */
static void tear_down(void)
{
    mailbox_group_destroy(&group);
    cr_assert_null(group);
    for (uint32_t i = 0; i < CORES; i++) {
        cr_assert_eq(arena_bytes_held(arenas[i]), 0);
        arena_destroy(&arenas[i]);
    }
}

/* What a handler saw; replies and returns are sent from outside of it, so that each test decides when. */
struct seen {
    uint32_t count;
    uint32_t kinds[MSG_KIND_COUNT];
    uint32_t from[MANY];
    struct msg last;
    const uint8_t *bytes;
    char text[64];
};

static void look(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct seen *seen = context;
    seen->count++;
    seen->kinds[msg->kind]++;
    seen->from[from]++;
    seen->last = *msg;
    seen->bytes = bytes;
    if (bytes != NULL && msg->length < sizeof(seen->text)) {
        memcpy(seen->text, bytes, msg->length);
        seen->text[msg->length] = '\0';
    }
}

static struct seen poll_all(uint32_t core)
{
    struct seen seen = {0};
    (void)mailbox_poll(box[core], ALL, look, &seen);
    return seen;
}

static struct msg *request(uint32_t from, uint32_t to)
{
    cr_assert(mailbox_credit_take(box[from], to));
    struct msg *msg = mailbox_reserve(box[from], to, CLASS_REQUEST);
    cr_assert_not_null(msg);
    return msg;
}

static struct msg *reply(uint32_t from, uint32_t to)
{
    struct msg *msg = mailbox_reserve(box[from], to, CLASS_REPLY);
    cr_assert_not_null(msg);
    return msg;
}

static struct msg *control(uint32_t from, uint32_t to)
{
    struct msg *msg = mailbox_reserve(box[from], to, CLASS_CONTROL);
    if (msg != NULL)
        msg->kind = MSG_REFRESH;
    return msg;
}

static struct block *text_block(uint32_t core, const char *text)
{
    struct block *block = arena_get(arenas[core], 200);
    cr_assert_not_null(block);
    block->length = (uint32_t)strlen(text);
    memcpy(block->data, text, strlen(text));
    return block;
}

/* Lends the text with the message and drops the test's own reference, so that the loan is the only one. */
static void lend_text(uint32_t from, uint32_t to, struct msg *msg, const char *text, bool until_returned)
{
    struct block *block = text_block(from, text);
    mailbox_lend(box[from], to, msg, block, block->data, block->length, until_returned);
    arena_put(arenas[from], &block);
}

Test(mailbox, message_arrives_after_publish_with_its_fields, .init = set_up, .fini = tear_down)
{
    struct msg *msg = request(0, 1);
    struct msg zero = {.kind = MSG_LEG};
    cr_assert_eq(memcmp(msg, &zero, sizeof(zero)), 0, "zeroed, epoch 0");
    msg->origin = 77;
    msg->body[39] = 9;
    cr_assert_eq(poll_all(1).count, 0);
    cr_assert_eq(mailbox_publish(box[0]), 1);
    cr_assert_eq(mailbox_publish(box[0]), 0);
    struct seen seen = poll_all(1);
    cr_assert_eq(seen.count, 1);
    cr_assert_eq(seen.from[0], 1);
    cr_assert_eq(seen.last.kind, MSG_LEG);
    cr_assert_eq(seen.last.origin, 77);
    cr_assert_eq(seen.last.body[39], 9);
    cr_assert_null(seen.bytes);
    cr_assert_eq(mailbox_stats(box[0]).published, 1);
    cr_assert_eq(mailbox_stats(box[1]).taken, 1);
}

Test(mailbox, credits_are_bounded_and_come_back_with_replies, .init = set_up, .fini = tear_down)
{
    cr_assert_eq(mailbox_credits_free(box[0], 1), CREDITS);
    for (uint32_t i = 0; i < CREDITS; i++)
        (void)request(0, 1);
    cr_assert_eq(mailbox_credits_free(box[0], 1), 0);
    cr_assert_not(mailbox_credit_take(box[0], 1));
    cr_assert(mailbox_credit_take(box[0], 2), "lanes do not share credits");
    (void)mailbox_publish(box[0]);
    cr_assert_eq(poll_all(1).count, CREDITS);
    cr_assert_not(mailbox_credit_take(box[0], 1), "taken is not replied to");
    (void)reply(1, 0);
    (void)reply(1, 0);
    (void)mailbox_publish(box[1]);
    cr_assert_not(mailbox_credit_take(box[0], 1));
    cr_assert_eq(poll_all(0).kinds[MSG_REPLY], 2);
    cr_assert_eq(mailbox_credits_free(box[0], 1), 2);
}

Test(mailbox, reply_fits_whatever_else_fills_the_lane, .init = set_up, .fini = tear_down)
{
    /* Both directions at once, everything that a core may send without the peer taking anything. */
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t core = 0; core < 2; core++) {
            uint32_t peer = 1 - core;
            while (mailbox_credit_take(box[core], peer))
                cr_assert_not_null(mailbox_reserve(box[core], peer, CLASS_REQUEST));
            while (control(core, peer) != NULL)
                ;
            for (uint32_t i = 0; i < 200; i++)
                mailbox_return(box[core], peer, 1);
            (void)mailbox_publish(box[core]);
        }
        /* Core 0 takes all requests and answers all while core 1 has taken nothing. */
        struct seen seen = poll_all(0);
        cr_assert_eq(seen.kinds[MSG_LEG], CREDITS);
        cr_assert_eq(seen.kinds[MSG_REFRESH], CONTROL);
        for (uint32_t i = 0; i < CREDITS; i++)
            (void)reply(0, 1);
        (void)mailbox_publish(box[0]);
        seen = poll_all(1);
        cr_assert_eq(seen.kinds[MSG_LEG], CREDITS);
        cr_assert_eq(seen.kinds[MSG_REPLY], CREDITS);
        for (uint32_t i = 0; i < CREDITS; i++)
            (void)reply(1, 0);
        for (uint32_t i = 0; i < 20; i++) {
            (void)mailbox_publish(box[0]);
            (void)mailbox_publish(box[1]);
            (void)poll_all(0);
            (void)poll_all(1);
        }
        cr_assert_eq(mailbox_credits_free(box[0], 1), CREDITS);
        cr_assert_eq(mailbox_credits_free(box[1], 0), CREDITS);
    }
    cr_assert_eq(mailbox_stats(box[0]).returns_unknown, 200 * 50, "all returns arrived, once each");
    cr_assert_eq(mailbox_stats(box[1]).returns_unknown, 200 * 50);
    cr_assert_gt(mailbox_stats(box[1]).returns_delayed, 0);
}

Test(mailbox, control_reserve_used_up_is_null_until_the_peer_took_it, .init = set_up, .fini = tear_down)
{
    for (uint32_t round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < CONTROL; i++)
            cr_assert_not_null(control(0, 1));
        cr_assert_null(control(0, 1));
        cr_assert_not_null(control(0, 2), "another lane has its own");
        (void)mailbox_publish(box[0]);
        cr_assert_null(control(0, 1));
        cr_assert_eq(mailbox_credits_free(box[0], 1), CREDITS);
        cr_assert_eq(poll_all(1).kinds[MSG_REFRESH], CONTROL);
        cr_assert_eq(poll_all(2).kinds[MSG_REFRESH], 1);
    }
}

Test(mailbox, bytes_are_lent_until_the_peer_consumed_the_message, .init = set_up, .fini = tear_down)
{
    lend_text(0, 1, request(0, 1), "first", false);
    lend_text(0, 1, request(0, 1), "second", false);
    (void)mailbox_publish(box[0]);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 2);
    cr_assert_eq(mailbox_reclaim(box[0]), 0);
    struct seen seen = {0};
    cr_assert_eq(mailbox_poll(box[1], 1, look, &seen), 1);
    cr_assert_str_eq(seen.text, "first");
    cr_assert_eq(seen.last.flags & MSG_LENT, 0);
    cr_assert_eq(mailbox_reclaim(box[0]), 1);
    cr_assert_gt(arena_bytes_held(arenas[0]), 0);
    cr_assert_eq(mailbox_poll(box[1], ALL, look, &seen), 1);
    cr_assert_str_eq(seen.text, "second");
    cr_assert_eq(mailbox_reclaim(box[0]), 1);
    cr_assert_eq(mailbox_reclaim(box[0]), 0);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 0);
    cr_assert_eq(arena_bytes_held(arenas[0]), 0);
}

Test(mailbox, part_of_a_block_lent_several_times_keeps_it_until_the_last, .init = set_up, .fini = tear_down)
{
    struct block *block = text_block(0, "one two");
    mailbox_lend(box[0], 1, request(0, 1), block, block->data + 4, 3, false);
    mailbox_lend(box[0], 2, request(0, 2), block, block->data, 3, true);
    mailbox_lend(box[0], 2, request(0, 2), block, block->data, 3, true);
    arena_put(arenas[0], &block);
    (void)mailbox_publish(box[0]);
    cr_assert_str_eq(poll_all(1).text, "two");
    struct seen seen = poll_all(2);
    cr_assert_str_eq(seen.text, "one");
    cr_assert_eq(seen.count, 2);
    cr_assert_eq(mailbox_reclaim(box[0]), 1, "until returned is not until consumed");
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 2);
    mailbox_return(box[2], 0, seen.last.offset);
    (void)mailbox_publish(box[2]);
    (void)poll_all(0);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 1);
    cr_assert_gt(arena_bytes_held(arenas[0]), 0);
    mailbox_return(box[2], 0, seen.last.offset);
    (void)mailbox_publish(box[2]);
    (void)poll_all(0);
    cr_assert_eq(arena_bytes_held(arenas[0]), 0);
    cr_assert_eq(mailbox_stats(box[0]).returns_unknown, 0);
}

Test(mailbox, message_without_bytes_lends_nothing, .init = set_up, .fini = tear_down)
{
    struct block *block = text_block(0, "x");
    mailbox_lend(box[0], 1, request(0, 1), block, block->data, 0, true);
    mailbox_lend(box[0], 1, request(0, 1), block, block->data, 0, false);
    arena_put(arenas[0], &block);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 0);
    (void)mailbox_publish(box[0]);
    struct seen seen = poll_all(1);
    cr_assert_eq(seen.count, 2);
    cr_assert_null(seen.bytes);
    cr_assert_eq(seen.last.flags, 0);
}

Test(mailbox, return_of_what_was_not_lent_is_counted_and_dropped, .init = set_up, .fini = tear_down)
{
    lend_text(0, 1, request(0, 1), "kept", true);
    (void)mailbox_publish(box[0]);
    struct seen seen = poll_all(1);
    mailbox_return(box[2], 0, seen.last.offset); /* not the borrower */
    mailbox_return(box[1], 0, seen.last.offset + 1);
    (void)mailbox_publish(box[1]);
    (void)mailbox_publish(box[2]);
    cr_assert_eq(poll_all(0).count, 0, "returns are not shown to the handler");
    cr_assert_eq(mailbox_stats(box[0]).returns_unknown, 2);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 1);
    mailbox_return(box[1], 0, seen.last.offset);
    (void)mailbox_publish(box[1]);
    (void)poll_all(0);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 0);
}

Test(mailbox, returns_beyond_the_reserve_wait_and_all_arrive, .init = set_up, .fini = tear_down)
{
    enum { LOANS = 1000 };
    static uint64_t offsets[LOANS];
    for (uint32_t i = 0; i < LOANS; i++) {
        lend_text(0, 1, request(0, 1), "large", true);
        (void)mailbox_publish(box[0]);
        struct seen seen = poll_all(1);
        offsets[i] = seen.last.offset;
        (void)reply(1, 0);
        (void)mailbox_publish(box[1]);
        (void)poll_all(0);
    }
    cr_assert_eq(mailbox_stats(box[0]).loans_out, LOANS);
    for (uint32_t i = 0; i < LOANS; i++)
        mailbox_return(box[1], 0, offsets[i]);
    cr_assert_eq(mailbox_stats(box[1]).returns_delayed, LOANS - RETURNS * 6, "six returns fit a message");
    cr_assert_eq(mailbox_publish(box[1]), RETURNS);
    cr_assert_eq(mailbox_publish(box[1]), 0, "core 0 has taken nothing");
    cr_assert(mailbox_sleep_begin(box[1]), "nothing can be sent now");
    mailbox_sleep_end(box[1]);
    (void)poll_all(0);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, LOANS - RETURNS * 6);
    cr_assert_not(mailbox_sleep_begin(box[1]), "delayed returns can be sent now");
    uint32_t rounds = 0;
    while (mailbox_publish(box[1]) > 0) {
        (void)poll_all(0);
        rounds++;
    }
    cr_assert_leq(rounds, LOANS / (RETURNS * 6) + 1);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 0);
    cr_assert_eq(mailbox_stats(box[0]).returns_unknown, 0);
    cr_assert_eq(mailbox_stats(box[1]).returns_delayed, LOANS - RETURNS * 6, "each is counted once");
}

Test(mailbox, poll_is_fair_across_lanes_and_keeps_its_limit, .init = set_up, .fini = tear_down)
{
    for (uint32_t i = 0; i < CREDITS; i++)
        (void)request(0, 3);
    for (uint32_t i = 0; i < CREDITS; i++)
        (void)request(1, 3);
    (void)request(2, 3);
    for (uint32_t core = 0; core < 3; core++)
        (void)mailbox_publish(box[core]);
    struct seen seen = {0};
    cr_assert_eq(mailbox_poll(box[3], 5, look, &seen), 5);
    cr_assert_eq(mailbox_poll(box[3], 5, look, &seen), 5);
    cr_assert_eq(mailbox_poll(box[3], 5, look, &seen), 5);
    cr_assert_geq(seen.from[0], 5);
    cr_assert_geq(seen.from[1], 5, "the next poll begins with the next lane");
    cr_assert_eq(seen.from[2], 1);
    cr_assert_not(mailbox_sleep_begin(box[3]), "lanes known to have more keep it awake");
    cr_assert_eq(mailbox_poll(box[3], 0, look, &seen), 0);
    cr_assert_eq(mailbox_poll(box[3], ALL, look, &seen), 2 * CREDITS + 1 - 15);
    cr_assert_eq(mailbox_poll(box[3], ALL, look, &seen), 0);
    cr_assert_eq(seen.from[0] + seen.from[1] + seen.from[2], 2 * CREDITS + 1);
}

/* The owner's side as it is used: replies, lends, returns and asks in the handler. */
static void answer(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    uint32_t me = *(uint32_t *)context;
    if (msg->kind == MSG_LEG) {
        cr_assert_str_eq((const char *)bytes, "ask");
        struct msg *out = mailbox_reserve(box[me], from, CLASS_REPLY);
        out->origin = msg->origin;
        if ((msg->flags & MSG_LENT) != 0)
            mailbox_return(box[me], from, msg->offset);
        lend_text(me, from, out, "answer", true);
    } else if (msg->kind == MSG_REPLY) {
        cr_assert_eq(memcmp(bytes, "answer", 6), 0);
        mailbox_return(box[me], from, msg->offset);
        /* The credit of this reply is free again here. */
        cr_assert(mailbox_credit_take(box[me], from));
        struct block *block = text_block(me, "ask");
        block->data[3] = '\0';
        mailbox_lend(box[me], from, mailbox_reserve(box[me], from, CLASS_REQUEST), block, block->data, 4, msg->origin % 2 == 0);
        arena_put(arenas[me], &block);
    }
}

Test(mailbox, handler_may_send_and_a_full_lane_keeps_turning, .init = set_up, .fini = tear_down)
{
    for (uint32_t core = 0; core < 2; core++) {
        while (mailbox_credit_take(box[core], 1 - core)) {
            struct block *block = text_block(core, "ask");
            block->data[3] = '\0';
            mailbox_lend(box[core], 1 - core, mailbox_reserve(box[core], 1 - core, CLASS_REQUEST), block, block->data, 4, false);
            arena_put(arenas[core], &block);
        }
        (void)mailbox_publish(box[core]);
    }
    uint64_t allocations = 0;
    struct rng rng = {.state = 3};
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t core = rng_below(&rng, 2);
        (void)mailbox_poll(box[core], 1 + rng_below(&rng, 40), answer, &core);
        (void)mailbox_reclaim(box[core]);
        (void)mailbox_publish(box[core]);
        if (step == 2000)
            allocations = alloc_calls_count();
    }
    cr_assert_eq(alloc_calls_count(), allocations, "nothing is allocated in steady state");
    cr_assert_gt(mailbox_stats(box[0]).taken, 100000);
    cr_assert_eq(mailbox_stats(box[0]).returns_unknown, 0);
    cr_assert_leq(mailbox_stats(box[0]).loans_out, 1000, "nothing piles up");
}

Test(mailbox, lane_indexes_wrap_without_a_fault, .init = set_up, .fini = tear_down)
{
    /* As if 2^32 - 100 messages had passed in every lane. */
    for (uint32_t i = 0; i < CORES * CORES; i++) {
        struct spsc *queue = &group->lanes[i].queue;
        uint32_t index = (uint32_t)-100;
        atomic_store(&queue->tail, index);
        atomic_store(&queue->head, index);
        queue->producer_tail = queue->producer_head = queue->producer_published = index;
        queue->consumer_head = queue->consumer_tail = index;
    }
    cr_assert_not_null(control(0, 1)); /* stays in its reserve's list over the wrap */
    for (uint32_t i = 0; i < 500; i++) {
        lend_text(0, 1, request(0, 1), "leg", i % 3 == 0);
        (void)mailbox_publish(box[0]);
        struct seen seen = poll_all(1);
        cr_assert_str_eq(seen.text, "leg");
        if (i % 3 == 0)
            mailbox_return(box[1], 0, seen.last.offset);
        lend_text(1, 0, reply(1, 0), "reply", false);
        (void)mailbox_publish(box[1]);
        cr_assert_str_eq(poll_all(0).text, "reply");
        (void)mailbox_reclaim(box[0]);
        (void)mailbox_reclaim(box[1]);
        cr_assert_eq(mailbox_stats(box[0]).loans_out, 0);
        cr_assert_eq(mailbox_stats(box[1]).loans_out, 0);
    }
    for (uint32_t i = 0; i < CONTROL; i++)
        cr_assert_not_null(control(0, 1));
    cr_assert_null(control(0, 1));
}

Test(mailbox, sleeper_is_rung_once_and_only_when_it_said_so, .init = set_up, .fini = tear_down)
{
    (void)request(0, 1);
    cr_assert_not(mailbox_has_news(box[1]));
    (void)mailbox_publish(box[0]);
    cr_assert(mailbox_has_news(box[1]));
    cr_assert_eq(rung[1], 0, "an awake core is not rung");
    cr_assert_not(mailbox_sleep_begin(box[1]), "there is a message");
    (void)request(0, 1);
    (void)mailbox_publish(box[0]);
    cr_assert_eq(rung[1], 0, "the flag was withdrawn");
    cr_assert_eq(poll_all(1).count, 2);
    cr_assert_not(mailbox_has_news(box[1]));

    cr_assert(mailbox_sleep_begin(box[1]));
    cr_assert_not_null(control(2, 1));
    cr_assert_not_null(control(2, 3));
    (void)mailbox_publish(box[2]);
    cr_assert_eq(rung[1], 1);
    (void)request(0, 1);
    (void)mailbox_publish(box[0]);
    cr_assert_eq(rung[1], 1, "one doorbell wakes it for all");
    cr_assert_eq(rung[3], 0);
    mailbox_sleep_end(box[1]);
    cr_assert_eq(poll_all(1).count, 2);
    (void)control(2, 1);
    (void)mailbox_publish(box[2]);
    cr_assert_eq(rung[1], 1, "awake again");
    cr_assert_eq(mailbox_stats(box[2]).doorbells, 1);
    cr_assert_eq(mailbox_stats(box[0]).doorbells, 0);
}

Test(mailbox, core_with_unpublished_messages_does_not_sleep, .init = set_up, .fini = tear_down)
{
    (void)request(0, 1);
    cr_assert_not(mailbox_sleep_begin(box[0]));
    (void)mailbox_publish(box[0]);
    cr_assert(mailbox_sleep_begin(box[0]));
    mailbox_sleep_end(box[0]);
}

Test(mailbox, reset_of_a_peer_drops_its_loans_and_frees_its_credits, .init = set_up, .fini = tear_down)
{
    /* Everything at once: loans of both kinds, published and not, consumed and not; returns, delayed and not; a full control reserve; requests from the peer. */
    for (uint32_t i = 0; i < 5; i++) {
        lend_text(0, 1, request(0, 1), "a", false);
        lend_text(0, 1, request(0, 1), "b", true);
    }
    (void)mailbox_publish(box[0]);
    struct seen seen = {0};
    (void)mailbox_poll(box[1], 4, look, &seen);
    (void)request(1, 0);
    lend_text(1, 0, request(1, 0), "dead", false);
    (void)mailbox_publish(box[1]);
    lend_text(0, 1, request(0, 1), "unpublished", false);
    lend_text(0, 2, request(0, 2), "other", true);
    while (control(0, 1) != NULL)
        ;
    for (uint32_t i = 0; i < 100; i++)
        mailbox_return(box[0], 1, i);
    cr_assert(mailbox_credit_take(box[0], 1));
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 12);

    mailbox_reset_peer(box[0], 1);
    cr_assert_eq(mailbox_stats(box[0]).loans_out, 1, "core 2 keeps its loan");
    cr_assert_eq(mailbox_credits_free(box[0], 1), CREDITS);
    cr_assert_eq(mailbox_stats(box[0]).stale_epoch, 2, "the dead peer's requests");
    cr_assert_eq(poll_all(0).count, 0);
    mailbox_reset_peer(box[1], 0); /* the replacement begins anew */
    cr_assert_eq(mailbox_stats(box[1]).loans_out, 0);
    (void)mailbox_publish(box[0]);
    cr_assert_eq(poll_all(1).count, 0, "what had been on its way is gone");
    cr_assert_eq(poll_all(2).count, 1);

    /* The lanes have their whole capacity again. */
    for (uint32_t i = 0; i < CONTROL; i++)
        cr_assert_not_null(control(0, 1));
    for (uint32_t i = 0; i < CREDITS; i++) {
        cr_assert_eq(request(0, 1)->epoch, 2);
        (void)request(1, 0);
    }
    for (uint32_t i = 0; i < RETURNS * 6; i++)
        mailbox_return(box[0], 1, i);
    (void)mailbox_publish(box[0]);
    (void)mailbox_publish(box[1]);
    cr_assert_eq(poll_all(0).count, CREDITS);
    cr_assert_eq(poll_all(1).count, CREDITS + CONTROL);
    for (uint32_t i = 0; i < CREDITS; i++) {
        (void)reply(0, 1);
        (void)reply(1, 0);
    }
    (void)mailbox_publish(box[0]);
    (void)mailbox_publish(box[1]);
    cr_assert_eq(poll_all(0).count, CREDITS);
    cr_assert_eq(poll_all(1).count, CREDITS);
    cr_assert_eq(mailbox_credits_free(box[1], 0), CREDITS);
}

Test(mailbox, message_of_an_old_epoch_is_dropped_and_counted, .init = set_up, .fini = tear_down)
{
    /* The peer reserved before it was replaced and publishes after it. */
    lend_text(1, 0, request(1, 0), "zombie", true);
    (void)request(2, 0);
    mailbox_reset_peer(box[0], 1);
    (void)mailbox_publish(box[1]);
    (void)mailbox_publish(box[2]);
    struct seen seen = poll_all(0);
    cr_assert_eq(seen.count, 1);
    cr_assert_eq(seen.from[2], 1);
    cr_assert_eq(mailbox_stats(box[0]).stale_epoch, 1);
    cr_assert_eq(mailbox_stats(box[0]).taken, 2);
    (void)request(1, 0);
    (void)mailbox_publish(box[1]);
    cr_assert_eq(poll_all(0).from[1], 1, "the new epoch is heard");
}

Test(mailbox, group_of_65_cores_delivers_between_all_pairs)
{
    static struct mailbox *boxes[MANY];
    static struct seen seen[MANY];
    struct mailbox_options options = {.cores_count = MANY, .lane_slots = 64, .returns = 8, .control = 4};
    struct mailbox_group *many = mailbox_group_create(&options);
    for (uint32_t i = 0; i < MANY; i++)
        boxes[i] = mailbox_of(many, i);
    for (uint32_t from = 0; from < MANY; from++) {
        for (uint32_t to = 0; to < MANY; to++) {
            if (from == to)
                continue;
            struct msg *msg = mailbox_reserve(boxes[from], to, CLASS_CONTROL);
            msg->kind = MSG_ACK;
            msg->origin = from * 1000 + to;
        }
        cr_assert_eq(mailbox_publish(boxes[from]), MANY - 1);
    }
    for (uint32_t to = 0; to < MANY; to++) {
        cr_assert_not(mailbox_sleep_begin(boxes[to]));
        for (uint32_t i = 0; i < MANY - 1; i++) {
            cr_assert_eq(mailbox_poll(boxes[to], 1, look, &seen[to]), 1);
            cr_assert_eq(seen[to].last.origin % 1000, to);
            cr_assert_eq(seen[to].from[seen[to].last.origin / 1000], 1);
        }
        cr_assert_eq(mailbox_poll(boxes[to], 1, look, &seen[to]), 0);
        cr_assert(mailbox_sleep_begin(boxes[to]));
    }
    mailbox_group_destroy(&many);
}

Test(mailbox, send_to_itself_aborts, .init = set_up, .signal = SIGABRT)
{
    cr_assert_null(mailbox_reserve(box[2], 2, CLASS_CONTROL), "not reached");
}

Test(mailbox, send_to_a_core_that_is_not_there_aborts, .init = set_up, .signal = SIGABRT)
{
    mailbox_return(box[2], CORES, 0);
}

Test(mailbox, request_without_a_credit_aborts, .init = set_up, .signal = SIGABRT)
{
    cr_assert_null(mailbox_reserve(box[0], 1, CLASS_REQUEST), "not reached");
}

Test(mailbox, reply_to_nothing_aborts, .init = set_up, .signal = SIGABRT)
{
    cr_assert_null(mailbox_reserve(box[0], 1, CLASS_REPLY), "not reached");
}

Test(mailbox, reserve_of_a_return_aborts, .init = set_up, .signal = SIGABRT)
{
    cr_assert_null(mailbox_reserve(box[0], 1, CLASS_RETURN), "not reached");
}

Test(mailbox, lend_with_a_published_message_aborts, .init = set_up, .signal = SIGABRT)
{
    struct msg *msg = request(0, 1);
    (void)mailbox_publish(box[0]);
    lend_text(0, 1, msg, "late", false);
}

Test(mailbox, lend_beyond_the_block_aborts, .init = set_up, .signal = SIGABRT)
{
    struct block *block = text_block(0, "x");
    mailbox_lend(box[0], 1, request(0, 1), block, block->data + 1, block_capacity(block), false);
}

static void publish_inside(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    (void)context, (void)from, (void)msg, (void)bytes;
    (void)mailbox_publish(box[1]);
}

Test(mailbox, publish_in_a_handler_aborts, .init = set_up, .signal = SIGABRT)
{
    (void)request(0, 1);
    (void)mailbox_publish(box[0]);
    (void)mailbox_poll(box[1], 1, publish_inside, NULL);
}

Test(mailbox, message_without_a_kind_aborts, .init = set_up, .signal = SIGABRT)
{
    cr_assert_not_null(mailbox_reserve(box[0], 1, CLASS_CONTROL));
    (void)mailbox_publish(box[0]);
    (void)poll_all(1);
}

Test(mailbox, lane_too_small_for_its_reserves_aborts, .signal = SIGABRT)
{
    struct mailbox_options options = {.cores_count = 2, .lane_slots = 64, .returns = 32, .control = 31};
    (void)mailbox_group_create(&options);
}
