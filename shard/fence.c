/*
 * Owns the fences of one core: which keys and slots new legs may not pass now, on which links and redirected legs that depends, and the
 * legs that wait.
 *
 *   key fence      new legs of one key wait in it            up while a dependency or a hold is left
 *   slot           `whole`: the fence of the whole slot      up while a dependency or a hold is left
 *                  whole.waiters: new legs behind it, and legs with several keys behind key fences, with everything for the slot that
 *                  came after them again, first: redirected legs that may not go yet, because others of the slot are out at another
 *                  node
 *
 * A slot is here while it has anything of these, or a key fence. Order rests on the following:
 *  - Nothing is added to the waiters of a key fence while whole.waiters is not empty or `whole` is up: so what waits in a key fence is
 *    older than what waits in its slot. A key fence that ends under a slot fence therefore puts its waiters in front of those of the
 *    slot, and whole.waiters moves only when no key fence of the slot is left.
 *  - All redirected legs of a slot that are out are out at one node, so they come back in the order in which they were sent. A leg that
 *    comes back from there (`again`) is older than any that could not go while it was out (`first`): it goes first. A leg after a pause
 *    goes last: the others were sent before it was told to come again. When none is out any more, both become one queue in this order,
 *    and the next can go.
 *  - What ends is put into the list `ready` and worked off by drain(), which does not nest: so callbacks may call everything here.
 */
#include "shard/fence.h"

#include <stddef.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/list.h"
#include "core/pool.h"

/* How a leg that holds a fence stands: out at a node, or in a pause. */
enum hold { HOLD_NONE, HOLD_OUT, HOLD_PAUSED };

enum {
    DEPENDENCIES_PER_FENCE = 4, /* on average; usual are one or two */
    LINKS_MAX = 1 << 16,
    LINK_BUCKETS_COUNT = 1024,
    KEY_BUCKETS_MAX = 1 << 16,
    WAITERS_LIMIT = 1 << 24,
    FENCES_LIMIT = 1 << 20,
};

struct waiter_queue {
    struct fence_waiter *head;
    struct fence_waiter *tail; /* valid while head is not NULL */
};

struct fence {
    struct pool_item item;
    struct list_node all;          /* state.all */
    struct list_node ready;        /* state.ready while it has something to do */
    struct list_node dependencies; /* fence_dependency.of_fence */
    struct fence_at_slot *at_slot;
    struct fence *hash_next; /* key fences */
    struct waiter_queue waiters;
    uint32_t key_hash;    /* 0: the `whole` of a slot */
    uint32_t holds_count; /* redirected legs without an outcome, waiting ones included */
    bool is_emitting;     /* a waiter's callback is running: new arrivals are behind it */
};

struct fence_at_slot {
    struct fence whole; /* first: so that a `whole` and its slot are one address */
    struct waiter_queue again;
    struct waiter_queue first;
    uint64_t target;    /* the node where the legs counted by out_count are */
    uint32_t out_count; /* redirected legs that are sent and have no outcome; paused and waiting ones are not counted */
    uint32_t key_fences_count;
    uint16_t slot;
};

struct fence_dependency {
    struct pool_item item;
    struct list_node of_fence;
    struct list_node of_link; /* by seq, ascending */
    struct fence *fence;
    struct fence_link *link;
    uint64_t seq;
};

struct fence_link {
    struct pool_item item;
    uint64_t link_key;
    struct list_node dependencies; /* never empty outside of a function */
    struct fence_link *hash_next;
};

struct fence_state {
    struct pool slots;
    struct pool keys;
    struct pool dependencies;
    struct pool links;
    struct list_node all;
    struct list_node ready;
    bool is_draining;
    uint32_t key_buckets_mask;
    struct fence **key_buckets;
    struct fence_at_slot *at_slot[FENCE_SLOTS_COUNT];
    struct fence_link *link_buckets[LINK_BUCKETS_COUNT];
};

static inline bool queue_is_empty(const struct waiter_queue *queue) { return !queue->head; }

