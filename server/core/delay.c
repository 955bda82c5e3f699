#include "server/core/delay.h"

#include <math.h>

/* The paper's epsilon. */
#define EPSILON 1e-7f

static inline float bounded(float gradient, float correction)
{
    const float sum = gradient + correction;

    return fabsf(sum) <= SECTION_ASSIGN_MAX ? sum : gradient; /* false for NaN */
}

void delay_compensate(struct section_delay delay, const float *restrict w,
                      const optimizer_gradient *restrict then, uint32_t dim, float *restrict g)
{
    const float lambda = delay.lambda;

    if (delay.constant)
        for (uint32_t i = 0; i < dim; i++)
            g[i] = bounded(g[i], lambda * (g[i] * g[i]) * (w[i] - then[i]));
    else
        for (uint32_t i = 0; i < dim; i++) {
            float square = g[i] * g[i];

            g[i] = bounded(g[i], lambda / sqrtf(square + EPSILON) * square * (w[i] - then[i]));
        }
}
