/*
 * Parsers of cluster replies; input is not trusted. They read value by value and bound everything they keep. Run on the housekeeping core.
 */
#include "shard/topology_parse.h"

#include <string.h>

#include "core/check.h"
#include "net/resp_read.h"

/* A node as a reply describes it, before its host is decided. Texts are borrowed from the reply. */
struct described_node {
    struct resp_value id, endpoint, ip, role, health;
    int64_t port, tls_port;
};

static bool is_aggregate(const struct resp_value *value)
{
    return !value->is_null && (value->type == '*' || value->type == '~' || value->type == '%');
}

static bool is_text(const struct resp_value *value)
{
    return !value->is_null && (value->type == '$' || value->type == '+' || value->type == '=');
}

/* The header of a list; its elements follow. */
static bool read_list(struct resp_cursor *cursor, uint32_t *elements_count)
{
    struct resp_value value;
    if (!resp_read_value(cursor, &value) || value.is_null || (value.type != '*' && value.type != '~'))
        return false;
    *elements_count = resp_value_elements(&value);
    return true;
}

/* The header of a map, which in RESP2 is an array of keys and values in turn. */
static bool read_map(struct resp_cursor *cursor, uint32_t *pairs_count)
{
    struct resp_value value;
    if (!resp_read_value(cursor, &value) || !is_aggregate(&value))
        return false;
    uint32_t elements_count = resp_value_elements(&value);
    *pairs_count = elements_count / 2;
    return elements_count % 2 == 0;
}

/* A value that is no aggregate; of an aggregate the elements are passed over, and it counts as null. */
static bool read_scalar(struct resp_cursor *cursor, struct resp_value *value)
{
    if (!resp_read_value(cursor, value))
        return false;
    uint32_t elements_count = resp_value_elements(value);
    for (uint32_t i = 0; i < elements_count; i++)
        if (!resp_skip_value(cursor))
            return false;
    if (elements_count > 0)
        *value = (struct resp_value){.type = '_', .is_null = true};
    return true;
}

static bool read_integer(struct resp_cursor *cursor, int64_t *integer)
{
    struct resp_value value;
    return resp_read_value(cursor, &value) && resp_value_integer(&value, integer);
}

/* Copies a name of printable bytes without blanks; false where it is none or does not fit. */
static bool copy_name(char *target, uint32_t target_bytes, const struct resp_value *value)
{
    if (!is_text(value) || value->length == 0 || value->length >= target_bytes)
        return false;
    for (uint32_t i = 0; i < value->length; i++)
        if (value->bytes[i] <= ' ' || value->bytes[i] == 0x7f)
            return false;
    memset(target, 0, target_bytes);
    memcpy(target, value->bytes, value->length);
    return true;
}

static bool names_host(const struct resp_value *value)
{
    return is_text(value) && value->length > 0 && !resp_value_equals(value, "?");
}

static bool decide_host(struct view_node *node, const struct described_node *described, const char *asked_host)
{
    if (names_host(&described->endpoint))
        return copy_name(node->host, sizeof node->host, &described->endpoint);
    /* "?" says that names are preferred and this node has none, which leaves its address. Null (in CLUSTER SHARDS of Redis 7.0 and Valkey 8: empty) says "where you asked me". */
    if (resp_value_equals(&described->endpoint, "?") && names_host(&described->ip))
        return copy_name(node->host, sizeof node->host, &described->ip);
    memcpy(node->host, asked_host, strlen(asked_host) + 1);
    node->host_is_assumed = true;
    return true;
}

static bool decide_port(struct view_node *node, const struct described_node *described)
{
    int64_t port = described->port != 0 ? described->port : described->tls_port;
    if (port < 0 || port > UINT16_MAX)
        return false;
    node->port = (uint16_t)port;
    if (port == 0)
        node->is_failed = true;
    return true;
}

/* Everything of a node but shard and role. */
static bool describe(struct view_node *node, const struct described_node *described, const char *asked_host)
{
    memset(node, 0, sizeof *node);
    if (is_text(&described->id) && described->id.length > 0 && !copy_name(node->id, sizeof node->id, &described->id))
        return false;
    if (resp_value_equals(&described->health, "fail") || resp_value_equals(&described->health, "failed"))
        node->is_failed = true;
    return decide_host(node, described, asked_host) && decide_port(node, described);
}

static struct described_node nothing_described(void)
{
    struct resp_value null = {.type = '_', .is_null = true};
    return (struct described_node){.id = null, .endpoint = null, .ip = null, .role = null, .health = null};
}

