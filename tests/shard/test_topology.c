#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "shard/topology.h"
#include "shard/topology_parse.h"
#include "tests/shard/data/cluster_replies.h"
#include "tests/shard/view_builder.h"

TestSuite(topology);

static struct topology_view *view;
static struct topology *before, *after;

static void start(void)
{
    view = topology_view_create();
    view_make_three(view, 1);
    after = topology_create_cluster(NULL, view, 2);
}

/* The topology that follows by the view as it is now. */
static void advance(void)
{
    topology_destroy(before);
    before = after;
    after = topology_create_cluster(before, view, 2);
    cr_assert_eq(after->epoch, before->epoch + 1);
}

static void end(void)
{
    topology_destroy(before);
    topology_destroy(after);
    before = after = NULL;
    topology_view_destroy(&view);
}

static const struct node *node_of(const struct topology *topology, char letter)
{
    for (uint32_t i = 0; i < topology->nodes_count; i++)
        if (topology->nodes[i].id[0] == letter)
            return &topology->nodes[i];
    cr_assert_fail("no node %c", letter);
    return NULL;
}

static uint32_t node_key(const struct topology *topology, char letter)
{
    return node_of(topology, letter)->key;
}

static uint32_t shard_key(const struct topology *topology, char letter)
{
    return topology->shards[node_of(topology, letter)->shard].key;
}

/* What holds for every topology of a cluster. */
static void check(const struct topology *topology, uint32_t data_cores)
{
    uint32_t covered = 0;
    for (uint32_t i = 0; i < topology->nodes_count; i++) {
        cr_assert(topology->nodes[i].key > 0 && topology->nodes[i].key < topology->next_node_key);
        cr_assert(i == 0 || topology->nodes[i - 1].key < topology->nodes[i].key);
        cr_assert_lt(topology->nodes[i].shard, topology->shards_count);
        cr_assert_eq(topology_node_of_key(topology, topology->nodes[i].key), &topology->nodes[i]);
    }
    for (uint32_t i = 0; i < topology->shards_count; i++) {
        const struct shard *shard = &topology->shards[i];
        cr_assert(shard->key > 0 && shard->key < topology->next_shard_key);
        cr_assert(i == 0 || topology->shards[i - 1].key < shard->key);
        cr_assert(shard->cores != 0 && (data_cores == 64 || shard->cores >> data_cores == 0));
        cr_assert(shard->primary == NODE_NONE || topology->nodes[shard->primary].shard == i);
        covered += shard->slots_count;
    }
    cr_assert_eq(covered, topology->slots_covered);
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++) {
        cr_assert_lt(topology->slot_owner[slot], data_cores);
        cr_assert(topology->slot_shard[slot] == SHARD_NONE || (topology->shards[topology->slot_shard[slot]].cores >> topology->slot_owner[slot] & 1) != 0);
        cr_assert_leq(topology->slot_owner_since[slot], topology->epoch);
        cr_assert_leq(topology->slot_route_since[slot], topology->epoch);
    }
}

Test(topology, servers_get_a_shard_and_a_slot_each)
{
    static struct config_address addresses[5];
    struct config_backend backend = {.kind = BACKEND_SERVERS, .addresses = addresses, .addresses_count = 5};
    for (uint32_t i = 0; i < 5; i++) {
        snprintf(addresses[i].host, sizeof addresses[i].host, "10.0.0.%u", i);
        addresses[i].port = 6379;
        addresses[i].weight = 1;
    }
    struct topology *topology = topology_create_servers(&backend, 1, 2);
    cr_expect_eq(topology->kind, BACKEND_SERVERS);
    cr_expect_eq(topology->slots_count, 5);
    cr_expect(topology_is_complete(topology));
    uint32_t counts[2] = {0};
    for (uint32_t i = 0; i < 5; i++) {
        const struct node *node = topology_primary(topology, i);
        cr_assert_eq(node, &topology->nodes[i]);
        cr_expect_str_eq(node->host, addresses[i].host);
        cr_expect(node->is_primary && node->id[0] == '\0' && node->key == i + 1);
        cr_expect_eq(topology_node_at(topology, node->host, (uint32_t)strlen(node->host), 6379), node);
        cr_expect_eq(topology->slot_owner_since[i], 1);
        cr_expect_eq(topology->slot_route_since[i], 1);
        counts[topology->slot_owner[i]]++;
    }
    cr_expect_eq(counts[0] * counts[1], 6, "3 and 2");
    cr_expect_null(topology_primary(topology, 5));
    cr_expect_lt(ketama_server(topology->ketama, (const uint8_t *)"key", 3), 5);
    topology_destroy(topology);
    topology_destroy(NULL);
}

