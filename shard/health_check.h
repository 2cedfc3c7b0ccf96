/*
 * The active side of health, on the housekeeping core: one small keyed read to each node that serves slots, over the link that the housekeeper has to it anyway, judged by shard/health.h; what changes
 * is logged, counted and told to the data cores.
 *
 * The read is EXISTS of a key in a slot that the node should own (of a standalone server: any key). Only a node that believes that it owns the slot now, is a primary of a cluster that is up and has
 * loaded its data answers it with a number: a replica and a former owner say MOVED, a primary that has lost the majority says CLUSTERDOWN, a process that starts says LOADING. A PING shows none of it.
 * The slot is another one each time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "net/link_pool.h"
#include "net/net.h"
#include "shard/dispatch.h"
#include "shard/health.h"
#include "shard/recover.h"

/* `part` of the legs that are checks: above the poller's own questions. */
enum { HEALTH_QUESTION = 64 };

struct health_node {
    uint32_t key;      /* of the topology */
    uint16_t slot;     /* one that it owns */
    uint32_t sequence; /* of the check under way: an answer to another is late */
    uint64_t began_ms; /* of it */
    uint64_t untold;   /* data cores, as bits, that have not been told of the newest state */
    bool is_told_down; /* what they have been told, or are to be */
    struct health health;
};

/* The cluster does not look as it should: `moved` names the owner of a slot where a node said so, else NULL. */
typedef void (*health_refresh_fn)(void *context, const struct recover_target *moved);

struct health_checker {
    struct core *core;
    struct net *net;
    struct link_pool *links; /* the housekeeper's */
    health_refresh_fn refresh;
    void *context;
    struct health_rules rules;
    uint64_t timeout_ms;
    const struct topology *topology; /* borrowed; NULL: nothing to check yet */
    struct health_node *nodes;       /* by key, ascending */
    uint32_t nodes_count;
    uint32_t down_count;
    uint64_t down_ms; /* when a node was found down last */
    uint32_t *tags;   /* by slot: a number whose text, as a hash tag, lies in it; NULL until it is needed */
    bool is_off;
};

void health_check_init(struct health_checker *checker, struct core *core, struct net *net, struct link_pool *links, health_refresh_fn refresh, void *context);
void health_check_fini(struct health_checker *checker);

/* Another topology, valid until the next call: nodes that stay keep their state. */
void health_check_topology(struct health_checker *checker, const struct topology *topology);

/* Every 20 ms or so. */
void health_check_tick(struct health_checker *checker);

/* Every node is healthy, no check is under way and nothing is to be told: the tick may come less often for a while. */
bool health_check_is_quiet(const struct health_checker *checker);

/* For net_ops of the housekeeper, for legs with part HEALTH_QUESTION. The leg stays the caller's. */
void health_check_reply(struct health_checker *checker, const struct leg *leg, const struct reply *reply);
void health_check_lost(struct health_checker *checker, const struct link *link, const struct leg *leg);

/* A data core has reason to doubt a node. */
void health_check_doubt(struct health_checker *checker, uint32_t node_key);

/* The node is known to be down: nothing is to be asked of it. */
bool health_check_is_down(const struct health_checker *checker, uint32_t node_key);

/* Some node that serves slots is down, since a short while ago: the topology is worth looking at often. */
bool health_check_is_urgent(const struct health_checker *checker);
