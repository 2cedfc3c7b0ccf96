/*
 * The texts of close_reason.def. Stateless.
 */
#include "net/close_reason.h"

#include "core/check.h"

static const struct {
    const char *text;
    bool is_error;
} reasons[CLOSE_REASON_COUNT] = {
#define CLOSE_REASON(name, text, is_error) [CLOSE_##name] = {text, is_error},
#include "net/close_reason.def"
#undef CLOSE_REASON
};

const char *close_reason_text(enum close_reason reason)
{
    ZG_CHECK(reason < CLOSE_REASON_COUNT);
    return reasons[reason].text;
}

bool close_reason_is_error(enum close_reason reason)
{
    ZG_CHECK(reason < CLOSE_REASON_COUNT);
    return reasons[reason].is_error;
}
