/*
 * The continuum: points on a ring of 2^32, each naming a server. A key goes to the first point at or behind its hash. Built once, then read by every core.
 * Sources: twemproxy 0.5.0 (its default distribution and hash), libketama; RFC 1321 (MD5, from nettle); Fowler, Noll, Vo (FNV-1a).
 *
 * Besides the sorted points there is an index by the upper bits of the hash with about one entry a point, so that a look-up takes a step or two however
 * many servers there are.
 */
#include "shard/ketama.h"

#include <math.h>
#include <nettle/md5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/check.h"

enum {
    SERVERS_MAX = 16384,
    POINTS_PER_SERVER = 160,
    POINTS_PER_HASH = 4,         /* one MD5 gives four points of 32 bits */
    PORT_WITHOUT_NAME = 11211,   /* memcached's, left out of the name for libmemcached's sake */
    NAME_BYTES = CONFIG_TEXT_MAX + 32,
};

struct point {
    uint32_t value;
    uint32_t server;
};

struct ketama {
    struct point *points; /* sorted by value, then server */
    uint32_t points_count;
    uint32_t servers_count;
    uint32_t shift;  /* hash >> shift is the place in `first` */
    uint32_t *first; /* the first point whose value is not below place << shift */
};

/* "host-index" or "host:port-index"; returns the length. */
static size_t point_name(char name[NAME_BYTES], const struct config_address *server, uint32_t index)
{
    int length;
    if (server->port == PORT_WITHOUT_NAME)
        length = snprintf(name, NAME_BYTES, "%s-%u", server->host, index);
    else
        length = snprintf(name, NAME_BYTES, "%s:%u-%u", server->host, server->port, index);
    ZG_CHECK(length > 0 && length < NAME_BYTES);
    return (size_t)length;
}

/* Single precision and this order of operations are twemproxy's: another rounding would place keys elsewhere. */
static uint32_t points_of_server(uint32_t weight, uint32_t total_weight, uint32_t servers_count)
{
    float share = (float)weight / (float)total_weight;
    return (uint32_t)(floorf((float)(share * POINTS_PER_SERVER / POINTS_PER_HASH * (float)servers_count + 0.0000000001)) * POINTS_PER_HASH);
}

static uint32_t add_points(struct point *points, const struct config_address *server, uint32_t server_index, uint32_t count)
{
    for (uint32_t i = 0; i < count / POINTS_PER_HASH; i++) {
        char name[NAME_BYTES];
        size_t length = point_name(name, server, i);
        uint8_t digest[MD5_DIGEST_SIZE];
        struct md5_ctx md5;
        md5_init(&md5);
        md5_update(&md5, length, (const uint8_t *)name);
        md5_digest(&md5, sizeof digest, digest);
        for (uint32_t part = 0; part < POINTS_PER_HASH; part++) {
            const uint8_t *bytes = digest + part * 4;
            points->value = (uint32_t)bytes[3] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[1] << 8 | bytes[0];
            points->server = server_index;
            points++;
        }
    }
    return count / POINTS_PER_HASH * POINTS_PER_HASH;
}

/* Of points with one value the server named first wins, as with the stable sort that twemproxy gets from glibc. */
static int compare_points(const void *left, const void *right)
{
    const struct point *a = left, *b = right;
    if (a->value != b->value)
        return a->value < b->value ? -1 : 1;
    return a->server < b->server ? -1 : a->server > b->server;
}

static void build_index(struct ketama *ketama)
{
    uint32_t bits = 1;
    while (bits < 24 && (UINT32_C(1) << bits) < ketama->points_count)
        bits++;
    ketama->shift = 32 - bits;
    ketama->first = alloc_zeroed(sizeof(uint32_t) << bits);
    uint32_t point = 0;
    for (uint32_t place = 0; place < UINT32_C(1) << bits; place++) {
        while (point < ketama->points_count && ketama->points[point].value >> ketama->shift < place)
            point++;
        ketama->first[place] = point;
    }
}

struct ketama *ketama_create(const struct config_address *servers, uint32_t count)
{
    ZG_CHECK(count >= 1 && count <= SERVERS_MAX);
    uint32_t total_weight = 0, points_max = 0;
    for (uint32_t i = 0; i < count; i++) {
        ZG_CHECK(servers[i].weight >= 1 && servers[i].weight <= 1000);
        total_weight += servers[i].weight;
    }
    for (uint32_t i = 0; i < count; i++)
        points_max += points_of_server(servers[i].weight, total_weight, count);

    struct ketama *ketama = alloc_zeroed(sizeof *ketama);
    ketama->servers_count = count;
    /* Rounding takes points away only; the heaviest server has an average share at least, so there is a point. */
    ZG_CHECK(points_max > 0);
    ketama->points = alloc_zeroed(points_max * sizeof *ketama->points);
    for (uint32_t i = 0; i < count; i++)
        ketama->points_count += add_points(ketama->points + ketama->points_count, &servers[i], i, points_of_server(servers[i].weight, total_weight, count));
    ZG_CHECK(ketama->points_count == points_max);
    qsort(ketama->points, ketama->points_count, sizeof *ketama->points, compare_points);
    build_index(ketama);
    return ketama;
}

struct ketama *ketama_copy(const struct ketama *ketama)
{
    struct ketama *copy = alloc_zeroed(sizeof *copy);
    *copy = *ketama;
    copy->points = alloc_zeroed(ketama->points_count * sizeof *copy->points);
    memcpy(copy->points, ketama->points, ketama->points_count * sizeof *copy->points);
    build_index(copy);
    return copy;
}

void ketama_destroy(struct ketama **ketama)
{
    if (!*ketama)
        return;
    alloc_free((*ketama)->points);
    alloc_free((*ketama)->first);
    alloc_free(*ketama);
    *ketama = NULL;
}

/* FNV-1a as twemproxy's fnv1a_64 computes it: the lower 32 bits of start value and prime, and bytes from 0x80 up taken as negative numbers. */
static uint32_t hash_key(const uint8_t *key, uint32_t length)
{
    uint32_t hash = 0x84222325;
    for (uint32_t i = 0; i < length; i++) {
        int32_t byte = (int8_t)key[i]; /* NOLINT(bugprone-signed-char-misuse): that is what it does */
        hash = (hash ^ (uint32_t)byte) * 0x1b3;
    }
    return hash;
}

uint32_t ketama_server(const struct ketama *ketama, const uint8_t *key, uint32_t length)
{
    if (ketama->servers_count == 1)
        return 0;
    /* An empty key is not hashed: its place is 0. */
    uint32_t hash = length > 0 ? hash_key(key, length) : 0;
    uint32_t point = ketama->first[hash >> ketama->shift];
    while (point < ketama->points_count && ketama->points[point].value < hash)
        point++;
    return ketama->points[point < ketama->points_count ? point : 0].server;
}
