/*
 * Views of a cluster and the judgement on them. Runs on the housekeeping core; decisions are pure functions of the judge, the view and the time passed in.
 *
 * What waits for confirmation is one candidate, known by the fingerprint of its routes:
 *
 *   nothing waits ── changed view, not yet enough sources ──► candidate ── enough sources ──► INSTALL
 *        ▲                                                       │ another change of the same or a later epoch takes its place
 *        └────────── installed, or 30 s passed ──────────────────┘ (one of an earlier epoch is rejected)
 */
#include "shard/topology_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/hash.h"

#define ZG_CANDIDATE_LIFE_NS UINT64_C(30000000000)
enum { HINT_LIFE_MS = 30000 };

/* What a fingerprint is made from; the seeds keep equal bytes of different facts apart. */
enum { FACT_ROUTE = 1, FACT_ADDRESS, FACT_NODE };

struct fingerprints {
    uint64_t routes;  /* slots, primaries and where these are */
    uint64_t details; /* all of that, replicas and failure flags */
};

struct topology_view *topology_view_create(void)
{
    struct topology_view *view = alloc_zeroed(sizeof *view);
    topology_view_clear(view);
    return view;
}

void topology_view_destroy(struct topology_view **view)
{
    alloc_free(*view);
    *view = NULL;
}

void topology_view_clear(struct topology_view *view)
{
    view->current_epoch = 0;
    view->nodes_count = view->shards_count = view->slots_covered = 0;
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        view->slot_shard[slot] = SHARD_NONE;
    node_index_clear(&view->ids);
    node_index_clear(&view->addresses);
}

uint16_t topology_view_add_shard(struct topology_view *view)
{
    if (view->shards_count == TOPOLOGY_SHARDS_MAX)
        return SHARD_NONE;
    view->shards[view->shards_count] = (struct view_shard){.primary = NODE_NONE};
    return (uint16_t)view->shards_count++;
}

uint16_t topology_view_add_node(struct topology_view *view, const struct view_node *node)
{
    ZG_CHECK(node->shard < view->shards_count && node->host[0] != '\0');
    if (view->nodes_count == TOPOLOGY_NODES_MAX)
        return NODE_NONE;
    uint16_t place = (uint16_t)view->nodes_count++;
    view->nodes[place] = *node;
    if (node->id[0])
        node_index_add(&view->ids, node_index_hash_id(node->id), place);
    node_index_add(&view->addresses, node_index_hash_address(node->host, node->port), place);
    struct view_shard *shard = &view->shards[node->shard];
    if (node->is_primary && (shard->primary == NODE_NONE || (view->nodes[shard->primary].is_failed && !node->is_failed)))
        shard->primary = place;
    return place;
}

enum status topology_view_add_slots(struct topology_view *view, uint16_t shard, uint32_t first, uint32_t last)
{
    ZG_CHECK(shard < view->shards_count);
    if (first > last || last >= CLUSTER_SLOTS)
        return STATUS_INVALID;
    for (uint32_t slot = first; slot <= last; slot++) {
        if (view->slot_shard[slot] != SHARD_NONE)
            return STATUS_INVALID;
        view->slot_shard[slot] = shard;
        view->shards[shard].slots_count++;
        view->slots_covered++;
    }
    return STATUS_OK;
}

uint16_t topology_view_node_of_id(const struct topology_view *view, const char *id)
{
    uint32_t cursor = 0;
    uint64_t hash = node_index_hash_id(id);
    uint16_t place;
    while ((place = node_index_next(&view->ids, hash, &cursor)) != NODE_NONE)
        if (strcmp(view->nodes[place].id, id) == 0)
            return place;
    return NODE_NONE;
}

uint16_t topology_view_node_at(const struct topology_view *view, const char *host, uint16_t port)
{
    uint32_t cursor = 0;
    uint64_t hash = node_index_hash_address(host, port);
    uint16_t place;
    while ((place = node_index_next(&view->addresses, hash, &cursor)) != NODE_NONE)
        if (view->nodes[place].port == port && strcmp(view->nodes[place].host, host) == 0)
            return place;
    return NODE_NONE;
}

void topology_view_resolve(struct topology_view *view, const struct topology *current)
{
    bool changed = false;
    for (uint32_t i = 0; current && i < current->nodes_count; i++) {
        const struct node *known = &current->nodes[i];
        uint16_t place = known->id[0] ? topology_view_node_of_id(view, known->id) : NODE_NONE;
        if (place == NODE_NONE || !view->nodes[place].host_is_assumed || view->nodes[place].port != known->port)
            continue;
        memcpy(view->nodes[place].host, known->host, sizeof known->host);
        view->nodes[place].host_is_assumed = false;
        changed = true;
    }
    if (!changed)
        return;
    node_index_clear(&view->addresses);
    for (uint32_t i = 0; i < view->nodes_count; i++)
        node_index_add(&view->addresses, node_index_hash_address(view->nodes[i].host, view->nodes[i].port), (uint16_t)i);
}