static void queue_push(struct waiter_queue *queue, struct fence_waiter *waiter)
{
    waiter->next = NULL;
    if (queue->head)
        queue->tail->next = waiter;
    else
        queue->head = waiter;
    queue->tail = waiter;
}

static struct fence_waiter *queue_pop(struct waiter_queue *queue)
{
    struct fence_waiter *waiter = queue->head;
    ZG_CHECK(waiter);
    queue->head = waiter->next;
    waiter->next = NULL;
    return waiter;
}

/* Moves all of `front` before what is in `queue`. */
static void queue_prepend(struct waiter_queue *queue, struct waiter_queue *front)
{
    if (!front->head)
        return;
    front->tail->next = queue->head;
    if (!queue->head)
        queue->tail = front->tail;
    queue->head = front->head;
    front->head = NULL;
}

static inline bool fence_is_up(const struct fence *fence) { return fence->holds_count > 0 || !list_is_empty(&fence->dependencies); }

/* New legs of the slot, whatever their key, go to the end of whole.waiters. */
static inline bool slot_is_blocked(const struct fence_at_slot *at_slot)
{
    return fence_is_up(&at_slot->whole) || !queue_is_empty(&at_slot->whole.waiters) || at_slot->whole.is_emitting;
}

static inline enum fence_scope scope_of(enum fence_scope scope, uint32_t key_hash) { return key_hash == 0 ? FENCE_SLOT : scope; }

static struct fence **key_bucket(struct fence_state *state, uint16_t slot, uint32_t key_hash)
{
    return &state->key_buckets[hash_u64((uint64_t)slot << 32 | key_hash) & state->key_buckets_mask];
}

static struct fence_link **link_bucket(struct fence_state *state, uint64_t link_key)
{
    return &state->link_buckets[hash_u64(link_key) % LINK_BUCKETS_COUNT];
}

static struct fence *find_fence(struct fence_state *state, enum fence_scope scope, uint16_t slot, uint32_t key_hash)
{
    ZG_CHECK(slot < FENCE_SLOTS_COUNT && scope != FENCE_NONE);
    struct fence_at_slot *at_slot = state->at_slot[slot];
    if (!at_slot || scope == FENCE_SLOT)
        return at_slot ? &at_slot->whole : NULL;
    struct fence *fence = *key_bucket(state, slot, key_hash);
    while (fence && (fence->at_slot != at_slot || fence->key_hash != key_hash))
        fence = fence->hash_next;
    return fence;
}

static void fence_start(struct fence_table *table, struct fence *fence, struct fence_at_slot *at_slot, uint32_t key_hash)
{
    list_init(&fence->all);
    list_init(&fence->ready);
    list_init(&fence->dependencies);
    fence->at_slot = at_slot;
    fence->key_hash = key_hash;
    list_push_back(&table->state->all, &fence->all);
    table->fences_count++;
}

static void fence_end(struct fence_table *table, struct fence *fence)
{
    ZG_CHECK(!fence_is_up(fence) && queue_is_empty(&fence->waiters) && !fence->is_emitting);
    list_remove(&fence->ready);
    list_remove(&fence->all);
    ZG_CHECK(table->fences_count > 0);
    table->fences_count--;
}

static bool slot_is_unused(const struct fence_at_slot *at_slot)
{
    return !slot_is_blocked(at_slot) && at_slot->key_fences_count == 0 && at_slot->out_count == 0 && queue_is_empty(&at_slot->again) &&
        queue_is_empty(&at_slot->first);
}

static void slot_destroy(struct fence_table *table, struct fence_at_slot *at_slot)
{
    ZG_CHECK(slot_is_unused(at_slot) && table->state->at_slot[at_slot->slot] == at_slot);
    fence_end(table, &at_slot->whole);
    table->state->at_slot[at_slot->slot] = NULL;
    pool_put(&table->state->slots, &at_slot);
}

