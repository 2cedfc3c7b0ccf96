/*
 * CLUSTER * and ROLE as the gateway answers them. The shapes were recorded from redis-server 7.0.15 as a cluster of one node that serves every slot (id, address and epochs replaced), once with HELLO 2 and once
 * with HELLO 3.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "net/resp_scan.h"
#include "shard/local.h"
#include "shard/slot.h"
#include "shard/topology_view.h"
#include "tests/net/session_fixture.h"

TestSuite(local);

static const struct local_view one_node = {.presents_cluster = true, .announce_host = "10.1.2.3", .announce_port = 6380};

/* The reply, NUL behind it, valid until the next call. `ID` stands for the node's id in it. */
static const char *ask(struct fixture *fixture, const struct local_view *view, uint8_t protocol, const char *words)
{
    struct command_args args = fixture_args(fixture, words);
    bool unknown_sub;
    const struct command *command = fixture_find(fixture, &args, &unknown_sub);
    cr_assert_not_null(command, "%s", words);
    fixture->session.protocol = protocol;
    resp_writer_reset(&fixture->writer, protocol);
    local_cluster_command(view, &fixture->session, command, &args, &fixture->writer);
    struct resp_reply_state state = {0};
    uint32_t consumed;
    cr_assert_eq(resp_scan_reply(&state, fixture->writer.data, fixture->writer.length, &consumed), RESP_DONE, "%s", words);
    cr_assert_eq(consumed, fixture->writer.length, "%s: one reply and nothing behind it", words);
    resp_write_raw(&fixture->writer, "", 1);
    char id[LOCAL_NODE_ID_BYTES];
    local_node_id(view->announce_host, view->announce_port, id);
    char *text = (char *)fixture->writer.data;
    for (char *at = strstr(text, id); at != NULL; at = strstr(at, id)) {
        memcpy(at, "ID", 2);
        memmove(at + 2, at + 40, strlen(at + 40) + 1);
    }
    return text;
}

#define INFO_OK                                                                                                                                     \
    "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:0\r\n"              \
    "cluster_known_nodes:1\r\ncluster_size:1\r\ncluster_current_epoch:7\r\ncluster_my_epoch:7\r\ncluster_stats_messages_sent:0\r\n"                \
    "cluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n"

static struct topology *topology_of_servers(void)
{
    struct config_address address = {.host = "127.0.0.1", .port = 7001, .weight = 1};
    struct config_backend backend = {.name = "main", .kind = BACKEND_SERVERS, .addresses = &address, .addresses_count = 1};
    return topology_create_servers(&backend, 7, 1);
}

