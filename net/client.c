/*
 * Owns: clients of one core: parsing, order of replies, back-pressure. Runs on: their home core.
 */
#include "net/client.h"

#include <string.h>

#include "net/listener.h"
#include "net/net.h"
#include "net/stream.h"

enum {
    INPUT_PAUSED_MAX = 64 * 1024, /* a paused client is read up to this many unparsed bytes */
    WINDOW_FIRST = 256,           /* requests in flight of a client whose replies are not known yet */
    INPUT_FIRST = 220,            /* room for a short command in the smallest block */
    COMMANDS_PER_TURN = 2048,     /* of one client in one go, so that a huge pipeline does not starve others */
};

static void parse_input(struct net *net, struct client *client);
static void cut(struct net *net, struct client *client);

static void run_task(struct core *core, struct task *task)
{
    struct client *client = LIST_ENTRY(task, struct client, task);
    struct net *net = core->net;
    if (!conn_is_open(&client->conn) || client->pause != 0)
        return;
    parse_input(net, client);
    if (client->pause == 0 && (client->drain & DRAIN_CUT) == 0 && conn_is_open(&client->conn) && !list_is_linked(&client->task.node))
        conn_resume(core, &client->conn);
}

/* Where the reply of the gateway itself goes: straight out, or behind the requests in flight. There is room: see has_room. */
static void reply_from_writer(struct net *net, struct client *client, bool is_silent, bool closes)
{
    struct reply reply = {.bytes = net->writer.data, .length = net->writer.length};
    if (client->fifo_head == NULL) {
        if (!is_silent && reply.length > 0)
            client_queue_reply(net, client, &reply);
        if (closes)
            conn_close_after_send(net->core, &client->conn, CLOSE_QUIT);
        return;
    }
    struct request *request = request_create(net, client, 0);
    ZG_CHECK(request != NULL);
    request->flags = (uint8_t)((is_silent || reply.length == 0 ? REQUEST_SILENT : 0) | (closes ? REQUEST_CLOSE : 0));
    request_answer(net, request, &reply);
}

/* A request object is needed only behind others; without one the command waits for those. */
static bool has_room(struct net *net, struct client *client)
{
    if (client->fifo_head == NULL)
        return true;
    if (client->inflight >= client->window) {
        client_pause(net, client, PAUSE_PIPELINE);
        return false;
    }
    if (net->requests.live_count < net->requests.objects_max)
        return true;
    client_pause(net, client, PAUSE_DRAIN);
    return false;
}

static bool execute_local(struct net *net, struct client *client, const struct dispatch_command *command)
{
    if ((command->command->flags & CMD_BARRIER) != 0 && client->inflight > 0) {
        client_pause(net, client, PAUSE_DRAIN);
        return false;
    }
    if (!has_room(net, client))
        return false;
    struct core *core = net->core;
    struct session_env *env = &net->session_env;
    env->now_ms = core->now_ms;
    env->realtime_us = core_realtime_ns(core) / 1000;
    env->present_cluster = net_listener_presents_cluster(net, client->listener);
    resp_writer_reset(&net->writer, client->session.protocol);
    enum session_result result = session_execute(&client->session, env, command->command, &command->args, &net->writer);
    metric_add(core->metrics, METRIC_requests_local_total, 1);
    reply_from_writer(net, client, result == SESSION_NO_REPLY, result == SESSION_REPLY_CLOSE);
    return true;
}

static bool refuse(struct net *net, struct client *client, const struct dispatch_command *command, bool unknown_sub)
{
    if (!has_room(net, client))
        return false;
    resp_writer_reset(&net->writer, client->session.protocol);
    if (command->command == NULL)
        session_unknown_command(&command->args, unknown_sub, &net->writer);
    else if (!command_arity_ok(command->command, command->args.count))
        session_wrong_arity(net->session_env.commands, command->command, &net->writer);
    else if (command->command->handling == HANDLE_FORWARD)
        session_refuse_call(command->command, &net->writer);
    else
        session_refuse(command->command, &net->writer);
    metric_add(net->core->metrics, METRIC_request_errors_total, 1);
    reply_from_writer(net, client, !session_takes_reply(&client->session), false);
    return true;
}

