#include "server/core/learning.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/snapshot_bytes.h"

/* ---- the limit ---- */

bool learning_may_report(struct worker *worker, uint64_t now_ms)
{
    const uint64_t share_ms = (uint64_t)worker->job->n_workers * LEARNING_SHARE_MS,
                   every_ms = share_ms > LEARNING_REPORT_MS ? share_ms : LEARNING_REPORT_MS;
    struct learning_worker *l = &worker->learning;

    if (l->due_ms > now_ms + LEARNING_BURST * every_ms)
        return false;
    l->due_ms = (l->due_ms > now_ms ? l->due_ms : now_ms) + every_ms;
    return true;
}

/* ---- the curve ---- */

int learning_open(struct job *job)
{
    if (!job->curve)
        job->curve = memory_try_alloc(sizeof *job->curve);
    return job->curve ? 0 : -ENOMEM;
}

void learning_reset(struct job *job)
{
    free(job->curve);
    job->curve = NULL;
}

static float mean(float a, double weight_a, float b, double weight_b)
{
    const double sum = weight_a + weight_b;

    return (float)((double)a * (weight_a / sum) + (double)b * (weight_b / sum));
}

static void add_loss(struct learning_point *p, float loss, uint64_t weight)
{
    if (!weight)
        return;
    p->loss = p->weight ? mean(p->loss, (double)p->weight, loss, (double)weight) : loss;
    p->weight = weight > UINT64_MAX - p->weight ? UINT64_MAX : p->weight + weight;
}

/* `later` joins `p`, the point before it. */
static void merge(struct learning_point *p, const struct learning_point *later)
{
    add_loss(p, later->loss, later->weight);
    p->unix_ms = later->unix_ms;
    p->clock = later->clock;
    p->samples = later->samples;
    p->samples_per_s = mean(p->samples_per_s, 1, later->samples_per_s, 1);
    if (isnan(later->logloss))
        return;
    p->auc = later->auc;
    p->logloss = later->logloss;
}

/* Half the points, of about as many samples each. */
static void halve(struct learning_curve *c)
{
    struct learning_point pair;

    c->began_ms = c->points[c->n - 2].unix_ms;
    c->began_samples = c->points[c->n - 2].samples;
    for (uint32_t i = 0; i < c->n / 2; i++) {
        pair = c->points[2 * i];
        merge(&pair, &c->points[2 * i + 1]);
        c->points[i] = pair;
    }
    c->n /= 2;
    /* An eighth less, so that reports that come a little early begin a point, too. */
    c->step_samples = (c->points[c->n - 1].samples - c->points[0].samples) / (c->n - 1);
    c->step_samples -= c->step_samples / 8;
}

/* `raw_ms` may have been set back. */
static bool begins_point(const struct learning_curve *c, uint64_t raw_ms, uint64_t samples)
{
    const uint64_t lasted_ms =
        raw_ms > c->began_ms ? raw_ms - c->began_ms : c->began_ms - raw_ms;

    return !c->n ||
           (lasted_ms >= LEARNING_POINT_MS && samples - c->began_samples >= c->step_samples);
}

static void add_point(struct learning_curve *c, const struct learning_point *next,
                      uint64_t raw_ms)
{
    if (c->n == LEARNING_POINTS_MAX)
        halve(c);
    c->began_ms = raw_ms;
    c->began_samples = next->samples;
    c->points[c->n++] = *next;
}

/* A report is of now: the rate of a point that grows is the newest one, and no mean. */
static void grow_point(struct learning_point *p, const struct learning_point *next)
{
    merge(p, next);
    p->samples_per_s = next->samples_per_s;
}

/* ---- a report ---- */

/* Takes the report; true if it brings a validation. Samples do not go back: a process that counts anew catches up. */
static bool take(struct worker *worker, const struct learning_report *report, uint64_t unix_ms)
{
    struct learning_worker *l = &worker->learning;
    const bool is_first = l->incarnation != worker->incarnation || !l->unix_ms;
    const bool is_validated =
        report->n_validations && (is_first || report->n_validations != l->n_validations);
    const uint64_t before = l->samples;

    if (!l->unix_ms)
        l->loss = l->auc = l->logloss = NAN;
    l->unix_ms = unix_ms ? unix_ms : 1;
    l->incarnation = worker->incarnation;
    l->samples = report->samples > before ? report->samples : before;
    l->samples_per_s = report->samples_per_s;
    l->n_validations = report->n_validations;
    l->kept_epoch = report->kept_epoch;
    l->kept_step = report->kept_step;
    if (report->steps) {
        l->weight = l->samples > before ? l->samples - before : 1;
        l->loss = report->loss;
        memcpy(l->busy, report->busy, sizeof l->busy);
    }
    if (is_validated) {
        l->validated_ms = l->unix_ms;
        l->auc = report->has_one_class ? NAN : report->auc;
        l->logloss = report->logloss;
    }
    return is_validated;
}

