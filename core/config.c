/*
 * The configuration as a record: defaults, single values, and the rules across keys. The YAML loader is config_load.c. Boot only: nothing here is called once cores run, except
 * reading the record.
 */
#include "core/config.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/address.h"
#include "core/options.h"
#include "core/units.h"

enum { CPU_NUMBER_MAX = 1023, DETAIL_BYTES = 1024 };

/* Every option of a section that has a default. */
static void set_defaults(struct config *config, enum section_id section, void *entry)
{
    char error[256] = "";

    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct config_option *option = &options_table[i];
        if (option->section != section || option->default_text == NULL)
            continue;
        enum status status = config == NULL ? option_set(option, entry, option->default_text, error, sizeof(error))
                                            : config_apply(config, option, entry, option->default_text, error, sizeof(error));
        ZG_CHECK(status == STATUS_OK); /* a row whose default breaks its own range is a bug */
    }
}

struct config *config_create_default(void)
{
    struct config *config = alloc_zeroed(sizeof(*config));

    for (enum section_id section = 0; section < SECTION_COUNT; section++)
        if (section != SECTION_ID_listeners) /* each listener gets its own when it is added */
            set_defaults(config, section, option_entry(config, section));
    return config;
}

void config_destroy(struct config **config)
{
    if (*config == NULL)
        return;
    config_backend_fini(&(*config)->backend);
    explicit_bzero(*config, sizeof(**config)); /* the password */
    alloc_free(*config);
    *config = NULL;
}

void config_backend_init(struct config_backend *backend)
{
    *backend = (struct config_backend){.addresses = NULL};
    set_defaults(NULL, SECTION_ID_backends, backend);
}

void config_backend_fini(struct config_backend *backend)
{
    alloc_free(backend->addresses);
    backend->addresses = NULL;
    backend->addresses_count = 0;
}

static uint32_t usable_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0) /* more CPUs than the set holds */
        return CONFIG_DATA_CORES_MAX;
    return (uint32_t)CPU_COUNT(&set);
}

static void resolve_data_cores(struct config *config)
{
    uint32_t wanted = config->cores.cpus_count;

    if (!config->cores.data_is_auto)
        return;
    if (wanted == 0)
        wanted = usable_cpus() - 1; /* one for the housekeeper; at least one CPU is usable: this runs on it */
    if (wanted < 1)
        wanted = 1;
    config->cores.data = wanted < CONFIG_DATA_CORES_MAX ? wanted : CONFIG_DATA_CORES_MAX;
}

enum status config_apply(struct config *config, const struct config_option *option, void *entry, const char *text, char *error, size_t error_bytes)
{
    enum status status = option_set(option, entry, text, error, error_bytes);

    if (status != STATUS_OK)
        return status;
    if (option == &options_table[OPTION_ID_cores_data])
        config->cores.data_is_auto = config->cores.data == 0;
    resolve_data_cores(config);
    return STATUS_OK;
}

/* What may lie between list entries. */
static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t");
}

/* A number of a CPU at *text, which moves behind it. */
static bool read_cpu(const char **text, uint32_t *cpu)
{
    size_t digits = strspn(*text, "0123456789");
    uint32_t number = 0;

    if (digits == 0 || digits > 4)
        return false;
    for (size_t i = 0; i < digits; i++)
        number = number * 10 + (uint32_t)((*text)[i] - '0');
    *text += digits;
    *cpu = number;
    return number <= CPU_NUMBER_MAX;
}

static bool has_cpu(const uint16_t *cpus, uint32_t cpus_count, uint32_t cpu)
{
    for (uint32_t i = 0; i < cpus_count; i++)
        if (cpus[i] == cpu)
            return true;
    return false;
}

enum status config_set_cpus(struct config *config, const char *list, char *error, size_t error_bytes)
{
    static const char allowed[] = "allowed: numbers and ranges such as 2-5,8, each 0 .. 1023";
    uint16_t cpus[CONFIG_CPUS_MAX] = {0};
    uint32_t cpus_count = 0;
    const char *at = skip_blanks(list);

