/*
 * shard/fence, case by case. The order under random events is tested by model_fence.c.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/list.h"
#include "shard/fence.h"

TestSuite(fence, .timeout = 30);

enum { SLOT = 100, OTHER_SLOT = 16383, KEY_A = 7, KEY_B = 8, LINK = 1, OTHER_LINK = 2, NODE_M = 11, NODE_N = 12 };

struct item {
    int id;
    struct fence_waiter waiter;
};

struct fixture {
    struct fence_table table;
    struct item items[32];
    char emitted[64]; /* ids in the order of emission: new legs as digits and letters, redirected ones with 'r' before */
    uint64_t route;   /* what target_of answers */
    uint64_t routes[32];
    void (*on_emit)(struct fixture *fixture, struct item *item);
    enum fence_verdict last_verdict;
};

static struct fixture fixture;

static struct item *item_of(struct fence_waiter *waiter) { return LIST_ENTRY(waiter, struct item, waiter); }

static void note(struct fixture *f, const char *prefix, const struct item *item)
{
    const size_t length = strlen(f->emitted);
    snprintf(f->emitted + length, sizeof f->emitted - length, "%s%c", prefix, "0123456789abcdefghijklmnopqrstuv"[item->id]);
}

static void emit(void *context, struct fence_waiter *waiter)
{
    struct fixture *f = context;
    note(f, "", item_of(waiter));
    if (f->on_emit)
        f->on_emit(f, item_of(waiter));
}

static void emit_redirect(void *context, struct fence_waiter *waiter)
{
    struct fixture *f = context;
    note(f, "r", item_of(waiter));
    if (f->on_emit)
        f->on_emit(f, item_of(waiter));
}

static uint64_t target_of(void *context, struct fence_waiter *waiter)
{
    struct fixture *f = context;
    const uint64_t own = f->routes[item_of(waiter)->id];
    return own ? own : f->route;
}

static const struct fence_ops ops = {.emit = emit, .emit_redirect = emit_redirect, .target_of = target_of};

static struct fixture *setup_sized(uint32_t waiters_max, uint32_t fences_max)
{
    memset(&fixture, 0, sizeof fixture);
    fence_table_init(&fixture.table, waiters_max, fences_max, &ops, &fixture);
    for (int i = 0; i < 32; i++)
        fixture.items[i].id = i;
    return &fixture;
}

static struct fixture *setup(void) { return setup_sized(32, 32); }

static enum fence_verdict admit(struct fixture *f, uint32_t key_hash, int id)
{
    return fence_admit(&f->table, SLOT, key_hash, &f->items[id].waiter);
}

static enum fence_verdict raise_slot(struct fixture *f, uint64_t link, uint64_t seq)
{
    return fence_raise(&f->table, FENCE_SLOT, SLOT, 0, link, seq, 0);
}

static enum fence_verdict raise_key(struct fixture *f, uint32_t key_hash, uint64_t link, uint64_t seq)
{
    return fence_raise(&f->table, FENCE_KEY, SLOT, key_hash, link, seq, 0);
}

/* A leg comes back from a link that owes nothing else. */
static enum fence_verdict redirect(
    struct fixture *f, enum fence_scope scope, enum fence_scope held, uint32_t key_hash, uint64_t target, int id)
{
    const struct fence_redirect request = {
        .scope = scope, .held = held, .slot = SLOT, .key_hash = key_hash, .link_key = LINK, .target = target};
    return fence_redirect(&f->table, &request, &f->items[id].waiter);
}

static void expect_nothing_left(struct fixture *f)
{
    cr_expect_eq(f->table.fences_count, 0);
    cr_expect_eq(f->table.dependencies_count, 0);
    cr_expect_eq(f->table.waiters_count, 0);
    cr_expect(fence_table_is_empty(&f->table));
    fence_table_fini(&f->table);
}

#define EXPECT_EMITTED(f, text) cr_expect_str_eq((f)->emitted, text)

Test(fence, new_leg_without_fence_passes)
{
    struct fixture *f = setup();
    cr_expect(fence_table_is_empty(&f->table));
    cr_expect_eq(admit(f, KEY_A, 0), FENCE_PASS);
    cr_expect_eq(admit(f, 0, 0), FENCE_PASS);
    fence_link_progress(&f->table, LINK, 10);
    fence_link_gone(&f->table, LINK);
    expect_nothing_left(f);
}