/* One node of CLUSTER SHARDS: a map. */
static bool read_shards_node(struct resp_cursor *cursor, struct described_node *described)
{
    uint32_t pairs_count;
    if (!read_map(cursor, &pairs_count))
        return false;
    *described = nothing_described();
    for (uint32_t i = 0; i < pairs_count; i++) {
        struct resp_value name;
        bool read = read_scalar(cursor, &name);
        if (!read)
            return false;
        if (resp_value_equals(&name, "id"))
            read = read_scalar(cursor, &described->id);
        else if (resp_value_equals(&name, "endpoint"))
            read = read_scalar(cursor, &described->endpoint);
        else if (resp_value_equals(&name, "ip"))
            read = read_scalar(cursor, &described->ip);
        else if (resp_value_equals(&name, "role"))
            read = read_scalar(cursor, &described->role);
        else if (resp_value_equals(&name, "health"))
            read = read_scalar(cursor, &described->health);
        else if (resp_value_equals(&name, "port"))
            read = read_integer(cursor, &described->port);
        else if (resp_value_equals(&name, "tls-port"))
            read = read_integer(cursor, &described->tls_port);
        else
            read = resp_skip_value(cursor);
        if (!read)
            return false;
    }
    return true;
}

static uint16_t find_node(const struct topology_view *view, const struct view_node *node)
{
    return node->id[0] ? topology_view_node_of_id(view, node->id) : topology_view_node_at(view, node->host, node->port);
}

static enum status read_shards_nodes(struct topology_view *view, struct resp_cursor *cursor, uint16_t shard, const char *asked_host)
{
    uint32_t nodes_count;
    if (!read_list(cursor, &nodes_count))
        return STATUS_INVALID;
    for (uint32_t i = 0; i < nodes_count; i++) {
        struct described_node described;
        struct view_node node;
        if (!read_shards_node(cursor, &described) || !describe(&node, &described, asked_host))
            return STATUS_INVALID;
        bool is_replica = resp_value_equals(&described.role, "replica") || resp_value_equals(&described.role, "slave");
        node.is_primary = resp_value_equals(&described.role, "master") || resp_value_equals(&described.role, "primary");
        if (node.is_primary == is_replica || node.id[0] == '\0' || find_node(view, &node) != NODE_NONE)
            return STATUS_INVALID;
        node.shard = shard;
        if (topology_view_add_node(view, &node) == NODE_NONE)
            return STATUS_FULL;
    }
    return STATUS_OK;
}

