/*
 * Model-based random test of shard/fence: connections send legs through a fence table to simulated nodes; slots migrate, move and keys
 * move meanwhile, links die, legs expire, the table is at times tiny. Checked are: the effects on each key happen in the order in which
 * each connection sent them; every leg has exactly one outcome; nothing waits once all links are drained; the maxima hold.
 *
 *   model_fence [seed]        the seed is printed; the same seed gives the same run
 *
 * What the gateway cannot order, and the model therefore does not ask for:
 *  - a slot comes back to a node only when that node has answered all commands for it from before, and the answers have arrived: so not
 *    within one round trip;
 *  - a leg that is repeated after TRYAGAIN or a lost link may take effect after legs that had been sent before it came back (not after
 *    later ones).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/list.h"
#include "core/rng.h"
#include "shard/fence.h"

enum {
    NODES = 4,
    SLOTS = 3,
    KEYS_PER_SLOT = 3,
    KEYS = SLOTS * KEYS_PER_SLOT,
    CONNECTIONS = 6,
    PROTOCOLS = 2,
    CHANNELS = 2 * PROTOCOLS, /* shared links, then bulk links */
    LEGS = 512,
    LEG_KEYS = 2,
    ATTEMPTS_MAX = 24,
    ROUNDS = 100,
    STEPS = 6000,
    NO_NODE = -1,
};

enum reply { REPLY_OK, REPLY_MOVED, REPLY_ASK, REPLY_TRYAGAIN };

struct leg {
    int padding;               /* the link is not the first member, as in the real leg */
    struct fence_waiter *next; /* of the fence */
    int connection, slot, keys_count, attempts, target;
    int keys[LEG_KEYS];
    uint32_t seq[LEG_KEYS];    /* of (connection, key) */
    uint32_t exempt[LEG_KEYS]; /* may be overtaken by what was sent up to here */
    enum fence_scope held;
    enum reply reply;
    int reply_node;
    bool is_live, is_waiting, is_asking, is_retryable, is_paused, is_large, is_bulk;
    uint64_t expires_at; /* step */
};

struct link {
    uint64_t key, sent_seq, answered_seq;
    int node, protocol;
    struct leg *requests[LEGS], *replies[LEGS];
    int requests_count, replies_count;
};

struct slot_state {
    int owner, importer; /* importer: NO_NODE unless migrating */
    bool is_moved[KEYS_PER_SLOT];
};

struct world {
    struct rng rng;
    struct fence_table table;
    struct leg legs[LEGS];
    struct link links[NODES][CHANNELS];
    struct slot_state slots[SLOTS];
    int locator[SLOTS];
    uint32_t next_seq[CONNECTIONS][KEYS], applied[CONNECTIONS][KEYS], sent[CONNECTIONS][KEYS];
    uint64_t next_link_key, step;
    int live;
    bool is_ending;
    bool is_reentrant;
    /* Events, so that a run that tests nothing is noticed. */
    uint64_t created, outcomes, ok, shed, failed, moved, asked, tryagain, redirect_waits, redirect_again, expired, links_lost, polls,
        emitted, bulk, bulk_waits;
};

static struct world world;

static void dispatch_new(void);
static bool departs(struct leg *leg);

static uint32_t below(uint32_t bound) { return rng_below(&world.rng, bound); }

static uint32_t key_hash_of(const struct leg *leg) { return leg->keys_count > 1 ? 0 : 1000u + (uint32_t)leg->keys[0]; }

static uint16_t slot_of(const struct leg *leg) { return (uint16_t)(leg->slot * 5461); }

static int channel_of(const struct leg *leg) { return leg->connection % PROTOCOLS + (leg->is_bulk ? PROTOCOLS : 0); }

