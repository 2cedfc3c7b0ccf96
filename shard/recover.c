/*
 * Stateless. Source: error replies of the Redis Cluster specification, and redis-server 7's texts.
 */
#include "shard/recover.h"

#include <string.h>

enum { DELAY_FIRST_MS = 2, DELAY_DOUBLINGS_MAX = 5 };

static bool begins_with(const uint8_t *error, uint32_t length, const char *text)
{
    size_t bytes = strlen(text);
    return length > bytes && memcmp(error + 1, text, bytes) == 0;
}

static bool contains(const uint8_t *error, uint32_t length, const char *text)
{
    return memmem(error, length, text, strlen(text)) != NULL;
}

static bool parse_number(const uint8_t **at, const uint8_t *end, uint32_t max, uint32_t *value)
{
    const uint8_t *start = *at;
    *value = 0;
    while (*at < end && **at >= '0' && **at <= '9') {
        *value = *value * 10 + (uint32_t)(**at - '0');
        if (*value > max)
            return false;
        (*at)++;
    }
    return *at > start;
}

/* " 3999 127.0.0.1:6381\r\n"; the last colon separates the port, so that IPv6 addresses fit. */
static bool parse_target(const uint8_t *at, const uint8_t *end, struct recover_target *target)
{
    uint32_t slot;
    uint32_t port;
    if (at == end || *at++ != ' ' || !parse_number(&at, end, CLUSTER_SLOTS - 1, &slot) || at == end || *at++ != ' ')
        return false;
    const uint8_t *stop = at;
    while (stop < end && *stop != '\r' && *stop != ' ')
        stop++;
    const uint8_t *colon = stop;
    while (colon > at && colon[-1] != ':')
        colon--;
    if (colon == at)
        return false;
    size_t host_bytes = (size_t)(colon - 1 - at);
    if (host_bytes >= sizeof(target->host) || !parse_number(&colon, stop, UINT16_MAX, &port) || colon != stop || port == 0)
        return false;
    memcpy(target->host, at, host_bytes);
    target->host[host_bytes] = '\0';
    if (strcmp(target->host, "?") == 0)
        target->host[0] = '\0';
    target->slot = (uint16_t)slot;
    target->port = (uint16_t)port;
    return true;
}

enum recover_verdict recover_classify(const uint8_t *error, uint32_t length, struct recover_target *target)
{
    /* A script may have written and then returned an error with a first word of its choice: only what the server itself says is repeated. */
    static const struct {
        const char *begin;
        const char *further; /* somewhere behind it; "" where `begin` is enough */
        enum recover_verdict verdict;
    } texts[] = {
        {"MOVED ", "", RECOVER_MOVED},
        {"ASK ", "", RECOVER_ASK},
        {"TRYAGAIN Multiple keys request", "", RECOVER_RETRY},
        {"BUSY ", " is busy running a ", RECOVER_RETRY},
        {"CLUSTERDOWN Hash slot not served", "", RECOVER_RETRY_REFRESH},
        {"CLUSTERDOWN The cluster is down", "", RECOVER_RETRY_REFRESH},
        {"LOADING ", " is loading the dataset in memory", RECOVER_RETRY_REFRESH},
        {"READONLY You can't write against a read only ", "", RECOVER_RETRY_REFRESH},
        {"READONLY Can not run script with write flag", "", RECOVER_RETRY_REFRESH},
        {"MASTERDOWN Link with MASTER is down", "", RECOVER_RETRY_REFRESH},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (!begins_with(error, length, texts[i].begin) || !contains(error, length, texts[i].further))
            continue;
        bool is_redirect = texts[i].verdict == RECOVER_MOVED || texts[i].verdict == RECOVER_ASK;
        if (is_redirect && !parse_target(error + strlen(texts[i].begin), error + length, target))
            return RECOVER_NONE;
        return texts[i].verdict;
    }
    return RECOVER_NONE;
}

uint32_t recover_delay_ms(uint32_t attempts)
{
    return (uint32_t)DELAY_FIRST_MS << (attempts < DELAY_DOUBLINGS_MAX ? attempts : DELAY_DOUBLINGS_MAX);
}