Test(topology, first_of_a_cluster_has_everything)
{
    start();
    check(after, 2);
    cr_expect_eq(after->epoch, 1);
    cr_expect_eq(after->nodes_count, 6);
    cr_expect_eq(after->shards_count, 3);
    cr_expect(topology_is_complete(after));
    cr_expect_str_eq(topology_primary(after, 0)->id, "a");
    cr_expect_str_eq(topology_primary(after, 16383)->id, "c");
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot += 100)
        cr_assert(after->slot_owner_since[slot] == 1 && after->slot_route_since[slot] == 1 && after->slot_previous_node[slot] == 0);
    end();
}

Test(topology, nodes_are_found_by_address_and_key)
{
    start();
    const struct node *a = node_of(after, 'a');
    cr_expect_eq(topology_node_at(after, "10.0.0.97", 9, 6379), a);
    cr_expect_eq(topology_node_at(after, "10.0.0.97xyz", 9, 6379), a, "the length counts, not a NUL");
    cr_expect_null(topology_node_at(after, "10.0.0.97", 8, 6379));
    cr_expect_null(topology_node_at(after, "10.0.0.97", 9, 6380));
    cr_expect_null(topology_node_at(after, "", 0, 6379));
    cr_expect_null(topology_node_at(after, "x", 100000, 6379));
    cr_expect_null(topology_node_of_key(after, 0));
    cr_expect_null(topology_node_of_key(after, after->next_node_key));
    end();
}

Test(topology, view_unchanged_keeps_everything)
{
    start();
    advance();
    check(after, 2);
    cr_expect_arr_eq(after->nodes, before->nodes, 6 * sizeof(struct node));
    cr_expect_arr_eq(after->shards, before->shards, 3 * sizeof(struct shard));
    cr_expect_arr_eq(after->slot_owner_since, before->slot_owner_since, sizeof after->slot_owner_since);
    cr_expect_arr_eq(after->slot_route_since, before->slot_route_since, sizeof after->slot_route_since);
    /* The order of a reply changes nothing either. */
    topology_view_clear(view);
    view_add(view, "cf", 10923, 16383);
    view_add(view, "be", 5461, 10922);
    view_add(view, "ad", 0, 5460);
    advance();
    cr_expect_arr_eq(after->nodes, before->nodes, 6 * sizeof(struct node));
    cr_expect_arr_eq(after->shards, before->shards, 3 * sizeof(struct shard));
    end();
}

/* As Redis lists it: the failed primary is a shard of its own without slots, or still in the shard, or gone. */
Test(topology, failover_keeps_shard_and_owner_and_changes_the_route)
{
    for (int form = 0; form < 4; form++) {
        start();
        uint32_t key = shard_key(after, 'a'), old_primary = node_key(after, 'a');
        topology_view_clear(view);
        if (form == 0)
            view_add(view, "A", 1, 0);
        view_add(view, "cf", 10923, 16383);
        view_add(view, form == 1 ? "dA" : "d", 0, 5460);
        view_add(view, "be", 5461, 10922);
        if (form == 2)
            view_add(view, "A", 1, 0);
        advance();
        check(after, 2);
        cr_expect_eq(shard_key(after, 'd'), key, "form %d", form);
        if (form == 0 || form == 2)
            cr_expect_eq(shard_key(after, 'a'), 4);
        cr_expect_str_eq(topology_primary(after, 5460)->id, "d");
        cr_expect_eq(after->slot_owner[0], before->slot_owner[0]);
        cr_expect_eq(after->slot_owner_since[0], 1);
        cr_expect_eq(after->slot_route_since[0], 2);
        cr_expect_eq(after->slot_previous_node[0], old_primary);
        cr_expect_eq(after->slot_route_since[5461], 1);
        cr_expect_eq(after->slot_previous_node[5461], 0);
        /* The failed one comes back as a replica, then takes over again. */
        topology_view_clear(view);
        view_add(view, "da", 0, 5460);
        view_add(view, "be", 5461, 10922);
        view_add(view, "cf", 10923, 16383);
        advance();
        cr_expect_eq(shard_key(after, 'a'), key);
        cr_expect_eq(after->slot_route_since[0], 2);
        cr_expect_eq(node_key(after, 'a') == old_primary, form != 3, "a node that was gone is a new one");
        view_make_three(view, 1);
        advance();
        check(after, 2);
        cr_expect_eq(shard_key(after, 'a'), key);
        cr_expect_eq(after->slot_route_since[0], 4);
        cr_expect_eq(after->slot_previous_node[0], node_key(after, 'd'));
        cr_expect_eq(after->slot_owner_since[0], 1);
        end();
    }
}

