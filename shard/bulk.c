/*
 * Owns: legs that leave the channel of their key for a bulk link, so that nobody waits while a large command or a large value passes. Runs on: the owner core.
 *
 *     admitted ──► departing: holds the fence of its key, paused ──► bulk link ──► outcome: the fence is let go
 *                  until the shared link of its protocol has answered what was put on it before
 *
 * Both directions of the order rest on the fence. What came before the leg is in front of it: it is admitted only when nothing of its key waits or is redirected, and departs only when the shared link has
 * answered everything that it carried by then. What comes after waits for the fence, which the leg holds from its departure to its outcome, whatever becomes of it meanwhile: MOVED and ASK move the hold,
 * a pause keeps it, a lost link ends it or repeats the leg under it. The bulk link of a node counts as a place of its own (leg_fence_target): redirected legs of one slot are never out on both links at once.
 */
#include "shard/owner.h"

bool bulk_is_wanted(const struct dispatcher *dispatcher, const struct leg *leg, uint32_t length)
{
    if (length <= dispatcher->core->config->limits.oversize_bytes)
        return false;
    /* Several keys fence their slot, which is a small part of a cluster, but everything of a standalone server. */
    return leg->key_hash != 0 || dispatcher->topology->kind == BACKEND_CLUSTER;
}

bool bulk_depart(struct dispatcher *dispatcher, struct leg *leg)
{
    struct fence_redirect pause = {
        .scope = leg->key_hash == 0 ? FENCE_SLOT : FENCE_KEY,
        .held = FENCE_NONE,
        .slot = leg->slot,
        .key_hash = leg->key_hash,
        .link_key = 1, /* no dependency: the leg itself waits for the shared link */
    };
    uint64_t raised_before = dispatcher->fences.raised_count;
    if (fence_pause(&dispatcher->fences, &pause) == FENCE_FULL)
        return false;
    metric_add(dispatcher->core->metrics, METRIC_fences_raised_total, dispatcher->fences.raised_count - raised_before);
    metric_add(dispatcher->core->metrics, METRIC_legs_bulk_total, 1);
    leg_set_held(leg, pause.scope);
    leg->flags |= LEG_PAUSED;
    uint8_t shared = leg->channel;
    leg->channel |= CHANNEL_BULK;
    /* What waits in the batch is before it as well. */
    uint32_t node_key = dispatcher_route(dispatcher, leg->slot);
    owner_settle(dispatcher, node_key, shared);
    struct link *link = link_pool_find(&dispatcher->links, node_key, shared);
    if (link == NULL || link->seq_answered == link->seq_sent) {
        redirect_resume(dispatcher, leg);
        return true;
    }
    /* The low half is enough: a link never has 2^31 legs without a reply. */
    leg->target = (uint32_t)link->seq_sent;
    leg_list_push(&link->departing, leg);
    return true;
}

static void go(struct dispatcher *dispatcher, struct leg *leg)
{
    leg->target = 0;
    if (leg_is_overdue(dispatcher, leg, 0))
        owner_fail(dispatcher, leg, STATUS_TIMEOUT);
    else
        redirect_resume(dispatcher, leg);
}

void bulk_progress(struct dispatcher *dispatcher, struct link *link)
{
    while (link->departing.head != NULL && (int32_t)((uint32_t)link->seq_answered - link->departing.head->target) >= 0)
        go(dispatcher, leg_list_pop(&link->departing));
}

void bulk_link_gone(struct dispatcher *dispatcher, struct link *link)
{
    struct leg *leg;
    while ((leg = leg_list_pop(&link->departing)) != NULL) {
        if (dispatcher->net->is_draining)
            owner_fail(dispatcher, leg, STATUS_NO_NODE);
        else
            go(dispatcher, leg);
    }
}
