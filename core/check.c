/*
 * The report of a failed assertion. Runs on whichever thread found the bug; it must work with a broken heap, so it only uses the stack and write(2).
 */
#include "core/check.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_BYTES_MAX = 1024, DECIMAL_DIGITS_MAX = 10 };

struct report {
    char text[REPORT_BYTES_MAX];
    size_t length;
};

/* Appends as much as fits; the last byte is kept for the line end. */
static void report_add(struct report *report, const char *text)
{
    size_t room = REPORT_BYTES_MAX - 1 - report->length;
    size_t bytes = strnlen(text, room);
    memcpy(report->text + report->length, text, bytes);
    report->length += bytes;
}

static void report_add_number(struct report *report, uint32_t number)
{
    char digits[DECIMAL_DIGITS_MAX + 1];
    size_t at = DECIMAL_DIGITS_MAX;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    report_add(report, digits + at);
}

void check_failed(const char *file, int line, const char *condition)
{
    struct report report = {.length = 0};
    report_add(&report, "zgateway: check failed: ");
    report_add(&report, file);
    report_add(&report, ":");
    report_add_number(&report, line > 0 ? (uint32_t)line : 0);
    report_add(&report, ": ");
    report_add(&report, condition);
    report.text[report.length++] = '\n';
    /* One write, so that reports of two threads do not mix. There is nobody left to tell where it fails. */
    ssize_t written = write(STDERR_FILENO, report.text, report.length);
    (void)written;
    abort();
}
