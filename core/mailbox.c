/*
 * The lanes between all cores and one mailbox per core. A mailbox is used by its own core's thread alone; what cores share is in struct lane and struct waker, and every
 * access to those is an atomic of core/spsc or of this file.
 *
 * Why nothing overflows. A slot of the lane A -> B is in use from mailbox_reserve until B has released it.
 *   requests  at most `credits`: a credit comes back with the reply, and B released the request's slot before it published the reply.
 *   replies   at most `credits`: each answers a credit of the lane B -> A, and B released the last reply's slot before it published the request that reuses the credit.
 *   returns, control: counted here (struct slot_fifo): used until the consumer's index has passed them.
 * Both arguments need that a core publishes only after it released what it took: mailbox_publish is refused inside a handler.
 *
 * Why no wake-up is lost. All of these are seq_cst, so they have one order:
 *   producer: tail = new; pending |= lane (unless it reads it as set); if sleeping then exchange it to 0 and ring.
 *   consumer: takes `pending` (exchange with 0), then reads the tails of those lanes.
 *   sleeper:  sleeping = 1; reads pending; sleeps only where it is 0.
 * A producer that reads its bit as set does so before the consumer clears it, so the consumer's read of the tail comes later still and sees the message. A sleeper that reads
 * pending as 0 does so before the producer sets it, so the producer's read of `sleeping` sees 1.
 */
#include "core/mailbox.h"

#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/loans.h"

enum {
    CORES_MAX = 128,
    SET_WORDS = CORES_MAX / 64,
    LINE_BYTES = 64,
    LANE_BATCH = 32, /* messages taken from one lane before the next lane has its turn */
    LOANS_MAX_DEFAULT = 1 << 20,
    DELAYED_FIRST = 64,
    RETURNS_PER_MESSAGE = 6 /* one in `offset`, five in the body */
};

/* A set of peers. */
struct core_set {
    uint64_t words[SET_WORDS];
};

/* One direction between two cores. */
struct lane {
    struct spsc queue;
    /* Read for each message, written by mailbox_reset_peer only. */
    _Alignas(LINE_BYTES) _Atomic uint16_t epoch;
};

/* What producers tell one consumer beside its lanes; one cache line, so that a publish moves one line beside the lane's. */
struct waker {
    _Alignas(LINE_BYTES) _Atomic uint64_t pending[SET_WORDS]; /* lanes with news, by producer */
    _Atomic uint32_t sleeping;
};

/* Slots of one class which the consumer may not have released yet, oldest first. Slots are numbered by 64 bits: an entry may stay while the lane's own indexes wrap. */
struct slot_fifo {
    uint64_t *slots; /* [limit] */
    uint32_t limit;
    uint32_t first;
    uint32_t count;
};

/* A block that is lent until the consumer's index has passed the slot. */
struct slot_loan {
    struct block *block;
    uint64_t slot;
};

/* What a core keeps about one other core. */
struct peer {
    _Alignas(LINE_BYTES) struct lane *out;
    struct lane *in;
    struct msg *last;         /* reserved last and not lent with; NULL after a publish */
    struct msg *open_return;  /* an unpublished RETURN that may have room */
    uint64_t last_slot;
    uint64_t reserved;        /* slots reserved so far: the number of the next one */
    uint32_t credits_free;
    uint32_t credits_unsent;  /* taken, request not reserved yet */
    uint32_t replies_owed;    /* requests taken from the peer and not replied to */
    struct slot_fifo returns;
    struct slot_fifo control;
    struct slot_loan *loans;  /* ring [lane_slots] */
    uint32_t loans_first;
    uint32_t loans_count;
    uint32_t delayed_first;   /* returns that wait for room: indexes into mailbox.delayed, 0 none */
    uint32_t delayed_last;
};

struct delayed_return {
    uint64_t offset;
    uint32_t next;
};

struct mailbox {
    struct mailbox_group *group;
    void *memory;
    uint32_t id;
    uint32_t cores_count;
    uint32_t lane_slots;
    uint32_t next_from;        /* whose lane is looked at first by the next poll */
    bool is_polling;
    struct arena *arena;
    mailbox_doorbell_fn doorbell;
    void *doorbell_context;
    struct core_set dirty;     /* lanes with reserved, unpublished messages */
    struct core_set lending;   /* lanes with entries in their ring of loans */
    struct core_set delaying;  /* peers with returns that wait */
    struct core_set ready;     /* lanes taken from the waker and not seen empty since */
    struct peer *peers;
    struct loans loans;        /* until returned */
    struct delayed_return *delayed; /* [delayed_capacity], entry 0 not used */
    uint32_t delayed_capacity;
    uint32_t delayed_fresh;
    uint32_t delayed_free;
    struct mailbox_stats stats;
};