    while (*at != '\0') {
        uint32_t first, last;
        if (!read_cpu(&at, &first))
            return option_fail(error, error_bytes, "'%.80s' is not a list of CPUs; %s", list, allowed);
        last = first;
        if (*at == '-') {
            at++;
            if (!read_cpu(&at, &last) || last < first)
                return option_fail(error, error_bytes, "'%.80s' has a range without an end; %s", list, allowed);
        }
        for (uint32_t cpu = first; cpu <= last; cpu++) {
            if (has_cpu(cpus, cpus_count, cpu))
                return option_fail(error, error_bytes, "CPU %u is listed twice; %s", cpu, allowed);
            if (cpus_count == CONFIG_CPUS_MAX)
                return option_fail(error, error_bytes, "'%.80s' lists too many CPUs; allowed: at most %d", list, CONFIG_CPUS_MAX);
            cpus[cpus_count++] = (uint16_t)cpu;
        }
        at = skip_blanks(at);
        if (*at == '\0')
            break;
        if (*at != ',' || *skip_blanks(at + 1) == '\0')
            return option_fail(error, error_bytes, "'%.80s' is not a list of CPUs; %s", list, allowed);
        at = skip_blanks(at + 1);
    }
    memcpy(config->cores.cpus, cpus, cpus_count * sizeof(cpus[0]));
    config->cores.cpus_count = cpus_count;
    resolve_data_cores(config);
    return STATUS_OK;
}

enum status config_backend_add(struct config_backend *backend, const char *text, char *error, size_t error_bytes)
{
    struct config_address address;
    enum status status = address_parse(text, backend->kind == BACKEND_SERVERS, &address, error, error_bytes);
    uint32_t count = backend->addresses_count;

    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < count; i++)
        if (backend->addresses[i].port == address.port && strcmp(backend->addresses[i].host, address.host) == 0)
            return option_fail(error, error_bytes, "'%.80s' is listed twice; allowed: each address once", text);
    if (count == CONFIG_ADDRESSES_MAX)
        return option_fail(error, error_bytes, "too many addresses; allowed: at most %d", CONFIG_ADDRESSES_MAX);
    if ((count & (count - 1)) == 0) /* room for twice as many at each power of two */
        backend->addresses = alloc_resize(backend->addresses, (count == 0 ? 1 : 2 * (size_t)count) * sizeof(address));
    backend->addresses[backend->addresses_count++] = address;
    return STATUS_OK;
}

enum status config_backend_set(struct config_backend *backend, enum config_backend_kind kind, const char *list, char *error, size_t error_bytes)
{
    struct config_backend parsed = {.kind = kind};
    enum status status = STATUS_OK;
    const char *at = list;

    for (;;) {
        char text[2 * CONFIG_TEXT_MAX];
        at = skip_blanks(at);
        size_t length = strcspn(at, ",");
        const char *next = at + length;
        while (length > 0 && (at[length - 1] == ' ' || at[length - 1] == '\t'))
            length--;
        if (length == 0 || length >= sizeof(text)) {
            status = option_fail(error, error_bytes, "'%.80s' has an entry that is %s; allowed: HOST:PORT[,HOST:PORT...]", list, length == 0 ? "empty" : "too long");
            break;
        }
        memcpy(text, at, length);
        text[length] = '\0';
        status = config_backend_add(&parsed, text, error, error_bytes);
        if (status != STATUS_OK || *next == '\0')
            break;
        at = next + 1;
    }
    if (status != STATUS_OK) {
        config_backend_fini(&parsed);
        return status;
    }
    config_backend_fini(backend);
    backend->kind = kind;
    backend->addresses = parsed.addresses;
    backend->addresses_count = parsed.addresses_count;
    return STATUS_OK;
}

enum status config_set_backend(struct config *config, enum config_backend_kind kind, const char *list, char *error, size_t error_bytes)
{
    return config_backend_set(&config->backend, kind, list, error, error_bytes);
}

void config_listener_init(struct config_listener *listener)
{
    *listener = (struct config_listener){.present = PRESENT_AUTO};
    set_defaults(NULL, SECTION_ID_listeners, listener);
}

