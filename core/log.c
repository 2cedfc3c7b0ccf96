/*
 * Log lines. A ring has one writer (its core) and one reader (the housekeeping core): a byte ring with two free-running indexes, `tail` written by the writer
 * and `head` by the reader. A line goes in whole or not at all.
 */
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/alloc.h"

enum {
    LINE_BYTES_MAX = 1024,
    RING_BYTES_MIN = 4 * 1024,
    RING_BYTES_MAX = 16 * 1024 * 1024,
    CACHE_LINE_BYTES = 64,
};

struct log_ring {
    _Alignas(CACHE_LINE_BYTES) _Atomic uint32_t tail; /* bytes ever written, mod 2^32 */
    _Atomic uint64_t dropped_count;                   /* written by the writer */
    _Alignas(CACHE_LINE_BYTES) _Atomic uint32_t head; /* bytes ever drained, mod 2^32 */
    _Alignas(CACHE_LINE_BYTES) uint32_t mask;         /* constant from here on */
    uint32_t core_id;
    uint8_t *bytes;
};

/* The level is of the process, as standard error is, so it is global: lines are written by code that has no other thing in common. Relaxed: a line more or
 * less around a change does not matter. */
static _Atomic int level_min = LOG_INFO;

static const char *const level_names[LOG_LEVEL_COUNT] = {
    [LOG_DEBUG] = "debug",
    [LOG_INFO] = "info",
    [LOG_NOTICE] = "notice",
    [LOG_WARNING] = "warning",
    [LOG_ERROR] = "error",
};

struct line {
    char text[LINE_BYTES_MAX];
    size_t length;
};

struct date {
    uint64_t year;
    uint32_t month; /* 1 .. 12 */
    uint32_t day;   /* 1 .. 31 */
};

/* Gregorian date of a day since 1970-01-01. gmtime_r is not used: it takes the time-zone lock of libc. */
static struct date date_of_day(uint64_t day)
{
    enum { DAYS_PER_400_YEARS = 146097, DAYS_PER_100_YEARS = 36524, DAYS_PER_4_YEARS = 1461, DAYS_PER_YEAR = 365 };
    static const uint16_t month_starts[12] = {0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337}; /* from 1 March */
    /* Count from 1 March of the year 0, so that the leap day is the last day of a year. */
    uint64_t days = day + 719468;
    uint64_t years = days / DAYS_PER_400_YEARS * 400;
    uint32_t rest = (uint32_t)(days % DAYS_PER_400_YEARS);
    uint32_t centuries = rest / DAYS_PER_100_YEARS;
    if (centuries == 4) /* the leap day at the end of the 400 years */
        centuries = 3;
    rest -= centuries * DAYS_PER_100_YEARS;
    years += centuries * UINT64_C(100) + rest / DAYS_PER_4_YEARS * 4;
    rest %= DAYS_PER_4_YEARS;
    uint32_t single_years = rest / DAYS_PER_YEAR;
    if (single_years == 4) /* the leap day at the end of 4 years */
        single_years = 3;
    rest -= single_years * DAYS_PER_YEAR;
    years += single_years;
    uint32_t month = 11;
    while (month_starts[month] > rest)
        month--;
    struct date date = {.year = years, .month = month + 3, .day = rest - month_starts[month] + 1};
    if (date.month > 12) {
        date.month -= 12;
        date.year++;
    }
    return date;
}

/* Appends formatted text; what does not fit is cut. One byte is kept for the line end. */
static void line_add_arguments(struct line *line, const char *format, va_list arguments)
{
    size_t room = sizeof(line->text) - 1 - line->length;
    int length = vsnprintf(line->text + line->length, room, format, arguments);
    if (length > 0)
        line->length += (size_t)length < room ? (size_t)length : room - 1;
}

static void ZG_PRINTF(2, 3) line_add(struct line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    line_add_arguments(line, format, arguments);
    va_end(arguments);
}

static void line_add_head(struct line *line, const struct log_ring *ring, enum log_level level, uint64_t time_ns, const char *event)
{
    uint64_t milliseconds = time_ns / 1000000;
    uint64_t seconds = milliseconds / 1000;
    uint32_t second_of_day = (uint32_t)(seconds % 86400);
    struct date date = date_of_day(seconds / 86400);
    line_add(line, "ts=%04llu-%02u-%02uT%02u:%02u:%02u.%03uZ level=%s core=", (unsigned long long)date.year, date.month, date.day, second_of_day / 3600,
        second_of_day / 60 % 60, second_of_day % 60, (unsigned)(milliseconds % 1000), level_names[level]);
    if (ring != NULL)
        line_add(line, "%u", ring->core_id);
    else
        line_add(line, "-");
    line_add(line, " event=%s", event);
}

