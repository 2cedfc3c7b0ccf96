/*
 * Stateless. Source: the command reference of Redis 7 and redis-server 7.0's replies. Runs on: the home core of the connection.
 */
#include "shard/local.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
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

/* ---- nodes: the gateway, or its cores ---- */

static uint32_t nodes_count(const struct local_view *view)
{
    return view->cores_count > 0 ? view->cores_count : 1;
}

static uint16_t node_port(const struct local_view *view, uint32_t node)
{
    return view->cores_count > 0 ? (uint16_t)(view->announce_port + 1 + node) : view->announce_port;
}

static void node_id(const struct local_view *view, uint32_t node, char id[LOCAL_NODE_ID_BYTES])
{
    local_node_id(view->announce_host, node_port(view, node), id);
}

/* The node that answers. */
static uint32_t own_node(const struct local_view *view)
{
    return view->cores_count > 0 ? view->core : 0;
}

/* Before the first topology the core that answers has everything. */
static uint32_t owner_of(const struct local_view *view, uint32_t slot)
{
    return view->cores_count > 0 && view->topology != NULL ? view->topology->slot_owner[slot] : own_node(view);
}

/* Neighbouring slots with one owner. */
struct range {
    uint16_t first, last;
    uint32_t core;
};

struct ranges {
    struct range *all; /* ascending */
    uint32_t count;
};

/* They are looked for once a command: a node's are then a matter of their number, not of all slots. */
static void find_ranges(const struct local_view *view, struct ranges *ranges)
{
    uint32_t count = 1;
    for (uint32_t slot = 1; slot < CLUSTER_SLOTS && view->cores_count > 0; slot++)
        count += owner_of(view, slot) != owner_of(view, slot - 1);
    *ranges = (struct ranges){.all = alloc_zeroed(count * sizeof(struct range))};
    if (count == 1) {
        ranges->all[ranges->count++] = (struct range){.first = 0, .last = CLUSTER_SLOTS - 1, .core = owner_of(view, 0)};
        return;
    }
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++) {
        uint32_t core = owner_of(view, slot);
        if (slot == 0 || core != ranges->all[ranges->count - 1].core)
            ranges->all[ranges->count++] = (struct range){.first = (uint16_t)slot, .core = core};
        ranges->all[ranges->count - 1].last = (uint16_t)slot;
    }
}

static void write_slots(const struct local_view *view, const struct ranges *ranges, struct resp_writer *writer)
{
    char id[LOCAL_NODE_ID_BYTES];
    resp_write_array(writer, ranges->count);
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct range *range = &ranges->all[i];
        node_id(view, range->core, id);
        resp_write_array(writer, 3);
        resp_write_integer(writer, range->first);
        resp_write_integer(writer, range->last);
        resp_write_array(writer, 4);
        resp_write_text(writer, view->announce_host);
        resp_write_integer(writer, node_port(view, range->core));
        resp_write_text(writer, id);
        resp_write_map(writer, 0);
    }
}

static void write_pair(struct resp_writer *writer, const char *name, const char *value)
{
    resp_write_text(writer, name);
    resp_write_text(writer, value);
}

static void write_shard(const struct local_view *view, const struct ranges *ranges, uint32_t node, struct resp_writer *writer)
{
    char id[LOCAL_NODE_ID_BYTES];
    uint32_t count = 0;
    for (uint32_t i = 0; i < ranges->count; i++)
        count += ranges->all[i].core == node;
    node_id(view, node, id);
    resp_write_map(writer, 2);
    resp_write_text(writer, "slots");
    resp_write_array(writer, 2 * count);
    for (uint32_t i = 0; i < ranges->count; i++) {
        if (ranges->all[i].core != node)
            continue;
        resp_write_integer(writer, ranges->all[i].first);
        resp_write_integer(writer, ranges->all[i].last);
    }
    resp_write_text(writer, "nodes");
    resp_write_array(writer, 1);
    resp_write_map(writer, 7);
    write_pair(writer, "id", id);
    resp_write_text(writer, "port");
    resp_write_integer(writer, node_port(view, node));
    write_pair(writer, "ip", view->announce_host);
    write_pair(writer, "endpoint", view->announce_host);
    write_pair(writer, "role", "master");
    resp_write_text(writer, "replication-offset");
    resp_write_integer(writer, 0);
    write_pair(writer, "health", "online");
}

