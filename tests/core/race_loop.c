/*
 * Two cores with their rings pass a message to and fro in every mode of idling, with each kind of doorbell: for ThreadSanitizer.
 * Exit status 0 is success.
 */
#include <stdio.h>

#include "tests/core/loop_game.h"

int main(void)
{
    static const enum config_idle modes[] = {IDLE_SLEEP, IDLE_ADAPTIVE, IDLE_SPIN};
    static const enum config_doorbell doorbells[] = {DOORBELL_MSG_RING, DOORBELL_EVENTFD};
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        for (size_t j = 0; j < sizeof(doorbells) / sizeof(doorbells[0]); j++) {
            struct game_result result = play_game(modes[i], doorbells[j], 0);
            ZG_CHECK(!result.has_failed && result.taken_min >= ROUND_TRIPS - 1);
            printf("race_loop: idle %d, doorbell %d: %llu sleeps, %llu doorbells, %llu ms\n", modes[i], doorbells[j], (unsigned long long)result.sleeps,
                (unsigned long long)result.doorbells, (unsigned long long)(result.took_ns / 1000000));
        }
    }
    /* Cores that wait for a batch look awake: what is sent to them is seen when the wait ends. */
    const struct wait_settings wait = {.mode = WAIT_FIXED, .completions = 1000, .wait_ns = 300000};
    struct game_result result = play_game_waiting(IDLE_SLEEP, DOORBELL_MSG_RING, 0, &wait);
    ZG_CHECK(!result.has_failed && result.taken_min >= ROUND_TRIPS - 1 && result.doorbells == 0);
    printf("race_loop: waits for batches: %llu sleeps, %llu ms\n", (unsigned long long)result.sleeps, (unsigned long long)(result.took_ns / 1000000));
    return 0;
}
