/*
 * Owns: what a data core believes about slots and nodes: the adopted topology and what redirects said since. Runs on: that core.
 */
#include <string.h>

#include "shard/owner.h"

enum { BATCH_SWEEP_SECONDS = 10, BATCH_IDLE_SWEEPS = 6, BULK_IDLE_MS = 10000 };

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
    /* Where only owners have changed the routes are no newer than those adopted before, and older than what redirects said since. */
    bool has_new_view = dispatcher->topology == NULL || topology->view_epoch > dispatcher->topology->epoch;
    for (uint32_t slot = 0; has_new_view && slot < topology->slots_count; slot++)
        adopt_route(dispatcher, (uint16_t)slot, topology);
    dispatcher->topology = topology;
    node_health_adopt(dispatcher, topology);
    metric_set(core->metrics, METRIC_topology_epoch, topology->epoch);
    /* Ready with the first whole view, and for good: a slot that is lost later is an error of its own. */
    dispatcher->net->session_env.is_ready = dispatcher->net->session_env.is_ready || topology_is_complete(topology);
    acknowledge(dispatcher);
}

/* The nodes of which this core owns a slot, a bit each by index. */
struct needed {
    const struct topology *topology;
    uint64_t now_ms;
    uint64_t nodes[TOPOLOGY_NODES_MAX / 64];
};

static void find_needed(const struct dispatcher *dispatcher, struct needed *needed)
{
    const struct topology *topology = dispatcher->topology;
    memset(needed, 0, sizeof(*needed));
    needed->topology = topology;
    needed->now_ms = dispatcher->core->now_ms;
    for (uint32_t slot = 0; slot < topology->slots_count; slot++) {
        const struct node *primary = topology->slot_owner[slot] == dispatcher->core->id ? topology_primary(topology, slot) : NULL;
        if (primary == NULL)
            continue;
        uint32_t index = (uint32_t)(primary - topology->nodes);
        needed->nodes[index / 64] |= UINT64_C(1) << index % 64;
    }
}

/* Links to nodes of which this core owns a slot stay, bulk links among them until they have been idle for a while. */
static bool keep_link(void *context, const struct link *link)
{
    const struct needed *needed = context;
    if (channel_is_bulk(link->channel) && needed->now_ms - link->progress_ms >= BULK_IDLE_MS)
        return false;
    const struct node *node = (link->node_key & FOREIGN_NODE_BIT) == 0 ? topology_node_of_key(needed->topology, link->node_key) : NULL;
    uint32_t index = node != NULL ? (uint32_t)(node - needed->topology->nodes) : 0;
    return node != NULL && (needed->nodes[index / 64] >> index % 64 & 1) != 0;
}

static void sweep_links(struct dispatcher *dispatcher)
{
    struct needed needed;
    uint64_t needed_count = 0;
    find_needed(dispatcher, &needed);
    link_pool_prune(&dispatcher->links, keep_link, &needed);
    const struct list_node *links = &dispatcher->links.links;
    for (const struct list_node *node = links->next; node != links; node = node->next)
        needed_count += keep_link(&needed, LIST_ENTRY((uintptr_t)node, const struct link, all));
    metric_set(dispatcher->core->metrics, METRIC_links_needed, needed_count);
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
        sweep_links(dispatcher);
    /* It looks at every place of the map. */
    if (dispatcher->core->now_ms / 1000 % BATCH_SWEEP_SECONDS == 0)
        batch_map_sweep(&dispatcher->batches, BATCH_IDLE_SWEEPS);
}
