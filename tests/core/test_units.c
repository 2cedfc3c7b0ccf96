#include "core/units.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/rng.h"

TestSuite(units);

struct example {
    const char *text;
    uint64_t value;
};

Test(units, sizes_in_every_unit_are_parsed)
{
    static const struct example examples[] = {
        {"0", 0},
        {"0B", 0},
        {"0GiB", 0},
        {"000", 0},
        {"512B", 512},
        {"64KiB", 65536},
        {"1MiB", 1048576},
        {"2GiB", UINT64_C(2147483648)},
        {"3KB", 3000},
        {"4MB", 4000000},
        {"5GB", UINT64_C(5000000000)},
        {"007B", 7},
        {"18446744073709551615B", UINT64_MAX},
        {"17179869183GiB", UINT64_MAX - ((UINT64_C(1) << 30) - 1)},
    };
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        uint64_t bytes = 1;
        cr_assert(units_parse_bytes(examples[i].text, &bytes), "%s", examples[i].text);
        cr_assert_eq(bytes, examples[i].value, "%s", examples[i].text);
    }
}

Test(units, texts_that_are_no_size_are_refused_and_change_nothing)
{
    static const char *const texts[] = {
        "",
        " ",
        "B",
        "KiB",
        "512",
        "1",
        "00001",
        "-1B",
        "+1B",
        " 1B",
        "1B ",
        "1 B",
        "1.5MiB",
        "1,000B",
        "64kib",
        "64KIB",
        "64K",
        "64Ki",
        "64KiBB",
        "1TiB",
        "10ms",
        "0x10B",
        "1e3B",
        "1B\n",
        "18446744073709551616B",
        "18446744073709551616",
        "99999999999999999999999999B",
        "17179869184GiB",
        "18446744073709552KB",
        "\xc2\xb2\x42",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint64_t bytes = 77;
        cr_assert_not(units_parse_bytes(texts[i], &bytes), "\"%s\"", texts[i]);
        cr_assert_eq(bytes, 77);
    }
}

Test(units, times_in_every_unit_are_parsed)
{
    static const struct example examples[] = {
        {"0", 0},
        {"0us", 0},
        {"250ns", 250},
        {"5us", 5000},
        {"10ms", 10000000},
        {"3s", UINT64_C(3000000000)},
        {"2m", UINT64_C(120000000000)},
        {"1h", UINT64_C(3600000000000)},
        {"18446744073709551615ns", UINT64_MAX},
        {"5124095h", UINT64_C(5124095) * 3600 * 1000000000},
    };
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        uint64_t ns = 1;
        cr_assert(units_parse_time(examples[i].text, &ns), "%s", examples[i].text);
        cr_assert_eq(ns, examples[i].value, "%s", examples[i].text);
    }
}

Test(units, texts_that_are_no_time_are_refused_and_change_nothing)
{
    static const char *const texts[] = {
        "",
        "ns",
        "5",
        "1000",
        "-1s",
        "+1s",
        "1 s",
        " 1s",
        "1s ",
        "1.5s",
        "1S",
        "1MS",
        "1min",
        "1hour",
        "1d",
        "1msec",
        "1h30m",
        "64KiB",
        "5124096h",
        "18446744073709551616ns",
        "18446744074s",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint64_t ns = 77;
        cr_assert_not(units_parse_time(texts[i], &ns), "\"%s\"", texts[i]);
        cr_assert_eq(ns, 77);
    }
}

Test(units, formatted_text_is_the_shortest_exact_form)
{
    static const struct example sizes[] = {
        {"0", 0},
        {"1B", 1},
        {"1023B", 1023},
        {"1KiB", 1024},
        {"1KB", 1000},
        {"1024KB", 1024000},
        {"10KiB", 10240},
        {"64MiB", UINT64_C(64) << 20},
        {"1536MiB", UINT64_C(1536) << 20},
        {"1GB", 1000000000},
        {"17179869183GiB", UINT64_C(17179869183) << 30},
        {"18446744073709551615B", UINT64_MAX},
    };
    static const struct example times[] = {
        {"0", 0},
        {"1ns", 1},
        {"1500us", 1500000},
        {"500ms", 500000000},
        {"90s", UINT64_C(90000000000)},
        {"1m", UINT64_C(60000000000)},
        {"1h", UINT64_C(3600000000000)},
        {"18446744073709551615ns", UINT64_MAX},
    };
    char text[UNITS_TEXT_MAX];
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        units_format_bytes(sizes[i].value, text, sizeof(text));
        cr_assert_str_eq(text, sizes[i].text);
    }
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        units_format_time(times[i].value, text, sizeof(text));
        cr_assert_str_eq(text, times[i].text);
    }
}

Test(units, formatted_random_values_parse_back_to_themselves)
{
    struct rng rng = {.state = 3};
    char text[UNITS_TEXT_MAX];
    for (int i = 0; i < 20000; i++) {
        uint64_t value = rng_next(&rng) >> rng_below(&rng, 64);
        if (i % 2 == 0)
            value -= value % (i % 4 == 0 ? 1000000 : 1048576);
        uint64_t parsed = ~value;
        units_format_bytes(value, text, sizeof(text));
        cr_assert(units_parse_bytes(text, &parsed) && parsed == value, "%s", text);
        parsed = ~value;
        units_format_time(value, text, sizeof(text));
        cr_assert(units_parse_time(text, &parsed) && parsed == value, "%s", text);
    }
}

Test(units, buffer_of_exactly_the_text_is_enough)
{
    char text[5];
    units_format_bytes(1024, text, sizeof(text));
    cr_assert_str_eq(text, "1KiB");
}

Test(units, buffer_that_would_cut_the_text_aborts, .signal = SIGABRT)
{
    char text[4];
    units_format_bytes(1024, text, sizeof(text));
}
