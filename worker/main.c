/*
 * psworker: the training job. `psworker train|tune|eval|predict|serve|synth|key`, one function each.
 *
 * Exit codes: 0 done, 1 failed (one sentence says why), 2 misuse (the sentence names the
 * setting), 3 done, but the job has lost workers or rows (the sentence says how many).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "common/token_file.h"
#include "server/cluster/etcd_lookup.h"
#include "server/cluster/etcd_url.h"
#include "worker/atomic_file.h"
#include "worker/client/pending_report.h"
#include "worker/client/push_journal.h"
#include "worker/compute/device.h"
#include "worker/data/synth.h"
#include "worker/evaluate.h"
#include "worker/job_peers.h"
#include "worker/kept_model.h"
#include "worker/key_command.h"
#include "worker/model_record.h"
#include "worker/plateau.h"
#include "worker/progress.h"
#include "worker/report/training_report.h"
#include "worker/serve/serve.h"
#include "worker/table_specs.h"
#include "worker/trainer.h"
#include "worker/tune/trial.h"
#include "worker/tune/tune.h"
#include "worker/worker_tls.h"

/* What all commands share. */
struct command_context {
    struct settings settings;
    char *const *words; /* borrowed: what stands behind the command */
    int n_words;
    struct setup setup;
    int state_fd;                   /* owned: holds the lock of --state-dir; -1: none */
    struct push_journal *journal;   /* owned; NULL: nothing is kept for a next process */
    struct param_store *store;      /* owned */
    struct model_tables *tables;    /* owned */
    struct model_record *record;    /* owned */
    struct progress *progress;      /* owned */
    struct training_report *report; /* owned; NULL without --report */
    struct stop_signal *stop;       /* owned */
    bool has_begun;                 /* to train */
    bool has_saved;                 /* with --keep best: there is a model in --save, */
    struct kept_model kept;         /* of this validation */
    struct err loss;                /* "" or what of the job's data was not trained on */
    struct err ends;                /* "" or why the end of other workers is not known */
    uint32_t n_early, early_rank;   /* others that left before their last step, and the first */
    uint32_t n_away, away_rank; /* others whose steps the job went on without, and the first */
    bool is_stopped_early;      /* a signal ended the run before its last step */
};

static void notice(void *arg, const char *sentence)
{
    (void)arg;
    log_line_info("%s", sentence);
}

static const char *sentence_of(const struct err *err)
{
    return err->text[0] ? err->text : status_text(err->status);
}

/* Frees everything; a failure here fails a run that had gone well. */
static int run_deinit(struct command_context *r, int status, struct err *err)
{
    struct err late = { 0 };
    int late_status;

    if (status)
        progress_failure(r->progress, sentence_of(err));
    late_status = progress_close(r->progress, &late);
    if (late_status && !status) {
        status = late_status;
        *err = late;
    }
    training_report_free(r->report);
    model_tables_free(r->tables);
    model_record_free(r->record);
    if (r->store)
        r->store->ops->close(r->store);
    push_journal_close(r->journal);
    if (r->state_fd >= 0)
        close(r->state_fd);
    setup_deinit(&r->setup);
    stop_signal_close(r->stop);
    pending_report_free(r->settings.report);
    tls_context_free(r->settings.tls);
    settings_free(&settings_worker, &r->settings);
    free(r);
    return status;
}

/* Rank 0 measures the numeric columns and stores what it found; all the others find the same
 * themselves. */
static int moments_to_tables(struct command_context *r, struct err *err)
{
    uint32_t n = schema_n_numeric(r->setup.schema);
    float *mean, *std;
    int status;

    if (!schema_needs_moments(r->setup.schema) || n == 0)
        return 0;
    mean = memory_alloc(2 * n * sizeof *mean);
    std = mean + n;
    status = setup_moments(&r->setup, mean, std, err);
    if (!status)
        schema_set_moments(r->setup.schema, mean, std);
    /* Later it has been done, by this worker as another process. */
    if (!status && r->settings.rank == 0 && !r->store->ops->clock(r->store))
        status = model_tables_store_moments(r->tables, mean, std, err);
    free(mean);
    return status;
}

