/*
 * A chained hash table in one array; free entries are chained by next_in_bucket. It starts small and doubles, so after the first peak
 * nothing is allocated.
 */
#include "core/loans.h"

#include <stddef.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/hash.h"

enum { CAPACITY_FIRST = 256, LOANS_MAX_LIMIT = 1 << 24 };

struct loan {
    uint64_t offset;
    struct block *block;
    uint32_t peer;
    uint32_t next_in_bucket; /* or the next free entry */
    uint32_t next_of_peer;
    uint32_t previous_of_peer;
};

static uint32_t *bucket_of(const struct loans *loans, uint32_t peer, uint64_t offset)
{
    return &loans->buckets[hash_u64(offset ^ ((uint64_t)peer << 48)) & (loans->capacity - 1)];
}

static void link_in_bucket(struct loans *loans, uint32_t index)
{
    struct loan *loan = &loans->entries[index];
    uint32_t *bucket = bucket_of(loans, loan->peer, loan->offset);
    loan->next_in_bucket = *bucket;
    *bucket = index;
}

/* Called where every entry is in use, so that all of them are chained anew. */
static void grow(struct loans *loans)
{
    ZG_CHECK(loans->count == loans->capacity - 1);
    ZG_CHECK(loans->free_first == 0);
    loans->capacity *= 2;
    loans->entries = alloc_resize(loans->entries, loans->capacity * sizeof(loans->entries[0]));
    alloc_free(loans->buckets);
    loans->buckets = alloc_zeroed(loans->capacity * sizeof(loans->buckets[0]));
    for (uint32_t index = 1; index < loans->fresh; index++)
        link_in_bucket(loans, index);
}

static void unlink_and_free(struct loans *loans, uint32_t *link)
{
    uint32_t index = *link;
    struct loan *loan = &loans->entries[index];
    *link = loan->next_in_bucket;
    if (loan->previous_of_peer != 0)
        loans->entries[loan->previous_of_peer].next_of_peer = loan->next_of_peer;
    else
        loans->peers[loan->peer] = loan->next_of_peer;
    if (loan->next_of_peer != 0)
        loans->entries[loan->next_of_peer].previous_of_peer = loan->previous_of_peer;
    loan->block = NULL;
    loan->next_in_bucket = loans->free_first;
    loans->free_first = index;
    loans->count--;
}

void loans_init(struct loans *loans, uint32_t peers_count, uint32_t loans_max)
{
    ZG_CHECK(loans_max > 0 && loans_max <= LOANS_MAX_LIMIT);
    ZG_CHECK(peers_count > 0);
    *loans = (struct loans){.peers_count = peers_count, .capacity = CAPACITY_FIRST, .fresh = 1, .loans_max = loans_max};
    loans->entries = alloc_zeroed(CAPACITY_FIRST * sizeof(loans->entries[0]));
    loans->buckets = alloc_zeroed(CAPACITY_FIRST * sizeof(loans->buckets[0]));
    loans->peers = alloc_zeroed(peers_count * sizeof(loans->peers[0]));
}

void loans_fini(struct loans *loans)
{
    ZG_CHECK(loans->count == 0);
    alloc_free(loans->entries);
    alloc_free(loans->buckets);
    alloc_free(loans->peers);
    *loans = (struct loans){0};
}

void loans_add(struct loans *loans, uint32_t peer, uint64_t offset, struct block *block)
{
    ZG_CHECK(peer < loans->peers_count);
    ZG_CHECK(loans->count < loans->loans_max);
    uint32_t index = loans->free_first;
    if (index != 0) {
        loans->free_first = loans->entries[index].next_in_bucket;
    } else {
        if (loans->fresh == loans->capacity)
            grow(loans);
        index = loans->fresh++;
    }
    struct loan *loan = &loans->entries[index];
    *loan = (struct loan){.offset = offset, .block = block, .peer = peer, .next_of_peer = loans->peers[peer]};
    if (loan->next_of_peer != 0)
        loans->entries[loan->next_of_peer].previous_of_peer = index;
    loans->peers[peer] = index;
    link_in_bucket(loans, index);
    loans->count++;
}

struct block *loans_remove(struct loans *loans, uint32_t peer, uint64_t offset)
{
    ZG_CHECK(peer < loans->peers_count);
    uint32_t *link = bucket_of(loans, peer, offset);
    while (*link != 0) {
        struct loan *loan = &loans->entries[*link];
        if (loan->offset == offset && loan->peer == peer) {
            struct block *block = loan->block;
            unlink_and_free(loans, link);
            return block;
        }
        link = &loan->next_in_bucket;
    }
    return NULL;
}

struct block *loans_remove_any(struct loans *loans, uint32_t peer)
{
    ZG_CHECK(peer < loans->peers_count);
    uint32_t index = loans->peers[peer];
    return index == 0 ? NULL : loans_remove(loans, peer, loans->entries[index].offset);
}
