/* What is left: element by element over rows. */
#include <math.h>
#include <string.h>

#include "common/hash.h"
#include "worker/compute/cpu.h"
#include "worker/compute/cpu_epilogue.h"

/* Floats of a task of an op that knows no samples. */
enum { FLOATS = 1 << 14 };

/* Only as the definition: here nothing need be copied. */
void cpu_rows_upload(struct compute *c, uint32_t slot, const struct row_upload *u)
{
    const size_t n_bytes = u->dim * sizeof *u->rows;

    (void)c, (void)slot;
    for (size_t r = 0; r < u->n; r++) {
        float *row = u->rows + r * u->dim;
        float *kept = u->kept + (size_t)(u->how[r] & ~COMPUTE_ROW_THERE) * u->dim;
        const bool is_there = u->how[r] & COMPUTE_ROW_THERE;

        memcpy(row, is_there ? kept : u->host + r * u->dim, n_bytes);
        if (!is_there && u->how[r] != COMPUTE_ROW_NOWHERE)
            memcpy(kept, row, n_bytes);
    }
}

struct drop {
    const struct dropout *d;
    float *y;
};

/* What is kept and what is not depends on the element's number alone: on no order, batch
 * size or thread. The bound is hash_unit() >= p in integers, which vector units compare
 * faster than they convert. */
CPU_CLONES static void drop(const struct dropout *d, float *restrict y, size_t first,
                            size_t end)
{
    const uint64_t key = *d->key, least = (uint64_t)ceilf(d->p * 0x1p24f);
    const float scale = d->scale;

    for (size_t i = first; i < end; i++)
        y[i] *= hash_mix2(key, i) >> 40 >= least ? scale : 0.0f;
}

static void drop_samples(void *job, uint32_t task, uint32_t thread)
{
    const struct drop *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->d->n);

    (void)thread;
    drop(j->d, j->y, (size_t)r.first * j->d->width, (size_t)r.end * j->d->width);
}

void cpu_rows_dropout(struct compute *c, const struct dropout *d, float *y)
{
    struct drop job = { d, y };

    cpu_run(c, cpu_ceil_div(d->n, CPU_SAMPLES), drop_samples, &job);
}

struct add {
    uint32_t n, width, lda, ldb;
    const float *a, *b;
    const struct relu_mask *mask;
    float *sum;
};

static void add_samples(void *job, uint32_t task, uint32_t thread)
{
    const struct add *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->n);
    float *sum = j->sum + (size_t)r.first * j->width;
    const struct relu_mask mask = cpu_mask_at(j->mask, r.first);

    (void)thread;
    for (uint32_t s = r.first; s < r.end; s++) {
        const float *a = j->a + (size_t)s * j->lda,
                    *b = j->b ? j->b + (size_t)s * j->ldb : NULL;
        float *to = j->sum + (size_t)s * j->width;

        for (uint32_t o = 0; o < j->width; o++)
            to[o] = b ? a[o] + b[o] : a[o];
    }
    cpu_epilogue_mask(r.end - r.first, j->width, sum, j->width, j->mask ? &mask : NULL, sum,
                      j->width);
}

void cpu_rows_add(struct compute *c, uint32_t n, uint32_t width, const float *a, uint32_t lda,
                  const float *b, uint32_t ldb, const struct relu_mask *mask, float *sum)
{
    struct add job = { n, width, lda, ldb, a, b, mask, sum };

    cpu_run(c, cpu_ceil_div(n, CPU_SAMPLES), add_samples, &job);
}

struct axpy {
    size_t n;
    float a;
    const float *x;
    float *y;
};

CPU_CLONES static void axpy(size_t n, float a, const float *restrict x, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void axpy_part(void *job, uint32_t task, uint32_t thread)
{
    const struct axpy *j = job;
    const size_t first = (size_t)task * FLOATS, left = j->n - first;

    (void)thread;
    axpy(left < FLOATS ? left : FLOATS, j->a, j->x + first, j->y + first);
}

void cpu_rows_axpy(struct compute *c, size_t n, float a, const float *x, float *y)
{
    struct axpy job = { n, a, x, y };

    cpu_run(c, (uint32_t)((n + FLOATS - 1) / FLOATS), axpy_part, &job);
}
