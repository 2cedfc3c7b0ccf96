/*
 * Addresses as users write them: "127.0.0.1:6379", "[::1]:6379", "node-1.example:6379". Nothing is resolved here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "core/config.h"
#include "core/status.h"

/* "HOST:PORT" or "[IPV6]:PORT", with allow_weight also followed by " weight=N" (1 .. 1000). The host is stored without brackets; weight is 1 where none is given.
 * On error STATUS_INVALID, *address is unchanged and `error` says what is wrong and what is allowed. */
enum status address_parse(const char *text, bool allow_weight, struct config_address *address, char *error, size_t error_bytes) ZG_NODISCARD;

/* What a listener accepts: an address as above or "unix:/PATH" (at most 107 bytes of path). */
enum status address_check_listener(const char *text, char *error, size_t error_bytes) ZG_NODISCARD;
