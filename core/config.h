/*
 * The configuration of a process: read once from YAML (libyaml's documents) or from the command line, checked as a whole, then immutable. Every scalar is a row
 * of options.def; the loader, --print-config, --check and the tests derive from it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/log.h"
#include "core/status.h"
#include "core/use_case.h"
#include "core/wait.h"

enum { CONFIG_LISTENERS_MAX = 16, CONFIG_ADDRESSES_MAX = 1024, CONFIG_CPUS_MAX = 256, CONFIG_TEXT_MAX = 256, CONFIG_DATA_CORES_MAX = 64, CONFIG_LISTED_NODES_MAX = 256,
       CONFIG_OPTIONS_MAX = 96, CONFIG_SOCKET_NAME_MAX = 64, CONFIG_FILE_BYTES_MAX = 1 << 20 };

enum config_present { PRESENT_AUTO /* cluster backends: cluster; servers: standalone */, PRESENT_STANDALONE, PRESENT_CLUSTER };
enum config_idle { IDLE_SLEEP, IDLE_ADAPTIVE, IDLE_SPIN };
enum config_doorbell { DOORBELL_AUTO, DOORBELL_MSG_RING, DOORBELL_EVENTFD };
enum config_backend_kind { BACKEND_CLUSTER, BACKEND_SERVERS };

struct config_listener {
    char address[CONFIG_TEXT_MAX]; /* "127.0.0.1:6380", "[::1]:6380", "unix:/run/zgateway.sock" */
    enum config_present present;
    char announce[CONFIG_TEXT_MAX];      /* "host:port" or empty: the address the client dialled */
    char socket[CONFIG_SOCKET_NAME_MAX]; /* name of the socket that is handed over for it; empty: found by its address */
    bool port_per_core;                  /* data core i listens on the port + 1 + i besides, and is listed with the slots it owns */
};

struct config_address {
    char host[CONFIG_TEXT_MAX];
    uint16_t port;
    uint32_t weight; /* servers only, 1 .. 1000 */
};

struct config_backend {
    char name[USE_CASE_NAME_MAX];
    enum config_backend_kind kind;
    struct config_address *addresses; /* addresses_count entries, owned by the configuration */
    uint32_t addresses_count;
    char user[CONFIG_TEXT_MAX]; /* AUTH towards the backend; empty: none */
    char password[CONFIG_TEXT_MAX];
    uint64_t poll_interval_ns; /* topology */
    uint64_t connect_timeout_ns;
    uint64_t reconnect_min_ns, reconnect_max_ns; /* jittered exponential backoff of a link */
    uint64_t link_stall_ns;                      /* a link without any progress for so long is closed */
    uint64_t health_interval_ns;                 /* between checks of a node; 0: none */
    uint64_t health_timeout_ns;                  /* of a check; 0: the use case's time-out */
    uint32_t health_failures;                    /* checks in a row that fail before a node is down */
    uint32_t connect_rate, connect_burst;        /* attempts to connect a second, and at once, of the whole process */
};

struct config_limits {
    uint32_t clients_per_core;         /* 1 .. 1,000,000 */
    uint32_t requests_per_core;        /* in flight */
    uint32_t pipeline_per_client;      /* requests in flight of one client before it is no longer read */
    uint64_t client_output_soft_bytes; /* unsent replies before the client is no longer read */
    uint64_t client_output_hard_bytes; /* ... before it is closed */
    uint64_t client_commands_bytes;    /* commands in flight and kept replies before the client is no longer read */
    uint64_t arena_bytes_per_core;
    uint64_t memory_bytes;        /* of all cores; 0: from the machine */
    uint32_t rx_buffers_per_core; /* power of two 64 .. 32,768 */
    uint32_t rx_buffer_bytes;     /* 1 KiB .. 64 KiB */
    uint64_t inline_bytes;        /* larger commands and replies are lent, not copied */
    uint64_t oversize_bytes;      /* larger commands take the bulk link, larger replies are streamed */
    uint64_t stream_window_bytes; /* unsent bytes of a client whose reply is streamed before its bulk link is no longer read */
    uint64_t request_max_bytes;
    uint64_t reply_max_bytes;
    uint32_t links_per_core;
    uint32_t link_inflight_max;  /* legs without a reply on one link */
    uint32_t fence_waiters_max;  /* legs waiting behind fences of one core */
    uint32_t credit_waiters_max; /* legs waiting for a credit, per destination */
};

