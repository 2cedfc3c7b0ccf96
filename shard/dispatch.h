/*
 * The dispatcher of a data core: its home side turns a command into legs and brings them to their owner cores (dispatch.c), its owner side takes legs through fences and batches to links and their replies
 * back (owner.c); a new topology is adopted in adopt.c. One struct, one thread.
 *
 *     home:   dispatch ─► legs ─► own slot: owner_accept            ─► request_leg_done
 *                               └► other core: MSG_LEG ... MSG_REPLY ─┘
 *     owner:  owner_accept ─► fence ─► batch ─► (flush) link ─► owner_reply ─► recover? ─► leg done
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "net/link_pool.h"
#include "net/net.h"
#include "shard/batch.h"
#include "shard/fence.h"
#include "shard/load.h"
#include "shard/node_health.h"
#include "shard/recover.h"
#include "shard/retry_budget.h"
#include "shard/split.h"
#include "shard/topology.h"

enum { FOREIGN_NODES_MAX = 64, RETRY_TICK_MS = 2, LARGE_KEYS_MAX = 1024 };
#define FOREIGN_NODE_BIT UINT32_C(0x80000000)

struct published;

/* Bodies of messages: at most 40 bytes. */
struct msg_leg {
    uint32_t key_hash;
    uint32_t deadline_ms;
    uint16_t slot;
    uint16_t part;
    uint16_t use_case;
    uint8_t protocol;
    uint8_t flags; /* enum leg_flag: LEG_READONLY */
};
struct msg_reply {
    uint16_t part;
    uint16_t status; /* enum status; not OK: no bytes, its text is the reply */
};
struct msg_snapshot {
    const struct published *published; /* immutable, and alive until a newer one is acknowledged */
};
struct msg_ack {
    uint64_t epoch;
};
struct msg_refresh {
    uint16_t slot;
    uint16_t port; /* 0: no redirect, just refresh */
    char host[36]; /* what a MOVED named; empty where it does not fit */
};
_Static_assert(sizeof(struct msg_refresh) <= 40, "body of a message");
struct msg_health {
    uint32_t node_key;
    bool is_down;
};
struct msg_doubt {
    uint32_t node_key;
};

/* A node that a redirect named and the topology does not know yet. */
struct foreign_node {
    char host[HOST_BYTES];
    uint16_t port;
    struct sockaddr_storage address;
    socklen_t address_bytes;
    uint64_t used_ms; /* when a redirect named it last */
};

/* What waits for credits of one lane. */
struct lane_waiters {
    struct leg_list legs;     /* parts of split requests; they hold their bytes */
    struct list_node clients; /* paused by PAUSE_CREDIT */
};

/* A link that is being lost: from its first leg to owner_gone. */
struct lost_link {
    uint64_t key;                         /* of the link; 0: none */
    struct leg_list behind;               /* the batch for its node as it was: it goes behind what is repeated */
    struct block *chain;                  /* its bytes */
    uint32_t write_behind[CLUSTER_SLOTS]; /* by slot: legs behind the last write that was on the link, + 1; 0: no write */
};

struct dispatcher {
    struct core *core;
    struct net *net;
    const struct topology *topology; /* NULL until the first snapshot */
    struct link_pool links;
    struct fence_table fences;
    struct batch_map batches;
    struct splitter splitter;
    struct load_page *load;    /* what this core's slots cost it; others read it until dispatcher_fini */
    bool counts_load;          /* with one data core there is nobody to give a slot to, and the counters are left alone */
    struct resp_writer merged; /* reply of the split request answered last */
    struct pool splits;
    struct pool subsplits;
    struct lost_link lost;
    uint32_t large_keys[LARGE_KEYS_MAX]; /* keys whose replies were large of late, by their hash; 0: none. Those that fall on one place take it from each other */
    uint32_t large_keys_count;
    struct leg_list retries; /* legs to be sent again later: checked every RETRY_TICK_MS */
    struct timer retry_timer;
    struct retry_budget budget;
    struct node_health health;
    uint32_t routes[CLUSTER_SLOTS]; /* node key by slot: the topology's primary, or what MOVED has said since; 0: nobody serves it */
    uint32_t foreign_count;
    struct foreign_node foreign[FOREIGN_NODES_MAX];
    struct lane_waiters waiters[CONFIG_DATA_CORES_MAX];
    bool lanes_waiting; /* some lane may have waiters */
    uint64_t refresh_asked_ms;
    bool ack_pending; /* the acknowledgement found no room yet */
};

void dispatcher_init(struct dispatcher *dispatcher, struct core *core, struct net *net);
void dispatcher_fini(struct dispatcher *dispatcher);

extern const struct net_ops dispatcher_net_ops;

/* Messages MSG_LEG and MSG_REPLY. */
void dispatcher_message(struct dispatcher *dispatcher, uint32_t from, const struct msg *msg, const uint8_t *bytes);

/* Flush hook, before net_flush: waiters that got credits, then batches to their links. */
void dispatcher_flush(struct dispatcher *dispatcher);

/* Timers of the worker: every 10 ms, more seldom while no leg is anywhere; about every second. */
void dispatcher_tick(struct dispatcher *dispatcher);
void dispatcher_tick_slow(struct dispatcher *dispatcher);

/* No leg is anywhere on this core. */
bool dispatcher_is_idle(const struct dispatcher *dispatcher);

/* Message MSG_HEALTH: a node is down, or back. */
void dispatcher_node_health(struct dispatcher *dispatcher, uint32_t node_key, bool is_down);

/* A new topology, valid until the next one is adopted: adopts and acknowledges it. */
void adopt_topology(struct dispatcher *dispatcher, const struct topology *topology);

/* ---- between dispatch.c, owner.c and adopt.c ---- */

/* Takes a leg that this core owns on its way; failures end it. */
void owner_accept(struct dispatcher *dispatcher, struct leg *leg, const struct leg_source *source);
void owner_reply(struct net *net, struct link *link, struct leg *leg, const struct reply *reply);
void owner_streams(struct net *net, struct leg *leg, uint64_t reply_bytes);
void owner_lost(struct net *net, struct link *link, struct leg *leg, bool was_sent);
void owner_progress(struct net *net, struct link *link);
void owner_gone(struct net *net, struct link *link);
/* Batches to their links; those of links at their maximum wait unless `force`. */
void owner_flush(struct dispatcher *dispatcher, bool force);
void owner_expire(struct dispatcher *dispatcher);
void owner_init(struct dispatcher *dispatcher);
void owner_fini(struct dispatcher *dispatcher);

/* What a MOVED said, as the poller takes it; NULL: no redirect. */
struct msg_refresh dispatcher_refresh_body(const struct recover_target *moved);

/* Asks the housekeeping core for a fresh topology; with a slot and address where a MOVED named one. Throttled. */
void dispatcher_ask_refresh(struct dispatcher *dispatcher, const struct recover_target *moved);

/* The node (key) that serves a slot as far as this core knows, 0: none. */
static inline uint32_t dispatcher_route(const struct dispatcher *dispatcher, uint16_t slot)
{
    return dispatcher->routes[slot];
}
/* Its address; false where it is not known any more. */
bool dispatcher_node_address(const struct dispatcher *dispatcher, uint32_t node_key, const struct sockaddr **address, socklen_t *bytes);
