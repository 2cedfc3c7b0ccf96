/*
 * The configuration as a whole: files, lists, addresses, and the rules across keys. Single options are tested by test_options.c.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/address.h"
#include "core/config.h"
#include "core/options.h"

TestSuite(config);

enum { ERROR_BYTES = 2048 };

static const char example[] =
    "listeners:\n"
    "  - address: 127.0.0.1:6380\n"
    "cores: {data: 4, cpus: \"2-5\", housekeeping_cpu: 1, idle: adaptive}\n"
    "backends:\n"
    "  - {name: main, cluster: [\"127.0.0.1:7000\", \"127.0.0.1:7001\"]}\n"
    "  - {name: legacy, servers: [\"127.0.0.1:7100\", \"127.0.0.1:7101 weight=2\"], link_stall: 9s}\n"
    "use_cases:\n"
    "  - {name: default, backend: main, timeout: 500ms, max_value: 64MiB}\n";

static enum status load(struct config *config, const char *text, char *error)
{
    error[0] = '\0';
    return config_load_text(config, "z.yaml", text, strlen(text), error, ERROR_BYTES);
}

/* The text is refused, and the message begins with `begin` and contains `part`. */
static void expect_error(const char *text, const char *begin, const char *part)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES];

    cr_expect_eq(load(config, text, error), STATUS_INVALID, "accepted: %s", text);
    cr_expect(strncmp(error, begin, strlen(begin)) == 0 && strstr(error, part) != NULL, "text: %s\nerror: %s\nwanted: %s ... %s", text, error, begin, part);
    config_destroy(&config);
}

/* A configuration that config_check accepts. */
static struct config *create_complete(void)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES] = "";

    cr_assert_eq(config_add_listener(config, "127.0.0.1:6380", error, sizeof(error)), STATUS_OK);
    cr_assert_eq(config_set_backend(config, BACKEND_CLUSTER, "127.0.0.1:7000", error, sizeof(error)), STATUS_OK);
    cr_assert_eq(config_check(config, error, sizeof(error)), STATUS_OK, "%s", error);
    return config;
}

/* The complete configuration with these options ("a=b c=d") is refused by config_check with a message that begins so. */
static void expect_rule(const char *options, const char *begin)
{
    struct config *config = create_complete();
    char error[ERROR_BYTES] = "", copy[512], *rest = copy;

    snprintf(copy, sizeof(copy), "%s", options);
    for (char *one = strsep(&rest, " "); one != NULL; one = strsep(&rest, " ")) {
        char *equals = strchr(one, '=');
        *equals = '\0';
        cr_assert_eq(config_set_option(config, one, equals + 1, error, sizeof(error)), STATUS_OK, "%s", error);
    }
    if (begin == NULL) {
        cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_OK, "%s: %s", options, error);
    } else {
        cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_INVALID, "accepted: %s", options);
        cr_expect(strncmp(error, begin, strlen(begin)) == 0 && strstr(error, "allowed: ") != NULL, "%s: %s", options, error);
    }
    config_destroy(&config);
}

Test(config, example_is_loaded)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES];

    cr_assert_eq(load(config, example, error), STATUS_OK, "%s", error);
    cr_assert_eq(config_check(config, error, sizeof(error)), STATUS_OK, "%s", error);
    cr_expect_eq(config->listeners_count, 1u);
    cr_expect_str_eq(config->listeners[0].address, "127.0.0.1:6380");
    cr_expect_eq(config->listeners[0].present, PRESENT_AUTO);
    cr_expect_str_empty(config->listeners[0].announce);
    cr_expect_eq(config->cores.data, 4u);
    cr_expect_eq(config->cores.cpus_count, 4u);
    cr_expect(config->cores.cpus[0] == 2 && config->cores.cpus[3] == 5);
    cr_expect_eq(config->cores.housekeeping_cpu, 1);
    cr_expect_eq(config->cores.idle, IDLE_ADAPTIVE);
    cr_expect_str_eq(config->backend.name, "main");
    cr_expect_eq(config->backend.kind, BACKEND_CLUSTER);
    cr_expect_eq(config->backend.addresses_count, 2u);
    cr_expect_str_eq(config->backend.addresses[1].host, "127.0.0.1");
    cr_expect_eq(config->backend.addresses[1].port, 7001);
    cr_expect_eq(config->backend.link_stall_ns, UINT64_C(2000000000), "the default, not the other backend's");
    cr_expect_str_eq(config->use_case.backend, "main");
    cr_expect_eq(config->use_case.timeout_ns, UINT64_C(500000000));
    cr_expect_eq(config->use_case.max_value_bytes, UINT64_C(64) << 20);
    config_destroy(&config);
    cr_expect_null(config);
    config_destroy(&config); /* once more is no error */
}

