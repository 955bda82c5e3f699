/*
 * Optimizers by their formulas, in plain C: sgd, row-wise Adagrad (of 4 floats or less), Adam for sparse tables; bit for
 * bit what the product has to make of the same gradients.
 */
#ifndef TESTS_SIM_OPTIM_H
#define TESTS_SIM_OPTIM_H

#include "proto/table_spec.h"

uint32_t optimizer_state_floats(const struct table_spec *spec);

/* row: dim weights, then the state, the last float of which is the step up to which it has decayed, if the table's rows
 * do. The state of weights that are set behind step t; and step number t, from 1, of its table. */
void optimizer_begin(const struct table_spec *spec, uint64_t t, float *row);
void optimizer_step(const struct table_spec *spec, uint64_t t, const float *gradient,
                    float *row);

/* The first n weights of a row as readers see them behind step t. */
void optimizer_show(const struct table_spec *spec, uint64_t t, const float *row, uint32_t n,
                    float *ret);

#endif
