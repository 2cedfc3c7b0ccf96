#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "shard/topology_parse.h"
#include "tests/shard/data/cluster_replies.h"

TestSuite(topology_parse);

typedef enum status (*parse_fn)(struct topology_view *view, const uint8_t *reply, uint32_t length, const char *asked_host);

static const struct recorded_reply *recorded(const char *name)
{
    for (size_t i = 0; i < sizeof recorded_replies / sizeof recorded_replies[0]; i++)
        if (strcmp(recorded_replies[i].name, name) == 0)
            return &recorded_replies[i];
    cr_assert_fail("no recording %s", name);
    return NULL;
}

static parse_fn parser_of(const char *name)
{
    return strstr(name, "_shards_") ? topology_parse_shards : strstr(name, "_slots_") ? topology_parse_slots
                                                                                      : NULL;
}

/* Parses an exact copy on the heap, so that a sanitizer sees a read beyond the reply. */
static enum status parse_bytes(parse_fn parse, struct topology_view *view, const void *bytes, uint32_t length)
{
    uint8_t *copy = malloc(length > 0 ? length : 1);
    memcpy(copy, bytes, length);
    enum status status = parse(view, copy, length, "asked.example");
    free(copy);
    return status;
}

static enum status parse_text(parse_fn parse, struct topology_view *view, const char *text)
{
    return parse_bytes(parse, view, text, (uint32_t)strlen(text));
}

static const struct view_node *primary_of(const struct topology_view *view, uint32_t slot)
{
    cr_assert_neq(view->slot_shard[slot], SHARD_NONE);
    return &view->nodes[view->shards[view->slot_shard[slot]].primary];
}

static void expect_primary(const struct topology_view *view, uint32_t slot, const char *host, uint16_t port)
{
    const struct view_node *primary = primary_of(view, slot);
    cr_expect_str_eq(primary->host, host);
    cr_expect_eq(primary->port, port, "slot %u: %u, not %u", slot, primary->port, port);
    cr_expect(primary->is_primary);
}

static uint32_t count_failed(const struct topology_view *view)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->nodes_count; i++)
        count += view->nodes[i].is_failed;
    return count;
}

Test(topology_parse, replies_recorded_are_read)
{
    struct topology_view *view = topology_view_create();
    uint32_t parsed = 0;
    for (size_t i = 0; i < sizeof recorded_replies / sizeof recorded_replies[0]; i++) {
        const struct recorded_reply *reply = &recorded_replies[i];
        parse_fn parse = parser_of(reply->name);
        if (!parse)
            continue;
        parsed++;
        cr_assert_eq(parse_bytes(parse, view, reply->bytes, reply->length), STATUS_OK, "%s", reply->name);
        bool is_unnamed = strstr(reply->name, "unknown_endpoint") != NULL, is_failover = strstr(reply->name, "failover") != NULL, is_reshard = strstr(reply->name, "reshard") != NULL;
        const char *host = is_unnamed ? "asked.example" : "127.0.0.1";
        cr_expect_eq(view->slots_covered, CLUSTER_SLOTS, "%s", reply->name);
        expect_primary(view, 0, host, is_failover || is_reshard ? 21003 : 21000);
        expect_primary(view, 5460, host, is_failover || is_reshard ? 21003 : 21000);
        expect_primary(view, 5461, host, is_reshard ? 21002 : 21001);
        expect_primary(view, 10921, host, 21001);
        expect_primary(view, 16383, host, 21002);
        bool lists_failed = parse == topology_parse_shards && (is_failover || is_reshard);
        cr_expect_eq(view->nodes_count, is_failover || is_reshard ? (lists_failed ? 6 : 5) : 6, "%s: %u nodes", reply->name, view->nodes_count);
        cr_expect_eq(view->shards_count, lists_failed ? 4 : 3, "%s: %u shards", reply->name, view->shards_count);
        cr_expect_eq(count_failed(view), lists_failed, "%s", reply->name);
        for (uint32_t node = 0; node < view->nodes_count; node++) {
            cr_expect_eq(strlen(view->nodes[node].id), 40);
            cr_expect_eq(view->nodes[node].host_is_assumed, is_unnamed);
            cr_expect_eq(topology_view_node_of_id(view, view->nodes[node].id), node);
            cr_expect_eq(topology_view_node_at(view, view->nodes[node].host, view->nodes[node].port), node);
        }
    }
    cr_expect_eq(parsed, 18);
    topology_view_destroy(&view);
    cr_expect_null(view);
}