Test(config, backend_that_the_use_case_names_is_chosen)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES], text[1024];

    snprintf(text, sizeof(text), "%s", example);
    strcpy(strstr(text, "use_cases:"), "use_cases:\n  - {backend: legacy, timeout: 1s}\n");
    cr_assert_eq(load(config, text, error), STATUS_OK, "%s", error);
    cr_expect_str_eq(config->backend.name, "legacy");
    cr_expect_eq(config->backend.kind, BACKEND_SERVERS);
    cr_expect_eq(config->backend.addresses[0].weight, 1u);
    cr_expect_eq(config->backend.addresses[1].weight, 2u);
    cr_expect_eq(config->backend.link_stall_ns, UINT64_C(9000000000));
    config_destroy(&config);

    config = config_create_default();
    cr_assert_eq(load(config, "backends: [{name: only, servers: [\"h:1\"]}]\n", error), STATUS_OK, "%s", error);
    cr_expect_str_eq(config->backend.name, "only");
    cr_expect_str_eq(config->use_case.backend, "only");
    config_destroy(&config);
}

Test(config, backend_that_cannot_be_chosen_is_refused)
{
    expect_error("backends:\n - {name: a, cluster: [\"h:1\"]}\n - {name: b, cluster: [\"h:1\"]}\n", "z.yaml: key 'use_cases.backend'", "no use case names one; allowed: ");
    expect_error("backends:\n - {name: a, cluster: [\"h:1\"]}\nuse_cases:\n - {backend: b}\n", "z.yaml:4: key 'use_cases.backend'", "no backend 'b'");
    expect_error("backends:\n - {name: a, cluster: [\"h:1\"]}\n - {name: a, cluster: [\"h:2\"]}\n", "z.yaml:3: key 'backends.name'", "used twice");
    expect_error("backends:\n - {name: a}\n", "z.yaml:2: key 'backends.cluster'", "missing");
    expect_error("backends:\n - name: a\n   cluster: [\"h:1\"]\n   servers: [\"h:2\"]\n", "z.yaml:4: key 'backends.servers'", "either cluster or servers");
    expect_error("backends:\n - {cluster: []}\n", "z.yaml:2: key 'backends.cluster'", "is empty");
    expect_error("backends:\n - {cluster: \"h:1\"}\n", "z.yaml:2: key 'backends.cluster'", "a single value, not a list");
    expect_error("backends:\n - cluster:\n   - h:1\n   - {h: 1}\n", "z.yaml:4: key 'backends.cluster'", "a mapping, not a single value");
    expect_error("backends:\n - cluster:\n   - h:1\n   - h:1\n", "z.yaml:4: key 'backends.cluster'", "listed twice");
    expect_error("backends:\n - cluster: [\"h:1 weight=2\"]\n", "z.yaml:2: key 'backends.cluster'", "behind the address");
    expect_error("backends:\n - servers: [\"h:1 weight=0\"]\n", "z.yaml:2: key 'backends.servers'", "weight=1 .. weight=1000");
    expect_error("backends:\n - servers: [\"h:1 weight=1001\"]\n", "z.yaml:2: key 'backends.servers'", "weight=1 .. weight=1000");
}

Test(config, backends_and_listeners_are_bounded)
{
    static char text[1 << 16];
    size_t length = (size_t)sprintf(text, "backends:\n");

    for (int i = 0; i < 65; i++)
        length += (size_t)sprintf(text + length, " - {name: b%d, cluster: [\"h:1\"]}\n", i);
    expect_error(text, "z.yaml:66: key 'backends'", "at most 64");

    length = (size_t)sprintf(text, "listeners:\n");
    for (int i = 0; i < 17; i++)
        length += (size_t)sprintf(text + length, " - address: 127.0.0.1:%d\n", i + 1);
    expect_error(text, "z.yaml:18: key 'listeners.address'", "at most 16");

    length = (size_t)sprintf(text, "backends:\n - cluster:\n");
    for (int i = 0; i < 1025; i++)
        length += (size_t)sprintf(text + length, "   - h:%d\n", i + 1);
    expect_error(text, "z.yaml:1027: key 'backends.cluster'", "at most 1024");
    *strstr(text, "   - h:1025") = '\0';
    struct config *config = config_create_default();
    char error[ERROR_BYTES];
    cr_assert_eq(load(config, text, error), STATUS_OK, "%s", error);
    cr_expect_eq(config->backend.addresses_count, 1024u);
    cr_expect_eq(config->backend.addresses[1023].port, 1024);
    config_destroy(&config);
}

