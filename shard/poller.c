/*
 * Owns: the poller. Runs on: the housekeeping core.
 *
 * Questions are legs whose `part` says what was asked. One poll is under way at a time; a node that does not answer within the time-out is left for another one.
 */
#include "shard/poller.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "net/socket.h"
#include "shard/topology_parse.h"

enum question { ASK_COMMAND_2, ASK_COMMAND_3, ASK_DOCS_2, ASK_DOCS_3, ASK_INFO, ASK_SHARDS, ASK_SLOTS };

enum {
    SPACING_MIN_MS = 20,
    SPACING_MAX_MS = 500,
    SPACING_URGENT_MS = 100,  /* the most while a node that serves slots has just gone down: a replica will take over */
    START_TIMEOUT_MS = 3000,  /* facts that have not come by then are done without */
    ASK_TIMEOUT_MS = 1000,
    SEED_BIT = 0x40000000,    /* node keys of the configured addresses, before there is a topology */
};

static const char *const question_texts[] = {
    [ASK_COMMAND_2] = "*1\r\n$7\r\nCOMMAND\r\n",
    [ASK_COMMAND_3] = "*1\r\n$7\r\nCOMMAND\r\n",
    [ASK_DOCS_2] = "*2\r\n$7\r\nCOMMAND\r\n$4\r\nDOCS\r\n",
    [ASK_DOCS_3] = "*2\r\n$7\r\nCOMMAND\r\n$4\r\nDOCS\r\n",
    [ASK_INFO] = "*2\r\n$7\r\nCLUSTER\r\n$4\r\nINFO\r\n",
    [ASK_SHARDS] = "*2\r\n$7\r\nCLUSTER\r\n$6\r\nSHARDS\r\n",
    [ASK_SLOTS] = "*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n",
};

static const struct config_backend *backend_of(const struct poller *poller)
{
    return &poller->core->config->backend;
}

/* ---- nodes that can be asked ---- */

static uint32_t candidates_count(const struct poller *poller)
{
    return poller->topology != NULL ? poller->topology->nodes_count : backend_of(poller)->addresses_count;
}

/* Candidate i: its key, host and address; false where it cannot be asked. */
static bool candidate(struct poller *poller, uint32_t i, uint32_t *key, char *host, struct sockaddr_storage *address, socklen_t *bytes)
{
    if (poller->topology != NULL) {
        const struct node *node = &poller->topology->nodes[i];
        *key = node->key;
        (void)snprintf(host, HOST_BYTES, "%s", node->host);
        *address = node->address;
        *bytes = node->address_bytes;
        return !node->is_failed && *bytes > 0 && !health_check_is_down(&poller->health, *key);
    }
    const struct config_address *seed = &backend_of(poller)->addresses[i];
    *key = SEED_BIT + i + 1;
    (void)snprintf(host, HOST_BYTES, "%s", seed->host);
    return socket_resolve(seed->host, seed->port, address, bytes) == STATUS_OK;
}

static bool was_asked(const struct poller *poller, uint32_t key)
{
    for (uint32_t i = 0; i < poller->round_asked_count; i++)
        if (poller->round_asked[i] == key)
            return true;
    return false;
}

/* The node belongs to a shard whose primary is down: it knows first who takes over, as that is itself, or it voted on it. */
static bool is_heir(const struct poller *poller, uint32_t key)
{
    const struct node *node = topology_node_of_key(poller->topology, key);
    uint16_t primary = node != NULL && node->shard != SHARD_NONE ? poller->topology->shards[node->shard].primary : NODE_NONE;
    return primary != NODE_NONE && health_check_is_down(&poller->health, poller->topology->nodes[primary].key);
}

static struct link *draw_link_of(struct poller *poller, uint8_t protocol, bool only_heirs)
{
    uint32_t count = candidates_count(poller);
    uint32_t first = rng_below(&poller->core->rng, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key;
        struct sockaddr_storage address;
        socklen_t bytes;
        enum status status;
        char host[HOST_BYTES];
        if (!candidate(poller, (first + i) % count, &key, host, &address, &bytes) || was_asked(poller, key) || (only_heirs && !is_heir(poller, key)))
            continue;
        struct link *link = link_pool_get(&poller->links, key, (struct sockaddr *)&address, bytes, protocol, &status);
        if (link == NULL)
            continue;
        poller->asked_node = key;
        (void)snprintf(poller->asked_host, sizeof(poller->asked_host), "%s", host);
        return link;
    }
    return NULL;
}

