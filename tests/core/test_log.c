#include "core/log.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TestSuite(log);

#define TIME_NS UINT64_C(1767323045678999999) /* 2026-01-02T03:04:05.678 */

/* Drains the ring into a file in memory and returns its text, NUL-terminated, in a static buffer. */
static const char *drained(struct log_ring *ring)
{
    static char text[65536];
    int file = memfd_create("log", 0);
    uint64_t bytes = log_ring_drain(ring, file);
    ssize_t got = pread(file, text, sizeof(text) - 1, 0);
    cr_assert_eq((uint64_t)got, bytes);
    text[got] = '\0';
    close(file);
    return text;
}

Test(log, line_in_a_ring_comes_out_as_logfmt)
{
    struct log_ring *ring = log_ring_create(3, 4096);
    log_write(ring, LOG_INFO, TIME_NS, "link_connected", "node=%s port=%d", "10.0.0.1", 6379);
    log_write(ring, LOG_ERROR, TIME_NS, "stopped", "%s", "");
    log_write(ring, LOG_WARNING, TIME_NS, "plain", ""
                                                   "%s",
        "a=1");
    cr_assert_str_eq(drained(ring), "ts=2026-01-02T03:04:05.678Z level=info core=3 event=link_connected node=10.0.0.1 port=6379\n"
                                    "ts=2026-01-02T03:04:05.678Z level=error core=3 event=stopped \n"
                                    "ts=2026-01-02T03:04:05.678Z level=warning core=3 event=plain a=1\n");
    cr_assert_str_eq(drained(ring), "");
    cr_assert_eq(log_ring_dropped(ring), 0);
    log_ring_destroy(&ring);
    cr_assert_null(ring);
    log_ring_destroy(&ring);
}

static void write_bare(struct log_ring *ring, uint64_t time_ns, const char *format, ...)
{
    /* An empty format is what is tested; the compiler warns of a literal one. */
    log_write(ring, LOG_NOTICE, time_ns, "e", format, 0);
}

Test(log, line_without_arguments_has_no_trailing_space)
{
    struct log_ring *ring = log_ring_create(0, 4096);
    write_bare(ring, 0, "");
    cr_assert_str_eq(drained(ring), "ts=1970-01-01T00:00:00.000Z level=notice core=0 event=e\n");
    log_ring_destroy(&ring);
}

Test(log, dates_are_those_of_the_gregorian_calendar)
{
    struct log_ring *ring = log_ring_create(0, 4096);
    /* Every third day or so over 500 years, and the days around leap days, against libc. */
    for (uint64_t day = 0; day < 365 * 500; day += (day % 1461 > 50 && day % 1461 < 70) ? 1 : 3) {
        time_t seconds = (time_t)(day * 86400 + day % 86400);
        struct tm tm;
        char expected[80];
        gmtime_r(&seconds, &tm);
        strftime(expected, sizeof(expected), "ts=%Y-%m-%dT%H:%M:%S.000Z level=notice core=0 event=e\n", &tm);
        write_bare(ring, (uint64_t)seconds * 1000000000, "");
        cr_assert_str_eq(drained(ring), expected);
    }
    write_bare(ring, UINT64_MAX, "");
    cr_assert_str_eq(drained(ring), "ts=2554-07-21T23:34:33.709Z level=notice core=0 event=e\n");
    log_ring_destroy(&ring);
}

Test(log, level_below_the_minimum_is_not_written)
{
    struct log_ring *ring = log_ring_create(0, 4096);
    log_write(ring, LOG_DEBUG, 0, "hidden", "a=%d", 1);
    cr_assert_str_eq(drained(ring), "");
    log_set_level(LOG_DEBUG);
    cr_assert(log_is_enabled(LOG_DEBUG));
    log_write(ring, LOG_DEBUG, 0, "shown", "a=%d", 1);
    cr_assert_not_null(strstr(drained(ring), "event=shown a=1\n"));
    log_set_level(LOG_ERROR);
    cr_assert(!log_is_enabled(LOG_WARNING) && log_is_enabled(LOG_ERROR));
    log_write(ring, LOG_WARNING, 0, "hidden", "a=%d", 1);
    cr_assert_str_eq(drained(ring), "");
    log_ring_destroy(&ring);
}

