/*
 * A leg with several keys of a migrating slot, divided into one leg a key: what TRYAGAIN asks for. The whole slot is fenced by the leg while its children are out, so they need no fences of their own.
 */
#pragma once

#include "core/pool.h"
#include "net/leg.h"
#include "shard/merge.h"

struct subsplit {
    struct pool_item item;
    struct leg *parent;
    struct merge merge;
    uint32_t left; /* children without an outcome */
};