struct mailbox_group {
    void *memory;
    uint32_t cores_count;
    uint32_t lane_slots;
    uint32_t credits;
    uint32_t returns;
    uint32_t control;
    uint32_t loans_max;
    struct lane *lanes;         /* [cores][cores]: from, to; the diagonal is not used */
    struct waker *wakers;       /* [cores] */
    struct mailbox **mailboxes; /* [cores] */
    struct arena **arenas;      /* [cores], for reading only */
};

static void set_add(struct core_set *set, uint32_t core)
{
    set->words[core / 64] |= UINT64_C(1) << (core % 64);
}

static void set_remove(struct core_set *set, uint32_t core)
{
    set->words[core / 64] &= ~(UINT64_C(1) << (core % 64));
}

static bool set_is_empty(const struct core_set *set)
{
    return (set->words[0] | set->words[1]) == 0;
}
_Static_assert(SET_WORDS == 2, "set_is_empty and set_next know two words");

/* The first member at or after `core`, CORES_MAX where there is none. */
static uint32_t set_next(const struct core_set *set, uint32_t core)
{
    for (uint32_t word = core / 64; word < SET_WORDS; word++) {
        uint64_t bits = set->words[word];
        if (word == core / 64)
            bits &= UINT64_MAX << (core % 64);
        if (bits != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return CORES_MAX;
}

/* The number of the oldest slot that the consumer has not released; all before it are free. */
static uint64_t slots_consumed(struct peer *peer)
{
    struct spsc *queue = &peer->out->queue;
    return peer->reserved - (uint32_t)(queue->producer_tail - spsc_consumed(queue));
}

static struct peer *peer_of(struct mailbox *mailbox, uint32_t peer)
{
    ZG_CHECK(peer < mailbox->cores_count);
    ZG_CHECK(peer != mailbox->id);
    return &mailbox->peers[peer];
}

/* Making and unmaking. */

static void *align_line(void *memory)
{
    return (void *)(((uintptr_t)memory + LINE_BYTES - 1) & ~(uintptr_t)(LINE_BYTES - 1));
}

static size_t round_line(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) & ~(size_t)(LINE_BYTES - 1);
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
    void *memory = alloc_zeroed(2 * LINE_BYTES + round_line(sizeof(struct mailbox)) + peers_bytes + cores * (loans_bytes + returns_bytes + control_bytes));
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
    ZG_CHECK(cores >= 2 && cores <= CORES_MAX);
    ZG_CHECK(slots >= 64 && slots <= 4096 && (slots & (slots - 1)) == 0);
    ZG_CHECK(options->returns >= 1 && options->control >= 1);
    ZG_CHECK(options->returns + options->control <= slots - 2);

    size_t lanes_bytes = round_line((size_t)cores * cores * sizeof(struct lane));
    size_t wakers_bytes = round_line(cores * sizeof(struct waker));
    void *memory = alloc_zeroed(LINE_BYTES + round_line(sizeof(struct mailbox_group)) + lanes_bytes + wakers_bytes + 2 * round_line(cores * sizeof(void *)));
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

static void drop_block(struct mailbox *mailbox, struct block *block)
{
    ZG_CHECK(mailbox->stats.loans_out > 0);
    mailbox->stats.loans_out--;
    arena_put(mailbox->arena, &block);
}

/* Drops every loan to a peer, of both kinds. */
static void drop_loans(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = &mailbox->peers[peer];
    struct block *block;
    while (p->loans_count > 0) {
        drop_block(mailbox, p->loans[p->loans_first].block);
        p->loans_first = (p->loans_first + 1) & (mailbox->lane_slots - 1);
        p->loans_count--;
    }
    set_remove(&mailbox->lending, peer);
    while ((block = loans_remove_any(&mailbox->loans, peer)) != NULL)
        drop_block(mailbox, block);
}

void mailbox_group_destroy(struct mailbox_group **group_pointer)
{
    struct mailbox_group *group = *group_pointer;
    *group_pointer = NULL;
    for (uint32_t id = 0; id < group->cores_count; id++) {
        struct mailbox *mailbox = group->mailboxes[id];
        for (uint32_t peer = 0; peer < group->cores_count; peer++)
            drop_loans(mailbox, peer);
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

/* Sending. */

bool mailbox_credit_take(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = peer_of(mailbox, peer);
    if (p->credits_free == 0)
        return false;
    p->credits_free--;
    p->credits_unsent++;
    return true;
}

uint32_t mailbox_credits_free(const struct mailbox *mailbox, uint32_t peer)
{
    ZG_CHECK(peer < mailbox->cores_count);
    ZG_CHECK(peer != mailbox->id);
    return mailbox->peers[peer].credits_free;
}

/* Looks at the consumer's index only where the reserve seems used up. */
static bool slot_fifo_has_room(struct slot_fifo *fifo, struct peer *peer)
{
    if (fifo->count < fifo->limit)
        return true;
    uint64_t consumed = slots_consumed(peer);
    while (fifo->count > 0 && fifo->slots[fifo->first] < consumed) {
        fifo->first = fifo->first + 1 == fifo->limit ? 0 : fifo->first + 1;
        fifo->count--;
    }
    return fifo->count < fifo->limit;
}

static void slot_fifo_push(struct slot_fifo *fifo, uint64_t slot)
{
    ZG_CHECK(fifo->count < fifo->limit);
    uint32_t index = fifo->first + fifo->count;
    fifo->slots[index >= fifo->limit ? index - fifo->limit : index] = slot;
    fifo->count++;
}

/* The classes' accounting promises that there is a slot. */
static struct msg *reserve_slot(struct mailbox *mailbox, uint32_t peer, enum msg_kind kind)
{
    struct peer *p = &mailbox->peers[peer];
    struct msg *msg = spsc_reserve(&p->out->queue);
    ZG_CHECK(msg != NULL);
    p->reserved++;
    *msg = (struct msg){.kind = (uint8_t)kind, .epoch = atomic_load_explicit(&p->out->epoch, memory_order_relaxed)};
    set_add(&mailbox->dirty, peer);
    return msg;
}

struct msg *mailbox_reserve(struct mailbox *mailbox, uint32_t peer, enum msg_class class)
{
    struct peer *p = peer_of(mailbox, peer);
    enum msg_kind kind = MSG_NONE;
    switch (class) {
    case CLASS_REQUEST:
        ZG_CHECK(p->credits_unsent > 0);
        p->credits_unsent--;
        kind = MSG_LEG;
        break;
    case CLASS_REPLY:
        ZG_CHECK(p->replies_owed > 0);
        p->replies_owed--;
        kind = MSG_REPLY;
        break;
    case CLASS_CONTROL:
        if (!slot_fifo_has_room(&p->control, p))
            return NULL;
        slot_fifo_push(&p->control, p->reserved);
        break;
    case CLASS_RETURN:
    default:
        ZG_UNREACHABLE();
    }
    p->last_slot = p->reserved;
    p->last = reserve_slot(mailbox, peer, kind);
    return p->last;
}

/* Drops the loans whose messages the peer has consumed. */
static uint32_t reclaim_from(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = &mailbox->peers[peer];
    uint64_t consumed = slots_consumed(p);
    uint32_t count = 0;
    while (p->loans_count > 0 && p->loans[p->loans_first].slot < consumed) {
        drop_block(mailbox, p->loans[p->loans_first].block);
        p->loans_first = (p->loans_first + 1) & (mailbox->lane_slots - 1);
        p->loans_count--;
        count++;
    }
    if (p->loans_count == 0)
        set_remove(&mailbox->lending, peer);
    return count;
}

void mailbox_lend(struct mailbox *mailbox, uint32_t peer, struct msg *msg, struct block *block, const uint8_t *data, uint32_t length, bool until_returned)
{
    struct peer *p = peer_of(mailbox, peer);
    ZG_CHECK(msg == p->last);
    ZG_CHECK(data >= block->data && data <= block->data + block_capacity(block));
    ZG_CHECK(length <= (size_t)(block->data + block_capacity(block) - data));
    p->last = NULL;
    if (length == 0)
        return;
    msg->length = length;
    msg->offset = arena_offset_of(mailbox->arena, data);
    mailbox->stats.loans_out++;
    if (until_returned) {
        msg->flags |= MSG_LENT;
        loans_add(&mailbox->loans, peer, msg->offset, block_ref(block));
        return;
    }
    /* One loan a slot at most, so the ring has room once the slots that were consumed and not reclaimed yet are. */
    if (p->loans_count == mailbox->lane_slots)
        (void)reclaim_from(mailbox, peer);
    ZG_CHECK(p->loans_count < mailbox->lane_slots);
    p->loans[(p->loans_first + p->loans_count) & (mailbox->lane_slots - 1)] = (struct slot_loan){.block = block_ref(block), .slot = p->last_slot};
    p->loans_count++;
    set_add(&mailbox->lending, peer);
}

/* Puts a return into an unpublished RETURN or a new one; false where the reserve is used up. `length` counts the offsets. */
static bool send_return(struct mailbox *mailbox, uint32_t peer, uint64_t offset)
{
    struct peer *p = &mailbox->peers[peer];
    struct msg *msg = p->open_return;
    if (msg != NULL && msg->length < RETURNS_PER_MESSAGE) {
        memcpy(msg->body + (msg->length - 1) * sizeof(offset), &offset, sizeof(offset));
        msg->length++;
        return true;
    }
    if (!slot_fifo_has_room(&p->returns, p))
        return false;
    slot_fifo_push(&p->returns, p->reserved);
    msg = reserve_slot(mailbox, peer, MSG_RETURN);
    msg->offset = offset;
    msg->length = 1;
    p->open_return = msg;
    return true;
}
_Static_assert((RETURNS_PER_MESSAGE - 1) * sizeof(uint64_t) <= sizeof(((struct msg *)0)->body), "the offsets fit the body");

static void delay_return(struct mailbox *mailbox, uint32_t peer, uint64_t offset)
{
    struct peer *p = &mailbox->peers[peer];
    uint32_t index = mailbox->delayed_free;
    if (index != 0) {
        mailbox->delayed_free = mailbox->delayed[index].next;
    } else {
        if (mailbox->delayed_fresh == mailbox->delayed_capacity) {
            ZG_CHECK(mailbox->delayed_capacity <= mailbox->group->loans_max);
            mailbox->delayed_capacity *= 2;
            mailbox->delayed = alloc_resize(mailbox->delayed, mailbox->delayed_capacity * sizeof(mailbox->delayed[0]));
        }
        index = mailbox->delayed_fresh++;
    }
    mailbox->delayed[index] = (struct delayed_return){.offset = offset};
    if (p->delayed_first == 0)
        p->delayed_first = index;
    else
        mailbox->delayed[p->delayed_last].next = index;
    p->delayed_last = index;
    set_add(&mailbox->delaying, peer);
    mailbox->stats.returns_delayed++;
}

/* Removes the oldest delayed return of a peer that has one. */
static void delayed_remove_first(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = &mailbox->peers[peer];
    uint32_t index = p->delayed_first;
    ZG_CHECK(index != 0);
    p->delayed_first = mailbox->delayed[index].next;
    mailbox->delayed[index].next = mailbox->delayed_free;
    mailbox->delayed_free = index;
    if (p->delayed_first == 0)
        set_remove(&mailbox->delaying, peer);
}

void mailbox_return(struct mailbox *mailbox, uint32_t peer, uint64_t offset)
{
    (void)peer_of(mailbox, peer);
    if (!send_return(mailbox, peer, offset))
        delay_return(mailbox, peer, offset);
}

static void send_delayed(struct mailbox *mailbox)
{
    for (uint32_t peer = set_next(&mailbox->delaying, 0); peer < CORES_MAX; peer = set_next(&mailbox->delaying, peer + 1)) {
        struct peer *p = &mailbox->peers[peer];
        while (p->delayed_first != 0 && send_return(mailbox, peer, mailbox->delayed[p->delayed_first].offset))
            delayed_remove_first(mailbox, peer);
    }
}

/* Publishes one lane; true where the peer has to be rung. */
static bool publish_to(struct mailbox *mailbox, uint32_t peer, uint32_t *published)
{
    struct peer *p = &mailbox->peers[peer];
    struct waker *waker = &mailbox->group->wakers[peer];
    _Atomic uint64_t *pending = &waker->pending[mailbox->id / 64];
    uint64_t bit = UINT64_C(1) << (mailbox->id % 64);
    uint32_t count = spsc_publish(&p->out->queue);
    p->last = NULL;
    p->open_return = NULL;
    if (count == 0)
        return false;
    *published += count;
    if ((atomic_load_explicit(pending, memory_order_seq_cst) & bit) == 0)
        (void)atomic_fetch_or_explicit(pending, bit, memory_order_seq_cst);
    return atomic_load_explicit(&waker->sleeping, memory_order_seq_cst) != 0 && atomic_exchange_explicit(&waker->sleeping, 0, memory_order_seq_cst) != 0;
}

uint32_t mailbox_publish(struct mailbox *mailbox)
{
    ZG_CHECK(!mailbox->is_polling);
    struct core_set to_ring = {0};
    uint32_t published = 0;
    if (!set_is_empty(&mailbox->delaying))
        send_delayed(mailbox);
    for (uint32_t peer = set_next(&mailbox->dirty, 0); peer < CORES_MAX; peer = set_next(&mailbox->dirty, peer + 1)) {
        if (publish_to(mailbox, peer, &published))
            set_add(&to_ring, peer);
    }
    mailbox->dirty = (struct core_set){0};
    mailbox->stats.published += published;
    /* A doorbell may be a system call, so it waits until everybody has its messages. */
    for (uint32_t peer = set_next(&to_ring, 0); peer < CORES_MAX; peer = set_next(&to_ring, peer + 1)) {
        if (mailbox->doorbell == NULL)
            continue;
        mailbox->stats.doorbells++;
        mailbox->doorbell(mailbox->doorbell_context, peer);
    }
    return published;
}

/* Receiving. */

static void take_returns(struct mailbox *mailbox, uint32_t from, const struct msg *msg)
{
    ZG_CHECK(msg->length >= 1 && msg->length <= RETURNS_PER_MESSAGE);
    for (uint32_t i = 0; i < msg->length; i++) {
        uint64_t offset = msg->offset;
        if (i > 0)
            memcpy(&offset, msg->body + (i - 1) * sizeof(offset), sizeof(offset));
        struct block *block = loans_remove(&mailbox->loans, from, offset);
        if (block == NULL)
            mailbox->stats.returns_unknown++;
        else
            drop_block(mailbox, block);
    }
}

static void take_message(struct mailbox *mailbox, uint32_t from, const struct msg *msg, mailbox_handler_fn handler, void *context)
{
    struct peer *p = &mailbox->peers[from];
    ZG_CHECK(msg->kind > MSG_NONE && msg->kind < MSG_KIND_COUNT);
    if (msg->kind == MSG_RETURN) {
        take_returns(mailbox, from, msg);
        return;
    }
    if (msg->kind == MSG_REPLY) {
        p->credits_free++;
        ZG_CHECK(p->credits_free + p->credits_unsent <= mailbox->group->credits);
    } else if (msg->kind == MSG_LEG) {
        p->replies_owed++;
        ZG_CHECK(p->replies_owed <= mailbox->group->credits);
    }
    handler(context, from, msg, msg->length > 0 ? arena_at(mailbox->group->arenas[from], msg->offset) : NULL);
}

/* Takes up to `messages_max` messages of one lane and gives their slots back. Fewer means that the lane was seen empty. */
static uint32_t poll_lane(struct mailbox *mailbox, uint32_t from, uint32_t messages_max, mailbox_handler_fn handler, void *context)
{
    struct lane *lane = mailbox->peers[from].in;
    uint16_t epoch = atomic_load_explicit(&lane->epoch, memory_order_relaxed);
    uint32_t count = 0;
    const struct msg *msg;
    while (count < messages_max && (msg = spsc_take(&lane->queue)) != NULL) {
        count++;
        if (msg->epoch == epoch)
            take_message(mailbox, from, msg, handler, context);
        else
            mailbox->stats.stale_epoch++;
    }
    if (count > 0)
        spsc_release(&lane->queue);
    return count;
}

static void take_pending(struct mailbox *mailbox)
{
    struct waker *waker = &mailbox->group->wakers[mailbox->id];
    for (uint32_t word = 0; word < SET_WORDS; word++) {
        /* An idle core only reads here, so the line stays in its cache until somebody has news. */
        if (atomic_load_explicit(&waker->pending[word], memory_order_relaxed) != 0)
            mailbox->ready.words[word] |= atomic_exchange_explicit(&waker->pending[word], 0, memory_order_seq_cst);
    }
}

uint32_t mailbox_poll(struct mailbox *mailbox, uint32_t messages_max, mailbox_handler_fn handler, void *context)
{
    ZG_CHECK(!mailbox->is_polling);
    uint32_t taken = 0;
    take_pending(mailbox);
    if (set_is_empty(&mailbox->ready))
        return 0;
    mailbox->is_polling = true;
    while (taken < messages_max && !set_is_empty(&mailbox->ready)) {
        uint32_t from = set_next(&mailbox->ready, mailbox->next_from);
        if (from == CORES_MAX)
            from = set_next(&mailbox->ready, 0);
        uint32_t batch = messages_max - taken < LANE_BATCH ? messages_max - taken : LANE_BATCH;
        uint32_t count = poll_lane(mailbox, from, batch, handler, context);
        if (count < batch)
            set_remove(&mailbox->ready, from);
        taken += count;
        mailbox->next_from = from + 1 == CORES_MAX ? 0 : from + 1;
    }
    mailbox->is_polling = false;
    mailbox->stats.taken += taken;
    return taken;
}

uint32_t mailbox_reclaim(struct mailbox *mailbox)
{
    uint32_t count = 0;
    for (uint32_t peer = set_next(&mailbox->lending, 0); peer < CORES_MAX; peer = set_next(&mailbox->lending, peer + 1))
        count += reclaim_from(mailbox, peer);
    return count;
}

/* Sleeping. */

static bool has_sendable_return(struct mailbox *mailbox)
{
    for (uint32_t peer = set_next(&mailbox->delaying, 0); peer < CORES_MAX; peer = set_next(&mailbox->delaying, peer + 1)) {
        struct peer *p = &mailbox->peers[peer];
        if (slot_fifo_has_room(&p->returns, p))
            return true;
    }
    return false;
}

bool mailbox_sleep_begin(struct mailbox *mailbox)
{
    struct waker *waker = &mailbox->group->wakers[mailbox->id];
    if (!set_is_empty(&mailbox->dirty) || !set_is_empty(&mailbox->ready) || has_sendable_return(mailbox))
        return false;
    (void)atomic_exchange_explicit(&waker->sleeping, 1, memory_order_seq_cst);
    for (uint32_t word = 0; word < SET_WORDS; word++) {
        if (atomic_load_explicit(&waker->pending[word], memory_order_seq_cst) != 0) {
            mailbox_sleep_end(mailbox);
            return false;
        }
    }
    return true;
}

void mailbox_sleep_end(struct mailbox *mailbox)
{
    struct waker *waker = &mailbox->group->wakers[mailbox->id];
    /* A producer usually has cleared it already; then the line is left alone. */
    if (atomic_load_explicit(&waker->sleeping, memory_order_relaxed) != 0)
        atomic_store_explicit(&waker->sleeping, 0, memory_order_relaxed);
}

struct mailbox_stats mailbox_stats(const struct mailbox *mailbox)
{
    return mailbox->stats;
}

/* Replacing a peer. */

static void raise_epoch(struct lane *lane)
{
    atomic_store_explicit(&lane->epoch, (uint16_t)(atomic_load_explicit(&lane->epoch, memory_order_relaxed) + 1), memory_order_relaxed);
}

/* Consumes everything that is published in a lane; returns how many messages. */
static uint32_t discard(struct lane *lane)
{
    uint32_t count = 0;
    while (spsc_take(&lane->queue) != NULL)
        count++;
    spsc_release(&lane->queue);
    return count;
}

void mailbox_reset_peer(struct mailbox *mailbox, uint32_t peer)
{
    struct peer *p = peer_of(mailbox, peer);
    ZG_CHECK(!mailbox->is_polling);
    raise_epoch(p->out);
    raise_epoch(p->in);
    /* The dead side consumes no more, so its lane is emptied for it: the new one starts with the whole capacity. */
    spsc_rewind(&p->out->queue);
    (void)discard(p->out);
    mailbox->stats.stale_epoch += discard(p->in);
    drop_loans(mailbox, peer);
    while (p->delayed_first != 0)
        delayed_remove_first(mailbox, peer);
    set_remove(&mailbox->dirty, peer);
    set_remove(&mailbox->ready, peer);
    p->last = NULL;
    p->open_return = NULL;
    p->credits_free = mailbox->group->credits;
    p->credits_unsent = 0;
    p->replies_owed = 0;
    p->returns.count = 0;
    p->control.count = 0;
}