Test(topology, reshard_moves_slots_between_shards_that_stay)
{
    start();
    view_move_slots(view, 0, 99, 1);
    advance();
    check(after, 2);
    cr_expect_eq(shard_key(after, 'a'), shard_key(before, 'a'));
    cr_expect_eq(shard_key(after, 'b'), shard_key(before, 'b'));
    bool has_other_owner = after->slot_owner[0] != before->slot_owner[0];
    cr_expect_eq(after->slot_owner[0], after->slot_owner[6000]);
    cr_expect_eq(after->slot_owner_since[0], has_other_owner ? 2 : 1);
    cr_expect_eq(after->slot_route_since[99], 2);
    cr_expect_eq(after->slot_previous_node[99], node_key(after, 'a'));
    cr_expect_eq(after->slot_route_since[100], 1);
    /* And back. */
    view_move_slots(view, 0, 99, 0);
    advance();
    cr_expect_eq(after->slot_route_since[99], 3);
    cr_expect_eq(after->slot_previous_node[99], node_key(after, 'b'));
    end();
}

Test(topology, shard_emptied_keeps_its_key_unless_another_continues_it)
{
    start();
    view_move_slots(view, 0, 5460, 1);
    advance();
    check(after, 2);
    cr_expect_eq(shard_key(after, 'a'), shard_key(before, 'a'), "b is itself, a is still there");
    cr_expect_eq(shard_key(after, 'b'), shard_key(before, 'b'));
    end();
    /* A new primary takes over all slots of a, which stays without: what owns the slots goes with them. */
    start();
    uint32_t key = shard_key(after, 'a');
    view_move_slots(view, 0, 5460, view_add(view, "x", 1, 0));
    advance();
    check(after, 2);
    cr_expect_eq(shard_key(after, 'x'), key);
    cr_expect_eq(shard_key(after, 'a'), 4);
    cr_expect_eq(after->slot_owner_since[0], 1);
    cr_expect_eq(after->slot_route_since[0], 2);
    end();
}

Test(topology, shard_of_new_nodes_with_the_old_slots_continues_it)
{
    start();
    uint32_t key = shard_key(after, 'b');
    topology_view_clear(view);
    view_add(view, "xy", 5461, 10922);
    view_add(view, "ad", 0, 5460);
    view_add(view, "cf", 10923, 16383);
    advance();
    check(after, 2);
    cr_expect_eq(shard_key(after, 'x'), key);
    cr_expect_eq(node_key(after, 'x'), 7);
    cr_expect_null(topology_node_of_key(after, node_key(before, 'b')));
    end();
}

Test(topology, node_with_a_new_address_is_a_new_link_of_the_same_shard)
{
    start();
    uint32_t node = node_key(after, 'a'), shard = shard_key(after, 'a');
    topology_view_clear(view);
    struct view_node moved = {.id = "a", .host = "10.9.9.9", .port = 6379, .is_primary = true};
    topology_view_add_shard(view);
    topology_view_add_node(view, &moved);
    cr_assert_eq(topology_view_add_slots(view, 0, 0, 5460), STATUS_OK);
    view_add(view, "be", 5461, 10922);
    view_add(view, "cf", 10923, 16383);
    advance();
    check(after, 2);
    cr_expect_eq(node_key(after, 'a'), 7);
    cr_expect_eq(shard_key(after, 'a'), shard);
    cr_expect_eq(after->slot_route_since[0], 2);
    cr_expect_eq(after->slot_previous_node[0], node);
    end();
}