static bool forward(struct net *net, struct client *client, const struct dispatch_command *command)
{
    if (client->inflight >= client->window || (client->held_bytes > net->core->config->limits.client_commands_bytes && client->inflight > 0)) {
        client_pause(net, client, PAUSE_PIPELINE);
        return false;
    }
    net->is_silent = client->session.reply_mode != REPLY_ON;
    enum dispatch_result result = net->ops->dispatch(net, client, command);
    net->is_silent = false;
    switch (result) {
    case DISPATCH_TAKEN:
        (void)session_takes_reply(&client->session);
        return true;
    case DISPATCH_DRAIN:
        client_pause(net, client, PAUSE_DRAIN);
        return false;
    case DISPATCH_CREDIT:
        client_pause(net, client, PAUSE_CREDIT);
        return false;
    }
    ZG_UNREACHABLE();
}

static const struct command *find_command(struct net *net, const struct command_args *args, const uint8_t *name, bool *unknown_sub)
{
    uint32_t length = args->args[0].length;
    if (net->last_name_length == length && memcmp(net->last_name, name, length) == 0)
        return net->last_command;
    const uint8_t *sub = args->count > 1 ? args->base + args->args[1].offset : NULL;
    uint32_t sub_length = args->count > 1 ? args->args[1].length : 0;
    const struct command *found = command_table_find(net->session_env.commands, name, length, sub, sub_length, unknown_sub);
    if (found != NULL && !found->is_container && found->parent == found->index && length < sizeof(net->last_name)) {
        net->last_command = found;
        net->last_name_length = length;
        memcpy(net->last_name, name, length);
    }
    return found;
}

/* One whole command; false where it has to be offered again later (the client is paused). */
static bool execute(struct net *net, struct client *client, struct dispatch_command *command)
{
    const struct command_args *args = &command->args;
    const uint8_t *name = args->base + args->args[0].offset;
    bool unknown_sub = false;
    const struct command *found = find_command(net, args, name, &unknown_sub);
    command->command = found;
    if (__builtin_expect(found == NULL || !command_arity_ok(found, args->count), 0))
        return refuse(net, client, command, unknown_sub);
    client->session.last_command = found->index;
    client->session.last_command_ms = net->core->now_ms;
    switch ((enum command_handling)found->handling) {
    case HANDLE_FORWARD:
        if (__builtin_expect(command_is_unsupported_call(found, args), 0))
            return refuse(net, client, command, false);
        return forward(net, client, command);
    case HANDLE_SPLIT:
        return forward(net, client, command);
    case HANDLE_LOCAL:
        return execute_local(net, client, command);
    case HANDLE_UNSUPPORTED:
    case HANDLE_REFUSED:
        return refuse(net, client, command, false);
    }
    ZG_UNREACHABLE();
}

/* The bytes at fault stay unparsed: where the answer has no room yet they are found again. */
static void protocol_error(struct net *net, struct client *client)
{
    if (!has_room(net, client))
        return;
    resp_writer_reset(&net->writer, client->session.protocol);
    resp_write_error(&net->writer, "ERR %s", net->scanner.error);
    core_log(net->core, LOG_INFO, "protocol_error", "client=%llu", (unsigned long long)client->session.id);
    reply_from_writer(net, client, false, true);
    /* Nothing behind it is read: the stream has lost its meaning. */
    client->pause |= PAUSE_END;
    conn_pause(net->core, &client->conn);
}

/* An inline command goes on in its RESP form, which is what a backend is sent. False: that form is larger than a command may be. */
static bool unfold_inline(struct net *net, struct dispatch_command *command)
{
    struct resp_command_scanner *scanner = &net->scanner;
    struct resp_writer *writer = &net->inline_writer;
    resp_writer_reset(writer, 2);
    resp_write_array(writer, scanner->args_count);
    for (uint32_t i = 0; i < scanner->args_count; i++)
        resp_write_bulk(writer, resp_arg_bytes(scanner, NULL, i), scanner->args[i].length);
    struct resp_command_state state = {0};
    enum resp_result result = resp_scan_command(scanner, &state, writer->data, writer->length);
    if (result != RESP_DONE) {
        scanner->error = "Protocol error: too big inline request";
        return false;
    }
    command->bytes = writer->data;
    command->length = writer->length;
    command->block = NULL;
    return true;
}

