/*
 * Makes and unmakes the lanes between all cores and one mailbox per core; boot only. Each core's state is one piece of memory of its own.
 */
#include <stddef.h>
#include <stdint.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/mailbox.h"
#include "core/mailbox_state.h"

enum { LOANS_MAX_DEFAULT = 1 << 20, DELAYED_FIRST = 64 };

static void *align_line(void *memory)
{
    return (void *)(((uintptr_t)memory + MAILBOX_LINE_BYTES - 1) & ~(uintptr_t)(MAILBOX_LINE_BYTES - 1));
}

static size_t round_line(size_t bytes)
{
    return (bytes + MAILBOX_LINE_BYTES - 1) & ~(size_t)(MAILBOX_LINE_BYTES - 1);
}

/* Cuts the next `bytes` from a block of memory, at a cache line. */
static void *carve(uint8_t **cursor, size_t bytes)
{
    void *part = *cursor;
    *cursor += round_line(bytes);
    return part;
}

static struct mailbox *mailbox_create(struct mailbox_group *group, uint32_t id)
{
    size_t cores = group->cores_count;
    size_t peers_bytes = round_line(cores * sizeof(struct peer));
    size_t loans_bytes = round_line(group->lane_slots * sizeof(struct slot_loan));
    size_t returns_bytes = round_line(group->returns * sizeof(uint64_t));
    size_t control_bytes = round_line(group->control * sizeof(uint64_t));
    /* One piece of memory per core, so that no cache line of it is another core's. The pages come to be where the core touches them. */
    void *memory = alloc_zeroed(2 * MAILBOX_LINE_BYTES + round_line(sizeof(struct mailbox)) + peers_bytes + cores * (loans_bytes + returns_bytes + control_bytes));
    uint8_t *cursor = align_line(memory);
    struct mailbox *mailbox = carve(&cursor, sizeof(struct mailbox));
    mailbox->group = group;
    mailbox->memory = memory;
    mailbox->id = id;
    mailbox->cores_count = group->cores_count;
    mailbox->lane_slots = group->lane_slots;
    mailbox->peers = carve(&cursor, peers_bytes);
    for (uint32_t i = 0; i < group->cores_count; i++) {
        struct peer *peer = &mailbox->peers[i];
        peer->out = &group->lanes[id * cores + i];
        peer->in = &group->lanes[i * cores + id];
        peer->credits_free = group->credits;
        peer->returns = (struct slot_fifo){.slots = carve(&cursor, returns_bytes), .limit = group->returns};
        peer->control = (struct slot_fifo){.slots = carve(&cursor, control_bytes), .limit = group->control};
        peer->loans = carve(&cursor, loans_bytes);
    }
    loans_init(&mailbox->loans, group->cores_count, group->loans_max);
    mailbox->delayed_capacity = DELAYED_FIRST;
    mailbox->delayed_fresh = 1;
    mailbox->delayed = alloc_zeroed(DELAYED_FIRST * sizeof(mailbox->delayed[0]));
    return mailbox;
}

struct mailbox_group *mailbox_group_create(const struct mailbox_options *options)
{
    uint32_t cores = options->cores_count;
    uint32_t slots = options->lane_slots;
    ZG_CHECK(cores >= 2 && cores <= CORE_SET_MAX);
    ZG_CHECK(slots >= 64 && slots <= 4096 && (slots & (slots - 1)) == 0);
    ZG_CHECK(options->returns >= 1 && options->control >= 1);
    ZG_CHECK(options->returns + options->control <= slots - 2);

    size_t lanes_bytes = round_line((size_t)cores * cores * sizeof(struct lane));
    size_t wakers_bytes = round_line(cores * sizeof(struct waker));
    void *memory = alloc_zeroed(MAILBOX_LINE_BYTES + round_line(sizeof(struct mailbox_group)) + lanes_bytes + wakers_bytes + 2 * round_line(cores * sizeof(void *)));
    uint8_t *cursor = align_line(memory);
    struct mailbox_group *group = carve(&cursor, sizeof(struct mailbox_group));
    *group = (struct mailbox_group){
        .memory = memory,
        .cores_count = cores,
        .lane_slots = slots,
        .credits = (slots - options->returns - options->control) / 2,
        .returns = options->returns,
        .control = options->control,
        .loans_max = options->loans_max != 0 ? options->loans_max : LOANS_MAX_DEFAULT,
        .lanes = carve(&cursor, lanes_bytes),
        .wakers = carve(&cursor, wakers_bytes),
        .mailboxes = carve(&cursor, cores * sizeof(void *)),
        .arenas = carve(&cursor, cores * sizeof(void *)),
    };
    for (uint32_t from = 0; from < cores; from++) {
        for (uint32_t to = 0; to < cores; to++) {
            if (from != to)
                spsc_init(&group->lanes[from * cores + to].queue, slots);
        }
        group->mailboxes[from] = mailbox_create(group, from);
    }
    return group;
}

void mailbox_group_destroy(struct mailbox_group **group_pointer)
{
    struct mailbox_group *group = *group_pointer;
    *group_pointer = NULL;
    for (uint32_t id = 0; id < group->cores_count; id++) {
        struct mailbox *mailbox = group->mailboxes[id];
        for (uint32_t peer = 0; peer < group->cores_count; peer++)
            mailbox_drop_loans(mailbox, peer);
        ZG_CHECK(mailbox->stats.loans_out == 0);
        loans_fini(&mailbox->loans);
        alloc_free(mailbox->delayed);
        alloc_free(mailbox->memory);
    }
    for (uint32_t from = 0; from < group->cores_count; from++) {
        for (uint32_t to = 0; to < group->cores_count; to++) {
            if (from != to)
                spsc_fini(&group->lanes[from * group->cores_count + to].queue);
        }
    }
    alloc_free(group->memory);
}

struct mailbox *mailbox_of(struct mailbox_group *group, uint32_t core_id)
{
    ZG_CHECK(core_id < group->cores_count);
    return group->mailboxes[core_id];
}

void mailbox_attach(struct mailbox *mailbox, struct arena *arena, mailbox_doorbell_fn doorbell, void *context)
{
    ZG_CHECK(mailbox->stats.loans_out == 0);
    mailbox->arena = arena;
    mailbox->doorbell = doorbell;
    mailbox->doorbell_context = context;
    mailbox->group->arenas[mailbox->id] = arena;
}
