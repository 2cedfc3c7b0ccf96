/*
 * Owns: runs (net/request.h): when a command joins the one before it, and how a run is divided again. Runs on: the core that is home and owner of it.
 */
#include "core/hash.h"
#include "net/client.h"
#include "net/send_queue.h"
#include "shard/owner.h"

enum { RUN_MAX = 4096 };

/* The last request of the client is at the very end of the batch that the command would go to, and nothing is out of the ordinary. */
static bool may_join(const struct dispatcher *dispatcher, const struct request *last, const struct batch *batch, const struct leg_source *source)
{
    const struct leg *leg = &last->leg;
    const struct use_case *use_case = &dispatcher->core->config->use_case;
    if (last->state != REQUEST_WAITING || last->flags != 0 || leg->action == LEG_DISCARD || (leg->flags & ~LEG_READONLY) != LEG_EMBEDDED)
        return false;
    if (batch->legs.tail != leg || leg->bytes != batch->chain_tail || (leg->bytes->flags & SEND_REFERENCE) != 0)
        return false;
    const struct block *chunk = leg->bytes;
    return leg->offset + leg->length == chunk->length && source->length <= block_capacity(chunk) - chunk->length &&
        batch->legs.count < use_case->batch_max_requests && (leg->action != LEG_RUN || leg->run_replies < RUN_MAX) && batch->bytes < use_case->batch_max_bytes &&
        last->started_us == (uint32_t)(dispatcher->core->now_ns / 1000);
}

bool run_join(struct dispatcher *dispatcher, struct client *client, uint16_t slot, const struct leg_source *source)
{
    struct request *last = client->fifo_tail;
    struct batch *batch = dispatcher->batches.last;
    if (last == NULL || batch == NULL || dispatcher->net->is_silent || !fence_slot_is_clear(&dispatcher->fences, slot))
        return false;
    uint32_t node_key = dispatcher_route(dispatcher, slot);
    if (batch->name != batch_name(USE_CASE_DEFAULT, node_key, client->session.protocol) || !may_join(dispatcher, last, batch, source))
        return false;
    struct leg *leg = &last->leg;
    if (leg->action != LEG_RUN) {
        leg->action = LEG_RUN;
        leg->run_replies = 1;
        leg->part = 0;
        last->reply_end = NULL;
    }
    batch_extend(batch, source);
    if (dispatcher->counts_load)
        load_add_command(dispatcher->load, slot, source->length);
    leg->length += source->length;
    account_command(dispatcher->net, client, source->length);
    leg->run_replies++;
    client_inflight_add(dispatcher->core, client, 1);
    return true;
}

/* The commands of a run: offsets behind each other in its bytes. Scans one; returns its length. */
static uint32_t scan_command(struct net *net, const uint8_t *bytes, uint32_t length)
{
    struct resp_command_state state = {0};
    enum resp_result result = resp_scan_command(&net->scanner, &state, bytes, length);
    ZG_CHECK(result == RESP_DONE); /* it was scanned when it came */
    return net->scanner.consumed;
}

static uint32_t count_commands(struct net *net, const uint8_t *bytes, uint32_t length)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < length; count++)
        at += scan_command(net, bytes + at, length - at);
    return count;
}

/* The leg of one command of a run; the scanner has just found it at `bytes`. */
static void init_divided(struct dispatcher *dispatcher, struct request *request, const struct leg *run, const uint8_t *bytes, uint32_t offset, uint32_t length)
{
    struct net *net = dispatcher->net;
    const struct command_args args = {.base = bytes, .args = net->scanner.args, .count = net->scanner.args_count};
    bool unknown_sub = false;
    const struct command *command =
        command_table_find(net->session_env.commands, bytes + args.args[0].offset, args.args[0].length, bytes + args.args[1].offset, args.args[1].length, &unknown_sub);
    uint32_t position = 0;
    uint32_t keys_count = 0;
    ZG_CHECK(command != NULL);
    enum status status = command_keys(command, &args, &position, 1, &keys_count);
    ZG_CHECK(status == STATUS_OK && keys_count > 0);
    const struct resp_arg *key = &args.args[position];
    struct leg *leg = &request->leg;
    leg->bytes = block_ref(run->bytes);
    leg->origin = pool_handle_of(&request->item).value;
    leg->offset = offset;
    leg->length = length;
    leg->key_hash = keys_count == 1 ? dispatcher_hash_key(bytes + key->offset, key->length) : 0;
    leg->slot = dispatcher_locate(dispatcher->topology, bytes + key->offset, key->length);
    leg->home = run->home;
    leg->use_case = run->use_case;
    leg->channel = run->channel;
    leg->flags = (uint8_t)(LEG_EMBEDDED | ((command->flags & CMD_READONLY) != 0 ? LEG_READONLY : 0));
}

/* Divides one run into `out`; false where nobody waits for its replies any more. */
static bool divide(struct dispatcher *dispatcher, struct leg *run, struct leg_list *out)
{
    struct net *net = dispatcher->net;
    struct request *request = request_of_leg(run);
    struct client *client = request->client;
    if (request->state != REQUEST_WAITING || client == NULL)
        return false;
    if (net->requests.objects_max - net->requests.live_count < run->run_replies) {
        conn_close(dispatcher->core, &client->conn, CLOSE_NO_MEMORY);
        return false;
    }
    const uint8_t *bytes = run->bytes->data + run->offset;
    uint32_t answered = count_commands(net, bytes, run->length) - run->run_replies;
    struct request *last = request;
    for (uint32_t at = 0, i = 0; at < run->length; i++) {
        uint32_t length = scan_command(net, bytes + at, run->length - at);
        if (i >= answered) {
            last = request_create_behind(net, last);
            ZG_CHECK(last != NULL);
            init_divided(dispatcher, last, run, bytes + at, run->offset + at, length);
            account_command(net, client, length);
            leg_list_push(out, &last->leg);
        }
        at += length;
    }
    request_run_divided(net, request);
    return true;
}

bool run_divide(struct net *net, struct link *link)
{
    struct leg_list legs = {0};
    struct leg *run = link->fifo.head;
    struct leg *behind = run->next;
    uint32_t replies = run->run_replies;
    if (!divide(net->owner, run, &legs))
        return false;
    /* The legs take the place of the run at the head of the FIFO; they wait for as many replies. */
    ZG_CHECK(legs.count == replies);
    legs.tail->next = behind;
    link->fifo.head = legs.head;
    if (behind == NULL)
        link->fifo.tail = legs.tail;
    return true;
}

void run_divide_all(struct net *net, struct link *link)
{
    struct leg_list legs = {0};
    struct leg *leg;
    while ((leg = leg_list_pop(&link->fifo)) != NULL) {
        if (leg->action != LEG_RUN || !divide(net->owner, leg, &legs))
            leg_list_push(&legs, leg);
    }
    link->fifo = legs;
}
