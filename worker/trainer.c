#include "worker/trainer.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "common/log_line.h"
#include "common/number.h"
#include "worker/client/ps_settings.h"
#include "worker/evaluate.h"
#include "worker/plateau.h"
#include "worker/wait_monitor.h"

static uint32_t buffer_set_of(const struct trainer *t, uint64_t step)
{
    return (uint32_t)(step % t->n_sets);
}

static bool validates(const struct trainer *t)
{
    return t->u->has_valid && t->s->rank == 0;
}

/* Of the oldest step that has begun; with --meta it is done when it has begun. */
static int end_on_device(struct trainer *t, uint32_t set, double *ret_loss)
{
    *ret_loss = t->meta_loss;
    return t->u->meta ? 0 : dlrm_step_end(t->u->model, set, ret_loss);
}

/* Ends the steps that the device has begun, without a push. */
static void drop_steps(struct trainer *t)
{
    double loss;
    int status;

    for (; t->n_ended < t->n_begun; t->n_ended++) {
        status = end_on_device(t, buffer_set_of(t, t->n_ended), &loss);
        if (status)
            log_line_debug("a step that was dropped: %s", status_text(status));
    }
    t->keeps = NULL;
}

/* This worker was declared dead (its lease ran out) and has joined again: it goes on with the
 * batches at hand, at the clock where the others are. */
static void catch_up(struct trainer *t)
{
    drop_steps(t);
    t->clock = pipeline_restart(t->pipeline);
    log_line_warn(
        "this worker had been declared dead and joined again; it goes on at clock %llu",
        (unsigned long long)t->clock);
}

/* The device allocates for a step when its size is known: at the first large batch. */
static int begin_failed(const struct trainer *t, int status, struct err *err)
{
    struct err why;

    (void)dlrm_failed(t->u->model, status, &why);
    return err_set(err, status, "%.300s%s", why.text,
                   status == -ENOMEM ? "; a smaller --batch, --device-cache or --residual-max "
                                       "leaves more of it to a step"
                                     : "");
}

static int begin_step(struct trainer *t, struct step_buffers *buffers, struct err *err)
{
    struct dlrm_step step;
    int status = model_tables_begin(t->tables, buffers, &step, err);

    if (status)
        return status;
    status = t->u->meta
                 ? meta_learning_step(t->u->meta, &step, buffers->dense_grads, &t->meta_loss)
                 : dlrm_step_begin(t->u->model, buffer_set_of(t, t->n_begun), &step);
    if (status)
        return begin_failed(t, status, err);
    t->clocks[buffer_set_of(t, t->n_begun++)] = buffers->clock;
    t->keeps = model_tables_copies_residuals(t->tables, buffers) ? buffers : NULL;
    return 0;
}

/* The oldest one that has begun. */
static int end_step(struct trainer *t, struct err *err)
{
    const uint32_t at = buffer_set_of(t, t->n_ended++);
    double loss;
    int status = end_on_device(t, at, &loss);

    if (status)
        return dlrm_failed(t->u->model, status, err);
    if (!isfinite(loss))
        return err_set(err, PS_ENAN,
                       "the loss is %g at step %llu: training has diverged; a lower --lr%s or "
                       "--clip-norm may help",
                       loss, (unsigned long long)t->clocks[at],
                       t->u->s->meta[0] ? ", --meta-inner-lr" : "");
    progress_loss(&t->state, loss);
    training_report_loss(t->report, loss);
    if (t->keeps && t->n_ended == t->n_begun) {
        model_tables_copy_residuals(t->tables, t->keeps);
        t->keeps = NULL;
    }
    return 0;
}

/* The next one that can begin now, or NULL. */
static struct step_buffers *next_ready(struct trainer *t)
{
    bool is_full = t->n_begun - t->n_ended == t->n_sets;

    return is_full || t->keeps ? NULL : pipeline_ready(t->pipeline);
}

