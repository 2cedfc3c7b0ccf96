/*
 * What each metric is called, from metrics.def. Constant data; any thread may read. The values are in struct metrics and have inline accessors.
 */
#include "core/metrics.h"

#include "core/check.h"

#define KIND_COUNTER "counter"
#define KIND_GAUGE "gauge"

static const struct metric_info infos[METRIC_COUNT] = {
#define METRIC(name, kind, unit, help) [METRIC_##name] = {#name, KIND_##kind, unit, help},
#include "core/metrics.def"
#undef METRIC
};

const struct metric_info *metric_info(enum metric metric)
{
    ZG_CHECK((unsigned)metric < METRIC_COUNT);
    return &infos[metric];
}
