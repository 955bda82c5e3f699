#include "worker/report/importance.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "common/hash.h"
#include "common/memory.h"
#include "common/number.h"
#include "worker/metrics.h"

struct pass {
    const struct importance_options *options;
    struct batch batch;          /* owned, as below */
    struct step_buffers buffers; /* its pulls */
    uint32_t *order;             /* [n]: a permutation of the sample's rows */
    bool has_dense;              /* the model has the dense arrays: nothing changes them */
};

struct scores {
    double auc, logloss;
};

/* ---- predictions of the sample ---- */

static int predict_batch(struct pass *p, struct metrics *metrics, struct err *err)
{
    const struct importance_options *o = p->options;
    struct dlrm_step step;
    int status =
        batch_dedup(&p->batch)
            ? err_set(err, -ENOMEM, "no memory for a batch's keys")
            : model_tables_pull(o->tables, &p->buffers,
                                p->has_dense ? MODEL_TABLES_ROWS : MODEL_TABLES_ALL, err);

    if (status)
        return status;
    p->has_dense = true;
    step = model_tables_use(o->tables, &p->buffers);
    status = dlrm_predict(o->setup->model, &step);
    if (status)
        return dlrm_failed(o->setup->model, status, err);
    for (uint32_t i = 0; i < p->batch.n_labels; i++)
        if (metrics_add_column(&metrics[i], dlrm_probs(o->setup->model) + i, p->batch.label + i,
                               p->batch.n, p->batch.n_labels))
            return err_set(err, -ENOMEM, "no memory for %u probabilities", p->batch.n);
    return 0;
}

/* Means over the labels; of the AUC, over those that have one. Rows that are dealt out keep their labels, so these are
 * the same ones each time. */
static int add_scores(struct metrics *metrics, uint32_t n_labels, struct scores *ret,
                      struct err *err)
{
    uint32_t n_ranked = 0;

    *ret = (struct scores){ 0 };
    for (uint32_t i = 0; i < n_labels; i++) {
        struct metrics_result one;

        if (metrics_result(&metrics[i], &one))
            return err_set(err, -ENOMEM, "no memory to rank %llu probabilities",
                           (unsigned long long)metrics[i].n);
        ret->auc += isfinite(one.auc) ? one.auc : 0;
        n_ranked += isfinite(one.auc) ? 1 : 0;
        ret->logloss += one.logloss / n_labels;
    }
    ret->auc = n_ranked ? ret->auc / n_ranked : (double)NAN;
    return 0;
}

static int predict(struct pass *p, const struct row_sample_swap *swap, struct scores *ret,
                   struct err *err)
{
    struct metrics metrics[METRICS_TASKS_MAX] = { { 0 } };
    const struct row_sample *s = p->options->sample;
    const uint32_t n_max = p->batch.n_max;
    int status = 0;

    for (uint32_t at = 0; at < s->n && !status; at += n_max) {
        const uint32_t n = s->n - at < n_max ? s->n - at : n_max;

        if (row_sample_fill(s, at, n, swap, &p->batch))
            status = err_set(err, -ENOMEM, "no memory for a batch's keys");
        if (!status)
            status = predict_batch(p, metrics, err);
        if (!status && p->options->stop && stop_signal_asked(p->options->stop))
            status = err_set(err, -ECANCELED, "stopped while it was measured");
        sd_notify(0, "WATCHDOG=1");
    }
    if (!status)
        status = add_scores(metrics, p->batch.n_labels, ret, err);
    for (uint32_t i = 0; i < METRICS_TASKS_MAX; i++)
        metrics_deinit(&metrics[i]);
    return status;
}

/* ---- columns ---- */

/* Fisher and Yates, with the generator's numbers in their order. */
static void permute(uint32_t *order, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = (uint32_t)(hash_mix2(seed, i) % (i + 1));

        order[i] = order[at];
        order[at] = i;
    }
}

