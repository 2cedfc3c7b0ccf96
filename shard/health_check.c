/*
 * Owns: the health of the nodes that serve slots. Runs on: the housekeeping core.
 *
 * One check a node is under way at a time. One that is not answered in time closes its link, unless other replies come on it: so the next one goes over a fresh connection and does not wait for
 * what TCP may still repeat.
 */
#include "shard/health_check.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "shard/slot.h"

enum {
    URGENT_MS = 100,
    PAUSE_MIN_MS = 100,
    PAUSE_MAX_MS = 500,
    SLOT_TRIES = 64,
    URGENCY_MS = 30 * 1000, /* a node that has been down for longer is no news */
    COMMAND_BYTES = 96,
    TAG_BYTES = 16,
};

/* ---- which node, which key ---- */

static struct health_node *find_node(const struct health_checker *checker, uint32_t key)
{
    uint32_t low = 0;
    uint32_t high = checker->nodes_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (checker->nodes[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < checker->nodes_count && checker->nodes[low].key == key ? &checker->nodes[low] : NULL;
}

/* About 170,000 numbers until each slot has one: once, some milliseconds. */
static void make_tags(struct health_checker *checker)
{
    uint32_t left = CLUSTER_SLOTS;
    checker->tags = alloc_zeroed(CLUSTER_SLOTS * sizeof(*checker->tags));
    for (uint32_t number = 1; left > 0; number++) {
        char text[TAG_BYTES];
        int length = snprintf(text, sizeof(text), "%u", number);
        uint16_t slot = slot_of_key((const uint8_t *)text, (uint32_t)length);
        if (checker->tags[slot] != 0)
            continue;
        checker->tags[slot] = number;
        left--;
    }
}

static bool owns(const struct health_checker *checker, const struct health_node *node, uint32_t slot)
{
    const struct node *primary = topology_primary(checker->topology, slot);
    return primary != NULL && primary->key == node->key;
}

/* A slot of the node drawn at random; where it owns few and none is found soon, the one that is known. */
static uint16_t draw_slot(const struct health_checker *checker, const struct health_node *node)
{
    uint32_t first = rng_below(&checker->core->rng, checker->topology->slots_count);
    for (uint32_t i = 0; i < SLOT_TRIES; i++) {
        uint32_t slot = (first + i) % checker->topology->slots_count;
        if (owns(checker, node, slot))
            return (uint16_t)slot;
    }
    return node->slot;
}

static uint32_t write_command(struct health_checker *checker, const struct health_node *node, char *command)
{
    char key[COMMAND_BYTES / 2];
    int key_length;
    if (checker->topology->kind == BACKEND_CLUSTER)
        key_length = snprintf(key, sizeof(key), "{%u}zgateway-health", checker->tags[draw_slot(checker, node)]);
    else
        key_length = snprintf(key, sizeof(key), "zgateway-health");
    int length = snprintf(command, COMMAND_BYTES, "*2\r\n$6\r\nEXISTS\r\n$%d\r\n%s\r\n", key_length, key);
    ZG_CHECK(length > 0 && length < COMMAND_BYTES);
    return (uint32_t)length;
}

/* ---- what a result changes ---- */

static void count_states(struct health_checker *checker)
{
    uint32_t suspect = 0;
    checker->down_count = 0;
    for (uint32_t i = 0; i < checker->nodes_count; i++) {
        suspect += checker->nodes[i].health.state == HEALTH_SUSPECT ? 1 : 0;
        checker->down_count += health_is_usable(&checker->nodes[i].health) ? 0 : 1;
    }
    metric_set(checker->core->metrics, METRIC_nodes_suspect, suspect);
    metric_set(checker->core->metrics, METRIC_nodes_down, checker->down_count);
}

static uint64_t all_cores(const struct health_checker *checker)
{
    uint32_t count = checker->core->shared->data_cores;
    return count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1;
}

static void tell(struct health_checker *checker, struct health_node *node)
{
    for (uint32_t i = 0; i < checker->core->shared->data_cores; i++) {
        if ((node->untold >> i & 1) == 0)
            continue;
        struct msg *msg = mailbox_reserve(checker->core->mailbox, i, CLASS_CONTROL);
        if (msg == NULL)
            continue; /* the tick tries again */
        struct msg_health body = {.node_key = node->key, .is_down = node->is_told_down};
        msg->kind = MSG_HEALTH;
        memcpy(msg->body, &body, sizeof(body));
        node->untold &= ~(UINT64_C(1) << i);
    }
}

/* The check under way has ended with `result`; `reason` says why, for the log. */
static void end_check(struct health_checker *checker, struct health_node *node, enum health_result result, const char *reason)
{
    struct core *core = checker->core;
    struct health *health = &node->health;
    bool was_usable = health_is_usable(health);
    enum health_state before = (enum health_state)health->state;
    node->sequence++;
    metric_add(core->metrics, METRIC_health_failures_total, result == HEALTH_FAILS);
    metric_add(core->metrics, METRIC_health_refusals_total, result == HEALTH_REFUSES);
    health_end(health, &checker->rules, result, core->now_ms, &core->rng);
    bool is_usable = health_is_usable(health);
    if (before == (enum health_state)health->state || (!was_usable && !is_usable))
        return;
    metric_add(core->metrics, METRIC_health_changes_total, 1);
    core_log(core, LOG_NOTICE, "node_health", "node=%u state=%s before=%s reason=\"%s\" failures=%u", node->key, health_state_name((enum health_state)health->state),
        health_state_name(before == HEALTH_PROBING ? HEALTH_DOWN : before), reason, health->failures);
    count_states(checker);
    if (was_usable == is_usable)
        return;
    if (!is_usable)
        checker->down_ms = core->now_ms;
    node->is_told_down = !is_usable;
    node->untold = all_cores(checker);
    tell(checker, node);
    checker->refresh(checker->context, NULL);
}

/* ---- checks ---- */

static enum status send_check(struct health_checker *checker, const struct health_node *node, struct link *link)
{
    struct net *net = checker->net;
    struct leg *leg = net_own_leg(net);
    if (leg == NULL)
        return STATUS_FULL;
    struct block *block = arena_get(checker->core->arena, COMMAND_BYTES);
    if (block == NULL) {
        pool_put(&net->legs, &leg);
        return STATUS_NO_MEMORY;
    }
    block->length = write_command(checker, node, (char *)block->data);
    block->flags = SEND_SEALED;
    leg->part = HEALTH_QUESTION;
    leg->target = node->key;
    leg->origin = node->sequence;
    struct leg_list legs = {0};
    leg_list_push(&legs, leg);
    link_enqueue(net, link, &legs, block);
    metric_add(checker->core->metrics, METRIC_health_checks_total, 1);
    return STATUS_OK;
}

static void begin_check(struct health_checker *checker, struct health_node *node)
{
    struct core *core = checker->core;
    const struct node *known = topology_node_of_key(checker->topology, node->key);
    ZG_CHECK(known != NULL);
    enum status status = STATUS_NO_NODE;
    health_begin(&node->health, core->now_ms);
    node->began_ms = core->now_ms;
    /* The pace of checks is their own backoff. */
    link_pool_retry_now(checker->links, node->key);
    struct link *link = link_pool_get(checker->links, node->key, (const struct sockaddr *)&known->address, known->address_bytes, 2, &status);
    if (link == NULL || send_check(checker, node, link) != STATUS_OK) {
        node->sequence++;
        health_postpone(&node->health, &checker->rules, core->now_ms);
    }
}

/* No answer in time. Not where the link still waits for its turn to connect, or moves: then it is slow, not dead. */
static void look_at_time(struct health_checker *checker, struct health_node *node)
{
    uint64_t now_ms = checker->core->now_ms;
    struct link *link = link_pool_find(checker->links, node->key, 2);
    if (link != NULL && link->state == LINK_WAITING)
        node->began_ms = now_ms;
    if (now_ms - node->began_ms <= checker->timeout_ms || (link != NULL && link->state == LINK_READY && now_ms - link->progress_ms <= checker->timeout_ms))
        return;
    end_check(checker, node, HEALTH_FAILS, "no answer in time");
    if (link != NULL)
        conn_close(checker->core, &link->conn, CLOSE_STALLED);
}

void health_check_tick(struct health_checker *checker)
{
    if (checker->is_off || checker->topology == NULL)
        return;
    for (uint32_t i = 0; i < checker->nodes_count; i++) {
        struct health_node *node = &checker->nodes[i];
        if (node->untold != 0)
            tell(checker, node);
        if (node->health.is_checking)
            look_at_time(checker, node);
        else if (health_is_due(&node->health, checker->core->now_ms))
            begin_check(checker, node);
    }
}

bool health_check_is_quiet(const struct health_checker *checker)
{
    for (uint32_t i = 0; i < checker->nodes_count; i++) {
        const struct health_node *node = &checker->nodes[i];
        if (!checker->is_off && (node->health.state != HEALTH_HEALTHY || node->health.is_checking || node->untold != 0))
            return false;
    }
    return true;
}

/* The node of a leg whose check is still under way; NULL: it is late. */
static struct health_node *node_of_leg(const struct health_checker *checker, const struct leg *leg)
{
    struct health_node *node = find_node(checker, leg->target);
    return node != NULL && node->health.is_checking && leg->origin == node->sequence ? node : NULL;
}

void health_check_reply(struct health_checker *checker, const struct leg *leg, const struct reply *reply)
{
    struct health_node *node = node_of_leg(checker, leg);
    if (node == NULL)
        return;
    struct recover_target target;
    enum recover_verdict verdict = reply->bytes[0] == '-' ? recover_classify(reply->bytes, reply->length, &target) : RECOVER_NONE;
    switch (verdict) {
    case RECOVER_NONE:
    case RECOVER_ASK:
        /* A slot on its way is still its owner's. Any other error - a user without permission - is an answer of a node that serves. */
        end_check(checker, node, HEALTH_SERVES, "it serves");
        return;
    case RECOVER_MOVED:
        end_check(checker, node, HEALTH_REFUSES, "a slot is elsewhere");
        if (target.host[0] != '\0')
            checker->refresh(checker->context, &target);
        return;
    case RECOVER_RETRY:
    case RECOVER_RETRY_REFRESH:
        end_check(checker, node, HEALTH_REFUSES, "it answers that it does not serve now");
        checker->refresh(checker->context, NULL);
        return;
    }
    ZG_UNREACHABLE();
}

void health_check_lost(struct health_checker *checker, const struct link *link, const struct leg *leg)
{
    struct health_node *node = node_of_leg(checker, leg);
    if (node == NULL)
        return;
    enum close_reason reason = (enum close_reason)link->conn.close_reason;
    if (reason == CLOSE_CONNECT_RATE || reason == CLOSE_DRAIN || reason == CLOSE_IDLE_LINK || reason == CLOSE_NO_MEMORY) {
        node->sequence++;
        health_postpone(&node->health, &checker->rules, checker->core->now_ms);
        return;
    }
    end_check(checker, node, HEALTH_FAILS, close_reason_text(reason));
}

void health_check_doubt(struct health_checker *checker, uint32_t node_key)
{
    struct health_node *node = find_node(checker, node_key);
    if (node != NULL)
        health_hint(&node->health, &checker->rules, checker->core->now_ms);
}

bool health_check_is_down(const struct health_checker *checker, uint32_t node_key)
{
    const struct health_node *node = checker->down_count > 0 ? find_node(checker, node_key) : NULL;
    return node != NULL && !health_is_usable(&node->health);
}

bool health_check_is_urgent(const struct health_checker *checker)
{
    return checker->down_count > 0 && checker->core->now_ms - checker->down_ms < URGENCY_MS;
}

/* ---- life ---- */

/* The nodes to check by key, ascending, each with its first slot. Returns how many. */
static uint32_t list_nodes(const struct topology *topology, struct health_node *nodes)
{
    enum { NO_SLOT = UINT16_MAX };
    uint32_t count = 0;
    uint16_t *slots = alloc_zeroed((topology->nodes_count + 1) * sizeof(*slots));
    for (uint32_t i = 0; i < topology->nodes_count; i++)
        slots[i] = NO_SLOT;
    for (uint32_t slot = topology->slots_count; slot-- > 0;) {
        const struct node *primary = topology_primary(topology, slot);
        if (primary != NULL && primary->address_bytes > 0)
            slots[primary - topology->nodes] = (uint16_t)slot;
    }
    for (uint32_t i = 0; i < topology->nodes_count; i++)
        if (slots[i] != NO_SLOT)
            nodes[count++] = (struct health_node){.key = topology->nodes[i].key, .slot = slots[i]};
    alloc_free(slots);
    return count;
}

void health_check_topology(struct health_checker *checker, const struct topology *topology)
{
    bool is_first = checker->topology == NULL;
    checker->topology = topology;
    if (checker->is_off)
        return;
    if (topology->kind == BACKEND_CLUSTER && checker->tags == NULL)
        make_tags(checker);
    struct health_node *nodes = alloc_zeroed((topology->nodes_count + 1) * sizeof(*nodes));
    uint32_t count = list_nodes(topology, nodes);
    for (uint32_t i = 0; i < count; i++) {
        const struct health_node *before = find_node(checker, nodes[i].key);
        uint16_t slot = nodes[i].slot;
        if (before != NULL) {
            nodes[i] = *before;
        } else {
            health_init(&nodes[i].health, &checker->rules, checker->core->now_ms, &checker->core->rng);
            /* It may have been here before, and been down when it lost its slots. */
            nodes[i].untold = is_first ? 0 : all_cores(checker);
        }
        nodes[i].slot = slot;
    }
    /* One without slots is not checked any more, but an ASK may still name it. */
    for (uint32_t i = 0, j = 0; i < checker->nodes_count; i++) {
        struct health_node *node = &checker->nodes[i];
        while (j < count && nodes[j].key < node->key)
            j++;
        if (!node->is_told_down || (j < count && nodes[j].key == node->key))
            continue;
        node->is_told_down = false;
        node->untold = all_cores(checker);
        tell(checker, node);
    }
    alloc_free(checker->nodes);
    checker->nodes = nodes;
    checker->nodes_count = count;
    count_states(checker);
}

void health_check_init(struct health_checker *checker, struct core *core, struct net *net, struct link_pool *links, health_refresh_fn refresh, void *context)
{
    const struct config_backend *backend = &core->config->backend;
    uint64_t timeout_ns = backend->health_timeout_ns > 0 ? backend->health_timeout_ns : core->config->use_case.timeout_ns;
    memset(checker, 0, sizeof(*checker));
    checker->core = core;
    checker->net = net;
    checker->links = links;
    checker->refresh = refresh;
    checker->context = context;
    checker->timeout_ms = timeout_ns / 1000000 + 1;
    checker->is_off = backend->health_interval_ns == 0;
    checker->rules = (struct health_rules){
        .failures_down = backend->health_failures,
        .interval_ms = (uint32_t)(backend->health_interval_ns / 1000000),
        .urgent_ms = URGENT_MS,
        .pause_min_ms = PAUSE_MIN_MS,
        .pause_max_ms = PAUSE_MAX_MS,
    };
    checker->nodes = alloc_zeroed(sizeof(*checker->nodes));
}

void health_check_fini(struct health_checker *checker)
{
    alloc_free(checker->nodes);
    alloc_free(checker->tags);
    checker->nodes = NULL;
    checker->tags = NULL;
}
