/*
 * Writes RESP into a growable buffer of its own: for the gateway's own replies and commands. Not for the forwarding path, which copies bytes.
 * Source: the RESP2 and RESP3 specifications; what RESP3 types look like in RESP2 as redis-server 7 has it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/check.h"
#include "core/status.h"

struct resp_command_scanner;

/* At most 1 GiB is written before a reset; more is a bug and ends the process. */
struct resp_writer {
    uint8_t *data;
    uint32_t length;
    uint32_t capacity;
    uint8_t protocol; /* 2 or 3: what maps, nulls, booleans and doubles look like */
};

/* protocol: 2 or 3. Allocates nothing yet. */
void resp_writer_init(struct resp_writer *writer, uint8_t protocol);
void resp_writer_fini(struct resp_writer *writer);
/* Forgets what was written; keeps the memory (so a core's own writer allocates nothing in steady state). */
void resp_writer_reset(struct resp_writer *writer, uint8_t protocol);

void resp_write_raw(struct resp_writer *writer, const void *bytes, size_t length);
void resp_write_simple(struct resp_writer *writer, const char *text);                       /* +text; CR and LF become spaces */
void resp_write_error(struct resp_writer *writer, const char *format, ...) ZG_PRINTF(2, 3); /* -text; CR, LF become spaces; cut at 1,023 bytes */
void resp_write_integer(struct resp_writer *writer, int64_t value);
void resp_write_bulk(struct resp_writer *writer, const void *bytes, size_t length);
void resp_write_text(struct resp_writer *writer, const char *text);                               /* as a bulk */
void resp_write_bulk_format(struct resp_writer *writer, const char *format, ...) ZG_PRINTF(2, 3); /* of any length */
void resp_write_verbatim(struct resp_writer *writer, const void *bytes, size_t length);           /* =txt: in RESP3, a bulk in RESP2 */
void resp_write_null(struct resp_writer *writer);                                                 /* _ or $-1 */
void resp_write_null_array(struct resp_writer *writer);                                           /* _ or *-1 */
void resp_write_array(struct resp_writer *writer, uint32_t elements);
void resp_write_map(struct resp_writer *writer, uint32_t pairs);     /* % or an array of 2 x pairs */
void resp_write_set(struct resp_writer *writer, uint32_t elements);  /* ~ or an array */
void resp_write_bool(struct resp_writer *writer, bool value);        /* # or :1 / :0 */
void resp_write_push(struct resp_writer *writer, uint32_t elements); /* > or an array */
void resp_write_double(struct resp_writer *writer, double value);    /* , or a bulk; 17 significant digits; inf, -inf, nan */

/* A status as the error line that a client reads (-text CR LF), not terminated by NUL. Returns its bytes. The status must be one that has a text. */
enum { RESP_STATUS_LINE_MAX = 192 };
uint32_t resp_status_line(uint8_t line[static RESP_STATUS_LINE_MAX], enum status status);

/* The command that `scanner` found last, whose first byte is `data`, as an array of bulks: how an inline command is forwarded. */
void resp_write_command(struct resp_writer *writer, const struct resp_command_scanner *scanner, const uint8_t *data);