/* A link to a node drawn at random that was not asked in this round, heirs first; NULL: there is none left. */
static struct link *draw_link(struct poller *poller, uint8_t protocol)
{
    struct link *link = poller->topology != NULL && health_check_is_urgent(&poller->health) ? draw_link_of(poller, protocol, true) : NULL;
    return link != NULL ? link : draw_link_of(poller, protocol, false);
}

/* Nodes that answer, or may: all but those whose link has failed. */
static uint32_t reachable_count(struct poller *poller)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < candidates_count(poller); i++) {
        uint32_t key = poller->topology != NULL ? poller->topology->nodes[i].key : SEED_BIT + i + 1;
        bool is_failed = poller->topology != NULL && poller->topology->nodes[i].is_failed;
        if (!is_failed && !health_check_is_down(&poller->health, key) && !link_pool_is_failing(&poller->links, key, 2))
            count++;
    }
    return count > 0 ? count : 1;
}

/* The least time from one poll to the next that somebody asks for. */
static uint32_t spacing_ms(const struct poller *poller)
{
    return health_check_is_urgent(&poller->health) && poller->spacing_ms > SPACING_URGENT_MS ? SPACING_URGENT_MS : poller->spacing_ms;
}

/* ---- asking ---- */

static bool ask(struct poller *poller, struct link *link, enum question question)
{
    struct net *net = poller->net;
    struct leg *leg = net_own_leg(net);
    if (leg == NULL)
        return false;
    const char *text = question_texts[question];
    uint32_t length = (uint32_t)strlen(text);
    struct block *block = arena_get(poller->core->arena, length);
    if (block == NULL) {
        pool_put(&net->legs, &leg);
        return false;
    }
    memcpy(block->data, text, length);
    block->length = length;
    block->flags = SEND_SEALED;
    leg->part = (uint16_t)question;
    leg->target = link->node_key;
    struct leg_list legs = {0};
    leg_list_push(&legs, leg);
    link_enqueue(net, link, &legs, block);
    return true;
}

static void end_round(struct poller *poller)
{
    uint64_t interval_ms = backend_of(poller)->poll_interval_ns / 1000000;
    poller->state = POLLER_IDLE;
    poller->round_asked_count = 0;
    /* A tenth either way, so that gateways do not poll in step. */
    poller->next_ms = poller->core->now_ms + interval_ms - interval_ms / 10 + rng_below(&poller->core->rng, (uint32_t)(interval_ms / 5) + 1);
    /* Nobody needs to ask while it is known that something is about to change. */
    if (backend_of(poller)->kind == BACKEND_CLUSTER && health_check_is_urgent(&poller->health))
        poller->next_ms = poller->core->now_ms + SPACING_URGENT_MS - rng_below(&poller->core->rng, SPACING_URGENT_MS / 4);
}

static void ask_node(struct poller *poller)
{
    struct link *link = draw_link(poller, 2);
    if (link == NULL) {
        end_round(poller);
        /* Nobody can be asked now, or all have been: soon again. */
        poller->next_ms = poller->core->now_ms + spacing_ms(poller);
        return;
    }
    poller->state = POLLER_ASKING;
    poller->asked_ms = poller->core->now_ms;
    poller->asked_epoch = 0;
    if (poller->round_asked_count < TOPOLOGY_SOURCES_MAX)
        poller->round_asked[poller->round_asked_count++] = poller->asked_node;
    metric_add(poller->core->metrics, METRIC_topology_refreshes_total, 1);
    if (!ask(poller, link, ASK_INFO) || !ask(poller, link, poller->uses_slots ? ASK_SLOTS : ASK_SHARDS))
        end_round(poller);
}

/* ---- what comes back ---- */

