/*
 * A stream of commands scanned whole and in pieces must give the same commands. The first byte seeds the cuts, the rest is the stream.
 * A command that is not inline has one spelling only: writing its arguments must give its bytes back.
 */
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/rng.h"
#include "net/resp_scan.h"
#include "net/resp_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_bytes);

static const struct resp_limits limits = {.args_max = 1000, .bulk_max = 4096, .inline_max = 64, .request_max = 8192};

static void check_same(const struct resp_command_scanner *whole, const struct resp_command_scanner *pieces, const uint8_t *data)
{
    ZG_CHECK(whole->consumed == pieces->consumed && whole->args_count == pieces->args_count && whole->is_inline == pieces->is_inline);
    for (uint32_t i = 0; i < whole->args_count; i++) {
        ZG_CHECK(whole->args[i].offset == pieces->args[i].offset && whole->args[i].length == pieces->args[i].length);
        ZG_CHECK(memcmp(resp_arg_bytes(whole, data, i), resp_arg_bytes(pieces, data, i), whole->args[i].length) == 0);
    }
}

static void check_spelling(struct resp_writer *writer, const struct resp_command_scanner *scanner, const uint8_t *data)
{
    if (scanner->is_inline)
        return;
    resp_writer_reset(writer, 2);
    resp_write_command(writer, scanner, data);
    ZG_CHECK(writer->length == scanner->consumed && memcmp(writer->data, data, writer->length) == 0);
}

/* Copies to memory of exactly the size, so that AddressSanitizer sees every byte read beyond what has arrived. */
static enum resp_result scan_exact(struct resp_command_scanner *scanner, struct resp_command_state *state, const uint8_t *data, uint32_t length)
{
    uint8_t *copy = alloc_zeroed(length + 1);
    uint8_t *start = copy + 1;
    memcpy(start, data, length);
    enum resp_result result = resp_scan_command(scanner, state, start, length);
    alloc_free(copy);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_bytes)
{
    if (input_bytes < 1 || input_bytes > 65536)
        return 0;
    struct rng rng = {.state = input[0]};
    const uint8_t *data = input + 1;
    uint32_t length = (uint32_t)input_bytes - 1;
    struct resp_command_scanner whole, pieces;
    resp_command_scanner_init(&whole, &limits);
    resp_command_scanner_init(&pieces, &limits);
    struct resp_writer writer;
    resp_writer_init(&writer, 2);
    uint32_t start = 0, arrived = 0;
    struct resp_command_state state = {0};
    for (;;) {
        struct resp_command_state fresh = {0};
        enum resp_result expected = scan_exact(&whole, &fresh, data + start, length - start);
        enum resp_result result;
        while ((result = scan_exact(&pieces, &state, data + start, arrived - start)) == RESP_MORE && arrived < length) {
            ZG_CHECK(state.needed > arrived - start && (expected != RESP_DONE || state.needed <= whole.consumed));
            arrived += 1 + rng_below(&rng, rng_below(&rng, 4) > 0 ? 8 : 600) % (length - arrived);
        }
        ZG_CHECK(result == expected);
        if (result == RESP_MORE || result == RESP_ERROR)
            break;
        check_same(&whole, &pieces, data + start);
        if (result == RESP_DONE)
            check_spelling(&writer, &whole, data + start);
        ZG_CHECK(whole.consumed > 0 && whole.consumed <= arrived - start);
        start += whole.consumed;
    }
    resp_writer_fini(&writer);
    resp_command_scanner_fini(&whole);
    resp_command_scanner_fini(&pieces);
    return 0;
}
