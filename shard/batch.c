/*
 * Owns: the batches of one owner core. Runs on: that core.
 */
#include "shard/batch.h"

#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "net/send_queue.h"

enum { CHUNK_FIRST = 2048, CHUNK_NEXT = 16384 };

static const char asking_command[] = "*1\r\n$6\r\nASKING\r\n";

void batch_map_init(struct batch_map *map, struct core *core, uint32_t capacity)
{
    uint32_t places = 16;
    while (places < capacity * 2)
        places *= 2;
    map->core = core;
    map->batches = alloc_zeroed(places * sizeof(*map->batches));
    map->mask = places - 1;
    map->used = 0;
    map->last = NULL;
    list_init(&map->dirty);
}

void batch_map_fini(struct batch_map *map)
{
    ZG_CHECK(list_is_empty(&map->dirty));
    alloc_free(map->batches);
    map->batches = NULL;
}

struct batch *batch_map_find(struct batch_map *map, uint64_t name)
{
    for (uint32_t place = (uint32_t)hash_u64(name) & map->mask;; place = (place + 1) & map->mask) {
        struct batch *batch = &map->batches[place];
        if (batch->name == name)
            return batch;
        if (batch->name == 0)
            return NULL;
    }
}

struct batch *batch_map_get(struct batch_map *map, uint64_t name)
{
    ZG_CHECK(name != 0);
    if (map->last != NULL && map->last->name == name)
        return map->last;
    for (uint32_t place = (uint32_t)hash_u64(name) & map->mask;; place = (place + 1) & map->mask) {
        struct batch *batch = &map->batches[place];
        if (batch->name == name) {
            map->last = batch;
            return batch;
        }
        if (batch->name != 0)
            continue;
        if (map->used > map->mask / 2)
            return NULL;
        map->used++;
        memset(batch, 0, sizeof(*batch));
        batch->name = name;
        list_init(&batch->dirty);
        return batch;
    }
}

static void push_block(struct batch *batch, struct block *block)
{
    block->next = NULL;
    if (batch->chain_tail != NULL)
        batch->chain_tail->next = block;
    else
        batch->chain = block;
    batch->chain_tail = block;
}

/* A chunk with room for `length` more bytes, or NULL. */
static struct block *chunk_for(struct batch_map *map, struct batch *batch, uint32_t length)
{
    struct block *tail = batch->chain_tail;
    if (tail != NULL && (tail->flags & SEND_REFERENCE) == 0 && block_capacity(tail) - tail->length >= length)
        return tail;
    uint32_t wanted = (tail == NULL && length <= CHUNK_FIRST - sizeof(struct block) ? CHUNK_FIRST : CHUNK_NEXT) - (uint32_t)sizeof(struct block);
    struct block *block = arena_get(map->core->arena, length > wanted ? length : wanted);
    if (block == NULL)
        return NULL;
    /* Nobody else may append to it once it is in a send queue. */
    block->flags = SEND_SEALED;
    push_block(batch, block);
    return block;
}

static void push_leg(struct batch_map *map, struct batch *batch, struct leg *leg, uint32_t length)
{
    if (batch->legs.count == 0)
        list_push_back(&map->dirty, &batch->dirty);
    leg_list_push(&batch->legs, leg);
    batch->bytes += length;
}

static struct block *make_reference(struct core *core, const struct leg_source *source)
{
    if (source->is_lent)
        return send_reference_lent(core, source->bytes, source->length, source->lender, source->lent_offset);
    return send_reference_own(core, source->block, source->bytes, source->length);
}

static bool is_referenced(const struct core *core, const struct leg_source *source)
{
    return source->length > core->config->limits.inline_bytes && (source->is_lent || source->block != NULL);
}

enum status batch_add(struct batch_map *map, struct batch *batch, struct leg *leg, const struct leg_source *source)
{
    struct block *block;
    if (__builtin_expect(is_referenced(map->core, source), 0)) {
        block = make_reference(map->core, source);
        if (block == NULL)
            return STATUS_NO_MEMORY;
        push_block(batch, block);
        leg->offset = 0;
    } else {
        block = chunk_for(map, batch, source->length);
        if (block == NULL)
            return STATUS_NO_MEMORY;
        leg->offset = block->length;
        memcpy(block->data + block->length, source->bytes, source->length);
        block->length += source->length;
    }
    leg->bytes = block_ref(block);
    leg->length = source->length;
    push_leg(map, batch, leg, source->length);
    return STATUS_OK;
}

void batch_extend(struct batch *batch, const struct leg_source *source)
{
    struct block *chunk = batch->chain_tail;
    ZG_CHECK(batch->legs.count > 0 && source->length <= block_capacity(chunk) - chunk->length);
    memcpy(chunk->data + chunk->length, source->bytes, source->length);
    chunk->length += source->length;
    batch->bytes += source->length;
    batch->legs.count++;
}

enum status batch_add_asking(struct batch_map *map, struct batch *batch, struct leg *asking)
{
    struct leg_source source = {.bytes = (const uint8_t *)asking_command, .length = sizeof(asking_command) - 1};
    asking->action = LEG_DISCARD;
    return batch_add(map, batch, asking, &source);
}

const uint8_t *leg_bytes(const struct leg *leg)
{
    if ((leg->bytes->flags & SEND_REFERENCE) != 0) {
        uint32_t length;
        return send_block_bytes(leg->bytes, &length);
    }
    return leg->bytes->data + leg->offset;
}

enum status leg_keep(struct core *core, struct leg *leg, const struct leg_source *source)
{
    struct block *block;
    if (is_referenced(core, source)) {
        block = make_reference(core, source);
        if (block == NULL)
            return STATUS_NO_MEMORY;
    } else {
        block = arena_get(core->arena, source->length);
        if (block == NULL)
            return STATUS_NO_MEMORY;
        memcpy(block->data, source->bytes, source->length);
        block->length = source->length;
    }
    leg->bytes = block;
    leg->offset = 0;
    leg->length = source->length;
    return STATUS_OK;
}

void batch_flush_one(struct batch *batch, batch_flush_fn flush, void *context)
{
    if (batch->legs.count == 0)
        return;
    struct leg_list legs = batch->legs;
    struct block *chain = batch->chain;
    list_remove(&batch->dirty);
    memset(&batch->legs, 0, sizeof(batch->legs));
    batch->chain = NULL;
    batch->chain_tail = NULL;
    batch->bytes = 0;
    batch->idle_ticks = 0;
    flush(context, batch->name, &legs, chain);
}

void batch_map_sweep(struct batch_map *map, uint32_t idle_ticks_max)
{
    bool any = false;
    for (uint32_t i = 0; i <= map->mask; i++)
        if (map->batches[i].name != 0 && map->batches[i].legs.count == 0 && ++map->batches[i].idle_ticks > idle_ticks_max)
            any = true;
    if (!any || !list_is_empty(&map->dirty))
        return;
    struct batch *old = map->batches;
    map->batches = alloc_zeroed(((size_t)map->mask + 1) * sizeof(*map->batches));
    map->used = 0;
    map->last = NULL;
    for (uint32_t i = 0; i <= map->mask; i++) {
        if (old[i].name == 0 || old[i].idle_ticks > idle_ticks_max)
            continue;
        struct batch *batch = batch_map_get(map, old[i].name);
        batch->idle_ticks = old[i].idle_ticks;
    }
    alloc_free(old);
}
