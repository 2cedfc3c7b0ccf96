/*
 * Owns: the blocks of a queue. Runs on: the core of the connection.
 */
#include "net/send_queue.h"

#include <string.h>

enum status send_queue_append(struct core *core, struct send_queue *queue, const void *bytes, uint32_t length)
{
    struct block *tail = queue->tail;
    if (tail != NULL && (tail->flags & (SEND_REFERENCE | SEND_SEALED)) == 0) {
        uint32_t room = block_capacity(tail) - tail->length;
        if (length <= room) {
            memcpy(tail->data + tail->length, bytes, length);
            tail->length += length;
            queue->bytes += length;
            return STATUS_OK;
        }
    }
    uint32_t wanted = queue->tail == NULL && length <= SEND_BLOCK_FIRST - sizeof(struct block) ? SEND_BLOCK_FIRST : SEND_BLOCK_NEXT;
    wanted -= (uint32_t)sizeof(struct block);
    struct block *block = arena_get(core->arena, length > wanted ? length : wanted);
    if (block == NULL)
        return STATUS_NO_MEMORY;
    memcpy(block->data, bytes, length);
    block->length = length;
    send_queue_push(queue, block);
    return STATUS_OK;
}

void send_queue_push(struct send_queue *queue, struct block *block)
{
    uint32_t length;
    (void)send_block_bytes(block, &length);
    block->next = NULL;
    if (queue->tail != NULL)
        queue->tail->next = block;
    else
        queue->head = block;
    queue->tail = block;
    queue->blocks++;
    queue->bytes += length;
}

static struct block *make_reference(struct core *core, const struct send_reference *reference)
{
    struct block *block = arena_get(core->arena, sizeof(*reference));
    if (block == NULL)
        return NULL;
    block->flags = SEND_REFERENCE;
    memcpy(block->data, reference, sizeof(*reference));
    return block;
}

struct block *send_reference_own(struct core *core, struct block *held, const uint8_t *bytes, uint32_t length)
{
    struct send_reference reference = {.bytes = bytes, .length = length, .held = held};
    struct block *block = make_reference(core, &reference);
    if (block != NULL)
        (void)block_ref(held);
    return block;
}

struct block *send_reference_lent(struct core *core, const uint8_t *bytes, uint32_t length, uint16_t lender, uint64_t lent_offset)
{
    struct send_reference reference = {.bytes = bytes, .length = length, .is_lent = true, .lender = lender, .lent_offset = lent_offset};
    return make_reference(core, &reference);
}

const uint8_t *send_block_bytes(const struct block *block, uint32_t *length)
{
    if ((block->flags & SEND_REFERENCE) != 0) {
        struct send_reference reference;
        memcpy(&reference, block->data, sizeof(reference));
        *length = reference.length;
        return reference.bytes;
    }
    *length = block->length;
    return block->data;
}

void send_block_put(struct core *core, struct block **block)
{
    if (((*block)->flags & SEND_REFERENCE) != 0 && (*block)->refs == 1) {
        struct send_reference reference;
        memcpy(&reference, (*block)->data, sizeof(reference));
        if (reference.is_lent)
            mailbox_return(core->mailbox, reference.lender, reference.lent_offset);
        else
            send_block_put(core, &reference.held);
    }
    arena_put(core->arena, block);
}

uint32_t send_queue_pieces(const struct send_queue *queue, struct iovec *pieces, uint32_t max)
{
    uint32_t count = 0;
    uint32_t skip = queue->head_sent;
    for (struct block *block = queue->head; block != NULL && count < max; block = block->next) {
        uint32_t length;
        const uint8_t *bytes = send_block_bytes(block, &length);
        /* The kernel only reads through this pointer; iovec has no const form. */
        pieces[count].iov_base = (void *)(uintptr_t)(bytes + skip);
        pieces[count].iov_len = length - skip;
        count++;
        skip = 0;
    }
    return count;
}

static void pop_head(struct core *core, struct send_queue *queue)
{
    struct block *block = queue->head;
    queue->head = block->next;
    if (queue->head == NULL)
        queue->tail = NULL;
    queue->head_sent = 0;
    queue->blocks--;
    block->next = NULL;
    send_block_put(core, &block);
}

void send_queue_sent(struct core *core, struct send_queue *queue, uint64_t bytes)
{
    ZG_CHECK(bytes <= queue->bytes);
    queue->bytes -= bytes;
    while (queue->head != NULL) {
        uint32_t length;
        (void)send_block_bytes(queue->head, &length);
        uint32_t left = length - queue->head_sent;
        if (bytes < left) {
            queue->head_sent += (uint32_t)bytes;
            return;
        }
        bytes -= left;
        pop_head(core, queue);
    }
    ZG_CHECK(bytes == 0);
}

void send_queue_clear(struct core *core, struct send_queue *queue)
{
    while (queue->head != NULL)
        pop_head(core, queue);
    queue->bytes = 0;
}
