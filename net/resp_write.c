/*
 * Owns the writer's buffer, which doubles; runs on whichever core owns the writer. Lengths and integers are formatted by hand, since a printf
 * a header would cost more than the rest of a reply.
 */
#include "net/resp_write.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "net/resp_scan.h"

enum {
    CAPACITY_START = 256,
    CAPACITY_MAX = 1 << 30,
    ERROR_TEXT_BYTES = 1024,
    NUMBER_BYTES_MAX = 20, /* -9223372036854775808 */
};

void resp_writer_init(struct resp_writer *writer, uint8_t protocol)
{
    ZG_CHECK(protocol == 2 || protocol == 3);
    *writer = (struct resp_writer){.protocol = protocol};
}

void resp_writer_fini(struct resp_writer *writer)
{
    alloc_free(writer->data);
    *writer = (struct resp_writer){0};
}

void resp_writer_reset(struct resp_writer *writer, uint8_t protocol)
{
    ZG_CHECK(protocol == 2 || protocol == 3);
    writer->length = 0;
    writer->protocol = protocol;
}

/* Makes room for `bytes` more and returns where they go. */
static uint8_t *make_room(struct resp_writer *writer, size_t bytes)
{
    ZG_CHECK(bytes <= CAPACITY_MAX && writer->length + bytes <= CAPACITY_MAX);
    uint32_t wanted = writer->length + (uint32_t)bytes;
    if (wanted > writer->capacity) {
        uint32_t capacity = writer->capacity > 0 ? writer->capacity : CAPACITY_START;
        while (capacity < wanted)
            capacity *= 2;
        writer->data = alloc_resize(writer->data, capacity);
        writer->capacity = capacity;
    }
    return writer->data + writer->length;
}

void resp_write_raw(struct resp_writer *writer, const void *bytes, size_t length)
{
    if (length == 0)
        return;
    memcpy(make_room(writer, length), bytes, length);
    writer->length += (uint32_t)length;
}

/* [type][number] CR LF */
static void write_header(struct resp_writer *writer, char type, int64_t value)
{
    char digits[NUMBER_BYTES_MAX];
    uint32_t count = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[NUMBER_BYTES_MAX - ++count] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        digits[NUMBER_BYTES_MAX - ++count] = '-';
    uint8_t *at = make_room(writer, count + 3);
    at[0] = (uint8_t)type;
    memcpy(at + 1, digits + NUMBER_BYTES_MAX - count, count);
    memcpy(at + 1 + count, "\r\n", 2);
    writer->length += count + 3;
}

/* [type]text CR LF, where a line end within the text becomes a space, since it would end the reply. */
static void write_line(struct resp_writer *writer, char type, const char *text, size_t length)
{
    uint8_t *at = make_room(writer, length + 3);
    *at++ = (uint8_t)type;
    for (size_t i = 0; i < length; i++)
        *at++ = text[i] == '\r' || text[i] == '\n' ? ' ' : (uint8_t)text[i];
    memcpy(at, "\r\n", 2);
    writer->length += (uint32_t)length + 3;
}

void resp_write_simple(struct resp_writer *writer, const char *text)
{
    write_line(writer, '+', text, strlen(text));
}

void resp_write_error(struct resp_writer *writer, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ZG_CHECK(length >= 0);
    write_line(writer, '-', text, strlen(text));
}

void resp_write_integer(struct resp_writer *writer, int64_t value)
{
    write_header(writer, ':', value);
}

void resp_write_bulk(struct resp_writer *writer, const void *bytes, size_t length)
{
    ZG_CHECK(length <= CAPACITY_MAX);
    write_header(writer, '$', (int64_t)length);
    resp_write_raw(writer, bytes, length);
    resp_write_raw(writer, "\r\n", 2);
}

void resp_write_text(struct resp_writer *writer, const char *text)
{
    resp_write_bulk(writer, text, strlen(text));
}

void resp_write_bulk_format(struct resp_writer *writer, const char *format, ...)
{
    va_list args, measured;
    va_start(args, format);
    va_copy(measured, args);
    int length = vsnprintf(NULL, 0, format, measured);
    va_end(measured);
    ZG_CHECK(length >= 0);
    write_header(writer, '$', length);
    /* vsnprintf ends the text with NUL, on which the line end is then written. */
    vsnprintf((char *)make_room(writer, (size_t)length + 2), (size_t)length + 1, format, args);
    va_end(args);
    writer->length += (uint32_t)length;
    resp_write_raw(writer, "\r\n", 2);
}

void resp_write_verbatim(struct resp_writer *writer, const void *bytes, size_t length)
{
    if (writer->protocol == 2) {
        resp_write_bulk(writer, bytes, length);
        return;
    }
    ZG_CHECK(length <= CAPACITY_MAX);
    write_header(writer, '=', (int64_t)length + 4);
    resp_write_raw(writer, "txt:", 4);
    resp_write_raw(writer, bytes, length);
    resp_write_raw(writer, "\r\n", 2);
}

void resp_write_null(struct resp_writer *writer)
{
    if (writer->protocol == 2)
        write_header(writer, '$', -1);
    else
        write_line(writer, '_', "", 0);
}

void resp_write_null_array(struct resp_writer *writer)
{
    if (writer->protocol == 2)
        write_header(writer, '*', -1);
    else
        write_line(writer, '_', "", 0);
}

void resp_write_array(struct resp_writer *writer, uint32_t elements)
{
    write_header(writer, '*', elements);
}

void resp_write_map(struct resp_writer *writer, uint32_t pairs)
{
    if (writer->protocol == 2)
        write_header(writer, '*', 2 * (int64_t)pairs);
    else
        write_header(writer, '%', pairs);
}

void resp_write_set(struct resp_writer *writer, uint32_t elements)
{
    write_header(writer, writer->protocol == 2 ? '*' : '~', elements);
}

void resp_write_push(struct resp_writer *writer, uint32_t elements)
{
    write_header(writer, writer->protocol == 2 ? '*' : '>', elements);
}

void resp_write_bool(struct resp_writer *writer, bool value)
{
    if (writer->protocol == 2)
        write_header(writer, ':', value);
    else
        write_line(writer, '#', value ? "t" : "f", 1);
}

void resp_write_double(struct resp_writer *writer, double value)
{
    char text[40];
    if (isnan(value))
        memcpy(text, "nan", 4);
    else if (isinf(value))
        memcpy(text, value > 0 ? "inf" : "-inf", value > 0 ? 4 : 5);
    else
        snprintf(text, sizeof(text), "%.17g", value);
    if (writer->protocol == 2)
        resp_write_text(writer, text);
    else
        write_line(writer, ',', text, strlen(text));
}

void resp_write_command(struct resp_writer *writer, const struct resp_command_scanner *scanner, const uint8_t *data)
{
    write_header(writer, '*', scanner->args_count);
    for (uint32_t i = 0; i < scanner->args_count; i++)
        resp_write_bulk(writer, resp_arg_bytes(scanner, data, i), scanner->args[i].length);
}

uint32_t resp_status_line(uint8_t line[static RESP_STATUS_LINE_MAX], enum status status)
{
    const char *text = status_resp_text(status);
    ZG_CHECK(text != NULL);
    size_t length = strlen(text);
    ZG_CHECK(length + 3 <= RESP_STATUS_LINE_MAX);
    line[0] = '-';
    memcpy(line + 1, text, length);
    memcpy(line + 1 + length, "\r\n", 2);
    return (uint32_t)length + 3;
}
