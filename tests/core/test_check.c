/* A failed check must end the process and say where, without the heap. */
#include "core/check.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(check);

/* Runs check_failed in a child and returns how it ended; `report` gets what it wrote to standard error. */
static int failed_in_child(const char *file, int line, const char *condition, char *report, size_t report_bytes)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        check_failed(file, line, condition);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; length < report_bytes - 1 && (got = read(ends[0], report + length, report_bytes - 1 - length)) > 0;)
        length += (size_t)got;
    report[length] = '\0';
    close(ends[0]);
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return status;
}

Test(check, failure_of_a_condition_aborts_with_its_place)
{
    char report[4096];
    int status = failed_in_child("net/conn.c", 1207, "conn->refs > 0", report, sizeof(report));
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    cr_assert_str_eq(report, "zgateway: check failed: net/conn.c:1207: conn->refs > 0\n");

    failed_in_child("a.c", 2147483647, "x", report, sizeof(report));
    cr_assert_str_eq(report, "zgateway: check failed: a.c:2147483647: x\n");
    failed_in_child("a.c", -1, "x", report, sizeof(report));
    cr_assert_str_eq(report, "zgateway: check failed: a.c:0: x\n");
}

Test(check, failure_with_a_long_condition_is_cut_and_ends_the_line)
{
    char condition[3000], report[4096];
    memset(condition, 'c', sizeof(condition) - 1);
    condition[sizeof(condition) - 1] = '\0';
    int status = failed_in_child("a.c", 1, condition, report, sizeof(report));
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    cr_assert_eq(strlen(report), 1024);
    cr_assert_eq(report[1023], '\n');
    cr_assert_eq(report[1022], 'c');
}

Test(check, condition_that_holds_is_evaluated_once_and_goes_on)
{
    int evaluated_count = 0;
    ZG_CHECK(++evaluated_count == 1);
    cr_assert_eq(evaluated_count, 1);
}

Test(check, condition_that_does_not_hold_aborts, .signal = SIGABRT)
{
    int zero = 0;
    ZG_CHECK(zero != 0);
}

Test(check, unreachable_aborts, .signal = SIGABRT)
{
    ZG_UNREACHABLE();
}
