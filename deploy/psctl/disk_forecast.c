#include "deploy/psctl/disk_forecast.h"

#include <math.h>
#include <string.h>

#include "deploy/psctl/cluster_rates.h"
#include "deploy/psctl/field.h"

/* The log from the oldest of --keep restore points on, each of which comes after --log-max or --checkpoint-every. The
 * checkpoints: those, what their deltas need, and the one that is being written. */
static double may_grow(const cJSON *node, double own_rate)
{
    const cJSON *c = field_child(node, "checkpoints"), *disk = field_child(node, "disk");
    double keep = field_number(c, "keep"), log_max = field_number(c, "log_max_bytes"),
           every = own_rate * field_number(c, "every_ms") / 1000, log, checkpoints;

    if (log_max <= 0)
        return INFINITY;
    log = keep * (every > 0 ? fmin(log_max, every) : log_max);
    checkpoints = (keep + field_number(c, "deltas") + 1) *
                  field_number(field_child(node, "totals"), "bytes");
    return fmax(log - field_number(disk, "log_bytes"), 0) +
           fmax(checkpoints - field_number(disk, "checkpoint_bytes"), 0);
}

static double log_bytes(const cJSON *node)
{
    return field_number(field_child(field_child(node, "totals"), "log"), "bytes");
}

/* By how much this node's files have grown. */
static double grown_rate(const cJSON *disk)
{
    return fmax(field_number(disk, "fill_bytes_per_s") -
                    field_number(disk, "others_fill_bytes_per_s"),
                0);
}

/* The rates are of the last minutes; directly after the last push psd's files grow no more. */
static double own_rate(const cJSON *before, const cJSON *node)
{
    const cJSON *disk = field_child(node, "disk"),
                *earlier = cluster_rates_node_before(before, node);
    const bool is_idle = earlier && field_child(disk, "others_fill_bytes_per_s") &&
                         log_bytes(node) <= log_bytes(earlier);

    return is_idle ? 0 : grown_rate(disk);
}

static bool share_disk(const cJSON *a, const cJSON *b)
{
    const char *file_system = field_text(field_child(a, "disk"), "file_system");

    return a == b || (file_system[0] && strcmp(file_system, field_text(field_child(b, "disk"),
                                                                       "file_system")) == 0);
}

struct disk_forecast disk_forecast_of(const cJSON *before, const cJSON *after,
                                      const cJSON *node)
{
    const cJSON *disk = field_child(node, "disk"), *other;
    struct disk_forecast f = { .free = field_number(disk, "free_bytes"),
                               .others_rate = field_number(disk, "others_fill_bytes_per_s") };

    cJSON_ArrayForEach(other, field_child(after, "nodes"))
    {
        const double rate = own_rate(before, other);

        if (!share_disk(node, other))
            continue;
        f.own_rate += rate;
        f.may_grow += may_grow(other, rate);
        if (other != node) /* its files are none of this node's */
            f.others_rate -= grown_rate(field_child(other, "disk"));
    }
    f.others_rate = fmax(f.others_rate, 0);
    f.full_s =
        f.own_rate + f.others_rate > 0 ? f.free / (f.own_rate + f.others_rate) : INFINITY;
    if (f.own_rate * f.full_s > f.may_grow)
        f.full_s = f.others_rate > 0 ? (f.free - f.may_grow) / f.others_rate : INFINITY;
    return f;
}