static int moments_from_tables(struct command_context *r, struct err *err)
{
    uint32_t n = schema_n_numeric(r->setup.schema);
    float *mean;
    int status;

    if (!schema_needs_moments(r->setup.schema) || n == 0)
        return 0;
    mean = memory_alloc(2 * n * sizeof *mean);
    status = model_tables_load_moments(r->tables, mean, mean + n, err);
    if (!status)
        schema_set_moments(r->setup.schema, mean, mean + n);
    free(mean);
    return status;
}

/* The tables as all workers have left them. */
static int final_validation(struct command_context *r, struct trainer *t,
                            struct metrics_result *ret, struct err *err)
{
    int status = 0;

    if (!r->settings.local) { /* this worker has left: what follows is a reader's question */
        r->store->ops->close(r->store);
        r->store = NULL;
        model_tables_free(r->tables);
        r->tables = NULL;
        status = setup_store(&r->settings, false, NULL, NULL, notice, NULL, &r->store, err);
        if (!status)
            status =
                model_tables_find(&r->settings, r->setup.model,
                                  schema_n_numeric(r->setup.schema), r->store, &r->tables, err);
    }
    if (!status)
        status =
            evaluate_observed(&r->setup, r->tables, t->clock, NULL,
                              training_report_observer(r->report), ret, &t->state.bad, err);
    if (status)
        return status;
    progress_report_validation(r->progress, &t->state, ret);
    training_report_validation(r->report, &t->state, ret);
    return 0;
}

/* Rows of a rank that left after `clock` steps, as far as it has not trained on them. It has done `skipped` of these
 * steps less: a new process goes on behind the batches of the time without one, and the same process does its batches
 * at later clocks. Malformed rows make no step: about as many as this rank has met, and a batch an epoch, do not
 * count, unless the skipped steps explain what is missing. */
static uint64_t rows_left_out(const struct command_context *r, const struct trainer *t,
                              uint64_t n_rows, uint32_t rank, uint64_t clock, uint64_t skipped)
{
    const struct settings *s = &r->settings;
    uint64_t done = clock > skipped ? clock - skipped : 0;
    uint64_t rows = setup_n_rows_between(&r->setup, n_rows, rank, done, UINT64_MAX);
    uint64_t bad = 4 * t->state.bad.n + (uint64_t)s->batch * s->epochs;

    if (skipped && !t->state.bad.n &&
        setup_n_rows_between(&r->setup, n_rows, rank, clock - 1, UINT64_MAX))
        return rows;
    if (s->bad_rows_max < bad / s->epochs)
        bad = s->bad_rows_max * s->epochs;
    return rows > bad ? rows : 0;
}

/* Of a rank that has left before its last step, or whose steps the others went on without. */
static void add_left_out(struct command_context *r, struct trainer *t, uint64_t n_rows,
                         uint32_t rank, const struct job_peers_ends *ends)
{
    const struct settings *s = &r->settings;
    uint64_t clock = ends->clock[rank];
    /* With periods, its last step in lock step was that of leaving (param_store_periodic.h). */
    const bool has_extra = clock && settings_periods_are_set(s) && settings_dense_is_exact(s);
    uint64_t rows = rows_left_out(r, t, n_rows, rank, clock - has_extra, ends->skipped[rank]);

    t->state.rows_untrained += rows;
    if (rows && ends->skipped[rank]) {
        if (!r->n_away++)
            r->away_rank = rank;
    } else if (rows && !r->n_early++) {
        r->early_rank = rank;
    }
}

/* Nobody takes over the rows of a worker that is gone: a batch belongs to a rank. An early stop ends each worker where
 * it is. */
