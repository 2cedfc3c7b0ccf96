/*
 * Owns: legs with several keys of a migrating slot, divided into one leg a key: a multi-key command is answered TRYAGAIN there while each single key is either here or asked for at the other node. Runs on: the owner core.
 */
#include <string.h>

#include "shard/owner.h"
#include "shard/subsplit.h"

bool divide_leg(struct dispatcher *dispatcher, struct leg *parent)
{
    struct net *net = dispatcher->net;
    struct resp_command_scanner *scanner = &net->scanner;
    struct resp_command_state state = {0};
    const uint8_t *bytes = leg_bytes(parent);
    if (resp_scan_command(scanner, &state, bytes, parent->length) != RESP_DONE)
        return false;
    bool unknown_sub;
    const struct command *command = command_table_find(net->session_env.commands, bytes + scanner->args[0].offset, scanner->args[0].length, NULL, 0, &unknown_sub);
    if (command == NULL || command->handling != HANDLE_SPLIT)
        return false;
    struct split_plan plan;
    if (split_part_single_keys(&dispatcher->splitter, command, bytes, parent->length, parent->slot, &plan) != STATUS_OK || plan.parts_count < 2)
        return false;
    struct subsplit *subsplit = pool_get(&dispatcher->subsplits);
    if (subsplit == NULL)
        return false;
    /* The plan lies in scratch memory that a child's end may use again. */
    struct block *block = plan.parts_count <= UINT16_MAX ? arena_get(dispatcher->core->arena, plan.bytes_count) : NULL;
    subsplit->merge.arena = dispatcher->core->arena;
    if (block == NULL || !merge_begin(&subsplit->merge, (enum command_merge)command->merge, &plan, (uint32_t)dispatcher->core->config->limits.reply_max_bytes)) {
        if (block != NULL)
            arena_put(dispatcher->core->arena, &block);
        merge_fini(&subsplit->merge);
        pool_put(&dispatcher->subsplits, &subsplit);
        return false;
    }
    memcpy(block->data, plan.bytes, plan.bytes_count);
    block->length = plan.bytes_count;
    subsplit->parent = parent;
    subsplit->left = plan.parts_count;
    struct leg_list children = {0};
    for (uint32_t i = 0; i < plan.parts_count; i++) {
        struct leg *child = net_own_leg(net);
        if (child == NULL) {
            /* What has not been made counts as refused. */
            merge_part_failed(&subsplit->merge, i, status_resp_text(STATUS_FULL));
            subsplit->left--;
            continue;
        }
        child->origin = pool_handle_of(&subsplit->item).value;
        child->bytes = block_ref(block);
        child->offset = plan.parts[i].offset;
        child->length = plan.parts[i].length;
        child->deadline_ms = parent->deadline_ms;
        child->slot = parent->slot;
        child->home = (uint16_t)dispatcher->core->id;
        child->part = (uint16_t)i;
        child->use_case = parent->use_case;
        child->flags = (uint8_t)(LEG_CHILD | (parent->flags & LEG_READONLY));
        child->channel = channel_protocol(parent->channel);
        leg_list_push(&children, child);
    }
    arena_put(dispatcher->core->arena, &block);
    if (children.count == 0) {
        merge_fini(&subsplit->merge);
        pool_put(&dispatcher->subsplits, &subsplit);
        return false;
    }
    struct leg *child;
    while ((child = leg_list_pop(&children)) != NULL)
        owner_resend(dispatcher, child);
    return true;
}

void divide_finish_child(struct dispatcher *dispatcher, struct leg *leg, const struct reply *reply, enum status status)
{
    struct subsplit *subsplit = pool_resolve(&dispatcher->subsplits, (struct pool_handle){.value = leg->origin});
    ZG_CHECK(subsplit != NULL && subsplit->left > 0);
    if (status == STATUS_OK)
        merge_part_reply(&subsplit->merge, leg->part, reply->bytes, reply->length);
    else
        merge_part_failed(&subsplit->merge, leg->part, status_resp_text(status));
    pool_put(&dispatcher->net->legs, &leg);
    if (--subsplit->left > 0)
        return;
    struct resp_writer whole;
    resp_writer_init(&whole, channel_protocol(subsplit->parent->channel));
    merge_write(&subsplit->merge, &whole);
    merge_fini(&subsplit->merge);
    struct leg *parent = subsplit->parent;
    pool_put(&dispatcher->subsplits, &subsplit);
    struct reply merged = {.bytes = whole.data, .length = whole.length};
    owner_finish(dispatcher, parent, &merged, STATUS_OK);
    resp_writer_fini(&whole);
}