void learning_add(struct worker *worker, const struct learning_report *report,
                  uint64_t min_clock, uint64_t unix_ms)
{
    struct learning_curve *c = worker->job->curve;
    const bool is_validated = take(worker, report, unix_ms);
    const struct learning_worker *l = &worker->learning;
    struct learning_summary all;
    struct learning_point next = { .unix_ms = l->unix_ms,
                                   .clock = min_clock,
                                   .loss = NAN,
                                   .auc = is_validated ? l->auc : NAN,
                                   .logloss = is_validated ? l->logloss : NAN };

    learning_summarise(worker->job, &all);
    next.samples = all.samples;
    next.samples_per_s = all.samples_per_s;
    if (report->steps)
        add_loss(&next, l->loss, l->weight);
    if (c->n) {
        const struct learning_point *last = &c->points[c->n - 1];

        next.unix_ms = next.unix_ms > last->unix_ms ? next.unix_ms : last->unix_ms;
        next.samples = next.samples > last->samples ? next.samples : last->samples;
        if (!report->steps) /* a validation alone, maybe of a worker that has left */
            next.samples_per_s = last->samples_per_s;
    }
    if (begins_point(c, l->unix_ms, next.samples))
        add_point(c, &next, l->unix_ms);
    else
        grow_point(&c->points[c->n - 1], &next);
}

/* ---- a summary ---- */

static void add_worker(struct learning_summary *s, const struct worker *w, double *weight_sum,
                       uint64_t *validated_ms)
{
    const struct learning_worker *l = &w->learning;
    const double weight = (double)l->weight;

    s->samples += l->samples;
    s->unix_ms = l->unix_ms > s->unix_ms ? l->unix_ms : s->unix_ms;
    if (w->state == WORKER_LIVE)
        s->samples_per_s += l->samples_per_s;
    if (l->validated_ms > *validated_ms) {
        *validated_ms = l->validated_ms;
        s->auc = l->auc;
        s->logloss = l->logloss;
    }
    if (l->kept_epoch) {
        s->kept_epoch = l->kept_epoch;
        s->kept_step = l->kept_step;
    }
    if (isnan(l->loss) || !l->weight)
        return;
    s->loss = *weight_sum > 0 ? mean(s->loss, *weight_sum, l->loss, weight) : l->loss;
    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        s->busy[i] = mean(s->busy[i], *weight_sum, (float)((double)l->busy[i] / 1000), weight);
    *weight_sum += weight;
}

void learning_summarise(const struct job *job, struct learning_summary *ret)
{
    double weight_sum = 0;
    uint64_t validated_ms = 0;

    *ret = (struct learning_summary){ .loss = NAN, .auc = NAN, .logloss = NAN };
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i].learning.unix_ms)
            add_worker(ret, &job->workers[i], &weight_sum, &validated_ms);
}

/* ---- as bytes ---- */

#define NAN_BITS 0x7fc00000u /* of what is not known: one of many NaN */

static void put_float(struct snapshot_writer *w, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    snapshot_put_u32(w, isnan(value) ? NAN_BITS : bits);
}

/* Within 0 and max, or not known. */
static float get_maybe(struct snapshot_reader *src, float max)
{
    const uint32_t bits = snapshot_get_u32(src);
    float value;

    if (bits == NAN_BITS)
        return NAN;
    memcpy(&value, &bits, sizeof value);
    src->bad = src->bad || !learning_is_within(value, max);
    return value;
}

static uint64_t get_upto(struct snapshot_reader *src, uint64_t max)
{
    const uint64_t value = snapshot_get_u64(src);

    src->bad = src->bad || value > max;
    return value;
}

static void encode_curve(const struct learning_curve *c, struct snapshot_writer *w)
{
    snapshot_put_u64(w, c->step_samples);
    snapshot_put_u64(w, c->began_ms);
    snapshot_put_u64(w, c->began_samples);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct learning_point *p = &c->points[i];

        snapshot_put_u64(w, p->unix_ms);
        snapshot_put_u64(w, p->clock);
        snapshot_put_u64(w, p->samples);
        snapshot_put_u64(w, p->weight);
        put_float(w, p->samples_per_s);
        put_float(w, p->loss);
        put_float(w, p->auc);
        put_float(w, p->logloss);
    }
}

