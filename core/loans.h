/*
 * What one core has lent until a RETURN: found by (peer, offset) when the return comes, listed by peer so that a dead peer's loans can be
 * dropped. The same bytes may be lent several times; each loan is an entry of its own. One thread.
 */
#pragma once

#include <stdint.h>

struct block;
struct loan; /* loans.c */

struct loans {
    struct loan *entries; /* [capacity]; entry 0 is not used, index 0 means none */
    uint32_t *buckets;    /* [capacity]: first entry of the chain */
    uint32_t *peers;      /* [peers_count]: first entry of the peer's list */
    uint32_t peers_count;
    uint32_t capacity; /* power of two */
    uint32_t fresh;    /* entries below were in use at least once */
    uint32_t free_first;
    uint32_t count;
    uint32_t loans_max;
};

/* loans_max: 1 .. 2^24. Allocates a small table; it doubles when it is full, up to loans_max. */
void loans_init(struct loans *loans, uint32_t peers_count, uint32_t loans_max);
void loans_fini(struct loans *loans);

/* Remembers a loan. Holds no reference itself: the caller took one. More than loans_max is a bug of the caller. */
void loans_add(struct loans *loans, uint32_t peer, uint64_t offset, struct block *block);

/* Forgets one loan and returns its block; NULL where there is none of this peer at this offset. */
struct block *loans_remove(struct loans *loans, uint32_t peer, uint64_t offset);

/* Forgets any one loan of the peer and returns its block; NULL where it has none. */
struct block *loans_remove_any(struct loans *loans, uint32_t peer);