static void outcome(struct leg *leg)
{
    ZG_CHECK(leg->is_live && !leg->is_waiting);
    leg->is_live = false;
    world.live--;
    world.outcomes++;
    const enum fence_scope held = leg->held;
    leg->held = FENCE_NONE;
    ZG_CHECK(!leg->is_paused);
    /* The leg may be used again by what this sets free: so it is not touched any more. */
    if (held != FENCE_NONE)
        fence_release(&world.table, held, slot_of(leg), key_hash_of(leg));
}

static void send_to(struct leg *leg, int node)
{
    struct link *link = &world.links[node][channel_of(leg)];
    ZG_CHECK(leg->is_live && !leg->is_waiting && link->requests_count < LEGS);
    ZG_CHECK(!leg->is_paused);
    leg->target = node;
    link->requests[link->requests_count++] = leg;
    link->sent_seq++;
    for (int i = 0; i < leg->keys_count; i++) {
        uint32_t *sent = &world.sent[leg->connection][leg->keys[i]];
        *sent = leg->seq[i] > *sent ? leg->seq[i] : *sent;
    }
}

/* From now on legs of the same connection that have been sent may be ahead of this one. */
static void exempt(struct leg *leg)
{
    for (int i = 0; i < leg->keys_count; i++)
        leg->exempt[i] = world.sent[leg->connection][leg->keys[i]];
}

static struct leg *leg_of(struct fence_waiter *waiter) { return LIST_ENTRY(waiter, struct leg, next); }

static struct fence_waiter *waiter_of(struct leg *leg) { return (struct fence_waiter *)(void *)&leg->next; }

static uint64_t target_of(void *context, struct fence_waiter *waiter)
{
    (void)context;
    const struct leg *leg = leg_of(waiter);
    return leg->is_asking ? (uint64_t)(uintptr_t)leg : (uint64_t)world.locator[leg->slot];
}

/* A large leg goes by the bulk link, as shard/bulk.c has it. */
static void send_new(struct leg *leg)
{
    if (!leg->is_large || !departs(leg))
        send_to(leg, world.locator[leg->slot]);
}

static void emit(void *context, struct fence_waiter *waiter)
{
    (void)context;
    struct leg *leg = leg_of(waiter);
    ZG_CHECK(leg->is_waiting && leg->held == FENCE_NONE);
    leg->is_waiting = false;
    world.emitted++;
    send_new(leg);
    if (world.is_reentrant && !world.is_ending && below(2) == 0)
        dispatch_new();
}

static void emit_redirect(void *context, struct fence_waiter *waiter)
{
    struct leg *leg = leg_of(waiter);
    ZG_CHECK(leg->is_waiting && leg->held != FENCE_NONE);
    (void)context;
    leg->target = world.locator[leg->slot];
    leg->is_asking = false;
    leg->is_waiting = false;
    send_to(leg, leg->target);
    if (world.is_reentrant && !world.is_ending && below(2) == 0)
        dispatch_new();
}

static const struct fence_ops ops = {.emit = emit, .emit_redirect = emit_redirect, .target_of = target_of};

static void dispatch_new(void)
{
    struct leg *leg = NULL;
    for (uint32_t i = 0, at = below(LEGS); i < 8 && !leg; i++, at = (at + 1) % LEGS)
        if (!world.legs[at].is_live)
            leg = &world.legs[at];
    if (!leg)
        return;
    *leg = (struct leg){.is_live = true,
        .connection = (int)below(CONNECTIONS),
        .slot = (int)below(SLOTS),
        .keys_count = below(8) == 0 ? 2 : 1,
        .is_retryable = below(2) == 0,
        .is_large = below(30) == 0,
        .expires_at = below(4) == 0 ? world.step + 20 + below(400) : UINT64_MAX};
    const int first = (int)below(KEYS_PER_SLOT);
    for (int i = 0; i < leg->keys_count; i++) {
        leg->keys[i] = leg->slot * KEYS_PER_SLOT + (first + i) % KEYS_PER_SLOT;
        leg->seq[i] = ++world.next_seq[leg->connection][leg->keys[i]];
    }
    world.live++;
    world.created++;
    if (fence_slot_is_clear(&world.table, slot_of(leg))) {
        send_new(leg);
        return;
    }
    switch (fence_admit(&world.table, slot_of(leg), key_hash_of(leg), waiter_of(leg))) {
    case FENCE_PASS: send_new(leg); return;
    case FENCE_WAIT: leg->is_waiting = true; return;
    case FENCE_FULL:
        world.shed++;
        outcome(leg);
        return;
    }
}

