/*
 * Stateless but for the state that is passed. Runs on: every data core, each for its own consumers; that they see the same figures keeps two from closing at once.
 */
#include "core/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "core/check.h"

enum {
    PAUSE_PERMILLE = 800,
    CALM_PERMILLE = 700,
    CLOSE_PERMILLE = 1000,
    ARENA_CLOSE_PERMILLE = 950, /* beyond that bystanders would find no memory */
    PATIENCE_MS = 1000, /* several clients may have to go before the others can end */
    GRACE_MS = 100, /* sends are cancelled, loans come back */
};

static uint64_t permille(uint64_t part, uint64_t whole)
{
    ZG_CHECK(whole > 0);
    return part / 1024 * 1000 / (whole / 1024 + 1);
}

enum memory_verdict memory_decide(struct memory_state *state, const struct memory_view *view)
{
    uint64_t used = permille(view->used, view->limit);
    uint64_t arena = permille(view->fullest_arena, view->arena_max);
    uint64_t fullest = used > arena ? used : arena;
    if (view->closes != state->closes) {
        state->closes = view->closes;
        state->wait_ms = view->now_ms + GRACE_MS;
        state->patience_ms = view->now_ms + PATIENCE_MS;
    }
    if (!state->is_pausing && fullest >= PAUSE_PERMILLE) {
        state->is_pausing = true;
        state->patience_ms = view->now_ms + PATIENCE_MS;
    } else if (state->is_pausing && fullest < CALM_PERMILLE) {
        state->is_pausing = false;
    }
    if (!state->is_pausing)
        return MEMORY_CALM;
    bool must_close = used >= CLOSE_PERMILLE || arena >= ARENA_CLOSE_PERMILLE || view->now_ms >= state->patience_ms;
    /* Of two cores with the same one neither waits for the other for ever: both close. */
    bool is_ours = view->own_largest >= MEMORY_CONSUMER_MIN && view->own_largest >= view->others_largest;
    return must_close && is_ours && view->now_ms >= state->wait_ms ? MEMORY_CLOSE : MEMORY_PAUSE;
}

/* The number in a file; UINT64_MAX where there is none. */
static uint64_t read_number(const char *path)
{
    uint64_t number = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &number) != 1) // NOLINT(cert-err34-c): "max" leaves it as it is
        number = UINT64_MAX;
    (void)fclose(file);
    return number;
}

uint64_t memory_limit_default(void)
{
    const uint64_t least = UINT64_C(64) << 20;
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t group = read_number("/sys/fs/cgroup/memory.max");
    uint64_t group_v1 = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    bytes = group < bytes ? group : bytes;
    bytes = group_v1 < bytes ? group_v1 : bytes;
    return bytes / 2 > least ? bytes / 2 : least;
}
