/*
 * Replies about a cluster: whatever a node says, parsing gives a consistent view or an error, and topologies can be built from it. Corpus: replies of real clusters.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/check.h"
#include "shard/topology.h"
#include "shard/topology_parse.h"
#include "shard/topology_view.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_view(const struct topology_view *view)
{
    uint32_t slots_count = 0;
    for (uint32_t i = 0; i < view->shards_count; i++) {
        slots_count += view->shards[i].slots_count;
        ZG_CHECK(view->shards[i].primary == NODE_NONE || view->nodes[view->shards[i].primary].shard == i);
    }
    ZG_CHECK(slots_count == view->slots_covered && slots_count <= CLUSTER_SLOTS);
    for (uint32_t i = 0; i < view->nodes_count; i++) {
        const struct view_node *node = &view->nodes[i];
        ZG_CHECK(node->host[0] != '\0' && strnlen(node->host, HOST_BYTES) < HOST_BYTES && strnlen(node->id, NODE_ID_BYTES) < NODE_ID_BYTES);
        ZG_CHECK(node->id[0] == '\0' || topology_view_node_of_id(view, node->id) == i);
        ZG_CHECK(topology_view_node_at(view, node->host, node->port) != NODE_NONE);
    }
}

/* The same view twice: everything goes on. */
static void check_topologies(struct topology_view *view)
{
    struct topology *first = topology_create_cluster(NULL, view, 3);
    topology_view_resolve(view, first);
    struct topology *second = topology_create_cluster(first, view, 3);
    ZG_CHECK(second->epoch == 2 && second->shards_count == first->shards_count && second->nodes_count == first->nodes_count);
    ZG_CHECK(second->next_node_key >= first->next_node_key && second->next_shard_key >= first->next_shard_key);
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        ZG_CHECK((first->slot_shard[slot] == SHARD_NONE) == (second->slot_shard[slot] == SHARD_NONE) && second->slot_owner[slot] < 3);
    topology_destroy(first);
    topology_destroy(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct topology_view *view;
    static struct topology_judge judge;
    if (size > UINT32_MAX)
        return 0;
    if (!view)
        view = topology_view_create();
    (void)topology_parse_epoch(data, (uint32_t)size);
    for (int kind = 0; kind < 2; kind++) {
        enum status status = kind == 0 ? topology_parse_shards(view, data, (uint32_t)size, "asked.example") : topology_parse_slots(view, data, (uint32_t)size, "asked.example");
        ZG_CHECK(status == STATUS_OK || status == STATUS_INVALID || status == STATUS_FULL);
        check_view(view);
        if (status != STATUS_OK)
            continue;
        check_topologies(view);
        topology_judge_init(&judge);
        enum topology_verdict verdict = topology_judge_view(&judge, view, NULL, 1, 1, 1);
        ZG_CHECK(verdict == (view->slots_covered > 0 ? TOPOLOGY_INSTALL : TOPOLOGY_REJECT));
    }
    return 0;
}