/* As many steps as the device takes at a time; only the first one is waited for. */
static int begin_steps(struct trainer *t, struct err *err)
{
    struct step_buffers *buffers = NULL;
    int status = 0;

    if (t->n_begun == t->n_ended)
        status = pipeline_next(t->pipeline, &buffers, err);
    else
        buffers = next_ready(t);
    while (!status && buffers) {
        if (model_tables_stopped(t->tables, buffers)) {
            t->stopped = t->s->best_by == BEST_BY_LOGLOSS
                             ? "the validation log-loss no longer falls"
                             : "the validation AUC no longer rises";
            break;
        }
        status = begin_step(t, buffers, err);
        buffers = next_ready(t);
    }
    return status;
}

static int finish_step(struct trainer *t, struct err *err)
{
    int status = end_step(t, err);

    return status ? status : pipeline_done(t->pipeline, err);
}

/* One mini-batch, or a sign that there is none left: *ret_more. */
static int attempt(struct trainer *t, bool *ret_more, struct err *err)
{
    int status = begin_steps(t, err);

    *ret_more = !status && t->n_begun > t->n_ended;
    return *ret_more ? finish_step(t, err) : status;
}

/* A pull that a stop has ended (wait_monitor.h) is no failure. */
static int unless_stopped(const struct trainer *t, int status)
{
    return status == -ECANCELED && stop_signal_asked(t->stop) ? 0 : status;
}

/* The same, however often this worker is declared dead meanwhile. */
static int step(struct trainer *t, bool *ret_more, struct err *err)
{
    int status = attempt(t, ret_more, err);

    while (status == PS_EFENCED && !stop_signal_asked(t->stop)) {
        catch_up(t);
        status = attempt(t, ret_more, err);
    }
    return unless_stopped(t, status);
}

static void stages_now(struct trainer *t, struct stage_times *ret)
{
    const struct ps_stats *store = &t->state.store;
    struct stage_times waited = { 0 };
    uint64_t park_ns;

    model_tables_stats(t->tables, &t->state.store);
    t->state.device_rows = dlrm_row_counts(t->u->model);
    pipeline_stages(t->pipeline, ret);
    ret->ns[STAGE_NETWORK] = store->net_ns / t->s->net_threads;
    park_ns = store->park_ns / pipeline_n_fetchers(t->pipeline);
    ret->ns[STAGE_SERVERS] = park_ns > store->window_ns ? park_ns : store->window_ns;
    waited.ns[STAGE_FETCH] = park_ns;
    waited.ns[STAGE_DELIVER] = store->window_ns;
    *ret = stage_times_since(ret, &waited);
    *ret = stage_times_since(ret, &t->outside);
}

/* Updates the counters: delivered steps and samples. */
static void refresh(struct trainer *t)
{
    struct pipeline_totals totals;

    pipeline_totals(t->pipeline, &totals);
    t->state.step = totals.steps;
    t->state.samples = totals.samples;
    t->clock = pipeline_clock(t->pipeline);
    t->state.clock = t->clock;
    stages_now(t, &t->state.stages);
}

/* A name where a value is expected, in the first line of a file. */
static bool may_be_header(const struct trainer *t)
{
    return !t->s->header && strstr(t->state.bad.first, ":1: column ");
}

/* The first one is logged at once: all rows may have the same mistake. */
static void count_bad_rows(struct trainer *t, const struct data_loader_counts *counts)
{
    t->state.bad = t->bad_before;
    data_loader_bad_rows_add(&t->state.bad, counts);
    if (!t->state.bad.n || !t->state.step || t->bad_row_logged)
        return;
    t->bad_row_logged = true;
    log_line_warn("%s: skipped, as up to %llu malformed rows are (--bad-rows-max)%s",
                  t->state.bad.first, (unsigned long long)t->s->bad_rows_max,
                  may_be_header(t) ? "; is this line a header? --header" : "");
}

