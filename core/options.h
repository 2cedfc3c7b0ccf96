/*
 * The table of configuration options (options.def) as data, and what can be done with one option: set it from text, check it, print it. Used by config.c, config_load.c,
 * config_print.c and tests; everybody else reads struct config.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/config.h"
#include "core/status.h"

enum option_type {
    OPTION_UINT,        /* uint32_t */
    OPTION_POWER,       /* uint32_t, a power of two */
    OPTION_AUTO,        /* uint32_t, or the word auto, which is stored as 0: config.c resolves it */
    OPTION_INT,         /* int32_t */
    OPTION_BYTES,       /* uint64_t, text with a unit: see units.h */
    OPTION_POWER_BYTES, /* uint32_t, a power of two, text with a unit */
    OPTION_TIME,        /* uint64_t nanoseconds, text with a unit */
    OPTION_BOOL,        /* true, false */
    OPTION_ENUM,        /* an enum whose enumerators are 0 .. max, named by choices */
    OPTION_TEXT,        /* char[]; min .. max bytes */
    OPTION_SECRET,      /* TEXT that no message repeats */
    OPTION_NAME,        /* char[]; letters, digits, '-', '_', '.' */
    OPTION_LISTEN,      /* char[]; HOST:PORT, [IPV6]:PORT or unix:/PATH */
    OPTION_ANNOUNCE,    /* char[]; empty, HOST:PORT or [IPV6]:PORT */
    OPTION_CPUS,        /* cores.cpus and cores.cpus_count */
    OPTION_ADDRESSES,   /* addresses, addresses_count and kind of a struct config_backend */
};

/* OPTION_ID_cores_data, ...: index into the table and into config->lines. */
enum option_id {
#define OPTION(section, key, ...) OPTION_ID_##section##_##key,
#include "core/options.def"
    OPTION_COUNT
};
_Static_assert((int)OPTION_COUNT <= (int)CONFIG_OPTIONS_MAX, "struct config remembers the line of every option");

enum section_id {
#define SECTION(name, ...) SECTION_ID_##name,
#include "core/options.def"
    SECTION_COUNT
};

struct config_section {
    const char *name;
    bool is_list;
    size_t offset; /* of the first entry in struct config; 0 where it is no list */
    const char *help;
};

struct config_option {
    enum section_id section;
    const char *key;
    enum option_type type;
    size_t offset;            /* in the section's entry: struct config itself, struct config_listener, ... */
    size_t bytes;             /* of the field */
    const char *unit;         /* "" where the value carries it or has none */
    const char *default_text; /* NULL: must be given */
    int64_t min, max;
    const char *const *choices; /* max + 1 words; NULL where the type is not ENUM */
    bool is_reloadable;
    const char *help;
};

extern const struct config_section option_sections[SECTION_COUNT];
extern const struct config_option options_table[OPTION_COUNT]; /* by section */

/* NULL where there is none. `length` bytes of text. */
const struct config_section *option_section_find(const char *name, size_t length);
const struct config_option *option_find(enum section_id section, const char *key, size_t length);

/* The section's entry as it lies in `config`; of a list the first one. */
void *option_entry(struct config *config, enum section_id section);

/* Sets the option in `entry` from text. On error STATUS_INVALID, the entry is unchanged, and `error` says "'x' is ...; allowed: ...", without naming the key. */
enum status option_set(const struct config_option *option, void *entry, const char *text, char *error, size_t error_bytes) ZG_NODISCARD;

/* Is a value in range that was set by code? Of numbers and enumerators; true for the other types. */
bool option_is_in_range(const struct config_option *option, const void *entry);

/* What is allowed: "1 .. 64", "sleep, adaptive, spin". */
void option_format_allowed(const struct config_option *option, char *text, size_t text_bytes);

/* The value of a scalar as a user would write it; of a SECRET "***", of CPUS and ADDRESSES how many there are. */
void option_format_value(const struct config_option *option, const void *entry, char *text, size_t text_bytes);

/* Appends "; did you mean 'x'? allowed: a, b, c" with the key nearest to `key` and all keys of the section to text that ends in NUL; "; allowed: a, b, c" where none is near. */
void option_suggest_key(enum section_id section, const char *key, char *text, size_t text_bytes);
void option_suggest_section(const char *name, char *text, size_t text_bytes);

/* Sets one option of a configuration from text and resolves what follows from it (cores.data: auto). `entry` is where option_entry or the loader put it. */
enum status config_apply(struct config *config, const struct config_option *option, void *entry, const char *text, char *error, size_t error_bytes) ZG_NODISCARD;

/* Replaces the addresses of a backend by a list "HOST:PORT[,HOST:PORT...]"; on error the backend is unchanged. */
enum status config_backend_set(struct config_backend *backend, enum config_backend_kind kind, const char *list, char *error, size_t error_bytes) ZG_NODISCARD;
/* Adds one address: up to CONFIG_ADDRESSES_MAX, none twice. */
enum status config_backend_add(struct config_backend *backend, const char *text, char *error, size_t error_bytes) ZG_NODISCARD;
/* Whether every listener with a port per core can have these ports; if not, `detail` says what is wrong and what is allowed. */
bool config_ports_are_valid(const struct config *config, char *detail, size_t detail_bytes);
/* A listener with every default and no address. */
void config_listener_init(struct config_listener *listener);
/* Adds a copy: up to CONFIG_LISTENERS_MAX, no address twice. */
enum status config_listener_add(struct config *config, const struct config_listener *listener, char *error, size_t error_bytes) ZG_NODISCARD;

/* A backend with every default and no address; free with config_backend_fini. */
void config_backend_init(struct config_backend *backend);
void config_backend_fini(struct config_backend *backend);

/* Formats into `error` (control characters become '?': the text may come from a file) and returns STATUS_INVALID. */
enum status option_fail(char *error, size_t error_bytes, const char *format, ...) ZG_PRINTF(3, 4);
