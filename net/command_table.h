/*
 * What the gateway knows about each command: rows of command.def for the commands of Redis 7, completed from the backend's COMMAND
 * reply for the rest.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "net/resp_scan.h"

/* How the gateway handles a command. */
enum command_handling {
    HANDLE_FORWARD,     /* to the owner of its keys; all keys in one slot */
    HANDLE_SPLIT,       /* divided by slot, merged by `merge` */
    HANDLE_LOCAL,       /* answered by the gateway itself: net/session.c and shard/local.c */
    HANDLE_UNSUPPORTED, /* known, not served by this version: a clear error, connection stays */
    HANDLE_REFUSED,     /* never allowed through a gateway (DEBUG, SHUTDOWN, REPLICAOF, ...) */
};

enum command_merge { MERGE_NONE, MERGE_BY_KEY /* MGET */, MERGE_SUM /* DEL, UNLINK, EXISTS, TOUCH */, MERGE_ALL_OK /* MSET */ };

/* Flags as Redis names them, those the gateway uses. */
enum command_flag {
    CMD_WRITE = 1u << 0,
    CMD_READONLY = 1u << 1,
    CMD_DENYOOM = 1u << 2,
    CMD_ADMIN = 1u << 3,
    CMD_PUBSUB = 1u << 4,
    CMD_NOSCRIPT = 1u << 5,
    CMD_BLOCKING = 1u << 6,
    CMD_LOADING = 1u << 7,
    CMD_STALE = 1u << 8,
    CMD_FAST = 1u << 9,
    CMD_NO_AUTH = 1u << 10,
    CMD_MAY_REPLICATE = 1u << 11,
    CMD_MOVABLEKEYS = 1u << 12,
    CMD_ALLOW_BUSY = 1u << 13,
    CMD_NO_MULTI = 1u << 14,
    CMD_BARRIER = 1u << 15,    /* ours: waits until all earlier commands of the connection are answered */
    CMD_IDEMPOTENT = 1u << 16, /* ours: repeating it leaves the data as doing it once; the reply may differ (DEL, SET with NX) */
    CMD_SKIP_MONITOR = 1u << 17,
    CMD_SKIP_SLOWLOG = 1u << 18,
    CMD_ASKING = 1u << 19,
    CMD_NO_ASYNC_LOADING = 1u << 20,
    CMD_NO_MANDATORY_KEYS = 1u << 21, /* EVAL and friends: no key at all is permitted */
    CMD_MODULE = 1u << 22
};

/* ACL categories that do not follow from the flags; for COMMAND's reply only. */
enum command_category {
    CAT_KEYSPACE = 1u << 0,
    CAT_READ = 1u << 1,
    CAT_WRITE = 1u << 2,
    CAT_SET = 1u << 3,
    CAT_SORTEDSET = 1u << 4,
    CAT_LIST = 1u << 5,
    CAT_HASH = 1u << 6,
    CAT_STRING = 1u << 7,
    CAT_BITMAP = 1u << 8,
    CAT_HYPERLOGLOG = 1u << 9,
    CAT_GEO = 1u << 10,
    CAT_STREAM = 1u << 11,
    CAT_PUBSUB = 1u << 12,
    CAT_ADMIN = 1u << 13,
    CAT_FAST = 1u << 14,
    CAT_SLOW = 1u << 15,
    CAT_BLOCKING = 1u << 16,
    CAT_DANGEROUS = 1u << 17,
    CAT_CONNECTION = 1u << 18,
    CAT_TRANSACTION = 1u << 19,
    CAT_SCRIPTING = 1u << 20
};

/* Flags of a key specification, as Redis names them. NOT_KEY: what is found only determines the slot (a shard channel). INCOMPLETE:
 * there may be further keys. */
enum key_spec_flag {
    KEY_RO = 1u << 0,
    KEY_RW = 1u << 1,
    KEY_OW = 1u << 2,
    KEY_RM = 1u << 3,
    KEY_ACCESS = 1u << 4,
    KEY_UPDATE = 1u << 5,
    KEY_INSERT = 1u << 6,
    KEY_DELETE = 1u << 7,
    KEY_NOT_KEY = 1u << 8,
    KEY_INCOMPLETE = 1u << 9,
    KEY_VARIABLE_FLAGS = 1u << 10
};

enum key_spec_begin { BEGIN_NONE, BEGIN_INDEX, BEGIN_KEYWORD, BEGIN_UNKNOWN };
enum key_spec_find { FIND_NONE, FIND_RANGE, FIND_KEYNUM, FIND_UNKNOWN };

/* One key specification, as COMMAND describes it (redis.io/docs/reference/key-specs). */
struct key_spec {
    uint8_t begin;    /* enum key_spec_begin */
    uint8_t find;     /* enum key_spec_find */
    int16_t index;    /* BEGIN_INDEX: position; BEGIN_KEYWORD: where the search starts (negative: from the end) */
    char keyword[12]; /* BEGIN_KEYWORD, upper case */
    int16_t last;     /* FIND_RANGE: last key relative to the first; negative: from the end */
    int16_t limit;    /* FIND_RANGE with last -1: divides what is left (2: half) ; FIND_KEYNUM: index of the first key after the number's position */
    int16_t step;     /* distance between keys */
    int16_t keynum;   /* FIND_KEYNUM: position of the number relative to `begin` */
    uint16_t flags;   /* enum key_spec_flag */
};

