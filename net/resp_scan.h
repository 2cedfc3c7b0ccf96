/*
 * Finds the ends of RESP commands and replies in a stream, resumable at any byte. Framing is by grammar alone.
 * Source: the RESP2 and RESP3 specifications; inline commands and protocol errors as redis-server 7 has them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

enum resp_result {
    RESP_DONE,  /* one whole command or reply ends at `consumed` */
    RESP_MORE,  /* more bytes are needed; call again with the same start and more bytes */
    RESP_EMPTY, /* commands only: an empty line or *0, to be skipped without a reply */
    RESP_ERROR, /* the stream breaks the protocol: `error` says how, worded as Redis's */
};

struct resp_arg {
    uint32_t offset; /* from the command's first byte */
    uint32_t length;
};

struct resp_limits {
    uint32_t args_max;    /* multibulk length, 1 .. 1,048,576 (Redis: 1,024 * 1,024) */
    uint32_t bulk_max;    /* bytes of one argument */
    uint32_t inline_max;  /* bytes of an inline command or of a header line, 64 .. 1,048,576 (Redis: 65,536) */
    uint32_t request_max; /* bytes of a whole command */
};

/* Where the scan of a command that has not wholly arrived stands: small, since every connection has one. Zero is the start. */
struct resp_command_state {
    uint32_t position;   /* bytes of the command that are scanned: at the start of a header; inline: how far the line's end was searched */
    uint32_t args_left;  /* arguments not yet scanned */
    uint32_t needed;     /* the command is at least this many bytes long: how much room the input block needs; nothing is scanned before */
    uint32_t line_bytes; /* bytes of the cut header at `position` that were searched for its end */
};

/* One scanner a core: the arguments of the command found last. */
struct resp_command_scanner {
    struct resp_limits limits;
    struct resp_arg *args; /* args_count entries, valid until the next scan */
    uint32_t args_count;
    uint32_t args_capacity;
    uint32_t consumed; /* RESP_DONE, RESP_EMPTY: bytes of the command with its line end */
    bool is_inline;    /* args then refer to inline_bytes (unquoted), not to the input */
    uint8_t *inline_bytes;
    uint32_t inline_bytes_count;
    const char *error; /* RESP_ERROR: "Protocol error: ..." without "-ERR "; static storage or the scanner's */
    char error_text[64];
};

/* Allocates room for 64 arguments (it grows up to args_max) and for one inline command. */
void resp_command_scanner_init(struct resp_command_scanner *scanner, const struct resp_limits *limits);
void resp_command_scanner_fini(struct resp_command_scanner *scanner);

/* Scans the command that begins at data[0]; `state` is zero at its first byte and is kept while RESP_MORE is returned. A command in one
 * piece is parsed once; a cut one goes on where it stopped and, once whole, is walked a second time to collect its arguments.
 * RESP_DONE and RESP_EMPTY reset *state. An inline command can be turned into the RESP form with resp_write_command. data may be any
 * bytes; length 0 gives RESP_MORE. What exceeds a limit is RESP_ERROR as soon as it is known.
 * Stricter than redis-server in one point: it skips the byte behind a header's CR and the two bytes behind an argument unseen; here they
 * must be the line end, since commands of many clients share a backend connection and every server must frame them alike. */
enum resp_result resp_scan_command(struct resp_command_scanner *scanner, struct resp_command_state *state, const uint8_t *data, uint32_t length);

/* The bytes of argument i of the command found last, whose first byte is `data`. */
const uint8_t *resp_arg_bytes(const struct resp_command_scanner *scanner, const uint8_t *data, uint32_t i);

/* Where the scan of a reply stands. Zero is the start; no recursion and no depth: only how many elements are still to come matters. */
struct resp_reply_state {
    uint64_t elements_left; /* elements not wholly scanned, the current one included; 0 only at the start */
    uint64_t bulk_left;     /* bytes of a bulk with its line end still to come */
    uint64_t needed;        /* RESP_MORE: the reply is at least this many bytes long, known from its headers; > scanned */
    uint64_t scanned;       /* bytes of this reply seen so far */
    uint8_t type;           /* the reply's type: + - : $ * _ , # ! = ( % ~ >; where attributes precede it '|' until they have passed */
    uint8_t line_bytes;     /* header bytes held in `line` while a header is cut; of a text: 1 where its CR is the last byte seen */
    uint8_t line_type;      /* type of the element whose line is being read; 0 between elements */
    char line[21];          /* digits of the cut header */
};

/* Scans the reply that goes on at data[0]. RESP_DONE: *consumed bytes of data end it and *state is reset, but for `type`, which stays.
 * RESP_MORE: all bytes are taken, *consumed = length. Attributes (|) belong to the reply they precede; a push (>) is a reply of its own, of
 * type '>'. RESP_ERROR: the link is in doubt, *state must not be used again. Any nesting depth is accepted; elements are bounded by 2^32 an
 * aggregate, bulks by 2^32 - 1 bytes. The streamed types of RESP3 ($?, *?) are errors: no server sends them. */
enum resp_result resp_scan_reply(struct resp_reply_state *state, const uint8_t *data, uint32_t length, uint32_t *consumed);
