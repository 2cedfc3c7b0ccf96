/*
 * The figures behind INFO and CLIENT LIST: sums over the metrics pages of all cores.
 */
#pragma once

#include <stdint.h>

#include "core/core.h"
#include "net/session.h"

struct process;

/* Appends the lines of one section ("clients", "memory", "stats", "cpu", "keyspace", "zgateway"); nothing for others. */
void info_write_section(const struct process *process, const struct core_peer *peers, const char *section, uint64_t now_ns, struct resp_writer *text);

/* The line of one connection. context: struct net of its core. */
void info_client_list(void *context, struct resp_writer *text, const struct session *self);