Test(fence, link_that_has_answered_raises_nothing)
{
    struct fixture *f = setup();
    cr_expect_eq(fence_raise(&f->table, FENCE_SLOT, SLOT, 0, LINK, 5, 5), FENCE_PASS);
    cr_expect_eq(fence_raise(&f->table, FENCE_KEY, SLOT, KEY_A, LINK, 5, 6), FENCE_PASS);
    expect_nothing_left(f);
}

Test(fence, slot_fence_holds_the_slot_and_no_other)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_slot(f, LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    cr_expect_eq(admit(f, 0, 2), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_B, 3), FENCE_WAIT);
    cr_expect_eq(fence_admit(&f->table, OTHER_SLOT, KEY_A, &f->items[4].waiter), FENCE_PASS);
    fence_link_progress(&f->table, LINK, 4);
    fence_link_progress(&f->table, OTHER_LINK, 100);
    EXPECT_EMITTED(f, "");
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "123");
    expect_nothing_left(f);
}

Test(fence, key_fence_holds_the_key_and_lets_others_pass)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_key(f, KEY_A, LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_B, 2), FENCE_PASS);
    cr_expect_eq(admit(f, KEY_A, 3), FENCE_WAIT);
    fence_link_progress(&f->table, LINK, 9);
    EXPECT_EMITTED(f, "13");
    expect_nothing_left(f);
}

Test(fence, key_fence_without_a_key_is_one_of_the_slot)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_key(f, 0, LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    fence_link_gone(&f->table, LINK);
    EXPECT_EMITTED(f, "1");
    expect_nothing_left(f);
}

Test(fence, leg_with_several_keys_waits_for_key_fences_and_holds_the_slot)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_key(f, KEY_A, LINK, 5), FENCE_WAIT);
    cr_expect_eq(raise_key(f, KEY_B, OTHER_LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    cr_expect_eq(admit(f, 0, 2), FENCE_WAIT);
    cr_expect_eq(admit(f, 99, 3), FENCE_WAIT, "behind the leg with several keys");
    cr_expect_eq(admit(f, KEY_A, 4), FENCE_WAIT);
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "1");
    cr_expect_eq(admit(f, KEY_A, 5), FENCE_WAIT, "not before the leg with several keys");
    fence_link_progress(&f->table, OTHER_LINK, 5);
    EXPECT_EMITTED(f, "12345");
    expect_nothing_left(f);
}

Test(fence, key_fence_that_ends_under_a_slot_fence_keeps_its_waiters_first)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_key(f, KEY_A, LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    cr_expect_eq(raise_slot(f, OTHER_LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "");
    fence_link_progress(&f->table, OTHER_LINK, 5);
    EXPECT_EMITTED(f, "12");
    expect_nothing_left(f);
}

Test(fence, slot_fence_that_ends_before_a_key_fence_keeps_the_order)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_key(f, KEY_A, LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    cr_expect_eq(raise_slot(f, OTHER_LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    fence_link_progress(&f->table, OTHER_LINK, 5);
    EXPECT_EMITTED(f, "");
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "12");
    expect_nothing_left(f);
}

Test(fence, fence_raised_again_waits_for_the_later_number_and_for_every_link)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_slot(f, LINK, 5), FENCE_WAIT);
    cr_expect_eq(raise_slot(f, LINK, 9), FENCE_WAIT);
    cr_expect_eq(raise_slot(f, LINK, 3), FENCE_WAIT, "an earlier number changes nothing");
    cr_expect_eq(f->table.dependencies_count, 1);
    cr_expect_eq(raise_slot(f, OTHER_LINK, 4), FENCE_WAIT);
    cr_expect_eq(f->table.raised_count, 1);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    fence_link_progress(&f->table, LINK, 8);
    fence_link_progress(&f->table, OTHER_LINK, 4);
    EXPECT_EMITTED(f, "");
    fence_link_progress(&f->table, LINK, 9);
    EXPECT_EMITTED(f, "1");
    expect_nothing_left(f);
}

