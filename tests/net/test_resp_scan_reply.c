/*
 * net/resp_scan, replies: every type whole, cut at every byte and at every pair of bytes; what breaks the grammar; depth; random replies in random
 * pieces.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "core/rng.h"
#include "net/resp_scan.h"
#include "net/resp_write.h"

TestSuite(resp_scan_reply);

enum { PAIRS_BYTES_MAX = 64 };

struct bytes {
    const char *data;
    uint32_t length;
};
#define BYTES(text) \
    { \
        (text), sizeof(text) - 1 \
    }

struct reply_case {
    struct bytes input;
    uint8_t type;
};

static const struct reply_case replies[] = {
    {BYTES("+OK\r\n"), '+'},
    {BYTES("+OKAY\r\n"), '+'},
    {BYTES("+\r\n"), '+'},
    {BYTES("+O\r\n"), '+'},
    {BYTES("-ERR unknown command\r\n"), '-'},
    {BYTES("-\r\n"), '-'},
    {BYTES("-ERR\r\n"), '-'}, /* twemproxy issue 404: no space behind the code */
    {BYTES("-NOAUTH\r\n"), '-'},
    {BYTES("-MOVED 1234 127.0.0.1:7000\r\n"), '-'},
    {BYTES(":0\r\n"), ':'},
    {BYTES(":-1\r\n"), ':'},
    {BYTES(":+5\r\n"), ':'},
    {BYTES(":1234567890\r\n"), ':'},
    {BYTES(":9223372036854775807\r\n"), ':'},
    {BYTES(":-9223372036854775808\r\n"), ':'},
    {BYTES("$-1\r\n"), '$'},
    {BYTES("$0\r\n\r\n"), '$'},
    {BYTES("$5\r\nhello\r\n"), '$'},
    {BYTES("$10\r\n\r\n+OK\r\n:1\n\r\n"), '$'},
    {BYTES("*-1\r\n"), '*'},
    {BYTES("*0\r\n"), '*'},
    {BYTES("*2\r\n$3\r\nfoo\r\n$3\r\nbar\r\n"), '*'},
    {BYTES("*3\r\n:1\r\n$-1\r\n+OK\r\n"), '*'},
    {BYTES("*2\r\n*2\r\n:1\r\n*0\r\n*1\r\n*-1\r\n"), '*'},
    {BYTES("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n-ERR x\r\n"), '*'},
    {BYTES("_\r\n"), '_'},
    {BYTES(",3.14\r\n"), ','},
    {BYTES(",inf\r\n"), ','},
    {BYTES(",-inf\r\n"), ','},
    {BYTES(",nan\r\n"), ','},
    {BYTES(",-1.7976931348623157e+308\r\n"), ','},
    {BYTES("#t\r\n"), '#'},
    {BYTES("#f\r\n"), '#'},
    {BYTES("!22\r\nSYNTAX invalid\r\nsyntax\r\n"), '!'},
    {BYTES("!0\r\n\r\n"), '!'},
    {BYTES("=15\r\ntxt:Some string\r\n"), '='},
    {BYTES("=4\r\ntxt:\r\n"), '='},
    {BYTES("(3492890328409238509324850943850943825024385\r\n"), '('},
    {BYTES("(-5\r\n"), '('},
    {BYTES("%0\r\n"), '%'},
    {BYTES("%2\r\n+first\r\n:1\r\n+second\r\n*1\r\n:2\r\n"), '%'},
    {BYTES("~0\r\n"), '~'},
    {BYTES("~3\r\n+a\r\n#t\r\n_\r\n"), '~'},
    {BYTES(">3\r\n+message\r\n+channel\r\n$4\r\nbody\r\n"), '>'},
    {BYTES("*1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"), '*'}, /* SUBSCRIBE within EXEC */
    {BYTES("|1\r\n+ttl\r\n:3600\r\n$3\r\nabc\r\n"), '$'},
    {BYTES("|0\r\n+OK\r\n"), '+'},
    {BYTES("|1\r\n+a\r\n%1\r\n+b\r\n|1\r\n+c\r\n+d\r\n*0\r\n-ERR\r\n"), '-'},
    {BYTES("|1\r\n+a\r\n+b\r\n|1\r\n+c\r\n+d\r\n>1\r\n+x\r\n"), '>'},
    {BYTES("*2\r\n|1\r\n+a\r\n*2\r\n:1\r\n:2\r\n:3\r\n:4\r\n"), '*'},
    {BYTES("*00\r\n"), '*'}, /* RESP leaves leading zeros open */
    {BYTES("%1\r\n|1\r\n+k\r\n+v\r\n$1\r\na\r\n=5\r\nmkd:x\r\n"), '%'},
};