/* Fences the links to the former node, then changes it; leaves it where there is no room. */
static void locator_set(int slot, int node)
{
    if (world.locator[slot] == node)
        return;
    for (int protocol = 0; protocol < PROTOCOLS; protocol++) {
        const struct link *link = &world.links[world.locator[slot]][protocol];
        if (fence_raise(&world.table, FENCE_SLOT, (uint16_t)(slot * 5461), 0, link->key, link->sent_seq, link->answered_seq) ==
            FENCE_FULL)
            return;
    }
    world.locator[slot] = node;
}

/* False: no room, the leg keeps what it held and is to be failed. link: NULL after a pause. */
static bool redirect(struct leg *leg, const struct link *link, enum fence_scope scope, int target)
{
    static const struct link none = {0};
    const bool is_resumed = !link;
    link = is_resumed ? &none : link;
    const struct fence_redirect request = {.scope = scope,
        .held = leg->held,
        .slot = slot_of(leg),
        .key_hash = key_hash_of(leg),
        .link_key = link->key,
        .link_seq = link->sent_seq,
        .answered_seq = link->answered_seq,
        .target = (uint64_t)target};
    const enum fence_scope held = leg->held;
    leg->target = target;
    leg->held = scope;
    leg->is_waiting = true; /* it may be emitted before fence_redirect returns */
    switch (is_resumed ? fence_resume(&world.table, &request, waiter_of(leg)) : fence_redirect(&world.table, &request, waiter_of(leg))) {
    case FENCE_PASS:
        leg->is_waiting = false;
        world.redirect_again += held != FENCE_NONE;
        send_to(leg, leg->target);
        return true;
    case FENCE_WAIT:
        world.redirect_waits++;
        world.redirect_again += held != FENCE_NONE;
        return true;
    case FENCE_FULL: break;
    }
    leg->is_waiting = false;
    leg->held = held;
    return false;
}

/* False: no room for its fence, it goes by the shared link. True: it is on its way, or waits. */
static bool departs(struct leg *leg)
{
    static const struct link none = {0};
    if (!leg->is_bulk) {
        const struct link *shared = &world.links[world.locator[leg->slot]][channel_of(leg)];
        switch (fence_wait_first(
            &world.table, FENCE_KEY, slot_of(leg), key_hash_of(leg), shared->key, shared->sent_seq, shared->answered_seq, waiter_of(leg))) {
        case FENCE_PASS: break;
        case FENCE_WAIT:
            leg->is_bulk = true;
            leg->is_waiting = true;
            world.bulk_waits++;
            return true;
        case FENCE_FULL: return false;
        }
    }
    leg->is_bulk = true;
    world.bulk++;
    if (redirect(leg, &none, leg->keys_count > 1 ? FENCE_SLOT : FENCE_KEY, world.locator[leg->slot]))
        return true;
    leg->is_bulk = false;
    return false;
}

static void fail(struct leg *leg)
{
    world.failed++;
    outcome(leg);
}

static void pause_leg(struct leg *leg, const struct link *link)
{
    const struct fence_redirect request = {.scope = FENCE_SLOT,
        .held = leg->held,
        .slot = slot_of(leg),
        .key_hash = key_hash_of(leg),
        .link_key = link->key,
        .link_seq = link->sent_seq,
        .answered_seq = link->answered_seq};
    if (fence_pause(&world.table, &request) == FENCE_FULL) {
        fail(leg);
        return;
    }
    leg->held = FENCE_SLOT;
    leg->is_paused = true;
    leg->is_asking = false;
}

