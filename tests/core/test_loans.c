/*
 * core/loans: what is lent until its return.
 */
#include <criterion/criterion.h>
#include <signal.h>

#include "core/arena.h"
#include "core/loans.h"
#include "core/rng.h"

TestSuite(loans);

/* The table only keeps addresses: four places that look like blocks. */
static uint64_t places[4][sizeof(struct block) / sizeof(uint64_t)];

static struct block *block_at(uint32_t index)
{
    return (struct block *)(void *)places[index];
}

Test(loans, loan_is_found_by_peer_and_offset_once)
{
    struct loans loans;
    loans_init(&loans, 3, 100);
    loans_add(&loans, 1, 4096, block_at(0));
    loans_add(&loans, 2, 4096, block_at(1));
    cr_assert_null(loans_remove(&loans, 0, 4096));
    cr_assert_null(loans_remove(&loans, 1, 4097));
    cr_assert_eq(loans_remove(&loans, 2, 4096), block_at(1));
    cr_assert_null(loans_remove(&loans, 2, 4096), "a second return of the same loan finds nothing");
    cr_assert_eq(loans_remove(&loans, 1, 4096), block_at(0));
    cr_assert_eq(loans.count, 0);
    loans_fini(&loans);
}

Test(loans, same_bytes_lent_twice_are_two_loans)
{
    struct loans loans;
    loans_init(&loans, 2, 100);
    loans_add(&loans, 1, 64, block_at(0));
    loans_add(&loans, 1, 64, block_at(0));
    cr_assert_eq(loans_remove(&loans, 1, 64), block_at(0));
    cr_assert_eq(loans_remove(&loans, 1, 64), block_at(0));
    cr_assert_null(loans_remove(&loans, 1, 64));
    loans_fini(&loans);
}

Test(loans, all_of_a_peer_can_be_removed_and_no_other)
{
    struct loans loans;
    loans_init(&loans, 4, 10000);
    for (uint32_t i = 0; i < 2000; i++)
        loans_add(&loans, i % 4, i, block_at(i % 4));
    uint32_t removed = 0;
    struct block *block;
    while ((block = loans_remove_any(&loans, 2)) != NULL) {
        cr_assert_eq(block, block_at(2));
        removed++;
    }
    cr_assert_eq(removed, 500);
    cr_assert_eq(loans.count, 1500);
    for (uint32_t i = 0; i < 2000; i++)
        cr_assert_eq(loans_remove(&loans, i % 4, i), i % 4 == 2 ? NULL : block_at(i % 4));
    loans_fini(&loans);
}

Test(loans, table_agrees_with_a_model_while_it_grows_and_shrinks)
{
    enum { PEERS = 5, OFFSETS = 700 };
    static uint32_t model[PEERS][OFFSETS];
    struct loans loans;
    struct rng rng = {.state = 7};
    uint32_t count = 0;
    loans_init(&loans, PEERS, 100000);
    for (uint32_t step = 0; step < 200000; step++) {
        uint32_t peer = rng_below(&rng, PEERS);
        uint32_t offset = rng_below(&rng, OFFSETS);
        /* Waves: mostly adding, then mostly removing. */
        if (rng_below(&rng, 10) < (step / 20000 % 2 == 0 ? 7 : 3)) {
            loans_add(&loans, peer, offset * 256ull, block_at(peer % 4));
            model[peer][offset]++;
            count++;
        } else {
            struct block *block = loans_remove(&loans, peer, offset * 256ull);
            if (model[peer][offset] == 0) {
                cr_assert_null(block, "step %u", step);
            } else {
                cr_assert_eq(block, block_at(peer % 4), "step %u", step);
                model[peer][offset]--;
                count--;
            }
        }
        cr_assert_eq(loans.count, count);
    }
    for (uint32_t peer = 0; peer < PEERS; peer++) {
        while (loans_remove_any(&loans, peer) != NULL)
            count--;
    }
    cr_assert_eq(count, 0);
    loans_fini(&loans);
}

Test(loans, more_than_the_maximum_aborts, .signal = SIGABRT)
{
    struct loans loans;
    loans_init(&loans, 2, 3);
    for (uint32_t i = 0; i < 3; i++)
        loans_add(&loans, 1, i, block_at(0));
    cr_assert_eq(loans.count, 3);
    loans_add(&loans, 1, 3, block_at(0));
}

Test(loans, fini_with_a_loan_out_aborts, .signal = SIGABRT)
{
    struct loans loans;
    loans_init(&loans, 2, 3);
    loans_add(&loans, 1, 0, block_at(0));
    loans_fini(&loans);
}