static void resolve_nodes(struct poller *poller, struct topology *topology)
{
    for (uint32_t i = 0; i < topology->nodes_count; i++) {
        struct node *node = &topology->nodes[i];
        if (socket_resolve(node->host, node->port, &node->address, &node->address_bytes) == STATUS_OK)
            continue;
        node->address_bytes = 0;
        core_log(poller->core, LOG_WARNING, "node_unresolved", "node=%u host=%s", node->key, node->host);
    }
}

static void install(struct poller *poller)
{
    struct topology *topology = topology_create_cluster(poller->topology, poller->view, poller->core->shared->data_cores);
    resolve_nodes(poller, topology);
    uint64_t epoch = topology->epoch;
    uint32_t covered = topology->slots_covered;
    uint32_t shards = topology->shards_count;
    if (!poller->publish(poller->context, topology)) {
        topology_destroy(topology);
        end_round(poller);
        poller->next_ms = poller->core->now_ms + SPACING_MIN_MS;
        return;
    }
    poller->topology = topology;
    health_check_topology(&poller->health, topology);
    topology_judge_installed(poller->judge, poller->view);
    poller->close_extra_links = true;
    core_log(poller->core, LOG_NOTICE, "topology_installed", "epoch=%llu shards=%u slots=%u", (unsigned long long)epoch, shards, covered);
    poller->spacing_ms = SPACING_MIN_MS;
    end_round(poller);
}

static void judge_view(struct poller *poller)
{
    topology_view_resolve(poller->view, poller->topology);
    poller->view->current_epoch = poller->asked_epoch;
    /* Named by its address, which is the same before and after there is a topology. */
    const struct node *known = poller->topology != NULL ? topology_node_of_key(poller->topology, poller->asked_node) : NULL;
    uint64_t source = known != NULL ? known->key : poller->asked_node;
    switch (topology_judge_view(poller->judge, poller->view, poller->topology, source, reachable_count(poller), poller->core->now_ns)) {
    case TOPOLOGY_SAME:
        poller->spacing_ms = poller->spacing_ms * 2 < SPACING_MAX_MS ? poller->spacing_ms * 2 : SPACING_MAX_MS;
        end_round(poller);
        return;
    case TOPOLOGY_INSTALL:
        install(poller);
        return;
    case TOPOLOGY_CONFIRM:
        core_log(poller->core, LOG_INFO, "topology_unconfirmed", "reason=\"%s\"", topology_judge_reason(poller->judge));
        ask_node(poller);
        return;
    case TOPOLOGY_REJECT:
        core_log(poller->core, LOG_NOTICE, "topology_rejected", "node=%u reason=\"%s\"", poller->asked_node, topology_judge_reason(poller->judge));
        end_round(poller);
        /* Who says something older may know better soon; meanwhile others are asked, where it matters. */
        if (!health_check_is_urgent(&poller->health))
            poller->next_ms = poller->core->now_ms + SPACING_MAX_MS;
        return;
    }
}

static void on_view(struct poller *poller, struct link *link, enum question question, const struct reply *reply)
{
    if (link->node_key != poller->asked_node || poller->state != POLLER_ASKING)
        return; /* an answer that came too late */
    if (question == ASK_SHARDS && reply->bytes[0] == '-') {
        poller->uses_slots = true;
        if (!ask(poller, link, ASK_SLOTS))
            end_round(poller);
        return;
    }
    enum status status = question == ASK_SHARDS ? topology_parse_shards(poller->view, reply->bytes, reply->length, poller->asked_host)
                                                : topology_parse_slots(poller->view, reply->bytes, reply->length, poller->asked_host);
    if (status != STATUS_OK) {
        core_log(poller->core, LOG_WARNING, "topology_unreadable", "node=%u status=%s", poller->asked_node, status_name(status));
        ask_node(poller);
        return;
    }
    judge_view(poller);
}

static void keep_raw(struct raw_reply *raw, const struct reply *reply)
{
    if (raw->bytes != NULL || reply->bytes[0] == '-')
        return;
    raw->bytes = alloc_zeroed(reply->length);
    memcpy(raw->bytes, reply->bytes, reply->length);
    raw->length = reply->length;
}

static void facts_complete(struct poller *poller);