Test(fence, several_fences_of_one_link_end_by_their_numbers)
{
    struct fixture *f = setup();
    /* Raised out of order. */
    cr_expect_eq(raise_key(f, 3, LINK, 30), FENCE_WAIT);
    cr_expect_eq(raise_key(f, 1, LINK, 10), FENCE_WAIT);
    cr_expect_eq(raise_key(f, 2, LINK, 20), FENCE_WAIT);
    for (int i = 1; i <= 3; i++)
        cr_expect_eq(admit(f, (uint32_t)i, i), FENCE_WAIT);
    fence_link_progress(&f->table, LINK, 9);
    EXPECT_EMITTED(f, "");
    fence_link_progress(&f->table, LINK, 20);
    EXPECT_EMITTED(f, "12");
    fence_link_gone(&f->table, LINK);
    EXPECT_EMITTED(f, "123");
    expect_nothing_left(f);
}

Test(fence, redirected_legs_hold_until_each_has_its_outcome)
{
    struct fixture *f = setup();
    const struct fence_redirect request = {
        .scope = FENCE_SLOT, .slot = SLOT, .key_hash = KEY_A, .link_key = LINK, .link_seq = 9, .answered_seq = 7, .target = NODE_M};
    cr_expect_eq(fence_redirect(&f->table, &request, &f->items[1].waiter), FENCE_PASS);
    cr_expect_eq(fence_redirect(&f->table, &request, &f->items[2].waiter), FENCE_PASS, "to the same node at once");
    cr_expect_eq(admit(f, KEY_B, 3), FENCE_WAIT);
    fence_link_progress(&f->table, LINK, 9);
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "");
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "3");
    expect_nothing_left(f);
}

Test(fence, hold_released_before_the_link_has_answered_still_waits_for_it)
{
    struct fixture *f = setup();
    const struct fence_redirect request = {
        .scope = FENCE_KEY, .slot = SLOT, .key_hash = KEY_A, .link_key = LINK, .link_seq = 9, .answered_seq = 7, .target = NODE_M};
    cr_expect_eq(fence_redirect(&f->table, &request, &f->items[1].waiter), FENCE_PASS);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    fence_release(&f->table, FENCE_KEY, SLOT, KEY_A);
    EXPECT_EMITTED(f, "");
    fence_link_progress(&f->table, LINK, 9);
    EXPECT_EMITTED(f, "2");
    expect_nothing_left(f);
}

Test(fence, redirect_to_another_node_waits_until_none_is_out)
{
    struct fixture *f = setup();
    f->route = NODE_N;
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 1), FENCE_PASS);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 2), FENCE_PASS);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_N, 3), FENCE_WAIT);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 4), FENCE_WAIT, "not past the one that waits");
    /* Both that were out come back and go first, in their order. */
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_SLOT, KEY_A, NODE_N, 1), FENCE_WAIT);
    EXPECT_EMITTED(f, "");
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_SLOT, KEY_A, NODE_N, 2), FENCE_WAIT);
    EXPECT_EMITTED(f, "r1r2r3r4");
    for (int i = 0; i < 4; i++)
        fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    expect_nothing_left(f);
}

Test(fence, redirected_legs_with_different_targets_go_one_node_at_a_time)
{
    struct fixture *f = setup();
    f->routes[2] = f->routes[3] = NODE_M;
    f->routes[4] = NODE_N;
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, 10, 1), FENCE_PASS);
    for (int i = 2; i <= 4; i++)
        cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, i), FENCE_WAIT);
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "r2r3");
    /* One comes back: it is older than what still waits. */
    f->routes[2] = NODE_N;
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_SLOT, KEY_A, NODE_N, 2), FENCE_WAIT);
    EXPECT_EMITTED(f, "r2r3");
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "r2r3r2r4");
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    expect_nothing_left(f);
}

Test(fence, leg_redirected_again_changes_its_scope)
{
    struct fixture *f = setup();
    cr_expect_eq(redirect(f, FENCE_KEY, FENCE_NONE, KEY_A, NODE_M, 1), FENCE_PASS);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_B, 3), FENCE_PASS);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_KEY, KEY_A, NODE_N, 1), FENCE_PASS);
    EXPECT_EMITTED(f, "");
    cr_expect_eq(admit(f, KEY_B, 4), FENCE_WAIT);
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "24");
    expect_nothing_left(f);
}

