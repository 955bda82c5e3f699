/*
 * What a run has measured, for people and as one line of JSON.
 */
#ifndef TESTS_BENCH_PSBENCH_REPORT_H
#define TESTS_BENCH_PSBENCH_REPORT_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "tests/bench/psbench_limits.h"
#include "tests/bench/psbench_types.h"

/* What there is to tell. */
struct psbench_findings {
    const struct psbench_settings *settings; /* borrowed, as all here */
    const struct psbench_counts *counts;
    const struct psbench_counts *again;  /* grow: the same keys once more; else NULL */
    const struct psbench_limits *limits; /* NULL without --limits */
};

const char *psbench_report_load_name(enum psbench_load load);

void psbench_report_print(const struct psbench_findings *f, FILE *out);

/* Appends a line to settings->json. */
int psbench_report_json(const struct psbench_findings *f, struct err *err) MUST_CHECK;

/* What every line says about what was asked for, and where: to be filled further and given to
 * psbench_report_append(). */
cJSON *psbench_report_open(const struct psbench_settings *settings);
void psbench_report_spread(cJSON *object, const char *name,
                           const struct psbench_spread *spread);

/* Takes the object. */
int psbench_report_append(const char *path, cJSON *line, struct err *err) MUST_CHECK;

#endif
