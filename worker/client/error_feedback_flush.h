/*
 * Sends one table's section in full when its residuals fill their memory: the batch's rows with their
 * residuals, and with them the rows of the oldest residuals.
 *
 *     batch      3  7  9       gradients g
 *     oldest     2  7  8       residuals e
 *     flushed    2  3  7  8  9      e  g  g+e  e  g      in fp32: then these rows have no residual
 *
 * It is one section still, so the table takes one step, and the server and each copy of it receive what
 * they always do. It is expensive, so it frees memory for many pushes at once.
 */
#ifndef WORKER_CLIENT_ERROR_FEEDBACK_FLUSH_H
#define WORKER_CLIENT_ERROR_FEEDBACK_FLUSH_H

#include <stdbool.h>

#include "worker/client/error_feedback.h"
#include "worker/client/ps_types.h"

struct error_feedback_flush {
    uint64_t *keys; /* owned: ascending, n_keys of cap_keys */
    float *values;  /* owned: n_keys x dim, as many as fit cap_floats */
    uint32_t n_keys;
    uint64_t cap_keys, cap_floats;
};

void error_feedback_flush_deinit(struct error_feedback_flush *s);

/* True if there is too little memory for the residuals of a section of these keys. */
bool error_feedback_flush_is_due(const struct error_feedback *r, const uint64_t *keys,
                                 uint32_t n_keys);

/* Fills s->keys: the given keys of the section, and those of the oldest rows. r does not change. -ENOMEM. */
int error_feedback_flush_collect(struct error_feedback_flush *s, const struct error_feedback *r,
                                 const uint64_t *keys, uint32_t n_keys) MUST_CHECK;

/* Fills the values, too. -ENOMEM. */
int error_feedback_flush_prepare(struct error_feedback_flush *s, const struct error_feedback *r,
                                 const struct ps_push_section *section) MUST_CHECK;

#endif