enum { COMMAND_KEY_SPECS_MAX = 4, COMMAND_NAME_MAX = 32 /* with the terminating NUL */, COMMAND_ROWS_MAX = 4096 /* in one table */ };

/* The rows of command.def in order: the index of a built-in command, COMMAND_get, COMMAND_client__setname. Learned rows follow. */
enum command_index {
#define ZG_COMMAND(symbol, ...) COMMAND_##symbol,
#define ZG_SUBCOMMAND(container, symbol, ...) COMMAND_##container##__##symbol,
#include "net/command.def"
    COMMAND_BUILT_IN_COUNT
};

/* Who answers a HANDLE_LOCAL command: net/session*.c; LOCAL_cluster goes to request_ops.cluster_command. */
enum command_local {
    LOCAL_none,
#define ZG_LOCAL(name) LOCAL_##name,
#include "net/command.def"
    LOCAL_COUNT
};

struct command {
    char name[COMMAND_NAME_MAX]; /* lower case; of a subcommand only its own part */
    uint16_t index;              /* stable within one table */
    uint16_t parent;             /* index of the container, own index for a top-level command */
    int16_t arity;               /* as Redis: negative means at least */
    uint8_t handling;            /* enum command_handling */
    uint8_t merge;               /* enum command_merge */
    uint32_t flags;              /* enum command_flag */
    uint16_t local;              /* HANDLE_LOCAL: which handler (enum command_local, generated from command.def) */
    uint8_t key_specs_count;
    bool is_container;        /* has subcommands: look up args[1] too */
    bool is_learned;          /* came from the backend's COMMAND, not from command.def */
    uint8_t key_first_simple; /* > 0: exactly one key, at this argument: the fast path */
    uint32_t categories;      /* enum command_category, the explicit ones */
    struct key_spec key_specs[COMMAND_KEY_SPECS_MAX];
};

struct command_table;

/* The built-in table; never NULL. */
struct command_table *command_table_create(void);
void command_table_destroy(struct command_table **table);

/* Adds what a backend's COMMAND reply (RESP2 or RESP3, whole) names and the table does not; corrects arity and key specs of known rows.
 * Returns how many were added; STATUS_INVALID leaves the table unchanged. To be done before the table is published: afterwards it is
 * immutable and read by all cores. */
enum status command_table_learn(struct command_table *table, const uint8_t *reply, uint32_t length, uint32_t *added_count);

/* Finds by name, any case; for a container with a known subcommand in `sub` (may be NULL) the subcommand's row. NULL where unknown.
 * *unknown_sub is set where the container is known and the subcommand is not. */
const struct command *command_table_find(const struct command_table *table, const uint8_t *name, uint32_t name_length, const uint8_t *sub,
    uint32_t sub_length, bool *unknown_sub);
const struct command *command_table_at(const struct command_table *table, uint16_t index);
uint16_t command_table_count(const struct command_table *table); /* rows, subcommands included */

/* The container of a subcommand; NULL for a top-level command. `command` lies in its table, which keeps its rows in one array. */
const struct command *command_parent(const struct command *command);

/* Writes "get" or "config|set" and a NUL to `text` (room for 2 x COMMAND_NAME_MAX). Returns the length. */
uint32_t command_full_name(const struct command *command, char *text);

/* For command_table_learn and tests: appends a row (name, arity, handling, flags, key specs are taken; index, parent, is_learned,
 * key_first_simple are set here) under `parent`, or top-level where parent is UINT16_MAX. Pointers into the table are stale afterwards.
 * STATUS_INVALID: an empty name, a name that is there, a parent that is none; STATUS_FULL: COMMAND_ROWS_MAX rows. */
enum status command_table_add(struct command_table *table, const struct command *row, uint16_t parent) ZG_NODISCARD;
/* For command_table_learn: replaces arity and key specs of a row. */
void command_table_correct(struct command_table *table, uint16_t index, int16_t arity, const struct key_spec *key_specs, uint8_t key_specs_count);

bool command_arity_ok(const struct command *command, uint32_t args_count);

/* One accessor for argument bytes, so that key extraction does not care where they lie. */
struct command_args {
    const uint8_t *base;
    const struct resp_arg *args; /* args[0] is the command's name */
    uint32_t count;
};

/* Writes the argument positions of all keys to positions (room for positions_max). *count may exceed positions_max: then only that many
 * were written (call again with more room). STATUS_INVALID: the arguments do not fit the key specs (worded by the caller as Redis: "ERR
 * Invalid arguments specified for command" or a syntax error). *step is the distance between keys of the first spec (MSET: 2). */
enum status command_keys(const struct command *command, const struct command_args *args, uint32_t *positions, uint32_t positions_max,
    uint32_t *count);

/* True for a call that would wait: XREAD or XREADGROUP with BLOCK before STREAMS, and any command that only blocks (BLPOP). To be
 * answered with session_refuse_call. */
bool command_is_blocking_call(const struct command *command, const struct command_args *args);

/* True for a call of a HANDLE_FORWARD command that this version does not serve though it serves the command: a blocking call, and SORT
 * and SORT_RO with BY or GET patterns that name keys (they may lie in other slots). Cheap for all other commands. To be answered with
 * session_refuse_call. */
bool command_is_unsupported_call(const struct command *command, const struct command_args *args);
