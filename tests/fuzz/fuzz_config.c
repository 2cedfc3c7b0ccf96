/*
 * Any bytes as a configuration: refused with a message that names the place, or accepted, and then every value is in its range.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/config.h"
#include "core/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config *config = config_create_default();
    char error[512] = "";

    if (config_load_text(config, "fuzz", (const char *)data, size, error, sizeof(error)) != STATUS_OK) {
        ZG_CHECK(strncmp(error, "fuzz:", 5) == 0 && strlen(error) < sizeof(error));
    } else {
        ZG_CHECK(error[0] == '\0');
        ZG_CHECK(config->listeners_count <= CONFIG_LISTENERS_MAX && config->backend.addresses_count <= CONFIG_ADDRESSES_MAX);
        ZG_CHECK(config->cores.cpus_count <= CONFIG_CPUS_MAX && config->cores.data >= 1);
        ZG_CHECK(strcmp(config->use_case.name, "default") == 0);
        for (size_t i = 0; i < OPTION_COUNT; i++)
            ZG_CHECK(option_is_in_range(&options_table[i], option_entry(config, options_table[i].section)));
        /* Rules across keys may still refuse it, but then say which. */
        if (config_check(config, error, sizeof(error)) != STATUS_OK)
            ZG_CHECK(strstr(error, "key '") != NULL && strstr(error, "allowed: ") != NULL);
    }
    config_destroy(&config);
    return 0;
}