Test(fence, paused_leg_holds_and_goes_last)
{
    struct fixture *f = setup();
    f->route = NODE_N;
    const struct fence_redirect pause = {.scope = FENCE_SLOT, .slot = SLOT, .link_key = LINK};
    cr_expect_eq(fence_pause(&f->table, &pause), FENCE_PASS);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    /* A paused leg is out at no node. */
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 3), FENCE_PASS);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_N, 4), FENCE_WAIT);
    const struct fence_redirect resume = {.scope = FENCE_SLOT, .held = FENCE_SLOT, .slot = SLOT, .target = NODE_M};
    cr_expect_eq(fence_resume(&f->table, &resume, &f->items[1].waiter), FENCE_WAIT);
    /* The only one that was out goes on at once, ahead of those that could not go. */
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_SLOT, KEY_A, NODE_N, 3), FENCE_PASS);
    EXPECT_EMITTED(f, "");
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "r4r1");
    for (int i = 0; i < 2; i++)
        fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "r4r12");
    expect_nothing_left(f);
}

Test(fence, paused_leg_given_up_lets_the_rest_go)
{
    struct fixture *f = setup();
    const struct fence_redirect pause = {.scope = FENCE_KEY, .slot = SLOT, .key_hash = KEY_A, .link_key = LINK};
    cr_expect_eq(fence_pause(&f->table, &pause), FENCE_PASS);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    fence_release_paused(&f->table, FENCE_KEY, SLOT, KEY_A);
    EXPECT_EMITTED(f, "2");
    expect_nothing_left(f);
}

Test(fence, resumed_leg_without_others_passes)
{
    struct fixture *f = setup();
    const struct fence_redirect pause = {.scope = FENCE_SLOT, .slot = SLOT, .link_key = LINK};
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, 0, NODE_M, 1), FENCE_PASS);
    struct fence_redirect again = pause;
    again.held = FENCE_SLOT;
    cr_expect_eq(fence_pause(&f->table, &again), FENCE_PASS);
    again.target = NODE_N;
    cr_expect_eq(fence_resume(&f->table, &again, &f->items[1].waiter), FENCE_PASS);
    fence_release(&f->table, FENCE_SLOT, SLOT, 0);
    expect_nothing_left(f);
}

Test(fence, full_of_waiters_refuses_and_recovers)
{
    struct fixture *f = setup_sized(2, 32);
    cr_expect_eq(raise_slot(f, LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 3), FENCE_FULL);
    cr_expect_eq(f->table.full_count, 1);
    cr_expect_eq(f->table.waited_count, 2);
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "12");
    cr_expect_eq(admit(f, KEY_A, 3), FENCE_PASS);
    expect_nothing_left(f);
}

Test(fence, redirect_that_would_wait_in_a_full_table_changes_nothing)
{
    struct fixture *f = setup_sized(1, 32);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 1), FENCE_PASS);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 2), FENCE_PASS);
    cr_expect_eq(admit(f, KEY_A, 3), FENCE_WAIT);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_SLOT, KEY_A, NODE_N, 1), FENCE_FULL);
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "");
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "3");
    expect_nothing_left(f);
}

Test(fence, full_of_fences_refuses_and_leaves_no_trace)
{
    struct fixture *f = setup_sized(32, 1);
    cr_expect_eq(raise_key(f, KEY_A, LINK, 5), FENCE_FULL, "a key and its slot are two");
    cr_expect_eq(f->table.fences_count, 0);
    cr_expect_eq(raise_slot(f, LINK, 5), FENCE_WAIT);
    cr_expect_eq(raise_slot(f, LINK, 6), FENCE_WAIT, "extending takes no room");
    cr_expect_eq(fence_raise(&f->table, FENCE_SLOT, OTHER_SLOT, 0, LINK, 5, 0), FENCE_FULL);
    cr_expect_eq(redirect(f, FENCE_KEY, FENCE_NONE, KEY_A, NODE_M, 1), FENCE_FULL);
    cr_expect_eq(f->table.full_count, 3);
    fence_link_gone(&f->table, LINK);
    expect_nothing_left(f);
}

