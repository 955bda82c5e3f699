/*
 * psctl import PATH: arrays (export.h says which) into the tables of a running psd, of any number of nodes and shards.
 * What psctl export has written comes back bit by bit, with --state its optimizer state, too; so does what another
 * program has written in the same shape.
 *
 *     all files are checked -> for each table: found, or made -> rows assigned in slices (ps_assign()) -> flushed
 *
 * Rows that are there and not in the files stay. The same import once more does what an interrupted one has not done:
 * assigning a row twice leaves it as once.
 */
#ifndef DEPLOY_PSCTL_IMPORT_H
#define DEPLOY_PSCTL_IMPORT_H

#include "deploy/psctl/export.h"
#include "deploy/psctl/options.h"
#include "deploy/psctl/tensor_input.h"
#include "proto/table_spec.h"

/* The arrays of one table. */
struct import_table {
    char name[TABLE_SPEC_NAME_MAX];
    const struct tensor_input *keys; /* of a sparse table; NULL: it is dense */
    const struct tensor_input *weights;
    const struct tensor_input *state[EXPORT_STATES_MAX]; /* as its optimizer has them */
    uint32_t n_state;
    uint64_t n_rows; /* of a sparse table */
    uint64_t dim;    /* of a sparse table */
    uint64_t steps;  /* that the file says; 0: nothing */
};

/* The tables of a set, in order of their names. An array that belongs to none of them is PS_EDATA: keys without
 * weights, a wrong type or shape. */
int import_find_tables(const struct tensor_inputs *set, struct import_table **ret,
                       uint32_t *ret_n, struct err *err) MUST_CHECK;

/* All numbers: keys ascend, each once; nothing is NaN or infinite. PS_EDATA; err names the table and the row. */
int import_check_numbers(const struct import_table *t, struct err *err) MUST_CHECK;

/* What the table on the servers says against the arrays. PS_ESPEC. */
int import_check_spec(const struct import_table *t, const struct table_spec *spec,
                      struct err *err) MUST_CHECK;

int import_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