/* The order in which a reply lists shards and nodes means nothing, so facts are added up. */
static uint64_t fact(uint64_t kind, uint64_t a, uint64_t b)
{
    return hash_u64(hash_u64(hash_u64(kind) + a) + b);
}

static uint64_t identity(const struct view_node *node)
{
    return node->id[0] ? node_index_hash_id(node->id) : node_index_hash_address(node->host, node->port);
}

/* An assumed host comes from us, so other nodes cannot confirm it: while a view is judged the port alone counts. Once installed the host is the one in use. */
static uint64_t address(const struct view_node *node, bool is_installed)
{
    return node->host_is_assumed && !is_installed ? hash_u64(node->port) : node_index_hash_address(node->host, node->port);
}

static struct fingerprints fingerprints_of(const struct topology_view *view, bool is_installed)
{
    struct fingerprints prints = {0};
    uint64_t primaries[TOPOLOGY_SHARDS_MAX];
    for (uint32_t i = 0; i < view->shards_count; i++) {
        const struct view_node *primary = view->shards[i].primary == NODE_NONE ? NULL : &view->nodes[view->shards[i].primary];
        primaries[i] = primary ? identity(primary) : 0;
        if (primary && view->shards[i].slots_count > 0)
            prints.routes += fact(FACT_ADDRESS, primaries[i], address(primary, is_installed));
    }
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        if (view->slot_shard[slot] != SHARD_NONE)
            prints.routes += fact(FACT_ROUTE, primaries[view->slot_shard[slot]], slot);
    prints.details = prints.routes;
    for (uint32_t i = 0; i < view->nodes_count; i++) {
        const struct view_node *node = &view->nodes[i];
        uint64_t place = fact(FACT_ADDRESS, address(node, is_installed), primaries[node->shard]);
        prints.details += fact(FACT_NODE + (node->is_primary ? 1U : 0U) + (node->is_failed ? 2U : 0U), identity(node), place);
    }
    /* 0 stands for none. */
    prints.routes |= 1;
    return prints;
}

void topology_judge_init(struct topology_judge *judge)
{
    memset(judge, 0, sizeof *judge);
}

static void forget_candidate(struct topology_judge *judge)
{
    judge->candidate_routes = judge->candidate_epoch = 0;
    judge->sources_count = 0;
}

static bool has_common_node(const struct topology_view *view, const struct topology *current)
{
    for (uint32_t i = 0; i < current->nodes_count; i++) {
        const struct node *node = &current->nodes[i];
        if (node->id[0] ? topology_view_node_of_id(view, node->id) != NODE_NONE : topology_view_node_at(view, node->host, node->port) != NODE_NONE)
            return true;
    }
    return false;
}

static uint32_t address_hash(const char *host, uint16_t port)
{
    return (uint32_t)node_index_hash_address(host, port) | 1;
}

static bool is_hinted(const struct topology_judge *judge, const struct view_node *primary, uint32_t slot, uint64_t now_ns)
{
    const struct topology_hint *hint = &judge->hints[slot];
    uint32_t age_ms = (uint32_t)(now_ns / 1000000) - hint->told_at_ms;
    return hint->address != 0 && age_ms <= HINT_LIFE_MS && hint->address == address_hash(primary->host, primary->port);
}

/* Whether the routes differ from those in use in nothing but slots whose new primary a MOVED has named. */
static bool is_foretold(const struct topology_judge *judge, const struct topology_view *view, const struct topology *current, uint64_t now_ns)
{
    if (judge->hints_count == 0)
        return false;
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++) {
        uint16_t shard = view->slot_shard[slot];
        uint16_t place = shard == SHARD_NONE ? NODE_NONE : view->shards[shard].primary;
        const struct view_node *now = place == NODE_NONE ? NULL : &view->nodes[place];
        const struct node *before = topology_primary(current, slot);
        bool same = now && before ? now->port == before->port && strcmp(now->host, before->host) == 0 && strcmp(now->id, before->id) == 0 : !now && !before;
        if (!same && (!now || !is_hinted(judge, now, slot, now_ns)))
            return false;
    }
    return true;
}

static uint32_t at_most(uint32_t value, uint32_t maximum)
{
    return value < maximum ? value : maximum;
}

/* How many nodes have to say the same. */
static uint32_t sources_needed(const struct topology_judge *judge, const struct topology_view *view, const struct topology *current, bool is_other_cluster,
    uint32_t reachable_count, uint64_t now_ns)
{
    uint32_t all = at_most(reachable_count, TOPOLOGY_SOURCES_MAX), two = at_most(reachable_count, 2);
    if (!judge->has_installed)
        return view->slots_covered < CLUSTER_SLOTS ? all : two;
    if (view->slots_covered < judge->installed_covered) {
        bool is_lone_node = judge->installed_nodes <= 1 && view->nodes_count <= 1;
        return all > 1 || is_lone_node ? all : 2;
    }
    if (is_other_cluster)
        return all;
    return current && is_foretold(judge, view, current, now_ns) ? 1 : two;
}

