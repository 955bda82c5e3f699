/*
 * When the disk of a node will be full, from two of its reports. Its own files, which are the write-ahead log and the
 * checkpoints, grow by pushes and up to a bound; what others do on that disk has no bound.
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

/* before: NULL: there is none, so it is not known whether anything is pushed. */
struct disk_forecast disk_forecast_of(const cJSON *before, const cJSON *node);

#endif