/* Pairs of first and last slot in one flat list. */
static enum status read_ranges(struct topology_view *view, struct resp_cursor *cursor, uint16_t shard)
{
    uint32_t elements_count;
    if (!read_list(cursor, &elements_count) || elements_count % 2 != 0)
        return STATUS_INVALID;
    for (uint32_t i = 0; i < elements_count; i += 2) {
        int64_t first, last;
        if (!read_integer(cursor, &first) || !read_integer(cursor, &last) || first < 0 || last < 0 || first >= CLUSTER_SLOTS || last >= CLUSTER_SLOTS)
            return STATUS_INVALID;
        enum status status = topology_view_add_slots(view, shard, (uint32_t)first, (uint32_t)last);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status read_shard(struct topology_view *view, struct resp_cursor *cursor, const char *asked_host)
{
    uint32_t pairs_count;
    if (!read_map(cursor, &pairs_count))
        return STATUS_INVALID;
    uint16_t shard = topology_view_add_shard(view);
    if (shard == SHARD_NONE)
        return STATUS_FULL;
    for (uint32_t i = 0; i < pairs_count; i++) {
        struct resp_value name;
        if (!read_scalar(cursor, &name))
            return STATUS_INVALID;
        enum status status = STATUS_OK;
        if (resp_value_equals(&name, "slots"))
            status = read_ranges(view, cursor, shard);
        else if (resp_value_equals(&name, "nodes"))
            status = read_shards_nodes(view, cursor, shard, asked_host);
        else if (!resp_skip_value(cursor))
            status = STATUS_INVALID;
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* Metadata of a node in CLUSTER SLOTS: a map; only the IP address is of interest. */
static bool read_metadata(struct resp_cursor *cursor, struct described_node *described)
{
    uint32_t pairs_count;
    if (!read_map(cursor, &pairs_count))
        return false;
    for (uint32_t i = 0; i < pairs_count; i++) {
        struct resp_value name;
        if (!read_scalar(cursor, &name))
            return false;
        if (!(resp_value_equals(&name, "ip") ? read_scalar(cursor, &described->ip) : resp_skip_value(cursor)))
            return false;
    }
    return true;
}

/* One node of CLUSTER SLOTS: endpoint, port, id (since Redis 4), metadata (since Redis 7), what the future brings. */
static bool read_slots_node(struct resp_cursor *cursor, struct described_node *described)
{
    uint32_t elements_count;
    *described = nothing_described();
    if (!read_list(cursor, &elements_count) || elements_count < 2)
        return false;
    if (!read_scalar(cursor, &described->endpoint) || !read_integer(cursor, &described->port))
        return false;
    if (elements_count > 2 && !read_scalar(cursor, &described->id))
        return false;
    if (elements_count > 3 && !read_metadata(cursor, described))
        return false;
    for (uint32_t i = 4; i < elements_count; i++)
        if (!resp_skip_value(cursor))
            return false;
    return true;
}

/* A shard is known by its primary, the first node; it is named again for every range. */
static enum status shard_of_primary(struct topology_view *view, struct view_node *primary, uint16_t *shard)
{
    uint16_t known = find_node(view, primary);
    if (known != NODE_NONE) {
        *shard = view->nodes[known].shard;
        return view->nodes[known].is_primary ? STATUS_OK : STATUS_INVALID;
    }
    *shard = topology_view_add_shard(view);
    if (*shard == SHARD_NONE)
        return STATUS_FULL;
    primary->shard = *shard;
    primary->is_primary = true;
    return topology_view_add_node(view, primary) == NODE_NONE ? STATUS_FULL : STATUS_OK;
}

static enum status add_replica(struct topology_view *view, struct view_node *replica, uint16_t shard)
{
    uint16_t known = find_node(view, replica);
    if (known != NODE_NONE)
        return view->nodes[known].shard == shard && !view->nodes[known].is_primary ? STATUS_OK : STATUS_INVALID;
    replica->shard = shard;
    return topology_view_add_node(view, replica) == NODE_NONE ? STATUS_FULL : STATUS_OK;
}

static enum status read_slots_entry(struct topology_view *view, struct resp_cursor *cursor, const char *asked_host)
{
    uint32_t elements_count;
    int64_t first, last;
    if (!read_list(cursor, &elements_count) || elements_count < 2 || !read_integer(cursor, &first) || !read_integer(cursor, &last))
        return STATUS_INVALID;
    if (first < 0 || last < first || last >= CLUSTER_SLOTS)
        return STATUS_INVALID;
    uint16_t shard = SHARD_NONE;
    for (uint32_t i = 2; i < elements_count; i++) {
        struct described_node described;
        struct view_node node;
        if (!read_slots_node(cursor, &described) || !describe(&node, &described, asked_host))
            return STATUS_INVALID;
        enum status status = i == 2 ? shard_of_primary(view, &node, &shard) : add_replica(view, &node, shard);
        if (status != STATUS_OK)
            return status;
    }
    /* A range without nodes is served by nobody. */
    return shard == SHARD_NONE ? STATUS_OK : topology_view_add_slots(view, shard, (uint32_t)first, (uint32_t)last);
}

typedef enum status (*read_entry_fn)(struct topology_view *view, struct resp_cursor *cursor, const char *asked_host);

static enum status parse(struct topology_view *view, const uint8_t *reply, uint32_t length, const char *asked_host, read_entry_fn read_entry)
{
    ZG_CHECK(asked_host[0] != '\0' && strlen(asked_host) < HOST_BYTES);
    struct resp_cursor cursor;
    uint32_t entries_count;
    resp_cursor_init(&cursor, reply, length);
    topology_view_clear(view);
    enum status status = read_list(&cursor, &entries_count) ? STATUS_OK : STATUS_INVALID;
    for (uint32_t i = 0; status == STATUS_OK && i < entries_count; i++)
        status = read_entry(view, &cursor, asked_host);
    if (status == STATUS_OK && cursor.position != length)
        status = STATUS_INVALID;
    if (status != STATUS_OK)
        topology_view_clear(view);
    return status;
}

enum status topology_parse_shards(struct topology_view *view, const uint8_t *reply, uint32_t length, const char *asked_host)
{
    return parse(view, reply, length, asked_host, read_shard);
}

enum status topology_parse_slots(struct topology_view *view, const uint8_t *reply, uint32_t length, const char *asked_host)
{
    return parse(view, reply, length, asked_host, read_slots_entry);
}

uint64_t topology_parse_epoch(const uint8_t *reply, uint32_t length)
{
    static const char field[] = "cluster_current_epoch:";
    struct resp_cursor cursor;
    struct resp_value text;
    resp_cursor_init(&cursor, reply, length);
    if (!resp_read_value(&cursor, &text) || !is_text(&text))
        return 0;
    const uint8_t *found = memmem(text.bytes, text.length, field, sizeof field - 1);
    if (!found)
        return 0;
    uint64_t epoch = 0;
    const uint8_t *end = text.bytes + text.length;
    for (const uint8_t *digit = found + sizeof field - 1; digit < end && *digit >= '0' && *digit <= '9'; digit++)
        if (__builtin_mul_overflow(epoch, 10U, &epoch) || __builtin_add_overflow(epoch, (uint64_t)(*digit - '0'), &epoch))
            return 0;
    return epoch;
}