Test(topology, node_with_a_new_id_at_the_same_address_is_the_same)
{
    start();
    strcpy(view->nodes[0].id, "z");
    node_index_add(&view->ids, node_index_hash_id("z"), 0);
    advance();
    check(after, 2);
    cr_expect_eq(node_key(after, 'z'), node_key(before, 'a'));
    cr_expect_eq(shard_key(after, 'z'), shard_key(before, 'a'));
    cr_expect_eq(after->slot_route_since[0], 1);
    end();
}

/* Two nodes that exchange their addresses, and one address named twice: no key is given twice. */
Test(topology, addresses_exchanged_or_twice_keep_keys_unique)
{
    start();
    strcpy(view->nodes[0].host, "10.0.0.98");
    strcpy(view->nodes[2].host, "10.0.0.97");
    node_index_clear(&view->addresses);
    for (uint32_t i = 0; i < view->nodes_count; i++)
        node_index_add(&view->addresses, node_index_hash_address(view->nodes[i].host, 6379), (uint16_t)i);
    advance();
    check(after, 2);
    cr_expect_eq(shard_key(after, 'a'), shard_key(before, 'a'));
    for (uint32_t i = 0; i < view->nodes_count; i++)
        strcpy(view->nodes[i].host, "10.0.0.97");
    node_index_clear(&view->addresses);
    for (uint32_t i = 0; i < view->nodes_count; i++)
        node_index_add(&view->addresses, node_index_hash_address(view->nodes[i].host, 6379), (uint16_t)i);
    advance();
    check(after, 2);
    advance();
    check(after, 2);
    end();
}

Test(topology, slots_without_a_shard_keep_owner_and_last_primary)
{
    start();
    uint16_t owner = after->slot_owner[3];
    uint32_t a = node_key(after, 'a');
    view_drop_slots(view, 3, 3);
    advance();
    check(after, 2);
    cr_expect(!topology_is_complete(after));
    cr_expect_null(topology_primary(after, 3));
    cr_expect_eq(after->slot_owner[3], owner);
    cr_expect_eq(after->slot_owner_since[3], 1);
    cr_expect_eq(after->slot_route_since[3], 2);
    cr_expect_eq(after->slot_previous_node[3], a);
    advance();
    cr_expect_eq(after->slot_route_since[3], 2);
    cr_expect_eq(after->slot_previous_node[3], a);
    view->slot_shard[3] = 1;
    view->shards[1].slots_count++;
    view->slots_covered++;
    advance();
    check(after, 2);
    cr_expect(topology_is_complete(after));
    cr_expect_eq(after->slot_route_since[3], 4);
    cr_expect_eq(after->slot_previous_node[3], a, "who had it last");
    end();
}

Test(topology, shard_without_a_primary_is_not_complete)
{
    start();
    view->shards[0].primary = NODE_NONE;
    view->nodes[0].is_primary = false;
    advance();
    check(after, 2);
    cr_expect(!topology_is_complete(after));
    cr_expect_null(topology_primary(after, 0));
    cr_expect_eq(shard_key(after, 'a'), shard_key(before, 'a'));
    end();
}

static const struct recorded_reply *recorded(const char *name)
{
    for (size_t i = 0; i < sizeof recorded_replies / sizeof recorded_replies[0]; i++)
        if (strcmp(recorded_replies[i].name, name) == 0)
            return &recorded_replies[i];
    cr_assert_fail("no recording %s", name);
    return NULL;
}

/* The recorded failover, then the recorded reshard, of one real cluster. */
Test(topology, recorded_failover_and_reshard_follow_each_other)
{
    view = topology_view_create();
    const struct recorded_reply *reply = recorded("failover_shards_resp2");
    cr_assert_eq(topology_parse_shards(view, (const uint8_t *)reply->bytes, reply->length, "127.0.0.1"), STATUS_OK);
    after = topology_create_cluster(NULL, view, 2);
    check(after, 2);
    reply = recorded("reshard_shards_resp3");
    cr_assert_eq(topology_parse_shards(view, (const uint8_t *)reply->bytes, reply->length, "127.0.0.1"), STATUS_OK);
    advance();
    check(after, 2);
    for (uint32_t i = 0; i < after->nodes_count; i++)
        cr_expect_not_null(topology_node_of_key(before, after->nodes[i].key));
    for (uint32_t i = 0; i < after->shards_count; i++)
        cr_expect_eq(after->shards[i].key, before->shards[i].key);
    cr_expect_eq(topology_primary(after, 5461)->port, 21002);
    cr_expect_eq(after->slot_route_since[5461], 2);
    cr_expect_eq(after->slot_previous_node[5461], topology_node_at(after, "127.0.0.1", 9, 21001)->key);
    cr_expect_eq(after->slot_route_since[5561], 1);
    end();
}

