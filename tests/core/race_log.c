/*
 * One writer and one reader of a log ring at full speed, for ThreadSanitizer: every line comes out whole and in order, or is counted as dropped. Also changes the level from a
 * third thread. Exit status 0: passed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"

enum { LINES_COUNT = 50000, RING_BYTES = 4096, LINE_BYTES_MAX = 512, PADDING_MAX = 40 };

struct race {
    struct log_ring *ring;
    _Atomic bool is_written;
};

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "race_log: %s\n", what);
    exit(1);
}

static void *write_lines(void *context)
{
    struct race *race = context;
    for (unsigned number = 0; number < LINES_COUNT; number++)
        log_write(race->ring, LOG_ERROR, 0, "race", "number=%u padding=%0*u", number, (int)(number % PADDING_MAX) + 1, 0u);
    atomic_store_explicit(&race->is_written, true, memory_order_release);
    return NULL;
}

static void *change_level(void *context)
{
    struct race *race = context;
    /* Errors pass at every level, so the lines written do not depend on it. */
    for (int i = 0; !atomic_load_explicit(&race->is_written, memory_order_acquire); i++)
        log_set_level((enum log_level)(i % LOG_LEVEL_COUNT));
    return NULL;
}

static uint64_t verify_lines(FILE *lines)
{
    char line[LINE_BYTES_MAX];
    uint64_t lines_count = 0;
    long last = -1;
    while (fgets(line, sizeof(line), lines) != NULL) {
        unsigned number;
        require(sscanf(line, "ts=1970-01-01T00:00:00.000Z level=error core=5 event=race number=%u ", &number) == 1, "a line is not whole at its start");
        require((long)number > last, "a line is out of order");
        char expected[LINE_BYTES_MAX];
        snprintf(expected, sizeof(expected), " padding=%0*u\n", (int)(number % PADDING_MAX) + 1, 0u);
        require(strcmp(strstr(line, " padding="), expected) == 0, "a line is not whole at its end");
        last = (long)number;
        lines_count++;
    }
    return lines_count;
}

int main(void)
{
    struct race race = {.ring = log_ring_create(5, RING_BYTES)};
    int file = memfd_create("race", 0);
    require(file >= 0, "no file in memory");
    pthread_t writer, changer;
    require(pthread_create(&writer, NULL, write_lines, &race) == 0, "no thread");
    require(pthread_create(&changer, NULL, change_level, &race) == 0, "no thread");
    uint64_t dropped_count = 0;
    while (!atomic_load_explicit(&race.is_written, memory_order_acquire)) {
        log_ring_drain(race.ring, file);
        require(log_ring_dropped(race.ring) >= dropped_count, "the count of dropped lines went back");
        dropped_count = log_ring_dropped(race.ring);
    }
    pthread_join(writer, NULL);
    pthread_join(changer, NULL);
    log_ring_drain(race.ring, file);
    FILE *lines = fdopen(file, "r+");
    require(lines != NULL, "the file cannot be read");
    rewind(lines);
    uint64_t lines_count = verify_lines(lines);
    require(lines_count + log_ring_dropped(race.ring) == LINES_COUNT, "a line is neither there nor counted as dropped");
    printf("%llu lines, %llu dropped\n", (unsigned long long)lines_count, (unsigned long long)log_ring_dropped(race.ring));
    fclose(lines);
    log_ring_destroy(&race.ring);
    return 0;
}
