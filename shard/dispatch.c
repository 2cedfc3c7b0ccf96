/*
 * Owns: the home side of a data core's dispatcher: from a command to legs, and legs to their owner cores. Runs on: that core.
 *
 * A command with one slot, owned here, becomes the leg inside its request. With one slot owned elsewhere it becomes a message that lends the bytes. With several slots (MGET, MSET, DEL, ...) it becomes
 * a leg a slot, and a merge.
 */
#include "shard/lane.h"
#include "shard/owner.h"

#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "net/client.h"
#include "net/send_queue.h"
#include "shard/merge.h"
#include "shard/slot.h"

enum { KEYS_INLINE = 64, RUN_COMMAND_MAX = 1024, MERGED_KEEP_BYTES = 1024 * 1024, SPLITS_RESERVE = 512 };

/* A split request: its merge, and the block with the commands of its parts. */
struct split {
    struct pool_item item;
    struct merge merge;
};

uint16_t dispatcher_locate(const struct topology *topology, const uint8_t *key, uint32_t length)
{
    if (topology->kind == BACKEND_CLUSTER)
        return slot_of_key(key, length);
    return topology->slots_count == 1 ? 0 : (uint16_t)ketama_server(topology->ketama, key, length);
}

uint32_t dispatcher_hash_key(const uint8_t *key, uint32_t length)
{
    uint32_t hash = (uint32_t)hash_bytes(key, length);
    return hash != 0 ? hash : 1;
}

/* ---- answers of the dispatcher itself ---- */

static enum dispatch_result answer_text(struct dispatcher *dispatcher, struct client *client, const char *text)
{
    struct net *net = dispatcher->net;
    char line[192];
    int length = snprintf(line, sizeof(line), "-%s\r\n", text);
    ZG_CHECK(length > 0 && length < (int)sizeof(line));
    struct reply reply = {.bytes = (const uint8_t *)line, .length = (uint32_t)length};
    metric_add(dispatcher->core->metrics, METRIC_request_errors_total, 1);
    if (client->fifo_head == NULL) {
        if (!net->is_silent)
            client_queue_reply(net, client, &reply);
        return DISPATCH_TAKEN;
    }
    struct request *request = request_create(net, client, 0);
    if (request == NULL)
        return DISPATCH_DRAIN;
    request_answer(net, request, &reply);
    return DISPATCH_TAKEN;
}

static enum dispatch_result answer_status(struct dispatcher *dispatcher, struct client *client, enum status status)
{
    if (status == STATUS_FULL || status == STATUS_NO_MEMORY)
        metric_add(dispatcher->core->metrics, METRIC_overload_refused_total, 1);
    return answer_text(dispatcher, client, status_resp_text(status));
}

/* The pool of requests is full: wait for one's own requests, or be refused at once where there are none. */
static enum dispatch_result answer_full(struct dispatcher *dispatcher, struct client *client)
{
    return client->inflight > 0 ? DISPATCH_DRAIN : answer_status(dispatcher, client, STATUS_FULL);
}

/* ---- one slot ---- */

static void init_leg(struct dispatcher *dispatcher, struct leg *leg, const struct request *request, const struct client *client, const struct command *command,
    uint16_t slot, uint32_t key_hash)
{
    leg->next = NULL;
    leg->bytes = NULL;
    leg->origin = pool_handle_of(&request->item).value;
    leg->offset = 0;
    leg->length = 0;
    leg->key_hash = key_hash;
    leg->target = 0;
    leg->slot = slot;
    leg->home = (uint16_t)dispatcher->core->id;
    leg->part = 0;
    leg->use_case = USE_CASE_DEFAULT;
    leg->action = LEG_FORWARD;
    leg->flags = (command->flags & CMD_READONLY) != 0 ? LEG_READONLY : 0;
    leg->channel = client->session.protocol;
    leg->attempts = 0;
}

