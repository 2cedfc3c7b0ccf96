/*
 * Batches: the bytes of each leg, what is copied and what is referenced, and the map's limits.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "net/send_queue.h"
#include "shard/batch.h"
#include "tests/net/bare_core.h"

TestSuite(batch);

enum { MIB = 1 << 20, LEGS = 4096 };

struct flushed {
    uint32_t calls;
    uint64_t name;
    struct leg_list legs;
    struct send_queue queue;
};

static void take(void *context, uint64_t name, struct leg_list *legs, struct block *chain)
{
    struct flushed *flushed = context;
    flushed->calls++;
    flushed->name = name;
    leg_list_splice(&flushed->legs, legs);
    while (chain != NULL) {
        struct block *next = chain->next;
        send_queue_push(&flushed->queue, chain);
        chain = next;
    }
}

static struct leg_source source_of(const char *text)
{
    return (struct leg_source){.bytes = (const uint8_t *)text, .length = (uint32_t)strlen(text)};
}

static void add(struct batch_map *map, struct batch *batch, struct leg *leg, const char *text)
{
    struct leg_source source = source_of(text);
    memset(leg, 0, sizeof(*leg));
    cr_assert_eq(batch_add(map, batch, leg, &source), STATUS_OK);
}

static void expect_leg(const struct leg *leg, const char *text)
{
    cr_expect(leg->length == strlen(text) && memcmp(leg_bytes(leg), text, leg->length) == 0, "%.*s", (int)leg->length, (const char *)leg_bytes(leg));
}

/* What would go over the wire, with NUL. */
static const char *wire(const struct flushed *flushed)
{
    static char bytes[1 << 20];
    static struct iovec pieces[4096];
    size_t length = 0;
    uint32_t count = send_queue_pieces(&flushed->queue, pieces, 4096);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(bytes + length, pieces[i].iov_base, pieces[i].iov_len);
        length += pieces[i].iov_len;
    }
    cr_assert_eq(length, flushed->queue.bytes);
    bytes[length] = '\0';
    return bytes;
}

/* Drops a leg's reference, as its end does. */
static void end_leg(struct bare_core *bare, struct leg *leg)
{
    send_block_put(&bare->core, &leg->bytes);
}

static void end_all(struct bare_core *bare, struct flushed *flushed)
{
    send_queue_clear(&bare->core, &flushed->queue);
    for (struct leg *leg; (leg = leg_list_pop(&flushed->legs)) != NULL;)
        end_leg(bare, leg);
}

Test(batch, name_holds_its_three_parts)
{
    static const uint32_t nodes[] = {0, 1, 0x80000001, UINT32_MAX};
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++)
        for (uint8_t protocol = 2; protocol <= 3; protocol++) {
            uint64_t name = batch_name(65535, nodes[i], protocol);
            cr_expect(batch_name_node(name) == nodes[i] && batch_name_channel(name) == protocol && name >> 48 == 65535);
            cr_expect_neq(name, batch_name(65535, nodes[i], protocol == 2 ? 3 : 2));
            cr_expect_neq(name, batch_name(65534, nodes[i], protocol));
        }
}

Test(batch, legs_and_bytes_leave_in_the_order_in_which_they_came)
{
    struct bare_core bare;
    struct batch_map map;
    struct leg legs[4];
    bare_core_open(&bare, 16 * MIB);
    batch_map_init(&map, &bare.core, 8);
    struct batch *batch = batch_map_get(&map, batch_name(0, 1, 2));
    cr_assert(list_is_empty(&map.dirty));
    add(&map, batch, &legs[0], "one");
    add(&map, batch, &legs[1], "second");
    add(&map, batch, &legs[2], "3");
    cr_expect_eq(map.dirty.next, &batch->dirty);
    cr_expect(batch->bytes == 10 && batch->legs.count == 3);

    struct flushed flushed = {0};
    batch_flush_one(batch, take, &flushed);
    cr_expect(flushed.calls == 1 && flushed.name == batch_name(0, 1, 2) && flushed.legs.count == 3);
    cr_expect_str_eq(wire(&flushed), "onesecond3");
    cr_expect(batch->legs.count == 0 && batch->bytes == 0 && batch->chain == NULL && list_is_empty(&map.dirty));

    /* Sent, but not answered: the legs still have their bytes. */
    send_queue_clear(&bare.core, &flushed.queue);
    expect_leg(&legs[0], "one");
    expect_leg(&legs[1], "second");
    expect_leg(&legs[2], "3");
    struct leg *order[] = {leg_list_pop(&flushed.legs), leg_list_pop(&flushed.legs), leg_list_pop(&flushed.legs), leg_list_pop(&flushed.legs)};
    cr_expect(order[0] == &legs[0] && order[1] == &legs[1] && order[2] == &legs[2] && order[3] == NULL);
    for (int i = 0; i < 3; i++)
        end_leg(&bare, &legs[i]);

    /* The batch is used again. */
    add(&map, batch, &legs[3], "again");
    batch_flush_one(batch, take, &flushed);
    cr_expect_str_eq(wire(&flushed), "again");
    end_all(&bare, &flushed);
    batch_map_fini(&map);
    bare_core_close(&bare);
}

