#include "worker/evaluate.h"

#include <errno.h>
#include <string.h>
#include <systemd/sd-daemon.h>

static int write_lines(FILE *out, const float *probs, uint32_t n, struct err *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (fprintf(out, "%.9g\n", (double)probs[i]) < 0)
            return err_set(err, -EIO, "the predictions cannot be written: %s", strerror(errno));
    return 0;
}

/* One batch through the model; dense tables are pulled with the first only: nobody but other
 * workers changes them meanwhile. */
static int one_batch(const struct setup *u, struct model_tables *tables,
                     struct step_buffers *buffers, enum model_tables_want want, struct err *err)
{
    struct dlrm_step step;
    int status = model_tables_pull(tables, buffers, want, err);

    if (status)
        return status;
    step = model_tables_use(tables, buffers);
    status = dlrm_predict(u->model, &step);
    return status ? dlrm_failed(u->model, status, err) : 0;
}

static int pass(const struct setup *u, struct model_tables *tables,
                struct step_buffers *buffers, struct data_loader *loader, FILE *predictions,
                struct metrics *metrics, struct err *err)
{
    enum model_tables_want want = MODEL_TABLES_ALL;
    struct batch *batch;
    int status;

    while ((status = data_loader_next(loader, &batch, err)) == 0 && batch) {
        buffers->batch = batch;
        status = one_batch(u, tables, buffers, want, err);
        if (!status && predictions)
            status = write_lines(predictions, dlrm_probs(u->model), batch->n, err);
        if (!status && metrics_add(metrics, dlrm_probs(u->model), batch->label, batch->n))
            status = err_set(err, -ENOMEM, "no memory for the validation's probabilities");
        if (status)
            return status;
        want = MODEL_TABLES_ROWS;
        sd_notify(0, "WATCHDOG=1");
    }
    return status;
}

int evaluate(const struct setup *u, struct model_tables *tables, uint64_t clock,
             FILE *predictions, struct metrics_result *ret, struct data_loader_bad_rows *bad,
             struct err *err)
{
    struct metrics metrics = { 0 };
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
        status = pass(u, tables, &buffers, loader, predictions, &metrics, err);
    model_tables_step_deinit(tables, &buffers);
    data_loader_counts(loader, &counts);
    data_loader_bad_rows_add(bad, &counts);
    data_loader_close(loader);
    if (!status && counts.rows == 0)
        status = err_set(
            err, PS_EDATA, "there are no rows to read%s%.160s (%llu malformed ones)",
            counts.bad_rows ? ": " : "", counts.bad_row, (unsigned long long)counts.bad_rows);
    if (!status)
        status = metrics_result(&metrics, ret);
    metrics_deinit(&metrics);
    return status;
}
