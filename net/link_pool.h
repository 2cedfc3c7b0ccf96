/*
 * The links of one core, one per (node, channel), opened on first need: shared ones of each protocol, and bulk ones. A link that is lost is opened again at the next need, at once the first time, then after a jittered
 * exponential backoff: until that time has passed the node counts as unreachable and its legs fail at once.
 *
 *     per (node, channel):   no link ──► link up ──► lost ──► (backing off until retry_ms) ──► no link
 *
 * All attempts of a core together are bounded by its share of backends.connect_rate (net/connect_rate.h): a link beyond it waits for its turn, with the legs that are put on it meanwhile, for at most
 * connect_timeout; then it is closed and they end as those of any link that could not be opened.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/config.h"
#include "net/connect_rate.h"
#include "net/link.h"

struct link_slot {
    uint64_t name;       /* node key << 3 | channel; 0: free */
    struct link *link;   /* NULL: none */
    uint32_t failures;   /* attempts in a row that did not become ready */
    uint32_t unanswered; /* links in a row that ended before they had answered a command */
    uint64_t retry_ms;   /* no attempt before this time */
};

struct link_pool {
    struct net *net;
    const struct config_backend *backend;
    struct link_slot *slots; /* open addressing */
    uint32_t slots_mask;
    uint32_t slots_used;
    uint64_t reclaim_after_ms;  /* not before: looking for places of nodes that are gone */
    struct list_node links;     /* every open link, in the order in which they were opened */
    struct connect_rate rate;   /* this core's share of backends.connect_rate */
    bool has_waiting;           /* some link may be waiting for its turn to connect */
    uint8_t handshake[2][1024]; /* per protocol 2, 3 */
    uint32_t handshake_bytes[2];
};

/* The pool is reachable from every link by its holder slot; one per net. */
void link_pool_init(struct link_pool *pool, struct net *net, const struct config_backend *backend);
/* All links must be gone. */
void link_pool_fini(struct link_pool *pool);

/* The link to a node, opened if need be. NULL with *status: NO_NODE while backing off or where no socket can be had. */
struct link *link_pool_get(struct link_pool *pool, uint32_t node_key, const struct sockaddr *address, socklen_t address_bytes, uint8_t channel, enum status *status);

/* The node is worth an attempt now, whatever the backoff of its links says: somebody else has reached it, or keeps a pace of his own. */
void link_pool_retry_now(struct link_pool *pool, uint32_t node_key);

/* The open link of (node, channel), or NULL; opens nothing. */
struct link *link_pool_find(struct link_pool *pool, uint32_t node_key, uint8_t channel);

/* Whether the node has an open link, of any channel. */
bool link_pool_has_any(struct link_pool *pool, uint32_t node_key);

/* Periodic: time-outs, and links whose turn to connect has come, in their order. */
void link_pool_tick(struct link_pool *pool);

/* The last attempt to reach (node, channel) has failed. */
bool link_pool_is_failing(struct link_pool *pool, uint32_t node_key, uint8_t channel);

/* Closes links without legs for which keep() says no. */
void link_pool_prune(struct link_pool *pool, bool (*keep)(void *context, const struct link *link), void *context);

/* Closes all. */
void link_pool_close_all(struct link_pool *pool);

/* Called by net/link.c. A new link may connect now: true takes a token of the rate. False: the tick gives it its turn. */
bool link_pool_may_connect(struct link_pool *pool);
void link_pool_ready(struct link *link);
void link_pool_lost(struct net *net, struct link *link, enum close_reason reason);
