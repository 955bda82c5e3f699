#include "tests/bench/psbench_zipf.h"

#include <math.h>

#include "common/hash.h"

/* (exp(x) - 1) / x and log(1 + x) / x, also near 0. */
static double exp_ratio(double x)
{
    return fabs(x) > 1e-8 ? expm1(x) / x : 1 + x / 2;
}

static double log_ratio(double x)
{
    return fabs(x) > 1e-8 ? log1p(x) / x : 1 - x / 2;
}

/* The integral of 1 / x^a, and its inverse. */
static double integral(const struct psbench_zipf *z, double x)
{
    return exp_ratio((1 - z->a) * log(x)) * log(x);
}

static double inverse(const struct psbench_zipf *z, double y)
{
    double t = y * (1 - z->a);

    return exp(log_ratio(t < -1 ? -1 : t) * y);
}

static double weight(const struct psbench_zipf *z, double x)
{
    return exp(-z->a * log(x));
}

void psbench_zipf_init(struct psbench_zipf *z, uint64_t n, double a, uint64_t seed)
{
    *z = (struct psbench_zipf){ .a = a, .n = n, .seed = seed };
    z->h_first = integral(z, 1.5) - 1;
    z->h_last = integral(z, (double)n + 0.5);
    z->squeeze = 2 - inverse(z, integral(z, 2.5) - weight(z, 2));
}

static double unit(struct psbench_zipf *z)
{
    return (double)(hash_mix2(z->seed, z->n_drawn++) >> 11) * 0x1p-53;
}

uint64_t psbench_zipf_draw(struct psbench_zipf *z)
{
    double u, x, k;

    if (z->a == 0)
        return 1 + (uint64_t)(unit(z) * (double)z->n);
    for (;;) {
        u = z->h_last + unit(z) * (z->h_first - z->h_last);
        x = inverse(z, u);
        k = floor(x + 0.5);
        if (k < 1)
            k = 1;
        if (k > (double)z->n)
            k = (double)z->n;
        if (k - x <= z->squeeze || u >= integral(z, k + 0.5) - weight(z, k))
            return (uint64_t)k;
    }
}
