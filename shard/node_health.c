/*
 * Owns: which nodes are down as far as a data core knows. Runs on: that core.
 */
#include "shard/node_health.h"

#include <string.h>

#include "shard/owner.h"

enum {
    LOOK_MS = 50,
    SILENT_MIN_MS = 50,   /* a link that owes replies and is silent for so long, or a quarter of the time-out, is doubted */
    ALIVE_MS = 200,       /* a link that has had a reply so recently proves its node alive to this core */
    BACK_GRACE_MS = 200,  /* what a node that has come back sends on its old connections has arrived by then */
    BACK_LIFE_MS = 2000,
    DOUBTS_PER_S_MAX = 64,
};

/* The place of a key in `down`, or where it belongs. */
static uint32_t place_of(const struct node_health *health, uint32_t node_key)
{
    uint32_t low = 0;
    uint32_t high = health->down_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (health->down[middle] < node_key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_known_down(const struct node_health *health, uint32_t node_key)
{
    if (__builtin_expect(health->down_count == 0, 1))
        return false;
    uint32_t place = place_of(health, node_key);
    return place < health->down_count && health->down[place] == node_key;
}

bool node_health_fails(struct dispatcher *dispatcher, uint32_t node_key, const struct link *link)
{
    if (!is_known_down(&dispatcher->health, node_key))
        return false;
    return link == NULL || link->state != LINK_READY || dispatcher->core->now_ms - link->progress_ms > ALIVE_MS;
}

static void add(struct node_health *health, uint32_t node_key)
{
    uint32_t place = place_of(health, node_key);
    if ((place < health->down_count && health->down[place] == node_key) || health->down_count == TOPOLOGY_NODES_MAX)
        return;
    memmove(&health->down[place + 1], &health->down[place], (health->down_count - place) * sizeof(health->down[0]));
    health->down[place] = node_key;
    health->down_count++;
}

static bool take_out(struct node_health *health, uint32_t node_key)
{
    uint32_t place = place_of(health, node_key);
    if (place == health->down_count || health->down[place] != node_key)
        return false;
    health->down_count--;
    memmove(&health->down[place], &health->down[place + 1], (health->down_count - place) * sizeof(health->down[0]));
    return true;
}

void dispatcher_node_health(struct dispatcher *dispatcher, uint32_t node_key, bool is_down)
{
    struct node_health *health = &dispatcher->health;
    if (is_down) {
        add(health, node_key);
        return;
    }
    if (!take_out(health, node_key))
        return;
    health->back[health->back_next] = (struct node_back){.key = node_key, .at_ms = dispatcher->core->now_ms};
    health->back_next = (health->back_next + 1) % NODE_HEALTH_BACK_MAX;
    link_pool_retry_now(&dispatcher->links, node_key);
}

static void doubt(struct dispatcher *dispatcher, uint32_t node_key)
{
    struct node_health *health = &dispatcher->health;
    struct core *core = dispatcher->core;
    if ((node_key & FOREIGN_NODE_BIT) != 0 || is_known_down(health, node_key) || core->config->backend.health_interval_ns == 0)
        return;
    if (core->now_ms - health->doubts_ms >= 1000) {
        health->doubts_ms = core->now_ms;
        health->doubts_count = 0;
    }
    if (health->doubts_count == DOUBTS_PER_S_MAX)
        return;
    struct msg *msg = mailbox_reserve(core->mailbox, core->shared->data_cores, CLASS_CONTROL);
    if (msg == NULL)
        return; /* enough are on their way */
    struct msg_doubt body = {.node_key = node_key};
    msg->kind = MSG_DOUBT;
    memcpy(msg->body, &body, sizeof(body));
    health->doubts_count++;
    metric_add(core->metrics, METRIC_health_doubts_total, 1);
}

void node_health_link_lost(struct dispatcher *dispatcher, const struct link *link)
{
    enum close_reason reason = (enum close_reason)link->conn.close_reason;
    if (reason != CLOSE_IDLE_LINK && reason != CLOSE_DRAIN && reason != CLOSE_CONNECT_RATE)
        doubt(dispatcher, link->node_key);
}

/* When a node came back, 0: not lately. */
static uint64_t back_since(const struct node_health *health, uint32_t node_key, uint64_t now_ms)
{
    for (uint32_t i = 0; i < NODE_HEALTH_BACK_MAX; i++)
        if (health->back[i].key == node_key && now_ms - health->back[i].at_ms < BACK_LIFE_MS)
            return health->back[i].at_ms;
    return 0;
}

static bool any_back(const struct node_health *health, uint64_t now_ms)
{
    const struct node_back *last = &health->back[(health->back_next + NODE_HEALTH_BACK_MAX - 1) % NODE_HEALTH_BACK_MAX];
    return last->key != 0 && now_ms - last->at_ms < BACK_LIFE_MS;
}

void node_health_tick(struct dispatcher *dispatcher)
{
    struct node_health *health = &dispatcher->health;
    struct core *core = dispatcher->core;
    if (core->now_ms < health->look_ms)
        return;
    health->look_ms = core->now_ms + LOOK_MS;
    uint64_t quarter_ms = core->config->use_case.timeout_ns / 4000000;
    uint64_t silent_ms = quarter_ms > SILENT_MIN_MS ? quarter_ms : SILENT_MIN_MS;
    bool has_back = any_back(health, core->now_ms);
    for (struct list_node *node = dispatcher->links.links.next; node != &dispatcher->links.links;) {
        struct link *link = LIST_ENTRY(node, struct link, all);
        node = node->next;
        if (link->state != LINK_READY || link->fifo.count == 0 || core->now_ms - link->progress_ms < silent_ms)
            continue;
        uint64_t back_ms = has_back ? back_since(health, link->node_key, core->now_ms) : 0;
        if (back_ms != 0 && core->now_ms - back_ms >= BACK_GRACE_MS && link->progress_ms < back_ms)
            conn_close(core, &link->conn, CLOSE_NODE_BACK);
        else
            doubt(dispatcher, link->node_key);
    }
}

void node_health_adopt(struct dispatcher *dispatcher, const struct topology *topology)
{
    struct node_health *health = &dispatcher->health;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < health->down_count; i++) {
        uint32_t key = health->down[i];
        /* One with a higher key than this topology has given is of a newer one, which is on its way. */
        if (key >= topology->next_node_key || topology_node_of_key(topology, key) != NULL)
            health->down[kept++] = key;
    }
    health->down_count = kept;
}
