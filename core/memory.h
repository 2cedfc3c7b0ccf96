/*
 * What to do about memory: a pure function of what all cores hold. First the largest consumers are not read any more; at the limit, or where that does not help in time, the one that holds the most is closed. Never anybody else.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum memory_verdict {
    MEMORY_CALM,  /* nothing to do: whoever was paused is read again */
    MEMORY_PAUSE, /* the largest consumers are not read */
    MEMORY_CLOSE, /* besides, this core closes its largest */
};

/* A consumer below this size is never paused nor closed for the sake of memory. */
enum { MEMORY_CONSUMER_MIN = 64 * 1024 };

struct memory_view {
    uint64_t used, limit;              /* bytes of blocks held: of all cores; limit > 0 */
    uint64_t fullest_arena, arena_max; /* of the core that holds the most, and what each may hold */
    uint64_t own_largest;              /* the largest consumer of this core */
    uint64_t others_largest;           /* and of all other cores */
    uint64_t closes;                   /* consumers closed so far, by all cores */
    uint64_t now_ms;
};

/* Zero is the start. */
struct memory_state {
    bool is_pausing;
    uint64_t patience_ms; /* until then a pause may help */
    uint64_t closes;      /* at the last look */
    uint64_t wait_ms;     /* until then what was closed last has time to go */
};

enum memory_verdict memory_decide(struct memory_state *state, const struct memory_view *view);

/* Half of what the machine, or the control group, has; at least 64 MiB. */
uint64_t memory_limit_default(void);