Test(config, use_case_other_than_default_is_refused)
{
    expect_error("use_cases:\n - {name: default}\n - {name: web}\n", "z.yaml:3: key 'use_cases.name'", "allowed: default");
    expect_error("use_cases:\n - {name: default}\n - {timeout: 1s}\n", "z.yaml:3: key 'use_cases.name'", "used twice");
}

Test(config, listener_is_checked)
{
    expect_error("listeners:\n - {present: cluster}\n", "z.yaml:2: key 'listeners.address'", "missing");
    expect_error("listeners:\n - address: 127.0.0.1:1\n - address: 127.0.0.1:1\n", "z.yaml:3: key 'listeners.address'", "listed twice");
    expect_error("listeners:\n - address: unix:relative\n", "z.yaml:2: key 'listeners.address'", "unix:/PATH");
    expect_error("listeners:\n - 127.0.0.1:1\n", "z.yaml:2: key 'listeners'", "a single value, not a mapping");
    struct config *config = config_create_default();
    char error[ERROR_BYTES];
    cr_assert_eq(load(config, "listeners:\n - address: \"[::1]:6380\"\n   present: cluster\n   announce: gw.example:7777\n - address: unix:/run/z.sock\n", error), STATUS_OK, "%s", error);
    cr_expect_eq(config->listeners_count, 2u);
    cr_expect_eq(config->listeners[0].present, PRESENT_CLUSTER);
    cr_expect_str_eq(config->listeners[0].announce, "gw.example:7777");
    cr_expect_eq(config->listeners[1].present, PRESENT_AUTO);
    cr_expect_str_eq(config->listeners[1].address, "unix:/run/z.sock");
    /* From the command line an option of listeners is one of all of them. */
    cr_assert_eq(config_set_option(config, "listeners.present", "standalone", error, sizeof(error)), STATUS_OK);
    cr_expect(config->listeners[0].present == PRESENT_STANDALONE && config->listeners[1].present == PRESENT_STANDALONE);
    config_destroy(&config);
}

Test(config, file_that_is_no_mapping_of_sections_is_refused)
{
    expect_error("", "z.yaml:1: ", "empty");
    expect_error("# nothing\n", "z.yaml:1: ", "empty");
    expect_error("---\n...\n", "z.yaml:2: ", "");
    expect_error("text\n", "z.yaml:1: ", "a single value, not a mapping");
    expect_error("\n- 1\n", "z.yaml:2: ", "a list, not a mapping");
    expect_error("cores: 5\n", "z.yaml:1: key 'cores'", "a single value, not a mapping");
    expect_error("cores: [1]\n", "z.yaml:1: key 'cores'", "a list, not a mapping");
    expect_error("listeners: 5\n", "z.yaml:1: key 'listeners'", "a single value, not a list");
    expect_error("log: {level: info}\ncore: {data: 1}\n", "z.yaml:2: key 'core': does not exist; did you mean 'cores'?", "allowed: listeners, cores, limits");
    expect_error("completely_unlike: {}\n", "z.yaml:1: key 'completely_unlike': does not exist; allowed: ", "use_cases");
    expect_error("cores: {data: 1}\ncores: {data: 2}\n", "z.yaml:2: key 'cores'", "given twice");
    expect_error("cores: {[1]: 2}\n", "z.yaml:1: ", "not a word");
    expect_error("{a: b}: 2\n", "z.yaml:1: ", "not a word");
    expect_error("cores: {data: 1}\n---\ncores: {data: 2}\n", "z.yaml:2: ", "second document");
}

Test(config, section_of_comments_alone_is_empty)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES];

    cr_expect_eq(load(config, "cores:\n  # data: 4\nlisteners:\nlimits: {}\nbackends: []\n", error), STATUS_OK, "%s", error);
    config_destroy(&config);
}

Test(config, malformed_yaml_names_the_line)
{
    expect_error("cores:\n  data: [1\nlog: {}\n", "z.yaml:3: is not valid YAML: ", "");
    expect_error("cores:\n\tdata: 1\n", "z.yaml:2: is not valid YAML: ", "");
    expect_error("cores: {data: \"1}\n", "z.yaml:", "is not valid YAML");
    expect_error("cores: {data: 1}\n\xff\xfe\n", "z.yaml:2: is not valid YAML: ", "");
    expect_error("cores: {data: 1}\n\n\x01\n", "z.yaml:3: is not valid YAML: ", "");
    expect_error("log: {level: info}\n}\n", "z.yaml:2: is not valid YAML: ", "");
}