Test(local, answer_has_the_shape_of_a_cluster_of_one_node)
{
    struct fixture *fixture = fixture_create();
    struct topology *topology = topology_of_servers();
    struct local_view view = one_node;
    view.topology = topology;
    static const struct {
        const char *words, *resp2, *resp3;
    } rows[] = {
        {"cluster slots", "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$8\r\n10.1.2.3\r\n:6380\r\n$40\r\nID\r\n*0\r\n", "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$8\r\n10.1.2.3\r\n:6380\r\n$40\r\nID\r\n%0\r\n"},
        {"cluster shards",
            "*1\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n*14\r\n$2\r\nid\r\n$40\r\nID\r\n$4\r\nport\r\n:6380\r\n$2\r\nip\r\n$8\r\n10.1.2.3\r\n$8\r\nendpoint\r\n$8\r\n"
            "10.1.2.3\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline\r\n",
            "*1\r\n%2\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n%7\r\n$2\r\nid\r\n$40\r\nID\r\n$4\r\nport\r\n:6380\r\n$2\r\nip\r\n$8\r\n10.1.2.3\r\n$8\r\nendpoint\r\n$8\r\n"
            "10.1.2.3\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline\r\n"},
        {"cluster nodes", "$101\r\nID 10.1.2.3:6380@16380 myself,master - 0 0 1 connected 0-16383\n\r\n", "=105\r\ntxt:ID 10.1.2.3:6380@16380 myself,master - 0 0 1 connected 0-16383\n\r\n"},
        {"cluster info", "$312\r\n" INFO_OK "\r\n", "=316\r\ntxt:" INFO_OK "\r\n"},
        {"CLUSTER MYID", "$40\r\nID\r\n", "$40\r\nID\r\n"},
        {"cluster keyslot foo", ":12182\r\n", ":12182\r\n"},
        {"cluster keyslot _", ":0\r\n", ":0\r\n"},
        {"cluster keyslot {user1000}.following", ":3443\r\n", ":3443\r\n"},
        {"role", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        cr_expect_str_eq(ask(fixture, &view, 2, rows[i].words), rows[i].resp2, "%s", rows[i].words);
        cr_expect_str_eq(ask(fixture, &view, 3, rows[i].words), rows[i].resp3, "%s", rows[i].words);
    }
    topology_destroy(topology);
    fixture_destroy(&fixture);
}

Test(local, standalone_listener_says_that_cluster_support_is_disabled)
{
    struct fixture *fixture = fixture_create();
    struct local_view view = one_node;
    view.presents_cluster = false;
    static const char *const lines[] = {"cluster slots", "cluster shards", "cluster nodes", "cluster info", "cluster myid", "cluster keyslot foo"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        for (uint8_t protocol = 2; protocol <= 3; protocol++)
            cr_expect_str_eq(ask(fixture, &view, protocol, lines[i]), "-ERR This instance has cluster support disabled\r\n", "%s", lines[i]);
    cr_expect_str_eq(ask(fixture, &view, 2, "role"), "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
    fixture_destroy(&fixture);
}

Test(local, ipv6_and_names_are_announced_without_brackets)
{
    struct fixture *fixture = fixture_create();
    static const char *const hosts[] = {"::1", "2001:db8::17", "gateway.example", ""};
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        char expected[256];
        struct local_view view = one_node;
        view.announce_host = hosts[i];
        (void)snprintf(expected, sizeof(expected), "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$%zu\r\n%s\r\n:6380\r\n$40\r\nID\r\n*0\r\n", strlen(hosts[i]), hosts[i]);
        cr_expect_str_eq(ask(fixture, &view, 2, "cluster slots"), expected);
        (void)snprintf(expected, sizeof(expected), "ID %s:6380@16380 myself,master - 0 0 1 connected 0-16383\n", hosts[i]);
        cr_expect_not_null(strstr(ask(fixture, &view, 2, "cluster nodes"), expected), "%s", hosts[i]);
        (void)snprintf(expected, sizeof(expected), "$8\r\nendpoint\r\n$%zu\r\n%s\r\n", strlen(hosts[i]), hosts[i]);
        cr_expect_not_null(strstr(ask(fixture, &view, 3, "cluster shards"), expected), "%s", hosts[i]);
    }
    fixture_destroy(&fixture);
}

/* A client library parses the port behind '@' as one: it must stay below 65,536. */
Test(local, bus_port_of_a_high_port_is_a_port)
{
    struct fixture *fixture = fixture_create();
    struct local_view view = one_node;
    view.announce_port = 65535;
    cr_expect_not_null(strstr(ask(fixture, &view, 2, "cluster nodes"), "10.1.2.3:65535@0 myself,master"));
    view.announce_port = 55535;
    cr_expect_not_null(strstr(ask(fixture, &view, 2, "cluster nodes"), "10.1.2.3:55535@65535 myself,master"));
    view.announce_port = 55536;
    cr_expect_not_null(strstr(ask(fixture, &view, 2, "cluster nodes"), "10.1.2.3:55536@0 myself,master"));
    fixture_destroy(&fixture);
}

Test(local, longest_host_is_written_whole)
{
    struct fixture *fixture = fixture_create();
    char host[HOST_BYTES];
    memset(host, 'h', sizeof(host) - 1);
    host[sizeof(host) - 1] = '\0';
    struct local_view view = one_node;
    view.announce_host = host;
    const char *text = ask(fixture, &view, 2, "cluster nodes");
    cr_expect_not_null(strstr(text, host));
    cr_expect_not_null(strstr(text, " connected 0-16383\n\r\n"));
    fixture_destroy(&fixture);
}

Test(local, info_tells_that_slots_are_not_covered)
{
    struct fixture *fixture = fixture_create();
    struct local_view view = one_node;
    const char *text = ask(fixture, &view, 2, "cluster info");
    cr_expect_not_null(strstr(text, "cluster_state:fail\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:0\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:16384\r\n"));
    cr_expect_not_null(strstr(text, "cluster_current_epoch:0\r\n"));

    struct topology *topology = alloc_zeroed(sizeof(*topology));
    topology->kind = BACKEND_CLUSTER;
    topology->epoch = UINT64_MAX;
    topology->slots_count = CLUSTER_SLOTS;
    topology->slots_covered = 16000;
    memset(topology->slot_shard, 0xff, sizeof(topology->slot_shard));
    view.topology = topology;
    text = ask(fixture, &view, 3, "cluster info");
    cr_expect_not_null(strstr(text, "cluster_state:fail\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16000\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:384\r\n"));
    cr_expect_not_null(strstr(text, "cluster_current_epoch:18446744073709551615\r\n"));
    alloc_free(topology);
    fixture_destroy(&fixture);
}

Test(local, node_id_is_40_hex_digits_of_the_address_alone)
{
    char first[LOCAL_NODE_ID_BYTES], second[LOCAL_NODE_ID_BYTES];
    static const struct {
        const char *host;
        uint16_t port;
    } addresses[] = {{"10.1.2.3", 6380}, {"10.1.2.3", 6381}, {"10.1.2.4", 6380}, {"::1", 6380}, {"", 0}, {"10.1.2.3", 638}};
    enum { COUNT = sizeof(addresses) / sizeof(addresses[0]) };
    for (size_t i = 0; i < COUNT; i++) {
        local_node_id(addresses[i].host, addresses[i].port, first);
        cr_expect_eq(strlen(first), 40u);
        cr_expect_eq(strspn(first, "0123456789abcdef"), 40u, "%s", first);
        for (size_t j = 0; j < COUNT; j++) {
            local_node_id(addresses[j].host, addresses[j].port, second);
            cr_expect_eq(strcmp(first, second) == 0, i == j, "%zu %zu", i, j);
        }
    }
}

Test(local, every_row_that_the_table_sends_here_gets_one_reply)
{
    struct fixture *fixture = fixture_create();
    static const char *const lines[] = {"cluster replicas x", "cluster links", "cluster countkeysinslot 1", "cluster getkeysinslot 1 1", "cluster slaves x"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        cr_expect_eq(strncmp(ask(fixture, &one_node, 2, lines[i]), "-ERR ", 5), 0, "%s", lines[i]);
    fixture_destroy(&fixture);
}

Test(local, keyslot_of_any_key_is_its_slot)
{
    struct fixture *fixture = fixture_create();
    static const char *const keys[] = {"a", "{", "}{", "{a}b", "key~with~spaces", "a$b"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char words[64], key[64], expected[16];
        (void)snprintf(words, sizeof(words), "cluster keyslot %s", keys[i]);
        (void)snprintf(key, sizeof(key), "%s", keys[i]);
        for (char *at = key; *at != '\0'; at++)
            *at = *at == '~' ? ' ' : *at == '$' ? '\n'
                                                : *at;
        (void)snprintf(expected, sizeof(expected), ":%u\r\n", slot_of_key((const uint8_t *)key, (uint32_t)strlen(key)));
        cr_expect_str_eq(ask(fixture, &one_node, 2, words), expected, "%s", words);
    }
    fixture_destroy(&fixture);
}

/* A node a data core: each at the announced port above by 1 + its number, with the slots it owns. */
Test(local, cores_with_ports_of_their_own_are_listed_as_nodes)
{
    struct fixture *fixture = fixture_create();
    struct topology *topology = alloc_zeroed(sizeof(*topology));
    topology->kind = BACKEND_CLUSTER;
    topology->slots_count = CLUSTER_SLOTS;
    memset(topology->slot_shard, 0xff, sizeof(topology->slot_shard));
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        topology->slot_owner[slot] = slot < 100 || slot == 200 ? 1 : 0;
    struct local_view view = one_node;
    view.topology = topology;
    view.cores_count = 3;
    view.core = 1;
    char ids[3][LOCAL_NODE_ID_BYTES], expected[1024];
    for (uint16_t core = 0; core < 3; core++)
        local_node_id("10.1.2.3", (uint16_t)(6381 + core), ids[core]);
    (void)snprintf(expected, sizeof(expected),
        "*4\r\n*3\r\n:0\r\n:99\r\n*4\r\n$8\r\n10.1.2.3\r\n:6382\r\n$40\r\n%s\r\n*0\r\n*3\r\n:100\r\n:199\r\n*4\r\n$8\r\n10.1.2.3\r\n:6381\r\n$40\r\n%s\r\n*0\r\n"
        "*3\r\n:200\r\n:200\r\n*4\r\n$8\r\n10.1.2.3\r\n:6382\r\n$40\r\n%s\r\n*0\r\n*3\r\n:201\r\n:16383\r\n*4\r\n$8\r\n10.1.2.3\r\n:6381\r\n$40\r\n%s\r\n*0\r\n",
        ids[1], ids[0], ids[1], ids[0]);
    cr_expect_str_eq(ask(fixture, &view, 2, "cluster slots"), expected);
    (void)snprintf(expected, sizeof(expected),
        "%s 10.1.2.3:6381@16381 master - 0 0 1 connected 100-199 201-16383\n%s 10.1.2.3:6382@16382 myself,master - 0 0 2 connected 0-99 200\n%s 10.1.2.3:6383@16383 master - 0 0 3 connected\n",
        ids[0], ids[1], ids[2]);
    cr_expect_not_null(strstr(ask(fixture, &view, 2, "cluster nodes"), expected));
    const char *shards = ask(fixture, &view, 3, "cluster shards");
    cr_expect_eq(strncmp(shards, "*3\r\n%2\r\n$5\r\nslots\r\n*4\r\n:100\r\n:199\r\n:201\r\n:16383\r\n$5\r\nnodes\r\n", 58), 0, "%s", shards);
    cr_expect_not_null(strstr(shards, "$5\r\nslots\r\n*4\r\n:0\r\n:99\r\n:200\r\n:200\r\n"));
    cr_expect_not_null(strstr(shards, "$5\r\nslots\r\n*0\r\n$5\r\nnodes\r\n*1\r\n"), "a core without slots is listed too");
    (void)snprintf(expected, sizeof(expected), "$40\r\n%s\r\n", ids[1]);
    cr_expect_str_eq(ask(fixture, &view, 2, "cluster myid"), expected);
    cr_expect_not_null(strstr(ask(fixture, &view, 2, "cluster info"), "cluster_known_nodes:3\r\ncluster_size:3\r\n"));
    /* Before the first topology the core that answers has all. */
    view.topology = NULL;
    (void)snprintf(expected, sizeof(expected), "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$8\r\n10.1.2.3\r\n:6382\r\n$40\r\n%s\r\n*0\r\n", ids[1]);
    cr_expect_str_eq(ask(fixture, &view, 2, "cluster slots"), expected);
    alloc_free(topology);
    fixture_destroy(&fixture);
}

/* As many ranges as there can be: every slot another owner than its neighbours. */
Test(local, table_of_the_greatest_size_is_written_whole)
{
    struct fixture *fixture = fixture_create();
    struct topology *topology = alloc_zeroed(sizeof(*topology));
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        topology->slot_owner[slot] = (uint16_t)(slot % 64);
    struct local_view view = one_node;
    view.topology = topology;
    view.cores_count = 64;
    cr_expect_eq(strncmp(ask(fixture, &view, 2, "cluster slots"), "*16384\r\n", 8), 0);
    cr_expect_not_null(strstr(ask(fixture, &view, 2, "cluster nodes"), ":6444@16444 master - 0 0 64 connected 63 127 191 "));
    cr_expect_eq(strncmp(ask(fixture, &view, 2, "cluster shards"), "*64\r\n", 5), 0);
    alloc_free(topology);
    fixture_destroy(&fixture);
}
