/*
 * Names and client texts of the outcomes, made from status.def. Constant data; any thread may read.
 */
#include "core/status.h"

#include <stddef.h>

struct status_row {
    const char *name;
    const char *resp_text;
    bool is_retryable;
};

static const struct status_row rows[STATUS_COUNT] = {
#define STATUS(name, resp_text, retryable) [STATUS_##name] = {#name, resp_text, retryable},
#include "core/status.def"
#undef STATUS
};

static const struct status_row *status_row(enum status status)
{
    ZG_CHECK((unsigned)status < STATUS_COUNT);
    return &rows[status];
}

const char *status_name(enum status status)
{
    return status_row(status)->name;
}

const char *status_resp_text(enum status status)
{
    return status_row(status)->resp_text;
}

bool status_is_retryable(enum status status)
{
    return status_row(status)->is_retryable;
}
