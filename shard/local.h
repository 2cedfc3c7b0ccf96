/*
 * What a data core answers itself about the cluster that it presents: CLUSTER * and ROLE. To a cluster-aware client the gateway is a cluster of one node that serves every slot,
 * or of a node a data core, where each has a port of its own. Every core serves every key: a client that does not know yet that a slot has moved to another core is served all the same, and learns it when it asks again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "net/command_table.h"
#include "net/resp_write.h"
#include "net/session.h"
#include "shard/topology.h"

enum { LOCAL_NODE_ID_BYTES = 41 };

/* What an answer depends on; all borrowed. */
struct local_view {
    const struct topology *topology; /* NULL before the first */
    bool presents_cluster;           /* of the listener that the client dialled */
    const char *announce_host;       /* configured, or the address the client dialled; "" for a unix socket */
    uint16_t announce_port;
    uint32_t cores_count; /* 0: one node, at that port, serves every slot. Else core i is a node at the port above by 1 + i, with the slots it owns */
    uint32_t core;        /* which of them answers */
};

/* 40 hex digits that depend on the announced address alone, so that all cores and gateways agree; NUL-terminated. */
void local_node_id(const char *host, uint16_t port, char id[LOCAL_NODE_ID_BYTES]);

/* Answers CLUSTER SLOTS, SHARDS, NODES, INFO, MYID, KEYSLOT and ROLE; any other row of the table is refused. Writes exactly one reply. */
void local_cluster_command(const struct local_view *view, const struct session *session, const struct command *command, const struct command_args *args,
    struct resp_writer *writer);
