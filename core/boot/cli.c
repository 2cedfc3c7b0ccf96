/*
 * Reads the command line in two steps: first what was said, in any order; then it is applied in a fixed order (file, listeners, backend, single options), so that --set wins over
 * the file wherever it stands. Boot only.
 */
#include "core/boot/cli.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/options.h"
#include "zg_build.h"

enum { ERROR_BYTES = 2048, NAME_BYTES = 128 };

enum cli_option { /* beyond the characters of short options */
    CLI_LISTEN = 256,
    CLI_CLUSTER,
    CLI_SERVERS,
    CLI_DATA_CORES,
    CLI_CPUS,
    CLI_IDLE,
    CLI_SET,
    CLI_CHECK,
    CLI_PRINT_CONFIG,
    CLI_VERSION,
};

static const struct option long_options[] = {
    {"config", required_argument, NULL, 'c'},
    {"listen", required_argument, NULL, CLI_LISTEN},
    {"cluster", required_argument, NULL, CLI_CLUSTER},
    {"servers", required_argument, NULL, CLI_SERVERS},
    {"data-cores", required_argument, NULL, CLI_DATA_CORES},
    {"cpus", required_argument, NULL, CLI_CPUS},
    {"idle", required_argument, NULL, CLI_IDLE},
    {"set", required_argument, NULL, CLI_SET},
    {"check", no_argument, NULL, CLI_CHECK},
    {"print-config", no_argument, NULL, CLI_PRINT_CONFIG},
    {"version", no_argument, NULL, CLI_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char usage_text[] =
    "zgateway: a gateway that speaks the Redis protocol, one thread a core\n"
    "\n"
    "  zgateway -c FILE [--set SECTION.KEY=VALUE ...]\n"
    "  zgateway --listen ADDRESS --cluster HOST:PORT[,...] [options]\n"
    "  zgateway --listen ADDRESS --servers HOST:PORT[,...] [options]\n"
    "\n"
    "  -c, --config FILE       read the configuration from a YAML file\n"
    "  --listen ADDRESS        listen on HOST:PORT, [IPV6]:PORT or unix:/PATH; may be repeated\n"
    "  --cluster LIST          nodes of a cluster, as HOST:PORT[,HOST:PORT...]\n"
    "  --servers LIST          standalone servers, as HOST:PORT[,\"HOST:PORT weight=N\"...]\n"
    "  --data-cores N          threads that serve clients, 1 .. 64 or auto (cores.data)\n"
    "  --cpus LIST             their CPUs, as 2-5,8 (cores.cpus)\n"
    "  --idle MODE             sleep, adaptive or spin (cores.idle)\n"
    "  --set SECTION.KEY=VALUE set any option; wins over the file; may be repeated\n"
    "  --check                 check the configuration and exit: 0 if it is right, 2 if not\n"
    "  --print-config          print every option with unit, default, range and meaning\n"
    "  --version               print the version\n"
    "  -h, --help              print this\n";

/* --idle spin is short for --set cores.idle=spin. */
struct short_form {
    const char *name, *value;
};

/* What was said. The arrays have room for argc entries and borrow their texts from argv. */
struct cli {
    const char *file;
    const char *backend_list;
    enum config_backend_kind backend_kind;
    bool is_check;
    const char **listens;
    int listens_count;
    const char **sets; /* "section.key=value" */
    int sets_count;
    struct short_form *shorts;
    int shorts_count;
};

static enum cli_action complain(const char *text)
{
    fprintf(stderr, "zgateway: %s\n", text);
    return CLI_EXIT_ERROR;
}

static enum cli_action complain_usage(const char *text)
{
    complain(text);
    fprintf(stderr, "zgateway: 'zgateway --help' lists what is allowed\n");
    return CLI_EXIT_ERROR;
}

/* An answer that could not be written (a full disk, a closed pipe) is not given. */
static enum cli_action answer_end(void)
{
    return fflush(stdout) == 0 && !ferror(stdout) ? CLI_EXIT_OK : complain("standard output cannot be written");
}

static enum cli_action take_backend(struct cli *cli, enum config_backend_kind kind, const char *list)
{
    if (cli->backend_list != NULL)
        return complain_usage("there are several backends; allowed: one of --cluster and --servers, once");
    cli->backend_list = list;
    cli->backend_kind = kind;
    return CLI_RUN;
}

static enum cli_action take_short_form(struct cli *cli, const char *name, const char *value)
{
    cli->shorts[cli->shorts_count++] = (struct short_form){.name = name, .value = value};
    return CLI_RUN;
}

/* One option of the command line. CLI_RUN: go on. */
static enum cli_action take_option(struct cli *cli, int option)
{
    switch (option) {
    case 'c':
        if (cli->file != NULL)
            return complain_usage("there are several files; allowed: -c once");
        cli->file = optarg;
        return CLI_RUN;
    case CLI_LISTEN:
        cli->listens[cli->listens_count++] = optarg;
        return CLI_RUN;
    case CLI_CLUSTER:
        return take_backend(cli, BACKEND_CLUSTER, optarg);
    case CLI_SERVERS:
        return take_backend(cli, BACKEND_SERVERS, optarg);
    case CLI_DATA_CORES:
        return take_short_form(cli, "cores.data", optarg);
    case CLI_CPUS:
        return take_short_form(cli, "cores.cpus", optarg);
    case CLI_IDLE:
        return take_short_form(cli, "cores.idle", optarg);
    case CLI_SET:
        cli->sets[cli->sets_count++] = optarg;
        return CLI_RUN;
    case CLI_CHECK:
        cli->is_check = true;
        return CLI_RUN;
    case CLI_PRINT_CONFIG:
        config_print_options(STDOUT_FILENO);
        return CLI_EXIT_OK;
    case CLI_VERSION:
        printf("zgateway " ZG_VERSION "\n");
        return answer_end();
    case 'h':
        fputs(usage_text, stdout);
        return answer_end();
    default: /* getopt has named it */
        fprintf(stderr, "zgateway: 'zgateway --help' lists what is allowed\n");
        return CLI_EXIT_ERROR;
    }
}

static enum cli_action set_one(struct config *config, const char *name, const char *value)
{
    char error[ERROR_BYTES] = "";

    if (config_set_option(config, name, value, error, sizeof(error)) != STATUS_OK)
        return complain(error);
    return CLI_RUN;
}

static enum cli_action apply_set(struct config *config, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    char name[NAME_BYTES];

    if (equals == NULL || equals == assignment || (size_t)(equals - assignment) >= sizeof(name))
        return complain_usage("--set is not understood; allowed: SECTION.KEY=VALUE");
    memcpy(name, assignment, (size_t)(equals - assignment));
    name[equals - assignment] = '\0';
    return set_one(config, name, equals + 1);
}

static enum cli_action apply_sources(const struct cli *cli, struct config *config)
{
    char detail[ERROR_BYTES] = "", error[ERROR_BYTES + 64];

    if (cli->file != NULL && (cli->backend_list != NULL || cli->listens_count > 0))
        return complain_usage("a file describes listeners and backends itself; allowed: either -c, or --listen with --cluster or --servers");
    if (cli->file != NULL && config_load_file(config, cli->file, detail, sizeof(detail)) != STATUS_OK)
        return complain(detail);
    for (int i = 0; i < cli->listens_count; i++) {
        if (config_add_listener(config, cli->listens[i], detail, sizeof(detail)) != STATUS_OK) {
            snprintf(error, sizeof(error), "--listen: %s", detail);
            return complain(error);
        }
    }
    if (cli->backend_list != NULL && config_set_backend(config, cli->backend_kind, cli->backend_list, detail, sizeof(detail)) != STATUS_OK) {
        snprintf(error, sizeof(error), "%s: %s", cli->backend_kind == BACKEND_CLUSTER ? "--cluster" : "--servers", detail);
        return complain(error);
    }
    return CLI_RUN;
}

static enum cli_action print_summary(const struct config *config)
{
    char timeout[64], idle[64];

    option_format_value(&options_table[OPTION_ID_use_cases_timeout], &config->use_case, timeout, sizeof(timeout));
    option_format_value(&options_table[OPTION_ID_cores_idle], config, idle, sizeof(idle));
    printf("configuration ok\n");
    printf("%u listener%s (%s%s), %u data core%s (%s, idle %s), backend %s (%s, %u address%s), time-out %s\n", config->listeners_count,
        config->listeners_count == 1 ? "" : "s", config->listeners[0].address, config->listeners_count == 1 ? "" : ", ...", config->cores.data,
        config->cores.data == 1 ? "" : "s", config->cores.cpus_count > 0 ? "pinned" : "not pinned", idle, config->backend.name,
        config->backend.kind == BACKEND_CLUSTER ? "cluster" : "servers", config->backend.addresses_count, config->backend.addresses_count == 1 ? "" : "es", timeout);
    return answer_end();
}

/* What was said becomes the configuration. */
static enum cli_action apply(const struct cli *cli, struct config *config)
{
    char error[ERROR_BYTES] = "";
    enum cli_action action = apply_sources(cli, config);

    for (int i = 0; action == CLI_RUN && i < cli->shorts_count; i++)
        action = set_one(config, cli->shorts[i].name, cli->shorts[i].value);
    for (int i = 0; action == CLI_RUN && i < cli->sets_count; i++)
        action = apply_set(config, cli->sets[i]);
    if (action != CLI_RUN)
        return action;
    if (config_check(config, error, sizeof(error)) != STATUS_OK)
        return complain(error);
    return cli->is_check ? print_summary(config) : CLI_RUN;
}

enum cli_action cli_parse(int argc, char **argv, struct config *config)
{
    size_t room = (size_t)argc + 1;
    struct cli cli = {
        .listens = alloc_zeroed(room * sizeof(cli.listens[0])),
        .sets = alloc_zeroed(room * sizeof(cli.sets[0])),
        .shorts = alloc_zeroed(room * sizeof(cli.shorts[0])),
    };
    enum cli_action action = CLI_RUN;
    int option;

    optind = 0; /* glibc: begin anew */
    while (action == CLI_RUN && (option = getopt_long(argc, argv, "c:h", long_options, NULL)) != -1)
        action = take_option(&cli, option);
    if (action == CLI_RUN && optind < argc) {
        fprintf(stderr, "zgateway: '%s' is no option\n", argv[optind]);
        action = complain_usage("arguments without an option are not understood");
    }
    if (action == CLI_RUN)
        action = apply(&cli, config);
    alloc_free(cli.listens);
    alloc_free(cli.sets);
    alloc_free(cli.shorts);
    return action;
}
