#include "worker/report/calibration.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

/* Probabilities are not negative, so their bits compare as they do. */
static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static float prob_of(uint64_t sample)
{
    const uint32_t bits = (uint32_t)(sample >> 32);
    float prob;

    memcpy(&prob, &bits, sizeof prob);
    return prob;
}

/* Wilson 1927: of n draws of which a share p succeeded. */
static void set_interval(struct calibration_bin *bin)
{
    const double z = 1.959964, n = (double)bin->n, p = bin->observed, z2 = z * z / n,
                 middle = (p + z2 / 2) / (1 + z2),
                 half = z / (1 + z2) * sqrt(p * (1 - p) / n + z2 / (4 * n));

    bin->observed_low = middle - half > 0 ? middle - half : 0;
    bin->observed_high = middle + half < 1 ? middle + half : 1;
}

static void set_bin(struct calibration_bin *bin, const uint64_t *samples, uint64_t n)
{
    double sum = 0;

    *bin = (struct calibration_bin){ .n = n,
                                     .low = (double)prob_of(samples[0]),
                                     .high = (double)prob_of(samples[n - 1]) };
    for (uint64_t i = 0; i < n; i++) {
        sum += (double)prob_of(samples[i]);
        bin->n_positive += samples[i] & 1;
    }
    bin->predicted = sum / (double)n;
    bin->observed = (double)bin->n_positive / (double)n;
    set_interval(bin);
}

/* Where the bin that begins at `start` ends, if it is to hold all up to `end`. */
static uint64_t with_equals(const uint64_t *samples, uint64_t n, uint64_t start, uint64_t end)
{
    while (end > start && end < n && samples[end] >> 32 == samples[end - 1] >> 32)
        end++;
    return end;
}

int calibration_of(const struct metrics *m, struct calibration *ret)
{
    uint64_t *samples = m->n ? memory_try_alloc(m->n * sizeof *samples) : NULL, start = 0, end;

    *ret = (struct calibration){ 0 };
    if (m->n && !samples)
        return -ENOMEM;
    for (uint64_t i = 0; i < m->n; i++) {
        const float prob = m->probs[i] + 0.0f;
        uint32_t bits;

        if (!(prob >= 0)) {
            free(samples);
            return 0;
        }
        memcpy(&bits, &prob, sizeof bits);
        samples[i] = (uint64_t)bits << 32 | (m->labels[i] > 0.5f);
    }
    if (samples)
        qsort(samples, m->n, sizeof *samples, compare);
    for (uint32_t i = 0; i < CALIBRATION_BINS; i++) {
        end = with_equals(samples, m->n, start, m->n * (i + 1) / CALIBRATION_BINS);
        if (end <= start)
            continue;
        set_bin(&ret->bins[ret->n++], samples + start, end - start);
        start = end;
    }
    free(samples);
    return 0;
}
