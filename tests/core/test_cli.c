/*
 * The command line: what is accepted, in which order it is applied, what is printed where, and the three outcomes.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/boot/cli.h"
#include "core/options.h"
#include "zg_build.h"

TestSuite(cli);

enum { OUTPUT_BYTES = 1 << 16, ARGS_MAX = 64 };

#define BASE "--listen", "127.0.0.1:6380", "--cluster", "127.0.0.1:7000"
#define RUN(config, output, ...) run(config, output, (const char *[]){"zgateway", __VA_ARGS__, NULL})

struct output {
    char out[OUTPUT_BYTES], error[OUTPUT_BYTES];
};

static int redirect(int fd, FILE *file)
{
    int saved = dup(fd);

    cr_assert(saved >= 0 && dup2(fileno(file), fd) == fd);
    return saved;
}

static void read_back(FILE *file, int fd, int saved, char *text)
{
    cr_assert_eq(dup2(saved, fd), fd);
    close(saved);
    rewind(file);
    text[fread(text, 1, OUTPUT_BYTES - 1, file)] = '\0';
    fclose(file);
}

/* Parses the arguments into a fresh configuration; what is printed goes to `output`. */
static enum cli_action run(struct config **config, struct output *output, const char *const *args)
{
    FILE *out = tmpfile(), *error = tmpfile();
    char *argv[ARGS_MAX];
    int argc = 0;

    for (; args[argc] != NULL; argc++)
        argv[argc] = strdup(args[argc]);
    argv[argc] = NULL;
    *config = config_create_default();
    fflush(stdout);
    fflush(stderr);
    int saved_out = redirect(STDOUT_FILENO, out), saved_error = redirect(STDERR_FILENO, error);
    enum cli_action action = cli_parse(argc, argv, *config);
    fflush(stdout);
    fflush(stderr);
    read_back(out, STDOUT_FILENO, saved_out, output->out);
    read_back(error, STDERR_FILENO, saved_error, output->error);
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    return action;
}

static void expect_error(const char *const *args, const char *part)
{
    static struct output output;
    struct config *config;

    cr_expect_eq(run(&config, &output, args), CLI_EXIT_ERROR, "accepted, though wanted: %s", part);
    cr_expect(strstr(output.error, part) != NULL, "%s\nwanted: %s", output.error, part);
    cr_expect_str_empty(output.out);
    config_destroy(&config);
}
#define EXPECT_ERROR(part, ...) expect_error((const char *[]){"zgateway", __VA_ARGS__, NULL}, part)

