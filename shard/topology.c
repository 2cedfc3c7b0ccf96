/*
 * Builds the immutable topology from a list of servers or from an accepted view of a cluster and the topology before it. What goes on from one topology to the next is decided here:
 * which node and which shard is still the same one, and since when a slot has its owner and its route. Runs on the housekeeping core.
 */
#include "shard/topology.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "shard/owner_table.h"
#include "shard/topology_view.h"

enum { PREVIOUS_NONE = 0xffff };

/* One (new shard, previous shard) pair and how many slots it has. */
struct overlap {
    uint16_t shard, previous_shard;
    uint32_t slots_count;
};

/* Scratch of one build. Arrays are by index in the view, or in the previous topology where the name says so. */
struct build {
    const struct topology *previous; /* NULL: none */
    const struct topology_view *view;
    uint16_t *node_previous; /* index in the previous topology, PREVIOUS_NONE */
    uint32_t *node_keys;     /* 0: not yet given */
    uint16_t *node_places;   /* index in the new topology */
    uint32_t *shard_keys;
    uint16_t *shard_places;
    bool *previous_shard_taken;
    struct overlap *overlaps; /* the largest first */
    uint32_t overlaps_count;
};

static struct topology *create_empty(enum config_backend_kind kind, uint64_t epoch, uint32_t nodes_count, uint32_t shards_count)
{
    struct topology *topology = alloc_zeroed(sizeof *topology);
    topology->kind = kind;
    topology->epoch = topology->view_epoch = epoch;
    topology->nodes_count = nodes_count;
    topology->shards_count = shards_count;
    topology->nodes = alloc_zeroed((nodes_count + 1) * sizeof *topology->nodes);
    topology->shards = alloc_zeroed((shards_count + 1) * sizeof *topology->shards);
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        topology->slot_shard[slot] = SHARD_NONE;
    return topology;
}

static bool is_same_address(const struct node *node, const struct view_node *other)
{
    return node->port == other->port && strcmp(node->host, other->host) == 0;
}

static uint16_t same_id(const struct build *build, const struct node *node)
{
    return node->id[0] ? topology_view_node_of_id(build->view, node->id) : NODE_NONE;
}

/* The same node is the one with the same id, else the one at the same address. Its key is kept only with its address: a link behind a key is a connection to that address. */
static void match_nodes(struct build *build)
{
    const struct topology *previous = build->previous;
    const struct topology_view *view = build->view;
    for (uint32_t i = 0; i < view->nodes_count; i++)
        build->node_previous[i] = PREVIOUS_NONE;
    for (uint32_t i = 0; previous && i < previous->nodes_count; i++) {
        const struct node *node = &previous->nodes[i];
        uint16_t same = same_id(build, node);
        if (same == NODE_NONE)
            continue;
        build->node_previous[same] = (uint16_t)i;
        if (is_same_address(node, &view->nodes[same]))
            build->node_keys[same] = node->key;
    }
    for (uint32_t i = 0; previous && i < previous->nodes_count; i++) {
        const struct node *node = &previous->nodes[i];
        uint16_t named = same_id(build, node), same = topology_view_node_at(view, node->host, node->port);
        bool is_matched = named != NODE_NONE && is_same_address(node, &view->nodes[named]);
        if (is_matched || same == NODE_NONE || build->node_keys[same] != 0 || build->node_previous[same] != PREVIOUS_NONE)
            continue;
        build->node_previous[same] = (uint16_t)i;
        build->node_keys[same] = node->key;
    }
}

/* The shard of the previous topology in which the node was, or SHARD_NONE. */
static uint16_t previous_shard_of(const struct build *build, uint16_t view_node)
{
    if (view_node == NODE_NONE || build->node_previous[view_node] == PREVIOUS_NONE)
        return SHARD_NONE;
    return build->previous->nodes[build->node_previous[view_node]].shard;
}

static void inherit(struct build *build, uint16_t shard, uint16_t previous_shard)
{
    if (previous_shard == SHARD_NONE || build->shard_keys[shard] != 0 || build->previous_shard_taken[previous_shard])
        return;
    build->shard_keys[shard] = build->previous->shards[previous_shard].key;
    build->previous_shard_taken[previous_shard] = true;
}

static bool had_this_primary(const struct build *build, uint16_t shard)
{
    uint16_t primary = build->view->shards[shard].primary;
    uint16_t previous_shard = previous_shard_of(build, primary);
    return previous_shard != SHARD_NONE && build->previous->shards[previous_shard].primary == build->node_previous[primary];
}

