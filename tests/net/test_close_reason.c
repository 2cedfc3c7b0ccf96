#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "net/close_reason.h"

TestSuite(close_reason);

Test(close_reason, every_reason_has_a_text_of_its_own)
{
    for (int i = 0; i < CLOSE_REASON_COUNT; i++) {
        const char *text = close_reason_text((enum close_reason)i);
        cr_assert(text != NULL && text[0] != '\0', "%d", i);
        /* It is written into a quoted field of a log line. */
        cr_expect_null(strpbrk(text, "\"\\\r\n"), "%s", text);
        for (int j = 0; j < i; j++)
            cr_expect_str_neq(text, close_reason_text((enum close_reason)j));
    }
}

Test(close_reason, ordinary_ends_are_no_errors)
{
    static const enum close_reason ordinary[] = {CLOSE_NONE, CLOSE_PEER, CLOSE_QUIT, CLOSE_IDLE_LINK, CLOSE_DRAIN};
    int errors_count = 0;
    for (size_t i = 0; i < sizeof(ordinary) / sizeof(ordinary[0]); i++)
        cr_expect_not(close_reason_is_error(ordinary[i]));
    for (int i = 0; i < CLOSE_REASON_COUNT; i++)
        errors_count += close_reason_is_error((enum close_reason)i);
    cr_expect_eq(errors_count, CLOSE_REASON_COUNT - (int)(sizeof(ordinary) / sizeof(ordinary[0])));
}

Test(close_reason, text_of_no_reason_ends_the_process, .signal = SIGABRT)
{
    (void)close_reason_text(CLOSE_REASON_COUNT);
}

Test(close_reason, kind_of_no_reason_ends_the_process, .signal = SIGABRT)
{
    (void)close_reason_is_error(CLOSE_REASON_COUNT);
}
