/* Pieces of Prometheus' text format that all samples have (render_metrics.c). */
#ifndef SERVER_ADMIN_METRICS_TEXT_H
#define SERVER_ADMIN_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A number that is a u64 of some struct. */
struct metrics_family {
    const char *name, *type, *help;
    size_t offset;
    bool is_no_sum; /* of a table: that of two tables means nothing */
};

uint64_t metrics_text_field(const void *from, const struct metrics_family *f);

void metrics_text_head(FILE *out, const char *name, const char *type, const char *help);

/* ,key="value", the value escaped. */
void metrics_text_label(FILE *out, const char *key, const char *value);

#endif
