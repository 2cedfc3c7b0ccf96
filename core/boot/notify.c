/*
 * Owns: the socket towards the service manager. Runs on: the main thread.
 */
#include "core/boot/notify.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 256, STOPPING_MARGIN_US = 5 * 1000 * 1000 /* for what comes behind the drain */ };

void notify_open(struct notify *notify)
{
    const char *path = getenv("NOTIFY_SOCKET");
    *notify = (struct notify){.address = {.sun_family = AF_UNIX}, .fd = -1};
    /* A path, or an abstract name behind '@'. Other kinds of address are for virtual machines. */
    if (path == NULL || (path[0] != '/' && path[0] != '@') || path[1] == '\0')
        return;
    size_t length = strlen(path);
    if (length >= sizeof(notify->address.sun_path))
        return;
    memcpy(notify->address.sun_path, path, length);
    if (path[0] == '@')
        notify->address.sun_path[0] = '\0';
    notify->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (path[0] == '/' ? 1 : 0));
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void notify_close(struct notify *notify)
{
    if (notify->fd >= 0)
        close(notify->fd);
    notify->fd = -1;
}

static bool say(const struct notify *notify, const char *text)
{
    if (notify->fd < 0)
        return true;
    return sendto(notify->fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&notify->address, notify->address_bytes) >= 0;
}

bool notify_ready(const struct notify *notify, bool is_serving)
{
    return say(notify, is_serving ? "READY=1\nSTATUS=serving\n" : "READY=1\nSTATUS=listening; no complete view of the backend yet\n");
}

void notify_stopping(const struct notify *notify, uint64_t timeout_ns)
{
    char text[TEXT_BYTES];
    (void)snprintf(text, sizeof(text), "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%" PRIu64 "\n", timeout_ns / 1000 + STOPPING_MARGIN_US);
    (void)say(notify, text); /* where it does not arrive, the service manager's own limit holds */
}
