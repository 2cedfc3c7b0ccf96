/*
 * A stream of replies scanned whole, scanned in pieces and read by the cursor, which is written apart: all three must find the same ends, and what
 * one refuses the others refuse. The first byte seeds the cuts, the rest is the stream.
 */
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/rng.h"
#include "net/resp_read.h"
#include "net/resp_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_bytes);

/* The reply from data on in memory of its own size, in pieces. Returns the result; *bytes is what it took. */
static enum resp_result scan_pieces(struct rng *rng, struct resp_reply_state *state, const uint8_t *data, uint32_t length, uint32_t *bytes)
{
    uint32_t at = 0;
    uint64_t needed = 0;
    for (;;) {
        uint32_t piece = length - at > 0 ? 1 + rng_below(rng, rng_below(rng, 4) > 0 ? 8 : 600) % (length - at) : 0;
        uint8_t *copy = alloc_zeroed(piece + 1);
        memcpy(copy + 1, data + at, piece);
        uint32_t consumed;
        enum resp_result result = resp_scan_reply(state, copy + 1, piece, &consumed);
        alloc_free(copy);
        at += consumed;
        *bytes = at;
        if (result != RESP_MORE)
            return result;
        ZG_CHECK(consumed == piece && state->scanned == at && state->needed > at && state->needed >= needed);
        needed = state->needed;
        if (at == length)
            return RESP_MORE;
    }
}

/* Reads value by value, with a count as only bound. */
static bool walk(struct resp_cursor *cursor)
{
    uint64_t left = 1;
    struct resp_value value;
    while (left > 0) {
        if (!resp_read_value(cursor, &value))
            return false;
        ZG_CHECK(value.bytes == NULL || (value.bytes >= cursor->data && value.bytes + value.length <= cursor->data + cursor->position));
        ZG_CHECK(!value.is_null || (value.bytes == NULL && value.integer == 0 && resp_value_elements(&value) == 0));
        left += resp_value_elements(&value);
        left--;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_bytes)
{
    if (input_bytes < 1 || input_bytes > 65536)
        return 0;
    struct rng rng = {.state = input[0]};
    const uint8_t *data = input + 1;
    uint32_t length = (uint32_t)input_bytes - 1;
    struct resp_reply_state whole = {0}, pieces = {0};
    enum resp_result result = RESP_DONE;
    while (result == RESP_DONE) {
        uint32_t consumed, consumed_pieces;
        result = resp_scan_reply(&whole, data, length, &consumed);
        ZG_CHECK(scan_pieces(&rng, &pieces, data, length, &consumed_pieces) == result);
        struct resp_cursor skipped, walked;
        resp_cursor_init(&skipped, data, length);
        resp_cursor_init(&walked, data, length);
        ZG_CHECK(resp_skip_value(&skipped) == (result == RESP_DONE) && walk(&walked) == (result == RESP_DONE));
        if (result == RESP_DONE) {
            ZG_CHECK(consumed > 0 && consumed == consumed_pieces && whole.type == pieces.type);
            ZG_CHECK(skipped.position == consumed && walked.position == consumed);
            data += consumed;
            length -= consumed;
        }
    }
    return 0;
}
