/*
 * Assertions. A bug is not an operating error: ZG_CHECK is always compiled in and ends the process with a report.
 */
#pragma once

#define ZG_NODISCARD __attribute__((warn_unused_result))
#define ZG_PRINTF(format_index, args_index) __attribute__((format(printf, format_index, args_index)))

/* Prints file, line and the condition to standard error, then aborts. Allocates nothing. */
__attribute__((noreturn, cold)) void check_failed(const char *file, int line, const char *condition);

#define ZG_CHECK(condition) \
    do { \
        if (__builtin_expect(!(condition), 0)) \
            check_failed(__FILE__, __LINE__, #condition); \
    } while (0)

#define ZG_UNREACHABLE() check_failed(__FILE__, __LINE__, "unreachable")