static void write_file(char *path, const char *text)
{
    int fd = mkstemp(path);

    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

Test(cli, listener_and_backend_are_enough)
{
    static struct output output;
    struct config *config;

    cr_assert_eq(RUN(&config, &output, BASE), CLI_RUN, "%s", output.error);
    cr_expect(output.out[0] == '\0' && output.error[0] == '\0', "nothing is printed");
    cr_expect_str_eq(config->listeners[0].address, "127.0.0.1:6380");
    cr_expect_eq(config->backend.kind, BACKEND_CLUSTER);
    cr_expect_eq(config->backend.addresses[0].port, 7000);
    config_destroy(&config);
}

Test(cli, every_option_is_applied)
{
    static struct output output;
    struct config *config;

    cr_assert_eq(RUN(&config, &output, "--set", "listeners.present=cluster", "--servers", "127.0.0.1:1,h:2 weight=7", "--idle=spin", "--cpus", "1-3", "--data-cores", "2", "--listen",
                     "127.0.0.1:1", "--listen", "[::1]:1", "--set=limits.request_max=100MiB", "--set", "log.file=a=b"),
        CLI_RUN, "%s", output.error);
    cr_expect_eq(config->listeners_count, 2u);
    cr_expect_eq(config->listeners[1].present, PRESENT_CLUSTER);
    cr_expect_eq(config->backend.kind, BACKEND_SERVERS);
    cr_expect_eq(config->backend.addresses[1].weight, 7u);
    cr_expect_eq(config->cores.idle, IDLE_SPIN);
    cr_expect_eq(config->cores.data, 2u);
    cr_expect_eq(config->cores.cpus_count, 3u);
    cr_expect_eq(config->limits.request_max_bytes, UINT64_C(100) << 20);
    cr_expect_str_eq(config->log.file, "a=b");
    config_destroy(&config);
}

Test(cli, set_wins_over_the_file_and_the_short_forms)
{
    static struct output output;
    char path[] = "/tmp/zgateway-test-XXXXXX";
    struct config *config;

    write_file(path, "listeners:\n - address: 127.0.0.1:1\ncores: {idle: sleep, data: 3, lane_slots: 64}\nbackends:\n - {cluster: [\"h:1\"]}\n");
    cr_assert_eq(RUN(&config, &output, "--set", "cores.idle=spin", "--data-cores", "5", "--idle", "adaptive", "--config", path), CLI_RUN, "%s", output.error);
    cr_expect_eq(config->cores.idle, IDLE_SPIN);
    cr_expect_eq(config->cores.data, 5u);
    cr_expect_eq(config->cores.lane_slots, 64u);
    config_destroy(&config);
    EXPECT_ERROR("either -c, or --listen", "-c", path, "--listen", "127.0.0.1:2");
    EXPECT_ERROR("either -c, or --listen", "-c", path, "--servers", "127.0.0.1:2");
    EXPECT_ERROR("several files", "-c", path, "-c", path);
    EXPECT_ERROR("zgateway: key 'limits.inline_bytes': 16KiB is more than", "-c", path, "--set", "limits.request_max=1KiB");
    unlink(path);
}

Test(cli, check_prints_a_summary)
{
    static struct output output;
    struct config *config;

    cr_expect_eq(RUN(&config, &output, BASE, "--check", "--data-cores", "3", "--idle", "sleep"), CLI_EXIT_OK, "%s", output.error);
    cr_expect_str_eq(output.out, "configuration ok\n1 listener (127.0.0.1:6380), 3 data cores (not pinned, idle sleep), backend main (cluster, 1 address), time-out 500ms\n");
    config_destroy(&config);
    EXPECT_ERROR("key 'cores.data': 65 is out of range; allowed: 1 .. 64 or auto", BASE, "--check", "--data-cores", "65");
}

Test(cli, file_errors_name_file_and_line)
{
    char path[] = "/tmp/zgateway-test-XXXXXX", place[128];

    write_file(path, "cores:\n  data: 200\n");
    snprintf(place, sizeof(place), "zgateway: %s:2: key 'cores.data': 200 is out of range; allowed: 1 .. 64", path);
    EXPECT_ERROR(place, "--check", "-c", path);
    unlink(path);
    EXPECT_ERROR("No such file", "-c", path);
}

Test(cli, questions_are_answered)
{
    static struct output output;
    struct config *config;

    cr_expect_eq(RUN(&config, &output, "--version"), CLI_EXIT_OK);
    cr_expect_str_eq(output.out, "zgateway " ZG_VERSION "\n");
    config_destroy(&config);
    cr_expect_eq(RUN(&config, &output, "--help"), CLI_EXIT_OK);
    for (const char *const *word = (const char *[]){"-c", "--listen", "--cluster", "--servers", "--data-cores", "--cpus", "--idle", "--set", "--check", "--print-config", "--version", NULL};
         *word != NULL; word++)
        cr_expect(strstr(output.out, *word) != NULL, "%s", *word);
    config_destroy(&config);
    cr_expect_eq(RUN(&config, &output, "--print-config"), CLI_EXIT_OK);
    for (size_t i = 0; i < OPTION_COUNT; i++)
        cr_expect(strstr(output.out, options_table[i].key) != NULL, "%s", options_table[i].key);
    config_destroy(&config);
}

Test(cli, wrong_arguments_are_refused_with_a_message)
{
    expect_error((const char *[]){"zgateway", NULL}, "key 'listeners': there is none");
    EXPECT_ERROR("--help", "--nosuch");
    EXPECT_ERROR("--help", "-x");
    EXPECT_ERROR("--help", "--listen");
    EXPECT_ERROR("'words' is no option", "words", BASE);
    EXPECT_ERROR("key 'backends': there is none", "--listen", "127.0.0.1:1");
    EXPECT_ERROR("key 'listeners': there is none", "--cluster", "127.0.0.1:1");
    EXPECT_ERROR("several backends", BASE, "--servers", "h:1");
    EXPECT_ERROR("--listen: 'x' has no port", "--listen", "x");
    EXPECT_ERROR("--listen: '127.0.0.1:6380' is listed twice", BASE, "--listen", "127.0.0.1:6380");
    EXPECT_ERROR("--cluster: ", "--listen", "127.0.0.1:1", "--cluster", "h:1 weight=2");
    EXPECT_ERROR("--servers: ", "--listen", "127.0.0.1:1", "--servers", "");
    EXPECT_ERROR("key 'cores.data': 'x' is not a whole number", BASE, "--data-cores", "x");
    EXPECT_ERROR("key 'cores.idle': 'fast' is not one of the words; allowed: sleep, adaptive, spin", BASE, "--idle", "fast");
    EXPECT_ERROR("key 'cores.cpus': ", BASE, "--cpus", "1-");
    EXPECT_ERROR("SECTION.KEY=VALUE", BASE, "--set", "cores.data");
    EXPECT_ERROR("SECTION.KEY=VALUE", BASE, "--set", "=1");
    EXPECT_ERROR("key 'nosuch.key': ", BASE, "--set", "nosuch.key=1");
    EXPECT_ERROR("did you mean 'data'?", BASE, "--set", "cores.dat=1");
}
