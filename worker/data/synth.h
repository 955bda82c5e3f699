/*
 * Generated click logs in Criteo's layout (label, numerics, categoricals; tabs, no header), drawn from a logistic
 * model, so that the best possible result of a job is known. A row is a pure function of (options, its number), as far
 * as two C libraries' exp() and log() agree.
 *
 *     numeric j       floor(exp(1.5 + 1.3 g)), g normal; one in ten is missing
 *     categorical j   token number k, P(k) about k^-zipf over 1 .. cardinality;
 *                     one in fifty is missing
 *     logit           bias + sum_j a_j (log1p(x_j) - 1.7) + sum_j e_j(k_j)
 *                     a_j and e_j(k): normal, from a hash of (seed, j, k); their spread is such
 *                     that the sum's is about 1.5, and the bias meets the positive rate
 *     label           1 with probability sigmoid(logit)
 */
#ifndef WORKER_DATA_SYNTH_H
#define WORKER_DATA_SYNTH_H

#include "common/status.h"

struct synth_options {
    uint64_t first_row, rows; /* a part of the log: rows first_row .. first_row + rows - 1 */
    uint64_t seed;
    uint32_t n_numeric, n_categorical; /* at most SYNTH_COLUMNS_MAX each, one in all at least */
    uint64_t cardinality;              /* distinct tokens of a categorical column, at least 1 */
    double zipf;                       /* exponent, 0 (uniform) to 10 */
    double positive_rate;              /* in (0, 1) */
    /* May be NULL: receives the probability of each row, so that the caller can say how well a
     * perfect model would do. */
    void (*on_row)(void *arg, double probability, int label);
    void *arg; /* borrowed, on_row's */
};

#define SYNTH_COLUMNS_MAX 500u

/*
 * Writes the rows to a file, packed with zstd if its name ends in .zst; "-": to stdout.
 * PS_ESETTING for an option out of range, a negative errno when the file cannot be written,
 * which then is removed.
 */
int synth_write(const struct synth_options *options, const char *path, struct err *err)
    MUST_CHECK;

#endif
