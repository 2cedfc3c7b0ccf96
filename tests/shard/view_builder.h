/*
 * Makes views for tests in a line each: shards by the letters of their nodes, the primary first. A node's id is its letter, its address 10.0.0.LETTER:6379.
 */
#pragma once

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "shard/topology_view.h"

/* Adds a shard whose nodes are the letters of `nodes`, a letter in upper case being failed, with slots first .. last (first > last: none). Returns its index. */
static inline uint16_t view_add(struct topology_view *view, const char *nodes, uint32_t first, uint32_t last)
{
    uint16_t shard = topology_view_add_shard(view);
    for (uint32_t i = 0; nodes[i]; i++) {
        char letter = (char)(nodes[i] | 0x20);
        struct view_node node = {.port = 6379, .shard = shard, .is_primary = i == 0, .is_failed = nodes[i] != letter};
        node.id[0] = letter;
        snprintf(node.host, sizeof node.host, "10.0.0.%d", letter);
        ZG_CHECK(topology_view_add_node(view, &node) != NODE_NONE);
    }
    if (first <= last)
        ZG_CHECK(topology_view_add_slots(view, shard, first, last) == STATUS_OK);
    return shard;
}

/* Three shards "ad", "be", "cf" over all slots, as epoch `epoch`. */
static inline void view_make_three(struct topology_view *view, uint64_t epoch)
{
    topology_view_clear(view);
    view->current_epoch = epoch;
    view_add(view, "ad", 0, 5460);
    view_add(view, "be", 5461, 10922);
    view_add(view, "cf", 10923, 16383);
}

static inline void view_move_slots(struct topology_view *view, uint32_t first, uint32_t last, uint16_t shard)
{
    for (uint32_t slot = first; slot <= last; slot++) {
        view->shards[view->slot_shard[slot]].slots_count--;
        view->slot_shard[slot] = shard;
        view->shards[shard].slots_count++;
    }
}

static inline void view_drop_slots(struct topology_view *view, uint32_t first, uint32_t last)
{
    for (uint32_t slot = first; slot <= last; slot++) {
        view->shards[view->slot_shard[slot]].slots_count--;
        view->slot_shard[slot] = SHARD_NONE;
        view->slots_covered--;
    }
}
