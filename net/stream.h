/*
 * A large reply that goes on to its client piece by piece, while it is still arriving, so that it is nowhere whole. Only the reply of a client's oldest request can: others are assembled, until their turn comes.
 *
 *     pieces of a reply ──► assembled (net/link.c) ──► large, and its request is the oldest of a client of this core ──► streamed ──► whole: the request is answered
 *                                                                                                                          ├─► link lost: the client is closed, it has half a reply
 *                                                                                                                          └─► client left: the rest is read and dropped
 *
 * A bulk link on which nothing else waits is not read while its client has more than a window of unsent bytes. A link that others wait for is always read: what its client does not take counts against the
 * client's limits, and beyond those the client is closed. A streamed request has no time-out any more: its link has (link_stall).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct link;
struct net;
struct request;

/* The reply of the link's oldest leg is in the middle. True: it is streamed from now on; what was assembled of it has gone on. Where nobody waits for it any more its bytes are dropped from now on. The link may be closed by this. */
bool stream_begin(struct net *net, struct link *link);

/* The next bytes of a streamed reply, or the last. */
void stream_piece(struct net *net, struct link *link, const uint8_t *bytes, uint32_t length, bool is_last);

/* The link is read again if a stream had stopped that. */
void stream_resume(struct net *net, struct link *link);

/* The link is being lost in the middle of a streamed reply, if of any. */
void stream_lost(struct net *net, struct link *link);
