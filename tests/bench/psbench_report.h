/*
 * What a run has measured, for people and as one line of JSON.
 */
#ifndef TESTS_BENCH_PSBENCH_REPORT_H
#define TESTS_BENCH_PSBENCH_REPORT_H

#include <stdio.h>

#include "tests/bench/psbench_types.h"

const char *psbench_report_load_name(enum psbench_load load);

void psbench_report_print(const struct psbench_settings *settings,
                          const struct psbench_counts *counts, FILE *out);

/* Appends a line to settings->json. */
int psbench_report_json(const struct psbench_settings *settings,
                        const struct psbench_counts *counts, struct err *err) MUST_CHECK;

#endif
