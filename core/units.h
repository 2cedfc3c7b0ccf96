/*
 * Sizes and times as users write them: "64MiB", "500ms".
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "0", "512B", "64KiB", "1MiB", "2GiB" (also KB, MB, GB as powers of 1,000) to bytes; false where the text is none of these or
 * overflows; *bytes is then untouched. */
bool units_parse_bytes(const char *text, uint64_t *bytes);
/* "0us", "250ns", "5us", "10ms", "3s", "2m", "1h" to nanoseconds. A bare number other than 0 is refused: units are carried. Errors as
 * above. */
bool units_parse_time(const char *text, uint64_t *ns);
/* The shortest exact form, which parses back to the same value ("0" for 0); of equal length, the binary and the larger unit. text_bytes >= UNITS_TEXT_MAX
 * always suffices; a buffer that is too small for the text is a bug. */
enum { UNITS_TEXT_MAX = 24 };
void units_format_bytes(uint64_t bytes, char *text, size_t text_bytes);
void units_format_time(uint64_t ns, char *text, size_t text_bytes);
