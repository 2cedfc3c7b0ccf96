/*
 * A connection's own state and the commands that need nothing else: HELLO, AUTH, RESET, QUIT, PING, ECHO, TIME, SELECT, READONLY and
 * what the gateway says about commands it does not serve. Runs on the connection's home core. CLIENT is in session_client.c, COMMAND in
 * session_command.c, INFO and CONFIG GET in session_info.c.
 *
 * Reply mode (CLIENT REPLY):
 *
 *     ON ──OFF──► OFF ──ON, RESET──► ON
 *     ON ──SKIP──► SKIP_NEXT ──the next command──► ON
 */
#include "net/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"
#include "net/session_handlers.h"

_Static_assert(sizeof(struct session) <= 128, "every connection has one");

enum { UNKNOWN_NAME_MAX = 128, UNKNOWN_ARGS_MAX = 128 /* bytes of an unknown command that its error repeats, as Redis */ };

static const session_handler_fn handlers[LOCAL_COUNT] = {
#define ZG_LOCAL(name) [LOCAL_##name] = session_local_##name,
#include "net/command.def"
};

void session_init(struct session *session, uint64_t id, uint64_t now_ms)
{
    *session = (struct session){
        .id = id,
        .created_ms = now_ms,
        .last_command_ms = now_ms,
        .last_command = UINT16_MAX,
        .protocol = 2,
        .reply_mode = REPLY_ON,
        .is_authenticated = true,
    };
}

void session_fini(struct session *session)
{
    alloc_free(session->name);
    alloc_free(session->library);
    alloc_free(session->library_version);
    *session = (struct session){.protocol = 2};
}

bool session_takes_reply(struct session *session)
{
    if (session->reply_mode != REPLY_SKIP_NEXT)
        return session->reply_mode == REPLY_ON;
    session->reply_mode = REPLY_ON;
    return false;
}

enum session_result session_execute(struct session *session, const struct session_env *env, const struct command *command,
    const struct command_args *args, struct resp_writer *writer)
{
    ZG_CHECK(command->handling == HANDLE_LOCAL && command->local > LOCAL_none && command->local < LOCAL_COUNT);
    ZG_CHECK(args->count > 0);
    struct session_call call = {.session = session, .env = env, .command = command, .args = args, .writer = writer};
    uint32_t length_before = writer->length;
    writer->protocol = session->protocol;
    session->last_command = command->index;
    session->last_command_ms = env->now_ms;
    call.is_silent = !session_takes_reply(session);
    handlers[command->local](&call);
    writer->protocol = session->protocol;
    if (call.is_silent)
        writer->length = length_before;
    if (call.is_closing)
        return SESSION_REPLY_CLOSE;
    ZG_CHECK(call.is_silent || writer->length > length_before);
    return call.is_silent ? SESSION_NO_REPLY : SESSION_REPLY;
}

uint32_t session_arg_length(const struct session_call *call, uint32_t i)
{
    return call->args->args[i].length;
}

const uint8_t *session_arg(const struct session_call *call, uint32_t i)
{
    ZG_CHECK(i < call->args->count);
    return call->args->base + call->args->args[i].offset;
}

static uint8_t lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte | 0x20) : byte;
}

bool session_arg_is(const struct session_call *call, uint32_t i, const char *word)
{
    uint32_t length = (uint32_t)strlen(word);
    const uint8_t *bytes = session_arg(call, i);
    if (session_arg_length(call, i) != length)
        return false;
    for (uint32_t k = 0; k < length; k++)
        if (lower(bytes[k]) != (uint8_t)word[k])
            return false;
    return true;
}

bool session_arg_integer(const struct session_call *call, uint32_t i, int64_t *value)
{
    const uint8_t *bytes = session_arg(call, i);
    uint32_t length = session_arg_length(call, i);
    bool is_negative = length > 0 && bytes[0] == '-';
    uint32_t k = is_negative ? 1 : 0;
    if (k == length || length > 20 || (bytes[k] == '0' && length > 1))
        return false;
    uint64_t limit = is_negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    uint64_t total = 0;
    for (; k < length; k++) {
        if (bytes[k] < '0' || bytes[k] > '9')
            return false;
        uint64_t digit = (uint64_t)(bytes[k] - '0');
        if (total > (limit - digit) / 10)
            return false;
        total = total * 10 + digit;
    }
    *value = (int64_t)(is_negative ? 0 - total : total);
    return true;
}