Test(batch, flush_of_an_empty_batch_calls_nobody)
{
    struct bare_core bare;
    struct batch_map map;
    struct flushed flushed = {0};
    bare_core_open(&bare, 16 * MIB);
    batch_map_init(&map, &bare.core, 8);
    batch_flush_one(batch_map_get(&map, 7), take, &flushed);
    cr_expect_eq(flushed.calls, 0);
    batch_map_fini(&map);
    bare_core_close(&bare);
}

Test(batch, many_legs_fill_chunk_after_chunk)
{
    struct bare_core bare;
    struct batch_map map;
    struct flushed flushed = {0};
    static struct leg legs[LEGS];
    static char expected[LEGS * 40];
    size_t length = 0;
    bare_core_open(&bare, 64 * MIB);
    batch_map_init(&map, &bare.core, 8);
    struct batch *batch = batch_map_get(&map, 9);
    for (uint32_t i = 0; i < LEGS; i++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "command %u %.*s", i, (int)(i % 20), "....................");
        add(&map, batch, &legs[i], text);
        memcpy(expected + length, text, strlen(text));
        length += strlen(text);
    }
    expected[length] = '\0';
    batch_flush_one(batch, take, &flushed);
    cr_expect_str_eq(wire(&flushed), expected);
    cr_expect_leq(flushed.queue.blocks, 2 + length / (16384 - 32 - 64), "chunks are filled");
    for (uint32_t i = 0; i < LEGS; i++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "command %u %.*s", i, (int)(i % 20), "....................");
        expect_leg(&legs[i], text);
    }
    end_all(&bare, &flushed);
    batch_map_fini(&map);
    bare_core_close(&bare);
}

/* Bytes of a peer below the limit are copied at once, so that they go back with the message; larger ones stay where they are. */
Test(batch, large_commands_are_referenced_and_small_ones_copied)
{
    struct bare_core bare;
    struct batch_map map;
    struct flushed flushed = {0};
    struct leg legs[6];
    static char text[3000];
    bare_core_open(&bare, 16 * MIB);
    batch_map_init(&map, &bare.core, 8);
    struct batch *batch = batch_map_get(&map, 9);
    memset(text, 't', sizeof(text) - 1);
    memset(legs, 0, sizeof(legs));
    struct block *input = arena_get(bare.core.arena, sizeof(text));
    memcpy(input->data, text, sizeof(text));
    bare_core_lend(&bare, text, 1001);

    struct leg_source at_limit = {.bytes = input->data, .length = 1000, .block = input};
    struct leg_source above = {.bytes = input->data + 5, .length = 1001, .block = input};
    struct leg_source lent = {.bytes = bare.lent_bytes, .length = 1001, .is_lent = true, .lender = 1, .lent_offset = bare.lent_offset};
    struct leg_source scratch = {.bytes = (const uint8_t *)text, .length = 2999};
    cr_assert_eq(batch_add(&map, batch, &legs[0], &at_limit), STATUS_OK);
    cr_expect_eq(input->refs, 1);
    cr_assert_eq(batch_add(&map, batch, &legs[1], &above), STATUS_OK);
    cr_expect_eq(input->refs, 2);
    cr_expect_eq(leg_bytes(&legs[1]), input->data + 5);
    cr_assert_eq(batch_add(&map, batch, &legs[2], &lent), STATUS_OK);
    cr_expect_eq(leg_bytes(&legs[2]), bare.lent_bytes);
    cr_assert_eq(batch_add(&map, batch, &legs[3], &scratch), STATUS_OK);
    add(&map, batch, &legs[4], "tail");
    cr_expect_eq(batch->bytes, 1000 + 1001 + 1001 + 2999 + 4);
    arena_put(bare.core.arena, &input);

    batch_flush_one(batch, take, &flushed);
    const char *bytes = wire(&flushed);
    cr_expect_eq(strlen(bytes), 6005u);
    cr_expect_str_eq(bytes + 6001, "tail");
    cr_expect_eq(strspn(bytes, "t"), 6002u);
    send_queue_clear(&bare.core, &flushed.queue);
    cr_expect_eq(bare_core_loans(&bare), 1, "the leg may have to be sent again");
    end_leg(&bare, &legs[2]);
    cr_expect_eq(bare_core_loans(&bare), 0);
    for (int i = 0; i < 5; i++)
        if (i != 2)
            end_leg(&bare, &legs[i]);
    batch_map_fini(&map);
    bare_core_close(&bare);
}

