/*
 * Consistent hashing over a list of servers, as twemproxy's default pools place keys: 160 points per server and weight from MD5, keys hashed by fnv1a_64.
 */
#pragma once

#include <stdint.h>

#include "core/config.h"

struct ketama;

/* Points for `count` servers (1 .. 16,384), named "host:port" ("host" where the port is 11211, as twemproxy names them). */
struct ketama *ketama_create(const struct config_address *servers, uint32_t count);
/* Another one alike. */
struct ketama *ketama_copy(const struct ketama *ketama);
void ketama_destroy(struct ketama **ketama);

/* The server (place in the list) for a key. */
uint32_t ketama_server(const struct ketama *ketama, const uint8_t *key, uint32_t length);
