/*
 * Which data core owns the slots of which shard: one core a shard. A pure function of the shards and of the assignment before, so that it can be replayed.
 */
#pragma once

#include <stdint.h>

#include "shard/topology.h"

/*
 * Sets shards[i].owner, 0 .. data_cores - 1, from key and slots_count. A shard that `previous` has (by key) keeps its owner; newcomers, the largest first, go to the core with
 * the fewest slots; what is gone releases its core. Then at most one shard moves away from the most loaded core, where that core has at least one and a half times the moved
 * shard's slots more than the least loaded one: repeated calls converge, and equal shards never swing.
 * shards and previous are sorted by key; data_cores >= 1. Returns how many known shards changed their owner: 0 or 1, more only where `previous` names cores that are gone.
 */
uint32_t owner_table_assign(struct shard *shards, uint32_t shards_count, const struct shard *previous, uint32_t previous_count, uint32_t data_cores);