static void add_untrained(struct command_context *r, struct trainer *t,
                          const struct job_peers_ends *ends)
{
    const struct settings *s = &r->settings;
    const uint64_t n_rows = r->setup.train.end_row ? r->setup.train.end_row : t->n_rows;
    const bool has_plan = n_rows && s->share == SHARE_ROWS && s->keep_negatives >= 1;
    uint64_t done;

    t->state.workers_lost = ends->n_lost;
    /* With backup workers a clock is not a batch: a late worker passes over clocks, not over its rows. */
    t->state.is_untrained_known =
        ends->is_known && (!ends->n_lost || has_plan) && !s->backup_workers;
    for (uint32_t i = 0; i < s->workers && has_plan; i++) {
        if (ends->is_lost[i]) {
            done = ends->clock[i] > ends->skipped[i] ? ends->clock[i] - ends->skipped[i] : 0;
            t->state.rows_untrained += setup_n_rows_between(&r->setup, n_rows, i, done,
                                                            t->stopped ? t->clock : UINT64_MAX);
        } else if (ends->has_left[i] && !t->stopped && !s->early_stop) {
            add_left_out(r, t, n_rows, i, ends);
        }
    }
}

/* The last validation needs the others' end, and so does the exit code, which answers for the whole job. */
static void find_ends(struct command_context *r, struct trainer *t, bool validates)
{
    const struct settings *s = &r->settings;
    struct job_peers_ends *ends;
    uint64_t silence_ms = 0;

    t->state.is_untrained_known = true;
    if (s->local || s->workers == 1)
        return;
    if (validates)
        silence_ms = s->finish_timeout_ms;
    else if (!s->allow_lost_workers && !stop_signal_asked(r->stop))
        silence_ms = s->give_up_ms;
    ends = memory_alloc(sizeof *ends);
    job_peers_find_ends(&(struct job_peers){ s, r->store }, r->stop, silence_ms, ends);
    add_untrained(r, t, ends);
    if (!ends->is_known)
        err_set(&r->ends, 0, "%s", ends->why_unknown);
    free(ends);
}

static void describe_loss(struct command_context *r, const struct progress_state *state,
                          const char *rows)
{
    const struct settings *s = &r->settings;
    const char *flag = "(--allow-lost-workers: exit code 0 all the same)";

    if (state->workers_lost)
        err_set(
            &r->loss, 0,
            "job \"%s\" lost %u of its %u worker%s: %s, as nobody takes over another rank's "
            "rows %s",
            s->job, state->workers_lost, s->workers, NUMBER_PLURAL(s->workers), rows, flag);
    else if (r->ends.text[0])
        err_set(&r->loss, 0, "job \"%s\": %s: %.240s %s", s->job, rows, r->ends.text, flag);
    else if (r->n_early)
        err_set(&r->loss, 0,
                "job \"%s\": %u of its %u workers, rank %u first, left before their last step: "
                "%s, as nobody takes over another rank's rows %s",
                s->job, r->n_early, s->workers, r->early_rank, rows, flag);
    else if (r->n_away)
        err_set(&r->loss, 0,
                "job \"%s\": %u of its %u workers, rank %u first, missed steps, as the others "
                "went on: %s %s",
                s->job, r->n_away, s->workers, r->away_rank, rows, flag);
    else
        err_set(&r->loss, 0, "job \"%s\": %s, as the others went on while rank %u was away %s",
                s->job, rows, s->rank, flag);
}

/* For the last line, and the exit code. A run that a signal has ended is not held to its plan; one that waits for the
 * others, having done all its steps, tells what it knows. */
static void note_loss(struct command_context *r, const struct progress_state *state)
{
    char rows[64] = "how many rows stay untrained is not known";

    if (r->is_stopped_early || r->settings.allow_lost_workers ||
        (!state->workers_lost && !state->rows_untrained &&
         (!r->ends.text[0] || stop_signal_asked(r->stop))))
        return;
    if (state->is_untrained_known)
        snprintf(rows, sizeof rows, "about %llu %s untrained",
                 (unsigned long long)state->rows_untrained,
                 state->rows_untrained == 1 ? "row stays" : "rows stay");
    describe_loss(r, state, rows);
}

