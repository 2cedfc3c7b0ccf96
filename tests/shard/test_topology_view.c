#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "shard/topology_view.h"
#include "tests/shard/view_builder.h"

TestSuite(topology_view);

#define SECOND UINT64_C(1000000000)

static struct topology_view *view;
static struct topology *current;
static struct topology_judge judge;
static uint64_t now;

static void start(void)
{
    view = topology_view_create();
    topology_judge_init(&judge);
    current = NULL;
    now = SECOND;
}

static void end(void)
{
    topology_destroy(current);
    topology_view_destroy(&view);
}

static enum topology_verdict hear(uint64_t source, uint32_t reachable)
{
    now += SECOND / 100;
    enum topology_verdict verdict = topology_judge_view(&judge, view, current, source, reachable, now);
    bool has_reason = topology_judge_reason(&judge)[0] != '\0';
    cr_expect_eq(has_reason, verdict == TOPOLOGY_CONFIRM || verdict == TOPOLOGY_REJECT);
    return verdict;
}

static void install(void)
{
    struct topology *next = topology_create_cluster(current, view, 2);
    topology_destroy(current);
    current = next;
    topology_judge_installed(&judge, view);
}

/* Three shards in use, of epoch 10. */
static void start_installed(void)
{
    start();
    view_make_three(view, 10);
    cr_assert_eq(hear(1, 2), TOPOLOGY_CONFIRM);
    cr_assert_eq(hear(2, 2), TOPOLOGY_INSTALL);
    install();
}

Test(topology_view, slots_that_are_no_range_or_taken_are_invalid)
{
    start();
    uint16_t a = view_add(view, "a", 5, 9), b = view_add(view, "b", 1, 0);
    cr_expect_eq(topology_view_add_slots(view, b, 9, 12), STATUS_INVALID);
    cr_expect_eq(topology_view_add_slots(view, a, 9, 9), STATUS_INVALID, "twice in one shard");
    cr_expect_eq(topology_view_add_slots(view, b, 3, 2), STATUS_INVALID);
    cr_expect_eq(topology_view_add_slots(view, b, 0, 16384), STATUS_INVALID);
    topology_view_clear(view);
    cr_expect_eq(view->slots_covered, 0);
    cr_expect_eq(topology_view_node_of_id(view, "a"), NODE_NONE);
    cr_expect_eq(topology_view_node_at(view, "10.0.0.97", 6379), NODE_NONE);
    end();
}

