/* A job's curve, {"points":[...]} as psd answers "curve", as a file that others read, or as a picture. */
#ifndef DEPLOY_PSCTL_CURVE_H
#define DEPLOY_PSCTL_CURVE_H

#include <cjson/cJSON.h>
#include <stdio.h>

/* A line of names, then one for each point; what is not known is empty. */
void curve_put_csv(const cJSON *points, FILE *out);

/* A picture that needs no other file: loss, AUC and samples/s over samples, readable on white and on black. */
void curve_put_svg(const cJSON *points, const char *job, FILE *out);

/* Some lines of text: loss over samples. Nothing if there are fewer than two. */
void curve_put_text(const cJSON *points, FILE *out);

#endif