/* A validation was the best so far. */
static int save_best(void *arg, const struct kept_model *kept, struct err *err)
{
    struct command_context *r = arg;
    const struct settings *s = &r->settings;
    int status = kept_model_save_tables(r->store, s->job, s->save, err);

    if (!status)
        status = kept_model_write(s->save, s->job, kept, err);
    if (status)
        return status;
    r->has_saved = true;
    r->kept = *kept;
    progress_kept(r->progress, kept->epoch, kept->step);
    log_line_info("--keep best: %s has the model of epoch %u, step %llu, the best so far",
                  s->save, kept->epoch + 1, (unsigned long long)kept->step);
    return 0;
}

/* A process before this one has left a model in --save, and the run goes on: later ones have to be better. */
static void find_kept(struct command_context *r)
{
    struct sync_policy *sync = model_tables_sync_policy(r->tables);
    struct resume_point *mark = sync_policy_resume_point(sync);
    const struct settings *s = &r->settings;

    if (s->keep != KEEP_BEST || s->rank ||
        (!sync_policy_resumes(sync) && !r->store->ops->clock(r->store)))
        return;
    r->has_saved = kept_model_read(s->save, s->job, &r->kept);
    if (!r->has_saved)
        return;
    progress_kept(r->progress, r->kept.epoch, r->kept.step);
    if (r->kept.score > mark->best_score)
        mark->best_score = r->kept.score;
    log_line_info(
        "--keep best: %s has the model of epoch %u, step %llu, of a process before this "
        "one",
        s->save, r->kept.epoch + 1, (unsigned long long)r->kept.step);
}

/* --save at the end of the run; valid: its last validation, or NULL. With --keep best an earlier model may stay. */
static int save_model(struct command_context *r, const struct trainer *t,
                      const struct metrics_result *valid, struct err *err)
{
    const struct settings *s = &r->settings;
    struct kept_model last;
    int status = 0;

    if (s->keep != KEEP_BEST)
        return param_store_local_save(r->store, s->save, err);
    if (valid && trainer_is_best(t, valid)) {
        last = trainer_kept(t, valid);
        if (!s->local)
            status = model_record_find(s, r->store, err);
        return status ? status : save_best(r, &last, err);
    }
    if (r->has_saved) {
        log_line_info(
            "--keep best: %s has the model of epoch %u, step %llu, which was better than "
            "the last one",
            s->save, r->kept.epoch + 1, (unsigned long long)r->kept.step);
        return 0;
    }
    log_line_warn("--keep best: no validation was made, so no model is in %s", s->save);
    return 0;
}

/* result: of the last validation, or NULL. failure: why the run failed, or NULL. */
static void write_report(struct command_context *r, struct trainer *t,
                         const struct metrics_result *result, const char *failure)
{
    training_report_write(
        r->report, &(struct training_report_end){ .setup = &r->setup,
                                                  .tables = r->tables,
                                                  .stop = r->stop,
                                                  .run = &t->state,
                                                  .result = result,
                                                  .stopped = t->stopped,
                                                  .failure = failure,
                                                  .train_s = progress_seconds(r->progress) });
}

static int finish(struct command_context *r, struct trainer *t, struct err *err)
{
    bool validates = r->setup.has_valid && r->settings.rank == 0 && !stop_signal_asked(r->stop);
    struct metrics_result result;
    int status = model_tables_end(r->tables, err);

    r->is_stopped_early = stop_signal_asked(r->stop);
    progress_report(r->progress, &t->state);
    if (!status)
        status = r->store->ops->leave(r->store, err);
    if (status == PS_EFENCED) { /* joined again: say goodbye as the new incarnation */
        (void)r->store->ops->resume(r->store);
        status = r->store->ops->leave(r->store, err);
    }
    model_tables_stats(r->tables, &t->state.store);
    progress_pause(r->progress);
    if (!status)
        find_ends(r, t, validates);
    if (!status && validates)
        status = final_validation(r, t, &result, err);
    progress_resume(r->progress);
    if (!status && r->settings.save[0] && r->settings.rank == 0)
        status = save_model(r, t, validates ? &result : NULL, err);
    if (status)
        return status;
    progress_result(r->progress, &t->state, validates ? &result : NULL, t->stopped);
    write_report(r, t, validates ? &result : NULL, NULL);
    note_loss(r, &t->state);
    return 0;
}

