/*
 * A use case: everything per tenant in one record. This version has one, `default`, which every connection belongs to.
 */
#pragma once

#include <stdint.h>

enum { USE_CASE_NAME_MAX = 64, USE_CASE_DEFAULT = 0 };

struct use_case {
    char name[USE_CASE_NAME_MAX];
    char backend[USE_CASE_NAME_MAX]; /* name of the backend it is served by */
    uint64_t timeout_ns;             /* from arrival of the command to its reply */
    uint64_t max_value_bytes;        /* of one argument */
    uint64_t batch_max_bytes;        /* a batch that reaches it is closed and a new one begun */
    uint32_t batch_max_requests;
    uint32_t retry_percent; /* repeats, of all requests */
    uint32_t retry_floor;   /* repeats a second and core besides */
};