Test(topology_parse, epochs_recorded_are_read)
{
    const struct recorded_reply *reply = recorded("redis7_info_resp2");
    cr_expect_eq(topology_parse_epoch((const uint8_t *)reply->bytes, reply->length), 6);
    reply = recorded("redis7_info_resp3");
    cr_expect_eq(topology_parse_epoch((const uint8_t *)reply->bytes, reply->length), 6);
    reply = recorded("failover_info_resp2");
    cr_expect_eq(topology_parse_epoch((const uint8_t *)reply->bytes, reply->length), 7);
    for (uint32_t length = 0; length < reply->length; length++) {
        uint8_t *copy = malloc(length > 0 ? length : 1);
        memcpy(copy, reply->bytes, length);
        cr_assert_eq(topology_parse_epoch(copy, length), 0, "cut at %u", length);
        free(copy);
    }
}

Test(topology_parse, epochs_that_are_none_are_zero)
{
    static const char *const texts[] = {"-ERR no\r\n", "+OK\r\n", ":3\r\n", "$-1\r\n", "_\r\n", "$24\r\ncluster_current_epoch:x\r\n\r\n", "$22\r\ncluster_current_epoch:\r\n",
        "$43\r\ncluster_current_epoch:999999999999999999999\r\n", "$21\r\ncluster_current_epoch\r\n", ""};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        cr_expect_eq(topology_parse_epoch((const uint8_t *)texts[i], (uint32_t)strlen(texts[i])), 0, "%s", texts[i]);
    cr_expect_eq(topology_parse_epoch((const uint8_t *)"$23\r\ncluster_current_epoch:7\r\n", 30), 7);
    cr_expect_eq(topology_parse_epoch((const uint8_t *)"$42\r\ncluster_current_epoch:18446744073709551615\r\n", 49), UINT64_MAX);
}

Test(topology_parse, replies_cut_at_any_byte_are_invalid)
{
    struct topology_view *view = topology_view_create();
    for (size_t i = 0; i < sizeof recorded_replies / sizeof recorded_replies[0]; i++) {
        const struct recorded_reply *reply = &recorded_replies[i];
        parse_fn parse = parser_of(reply->name);
        for (uint32_t length = 0; parse && length < reply->length; length++) {
            cr_assert_eq(parse_bytes(parse, view, reply->bytes, length), STATUS_INVALID, "%s cut at %u", reply->name, length);
            cr_assert(view->nodes_count == 0 && view->shards_count == 0 && view->slots_covered == 0);
        }
    }
    topology_view_destroy(&view);
}

/* Whatever the byte says, the result is a consistent view or none; under a sanitizer this is where a fault shows. */
Test(topology_parse, replies_with_any_byte_changed_are_consistent_or_invalid)
{
    struct topology_view *view = topology_view_create();
    struct rng rng = {.state = 3};
    uint32_t accepted = 0, refused = 0;
    for (size_t i = 0; i < sizeof recorded_replies / sizeof recorded_replies[0]; i++) {
        const struct recorded_reply *reply = &recorded_replies[i];
        parse_fn parse = parser_of(reply->name);
        for (uint32_t place = 0; parse && place < reply->length; place++) {
            char *copy = malloc(reply->length);
            memcpy(copy, reply->bytes, reply->length);
            static const char replacements[] = "0123456789$*%:+-_~#\r\n?\0";
            copy[place] = rng_below(&rng, 4) == 0 ? (char)rng_next(&rng) : replacements[rng_below(&rng, sizeof replacements)];
            enum status status = parse_bytes(parse, view, copy, reply->length);
            free(copy);
            cr_assert(status == STATUS_OK || status == STATUS_INVALID);
            uint32_t covered = 0;
            for (uint32_t shard = 0; shard < view->shards_count; shard++)
                covered += view->shards[shard].slots_count;
            cr_assert_eq(covered, view->slots_covered);
            accepted += status == STATUS_OK;
            refused += status != STATUS_OK;
        }
    }
    cr_expect_gt(accepted, 0);
    cr_expect_gt(refused, accepted);
    topology_view_destroy(&view);
}

/* One shard of one node in RESP3, with the given endpoint, address, health and slots. */
static const char *shards_text(const char *endpoint, const char *ip, const char *fields, uint32_t fields_count, const char *slots)
{
    static char text[1024];
    snprintf(text, sizeof text,
        "*1\r\n%%2\r\n+slots\r\n%s+nodes\r\n*1\r\n%%%u\r\n+id\r\n+abc\r\n+role\r\n+master\r\n+port\r\n:7000\r\n+endpoint\r\n%s+ip\r\n%s%s", slots, 5 + fields_count, endpoint, ip,
        fields);
    return text;
}

