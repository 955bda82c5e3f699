#include "deploy/psctl/disk_forecast.h"

#include <math.h>

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

/* The rates are of the last minutes; directly after the last push psd's files grow no more. */
struct disk_forecast disk_forecast_of(const cJSON *before, const cJSON *node)
{
    const cJSON *disk = field_child(node, "disk");
    struct disk_forecast f = { .free = field_number(disk, "free_bytes"),
                               .others_rate = field_number(disk, "others_fill_bytes_per_s") };

    f.own_rate = fmax(field_number(disk, "fill_bytes_per_s") - f.others_rate, 0);
    f.may_grow = may_grow(node, f.own_rate);
    if (before && field_child(disk, "others_fill_bytes_per_s") &&
        log_bytes(node) <= log_bytes(before))
        f.own_rate = 0;
    f.full_s =
        f.own_rate + f.others_rate > 0 ? f.free / (f.own_rate + f.others_rate) : INFINITY;
    if (f.own_rate * f.full_s > f.may_grow)
        f.full_s = f.others_rate > 0 ? (f.free - f.may_grow) / f.others_rate : INFINITY;
    return f;
}