static void add_source(struct topology_judge *judge, uint64_t source)
{
    for (uint32_t i = 0; i < judge->sources_count; i++)
        if (judge->sources[i] == source)
            return;
    if (judge->sources_count < TOPOLOGY_SOURCES_MAX)
        judge->sources[judge->sources_count++] = source;
}

/* A node has one opinion: what it said for the candidate before is void. */
static void remove_source(struct topology_judge *judge, uint64_t source)
{
    for (uint32_t i = 0; i < judge->sources_count; i++)
        if (judge->sources[i] == source) {
            judge->sources[i] = judge->sources[--judge->sources_count];
            return;
        }
}

enum topology_verdict topology_judge_view(struct topology_judge *judge, const struct topology_view *view, const struct topology *current, uint64_t source,
    uint32_t reachable_count, uint64_t now_ns)
{
    ZG_CHECK(reachable_count >= 1);
    ZG_CHECK(judge->has_installed == (current != NULL));
    judge->reason[0] = '\0';
    if (judge->candidate_routes != 0 && now_ns - judge->candidate_at_ns > ZG_CANDIDATE_LIFE_NS)
        forget_candidate(judge);
    if (view->slots_covered == 0 || view->nodes_count == 0) {
        snprintf(judge->reason, sizeof judge->reason, "the view covers no slot");
        return TOPOLOGY_REJECT;
    }

    bool is_other_cluster = current && !has_common_node(view, current);
    if (judge->has_installed && !is_other_cluster && view->current_epoch != 0 && view->current_epoch < judge->installed_epoch) {
        remove_source(judge, source);
        snprintf(judge->reason, sizeof judge->reason, "the view is of epoch %" PRIu64 ", older than epoch %" PRIu64 " in use", view->current_epoch,
            judge->installed_epoch);
        return TOPOLOGY_REJECT;
    }

    struct fingerprints prints = fingerprints_of(view, false);
    if (judge->has_installed && prints.routes == judge->installed_routes) {
        remove_source(judge, source);
        /* Nothing to route anew; the epoch is remembered, so that what is older than this is known as such. */
        if (view->current_epoch > judge->installed_epoch)
            judge->installed_epoch = view->current_epoch;
        return prints.details == judge->installed_details ? TOPOLOGY_SAME : TOPOLOGY_INSTALL;
    }

    if (prints.routes != judge->candidate_routes) {
        if (judge->candidate_routes != 0 && view->current_epoch != 0 && view->current_epoch < judge->candidate_epoch) {
            remove_source(judge, source);
            snprintf(judge->reason, sizeof judge->reason, "the view is of epoch %" PRIu64 ", another change of epoch %" PRIu64 " waits for confirmation",
                view->current_epoch, judge->candidate_epoch);
            return TOPOLOGY_REJECT;
        }
        forget_candidate(judge);
        judge->candidate_routes = prints.routes;
        judge->candidate_at_ns = now_ns;
    }
    if (view->current_epoch > judge->candidate_epoch)
        judge->candidate_epoch = view->current_epoch;
    add_source(judge, source);
    uint32_t needed = sources_needed(judge, view, current, is_other_cluster, reachable_count, now_ns);
    if (judge->sources_count >= needed)
        return TOPOLOGY_INSTALL;
    snprintf(judge->reason, sizeof judge->reason, "%u of %u nodes say so (%u slots covered)", judge->sources_count, needed, view->slots_covered);
    return TOPOLOGY_CONFIRM;
}

void topology_judge_installed(struct topology_judge *judge, const struct topology_view *view)
{
    struct fingerprints prints = fingerprints_of(view, true);
    /* Another cluster may begin with a lower epoch; an unknown one leaves what is known. */
    if (prints.routes != judge->installed_routes && view->current_epoch != 0)
        judge->installed_epoch = view->current_epoch;
    judge->has_installed = true;
    judge->installed_routes = prints.routes;
    judge->installed_details = prints.details;
    judge->installed_covered = view->slots_covered;
    judge->installed_nodes = view->nodes_count;
    forget_candidate(judge);
    if (judge->hints_count > 0)
        memset(judge->hints, 0, sizeof judge->hints);
    judge->hints_count = 0;
}

void topology_judge_moved(struct topology_judge *judge, uint32_t slot, const char *host, uint16_t port, uint64_t now_ns)
{
    ZG_CHECK(slot < CLUSTER_SLOTS);
    struct topology_hint *hint = &judge->hints[slot];
    if (hint->address == 0)
        judge->hints_count++;
    hint->address = address_hash(host, port);
    hint->told_at_ms = (uint32_t)(now_ns / 1000000);
}

const char *topology_judge_reason(const struct topology_judge *judge)
{
    return judge->reason;
}
