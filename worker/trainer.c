#include "worker/trainer.h"

#include <math.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "common/log.h"
#include "worker/evaluate.h"

static bool validates(const struct trainer *t)
{
    return t->u->has_valid && t->s->rank == 0;
}

/* This worker was declared dead (its lease ran out) and has joined again: it goes on with the
 * batch at hand, at the clock where the others are. */
static void catch_up(struct trainer *t)
{
    uint64_t clock = t->store->ops->clock(t->store);

    log_warn("this worker had been declared dead and joined again; it goes on at clock %llu",
             (unsigned long long)clock);
    t->clock = clock > t->clock ? clock : t->clock;
}

static int gradients(struct trainer *t, const struct batch *batch, struct err *err)
{
    struct dlrm *model = t->u->model;
    const float *rows = tables_rows(t->tables), *wide = tables_wide(t->tables);
    double loss;
    int status = dlrm_forward(model, batch, rows, wide, true, t->clock);

    if (status)
        return err_set(err, status, "forward: %s", status_text(status));
    loss = dlrm_loss(model, batch);
    if (!isfinite(loss))
        return err_set(err, PS_ENAN,
                       "the loss is %g at step %llu: training has diverged; a lower --lr or "
                       "--clip-norm may help",
                       loss, (unsigned long long)t->state.step);
    t->state.loss_sum += loss;
    t->state.loss_n++;
    status = dlrm_backward(model, batch, rows, wide, tables_row_grads(t->tables),
                           tables_wide_grads(t->tables));
    return status ? err_set(err, status, "backward: %s", status_text(status)) : 0;
}

/* One mini-batch, once. */
static int attempt(struct trainer *t, const struct batch *batch, struct err *err)
{
    int status = tables_pull(t->tables, batch, t->clock, TABLES_STEP, err);

    if (!status && tables_stopped(t->tables, t->clock)) {
        t->stopped = "the validation AUC no longer rises";
        return 0;
    }
    if (!status)
        status = gradients(t, batch, err);
    return status ? status : tables_push(t->tables, batch, t->clock, err);
}

static int step(struct trainer *t, const struct batch *batch, struct err *err)
{
    int status = attempt(t, batch, err);

    while (status == PS_EFENCED && !stop_asked(t->stop)) {
        catch_up(t);
        status = attempt(t, batch, err);
    }
    if (status || t->stopped)
        return status;
    t->clock++;
    t->state.step++;
    t->state.samples += batch->n;
    return 0;
}

static void refresh(struct trainer *t, struct feed *feed)
{
    struct feed_counts counts;

    feed_counts(feed, &counts);
    t->state.bad_rows = t->bad_rows_before + counts.bad_rows;
    t->store->ops->stats(t->store, &t->state.store);
    progress_step(t->progress, &t->state);
    sd_notify(0, "WATCHDOG=1");
}

/* Early stop: AUC has not risen for --early-stop validations in a row. */
static int judge(struct trainer *t, double auc, struct err *err)
{
    if (auc > t->best_auc) {
        t->best_auc = auc;
        t->n_worse = 0;
        return 0;
    }
    if (!t->s->early_stop || t->told_stop || ++t->n_worse < t->s->early_stop)
        return 0;
    t->told_stop = true;
    return tables_tell_stop(t->tables, t->clock + 1, err);
}

static int validate(struct trainer *t, struct err *err)
{
    struct metrics_result result;
    int status;

    progress_pause(t->progress);
    status = evaluate(t->u, t->tables, t->clock, NULL, &result, &t->bad_rows_before, err);
    if (status == PS_EFENCED) {
        catch_up(t);
        status = evaluate(t->u, t->tables, t->clock, NULL, &result, &t->bad_rows_before, err);
    }
    if (!status) {
        progress_validation(t->progress, &t->state, &result);
        status = judge(t, result.auc, err);
    }
    progress_resume(t->progress);
    return status;
}

static bool ended(struct trainer *t)
{
    if (stop_asked(t->stop))
        t->stopped = "a signal asked for it";
    return t->stopped != NULL;
}

static int epoch(struct trainer *t, struct feed *feed, struct err *err)
{
    struct batch *batch;
    int status;

    while (!ended(t)) {
        status = feed_next(feed, &batch, err);
        if (status || !batch)
            return status;
        status = step(t, batch, err);
        if (status)
            return status;
        refresh(t, feed);
        if (t->s->eval_every && validates(t) && t->state.step % t->s->eval_every == 0)
            status = validate(t, err);
        if (status)
            return status;
    }
    return 0;
}

int trainer_run(struct trainer *t, struct err *err)
{
    int status = 0;

    t->best_auc = -1;
    t->state.n_epochs = t->s->epochs;
    t->clock = t->store->ops->clock(t->store);
    for (uint32_t e = 0; e < t->s->epochs && !status && !t->stopped; e++) {
        struct feed_counts counts;
        struct feed *feed;

        t->state.epoch = e;
        status = setup_feed(t->u, true, e, &feed, err);
        if (status)
            return status;
        status = epoch(t, feed, err);
        feed_counts(feed, &counts);
        t->bad_rows_before += counts.bad_rows;
        feed_close(feed);
        /* The last epoch's validation waits until the other workers are done: main's. */
        if (!status && validates(t) && !t->s->eval_every && e + 1 < t->s->epochs && !t->stopped)
            status = validate(t, err);
    }
    t->state.bad_rows = t->bad_rows_before;
    if (!status)
        status = t->store->ops->flush(t->store, err);
    if (status == PS_EFENCED) { /* told with the last pushes; the rest of them is gone */
        catch_up(t);
        status = t->store->ops->flush(t->store, err);
    }
    return status;
}