static void key_fence_destroy(struct fence_table *table, struct fence *fence)
{
    struct fence **link = key_bucket(table->state, fence->at_slot->slot, fence->key_hash);
    while (*link != fence) {
        ZG_CHECK(*link);
        link = &(*link)->hash_next;
    }
    *link = fence->hash_next;
    ZG_CHECK(fence->at_slot->key_fences_count > 0);
    fence->at_slot->key_fences_count--;
    fence_end(table, fence);
    pool_put(&table->state->keys, &fence);
}

/* Takes back a fence that was made for something that then did not fit. */
static void fence_discard_unused(struct fence_table *table, struct fence *fence)
{
    struct fence_at_slot *at_slot = fence->at_slot;
    if (fence != &at_slot->whole)
        key_fence_destroy(table, fence);
    if (slot_is_unused(at_slot) && !list_is_linked(&at_slot->whole.ready))
        slot_destroy(table, at_slot);
}

/* The fence, made where there is none (*is_new); NULL where there is no room for it. */
static struct fence *find_or_create_fence(
    struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, bool *is_new)
{
    struct fence_state *state = table->state;
    struct fence *fence = find_fence(state, scope, slot, key_hash);
    *is_new = !fence;
    if (fence)
        return fence;
    struct fence_at_slot *at_slot = state->at_slot[slot];
    uint32_t needed = (at_slot ? 0u : 1u) + (scope == FENCE_KEY ? 1u : 0u);
    if (needed > table->fences_max - table->fences_count)
        return NULL;
    if (!at_slot) {
        at_slot = pool_get(&state->slots);
        ZG_CHECK(at_slot); /* the pools have room for fences_max each */
        at_slot->slot = slot;
        fence_start(table, &at_slot->whole, at_slot, 0);
        state->at_slot[slot] = at_slot;
    }
    if (scope == FENCE_SLOT)
        return &at_slot->whole;
    fence = pool_get(&state->keys);
    ZG_CHECK(fence);
    fence_start(table, fence, at_slot, key_hash);
    struct fence **bucket = key_bucket(state, slot, key_hash);
    fence->hash_next = *bucket;
    *bucket = fence;
    at_slot->key_fences_count++;
    return fence;
}

static struct fence_link *find_link(struct fence_state *state, uint64_t link_key)
{
    struct fence_link *link = *link_bucket(state, link_key);
    while (link && link->link_key != link_key)
        link = link->hash_next;
    return link;
}

static void link_destroy(struct fence_state *state, struct fence_link *link)
{
    ZG_CHECK(list_is_empty(&link->dependencies));
    struct fence_link **place = link_bucket(state, link->link_key);
    while (*place != link) {
        ZG_CHECK(*place);
        place = &(*place)->hash_next;
    }
    *place = link->hash_next;
    pool_put(&state->links, &link);
}

/* Keeps the list of the link ascending; a raise nearly always has the highest number so far. */
static void link_insert(struct fence_link *link, struct fence_dependency *dependency)
{
    struct list_node *at = link->dependencies.prev;
    while (at != &link->dependencies && LIST_ENTRY(at, struct fence_dependency, of_link)->seq > dependency->seq)
        at = at->prev;
    list_push_back(at->next, &dependency->of_link);
}

/* The fence stays up until the link has answered seq. False: no room. */
static bool fence_depend(struct fence_table *table, struct fence *fence, uint64_t link_key, uint64_t seq)
{
    struct fence_state *state = table->state;
    ZG_CHECK(link_key != 0 && seq < UINT64_MAX);
    for (struct list_node *node = fence->dependencies.next; node != &fence->dependencies; node = node->next) {
        struct fence_dependency *dependency = LIST_ENTRY(node, struct fence_dependency, of_fence);
        if (dependency->link->link_key != link_key)
            continue;
        if (seq > dependency->seq) {
            dependency->seq = seq;
            list_remove(&dependency->of_link);
            link_insert(dependency->link, dependency);
        }
        return true;
    }
    struct fence_dependency *dependency = pool_get(&state->dependencies);
    if (!dependency)
        return false;
    struct fence_link *link = find_link(state, link_key);
    if (!link) {
        link = pool_get(&state->links);
        if (!link) {
            pool_put(&state->dependencies, &dependency);
            return false;
        }
        link->link_key = link_key;
        list_init(&link->dependencies);
        struct fence_link **bucket = link_bucket(state, link_key);
        link->hash_next = *bucket;
        *bucket = link;
    }
    dependency->fence = fence;
    dependency->link = link;
    dependency->seq = seq;
    list_init(&dependency->of_link);
    list_init(&dependency->of_fence);
    list_push_back(&fence->dependencies, &dependency->of_fence);
    link_insert(link, dependency);
    table->dependencies_count++;
    return true;
}