static void report(struct trainer *t, struct data_loader *loader)
{
    struct data_loader_counts counts;

    data_loader_counts(loader, &counts);
    count_bad_rows(t, &counts);
    refresh(t);
    progress_step(t->progress, &t->state);
    training_report_step(t->report, &t->state, progress_seconds(t->progress));
    sd_notify(0, "WATCHDOG=1");
}

/* Above 0, and the larger the better. */
static double score_of(const struct trainer *t, const struct metrics_result *result)
{
    return t->s->best_by == BEST_BY_LOGLOSS ? exp(-result->logloss) : result->auc;
}

bool trainer_is_best(const struct trainer *t, const struct metrics_result *result)
{
    return score_of(t, result) > t->mark->best_score;
}

struct kept_model trainer_kept(const struct trainer *t, const struct metrics_result *result)
{
    return (struct kept_model){ .epoch = t->state.epoch,
                                .step = t->steps_before + t->state.step,
                                .score = score_of(t, result),
                                .auc = result->auc,
                                .logloss = result->logloss };
}

/* --decay plateau. A rate that has fallen before is set again each time: a psd that crashed may have lost it. */
static int check_plateau(struct trainer *t, bool is_better, struct err *err)
{
    const struct plateau_rule rule = plateau_rule_of(t->s);
    const float factor = model_tables_rate_factor(t->tables);
    float next;

    if (t->s->decay != TABLE_SPEC_DECAY_PLATEAU)
        return 0;
    next = plateau_next(&rule, factor, is_better, &t->mark->n_flat);
    if (next < factor)
        log_line_info(
            "the validation %s: the learning rates are %g of what they began with, %g "
            "until now",
            t->s->best_by == BEST_BY_LOGLOSS ? "log-loss no longer falls"
                                             : "AUC no longer rises",
            (double)next, (double)factor);
    if (next >= 1)
        return 0;
    sync_policy_save_resume_point(model_tables_sync_policy(t->tables));
    return model_tables_set_rate_factor(t->tables, next, err);
}

/* Early stop: no validation was better for --early-stop of them in a row. */
static int check_early_stop(struct trainer *t, bool is_better, struct err *err)
{
    struct resume_point *mark = t->mark;

    if (is_better)
        mark->n_worse = 0;
    if (is_better || !t->s->early_stop || mark->stop_set || ++mark->n_worse < t->s->early_stop)
        return 0;
    mark->stop_set = true;
    sync_policy_save_resume_point(model_tables_sync_policy(t->tables));
    return model_tables_set_stop(t->tables, t->clock + 1, err);
}

/* The resume point knows of the validation before a push can store it. */
static int use_validation(struct trainer *t, const struct metrics_result *result,
                          struct err *err)
{
    const bool is_better = trainer_is_best(t, result);
    struct kept_model kept;
    int status = 0;

    t->mark->validated = t->steps_before + t->state.step;
    if (is_better) {
        t->mark->best_score = score_of(t, result);
        kept = trainer_kept(t, result);
        status = t->on_best ? t->on_best(t->on_best_arg, &kept, err) : 0;
    }
    if (!status)
        status = check_plateau(t, is_better, err);
    return status ? status : check_early_stop(t, is_better, err);
}

/* Stage times exclude validations. */
static void exclude_validation(struct trainer *t, const struct stage_times *before)
{
    struct stage_times now, spent;

    stages_now(t, &now);
    spent = stage_times_since(&now, before);
    for (uint32_t i = 0; i < STAGE_TIMES_N; i++)
        t->outside.ns[i] += spent.ns[i];
}

static int validate(struct trainer *t, struct err *err)
{
    struct metrics_result result;
    struct stage_times before;
    int status;

    stages_now(t, &before);
    progress_pause(t->progress);
    status = evaluate(t->u, t->tables, t->clock, NULL, &result, &t->bad_before, err);
    if (status == PS_EFENCED) {
        catch_up(t);
        status = evaluate(t->u, t->tables, t->clock, NULL, &result, &t->bad_before, err);
    }
    if (!status) {
        progress_validation(t->progress, &t->state, &result);
        training_report_validation(t->report, &t->state, &result);
        status = use_validation(t, &result, err);
    }
    progress_resume(t->progress);
    exclude_validation(t, &before);
    return unless_stopped(t, status);
}