Test(topology_view, first_complete_wants_two_nodes_or_the_only_one)
{
    start();
    view_make_three(view, 1);
    cr_expect_eq(hear(1, 3), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(1, 3), TOPOLOGY_CONFIRM, "a node does not confirm itself");
    cr_expect_eq(hear(2, 3), TOPOLOGY_INSTALL);
    cr_expect_eq(hear(3, 3), TOPOLOGY_INSTALL, "until it is said to be installed");
    end();
    start();
    view_make_three(view, 1);
    cr_expect_eq(hear(1, 1), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, first_incomplete_wants_every_reachable_node)
{
    start();
    view_make_three(view, 1);
    view_drop_slots(view, 100, 100);
    for (uint64_t source = 1; source < 6; source++)
        cr_expect_eq(hear(source, 6), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(6, 6), TOPOLOGY_INSTALL);
    install();
    cr_expect(!topology_is_complete(current));
    /* What completes it is a change as any. */
    view_make_three(view, 1);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(4, 6), TOPOLOGY_INSTALL);
    install();
    cr_expect(topology_is_complete(current));
    end();
    /* Nodes that stop answering while it waits are not waited for. */
    start();
    view_make_three(view, 1);
    view_drop_slots(view, 100, 100);
    cr_expect_eq(hear(1, 3), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(2, 2), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, empty_is_rejected)
{
    start();
    cr_expect_eq(hear(1, 1), TOPOLOGY_REJECT);
    view_add(view, "a", 1, 0);
    cr_expect_eq(hear(1, 1), TOPOLOGY_REJECT);
    end();
    start_installed();
    topology_view_clear(view);
    for (uint64_t source = 1; source < 7; source++)
        cr_expect_eq(hear(source, 6), TOPOLOGY_REJECT);
    end();
}

Test(topology_view, same_in_another_order_is_the_same)
{
    start_installed();
    topology_view_clear(view);
    view->current_epoch = 10;
    view_add(view, "cf", 10923, 16383);
    view_add(view, "be", 5461, 10922);
    view_add(view, "ad", 0, 5460);
    cr_expect_eq(hear(3, 6), TOPOLOGY_SAME);
    view->current_epoch = 0;
    cr_expect_eq(hear(3, 6), TOPOLOGY_SAME);
    end();
}

Test(topology_view, replicas_and_failures_change_by_one_node)
{
    start_installed();
    topology_view_clear(view);
    view->current_epoch = 10;
    view_add(view, "aD", 0, 5460);
    view_add(view, "be", 5461, 10922);
    view_add(view, "cf", 10923, 16383);
    cr_expect_eq(hear(3, 6), TOPOLOGY_INSTALL, "d failed");
    install();
    cr_expect_eq(hear(1, 6), TOPOLOGY_SAME);
    topology_view_clear(view);
    view->current_epoch = 10;
    view_add(view, "a", 0, 5460);
    view_add(view, "bed", 5461, 10922);
    view_add(view, "cf", 10923, 16383);
    cr_expect_eq(hear(1, 6), TOPOLOGY_INSTALL, "d is b's replica now");
    end();
}

Test(topology_view, older_never_replaces_newer)
{
    start_installed();
    view_make_three(view, 9);
    view_move_slots(view, 0, 10, 1);
    for (uint64_t source = 1; source <= 6; source++)
        cr_expect_eq(hear(source, 6), TOPOLOGY_REJECT);
    cr_expect_eq(hear(1, 1), TOPOLOGY_REJECT, "not even where no other node is reachable");
    /* The same routes as those in use, but an older epoch: nothing to learn from it. */
    view_make_three(view, 9);
    cr_expect_eq(hear(1, 6), TOPOLOGY_REJECT);
    /* A newer epoch with the same routes is remembered. */
    view_make_three(view, 12);
    cr_expect_eq(hear(1, 6), TOPOLOGY_SAME);
    view_make_three(view, 11);
    view_move_slots(view, 0, 10, 1);
    cr_expect_eq(hear(2, 6), TOPOLOGY_REJECT);
    end();
}

Test(topology_view, failover_wants_a_second_node)
{
    start_installed();
    topology_view_clear(view);
    view->current_epoch = 11;
    view_add(view, "dA", 0, 5460);
    view_add(view, "be", 5461, 10922);
    view_add(view, "cf", 10923, 16383);
    cr_expect_eq(hear(4, 5), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(4, 5), TOPOLOGY_CONFIRM);
    /* Gossip takes a moment: another node still has the old view, which takes nothing back but the vote of that node. */
    view_make_three(view, 10);
    cr_expect_eq(hear(5, 5), TOPOLOGY_SAME);
    topology_view_clear(view);
    view->current_epoch = 11;
    view_add(view, "dA", 0, 5460);
    view_add(view, "be", 5461, 10922);
    view_add(view, "cf", 10923, 16383);
    cr_expect_eq(hear(5, 5), TOPOLOGY_INSTALL);
    install();
    cr_expect_eq(hear(2, 5), TOPOLOGY_SAME);
    view_make_three(view, 10);
    cr_expect_eq(hear(1, 6), TOPOLOGY_REJECT, "the old primary comes back with its old view");
    end();
}

Test(topology_view, confirmation_takes_back_its_word_is_not_counted)
{
    start_installed();
    view_make_three(view, 11);
    view_move_slots(view, 0, 10, 1);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    view_make_three(view, 11);
    cr_expect_eq(hear(1, 6), TOPOLOGY_SAME);
    view_move_slots(view, 0, 10, 1);
    cr_expect_eq(hear(2, 6), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(3, 6), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, changes_in_competition_the_newer_epoch_waits)
{
    start_installed();
    view_make_three(view, 12);
    view_move_slots(view, 0, 10, 1);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    view_make_three(view, 11);
    view_move_slots(view, 0, 5, 1);
    cr_expect_eq(hear(2, 6), TOPOLOGY_REJECT);
    cr_expect_eq(hear(3, 6), TOPOLOGY_REJECT);
    view_make_three(view, 13);
    view_move_slots(view, 0, 20, 1);
    cr_expect_eq(hear(4, 6), TOPOLOGY_CONFIRM, "a newer one takes the place");
    view_make_three(view, 12);
    view_move_slots(view, 0, 10, 1);
    cr_expect_eq(hear(5, 6), TOPOLOGY_REJECT, "and the votes of the older one are gone");
    view_make_three(view, 13);
    view_move_slots(view, 0, 20, 1);
    cr_expect_eq(hear(6, 6), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, confirmation_that_takes_too_long_is_forgotten)
{
    start_installed();
    view_make_three(view, 11);
    view_move_slots(view, 0, 10, 1);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    now += 29 * SECOND;
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    now += 2 * SECOND;
    cr_expect_eq(hear(2, 6), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(3, 6), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, fewer_slots_want_every_reachable_node_and_two_at_least)
{
    start_installed();
    view_make_three(view, 11);
    view_drop_slots(view, 0, 0);
    cr_expect_eq(hear(1, 1), TOPOLOGY_CONFIRM, "a single source");
    cr_expect_eq(hear(1, 1), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(2, 3), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(3, 3), TOPOLOGY_INSTALL);
    install();
    cr_expect_eq(current->slots_covered, CLUSTER_SLOTS - 1);
    view_make_three(view, 11);
    cr_expect_eq(hear(1, 3), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(2, 3), TOPOLOGY_INSTALL);
    end();
    /* A cluster of one node has no second one. */
    start();
    view_add(view, "a", 0, 16383);
    cr_assert_eq(hear(1, 1), TOPOLOGY_INSTALL);
    install();
    view_drop_slots(view, 0, 0);
    cr_expect_eq(hear(1, 1), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, fewer_slots_of_a_big_cluster_want_a_bounded_number)
{
    start_installed();
    view_make_three(view, 11);
    view_drop_slots(view, 0, 0);
    for (uint64_t source = 1; source < TOPOLOGY_SOURCES_MAX; source++)
        cr_assert_eq(hear(source, 4096), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(4000, 4096), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, slot_named_by_moved_needs_one_node)
{
    start_installed();
    topology_judge_moved(&judge, 7, "10.0.0.98", 6379, now); /* to b */
    view_make_three(view, 11);
    view_move_slots(view, 7, 7, 1);
    cr_expect_eq(hear(1, 6), TOPOLOGY_INSTALL);
    install();
    /* The hint is used up. */
    view_make_three(view, 12);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    end();
}

Test(topology_view, slots_not_all_named_by_moved_need_two_nodes)
{
    start_installed();
    topology_judge_moved(&judge, 7, "10.0.0.98", 6379, now);
    view_make_three(view, 11);
    view_move_slots(view, 7, 8, 1);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM, "slot 8 moves too");
    topology_judge_moved(&judge, 8, "10.0.0.98", 6379, now);
    cr_expect_eq(hear(1, 6), TOPOLOGY_INSTALL, "now it was named too");
    view_make_three(view, 11);
    view_move_slots(view, 7, 8, 2);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM, "to another node than named");
    view_make_three(view, 9);
    view_move_slots(view, 7, 8, 1);
    cr_expect_eq(hear(2, 6), TOPOLOGY_REJECT, "older is older");
    view_make_three(view, 11);
    view_move_slots(view, 7, 8, 1);
    view_drop_slots(view, 9, 9);
    cr_expect_eq(hear(3, 6), TOPOLOGY_CONFIRM, "covers less");
    now += 40 * SECOND;
    view_make_three(view, 11);
    view_move_slots(view, 7, 8, 1);
    cr_expect_eq(hear(4, 6), TOPOLOGY_CONFIRM, "the hints are too old");
    end();
}

Test(topology_view, address_changed_wants_a_second_node)
{
    start_installed();
    view_make_three(view, 10);
    strcpy(view->nodes[0].host, "10.9.9.9");
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(2, 6), TOPOLOGY_INSTALL);
    end();
}

Test(topology_view, host_assumed_is_resolved_by_what_is_known)
{
    start_installed();
    view_make_three(view, 10);
    strcpy(view->nodes[0].host, "localhost");
    view->nodes[0].host_is_assumed = true;
    topology_view_resolve(view, current);
    cr_expect_str_eq(view->nodes[0].host, "10.0.0.97");
    cr_expect_eq(topology_view_node_at(view, "10.0.0.97", 6379), 0);
    cr_expect_eq(topology_view_node_at(view, "localhost", 6379), NODE_NONE);
    topology_view_resolve(view, NULL);
    cr_expect_eq(hear(1, 6), TOPOLOGY_SAME);
    end();
    /* At the first view nothing is known; asked at different addresses, nodes without names agree all the same. */
    start();
    for (uint64_t source = 1; source <= 2; source++) {
        view_make_three(view, 1);
        for (uint32_t i = 0; i < view->nodes_count; i++) {
            snprintf(view->nodes[i].host, HOST_BYTES, "seed%d", (int)source);
            view->nodes[i].host_is_assumed = true;
        }
        cr_expect_eq(hear(source, 2), source == 1 ? TOPOLOGY_CONFIRM : TOPOLOGY_INSTALL);
    }
    install();
    for (uint32_t i = 0; i < view->nodes_count; i++) {
        strcpy(view->nodes[i].host, "seed3");
        view->nodes[i].host_is_assumed = true;
    }
    topology_view_resolve(view, current);
    cr_expect_eq(hear(3, 3), TOPOLOGY_SAME, "asked at a third address");
    end();
}

Test(topology_view, cluster_made_anew_may_begin_with_a_lower_epoch)
{
    start_installed();
    topology_view_clear(view);
    view->current_epoch = 2;
    view_add(view, "x", 0, 8000);
    view_add(view, "y", 8001, 16383);
    cr_expect_eq(hear(1, 3), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(2, 3), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(3, 3), TOPOLOGY_INSTALL);
    install();
    view->current_epoch = 1;
    cr_expect_eq(hear(3, 3), TOPOLOGY_REJECT);
    view->current_epoch = 2;
    cr_expect_eq(hear(3, 3), TOPOLOGY_SAME);
    end();
}

Test(topology_view, epochs_unknown_leave_the_other_rules)
{
    start_installed();
    view_make_three(view, 0);
    view_move_slots(view, 0, 10, 1);
    cr_expect_eq(hear(1, 6), TOPOLOGY_CONFIRM);
    cr_expect_eq(hear(2, 6), TOPOLOGY_INSTALL);
    install();
    view_make_three(view, 9);
    cr_expect_eq(hear(2, 6), TOPOLOGY_REJECT, "the epoch that was known still counts");
    end();
}