/* Feeds all of data from `from` to `to`, which does not end the reply. */
static void feed_cut(struct resp_reply_state *state, const struct reply_case *reply, uint32_t from, uint32_t to)
{
    uint32_t consumed;
    cr_assert_eq(resp_scan_reply(state, (const uint8_t *)reply->input.data + from, to - from, &consumed), RESP_MORE, "%u to %u of %s", from, to, reply->input.data);
    cr_assert_eq(consumed, to - from);
    cr_assert_eq(state->scanned, to);
    cr_assert(state->needed > to && state->needed <= reply->input.length, "needed %lu at %u of %s", (unsigned long)state->needed, to, reply->input.data);
}

/* Feeds the rest with `behind` bytes of another reply behind it. */
static void feed_rest(struct resp_reply_state *state, const struct reply_case *reply, uint32_t from, uint32_t behind)
{
    static const char next[] = "*1\r\n$1\r\nx\r\n";
    uint8_t data[256];
    uint32_t consumed;
    memcpy(data, reply->input.data + from, reply->input.length - from);
    memcpy(data + reply->input.length - from, next, behind);
    cr_assert_eq(resp_scan_reply(state, data, reply->input.length - from + behind, &consumed), RESP_DONE, "from %u of %s", from, reply->input.data);
    cr_assert_eq(consumed, reply->input.length - from, "from %u of %s", from, reply->input.data);
    cr_assert_eq(state->type, reply->type, "%s", reply->input.data);
    struct resp_reply_state start = {.type = reply->type};
    cr_assert_eq(memcmp(state, &start, sizeof(start)), 0, "the state is reset after %s", reply->input.data);
}

Test(resp_scan_reply, reply_cut_at_any_two_bytes_ends_where_it_ends)
{
    struct resp_reply_state state = {0}; /* goes on from case to case, as on a link */
    for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        feed_rest(&state, &replies[i], 0, 0);
        for (uint32_t behind = 1; behind < 11; behind++)
            feed_rest(&state, &replies[i], 0, behind);
        uint32_t length = replies[i].input.length;
        for (uint32_t first = 0; first < length; first++) {
            for (uint32_t second = first; second < length; second++) {
                feed_cut(&state, &replies[i], 0, first);
                feed_cut(&state, &replies[i], first, second);
                feed_rest(&state, &replies[i], second, (first + second) % 11);
                if (length > PAIRS_BYTES_MAX)
                    break;
            }
        }
        for (uint32_t at = 0; at + 1 < length; at++)
            feed_cut(&state, &replies[i], at, at + 1);
        feed_rest(&state, &replies[i], length - 1, 5);
    }
}

