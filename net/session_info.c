/*
 * INFO and CONFIG GET. The session knows a few lines of INFO itself; figures (clients, memory, counters) are appended by
 * request_ops.info_section. Runs on the connection's home core.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/check.h"
#include "net/session_handlers.h"
#include "zg_build.h"

/* One section of INFO. `write` may be NULL: all lines come from request_ops. */
struct info_section {
    const char *name; /* lower case, as asked for */
    const char *title;
    bool by_default; /* part of INFO without arguments */
    void (*write)(const struct session_call *call, struct resp_writer *text);
};

static void line(struct resp_writer *text, const char *bytes)
{
    resp_write_raw(text, bytes, strlen(bytes));
    resp_write_raw(text, "\r\n", 2);
}

static void line_number(struct resp_writer *text, const char *name, uint64_t value)
{
    char bytes[128];
    (void)snprintf(bytes, sizeof(bytes), "%s:%" PRIu64, name, value);
    line(text, bytes);
}

static void write_server(const struct session_call *call, struct resp_writer *text)
{
    line(text, "redis_version:" SESSION_REDIS_VERSION);
    line(text, "zgateway_version:" ZG_VERSION);
    line(text, call->env->present_cluster ? "redis_mode:cluster" : "redis_mode:standalone");
    line(text, "os:Linux");
    line(text, sizeof(void *) == 8 ? "arch_bits:64" : "arch_bits:32");
    line(text, "multiplexing_api:io_uring");
    line_number(text, "process_id", (uint64_t)getpid());
    line_number(text, "server_time_usec", call->env->realtime_us);
}

static void write_memory(const struct session_call *call, struct resp_writer *text)
{
    (void)call;
    line(text, "maxmemory:0");
    line(text, "maxmemory_human:0B");
    line(text, "maxmemory_policy:noeviction");
}

/* Clients wait while loading is 1: that is what they shall do until the gateway has a complete view of its backends. */
static void write_persistence(const struct session_call *call, struct resp_writer *text)
{
    line(text, call->env->is_ready ? "loading:0" : "loading:1");
    line(text, "async_loading:0");
    line(text, "rdb_bgsave_in_progress:0");
    line(text, "aof_enabled:0");
    line(text, "aof_rewrite_in_progress:0");
}

static void write_replication(const struct session_call *call, struct resp_writer *text)
{
    (void)call;
    line(text, "role:master");
    line(text, "connected_slaves:0");
    line(text, "master_failover_state:no-failover");
    line(text, "master_replid:0000000000000000000000000000000000000000");
    line(text, "master_replid2:0000000000000000000000000000000000000000");
    line(text, "master_repl_offset:0");
    line(text, "second_repl_offset:-1");
    line(text, "repl_backlog_active:0");
}

static void write_cluster(const struct session_call *call, struct resp_writer *text)
{
    line(text, call->env->present_cluster ? "cluster_enabled:1" : "cluster_enabled:0");
}

/* In the order of a server's INFO. */
static const struct info_section sections[] = {
    {"server", "Server", true, write_server},
    {"clients", "Clients", true, NULL},
    {"memory", "Memory", true, write_memory},
    {"persistence", "Persistence", true, write_persistence},
    {"stats", "Stats", true, NULL},
    {"replication", "Replication", true, write_replication},
    {"cpu", "CPU", true, NULL},
    {"commandstats", "Commandstats", false, NULL},
    {"cluster", "Cluster", true, write_cluster},
    {"keyspace", "Keyspace", true, NULL},
    {"zgateway", "Zgateway", true, NULL},
};

enum { SECTIONS_COUNT = sizeof(sections) / sizeof(sections[0]) };

static bool section_wanted(const struct session_call *call, const struct info_section *section)
{
    if (call->args->count == 1)
        return section->by_default;
    for (uint32_t i = 1; i < call->args->count; i++) {
        if (session_arg_is(call, i, section->name) || session_arg_is(call, i, "all") || session_arg_is(call, i, "everything"))
            return true;
        if (section->by_default && session_arg_is(call, i, "default"))
            return true;
    }
    return false;
}

