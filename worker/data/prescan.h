/*
 * The first rows of files, read ahead of the passes that train: what is measured of the columns is measured of them.
 * Malformed rows are left out.
 */
#ifndef WORKER_DATA_PRESCAN_H
#define WORKER_DATA_PRESCAN_H

#include "worker/data/batch.h"
#include "worker/data/input_pipe.h"
#include "worker/data/schema.h"

struct prescan {
    const struct schema *schema;
    struct line_parser_plan plan; /* the schema's; the caller may change how numbers are read */
    struct input_pipes *pipes;    /* borrowed; NULL: none. They are prescanned */
    char *const *files;           /* borrowed; with the label's column, if the schema has one */
    uint32_t n_files;
    uint64_t n_rows_max;
    void (*on_row)(void *arg, const struct batch *row); /* a batch of one, without dedup */
    void *arg;
};

int prescan_run(struct prescan *p, struct err *err) MUST_CHECK;

#endif
