/*
 * Owns: what a data core believes about slots and nodes: the adopted topology and what redirects said since. Runs on: that core.
 */
#include <string.h>

#include "shard/owner.h"

enum { BATCH_SWEEP_SECONDS = 10, BATCH_IDLE_SWEEPS = 6 };

bool dispatcher_node_address(const struct dispatcher *dispatcher, uint32_t node_key, const struct sockaddr **address, socklen_t *bytes)
{
    if ((node_key & FOREIGN_NODE_BIT) != 0) {
        uint32_t index = node_key & ~FOREIGN_NODE_BIT;
        if (index >= dispatcher->foreign_count)
            return false;
        *address = (const struct sockaddr *)&dispatcher->foreign[index].address;
        *bytes = dispatcher->foreign[index].address_bytes;
        return true;
    }
    const struct node *node = topology_node_of_key(dispatcher->topology, node_key);
    if (node == NULL || node->address_bytes == 0)
        return false;
    *address = (const struct sockaddr *)&node->address;
    *bytes = node->address_bytes;
    return true;
}

static void acknowledge(struct dispatcher *dispatcher)
{
    struct core *core = dispatcher->core;
    struct msg *msg = mailbox_reserve(core->mailbox, core->shared->data_cores, CLASS_CONTROL);
    dispatcher->ack_pending = msg == NULL;
    if (msg == NULL)
        return;
    struct msg_ack body = {.epoch = dispatcher->topology->epoch};
    msg->kind = MSG_ACK;
    memcpy(msg->body, &body, sizeof(body));
}

/* The slot's route becomes the topology's, behind a fence. Without room for that the former one stays, as a redirect's would: what goes there comes back by MOVED. */
static void adopt_route(struct dispatcher *dispatcher, uint16_t slot, const struct topology *topology)
{
    uint32_t former = dispatcher->routes[slot];
    const struct node *node = topology_primary(topology, slot);
    uint32_t next = node != NULL ? node->key : 0;
    if (former == next)
        return;
    if (former == 0 || owner_raise(dispatcher, slot, former) || topology_node_of_key(topology, former) == NULL)
        dispatcher->routes[slot] = next;
}

void adopt_topology(struct dispatcher *dispatcher, const struct topology *topology)
{
    struct core *core = dispatcher->core;
    ZG_CHECK(dispatcher->topology == NULL || topology->epoch > dispatcher->topology->epoch);
    owner_flush(dispatcher, true); /* seq_sent of each link counts everything before the change */
    for (uint32_t slot = 0; slot < topology->slots_count; slot++)
        adopt_route(dispatcher, (uint16_t)slot, topology);
    dispatcher->topology = topology;
    node_health_adopt(dispatcher, topology);
    metric_set(core->metrics, METRIC_topology_epoch, topology->epoch);
    /* Ready with the first whole view, and for good: a slot that is lost later is an error of its own. */
    dispatcher->net->session_env.is_ready = dispatcher->net->session_env.is_ready || topology_is_complete(topology);
    acknowledge(dispatcher);
}

/* Links to nodes of which this core owns a slot stay; so does what a redirect opened a moment ago. */
static bool keep_link(void *context, const struct link *link)
{
    const struct dispatcher *dispatcher = context;
    uint32_t node_key = link->node_key;
    if ((node_key & FOREIGN_NODE_BIT) != 0)
        return false;
    const struct topology *topology = dispatcher->topology;
    for (uint32_t i = 0; i < topology->shards_count; i++) {
        const struct shard *shard = &topology->shards[i];
        if (shard->primary != NODE_NONE && shard->slots_count > 0 && topology->nodes[shard->primary].key == node_key)
            return shard->owner == dispatcher->core->id;
    }
    return false;
}

void dispatcher_tick(struct dispatcher *dispatcher)
{
    if (dispatcher->ack_pending)
        acknowledge(dispatcher);
    link_pool_tick(&dispatcher->links);
    redirect_see_requests(dispatcher);
    node_health_tick(dispatcher);
    owner_expire(dispatcher);
}

void dispatcher_tick_slow(struct dispatcher *dispatcher)
{
    if (dispatcher->topology != NULL)
        link_pool_prune(&dispatcher->links, keep_link, dispatcher);
    /* It looks at every place of the map. */
    if (dispatcher->core->now_ms / 1000 % BATCH_SWEEP_SECONDS == 0)
        batch_map_sweep(&dispatcher->batches, BATCH_IDLE_SWEEPS);
}