static bool ended(struct trainer *t)
{
    if (stop_signal_asked(t->stop))
        t->stopped = "a signal asked for it";
    else if (t->s->steps_max && t->steps_before + t->state.step >= t->s->steps_max)
        t->stopped = "--steps-max is reached";
    return t->stopped != NULL;
}

/* Batches from one validation to the next. */
static uint64_t stretch(const struct trainer *t)
{
    return t->s->eval_every && validates(t) ? t->s->eval_every : UINT64_MAX;
}

/* The process before this one was killed behind the last step of a stretch, and has not used its validation. */
static bool is_validation_due(const struct trainer *t)
{
    const uint64_t made = t->steps_before + t->state.step, each = stretch(t);

    return each != UINT64_MAX && !t->state.step && made && made % each == 0 &&
           t->mark->validated != made && !t->mark->stop_set;
}

/* Of this process. */
static uint64_t n_steps_allowed(const struct trainer *t)
{
    if (!t->s->steps_max)
        return UINT64_MAX;
    return t->s->steps_max > t->steps_before ? t->s->steps_max - t->steps_before : 0;
}

/* All batches that are allowed until the next validation, and that validation. *ret_more: there
 * may be others. */
static int run_stretch(struct trainer *t, struct data_loader *loader, bool *ret_more,
                       struct err *err)
{
    uint64_t made = t->steps_before + t->state.step, each = stretch(t);
    uint64_t end = each == UINT64_MAX ? UINT64_MAX : (made / each + 1) * each - t->steps_before;
    const uint64_t steps_left = n_steps_allowed(t);
    int status = is_validation_due(t) ? validate(t, err) : 0;

    if (end > steps_left)
        end = steps_left;
    *ret_more = true;
    pipeline_allow(t->pipeline, end - t->state.step);
    while (!status && *ret_more && !ended(t)) {
        status = step(t, ret_more, err);
        report(t, loader);
    }
    /* Ended early: steps that have begun have taken residuals, so they are pushed. */
    while (!status && t->n_ended < t->n_begun) {
        status = finish_step(t, err);
        report(t, loader);
    }
    (void)ended(t); /* the pipeline may have heard of it first, and had no more */
    *ret_more = !status && !t->stopped && t->state.step == end;
    return *ret_more ? validate(t, err) : status;
}

static int epoch(struct trainer *t, struct data_loader *loader, struct err *err)
{
    struct err late = { 0 };
    bool more = true;
    int status = pipeline_begin(t->pipeline, loader, t->clock, 0, err), late_status;

    if (status)
        return status;
    while (!status && more)
        status = run_stretch(t, loader, &more, err);
    drop_steps(t);
    late_status = pipeline_end(t->pipeline, &late);
    refresh(t);
    if (status || !late_status)
        return status;
    *err = late;
    return late_status;
}

/* One epoch, or what is left of it. */
static int run_epoch(struct trainer *t, uint32_t e, struct err *err)
{
    struct data_loader_counts counts;
    struct data_loader *loader;
    int status;

    t->state.epoch = t->mark->epoch = e;
    status = setup_loader(t->u, true, e, t->skip, &loader, err);
    if (status)
        return status;
    status = epoch(t, loader, err);
    data_loader_counts(loader, &counts);
    data_loader_bad_rows_add(&t->bad_before, &counts);
    if (!status && !t->stopped && t->s->share == SHARE_ROWS)
        t->n_rows = counts.rows_read;
    t->skip -= counts.skipped;
    data_loader_close(loader);
    /* The last epoch's validation waits until the other workers are done: main's. */
    if (!status && !t->skip && validates(t) && !t->s->eval_every && e + 1 < t->s->epochs &&
        !t->stopped && t->mark->validated != t->steps_before + t->state.step)
        status = validate(t, err);
    return status;
}

