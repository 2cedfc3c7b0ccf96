/*
 * Why connections end: one list, from close_reason.def.
 */
#pragma once

#include <stdbool.h>

enum close_reason {
#define CLOSE_REASON(name, text, is_error) CLOSE_##name,
#include "net/close_reason.def"
#undef CLOSE_REASON
    CLOSE_REASON_COUNT
};

/* Static storage. */
const char *close_reason_text(enum close_reason reason);
bool close_reason_is_error(enum close_reason reason);
