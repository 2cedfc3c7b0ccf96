/*
 * What the housekeeping core publishes to the data cores as one snapshot: immutable, alive until every core has acknowledged a newer one.
 */
#pragma once

#include <stdint.h>

#include "net/command_table.h"
#include "shard/topology.h"

/* Replies of a backend that are passed on as they came; bytes NULL: it did not answer. */
struct raw_reply {
    uint8_t *bytes;
    uint32_t length;
};

/* Learned once at start and kept for the life of the process. */
struct backend_facts {
    struct command_table *commands;
    struct raw_reply command[2]; /* COMMAND, in RESP2 and RESP3 */
    struct raw_reply docs[2];    /* COMMAND DOCS */
};

struct published {
    const struct topology *topology;
    const struct backend_facts *facts;
};
