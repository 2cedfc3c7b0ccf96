/*
 * Owns: which links a core has, and when it may try again. Runs on: that core.
 */
#include "net/link_pool.h"

#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "net/net.h"
#include "net/resp_write.h"

enum { RECLAIM_PAUSE_MS = 1000 };

static uint64_t slot_name(uint32_t node_key, uint8_t channel)
{
    return (uint64_t)node_key << 3 | channel;
}

static struct link_slot *find_slot(struct link_pool *pool, uint64_t name, bool create);

/* Node keys grow for ever, so the places of nodes that have neither a link nor a backoff that still runs are had again. False where that would hardly give any. */
static bool reclaim_slots(struct link_pool *pool)
{
    uint64_t now_ms = pool->net->core->now_ms;
    uint64_t memory_ms = pool->backend->reconnect_max_ns / 1000000;
    if (now_ms < pool->reclaim_after_ms)
        return false;
    struct link_slot *old = pool->slots;
    pool->slots = alloc_zeroed(((size_t)pool->slots_mask + 1) * sizeof(*pool->slots));
    pool->slots_used = 0;
    for (uint32_t i = 0; i <= pool->slots_mask; i++) {
        if (old[i].name == 0 || (old[i].link == NULL && (old[i].failures == 0 || now_ms >= old[i].retry_ms + memory_ms)))
            continue;
        struct link_slot *slot = find_slot(pool, old[i].name, true);
        ZG_CHECK(slot != NULL);
        *slot = old[i];
        if (slot->link != NULL)
            slot->link->holder = slot;
    }
    alloc_free(old);
    /* Nearly full of those in use: not again for each newcomer. */
    pool->reclaim_after_ms = pool->slots_used > pool->slots_mask / 8 * 3 ? now_ms + RECLAIM_PAUSE_MS : 0;
    return pool->slots_used <= pool->slots_mask / 2;
}

/* The slot of a name, made where `create`; NULL where there is none, or none is free. */
static struct link_slot *find_slot(struct link_pool *pool, uint64_t name, bool create)
{
    uint32_t place = (uint32_t)hash_u64(name) & pool->slots_mask;
    for (uint32_t i = 0; i <= pool->slots_mask; i++, place = (place + 1) & pool->slots_mask) {
        struct link_slot *slot = &pool->slots[place];
        if (slot->name == name)
            return slot;
        if (slot->name == 0) {
            if (!create)
                return NULL;
            if (pool->slots_used > pool->slots_mask / 2)
                return reclaim_slots(pool) ? find_slot(pool, name, true) : NULL;
            pool->slots_used++;
            slot->name = name;
            return slot;
        }
    }
    return NULL;
}

/* One command, whose reply says that the link can be used: so what a server sends unasked (too many clients) is never taken for a command's reply. AUTH in RESP2, for servers from before HELLO. */
static void make_handshake(struct link_pool *pool, uint8_t protocol)
{
    const struct config_backend *backend = pool->backend;
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    bool has_password = backend->password[0] != '\0';
    bool says_hello = protocol == 3 || !has_password;
    uint32_t index = protocol - 2u;
    resp_write_array(&writer, (says_hello ? 2u : 0u) + (has_password ? 3u : 0u));
    if (says_hello) {
        resp_write_text(&writer, "HELLO");
        resp_write_text(&writer, protocol == 3 ? "3" : "2");
    }
    if (has_password) {
        resp_write_text(&writer, "AUTH");
        resp_write_text(&writer, backend->user[0] != '\0' ? backend->user : "default");
        resp_write_text(&writer, backend->password);
    }
    ZG_CHECK(writer.length <= sizeof(pool->handshake[index]));
    memcpy(pool->handshake[index], writer.data, writer.length);
    pool->handshake_bytes[index] = writer.length;
    resp_writer_fini(&writer);
}

void link_pool_init(struct link_pool *pool, struct net *net, const struct config_backend *backend)
{
    memset(pool, 0, sizeof(*pool));
    pool->net = net;
    pool->backend = backend;
    net->link_pool = pool;
    uint32_t slots = 64;
    while (slots < net->links.objects_max * 4)
        slots *= 2;
    pool->slots = alloc_zeroed(slots * sizeof(*pool->slots));
    pool->slots_mask = slots - 1;
    list_init(&pool->links);
    connect_rate_init(&pool->rate, backend->connect_rate, backend->connect_burst, net->core->shared->cores_count, net->core->now_ms);
    make_handshake(pool, 2);
    make_handshake(pool, 3);
}

void link_pool_fini(struct link_pool *pool)
{
    ZG_CHECK(list_is_empty(&pool->links));
    alloc_free(pool->slots);
    pool->slots = NULL;
}

struct link *link_pool_find(struct link_pool *pool, uint32_t node_key, uint8_t channel)
{
    struct link_slot *slot = find_slot(pool, slot_name(node_key, channel), false);
    return slot != NULL ? slot->link : NULL;
}

static const uint8_t channels[] = {2, 3, CHANNEL_BULK | 2, CHANNEL_BULK | 3};

bool link_pool_has_any(struct link_pool *pool, uint32_t node_key)
{
    for (size_t i = 0; i < sizeof(channels); i++)
        if (link_pool_find(pool, node_key, channels[i]) != NULL)
            return true;
    return false;
}

void link_pool_retry_now(struct link_pool *pool, uint32_t node_key)
{
    for (size_t i = 0; i < sizeof(channels); i++) {
        struct link_slot *slot = find_slot(pool, slot_name(node_key, channels[i]), false);
        if (slot != NULL)
            slot->retry_ms = 0;
    }
}