/* The batches that this process passes over were done by an earlier one of this rank, but for those of the time when
 * there was none. */
static void count_skipped(struct trainer *t)
{
    struct ps_stats stats;

    t->store->ops->stats(t->store, &stats);
    if (!stats.skipped_clocks)
        return;
    t->state.rows_untrained = stats.skipped_clocks * t->s->batch;
    log_line_warn(
        "while this worker was away, the others went on for %llu step%s: about %llu of "
        "its rows stay untrained",
        (unsigned long long)stats.skipped_clocks, NUMBER_PLURAL(stats.skipped_clocks),
        (unsigned long long)t->state.rows_untrained);
}

/* A pipe does not go on where the process before this one was killed: its writer may think so. */
static void warn_skipped_pipe(const struct trainer *t)
{
    const char *pipe = t->skip ? setup_first_pipe(t->u) : NULL;

    if (pipe)
        log_line_warn(
            "%.200s can be read only once, and the first %llu batches of this worker in "
            "it are passed over, as training goes on behind them: it has to begin with "
            "the same rows as the first time",
            pipe, (unsigned long long)t->skip);
}

/* The resume point of this worker's earlier process, or, if that has left nothing, where the servers
 * want it to go on: a clock is a batch. */
static uint32_t find_resume_point(struct trainer *t)
{
    bool goes_on = sync_policy_resumes(model_tables_sync_policy(t->tables));

    t->clock = t->store->ops->clock(t->store);
    t->skip = goes_on ? t->mark->batch : t->clock;
    if (!goes_on) {
        t->mark->steps = t->clock;
        count_skipped(t);
        if (t->clock && t->s->backup_workers)
            log_line_warn("--backup-workers: where the process before this one was late, fewer "
                          "of its batches than its clock were trained on, and the others of "
                          "the first %llu are passed over",
                          (unsigned long long)t->clock);
    }
    t->steps_before = t->mark->steps;
    t->state.samples_before = t->steps_before * t->s->batch;
    t->state.samples_expected -= t->steps_before * t->s->batch < t->state.samples_expected
                                     ? t->steps_before * t->s->batch
                                     : t->state.samples_expected;
    if (t->steps_before)
        log_line_info("%s: this worker goes on at clock %llu, behind %llu batch%s of epoch %u",
                      goes_on ? "a process before this one has left its state"
                              : "the job is under way",
                      (unsigned long long)t->clock, (unsigned long long)t->skip,
                      t->skip == 1 ? "" : "es", t->mark->epoch + 1);
    warn_skipped_pipe(t);
    return t->mark->epoch;
}

static int epochs(struct trainer *t, struct err *err)
{
    int status = 0;

    for (uint32_t e = find_resume_point(t); e < t->s->epochs && !status && !t->stopped; e++)
        status = run_epoch(t, e, err);
    t->state.bad = t->bad_before;
    return status;
}

/* A bound that the user chose and no cache or pull uses. */
static void warn_unused_bound(const char *prefix, uint32_t bound, bool is_ssp)
{
    if (bound != PS_SETTINGS_STALENESS && !is_ssp)
        log_line_warn("--%sstaleness %u has no effect: it is the bound of --%smode ssp", prefix,
                      bound, prefix);
}

static bool has_tensor(struct dlrm *model, const char *pattern)
{
    uint32_t i = 0;

    while (i < dlrm_n_tensors(model) && fnmatch(pattern, dlrm_tensor(model, i)->name, 0) != 0)
        i++;
    return i < dlrm_n_tensors(model);
}

static void warn_unused_period(const struct trainer *t, const char *item)
{
    char pattern[SETTINGS_TEXT_MAX];
    uint32_t period;
    struct err err;

    if (!settings_period_pattern("period", item, pattern, &period, &err) &&
        !has_tensor(t->u->model, pattern))
        log_line_warn("--period %s has no effect: no dense table of this model has that name, "
                      "as bot.0.W or top.2.b",
                      item);
}

