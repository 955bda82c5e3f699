/*
 * Delay compensation: a gradient of weights that other pushes have changed since becomes, to the first order, that of
 * the weights as they are now. Zheng et al. 2017 (Asynchronous Stochastic Gradient Descent with Delay Compensation),
 * algorithm 2; g * g stands for the Hessian's diagonal:
 *
 *     g <- g + lambda_t * g * g * (w - w_then)
 *
 *     DC-ASGD-c    lambda_t = lambda
 *     DC-ASGD-a    lambda_t = lambda / sqrt(g * g + 1e-7): the paper's mean square with m = 0, which needs no memory
 *
 * Then comes the table's clip and its optimizer, which the paper has as SGD. w_then comes with the push, so the shard
 * keeps nothing for it, and a log has all that replay needs. A weight whose compensated gradient would exceed 1e15, or
 * be NaN, takes the gradient as it is.
 */
#ifndef SERVER_CORE_DELAY_H
#define SERVER_CORE_DELAY_H

#include "proto/section.h"
#include "server/core/optimizer_type.h"

/* weights, gradient and then: dim floats each, apart from one another. */
void delay_compensate(struct section_delay delay, const float *restrict weights,
                      const optimizer_gradient *restrict then, uint32_t dim,
                      float *restrict gradient);

#endif