void session_local_info(struct session_call *call)
{
    struct resp_writer text;
    resp_writer_init(&text, 2);
    for (uint32_t i = 0; i < SECTIONS_COUNT; i++) {
        const struct info_section *section = &sections[i];
        if (!section_wanted(call, section))
            continue;
        if (text.length > 0)
            resp_write_raw(&text, "\r\n", 2);
        resp_write_raw(&text, "# ", 2);
        line(&text, section->title);
        if (section->write != NULL)
            section->write(call, &text);
        call->env->ops->info_section(call->env->context, section->name, &text);
    }
    resp_write_verbatim(call->writer, text.data, text.length);
    resp_writer_fini(&text);
}

/* ---- CONFIG GET ---- */

struct parameter {
    const char *name;
    const char *value;
};

/* What clients and load generators ask for when they connect. Only database 0 can be selected. */
static const struct parameter parameters[] = {
    {"save", ""},
    {"appendonly", "no"},
    {"maxmemory", "0"},
    {"timeout", "0"},
    {"databases", "1"},
    {"replica-read-only", "yes"},
    {"slave-read-only", "yes"},
    {"proto-max-bulk-len", "536870912"},
};

enum { PARAMETERS_COUNT = sizeof(parameters) / sizeof(parameters[0]) };

void session_local_config_get(struct session_call *call)
{
    const char *names[PARAMETERS_COUNT] = {NULL};
    uint32_t matched[PARAMETERS_COUNT] = {0}; /* the argument that matches; 0: none */
    uint32_t count = 0;
    for (uint32_t k = 0; k < PARAMETERS_COUNT; k++) {
        for (uint32_t i = 2; i < call->args->count && matched[k] == 0; i++) {
            /* A name without wildcards comes back as it was written, in any case: as the server does. */
            bool is_exact = session_arg_is(call, i, parameters[k].name);
            if (is_exact || session_glob(session_arg(call, i), session_arg_length(call, i), parameters[k].name)) {
                matched[k] = i;
                names[k] = is_exact ? NULL : parameters[k].name;
                count++;
            }
        }
    }
    resp_write_map(call->writer, count);
    for (uint32_t k = 0; k < PARAMETERS_COUNT; k++) {
        if (matched[k] == 0)
            continue;
        if (names[k] == NULL)
            resp_write_bulk(call->writer, session_arg(call, matched[k]), session_arg_length(call, matched[k]));
        else
            resp_write_text(call->writer, names[k]);
        resp_write_text(call->writer, parameters[k].value);
    }
}

/* ---- patterns ---- */

static uint8_t lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte | 0x20) : byte;
}

/* Matches one byte against the pattern's element at *at, which is none of '*'; moves *at behind the element. */
static bool element_matches(const uint8_t *pattern, uint32_t length, uint32_t *at, uint8_t byte)
{
    uint8_t head = pattern[(*at)++];
    if (head == '?')
        return true;
    if (head == '\\' && *at < length)
        return lower(pattern[(*at)++]) == byte;
    if (head != '[')
        return lower(head) == byte;
    bool is_negated = *at < length && pattern[*at] == '^';
    bool is_found = false;
    if (is_negated)
        ++*at;
    while (*at < length && pattern[*at] != ']') {
        if (pattern[*at] == '\\' && *at + 1 < length)
            ++*at;
        uint8_t from = lower(pattern[*at]), to = from;
        if (*at + 2 < length && pattern[*at + 1] == '-') {
            to = lower(pattern[*at + 2]);
            *at += 2;
        }
        if ((byte >= from && byte <= to) || (byte >= to && byte <= from))
            is_found = true;
        ++*at;
    }
    if (*at < length)
        ++*at;
    return is_found != is_negated;
}

/* One '*' is remembered at a time: where a later one is reached, an earlier one needs no second try. So no pattern costs more than its
 * length times the text's. */
bool session_glob(const uint8_t *pattern, uint32_t pattern_length, const char *text)
{
    uint32_t at = 0, position = 0, text_length = (uint32_t)strlen(text);
    uint32_t star = UINT32_MAX, star_position = 0;
    while (position < text_length) {
        if (at < pattern_length && pattern[at] == '*') {
            star = ++at;
            star_position = position;
            continue;
        }
        uint32_t next = at;
        if (at < pattern_length && element_matches(pattern, pattern_length, &next, lower((uint8_t)text[position]))) {
            at = next;
            position++;
        } else if (star != UINT32_MAX) {
            at = star;
            position = ++star_position;
        } else {
            return false;
        }
    }
    while (at < pattern_length && pattern[at] == '*')
        at++;
    return at == pattern_length;
}