static int compare_pairs(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static int compare_overlaps(const void *left, const void *right)
{
    const struct overlap *a = left, *b = right;
    if (a->slots_count != b->slots_count)
        return a->slots_count > b->slots_count ? -1 : 1;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    return a->previous_shard < b->previous_shard ? -1 : a->previous_shard > b->previous_shard;
}

static void find_overlaps(struct build *build)
{
    static_assert(TOPOLOGY_SHARDS_MAX < UINT16_MAX, "a pair of shards fits in 32 bits");
    uint32_t *pairs = alloc_zeroed(CLUSTER_SLOTS * sizeof *pairs);
    uint32_t pairs_count = 0;
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++) {
        uint16_t shard = build->view->slot_shard[slot], previous_shard = build->previous->slot_shard[slot];
        if (shard != SHARD_NONE && previous_shard != SHARD_NONE)
            pairs[pairs_count++] = (uint32_t)shard << 16 | previous_shard;
    }
    qsort(pairs, pairs_count, sizeof *pairs, compare_pairs);
    for (uint32_t i = 0; i < pairs_count; i++) {
        if (i == 0 || pairs[i] != pairs[i - 1])
            build->overlaps[build->overlaps_count++] = (struct overlap){.shard = (uint16_t)(pairs[i] >> 16), .previous_shard = (uint16_t)(pairs[i] & 0xffff)};
        build->overlaps[build->overlaps_count - 1].slots_count++;
    }
    qsort(build->overlaps, build->overlaps_count, sizeof *build->overlaps, compare_overlaps);
    alloc_free(pairs);
}

/*
 * Gives new shards the keys of those they continue. A shard that lost all slots comes last: after a failover the failed primary may be listed as a shard of its own without slots, and
 * the key belongs to the replica that took over.
 */
static void match_shards(struct build *build)
{
    const struct topology_view *view = build->view;
    if (!build->previous)
        return;
    find_overlaps(build);
    for (uint16_t shard = 0; shard < view->shards_count; shard++) {
        uint16_t previous_shard = previous_shard_of(build, view->shards[shard].primary);
        if (had_this_primary(build, shard) && (view->shards[shard].slots_count > 0 || build->previous->shards[previous_shard].slots_count == 0))
            inherit(build, shard, previous_shard);
    }
    for (uint16_t shard = 0; shard < view->shards_count; shard++)
        if (view->shards[shard].slots_count > 0)
            inherit(build, shard, previous_shard_of(build, view->shards[shard].primary));
    for (uint16_t node = 0; node < view->nodes_count; node++)
        if (view->shards[view->nodes[node].shard].slots_count > 0)
            inherit(build, view->nodes[node].shard, previous_shard_of(build, node));
    for (uint32_t i = 0; i < build->overlaps_count; i++) {
        const struct overlap *overlap = &build->overlaps[i];
        if (overlap->slots_count * 2 > build->previous->shards[overlap->previous_shard].slots_count)
            inherit(build, overlap->shard, overlap->previous_shard);
    }
    for (uint16_t shard = 0; shard < view->shards_count; shard++)
        if (had_this_primary(build, shard))
            inherit(build, shard, previous_shard_of(build, view->shards[shard].primary));
    for (uint16_t node = 0; node < view->nodes_count; node++)
        inherit(build, view->nodes[node].shard, previous_shard_of(build, node));
}

struct keyed {
    uint32_t key;
    uint16_t place;
};

static int compare_keyed(const void *left, const void *right)
{
    const struct keyed *a = left, *b = right;
    return a->key < b->key ? -1 : a->key > b->key;
}

/* Gives newcomers keys from *next_key on and computes the place of each in the order of keys. */
static void order_by_key(uint32_t *keys, uint16_t *places, uint32_t count, uint32_t *next_key)
{
    struct keyed *order = alloc_zeroed((count + 1) * sizeof *order);
    for (uint32_t i = 0; i < count; i++) {
        if (keys[i] == 0)
            keys[i] = (*next_key)++;
        order[i] = (struct keyed){.key = keys[i], .place = (uint16_t)i};
    }
    qsort(order, count, sizeof *order, compare_keyed);
    for (uint32_t i = 0; i < count; i++) {
        ZG_CHECK(i == 0 || order[i - 1].key < order[i].key);
        places[order[i].place] = (uint16_t)i;
    }
    alloc_free(order);
}

static void fill_nodes(struct topology *topology, const struct build *build)
{
    for (uint32_t i = 0; i < build->view->nodes_count; i++) {
        const struct view_node *from = &build->view->nodes[i];
        struct node *node = &topology->nodes[build->node_places[i]];
        node->key = build->node_keys[i];
        memcpy(node->id, from->id, sizeof node->id);
        memcpy(node->host, from->host, sizeof node->host);
        node->port = from->port;
        node->shard = build->shard_places[from->shard];
        node->is_primary = from->is_primary;
        node->is_failed = from->is_failed;
    }
}