Test(config, anchor_and_alias_are_refused)
{
    expect_error("limits: {request_max: &big 1MiB, reply_max: *big}\n", "z.yaml:1: ", "an anchor");
    expect_error("log: {}\nbackends:\n - &b {name: a, cluster: [\"h:1\"]}\n - *b\n", "z.yaml:3: ", "an anchor");
    expect_error("&root cores: {data: 1}\nlog: *root\n", "z.yaml:1: ", "an anchor");
    expect_error("\nbackends: &r [*r]\n", "z.yaml:2: ", "an anchor");
    expect_error("cores: {data: *nowhere}\n", "z.yaml:1: ", "an anchor (&name) or alias (*name); allowed: ");
    expect_error("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n", "z.yaml:1: ", "an anchor");
}

Test(config, depth_and_size_are_bounded)
{
    size_t bytes = CONFIG_FILE_BYTES_MAX;
    char *text = malloc(bytes + 2), error[ERROR_BYTES] = "";
    struct config *config = config_create_default();

    for (const char *open = "[{?-"; *open != '\0'; open++) { /* none takes noticeable time */
        memset(text, *open, bytes);
        for (size_t i = 1; (*open == '?' || *open == '-') && i < bytes; i += 2)
            text[i] = ' ';
        cr_expect_eq(config_load_text(config, "deep", text, bytes, error, sizeof(error)), STATUS_INVALID);
        cr_expect(strncmp(error, "deep:1: is not accepted: nested too deeply", 40) == 0, "%s", error);
    }
    memset(text, '#', bytes + 1);
    cr_expect_eq(config_load_text(config, "large", text, bytes + 1, error, sizeof(error)), STATUS_INVALID);
    cr_expect(strstr(error, "allowed: at most 1048576") != NULL, "%s", error);
    memcpy(text, "log: {level: error}\n", 20); /* the largest file that is allowed */
    cr_expect_eq(config_load_text(config, "large", text, bytes, error, sizeof(error)), STATUS_OK, "%s", error);
    cr_expect_eq(config->log.level, LOG_ERROR);
    config_destroy(&config);
    free(text);
}

Test(config, text_cut_at_every_byte_is_loaded_or_refused_with_a_message)
{
    char error[ERROR_BYTES];
    static char printed[1 << 16];
    FILE *file = tmpfile();

    cr_assert_not_null(file);
    config_print_options(fileno(file));
    rewind(file);
    size_t printed_length = fread(printed, 1, sizeof(printed), file);
    fclose(file);
    cr_assert(printed_length > 1000 && printed_length < sizeof(printed));
    for (size_t source = 0; source < 2; source++) {
        const char *text = source == 0 ? example : printed;
        size_t length = source == 0 ? strlen(example) : printed_length;
        for (size_t cut = 0; cut <= length; cut += source == 0 ? 1 : 11) { /* the long one costs more and adds little */
            struct config *config = config_create_default();
            char *copy = malloc(cut + 1); /* exactly as long, so that a read beyond it is seen */
            memcpy(copy, text, cut);
            error[0] = '\0';
            enum status status = config_load_text(config, "z.yaml", copy, cut, error, sizeof(error));
            if (status != STATUS_OK)
                cr_expect(strncmp(error, "z.yaml:", 7) == 0, "cut at %zu: '%s'", cut, error);
            free(copy);
            config_destroy(&config);
        }
    }
}

Test(config, printed_options_are_a_file_that_sets_every_default)
{
    static char printed[1 << 16];
    char error[ERROR_BYTES], default_value[512], loaded_value[512];
    FILE *file = tmpfile();

    cr_assert_not_null(file);
    config_print_options(fileno(file));
    rewind(file);
    size_t length = fread(printed, 1, sizeof(printed), file);
    fclose(file);
    struct config *loaded = config_create_default(), *defaults = create_complete();
    cr_assert_eq(config_load_text(loaded, "printed", printed, length, error, sizeof(error)), STATUS_OK, "%s", error);
    cr_assert_eq(config_check(loaded, error, sizeof(error)), STATUS_OK, "%s", error);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct config_option *option = &options_table[i];
        if (i != OPTION_ID_backends_servers) /* the alternative, in a comment */
            cr_expect_gt(loaded->lines[i], 0u, "%s is not printed", option->key);
        if (option->type == OPTION_ADDRESSES || i == OPTION_ID_use_cases_backend)
            continue;
        option_format_value(option, option_entry(defaults, option->section), default_value, sizeof(default_value));
        option_format_value(option, option_entry(loaded, option->section), loaded_value, sizeof(loaded_value));
        cr_expect_str_eq(default_value, loaded_value, "%s", option->key);
        cr_expect(strstr(printed, option->key) != NULL);
    }
    config_destroy(&loaded);
    config_destroy(&defaults);
}

