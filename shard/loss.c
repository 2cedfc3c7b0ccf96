/*
 * Owns: what becomes of the legs of a lost link: reads are repeated once or twice where no write of their slot was behind them and the retry budget allows it, everything else is answered. Runs on: the owner core.
 */
#include <string.h>

#include "shard/owner.h"

enum { LOST_RETRIES_MAX = 2 };

static void keep_behind(void *context, uint64_t name, struct leg_list *legs, struct block *chain)
{
    struct dispatcher *dispatcher = context;
    (void)name;
    dispatcher->lost.behind = *legs;
    dispatcher->lost.chain = chain;
}

/* The first leg of a link that is lost: what is not on it yet has to stay behind what is. */
static void begin_loss(struct dispatcher *dispatcher, const struct link *link)
{
    struct lost_link *lost = &dispatcher->lost;
    ZG_CHECK(lost->key == 0 && lost->behind.count == 0);
    lost->key = link->key;
    memset(lost->write_behind, 0, sizeof(lost->write_behind));
    uint32_t behind = link->fifo.count;
    for (const struct leg *leg = link->fifo.head; leg != NULL; leg = leg->next) {
        if (leg->action == LEG_FORWARD && (leg->flags & LEG_READONLY) == 0)
            lost->write_behind[leg->slot] = behind;
        behind -= leg_replies(leg);
    }
    struct batch *batch = batch_map_find(&dispatcher->batches, batch_name(USE_CASE_DEFAULT, link->node_key, link->channel));
    if (batch != NULL)
        batch_flush_one(batch, keep_behind, dispatcher);
}

/* A write behind it may have been done already: repeated, the read would see what came after it. By slot, which is more than needed, and cheap. */
static bool has_write_behind(const struct dispatcher *dispatcher, const struct link *link, const struct leg *leg)
{
    uint32_t behind = dispatcher->lost.write_behind[leg->slot];
    return behind != 0 && behind <= link->fifo.count;
}

void owner_lost(struct net *net, struct link *link, struct leg *leg, bool was_sent)
{
    struct dispatcher *dispatcher = net->owner;
    if (dispatcher->lost.key != link->key)
        begin_loss(dispatcher, link);
    bool may_repeat = !was_sent || ((leg->flags & LEG_READONLY) != 0 && !has_write_behind(dispatcher, link, leg));
    if (!may_repeat || leg->attempts >= LOST_RETRIES_MAX || leg_is_overdue(dispatcher, leg, 0) || net->is_draining || !redirect_may_retry(dispatcher)) {
        owner_fail(dispatcher, leg, was_sent ? STATUS_LINK_LOST : STATUS_NO_NODE);
        return;
    }
    leg->attempts++;
    leg->flags &= (uint8_t)~LEG_ASKING;
    leg->target = 0;
    dispatcher_ask_refresh(dispatcher, NULL);
    metric_add(dispatcher->core->metrics, METRIC_legs_retried_total, 1);
    redirect_lost(dispatcher, leg);
}

void owner_gone(struct net *net, struct link *link)
{
    struct dispatcher *dispatcher = net->owner;
    struct lost_link *lost = &dispatcher->lost;
    node_health_link_lost(dispatcher, link);
    if (lost->key == link->key) {
        lost->key = 0;
        struct leg_list behind = lost->behind;
        memset(&lost->behind, 0, sizeof(lost->behind));
        if (behind.count > 0) {
            owner_settle(dispatcher, link->node_key, link->channel);
            owner_flush_batch(dispatcher, batch_name(USE_CASE_DEFAULT, link->node_key, link->channel), &behind, lost->chain);
        }
    }
    fence_link_gone(&dispatcher->fences, link->key);
}
