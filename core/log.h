/*
 * Log lines (logfmt). A core writes into a ring of its own (no system call, no lock; full means dropped and counted); the housekeeping core drains all
 * rings to the sink. Keys, values and secrets of clients are never logged. Without a ring (before the cores run) a line
 * is written at once.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/check.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARNING, LOG_ERROR, LOG_LEVEL_COUNT };

struct log_ring; /* one writer (the core), one reader (the housekeeper) */

/* bytes: a power of two, 4 KiB .. 16 MiB. */
struct log_ring *log_ring_create(uint32_t core_id, uint32_t bytes);
void log_ring_destroy(struct log_ring **ring);

/* Lines below this level are not formatted. Any thread may call. */
void log_set_level(enum log_level level);
bool log_is_enabled(enum log_level level);

/* Writes "ts=2026-01-02T03:04:05.678Z level=... core=N event=<event> <formatted>\n" into the ring; `format` gives further key=value pairs ("" for none; a value
 * with spaces is quoted by the caller). Control characters become '?'; a line above 1,023 bytes is cut there. With ring NULL it is written to standard error by one write, core=-. `time_ns` is the wall clock (CLOCK_REALTIME). */
void log_write(struct log_ring *ring, enum log_level level, uint64_t time_ns, const char *event, const char *format, ...) ZG_PRINTF(5, 6);

/* Writes what is in the ring to descriptor `fd`; returns bytes written. Where `fd` takes less (full, gone) the rest stays for the next call. Reader side only. */
uint64_t log_ring_drain(struct log_ring *ring, int fd);

uint64_t log_ring_dropped(const struct log_ring *ring);

/* "debug" ... "error"; false where the text is none of them. */
bool log_level_parse(const char *text, enum log_level *level);
