/*
 * Intermediates of a model's last step, read back by name:
 *
 *     bot_I_pre bot_I_out bag_F T Zflat R top_I_pre top_I_out logit prob
 *
 * and d_ before each but prob: its gradient.
 */
#ifndef TESTS_UNIT_MODEL_DEBUG_READ_H
#define TESTS_UNIT_MODEL_DEBUG_READ_H

#include "worker/model/dlrm.h"

/* *ret_n floats, valid until the next call for m. NULL if the name is unknown or the model has no such array, or without
 * memory. No step is under way. */
const float *debug_read(struct dlrm *m, const char *name, uint32_t *ret_n);

#endif
