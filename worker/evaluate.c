#include "worker/evaluate.h"

#include <errno.h>
#include <string.h>
#include <systemd/sd-daemon.h>

/* A line for each row: the probability of each label. */
static int write_lines(FILE *out, const float *probs, uint32_t n, uint32_t n_tasks,
                       struct err *err)
{
    for (uint32_t i = 0; i < n * n_tasks; i++)
        if (fprintf(out, "%.9g%c", (double)probs[i], (i + 1) % n_tasks ? '\t' : '\n') < 0)
            return err_set(err, -EIO, "the predictions cannot be written: %s", strerror(errno));
    return 0;
}

/* metrics: of each label. */
static int add_metrics(struct metrics *metrics, const struct meta_learning_scores *scores,
                       uint32_t n_labels, struct err *err)
{
    for (uint32_t i = 0; i < n_labels; i++)
        if (metrics_add_column(&metrics[i], scores->probs + i, scores->labels + i, scores->n,
                               n_labels))
            return err_set(err, -ENOMEM, "no memory for the validation's probabilities");
    return 0;
}

static int result_of(const struct schema *schema, const struct metrics *metrics,
                     struct metrics_result *ret)
{
    const uint32_t n = schema_n_labels(schema);
    char names[METRICS_TASKS_MAX][SCHEMA_NAME_MAX];

    if (n == 1)
        return metrics_result(metrics, ret);
    for (uint32_t i = 0; i < n; i++)
        schema_label_id(schema, i, names[i]);
    return metrics_result_of_tasks(metrics, (const char(*)[64])names, n, ret);
}

/* One batch through the model; dense tables are pulled with the first only: nobody but other
 * workers changes them meanwhile. */
static int one_batch(const struct setup *u, struct model_tables *tables,
                     struct step_buffers *buffers, enum model_tables_want want,
                     struct meta_learning_scores *ret, struct err *err)
{
    struct dlrm_step step;
    int status = model_tables_pull(tables, buffers, want, err);

    if (status)
        return status;
    step = model_tables_use(tables, buffers);
    if (u->meta)
        status = meta_learning_predict(u->meta, &step, buffers->dense_grads, ret);
    else
        status = dlrm_predict(u->model, &step);
    if (!u->meta)
        *ret = (struct meta_learning_scores){ step.batch->n, dlrm_probs(u->model),
                                              step.batch->label };
    return status ? dlrm_failed(u->model, status, err) : 0;
}

static int pass(const struct setup *u, struct model_tables *tables,
                struct step_buffers *buffers, struct data_loader *loader, FILE *predictions,
                const struct evaluate_observer *observer, struct metrics *metrics,
                struct err *err)
{
    enum model_tables_want want = MODEL_TABLES_ALL;
    struct meta_learning_scores scores;
    struct batch *batch;
    int status;

    while ((status = data_loader_next(loader, &batch, err)) == 0 && batch) {
        buffers->batch = batch;
        status = one_batch(u, tables, buffers, want, &scores, err);
        if (!status && predictions)
            status =
                write_lines(predictions, dlrm_probs(u->model), batch->n, batch->n_labels, err);
        if (!status)
            status = add_metrics(metrics, &scores, batch->n_labels, err);
        if (status)
            return status;
        if (observer)
            observer->on_batch(observer->arg, batch);
        want = MODEL_TABLES_ROWS;
        sd_notify(0, "WATCHDOG=1");
    }
    return status;
}

int evaluate(const struct setup *u, struct model_tables *tables, uint64_t clock,
             FILE *predictions, struct metrics_result *ret, struct data_loader_bad_rows *bad,
             struct err *err)
{
    return evaluate_observed(u, tables, clock, predictions, NULL, ret, bad, err);
}

int evaluate_observed(const struct setup *u, struct model_tables *tables, uint64_t clock,
                      FILE *predictions, const struct evaluate_observer *observer,
                      struct metrics_result *ret, struct data_loader_bad_rows *bad,
                      struct err *err)
{
    struct metrics metrics[METRICS_TASKS_MAX] = { { 0 } };
    struct step_buffers buffers;
    struct data_loader_counts counts;
    struct data_loader *loader;
    int status;

    err->text[0] = 0;
    status = setup_loader(u, false, 0, 0, &loader, err);
    if (status)
        return status;
    status = model_tables_step_init(tables, &buffers, err);
    buffers.clock = clock;
    if (!status)
        status = pass(u, tables, &buffers, loader, predictions, observer, metrics, err);
    model_tables_step_deinit(tables, &buffers);
    data_loader_counts(loader, &counts);
    data_loader_bad_rows_add(bad, &counts);
    data_loader_close(loader);
    if (!status && counts.rows == 0)
        status = err_set(
            err, PS_EDATA, "there are no rows to read%s%.160s (%llu malformed ones)",
            counts.bad_rows ? ": " : "", counts.bad_row, (unsigned long long)counts.bad_rows);
    if (!status)
        status = result_of(u->schema, metrics, ret);
    if (!status && observer)
        observer->on_end(observer->arg, metrics, schema_n_labels(u->schema));
    for (uint32_t i = 0; i < METRICS_TASKS_MAX; i++)
        metrics_deinit(&metrics[i]);
    return status;
}
