/*
 * Fences: what keeps the order of a key when legs leave their channel. A channel is (owner core, link to the node of the slot): its FIFO
 * orders everything for a key. A leg that leaves it - redirected by MOVED or ASK, to be repeated after TRYAGAIN, of a slot whose node
 * has changed - puts a fence in the way of later legs, which wait until the old link has answered what was sent on it before, and every
 * redirected leg has its outcome. DESIGN: docs/architecture.md, "Order". One table a core (and a backend); not thread-safe.
 *
 * The rules for the caller:
 *  - Every new leg with a key asks fence_admit before it is put into a batch. A leg that was emitted has passed: it does not ask again.
 *  - A leg answered by MOVED (FENCE_SLOT) or ASK (FENCE_KEY) calls fence_redirect; PASS: it is sent now, WAIT: emit_redirect is called
 *    for it later. It remembers the scope, and holds the fence until its outcome: exactly one fence_release, whatever the outcome is
 *    (an error, a time-out of the leg, an expiry). Redirected again it calls fence_redirect with `held` set, and owes still one
 *    release, of the new scope. FULL: nothing has changed (what it held before is still held); it is answered with an error, after
 *    which later legs go on.
 *  - A leg that will be repeated after a pause (TRYAGAIN, CLUSTERDOWN and the like; FENCE_SLOT where it has several keys) calls
 *    fence_pause, and when the pause is over fence_resume. If it has its outcome within the pause, fence_release_paused takes the place
 *    of both.
 *  - Before the locator's node for a slot changes on this core (MOVED: after fence_redirect; a new snapshot), fence_raise is called for
 *    the slot and every link of this core to the former node (both protocols) that has unanswered legs. On FULL, of fence_redirect too,
 *    the locator keeps the former node for now: legs go there behind the others and are answered by MOVED. Order is kept, only later.
 *  - A link that is lost: its legs are failed or, in their order, redirected to the node of the slot, without a dependency (answered_seq
 *    = link_seq); also those that hold nothing, unless the table is empty. Then fence_link_gone.
 *  - A link reports by fence_link_progress once for each batch of replies, and by fence_link_gone when it has closed and its legs are
 *    answered.
 *
 * What cannot be helped: legs for the same key that are already in flight behind a leg that gets TRYAGAIN, or a slot that comes back to
 * the old node while legs from before it left are still in its socket, take effect before the repeated leg, as they would with any
 * pipelining client.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/check.h"

enum { FENCE_SLOTS_COUNT = 16384 };

enum fence_scope {
    FENCE_NONE, /* of a leg: holds nothing */
    FENCE_KEY,  /* with key_hash 0 taken as FENCE_SLOT */
    FENCE_SLOT,
};

enum fence_verdict {
    FENCE_PASS,
    FENCE_WAIT,
    FENCE_FULL, /* a maximum of the table is reached (counted) */
};

/* The link of what waits: for a struct leg its `next`, (struct fence_waiter *)(void *)&leg->next and back by LIST_ENTRY(waiter, struct
 * leg, next); free for other lists while the leg is not waiting. The attribute permits that a pointer of another type lies there. */
struct fence_waiter {
    struct fence_waiter *next;
} __attribute__((may_alias));

/* `emit` is called from within release, progress, gone and expire; fence_redirect may let other redirected legs go, and even the leg
 * itself where the verdict is WAIT: then it is not to be touched any more. Never from within admit and raise. All functions of the table
 * but init and fini may be called from inside; what they set free is emitted when the callback has returned. Emitted one by one in the
 * order of arrival; those not yet emitted stay ahead of new arrivals. A callback puts its leg into the batch before it does anything
 * else. */
struct fence_ops {
    /* A new leg may go: to the node the locator names now. */
    void (*emit)(void *context, struct fence_waiter *waiter);
    /* A redirected leg that had to wait may go, to target_of. */
    void (*emit_redirect)(void *context, struct fence_waiter *waiter);
    /* Where a waiting redirected leg is to go by now: as a new leg would, without ASKING, since what MOVED or ASK said may be out of date. A number of its own: it is to go alone. Calls nothing of the table. */
    uint64_t (*target_of)(void *context, struct fence_waiter *waiter);
};

struct fence;
struct fence_at_slot;
struct fence_dependency;
struct fence_link;

struct fence_table {
    const struct fence_ops *ops;
    void *context;
    uint32_t fences_count;       /* key fences and slots with any fence; 0: nothing to look up */
    uint32_t dependencies_count; /* (fence, link) pairs not yet answered */
    uint32_t waiters_count;
    uint32_t waiters_max;
    uint32_t fences_max;
    uint32_t dependencies_max;
    uint64_t full_count;       /* FENCE_FULL verdicts */
    uint64_t raised_count;     /* fences that came into being */
    uint64_t waited_count;     /* legs that had to wait */
    struct fence_state *state; /* tables and free lists, in fence.c */
};

/* waiters_max: legs waiting at once, 1 .. 2^24. fences_max: fences at once, 1 .. 2^20; memory is touched as it is needed and then kept.
 * `ops` lives as long as the table. */