/* True where the slot changed its owner while the client still has requests on their way by the old table. */
static bool must_drain(const struct dispatcher *dispatcher, struct client *client, uint16_t slot)
{
    const struct topology *topology = dispatcher->topology;
    if (__builtin_expect(client->epoch_floor == topology->epoch, 1))
        return false;
    if (client->inflight == 0) {
        client->epoch_floor = topology->epoch;
        return false;
    }
    return topology->slot_owner_since[slot] > client->epoch_floor;
}

/* A read of a key whose value was large of late has a way of its own. */
static bool is_large_key(const struct dispatcher *dispatcher, const struct dispatch_command *command, uint16_t slot, const struct resp_arg *key)
{
    if (__builtin_expect(dispatcher->large_keys_count == 0, 1) || key == NULL)
        return false;
    return (command->command->flags & CMD_READONLY) != 0 && bulk_remembers(dispatcher, slot, dispatcher_hash_key(command->args.base + key->offset, key->length));
}

/* The command goes to one slot; `key` is its only key, NULL where it has several. */
static enum dispatch_result dispatch_one(struct dispatcher *dispatcher, struct client *client, const struct dispatch_command *command, uint16_t slot, const struct resp_arg *key)
{
    struct net *net = dispatcher->net;
    struct core *core = dispatcher->core;
    if (must_drain(dispatcher, client, slot))
        return DISPATCH_DRAIN;
    uint32_t owner = dispatcher->topology->slot_owner[slot];
    if (owner != core->id && !lane_is_open(dispatcher, owner))
        return lane_wait(dispatcher, client, owner);
    struct leg_source source = {.bytes = command->bytes, .length = command->length, .block = command->block};
    if (owner == core->id && command->command->key_first_simple > 0 && command->length <= RUN_COMMAND_MAX && !is_large_key(dispatcher, command, slot, key) && run_join(dispatcher, client, slot, &source))
        return DISPATCH_TAKEN;
    struct request *request = request_create(net, client, core->config->use_case.timeout_ns);
    if (request == NULL)
        return answer_full(dispatcher, client);
    request->legs_left = 1;
    struct leg *leg = &request->leg;
    uint32_t key_hash = key != NULL ? dispatcher_hash_key(command->args.base + key->offset, key->length) : 0;
    init_leg(dispatcher, leg, request, client, command->command, slot, key_hash);
    leg->length = command->length;
    account_command(net, client, command->length);
    if (owner == core->id) {
        leg->flags |= LEG_EMBEDDED;
        owner_accept(dispatcher, leg, &source);
        return DISPATCH_TAKEN;
    }
    if (command->block != NULL) {
        lane_send_leg(dispatcher, owner, leg, command->block, command->bytes, command->length);
        return DISPATCH_TAKEN;
    }
    /* Bytes in the core's scratch (inline commands) cannot be lent. */
    struct block *copy = arena_get(core->arena, command->length);
    if (copy == NULL) {
        request_leg_failed(net, request, 0, STATUS_NO_MEMORY);
        return DISPATCH_TAKEN;
    }
    memcpy(copy->data, command->bytes, command->length);
    lane_send_leg(dispatcher, owner, leg, copy, copy->data, command->length);
    arena_put(core->arena, &copy);
    return DISPATCH_TAKEN;
}

/* ---- several slots ---- */

static uint16_t split_locate(void *context, const uint8_t *key, uint32_t length)
{
    return dispatcher_locate(context, key, length);
}

/* A part for another core that has no credit waits, holding its bytes. */
static void queue_part(struct dispatcher *dispatcher, uint32_t owner, struct leg *leg, struct block *block, uint32_t offset, uint32_t length)
{
    struct lane_waiters *waiters = &dispatcher->waiters[owner];
    leg->bytes = block_ref(block);
    leg->offset = offset;
    leg->length = length;
    leg_list_push(&waiters->legs, leg);
    dispatcher->lanes_waiting = true;
    metric_add(dispatcher->core->metrics, METRIC_mailbox_credit_waits_total, 1);
}

