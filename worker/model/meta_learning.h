/*
 * Meta learning: a model that is good after a few steps on a task's own samples. The samples of a batch that have one
 * value in the task column are a task T; their first half, in the batch's order and rounded down, is its support S, the
 * others its query Q. With inner rate a and K inner steps:
 *
 *     w_T <- w;  K times:  w_T <- w_T - a grad L(S, w_T)       on copies of the rows and dense arrays that were pulled
 *     gradient = mean over T of grad L(Q, w_T)                  loss = mean over T of L(Q, w_T)
 *
 * This is MAML (Finn, Abbeel, Levine, ICML 2017, arXiv 1703.03400, algorithm 2) with SGD inside, in its first order
 * (FOMAML, section 5.2): the gradient at w_T stands for that at w, and a^2 and second derivatives are left out. Exactly
 * MAML would need products with Hessians through every op of the model, and each op a second backward; the paper finds
 * nearly the same results without. Batch, tasks and rows are distributed as with G-Meta (Xiao et al. 2023, arXiv
 * 2401.04338): a worker has its tasks' copies to itself, and what leaves it is one gradient for each row and array.
 *
 * A task of one sample has no support: its sample is the query of the weights as they are. Rows that only the support
 * has get no gradient of a loss: 0, but for that of l2_rows.
 */
#ifndef WORKER_MODEL_META_LEARNING_H
#define WORKER_MODEL_META_LEARNING_H

#include "worker/model/dlrm.h"

struct meta_learning_options {
    uint32_t
        field; /* whose first key in a sample is its task; samples without one are a task, too */
    float inner_lr;
    uint32_t inner_steps; /* 1 or more */
};

struct meta_learning;

/* Borrows the model for life; config is that which made it. -ENOMEM. */
int meta_learning_new(struct dlrm *model, const struct dlrm_config *config,
                      const struct meta_learning_options *options, struct meta_learning **ret)
    MUST_CHECK;

/* Before the model. NULL is fine. */
void meta_learning_free(struct meta_learning *m);

/* One training step, in place of dlrm_step(): fills the step's gradients of rows, and dense_grads as dlrm_use() has
 * it; the model then uses the dense arrays that it used before, with these gradients. No other step is in flight.
 * -ENOMEM, or the device's errors. */
int meta_learning_step(struct meta_learning *m, const struct dlrm_step *step,
                       float *dense_grads, double *ret_loss) MUST_CHECK;

/* Of the query samples of a batch, task by task. Borrowed until the next call. */
struct meta_learning_scores {
    uint32_t n;
    const float *probs, *labels; /* [n][n_tasks] of the model's labels */
};

/* The support of each task adapts the model, which then predicts its query. As dlrm_predict(). */
int meta_learning_predict(struct meta_learning *m, const struct dlrm_step *step,
                          float *dense_grads, struct meta_learning_scores *ret) MUST_CHECK;

/* In all steps: tasks, and those of one sample. */
struct meta_learning_counts {
    uint64_t n_tasks, n_single;
};

struct meta_learning_counts meta_learning_counts(const struct meta_learning *m);

#endif
