/*
 * The rules of listeners with a port per data core. Boot only.
 */
#include <stdio.h>
#include <string.h>

#include "core/address.h"
#include "core/options.h"

static bool is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static bool is_presented_as_cluster(const struct config *config, const struct config_listener *listener)
{
    return config->backend.kind == BACKEND_CLUSTER && listener->present != PRESENT_STANDALONE;
}

/* The ports that a listener takes: first .. last. False: it has none. */
static bool ports_of(const struct config *config, const struct config_listener *listener, struct config_address *address, uint32_t *last)
{
    char error[256];
    if (strncmp(listener->address, "unix:", 5) == 0 || address_parse(listener->address, false, address, error, sizeof(error)) != STATUS_OK)
        return false;
    *last = address->port + (listener->port_per_core ? config->cores.data : 0);
    return true;
}

/* Two sockets that share an address would share connections, and those of one core would come to another. */
static bool overlaps(const struct config *config, uint32_t first, uint32_t second)
{
    struct config_address a, b;
    uint32_t a_last, b_last;
    if (!ports_of(config, &config->listeners[first], &a, &a_last) || !ports_of(config, &config->listeners[second], &b, &b_last))
        return false;
    bool is_same_host = strcmp(a.host, b.host) == 0 || is_wildcard(a.host) || is_wildcard(b.host);
    return is_same_host && a.port <= b_last && b.port <= a_last;
}

static bool is_listener_valid(const struct config *config, uint32_t index, char *detail, size_t detail_bytes)
{
    const struct config_listener *listener = &config->listeners[index];
    struct config_address address, announce;
    uint32_t last;
    char error[256];
    if (!ports_of(config, listener, &address, &last)) {
        (void)snprintf(detail, detail_bytes, "'%.80s' has no ports; allowed: with HOST:PORT", listener->address);
        return false;
    }
    if (!is_presented_as_cluster(config, listener)) {
        (void)snprintf(detail, detail_bytes, "'%.80s' is not presented as a cluster; allowed: with a cluster behind it, and present: cluster", listener->address);
        return false;
    }
    if (listener->announce[0] != '\0' && address_parse(listener->announce, false, &announce, error, sizeof(error)) == STATUS_OK && announce.port + config->cores.data > UINT16_MAX)
        last = announce.port + config->cores.data;
    if (last > UINT16_MAX) {
        (void)snprintf(detail, detail_bytes, "the last of %u data cores would have port %u; allowed: up to %u", config->cores.data, last, UINT16_MAX);
        return false;
    }
    for (uint32_t other = 0; other < config->listeners_count; other++) {
        if (other != index && overlaps(config, index, other)) {
            (void)snprintf(detail, detail_bytes, "the ports of '%.80s', up to %u, overlap with '%.80s'; allowed: ports that no other listener has", listener->address, last,
                config->listeners[other].address);
            return false;
        }
    }
    return true;
}

bool config_ports_are_valid(const struct config *config, char *detail, size_t detail_bytes)
{
    uint32_t listed = 0;
    for (uint32_t i = 0; i < config->listeners_count; i++) {
        if (!config->listeners[i].port_per_core)
            continue;
        listed += config->cores.data;
        if (!is_listener_valid(config, i, detail, detail_bytes))
            return false;
    }
    if (listed > CONFIG_LISTED_NODES_MAX) {
        (void)snprintf(detail, detail_bytes, "%u nodes would be listed; allowed: at most %d, over all listeners", listed, CONFIG_LISTED_NODES_MAX);
        return false;
    }
    return true;
}
