/*
 * Between the files of the session (session.c, session_client.c, session_command.c, session_info.c): how a local command is called. Not
 * for others.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "net/session.h"

/* One local command at work; all borrowed for the call. */
struct session_call {
    struct session *session;
    const struct session_env *env;
    const struct command *command;
    const struct command_args *args;
    struct resp_writer *writer;
    bool is_silent;  /* CLIENT REPLY OFF or SKIP: what is written is dropped. CLIENT REPLY ON and RESET clear it */
    bool is_closing; /* set by QUIT */
};

/* Writes exactly one reply. */
typedef void (*session_handler_fn)(struct session_call *call);

#define ZG_LOCAL(name) void session_local_##name(struct session_call *call);
#include "net/command.def"

/* Length and bytes of argument i < args->count. */
uint32_t session_arg_length(const struct session_call *call, uint32_t i);
const uint8_t *session_arg(const struct session_call *call, uint32_t i);
/* Does the argument read as `word` (lower case), in any case? */
bool session_arg_is(const struct session_call *call, uint32_t i, const char *word);
/* A decimal number as Redis reads one: an optional minus, no leading zero, no space, within 64 bits. */
bool session_arg_integer(const struct session_call *call, uint32_t i, int64_t *value);
void session_syntax_error(struct session_call *call);

/* Prints bytes of a client into an error or a line of text: what is not printable becomes a space, at most bytes_max are taken, a NUL
 * ends them. `text` has room for bytes_max + 1. Returns `text`. */
const char *session_printable(const uint8_t *bytes, uint32_t length, char *text, uint32_t bytes_max);

/* Redis's rule for names: bytes from '!' to '~' only, and at most SESSION_TEXT_MAX of them. */
bool session_text_ok(const struct session_call *call, uint32_t i);
/* Replaces an owned text by argument i; an empty one removes it. */
void session_text_set(char **text, const struct session_call *call, uint32_t i);
/* SETNAME, of CLIENT and of HELLO: writes the error and returns false where the name is not allowed. */
bool session_name_check(struct session_call *call, uint32_t i);

/* Glob pattern of Redis (*, ?, [a-z], [^a], \\), any case. Bounded by pattern x text steps. */
bool session_glob(const uint8_t *pattern, uint32_t pattern_length, const char *text);
