/*
 * Making and unmaking the ring; made before the threads start, unmade after they ended. What the two sides do per message is in the header.
 */
#include "core/spsc.h"

#include "core/alloc.h"
#include "core/check.h"

void spsc_init(struct spsc *queue, uint32_t slots_count)
{
    ZG_CHECK(slots_count >= 2 && slots_count <= 65536);
    ZG_CHECK((slots_count & (slots_count - 1)) == 0);
    ZG_CHECK(((uintptr_t)queue & 63) == 0);
    *queue = (struct spsc){.mask = slots_count - 1};
    queue->memory = alloc_zeroed((size_t)slots_count * SPSC_SLOT_BYTES + SPSC_SLOT_BYTES);
    queue->slots = (uint8_t *)(((uintptr_t)queue->memory + SPSC_SLOT_BYTES - 1) & ~(uintptr_t)(SPSC_SLOT_BYTES - 1));
}

void spsc_fini(struct spsc *queue)
{
    alloc_free(queue->memory);
    queue->memory = NULL;
    queue->slots = NULL;
}
