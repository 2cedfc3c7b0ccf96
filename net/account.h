/*
 * What the clients of a core hold, by client and by purpose, and what is done about it at limits.memory (core/memory.h decides).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/memory.h"
#include "core/pool.h"

struct client;
struct net;
struct request;

/* Of one core. Kept current by whoever changes it; bytes. */
struct account {
    uint64_t input;    /* input blocks of clients, by what was asked for (block->user) */
    uint64_t commands; /* commands in flight */
    uint64_t replies;  /* replies that wait for their turn */
    uint64_t output;   /* unsent bytes of clients */
    uint64_t limit;    /* limits.memory, or what stands for it */
    struct memory_state state;
    struct pool_handle largest; /* the client that held the most when it was looked at */
    uint32_t paused_count;      /* clients with PAUSE_MEMORY */
};

/* Large commands are arriving, which no request shows yet: account_tick should be called as often as under load. */
static inline bool account_is_watched(const struct account *account)
{
    return account->input >= 1024 * 1024;
}

/* All that the client holds. */
uint64_t account_client_bytes(const struct client *client);

/* The request's command is in flight; ended by account_request_left. */
void account_command(struct net *net, struct client *client, uint32_t bytes);
/* A reply is kept for the request until its turn, or no more. */
void account_reply_kept(struct net *net, struct client *client, uint32_t bytes);
void account_reply_left(struct net *net, struct client *client, uint32_t bytes);
/* The request leaves its client's FIFO. */
void account_request_left(struct net *net, struct client *client, const struct request *request);

/* Every few milliseconds: publishes, and pauses or closes. True: memory is used so far that it should be called often. */
bool account_tick(struct net *net);
