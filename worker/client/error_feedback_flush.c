#include "worker/client/error_feedback_flush.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define BATCHES 16u                   /* so many pushes like this one find room afterwards */
#define BYTES_MAX (UINT64_C(8) << 20) /* of the rows that go with one push */

void error_feedback_flush_deinit(struct error_feedback_flush *s)
{
    free(s->keys);
    free(s->values);
    *s = (struct error_feedback_flush){ 0 };
}

bool error_feedback_flush_is_due(const struct error_feedback *r, const uint64_t *keys,
                                 uint32_t n_keys)
{
    return (uint64_t)r->n_rows + n_keys > r->rows_max &&
           r->n_rows + error_feedback_n_absent(r, keys, n_keys) > r->rows_max;
}

/* How many rows go: BATCHES times the section's, but no more than a quarter of all, and as many
 * as BYTES_MAX holds. */
static uint64_t n_to_go(const struct error_feedback *r, uint32_t n_keys)
{
    uint64_t n = (uint64_t)n_keys * BATCHES, most = r->n_rows / 4 + 1;
    uint64_t fit = BYTES_MAX / (r->dim * sizeof(float) + sizeof(uint64_t));

    n = n < most ? n : most;
    n = n < fit ? n : fit;
    return n < r->n_rows ? n : r->n_rows;
}

/* The key at `at` goes down to its place in the heap keys[0 .. n), the largest on top. */
static void sink(uint64_t *keys, uint64_t n, uint64_t at)
{
    uint64_t key = keys[at], child;

    for (; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && keys[child + 1] > keys[child];
        if (keys[child] <= key)
            break;
        keys[at] = keys[child];
    }
    keys[at] = key;
}

/* In place: qsort() would ask for memory. */
static void sort(uint64_t *keys, uint64_t n)
{
    uint64_t i;

    for (i = n / 2; i-- > 0;)
        sink(keys, n, i);
    for (i = n; i > 1; i--) {
        uint64_t most = keys[0];

        keys[0] = keys[i - 1];
        keys[i - 1] = most;
        sink(keys, i - 1, 0);
    }
}

/* *array with room for n elements. */
static int reserve(void **array, uint64_t *cap, uint64_t n, size_t element_bytes)
{
    void *grown;

    if (n <= *cap)
        return 0;
    grown = memory_try_realloc(*array, n * element_bytes);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *cap = n;
    return 0;
}

/* The section's keys and the oldest rows', ascending, each once. */
static void collect_keys(struct error_feedback_flush *s, const struct error_feedback *r,
                         const uint64_t *keys, uint64_t n, uint64_t n_old)
{
    uint64_t n_unique = 0, i;
    uint32_t row = r->oldest;

    if (n)
        memcpy(s->keys, keys, n * sizeof *s->keys);
    for (; n_old; n_old--, row = r->newer[row - 1])
        s->keys[n++] = r->keys[row - 1];
    sort(s->keys, n);
    for (i = 0; i < n; i++)
        if (i == 0 || s->keys[i] != s->keys[i - 1])
            s->keys[n_unique++] = s->keys[i];
    s->n_keys = (uint32_t)n_unique;
}

int error_feedback_flush_collect(struct error_feedback_flush *s, const struct error_feedback *r,
                                 const uint64_t *keys, uint32_t n_keys)
{
    uint64_t n_old = n_to_go(r, n_keys);

    if (n_keys + n_old > UINT32_MAX ||
        reserve((void **)&s->keys, &s->cap_keys, n_keys + n_old + 1, sizeof *s->keys))
        return -ENOMEM;
    collect_keys(s, r, keys, n_keys, n_old);
    return 0;
}

/* The sum, or the one that there is, as it is. */
static void add_row(float *dst, const float *grad, const float *residual, uint32_t dim)
{
    uint32_t j;

    if (!grad || !residual) {
        memcpy(dst, grad ? grad : residual, dim * sizeof *dst);
        return;
    }
    for (j = 0; j < dim; j++)
        dst[j] = grad[j] + residual[j];
}

/* Residual plus gradient, or the one that the row has. Both lists ascend, so one pass merges them. */
static void add_up(struct error_feedback_flush *s, const struct error_feedback *r,
                   const struct ps_push_section *section)
{
    uint32_t i, k = 0;

    for (i = 0; i < s->n_keys; i++) {
        const float *residual = error_feedback_find(r, s->keys[i]);
        const float *grad = NULL;

        if (k < section->n_keys && section->keys[k] == s->keys[i])
            grad = section->values + (size_t)k++ * r->dim;
        add_row(s->values + (size_t)i * r->dim, grad, residual, r->dim);
    }
}

int error_feedback_flush_prepare(struct error_feedback_flush *s, const struct error_feedback *r,
                                 const struct ps_push_section *section)
{
    int status = error_feedback_flush_collect(s, r, section->keys, section->n_keys);

    if (!status)
        status = reserve((void **)&s->values, &s->cap_floats, (uint64_t)s->n_keys * r->dim,
                         sizeof *s->values);
    if (!status)
        add_up(s, r, section);
    return status;
}