static void resume_leg(struct leg *leg)
{
    leg->is_paused = false;
    if (below(16) != 0 && redirect(leg, NULL, FENCE_SLOT, world.locator[leg->slot]))
        return;
    /* Given up within its pause. */
    leg->held = FENCE_NONE;
    const uint16_t slot = slot_of(leg);
    const uint32_t key_hash = key_hash_of(leg);
    fail(leg);
    fence_release_paused(&world.table, FENCE_SLOT, slot, key_hash);
}

static void handle_reply(struct leg *leg, const struct link *link)
{
    if (leg->reply == REPLY_OK) {
        world.ok++;
        outcome(leg);
        return;
    }
    if (++leg->attempts > ATTEMPTS_MAX) {
        fail(leg);
        return;
    }
    const int slot = leg->slot;
    const int node = leg->reply_node;
    if (leg->reply == REPLY_MOVED) {
        world.moved++;
        leg->is_asking = false;
        if (redirect(leg, link, FENCE_SLOT, node))
            locator_set(slot, node);
        else
            fail(leg);
    } else if (leg->reply == REPLY_ASK) {
        world.asked++;
        leg->is_asking = true;
        if (!redirect(leg, link, FENCE_KEY, node))
            fail(leg);
    } else {
        world.tryagain++;
        exempt(leg);
        pause_leg(leg, link);
    }
}

static void apply(struct leg *leg)
{
    for (int i = 0; i < leg->keys_count; i++) {
        uint32_t *applied = &world.applied[leg->connection][leg->keys[i]];
        if (leg->seq[i] > *applied)
            *applied = leg->seq[i];
        else
            ZG_CHECK(leg->exempt[i] >= *applied); /* order */
    }
}

/* What a node says to a command, as redis-server's getNodeByQuery. */
static void node_answers(struct leg *leg, int node)
{
    const struct slot_state *slot = &world.slots[leg->slot];
    int moved_count = 0;
    for (int i = 0; i < leg->keys_count; i++)
        moved_count += slot->is_moved[leg->keys[i] % KEYS_PER_SLOT];
    leg->reply_node = slot->owner;
    if (slot->owner == node)
        leg->reply = slot->importer == NO_NODE || moved_count == 0 ? REPLY_OK
            : moved_count == leg->keys_count                       ? REPLY_ASK
                                                                   : REPLY_TRYAGAIN;
    else if (slot->importer == node && leg->is_asking)
        leg->reply = leg->keys_count == 1 || moved_count == leg->keys_count ? REPLY_OK : REPLY_TRYAGAIN;
    else
        leg->reply = REPLY_MOVED;
    if (leg->reply == REPLY_ASK)
        leg->reply_node = slot->importer;
    if (leg->reply == REPLY_OK)
        apply(leg);
}

static void step_node(struct link *link)
{
    int count = (int)below((uint32_t)link->requests_count + 1);
    for (int i = 0; i < count; i++) {
        node_answers(link->requests[i], link->node);
        ZG_CHECK(link->replies_count < LEGS);
        link->replies[link->replies_count++] = link->requests[i];
    }
    link->requests_count -= count;
    memmove(link->requests, link->requests + count, (size_t)link->requests_count * sizeof link->requests[0]);
}

static void step_replies(struct link *link)
{
    const int count = (int)below((uint32_t)link->replies_count + 1);
    struct leg *replies[LEGS];
    memcpy(replies, link->replies, (size_t)count * sizeof replies[0]);
    link->replies_count -= count;
    memmove(link->replies, link->replies + count, (size_t)link->replies_count * sizeof link->replies[0]);
    for (int i = 0; i < count; i++) {
        link->answered_seq++;
        handle_reply(replies[i], link);
    }
    fence_link_progress(&world.table, link->key, link->answered_seq);
}