static void dependency_destroy(struct fence_table *table, struct fence_dependency *dependency)
{
    list_remove(&dependency->of_fence);
    list_remove(&dependency->of_link);
    ZG_CHECK(table->dependencies_count > 0);
    table->dependencies_count--;
    pool_put(&table->state->dependencies, &dependency);
}

static void make_ready(struct fence_state *state, struct fence *fence)
{
    if (!list_is_linked(&fence->ready))
        list_push_back(&state->ready, &fence->ready);
}

static void waiter_leaves(struct fence_table *table)
{
    ZG_CHECK(table->waiters_count > 0);
    table->waiters_count--;
}

static void emit_first_waiter(struct fence_table *table, struct fence *fence)
{
    struct fence_waiter *waiter = queue_pop(&fence->waiters);
    waiter_leaves(table);
    fence->is_emitting = true;
    table->ops->emit(table->context, waiter);
    fence->is_emitting = false;
}

/* A key fence may have come down: lets its waiters go, unless the slot is fenced; then they wait on as the oldest of the slot. */
static void work_key_fence(struct fence_table *table, struct fence *fence)
{
    struct fence_at_slot *at_slot = fence->at_slot;
    while (!fence_is_up(fence) && !fence_is_up(&at_slot->whole) && !queue_is_empty(&fence->waiters))
        emit_first_waiter(table, fence);
    if (fence_is_up(fence))
        return;
    queue_prepend(&at_slot->whole.waiters, &fence->waiters);
    key_fence_destroy(table, fence);
    make_ready(table->state, &at_slot->whole);
}

/* Once none is out, redirected legs go in order, as many as go to one node. What comes back from now on is older than what is left. */
static void emit_redirects(struct fence_table *table, struct fence_at_slot *at_slot)
{
    if (at_slot->out_count > 0)
        return;
    queue_prepend(&at_slot->first, &at_slot->again);
    while (!queue_is_empty(&at_slot->first) && queue_is_empty(&at_slot->again)) {
        uint64_t target = table->ops->target_of(table->context, at_slot->first.head);
        if (at_slot->out_count > 0 && target != at_slot->target)
            return;
        struct fence_waiter *leg = queue_pop(&at_slot->first);
        waiter_leaves(table);
        at_slot->target = target;
        at_slot->out_count++;
        table->ops->emit_redirect(table->context, leg);
    }
}

static void work_slot(struct fence_table *table, struct fence_at_slot *at_slot)
{
    emit_redirects(table, at_slot);
    while (!fence_is_up(&at_slot->whole) && at_slot->key_fences_count == 0 && !queue_is_empty(&at_slot->whole.waiters))
        emit_first_waiter(table, &at_slot->whole);
    if (slot_is_unused(at_slot))
        slot_destroy(table, at_slot);
}

/* Works off what is ready. Called from within a callback it does nothing: the outer call goes on. Each round ends a fence, or lets a
 * leg go. */
static void drain(struct fence_table *table)
{
    struct fence_state *state = table->state;
    if (state->is_draining)
        return;
    state->is_draining = true;
    struct list_node *node;
    while ((node = list_pop_front(&state->ready))) {
        struct fence *fence = LIST_ENTRY(node, struct fence, ready);
        if (fence == &fence->at_slot->whole)
            work_slot(table, fence->at_slot);
        else
            work_key_fence(table, fence);
    }
    state->is_draining = false;
}

static enum fence_verdict full(struct fence_table *table)
{
    table->full_count++;
    return FENCE_FULL;
}