Test(fence, full_of_dependencies_refuses_and_leaves_no_trace)
{
    struct fixture *f = setup_sized(32, 2);
    for (uint64_t link = 1; link <= f->table.dependencies_max; link++)
        cr_assert_eq(raise_slot(f, link, 5), FENCE_WAIT);
    cr_expect_eq(raise_slot(f, 1000, 5), FENCE_FULL);
    cr_expect_eq(raise_key(f, KEY_A, 1000, 5), FENCE_FULL);
    cr_expect_eq(fence_raise(&f->table, FENCE_SLOT, OTHER_SLOT, 0, 1000, 5, 0), FENCE_FULL);
    cr_expect_eq(f->table.fences_count, 1);
    for (uint64_t link = 1; link <= f->table.dependencies_max; link++)
        fence_link_gone(&f->table, link);
    expect_nothing_left(f);
}

static void admit_one_more(struct fixture *f, struct item *item)
{
    if (item->id == 1)
        f->last_verdict = admit(f, KEY_A, 9);
}

Test(fence, leg_that_arrives_during_emission_stays_behind_those_not_emitted)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_key(f, KEY_A, LINK, 5), FENCE_WAIT);
    for (int i = 1; i <= 3; i++)
        cr_expect_eq(admit(f, KEY_A, i), FENCE_WAIT);
    f->on_emit = admit_one_more;
    fence_link_progress(&f->table, LINK, 5);
    cr_expect_eq(f->last_verdict, FENCE_WAIT);
    EXPECT_EMITTED(f, "1239");
    expect_nothing_left(f);
}

Test(fence, leg_that_arrives_during_emission_of_the_last_of_a_slot_waits_for_it)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_slot(f, LINK, 5), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
    f->on_emit = admit_one_more;
    fence_link_progress(&f->table, LINK, 5);
    cr_expect_eq(f->last_verdict, FENCE_WAIT);
    EXPECT_EMITTED(f, "19");
    expect_nothing_left(f);
}

static void raise_after_first(struct fixture *f, struct item *item)
{
    if (item->id == 1)
        f->last_verdict = raise_slot(f, OTHER_LINK, 7);
}

static void raise_key_after_first(struct fixture *f, struct item *item)
{
    if (item->id == 1)
        f->last_verdict = raise_key(f, KEY_A, OTHER_LINK, 7);
}

Test(fence, fence_raised_during_emission_keeps_the_rest_in_order)
{
    for (int variant = 0; variant < 4; variant++) {
        struct fixture *f = setup();
        cr_expect_eq(variant & 1 ? raise_slot(f, LINK, 5) : raise_key(f, KEY_A, LINK, 5), FENCE_WAIT);
        for (int i = 1; i <= 3; i++)
            cr_expect_eq(admit(f, KEY_A, i), FENCE_WAIT);
        f->on_emit = variant & 2 ? raise_after_first : raise_key_after_first;
        fence_link_progress(&f->table, LINK, 5);
        EXPECT_EMITTED(f, "1");
        cr_expect_eq(admit(f, KEY_A, 4), FENCE_WAIT);
        fence_link_progress(&f->table, OTHER_LINK, 7);
        EXPECT_EMITTED(f, "1234");
        expect_nothing_left(f);
    }
}

static void release_at_once(struct fixture *f, struct item *item)
{
    (void)item;
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
}

Test(fence, redirected_leg_that_ends_within_its_callback_lets_the_next_go)
{
    struct fixture *f = setup();
    for (int i = 2; i <= 5; i++)
        f->routes[i] = (uint64_t)(20 + i); /* each to another node */
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 1), FENCE_PASS);
    for (int i = 2; i <= 5; i++)
        cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_N, i), FENCE_WAIT);
    f->on_emit = release_at_once;
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "r2r3r4r5");
    expect_nothing_left(f);
}

static bool is_odd(void *context, const struct fence_waiter *waiter)
{
    (void)context;
    return LIST_ENTRY(waiter, const struct item, waiter)->id % 2 == 1;
}

