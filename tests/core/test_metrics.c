#include "core/metrics.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <signal.h>
#include <string.h>

#include "core/alloc.h"

TestSuite(metrics);

static bool ends_with(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

Test(metrics, every_row_has_a_valid_unique_name_a_kind_and_a_help_sentence)
{
    for (int i = 0; i < METRIC_COUNT; i++) {
        const struct metric_info *info = metric_info((enum metric)i);
        for (const char *at = info->name; *at != '\0'; at++)
            cr_assert(islower((unsigned char)*at) || isdigit((unsigned char)*at) || *at == '_', "%s", info->name);
        bool is_counter = strcmp(info->kind, "counter") == 0;
        cr_assert(is_counter || strcmp(info->kind, "gauge") == 0, "%s", info->name);
        /* Prometheus: counters, and only they, end in _total. */
        cr_assert_eq(is_counter, ends_with(info->name, "_total"), "%s", info->name);
        cr_assert_gt(strlen(info->unit), 0, "%s", info->name);
        cr_assert(ends_with(info->help, ".") && strpbrk(info->help, "\\\n") == NULL, "%s", info->name);
        for (int j = 0; j < i; j++)
            cr_assert_str_neq(info->name, metric_info((enum metric)j)->name);
    }
}

Test(metrics, values_are_added_set_and_read_apart)
{
    struct metrics *metrics = alloc_zeroed_aligned(sizeof(*metrics), 64);
    metric_add(metrics, METRIC_requests_total, 2);
    metric_add(metrics, METRIC_requests_total, 3);
    metric_set(metrics, METRIC_clients, 9);
    metric_set(metrics, METRIC_clients, 4);
    cr_assert_eq(metric_read(metrics, METRIC_requests_total), 5);
    cr_assert_eq(metric_read(metrics, METRIC_clients), 4);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (i != METRIC_requests_total && i != METRIC_clients)
            cr_assert_eq(metric_read(metrics, (enum metric)i), 0);
    metric_set(metrics, METRIC_arena_bytes, UINT64_MAX);
    metric_add(metrics, METRIC_arena_bytes, 2);
    cr_assert_eq(metric_read(metrics, METRIC_arena_bytes), 1, "values wrap around");
    alloc_free(metrics);
}

Test(metrics, value_outside_the_table_aborts, .signal = SIGABRT)
{
    (void)metric_info(METRIC_COUNT);
}