/* column: numerics first. */
static int measure_column(struct pass *p, uint32_t column, const struct scores *base,
                          struct importance_column *ret, struct err *err)
{
    const struct schema *schema = p->options->setup->schema;
    const uint32_t n_numeric = p->options->sample->n_numeric;
    struct row_sample_swap swap = { .is_numeric = column < n_numeric, .from = p->order };
    struct scores scores = { 0 };
    int status;

    swap.column = swap.is_numeric ? column : column - n_numeric;
    *ret = (struct importance_column){ .is_numeric = swap.is_numeric,
                                       .auc_drop_min = INFINITY,
                                       .auc_drop_max = -INFINITY };
    if (swap.is_numeric)
        schema_numeric_id(schema, swap.column, ret->name);
    else
        schema_field_id(schema, swap.column, ret->name);
    for (uint32_t i = 0; i < IMPORTANCE_REPEATS; i++) {
        permute(p->order, p->options->sample->n,
                hash_mix2(p->options->seed, (uint64_t)column * IMPORTANCE_REPEATS + i));
        status = predict(p, &swap, &scores, err);
        if (status)
            return status;
        ret->auc_drop += (base->auc - scores.auc) / IMPORTANCE_REPEATS;
        ret->logloss_rise += (scores.logloss - base->logloss) / IMPORTANCE_REPEATS;
        ret->auc_drop_min = fmin(ret->auc_drop_min, base->auc - scores.auc);
        ret->auc_drop_max = fmax(ret->auc_drop_max, base->auc - scores.auc);
    }
    return 0;
}

static int by_drop(const void *a, const void *b)
{
    const struct importance_column *x = a, *y = b;

    return x->auc_drop > y->auc_drop ? -1 : x->auc_drop < y->auc_drop;
}

static int measure(struct pass *p, struct importance *ret, struct err *err)
{
    const struct row_sample *s = p->options->sample;
    const uint32_t n = s->n_numeric + s->n_fields;
    struct scores base = { 0 };
    int status = predict(p, NULL, &base, err);

    if (!status && n == 0)
        status = err_set(err, PS_EDATA, "there is no column");
    if (!status && !isfinite(base.auc))
        status =
            err_set(err, PS_EDATA,
                    "the %u validation row%s that were drawn are of one class alone, which "
                    "has no AUC: a larger --report-rows may help",
                    s->n, NUMBER_PLURAL(s->n));
    if (status)
        return status;
    *ret = (struct importance){ .n_rows = s->n, .auc = base.auc, .logloss = base.logloss };
    ret->columns = memory_try_alloc(n * sizeof *ret->columns);
    if (!ret->columns)
        return err_set(err, -ENOMEM, "no memory for %u columns", n);
    for (; ret->n < n && !status; ret->n += !status)
        status = measure_column(p, ret->n, &base, &ret->columns[ret->n], err);
    qsort(ret->columns, ret->n, sizeof *ret->columns, by_drop);
    return status;
}

int importance_measure(const struct importance_options *options, struct importance *ret,
                       struct err *err)
{
    const struct row_sample *s = options->sample;
    struct pass p = { .options = options };
    int status = 0;

    *ret = (struct importance){ 0 };
    if (s->n == 0)
        return err_set(err, PS_EDATA, "there are no validation rows");
    p.order = memory_try_alloc(s->n * sizeof *p.order);
    if (!p.order || batch_init_labels(&p.batch, NULL, options->setup->s->batch, s->n_labels,
                                      s->n_numeric, s->n_fields)) {
        free(p.order);
        return err_set(err, -ENOMEM, "no memory for a batch of %u rows",
                       options->setup->s->batch);
    }
    p.batch.groups = field_tables_groups(options->setup->fields);
    status = model_tables_step_init(options->tables, &p.buffers, err);
    p.buffers.batch = &p.batch;
    if (!status)
        status = measure(&p, ret, err);
    model_tables_step_deinit(options->tables, &p.buffers);
    batch_deinit(&p.batch);
    free(p.order);
    if (status)
        importance_deinit(ret);
    return status;
}

void importance_deinit(struct importance *i)
{
    free(i->columns);
    *i = (struct importance){ 0 };
}
