/*
 * Owns the memory of a fence table: fences of slots and keys, links and the dependencies between them, in pools of the table's maxima and
 * in hash tables. What may pass when is decided in fence.c.
 */
#include "shard/fence_state.h"

#include "core/alloc.h"
#include "core/hash.h"

enum {
    LINKS_MAX = 1 << 16,
    KEY_BUCKETS_MAX = 1 << 16,
};

static struct fence **key_bucket(struct fence_state *state, uint16_t slot, uint32_t key_hash)
{
    return &state->key_buckets[hash_u64((uint64_t)slot << 32 | key_hash) & state->key_buckets_mask];
}

static struct fence_link **link_bucket(struct fence_state *state, uint64_t link_key)
{
    return &state->link_buckets[hash_u64(link_key) % FENCE_LINK_BUCKETS_COUNT];
}

struct fence *fence_state_find(struct fence_state *state, enum fence_scope scope, uint16_t slot, uint32_t key_hash)
{
    ZG_CHECK(slot < FENCE_SLOTS_COUNT && scope != FENCE_NONE);
    struct fence_at_slot *at_slot = state->at_slot[slot];
    if (!at_slot || scope == FENCE_SLOT)
        return at_slot ? &at_slot->whole : NULL;
    struct fence *fence = *key_bucket(state, slot, key_hash);
    while (fence && (fence->at_slot != at_slot || fence->key_hash != key_hash))
        fence = fence->hash_next;
    return fence;
}

static void fence_start(struct fence_table *table, struct fence *fence, struct fence_at_slot *at_slot, uint32_t key_hash)
{
    list_init(&fence->all);
    list_init(&fence->ready);
    list_init(&fence->dependencies);
    fence->at_slot = at_slot;
    fence->key_hash = key_hash;
    list_push_back(&table->state->all, &fence->all);
    table->fences_count++;
}

static void fence_end(struct fence_table *table, struct fence *fence)
{
    ZG_CHECK(!fence_is_up(fence) && fence_queue_is_empty(&fence->waiters) && !fence->is_emitting);
    list_remove(&fence->ready);
    list_remove(&fence->all);
    ZG_CHECK(table->fences_count > 0);
    table->fences_count--;
}

void fence_state_destroy_slot(struct fence_table *table, struct fence_at_slot *at_slot)
{
    ZG_CHECK(fence_slot_is_unused(at_slot) && table->state->at_slot[at_slot->slot] == at_slot);
    fence_end(table, &at_slot->whole);
    table->state->at_slot[at_slot->slot] = NULL;
    pool_put(&table->state->slots, &at_slot);
}

void fence_state_destroy_key(struct fence_table *table, struct fence *fence)
{
    struct fence **link = key_bucket(table->state, fence->at_slot->slot, fence->key_hash);
    while (*link != fence) {
        ZG_CHECK(*link);
        link = &(*link)->hash_next;
    }
    *link = fence->hash_next;
    ZG_CHECK(fence->at_slot->key_fences_count > 0);
    fence->at_slot->key_fences_count--;
    fence_end(table, fence);
    pool_put(&table->state->keys, &fence);
}

void fence_state_discard_unused(struct fence_table *table, struct fence *fence)
{
    struct fence_at_slot *at_slot = fence->at_slot;
    if (fence != &at_slot->whole)
        fence_state_destroy_key(table, fence);
    if (fence_slot_is_unused(at_slot) && !list_is_linked(&at_slot->whole.ready))
        fence_state_destroy_slot(table, at_slot);
}

struct fence *fence_state_find_or_create(
    struct fence_table *table, enum fence_scope scope, uint16_t slot, uint32_t key_hash, bool *is_new)
{
    struct fence_state *state = table->state;
    struct fence *fence = fence_state_find(state, scope, slot, key_hash);
    *is_new = !fence;
    if (fence)
        return fence;
    struct fence_at_slot *at_slot = state->at_slot[slot];
    uint32_t needed = (at_slot ? 0u : 1u) + (scope == FENCE_KEY ? 1u : 0u);
    if (needed > table->fences_max - table->fences_count)
        return NULL;
    if (!at_slot) {
        at_slot = pool_get(&state->slots);
        ZG_CHECK(at_slot); /* the pools have room for fences_max each */
        at_slot->slot = slot;
        fence_start(table, &at_slot->whole, at_slot, 0);
        state->at_slot[slot] = at_slot;
    }
    if (scope == FENCE_SLOT)
        return &at_slot->whole;
    fence = pool_get(&state->keys);
    ZG_CHECK(fence);
    fence_start(table, fence, at_slot, key_hash);
    struct fence **bucket = key_bucket(state, slot, key_hash);
    fence->hash_next = *bucket;
    *bucket = fence;
    at_slot->key_fences_count++;
    return fence;
}

struct fence_link *fence_state_find_link(struct fence_state *state, uint64_t link_key)
{
    struct fence_link *link = *link_bucket(state, link_key);
    while (link && link->link_key != link_key)
        link = link->hash_next;
    return link;
}

