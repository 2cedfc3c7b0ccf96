/*
 * core/spsc between two threads: every message arrives once, in order and whole, with random batches on both sides and a small ring that is
 * full most of the time. ThreadSanitizer looks for the hand-over of slots in both directions. Exit status 0 is success.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/hash.h"
#include "core/rng.h"
#include "core/spsc.h"
#include "core/thread.h"

enum { MESSAGES = 400000, SLOTS = 32, WORDS = SPSC_SLOT_BYTES / 8 };

static struct spsc queue;
static uint64_t full_count, empty_count;

static void produce(void *context)
{
    struct rng rng = {.state = *(uint64_t *)context};
    uint64_t sent = 0;
    while (sent < MESSAGES) {
        for (uint32_t batch = 1 + rng_below(&rng, SLOTS + 4); batch > 0 && sent < MESSAGES; batch--) {
            uint64_t *slot = spsc_reserve(&queue);
            if (slot == NULL) {
                full_count++;
                break;
            }
            for (uint64_t i = 0; i < WORDS; i++)
                slot[i] = hash_u64(sent * WORDS + i);
            sent++;
        }
        if (spsc_publish(&queue) == 0)
            sched_yield();
        uint32_t in_use = queue.producer_tail - spsc_consumed(&queue);
        ZG_CHECK(in_use <= SLOTS);
    }
}

static void consume(void *context)
{
    struct rng rng = {.state = *(uint64_t *)context};
    uint64_t received = 0;
    while (received < MESSAGES) {
        for (uint32_t batch = 1 + rng_below(&rng, SLOTS + 4); batch > 0; batch--) {
            const uint64_t *slot = spsc_take(&queue);
            if (slot == NULL) {
                empty_count++;
                sched_yield();
                break;
            }
            for (uint64_t i = 0; i < WORDS; i++)
                ZG_CHECK(slot[i] == hash_u64(received * WORDS + i));
            received++;
        }
        /* Sometimes the slots are kept for a while, as a handler does. */
        if (rng_below(&rng, 4) != 0)
            spsc_release(&queue);
    }
    ZG_CHECK(!spsc_has_more(&queue));
    spsc_release(&queue);
}

int main(void)
{
    struct thread producer, consumer;
    uint64_t seeds[2] = {11, 12};
    char error[128];
    spsc_init(&queue, SLOTS);
    ZG_CHECK(thread_start(&producer, "producer", -1, produce, &seeds[0], error, sizeof(error)) == STATUS_OK);
    ZG_CHECK(thread_start(&consumer, "consumer", -1, consume, &seeds[1], error, sizeof(error)) == STATUS_OK);
    thread_join(&producer);
    thread_join(&consumer);
    ZG_CHECK(spsc_consumed(&queue) == MESSAGES);
    spsc_fini(&queue);
    printf("race_spsc: %d messages, ring found full %llu times, empty %llu times\n", MESSAGES, (unsigned long long)full_count, (unsigned long long)empty_count);
    return 0;
}
