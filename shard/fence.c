/*
 * Owns the fences of one core: which keys and slots new legs may not pass now, on which links and redirected legs that depends, and the
 * legs that wait.
 *
 *   key fence      new legs of one key wait in it            up while a dependency or a hold is left
 *   slot           `whole`: the fence of the whole slot      up while a dependency or a hold is left
 *                  whole.waiters: new legs behind it, and legs with several keys behind key fences, with everything for the slot that
 *                  came after them
 *                  again, first: redirected legs that may not go yet, because others of the slot are out at another node
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

#include "core/list.h"
#include "shard/fence_state.h"

/* How a leg that holds a fence stands: out at a node, or in a pause. */
enum hold { HOLD_NONE, HOLD_OUT, HOLD_PAUSED };

enum {
    DEPENDENCIES_PER_FENCE = 4, /* on average; usual are one or two */
    WAITERS_LIMIT = 1 << 24,
    FENCES_LIMIT = 1 << 20,
};

static inline enum fence_scope scope_of(enum fence_scope scope, uint32_t key_hash) { return key_hash == 0 ? FENCE_SLOT : scope; }

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
    struct fence_waiter *waiter = fence_queue_pop(&fence->waiters);
    waiter_leaves(table);
    fence->is_emitting = true;
    table->ops->emit(table->context, waiter);
    fence->is_emitting = false;
}

/* A key fence may have come down: lets its waiters go, unless the slot is fenced; then they wait on as the oldest of the slot. */
static void work_key_fence(struct fence_table *table, struct fence *fence)
{
    struct fence_at_slot *at_slot = fence->at_slot;
    while (!fence_is_up(fence) && !fence_is_up(&at_slot->whole) && !fence_queue_is_empty(&fence->waiters))
        emit_first_waiter(table, fence);
    if (fence_is_up(fence))
        return;
    fence_queue_prepend(&at_slot->whole.waiters, &fence->waiters);
    fence_state_destroy_key(table, fence);
    make_ready(table->state, &at_slot->whole);
}

/* Once none is out, redirected legs go in order, as many as go to one node. What comes back from now on is older than what is left. */
static void emit_redirects(struct fence_table *table, struct fence_at_slot *at_slot)
{
    if (at_slot->out_count > 0)
        return;
    fence_queue_prepend(&at_slot->first, &at_slot->again);
    while (!fence_queue_is_empty(&at_slot->first) && fence_queue_is_empty(&at_slot->again)) {
        uint64_t target = table->ops->target_of(table->context, at_slot->first.head);
        if (at_slot->out_count > 0 && target != at_slot->target)
            return;
        struct fence_waiter *leg = fence_queue_pop(&at_slot->first);
        waiter_leaves(table);
        at_slot->target = target;
        at_slot->out_count++;
        table->ops->emit_redirect(table->context, leg);
    }
}