Test(config, file_is_read_from_disk)
{
    char path[] = "/tmp/zgateway-test-XXXXXX", error[ERROR_BYTES] = "";
    int fd = mkstemp(path);
    struct config *config = config_create_default();

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, example, strlen(example)), (ssize_t)strlen(example));
    cr_expect_eq(config_load_file(config, path, error, sizeof(error)), STATUS_OK, "%s", error);
    cr_expect_eq(config->cores.data, 4u);
    cr_expect_str_eq(config->source, path);
    config_destroy(&config);

    config = config_create_default();
    cr_assert_eq(ftruncate(fd, CONFIG_FILE_BYTES_MAX + 1), 0);
    cr_expect_eq(config_load_file(config, path, error, sizeof(error)), STATUS_INVALID);
    cr_expect(strstr(error, path) != NULL && strstr(error, "at most") != NULL, "%s", error);
    close(fd);
    unlink(path);
    cr_expect_eq(config_load_file(config, path, error, sizeof(error)), STATUS_INVALID);
    cr_expect(strstr(error, path) != NULL && strstr(error, "No such file") != NULL, "%s", error);
    cr_expect_eq(config_load_file(config, "/tmp", error, sizeof(error)), STATUS_INVALID);
    cr_expect(strstr(error, "directory") != NULL, "%s", error);
    cr_expect_eq(config_load_file(config, "/dev/zero", error, sizeof(error)), STATUS_INVALID, "an endless file ends");
    config_destroy(&config);
}

Test(config, message_is_cut_to_its_room_and_has_no_control_characters)
{
    char text[] = "cores: {\"da\\u001b[2J\\nta\": 1}\n", error[ERROR_BYTES];
    struct config *config = config_create_default();

    cr_expect_eq(load(config, text, error), STATUS_INVALID);
    for (const char *c = error; *c != '\0'; c++)
        cr_expect((unsigned char)*c >= 0x20 && *c != 0x7f, "%s", error);
    for (size_t room = 0; room < 64; room++) {
        char small[80];
        memset(small, 'x', sizeof(small));
        cr_expect_eq(config_load_text(config, "z.yaml", text, strlen(text), small, room), STATUS_INVALID);
        cr_expect_eq(small[room], 'x', "written beyond %zu", room);
        cr_expect(room == 0 || memchr(small, '\0', room) != NULL);
    }
    config_destroy(&config);
}

Test(config, password_is_in_no_message)
{
    char text[1024], error[ERROR_BYTES];
    struct config *config = config_create_default();

    snprintf(text, sizeof(text), "backends:\n - password: sesame%0300d\n", 0);
    cr_expect_eq(load(config, text, error), STATUS_INVALID);
    cr_expect(strstr(error, "backends.password") != NULL && strstr(error, "sesame") == NULL, "%s", error);
    cr_expect_eq(load(config, "backends:\n - {user: u, password: \"se same:\\t'\", cluster: [\"h:1\"]}\n", error), STATUS_OK, "%s", error);
    cr_expect_str_eq(config->backend.password, "se same:\t'");
    config_destroy(&config);
}

Test(config, list_of_cpus)
{
    static const char *const wrong[] = {"x", "1-", "-1", "5-2", "1,,2", "1,", ",1", "1 2", "1024", "0-1024", "99999", "1;2", "1-2-3", "2,1-3", "7,7", "0-256"};
    struct config *config = config_create_default();
    char error[ERROR_BYTES] = "";

    cr_assert_eq(config_set_cpus(config, "2-5,8", error, sizeof(error)), STATUS_OK, "%s", error);
    cr_expect_eq(config->cores.cpus_count, 5u);
    cr_expect(config->cores.cpus[0] == 2 && config->cores.cpus[3] == 5 && config->cores.cpus[4] == 8);
    cr_expect_eq(config->cores.data, 5u, "auto follows");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        error[0] = '\0';
        cr_expect_eq(config_set_cpus(config, wrong[i], error, sizeof(error)), STATUS_INVALID, "%s", wrong[i]);
        cr_expect(strstr(error, "allowed: ") != NULL, "%s: %s", wrong[i], error);
        cr_expect_eq(config->cores.cpus_count, 5u);
    }
    cr_expect_eq(config_set_cpus(config, " 1023 , 0-254 ", error, sizeof(error)), STATUS_OK, "%s", error);
    cr_expect_eq(config->cores.cpus_count, 256u);
    cr_expect_eq(config->cores.data, 64u, "auto stops at the most");
    cr_expect_eq(config_set_cpus(config, "", error, sizeof(error)), STATUS_OK);
    cr_expect_eq(config->cores.cpus_count, 0u);
    config_destroy(&config);
}

