/*
 * What an error reply of a backend asks the gateway to do. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shard/topology.h"

enum recover_verdict {
    RECOVER_NONE,   /* the client's business */
    RECOVER_MOVED,  /* the slot lives elsewhere, from now on */
    RECOVER_ASK,    /* this one command is to be asked elsewhere */
    RECOVER_RETRY,  /* not executed, and may be soon: TRYAGAIN, BUSY */
    RECOVER_RETRY_REFRESH, /* the same, and the view may be old: CLUSTERDOWN, LOADING, READONLY, MASTERDOWN */
};

struct recover_target {
    uint16_t slot;
    uint16_t port;
    char host[HOST_BYTES]; /* empty: the host of the node that answered */
};

/* `error` begins with '-' and ends with CRLF. For MOVED and ASK the target is filled; a malformed redirect is RECOVER_NONE, and so is an error that only begins with one of
 * these words: a script may say anything, after it has written. */
enum recover_verdict recover_classify(const uint8_t *error, uint32_t length, struct recover_target *target);

/* How long to wait before attempt `attempts` + 1, in milliseconds: 2, 4, 8 ... 64. */
uint32_t recover_delay_ms(uint32_t attempts);