static void link_start(struct link *link, int node, int protocol)
{
    *link = (struct link){.key = ++world.next_link_key, .node = node, .protocol = protocol, .sent_seq = below(1000)};
    link->answered_seq = link->sent_seq;
}

static void step_link_dies(struct link *link)
{
    struct leg *legs[2 * LEGS];
    const int count = link->replies_count + link->requests_count;
    struct link old = {.key = link->key, .sent_seq = link->sent_seq, .answered_seq = link->sent_seq};
    memcpy(legs, link->replies, (size_t)link->replies_count * sizeof legs[0]);
    memcpy(legs + link->replies_count, link->requests, (size_t)link->requests_count * sizeof legs[0]);
    link_start(link, link->node, link->protocol);
    world.links_lost++;
    for (int i = 0; i < count; i++) {
        struct leg *leg = legs[i];
        if (!leg->is_retryable || ++leg->attempts > ATTEMPTS_MAX) {
            fail(leg);
            continue;
        }
        exempt(leg);
        leg->reply = REPLY_OK; /* nothing was said: it is sent again at once */
        if (!redirect(leg, &old, leg->keys_count > 1 ? FENCE_SLOT : FENCE_KEY, link->node))
            fail(leg);
    }
    fence_link_gone(&world.table, old.key);
}

/* Are commands for the slot on their way to the node, or its answers on their way back? */
static bool has_in_flight(int node, int slot, bool asking_too)
{
    for (int protocol = 0; protocol < CHANNELS; protocol++) {
        const struct link *link = &world.links[node][protocol];
        for (int i = 0; i < link->requests_count; i++)
            if (link->requests[i]->slot == slot && (asking_too || !link->requests[i]->is_asking))
                return true;
        for (int i = 0; i < link->replies_count; i++)
            if (link->replies[i]->slot == slot && (asking_too || !link->replies[i]->is_asking))
                return true;
    }
    return false;
}

static void step_slot(int index)
{
    struct slot_state *slot = &world.slots[index];
    const int node = (int)below(NODES);
    if (slot->importer == NO_NODE) {
        if (world.is_ending || node == slot->owner || has_in_flight(node, index, true))
            return;
        if (below(2) == 0)
            slot->owner = node; /* a failover */
        else
            slot->importer = node;
        return;
    }
    for (int key = 0; key < KEYS_PER_SLOT; key++) {
        if (!slot->is_moved[key]) {
            slot->is_moved[key] = true;
            return;
        }
    }
    if (has_in_flight(slot->importer, index, false))
        return;
    *slot = (struct slot_state){.owner = slot->importer, .importer = NO_NODE};
}

static bool is_expired(void *context, const struct fence_waiter *waiter)
{
    (void)context;
    return LIST_ENTRY(waiter, const struct leg, next)->expires_at <= world.step;
}

static void on_expired(void *context, struct fence_waiter *waiter, bool redirected)
{
    (void)context;
    struct leg *leg = leg_of(waiter);
    ZG_CHECK(leg->is_waiting && redirected == (leg->held != FENCE_NONE));
    leg->is_waiting = false;
    world.expired++;
    fail(leg);
}

static void step_paused(uint32_t chance)
{
    for (int i = 0; i < LEGS; i++)
        if (world.legs[i].is_live && world.legs[i].is_paused && below(chance) == 0)
            resume_leg(&world.legs[i]);
}

static void check_bounds(void)
{
    uint32_t waiting = 0;
    for (int i = 0; i < LEGS; i++)
        waiting += world.legs[i].is_live && world.legs[i].is_waiting;
    ZG_CHECK(waiting == world.table.waiters_count && waiting <= world.table.waiters_max);
    ZG_CHECK(world.table.fences_count <= world.table.fences_max && world.table.dependencies_count <= world.table.dependencies_max);
}