bool link_pool_is_failing(struct link_pool *pool, uint32_t node_key, uint8_t channel)
{
    const struct link_slot *slot = find_slot(pool, slot_name(node_key, channel), false);
    return slot != NULL && slot->link == NULL && slot->failures > 0;
}

/* From half to the whole of the exponential step, so that many gateways do not come back in step. */
static uint64_t backoff_ms(struct link_pool *pool, uint32_t failures)
{
    uint64_t step_ms = pool->backend->reconnect_min_ns / 1000000;
    uint64_t max_ms = pool->backend->reconnect_max_ns / 1000000;
    for (uint32_t i = 1; i < failures && step_ms < max_ms; i++)
        step_ms *= 2;
    step_ms = step_ms < max_ms ? step_ms : max_ms;
    return step_ms - rng_below(&pool->net->core->rng, (uint32_t)step_ms / 2 + 1);
}

struct link *link_pool_get(struct link_pool *pool, uint32_t node_key, const struct sockaddr *address, socklen_t address_bytes, uint8_t channel, enum status *status)
{
    struct link_slot *slot = find_slot(pool, slot_name(node_key, channel), true);
    *status = STATUS_FULL;
    if (slot == NULL)
        return NULL;
    if (slot->link != NULL)
        return slot->link;
    *status = STATUS_NO_NODE;
    if (address_bytes == 0 || pool->net->core->now_ms < slot->retry_ms)
        return NULL;
    uint8_t protocol = channel_protocol(channel);
    uint32_t index = protocol - 2u;
    struct link *link = link_open(pool->net, address, address_bytes, protocol, pool->handshake[index], pool->handshake_bytes[index], status);
    if (link == NULL) {
        slot = find_slot(pool, slot_name(node_key, channel), true); /* what ended with the attempt may have moved the slots */
        if (slot == NULL)
            return NULL;
        slot->failures++;
        slot->retry_ms = pool->net->core->now_ms + backoff_ms(pool, slot->failures);
        *status = STATUS_NO_NODE;
        return NULL;
    }
    link->node_key = node_key;
    link->channel = channel;
    link->holder = slot;
    slot->link = link;
    list_push_back(&pool->links, &link->all);
    return link;
}

void link_pool_ready(struct link *link)
{
    struct link_slot *slot = link->holder;
    slot->failures = 0;
    slot->retry_ms = 0;
}

void link_pool_lost(struct net *net, struct link *link, enum close_reason reason)
{
    struct link_slot *slot = link->holder;
    if (slot == NULL)
        return;
    ZG_CHECK(slot->link == link);
    slot->link = NULL;
    link->holder = NULL;
    list_remove(&link->all);
    /* That no turn came says nothing about the node. */
    if (reason == CLOSE_IDLE_LINK || reason == CLOSE_DRAIN || reason == CLOSE_CONNECT_RATE)
        return;
    slot->failures++;
    /* A node that accepts and closes at once becomes ready each time: it is tried no more often than one that refuses. */
    slot->unanswered = link->seq_answered > 1 /* the handshake */ ? 0 : slot->unanswered + 1;
    uint32_t in_vain = slot->failures > slot->unanswered ? slot->failures : slot->unanswered;
    slot->retry_ms = in_vain > 1 ? net->core->now_ms + backoff_ms(net->link_pool, in_vain - 1) : 0;
}

bool link_pool_may_connect(struct link_pool *pool)
{
    /* Those that wait come first. */
    bool may = !pool->has_waiting && connect_rate_take(&pool->rate, pool->net->core->now_ms, &pool->net->core->rng);
    pool->has_waiting = !may;
    return may;
}

/* Waiting links connect in their order, as many as may. */
static void serve_waiting(struct link_pool *pool)
{
    struct core *core = pool->net->core;
    if (!pool->has_waiting)
        return;
    pool->has_waiting = false;
    for (struct list_node *node = pool->links.next; node != &pool->links; node = node->next) {
        struct link *link = LIST_ENTRY(node, struct link, all);
        if (link->state != LINK_WAITING)
            continue;
        if (!connect_rate_take(&pool->rate, core->now_ms, &core->rng)) {
            pool->has_waiting = true;
            return;
        }
        link_connect(pool->net, link);
    }
}

void link_pool_tick(struct link_pool *pool)
{
    serve_waiting(pool);
    uint64_t connect_ms = pool->backend->connect_timeout_ns / 1000000;
    uint64_t stall_ms = pool->backend->link_stall_ns / 1000000;
    for (struct list_node *node = pool->links.next; node != &pool->links;) {
        struct link *link = LIST_ENTRY(node, struct link, all);
        node = node->next;
        link_check(pool->net, link, connect_ms, stall_ms);
    }
}

void link_pool_prune(struct link_pool *pool, bool (*keep)(void *context, const struct link *link), void *context)
{
    for (struct list_node *node = pool->links.next; node != &pool->links;) {
        struct link *link = LIST_ENTRY(node, struct link, all);
        node = node->next;
        if (link->fifo.count == 0 && !keep(context, link))
            conn_close(pool->net->core, &link->conn, CLOSE_IDLE_LINK);
    }
}

void link_pool_close_all(struct link_pool *pool)
{
    while (!list_is_empty(&pool->links)) {
        struct link *link = LIST_ENTRY(pool->links.next, struct link, all);
        conn_close(pool->net->core, &link->conn, CLOSE_DRAIN);
    }
}
