/* The figures of a report, as SVG with captions in HTML. */
#ifndef WORKER_REPORT_REPORT_CHARTS_H
#define WORKER_REPORT_REPORT_CHARTS_H

#include <stdio.h>

#include "worker/report/calibration.h"
#include "worker/report/training_history.h"

/* Each only if it has values: loss of training and validation, and AUC; samples/s. */
void report_charts_put_history(const struct training_history *h, FILE *out);
void report_charts_put_speed(const struct training_history *h, FILE *out);

/* label: of several; "" for the only one. */
void report_charts_put_calibration(const struct calibration *c, const char *label, FILE *out);

#endif
