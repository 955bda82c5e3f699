/*
 * The page of a training run (--report): one HTML file that needs no network and no script. It is written from plain
 * values alone, each of which may be missing: of a run that failed, had no validation rows, or used no servers.
 */
#ifndef WORKER_REPORT_REPORT_PAGE_H
#define WORKER_REPORT_REPORT_PAGE_H

#include <stdio.h>

#include "worker/progress.h"
#include "worker/report/calibration.h"
#include "worker/report/importance.h"
#include "worker/report/training_history.h"
#include "worker/settings.h"

#define REPORT_PAGE_CODECS 16u

/* Bytes of rows' values, of pulls and pushes of a codec, as it writes them. */
struct report_page_codec {
    const char *name;
    uint64_t pulled, pushed;
};

struct report_page_cost {
    double train_s;      /* validations left out */
    double total_s;      /* since the process began */
    double measure_s;    /* of importance */
    uint64_t peak_bytes; /* of memory; 0: not known */
    uint32_t n_codecs;
    struct report_page_codec codecs[REPORT_PAGE_CODECS];
};

/* All is borrowed. */
struct report_page {
    const struct settings *settings;
    const char *device;               /* what computed; NULL: nothing yet */
    uint64_t unix_s;                  /* the run's end */
    const struct progress_state *run; /* NULL: it has not begun */
    const struct training_history *history;
    const struct metrics_result *result; /* the last validation; NULL: none */
    uint32_t n_labels;
    const struct calibration *calibrations; /* of each label; NULL: none */
    const char *why_not_calibrated;
    const char (*labels)[SCHEMA_NAME_MAX];
    const struct importance *importance; /* NULL: not measured, */
    const char *why_not_measured;        /* and why */
    struct report_page_cost cost;
    const char *stopped; /* why the run ended early, or NULL */
    const char *failure; /* why it failed, or NULL */
};

/* Failures show in ferror(out). */
void report_page_put(const struct report_page *p, FILE *out);

#endif