/* A newcomer listed before a known node at the same address: the key stays with the known one. */
Test(topology, address_claimed_by_a_newcomer_leaves_the_key_where_it_was)
{
    start();
    uint32_t key = node_key(after, 'a');
    topology_view_clear(view);
    uint16_t shard = topology_view_add_shard(view);
    struct view_node claimant = {.id = "z", .host = "10.0.0.97", .port = 6379, .shard = shard, .is_failed = true};
    topology_view_add_node(view, &claimant);
    view_add(view, "ad", 0, 5460);
    view_add(view, "be", 5461, 10922);
    view_add(view, "cf", 10923, 16383);
    advance();
    check(after, 2);
    cr_expect_eq(node_key(after, 'a'), key);
    cr_expect_eq(node_key(after, 'z'), 7);
    end();
}

/* Random clusters: failovers, moves, nodes that come and go. Keys stay unique, the since-epochs say exactly when something changed. */
Test(topology, changes_at_random_keep_the_books)
{
    struct rng rng = {.state = 5};
    view = topology_view_create();
    static uint16_t shard_of_slot[CLUSTER_SLOTS];
    static char nodes[26][4];
    for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
        shard_of_slot[slot] = (uint16_t)(slot / 2048);
    for (uint32_t i = 0; i < 8; i++)
        snprintf(nodes[i], sizeof nodes[i], "%c%c", 'a' + (int)i, 'i' + (int)i);
    static uint64_t owner_since[CLUSTER_SLOTS], route_since[CLUSTER_SLOTS];
    for (uint32_t step = 0; step < 150; step++) {
        uint32_t shard = rng_below(&rng, 8), kind = rng_below(&rng, 4);
        if (kind == 0) {
            char first = nodes[shard][0];
            nodes[shard][0] = nodes[shard][1];
            nodes[shard][1] = first;
        } else if (kind == 1) {
            uint32_t slot = rng_below(&rng, CLUSTER_SLOTS);
            for (uint32_t count = rng_below(&rng, 3000); count > 0 && slot < CLUSTER_SLOTS; count--)
                shard_of_slot[slot++] = (uint16_t)shard;
        } else if (kind == 2) {
            uint32_t slot = rng_below(&rng, CLUSTER_SLOTS);
            shard_of_slot[slot] = SHARD_NONE;
        } else {
            nodes[shard][1] ^= 0x20; /* the replica fails or recovers */
            if (nodes[shard][1] & 0x20)
                nodes[shard][0] |= 0x20;
        }
        topology_view_clear(view);
        for (uint32_t i = 0; i < 8; i++)
            view_add(view, nodes[i], 1, 0);
        for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++)
            if (shard_of_slot[slot] != SHARD_NONE)
                cr_assert_eq(topology_view_add_slots(view, shard_of_slot[slot], slot, slot), STATUS_OK);
        if (after)
            advance();
        else
            after = topology_create_cluster(NULL, view, 2);
        check(after, 2);
        uint32_t moved = 0;
        for (uint32_t i = 0; before && i < after->shards_count; i++)
            moved += after->shards[i].key != before->shards[i].key || after->shards[i].cores != before->shards[i].cores;
        cr_assert_leq(moved, 1, "step %u", step);
        for (uint32_t slot = 0; slot < CLUSTER_SLOTS; slot++) {
            const struct node *now = topology_primary(after, slot), *then = before ? topology_primary(before, slot) : NULL;
            cr_assert_eq(now != NULL, shard_of_slot[slot] != SHARD_NONE);
            if (now)
                cr_assert_eq(now->id[0], nodes[shard_of_slot[slot]][0] | 0x20);
            if (!before || (now ? now->key : 0) != (then ? then->key : 0))
                route_since[slot] = after->epoch;
            if (!before || after->slot_owner[slot] != before->slot_owner[slot])
                owner_since[slot] = after->epoch;
            cr_assert_eq(after->slot_route_since[slot], route_since[slot]);
            cr_assert_eq(after->slot_owner_since[slot], owner_since[slot]);
            if (then && now != NULL && then->key != now->key)
                cr_assert_eq(after->slot_previous_node[slot], then->key);
        }
    }
    end();
}

