/*
 * Optimizers by their formulas, in plain C: sgd, row-wise Adagrad (of 4 floats or less), Adam for sparse tables; bit for
 * bit what the product has to make of the same gradients.
 */
#ifndef TESTS_SIM_OPTIM_H
#define TESTS_SIM_OPTIM_H

#include "proto/table_spec.h"

uint32_t optimizer_state_floats(enum table_spec_optim optim, uint32_t dim);

/* row: dim weights, then the state. The state of a new one; and step number t, from 1, of its table. */
void optimizer_begin(const struct table_spec *spec, float *row);
void optimizer_step(const struct table_spec *spec, uint64_t t, const float *gradient,
                    float *row);

#endif
