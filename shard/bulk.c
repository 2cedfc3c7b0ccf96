/*
 * Owns: legs that leave the channel of their key for a bulk link, so that nobody waits while a large command or a large value passes. Runs on: the owner core.
 *
 *     admitted ──► waits, as the first of its key's fence, until the shared link of its protocol has answered what was put on it before ──► bulk link, holding the fence ──► outcome: the fence is let go
 *
 * What a read will bring cannot be known before; so keys whose replies were large are remembered for a while (a small table, in which a newer key may take the place of an older one).
 *
 * Both directions of the order rest on the fence. What came before the leg is in front of it: it goes when the shared link has answered everything that it carried by then, and when whatever of that was redirected,
 * or is to be repeated, has its outcome (those hold the fence). What comes after waits behind it, and behind the hold that it has from its departure to its outcome, whatever becomes of it meanwhile: MOVED and ASK move
 * the hold, a pause keeps it, a lost link ends it or repeats the leg under it. So it is never out together with another leg of its key.
 */
#include "core/hash.h"
#include "shard/owner.h"

enum { LARGE_REPLY_FACTOR = 16 /* a reply so many times oversize_bytes is worth that its key's reads go one behind the other */ };

/* The place of a key among the large ones, and what stands there for it. */
static uint32_t large_key(uint16_t slot, uint32_t key_hash, uint32_t *tag)
{
    uint64_t hash = hash_u64((uint64_t)slot << 32 | key_hash);
    *tag = (uint32_t)(hash >> 32) | 1;
    return (uint32_t)hash & (LARGE_KEYS_MAX - 1);
}

bool bulk_remembers(const struct dispatcher *dispatcher, uint16_t slot, uint32_t key_hash)
{
    uint32_t tag;
    return dispatcher->large_keys_count > 0 && dispatcher->large_keys[large_key(slot, key_hash, &tag)] == tag;
}

void bulk_note_reply(struct dispatcher *dispatcher, const struct leg *leg, uint64_t reply_bytes)
{
    uint64_t limit = dispatcher->core->config->limits.oversize_bytes;
    bool is_large = reply_bytes >= limit * LARGE_REPLY_FACTOR;
    if (__builtin_expect(!is_large && !channel_is_bulk(leg->channel), 1))
        return;
    if ((leg->flags & (LEG_READONLY | LEG_CHILD)) != LEG_READONLY || leg->key_hash == 0)
        return;
    uint32_t tag;
    uint32_t *place = &dispatcher->large_keys[large_key(leg->slot, leg->key_hash, &tag)];
    if (is_large) {
        dispatcher->large_keys_count += *place == 0;
        *place = tag;
    } else if (*place == tag) {
        dispatcher->large_keys_count--;
        *place = 0;
    }
}

bool bulk_is_wanted(const struct dispatcher *dispatcher, const struct leg *leg, uint32_t length)
{
    if (length <= dispatcher->core->config->limits.oversize_bytes)
        return (leg->flags & LEG_READONLY) != 0 && leg->key_hash != 0 && bulk_remembers(dispatcher, leg->slot, leg->key_hash);
    /* Several keys fence their slot, which is a small part of a cluster, but everything of a standalone server. */
    return leg->key_hash != 0 || dispatcher->topology->kind == BACKEND_CLUSTER;
}

/* Waits until the shared link has answered what is on it and in its batch. WAIT: the fence has it. FULL: no room. PASS: there is nothing to wait for. */
static enum fence_verdict wait_for_shared(struct dispatcher *dispatcher, struct leg *leg)
{
    uint32_t node_key = dispatcher_route(dispatcher, leg->slot);
    owner_settle(dispatcher, node_key, leg->channel);
    const struct link *link = link_pool_find(&dispatcher->links, node_key, leg->channel);
    if (link == NULL)
        return FENCE_PASS;
    enum fence_verdict verdict =
        fence_wait_first(&dispatcher->fences, FENCE_KEY, leg->slot, leg->key_hash, link->key, link->seq_sent, link->seq_answered, waiter_of_leg(leg));
    metric_add(dispatcher->core->metrics, METRIC_fences_raised_total, verdict == FENCE_WAIT);
    return verdict;
}

bool bulk_depart(struct dispatcher *dispatcher, struct leg *leg, bool *waits)
{
    *waits = false;
    if (!channel_is_bulk(leg->channel)) {
        enum fence_verdict verdict = wait_for_shared(dispatcher, leg);
        if (verdict == FENCE_FULL)
            return false;
        metric_add(dispatcher->core->metrics, METRIC_legs_bulk_total, 1);
        leg->channel |= CHANNEL_BULK;
        *waits = verdict == FENCE_WAIT;
        if (*waits)
            return true;
    }
    /* Everything of its key that came before it has its outcome. */
    enum fence_verdict verdict = redirect_go_home(dispatcher, leg);
    *waits = verdict == FENCE_WAIT;
    if (verdict != FENCE_FULL)
        return true;
    leg->channel = channel_protocol(leg->channel);
    return false;
}