enum status config_listener_add(struct config *config, const struct config_listener *listener, char *error, size_t error_bytes)
{
    for (uint32_t i = 0; i < config->listeners_count; i++)
        if (strcmp(config->listeners[i].address, listener->address) == 0)
            return option_fail(error, error_bytes, "'%.80s' is listed twice; allowed: each address once", listener->address);
    if (config->listeners_count == CONFIG_LISTENERS_MAX)
        return option_fail(error, error_bytes, "too many listeners; allowed: at most %d", CONFIG_LISTENERS_MAX);
    config->listeners[config->listeners_count++] = *listener;
    return STATUS_OK;
}

enum status config_add_listener(struct config *config, const char *address, char *error, size_t error_bytes)
{
    struct config_listener listener;

    config_listener_init(&listener);
    enum status status = option_set(&options_table[OPTION_ID_listeners_address], &listener, address, error, error_bytes);
    return status != STATUS_OK ? status : config_listener_add(config, &listener, error, error_bytes);
}

/* An option of a list: of the listeners, it is set in each; of backends and use cases there is one in use. */
static enum status set_everywhere(struct config *config, const struct config_option *option, const char *text, char *error, size_t error_bytes)
{
    bool is_listener = option->section == SECTION_ID_listeners;

    if (option == &options_table[OPTION_ID_listeners_address])
        return option_fail(error, error_bytes, "cannot be set alone; allowed: in a file, or --listen");
    if (is_listener && config->listeners_count == 0)
        return option_fail(error, error_bytes, "there is no listener to set it for; allowed: after --listen, or with a file");
    for (uint32_t i = 0; i < (is_listener ? config->listeners_count : 1); i++) {
        void *entry = is_listener ? &config->listeners[i] : option_entry(config, option->section);
        enum status status = config_apply(config, option, entry, text, error, error_bytes);
        if (status != STATUS_OK)
            return status;
    }
    config->lines[option - options_table] = 0;
    return STATUS_OK;
}

enum status config_set_option(struct config *config, const char *name, const char *value, char *error, size_t error_bytes)
{
    char detail[DETAIL_BYTES] = "";
    const char *dot = strchr(name, '.');
    const struct config_section *section = dot == NULL ? NULL : option_section_find(name, (size_t)(dot - name));

    if (section == NULL) {
        char given[64];
        snprintf(given, sizeof(given), "%.*s", (int)strcspn(name, "."), name);
        option_suggest_section(given, detail, sizeof(detail));
        return option_fail(error, error_bytes, "key '%.80s': is not in a section that exists%s", name, detail);
    }
    enum section_id section_id = (enum section_id)(section - option_sections);
    const struct config_option *option = option_find(section_id, dot + 1, strlen(dot + 1));
    if (option == NULL) {
        option_suggest_key(section_id, dot + 1, detail, sizeof(detail));
        return option_fail(error, error_bytes, "key '%.80s': does not exist%s", name, detail);
    }
    enum status status = set_everywhere(config, option, value, detail, sizeof(detail));
    if (status != STATUS_OK)
        return option_fail(error, error_bytes, "key '%.80s': %s", name, detail);
    return STATUS_OK;
}

/* Reports a rule across keys: "FILE:LINE: key 'x': ..." where a file set it, else "key 'x': ...". */
static enum status fail_rule(const struct config *config, enum option_id id, const char *detail, char *error, size_t error_bytes)
{
    const struct config_option *option = &options_table[id];
    const char *section = option_sections[option->section].name;

    if (config->lines[id] > 0)
        return option_fail(error, error_bytes, "%s:%" PRIu32 ": key '%s.%s': %s", config->source, config->lines[id], section, option->key, detail);
    return option_fail(error, error_bytes, "key '%s.%s': %s", section, option->key, detail);
}

/* One value must not exceed another; both of the same type. */
struct order_rule {
    enum option_id small, large;
};

