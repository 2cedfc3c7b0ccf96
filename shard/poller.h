/*
 * Keeps the view of the backends fresh, on the housekeeping core: asks one node at a time, judges what it says (shard/topology_view.h), builds topologies. At start it also asks for COMMAND and COMMAND DOCS.
 *
 *     STARTING (facts: COMMAND, DOCS) ──► IDLE ── interval, refresh asked for ──► ASKING ── reply ──► IDLE
 *                                                                                   │ CONFIRM: another node
 *                                                                                   └─► ASKING
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "net/link_pool.h"
#include "net/net.h"
#include "net/send_queue.h"
#include "shard/dispatch.h"
#include "shard/health_check.h"
#include "shard/published.h"
#include "shard/topology_view.h"

enum poller_state { POLLER_STARTING, POLLER_IDLE, POLLER_ASKING };

struct poller;
/* A new topology: takes it. False: cannot be published now, the topology stays the caller's. */
typedef bool (*poller_publish_fn)(void *context, const struct topology *topology);

struct poller {
    struct core *core;
    struct net *net;
    struct link_pool links;
    struct health_checker health; /* over the same links */
    struct backend_facts *facts;
    poller_publish_fn publish;
    void *context;
    struct topology_judge *judge;
    struct topology_view *view;
    const struct topology *topology; /* published last; owned by the publisher */
    uint64_t next_ms;                /* of the next poll */
    uint64_t asked_ms;               /* when the poll under way began */
    uint64_t started_ms;
    uint32_t spacing_ms; /* least time between two polls that were asked for */
    uint32_t asked_node; /* key */
    char asked_host[HOST_BYTES];
    uint64_t asked_epoch;       /* cluster_current_epoch it said */
    uint32_t round_asked_count; /* nodes asked in this round, so that each is asked once */
    uint32_t round_asked[TOPOLOGY_SOURCES_MAX];
    uint32_t facts_left;    /* replies of the start still to come */
    bool was_answered;      /* some reply of the start has come, be it an error */
    uint8_t state;          /* enum poller_state */
    bool close_extra_links; /* at the next tick */
    bool uses_slots;        /* CLUSTER SHARDS is not known there: CLUSTER SLOTS */
};

extern const struct net_ops poller_net_ops;

/* net->owner must be the poller. */
void poller_init(struct poller *poller, struct core *core, struct net *net, struct backend_facts *facts, poller_publish_fn publish, void *context);
void poller_fini(struct poller *poller);

/* A data core asks for a fresh view; `moved` may be NULL. */
void poller_refresh(struct poller *poller, const struct msg_refresh *moved);

/* Another topology of the same view, with other owners, takes the place of the newest. True: it has been taken. False: it cannot be published now. */
bool poller_replace(struct poller *poller, const struct topology *topology);

/* Every 20 ms, and when a poll is due; else more seldom while it is idle and no request passes. */
void poller_tick(struct poller *poller);