/* This worker has failed, and the servers are well: leaves the job, so that no worker waits for its lease. After a
 * failed start it leaves in any case, unless it was to continue with the pushes of another process. */
static void leave_on_failure(struct command_context *r, int status)
{
    uint8_t note[PUSH_JOURNAL_NOTE_MAX];
    bool goes_on = r->journal && push_journal_found_note(r->journal, note);
    struct err ignored;

    if (r->store && ((!r->has_begun && !goes_on) || status == PS_ESPEC || status == PS_ENAN ||
                     status == PS_EDATA || status == PS_ESETTING)) {
        if (status == PS_ENAN && r->store->ops->drop_unpushed)
            r->store->ops->drop_unpushed(r->store);
        (void)r->store->ops->leave(r->store, &ignored);
    }
}

/* Once: what can be read but once, as a shell's <(...), is a file, too. */
static int read_token(struct settings *s, struct err *err)
{
    int status;

    if (s->local || s->checkpoint[0])
        return 0;
    status = token_file_read(&file_os, s->token_file, s->token, err);
    return status ? status : worker_tls_open(s, err);
}

/* NULL: no thread. */
static struct stop_signal *start_stop_signal(struct settings *s)
{
    struct stop_signal *stop = stop_signal_start();

    if (stop)
        stop_signal_on_reload(stop, worker_tls_reload, s);
    return stop;
}

/* The servers, as whoever the process before this one was, if it has left its state. */
static int open_store(struct command_context *r, struct err *err)
{
    const struct settings *s = &r->settings;
    int status = read_token(&r->settings, err);

    if (!status && s->state_dir[0])
        status = setup_state_lock(s->state_dir, s->job, s->rank, &r->state_fd, err);
    if (!status)
        status = setup_journal(s, notice, NULL, &r->journal, err);
    if (!status)
        status = setup_store(s, true, r->journal, r->stop, notice, NULL, &r->store, err);
    if (!status && s->rank == 0 && !r->store->ops->clock(r->store) &&
        model_tables_exist(s, r->store))
        log_line_info(
            "job \"%s\" has tables already, made by %s: training goes on from them (another "
            "--job starts afresh)",
            s->job,
            s->workers == 1 ? "an earlier run"
                            : "another of its workers just now or by an earlier run");
    return status;
}

/* All that needs no server. Time to probe the data is not training time. */
static int prepare(struct command_context *r, struct err *err)
{
    int status = progress_open(&r->settings, &r->progress, err);

    if (status)
        return status;
    progress_pause(r->progress);
    status = progress_listen(r->progress, &r->settings, err);
    if (!status)
        status = setup_data(&r->setup, &r->settings, true, true, err);
    if (!status)
        status = setup_fields(&r->setup, &r->settings, err);
    if (!status)
        status = setup_model(&r->setup, err);
    if (!status && r->settings.save[0] && r->settings.rank == 0)
        status = param_store_local_may_save(r->settings.save, err);
    if (!status)
        status = training_report_new(&r->settings, &r->report, err);
    progress_resume(r->progress);
    return status;
}

static int make_tables(struct command_context *r, struct err *err)
{
    /* Before any table is made, which would stay. */
    int status = table_specs_check_layers(&r->settings, r->setup.model, r->store, err);

    if (!status)
        status = model_record_make(r->record, &r->settings, r->setup.schema, r->store, err);
    if (!status)
        status =
            model_tables_create(&r->settings, r->setup.model, schema_n_numeric(r->setup.schema),
                                r->store, &r->tables, err);
    if (!status)
        status = moments_to_tables(r, err);
    /* Last: a worker that is stopped before its first push leaves the job. */
    if (!status)
        status = model_record_fill(r->record, &r->settings, r->setup.schema, r->store, err);
    return status;
}

