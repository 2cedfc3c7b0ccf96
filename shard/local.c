/*
 * Stateless. Source: the command reference of Redis 7 and redis-server 7.0's replies. Runs on: the home core of the connection.
 */
#include "shard/local.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "shard/slot.h"

enum { CLUSTER_BUS_OFFSET = 10000 };

void local_node_id(const char *host, uint16_t port, char id[LOCAL_NODE_ID_BYTES])
{
    char text[HOST_BYTES + 8];
    int length = snprintf(text, sizeof(text), "%s:%u", host, port);
    uint64_t first = hash_bytes(text, (size_t)length);
    uint64_t second = hash_u64(first + 1);
    uint64_t third = hash_u64(first + 2);
    (void)snprintf(id, LOCAL_NODE_ID_BYTES, "%016" PRIx64 "%016" PRIx64 "%08" PRIx64, first, second, third >> 32);
}

static void write_slots(const struct local_view *view, const char *id, struct resp_writer *writer)
{
    resp_write_array(writer, 1);
    resp_write_array(writer, 3);
    resp_write_integer(writer, 0);
    resp_write_integer(writer, CLUSTER_SLOTS - 1);
    resp_write_array(writer, 4);
    resp_write_text(writer, view->announce_host);
    resp_write_integer(writer, view->announce_port);
    resp_write_text(writer, id);
    resp_write_map(writer, 0);
}

static void write_pair(struct resp_writer *writer, const char *name, const char *value)
{
    resp_write_text(writer, name);
    resp_write_text(writer, value);
}

static void write_shards(const struct local_view *view, const char *id, struct resp_writer *writer)
{
    resp_write_array(writer, 1);
    resp_write_map(writer, 2);
    resp_write_text(writer, "slots");
    resp_write_array(writer, 2);
    resp_write_integer(writer, 0);
    resp_write_integer(writer, CLUSTER_SLOTS - 1);
    resp_write_text(writer, "nodes");
    resp_write_array(writer, 1);
    resp_write_map(writer, 7);
    write_pair(writer, "id", id);
    resp_write_text(writer, "port");
    resp_write_integer(writer, view->announce_port);
    write_pair(writer, "ip", view->announce_host);
    write_pair(writer, "endpoint", view->announce_host);
    write_pair(writer, "role", "master");
    resp_write_text(writer, "replication-offset");
    resp_write_integer(writer, 0);
    write_pair(writer, "health", "online");
}

static bool is_whole(const struct local_view *view)
{
    return view->topology != NULL && topology_is_complete(view->topology);
}

static void write_nodes(const struct local_view *view, const char *id, struct resp_writer *writer)
{
    char text[HOST_BYTES + 160];
    /* Clients read it as a port; the gateway has no bus, and 0 is what the cluster protocol uses for "none". */
    int bus_port = view->announce_port + CLUSTER_BUS_OFFSET <= UINT16_MAX ? view->announce_port + CLUSTER_BUS_OFFSET : 0;
    int length = snprintf(text, sizeof(text), "%s %s:%u@%u myself,master - 0 0 1 connected 0-%d\n", id, view->announce_host, view->announce_port, bus_port,
        CLUSTER_SLOTS - 1);
    resp_write_verbatim(writer, text, (size_t)length);
}

static void write_info(const struct local_view *view, struct resp_writer *writer)
{
    char text[512];
    uint32_t covered = view->topology == NULL ? 0 : is_whole(view) ? CLUSTER_SLOTS
                                                                   : view->topology->slots_covered;
    uint64_t epoch = view->topology != NULL ? view->topology->epoch : 0;
    int length = snprintf(text, sizeof(text),
        "cluster_state:%s\r\ncluster_slots_assigned:%d\r\ncluster_slots_ok:%u\r\ncluster_slots_pfail:0\r\n"
        "cluster_slots_fail:%u\r\ncluster_known_nodes:1\r\ncluster_size:1\r\ncluster_current_epoch:%" PRIu64 "\r\ncluster_my_epoch:%" PRIu64 "\r\n"
        "cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n",
        is_whole(view) ? "ok" : "fail", CLUSTER_SLOTS, covered, CLUSTER_SLOTS - covered, epoch, epoch);
    resp_write_verbatim(writer, text, (size_t)length);
}

static void write_role(struct resp_writer *writer)
{
    resp_write_array(writer, 3);
    resp_write_text(writer, "master");
    resp_write_integer(writer, 0);
    resp_write_array(writer, 0);
}

void local_cluster_command(const struct local_view *view, const struct session *session, const struct command *command, const struct command_args *args,
    struct resp_writer *writer)
{
    char id[LOCAL_NODE_ID_BYTES];
    (void)session;
    if (strcmp(command->name, "role") == 0) {
        write_role(writer);
        return;
    }
    if (!view->presents_cluster) {
        resp_write_error(writer, "ERR This instance has cluster support disabled");
        return;
    }
    local_node_id(view->announce_host, view->announce_port, id);
    if (strcmp(command->name, "slots") == 0)
        write_slots(view, id, writer);
    else if (strcmp(command->name, "shards") == 0)
        write_shards(view, id, writer);
    else if (strcmp(command->name, "nodes") == 0)
        write_nodes(view, id, writer);
    else if (strcmp(command->name, "info") == 0)
        write_info(view, writer);
    else if (strcmp(command->name, "myid") == 0)
        resp_write_text(writer, id);
    else if (strcmp(command->name, "keyslot") == 0)
        resp_write_integer(writer, slot_of_key(args->base + args->args[2].offset, args->args[2].length));
    else
        session_refuse(command, writer);
}
