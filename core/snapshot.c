/*
 * Versions that may still be read, oldest first, and what each core has acknowledged. Everything here runs on the housekeeping core; the
 * cores' part is a pointer that arrives by message and an acknowledgement that goes back.
 *
 * A version is destroyed when every core has acknowledged a newer one. A core that never acknowledged anything keeps all versions alive:
 * one of them may be on its way to it.
 */
#include "core/snapshot.h"

#include <string.h>

#include "core/alloc.h"
#include "core/check.h"

void snapshot_publisher_init(struct snapshot_publisher *publisher, uint32_t cores_count, snapshot_destroy_fn destroy)
{
    ZG_CHECK(cores_count > 0);
    ZG_CHECK(destroy != NULL);
    *publisher = (struct snapshot_publisher){.cores_count = cores_count, .destroy = destroy};
    publisher->acked_epochs = alloc_zeroed(cores_count * sizeof(publisher->acked_epochs[0]));
}

void snapshot_publisher_fini(struct snapshot_publisher *publisher)
{
    for (uint32_t i = 0; i < publisher->versions_count; i++)
        publisher->destroy(publisher->versions[i].data);
    publisher->versions_count = 0;
    alloc_free(publisher->acked_epochs);
    publisher->acked_epochs = NULL;
}

bool snapshot_publish(struct snapshot_publisher *publisher, const void *data, uint64_t epoch)
{
    uint32_t count = publisher->versions_count;
    ZG_CHECK(data != NULL);
    /* The newest version is never destroyed, so the last entry is the last epoch ever published; 0 means "nothing" in the acknowledgements. */
    ZG_CHECK(epoch > (count > 0 ? publisher->versions[count - 1].epoch : 0));
    if (count == SNAPSHOT_PENDING_MAX)
        return false;
    publisher->versions[count] = (struct snapshot_version){.data = data, .epoch = epoch};
    publisher->versions_count = count + 1;
    return true;
}

static uint64_t oldest_acked(const struct snapshot_publisher *publisher)
{
    uint64_t oldest = UINT64_MAX;
    for (uint32_t core = 0; core < publisher->cores_count; core++) {
        if (publisher->acked_epochs[core] < oldest)
            oldest = publisher->acked_epochs[core];
    }
    return oldest;
}

uint32_t snapshot_acknowledge(struct snapshot_publisher *publisher, uint32_t core, uint64_t epoch)
{
    ZG_CHECK(core < publisher->cores_count);
    ZG_CHECK(publisher->versions_count > 0);
    ZG_CHECK(epoch <= publisher->versions[publisher->versions_count - 1].epoch);
    ZG_CHECK(epoch >= publisher->acked_epochs[core]);
    publisher->acked_epochs[core] = epoch;
    uint64_t oldest = oldest_acked(publisher);
    uint32_t destroyed = 0;
    /* No acknowledgement is newer than the newest version, so this ends before it. */
    while (publisher->versions[destroyed].epoch < oldest) {
        publisher->destroy(publisher->versions[destroyed].data);
        destroyed++;
    }
    publisher->versions_count -= destroyed;
    memmove(publisher->versions, publisher->versions + destroyed, publisher->versions_count * sizeof(publisher->versions[0]));
    return destroyed;
}
