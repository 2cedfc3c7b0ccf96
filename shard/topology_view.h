/*
 * What one node of a cluster says about the cluster, and the judgement whether to believe it (see topology_judge below). Belongs to the housekeeping core.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "shard/node_index.h"
#include "shard/topology.h"

struct view_node {
    char id[NODE_ID_BYTES]; /* empty where the reply has none */
    char host[HOST_BYTES];  /* never empty */
    uint16_t port;
    uint16_t shard; /* index */
    bool is_primary;
    bool is_failed;
    bool host_is_assumed; /* the reply names no host: the one the question was sent to */
};

struct view_shard {
    uint16_t primary; /* index of the node, NODE_NONE: none */
    uint16_t slots_count;
};

/* About 1.4 MB: made once with topology_view_create and used again for every reply. */
struct topology_view {
    uint64_t current_epoch; /* cluster_current_epoch of CLUSTER INFO from the same node; 0: unknown */
    uint32_t nodes_count, shards_count;
    uint32_t slots_covered;
    uint16_t slot_shard[CLUSTER_SLOTS]; /* index, SHARD_NONE */
    struct view_shard shards[TOPOLOGY_SHARDS_MAX];
    struct view_node nodes[TOPOLOGY_NODES_MAX];
    struct node_index ids;       /* of nodes with an id */
    struct node_index addresses; /* of all nodes */
};

struct topology_view *topology_view_create(void);
void topology_view_destroy(struct topology_view **view);

/* Empties a view. */
void topology_view_clear(struct topology_view *view);

/* Adds a shard without nodes and slots; returns its index, or SHARD_NONE where TOPOLOGY_SHARDS_MAX are there. */
uint16_t topology_view_add_shard(struct topology_view *view);

/* Adds a node to a shard. Returns its index, or NODE_NONE where TOPOLOGY_NODES_MAX are there. `node` is copied; its id is not in the view yet. Of several primaries
 * of a shard the first that is not failed stays its primary. */
uint16_t topology_view_add_node(struct topology_view *view, const struct view_node *node);

/* Gives slots first .. last to a shard. STATUS_INVALID for a range that is none, or where another shard has one of them. */
enum status topology_view_add_slots(struct topology_view *view, uint16_t shard, uint32_t first, uint32_t last) ZG_NODISCARD;

/* The node with this id (not empty) or address, or NODE_NONE. */
uint16_t topology_view_node_of_id(const struct topology_view *view, const char *id);
uint16_t topology_view_node_at(const struct topology_view *view, const char *host, uint16_t port);

/* Nodes whose host is assumed get the one that `current` (NULL: nothing happens) has for their id and port, and it is no longer assumed: so the view of a node that does not know
 * its own address, or of a cluster without names asked at another address, is not taken for a change. To be called before the view is judged. */
void topology_view_resolve(struct topology_view *view, const struct topology *current);

/*
 * The judgement. Rules, from reports of what went wrong in other proxies:
 *  - A view whose epoch is below that of the view in use is older and is rejected. Views with an unknown epoch are judged by the other rules. Only a cluster that has no node
 *    in common with the one in use (made anew) may begin with a lower epoch, and then every reachable node must say the same.
 *  - A change of routes (which primary serves which slots, and where it is) is believed when two nodes say it; when one does, where only one is reachable.
 *  - Slots for which a MOVED named the new primary need no second node, where nothing else changes.
 *  - A view that covers fewer slots than the one in use must come from every reachable node, and from two at least; from a single one only where the cluster in use and the view have just that one.
 *  - The first view: complete, as any change; incomplete, every reachable node must say the same. Such a partial cluster is served, topology_is_complete says that it is not whole.
 *  - Replicas and failure flags alone change by the word of one node.
 * "Every reachable node" is counted up to TOPOLOGY_SOURCES_MAX.
 */
enum { TOPOLOGY_SOURCES_MAX = 64 };

enum topology_verdict {
    TOPOLOGY_SAME,    /* nothing to do */
    TOPOLOGY_INSTALL, /* build a topology from this view, publish it, then call topology_judge_installed */
    TOPOLOGY_CONFIRM, /* ask a node that has not been asked about this change */
    TOPOLOGY_REJECT,  /* `reason` says why */
};

struct topology_hint {
    uint32_t address; /* hash, 0: none */
    uint32_t told_at_ms;
};

/* About 150 KB; embedded in or allocated by its owner. */
struct topology_judge {
    bool has_installed;
    uint64_t installed_routes, installed_details; /* fingerprints */
    uint64_t installed_epoch;
    uint32_t installed_covered;
    uint32_t installed_nodes;
    uint64_t candidate_routes; /* what waits for confirmation: 0 none */
    uint64_t candidate_epoch;
    uint64_t candidate_at_ns;
    uint32_t sources_count;
    uint64_t sources[TOPOLOGY_SOURCES_MAX];
    uint32_t hints_count;
    struct topology_hint hints[CLUSTER_SLOTS];
    char reason[160];
};

void topology_judge_init(struct topology_judge *judge);

/*
 * Judges a view. `current` is the topology in use, NULL before the first. `source` names the node that answered (its key, or a hash of its address: the same node has the same
 * number). `reachable_count` is the number of nodes known to answer, this one included (1 ..). Repeating a source is no confirmation. What is not confirmed within 30 s is forgotten.
 */
enum topology_verdict topology_judge_view(struct topology_judge *judge, const struct topology_view *view, const struct topology *current, uint64_t source,
    uint32_t reachable_count, uint64_t now_ns);

/* The view was published. */
void topology_judge_installed(struct topology_judge *judge, const struct topology_view *view);

/* A MOVED for `slot` named this address. Hints are forgotten with the next installed view or after 30 s. */
void topology_judge_moved(struct topology_judge *judge, uint32_t slot, const char *host, uint16_t port, uint64_t now_ns);

/* Why the last view was not installed (TOPOLOGY_CONFIRM, TOPOLOGY_REJECT): a short text for the log; valid until the next call. */
const char *topology_judge_reason(const struct topology_judge *judge);
