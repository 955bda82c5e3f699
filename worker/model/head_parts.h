/* What several heads have in common (head.h): the plan of the first-order term, the top MLP, which ends in the logits,
 * and the means of bags. */
#ifndef WORKER_MODEL_HEAD_PARTS_H
#define WORKER_MODEL_HEAD_PARTS_H

#include "worker/model/dlrm_internal.h"

/* m->first_order, on the numeric columns. */
void head_parts_plan_first_order(struct dlrm *m);

/* m->top, of an input of m->r_width floats, whose rows are ldx floats apart. */
void head_parts_plan_top(struct dlrm *m, uint32_t ldx);

/* The top MLP's arrays; m->z and m->dz are its output's. -ENOMEM: mlp_deinit() is due all the same. */
int head_parts_alloc_top(struct dlrm *m) MUST_CHECK;

/* True if some fields have means. */
bool head_parts_has_means(const struct dlrm *m);

/* vectors: of the fields, a sample's ld floats behind the one's before. The sums of bags become means, or the gradients
 * of means those of sums, of the fields that have means. */
void head_parts_make_means(const struct dlrm *m, const struct bags *bags, float *vectors,
                           uint32_t ld);

#endif