static void on_fact(struct poller *poller, enum question question, const struct reply *reply)
{
    struct backend_facts *facts = poller->facts;
    if (poller->state != POLLER_STARTING)
        return;
    if (question == ASK_COMMAND_2 || question == ASK_COMMAND_3)
        keep_raw(&facts->command[question == ASK_COMMAND_3], reply);
    else
        keep_raw(&facts->docs[question == ASK_DOCS_3], reply);
    poller->was_answered = true;
    /* 0 where a link was lost since: these are asked once more. */
    if (poller->facts_left > 0 && --poller->facts_left == 0)
        facts_complete(poller);
}

static void free_leg(struct net *net, struct leg *leg)
{
    pool_put(&net->legs, &leg);
}

static void leg_reply(struct net *net, struct link *link, struct leg *leg, const struct reply *reply)
{
    struct poller *poller = net->owner;
    enum question question = (enum question)leg->part;
    if (leg->part == HEALTH_QUESTION) {
        health_check_reply(&poller->health, leg, reply);
        free_leg(net, leg);
        return;
    }
    free_leg(net, leg);
    if (question == ASK_INFO) {
        if (link->node_key == poller->asked_node)
            poller->asked_epoch = topology_parse_epoch(reply->bytes, reply->length);
    } else if (question == ASK_SHARDS || question == ASK_SLOTS) {
        on_view(poller, link, question, reply);
    } else {
        on_fact(poller, question, reply);
    }
}

static void leg_lost(struct net *net, struct link *link, struct leg *leg, bool was_sent)
{
    struct poller *poller = net->owner;
    (void)was_sent;
    if (leg->part == HEALTH_QUESTION) {
        health_check_lost(&poller->health, link, leg);
        free_leg(net, leg);
        return;
    }
    bool is_view = leg->part == ASK_SHARDS || leg->part == ASK_SLOTS;
    bool is_current = link->node_key == poller->asked_node && poller->state == POLLER_ASKING;
    free_leg(net, leg);
    /* The tick asks another node: asking from within a closing link would find it half closed. */
    if (is_view && is_current)
        poller->asked_ms = 0;
    else if (poller->state == POLLER_STARTING)
        poller->facts_left = 0;
}

static void nothing(struct net *net, struct link *link)
{
    (void)net;
    (void)link;
}

const struct net_ops poller_net_ops = {
    .leg_reply = leg_reply,
    .leg_lost = leg_lost,
    .link_progress = nothing,
    .link_gone = nothing,
    .divide_runs = nothing,
};

/* ---- start ---- */

static void ask_facts(struct poller *poller)
{
    poller->round_asked_count = 0;
    struct link *link2 = draw_link(poller, 2);
    struct link *link3 = link2 != NULL ? draw_link(poller, 3) : NULL;
    if (link2 != NULL && ask(poller, link2, ASK_COMMAND_2))
        poller->facts_left++;
    if (link2 != NULL && ask(poller, link2, ASK_DOCS_2))
        poller->facts_left++;
    if (link3 != NULL && ask(poller, link3, ASK_COMMAND_3))
        poller->facts_left++;
    if (link3 != NULL && ask(poller, link3, ASK_DOCS_3))
        poller->facts_left++;
    poller->next_ms = poller->core->now_ms + SPACING_MAX_MS;
}

/* Of the topology, RESP2: what is polled and checked. */
static bool keep_link(void *context, const struct link *link)
{
    const struct poller *poller = context;
    return link->protocol == 2 && (poller->topology == NULL || topology_node_of_key(poller->topology, link->node_key) != NULL);
}

