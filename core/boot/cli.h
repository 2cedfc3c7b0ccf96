/*
 * The command line: fills a configuration, or answers a question (--version, --help, --print-config, --check) itself.
 */
#pragma once

#include "core/config.h"

enum cli_action {
    CLI_RUN,       /* the configuration is complete and checked */
    CLI_EXIT_OK,   /* the question is answered on standard output: exit status 0 */
    CLI_EXIT_ERROR /* what is wrong is on standard error: exit status 2 */
};

/* `config` comes from config_create_default and stays the caller's. argv is as main got it, with argv[argc] NULL; getopt may reorder it. May be called more than once. */
enum cli_action cli_parse(int argc, char **argv, struct config *config);