/* Parses whole commands from bytes; returns how many bytes were used. */
static uint32_t parse(struct net *net, struct client *client, struct block *block, const uint8_t *bytes, uint32_t length)
{
    struct resp_command_scanner *scanner = &net->scanner;
    uint32_t position = 0;
    uint32_t commands = 0;
    uint32_t taken_count = 0;
    while (position < length && client->pause == 0 && conn_is_open(&client->conn) && (client->conn.flags & CONN_CLOSE_AFTER_SEND) == 0) {
        if (commands++ == COMMANDS_PER_TURN) {
            core_enqueue(net->core, &client->task);
            break;
        }
        enum resp_result result = resp_scan_command(scanner, &client->scan, bytes + position, length - position);
        if (result == RESP_MORE)
            break;
        if (result == RESP_ERROR) {
            protocol_error(net, client);
            break;
        }
        uint32_t consumed = scanner->consumed;
        if (result == RESP_DONE) {
            struct dispatch_command command = {.bytes = bytes + position, .length = consumed, .block = block};
            if (scanner->is_inline && !unfold_inline(net, &command)) {
                protocol_error(net, client);
                break;
            }
            command.args = (struct command_args){.base = command.bytes, .args = scanner->args, .count = scanner->args_count};
            net->current = client;
            bool taken = execute(net, client, &command);
            net->current = NULL;
            if (!taken)
                break;
            taken_count++;
            if (__builtin_expect((client->drain & DRAIN_LAST) != 0, 0)) {
                cut(net, client);
                position = length;
                break;
            }
        }
        position += consumed;
    }
    if (taken_count > 0)
        metric_add(net->core->metrics, METRIC_requests_total, taken_count);
    return position;
}

static void drop_input(struct net *net, struct client *client)
{
    net->account.input -= client->input->user;
    arena_put(net->core->arena, &client->input);
}

/* Keeps bytes that are not parsed yet behind those already kept. False: no memory, the client is closed. */
static bool keep_input(struct net *net, struct client *client, const uint8_t *bytes, uint32_t length)
{
    struct core *core = net->core;
    struct block *input = client->input;
    uint32_t have = input != NULL ? input->length - input->offset : 0;
    if (input == NULL || block_capacity(input) - input->length < length) {
        uint64_t wanted = (uint64_t)have + length;
        if (wanted < client->scan.needed)
            wanted = client->scan.needed;
        else if (have > 0)
            wanted *= 2;
        struct block *larger = arena_get(core->arena, wanted < INPUT_FIRST ? INPUT_FIRST : (uint32_t)wanted);
        if (larger == NULL) {
            wanted = (uint64_t)have + length;
            larger = arena_get(core->arena, (uint32_t)wanted);
        }
        if (larger == NULL) {
            conn_close(core, &client->conn, CLOSE_NO_MEMORY);
            return false;
        }
        if (have > 0)
            memcpy(larger->data, input->data + input->offset, have);
        larger->length = have;
        larger->user = wanted;
        net->account.input += wanted;
        if (input != NULL)
            drop_input(net, client);
        client->input = larger;
        input = larger;
    }
    memcpy(input->data + input->length, bytes, length);
    input->length += length;
    return true;
}

static void parse_input(struct net *net, struct client *client)
{
    struct block *input = client->input;
    if (input == NULL)
        return;
    /* The block is held across the call: a reply may close the client, which drops its input. */
    struct block *held = block_ref(input);
    uint32_t used = parse(net, client, input, input->data + input->offset, input->length - input->offset);
    arena_put(net->core->arena, &held);
    if (client->input == NULL)
        return;
    input->offset += used;
    if (input->offset == input->length)
        drop_input(net, client);
}

static void on_data(struct core *core, struct conn *conn, struct block *block, const uint8_t *bytes, uint32_t length)
{
    struct client *client = client_of_conn(conn);
    struct net *net = core->net;
    metric_add(core->metrics, METRIC_bytes_from_clients_total, length);
    wait_client_active(&core->wait, &client->active_stamp);
    if ((conn->flags & CONN_CLOSE_AFTER_SEND) != 0 || (client->drain & DRAIN_CUT) != 0)
        return;
    if (client->input == NULL && client->pause == 0) {
        uint32_t used = parse(net, client, block, bytes, length);
        if (!conn_is_open(conn) || used == length)
            return;
        bytes += used;
        length -= used;
        if (!keep_input(net, client, bytes, length))
            return;
    } else {
        if (!keep_input(net, client, bytes, length))
            return;
        if (client->pause == 0 && !list_is_linked(&client->task.node))
            parse_input(net, client);
    }
    if (client->pause != 0 && client->input != NULL && client->input->length - client->input->offset >= INPUT_PAUSED_MAX)
        conn_pause(core, conn);
}