static int train(struct command_context *r, struct err *err)
{
    struct trainer *t;
    int status;

    trial_process_follow();
    if (!r->settings.local) /* without memory for it nothing is reported */
        r->settings.report = pending_report_new(r->settings.job, r->settings.rank);
    status = prepare(r, err);
    if (status)
        return status;
    r->stop = start_stop_signal(&r->settings);
    if (!r->stop)
        return err_set(err, -EAGAIN, "no thread can be started");
    setup_set_stop(&r->setup, r->stop);
    status = open_store(r, err);
    if (!status)
        status = setup_inputs(&r->setup, &r->settings, r->store, err);
    if (!status)
        status = model_record_open(&r->settings, r->setup.schema, r->store, &r->record, err);
    if (!status)
        status = setup_probe(&r->setup, err);
    if (!status)
        status = setup_cardinalities(&r->setup, err);
    if (!status)
        status = make_tables(r, err);
    if (status)
        return status;
    log_line_info("computing on %s", dlrm_device(r->setup.model));
    stop_signal_grace(r->stop);
    sd_notify(0, "READY=1");
    t = memory_alloc(sizeof *t);
    *t = (struct trainer){ .state.samples_expected = setup_n_samples(&r->setup),
                           .state.validates = r->setup.has_valid,
                           .s = &r->settings,
                           .u = &r->setup,
                           .store = r->store,
                           .tables = r->tables,
                           .progress = r->progress,
                           .report = r->report,
                           .stop = r->stop,
                           .on_best = r->settings.keep == KEEP_BEST ? save_best : NULL,
                           .on_best_arg = r };
    r->has_begun = true;
    find_kept(r);
    status = trainer_run(t, err);
    if (!status)
        status = finish(r, t, err);
    if (status)
        write_report(r, t, NULL, sentence_of(err));
    free(t);
    return status;
}

/* Residuals are in this process alone, so they are saved after an error too. */
static void keep_on_failure(struct command_context *r)
{
    struct err late;

    if (model_tables_end(r->tables, &late))
        log_line_warn("%s", late.text);
}

static int train_or_leave(struct command_context *r, struct err *err)
{
    int status = train(r, err);

    if (status)
        keep_on_failure(r);
    leave_on_failure(r, status);
    return status;
}

/* What eval and predict share: the model as it stands in the tables. */
static int open_trained(struct command_context *r, bool labelled, struct err *err)
{
    int status = setup_data(&r->setup, &r->settings, false, labelled, err);

    if (!status)
        status = setup_fields(&r->setup, &r->settings, err);
    if (!status)
        status = setup_model(&r->setup, err);
    if (!status)
        status = read_token(&r->settings, err);
    if (!status)
        status = setup_store(&r->settings, false, NULL, NULL, notice, NULL, &r->store, err);
    if (!status)
        status = setup_inputs(&r->setup, &r->settings, r->store, err);
    if (!status)
        status = model_record_open(&r->settings, r->setup.schema, r->store, &r->record, err);
    if (!status)
        status =
            model_tables_find(&r->settings, r->setup.model, schema_n_numeric(r->setup.schema),
                              r->store, &r->tables, err);
    if (!status)
        status = moments_from_tables(r, err);
    if (!status)
        log_line_info("computing on %s", dlrm_device(r->setup.model));
    return status;
}

static int eval(struct command_context *r, struct err *err)
{
    struct progress_state state = { .n_epochs = 1, .is_untrained_known = true };
    struct metrics_result result;
    int status = progress_open(&r->settings, &r->progress, err);

    if (!status)
        status = open_trained(r, true, err);
    if (!status)
        status = evaluate(&r->setup, r->tables, 0, NULL, &result, &state.bad, err);
    if (status)
        return status;
    r->store->ops->stats(r->store, &state.store);
    state.samples = result.n;
    progress_result(r->progress, &state, &result, NULL);
    return 0;
}

/* what: one of them */
static void report_written(const struct command_context *r, uint64_t n, const char *what)
{
    bool to_stdout = strcmp(r->settings.output, "-") == 0;

    log_line_info("%llu %s%s written%s%s", (unsigned long long)n, what, NUMBER_PLURAL(n),
                  to_stdout ? "" : " to ", to_stdout ? "" : r->settings.output);
}

