/*
 * Immutable data that the housekeeping core publishes and data cores read: topology, owner table, configuration. A core adopts the newest
 * by message and acknowledges; what every core has left behind is destroyed by the housekeeping core. The acknowledgements are the grace
 * period.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SNAPSHOT_PENDING_MAX = 8 }; /* versions that some core may still read; publishing more waits */

typedef void (*snapshot_destroy_fn)(const void *data);

struct snapshot_version {
    const void *data;
    uint64_t epoch;
};

/* Owned by the housekeeping core. */
struct snapshot_publisher {
    struct snapshot_version versions[SNAPSHOT_PENDING_MAX];
    uint32_t versions_count;
    uint32_t cores_count;
    uint64_t *acked_epochs; /* per core */
    snapshot_destroy_fn destroy;
};

void snapshot_publisher_init(struct snapshot_publisher *publisher, uint32_t cores_count, snapshot_destroy_fn destroy);

/* Destroys all versions; no core may read any more. */
void snapshot_publisher_fini(struct snapshot_publisher *publisher);

/* Adds a version (takes `data`); epoch must exceed every earlier one. False where SNAPSHOT_PENDING_MAX versions are still in use: try again
 * after an acknowledgement. */
bool snapshot_publish(struct snapshot_publisher *publisher, const void *data, uint64_t epoch);

/* Core `core` now reads `epoch` and nothing older. Destroys what no core reads any more; returns how many. */
uint32_t snapshot_acknowledge(struct snapshot_publisher *publisher, uint32_t core, uint64_t epoch);
