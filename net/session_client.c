/*
 * CLIENT: what a connection says about itself and may ask about itself. Runs on the connection's home core.
 * Source of texts and formats: redis-server 7.0.15; SETINFO and NO-TOUCH: Redis 7.2.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "net/session_handlers.h"

enum { ADDRESS_MAX = 128 };

void session_local_client_id(struct session_call *call)
{
    resp_write_integer(call->writer, (int64_t)call->session->id);
}

void session_local_client_getname(struct session_call *call)
{
    if (call->session->name == NULL)
        resp_write_null(call->writer);
    else
        resp_write_text(call->writer, call->session->name);
}

void session_local_client_setname(struct session_call *call)
{
    if (!session_name_check(call, 2))
        return;
    session_text_set(&call->session->name, call, 2);
    resp_write_simple(call->writer, "OK");
}

void session_local_client_setinfo(struct session_call *call)
{
    char option[SESSION_TEXT_MAX + 1];
    char **text;
    session_printable(session_arg(call, 2), session_arg_length(call, 2), option, SESSION_TEXT_MAX);
    if (session_arg_is(call, 2, "lib-name")) {
        text = &call->session->library;
    } else if (session_arg_is(call, 2, "lib-ver")) {
        text = &call->session->library_version;
    } else {
        resp_write_error(call->writer, "ERR Unrecognized option '%s'", option);
        return;
    }
    if (session_arg_length(call, 3) > SESSION_TEXT_MAX) {
        resp_write_error(call->writer, "ERR %s cannot be longer than %d bytes.", option, SESSION_TEXT_MAX);
    } else if (!session_text_ok(call, 3)) {
        resp_write_error(call->writer, "ERR %s cannot contain spaces, newlines or special characters.", option);
    } else {
        session_text_set(text, call, 3);
        resp_write_simple(call->writer, "OK");
    }
}

/* ON or OFF in argument 2; the flags are kept for CLIENT INFO, the gateway evicts and touches nothing. */
static void set_flag(struct session_call *call, bool *flag)
{
    bool is_on = session_arg_is(call, 2, "on");
    if (!is_on && !session_arg_is(call, 2, "off")) {
        session_syntax_error(call);
        return;
    }
    *flag = is_on;
    resp_write_simple(call->writer, "OK");
}

void session_local_client_no_evict(struct session_call *call)
{
    set_flag(call, &call->session->no_evict);
}

void session_local_client_no_touch(struct session_call *call)
{
    set_flag(call, &call->session->no_touch);
}

/* What clients send: CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type TYPE. The gateway has one address for each listener, whatever the type; a client that asks for `none` takes its own configuration's.
 * Clients in their usual mode go on after an error, so a connection that could not be told a place gets one here, rather than a MOVING that its client would not survive. */
void session_local_client_maint_notifications(struct session_call *call)
{
    static const char *const types[] = {"internal-ip", "internal-fqdn", "external-ip", "external-fqdn"};
    char endpoint[SESSION_ENDPOINT_MAX];
    uint32_t count = call->args->count;
    bool is_on = session_arg_is(call, 2, "on"), has_type = count == 5 && session_arg_is(call, 3, "moving-endpoint-type");
    bool wants_none = count == 3 || (has_type && session_arg_is(call, 4, "none")), wants_place = false;
    for (size_t i = 0; has_type && i < sizeof(types) / sizeof(types[0]); i++)
        wants_place = wants_place || session_arg_is(call, 4, types[i]);
    if ((!is_on && !(session_arg_is(call, 2, "off") && count == 3)) || (is_on && !wants_none && !wants_place)) {
        session_syntax_error(call);
    } else if (!is_on) {
        call->session->moving = MOVING_OFF;
        resp_write_simple(call->writer, "OK");
    } else if (call->session->protocol != 3) {
        resp_write_error(call->writer, "ERR maintenance notifications are pushes, which need RESP3: send HELLO 3 first");
    } else if (wants_place && !call->env->ops->client_endpoint(call->env->context, endpoint)) {
        resp_write_error(call->writer, "ERR this listener has no address of that moving-endpoint-type; 'none' is possible");
    } else {
        call->session->moving = wants_place ? MOVING_ENDPOINT : MOVING_NO_ENDPOINT;
        resp_write_simple(call->writer, "OK");
    }
}

/* No client-side caching: nobody is redirected to. */
void session_local_client_getredir(struct session_call *call)
{
    resp_write_integer(call->writer, -1);
}

void session_local_client_reply(struct session_call *call)
{
    struct session *session = call->session;
    if (session_arg_is(call, 2, "on")) {
        session->reply_mode = REPLY_ON;
        call->is_silent = false;
        resp_write_simple(call->writer, "OK");
    } else if (session_arg_is(call, 2, "off")) {
        session->reply_mode = REPLY_OFF;
        call->is_silent = true;
    } else if (session_arg_is(call, 2, "skip")) {
        if (session->reply_mode != REPLY_OFF)
            session->reply_mode = REPLY_SKIP_NEXT;
        call->is_silent = true;
    } else {
        session_syntax_error(call);
    }
}