static int predict_to(struct command_context *r, FILE *out, uint64_t *ret_n, struct err *err)
{
    struct metrics_result done;
    struct data_loader_bad_rows bad = { 0 };
    int status;

    r->setup.strict = true;
    status = evaluate(&r->setup, r->tables, 0, out, &done, &bad, err);
    if (status == PS_EDATA && !r->settings.labelled) {
        struct err why = *err;

        (void)err_set(err, status, "%.400s (files with the label column: --labelled)",
                      why.text);
    }
    if (!status)
        *ret_n = done.n;
    return status;
}

static int predict(struct command_context *r, struct err *err)
{
    struct atomic_file out;
    uint64_t n = 0;
    int status = open_trained(r, r->settings.labelled, err);

    if (!status)
        status = atomic_file_open(r->settings.output, &out, err);
    if (status)
        return status;
    status = atomic_file_close(&out, predict_to(r, out.stream, &n, err), err);
    if (!status)
        report_written(r, n, "prediction");
    return status;
}

static int serve(struct command_context *r, struct err *err)
{
    int status = worker_tls_open(&r->settings, err);

    if (status)
        return status;
    r->stop = start_stop_signal(&r->settings);
    if (!r->stop)
        return err_set(err, -EAGAIN, "no thread can be started");
    return serve_run(&r->settings, r->stop, err);
}

static int tune(struct command_context *r, struct err *err)
{
    int status = read_token(&r->settings, err);

    if (status)
        return status;
    r->stop = stop_signal_start();
    if (!r->stop)
        return err_set(err, -EAGAIN, "no thread can be started");
    stop_signal_on_hangup(r->stop);
    stop_signal_grace(r->stop);
    return tune_run(&r->settings, r->words, r->stop, err);
}

static int synth(struct command_context *r, struct err *err)
{
    struct synth_options options = { .rows = r->settings.rows,
                                     .seed = r->settings.seed,
                                     .n_numeric = r->settings.numeric_columns,
                                     .n_categorical = r->settings.categorical_columns,
                                     .cardinality = r->settings.cardinality,
                                     .zipf = (double)r->settings.zipf,
                                     .positive_rate = (double)r->settings.positive_rate };
    int status = synth_write(&options, r->settings.output, err);

    if (!status)
        report_written(r, options.rows, "row");
    return status;
}

static int key(struct command_context *r, struct err *err)
{
    if (r->n_words < 2)
        return err_set(err, PS_ESETTING,
                       "key: a column and a token are expected: psworker key C1 68fd1e64 "
                       "--format criteo");
    return key_command_print(&r->settings, r->words[0], r->words[1], stdout, err);
}

