/*
 * One list of outcomes for the whole project, from status.def.
 */
#pragma once

#include <stdbool.h>

#include "core/check.h"

enum status {
#define STATUS(name, resp_text, retryable) STATUS_##name,
#include "core/status.def"
#undef STATUS
    STATUS_COUNT
};

/* "OK", "FULL", ...; static storage. */
const char *status_name(enum status status);

/* The error text a client reads, without '-' and CRLF; NULL where the status never reaches a client. Static storage. */
const char *status_resp_text(enum status status);

bool status_is_retryable(enum status status);
