/* Sigmoid and binary cross-entropy in the fused form, which neither overflows nor saturates.
 * One value a sample: double costs nothing here. */
#include "worker/compute/cpu.h"

#include <math.h>

static double sigmoid(double z)
{
    const double e = exp(-fabs(z));

    return z < 0 ? e / (1 + e) : 1 / (1 + e);
}

void cpu_loss_prob(struct compute *c, uint32_t n, const float *z, float *p)
{
    (void)c;
    for (uint32_t s = 0; s < n; s++)
        p[s] = (float)sigmoid((double)z[s]);
}

void cpu_loss_mean(struct compute *c, uint32_t n, const float *z, const float *y, double *ret)
{
    double sum = 0;

    (void)c;
    for (uint32_t s = 0; s < n; s++) {
        const double v = (double)z[s];

        sum += (v > 0 ? v : 0) - v * (double)y[s] + log1p(exp(-fabs(v)));
    }
    *ret = n ? sum / n : 0;
}

void cpu_loss_grad(struct compute *c, uint32_t n, const float *z, const float *y, float *dz)
{
    (void)c;
    for (uint32_t s = 0; s < n; s++)
        dz[s] = (float)((sigmoid((double)z[s]) - (double)y[s]) / n);
}