static enum fence_verdict wait_in(struct fence_table *table, struct waiter_queue *queue, struct fence_waiter *waiter)
{
    if (table->waiters_count >= table->waiters_max)
        return full(table);
    table->waiters_count++;
    table->waited_count++;
    queue_push(queue, waiter);
    return FENCE_WAIT;
}

void fence_table_init(struct fence_table *table, uint32_t waiters_max, uint32_t fences_max, const struct fence_ops *ops, void *context)
{
    ZG_CHECK(waiters_max >= 1 && waiters_max <= WAITERS_LIMIT && fences_max >= 1 && fences_max <= FENCES_LIMIT);
    ZG_CHECK(ops && ops->emit && ops->emit_redirect && ops->target_of);
    *table = (struct fence_table){.ops = ops,
        .context = context,
        .waiters_max = waiters_max,
        .fences_max = fences_max,
        .dependencies_max = fences_max * DEPENDENCIES_PER_FENCE};
    struct fence_state *state = alloc_zeroed(sizeof *state);
    table->state = state;
    pool_init(
        &state->slots, "fence slots", sizeof(struct fence_at_slot), fences_max < FENCE_SLOTS_COUNT ? fences_max : FENCE_SLOTS_COUNT);
    pool_init(&state->keys, "fences", sizeof(struct fence), fences_max);
    pool_init(&state->dependencies, "fence dependencies", sizeof(struct fence_dependency), table->dependencies_max);
    pool_init(&state->links, "fence links", sizeof(struct fence_link),
        table->dependencies_max < LINKS_MAX ? table->dependencies_max : LINKS_MAX);
    list_init(&state->all);
    list_init(&state->ready);
    uint32_t buckets_count = 64;
    while (buckets_count < fences_max && buckets_count < KEY_BUCKETS_MAX)
        buckets_count *= 2;
    state->key_buckets_mask = buckets_count - 1;
    state->key_buckets = alloc_zeroed(buckets_count * sizeof(struct fence *));
}

void fence_table_fini(struct fence_table *table)
{
    struct fence_state *state = table->state;
    ZG_CHECK(table->waiters_count == 0 && !state->is_draining);
    for (uint32_t i = 0; i < LINK_BUCKETS_COUNT; i++) {
        struct fence_link *link;
        while ((link = state->link_buckets[i])) {
            while (!list_is_empty(&link->dependencies))
                dependency_destroy(table, LIST_ENTRY(link->dependencies.next, struct fence_dependency, of_link));
            link_destroy(state, link);
        }
    }
    /* Key fences first: a slot is destroyed when it has none left. */
    for (struct list_node *node = state->all.next, *next; node != &state->all; node = next) {
        next = node->next;
        struct fence *fence = LIST_ENTRY(node, struct fence, all);
        fence->holds_count = 0;
        if (fence != &fence->at_slot->whole)
            key_fence_destroy(table, fence);
    }
    while (!list_is_empty(&state->all)) {
        struct fence_at_slot *at_slot = LIST_ENTRY(state->all.next, struct fence, all)->at_slot;
        at_slot->out_count = 0;
        slot_destroy(table, at_slot);
    }
    pool_fini(&state->slots);
    pool_fini(&state->keys);
    pool_fini(&state->dependencies);
    pool_fini(&state->links);
    alloc_free(state->key_buckets);
    alloc_free(state);
    *table = (struct fence_table){0};
}

enum fence_verdict fence_admit(struct fence_table *table, uint16_t slot, uint32_t key_hash, struct fence_waiter *waiter)
{
    ZG_CHECK(slot < FENCE_SLOTS_COUNT);
    struct fence_at_slot *at_slot = table->state->at_slot[slot];
    if (!at_slot)
        return FENCE_PASS;
    if (slot_is_blocked(at_slot) || (key_hash == 0 && at_slot->key_fences_count > 0))
        return wait_in(table, &at_slot->whole.waiters, waiter);
    struct fence *fence = key_hash != 0 ? find_fence(table->state, FENCE_KEY, slot, key_hash) : NULL;
    /* A fence that is down but still there is about to let its waiters go: the new leg is behind them. */
    return fence ? wait_in(table, &fence->waiters, waiter) : FENCE_PASS;
}