static void fill_shards(struct topology *topology, const struct build *build, uint32_t data_cores)
{
    for (uint32_t i = 0; i < build->view->shards_count; i++) {
        const struct view_shard *from = &build->view->shards[i];
        struct shard *shard = &topology->shards[build->shard_places[i]];
        shard->key = build->shard_keys[i];
        shard->primary = from->primary == NODE_NONE ? NODE_NONE : build->node_places[from->primary];
        shard->slots_count = from->slots_count;
    }
    const struct topology *previous = build->previous;
    topology->is_balanced = previous && previous->is_balanced;
    owner_table_assign(topology->shards, topology->shards_count, previous ? previous->shards : NULL, previous ? previous->shards_count : 0, data_cores, !topology->is_balanced);
}

static uint32_t primary_key(const struct topology *topology, uint32_t slot)
{
    const struct node *primary = topology ? topology_primary(topology, slot) : NULL;
    return primary ? primary->key : 0;
}

/* A slot stays with its owner as long as that may own slots of its shard. */
static uint16_t owner_of_slot(const struct topology *topology, const struct topology *previous, uint32_t slot, uint32_t data_cores)
{
    bool is_owned = previous && previous->slot_owner[slot] < data_cores;
    if (topology->slot_shard[slot] == SHARD_NONE)
        return is_owned ? previous->slot_owner[slot] : (uint16_t)(slot % data_cores);
    const struct shard *shard = &topology->shards[topology->slot_shard[slot]];
    if (is_owned && (shard->cores >> previous->slot_owner[slot] & 1) != 0)
        return previous->slot_owner[slot];
    return owner_table_choose(shard->cores, slot, shard->slots_count);
}

static void fill_slots(struct topology *topology, const struct build *build, uint32_t data_cores)
{
    const struct topology *previous = build->previous;
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++) {
        uint16_t shard = build->view->slot_shard[slot];
        topology->slot_shard[slot] = shard == SHARD_NONE ? SHARD_NONE : build->shard_places[shard];
        topology->slot_owner[slot] = owner_of_slot(topology, previous, slot, data_cores);
        bool same_owner = previous && previous->slot_owner[slot] == topology->slot_owner[slot];
        topology->slot_owner_since[slot] = same_owner ? previous->slot_owner_since[slot] : topology->epoch;

        uint32_t key = primary_key(topology, slot), previous_key = primary_key(previous, slot);
        bool same_route = previous && key == previous_key;
        topology->slot_route_since[slot] = same_route ? previous->slot_route_since[slot] : topology->epoch;
        uint32_t before = previous ? previous->slot_previous_node[slot] : 0;
        topology->slot_previous_node[slot] = same_route || previous_key == 0 ? before : previous_key;
    }
}

struct topology *topology_create_cluster(const struct topology *previous, const struct topology_view *view, uint32_t data_cores)
{
    ZG_CHECK(!previous || previous->kind == BACKEND_CLUSTER);
    ZG_CHECK(data_cores >= 1 && data_cores <= CONFIG_DATA_CORES_MAX);
    uint32_t nodes_count = view->nodes_count, shards_count = view->shards_count;
    ZG_CHECK(nodes_count <= TOPOLOGY_NODES_MAX && shards_count <= TOPOLOGY_SHARDS_MAX);
    struct build build = {
        .previous = previous,
        .view = view,
        .node_previous = alloc_zeroed((nodes_count + 1) * sizeof(uint16_t)),
        .node_keys = alloc_zeroed((nodes_count + 1) * sizeof(uint32_t)),
        .node_places = alloc_zeroed((nodes_count + 1) * sizeof(uint16_t)),
        .shard_keys = alloc_zeroed((shards_count + 1) * sizeof(uint32_t)),
        .shard_places = alloc_zeroed((shards_count + 1) * sizeof(uint16_t)),
        .previous_shard_taken = alloc_zeroed(((previous ? previous->shards_count : 0) + 1) * sizeof(bool)),
        .overlaps = alloc_zeroed(CLUSTER_SLOTS * sizeof(struct overlap)),
    };
    match_nodes(&build);
    match_shards(&build);

    struct topology *topology = create_empty(BACKEND_CLUSTER, previous ? previous->epoch + 1 : 1, nodes_count, shards_count);
    topology->slots_count = CLUSTER_SLOTS;
    topology->slots_covered = view->slots_covered;
    topology->next_node_key = previous ? previous->next_node_key : 1;
    topology->next_shard_key = previous ? previous->next_shard_key : 1;
    order_by_key(build.node_keys, build.node_places, nodes_count, &topology->next_node_key);
    order_by_key(build.shard_keys, build.shard_places, shards_count, &topology->next_shard_key);
    fill_nodes(topology, &build);
    fill_shards(topology, &build, data_cores);
    fill_slots(topology, &build, data_cores);