static void work_slot(struct fence_table *table, struct fence_at_slot *at_slot)
{
    emit_redirects(table, at_slot);
    while (!fence_is_up(&at_slot->whole) && at_slot->key_fences_count == 0 && !fence_queue_is_empty(&at_slot->whole.waiters))
        emit_first_waiter(table, &at_slot->whole);
    if (fence_slot_is_unused(at_slot))
        fence_state_destroy_slot(table, at_slot);
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

static enum fence_verdict wait_in(struct fence_table *table, struct fence_queue *queue, struct fence_waiter *waiter)
{
    if (table->waiters_count >= table->waiters_max)
        return full(table);
    table->waiters_count++;
    table->waited_count++;
    fence_queue_push(queue, waiter);
    return FENCE_WAIT;
}

void fence_table_init(struct fence_table *table, uint32_t waiters_max, uint32_t fences_max, const struct fence_ops *ops, void *context)
{
    ZG_CHECK(waiters_max >= 1 && waiters_max <= WAITERS_LIMIT && fences_max >= 1 && fences_max <= FENCES_LIMIT);
    ZG_CHECK(ops && ops->emit && ops->emit_redirect && ops->target_of);
    *table = (struct fence_table){
        .ops = ops,
        .context = context,
        .waiters_max = waiters_max,
        .fences_max = fences_max,
        .dependencies_max = fences_max * DEPENDENCIES_PER_FENCE,
    };
    table->state = fence_state_create(fences_max, table->dependencies_max);
}

void fence_table_fini(struct fence_table *table)
{
    ZG_CHECK(table->waiters_count == 0 && !table->state->is_draining);
    fence_state_destroy(table);
    *table = (struct fence_table){0};
}

bool fence_slot_is_clear(const struct fence_table *table, uint16_t slot)
{
    ZG_CHECK(slot < FENCE_SLOTS_COUNT);
    return fence_table_is_empty(table) || table->state->at_slot[slot] == NULL;
}

enum fence_verdict fence_admit(struct fence_table *table, uint16_t slot, uint32_t key_hash, struct fence_waiter *waiter)
{
    ZG_CHECK(slot < FENCE_SLOTS_COUNT);
    struct fence_at_slot *at_slot = table->state->at_slot[slot];
    if (!at_slot)
        return FENCE_PASS;
    if (fence_slot_is_blocked(at_slot) || (key_hash == 0 && at_slot->key_fences_count > 0))
        return wait_in(table, &at_slot->whole.waiters, waiter);
    struct fence *fence = key_hash != 0 ? fence_state_find(table->state, FENCE_KEY, slot, key_hash) : NULL;
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
    struct fence *fence = fence_state_find_or_create(table, scope_of(scope, key_hash), slot, key_hash, &is_new);
    if (!fence)
        return full(table);
    const bool was_up = fence_is_up(fence);
    if (!fence_state_depend(table, fence, link_key, link_seq)) {
        if (is_new)
            fence_state_discard_unused(table, fence);
        return full(table);
    }
    table->raised_count += was_up ? 0u : 1u;
    return FENCE_WAIT;
}

enum fence_verdict fence_wait_first(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, uint64_t link_key,
    uint64_t link_seq, uint64_t answered_seq, struct fence_waiter *waiter)
{
    if (answered_seq < link_seq && table->waiters_count >= table->waiters_max)
        return full(table);
    enum fence_verdict verdict = fence_raise(table, scope, slot, key_hash, link_key, link_seq, answered_seq);
    if (verdict != FENCE_WAIT)
        return verdict;
    struct fence *fence = fence_state_find(table->state, scope_of(scope, key_hash), slot, key_hash);
    ZG_CHECK(fence);
    struct fence_queue first = {0};
    fence_queue_push(&first, waiter);
    fence_queue_prepend(&fence->waiters, &first);
    table->waiters_count++;
    table->waited_count++;
    return FENCE_WAIT;
}

/* Drops one hold of the fence of a scope; a leg that was out is no longer counted as such. */
static void drop_hold(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, enum hold hold)
{
    struct fence *fence = fence_state_find(table->state, scope_of(scope, key_hash), slot, key_hash);
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
        fence_state_find_or_create(table, scope_of(redirect->scope, redirect->key_hash), redirect->slot, redirect->key_hash, &is_new);
    if (!fence)
        return NULL;
    const bool was_up = fence_is_up(fence);
    if (redirect->answered_seq < redirect->link_seq && !fence_state_depend(table, fence, redirect->link_key, redirect->link_seq)) {
        if (is_new)
            fence_state_discard_unused(table, fence);
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
    /* The only one that was out is older than any that could not go meanwhile: it goes on, or it might be sent back behind them for ever. */
    const bool is_alone = hold == HOLD_OUT && others_out == 0;
    const bool must_wait = at_slot &&
        (!fence_queue_is_empty(&at_slot->again) || (!fence_queue_is_empty(&at_slot->first) && !is_alone) || (others_out > 0 && at_slot->target != redirect->target));
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

bool fence_has_redirected(const struct fence_table *table, uint16_t slot, enum fence_scope held)
{
    ZG_CHECK(slot < FENCE_SLOTS_COUNT);
    const struct fence_at_slot *at_slot = table->state->at_slot[slot];
    return at_slot && (at_slot->out_count > (held == FENCE_NONE ? 0u : 1u) || !fence_queue_is_empty(&at_slot->again) || !fence_queue_is_empty(&at_slot->first));
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
    struct fence_link *link = fence_state_find_link(state, link_key);
    if (!link)
        return;
    while (!list_is_empty(&link->dependencies)) {
        struct fence_dependency *dependency = LIST_ENTRY(link->dependencies.next, struct fence_dependency, of_link);
        if (dependency->seq > answered_seq)
            break;
        struct fence *fence = dependency->fence;
        fence_state_destroy_dependency(table, dependency);
        if (!fence_is_up(fence))
            make_ready(state, fence);
    }
    if (list_is_empty(&link->dependencies))
        fence_state_destroy_link(state, link);
    drain(table);
}

/* Moves the expired ones of a queue to `expired`. Returns how many. */
static uint32_t take_expired(struct fence_queue *queue, bool (*is_expired)(void *context, const struct fence_waiter *waiter),
    void *context, struct fence_queue *expired)
{
    uint32_t taken = 0;
    struct fence_queue kept = {0};
    while (!fence_queue_is_empty(queue)) {
        struct fence_waiter *waiter = fence_queue_pop(queue);
        const bool is_over = is_expired(context, waiter);
        fence_queue_push(is_over ? expired : &kept, waiter);
        taken += is_over ? 1u : 0u;
    }
    *queue = kept;
    return taken;
}

uint32_t fence_expire(struct fence_table *table, bool (*is_expired)(void *context, const struct fence_waiter *waiter),
    void (*expired)(void *context, struct fence_waiter *waiter, bool redirected), void *context)
{
    struct fence_state *state = table->state;
    struct fence_queue plain = {0};
    struct fence_queue redirected = {0};
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
    while (!fence_queue_is_empty(&plain))
        expired(context, fence_queue_pop(&plain), false);
    while (!fence_queue_is_empty(&redirected))
        expired(context, fence_queue_pop(&redirected), true);
    state->is_draining = was_draining;
    drain(table);
    return taken;
}