enum fence_verdict fence_raise(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, uint64_t link_key,
    uint64_t link_seq, uint64_t answered_seq)
{
    ZG_CHECK(slot < FENCE_SLOTS_COUNT && scope != FENCE_NONE);
    if (answered_seq >= link_seq)
        return FENCE_PASS;
    bool is_new;
    struct fence *fence = find_or_create_fence(table, scope_of(scope, key_hash), slot, key_hash, &is_new);
    if (!fence)
        return full(table);
    const bool was_up = fence_is_up(fence);
    if (!fence_depend(table, fence, link_key, link_seq)) {
        if (is_new)
            fence_discard_unused(table, fence);
        return full(table);
    }
    table->raised_count += was_up ? 0u : 1u;
    return FENCE_WAIT;
}

/* Drops one hold of the fence of a scope; a leg that was out is no longer counted as such. */
static void drop_hold(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, enum hold hold)
{
    struct fence *fence = find_fence(table->state, scope_of(scope, key_hash), slot, key_hash);
    ZG_CHECK(fence && fence->holds_count > 0 && (hold == HOLD_PAUSED || fence->at_slot->out_count > 0));
    struct fence_at_slot *at_slot = fence->at_slot;
    fence->holds_count--;
    at_slot->out_count -= hold == HOLD_OUT ? 1u : 0u;
    if (!fence_is_up(fence))
        make_ready(table->state, fence);
    if (at_slot->out_count == 0)
        make_ready(table->state, &at_slot->whole);
}

/* Raises the fence, with its dependency. NULL: no room, nothing has changed. */
static struct fence *raise_for(struct fence_table *table, const struct fence_redirect *redirect)
{
    bool is_new;
    ZG_CHECK(redirect->slot < FENCE_SLOTS_COUNT && redirect->scope != FENCE_NONE);
    struct fence *fence =
        find_or_create_fence(table, scope_of(redirect->scope, redirect->key_hash), redirect->slot, redirect->key_hash, &is_new);
    if (!fence)
        return NULL;
    const bool was_up = fence_is_up(fence);
    if (redirect->answered_seq < redirect->link_seq && !fence_depend(table, fence, redirect->link_key, redirect->link_seq)) {
        if (is_new)
            fence_discard_unused(table, fence);
        return NULL;
    }
    table->raised_count += was_up ? 0u : 1u;
    return fence;
}

/* The leg has held `held` as `hold` says, and now goes to a node or waits for it. */
static enum fence_verdict leave(
    struct fence_table *table, const struct fence_redirect *redirect, enum hold hold, struct fence_waiter *leg)
{
    ZG_CHECK(redirect->slot < FENCE_SLOTS_COUNT);
    struct fence_at_slot *at_slot = table->state->at_slot[redirect->slot];
    const uint32_t others_out = at_slot ? at_slot->out_count - (hold == HOLD_OUT ? 1u : 0u) : 0;
    const bool must_wait = at_slot &&
        (!queue_is_empty(&at_slot->again) || !queue_is_empty(&at_slot->first) || (others_out > 0 && at_slot->target != redirect->target));
    if (must_wait && table->waiters_count >= table->waiters_max)
        return full(table);
    struct fence *fence = raise_for(table, redirect);
    if (!fence)
        return full(table);
    at_slot = fence->at_slot;
    fence->holds_count++;
    if (hold != HOLD_NONE)
        drop_hold(table, redirect->held, redirect->slot, redirect->key_hash, hold);
    enum fence_verdict verdict = FENCE_PASS;
    if (must_wait) {
        verdict = wait_in(table, hold == HOLD_OUT ? &at_slot->again : &at_slot->first, leg);
        if (at_slot->out_count == 0)
            make_ready(table->state, &at_slot->whole);
    } else {
        at_slot->target = redirect->target;
        at_slot->out_count++;
    }
    drain(table);
    return verdict;
}

