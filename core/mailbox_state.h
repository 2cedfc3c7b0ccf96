/*
 * What mailboxes are made of; for core/mailbox.c, core/mailbox_group.c and white-box tests only.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/core_set.h"
#include "core/loans.h"
#include "core/mailbox.h"
#include "core/spsc.h"

enum { MAILBOX_LINE_BYTES = 64 };

/* One direction between two cores. */
struct lane {
    struct spsc queue;
    /* Read for each message, written by mailbox_reset_peer only. */
    _Alignas(MAILBOX_LINE_BYTES) _Atomic uint16_t epoch;
};

/* What producers tell one consumer beside its lanes; one cache line, so that a publish moves one line beside the lane's. */
struct waker {
    _Alignas(MAILBOX_LINE_BYTES) _Atomic uint64_t pending[CORE_SET_WORDS]; /* lanes with news, by producer */
    _Atomic uint32_t sleeping;
};

/* Slots of one class which the consumer may not have released yet, oldest first. Slots are numbered by 64 bits: an entry may stay while the
 * lane's own indexes wrap. */
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
    _Alignas(MAILBOX_LINE_BYTES) struct lane *out;
    struct lane *in;
    struct msg *last;        /* reserved last and not lent with; NULL after a publish */
    struct msg *open_return; /* an unpublished RETURN that may have room */
    uint64_t last_slot;
    uint64_t reserved; /* slots reserved so far: the number of the next one */
    uint32_t credits_free;
    uint32_t credits_unsent; /* taken, request not reserved yet */
    uint32_t replies_owed;   /* requests taken from the peer and not replied to */
    struct slot_fifo returns;
    struct slot_fifo control;
    struct slot_loan *loans; /* ring [lane_slots] */
    uint32_t loans_first;
    uint32_t loans_count;
    uint32_t delayed_first; /* returns that wait for room: indexes into mailbox.delayed, 0 none */
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
    uint32_t next_from; /* whose lane is looked at first by the next poll */
    bool is_polling;
    struct arena *arena;
    mailbox_doorbell_fn doorbell;
    void *doorbell_context;
    struct core_set dirty;    /* lanes with reserved, unpublished messages */
    struct core_set lending;  /* lanes with entries in their ring of loans */
    struct core_set delaying; /* peers with returns that wait */
    struct core_set ready;    /* lanes taken from the waker and not seen empty since */
    struct peer *peers;
    struct loans loans;             /* until returned */
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

/* Drops one reference that a loan holds. */
void mailbox_drop_block(struct mailbox *mailbox, struct block *block);

/* Drops every loan to a peer, of both kinds. */
void mailbox_drop_loans(struct mailbox *mailbox, uint32_t peer);
