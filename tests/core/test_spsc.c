/*
 * core/spsc by one thread: order, full, empty, wrap-around. Two threads are in race_spsc.c.
 */
#include <criterion/criterion.h>
#include <signal.h>

#include "core/spsc.h"

TestSuite(spsc);

static void put_number(struct spsc *queue, uint64_t number)
{
    uint64_t *slot = spsc_reserve(queue);
    cr_assert_not_null(slot);
    *slot = number;
}

/* Moves all indexes of an empty ring, as if `index` messages had passed. */
static void start_at(struct spsc *queue, uint32_t index)
{
    atomic_store(&queue->tail, index);
    atomic_store(&queue->head, index);
    queue->producer_tail = queue->producer_head = queue->producer_published = index;
    queue->consumer_head = queue->consumer_tail = index;
}

Test(spsc, ring_full_and_emptied_keeps_order)
{
    struct spsc queue;
    spsc_init(&queue, 8);
    cr_assert_eq((uintptr_t)queue.slots % 64, 0);
    for (uint64_t round = 0; round < 100; round++) {
        for (uint64_t i = 0; i < 8; i++)
            put_number(&queue, round * 8 + i);
        cr_assert_null(spsc_reserve(&queue), "full");
        cr_assert_null(spsc_take(&queue), "nothing is visible before the publish");
        cr_assert_not(spsc_has_more(&queue));
        cr_assert_eq(spsc_publish(&queue), 8);
        cr_assert_eq(spsc_publish(&queue), 0, "there is nothing more to publish");
        cr_assert(spsc_has_more(&queue));
        for (uint64_t i = 0; i < 8; i++) {
            const uint64_t *slot = spsc_take(&queue);
            cr_assert_not_null(slot);
            cr_assert_eq(*slot, round * 8 + i);
        }
        cr_assert_null(spsc_take(&queue));
        cr_assert_null(spsc_reserve(&queue), "taken is not yet released");
        spsc_release(&queue);
    }
    spsc_fini(&queue);
    cr_assert_null(queue.slots);
}

Test(spsc, index_consumed_follows_release_not_take)
{
    struct spsc queue;
    spsc_init(&queue, 4);
    put_number(&queue, 1);
    put_number(&queue, 2);
    (void)spsc_publish(&queue);
    cr_assert_not_null(spsc_take(&queue));
    cr_assert_eq(spsc_consumed(&queue), 0);
    spsc_release(&queue);
    cr_assert_eq(spsc_consumed(&queue), 1);
    cr_assert_not_null(spsc_take(&queue));
    spsc_release(&queue);
    cr_assert_eq(spsc_consumed(&queue), 2);
    spsc_fini(&queue);
}

Test(spsc, index_wraps_at_32_bits_without_loss)
{
    struct spsc queue;
    spsc_init(&queue, 16);
    start_at(&queue, UINT32_MAX - 20);
    uint64_t sent = 0, received = 0;
    for (uint32_t round = 0; round < 40; round++) {
        while (sent - received < 16)
            put_number(&queue, sent++);
        cr_assert_null(spsc_reserve(&queue), "16 slots and no more, in round %u", round);
        (void)spsc_publish(&queue);
        for (uint32_t i = 0; i < 3; i++) {
            const uint64_t *slot = spsc_take(&queue);
            cr_assert_not_null(slot);
            cr_assert_eq(*slot, received);
            received++;
        }
        spsc_release(&queue);
        cr_assert_eq(spsc_consumed(&queue), (uint32_t)(UINT32_MAX - 20 + received));
    }
    cr_assert_gt(sent, 100);
    spsc_fini(&queue);
}

Test(spsc, rewind_forgets_what_was_not_published)
{
    struct spsc queue;
    spsc_init(&queue, 2);
    put_number(&queue, 1);
    (void)spsc_publish(&queue);
    put_number(&queue, 2);
    cr_assert_null(spsc_reserve(&queue));
    spsc_rewind(&queue);
    put_number(&queue, 3);
    cr_assert_eq(spsc_publish(&queue), 1);
    cr_assert_eq(*(const uint64_t *)spsc_take(&queue), 1);
    cr_assert_eq(*(const uint64_t *)spsc_take(&queue), 3);
    cr_assert_null(spsc_take(&queue));
    spsc_fini(&queue);
}

Test(spsc, slots_count_not_a_power_of_two_aborts, .signal = SIGABRT)
{
    struct spsc queue;
    spsc_init(&queue, 48);
}

Test(spsc, slots_count_of_one_aborts, .signal = SIGABRT)
{
    struct spsc queue;
    spsc_init(&queue, 1);
}