Test(topology_parse, shards_with_endpoints_unknown_fall_back)
{
    struct topology_view *view = topology_view_create();
    static const struct {
        const char *endpoint, *ip, *host;
        bool is_assumed;
    } rows[] = {
        {"$1\r\nh\r\n", "$1\r\ni\r\n", "h", false},
        {"_\r\n", "$1\r\ni\r\n", "asked.example", true},
        {"$-1\r\n", "$1\r\ni\r\n", "asked.example", true},
        {"$0\r\n\r\n", "$1\r\ni\r\n", "asked.example", true},
        {"$1\r\n?\r\n", "$1\r\ni\r\n", "i", false},
        {"$0\r\n\r\n", "$0\r\n\r\n", "asked.example", true},
        {"$1\r\n?\r\n", "_\r\n", "asked.example", true},
        {"+h.example\r\n", "_\r\n", "h.example", false},
        {"$3\r\n::1\r\n", "_\r\n", "::1", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cr_assert_eq(parse_text(topology_parse_shards, view, shards_text(rows[i].endpoint, rows[i].ip, "", 0, "*2\r\n:0\r\n:3\r\n")), STATUS_OK, "row %zu", i);
        cr_expect_str_eq(view->nodes[0].host, rows[i].host, "row %zu: %s", i, view->nodes[0].host);
        cr_expect_eq(view->nodes[0].host_is_assumed, rows[i].is_assumed, "row %zu", i);
    }
    topology_view_destroy(&view);
}

Test(topology_parse, shards_with_unknown_fields_are_read)
{
    struct topology_view *view = topology_view_create();
    const char *fields = "+tls-port\r\n:7443\r\n+future\r\n%1\r\n+a\r\n*2\r\n*1\r\n*0\r\n_\r\n:5\r\n~1\r\n#t\r\n+health\r\n+failed\r\n";
    cr_assert_eq(parse_text(topology_parse_shards, view, shards_text("+h\r\n", "_\r\n", fields, 4, "*4\r\n:0\r\n:3\r\n:10\r\n:10\r\n")), STATUS_OK);
    cr_expect_eq(view->slots_covered, 5);
    cr_expect_eq(view->nodes[0].port, 7000);
    cr_expect(view->nodes[0].is_failed);
    cr_expect_eq(parse_text(topology_parse_shards, view, "*0\r\n"), STATUS_OK, "a node that knows nobody");
    cr_expect_eq(view->slots_covered, 0);
    topology_view_destroy(&view);
}

Test(topology_parse, ports_of_tls_alone_and_none_are_told)
{
    struct topology_view *view = topology_view_create();
    cr_assert_eq(parse_text(topology_parse_shards, view, "*1\r\n%2\r\n+slots\r\n*0\r\n+nodes\r\n*2\r\n%4\r\n+id\r\n+a\r\n+role\r\n+master\r\n+tls-port\r\n:7443\r\n+endpoint\r\n+h\r\n"
                                                         "%3\r\n+id\r\n+b\r\n+role\r\n+replica\r\n+endpoint\r\n+h\r\n"),
        STATUS_OK);
    cr_expect_eq(view->nodes[0].port, 7443);
    cr_expect(!view->nodes[0].is_failed);
    cr_expect_eq(view->nodes[1].port, 0);
    cr_expect(view->nodes[1].is_failed);
    topology_view_destroy(&view);
}

Test(topology_parse, slots_of_all_ages_are_read)
{
    struct topology_view *view = topology_view_create();
    /* Redis 3: no ids. Two ranges of one primary are one shard; its replica is named twice. */
    cr_assert_eq(parse_text(topology_parse_slots, view, "*2\r\n*4\r\n:0\r\n:9\r\n*2\r\n+h\r\n:1\r\n*2\r\n+h\r\n:2\r\n*4\r\n:20\r\n:29\r\n*2\r\n+h\r\n:1\r\n*2\r\n+h\r\n:2\r\n"), STATUS_OK);
    cr_expect_eq(view->shards_count, 1);
    cr_expect_eq(view->nodes_count, 2);
    cr_expect_eq(view->slots_covered, 20);
    cr_expect_eq(view->nodes[0].id[0], '\0');
    /* Redis 7 with names preferred where none is set: the metadata has the address; elements to come are passed over. */
    cr_assert_eq(parse_text(topology_parse_slots, view, "*1\r\n*3\r\n:0\r\n:9\r\n*5\r\n+?\r\n:1\r\n+id1\r\n%2\r\n+x\r\n*1\r\n:1\r\n+ip\r\n+10.0.0.1\r\n*1\r\n+future\r\n"), STATUS_OK);
    cr_expect_str_eq(view->nodes[0].host, "10.0.0.1");
    cr_expect_str_eq(view->nodes[0].id, "id1");
    cr_assert_eq(parse_text(topology_parse_slots, view, "*1\r\n*2\r\n:0\r\n:9\r\n"), STATUS_OK, "a range without nodes");
    cr_expect_eq(view->slots_covered, 0);
    topology_view_destroy(&view);
}

Test(topology_parse, shards_that_are_wrong_are_invalid)
{
    struct topology_view *view = topology_view_create();
    char long_host[400];
    snprintf(long_host, sizeof long_host, "$256\r\n%0256d\r\n", 0);
    const char *ok_slots = "*2\r\n:0\r\n:3\r\n";
    cr_assert_eq(parse_text(topology_parse_shards, view, shards_text("+h\r\n", "_\r\n", "", 0, ok_slots)), STATUS_OK);
    static const char *const slots[] = {"*1\r\n:0\r\n", "*2\r\n:3\r\n:0\r\n", "*2\r\n:0\r\n:16384\r\n", "*2\r\n:-1\r\n:3\r\n", "*4\r\n:0\r\n:3\r\n:3\r\n:4\r\n", "*2\r\n+a\r\n:3\r\n", "_\r\n", ":1\r\n",
        "*2\r\n:0\r\n:4294967296\r\n", "*2\r\n*0\r\n:3\r\n"};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++)
        cr_expect_eq(parse_text(topology_parse_shards, view, shards_text("+h\r\n", "_\r\n", "", 0, slots[i])), STATUS_INVALID, "slots %zu", i);
    const char *hosts[] = {long_host, "$3\r\na b\r\n", "$3\r\na\0b\r\n", "$2\r\na\n\r\n"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        cr_expect_eq(parse_text(topology_parse_shards, view, shards_text(hosts[i], "_\r\n", "", 0, ok_slots)), STATUS_INVALID, "host %zu", i);
    static const char *const fields[] = {"+port\r\n:65536\r\n", "+port\r\n:-1\r\n", "+port\r\n+x\r\n", "+port\r\n_\r\n", "+role\r\n+teapot\r\n", "+role\r\n_\r\n", "+id\r\n$0\r\n\r\n",
        "+id\r\n+12345678901234567890123456789012345678901\r\n", "+id\r\n_\r\n", "+health\r\n"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        cr_expect_eq(parse_text(topology_parse_shards, view, shards_text("+h\r\n", "_\r\n", fields[i], 1, ok_slots)), STATUS_INVALID, "field %zu", i);
    static const char *const replies[] = {"", "-ERR Unknown subcommand\r\n", "*-1\r\n", "_\r\n", "+OK\r\n", "%1\r\n+a\r\n+b\r\n", "*1\r\n:1\r\n", "*1\r\n*1\r\n+slots\r\n", "*0\r\n*0\r\n", "*4294967295\r\n",
        "*1\r\n*2\r\n+nodes\r\n*1\r\n*3\r\n+id\r\n+a\r\n+role\r\n"};
    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++) {
        cr_expect_eq(parse_text(topology_parse_shards, view, replies[i]), STATUS_INVALID, "reply %zu", i);
        cr_expect_eq(view->nodes_count + view->shards_count + view->slots_covered, 0);
    }
    topology_view_destroy(&view);
}

Test(topology_parse, slots_that_are_wrong_are_invalid)
{
    struct topology_view *view = topology_view_create();
    static const char *const replies[] = {
        "-ERR no\r\n",
        "*1\r\n*1\r\n:0\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n+h\r\n:1\r\n",
        "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n+h\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n+h\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n+h\r\n:70000\r\n",
        /* a slot twice */
        "*2\r\n*3\r\n:0\r\n:9\r\n*2\r\n+h\r\n:1\r\n*3\r\n:9\r\n:10\r\n*2\r\n+h\r\n:2\r\n",
        /* a replica that is a primary elsewhere, and the reverse, and one of two shards */
        "*2\r\n*3\r\n:0\r\n:9\r\n*2\r\n+h\r\n:1\r\n*4\r\n:10\r\n:10\r\n*2\r\n+h\r\n:2\r\n*2\r\n+h\r\n:1\r\n",
        "*2\r\n*4\r\n:0\r\n:9\r\n*2\r\n+h\r\n:1\r\n*2\r\n+h\r\n:2\r\n*3\r\n:10\r\n:10\r\n*2\r\n+h\r\n:2\r\n",
        "*2\r\n*4\r\n:0\r\n:9\r\n*2\r\n+h\r\n:1\r\n*2\r\n+h\r\n:3\r\n*4\r\n:10\r\n:10\r\n*2\r\n+h\r\n:2\r\n*2\r\n+h\r\n:3\r\n",
        /* a primary that is its own replica */
        "*1\r\n*4\r\n:0\r\n:9\r\n*2\r\n+h\r\n:1\r\n*2\r\n+h\r\n:1\r\n",
    };
    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++)
        cr_expect_eq(parse_text(topology_parse_slots, view, replies[i]), STATUS_INVALID, "reply %zu", i);
    topology_view_destroy(&view);
}

