#include "core/status.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

TestSuite(status);

Test(status, every_row_has_a_name_and_a_text_that_is_one_resp_line)
{
    for (int i = 0; i < STATUS_COUNT; i++) {
        enum status status = (enum status)i;
        cr_assert_not_null(status_name(status));
        cr_assert_gt(strlen(status_name(status)), 0);
        for (int j = 0; j < i; j++)
            cr_assert_str_neq(status_name(status), status_name((enum status)j));
        const char *text = status_resp_text(status);
        if (text == NULL)
            continue;
        cr_assert_neq(text[0], '-', "%s", status_name(status));
        cr_assert_null(strpbrk(text, "\r\n"), "%s", status_name(status));
        /* Client libraries tell errors apart by a first word in capitals. */
        size_t word = strcspn(text, " ");
        cr_assert(word > 0 && word == strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "%s", status_name(status));
    }
}

Test(status, rows_are_what_the_table_says)
{
    cr_assert_eq(STATUS_OK, 0);
    cr_assert_str_eq(status_name(STATUS_OK), "OK");
    cr_assert_null(status_resp_text(STATUS_OK));
    cr_assert_not(status_is_retryable(STATUS_OK));
    cr_assert_str_eq(status_name(STATUS_CROSSSLOT), "CROSSSLOT");
    cr_assert_str_eq(status_resp_text(STATUS_CROSSSLOT), "CROSSSLOT Keys in request don't hash to the same slot");
    cr_assert_not(status_is_retryable(STATUS_CROSSSLOT));
    cr_assert(status_is_retryable(STATUS_FULL));
    cr_assert(status_is_retryable(STATUS_TIMEOUT));
}

Test(status, value_outside_the_table_aborts, .signal = SIGABRT)
{
    (void)status_name(STATUS_COUNT);
}
