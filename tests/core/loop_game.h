/*
 * Two cores that pass one message to and fro, each on its thread: for test_loop.c and, since ThreadSanitizer does not run under Criterion, for race_loop.c.
 */
#pragma once

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/core.h"
#include "core/thread.h"

enum { ROUND_TRIPS = 200 };

struct player {
    struct core core; /* first member */
    struct thread thread;
    struct game *game;
    struct timer give_up;
    uint32_t taken;
    bool has_failed;
    bool must_send;
    char error[256];
};

struct game {
    struct config *config;
    struct core_shared shared;
    pthread_barrier_t barrier;
    struct player players[2];
    uint32_t pause_us; /* before a message is answered, so that the other side sleeps */
};

static struct player *player_of(const struct core *core)
{
    return core->context;
}

static void send_ball(struct player *player)
{
    struct msg *msg = mailbox_reserve(player->core.mailbox, 1 - player->core.id, CLASS_CONTROL);
    if (msg == NULL)
        return;
    player->must_send = false;
    msg->kind = player->taken < ROUND_TRIPS ? MSG_REFRESH : MSG_DRAIN;
    if (msg->kind == MSG_DRAIN)
        player->core.is_stopping = true;
}

static void on_ball(void *context, uint32_t from, const struct msg *msg, const uint8_t *bytes)
{
    struct player *player = player_of(context);
    (void)bytes;
    if (from != 1 - player->core.id)
        player->has_failed = true;
    if (msg->kind == MSG_DRAIN) {
        player->core.is_stopping = true;
        return;
    }
    player->taken++;
    player->must_send = true;
}

static void flush_ball(struct core *core)
{
    struct player *player = player_of(core);
    if (!player->must_send)
        return;
    struct timespec pause = {.tv_nsec = player->game->pause_us * 1000};
    (void)nanosleep(&pause, NULL);
    send_ball(player);
}

static bool has_ball(const struct core *core)
{
    return player_of(core)->must_send;
}

static bool is_over(const struct core *core)
{
    return !player_of(core)->must_send;
}

static void release_nothing(struct core *core) { (void)core; }

static const struct core_hooks game_hooks = {.message = on_ball, .flush = flush_ball, .release = release_nothing, .is_busy = has_ball, .is_finished = is_over};

static void give_up(struct timer *timer, void *context)
{
    struct player *player = context;
    (void)timer;
    player->has_failed = true;
    player->core.is_stopping = true;
}

static void play(void *context)
{
    struct player *player = context;
    struct game *game = player->game;
    uint32_t id = (uint32_t)(player - game->players);
    player->core.hooks = &game_hooks;
    player->core.context = player;
    enum status status = core_open(&player->core, id, game->config, &game->shared, player->error, sizeof(player->error));
    (void)pthread_barrier_wait(&game->barrier);
    if (status != STATUS_OK) {
        player->has_failed = true;
        return;
    }
    timer_init(&player->give_up, give_up, player);
    timer_set(&player->core.wheel, &player->give_up, player->core.now_ms + 30000);
    player->must_send = id == 0;
    core_run(&player->core);
    timer_cancel(&player->core.wheel, &player->give_up);
    (void)pthread_barrier_wait(&game->barrier); /* nobody rings a ring that is closed */
    core_close(&player->core);
}

/* What a game came to. */
struct game_result {
    bool has_failed;
    uint32_t taken_min; /* messages that the side with fewer has taken */
    uint64_t sleeps, doorbells, took_ns;
    char error[256];
};

/* wait: how cores wait for batches; NULL: as by default. */
static inline struct game_result play_game_waiting(enum config_idle idle, enum config_doorbell doorbell, uint32_t pause_us, const struct wait_settings *wait)
{
    struct mailbox_options options = {.cores_count = 3, .lane_slots = 64, .returns = 8, .control = 4};
    struct game *game = alloc_zeroed(sizeof(*game));
    struct game_result result = {.taken_min = UINT32_MAX};
    game->config = config_create_default();
    game->config->cores.idle = idle;
    game->config->cores.doorbell = doorbell;
    if (wait != NULL)
        game->config->cores.wait = *wait;
    game->config->limits.arena_bytes_per_core = 16 << 20;
    game->config->limits.rx_buffers_per_core = 64;
    game->config->limits.clients_per_core = 8;
    game->config->limits.links_per_core = 8;
    game->config->ring.entries = 64;
    game->pause_us = pause_us;
    game->shared.cores_count = 3;
    game->shared.data_cores = 2;
    game->shared.mailboxes = mailbox_group_create(&options);
    ZG_CHECK(pthread_barrier_init(&game->barrier, NULL, 2) == 0);
    uint64_t begin_ns = clock_monotonic_ns();
    for (int i = 0; i < 2; i++) {
        game->players[i].game = game;
        ZG_CHECK(thread_start(&game->players[i].thread, "player", -1, play, &game->players[i], result.error, sizeof(result.error)) == STATUS_OK);
    }
    for (int i = 0; i < 2; i++) {
        struct player *player = &game->players[i];
        thread_join(&player->thread);
        if (player->has_failed) {
            result.has_failed = true;
            memcpy(result.error, player->error, sizeof(result.error));
            continue;
        }
        result.taken_min = player->taken < result.taken_min ? player->taken : result.taken_min;
        result.sleeps += metric_read(player->core.metrics, METRIC_loop_sleeps_total);
        result.doorbells += metric_read(player->core.metrics, METRIC_mailbox_doorbells_total);
    }
    result.took_ns = clock_monotonic_ns() - begin_ns;
    mailbox_group_destroy(&game->shared.mailboxes);
    for (int i = 0; i < 2; i++) {
        if (game->players[i].core.arena != NULL)
            arena_destroy(&game->players[i].core.arena);
        alloc_free(game->players[i].core.metrics);
    }
    ZG_CHECK(pthread_barrier_destroy(&game->barrier) == 0);
    config_destroy(&game->config);
    alloc_free(game);
    return result;
}

static inline struct game_result play_game(enum config_idle idle, enum config_doorbell doorbell, uint32_t pause_us)
{
    return play_game_waiting(idle, doorbell, pause_us, NULL);
}
