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