static void on_connect(struct core *core, struct conn *conn, int32_t result)
{
    (void)core;
    (void)conn;
    (void)result;
    ZG_UNREACHABLE();
}

static void on_sent(struct core *core, struct conn *conn)
{
    struct client *client = client_of_conn(conn);
    if ((client->pause & PAUSE_OUTPUT) != 0 && (conn->flags & CONN_CLOSE_AFTER_SEND) == 0 &&
        conn->out.bytes <= core->config->limits.client_output_soft_bytes / 2)
        client_wake(core->net, client, PAUSE_OUTPUT);
    if (client->is_throttling && conn->out.bytes <= core->config->limits.stream_window_bytes / 2) {
        client->is_throttling = false;
        if (client->fifo_head != NULL && (client->fifo_head->flags & REQUEST_STREAM) != 0)
            stream_resume(core->net, client->fifo_head->stream);
    }
}

static void on_closing(struct core *core, struct conn *conn)
{
    struct client *client = client_of_conn(conn);
    struct net *net = core->net;
    enum close_reason reason = (enum close_reason)conn->close_reason;
    core_log(core, close_reason_is_error(reason) ? LOG_INFO : LOG_DEBUG, "client_closed", "client=%llu reason=\"%s\" inflight=%u",
        (unsigned long long)client->session.id, close_reason_text(reason), client->inflight);
    metric_add(core->metrics, METRIC_clients_closed_total, 1);
    list_remove(&client->all);
    if (list_is_linked(&client->waiting))
        list_remove(&client->waiting);
    if (list_is_linked(&client->task.node))
        list_remove(&client->task.node);
    while (client->fifo_head != NULL) {
        struct request *request = client->fifo_head;
        client->fifo_head = request->next;
        account_request_left(net, client, request);
        request_orphan(net, request);
    }
    client->fifo_tail = NULL;
    client_inflight_remove(core, client, client->inflight);
    net->account.paused_count -= (client->pause & PAUSE_MEMORY) != 0;
    if (client->input != NULL)
        drop_input(net, client);
}

static void on_released(struct core *core, struct conn *conn)
{
    struct client *client = client_of_conn(conn);
    struct net *net = core->net;
    session_fini(&client->session);
    pool_put(&net->clients, &client);
    metric_set(core->metrics, METRIC_clients, net->clients.live_count);
    if (!net->is_draining)
        listeners_retry(net);
}

static const struct conn_ops client_ops = {
    .on_data = on_data,
    .on_connect = on_connect,
    .on_sent = on_sent,
    .on_closing = on_closing,
    .on_released = on_released,
};

struct client *client_open(struct net *net, struct ring_file file, uint16_t listener)
{
    struct client *client = pool_get(&net->clients);
    if (client == NULL)
        return NULL;
    struct core *core = net->core;
    conn_init(&client->conn, CONN_CLIENT, &client_ops, &transport_plain, file);
    /* Unique over all cores: the core's number in the low digits. */
    session_init(&client->session, net->next_client_id++ * net->core->shared->cores_count + core->id, core->now_ms);
    list_init(&client->all);
    list_init(&client->waiting);
    task_init(&client->task, run_task);
    list_push_back(&net->clients_all, &client->all);
    client->listener = listener;
    uint32_t pipeline_max = core->config->limits.pipeline_per_client;
    client->window = pipeline_max < WINDOW_FIRST ? pipeline_max : WINDOW_FIRST;
    metric_set(core->metrics, METRIC_clients, net->clients.live_count);
    conn_opened(core, &client->conn);
    return client;
}

static void cut(struct net *net, struct client *client)
{
    client->drain |= DRAIN_CUT;
    conn_pause(net->core, &client->conn);
    if (client->input != NULL)
        drop_input(net, client);
}

void client_stop_reading(struct net *net, struct client *client)
{
    if ((client->drain & (DRAIN_CUT | DRAIN_LAST)) != 0)
        return;
    if (client->input == NULL)
        cut(net, client);
    else if (client->pause == 0 && !list_is_linked(&client->task.node))
        client->drain |= DRAIN_LAST; /* what is there is a part of one command */
    else
        conn_pause(net->core, &client->conn); /* whole commands wait in the input: once they are under way it is called again */
}

void client_push(struct net *net, struct client *client, const struct resp_writer *push)
{
    struct reply reply = {.bytes = push->data, .length = push->length};
    ZG_CHECK(client->session.protocol == 3);
    client_queue_reply(net, client, &reply);
}