static void encode_worker(const struct worker *worker, struct snapshot_writer *w)
{
    const struct learning_worker *l = &worker->learning;

    snapshot_put_u32(w, worker->rank);
    snapshot_put_u64(w, l->unix_ms);
    snapshot_put_u64(w, l->incarnation);
    snapshot_put_u64(w, l->validated_ms);
    snapshot_put_u64(w, l->samples);
    snapshot_put_u64(w, l->weight);
    snapshot_put_u32(w, l->n_validations);
    put_float(w, l->samples_per_s);
    put_float(w, l->loss);
    put_float(w, l->auc);
    put_float(w, l->logloss);
    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        snapshot_put_u32(w, l->busy[i]);
}

void learning_encode(const struct job *job, struct snapshot_writer *w)
{
    uint32_t n_workers = 0;

    snapshot_put_u32(w, job->curve ? job->curve->n : 0);
    if (!job->curve || !job->curve->n)
        return;
    encode_curve(job->curve, w);
    for (uint32_t i = 0; i < job->n_workers; i++)
        n_workers += job->workers[i].learning.unix_ms != 0;
    snapshot_put_u32(w, n_workers);
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i].learning.unix_ms)
            encode_worker(&job->workers[i], w);
}

static void decode_curve(struct snapshot_reader *src, struct learning_curve *c, uint32_t n)
{
    c->step_samples = snapshot_get_u64(src);
    c->began_ms = get_upto(src, LEARNING_UNIX_MS_MAX);
    c->began_samples = snapshot_get_u64(src);
    for (c->n = 0; c->n < n && !src->bad; c->n++) {
        struct learning_point *p = &c->points[c->n];

        p->unix_ms = get_upto(src, LEARNING_UNIX_MS_MAX);
        p->clock = get_upto(src, MEMBERSHIP_CLOCK_END);
        p->samples = snapshot_get_u64(src);
        p->weight = snapshot_get_u64(src);
        /* A sum, over as many workers. */
        p->samples_per_s = get_maybe(src, LEARNING_RATE_MAX * MEMBERSHIP_N_WORKERS_MAX);
        p->loss = get_maybe(src, LEARNING_LOSS_MAX);
        p->auc = get_maybe(src, 1);
        p->logloss = get_maybe(src, LEARNING_LOSS_MAX);
        src->bad = src->bad || isnan(p->samples_per_s) || isnan(p->loss) != !p->weight ||
                   (c->n && (p->samples < p[-1].samples || p->unix_ms < p[-1].unix_ms));
    }
    src->bad = src->bad || c->began_samples > c->points[n - 1].samples;
}

static void decode_worker(struct snapshot_reader *src, struct learning_worker *l)
{
    l->unix_ms = get_upto(src, LEARNING_UNIX_MS_MAX);
    l->incarnation = snapshot_get_u64(src);
    l->validated_ms = get_upto(src, LEARNING_UNIX_MS_MAX);
    l->samples = get_upto(src, LEARNING_SAMPLES_MAX);
    l->weight = get_upto(src, LEARNING_SAMPLES_MAX);
    l->n_validations = snapshot_get_u32(src);
    l->samples_per_s = get_maybe(src, LEARNING_RATE_MAX);
    l->loss = get_maybe(src, LEARNING_LOSS_MAX);
    l->auc = get_maybe(src, 1);
    l->logloss = get_maybe(src, LEARNING_LOSS_MAX);
    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        l->busy[i] = (uint16_t)snapshot_get_upto(src, 1000);
    src->bad = src->bad || !l->unix_ms || isnan(l->samples_per_s);
}

int learning_decode(struct job *job, struct snapshot_reader *src)
{
    const uint32_t n = snapshot_get_upto(src, LEARNING_POINTS_MAX);
    uint32_t n_workers, next = 0;

    if (src->bad || !n)
        return 0;
    if (learning_open(job))
        return -ENOMEM;
    decode_curve(src, job->curve, n);
    n_workers = snapshot_get_upto(src, job->n_workers);
    for (uint32_t i = 0; i < n_workers && !src->bad; i++) {
        const uint32_t rank = snapshot_get_upto(src, job->n_workers - 1);

        src->bad = src->bad || rank < next;
        next = rank + 1;
        if (!src->bad)
            decode_worker(src, &job->workers[rank].learning);
    }
    return 0;
}