Test(config, data_cores_follow_the_usable_cpus)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES] = "";
    cpu_set_t usable, one;

    cr_assert_eq(sched_getaffinity(0, sizeof(usable), &usable), 0);
    int wanted = CPU_COUNT(&usable) > 65 ? 64 : CPU_COUNT(&usable) > 1 ? CPU_COUNT(&usable) - 1
                                                                       : 1;
    cr_expect_eq(config->cores.data, (uint32_t)wanted);
    cr_expect_eq(config_set_option(config, "cores.data", "7", error, sizeof(error)), STATUS_OK);
    cr_expect_eq(config_set_cpus(config, "1-3", error, sizeof(error)), STATUS_OK);
    cr_expect_eq(config->cores.data, 7u, "a given number stays");
    cr_expect_eq(config_set_option(config, "cores.data", "auto", error, sizeof(error)), STATUS_OK);
    cr_expect_eq(config->cores.data, 3u);
    config_destroy(&config);

    CPU_ZERO(&one);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &usable))
            CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    config = config_create_default();
    cr_expect_eq(config->cores.data, 1u, "at least one");
    config_destroy(&config);
}

Test(config, address_is_parsed)
{
    static const struct {
        const char *text, *host;
        uint16_t port;
        uint32_t weight;
    } right[] = {
        {"127.0.0.1:1", "127.0.0.1", 1, 1},
        {"[::1]:65535", "::1", 65535, 1},
        {"node-1.example_x:6379", "node-1.example_x", 6379, 1},
        {"h:1 weight=1000", "h", 1, 1000},
        {"[fe80::1]:2  weight=3", "fe80::1", 2, 3},
    };
    static const char *const wrong[] = {"", ":", "h", "h:", ":1", "h:0", "h:65536", "h:99999999999999999999", "h:1x", "h:-1", "h: 1", "::1:1", "[::1]", "[::1]1", "[]:1", "[h]:1",
        "[::1:1", "h/x:1", "h:1 ", "h:1 2", "h:1 weight=", "h:1 weight=0", "h:1 weight=1001", "h:1 weight=1 x", "\xc3\xa4:1", "h\t:1"};
    struct config_address address;
    char error[ERROR_BYTES], longest[600];

    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        cr_expect_eq(address_parse(right[i].text, true, &address, error, sizeof(error)), STATUS_OK, "%s", error);
        cr_expect(strcmp(address.host, right[i].host) == 0 && address.port == right[i].port && address.weight == right[i].weight, "%s", right[i].text);
        cr_expect_eq(address_parse(right[i].text, false, &address, error, sizeof(error)) == STATUS_OK, strchr(right[i].text, ' ') == NULL, "%s", right[i].text);
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct config_address before = {.port = 9};
        error[0] = '\0';
        cr_expect_eq(address_parse(wrong[i], true, &before, error, sizeof(error)), STATUS_INVALID, "accepted: '%s'", wrong[i]);
        cr_expect(strstr(error, "allowed: ") != NULL && before.port == 9, "%s: %s", wrong[i], error);
    }
    for (size_t length = 250; length < 590; length++) {
        memset(longest, 'h', length);
        strcpy(longest + length, ":1");
        cr_expect_eq(address_parse(longest, true, &address, error, sizeof(error)) == STATUS_OK, length <= 255, "%zu", length);
        snprintf(longest, sizeof(longest), "unix:/%0*d", (int)length - 190, 0);
        cr_expect_eq(address_check_listener(longest, error, sizeof(error)) == STATUS_OK, strlen(longest) - 5 <= 107, "%zu: %s", strlen(longest), error);
    }
}

Test(config, backend_of_the_command_line)
{
    static const char *const wrong[] = {"", ",", "a:1,", ",a:1", "a:1,,b:2", "a:1,a:1", "a:1 b:2", "a:1 weight=2"};
    struct config *config = config_create_default();
    char error[ERROR_BYTES] = "";

    cr_assert_eq(config_set_backend(config, BACKEND_SERVERS, "a:1, b:2 weight=5 ,[::1]:3", error, sizeof(error)), STATUS_OK, "%s", error);
    cr_expect_eq(config->backend.addresses_count, 3u);
    cr_expect_eq(config->backend.addresses[1].weight, 5u);
    cr_expect_str_eq(config->backend.addresses[2].host, "::1");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        error[0] = '\0';
        cr_expect_eq(config_set_backend(config, BACKEND_CLUSTER, wrong[i], error, sizeof(error)), STATUS_INVALID, "%s", wrong[i]);
        cr_expect(strstr(error, "allowed: ") != NULL && config->backend.addresses_count == 3 && config->backend.kind == BACKEND_SERVERS, "%s", error);
    }
    config_destroy(&config);
}