static const struct command {
    const char *name;
    int n_words;
    int (*run)(struct command_context *r, struct err *err);
} commands[] = {
    { "train", 0, train_or_leave },
    { "eval", 0, eval },
    { "predict", 0, predict },
    { "serve", 0, serve },
    { "tune", 0, tune },
    { "synth", 0, synth },
    { "key", 2, key },
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; name && i < COUNT_OF(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void take_words(struct command_context *r, const struct command *command, int argc,
                       char **argv)
{
    r->words = argv + 2;
    while (command && r->n_words < command->n_words && 2 + r->n_words < argc &&
           strncmp(r->words[r->n_words], "--", 2) != 0)
        r->n_words++;
}

/* --check: whatever can be wrong before a server is asked. */
static int check(struct command_context *r, const struct command *command, struct err *err)
{
    const bool trains = command->run == train_or_leave,
               reads = trains || command->run == eval || command->run == predict;
    int status = reads || command->run == tune ? read_token(&r->settings, err) : 0;

    if (!status && reads)
        status = setup_check(&r->setup, &r->settings, trains,
                             command->run != predict || r->settings.labelled, err);
    if (!status && command->run == tune)
        status = tune_check(&r->settings, err);
    if (!status)
        settings_print_checked(&settings_worker, "", stdout);
    return status;
}

/* Of options alone: the command is missing, or stands behind them. */
static int refuse_place(int argc, char **argv, struct err *err)
{
    for (int i = 2; i < argc; i++)
        if (find_command(argv[i]))
            return err_set(err, PS_ESETTING, "the command comes first: psworker %s ...",
                           argv[i]);
    return err->status
               ? err->status
               : err_set(
                     err, PS_ESETTING,
                     "which command? psworker train|tune|eval|predict|serve|synth|key; --help "
                     "tells more");
}

/* What no second try mends: settings that make no sense, or are not those that a table was made with or that the
 * job's other workers have. */
static bool is_misuse(int status)
{
    return status == PS_ESETTING || status == PS_ESPEC || status == PS_EJOB;
}

static int fail(int exit_code, const struct err *err)
{
    fprintf(stderr, "psworker: %s\n", sentence_of(err));
    return exit_code;
}

/* etcd says once where the nodes are; from then on they say it themselves. */
static int find_servers(struct settings *s, struct err *err)
{
    char url[SETTINGS_TEXT_MAX];
    const struct coord_options service = { .url = url,
                                           .ca_file = s->coord_ca,
                                           .cert_file = s->coord_cert,
                                           .key_file = s->coord_key,
                                           .user = s->coord_user,
                                           .password_file = s->coord_password_file };

    if (s->local || s->checkpoint[0] || !etcd_url_is(s->servers))
        return 0;
    snprintf(url, sizeof url, "%s", s->servers);
    return etcd_lookup_servers(&service, (uint32_t)s->connect_timeout_ms, s->servers,
                               sizeof s->servers, err);
}

static int act(struct command_context *r, const struct command *command,
               enum settings_action action, struct err *err)
{
    uint32_t refresh;
    int status;

    if (action == SETTINGS_HELP || action == SETTINGS_VERSION ||
        action == SETTINGS_PRINT_CONFIG) {
        if (action == SETTINGS_HELP)
            settings_print_help(&settings_worker, stdout);
        else if (action == SETTINGS_VERSION)
            puts("psworker " PS_VERSION);
        else
            settings_print_config(&settings_worker, &r->settings, stdout);
        return 0;
    }
    status = settings_check(&r->settings, command->name, err);
    if (!status)
        status = settings_refresh(&r->settings, &refresh, err);
    if (!status && command->run == train_or_leave)
        status = plateau_check(&r->settings, err);
    if (!status && log_line_set_level(r->settings.log_line_level))
        status =
            err_set(err, PS_ESETTING, "--log-level: \"%s\" is not error, warn, info or debug",
                    r->settings.log_line_level);
    if (status)
        return status;
    if (action == SETTINGS_CHECK)
        return check(r, command, err);
    status = find_servers(&r->settings, err);
    return status ? status : command->run(r, err);
}

int main(int argc, char **argv)
{
    const struct command *command = find_command(argc > 1 ? argv[1] : NULL);
    struct command_context *r = memory_alloc(sizeof *r);
    enum settings_action action;
    struct err err = { 0 }, loss;
    int status, signal;

    r->state_fd = -1;
    if (!command && argc > 1 && argv[1][0] != '-') {
        err_set(&err, PS_ESETTING,
                "\"%.64s\" is no command; use train, tune, eval, predict, serve, synth or key",
                argv[1]);
        free(r);
        return fail(2, &err);
    }
    take_words(r, command, argc, argv);
    status = settings_load(&settings_worker, argc, argv, (command ? 2 : 1) + r->n_words,
                           &r->settings, &action, &err);
    if (!command && (status || action == SETTINGS_RUN || action == SETTINGS_CHECK))
        status = refuse_place(argc, argv, &err);
    if (!status)
        status = act(r, command, action, &err);
    loss = r->loss;
    signal = status ? stop_signal_early(r->stop) : 0;
    status = run_deinit(r, status, &err);
    if (signal)
        return 128 + signal;
    if (status)
        return fail(is_misuse(status) ? 2 : 1, &err);
    return loss.text[0] ? fail(3, &loss) : 0;
}
