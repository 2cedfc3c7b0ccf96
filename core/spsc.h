/*
 * Single-producer single-consumer ring of 64-byte slots between two threads. Indexes run freely (mod 2^32); each side keeps a copy of the
 * other's and reads the shared one only when its copy says full or empty. Publishing is explicit, so that a whole iteration's messages cost
 * one store.
 * Source: Lamport 1983; cached indexes as in FastForward / MCRingBuffer.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPSC_SLOT_BYTES = 64 };

/* The two shared indexes have cache lines of their own: what a side writes for each message is private to it and moves no line between the
 * cores. */
struct spsc {
    _Alignas(64) _Atomic uint32_t tail;  /* written by the producer */
    _Alignas(64) _Atomic uint32_t head;  /* written by the consumer */
    _Alignas(64) uint32_t producer_tail; /* private to the producer: reserved so far */
    uint32_t producer_head;              /* private to the producer: last seen head */
    uint32_t producer_published;         /* private to the producer: its own tail as published */
    _Alignas(64) uint32_t consumer_head; /* private to the consumer: taken so far */
    uint32_t consumer_tail;              /* private to the consumer: last seen tail */
    _Alignas(64) uint32_t mask;          /* constant from here on */
    uint8_t *slots;                      /* aligned to 64 bytes */
    void *memory;                        /* what was allocated for the slots */
};

/* slots_count: power of two, 2 .. 65,536. Allocates. `queue` lies at a multiple of 64 bytes. */
void spsc_init(struct spsc *queue, uint32_t slots_count);
void spsc_fini(struct spsc *queue);

/* Producer: the next free slot, or NULL where the ring is full. The slot is the consumer's after spsc_publish. Its content is what the last
 * user left. */
static inline void *spsc_reserve(struct spsc *queue)
{
    if (__builtin_expect(queue->producer_tail - queue->producer_head > queue->mask, 0)) {
        /* Acquire: the consumer's reads of the slot happen before our writes to it. */
        queue->producer_head = atomic_load_explicit(&queue->head, memory_order_acquire);
        if (queue->producer_tail - queue->producer_head > queue->mask)
            return NULL;
    }
    return queue->slots + (size_t)(queue->producer_tail++ & queue->mask) * SPSC_SLOT_BYTES;
}

/* Producer: makes all reserved slots visible by a seq_cst exchange, so that a later seq_cst load of the consumer's sleep flag is ordered after
 * it. Returns how many slots it published. */
static inline uint32_t spsc_publish(struct spsc *queue)
{
    uint32_t count = queue->producer_tail - queue->producer_published;
    if (count == 0)
        return 0;
    queue->producer_published = queue->producer_tail;
    (void)atomic_exchange_explicit(&queue->tail, queue->producer_tail, memory_order_seq_cst);
    return count;
}

/* Producer: forgets the slots that were reserved and not published. */
static inline void spsc_rewind(struct spsc *queue)
{
    queue->producer_tail = queue->producer_published;
}

/* Producer: the consumer's index now (acquire): every slot before it has been consumed and its lent bytes are free again. */
static inline uint32_t spsc_consumed(struct spsc *queue)
{
    queue->producer_head = atomic_load_explicit(&queue->head, memory_order_acquire);
    return queue->producer_head;
}

/* Consumer: the next message, or NULL. The slot stays valid until spsc_release. */
static inline const void *spsc_take(struct spsc *queue)
{
    if (queue->consumer_head == queue->consumer_tail) {
        /* Seq_cst and not only acquire: a consumer that has cleared a shared "there is news" flag before must not miss what was published before the flag was set.
         * On x86-64 both are a plain load. */
        queue->consumer_tail = atomic_load_explicit(&queue->tail, memory_order_seq_cst);
        if (queue->consumer_head == queue->consumer_tail)
            return NULL;
    }
    return queue->slots + (size_t)(queue->consumer_head++ & queue->mask) * SPSC_SLOT_BYTES;
}

/* Consumer: gives every taken slot back to the producer (release). */
static inline void spsc_release(struct spsc *queue)
{
    atomic_store_explicit(&queue->head, queue->consumer_head, memory_order_release);
}

/* Consumer: is anything published that was not taken? A seq_cst load, for the sleep handshake. */
static inline bool spsc_has_more(struct spsc *queue)
{
    queue->consumer_tail = atomic_load_explicit(&queue->tail, memory_order_seq_cst);
    return queue->consumer_head != queue->consumer_tail;
}