enum fence_verdict fence_redirect(struct fence_table *table, const struct fence_redirect *redirect, struct fence_waiter *leg)
{
    return leave(table, redirect, redirect->held == FENCE_NONE ? HOLD_NONE : HOLD_OUT, leg);
}

enum fence_verdict fence_pause(struct fence_table *table, const struct fence_redirect *redirect)
{
    struct fence *fence = raise_for(table, redirect);
    if (!fence)
        return full(table);
    fence->holds_count++;
    if (redirect->held != FENCE_NONE)
        drop_hold(table, redirect->held, redirect->slot, redirect->key_hash, HOLD_OUT);
    drain(table);
    return FENCE_PASS;
}

enum fence_verdict fence_resume(struct fence_table *table, const struct fence_redirect *redirect, struct fence_waiter *leg)
{
    ZG_CHECK(redirect->held != FENCE_NONE);
    return leave(table, redirect, HOLD_PAUSED, leg);
}

void fence_release_paused(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash)
{
    drop_hold(table, scope, slot, key_hash, HOLD_PAUSED);
    drain(table);
}

void fence_release(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash)
{
    drop_hold(table, scope, slot, key_hash, HOLD_OUT);
    drain(table);
}

void fence_link_answered(struct fence_table *table, uint64_t link_key, uint64_t answered_seq)
{
    struct fence_state *state = table->state;
    struct fence_link *link = find_link(state, link_key);
    if (!link)
        return;
    while (!list_is_empty(&link->dependencies)) {
        struct fence_dependency *dependency = LIST_ENTRY(link->dependencies.next, struct fence_dependency, of_link);
        if (dependency->seq > answered_seq)
            break;
        struct fence *fence = dependency->fence;
        dependency_destroy(table, dependency);
        if (!fence_is_up(fence))
            make_ready(state, fence);
    }
    if (list_is_empty(&link->dependencies))
        link_destroy(state, link);
    drain(table);
}

/* Moves the expired ones of a queue to `expired`. Returns how many. */
static uint32_t take_expired(struct waiter_queue *queue, bool (*is_expired)(void *context, const struct fence_waiter *waiter),
    void *context, struct waiter_queue *expired)
{
    uint32_t taken = 0;
    struct waiter_queue kept = {0};
    while (!queue_is_empty(queue)) {
        struct fence_waiter *waiter = queue_pop(queue);
        const bool is_over = is_expired(context, waiter);
        queue_push(is_over ? expired : &kept, waiter);
        taken += is_over ? 1u : 0u;
    }
    *queue = kept;
    return taken;
}

uint32_t fence_expire(struct fence_table *table, bool (*is_expired)(void *context, const struct fence_waiter *waiter),
    void (*expired)(void *context, struct fence_waiter *waiter, bool redirected), void *context)
{
    struct fence_state *state = table->state;
    struct waiter_queue plain = {0};
    struct waiter_queue redirected = {0};
    uint32_t taken = 0;
    if (table->waiters_count == 0)
        return 0;
    for (struct list_node *node = state->all.next; node != &state->all; node = node->next) {
        struct fence *fence = LIST_ENTRY(node, struct fence, all);
        taken += take_expired(&fence->waiters, is_expired, context, &plain);
        struct fence_at_slot *at_slot = fence->at_slot;
        if (fence != &at_slot->whole)
            continue;
        /* They count as out until they are released, as if they had been sent. */
        const uint32_t legs = take_expired(&at_slot->again, is_expired, context, &redirected) +
            take_expired(&at_slot->first, is_expired, context, &redirected);
        at_slot->out_count += legs;
        taken += legs;
    }
    ZG_CHECK(taken <= table->waiters_count);
    table->waiters_count -= taken;
    /* What the callbacks set free goes when all of them have been called. */
    const bool was_draining = state->is_draining;
    state->is_draining = true;
    while (!queue_is_empty(&plain))
        expired(context, queue_pop(&plain), false);
    while (!queue_is_empty(&redirected))
        expired(context, queue_pop(&redirected), true);
    state->is_draining = was_draining;
    drain(table);
    return taken;
}