Test(config, option_name_that_does_not_exist_is_refused)
{
    static const char *const wrong[] = {"", ".", "cores", "cores.", "data", ".data", "cores.data.x", "core.data", "nosuch.key", "listeners.address"};
    struct config *config = config_create_default();
    char error[ERROR_BYTES];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        error[0] = '\0';
        cr_expect_eq(config_set_option(config, wrong[i], "1", error, sizeof(error)), STATUS_INVALID, "%s", wrong[i]);
        cr_expect(strncmp(error, "key '", 5) == 0 && strstr(error, "allowed: ") != NULL, "%s", error);
    }
    cr_expect_eq(config_set_option(config, "listeners.present", "auto", error, sizeof(error)), STATUS_INVALID, "there is no listener");
    config_destroy(&config);
}

Test(config, check_needs_a_listener_and_a_backend)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES] = "";

    cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_INVALID);
    cr_expect(strncmp(error, "key 'listeners': ", 17) == 0, "%s", error);
    cr_assert_eq(config_add_listener(config, "127.0.0.1:1", error, sizeof(error)), STATUS_OK);
    cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_INVALID);
    cr_expect(strncmp(error, "key 'backends': ", 16) == 0, "%s", error);
    config_destroy(&config);
}

Test(config, rules_across_keys)
{
    expect_rule("limits.client_output_hard=123MiB", "key 'limits.client_output_hard': 123MiB is less than limits.reply_max");
    expect_rule("limits.client_output_hard=124MiB", NULL);
    expect_rule("limits.client_output_soft=1GiB", "key 'limits.client_output_soft': 1GiB is more than limits.client_output_hard, which is 256MiB");
    expect_rule("limits.client_output_hard=130023423B", "key 'limits.client_output_hard': 130023423B is less than limits.reply_max"); /* one byte */
    expect_rule("limits.inline_bytes=1MiB limits.request_max=512KiB use_cases.max_value=1KiB", "key 'limits.inline_bytes'");
    expect_rule("limits.inline_bytes=1MiB limits.reply_max=512KiB use_cases.max_value=1KiB", "key 'limits.inline_bytes'");
    expect_rule("use_cases.max_value=121MiB", "key 'use_cases.max_value': 121MiB is more than limits.request_max, which is 120MiB");
    expect_rule("limits.reply_max=63MiB", "key 'use_cases.max_value': 64MiB is more than limits.reply_max, which is 63MiB");
    expect_rule("backends.reconnect_min=2s", "key 'backends.reconnect_min': 2s is more than backends.reconnect_max");
    expect_rule("backends.user=u", "key 'backends.user'");
    expect_rule("backends.user=u backends.password=p", NULL);
    expect_rule("backends.password=p", NULL);
    expect_rule("cores.wait=1ms", "key 'cores.wait': ");
    expect_rule("cores.wait_completions=4", "key 'cores.wait_completions': ");
    expect_rule("cores.wait_mode=fixed", "key 'cores.wait_mode': ");
    expect_rule("cores.wait_completions=4 cores.wait=1ms", "key 'cores.wait': ");
    expect_rule("cores.wait_mode=fixed cores.wait_completions=4 cores.wait=1ms", NULL);
    expect_rule("use_cases.name=web", "key 'use_cases.name'");
    expect_rule("use_cases.backend=other", "key 'use_cases.backend'");
    expect_rule("use_cases.backend=other backends.name=other", NULL);
    expect_rule("limits.rx_buffers_per_core=32768 limits.rx_buffer_bytes=64KiB", "key 'limits.rx_buffer_bytes': with limits.rx_buffers_per_core it takes 2GiB");
    expect_rule("limits.arena_bytes_per_core=135MiB", "key 'limits.arena_bytes_per_core': 135MiB is too small");
    expect_rule("limits.arena_bytes_per_core=136MiB", NULL);
    expect_rule("limits.arena_bytes_per_core=16MiB limits.request_max=4MiB limits.reply_max=4MiB use_cases.max_value=2MiB limits.client_output_hard=8MiB", NULL);
}