Test(batch, leg_is_sent_again_from_its_own_bytes)
{
    struct bare_core bare;
    struct batch_map map;
    struct flushed flushed = {0};
    struct leg leg, asking;
    bare_core_open(&bare, 16 * MIB);
    batch_map_init(&map, &bare.core, 8);
    struct batch *batch = batch_map_get(&map, 9);
    add(&map, batch, &leg, "*1\r\n$4\r\nPING\r\n");
    batch_flush_one(batch, take, &flushed);
    send_queue_clear(&bare.core, &flushed.queue);
    cr_assert_eq(leg_list_pop(&flushed.legs), &leg);

    memset(&asking, 0, sizeof(asking));
    struct block *old = leg.bytes;
    struct leg_source source = {.bytes = leg_bytes(&leg), .length = leg.length, .block = leg.bytes};
    cr_assert_eq(batch_add_asking(&map, batch, &asking), STATUS_OK);
    cr_assert_eq(batch_add(&map, batch, &leg, &source), STATUS_OK);
    send_block_put(&bare.core, &old);
    cr_expect(asking.action == LEG_DISCARD && leg.action == LEG_FORWARD);
    batch_flush_one(batch, take, &flushed);
    cr_expect_str_eq(wire(&flushed), "*1\r\n$6\r\nASKING\r\n*1\r\n$4\r\nPING\r\n");
    cr_expect_eq(flushed.legs.count, 2);
    end_all(&bare, &flushed);
    batch_map_fini(&map);
    bare_core_close(&bare);
}

Test(batch, leg_that_waits_keeps_its_bytes)
{
    struct bare_core bare;
    struct leg leg = {0};
    static char text[3000];
    bare_core_open(&bare, 16 * MIB);
    memset(text, 't', sizeof(text) - 1);
    struct leg_source source = source_of("waits");
    cr_assert_eq(leg_keep(&bare.core, &leg, &source), STATUS_OK);
    expect_leg(&leg, "waits");
    end_leg(&bare, &leg);

    struct block *input = arena_get(bare.core.arena, 2000);
    memcpy(input->data, text, 2000);
    struct leg_source large = {.bytes = input->data + 100, .length = 1500, .block = input};
    cr_assert_eq(leg_keep(&bare.core, &leg, &large), STATUS_OK);
    cr_expect(leg_bytes(&leg) == input->data + 100 && leg.length == 1500);
    arena_put(bare.core.arena, &input);
    end_leg(&bare, &leg);

    bare_core_lend(&bare, text, 1200);
    struct leg_source lent = {.bytes = bare.lent_bytes, .length = 1200, .is_lent = true, .lender = 1, .lent_offset = bare.lent_offset};
    cr_assert_eq(leg_keep(&bare.core, &leg, &lent), STATUS_OK);
    cr_expect_eq(bare_core_loans(&bare), 1);
    end_leg(&bare, &leg);
    bare_core_close(&bare);
}