/* The greatest cluster that fits is built in reasonable time: the housekeeping core does it at every change. */
Test(topology, cluster_of_the_greatest_size_is_built, .timeout = 20)
{
    view = topology_view_create();
    for (uint32_t i = 0; i < TOPOLOGY_SHARDS_MAX; i++) {
        uint16_t shard = topology_view_add_shard(view);
        for (uint32_t j = 0; j < 2; j++) {
            struct view_node node = {.port = (uint16_t)(1000 + i), .shard = shard, .is_primary = j == 0};
            snprintf(node.id, sizeof node.id, "%040u", 2 * i + j);
            snprintf(node.host, sizeof node.host, "node%u.example", j);
            cr_assert_neq(topology_view_add_node(view, &node), NODE_NONE);
        }
        cr_assert_eq(topology_view_add_slots(view, shard, i * 8, i * 8 + 7), STATUS_OK);
    }
    after = topology_create_cluster(NULL, view, 2);
    for (int i = 0; i < 10; i++)
        advance();
    check(after, 2);
    cr_expect_eq(after->shards[TOPOLOGY_SHARDS_MAX - 1].key, TOPOLOGY_SHARDS_MAX);
    end();
}

/* Owners alone change: what a view brought stays as it was, and the next view keeps the new owners. */
Test(topology, owners_moved_keep_everything_else_and_stay_with_the_next_view, .init = start, .fini = end)
{
    uint16_t owners[CLUSTER_SLOTS];
    uint64_t cores[3];
    memcpy(owners, after->slot_owner, sizeof owners);
    for (uint32_t i = 0; i < 3; i++)
        cores[i] = after->shards[i].cores;
    uint16_t shard = after->slot_shard[7], other = (uint16_t)(1 - owners[7]);
    owners[7] = other;
    cores[shard] = 3;
    before = after;
    after = topology_create_moved(before, owners, cores);
    check(after, 2);
    cr_expect_eq(after->epoch, 2);
    cr_expect_eq(after->view_epoch, 1);
    cr_expect_eq(after->slot_owner[7], other);
    cr_expect_eq(after->slot_owner_since[7], 2);
    cr_expect_eq(after->slot_owner_since[8], 1);
    cr_expect_arr_eq(after->slot_route_since, before->slot_route_since, sizeof after->slot_route_since);
    cr_expect_arr_eq(after->slot_shard, before->slot_shard, sizeof after->slot_shard);
    cr_expect_eq(after->nodes_count, before->nodes_count);
    advance();
    check(after, 2);
    cr_expect_eq(after->view_epoch, 3);
    cr_expect_eq(after->slot_owner[7], other);
    cr_expect_eq(after->slot_owner_since[7], 2);
    cr_expect_eq(after->shards[shard].cores, 3);
}

Test(topology, owners_of_servers_are_moved_too)
{
    struct config_address addresses[3] = {{.host = "a", .port = 1, .weight = 1}, {.host = "b", .port = 2, .weight = 1}, {.host = "c", .port = 3, .weight = 1}};
    struct config_backend backend = {.kind = BACKEND_SERVERS, .addresses = addresses, .addresses_count = 3};
    struct topology *first = topology_create_servers(&backend, 1, 4);
    uint16_t owners[CLUSTER_SLOTS] = {3, 3, 2};
    uint64_t cores[3] = {8, 8, 4};
    struct topology *second = topology_create_moved(first, owners, cores);
    for (uint32_t slot = 0; slot < 3; slot++) {
        cr_expect_eq(second->slot_owner[slot], owners[slot]);
        cr_expect_eq(second->slot_owner_since[slot], first->slot_owner[slot] == owners[slot] ? 1 : 2);
    }
    for (uint32_t i = 0; i < 1000; i++)
        cr_assert_eq(ketama_server(first->ketama, (const uint8_t *)&i, sizeof i), ketama_server(second->ketama, (const uint8_t *)&i, sizeof i));
    topology_destroy(first);
    topology_destroy(second);
}