static void write_shards(const struct local_view *view, const struct ranges *ranges, struct resp_writer *writer)
{
    resp_write_array(writer, nodes_count(view));
    for (uint32_t node = 0; node < nodes_count(view); node++)
        write_shard(view, ranges, node, writer);
}

static bool is_whole(const struct local_view *view)
{
    return view->topology != NULL && topology_is_complete(view->topology);
}

static void write_node(const struct local_view *view, const struct ranges *ranges, uint32_t node, struct resp_writer *lines)
{
    char id[LOCAL_NODE_ID_BYTES];
    char text[HOST_BYTES + 160];
    uint16_t port = node_port(view, node);
    /* Clients read it as a port; the gateway has no bus, and 0 is what the cluster protocol uses for "none". */
    int bus_port = port + CLUSTER_BUS_OFFSET <= UINT16_MAX ? port + CLUSTER_BUS_OFFSET : 0;
    node_id(view, node, id);
    int length = snprintf(text, sizeof(text), "%s %s:%u@%d %smaster - 0 0 %u connected", id, view->announce_host, port, bus_port, node == own_node(view) ? "myself," : "", node + 1);
    resp_write_raw(lines, text, (size_t)length);
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct range *range = &ranges->all[i];
        if (range->core != node)
            continue;
        length = range->first == range->last ? snprintf(text, sizeof(text), " %u", range->first) : snprintf(text, sizeof(text), " %u-%u", range->first, range->last);
        resp_write_raw(lines, text, (size_t)length);
    }
    resp_write_raw(lines, "\n", 1);
}

static void write_nodes(const struct local_view *view, const struct ranges *ranges, struct resp_writer *writer)
{
    struct resp_writer lines;
    resp_writer_init(&lines, 2);
    for (uint32_t node = 0; node < nodes_count(view); node++)
        write_node(view, ranges, node, &lines);
    resp_write_verbatim(writer, lines.data, lines.length);
    resp_writer_fini(&lines);
}

/* SLOTS, SHARDS and NODES: one table, in three shapes. */
static void write_table(const struct local_view *view, const char *name, struct resp_writer *writer)
{
    struct ranges ranges;
    find_ranges(view, &ranges);
    if (strcmp(name, "slots") == 0)
        write_slots(view, &ranges, writer);
    else if (strcmp(name, "shards") == 0)
        write_shards(view, &ranges, writer);
    else
        write_nodes(view, &ranges, writer);
    alloc_free(ranges.all);
}

static void write_info(const struct local_view *view, struct resp_writer *writer)
{
    char text[512];
    uint32_t covered = view->topology == NULL ? 0 : is_whole(view) ? CLUSTER_SLOTS
                                                                   : view->topology->slots_covered;
    uint64_t epoch = view->topology != NULL ? view->topology->epoch : 0;
    int length = snprintf(text, sizeof(text),
        "cluster_state:%s\r\ncluster_slots_assigned:%d\r\ncluster_slots_ok:%u\r\ncluster_slots_pfail:0\r\n"
        "cluster_slots_fail:%u\r\ncluster_known_nodes:%u\r\ncluster_size:%u\r\ncluster_current_epoch:%" PRIu64 "\r\ncluster_my_epoch:%" PRIu64 "\r\n"
        "cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n",
        is_whole(view) ? "ok" : "fail", CLUSTER_SLOTS, covered, CLUSTER_SLOTS - covered, nodes_count(view), nodes_count(view), epoch, epoch);
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
    if (strcmp(command->name, "slots") == 0 || strcmp(command->name, "shards") == 0 || strcmp(command->name, "nodes") == 0) {
        write_table(view, command->name, writer);
        return;
    }
    node_id(view, own_node(view), id);
    if (strcmp(command->name, "info") == 0)
        write_info(view, writer);
    else if (strcmp(command->name, "myid") == 0)
        resp_write_text(writer, id);
    else if (strcmp(command->name, "keyslot") == 0)
        resp_write_integer(writer, slot_of_key(args->base + args->args[2].offset, args->args[2].length));
    else
        session_refuse(command, writer);
}
