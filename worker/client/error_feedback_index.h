/*
 * The places of the residuals of a push section's rows, for a caller that encodes rows itself and keeps the residuals
 * itself, in an array of rows on a device. An error_feedback without floats is the index of that array.
 *
 * The push, and the residuals after it, are those of the encoder (push_encoder.h) for the same sections:
 *
 *     codec                      rows sent                      their residuals
 *     with feedback              the section's                  added; the codec's error is kept
 *     with feedback, no memory   and the oldest, in fp32        added, and removed (error_feedback_flush.h)
 *     without                    the section's                  added, and removed, if there are any
 *
 * error_feedback_index_prepare() may fail and changes no residual; error_feedback_index_acquire() cannot
 * fail. A row whose residual is removed frees its number: its floats on the device are zeros once it is
 * encoded.
 */
#ifndef WORKER_CLIENT_ERROR_FEEDBACK_INDEX_H
#define WORKER_CLIENT_ERROR_FEEDBACK_INDEX_H

#include "worker/client/error_feedback.h"
#include "worker/client/error_feedback_flush.h"
#include "worker/client/ps_types.h"

/* The rows to send. Zeroed: none. */
struct error_feedback_index {
    enum codec_id codec;
    uint32_t k; /* topk's; else 0 */
    size_t row_bytes;
    uint32_t n;
    const uint64_t *keys; /* [n] ascending: of the section, or of `flush` */
    /* [n] index of the row in the section, or ERROR_FEEDBACK_NONE; NULL: row i is row i */
    const uint32_t *from;
    /* [n] number of the row's residual, or ERROR_FEEDBACK_NONE; NULL: no row has one */
    const uint32_t *at;
    bool flushes;
    struct error_feedback_flush flush;
};

void error_feedback_index_deinit(struct error_feedback_index *o);

/* Of a section of gradients, whose keys are borrowed as long as o->keys are used. -ENOMEM. */
int error_feedback_index_prepare(struct error_feedback_index *o, struct error_feedback *index,
                                 const struct ps_push_section *section) MUST_CHECK;

/* Fills from and at, in `space` for 2 * o->n numbers: the caller's, borrowed as long as these are used. */
void error_feedback_index_acquire(struct error_feedback_index *o, struct error_feedback *index,
                                  const struct ps_push_section *section, uint32_t *space);

#endif