void fence_table_init(struct fence_table *table, uint32_t waiters_max, uint32_t fences_max, const struct fence_ops *ops, void *context);
/* No leg may be waiting; fences may still be up. */
void fence_table_fini(struct fence_table *table);

/* The fast path of a healthy cluster: where it is true fence_admit need not be called. */
static inline bool fence_table_is_empty(const struct fence_table *table) { return table->fences_count == 0; }

/* Nothing of the slot is fenced and nothing waits there: a new leg for it would pass, whatever its keys are. */
bool fence_slot_is_clear(const struct fence_table *table, uint16_t slot) ZG_NODISCARD;

/* A new leg for `slot` (below FENCE_SLOTS_COUNT). key_hash: of its only key, never 0; 0: several keys of the slot, or a key that is not
 * known: waits for every fence of the slot, and while it waits, all new legs of the slot wait behind it. WAIT: the table holds `waiter`
 * until it is emitted. FULL: refused, to be shed. */
enum fence_verdict fence_admit(struct fence_table *table, uint16_t slot, uint32_t key_hash, struct fence_waiter *waiter) ZG_NODISCARD;

/* Raises or extends a fence by a dependency: new legs wait until link `link_key` (names one life of one link, not 0) has answered
 * `link_seq`, the number of the last command put on it. After fence_link_gone the link must not be named any more with answered_seq <
 * link_seq. PASS: it has already (answered_seq >= link_seq), nothing was raised. WAIT: raised. FULL: not raised; later legs for the slot
 * should then be refused or the link closed. */
enum fence_verdict fence_raise(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, uint64_t link_key,
    uint64_t link_seq, uint64_t answered_seq) ZG_NODISCARD;

/* The same for a leg that has just been admitted or emitted, and has to wait itself: it is the first that the fence will let go again. (Everything for its key that came before it is on that link, or holds a fence; what
 * waits came after it.) PASS: it need not wait, and nothing was raised. FULL: neither. */
enum fence_verdict fence_wait_first(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, uint64_t link_key,
    uint64_t link_seq, uint64_t answered_seq, struct fence_waiter *waiter) ZG_NODISCARD;

struct fence_redirect {
    enum fence_scope scope;
    enum fence_scope held; /* FENCE_NONE the first time, else the scope of the last fence_redirect of this leg */
    uint16_t slot;
    uint32_t key_hash;     /* as with fence_admit; the same in every call for a leg */
    uint64_t link_key;     /* where it came back from */
    uint64_t link_seq;     /* last command put on that link, by now */
    uint64_t answered_seq; /* last command answered there, at least up to this leg; >= link_seq: no dependency */
    uint64_t target;       /* the node it is to go to, any number but always the same for a node whichever link leads there */
};

/* A leg leaves its channel: raises the fence and holds it. PASS: to be sent to `target` at once. WAIT: other redirected legs of the
 * slot are still out at another node; emitted by emit_redirect. */
enum fence_verdict fence_redirect(
    struct fence_table *table, const struct fence_redirect *redirect, struct fence_waiter *leg) ZG_NODISCARD;

/* A leg leaves its channel and will go on later: raises the fence and holds it, out at no node. PASS, or FULL as above. `target` is not
 * used. */
enum fence_verdict fence_pause(struct fence_table *table, const struct fence_redirect *redirect) ZG_NODISCARD;

/* The pause is over: as fence_redirect with `held` as in fence_pause, but where it has to wait it goes last, and the dependency may be
 * none (answered_seq = link_seq). PASS, WAIT, or FULL: it is still paused. */
enum fence_verdict fence_resume(struct fence_table *table, const struct fence_redirect *redirect, struct fence_waiter *leg) ZG_NODISCARD;
void fence_release_paused(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash);

/* Whether redirected legs of the slot are out at a node, or wait to go to one; without the asking leg itself where `held` says that it is out. */
bool fence_has_redirected(const struct fence_table *table, uint16_t slot, enum fence_scope held) ZG_NODISCARD;

/* A leg that holds `scope` has its outcome. It must not be waiting in the table. */
void fence_release(struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash);

/* For fence_link_progress and fence_link_gone: use those. */
void fence_link_answered(struct fence_table *table, uint64_t link_key, uint64_t answered_seq);

/* The link has answered everything up to answered_seq. */
static inline void fence_link_progress(struct fence_table *table, uint64_t link_key, uint64_t answered_seq)
{
    if (__builtin_expect(table->dependencies_count != 0, 0))
        fence_link_answered(table, link_key, answered_seq);
}

/* The link is closed and all its legs have been answered, failed or redirected. */
static inline void fence_link_gone(struct fence_table *table, uint64_t link_key) { fence_link_progress(table, link_key, UINT64_MAX); }

/* Takes out every waiting leg for which is_expired says so, then calls `expired` for each; a redirected leg (`redirected`) still owes
 * its fence_release. O(waiting legs): for a periodic tick. Returns how many. */
uint32_t fence_expire(struct fence_table *table, bool (*is_expired)(void *context, const struct fence_waiter *waiter),
    void (*expired)(void *context, struct fence_waiter *waiter, bool redirected), void *context);