static void on_expired(void *context, struct fence_waiter *waiter, bool redirected)
{
    struct fixture *f = context;
    note(f, redirected ? "!" : "x", item_of(waiter));
    if (redirected)
        fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
}

Test(fence, expired_legs_leave_and_the_others_keep_their_order)
{
    struct fixture *f = setup();
    cr_expect_eq(fence_expire(&f->table, is_odd, on_expired, f), 0);
    cr_expect_eq(raise_slot(f, LINK, 5), FENCE_WAIT);
    for (int i = 1; i <= 5; i++)
        cr_expect_eq(admit(f, KEY_A, i), FENCE_WAIT);
    cr_expect_eq(fence_expire(&f->table, is_odd, on_expired, f), 3);
    EXPECT_EMITTED(f, "x1x3x5");
    cr_expect_eq(f->table.waiters_count, 2);
    cr_expect_eq(admit(f, KEY_A, 6), FENCE_WAIT);
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "x1x3x5246");
    expect_nothing_left(f);
}

Test(fence, expired_redirected_leg_releases_its_hold)
{
    struct fixture *f = setup();
    f->route = NODE_N;
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_M, 2), FENCE_PASS);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_N, 3), FENCE_WAIT);
    cr_expect_eq(redirect(f, FENCE_SLOT, FENCE_NONE, KEY_A, NODE_N, 4), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 6), FENCE_WAIT);
    cr_expect_eq(fence_expire(&f->table, is_odd, on_expired, f), 1);
    EXPECT_EMITTED(f, "!3");
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "!3r4");
    fence_release(&f->table, FENCE_SLOT, SLOT, KEY_A);
    EXPECT_EMITTED(f, "!3r46");
    expect_nothing_left(f);
}

Test(fence, many_keys_and_slots_are_kept_apart)
{
    struct fixture *f = setup_sized(32, 50000);
    for (uint32_t slot = 0; slot < FENCE_SLOTS_COUNT; slot++)
        cr_assert_eq(fence_raise(&f->table, FENCE_KEY, (uint16_t)slot, slot + 1, LINK, slot + 1, 0), FENCE_WAIT);
    cr_expect_eq(f->table.fences_count, 2 * FENCE_SLOTS_COUNT);
    cr_expect_eq(fence_admit(&f->table, 5, 6, &f->items[1].waiter), FENCE_WAIT);
    cr_expect_eq(fence_admit(&f->table, 5, 7, &f->items[2].waiter), FENCE_PASS);
    fence_link_progress(&f->table, LINK, FENCE_SLOTS_COUNT / 2);
    EXPECT_EMITTED(f, "1");
    cr_expect_eq(f->table.fences_count, FENCE_SLOTS_COUNT);
    fence_link_progress(&f->table, LINK, FENCE_SLOTS_COUNT);
    expect_nothing_left(f);
}

Test(fence, table_ends_with_fences_up)
{
    struct fixture *f = setup();
    cr_expect_eq(raise_slot(f, LINK, 5), FENCE_WAIT);
    cr_expect_eq(raise_key(f, KEY_A, OTHER_LINK, 5), FENCE_WAIT);
    cr_expect_eq(redirect(f, FENCE_KEY, FENCE_NONE, KEY_B, NODE_M, 1), FENCE_PASS);
    fence_table_fini(&f->table);
}

Test(fence, redirected_legs_of_a_slot_are_told_from_the_one_that_asks)
{
    struct fixture *f = setup();
    cr_expect_not(fence_has_redirected(&f->table, SLOT, FENCE_NONE));
    cr_expect_eq(redirect(f, FENCE_KEY, FENCE_NONE, KEY_A, NODE_M, 1), FENCE_PASS);
    cr_expect_not(fence_has_redirected(&f->table, SLOT, FENCE_KEY), "it is out itself");
    cr_expect(fence_has_redirected(&f->table, SLOT, FENCE_NONE), "for another leg");
    cr_expect_eq(redirect(f, FENCE_KEY, FENCE_NONE, KEY_B, NODE_M, 2), FENCE_PASS);
    cr_expect(fence_has_redirected(&f->table, SLOT, FENCE_KEY), "another is out");
    fence_table_fini(&f->table);
}

/* ---- legs that wait for the shared link before they leave it ---- */