static const struct bytes bad_replies[] = {
    BYTES("x"), BYTES("\r"), BYTES("\n"), BYTES("\0"), BYTES(";"), BYTES("."), BYTES("P"),
    BYTES("+a\n"), BYTES("+a\rb"), BYTES("+\r\r"), BYTES("-E\n"), BYTES("(1\n"), BYTES(",1\n"),
    BYTES(":\r\n"), BYTES(":a\r\n"), BYTES(":1a\r\n"), BYTES(":-\r\n"), BYTES(":+\r\n"), BYTES(":1\n"), BYTES(":--1\r\n"),
    BYTES(":1 \r\n"), BYTES(":1\r\r\n"),
    BYTES(":9223372036854775808\r\n"), BYTES(":-9223372036854775809\r\n"), BYTES(":10000000000000000000\r\n"),
    BYTES(":0000000000000000000001"),
    BYTES("$\r\n"), BYTES("$-2\r\n"), BYTES("$-0\r\n"), BYTES("$+1\r\n"), BYTES("$-01\r\n"), BYTES("$a\r\n"), BYTES("$?\r\n"),
    BYTES("$1\n"), BYTES("$4294967296\r\n"),
    BYTES("$1\r\nab"), BYTES("$1\r\na\n"), BYTES("$1\r\na\rb"), BYTES("$0\r\n+"), BYTES("$0\r\n\r\r"),
    BYTES("*\r\n"), BYTES("*-2\r\n"), BYTES("*?\r\n"), BYTES("*4294967297\r\n"), BYTES("*18446744073709551616\r\n"), BYTES("*1\r\n\r"),
    BYTES("*2\r\n:1\r\n/"),
    BYTES("_x\r\n"), BYTES("_\n"), BYTES("#\r\n"), BYTES("#x\r\n"), BYTES("#tt\r\n"), BYTES("#t\n"),
    BYTES("!-1\r\n"), BYTES("!\r\n"), BYTES("!?\r\n"), BYTES("!3\r\nERR\n"), BYTES("=-1\r\n"), BYTES("=3\r\n"), BYTES("=\r\n"),
    BYTES("=4\r\ntxt:x"),
    BYTES("%-1\r\n"), BYTES("%\r\n"), BYTES("%?\r\n"), BYTES("%4294967297\r\n"), BYTES("%9223372036854775808\r\n"), BYTES("~-1\r\n"),
    BYTES("~?\r\n"), BYTES(">-1\r\n"), BYTES(">?\r\n"),
    BYTES("|-1\r\n"), BYTES("|?\r\n"), BYTES("|1\r\n+a\r\n;"), BYTES("%1\r\n+a\r\n\n"),
};

Test(resp_scan_reply, reply_that_breaks_the_grammar_is_an_error_however_it_is_cut)
{
    for (size_t i = 0; i < sizeof(bad_replies) / sizeof(bad_replies[0]); i++) {
        const uint8_t *data = (const uint8_t *)bad_replies[i].data;
        uint32_t length = bad_replies[i].length;
        for (uint32_t cut = 0; cut < length; cut++) {
            struct resp_reply_state state = {0};
            uint32_t consumed;
            cr_assert_eq(resp_scan_reply(&state, data, cut, &consumed), RESP_MORE, "%u bytes of %s", cut, bad_replies[i].data);
            cr_assert_eq(resp_scan_reply(&state, data + cut, length - cut, &consumed), RESP_ERROR, "cut at %u: %s", cut, bad_replies[i].data);
        }
    }
}

Test(resp_scan_reply, reply_says_how_many_bytes_it_needs)
{
    uint32_t consumed;
    struct resp_reply_state state = {0};
    cr_assert_eq(resp_scan_reply(&state, (const uint8_t *)"$1000000\r\nab", 12, &consumed), RESP_MORE);
    cr_assert_eq(state.needed, 10 + 1000000 + 2);
    cr_assert_eq(state.scanned, 12);
    state = (struct resp_reply_state){0};
    cr_assert_eq(resp_scan_reply(&state, (const uint8_t *)"*3\r\n$100\r\n", 10, &consumed), RESP_MORE);
    cr_assert_eq(state.needed, 10 + 102 + 2 * 3, "two more elements have at least three bytes each");
    cr_assert_eq(resp_scan_reply(&state, NULL, 0, &consumed), RESP_MORE);
    cr_assert_eq(consumed, 0);
    cr_assert_eq(state.needed, 118);
}

Test(resp_scan_reply, reply_nested_to_any_depth_takes_no_stack)
{
    enum { DEPTH = 1000000 };
    struct resp_writer writer;
    resp_writer_init(&writer, 3);
    for (uint32_t i = 0; i < DEPTH; i++)
        resp_write_raw(&writer, i % 2 == 0 ? "*1\r\n" : "|0\r\n", 4);
    resp_write_null(&writer);
    struct resp_reply_state state = {0};
    uint32_t consumed;
    cr_assert_eq(resp_scan_reply(&state, writer.data, writer.length - 1, &consumed), RESP_MORE);
    cr_assert_eq(resp_scan_reply(&state, writer.data + consumed, 1, &consumed), RESP_DONE);
    resp_writer_fini(&writer);
}

