/*
 * Reads a configuration from YAML through libyaml's document API and options.def. Every message names file and line. Boot only.
 *
 * The text is parsed twice. First as events, which are thrown away: that refuses what is malformed, nested too deeply (libyaml takes quadratic time to nest), or an anchor or alias (so
 * the document is a tree). Then as a document. Its shape is fixed (section, entry, key, value): a node of the wrong kind is refused where it stands.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "core/alloc.h"
#include "core/config.h"
#include "core/options.h"

enum { LOAD_BACKENDS_MAX = 64, LOAD_DEPTH_MAX = 16 /* the schema needs 4 */, DETAIL_BYTES = 1024 };

/* A backend as the file describes it, until it is known which one is used. */
struct loaded_backend {
    struct config_backend backend;
    uint32_t lines[OPTION_COUNT];
};

struct loader {
    struct config *config;
    yaml_document_t *document;
    struct loaded_backend *backends; /* LOAD_BACKENDS_MAX entries */
    uint32_t backends_count;
    uint32_t use_cases_count;
    const char *name;
    char *error;
    size_t error_bytes;
};

/* Where values of a mapping go. */
struct target {
    enum section_id section;
    void *entry;
    uint32_t *lines; /* by option id */
};

static uint32_t line_of(const yaml_node_t *node)
{
    return (uint32_t)node->start_mark.line + 1;
}

static enum status fail_at(const struct loader *loader, const yaml_node_t *node, const char *format, ...) ZG_PRINTF(3, 4);