static const struct order_rule order_rules[] = {
    {OPTION_ID_limits_client_output_soft, OPTION_ID_limits_client_output_hard},
    {OPTION_ID_limits_inline_bytes, OPTION_ID_limits_request_max},
    {OPTION_ID_limits_inline_bytes, OPTION_ID_limits_reply_max},
    {OPTION_ID_use_cases_max_value, OPTION_ID_limits_request_max},
    {OPTION_ID_use_cases_max_value, OPTION_ID_limits_reply_max},
    {OPTION_ID_backends_reconnect_min, OPTION_ID_backends_reconnect_max},
};

static const void *entry_of(const struct config *config, const struct config_option *option)
{
    return (const char *)config + option_sections[option->section].offset;
}

static uint64_t value_of(const struct config *config, const struct config_option *option)
{
    const void *field = (const char *)entry_of(config, option) + option->offset;

    return option->bytes == sizeof(uint64_t) ? *(const uint64_t *)field : *(const uint32_t *)field;
}

/* Fixed waits need both of their options, and the other modes take none. */
static enum status check_wait(const struct config *config, char *error, size_t error_bytes)
{
    const struct wait_settings *wait = &config->cores.wait;
    const bool is_fixed = wait->mode == WAIT_FIXED;
    if ((wait->completions > 0) == is_fixed && (wait->wait_ns > 0) == is_fixed)
        return STATUS_OK;
    return fail_rule(config, wait->wait_ns > 0 ? OPTION_ID_cores_wait : wait->completions > 0 ? OPTION_ID_cores_wait_completions
                                                                                              : OPTION_ID_cores_wait_mode,
        "wait_mode fixed, wait_completions and wait belong together; allowed: all three, or none", error, error_bytes);
}

/* The range of every value again: code may have set it. */
static enum status check_ranges(const struct config *config, char *error, size_t error_bytes)
{
    char detail[DETAIL_BYTES], allowed[256], value[CONFIG_TEXT_MAX];

    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        const struct config_option *option = &options_table[id];
        uint32_t entries = option->section == SECTION_ID_listeners ? config->listeners_count : 1;
        size_t stride = option->section == SECTION_ID_listeners ? sizeof(config->listeners[0]) : 0;
        for (uint32_t i = 0; i < entries; i++) {
            const void *entry = (const char *)entry_of(config, option) + i * stride;
            if (option_is_in_range(option, entry))
                continue;
            option_format_allowed(option, allowed, sizeof(allowed));
            option_format_value(option, entry, value, sizeof(value));
            snprintf(detail, sizeof(detail), "%s is out of range; allowed: %s", value, allowed);
            return fail_rule(config, id, detail, error, error_bytes);
        }
    }
    return STATUS_OK;
}

static enum status check_orders(const struct config *config, char *error, size_t error_bytes)
{
    char detail[DETAIL_BYTES], small_text[64], large_text[64];

    for (size_t i = 0; i < sizeof(order_rules) / sizeof(order_rules[0]); i++) {
        const struct config_option *small = &options_table[order_rules[i].small];
        const struct config_option *large = &options_table[order_rules[i].large];
        if (value_of(config, small) <= value_of(config, large))
            continue;
        option_format_value(small, entry_of(config, small), small_text, sizeof(small_text));
        option_format_value(large, entry_of(config, large), large_text, sizeof(large_text));
        snprintf(detail, sizeof(detail), "%s is more than %s.%s, which is %s; allowed: at most as much", small_text, option_sections[large->section].name, large->key,
            large_text);
        /* Where only the larger one was set, its line helps more. */
        bool is_large_given = config->lines[order_rules[i].small] == 0 && config->lines[order_rules[i].large] > 0;
        if (is_large_given)
            snprintf(detail, sizeof(detail), "%s is less than %s.%s, which is %s; allowed: at least as much", large_text, option_sections[small->section].name,
                small->key, small_text);
        return fail_rule(config, is_large_given ? order_rules[i].large : order_rules[i].small, detail, error, error_bytes);
    }
    return STATUS_OK;
}

/* The block that holds `bytes` bytes of data: a power of two, header included (core/arena.h). */
static uint64_t block_bytes(uint64_t bytes)
{
    uint64_t block = 256;

    while (block < bytes + 32)
        block *= 2;
    return block;
}