Test(topology_parse, nodes_twice_in_shards_are_invalid)
{
    struct topology_view *view = topology_view_create();
    const char *node = "%4\r\n+id\r\n+a\r\n+role\r\n+master\r\n+port\r\n:1\r\n+endpoint\r\n+h\r\n";
    char text[512];
    snprintf(text, sizeof text, "*1\r\n%%1\r\n+nodes\r\n*2\r\n%s%s", node, node);
    cr_expect_eq(parse_text(topology_parse_shards, view, text), STATUS_INVALID);
    snprintf(text, sizeof text, "*2\r\n%%1\r\n+nodes\r\n*1\r\n%s%%1\r\n+nodes\r\n*1\r\n%s", node, node);
    cr_expect_eq(parse_text(topology_parse_shards, view, text), STATUS_INVALID);
    topology_view_destroy(&view);
}

/* A primary that is failed gives way to one that is not, whatever their order. */
Test(topology_parse, primaries_two_in_a_shard_the_healthy_one_counts)
{
    struct topology_view *view = topology_view_create();
    static const char *const texts[] = {
        "*1\r\n%1\r\n+nodes\r\n*2\r\n%4\r\n+id\r\n+a\r\n+role\r\n+master\r\n+port\r\n:1\r\n+health\r\n+fail\r\n%3\r\n+id\r\n+b\r\n+role\r\n+master\r\n+port\r\n:2\r\n",
        "*1\r\n%1\r\n+nodes\r\n*2\r\n%3\r\n+id\r\n+b\r\n+role\r\n+master\r\n+port\r\n:2\r\n%4\r\n+id\r\n+a\r\n+role\r\n+master\r\n+port\r\n:1\r\n+health\r\n+fail\r\n",
    };
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(parse_text(topology_parse_shards, view, texts[i]), STATUS_OK);
        cr_expect_str_eq(view->nodes[view->shards[0].primary].id, "b");
    }
    topology_view_destroy(&view);
}

