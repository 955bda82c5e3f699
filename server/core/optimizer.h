/* The catalogue of all optimizers, with the learning-rate schedule that they share. */
#ifndef SERVER_CORE_OPTIMIZER_H
#define SERVER_CORE_OPTIMIZER_H

#include "server/core/optimizer_type.h"

/* Static storage, or NULL. In the build that is the fastest here. */
const struct optimizer *optimizer_find(enum table_spec_optim id);

/* One of an optimizer's builds, all of which leave the same bits, for those who compare them;
 * simd_runs(build). */
const struct optimizer *optimizer_build(enum table_spec_optim id, enum simd build);

/* optimizer->check() of a state that a peer says a row has, whatever its floats are; gradient_max: of a gradient alone.
 * Weights are of at most SECTION_ASSIGN_MAX. */
enum optimizer_fault optimizer_check_state(const struct optimizer *optim,
                                           const optimizer_gradient *state,
                                           const struct table_spec *spec, float gradient_max);

/* "NaN or infinity in its state": what a row has. */
const char *optimizer_fault_text(enum optimizer_fault fault);

/* The learning rate at `clock`, by the formula at struct lr_schedule. */
float optimizer_rate(float learning_rate, const struct lr_schedule *schedule, uint64_t clock);

/* The values that all rows share when the table's t-th push (t from 1), of step `clock`, is applied. Borrows spec. */
struct optimizer_step optimizer_step_at(const struct optimizer *optim,
                                        const struct table_spec *spec, uint64_t clock,
                                        uint64_t t);

#endif
