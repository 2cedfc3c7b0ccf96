/*
 * What net/ keeps for one core: pools, scanners, lists, and the tables through which it calls upward. Created by the composition root.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "core/pool.h"
#include "net/account.h"
#include "net/command_table.h"
#include "net/conn.h"
#include "net/request.h"
#include "net/resp_scan.h"
#include "net/session.h"

struct client;
struct link;
struct link_pool;
struct listener;

enum dispatch_result {
    DISPATCH_TAKEN,  /* the request is answered or on its way */
    DISPATCH_DRAIN,  /* the connection's earlier requests must be answered first: offer the command again then */
    DISPATCH_CREDIT, /* no credit for the lane to the owner: the client has been put in that lane's list and will be woken */
};

/* A command that has wholly arrived. Bytes are borrowed for the call. */
struct dispatch_command {
    const struct command *command;
    struct command_args args;
    const uint8_t *bytes;
    uint32_t length;
    struct block *block; /* holds the bytes: reference it to lend or keep them; NULL for bytes of the core's scratch */
};

/* Upward calls, filled in core/boot: the dispatcher of a data core, or the poller of the housekeeping core. */
struct net_ops {
    enum dispatch_result (*dispatch)(struct net *net, struct client *client, const struct dispatch_command *command);
    /* The reply of the link's oldest leg, which is out of the FIFO now. */
    void (*leg_reply)(struct net *net, struct link *link, struct leg *leg, const struct reply *reply);
    /* The reply of the link's oldest leg is large and goes on while it arrives: the leg needs its bytes and its place in the order of its key no more. Called at the beginning with the size known by
     * then, and at the end. */
    void (*leg_streams)(struct net *net, struct leg *leg, uint64_t reply_bytes);
    /* The link is lost; called for each of its legs, oldest first. was_sent: a backend may have seen it. */
    void (*leg_lost)(struct net *net, struct link *link, struct leg *leg, bool was_sent);
    /* The link has answered more (after a batch of replies), become ready, or gone. */
    void (*link_progress)(struct net *net, struct link *link);
    void (*link_gone)(struct net *net, struct link *link);
    /* The link's oldest leg is a run: its commands get legs and requests of their own, in its place. False: its request is answered or its client gone, it stays as it is. */
    bool (*divide_run)(struct net *net, struct link *link);
    /* The link is about to be lost: every run on it is divided. */
    void (*divide_runs)(struct net *net, struct link *link);
    /* A split request's part is done; true where the whole is complete and `*whole` is its reply (valid until the next call). */
    bool (*merge_part)(struct net *net, struct request *request, uint16_t part, const struct reply *reply, struct reply *whole);
    void (*split_free)(struct net *net, struct request *request);
};

enum { NET_SEND_SLOTS = 1024 };

/* One sendmsg in preparation: the kernel has copied it when the submission is taken. */
struct send_slot {
    struct msghdr header;
    struct iovec pieces[SEND_IOVECS_MAX];
};

struct net {
    struct core *core;
    const struct net_ops *ops;
    void *owner; /* the dispatcher or the poller */
    struct session_env session_env;
    struct request_ops request_ops;
    struct pool clients;
    struct pool links;
    struct pool requests;
    struct pool legs;
    uint32_t own_legs_max;        /* the rest of the pool is for what arrives from other cores */
    struct list_node dirty;       /* connections with bytes to send */
    struct list_node released;    /* connections whose close has completed */
    struct list_node deadlines;   /* requests without an answer, oldest first */
    struct list_node clients_all; /* every client; account.c turns the list */
    struct account account;
    struct resp_command_scanner scanner;
    struct resp_writer writer;        /* scratch for the gateway's own replies */
    struct resp_writer inline_writer; /* an inline command in its RESP form */
    struct send_slot *send_slots;     /* NET_SEND_SLOTS; used in turn, submitted when all are used */
    uint32_t send_slots_used;
    uint32_t latency_us; /* of latency_count requests not yet in the histogram */
    uint32_t latency_count;
    const struct command *last_command; /* found last, and the name it was asked by: pipelines repeat themselves */
    uint8_t last_name[COMMAND_NAME_MAX];
    uint32_t last_name_length;
    struct client *current; /* whose command is being executed: for request_ops */
    bool is_silent;         /* the command being dispatched gets no reply (CLIENT REPLY) */
    uint64_t next_client_id;
    uint64_t next_link_key;
    struct link_pool *link_pool; /* set by link_pool_init */
    struct listener *listeners;
    uint32_t listeners_count;
    uint64_t held_until_ms; /* of listeners that were handed over: they accept from then on, whatever is known of the backends */
    uint64_t drain_began_ms;
    bool is_draining;
};

/* Creates core->net. clients_max 0: a core without clients. */
void net_open(struct core *core, const struct net_ops *ops, void *owner, uint32_t clients_max);
void net_close(struct core *core);

/* A leg for what this core begins itself: zeroed; NULL where its share of the pool is used up. One that arrives from another core has a credit, and takes its leg from the pool. */
struct leg *net_own_leg(struct net *net) ZG_NODISCARD;

/* How listener `index` presents itself. */
bool net_listener_presents_cluster(const struct net *net, uint16_t index);

/* The command table from now on; borrowed. */
void net_set_commands(struct net *net, const struct command_table *commands);

/* Flush hook: everything dirty is handed to the kernel. */
void net_flush(struct net *net);
/* Release hook: frees connections whose close has completed. */
void net_release(struct net *net);