static void start_part(struct dispatcher *dispatcher, struct request *request, const struct client *client, const struct command *command, const struct split_part *part,
    uint16_t number, uint32_t key_hash, struct block *block)
{
    struct net *net = dispatcher->net;
    struct core *core = dispatcher->core;
    struct leg *leg = net_own_leg(net);
    if (leg == NULL) {
        request_leg_failed(net, request, number, STATUS_FULL);
        return;
    }
    init_leg(dispatcher, leg, request, client, command, part->slot, key_hash);
    leg->part = number;
    leg->deadline_ms = request->leg.deadline_ms;
    const uint8_t *bytes = block->data + part->offset;
    uint32_t owner = dispatcher->topology->slot_owner[part->slot];
    if (owner == core->id) {
        struct leg_source source = {.bytes = bytes, .length = part->length, .block = block};
        owner_accept(dispatcher, leg, &source);
    } else if (lane_is_open(dispatcher, owner)) {
        lane_send_leg(dispatcher, owner, leg, block, bytes, part->length);
        pool_put(&net->legs, &leg);
    } else if (dispatcher->waiters[owner].legs.count < core->config->limits.credit_waiters_max) {
        queue_part(dispatcher, owner, leg, block, part->offset, part->length);
    } else {
        pool_put(&net->legs, &leg);
        request_leg_failed(net, request, number, STATUS_FULL);
    }
}

static enum dispatch_result dispatch_parts(struct dispatcher *dispatcher, struct client *client, const struct dispatch_command *command, const struct split_plan *plan)
{
    struct net *net = dispatcher->net;
    struct core *core = dispatcher->core;
    for (uint32_t i = 0; i < plan->parts_count; i++) {
        if (must_drain(dispatcher, client, plan->parts[i].slot))
            return DISPATCH_DRAIN;
        /* One command's parts may wait at a lane; the next command waits as a whole. */
        uint32_t owner = dispatcher->topology->slot_owner[plan->parts[i].slot];
        if (dispatcher->waiters[owner].legs.count > 0)
            return lane_wait(dispatcher, client, owner);
    }
    struct split *split = pool_get(&dispatcher->splits);
    if (split == NULL)
        return answer_full(dispatcher, client);
    split->merge.arena = core->arena;
    struct block *block = arena_get(core->arena, plan->bytes_count);
    bool has_memory = block != NULL && merge_begin(&split->merge, (enum command_merge)command->command->merge, plan, (uint32_t)core->config->limits.reply_max_bytes);
    struct request *request = has_memory ? request_create(net, client, core->config->use_case.timeout_ns) : NULL;
    if (request == NULL) {
        if (block != NULL)
            arena_put(core->arena, &block);
        merge_fini(&split->merge);
        pool_put(&dispatcher->splits, &split);
        return has_memory ? answer_full(dispatcher, client) : answer_status(dispatcher, client, STATUS_NO_MEMORY);
    }
    memcpy(block->data, plan->bytes, plan->bytes_count);
    block->length = plan->bytes_count;
    request->split = split;
    request->legs_left = (uint16_t)plan->parts_count;
    request->leg.length = plan->bytes_count;
    account_command(net, client, plan->bytes_count);
    metric_add(core->metrics, METRIC_requests_split_total, 1);
    /* The request outlives its client and its own answer while legs_left > 0: the last part started below cannot be gone before it starts. The plan is scratch memory that an ending leg may use: copied. */
    uint32_t parts_count = plan->parts_count;
    struct block *parts_block = arena_get(core->arena, parts_count * (uint32_t)sizeof(struct split_part));
    if (parts_block == NULL) {
        for (uint32_t i = 0; i < parts_count; i++)
            request_leg_failed(net, request, (uint16_t)i, STATUS_NO_MEMORY);
        arena_put(core->arena, &block);
        return DISPATCH_TAKEN;
    }
    memcpy(parts_block->data, plan->parts, parts_count * sizeof(struct split_part));
    const struct split_part *parts = (const struct split_part *)(const void *)parts_block->data;
    for (uint32_t i = 0; i < parts_count; i++) {
        uint32_t key_hash = 0;
        if (parts[i].keys_count == 1) {
            const struct resp_arg *arg = &command->args.args[parts[i].first_key];
            key_hash = dispatcher_hash_key(command->args.base + arg->offset, arg->length);
        }
        start_part(dispatcher, request, client, command->command, &parts[i], (uint16_t)i, key_hash, block);
    }
    arena_put(core->arena, &parts_block);
    arena_put(core->arena, &block);
    return DISPATCH_TAKEN;
}