Test(config, rule_names_file_and_line_of_the_key_that_was_set)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES], text[1024];

    snprintf(text, sizeof(text), "%slimits:\n  inline_bytes: 10KiB\n  reply_max: 5KiB\n", example);
    cr_assert_eq(load(config, text, error), STATUS_OK, "%s", error);
    cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_INVALID);
    cr_expect(strncmp(error, "z.yaml:10: key 'limits.inline_bytes': 10KiB is more than limits.reply_max", 60) == 0, "%s", error);
    cr_assert_eq(config_set_option(config, "limits.inline_bytes", "6KiB", error, sizeof(error)), STATUS_OK);
    cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_INVALID);
    cr_expect(strncmp(error, "z.yaml:11: key 'limits.reply_max': 5KiB is less than limits.inline_bytes", 60) == 0, "%s", error);
    cr_assert_eq(config_set_option(config, "limits.inline_bytes", "5KiB", error, sizeof(error)), STATUS_OK);
    cr_assert_eq(config_set_option(config, "use_cases.max_value", "1KiB", error, sizeof(error)), STATUS_OK);
    cr_expect_eq(config_check(config, error, sizeof(error)), STATUS_OK, "%s", error);
    config_destroy(&config);
}

/* A configuration of these listeners, data cores and backend is accepted, or refused with a message that has `part`. */
static void expect_ports(const char *listeners, uint32_t cores, const char *backend, const char *part)
{
    struct config *config = config_create_default();
    char error[ERROR_BYTES], text[2048];

    snprintf(text, sizeof(text), "listeners: [%s]\ncores: {data: %u}\nbackends: [{name: b, %s}]\n", listeners, cores, backend);
    cr_assert_eq(load(config, text, error), STATUS_OK, "%s: %s", text, error);
    enum status status = config_check(config, error, sizeof(error));
    cr_expect_eq(status, part == NULL ? STATUS_OK : STATUS_INVALID, "%s: %s", text, error);
    if (part != NULL && status != STATUS_OK)
        cr_expect(strncmp(error, "z.yaml:1: key 'listeners.port_per_core': ", 41) == 0 && strstr(error, part) != NULL, "%s: %s", text, error);
    config_destroy(&config);
}

Test(config, ports_per_core_are_checked)
{
    static const char cluster[] = "cluster: [\"h:1\"]", servers[] = "servers: [\"h:1\"]";
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true}", 64, cluster, NULL);
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true, present: cluster}", 4, cluster, NULL);
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true, present: standalone}", 4, cluster, "is not presented as a cluster");
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true}", 4, servers, "is not presented as a cluster");
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true, present: cluster}", 4, servers, "is not presented as a cluster");
    expect_ports("{address: \"unix:/run/z.sock\", port_per_core: true}", 4, cluster, "has no ports");
    /* The last port. */
    expect_ports("{address: \"127.0.0.1:65531\", port_per_core: true}", 4, cluster, NULL);
    expect_ports("{address: \"127.0.0.1:65532\", port_per_core: true}", 4, cluster, "would have port 65536");
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true, announce: \"g:65532\"}", 4, cluster, "would have port 65536");
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true, announce: \"g:65531\"}", 4, cluster, NULL);
    /* No two listeners on one port. */
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true}, {address: \"127.0.0.1:6384\"}", 4, cluster, "overlap with '127.0.0.1:6384'");
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true}, {address: \"127.0.0.1:6385\"}", 4, cluster, NULL);
    expect_ports("{address: \"127.0.0.1:6384\"}, {address: \"127.0.0.1:6380\", port_per_core: true}", 4, cluster, "overlap");
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true}, {address: \"127.0.0.1:6383\", port_per_core: true}", 4, cluster, "overlap");
    expect_ports("{address: \"127.0.0.1:6380\", port_per_core: true}, {address: \"[::1]:6383\", port_per_core: true}, {address: \"unix:/run/z.sock\"}", 4, cluster, NULL);
    expect_ports("{address: \"0.0.0.0:6380\", port_per_core: true}, {address: \"127.0.0.1:6383\"}", 4, cluster, "overlap");
    /* 5 times 64 nodes. */
    expect_ports("{address: \"h:1000\", port_per_core: true}, {address: \"h:2000\", port_per_core: true}, {address: \"h:3000\", port_per_core: true}, {address: \"h:4000\", port_per_core: true}", 64,
        cluster, NULL);
    expect_ports("{address: \"h:1000\", port_per_core: true}, {address: \"h:2000\", port_per_core: true}, {address: \"h:3000\", port_per_core: true}, {address: \"h:4000\", port_per_core: true}, "
                 "{address: \"h:5000\", port_per_core: true}",
        64, cluster, "320 nodes would be listed; allowed: at most 256");
}
