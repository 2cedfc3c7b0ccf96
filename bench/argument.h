/*
 * Numbers on the command lines of the benchmarks.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Digits alone that are 1 .. max, then the character `end`; otherwise false, and *value is untouched. */
static inline bool argument_number(const char *text, char end, uint32_t max, uint32_t *value)
{
    char *behind;
    /* strtoull also takes spaces and a sign. */
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &behind, 10);
    if (errno != 0 || *behind != end || number < 1 || number > max)
        return false;
    *value = (uint32_t)number;
    return true;
}