/* Each header announces 2^33 values more; the counter must not run over into a reply that seems to end. */
Test(resp_scan_reply, reply_whose_elements_have_no_end_is_an_error_in_the_end)
{
    struct resp_reply_state state = {0};
    uint32_t consumed;
    uint64_t headers = 0;
    enum resp_result result;
    while ((result = resp_scan_reply(&state, (const uint8_t *)"%4294967296\r\n", 13, &consumed)) == RESP_MORE && headers < 1000)
        headers++;
    cr_assert_eq(result, RESP_MORE);
    state.elements_left = (UINT64_C(1) << 62) - 100;
    cr_assert_eq(resp_scan_reply(&state, (const uint8_t *)"%4294967296\r\n", 13, &consumed), RESP_ERROR);
}

static void write_random_reply(struct rng *rng, struct resp_writer *writer, uint32_t depth)
{
    uint8_t bytes[300];
    uint32_t length = (uint32_t)rng_below(rng, rng_below(rng, 8) == 0 ? sizeof(bytes) : 12);
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = (uint8_t) "\r\n$*1\0ab"[rng_below(rng, 8)];
    uint32_t children = (uint32_t)rng_below(rng, 5);
    switch (rng_below(rng, depth > 0 ? 15 : 10)) {
    case 0: resp_write_simple(writer, "OK"); return;
    case 1: resp_write_simple(writer, "some text"); return;
    case 2: resp_write_error(writer, "ERR%s", rng_below(rng, 2) == 0 ? "" : " why"); return;
    case 3: resp_write_integer(writer, (int64_t)rng_next(rng)); return;
    case 4: resp_write_bulk(writer, bytes, length); return;
    case 5: resp_write_null(writer); return;
    case 6: resp_write_bool(writer, rng_below(rng, 2) == 0); return;
    case 7: resp_write_double(writer, (double)rng_next(rng) / 7); return;
    case 8: resp_write_verbatim(writer, bytes, length); return;
    case 9: resp_write_null_array(writer); return;
    case 10: resp_write_array(writer, children); break;
    case 11: resp_write_set(writer, children); break;
    case 12: resp_write_push(writer, children); break;
    case 13:
        resp_write_map(writer, children);
        children *= 2;
        break;
    default:
        resp_write_raw(writer, "|2\r\n", 4);
        children = 5;
        break;
    }
    for (uint32_t i = 0; i < children; i++)
        write_random_reply(rng, writer, depth - 1);
}

Test(resp_scan_reply, random_replies_in_random_pieces_end_where_they_end)
{
    struct rng rng = {.state = 42};
    struct resp_reply_state state = {0};
    for (uint32_t round = 0; round < 20000; round++) {
        struct resp_writer writer;
        resp_writer_init(&writer, (uint8_t)(2 + rng_below(&rng, 2)));
        write_random_reply(&rng, &writer, 5);
        uint32_t at = 0, consumed = 0;
        enum resp_result result = RESP_MORE;
        uint64_t needed = 0;
        while (at < writer.length) {
            uint32_t piece = 1 + (uint32_t)rng_below(&rng, rng_below(&rng, 2) == 0 ? 20 : writer.length);
            piece = piece < writer.length - at ? piece : writer.length - at;
            result = resp_scan_reply(&state, writer.data + at, piece, &consumed);
            at += consumed;
            if (result != RESP_MORE)
                break;
            cr_assert_eq(consumed, piece);
            cr_assert(state.needed >= needed && state.needed <= writer.length, "what is needed only grows, up to the reply's length");
            needed = state.needed;
        }
        cr_assert_eq(result, RESP_DONE, "%.*s", (int)writer.length, (const char *)writer.data);
        cr_assert_eq(at, writer.length);
        resp_writer_fini(&writer);
    }
}