static enum fence_verdict wait_first(struct fixture *f, uint32_t key_hash, uint64_t seq, uint64_t answered, int id)
{
    return fence_wait_first(&f->table, FENCE_KEY, SLOT, key_hash, LINK, seq, answered, &f->items[id].waiter);
}

Test(fence, first_waiter_goes_when_the_link_has_answered_and_before_what_came_later)
{
    struct fixture *f = setup();
    cr_expect_eq(admit(f, KEY_A, 1), FENCE_PASS);
    cr_expect_eq(wait_first(f, KEY_A, 5, 5, 1), FENCE_PASS, "nothing is on the link");
    cr_expect(fence_table_is_empty(&f->table));
    cr_expect_eq(wait_first(f, KEY_A, 5, 4, 1), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
    cr_expect_eq(admit(f, KEY_B, 3), FENCE_PASS, "another key");
    cr_expect_eq(admit(f, 0, 4), FENCE_WAIT, "several keys");
    fence_link_progress(&f->table, LINK, 4);
    EXPECT_EMITTED(f, "");
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "124");
    expect_nothing_left(f);
}

Test(fence, first_waiter_waits_for_what_was_redirected_before_it)
{
    struct fixture *f = setup();
    f->route = NODE_M;
    cr_expect_eq(wait_first(f, KEY_A, 5, 4, 1), FENCE_WAIT);
    /* What it waits for comes back by ASK: the link has answered, the leg has no outcome. */
    cr_expect_eq(redirect(f, FENCE_KEY, FENCE_NONE, KEY_A, NODE_N, 2), FENCE_PASS);
    fence_link_progress(&f->table, LINK, 100);
    EXPECT_EMITTED(f, "");
    fence_release(&f->table, FENCE_KEY, SLOT, KEY_A);
    EXPECT_EMITTED(f, "1");
    expect_nothing_left(f);
}

/* The first time that leg 1 is emitted it waits for the link again, ahead of 2; then it holds the fence, as a large one would. */
static void leave_again(struct fixture *f, struct item *item)
{
    if (item->id != 1)
        return;
    if (f->route == 0) {
        f->route = NODE_M;
        f->last_verdict = wait_first(f, KEY_A, 9, 8, 1);
    } else {
        f->last_verdict = redirect(f, FENCE_KEY, FENCE_NONE, KEY_A, NODE_M, 1);
    }
}

Test(fence, emitted_leg_may_wait_again_at_its_place)
{
    for (int through_slot = 0; through_slot < 2; through_slot++) {
        struct fixture *f = setup();
        f->on_emit = leave_again;
        const enum fence_scope scope = through_slot ? FENCE_SLOT : FENCE_KEY;
        cr_expect_eq(fence_raise(&f->table, scope, SLOT, KEY_A, OTHER_LINK, 1, 0), FENCE_WAIT);
        cr_expect_eq(admit(f, KEY_A, 1), FENCE_WAIT);
        cr_expect_eq(admit(f, KEY_A, 2), FENCE_WAIT);
        fence_link_progress(&f->table, OTHER_LINK, 1);
        EXPECT_EMITTED(f, "1");
        cr_expect_eq(f->last_verdict, FENCE_WAIT);
        cr_expect_eq(admit(f, KEY_A, 3), FENCE_WAIT);
        fence_link_progress(&f->table, LINK, 9);
        EXPECT_EMITTED(f, "11");
        cr_expect_eq(f->last_verdict, FENCE_PASS);
        fence_link_progress(&f->table, LINK, 1000);
        fence_release(&f->table, FENCE_KEY, SLOT, KEY_A);
        EXPECT_EMITTED(f, "1123");
        expect_nothing_left(f);
    }
}

Test(fence, first_waiter_without_room_is_refused_and_nothing_changes)
{
    struct fixture *f = setup_sized(1, 2);
    cr_expect_eq(wait_first(f, KEY_A, 5, 4, 1), FENCE_WAIT);
    cr_expect_eq(wait_first(f, KEY_B, 5, 4, 2), FENCE_FULL);
    fence_link_progress(&f->table, LINK, 5);
    EXPECT_EMITTED(f, "1");
    expect_nothing_left(f);
}
