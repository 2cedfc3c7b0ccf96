/*
 * Legs and replies between the cores of the dispatcher: what goes into a lane, what waits for one, and what comes out. Between dispatch.c and lane.c.
 */
#pragma once

#include "shard/dispatch.h"

/* Nobody waits for this lane, and it has a credit. */
bool lane_is_open(const struct dispatcher *dispatcher, uint32_t owner);

/* The client waits (PAUSE_CREDIT) until the lane has a credit. */
enum dispatch_result lane_wait(struct dispatcher *dispatcher, struct client *client, uint32_t owner);

/* Sends a leg as a message; a credit is there. `block` holds the bytes: lent until the consumer has copied them, above inline_bytes until it returns them. */
void lane_send_leg(struct dispatcher *dispatcher, uint32_t owner, const struct leg *leg, struct block *block, const uint8_t *bytes, uint32_t length);

/* Gives the lane's credits to who waits for them; true where some still wait. */
bool lane_serve_waiters(struct dispatcher *dispatcher, uint32_t peer);
