/* What is left: element by element over rows. */
#include "worker/compute/cpu.h"

#include <math.h>

#include "common/hash.h"

/* What is kept and what is not depends on the element's number alone: on no order, batch
 * size or thread. The bound is hash_unit() >= p in integers, which vector units compare
 * faster than they convert. */
CPU_CLONES static void drop(const struct dropout *d, float *restrict y, size_t n)
{
    const uint64_t key = d->key, least = (uint64_t)ceilf(d->p * 0x1p24f);
    const float scale = d->scale;

    for (size_t i = 0; i < n; i++)
        y[i] *= hash_mix2(key, i) >> 40 >= least ? scale : 0.0f;
}

void cpu_rows_dropout(struct compute *c, const struct dropout *d, float *y)
{
    (void)c;
    drop(d, y, (size_t)d->n * d->width);
}

void cpu_rows_add(struct compute *c, uint32_t n, uint32_t width, const float *a, uint32_t lda,
                  const float *b, uint32_t ldb, float *sum)
{
    (void)c;
    for (uint32_t s = 0; s < n; s++, a += lda, sum += width) {
        for (uint32_t o = 0; o < width; o++)
            sum[o] = a[o];
        for (uint32_t o = 0; b && o < width; o++)
            sum[o] += b[(size_t)s * ldb + o];
    }
}

void cpu_rows_axpy(struct compute *c, size_t n, float a, const float *x, float *y)
{
    (void)c;
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}