void session_syntax_error(struct session_call *call)
{
    resp_write_error(call->writer, "ERR syntax error");
}

const char *session_printable(const uint8_t *bytes, uint32_t length, char *text, uint32_t bytes_max)
{
    uint32_t count = 0;
    for (; count < length && count < bytes_max && bytes[count] != 0; count++)
        text[count] = bytes[count] == '\r' || bytes[count] == '\n' ? ' ' : (char)bytes[count];
    text[count] = 0;
    return text;
}

bool session_text_ok(const struct session_call *call, uint32_t i)
{
    const uint8_t *bytes = session_arg(call, i);
    uint32_t length = session_arg_length(call, i);
    for (uint32_t k = 0; k < length; k++)
        if (bytes[k] < '!' || bytes[k] > '~')
            return false;
    return length <= SESSION_TEXT_MAX;
}

void session_text_set(char **text, const struct session_call *call, uint32_t i)
{
    uint32_t length = session_arg_length(call, i);
    alloc_free(*text);
    *text = length == 0 ? NULL : alloc_copy_text((const char *)session_arg(call, i), length);
}

bool session_name_check(struct session_call *call, uint32_t i)
{
    if (session_text_ok(call, i))
        return true;
    if (session_arg_length(call, i) > SESSION_TEXT_MAX)
        resp_write_error(call->writer, "ERR Client names cannot be longer than %d bytes.", SESSION_TEXT_MAX);
    else
        resp_write_error(call->writer, "ERR Client names cannot contain spaces, newlines or special characters.");
    return false;
}

/* ---- HELLO and AUTH ---- */

/* No passwords are configured towards clients: the default user takes any, as Redis's "nopass" user does, and there is no other. */
static bool authenticate(const struct session_call *call, uint32_t user)
{
    return session_arg_length(call, user) == 7 && memcmp(session_arg(call, user), "default", 7) == 0;
}

static void wrong_password(struct session_call *call)
{
    resp_write_error(call->writer, "WRONGPASS invalid username-password pair or user is disabled.");
}

