/*
 * Which data cores may own the slots of which shard, and which of them owns a slot: one core a shard, unless measured load gave it more (shard/balance.h). Pure functions of the shards and of the assignment
 * before, so that they can be replayed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shard/topology.h"

/*
 * Sets shards[i].cores, of 0 .. data_cores - 1, from key and slots_count. A shard that `previous` has (by key) keeps its cores; newcomers, the largest first, go to the core with
 * the fewest slots; what is gone releases its cores. Where `is_evened` then at most one shard with one core moves away from the most loaded core, where that core has at least one and a half times the moved
 * shard's slots more than the least loaded one: repeated calls converge, and equal shards never swing.
 * shards and previous are sorted by key; data_cores >= 1. Returns how many known shards changed their cores: 0 or 1, more only where `previous` names cores that are gone.
 */
uint32_t owner_table_assign(struct shard *shards, uint32_t shards_count, const struct shard *previous, uint32_t previous_count, uint32_t data_cores, bool is_evened);

/*
 * Which of `cores` (a bit each, at least one) owns a slot of a shard with slots_count slots, where nothing else is known of it: by the highest hash of (slots, core), so that a core that joins the set takes its
 * share and no other slot moves, and one that leaves gives up only its own. Slots are hashed by groups that are neighbours, up to 64 where the shard has many: a client that lists them sees few ranges.
 */
uint16_t owner_table_choose(uint64_t cores, uint32_t slot, uint32_t slots_count);

/* k of a shard. */
static inline uint32_t owner_table_cores_count(const struct shard *shard)
{
    return (uint32_t)__builtin_popcountll(shard->cores);
}
