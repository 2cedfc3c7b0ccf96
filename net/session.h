/*
 * What a connection says about itself (protocol, name, library, reply mode) and the commands that need nothing but the connection:
 * HELLO, AUTH, CLIENT, PING, COMMAND, INFO, ...
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "net/command_table.h"
#include "net/resp_write.h"

enum session_reply_mode { REPLY_ON, REPLY_OFF, REPLY_SKIP_NEXT /* CLIENT REPLY SKIP was just seen */ };

/* What the gateway says it is: the version of the command set, since the backend's is not known to a connection. */
#define SESSION_REDIS_VERSION "7.0.15"

enum { SESSION_TEXT_MAX = 1024 /* bytes of a name, library or library version that a client sets */, SESSION_ENDPOINT_MAX = 320 /* with NUL */ };

/* CLIENT MAINT_NOTIFICATIONS: whether the client is pushed MOVING when the process is about to end, and whether with a place to go to. */
enum session_moving { MOVING_OFF, MOVING_ENDPOINT, MOVING_NO_ENDPOINT };

/* At most 128 bytes; texts are allocated only where a client sends them. */
struct session {
    uint64_t id;           /* unique over the gateway's life: CLIENT ID */
    char *name;            /* CLIENT SETNAME, NULL: none; owned */
    char *library;         /* LIB-NAME, owned */
    char *library_version; /* LIB-VER, owned */
    uint64_t created_ms;   /* loop time */
    uint64_t last_command_ms;
    uint16_t last_command; /* index in the command table */
    uint8_t protocol;      /* 2 or 3 */
    uint8_t reply_mode;    /* enum session_reply_mode */
    uint8_t moving;        /* enum session_moving */
    bool is_readonly;      /* READONLY was sent */
    bool is_authenticated;
    bool no_evict, no_touch;
};

/* What the gateway tells a session; filled by the worker once and kept current. All borrowed. */
struct request_ops;
/* What a connection holds, under the names of CLIENT INFO. */
struct session_memory {
    uint64_t qbuf, qbuf_free; /* bytes of commands that are not yet parsed; room behind them */
    uint64_t oll, omem;       /* unsent replies: blocks, bytes */
    uint64_t total;
};

struct session_env {
    const struct command_table *commands;
    void *context; /* passed to the functions below */
    const struct request_ops *ops;
    uint64_t now_ms;      /* loop time */
    uint64_t realtime_us; /* wall clock */
    bool is_ready;        /* a complete topology view is installed */
    bool present_cluster; /* of the listener of this connection */
};

/* What lies outside net/: filled in core/boot, so that no call goes upward. `writer` has the protocol of the session. */
struct request_ops {
    /* CLUSTER * and ROLE: shard/local.c. Writes one reply. */
    void (*cluster_command)(void *context, const struct session *session, const struct command *command, const struct command_args *args,
        struct resp_writer *writer);
    /* Appends the lines of one INFO section ("stats", "clients", ...), each with CR LF, as raw text; unknown: nothing. */
    void (*info_section)(void *context, const char *section, struct resp_writer *text);
    /* Of the connection at work, "127.0.0.1:1234" with NUL; each has room for `bytes`. */
    void (*client_addresses)(void *context, char *peer, char *local, uint32_t bytes);
    /* Of the connection at work. */
    void (*client_memory)(void *context, struct session_memory *memory);
    /* Appends the lines of CLIENT LIST (session_write_line) as raw text. */
    void (*client_list)(void *context, struct resp_writer *text, const struct session *self);
    /* The backend's raw reply to COMMAND or COMMAND DOCS in that protocol, borrowed until the writer has it; NULL: none. */
    const uint8_t *(*command_reply)(void *context, uint8_t protocol, bool docs, uint32_t *length);
    /* Where the client of the connection at work finds the gateway, "host:port" with NUL, in SESSION_ENDPOINT_MAX bytes. False: nothing that clients would understand (a unix socket; IPv6 without a name). */
    bool (*client_endpoint)(void *context, char *text);
};

enum session_result {
    SESSION_REPLY,          /* the writer holds the reply */
    SESSION_REPLY_CLOSE,    /* send the reply, then close */
    SESSION_NO_REPLY,       /* CLIENT REPLY OFF and SKIP */
};

void session_init(struct session *session, uint64_t id, uint64_t now_ms);
void session_fini(struct session *session);

/* Whether the reply to the command that begins now is to be sent, by CLIENT REPLY; uses up a SKIP. To be called once for every command
 * that session_execute does not execute (it does so itself). */
bool session_takes_reply(struct session *session);

/* Executes a HANDLE_LOCAL command. Writes exactly one reply (or none with SESSION_NO_REPLY, and with SESSION_REPLY_CLOSE where CLIENT
 * REPLY OFF holds). Arity was checked by the caller. The writer may hold earlier replies; its protocol is set to the session's. Notes
 * the command as the session's last. */
enum session_result session_execute(struct session *session, const struct session_env *env, const struct command *command,
    const struct command_args *args, struct resp_writer *writer);

/* The error for a command that is not in the table, worded as Redis: "ERR unknown command 'x', with args beginning with: 'a' 'b' ". */
void session_unknown_command(const struct command_args *args, bool unknown_sub, struct resp_writer *writer);
/* The error for a wrong number of arguments. */
void session_wrong_arity(const struct command_table *table, const struct command *command, struct resp_writer *writer);
/* The error for a HANDLE_UNSUPPORTED or HANDLE_REFUSED command: "ERR 'multi' is not supported by this version of the gateway", "ERR
 * 'config|set' is not allowed through the gateway". */
void session_refuse(const struct command *command, struct resp_writer *writer);
/* The error for a call that command_is_unsupported_call tells. */
void session_refuse_call(const struct command *command, struct resp_writer *writer);

/* Appends the line of CLIENT INFO and CLIENT LIST for any connection of this core, ending with a line feed, as raw text. */
void session_write_line(const struct session *session, const struct session_env *env, const char *peer, const char *local, const struct session_memory *memory, struct resp_writer *text);