static enum status fail_at(const struct loader *loader, const yaml_node_t *node, const char *format, ...)
{
    char detail[2 * DETAIL_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(detail, sizeof(detail), format, args);
    va_end(args);
    return option_fail(loader->error, loader->error_bytes, "%s:%u: %s", loader->name, line_of(node), detail);
}

static const char *kind_of(const yaml_node_t *node)
{
    if (node->type == YAML_SEQUENCE_NODE)
        return "a list";
    return node->type == YAML_MAPPING_NODE ? "a mapping" : "a single value";
}

static yaml_node_t *node_at(const struct loader *loader, yaml_node_item_t index)
{
    yaml_node_t *node = yaml_document_get_node(loader->document, index);

    ZG_CHECK(node != NULL); /* the document refers to nodes of its own */
    return node;
}

static const char *scalar_text(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value; /* libyaml ends it with NUL */
}

static bool is_null(const yaml_node_t *node)
{
    const char *text = scalar_text(node);

    return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (*text == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static enum status check_scalar(const struct loader *loader, const yaml_node_t *node, const struct config_option *option)
{
    const char *section = option_sections[option->section].name;
    char allowed[256];

    option_format_allowed(option, allowed, sizeof(allowed));
    if (node->type != YAML_SCALAR_NODE)
        return fail_at(loader, node, "key '%s.%s': is %s, not a single value; allowed: %s", section, option->key, kind_of(node), allowed);
    if (strlen(scalar_text(node)) != node->data.scalar.length)
        return fail_at(loader, node, "key '%s.%s': contains a NUL character; allowed: %s", section, option->key, allowed);
    if (is_null(node))
        return fail_at(loader, node, "key '%s.%s': has no value; allowed: %s", section, option->key, allowed);
    return STATUS_OK;
}

static enum status load_addresses(struct loader *loader, const struct config_option *option, struct config_backend *backend, const yaml_node_t *list)
{
    char detail[DETAIL_BYTES];
    bool is_cluster = option == &options_table[OPTION_ID_backends_cluster];

    if (list->type != YAML_SEQUENCE_NODE)
        return fail_at(loader, list, "key 'backends.%s': is %s, not a list; allowed: [\"HOST:PORT\", ...]", option->key, kind_of(list));
    if (backend->addresses_count > 0)
        return fail_at(loader, list, "key 'backends.%s': the other kind is given too; allowed: either cluster or servers", option->key);
    if (list->data.sequence.items.start == list->data.sequence.items.top)
        return fail_at(loader, list, "key 'backends.%s': is empty; allowed: 1 .. %d addresses", option->key, CONFIG_ADDRESSES_MAX);
    backend->kind = is_cluster ? BACKEND_CLUSTER : BACKEND_SERVERS;
    for (yaml_node_item_t *item = list->data.sequence.items.start; item < list->data.sequence.items.top; item++) {
        const yaml_node_t *node = node_at(loader, *item);
        enum status status = check_scalar(loader, node, option);
        if (status != STATUS_OK)
            return status;
        if (config_backend_add(backend, scalar_text(node), detail, sizeof(detail)) != STATUS_OK)
            return fail_at(loader, node, "key 'backends.%s': %s", option->key, detail);
    }
    return STATUS_OK;
}

static enum status load_value(struct loader *loader, const struct config_option *option, const struct target *target, const yaml_node_t *value)
{
    char detail[DETAIL_BYTES];

    if (option->type == OPTION_ADDRESSES)
        return load_addresses(loader, option, target->entry, value);
    enum status status = check_scalar(loader, value, option);
    if (status != STATUS_OK)
        return status;
    if (config_apply(loader->config, option, target->entry, scalar_text(value), detail, sizeof(detail)) != STATUS_OK)
        return fail_at(loader, value, "key '%s.%s': %s", option_sections[option->section].name, option->key, detail);
    return STATUS_OK;
}

/* The key of a pair as text; an error where it is none. */
static enum status read_key(const struct loader *loader, const yaml_node_pair_t *pair, const yaml_node_t **key, const char *where)
{
    *key = node_at(loader, pair->key);
    if ((*key)->type != YAML_SCALAR_NODE || strlen(scalar_text(*key)) != (*key)->data.scalar.length)
        return fail_at(loader, *key, "a key of %s is not a word; allowed: plain words", where);
    return STATUS_OK;
}

/* One mapping of a section into its target. */
static enum status load_mapping(struct loader *loader, const struct target *target, const yaml_node_t *mapping)
{
    const char *section = option_sections[target->section].name;
    bool is_given[OPTION_COUNT] = {false};
    char detail[DETAIL_BYTES] = "";

    if (mapping->type != YAML_MAPPING_NODE)
        return fail_at(loader, mapping, "key '%s': is %s, not a mapping; allowed: keys with values", section, kind_of(mapping));
    for (yaml_node_pair_t *pair = mapping->data.mapping.pairs.start; pair < mapping->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = NULL, *value = node_at(loader, pair->value);
        enum status status = read_key(loader, pair, &key, section);
        if (status != STATUS_OK)
            return status;
        const struct config_option *option = option_find(target->section, scalar_text(key), key->data.scalar.length);
        if (option == NULL) {
            option_suggest_key(target->section, scalar_text(key), detail, sizeof(detail));
            return fail_at(loader, key, "key '%s.%.80s': does not exist%s", section, scalar_text(key), detail);
        }
        size_t id = (size_t)(option - options_table);
        if (is_given[id])
            return fail_at(loader, key, "key '%s.%s': is given twice; allowed: once", section, option->key);
        is_given[id] = true;
        status = load_value(loader, option, target, value);
        if (status != STATUS_OK)
            return status;
        target->lines[id] = line_of(value);
    }
    return STATUS_OK;
}

static enum status load_listener(struct loader *loader, const yaml_node_t *node)
{
    struct config_listener listener;
    struct target target = {.section = SECTION_ID_listeners, .entry = &listener, .lines = loader->config->lines};
    char detail[DETAIL_BYTES];

    config_listener_init(&listener);
    enum status status = load_mapping(loader, &target, node);
    if (status != STATUS_OK)
        return status;
    if (listener.address[0] == '\0')
        return fail_at(loader, node, "key 'listeners.address': is missing; allowed: HOST:PORT, [IPV6]:PORT or unix:/PATH");
    if (config_listener_add(loader->config, &listener, detail, sizeof(detail)) != STATUS_OK)
        return fail_at(loader, node, "key 'listeners.address': %s", detail);
    return STATUS_OK;
}

static enum status load_backend(struct loader *loader, const yaml_node_t *node)
{
    if (loader->backends_count == LOAD_BACKENDS_MAX)
        return fail_at(loader, node, "key 'backends': there are too many; allowed: at most %d", LOAD_BACKENDS_MAX);

    struct loaded_backend *loaded = &loader->backends[loader->backends_count++];
    struct target target = {.section = SECTION_ID_backends, .entry = &loaded->backend, .lines = loaded->lines};
    config_backend_init(&loaded->backend);
    enum status status = load_mapping(loader, &target, node);
    if (status != STATUS_OK)
        return status;
    if (loaded->backend.addresses_count == 0)
        return fail_at(loader, node, "key 'backends.cluster': is missing; allowed: either cluster or servers, a list of HOST:PORT");
    for (uint32_t i = 0; i + 1 < loader->backends_count; i++)
        if (strcmp(loader->backends[i].backend.name, loaded->backend.name) == 0)
            return fail_at(loader, node, "key 'backends.name': '%s' is used twice; allowed: each name once", loaded->backend.name);
    return STATUS_OK;
}

static enum status load_use_case(struct loader *loader, const yaml_node_t *node)
{
    struct use_case *use_case = &loader->config->use_case;
    struct target target = {.section = SECTION_ID_use_cases, .entry = use_case, .lines = loader->config->lines};
    enum status status = load_mapping(loader, &target, node);

    if (status != STATUS_OK)
        return status;
    if (strcmp(use_case->name, "default") != 0)
        return fail_at(loader, node, "key 'use_cases.name': '%s' cannot be configured, this version has one use case; allowed: default", use_case->name);
    if (++loader->use_cases_count > 1)
        return fail_at(loader, node, "key 'use_cases.name': 'default' is used twice; allowed: each name once");
    return STATUS_OK;
}

static enum status load_list(struct loader *loader, enum section_id section, const yaml_node_t *list)
{
    const char *name = option_sections[section].name;

    if (list->type != YAML_SEQUENCE_NODE)
        return fail_at(loader, list, "key '%s': is %s, not a list; allowed: a list of mappings", name, kind_of(list));
    for (yaml_node_item_t *item = list->data.sequence.items.start; item < list->data.sequence.items.top; item++) {
        const yaml_node_t *node = node_at(loader, *item);
        enum status status = section == SECTION_ID_listeners ? load_listener(loader, node)
            : section == SECTION_ID_backends                 ? load_backend(loader, node)
                                                             : load_use_case(loader, node);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status load_section(struct loader *loader, const yaml_node_pair_t *pair, bool *is_given)
{
    const yaml_node_t *key = NULL, *value = node_at(loader, pair->value);
    char detail[DETAIL_BYTES] = "";
    enum status status = read_key(loader, pair, &key, "the file");

    if (status != STATUS_OK)
        return status;
    const struct config_section *section = option_section_find(scalar_text(key), key->data.scalar.length);
    if (section == NULL) {
        option_suggest_section(scalar_text(key), detail, sizeof(detail));
        return fail_at(loader, key, "key '%.80s': does not exist%s", scalar_text(key), detail);
    }
    enum section_id id = (enum section_id)(section - option_sections);
    if (is_given[id])
        return fail_at(loader, key, "key '%s': is given twice; allowed: once", section->name);
    is_given[id] = true;
    if (value->type == YAML_SCALAR_NODE && is_null(value)) /* a section whose lines are all comments */
        return STATUS_OK;
    if (section->is_list)
        return load_list(loader, id, value);
    struct target target = {.section = id, .entry = option_entry(loader->config, id), .lines = loader->config->lines};
    return load_mapping(loader, &target, value);
}

/* The one backend in use moves from the loader to the configuration. */
static enum status choose_backend(struct loader *loader)
{
    struct config *config = loader->config;
    struct loaded_backend *chosen = NULL;
    uint32_t line = config->lines[OPTION_ID_use_cases_backend];

    if (loader->backends_count == 0)
        return STATUS_OK; /* config_check says so, where the command line gives none either */
    if (config->use_case.backend[0] == '\0' && loader->backends_count > 1)
        return option_fail(loader->error, loader->error_bytes, "%s: key 'use_cases.backend': there are %u backends and no use case names one; allowed: the name of a backend",
            loader->name, loader->backends_count);
    for (uint32_t i = 0; i < loader->backends_count; i++)
        if (config->use_case.backend[0] == '\0' || strcmp(loader->backends[i].backend.name, config->use_case.backend) == 0)
            chosen = &loader->backends[i];
    if (chosen == NULL)
        return option_fail(loader->error, loader->error_bytes, "%s:%u: key 'use_cases.backend': there is no backend '%s'; allowed: the name of a backend",
            loader->name, line, config->use_case.backend);
    config_backend_fini(&config->backend);
    config->backend = chosen->backend;
    chosen->backend.addresses = NULL; /* moved */
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (options_table[i].section == SECTION_ID_backends)
            config->lines[i] = chosen->lines[i];
    snprintf(config->use_case.backend, sizeof(config->use_case.backend), "%s", config->backend.name);
    return STATUS_OK;
}

static enum status load_document(struct loader *loader)
{
    yaml_node_t *root = yaml_document_get_root_node(loader->document);
    bool is_given[SECTION_COUNT] = {false};

    if (root == NULL)
        return option_fail(loader->error, loader->error_bytes, "%s:1: the file is empty; allowed: a mapping of sections", loader->name);
    if (root->type != YAML_MAPPING_NODE)
        return fail_at(loader, root, "the file is %s, not a mapping; allowed: a mapping of sections", kind_of(root));
    for (yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        enum status status = load_section(loader, pair, is_given);
        if (status != STATUS_OK)
            return status;
    }
    return choose_backend(loader);
}

/* What libyaml found wrong. Of a byte that is no text it knows the place only as an offset. */
static enum status fail_malformed(const struct loader *loader, const yaml_parser_t *parser, const char *text, size_t length)
{
    size_t line = parser->problem_mark.line;

    if (parser->error == YAML_READER_ERROR) {
        line = 0;
        for (size_t i = 0; i < length && i < parser->problem_offset; i++)
            line += text[i] == '\n';
    }
    return option_fail(loader->error, loader->error_bytes, "%s:%zu: is not valid YAML: %s%s%s", loader->name, line + 1,
        parser->problem != NULL ? parser->problem : "out of memory", parser->context != NULL ? ", " : "", parser->context != NULL ? parser->context : "");
}

/* The anchor that an event gives its node; NULL: none. */
static const yaml_char_t *anchor_of(const yaml_event_t *event)
{
    if (event->type == YAML_SCALAR_EVENT)
        return event->data.scalar.anchor;
    if (event->type == YAML_SEQUENCE_START_EVENT)
        return event->data.sequence_start.anchor;
    return event->type == YAML_MAPPING_START_EVENT ? event->data.mapping_start.anchor : NULL;
}

struct scan {
    uint32_t depth, documents_count;
};

static enum status scan_event(const struct loader *loader, struct scan *scan, const yaml_event_t *event)
{
    const char *problem = NULL;

    if (event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT)
        scan->depth++;
    else if (event->type == YAML_SEQUENCE_END_EVENT || event->type == YAML_MAPPING_END_EVENT)
        scan->depth--;
    else if (event->type == YAML_DOCUMENT_START_EVENT)
        scan->documents_count++;
    if (event->type == YAML_ALIAS_EVENT || anchor_of(event) != NULL)
        problem = "an anchor (&name) or alias (*name); allowed: plain values, quoted where they begin with such a character";
    else if (scan->depth > LOAD_DEPTH_MAX)
        problem = "nested too deeply; allowed: sections, entries, keys, values";
    else if (scan->documents_count > 1)
        problem = "a second document; allowed: one";
    if (problem == NULL)
        return STATUS_OK;
    return option_fail(loader->error, loader->error_bytes, "%s:%zu: is not accepted: %s", loader->name, event->start_mark.line + 1, problem);
}

/* Parses the whole text as events. What passes is well-formed, flat, and has at most one document. */
static enum status scan_events(struct loader *loader, yaml_parser_t *parser, const char *text, size_t length)
{
    struct scan scan = {.depth = 0};
    bool is_end = false;

    while (!is_end) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event))
            return fail_malformed(loader, parser, text, length);
        enum status status = scan_event(loader, &scan, &event);
        is_end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status load_tree(struct loader *loader, yaml_parser_t *parser, const char *text, size_t length)
{
    yaml_document_t document;

    if (!yaml_parser_load(parser, &document))
        return fail_malformed(loader, parser, text, length);
    loader->document = &document;
    loader->backends = alloc_zeroed(LOAD_BACKENDS_MAX * sizeof(loader->backends[0]));
    enum status status = load_document(loader);
    for (uint32_t i = 0; i < loader->backends_count; i++)
        config_backend_fini(&loader->backends[i].backend);
    explicit_bzero(loader->backends, LOAD_BACKENDS_MAX * sizeof(loader->backends[0])); /* passwords */
    alloc_free(loader->backends);
    loader->backends = NULL;
    loader->backends_count = 0;
    yaml_document_delete(&document);
    loader->document = NULL; /* the loader outlives it */
    return status;
}

enum status config_load_text(struct config *config, const char *name, const char *text, size_t length, char *error, size_t error_bytes)
{
    static enum status (*const passes[])(struct loader *, yaml_parser_t *, const char *, size_t) = {scan_events, load_tree};
    struct loader loader = {.config = config, .name = name, .error = error, .error_bytes = error_bytes};
    enum status status = STATUS_OK;

    snprintf(config->source, sizeof(config->source), "%s", name);
    if (length > CONFIG_FILE_BYTES_MAX)
        return option_fail(error, error_bytes, "%s: has %zu bytes; allowed: at most %d", name, length, CONFIG_FILE_BYTES_MAX);
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]) && status == STATUS_OK; i++) {
        yaml_parser_t parser;
        if (!yaml_parser_initialize(&parser))
            return option_fail(error, error_bytes, "%s: no memory to read it", name);
        yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
        status = passes[i](&loader, &parser, text, length);
        yaml_parser_delete(&parser);
    }
    return status;
}

/* Reads up to `bytes` bytes; returns how many, or -1 with errno. */
static ssize_t read_all(int fd, char *text, size_t bytes)
{
    size_t length = 0;

    while (length < bytes) {
        ssize_t got = read(fd, text + length, bytes - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        length += (size_t)got;
    }
    return (ssize_t)length;
}

enum status config_load_file(struct config *config, const char *path, char *error, size_t error_bytes)
{
    size_t bytes = CONFIG_FILE_BYTES_MAX + 1; /* one more than allowed, to notice */
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return option_fail(error, error_bytes, "%s: cannot be opened: %s", path, strerror(errno));
    char *text = alloc_zeroed(bytes);
    ssize_t length = read_all(fd, text, bytes);
    enum status status = length < 0 ? option_fail(error, error_bytes, "%s: cannot be read: %s", path, strerror(errno))
                                    : config_load_text(config, path, text, (size_t)length, error, error_bytes);
    close(fd);
    explicit_bzero(text, bytes); /* passwords */
    alloc_free(text);
    return status;
}
