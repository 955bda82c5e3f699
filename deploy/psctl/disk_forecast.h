/*
 * When the disk of a node will be full, from two reports of the cluster. psd's files, which are the write-ahead logs
 * and the checkpoints of all nodes on that disk, grow by pushes and up to a bound; what others do there has no bound.
 */
#ifndef DEPLOY_PSCTL_DISK_FORECAST_H
#define DEPLOY_PSCTL_DISK_FORECAST_H

#include <cjson/cJSON.h>

/* Bytes, and bytes a second. */
struct disk_forecast {
    double free, own_rate, others_rate;
    double
        may_grow;  /* what psd's files may still take; INFINITY: an older psd does not say it */
    double full_s; /* INFINITY: never, at these rates */
};

/* before: NULL: there is none, so it is not known whether anything is pushed. node: one of `after`. */
struct disk_forecast disk_forecast_of(const cJSON *before, const cJSON *after,
                                      const cJSON *node);

#endif
