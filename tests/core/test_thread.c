/*
 * core/thread: name, pinning, and what the caller reads where a CPU may not be used.
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "core/thread.h"

TestSuite(thread);

struct seen {
    char name[32];
    uint32_t cpus_count;
    int cpu;
};

static void look(void *context)
{
    struct seen *seen = context;
    (void)pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
    seen->cpus_count = thread_cpus_count();
    seen->cpu = sched_getcpu();
}

Test(thread, start_unpinned_has_name_and_all_cpus)
{
    struct thread thread;
    struct seen seen = {0};
    char error[200] = "x";
    cr_assert_eq(thread_start(&thread, "zg-core-3", -1, look, &seen, error, sizeof(error)), STATUS_OK);
    thread_join(&thread);
    cr_assert_str_eq(seen.name, "zg-core-3");
    cr_assert_str_eq(error, "");
    cr_assert_eq(seen.cpus_count, thread_cpus_count());
}

Test(thread, start_pinned_runs_on_that_cpu_alone)
{
    uint16_t cpus[16];
    uint32_t count = thread_cpus(cpus, 16);
    cr_assert_geq(count, 1);
    for (uint32_t i = 0; i < count; i++) {
        struct thread thread;
        struct seen seen = {0};
        char error[200];
        cr_assert_eq(thread_start(&thread, "a name that is too long to keep", cpus[i], look, &seen, error, sizeof(error)), STATUS_OK, "%s", error);
        thread_join(&thread);
        cr_assert_eq(seen.cpu, cpus[i]);
        cr_assert_eq(seen.cpus_count, 1);
        cr_assert_str_eq(seen.name, "a name that is ");
    }
}

Test(thread, start_on_a_cpu_that_is_not_there_is_an_error_with_text)
{
    struct thread thread;
    char error[200];
    cr_assert_eq(thread_start(&thread, "zg-core-0", 4095, look, NULL, error, sizeof(error)), STATUS_INVALID);
    cr_assert_not_null(strstr(error, "thread zg-core-0: cannot be pinned to CPU 4095"), "%s", error);
    cr_assert_eq(thread_start(&thread, "zg-core-0", 4096, look, NULL, error, sizeof(error)), STATUS_INVALID);
    char tiny[8];
    cr_assert_eq(thread_start(&thread, "zg-core-0", 100000, look, NULL, tiny, sizeof(tiny)), STATUS_INVALID);
    cr_assert_str_eq(tiny, "thread ");
}

static void pin_itself(void *context)
{
    char error[200];
    struct seen *seen = context;
    cr_assert_eq(thread_pin_self(seen->cpu, error, sizeof(error)), STATUS_OK, "%s", error);
    look(context);
}

Test(thread, pin_self_runs_on_that_cpu_alone)
{
    uint16_t cpus[16];
    uint32_t count = thread_cpus(cpus, 16);
    for (uint32_t i = 0; i < count; i++) {
        struct thread thread;
        struct seen seen = {.cpu = cpus[i]};
        char error[200];
        cr_assert_eq(thread_start(&thread, "zg", -1, pin_itself, &seen, error, sizeof(error)), STATUS_OK);
        thread_join(&thread);
        cr_expect(seen.cpu == cpus[i] && seen.cpus_count == 1);
    }
    cr_expect_eq(thread_cpus_count(), count, "others are not touched");
}

Test(thread, pin_self_to_a_cpu_that_is_not_there_is_an_error_with_text)
{
    static const int cpus[] = {-1, 4095, 4096, INT32_MAX};
    for (size_t i = 0; i < sizeof(cpus) / sizeof(cpus[0]); i++) {
        char error[200] = "";
        uint32_t count = thread_cpus_count();
        cr_expect_eq(thread_pin_self(cpus[i], error, sizeof(error)), STATUS_INVALID);
        cr_expect_not_null(strstr(error, "cannot be pinned to CPU"));
        cr_expect_eq(thread_cpus_count(), count);
    }
}

Test(thread, cpus_agree_with_count_and_respect_the_maximum)
{
    uint16_t cpus[THREAD_CPUS_MAX];
    uint32_t count = thread_cpus(cpus, THREAD_CPUS_MAX);
    cr_assert_eq(count, thread_cpus_count());
    for (uint32_t i = 1; i < count; i++)
        cr_assert_lt(cpus[i - 1], cpus[i]);
    cr_assert_eq(thread_cpus(cpus, 1), 1);
    cr_assert_eq(thread_cpus(cpus, 0), 0);
}

Test(thread, set_name_names_the_caller)
{
    char name[32];
    thread_set_name("housekeeper");
    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    cr_assert_str_eq(name, "housekeeper");
}

Test(thread, join_twice_aborts, .signal = SIGABRT)
{
    struct thread thread;
    struct seen seen = {0};
    char error[200];
    if (thread_start(&thread, "once", -1, look, &seen, error, sizeof(error)) == STATUS_OK)
        thread_join(&thread);
    thread_join(&thread);
}