Test(log, levels_are_parsed_by_their_names_alone)
{
    static const char *const names[LOG_LEVEL_COUNT] = {"debug", "info", "notice", "warning", "error"};
    enum log_level level;
    for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
        cr_assert(log_level_parse(names[i], &level));
        cr_assert_eq((int)level, i);
    }
    static const char *const wrong[] = {"", "warn", "INFO", "info ", " info", "inf", "infos", "0"};
    level = LOG_NOTICE;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        cr_assert_not(log_level_parse(wrong[i], &level), "%s", wrong[i]);
        cr_assert_eq(level, LOG_NOTICE);
    }
}

Test(log, full_ring_drops_whole_lines_and_counts_them)
{
    struct log_ring *ring = log_ring_create(1, 4096);
    uint64_t written_count = 0;
    while (log_ring_dropped(ring) < 5 && written_count < 1000) {
        log_write(ring, LOG_INFO, TIME_NS, "fill", "n=%04u", (unsigned)written_count);
        written_count++;
    }
    cr_assert_eq(log_ring_dropped(ring), 5);
    const char *text = drained(ring);
    uint64_t lines_count = 0;
    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
        char expected[128];
        snprintf(expected, sizeof(expected), "ts=2026-01-02T03:04:05.678Z level=info core=1 event=fill n=%04u\n", (unsigned)lines_count);
        cr_assert_eq(strncmp(at, expected, strlen(expected)), 0);
        lines_count++;
    }
    cr_assert_eq(lines_count, written_count - 5);
    cr_assert_leq(strlen(text), 4096);
    cr_assert_gt(strlen(text), 4096 - 100);
    log_write(ring, LOG_INFO, TIME_NS, "again", "n=%d", 1);
    cr_assert_not_null(strstr(drained(ring), "event=again n=1\n"));
    cr_assert_eq(log_ring_dropped(ring), 5);
    log_ring_destroy(&ring);
}

/* Writes a line of exactly `bytes` bytes, 70 .. 1,023. */
static void write_line_of(struct log_ring *ring, size_t bytes)
{
    static const char head[] = "ts=2026-01-02T03:04:05.678Z level=info core=1 event=exact p=";
    log_write(ring, LOG_INFO, TIME_NS, "exact", "p=%0*u", (int)(bytes - sizeof(head)), 0u);
}

Test(log, line_fits_to_the_last_byte_of_the_ring_and_no_further)
{
    struct log_ring *ring = log_ring_create(1, 4096);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 4; i++)
            write_line_of(ring, 1000);
        uint64_t dropped_count = log_ring_dropped(ring);
        write_line_of(ring, 97);
        cr_assert_eq(log_ring_dropped(ring), dropped_count + 1);
        write_line_of(ring, 96);
        cr_assert_eq(log_ring_dropped(ring), dropped_count + 1);
        const char *text = drained(ring);
        cr_assert_eq(strlen(text), 4096);
        for (int i = 1; i <= 4; i++)
            cr_assert_eq(text[i * 1000 - 1], '\n');
        cr_assert_eq(text[4095], '\n');
    }
    log_ring_destroy(&ring);
}

Test(log, lines_that_wrap_around_the_end_come_out_whole)
{
    struct log_ring *ring = log_ring_create(1, 4096);
    char padding[200];
    memset(padding, 'p', sizeof(padding));
    for (int i = 0; i < 2000; i++) {
        char expected[400];
        log_write(ring, LOG_INFO, TIME_NS, "wrap", "i=%d p=%.*s", i, i % 200, padding);
        snprintf(expected, sizeof(expected), "ts=2026-01-02T03:04:05.678Z level=info core=1 event=wrap i=%d p=%.*s\n", i, i % 200, padding);
        cr_assert_str_eq(drained(ring), expected);
    }
    log_ring_destroy(&ring);
}