static enum dispatch_result dispatch_split(struct dispatcher *dispatcher, struct client *client, const struct dispatch_command *command)
{
    struct split_plan plan;
    /* The locator's context is the topology, which the splitter passes on untouched. */
    enum status status = split_by_slot(&dispatcher->splitter, command->command, &command->args, split_locate, (void *)(uintptr_t)dispatcher->topology, &plan);
    if (status == STATUS_TOO_LARGE)
        return answer_status(dispatcher, client, STATUS_TOO_LARGE);
    if (status != STATUS_OK) {
        char text[96];
        (void)snprintf(text, sizeof(text), "ERR wrong number of arguments for '%s' command", command->command->name);
        return answer_text(dispatcher, client, text);
    }
    if (plan.parts_count > 1)
        return dispatch_parts(dispatcher, client, command, &plan);
    const struct resp_arg *key = plan.keys_count == 1 ? &command->args.args[plan.parts[0].first_key] : NULL;
    return dispatch_one(dispatcher, client, command, plan.parts[0].slot, key);
}

static bool merge_part(struct net *net, struct request *request, uint16_t part, const struct reply *reply, struct reply *whole)
{
    struct dispatcher *dispatcher = net->owner;
    struct split *split = request->split;
    merge_part_reply(&split->merge, part, reply->bytes, reply->length);
    if (reply->is_lent)
        mailbox_return(dispatcher->core->mailbox, reply->lender, reply->lent_offset);
    if (!merge_is_complete(&split->merge))
        return false;
    if (dispatcher->merged.capacity > MERGED_KEEP_BYTES) {
        resp_writer_fini(&dispatcher->merged);
        resp_writer_init(&dispatcher->merged, 2);
    }
    resp_writer_reset(&dispatcher->merged, request->client != NULL ? request->client->session.protocol : 2);
    merge_write(&split->merge, &dispatcher->merged);
    *whole = (struct reply){.bytes = dispatcher->merged.data, .length = dispatcher->merged.length};
    return true;
}

static void split_free(struct net *net, struct request *request)
{
    struct dispatcher *dispatcher = net->owner;
    struct split *split = request->split;
    request->split = NULL;
    merge_fini(&split->merge);
    pool_put(&dispatcher->splits, &split);
}

/* ---- the way in ---- */

/* Several keys that must lie in one slot. */
static enum dispatch_result dispatch_keys(struct dispatcher *dispatcher, struct client *client, const struct dispatch_command *command)
{
    uint32_t positions[KEYS_INLINE];
    uint32_t *all = positions;
    uint32_t count = 0;
    struct block *block = NULL;
    enum status status = command_keys(command->command, &command->args, positions, KEYS_INLINE, &count);
    if (status == STATUS_OK && count > KEYS_INLINE) {
        uint32_t room = count;
        block = arena_get(dispatcher->core->arena, room * (uint32_t)sizeof(*positions));
        if (block == NULL)
            return answer_status(dispatcher, client, STATUS_NO_MEMORY);
        all = (uint32_t *)(void *)block->data;
        status = command_keys(command->command, &command->args, all, room, &count);
    }
    uint16_t slot = 0;
    const struct resp_arg *only = NULL;
    bool is_one_slot = true;
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++) {
        const struct resp_arg *arg = &command->args.args[all[i]];
        const uint8_t *key = command->args.base + arg->offset;
        uint16_t key_slot = dispatcher_locate(dispatcher->topology, key, arg->length);
        if (i == 0) {
            slot = key_slot;
            only = count == 1 ? arg : NULL;
        }
        is_one_slot = is_one_slot && key_slot == slot;
    }
    if (block != NULL)
        arena_put(dispatcher->core->arena, &block);
    if (status != STATUS_OK || count == 0)
        return answer_text(dispatcher, client, "ERR Invalid arguments specified for command");
    if (!is_one_slot)
        return answer_status(dispatcher, client, STATUS_CROSSSLOT);
    return dispatch_one(dispatcher, client, command, slot, only);
}

