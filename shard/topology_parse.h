/*
 * Reads what a cluster node answers to CLUSTER SHARDS (Redis 7 and later), CLUSTER SLOTS (any) and CLUSTER INFO, in RESP2 or RESP3, into a topology_view.
 * Source: the command reference of Redis 7 and the replies of Redis 7.0 and Valkey 8.
 */
#pragma once

#include <stdint.h>

#include "core/status.h"
#include "shard/topology_view.h"

/*
 * Replaces the contents of `view` (its current_epoch too, by 0) by one whole reply of `length` bytes. asked_host (1 .. 255 bytes) is where the question was sent: a node whose
 * endpoint is null or empty gets it, and so does one whose endpoint is "?" (names preferred, none set) where the reply has no IP address either; host_is_assumed then says so.
 * Ports are the plain ones; where a node has only a TLS port, that. A node without a port is listed as failed. Fields and elements that are not known are passed over.
 * STATUS_INVALID: an error reply, a malformed one, bytes behind it, or contents that contradict themselves (a slot or a node in two shards). STATUS_FULL: more than TOPOLOGY_NODES_MAX
 * nodes or TOPOLOGY_SHARDS_MAX shards. After an error `view` is empty.
 */
enum status topology_parse_shards(struct topology_view *view, const uint8_t *reply, uint32_t length, const char *asked_host) ZG_NODISCARD;
enum status topology_parse_slots(struct topology_view *view, const uint8_t *reply, uint32_t length, const char *asked_host) ZG_NODISCARD;

/* cluster_current_epoch of a reply to CLUSTER INFO; 0 where it has none. */
uint64_t topology_parse_epoch(const uint8_t *reply, uint32_t length);