struct config {
    struct config_listener listeners[CONFIG_LISTENERS_MAX];
    uint32_t listeners_count;
    struct {
        uint32_t data;                  /* data cores, 1 .. 64; `auto` is resolved as soon as it is set */
        bool data_is_auto;              /* it follows cpus and the process's usable CPUs */
        uint16_t cpus[CONFIG_CPUS_MAX]; /* CPUs of the data cores in turn; cpus_count 0: not pinned */
        uint32_t cpus_count;
        int32_t housekeeping_cpu; /* -1: not pinned */
        enum config_idle idle;
        uint64_t spin_max_ns; /* adaptive: the longest spin before sleeping */
        uint32_t lane_slots;  /* power of two 64 .. 4,096 */
        enum config_doorbell doorbell;
        struct wait_settings wait;
        bool balance; /* owners follow the load */
        uint64_t balance_interval_ns;
        uint32_t balance_threshold; /* percent above the mean */
        uint32_t balance_moves_max; /* slots a round */
        uint64_t shuffle_owners_ns; /* for tests: owners change at random so often; 0: not */
    } cores;
    struct config_limits limits;
    struct { /* io_uring features; false forces the fallback */
        bool multishot_accept, multishot_recv, direct_descriptors, defer_taskrun, min_wait;
        uint32_t entries; /* submission queue, power of two 64 .. 32,768 */
    } ring;
    struct {
        enum log_level level;
        char file[CONFIG_TEXT_MAX]; /* empty: standard error */
    } log;
    struct config_backend backend;      /* the one that the default use case names */
    struct use_case use_case;           /* `default` */
    uint64_t drain_timeout_ns;          /* SIGTERM: how long requests in flight may take */
    uint64_t drain_grace_ns;            /* ... and how long clients that were told to move are served */
    char source[CONFIG_TEXT_MAX];       /* the file that was loaded, for messages; empty: none */
    uint32_t lines[CONFIG_OPTIONS_MAX]; /* by enum option_id: the line in `source` that set it; 0: default or command line */
};

/* Every default. Never fails. Free with config_destroy. */
struct config *config_create_default(void);
void config_destroy(struct config **config);

/* Reads and checks a file. On error returns STATUS_INVALID and writes "FILE:LINE: key 'x': what is wrong; allowed: ..." to `error`. */
enum status config_load_file(struct config *config, const char *path, char *error, size_t error_bytes) ZG_NODISCARD;
/* The same from memory; `name` stands for the file in messages. */
enum status config_load_text(struct config *config, const char *name, const char *text, size_t length, char *error, size_t error_bytes) ZG_NODISCARD;

/* "HOST:PORT[,HOST:PORT...]" of the command line; kind as given. */
enum status config_set_backend(struct config *config, enum config_backend_kind kind, const char *list, char *error, size_t error_bytes) ZG_NODISCARD;
enum status config_add_listener(struct config *config, const char *address, char *error, size_t error_bytes) ZG_NODISCARD;
/* "2-5,8" */
enum status config_set_cpus(struct config *config, const char *list, char *error, size_t error_bytes) ZG_NODISCARD;
/* Sets one scalar by its dotted name, "cores.idle", from text: for the command line. */
enum status config_set_option(struct config *config, const char *name, const char *value, char *error, size_t error_bytes) ZG_NODISCARD;

/* Rules across keys: a listener and a backend exist, soft <= hard, ... To be called last. */
enum status config_check(const struct config *config, char *error, size_t error_bytes) ZG_NODISCARD;

/* Prints every option with unit, default, range and meaning, as commented YAML. */
void config_print_options(int fd);