void session_write_line(const struct session *session, const struct session_env *env, const char *peer, const char *local, const struct session_memory *memory, struct resp_writer *text)
{
    /* Loop times never run backwards within a core; a session that was handed over may be younger than the loop's last look at the
     * clock. */
    uint64_t age_ms = env->now_ms > session->created_ms ? env->now_ms - session->created_ms : 0;
    uint64_t idle_ms = env->now_ms > session->last_command_ms ? env->now_ms - session->last_command_ms : 0;
    char command[COMMAND_NAME_MAX * 2] = "NULL";
    if (session->last_command < command_table_count(env->commands))
        (void)command_full_name(command_table_at(env->commands, session->last_command), command);
    char flags[8];
    uint32_t count = 0;
    if (session->is_readonly)
        flags[count++] = 'r';
    if (session->no_evict)
        flags[count++] = 'e';
    if (session->no_touch)
        flags[count++] = 'T';
    if (count == 0)
        flags[count++] = 'N';
    flags[count] = 0;
    char head[512];
    int length = snprintf(head, sizeof(head), "id=%" PRIu64 " addr=%.127s laddr=%.127s fd=-1 name=", session->id, peer, local);
    ZG_CHECK(length > 0 && (size_t)length < sizeof(head));
    resp_write_raw(text, head, (size_t)length);
    if (session->name != NULL)
        resp_write_raw(text, session->name, strlen(session->name));
    length = snprintf(head, sizeof(head),
        " age=%" PRIu64 " idle=%" PRIu64 " flags=%s db=0 sub=0 psub=0 ssub=0 multi=-1 qbuf=%" PRIu64 " qbuf-free=%" PRIu64 " argv-mem=0 multi-mem=0 "
        "rbs=0 rbp=0 obl=0 oll=%" PRIu64 " omem=%" PRIu64 " tot-mem=%" PRIu64 " events=r "
        "cmd=%s user=default redir=-1 resp=%u lib-name=",
        age_ms / 1000, idle_ms / 1000, flags, memory->qbuf, memory->qbuf_free, memory->oll, memory->omem, memory->total, command, session->protocol);
    ZG_CHECK(length > 0 && (size_t)length < sizeof(head));
    resp_write_raw(text, head, (size_t)length);
    if (session->library != NULL)
        resp_write_raw(text, session->library, strlen(session->library));
    resp_write_raw(text, " lib-ver=", 9);
    if (session->library_version != NULL)
        resp_write_raw(text, session->library_version, strlen(session->library_version));
    resp_write_raw(text, "\n", 1);
}

void session_local_client_info(struct session_call *call)
{
    char peer[ADDRESS_MAX] = "", local[ADDRESS_MAX] = "";
    call->env->ops->client_addresses(call->env->context, peer, local, ADDRESS_MAX);
    struct session_memory memory;
    call->env->ops->client_memory(call->env->context, &memory);
    struct resp_writer text;
    resp_writer_init(&text, 2);
    session_write_line(call->session, call->env, peer, local, &memory, &text);
    resp_write_verbatim(call->writer, text.data, text.length);
    resp_writer_fini(&text);
}

/* Is the id at the head of the line ("id=17 ...") one of the arguments from `first`? All of them were checked to be numbers. */
static bool line_is_listed(const struct session_call *call, uint32_t first, const uint8_t *line, uint32_t length)
{
    uint64_t id = 0;
    for (uint32_t i = 3; i < length && line[i] >= '0' && line[i] <= '9'; i++)
        id = id * 10 + (uint64_t)(line[i] - '0');
    for (uint32_t i = first; i < call->args->count; i++) {
        int64_t wanted;
        if (session_arg_integer(call, i, &wanted) && (uint64_t)wanted == id)
            return true;
    }
    return false;
}

/* Keeps the lines whose id is listed, in place. */
static void lines_filter(const struct session_call *call, uint32_t first, struct resp_writer *text)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < text->length;) {
        const uint8_t *end = memchr(text->data + at, '\n', text->length - at);
        uint32_t length = end == NULL ? text->length - at : (uint32_t)(end - (text->data + at)) + 1;
        if (line_is_listed(call, first, text->data + at, length)) {
            memmove(text->data + kept, text->data + at, length);
            kept += length;
        }
        at += length;
    }
    text->length = kept;
}

/* Types of clients that a server has and the gateway has not. */
static bool is_other_type(const struct session_call *call)
{
    return session_arg_is(call, 3, "master") || session_arg_is(call, 3, "replica") || session_arg_is(call, 3, "slave") ||
        session_arg_is(call, 3, "pubsub");
}

void session_local_client_list(struct session_call *call)
{
    uint32_t count = call->args->count;
    bool by_type = count == 4 && session_arg_is(call, 2, "type");
    bool by_id = count > 3 && session_arg_is(call, 2, "id");
    bool is_normal = by_type && session_arg_is(call, 3, "normal");
    if (count != 2 && !by_type && !by_id) {
        session_syntax_error(call);
        return;
    }
    if (by_type && !is_normal && !is_other_type(call)) {
        char type[ADDRESS_MAX + 1];
        session_printable(session_arg(call, 3), session_arg_length(call, 3), type, ADDRESS_MAX);
        resp_write_error(call->writer, "ERR Unknown client type '%s'", type);
        return;
    }
    for (uint32_t i = 3; by_id && i < count; i++) {
        int64_t id;
        if (!session_arg_integer(call, i, &id)) {
            resp_write_error(call->writer, "ERR Invalid client ID");
            return;
        }
    }
    struct resp_writer text;
    resp_writer_init(&text, 2);
    if (!by_type || is_normal)
        call->env->ops->client_list(call->env->context, &text, call->session);
    if (by_id)
        lines_filter(call, 3, &text);
    resp_write_verbatim(call->writer, text.data, text.length);
    resp_writer_fini(&text);
}
