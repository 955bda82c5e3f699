#include "worker/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define CLIP 1e-7
#define DIGIT_BITS 11u
#define N_DIGIT_VALUES (1u << DIGIT_BITS)
#define N_DIGITS 3u

/* A sample as one number: its probability, in an order that u64 shares with float, above its
 * label. */
struct ranked {
    uint64_t *samples, *swap; /* owned, [n] */
    uint64_t n;
};

static int grow(float **array, uint64_t cap)
{
    float *moved = memory_try_realloc(*array, cap * sizeof **array);

    if (!moved)
        return -ENOMEM;
    *array = moved;
    return 0;
}

int metrics_add(struct metrics *m, const float *probs, const float *labels, uint32_t n)
{
    return metrics_add_column(m, probs, labels, n, 1);
}

int metrics_add_column(struct metrics *m, const float *probs, const float *labels, uint32_t n,
                       uint32_t ld)
{
    if (n == 0)
        return 0;
    if (m->n + n > m->cap) {
        uint64_t cap = m->cap * 2 > m->n + n ? m->cap * 2 : m->n + n;

        if (grow(&m->probs, cap) || grow(&m->labels, cap))
            return -ENOMEM;
        m->cap = cap;
    }
    for (size_t i = 0; i < n; i++) {
        m->probs[m->n + i] = probs[i * ld];
        m->labels[m->n + i] = labels[i * ld];
    }
    m->n += n;
    return 0;
}

void metrics_deinit(struct metrics *m)
{
    free(m->probs);
    free(m->labels);
    *m = (struct metrics){ 0 };
}

/* Bits that compare as the floats do: negative ones turned round, positive ones above them. -0
 * and 0 tie. */
static uint32_t ordered_bits(float x)
{
    uint32_t bits;

    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

static uint32_t digit(uint64_t sample, unsigned d)
{
    return (uint32_t)(sample >> (32 + d * DIGIT_BITS)) & (N_DIGIT_VALUES - 1);
}

/* Radix sort by probability, least digit first. */
static void sort(struct ranked *r)
{
    uint64_t next[N_DIGIT_VALUES], sum, *kept;

    for (unsigned d = 0; d < N_DIGITS; d++) {
        memset(next, 0, sizeof next);
        for (uint64_t i = 0; i < r->n; i++)
            next[digit(r->samples[i], d)]++;
        sum = 0;
        for (uint32_t v = 0; v < N_DIGIT_VALUES; v++) {
            uint64_t n = next[v];

            next[v] = sum;
            sum += n;
        }
        for (uint64_t i = 0; i < r->n; i++)
            r->swap[next[digit(r->samples[i], d)]++] = r->samples[i];
        kept = r->samples;
        r->samples = r->swap;
        r->swap = kept;
    }
}

/*
 * Of all (positive, negative) pairs, the share in which the positive ranks higher, a tie
 * counting half: Hanley and McNeil 1982. Counted in halves of pairs, in integers, so exact up
 * to 2^32 samples.
 */
static double auc_of(const struct ranked *r, uint64_t n_positive)
{
    uint64_t n_negative = r->n - n_positive, n_below = 0, halves = 0;

    for (uint64_t i = 0, end; i < r->n; i = end) {
        uint64_t positive = 0, negative;

        for (end = i; end < r->n && r->samples[end] >> 32 == r->samples[i] >> 32; end++)
            positive += r->samples[end] & 1;
        negative = end - i - positive;
        halves += positive * (2 * n_below + negative);
        n_below += negative;
    }
    return (double)halves / (2 * (double)n_positive * (double)n_negative);
}

static int rank_samples(const struct metrics *m, double *ret_auc, uint64_t n_positive)
{
    struct ranked r = { .n = m->n };
    int status = 0;

    r.samples = memory_try_alloc(m->n * sizeof *r.samples);
    r.swap = memory_try_alloc(m->n * sizeof *r.swap);
    if (r.samples && r.swap) {
        for (uint64_t i = 0; i < m->n; i++)
            r.samples[i] = (uint64_t)ordered_bits(m->probs[i]) << 32 | (m->labels[i] > 0.5f);
        sort(&r);
        *ret_auc = auc_of(&r, n_positive);
    } else {
        status = -ENOMEM;
    }
    free(r.samples);
    free(r.swap);
    return status;
}

static double loss(float prob, float label)
{
    double p = (double)prob, y = (double)label;

    p = p < CLIP ? CLIP : p > 1 - CLIP ? 1 - CLIP : p;
    return -(y * log(p) + (1 - y) * log1p(-p));
}

/* Of a coin that falls on one side with probability p, in nats. */
static double entropy(double p)
{
    return -(p * log(p) + (1 - p) * log1p(-p));
}

int metrics_result(const struct metrics *m, struct metrics_result *ret)
{
    struct metrics_result result = { .n = m->n, .auc = NAN, .ne = NAN };
    double sum_loss = 0, sum_probs = 0, sum_labels = 0, n = (double)m->n;

    for (uint64_t i = 0; i < m->n; i++) {
        result.n_positive += m->labels[i] > 0.5f;
        sum_loss += loss(m->probs[i], m->labels[i]);
        sum_probs += (double)m->probs[i];
        sum_labels += (double)m->labels[i];
    }
    /* 0 / 0 is NaN: of no samples, nothing is known; without a positive there is no
     * calibration. */
    result.logloss = sum_loss / n;
    result.calibration = sum_labels > 0 ? sum_probs / sum_labels : NAN;
    if (result.n_positive > 0 && result.n_positive < m->n) {
        result.ne = result.logloss / entropy(sum_labels / n);
        /* One NaN among the probabilities makes the loss NaN; there is no rank for it
         * either. */
        if (!isnan(sum_probs) && rank_samples(m, &result.auc, result.n_positive))
            return -ENOMEM;
    }
    *ret = result;
    return 0;
}

int metrics_result_of_tasks(const struct metrics *m, const char (*labels)[64], uint32_t n,
                            struct metrics_result *ret)
{
    struct metrics_result mean = { .n_tasks = n };

    for (uint32_t i = 0; i < n; i++) {
        struct metrics_task *task = &mean.tasks[i];
        struct metrics_result one;

        if (metrics_result(&m[i], &one))
            return -ENOMEM;
        *task = (struct metrics_task){
            .auc = one.auc, .logloss = one.logloss, .ne = one.ne, .calibration = one.calibration
        };
        memcpy(task->label, labels[i], sizeof task->label);
        mean.n = one.n;
        mean.n_positive = i ? mean.n_positive : one.n_positive;
        mean.auc += one.auc / n;
        mean.logloss += one.logloss / n;
        mean.ne += one.ne / n;
        mean.calibration += one.calibration / n;
    }
    *ret = mean;
    return 0;
}
