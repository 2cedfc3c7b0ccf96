/*
 * Single-producer single-consumer ring of 64-byte slots between two threads. Indexes run freely (mod 2^32); each side keeps a copy of the other's and
 * reads the shared one only when its copy says full or empty. Publishing is explicit, so that a whole iteration's messages cost one store.
 * Source: Lamport 1983; cached indexes as in FastForward / MCRingBuffer.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { SPSC_SLOT_BYTES = 64 };

struct spsc {
    _Alignas(64) _Atomic uint32_t tail; /* written by the producer */
    uint32_t producer_tail;             /* private to the producer: reserved so far */
    uint32_t producer_head;             /* private to the producer: last seen head */
    _Alignas(64) _Atomic uint32_t head; /* written by the consumer */
    uint32_t consumer_head;             /* private to the consumer: taken so far */
    uint32_t consumer_tail;             /* private to the consumer: last seen tail */
    _Alignas(64) uint32_t mask;
    uint8_t *slots;
};

/* slots_count: power of two, 2 .. 65,536. Allocates. */
void spsc_init(struct spsc *queue, uint32_t slots_count);
void spsc_fini(struct spsc *queue);

/* Producer: the next free slot, or NULL where the ring is full. The slot is the consumer's after spsc_publish. */
void *spsc_reserve(struct spsc *queue);

/* Producer: makes all reserved slots visible by a seq_cst exchange, so that a later seq_cst load of the consumer's sleep flag is ordered after
 * it. Returns how many slots it published. */
uint32_t spsc_publish(struct spsc *queue);

/* Producer: the consumer's index now (acquire): every slot before it has been consumed and its lent bytes are free again. */
uint32_t spsc_consumed(struct spsc *queue);

/* Consumer: the next message, or NULL. The slot stays valid until spsc_release. */
const void *spsc_take(struct spsc *queue);

/* Consumer: gives every taken slot back to the producer (release). */
void spsc_release(struct spsc *queue);

/* Consumer: is anything published that was not taken? A seq_cst load, for the sleep handshake. */
bool spsc_has_more(struct spsc *queue);
