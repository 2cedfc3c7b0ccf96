/*
 * For tests of the session: runs a line of words as one command and gives the reply's bytes. What lies outside net/ is played by fakes
 * that write fixed texts.
 */
#pragma once

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "net/session.h"

enum { WORDS_MAX = 2048 };

struct fixture {
    struct command_table *table;
    struct session session;
    struct session_env env;
    struct resp_writer writer;
    enum session_result result;       /* of the command run last */
    const char *backend_reply;        /* what command_reply gives for COMMAND; NULL: none */
    const char *backend_docs;         /* ... for COMMAND DOCS */
    const char *list_text;            /* what client_list appends; NULL: the session's own line */
    bool has_no_endpoint;             /* the connection has no address that clients would understand */
    uint8_t asked_protocol;           /* as told to command_reply last */
    const struct command *cluster_of; /* command that cluster_command was called with last */
    char sections[512];               /* names of the INFO sections asked for by the command run last, each with a space behind it */
    uint8_t *bytes;                   /* of the command run last */
    struct resp_arg args[WORDS_MAX];
};

static inline void fake_cluster_command(void *context, const struct session *session, const struct command *command, const struct command_args *args, struct resp_writer *writer)
{
    struct fixture *fixture = context;
    cr_assert(session == &fixture->session && args->count > 0);
    fixture->cluster_of = command;
    resp_write_simple(writer, "CLUSTER");
}

static inline void fake_info_section(void *context, const char *section, struct resp_writer *text)
{
    struct fixture *fixture = context;
    strcat(fixture->sections, section);
    strcat(fixture->sections, " ");
    if (strcmp(section, "clients") == 0)
        resp_write_raw(text, "connected_clients:7\r\n", 21);
}

static inline void fake_client_addresses(void *context, char *peer, char *local, uint32_t bytes)
{
    (void)context;
    (void)snprintf(peer, bytes, "127.0.0.1:1234");
    (void)snprintf(local, bytes, "127.0.0.1:6380");
}

static inline void fake_client_memory(void *context, struct session_memory *memory)
{
    (void)context;
    *memory = (struct session_memory){.qbuf = 11, .qbuf_free = 22, .oll = 33, .omem = 44, .total = 55};
}

static inline void fake_client_list(void *context, struct resp_writer *text, const struct session *self)
{
    struct fixture *fixture = context;
    if (fixture->list_text != NULL)
        resp_write_raw(text, fixture->list_text, strlen(fixture->list_text));
    else
        session_write_line(self, &fixture->env, "p", "l", &(struct session_memory){0}, text);
}

static inline const uint8_t *fake_command_reply(void *context, uint8_t protocol, bool docs, uint32_t *length)
{
    struct fixture *fixture = context;
    const char *reply = docs ? fixture->backend_docs : fixture->backend_reply;
    fixture->asked_protocol = protocol;
    *length = reply == NULL ? 0 : (uint32_t)strlen(reply);
    return (const uint8_t *)reply;
}

static inline bool fake_client_endpoint(void *context, char *text)
{
    struct fixture *fixture = context;
    (void)snprintf(text, SESSION_ENDPOINT_MAX, "127.0.0.1:6380");
    return !fixture->has_no_endpoint;
}

static const struct request_ops fake_ops = {fake_cluster_command, fake_info_section, fake_client_addresses, fake_client_memory, fake_client_list, fake_command_reply, fake_client_endpoint};

static inline struct fixture *fixture_create(void)
{
    struct fixture *fixture = alloc_zeroed(sizeof(*fixture));
    fixture->table = command_table_create();
    session_init(&fixture->session, 42, 1000);
    fixture->env = (struct session_env){.commands = fixture->table, .context = fixture, .ops = &fake_ops, .now_ms = 1000, .realtime_us = UINT64_C(1700000000123456), .is_ready = true};
    resp_writer_init(&fixture->writer, 2);
    return fixture;
}

static inline void fixture_destroy(struct fixture **fixture)
{
    session_fini(&(*fixture)->session);
    resp_writer_fini(&(*fixture)->writer);
    command_table_destroy(&(*fixture)->table);
    alloc_free((*fixture)->bytes);
    alloc_free(*fixture);
    *fixture = NULL;
}

/* Splits words at spaces into arguments; "_" is an empty one; "~" within a word stands for a space, "$" for a line feed. The bytes are
 * on the heap and exactly as long as needed, so that a sanitizer sees a read behind them. */
static inline struct command_args fixture_args(struct fixture *fixture, const char *words)
{
    uint32_t count = 0, used = 0;
    size_t length = strlen(words);
    alloc_free(fixture->bytes);
    char *bytes = alloc_zeroed(length + 1);
    for (const char *at = words; *at != 0;) {
        size_t word = strcspn(at, " ");
        cr_assert(count < WORDS_MAX);
        bool is_empty = word == 1 && *at == '_';
        fixture->args[count++] = (struct resp_arg){.offset = used, .length = is_empty ? 0 : (uint32_t)word};
        for (size_t i = 0; i < word && !is_empty; i++)
            bytes[used++] = at[i] == '~' ? ' ' : at[i] == '$' ? '\n'
                                                              : at[i];
        at += word;
        at += *at == ' ' ? 1 : 0;
    }
    fixture->bytes = alloc_resize(bytes, used == 0 ? 1 : used);
    return (struct command_args){.base = fixture->bytes, .args = fixture->args, .count = count};
}

static inline const struct command *fixture_find(struct fixture *fixture, const struct command_args *args, bool *unknown_sub)
{
    return command_table_find(fixture->table, args->base + args->args[0].offset, args->args[0].length, args->count > 1 ? args->base + args->args[1].offset : NULL, args->count > 1 ? args->args[1].length : 0,
        unknown_sub);
}

/* Runs one command as a client's would be run, errors of look-up and arity included. Returns the reply, NUL behind it; valid until the
 * next call. */
static inline const char *run(struct fixture *fixture, const char *words)
{
    struct command_args args = fixture_args(fixture, words);
    bool unknown_sub;
    const struct command *command = fixture_find(fixture, &args, &unknown_sub);
    resp_writer_reset(&fixture->writer, fixture->session.protocol);
    fixture->result = SESSION_REPLY;
    fixture->sections[0] = 0;
    if (command == NULL)
        session_unknown_command(&args, unknown_sub, &fixture->writer);
    else if (!command_arity_ok(command, args.count))
        session_wrong_arity(fixture->table, command, &fixture->writer);
    else if (command->handling == HANDLE_LOCAL)
        fixture->result = session_execute(&fixture->session, &fixture->env, command, &args, &fixture->writer);
    else if (command->handling == HANDLE_UNSUPPORTED || command->handling == HANDLE_REFUSED)
        session_refuse(command, &fixture->writer);
    else if (command_is_unsupported_call(command, &args))
        session_refuse_call(command, &fixture->writer);
    else
        resp_write_simple(&fixture->writer, "FORWARDED");
    uint32_t length = fixture->writer.length;
    resp_write_raw(&fixture->writer, "", 1);
    fixture->writer.length = length;
    return (const char *)fixture->writer.data;
}