Test(batch, add_without_memory_changes_nothing)
{
    struct bare_core bare;
    struct batch_map map;
    struct leg leg = {0}, first;
    struct flushed flushed = {0};
    static char text[2 * MIB];
    bare_core_open(&bare, 1 * MIB);
    batch_map_init(&map, &bare.core, 8);
    struct batch *batch = batch_map_get(&map, 9);
    memset(text, 't', sizeof(text) - 1);
    struct leg_source source = source_of(text);
    cr_expect_eq(batch_add(&map, batch, &leg, &source), STATUS_NO_MEMORY);
    cr_expect_eq(leg_keep(&bare.core, &leg, &source), STATUS_NO_MEMORY);
    cr_expect(leg.bytes == NULL && batch->legs.count == 0 && batch->bytes == 0 && batch->chain == NULL && list_is_empty(&map.dirty));

    add(&map, batch, &first, "fits");
    cr_expect_eq(batch_add(&map, batch, &leg, &source), STATUS_NO_MEMORY);
    batch_flush_one(batch, take, &flushed);
    cr_expect_str_eq(wire(&flushed), "fits");
    cr_expect_eq(flushed.legs.count, 1);
    end_all(&bare, &flushed);

    /* A loan stays the caller's. */
    bare_core_lend(&bare, text, 2000);
    struct block *fill = NULL;
    for (uint32_t size = 512 * 1024; size >= 8; size /= 2)
        for (struct block *block; (block = arena_get(bare.core.arena, size)) != NULL; fill = block)
            block->next = fill;
    struct leg_source lent = {.bytes = bare.lent_bytes, .length = 2000, .is_lent = true, .lender = 1, .lent_offset = bare.lent_offset};
    cr_expect_eq(batch_add(&map, batch, &leg, &lent), STATUS_NO_MEMORY);
    cr_expect_eq(leg_keep(&bare.core, &leg, &lent), STATUS_NO_MEMORY);
    cr_expect_eq(batch_add_asking(&map, batch, &leg), STATUS_NO_MEMORY);
    cr_expect_eq(bare_core_loans(&bare), 1);
    mailbox_return(bare.core.mailbox, 1, bare.lent_offset);
    while (fill != NULL) {
        struct block *next = fill->next;
        arena_put(bare.core.arena, &fill);
        fill = next;
    }
    batch_map_fini(&map);
    bare_core_close(&bare);
}

Test(batch, map_finds_what_it_gave_until_it_is_full)
{
    struct bare_core bare;
    struct batch_map map;
    bare_core_open(&bare, 1 * MIB);
    static const uint32_t capacities[] = {1, 8, 9, 100};
    for (size_t i = 0; i < sizeof(capacities) / sizeof(capacities[0]); i++) {
        struct batch *batches[1024];
        batch_map_init(&map, &bare.core, capacities[i]);
        uint32_t count = 0;
        cr_expect_null(batch_map_find(&map, batch_name(0, 1, 2)));
        for (; count < 1024; count++) {
            batches[count] = batch_map_get(&map, batch_name(0, count + 1, 2));
            if (batches[count] == NULL)
                break;
        }
        cr_expect_geq(count, capacities[i]);
        cr_expect_leq(count, capacities[i] < 8 ? 8 : capacities[i] * 2, "%u of %u", count, capacities[i]);
        for (uint32_t j = 0; j < count; j++) {
            cr_expect_eq(batch_map_get(&map, batch_name(0, j + 1, 2)), batches[j]);
            cr_expect_eq(batch_map_find(&map, batch_name(0, j + 1, 2)), batches[j]);
        }
        cr_expect_null(batch_map_find(&map, batch_name(0, 5000, 3)));
        batch_map_fini(&map);
    }
    bare_core_close(&bare);
}

Test(batch, sweep_frees_the_places_of_idle_batches_alone)
{
    struct bare_core bare;
    struct batch_map map;
    struct leg leg;
    struct flushed flushed = {0};
    bare_core_open(&bare, 1 * MIB);
    batch_map_init(&map, &bare.core, 8);
    for (uint32_t i = 1; i <= 8; i++)
        cr_assert_not_null(batch_map_get(&map, batch_name(0, i, 2)));
    cr_assert_null(batch_map_get(&map, batch_name(0, 9, 2)));
    batch_map_sweep(&map, 2);
    add(&map, batch_map_get(&map, batch_name(0, 3, 2)), &leg, "used");
    batch_map_sweep(&map, 0); /* a batch holds legs: nothing moves */
    cr_expect_eq(map.used, 8);
    batch_flush_one(batch_map_get(&map, batch_name(0, 3, 2)), take, &flushed);
    end_all(&bare, &flushed);
    batch_map_sweep(&map, 2); /* the others: three idle sweeps */
    cr_expect_eq(map.used, 1);
    cr_expect_not_null(batch_map_find(&map, batch_name(0, 3, 2)));
    cr_expect_null(batch_map_find(&map, batch_name(0, 4, 2)));
    cr_expect_not_null(batch_map_get(&map, batch_name(0, 9, 2)));
    add(&map, batch_map_get(&map, batch_name(0, 9, 2)), &leg, "new");
    batch_flush_one(batch_map_get(&map, batch_name(0, 9, 2)), take, &flushed);
    cr_expect_str_eq(wire(&flushed), "new");
    end_all(&bare, &flushed);
    batch_map_fini(&map);
    bare_core_close(&bare);
}
