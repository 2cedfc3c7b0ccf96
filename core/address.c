/*
 * Reads addresses. No state.
 */
#include "core/address.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "core/options.h"

enum { ADDRESS_WEIGHT_MAX = 1000, ADDRESS_PORT_MAX = 65535 };

#define ADDRESS_ALLOWED "allowed: HOST:PORT or [IPV6]:PORT"

/* Digits alone, min .. max. */
static bool parse_number(const char *text, uint32_t min, uint32_t max, uint32_t *value)
{
    uint32_t number = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        number = number * 10 + (uint32_t)(*text - '0');
        if (number > max)
            return false;
    }
    if (number < min)
        return false;
    *value = number;
    return true;
}

static bool is_host_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
}

/* The host of length bytes at `host` goes to `copy`, which has CONFIG_TEXT_MAX bytes. */
static bool copy_host(const char *host, size_t length, bool is_ipv6, char *copy)
{
    struct in6_addr ignored;

    if (length == 0 || length >= CONFIG_TEXT_MAX)
        return false;
    memcpy(copy, host, length);
    copy[length] = '\0';
    if (is_ipv6)
        return inet_pton(AF_INET6, copy, &ignored) == 1;
    for (size_t i = 0; i < length; i++)
        if (!is_host_char(copy[i]))
            return false;
    return true;
}

enum status address_parse(const char *text, bool allow_weight, struct config_address *address, char *error, size_t error_bytes)
{
    struct config_address parsed = {.weight = 1};
    char copy[2 * CONFIG_TEXT_MAX];
    size_t length = strlen(text);
    uint32_t port = 0;

    if (length >= sizeof(copy))
        return option_fail(error, error_bytes, "the address has %zu bytes; allowed: at most %zu", length, sizeof(copy) - 1);
    memcpy(copy, text, length + 1);

    char *weight = strchr(copy, ' ');
    if (weight != NULL) {
        *weight++ = '\0';
        weight += strspn(weight, " ");
        if (!allow_weight)
            return option_fail(error, error_bytes, "'%.80s' has text behind the address; " ADDRESS_ALLOWED, text);
        if (strncmp(weight, "weight=", 7) != 0 || !parse_number(weight + 7, 1, ADDRESS_WEIGHT_MAX, &parsed.weight))
            return option_fail(error, error_bytes, "'%.80s' is not understood behind the address; allowed: weight=1 .. weight=%d", weight, ADDRESS_WEIGHT_MAX);
    }

    bool is_ipv6 = copy[0] == '[';
    char *host = is_ipv6 ? copy + 1 : copy;
    char *host_end = is_ipv6 ? strchr(host, ']') : strrchr(copy, ':');
    if (host_end == NULL || (is_ipv6 && host_end[1] != ':'))
        return option_fail(error, error_bytes, "'%.80s' has no port; " ADDRESS_ALLOWED, text);
    if (!is_ipv6 && strchr(host, ':') != host_end)
        return option_fail(error, error_bytes, "'%.80s' has several colons; an IPv6 address needs brackets; " ADDRESS_ALLOWED, text);
    if (!copy_host(host, (size_t)(host_end - host), is_ipv6, parsed.host))
        return option_fail(error, error_bytes, "'%.80s' has no valid host; " ADDRESS_ALLOWED, text);
    if (!parse_number(host_end + (is_ipv6 ? 2 : 1), 1, ADDRESS_PORT_MAX, &port))
        return option_fail(error, error_bytes, "'%.80s' has no valid port; allowed: 1 .. %d", text, ADDRESS_PORT_MAX);
    parsed.port = (uint16_t)port;
    *address = parsed;
    return STATUS_OK;
}

enum status address_check_listener(const char *text, char *error, size_t error_bytes)
{
    struct config_address ignored;
    struct sockaddr_un name;

    if (strlen(text) >= CONFIG_TEXT_MAX)
        return option_fail(error, error_bytes, "the address has %zu bytes; allowed: at most %d", strlen(text), CONFIG_TEXT_MAX - 1);
    if (strncmp(text, "unix:", 5) != 0)
        return address_parse(text, false, &ignored, error, error_bytes);
    if (text[5] != '/')
        return option_fail(error, error_bytes, "'%.80s' has no absolute path; allowed: unix:/PATH", text);
    if (strlen(text + 5) >= sizeof(name.sun_path))
        return option_fail(error, error_bytes, "the path of the socket has %zu bytes; allowed: at most %zu", strlen(text + 5), sizeof(name.sun_path) - 1);
    return STATUS_OK;
}
