#include "worker/report/training_history.h"

#include <math.h>

static void thin_points(struct training_history *h)
{
    for (uint32_t i = 0; i < h->n / 2; i++) {
        h->samples[i] = h->samples[2 * i + 1];
        h->seconds[i] = h->seconds[2 * i + 1];
        h->loss[i] = (h->loss[2 * i] + h->loss[2 * i + 1]) / 2;
    }
    h->n /= 2;
    h->stride *= 2;
}

static void add_point(struct training_history *h, double samples, double seconds)
{
    if (h->n == TRAINING_HISTORY_POINTS)
        thin_points(h);
    h->samples[h->n] = samples;
    h->seconds[h->n] = seconds;
    h->loss[h->n++] = h->loss_sum / (double)h->n_steps;
    h->loss_sum = 0;
    h->n_steps = 0;
}

void training_history_loss(struct training_history *h, double loss)
{
    h->loss_sum += loss;
    h->n_steps++;
}

void training_history_step(struct training_history *h, double samples, double seconds)
{
    if (!h->stride)
        h->stride = 1;
    if (h->n_steps >= h->stride)
        add_point(h, samples, seconds);
}

void training_history_end(struct training_history *h, double samples, double seconds)
{
    if (h->n_steps)
        add_point(h, samples, seconds);
}

static void thin_validations(struct training_history *h)
{
    for (uint32_t i = 0; i < h->n_validations / 2; i++) {
        h->epoch[i] = h->epoch[2 * i + 1];
        h->valid_samples[i] = h->valid_samples[2 * i + 1];
        h->auc[i] = h->auc[2 * i + 1];
        h->logloss[i] = h->logloss[2 * i + 1];
    }
    h->n_validations /= 2;
}

void training_history_validation(struct training_history *h, uint32_t epoch, double samples,
                                 const struct metrics_result *result)
{
    if (h->n_validations == TRAINING_HISTORY_POINTS)
        thin_validations(h);
    h->epoch[h->n_validations] = epoch;
    h->valid_samples[h->n_validations] = samples;
    h->auc[h->n_validations] = result->auc;
    h->logloss[h->n_validations++] = result->logloss;
}

void training_history_rates(const struct training_history *h,
                            double ret[static TRAINING_HISTORY_POINTS])
{
    double samples = h->samples_start, seconds = 0;

    for (uint32_t i = 0; i < h->n; i++) {
        const double lasted = h->seconds[i] - seconds;

        ret[i] = lasted > 0 ? (h->samples[i] - samples) / lasted : (double)NAN;
        samples = h->samples[i];
        seconds = h->seconds[i];
    }
}