Test(log, long_line_is_cut_and_control_characters_are_replaced)
{
    struct log_ring *ring = log_ring_create(1, 4096);
    char huge[5000];
    memset(huge, 'h', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    log_write(ring, LOG_INFO, TIME_NS, "long", "v=%s", huge);
    const char *text = drained(ring);
    cr_assert_eq(strchr(text, '\n') - text, (long)strlen(text) - 1);
    cr_assert(strlen(text) > 1000 && strlen(text) <= 1024);
    log_write(ring, LOG_INFO, TIME_NS, "evil", "v=%s", "a\nts=0 level=error\r\x1b[31m\x7f\xc3\xa9");
    cr_assert_not_null(strstr(drained(ring), "event=evil v=a?ts=0 level=error??[31m?\xc3\xa9\n"));
    log_ring_destroy(&ring);
}

Test(log, sink_that_takes_only_a_part_gets_the_rest_later)
{
    struct log_ring *ring = log_ring_create(1, 1u << 20);
    int ends[2];
    cr_assert_eq(pipe2(ends, O_NONBLOCK), 0);
    cr_assert_geq(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
    enum { LINES = 1000 };
    for (unsigned i = 0; i < LINES; i++)
        log_write(ring, LOG_INFO, TIME_NS, "part", "i=%06u", i);
    static char text[1u << 18];
    size_t length = 0;
    for (int round = 0; round < 1000; round++) {
        uint64_t drained_bytes = log_ring_drain(ring, ends[1]);
        ssize_t got = read(ends[0], text + length, sizeof(text) - length);
        if (got <= 0)
            break;
        cr_assert_eq((uint64_t)got, drained_bytes);
        length += (size_t)got;
    }
    unsigned lines_count = 0;
    for (size_t at = 0; at < length; lines_count++) {
        char expected[128];
        int bytes = snprintf(expected, sizeof(expected), "ts=2026-01-02T03:04:05.678Z level=info core=1 event=part i=%06u\n", lines_count);
        cr_assert_eq(memcmp(text + at, expected, (size_t)bytes), 0);
        at += (size_t)bytes;
    }
    cr_assert_eq(lines_count, LINES);
    /* A sink that is gone takes nothing and loses nothing. */
    log_write(ring, LOG_INFO, TIME_NS, "kept", "a=%d", 1);
    cr_assert_eq(log_ring_drain(ring, -1), 0);
    cr_assert_not_null(strstr(drained(ring), "event=kept a=1\n"));
    close(ends[0]);
    close(ends[1]);
    log_ring_destroy(&ring);
}

Test(log, line_without_a_ring_goes_to_standard_error_at_once)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    int saved = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    log_write(NULL, LOG_NOTICE, TIME_NS, "boot", "cores=%u", 4u);
    dup2(saved, STDERR_FILENO);
    char text[256];
    ssize_t got = read(ends[0], text, sizeof(text) - 1);
    cr_assert_gt(got, 0);
    text[got] = '\0';
    cr_assert_str_eq(text, "ts=2026-01-02T03:04:05.678Z level=notice core=- event=boot cores=4\n");
    close(saved);
    close(ends[0]);
    close(ends[1]);
}

enum { RACE_LINES = 50000 };

static void *write_lines(void *context)
{
    for (unsigned i = 0; i < RACE_LINES; i++)
        log_write(context, LOG_INFO, TIME_NS, "race", "i=%u x=%.*s", i, (int)(i % 60), "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
    return NULL;
}

Test(log, writer_and_reader_at_once_lose_only_what_is_counted)
{
    struct log_ring *ring = log_ring_create(1, 4096);
    int file = memfd_create("race", 0);
    pthread_t writer;
    cr_assert_eq(pthread_create(&writer, NULL, write_lines, ring), 0);
    uint64_t drained_bytes = 0;
    for (int i = 0; i < 20000; i++)
        drained_bytes += log_ring_drain(ring, file);
    pthread_join(writer, NULL);
    drained_bytes += log_ring_drain(ring, file);
    FILE *lines = fdopen(file, "r+");
    rewind(lines);
    char line[512];
    uint64_t lines_count = 0, bytes = 0;
    long last = -1;
    while (fgets(line, sizeof(line), lines) != NULL) {
        unsigned number;
        cr_assert_eq(sscanf(line, "ts=2026-01-02T03:04:05.678Z level=info core=1 event=race i=%u x=", &number), 1);
        cr_assert_gt((long)number, last);
        cr_assert_eq(strlen(strstr(line, " x=")) - 4, number % 60);
        last = (long)number;
        lines_count++;
        bytes += strlen(line);
    }
    cr_assert_eq(bytes, drained_bytes);
    cr_assert_eq(lines_count + log_ring_dropped(ring), RACE_LINES);
    fclose(lines);
    log_ring_destroy(&ring);
}

Test(log, ring_of_a_size_that_is_no_power_of_two_aborts, .signal = SIGABRT)
{
    (void)log_ring_create(0, 5000);
}

Test(log, ring_that_is_too_small_aborts, .signal = SIGABRT)
{
    (void)log_ring_create(0, 2048);
}
