/*
 * What each column is worth to a trained model: permutation importance (Breiman 2001, "Random forests", section 10;
 * Fisher, Rudin, Dominici 2019). One column at a time takes its values from other rows of a sample, by a seed; the
 * drop of the AUC, the mean of several such permutations, is the column's importance. Columns that say the same thing
 * share what they are worth, so that each looks small. Of several labels it is the mean AUC of those that have one.
 */
#ifndef WORKER_REPORT_IMPORTANCE_H
#define WORKER_REPORT_IMPORTANCE_H

#include "worker/model_tables.h"
#include "worker/report/row_sample.h"
#include "worker/setup.h"

#define IMPORTANCE_REPEATS 3u

struct importance_column {
    char name[SCHEMA_NAME_MAX];
    bool is_numeric;
    double auc_drop, logloss_rise;     /* means */
    double auc_drop_min, auc_drop_max; /* of the permutations */
};

struct importance {
    uint32_t n_rows;
    double auc, logloss;               /* of the sample as it is */
    uint32_t n;                        /* columns that were measured */
    struct importance_column *columns; /* owned; by their importance, the greatest first */
};

struct importance_options {
    const struct setup *setup;
    struct model_tables *tables;
    const struct row_sample *sample;
    const struct stop_signal *stop; /* NULL: none */
    uint64_t seed;
};

/* PS_EDATA: the sample has one class alone, or no column. -ECANCELED: a stop came first. *ret is then empty. */
int importance_measure(const struct importance_options *options, struct importance *ret,
                       struct err *err) MUST_CHECK;
void importance_deinit(struct importance *i);

#endif