/* The bounds: what fits is taken, one more is refused with its own status. */
Test(topology_parse, replies_beyond_the_bounds_are_full)
{
    struct topology_view *view = topology_view_create();
    enum { BYTES = 512 * 1024 };
    char *text = malloc(BYTES);
    for (int extra = 0; extra < 2; extra++) {
        int length = snprintf(text, BYTES, "*%d\r\n", TOPOLOGY_SHARDS_MAX + extra);
        for (int i = 0; i < TOPOLOGY_SHARDS_MAX + extra; i++)
            length += snprintf(text + length, (size_t)(BYTES - length), "*3\r\n:%d\r\n:%d\r\n*2\r\n+h\r\n:%d\r\n", i, i, i + 1);
        cr_expect_eq(parse_bytes(topology_parse_slots, view, text, (uint32_t)length), extra ? STATUS_FULL : STATUS_OK);
        cr_expect_eq(view->shards_count, extra ? 0 : TOPOLOGY_SHARDS_MAX);

        length = snprintf(text, BYTES, "*1\r\n%%1\r\n+nodes\r\n*%d\r\n", TOPOLOGY_NODES_MAX + extra);
        for (int i = 0; i < TOPOLOGY_NODES_MAX + extra; i++)
            length += snprintf(text + length, (size_t)(BYTES - length), "%%3\r\n+id\r\n+n%d\r\n+role\r\n+replica\r\n+port\r\n:%d\r\n", i, i + 1);
        cr_expect_eq(parse_bytes(topology_parse_shards, view, text, (uint32_t)length), extra ? STATUS_FULL : STATUS_OK);
        cr_expect_eq(view->nodes_count, extra ? 0 : TOPOLOGY_NODES_MAX);
        cr_expect(extra || topology_view_node_of_id(view, "n4095") == 4095);
    }
    free(text);
    topology_view_destroy(&view);
}
