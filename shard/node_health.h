/*
 * What a data core knows of the health of nodes: those that the housekeeping core has found down (shard/health_check.h), and those that have just come back. Commands for a node that is down are answered
 * at once; what a core sees of its own links - silence, losses - is told to the housekeeping core as a doubt, which checks. No node is given up by one core's word.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shard/topology.h"

struct dispatcher;
struct link;

enum { NODE_HEALTH_BACK_MAX = 64 };

/* A node that has come back: links to it that stay silent are to be closed. */
struct node_back {
    uint32_t key; /* 0: none */
    uint64_t at_ms;
};

struct node_health {
    uint32_t down_count;
    uint32_t down[TOPOLOGY_NODES_MAX]; /* keys, ascending */
    uint32_t back_next;                /* place in `back` for the next */
    struct node_back back[NODE_HEALTH_BACK_MAX];
    uint64_t look_ms;   /* when links are looked at next */
    uint64_t doubts_ms; /* of the second in which doubts_count were sent */
    uint32_t doubts_count;
};

/* Where health says that the node is down, and nothing that this core sees says otherwise: what is for it fails at once. */
bool node_health_fails(struct dispatcher *dispatcher, uint32_t node_key, const struct link *link);

/* Periodic: silent links are doubted, or closed where their node has come back. */
void node_health_tick(struct dispatcher *dispatcher);

/* A link was lost or could not be opened. */
void node_health_link_lost(struct dispatcher *dispatcher, const struct link *link);

/* A topology was adopted: nodes that it does not know any more are forgotten. */
void node_health_adopt(struct dispatcher *dispatcher, const struct topology *topology);