static enum dispatch_result dispatch(struct net *net, struct client *client, const struct dispatch_command *command)
{
    struct dispatcher *dispatcher = net->owner;
    if (__builtin_expect(dispatcher->topology == NULL, 0))
        return answer_status(dispatcher, client, STATUS_NOT_READY);
    const struct command *row = command->command;
    if (__builtin_expect(row->handling == HANDLE_SPLIT, 0))
        return dispatch_split(dispatcher, client, command);
    if (__builtin_expect(row->key_first_simple == 0, 0))
        return dispatch_keys(dispatcher, client, command);
    const struct resp_arg *arg = &command->args.args[row->key_first_simple];
    const uint8_t *key = command->args.base + arg->offset;
    return dispatch_one(dispatcher, client, command, dispatcher_locate(dispatcher->topology, key, arg->length), arg);
}

const struct net_ops dispatcher_net_ops = {
    .dispatch = dispatch,
    .leg_reply = owner_reply,
    .leg_streams = owner_streams,
    .leg_lost = owner_lost,
    .link_progress = owner_progress,
    .link_gone = owner_gone,
    .merge_part = merge_part,
    .split_free = split_free,
    .divide_run = run_divide,
    .divide_runs = run_divide_all,
};

/* ---- hooks ---- */

void dispatcher_flush(struct dispatcher *dispatcher)
{
    if (__builtin_expect(dispatcher->lanes_waiting, 0)) {
        bool any = false;
        for (uint32_t peer = 0; peer < dispatcher->core->shared->data_cores; peer++)
            if (peer != dispatcher->core->id)
                any |= lane_serve_waiters(dispatcher, peer);
        dispatcher->lanes_waiting = any;
    }
    owner_flush(dispatcher, false);
}

bool dispatcher_is_idle(const struct dispatcher *dispatcher)
{
    return dispatcher->net->requests.live_count == 0 && dispatcher->net->legs.live_count == 0;
}

void dispatcher_init(struct dispatcher *dispatcher, struct core *core, struct net *net)
{
    dispatcher->core = core;
    dispatcher->net = net;
    link_pool_init(&dispatcher->links, net, &core->config->backend);
    splitter_init(&dispatcher->splitter);
    resp_writer_init(&dispatcher->merged, 2);
    pool_init(&dispatcher->splits, "splits", sizeof(struct split), core->config->limits.requests_per_core);
    /* What a usual load needs is there from the start; a larger peak allocates once. */
    pool_reserve(&dispatcher->splits, core->config->limits.requests_per_core < SPLITS_RESERVE ? core->config->limits.requests_per_core : SPLITS_RESERVE);
    for (uint32_t i = 0; i < CONFIG_DATA_CORES_MAX; i++)
        list_init(&dispatcher->waiters[i].clients);
    owner_init(dispatcher);
}

void dispatcher_fini(struct dispatcher *dispatcher)
{
    owner_fini(dispatcher);
    splitter_fini(&dispatcher->splitter);
    resp_writer_fini(&dispatcher->merged);
    pool_fini(&dispatcher->splits);
    link_pool_fini(&dispatcher->links);
}
