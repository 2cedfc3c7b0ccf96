/*
 * core/cpu_usage: sums over texts as /proc/stat has them, and the real one.
 */
#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

#include "core/cpu_usage.h"
#include "core/thread.h"

static const char stat_text[] = "cpu  100 0 100 1000 0 0 0 0 0 0\n"
                                "cpu0 10 1 20 100 5 2 3 4 9 9\n"
                                "cpu1 1000 0 0 0 0 0 0 0 0 0\n"
                                "cpu12 7 0 0 3 0 0 0 0 0 0\n"
                                "intr 12345 cpu3 1 1 1\n"
                                "ctxt 7\n";

static struct cpu_usage usage_of(const uint16_t *cpus, uint32_t count)
{
    struct cpu_usage usage;
    cpu_usage_open(&usage, cpus, count);
    cpu_usage_close(&usage);
    return usage;
}

Test(cpu_usage, sums_are_of_the_cpus_that_are_meant)
{
    static const struct {
        uint16_t cpus[3];
        uint32_t count;
        uint64_t busy, all;
    } rows[] = {{{0}, 1, 40, 145}, {{1}, 1, 1000, 1000}, {{12, 0}, 2, 47, 155}, {{3}, 1, 0, 0}, {{0}, 0, 0, 0}, {{0, 1, 2000}, 3, 1040, 1145}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct cpu_usage usage = usage_of(rows[i].cpus, rows[i].count);
        uint64_t busy, all;
        cpu_usage_sum(&usage, stat_text, &busy, &all);
        cr_expect(busy == rows[i].busy && all == rows[i].all, "row %zu: %lu of %lu", i, (unsigned long)busy, (unsigned long)all);
    }
}

Test(cpu_usage, other_texts_give_nothing)
{
    static const char *const texts[] = {"", "\n", "cpu0", "cpu0\n", "cpu0 x y z\n", "cpu\n", "cpu99999999999999999999 1 1 1 1\n", "nonsense\ncpu0"};
    const uint16_t cpu = 0;
    const struct cpu_usage usage = usage_of(&cpu, 1);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint64_t busy, all;
        cpu_usage_sum(&usage, texts[i], &busy, &all);
        cr_expect(busy == 0 && all == 0, "text %zu", i);
    }
}

Test(cpu_usage, real_one_stays_in_its_range_and_nothing_is_known_without_a_file)
{
    uint16_t cpus[64];
    uint32_t count = thread_cpus(cpus, 64);
    struct cpu_usage usage;
    cpu_usage_open(&usage, cpus, count);
    cr_expect_gt(usage.all_ticks, 0);
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    for (int i = 0; i < 3; i++) {
        cr_expect_leq(cpu_usage_permille(&usage), 1000);
        (void)nanosleep(&pause, NULL);
    }
    cpu_usage_close(&usage);
    cr_expect_eq(cpu_usage_permille(&usage), 0);
}