static void facts_complete(struct poller *poller)
{
    struct backend_facts *facts = poller->facts;
    uint32_t added = 0;
    const struct raw_reply *raw = facts->command[0].bytes != NULL ? &facts->command[0] : &facts->command[1];
    if (raw->bytes == NULL || command_table_learn(facts->commands, raw->bytes, raw->length, &added) != STATUS_OK)
        core_log(poller->core, LOG_WARNING, "commands_not_learned", "rows=%u", command_table_count(facts->commands));
    else
        core_log(poller->core, LOG_NOTICE, "commands_learned", "rows=%u added=%u", command_table_count(facts->commands), added);
    poller->state = POLLER_IDLE;
    poller->next_ms = poller->core->now_ms;
    poller->close_extra_links = true;
    if (backend_of(poller)->kind == BACKEND_CLUSTER)
        return;
    struct topology *topology = topology_create_servers(backend_of(poller), 1, poller->core->shared->data_cores);
    resolve_nodes(poller, topology);
    bool published = poller->publish(poller->context, topology);
    ZG_CHECK(published);
    poller->topology = topology;
    health_check_topology(&poller->health, topology);
    poller->next_ms = UINT64_MAX;
}

static void health_wants_refresh(void *context, const struct recover_target *moved)
{
    struct msg_refresh refresh = dispatcher_refresh_body(moved);
    poller_refresh(context, &refresh);
}

void poller_init(struct poller *poller, struct core *core, struct net *net, struct backend_facts *facts, poller_publish_fn publish, void *context)
{
    poller->core = core;
    poller->net = net;
    poller->facts = facts;
    poller->publish = publish;
    poller->context = context;
    link_pool_init(&poller->links, net, &core->config->backend);
    health_check_init(&poller->health, core, net, &poller->links, health_wants_refresh, poller);
    poller->judge = alloc_zeroed(sizeof(*poller->judge));
    topology_judge_init(poller->judge);
    poller->view = topology_view_create();
    poller->spacing_ms = SPACING_MIN_MS;
    poller->state = POLLER_STARTING;
    poller->started_ms = core->now_ms;
    ask_facts(poller);
}

void poller_fini(struct poller *poller)
{
    topology_view_destroy(&poller->view);
    alloc_free(poller->judge);
    health_check_fini(&poller->health);
    link_pool_fini(&poller->links);
}

void poller_refresh(struct poller *poller, const struct msg_refresh *moved)
{
    uint64_t now_ms = poller->core->now_ms;
    if (moved != NULL && moved->port != 0 && moved->host[0] != '\0')
        topology_judge_moved(poller->judge, moved->slot, moved->host, moved->port, poller->core->now_ns);
    if (poller->state != POLLER_IDLE || backend_of(poller)->kind != BACKEND_CLUSTER)
        return;
    uint64_t wanted_ms = poller->asked_ms + spacing_ms(poller);
    if (wanted_ms < now_ms)
        wanted_ms = now_ms;
    if (wanted_ms < poller->next_ms)
        poller->next_ms = wanted_ms;
}

bool poller_replace(struct poller *poller, const struct topology *topology)
{
    ZG_CHECK(poller->topology != NULL && topology->epoch == poller->topology->epoch + 1 && topology->view_epoch == poller->topology->view_epoch);
    if (!poller->publish(poller->context, topology))
        return false;
    poller->topology = topology;
    health_check_topology(&poller->health, topology);
    return true;
}

static void tick_starting(struct poller *poller)
{
    uint64_t now_ms = poller->core->now_ms;
    if (now_ms - poller->started_ms > START_TIMEOUT_MS && (poller->was_answered || backend_of(poller)->kind == BACKEND_SERVERS))
        facts_complete(poller);
    else if (poller->facts_left == 0 && now_ms >= poller->next_ms)
        ask_facts(poller);
}

void poller_tick(struct poller *poller)
{
    uint64_t now_ms = poller->core->now_ms;
    link_pool_tick(&poller->links);
    health_check_tick(&poller->health);
    if (poller->close_extra_links) {
        /* What the start needed beyond one link a node; seeds are asked under their topology keys from now on. */
        poller->close_extra_links = false;
        link_pool_prune(&poller->links, keep_link, poller);
    }
    switch ((enum poller_state)poller->state) {
    case POLLER_STARTING:
        tick_starting(poller);
        break;
    case POLLER_IDLE:
        if (now_ms >= poller->next_ms) {
            poller->round_asked_count = 0;
            ask_node(poller);
        }
        break;
    case POLLER_ASKING:
        if (now_ms - poller->asked_ms > ASK_TIMEOUT_MS)
            ask_node(poller);
        break;
    }
}