static void warn_unused_kind(const struct settings *s)
{
    if (s->local_shards && !s->local)
        log_line_warn("--local-shards %u has no effect without --local: the servers have "
                      "shards of their own",
                      s->local_shards);
    if (s->merge_weight == MERGE_ADAPTIVELY && s->workers == 1)
        log_line_warn("--merge-weight adaptive has no effect: a job's only worker has no "
                      "other to merge with");
}

/* Logs each setting without effect once. */
static void warn_unused_settings(const struct trainer *t)
{
    const char *why = NULL;

    if (settings_ahead(t->s) == 0)
        why = "in lock step, or with a bound of 0, a pull waits for all pushes before it";
    else if (t->s->local)
        why = "--local has no network to hide";
    else if (!t->store->ops->overlaps)
        why = "the row cache pulls nothing ahead (--row-cache 0 turns it off)";
    if (t->s->ahead && why)
        log_line_warn("--ahead %u has no effect: %s", t->s->ahead, why);
    warn_unused_bound("", t->s->staleness,
                      t->s->mode + TABLE_SPEC_MODE_ASYNC == TABLE_SPEC_MODE_SSP);
    warn_unused_bound("embedding-", t->s->embedding_staleness,
                      t->s->embedding_mode == TABLE_SPEC_MODE_SSP);
    warn_unused_bound("dense-", t->s->dense_staleness, t->s->dense_mode == TABLE_SPEC_MODE_SSP);
    if (strcmp(t->s->dense_refresh, "auto") == 0 && settings_dense_is_exact(t->s))
        log_line_warn(
            "--dense-refresh auto has no effect: in lock step every step pulls dense tables");
    warn_unused_kind(t->s);
    for (uint32_t i = 0; i < t->s->period.n; i++)
        warn_unused_period(t, t->s->period.items[i]);
}

/* More device buffers than steps in flight would only cost memory. */
static uint32_t n_buffer_sets_of(const struct trainer *t)
{
    const uint32_t n_sets = t->u->meta ? 1 : dlrm_n_buffer_sets(t->u->model),
                   n_permits = pipeline_n_permits(t->pipeline);

    return n_permits < n_sets ? n_permits : n_sets;
}

/* Tasks of one sample are trained on as they are. */
static void warn_single_tasks(const struct trainer *t)
{
    struct meta_learning_counts counts;

    if (!t->u->meta)
        return;
    counts = meta_learning_counts(t->u->meta);
    if (counts.n_single * 2 > counts.n_tasks)
        log_line_warn(
            "--meta %s: %llu of %llu tasks had one sample in their batch, and so none "
            "to adapt to: sort the rows by task (and --shuffle 0), or give a larger "
            "--batch",
            t->s->meta, (unsigned long long)counts.n_single,
            (unsigned long long)counts.n_tasks);
}

int trainer_run(struct trainer *t, struct err *err)
{
    struct wait_monitor *monitor;
    int status =
        pipeline_new(t->tables, t->store, t->stop, settings_ahead(t->s) + 1, &t->pipeline, err);

    if (!status && t->s->backup_workers)
        pipeline_follow_job(t->pipeline);
    if (!status)
        status = wait_monitor_start(t->s, t->store, t->stop, &monitor, err);
    if (status) {
        pipeline_free(t->pipeline);
        t->pipeline = NULL;
        return status;
    }
    t->n_sets = n_buffer_sets_of(t);
    warn_unused_settings(t);
    t->mark = sync_policy_resume_point(model_tables_sync_policy(t->tables));
    t->state.n_epochs = t->s->epochs;
    status = epochs(t, err);
    if (!status)
        status = t->store->ops->flush(t->store, err);
    if (status == PS_EFENCED) { /* with the last pushes; the unacknowledged ones are lost */
        catch_up(t);
        status = t->store->ops->flush(t->store, err);
    }
    wait_monitor_close(monitor);
    warn_single_tasks(t);
    stages_now(t, &t->state.stages);
    pipeline_free(t->pipeline);
    t->pipeline = NULL;
    return status;
}
