/*
 * Owns: the provided-buffer ring and the blocks that are in it. Runs on: its core's thread.
 */
#include "core/rx_ring.h"

#include <string.h>
#include <sys/mman.h>

#include "core/alloc.h"

static void add_buffer(struct rx_ring *rx, uint32_t id)
{
    io_uring_buf_ring_add(rx->ring, rx->blocks[id]->data, rx->buffer_bytes, (unsigned short)id, (int)(rx->count - 1), (int)rx->pending);
    rx->pending++;
}

static void pay_owed(struct rx_ring *rx)
{
    for (uint32_t id = 0; id < rx->count && rx->owed_count > 0; id++) {
        if (rx->blocks[id] != NULL)
            continue;
        rx->blocks[id] = arena_get(rx->arena, rx->buffer_bytes);
        if (rx->blocks[id] == NULL)
            return;
        rx->owed_count--;
        add_buffer(rx, id);
    }
}

enum status rx_ring_open(struct rx_ring *rx, struct ring *ring, struct arena *arena, uint32_t count, uint32_t block_bytes)
{
    ZG_CHECK(count > 0 && (count & (count - 1)) == 0);
    memset(rx, 0, sizeof(*rx));
    rx->arena = arena;
    rx->count = count;
    rx->buffer_bytes = block_bytes - (uint32_t)sizeof(struct block);
    size_t bytes = count * sizeof(struct io_uring_buf);
    rx->ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (rx->ring == MAP_FAILED) {
        memset(rx, 0, sizeof(*rx));
        return STATUS_NO_MEMORY;
    }
    struct io_uring_buf_reg registration = {.ring_addr = (uint64_t)(uintptr_t)rx->ring, .ring_entries = count, .bgid = RX_GROUP};
    if (io_uring_register_buf_ring(&ring->uring, &registration, 0) != 0) {
        munmap(rx->ring, bytes);
        memset(rx, 0, sizeof(*rx));
        return STATUS_SYSTEM;
    }
    io_uring_buf_ring_init(rx->ring);
    rx->blocks = alloc_zeroed(count * sizeof(struct block *));
    rx->owed_count = count;
    rx_ring_publish(rx);
    if (rx->owed_count < count)
        return STATUS_OK;
    rx_ring_close(rx, ring);
    return STATUS_NO_MEMORY;
}

void rx_ring_close(struct rx_ring *rx, struct ring *ring)
{
    if (rx->ring == NULL)
        return;
    (void)io_uring_unregister_buf_ring(&ring->uring, RX_GROUP);
    for (uint32_t id = 0; id < rx->count; id++)
        if (rx->blocks[id] != NULL)
            arena_put(rx->arena, &rx->blocks[id]);
    munmap(rx->ring, rx->count * sizeof(struct io_uring_buf));
    alloc_free(rx->blocks);
    memset(rx, 0, sizeof(*rx));
}

void rx_ring_recycle(struct rx_ring *rx, uint32_t id)
{
    ZG_CHECK(id < rx->count && rx->blocks[id] != NULL);
    if (rx->blocks[id]->refs > 1) {
        arena_put(rx->arena, &rx->blocks[id]);
        rx->blocks[id] = arena_get(rx->arena, rx->buffer_bytes);
        if (rx->blocks[id] == NULL) {
            rx->owed_count++;
            return;
        }
    }
    add_buffer(rx, id);
}

void rx_ring_publish(struct rx_ring *rx)
{
    if (__builtin_expect(rx->owed_count > 0, 0))
        pay_owed(rx);
    if (rx->pending == 0)
        return;
    io_uring_buf_ring_advance(rx->ring, (int)rx->pending);
    rx->pending = 0;
}