    alloc_free(build.node_previous);
    alloc_free(build.node_keys);
    alloc_free(build.node_places);
    alloc_free(build.shard_keys);
    alloc_free(build.shard_places);
    alloc_free(build.previous_shard_taken);
    alloc_free(build.overlaps);
    return topology;
}

struct topology *topology_create_servers(const struct config_backend *backend, uint64_t epoch, uint32_t data_cores)
{
    static_assert((int)CONFIG_ADDRESSES_MAX <= (int)TOPOLOGY_SHARDS_MAX && (int)CONFIG_ADDRESSES_MAX <= (int)CLUSTER_SLOTS, "a shard and a slot a server");
    static_assert((int)CONFIG_TEXT_MAX <= (int)HOST_BYTES, "every configured host fits");
    uint32_t count = backend->addresses_count;
    ZG_CHECK(backend->kind == BACKEND_SERVERS && epoch >= 1);
    ZG_CHECK(count >= 1 && count <= CONFIG_ADDRESSES_MAX && data_cores >= 1 && data_cores <= CONFIG_DATA_CORES_MAX);
    struct topology *topology = create_empty(BACKEND_SERVERS, epoch, count, count);
    topology->slots_count = topology->slots_covered = count;
    topology->next_node_key = topology->next_shard_key = count + 1;
    topology->ketama = ketama_create(backend->addresses, count);
    for (uint32_t i = 0; i < count; i++) {
        struct node *node = &topology->nodes[i];
        node->key = i + 1;
        memcpy(node->host, backend->addresses[i].host, CONFIG_TEXT_MAX);
        node->port = backend->addresses[i].port;
        node->shard = (uint16_t)i;
        node->is_primary = true;
        topology->shards[i] = (struct shard){.key = i + 1, .primary = (uint16_t)i, .slots_count = 1};
    }
    owner_table_assign(topology->shards, count, NULL, 0, data_cores, true);
    for (uint32_t slot = 0; slot < count; slot++) {
        topology->slot_shard[slot] = (uint16_t)slot;
        topology->slot_owner[slot] = owner_table_choose(topology->shards[slot].cores, slot, 1);
        topology->slot_owner_since[slot] = topology->slot_route_since[slot] = epoch;
    }
    return topology;
}

struct topology *topology_create_moved(const struct topology *previous, const uint16_t *slot_owner, const uint64_t *shard_cores)
{
    struct topology *topology = alloc_zeroed(sizeof *topology);
    memcpy(topology, previous, sizeof *topology);
    topology->epoch = previous->epoch + 1;
    topology->is_balanced = true;
    topology->nodes = alloc_zeroed((previous->nodes_count + 1) * sizeof *topology->nodes);
    topology->shards = alloc_zeroed((previous->shards_count + 1) * sizeof *topology->shards);
    memcpy(topology->nodes, previous->nodes, previous->nodes_count * sizeof *topology->nodes);
    memcpy(topology->shards, previous->shards, previous->shards_count * sizeof *topology->shards);
    topology->ketama = previous->ketama ? ketama_copy(previous->ketama) : NULL;
    for (uint32_t i = 0; i < topology->shards_count; i++)
        topology->shards[i].cores = shard_cores[i];
    for (uint32_t slot = 0; slot < topology->slots_count; slot++) {
        uint16_t shard = topology->slot_shard[slot];
        ZG_CHECK(shard == SHARD_NONE || (topology->shards[shard].cores >> slot_owner[slot] & 1) != 0);
        if (slot_owner[slot] == previous->slot_owner[slot])
            continue;
        topology->slot_owner[slot] = slot_owner[slot];
        topology->slot_owner_since[slot] = topology->epoch;
    }
    return topology;
}

const struct node *topology_node_at(const struct topology *topology, const char *host, uint32_t host_length, uint16_t port)
{
    for (uint32_t i = 0; i < topology->nodes_count; i++) {
        const struct node *node = &topology->nodes[i];
        if (node->port == port && host_length < HOST_BYTES && strlen(node->host) == host_length && memcmp(node->host, host, host_length) == 0)
            return node;
    }
    return NULL;
}

const struct node *topology_node_of_key(const struct topology *topology, uint32_t key)
{
    uint32_t low = 0, high = topology->nodes_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (topology->nodes[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < topology->nodes_count && topology->nodes[low].key == key ? &topology->nodes[low] : NULL;
}

bool topology_is_complete(const struct topology *topology)
{
    for (uint32_t slot = 0; slot < topology->slots_count; slot++)
        if (!topology_primary(topology, slot))
            return false;
    return topology->slots_count > 0;
}

void topology_destroy(const void *data)
{
    /* The snapshot publisher knows its data as constant; the allocation is ours. */
    struct topology *topology = (struct topology *)(uintptr_t)data;
    if (!topology)
        return;
    ketama_destroy(&topology->ketama);
    alloc_free(topology->nodes);
    alloc_free(topology->shards);
    alloc_free(topology);
}