/* A control character in an argument would break the line, or the terminal of whoever reads it. */
static void line_end(struct line *line)
{
    for (size_t i = 0; i < line->length; i++) {
        unsigned char byte = (unsigned char)line->text[i];
        if (byte < ' ' || byte == 0x7f)
            line->text[i] = '?';
    }
    line->text[line->length++] = '\n';
}

/* Writer side: the whole line, or nothing and a count. */
static void ring_append(struct log_ring *ring, const struct line *line)
{
    uint32_t length = (uint32_t)line->length;
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    /* Acquire: the reader has read what we are about to overwrite. */
    uint32_t used = tail - atomic_load_explicit(&ring->head, memory_order_acquire);
    if (length > ring->mask + 1 - used) {
        uint64_t dropped_count = atomic_load_explicit(&ring->dropped_count, memory_order_relaxed);
        atomic_store_explicit(&ring->dropped_count, dropped_count + 1, memory_order_relaxed);
        return;
    }
    uint32_t start = tail & ring->mask;
    uint32_t first = ring->mask + 1 - start;
    if (first > length)
        first = length;
    memcpy(ring->bytes + start, line->text, first);
    memcpy(ring->bytes, line->text + first, length - first);
    /* Release: the reader sees the bytes before the index. */
    atomic_store_explicit(&ring->tail, tail + length, memory_order_release);
}

struct log_ring *log_ring_create(uint32_t core_id, uint32_t bytes)
{
    ZG_CHECK(bytes >= RING_BYTES_MIN && bytes <= RING_BYTES_MAX && (bytes & (bytes - 1)) == 0);
    struct log_ring *ring = alloc_zeroed_aligned(sizeof(*ring), CACHE_LINE_BYTES);
    ring->mask = bytes - 1;
    ring->core_id = core_id;
    ring->bytes = alloc_zeroed(bytes);
    return ring;
}

void log_ring_destroy(struct log_ring **ring)
{
    if (*ring == NULL)
        return;
    alloc_free((*ring)->bytes);
    alloc_free(*ring);
    *ring = NULL;
}

void log_set_level(enum log_level level)
{
    ZG_CHECK((unsigned)level < LOG_LEVEL_COUNT);
    atomic_store_explicit(&level_min, (int)level, memory_order_relaxed);
}

bool log_is_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&level_min, memory_order_relaxed);
}

void log_write(struct log_ring *ring, enum log_level level, uint64_t time_ns, const char *event, const char *format, ...)
{
    ZG_CHECK((unsigned)level < LOG_LEVEL_COUNT);
    ZG_CHECK(event != NULL && format != NULL);
    if (!log_is_enabled(level))
        return;
    struct line line;
    line.length = 0;
    line_add_head(&line, ring, level, time_ns, event);
    if (format[0] != '\0') {
        line_add(&line, " ");
        va_list arguments;
        va_start(arguments, format);
        line_add_arguments(&line, format, arguments);
        va_end(arguments);
    }
    line_end(&line);
    if (ring != NULL) {
        ring_append(ring, &line);
        return;
    }
    /* Nobody can be told that standard error is gone. */
    ssize_t written = write(STDERR_FILENO, line.text, line.length);
    (void)written;
}

uint64_t log_ring_drain(struct log_ring *ring, int fd)
{
    uint64_t drained_bytes = 0;
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    /* Acquire: pairs with the writer's release. The end is read once, so that a busy writer cannot hold the reader here. */
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    while (head != tail) {
        uint32_t start = head & ring->mask;
        uint32_t length = tail - head;
        uint32_t first = ring->mask + 1 - start;
        if (first > length)
            first = length;
        struct iovec parts[2] = {{ring->bytes + start, first}, {ring->bytes, length - first}};
        ssize_t written = writev(fd, parts, length > first ? 2 : 1);
        if (written < 0 && errno == EINTR)
            continue;
        /* A sink that is full or gone: the rest stays in the ring, and what then finds no room is counted as dropped. */
        if (written <= 0)
            break;
        head += (uint32_t)written;
        drained_bytes += (uint64_t)written;
        atomic_store_explicit(&ring->head, head, memory_order_release);
    }
    return drained_bytes;
}

uint64_t log_ring_dropped(const struct log_ring *ring)
{
    return atomic_load_explicit(&ring->dropped_count, memory_order_relaxed);
}

bool log_level_parse(const char *text, enum log_level *level)
{
    ZG_CHECK(text != NULL && level != NULL);
    for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *level = (enum log_level)i;
            return true;
        }
    }
    return false;
}
