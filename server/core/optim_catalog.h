/* Every optimizer psd has, by the number that specifications carry; and the schedule all of
 * them share. */
#ifndef SERVER_CORE_OPTIM_CATALOG_H
#define SERVER_CORE_OPTIM_CATALOG_H

#include "common/simd.h"
#include "server/core/optim.h"

/* Static storage, or NULL. In the build that is the fastest here. */
const struct optim *optim_find(enum spec_optim id);

/* One of an optimizer's builds, all of which leave the same bits, for those who compare them;
 * simd_runs(build). */
const struct optim *optim_build(enum spec_optim id, enum simd build);

/* The learning rate at `clock`, by the formula at struct lr_schedule. */
float optim_rate(float learning_rate, const struct lr_schedule *schedule, uint64_t clock);

/* What all rows share when the table's t-th push (t from 1), of step `clock`, is applied.
 * Borrows spec. */
struct optim_step optim_step_at(const struct optim *optim, const struct table_spec *spec,
                                uint64_t clock, uint64_t t);

#endif
