/*
 * Nanoseconds to find one command and one reply in memory: GET and SET of 64-byte values, alone in a buffer and in pipelines of 128.
 * One line a case: name, pipeline, ns. The best of several rounds counts, since the machine may be shared.
 * Usage: bench_resp [rounds]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "net/resp_scan.h"
#include "net/resp_write.h"

enum { VALUE_BYTES = 64, SCANS_A_ROUND = 1 << 20, PIPELINE_DEEP = 128 };

static const char value[VALUE_BYTES + 1] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

enum bench_kind { BENCH_GET, BENCH_SET, BENCH_MSET, BENCH_VALUE, BENCH_OK, BENCH_INTEGER, BENCH_ERROR, BENCH_ARRAY, BENCH_KIND_COUNT };
static const char *const kind_names[] = {"command GET", "command SET", "command MSET of 10 pairs", "reply $64",
    "reply +OK", "reply :n", "reply -ERR", "reply *10 of $64"};
_Static_assert(sizeof(kind_names) / sizeof(kind_names[0]) == BENCH_KIND_COUNT, "a name for each kind");

static void write_one(struct resp_writer *writer, enum bench_kind kind, uint32_t i)
{
    switch (kind) {
    case BENCH_GET:
        resp_write_array(writer, 2);
        resp_write_text(writer, "GET");
        resp_write_bulk_format(writer, "key:%012" PRIu32, i);
        break;
    case BENCH_SET:
        resp_write_array(writer, 3);
        resp_write_text(writer, "SET");
        resp_write_bulk_format(writer, "key:%012" PRIu32, i);
        resp_write_text(writer, value);
        break;
    case BENCH_MSET:
        resp_write_array(writer, 21);
        resp_write_text(writer, "MSET");
        for (uint32_t pair = 0; pair < 10; pair++) {
            resp_write_bulk_format(writer, "key:%012" PRIu32, i + pair);
            resp_write_text(writer, value);
        }
        break;
    case BENCH_VALUE:
        resp_write_text(writer, value);
        break;
    case BENCH_OK:
        resp_write_simple(writer, "OK");
        break;
    case BENCH_INTEGER:
        resp_write_integer(writer, i);
        break;
    case BENCH_ERROR:
        resp_write_error(writer, "ERR unknown command 'foo', with args beginning with: ");
        break;
    case BENCH_ARRAY:
        resp_write_array(writer, 10);
        for (uint32_t element = 0; element < 10; element++)
            resp_write_text(writer, value);
        break;
    case BENCH_KIND_COUNT:
        ZG_UNREACHABLE();
    }
}

/* Scans the buffer once; returns a sum that depends on every result, so that nothing is optimised away. */
static uint64_t scan_commands(struct resp_command_scanner *scanner, const uint8_t *data, uint32_t length)
{
    uint64_t sum = 0;
    struct resp_command_state state = {0};
    while (length > 0) {
        ZG_CHECK(resp_scan_command(scanner, &state, data, length) == RESP_DONE);
        sum += scanner->args[1].offset;
        data += scanner->consumed;
        length -= scanner->consumed;
    }
    return sum;
}

static uint64_t scan_replies(const uint8_t *data, uint32_t length)
{
    uint64_t sum = 0;
    struct resp_reply_state state = {0};
    while (length > 0) {
        uint32_t consumed;
        ZG_CHECK(resp_scan_reply(&state, data, length, &consumed) == RESP_DONE);
        sum += consumed + state.type;
        data += consumed;
        length -= consumed;
    }
    return sum;
}

static void run_case(struct resp_command_scanner *scanner, enum bench_kind kind, uint32_t pipeline, uint32_t rounds)
{
    struct resp_writer writer;
    resp_writer_init(&writer, 3);
    for (uint32_t i = 0; i < pipeline; i++)
        write_one(&writer, kind, i + 100);
    uint32_t repeats = SCANS_A_ROUND / pipeline;
    uint64_t best_ns = UINT64_MAX, sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        uint64_t start_ns = clock_monotonic_ns();
        for (uint32_t i = 0; i < repeats; i++) {
            /* The barrier makes every pass read the buffer anew. */
            __asm__ volatile(""
                             :
                             : "r"(writer.data)
                             : "memory");
            sum += kind <= BENCH_MSET ? scan_commands(scanner, writer.data, writer.length) : scan_replies(writer.data, writer.length);
        }
        uint64_t taken_ns = clock_monotonic_ns() - start_ns;
        best_ns = taken_ns < best_ns ? taken_ns : best_ns;
    }
    ZG_CHECK(sum > 0);
    printf("%-26s pipeline %3" PRIu32 " %8.1f ns\n", kind_names[kind], pipeline, (double)best_ns / ((double)repeats * pipeline));
    resp_writer_fini(&writer);
}

int main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 5;
    const struct resp_limits limits = {.args_max = 1024 * 1024, .bulk_max = 512u << 20, .inline_max = 65536, .request_max = 1u << 30};
    struct resp_command_scanner scanner;
    resp_command_scanner_init(&scanner, &limits);
    for (enum bench_kind kind = 0; kind < BENCH_KIND_COUNT; kind++) {
        run_case(&scanner, kind, 1, rounds);
        run_case(&scanner, kind, PIPELINE_DEEP, rounds);
    }
    resp_command_scanner_fini(&scanner);
    return 0;
}
