/* The optimizer cases of tests/golden that psd's optimizers cover, and how a
 * specification says them. */
#ifndef TESTS_UNIT_CORE_GOLDEN_H
#define TESTS_UNIT_CORE_GOLDEN_H

#include "tests/support/npy.h"

#include "fixture.h"

#define GOLDEN_ROWS 50u
#define GOLDEN_COLS 8u
#define GOLDEN_STEPS 10u
#define GOLDEN_FLOATS (GOLDEN_ROWS * GOLDEN_COLS)

struct golden_case {
    const char *name;
    enum table_spec_optim optim;
    const char *states[5]; /* arrays of the case, in the order in which they stand in a row */
};

static const struct golden_case golden_cases[] = {
    { "opt_sgd_dense", TABLE_SPEC_SGD, { 0 } },
    { "opt_sgd_sparse", TABLE_SPEC_SGD, { 0 } },
    { "opt_sgd_momentum_dense", TABLE_SPEC_MOMENTUM, { "state_momentum_buffer" } },
    { "opt_sgd_nesterov_wd_dense", TABLE_SPEC_MOMENTUM, { "state_momentum_buffer" } },
    { "opt_adagrad_dense", TABLE_SPEC_ADAGRAD, { "state_sum" } },
    { "opt_adagrad_sparse", TABLE_SPEC_ADAGRAD, { "state_sum" } },
    { "opt_adagrad_acc_dense", TABLE_SPEC_ADAGRAD, { "state_sum" } },
    { "opt_adagrad_acc_sparse", TABLE_SPEC_ADAGRAD, { "state_sum" } },
    { "opt_rowwise_adagrad_sparse", TABLE_SPEC_ROWWISE_ADAGRAD, { "state_momentum" } },
    { "opt_adam_dense", TABLE_SPEC_ADAM, { "state_exp_avg", "state_exp_avg_sq" } },
    { "opt_sparse_adam", TABLE_SPEC_ADAM, { "state_exp_avg", "state_exp_avg_sq" } },
    { "opt_ftrl_dense", TABLE_SPEC_FTRL, { "state_z", "state_n" } },
    { "opt_ftrl_sparse", TABLE_SPEC_FTRL, { "state_z", "state_n" } },
    { "opt_ftrl_init_sparse", TABLE_SPEC_FTRL, { "state_z", "state_n" } },
    { "opt_adamw_dense", TABLE_SPEC_ADAMW, { "state_m", "state_v", "state_t" } },
    { "opt_adamw_sparse", TABLE_SPEC_ADAMW, { "state_m", "state_v", "state_t" } },
    { "opt_lion_dense", TABLE_SPEC_LION, { "state_m", "state_t" } },
    { "opt_lion_sparse", TABLE_SPEC_LION, { "state_m", "state_t" } },
    { "opt_lamb_dense", TABLE_SPEC_LAMB, { "state_m", "state_v" } },
    { "opt_lamb_sparse", TABLE_SPEC_LAMB, { "state_m", "state_v" } },
    { "opt_lars_dense", TABLE_SPEC_LARS, { "state_b" } },
    { "opt_lars_sparse", TABLE_SPEC_LARS, { "state_b" } },
    { "opt_sm3_dense", TABLE_SPEC_SM3, { "state_s" } },
    { "opt_sm3_sparse", TABLE_SPEC_SM3, { "state_s" } },
    { "opt_came_dense",
      TABLE_SPEC_CAME,
      { "state_m", "state_r", "state_c", "state_R", "state_C" } },
    { "opt_came_sparse",
      TABLE_SPEC_CAME,
      { "state_m", "state_r", "state_c", "state_R", "state_C" } },
    { "opt_sm3_matrix_dense", TABLE_SPEC_SM3_MATRIX, { "state_r", "state_c" } },
    { "opt_sm3_matrix_sparse", TABLE_SPEC_SM3_MATRIX, { "state_r", "state_c" } },
    { "paper_adamw", TABLE_SPEC_ADAMW, { "state_m", "state_v" } },
    { "paper_lion", TABLE_SPEC_LION, { "state_m" } },
    { "paper_sm3", TABLE_SPEC_SM3, { "state_s" } },
    { "paper_rowwise_moment", TABLE_SPEC_ROWWISE_ADAGRAD, { "state_s" } },
};

struct table_spec golden_spec(const struct golden_case *c);

/* The gradients of a case, step by step, as keys and rows; dense ones name every row. */
struct golden_grads {
    struct npy start, idx, rows; /* dense: only rows is filled */
    uint64_t keys[GOLDEN_ROWS];
};

struct golden_grads golden_grads_load(const char *name);
void golden_grads_free(struct golden_grads *g);

/* Fills g->keys; returns how many, and their rows. */
uint32_t golden_step(struct golden_grads *g, uint32_t step, const float **ret_rows);

/* Holds all rows after `step` (0-based), each weights and then state, to the case. */
void golden_check(const struct golden_case *c, uint32_t step, const float *rows,
                  uint32_t row_floats);

#endif