static void step(void)
{
    world.step++;
    struct link *link = &world.links[below(NODES)][below(CHANNELS)];
    const uint32_t action = below(100);
    if (action < 40 && !world.is_ending)
        dispatch_new();
    else if (action < 65)
        step_node(link);
    else if (action < 90)
        step_replies(link);
    else if (action < 93)
        step_slot((int)below(SLOTS));
    else if (action < 94 && !world.is_ending && below(4) == 0)
        step_link_dies(link);
    else if (action < 95)
        (void)fence_expire(&world.table, is_expired, on_expired, NULL);
    else if (action < 96) {
        const int slot = (int)below(SLOTS);
        world.polls++;
        locator_set(slot, world.slots[slot].owner);
    } else
        step_paused(4);
    if (world.step % 64 == 0)
        check_bounds();
}

static void run_round(uint32_t round)
{
    /* Every fourth round with a table that is soon full. */
    const uint32_t waiters_max = round % 4 == 1 ? 1 + below(12) : LEGS;
    const uint32_t fences_max = round % 4 == 2 ? 1 + below(4) : 64;
    fence_table_init(&world.table, waiters_max, fences_max, &ops, NULL);
    world.is_reentrant = round % 3 == 0;
    world.is_ending = false;
    for (int node = 0; node < NODES; node++)
        for (int protocol = 0; protocol < CHANNELS; protocol++)
            link_start(&world.links[node][protocol], node, protocol);
    for (int slot = 0; slot < SLOTS; slot++) {
        world.slots[slot] = (struct slot_state){.owner = (int)below(NODES), .importer = NO_NODE};
        world.locator[slot] = (int)below(NODES); /* may be wrong */
    }
    for (int i = 0; i < STEPS; i++)
        step();
    /* Migrations come to their end and everything is drained: what is left waiting would wait forever. */
    world.is_ending = true;
    for (int i = 0; i < 200000 && world.live > 0; i++)
        step();
    for (int node = 0; node < NODES; node++)
        for (int protocol = 0; protocol < CHANNELS; protocol++)
            ZG_CHECK(world.links[node][protocol].answered_seq == world.links[node][protocol].sent_seq);
    check_bounds();
    ZG_CHECK(world.live == 0 && world.created == world.outcomes);
    ZG_CHECK(world.table.waiters_count == 0 && world.table.fences_count == 0 && world.table.dependencies_count == 0);
    fence_table_fini(&world.table);
}

int main(int argc, char **argv)
{
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    printf("model_fence: seed %" PRIu64 "\n", seed);
    fflush(stdout);
    world.rng.state = seed;
    for (uint32_t round = 0; round < ROUNDS; round++)
        run_round(round);
    printf("legs %" PRIu64 " ok %" PRIu64 " shed %" PRIu64 " failed %" PRIu64 " expired %" PRIu64 " moved %" PRIu64 " ask %" PRIu64
           " tryagain %" PRIu64 "\n",
        world.created, world.ok, world.shed, world.failed, world.expired, world.moved, world.asked, world.tryagain);
    printf("emitted %" PRIu64 " redirects that waited %" PRIu64 ", again %" PRIu64 " links lost %" PRIu64 " polls %" PRIu64 " bulk %" PRIu64 ", waited %" PRIu64 "\n",
        world.emitted, world.redirect_waits, world.redirect_again, world.links_lost, world.polls, world.bulk, world.bulk_waits);
    fflush(stdout);
    /* A run in which something never happened has not tested it. */
    ZG_CHECK(world.ok > world.created / 4 && world.shed > 0 && world.expired > 0 && world.moved > 1000 && world.asked > 1000 &&
        world.tryagain > 100 && world.emitted > 1000 && world.redirect_waits > 100 && world.redirect_again > 100 &&
        world.links_lost > 100 && world.bulk > 500 && world.bulk_waits > 500);
    return 0;
}