void session_local_auth(struct session_call *call)
{
    if (call->args->count > 3)
        session_syntax_error(call);
    else if (call->args->count == 2)
        resp_write_error(call->writer,
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?");
    else if (authenticate(call, 1))
        resp_write_simple(call->writer, "OK");
    else
        wrong_password(call);
}

struct hello_options {
    int64_t version; /* 0: not given */
    uint32_t user;   /* argument of the user's name, 0: none */
    uint32_t name;   /* argument of the connection's name, 0: none */
};

/* Writes the error and returns false where an option is wrong. */
static bool hello_parse(struct session_call *call, struct hello_options *options)
{
    uint32_t count = call->args->count;
    if (count >= 2 && !session_arg_integer(call, 1, &options->version)) {
        resp_write_error(call->writer, "ERR Protocol version is not an integer or out of range");
        return false;
    }
    if (count >= 2 && options->version != 2 && options->version != 3) {
        resp_write_error(call->writer, "NOPROTO unsupported protocol version");
        return false;
    }
    for (uint32_t i = 2; i < count; i++) {
        uint32_t left = count - 1 - i;
        if (session_arg_is(call, i, "auth") && left >= 2) {
            options->user = i + 1;
            i += 2;
        } else if (session_arg_is(call, i, "setname") && left >= 1) {
            options->name = ++i;
            if (!session_name_check(call, i))
                return false;
        } else {
            char option[UNKNOWN_NAME_MAX + 1];
            session_printable(session_arg(call, i), session_arg_length(call, i), option, UNKNOWN_NAME_MAX);
            resp_write_error(call->writer, "ERR Syntax error in HELLO option '%s'", option);
            return false;
        }
    }
    return true;
}

void session_local_hello(struct session_call *call)
{
    struct hello_options options = {0};
    if (!hello_parse(call, &options))
        return;
    if (options.user != 0 && !authenticate(call, options.user)) {
        wrong_password(call);
        return;
    }
    if (options.name != 0)
        session_text_set(&call->session->name, call, options.name);
    if (options.version != 0)
        call->session->protocol = (uint8_t)options.version;
    struct resp_writer *writer = call->writer;
    writer->protocol = call->session->protocol;
    resp_write_map(writer, 7);
    resp_write_text(writer, "server");
    resp_write_text(writer, "redis");
    resp_write_text(writer, "version");
    resp_write_text(writer, SESSION_REDIS_VERSION);
    resp_write_text(writer, "proto");
    resp_write_integer(writer, call->session->protocol);
    resp_write_text(writer, "id");
    resp_write_integer(writer, (int64_t)call->session->id);
    resp_write_text(writer, "mode");
    resp_write_text(writer, call->env->present_cluster ? "cluster" : "standalone");
    resp_write_text(writer, "role");
    resp_write_text(writer, "master");
    resp_write_text(writer, "modules");
    resp_write_array(writer, 0);
}

void session_local_reset(struct session_call *call)
{
    struct session *session = call->session;
    alloc_free(session->name);
    session->name = NULL;
    session->protocol = 2;
    session->reply_mode = REPLY_ON;
    session->moving = MOVING_OFF;
    session->is_readonly = false;
    session->no_evict = false;
    session->no_touch = false;
    call->is_silent = false;
    resp_write_simple(call->writer, "RESET");
}

void session_local_quit(struct session_call *call)
{
    call->is_closing = true;
    resp_write_simple(call->writer, "OK");
}

/* ---- small ones ---- */

void session_local_ping(struct session_call *call)
{
    if (call->args->count > 2)
        resp_write_error(call->writer, "ERR wrong number of arguments for 'ping' command");
    else if (call->args->count == 2)
        resp_write_bulk(call->writer, session_arg(call, 1), session_arg_length(call, 1));
    else
        resp_write_simple(call->writer, "PONG");
}

void session_local_echo(struct session_call *call)
{
    resp_write_bulk(call->writer, session_arg(call, 1), session_arg_length(call, 1));
}

void session_local_time(struct session_call *call)
{
    resp_write_array(call->writer, 2);
    resp_write_bulk_format(call->writer, "%" PRIu64, call->env->realtime_us / 1000000);
    resp_write_bulk_format(call->writer, "%" PRIu64, call->env->realtime_us % 1000000);
}

void session_local_select(struct session_call *call)
{
    int64_t database;
    if (!session_arg_integer(call, 1, &database))
        resp_write_error(call->writer, "ERR value is not an integer or out of range");
    else if (database < INT32_MIN || database > INT32_MAX)
        resp_write_error(call->writer, "ERR value is out of range, value must between %d and %d", INT32_MIN, INT32_MAX);
    else if (database != 0)
        resp_write_error(call->writer, call->env->present_cluster ? "ERR SELECT is not allowed in cluster mode" : "ERR DB index is out of range");
    else
        resp_write_simple(call->writer, "OK");
}

/* READONLY, READWRITE and ASKING exist in cluster mode only. */
static bool is_cluster(struct session_call *call)
{
    if (!call->env->present_cluster)
        resp_write_error(call->writer, "ERR This instance has cluster support disabled");
    return call->env->present_cluster;
}

void session_local_readonly(struct session_call *call)
{
    if (!is_cluster(call))
        return;
    call->session->is_readonly = true;
    resp_write_simple(call->writer, "OK");
}

void session_local_readwrite(struct session_call *call)
{
    if (!is_cluster(call))
        return;
    call->session->is_readonly = false;
    resp_write_simple(call->writer, "OK");
}

/* The gateway follows redirections itself, so that a client's ASKING changes nothing. */
void session_local_asking(struct session_call *call)
{
    if (is_cluster(call))
        resp_write_simple(call->writer, "OK");
}

void session_local_cluster(struct session_call *call)
{
    call->env->ops->cluster_command(call->env->context, call->session, call->command, call->args, call->writer);
}

/* Which subcommands of the container the gateway serves. */
static bool help_lists(const struct session_call *call, uint16_t index)
{
    const struct command *row = command_table_at(call->env->commands, index);
    bool is_served = row->handling != HANDLE_UNSUPPORTED && row->handling != HANDLE_REFUSED;
    return is_served && row->parent == call->command->parent && row->index != row->parent;
}

static void write_upper(struct resp_writer *writer, const char *name, const char *behind)
{
    char text[COMMAND_NAME_MAX + 64];
    uint32_t length = 0;
    for (; name[length] != 0; length++)
        text[length] = name[length] >= 'a' && name[length] <= 'z' ? (char)(name[length] - 0x20) : name[length];
    (void)snprintf(text + length, sizeof(text) - length, "%s", behind);
    resp_write_simple(writer, text);
}

void session_local_help(struct session_call *call)
{
    const struct command_table *table = call->env->commands;
    uint32_t listed = 0;
    for (uint16_t i = 0; i < command_table_count(table); i++)
        listed += help_lists(call, i) ? 1 : 0;
    resp_write_array(call->writer, 1 + listed);
    write_upper(call->writer, command_parent(call->command)->name, " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    for (uint16_t i = 0; i < command_table_count(table); i++)
        if (help_lists(call, i))
            write_upper(call->writer, command_table_at(table, i)->name, "");
}

/* ---- errors ---- */

void session_unknown_command(const struct command_args *args, bool unknown_sub, struct resp_writer *writer)
{
    char name[UNKNOWN_NAME_MAX + 1];
    ZG_CHECK(args->count > (unknown_sub ? 1u : 0u));
    if (unknown_sub) {
        char container[COMMAND_NAME_MAX + 1];
        session_printable(args->base + args->args[0].offset, args->args[0].length, container, COMMAND_NAME_MAX);
        for (char *at = container; *at != 0; at++)
            *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 0x20) : *at;
        session_printable(args->base + args->args[1].offset, args->args[1].length, name, UNKNOWN_NAME_MAX);
        resp_write_error(writer, "ERR unknown subcommand '%s'. Try %s HELP.", name, container);
        return;
    }
    /* As Redis: arguments are added while fewer than 128 bytes are there, each cut to what is left; quotes and spaces come on top, hence
     * the room. */
    char list[UNKNOWN_ARGS_MAX * 2 + 8];
    uint32_t length = 0;
    for (uint32_t i = 1; i < args->count && length < UNKNOWN_ARGS_MAX; i++) {
        char one[UNKNOWN_ARGS_MAX + 1];
        session_printable(args->base + args->args[i].offset, args->args[i].length, one, UNKNOWN_ARGS_MAX - length);
        length += (uint32_t)snprintf(list + length, sizeof(list) - length, "'%s' ", one);
    }
    list[length] = 0;
    session_printable(args->base + args->args[0].offset, args->args[0].length, name, UNKNOWN_NAME_MAX);
    resp_write_error(writer, "ERR unknown command '%s', with args beginning with: %s", name, list);
}

void session_wrong_arity(const struct command_table *table, const struct command *command, struct resp_writer *writer)
{
    char name[COMMAND_NAME_MAX * 2];
    ZG_CHECK(command->index < command_table_count(table));
    (void)command_full_name(command, name);
    resp_write_error(writer, "ERR wrong number of arguments for '%s' command", name);
}

void session_refuse(const struct command *command, struct resp_writer *writer)
{
    char name[COMMAND_NAME_MAX * 2];
    (void)command_full_name(command, name);
    if (command->handling == HANDLE_REFUSED)
        resp_write_error(writer, "ERR '%s' is not allowed through the gateway", name);
    else
        resp_write_error(writer, "ERR '%s' is not supported by this version of the gateway", name);
}

void session_refuse_call(const struct command *command, struct resp_writer *writer)
{
    bool is_sort = command->index == COMMAND_sort || command->index == COMMAND_sort_ro;
    const char *option = is_sort ? "BY or GET patterns" : "BLOCK";
    resp_write_error(writer, "ERR '%s' with %s is not supported by this version of the gateway", command->name, option);
}