void fence_state_destroy_link(struct fence_state *state, struct fence_link *link)
{
    ZG_CHECK(list_is_empty(&link->dependencies));
    struct fence_link **place = link_bucket(state, link->link_key);
    while (*place != link) {
        ZG_CHECK(*place);
        place = &(*place)->hash_next;
    }
    *place = link->hash_next;
    pool_put(&state->links, &link);
}

/* Keeps the list of the link ascending; a raise nearly always has the highest number so far. */
static void link_insert(struct fence_link *link, struct fence_dependency *dependency)
{
    struct list_node *at = link->dependencies.prev;
    while (at != &link->dependencies && LIST_ENTRY(at, struct fence_dependency, of_link)->seq > dependency->seq)
        at = at->prev;
    list_push_back(at->next, &dependency->of_link);
}

bool fence_state_depend(struct fence_table *table, struct fence *fence, uint64_t link_key, uint64_t seq)
{
    struct fence_state *state = table->state;
    ZG_CHECK(link_key != 0 && seq < UINT64_MAX);
    for (struct list_node *node = fence->dependencies.next; node != &fence->dependencies; node = node->next) {
        struct fence_dependency *dependency = LIST_ENTRY(node, struct fence_dependency, of_fence);
        if (dependency->link->link_key != link_key)
            continue;
        if (seq > dependency->seq) {
            dependency->seq = seq;
            list_remove(&dependency->of_link);
            link_insert(dependency->link, dependency);
        }
        return true;
    }
    struct fence_dependency *dependency = pool_get(&state->dependencies);
    if (!dependency)
        return false;
    struct fence_link *link = fence_state_find_link(state, link_key);
    if (!link) {
        link = pool_get(&state->links);
        if (!link) {
            pool_put(&state->dependencies, &dependency);
            return false;
        }
        link->link_key = link_key;
        list_init(&link->dependencies);
        struct fence_link **bucket = link_bucket(state, link_key);
        link->hash_next = *bucket;
        *bucket = link;
    }
    dependency->fence = fence;
    dependency->link = link;
    dependency->seq = seq;
    list_init(&dependency->of_link);
    list_init(&dependency->of_fence);
    list_push_back(&fence->dependencies, &dependency->of_fence);
    link_insert(link, dependency);
    table->dependencies_count++;
    return true;
}

void fence_state_destroy_dependency(struct fence_table *table, struct fence_dependency *dependency)
{
    list_remove(&dependency->of_fence);
    list_remove(&dependency->of_link);
    ZG_CHECK(table->dependencies_count > 0);
    table->dependencies_count--;
    pool_put(&table->state->dependencies, &dependency);
}

struct fence_state *fence_state_create(uint32_t fences_max, uint32_t dependencies_max)
{
    struct fence_state *state = alloc_zeroed(sizeof *state);
    pool_init(
        &state->slots, "fence slots", sizeof(struct fence_at_slot), fences_max < FENCE_SLOTS_COUNT ? fences_max : FENCE_SLOTS_COUNT);
    pool_init(&state->keys, "fences", sizeof(struct fence), fences_max);
    pool_init(&state->dependencies, "fence dependencies", sizeof(struct fence_dependency), dependencies_max);
    pool_init(&state->links, "fence links", sizeof(struct fence_link), dependencies_max < LINKS_MAX ? dependencies_max : LINKS_MAX);
    list_init(&state->all);
    list_init(&state->ready);
    uint32_t buckets_count = 64;
    while (buckets_count < fences_max && buckets_count < KEY_BUCKETS_MAX)
        buckets_count *= 2;
    state->key_buckets_mask = buckets_count - 1;
    state->key_buckets = alloc_zeroed(buckets_count * sizeof(struct fence *));
    return state;
}

void fence_state_destroy(struct fence_table *table)
{
    struct fence_state *state = table->state;
    for (uint32_t i = 0; i < FENCE_LINK_BUCKETS_COUNT; i++) {
        struct fence_link *link;
        while ((link = state->link_buckets[i])) {
            while (!list_is_empty(&link->dependencies))
                fence_state_destroy_dependency(table, LIST_ENTRY(link->dependencies.next, struct fence_dependency, of_link));
            fence_state_destroy_link(state, link);
        }
    }
    /* Key fences first: a slot is destroyed when it has none left. */
    for (struct list_node *node = state->all.next, *next; node != &state->all; node = next) {
        next = node->next;
        struct fence *fence = LIST_ENTRY(node, struct fence, all);
        fence->holds_count = 0;
        if (fence != &fence->at_slot->whole)
            fence_state_destroy_key(table, fence);
    }
    while (!list_is_empty(&state->all)) {
        struct fence_at_slot *at_slot = LIST_ENTRY(state->all.next, struct fence, all)->at_slot;
        at_slot->out_count = 0;
        fence_state_destroy_slot(table, at_slot);
    }
    pool_fini(&state->slots);
    pool_fini(&state->keys);
    pool_fini(&state->dependencies);
    pool_fini(&state->links);
    alloc_free(state->key_buckets);
    alloc_free(state);
    table->state = NULL;
}