/* What has to fit into a core's memory. */
static enum status check_memory(const struct config *config, char *error, size_t error_bytes)
{
    char detail[DETAIL_BYTES], need[64], have[64];
    uint64_t arena = config->limits.arena_bytes_per_core;
    uint64_t rx = (uint64_t)config->limits.rx_buffers_per_core * config->limits.rx_buffer_bytes;
    uint64_t largest = config->limits.request_max_bytes > config->limits.reply_max_bytes ? config->limits.request_max_bytes : config->limits.reply_max_bytes;
    uint64_t hard_min = config->limits.reply_max_bytes + config->limits.client_output_soft_bytes;

    units_format_bytes(arena, have, sizeof(have));
    if (rx > arena / 2) {
        units_format_bytes(rx, need, sizeof(need));
        snprintf(detail, sizeof(detail), "with limits.rx_buffers_per_core it takes %s of limits.arena_bytes_per_core, which is %s; allowed: at most half of it", need, have);
        return fail_rule(config, OPTION_ID_limits_rx_buffer_bytes, detail, error, error_bytes);
    }
    if (block_bytes(largest) > arena - rx) {
        units_format_bytes(block_bytes(largest) + rx, need, sizeof(need));
        snprintf(detail, sizeof(detail), "%s is too small for the receive buffers and one of limits.request_max or limits.reply_max; allowed: at least %s", have, need);
        return fail_rule(config, OPTION_ID_limits_arena_bytes_per_core, detail, error, error_bytes);
    }
    if (config->limits.client_output_hard_bytes < hard_min) {
        units_format_bytes(config->limits.client_output_hard_bytes, have, sizeof(have));
        units_format_bytes(hard_min, need, sizeof(need));
        snprintf(detail, sizeof(detail), "%s is less than limits.reply_max and limits.client_output_soft together: the largest reply would close its client; allowed: at least %s",
            have, need);
        return fail_rule(config, OPTION_ID_limits_client_output_hard, detail, error, error_bytes);
    }
    return STATUS_OK;
}

enum status config_check(const struct config *config, char *error, size_t error_bytes)
{
    enum status status = STATUS_OK;

    if (config->listeners_count == 0)
        return option_fail(error, error_bytes, "%s%skey 'listeners': there is none; allowed: 1 .. %d", config->source, config->source[0] != '\0' ? ": " : "",
            CONFIG_LISTENERS_MAX);
    if (config->backend.addresses_count == 0)
        return option_fail(error, error_bytes, "%s%skey 'backends': there is none; allowed: cluster or servers with 1 .. %d addresses", config->source,
            config->source[0] != '\0' ? ": " : "", CONFIG_ADDRESSES_MAX);
    if (config->use_case.backend[0] != '\0' && strcmp(config->use_case.backend, config->backend.name) != 0) {
        char detail[DETAIL_BYTES];
        snprintf(detail, sizeof(detail), "'%s' is not the backend in use; allowed: %s", config->use_case.backend, config->backend.name);
        return fail_rule(config, OPTION_ID_use_cases_backend, detail, error, error_bytes);
    }
    if (strcmp(config->use_case.name, "default") != 0)
        return fail_rule(config, OPTION_ID_use_cases_name, "this version has one use case; allowed: default", error, error_bytes);
    if (config->backend.user[0] != '\0' && config->backend.password[0] == '\0')
        return fail_rule(config, OPTION_ID_backends_user, "there is no password for it; allowed: with backends.password", error, error_bytes);
    status = check_wait(config, error, error_bytes);
    if (status != STATUS_OK)
        return status;
    char ports[DETAIL_BYTES];
    if (!config_ports_are_valid(config, ports, sizeof(ports)))
        return fail_rule(config, OPTION_ID_listeners_port_per_core, ports, error, error_bytes);
    status = check_ranges(config, error, error_bytes);
    if (status == STATUS_OK)
        status = check_orders(config, error, error_bytes);
    if (status == STATUS_OK)
        status = check_memory(config, error, error_bytes);
    return status;
}
