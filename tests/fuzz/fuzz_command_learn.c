/*
 * Any bytes as a backend's COMMAND reply: the table must stay whole, a refused reply must leave it as it was, and what was learned must
 * never make key extraction leave the arguments.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/check.h"
#include "net/command_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* All rows against a few arguments: extraction checks bounds itself, whatever the specs say. */
static void extract_all(const struct command_table *table)
{
    static const uint8_t bytes[] = "x2KEYSabSTORE";
    static const struct resp_arg args[] = {{0, 1}, {1, 1}, {2, 4}, {6, 1}, {7, 1}, {8, 5}, {6, 1}};
    for (uint32_t count = 1; count <= sizeof(args) / sizeof(args[0]); count++) {
        struct command_args command_args = {.base = bytes, .args = args, .count = count};
        for (uint16_t i = COMMAND_BUILT_IN_COUNT; i < command_table_count(table); i++) {
            uint32_t positions[4], keys;
            if (command_keys(command_table_at(table, i), &command_args, positions, 4, &keys) != STATUS_OK)
                continue;
            for (uint32_t k = 0; k < keys && k < 4; k++)
                ZG_CHECK(positions[k] >= 1 && positions[k] < count);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct command_table *table = command_table_create();
    uint32_t added = 1;
    enum status status = command_table_learn(table, data, (uint32_t)size, &added);
    ZG_CHECK(command_table_count(table) == COMMAND_BUILT_IN_COUNT + added);
    ZG_CHECK(status == STATUS_OK || added == 0);
    for (uint16_t i = 0; i < command_table_count(table); i++) {
        const struct command *row = command_table_at(table, i), *parent = command_parent(row);
        const char *top = parent == NULL ? row->name : parent->name;
        bool unknown_sub;
        const struct command *found = command_table_find(table, (const uint8_t *)top, (uint32_t)strlen(top), parent == NULL ? NULL : (const uint8_t *)row->name, (uint32_t)strlen(row->name), &unknown_sub);
        ZG_CHECK(found == row && row->arity != 0 && row->key_specs_count <= COMMAND_KEY_SPECS_MAX);
        ZG_CHECK(!row->is_learned || row->handling != HANDLE_FORWARD || row->key_specs_count > 0);
    }
    extract_all(table);
    command_table_destroy(&table);
    return 0;
}
