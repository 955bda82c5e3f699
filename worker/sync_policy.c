#include "worker/sync_policy.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "proto/codec_catalog.h"
#include "worker/client/error_feedback_file.h"
#include "worker/client/push_encoder.h"
#include "worker/client/push_journal.h"

#define WARMUP_AUTO 32u      /* steps; without them topk costs 0.0016 of AUC on Criteo's logs */
#define REFRESH_ASYNC_MAX 8u /* asynchronous: there is no bound to tell */

struct sync_policy {
    const struct settings *s; /* borrowed, as the store */
    struct param_store *store;
    pthread_mutex_t lock; /* of codecs, which the threads of pulls and of pushes use */
    struct codec_policy codecs;
    struct push_encoder *encoder; /* borrowed: its residuals */
    struct residuals_file {
        bool is_kept;   /* in --state-dir */
        bool has_begun; /* the file says so */
        bool was_ended; /* what was found was of a run that had ended; or there was nothing */
        uint64_t steps_before; /* that earlier runs have made */
    } file;
    struct resume_point resume_point; /* as of the last push */
    bool resumes;                     /* an earlier process has left it */
    uint64_t bound;                   /* of dense tables, clocks */
    uint64_t dense_min_clock;         /* that the last pull of them carried */
    uint32_t dense_uses;              /* steps that have used it; 0: it has not been pulled */
    _Atomic uint64_t staleness_max;   /* of dense tables that were used again */
    _Atomic uint64_t flush_ns;        /* that timed pushes waited */
};

static double now_s(void *arg)
{
    (void)arg;
    return (double)clock_mono_ns() * 1e-9;
}

static void notice(void *arg, const char *sentence)
{
    (void)arg;
    log_line_info("%s", sentence);
}

static uint64_t dense_bound(const struct settings *s)
{
    int mode = s->dense_mode ? s->dense_mode : s->mode + TABLE_SPEC_MODE_ASYNC;

    if (mode == TABLE_SPEC_MODE_ASYNC)
        return UINT64_MAX;
    if (mode == TABLE_SPEC_MODE_BSP)
        return 0;
    return s->dense_mode ? s->dense_staleness : s->staleness;
}

static void init_rows(const struct settings *s, enum codec_policy_direction direction,
                      double n_rows, uint32_t dim, struct codec_policy_rows *f)
{
    bool pushes = direction == CODEC_POLICY_ROWS_PUSH || direction == CODEC_POLICY_WIDE_PUSH ||
                  direction == CODEC_POLICY_DENSE_PUSH;

    *f = (struct codec_policy_rows){ .n_rows = n_rows, .dim = dim };
    f->is_free = settings_codec(s, direction, &f->codec);
    f->k = pushes ? (uint32_t)((float)dim * s->topk) : 0;
    f->k = f->k ? f->k : 1;
}

static struct codec_policy_options make_options(const struct sync_policy *w,
                                                uint64_t n_dense_floats, bool has_layers)
{
    const struct settings *s = w->s;
    struct codec_policy_options o = { .has_link = !s->local,
                                      .warmup_steps = s->dense_push_warmup,
                                      .warmup_codec = (enum codec_id)s->dense_push_warmup_codec,
                                      .steps_before = w->resume_point.codec_steps,
                                      .now_s = now_s,
                                      .notice = notice };
    double n_blocks = (double)n_dense_floats / TABLE_SPEC_DENSE_BLOCK;

    init_rows(s, CODEC_POLICY_ROWS_PUSH, 0, settings_dim(s), &o.rows[CODEC_POLICY_ROWS_PUSH]);
    init_rows(s, CODEC_POLICY_ROWS_PULL, 0, settings_dim(s), &o.rows[CODEC_POLICY_ROWS_PULL]);
    init_rows(s, CODEC_POLICY_WIDE_PUSH, 0, settings_has_wide(s),
              &o.rows[CODEC_POLICY_WIDE_PUSH]);
    init_rows(s, CODEC_POLICY_WIDE_PULL, 0, settings_has_wide(s),
              &o.rows[CODEC_POLICY_WIDE_PULL]);
    init_rows(s, CODEC_POLICY_DENSE_PUSH, n_blocks, TABLE_SPEC_DENSE_BLOCK,
              &o.rows[CODEC_POLICY_DENSE_PUSH]);
    o.rows[CODEC_POLICY_DENSE_PUSH].is_layers = has_layers;
    if (o.rows[CODEC_POLICY_DENSE_PUSH].is_free && !o.warmup_steps)
        o.warmup_steps = WARMUP_AUTO;
    init_rows(s, CODEC_POLICY_DENSE_PULL, n_blocks, TABLE_SPEC_DENSE_BLOCK,
              &o.rows[CODEC_POLICY_DENSE_PULL]);
    if (settings_refresh(s, &o.refresh, NULL))
        o.refresh = 1;
    o.overlaps = w->store->ops->overlaps && settings_ahead(s) > 0;
    o.refresh_max = w->bound < REFRESH_ASYNC_MAX ? (uint32_t)w->bound + 1 : REFRESH_ASYNC_MAX;
    return o;
}

/* A run that reads measures nothing: auto is fp32. */
static void freeze(struct codec_policy_options *o)
{
    o->refresh = 1;
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        o->rows[i].is_free = false;
}

/* ---- the residuals' file ---- */

static int write_residuals(const struct sync_policy *w, uint64_t n_steps, bool is_ended,
                           struct err *err)
{
    struct error_feedback_file f = { .rank = w->s->rank,
                                     .clock = n_steps,
                                     .is_ended = is_ended };

    snprintf(f.job, sizeof f.job, "%.63s", w->s->job);
    return error_feedback_file_write(&file_os, w->s->state_dir, &f, w->encoder, err);
}

/* May a codec of this run keep what it loses? */
static bool may_have_residuals(const struct settings *s)
{
    static const enum codec_policy_direction pushes[] = { CODEC_POLICY_ROWS_PUSH,
                                                          CODEC_POLICY_DENSE_PUSH };
    bool ret = false;

    for (size_t i = 0; i < COUNT_OF(pushes); i++) {
        enum codec_id id;
        bool is_auto = settings_codec(s, pushes[i], &id);

        ret = ret || is_auto || codec_by_id(id)->feedback;
    }
    return ret;
}

static void log_found(const struct sync_policy *w, const struct error_feedback_file *f)
{
    struct push_encoder_residuals residuals;

    push_encoder_residuals(w->encoder, &residuals);
    if (f->is_ended)
        log_line_info("%llu row%s residuals of %llu earlier step%s: these are added to the "
                      "next pushes of "
                      "the same rows",
                      (unsigned long long)residuals.n_rows,
                      residuals.n_rows == 1 ? " has" : "s have", (unsigned long long)f->clock,
                      NUMBER_PLURAL(f->clock));
    else if (residuals.n_rows || may_have_residuals(w->s))
        log_line_warn(
            "the run before did not end by itself; the residuals of %llu row%s are as of its "
            "step %llu: of rows pushed since, a part is lost or sent twice",
            (unsigned long long)residuals.n_rows, NUMBER_PLURAL(residuals.n_rows),
            (unsigned long long)f->clock);
}

static int read_residuals(struct sync_policy *w, struct err *err)
{
    struct error_feedback_file f = { .rank = w->s->rank };
    int status;

    snprintf(f.job, sizeof f.job, "%.63s", w->s->job);
    status = error_feedback_file_read(&file_os, w->s->state_dir, w->encoder, &f, err);
    if (status == -ENOENT)
        return 0;
    if (status == PS_ECORRUPT) {
        log_line_warn("%s; this run begins without residuals", err->text);
        return 0;
    }
    if (status)
        return status;
    w->file.steps_before = f.clock;
    w->file.was_ended = f.is_ended;
    log_found(w, &f);
    return 0;
}

/* Loads the residuals of this job's and rank's earlier run. A damaged file costs a warning, and the run begins
 * without residuals; one of another job or model, or one that cannot be read or written, is an error. */
static int open_residuals(struct sync_policy *w, struct err *err)
{
    int status;

    if (!w->s->state_dir[0])
        return 0;
    w->file = (struct residuals_file){ .is_kept = true, .was_ended = true };
    status = read_residuals(w, err);
    return status ? status : write_residuals(w, w->file.steps_before, w->file.was_ended, err);
}

/* ---- the resume point ---- */

/* The resume point of an earlier process, which setup has checked; or the beginning. */
static void read_resume_point(struct sync_policy *w)
{
    uint8_t note[PUSH_JOURNAL_NOTE_MAX];
    uint32_t n_bytes = w->store->journal ? push_journal_found_note(w->store->journal, note) : 0;

    w->resume_point = (struct resume_point){ .settings = resume_point_settings(w->s),
                                             .codec_steps = w->file.steps_before,
                                             .best_score = -1 };
    w->resumes = n_bytes && !resume_point_read(note, n_bytes, &w->resume_point);
}

struct resume_point *sync_policy_resume_point(struct sync_policy *w)
{
    return &w->resume_point;
}

bool sync_policy_resumes(const struct sync_policy *w)
{
    return w->resumes;
}

static void set_note(struct sync_policy *w, const struct resume_point *mark)
{
    uint8_t note[RESUME_POINT_BYTES];

    if (!w->store->journal)
        return;
    resume_point_write(mark, note);
    push_journal_set_note(w->store->journal, note, sizeof note);
}

void sync_policy_save_resume_point(struct sync_policy *w)
{
    set_note(w, &w->resume_point);
}

int sync_policy_new(const struct settings *s, struct param_store *store,
                    uint64_t n_dense_floats, bool has_layers, bool trains,
                    struct sync_policy **ret, struct err *err)
{
    struct sync_policy *w = memory_alloc(sizeof *w);
    struct codec_policy_options options;
    int status = 0;

    *w = (struct sync_policy){
        .s = s, .store = store, .encoder = store->ops->encoder(store), .bound = dense_bound(s)
    };
    pthread_mutex_init(&w->lock, NULL);
    if (trains) {
        push_encoder_bound_residuals(w->encoder, s->residual_max_bytes);
        status = open_residuals(w, err);
        read_resume_point(w);
    }
    if (status) {
        sync_policy_free(w);
        return status;
    }
    options = make_options(w, n_dense_floats, has_layers);
    if (!trains)
        freeze(&options);
    codec_policy_init(&w->codecs, &options);
    *ret = w;
    return 0;
}

void sync_policy_free(struct sync_policy *w)
{
    if (!w)
        return;
    pthread_mutex_destroy(&w->lock);
    free(w);
}

enum codec_id sync_policy_codec(struct sync_policy *w, enum codec_policy_direction direction)
{
    enum codec_id codec;

    pthread_mutex_lock(&w->lock);
    codec = codec_policy_at(&w->codecs, direction);
    pthread_mutex_unlock(&w->lock);
    return codec;
}

void sync_policy_plan(struct sync_policy *w, struct codec_policy_plan *ret)
{
    pthread_mutex_lock(&w->lock);
    codec_policy_plan(&w->codecs, ret);
    pthread_mutex_unlock(&w->lock);
}

void sync_policy_set_device_encodes(struct sync_policy *w)
{
    codec_policy_set_device_encodes(&w->codecs);
}

static uint64_t dense_age(const struct sync_policy *w, uint64_t clock)
{
    return clock > w->dense_min_clock ? clock - w->dense_min_clock : 0;
}

bool sync_policy_always_pulls_dense(const struct sync_policy *w)
{
    return strcmp(w->s->dense_refresh, "1") == 0;
}

bool sync_policy_wants_dense(struct sync_policy *w, uint64_t clock)
{
    bool wants;

    pthread_mutex_lock(&w->lock);
    wants = !w->dense_uses || w->dense_uses >= codec_policy_refresh(&w->codecs) ||
            dense_age(w, clock) > w->bound;
    pthread_mutex_unlock(&w->lock);
    return wants;
}

void sync_policy_pulled(struct sync_policy *w, uint64_t clock, bool with_dense)
{
    struct ps_stats stats = { 0 };
    uint64_t age;

    if (with_dense)
        w->store->ops->stats(w->store, &stats);
    pthread_mutex_lock(&w->lock);
    age = dense_age(w, clock);
    w->dense_uses++;
    if (!with_dense && age > w->staleness_max)
        w->staleness_max = age;
    if (with_dense) {
        w->dense_min_clock = stats.pulled_clock;
        w->dense_uses = 1;
    }
    pthread_mutex_unlock(&w->lock);
}

void sync_policy_reset(struct sync_policy *w)
{
    pthread_mutex_lock(&w->lock);
    w->dense_uses = 0;
    codec_policy_reset(&w->codecs);
    pthread_mutex_unlock(&w->lock);
}

static int flush(struct sync_policy *w, struct err *err)
{
    uint64_t since_ns = clock_mono_ns();
    int status = w->store->ops->flush(w->store, err);

    atomic_fetch_add(&w->flush_ns, clock_mono_ns() - since_ns);
    return status;
}

/* A push that is measured starts when every one before it is acknowledged. */
static int start_measuring(struct sync_policy *w, struct codec_policy_step *ret,
                           struct err *err)
{
    struct ps_stats before;
    int status = flush(w, err);

    if (status)
        return status;
    w->store->ops->stats(w->store, &before);
    ret->push_bytes = before.bytes_pushed;
    return 0;
}

/* And it ends with its last answer. A push that was sent counts as delivered, even if this worker turns out to be
 * dead meanwhile: the next call reports that again. */
static int end_measuring(struct sync_policy *w, struct codec_policy_step *ret, struct err *err)
{
    const double sent_s = now_s(NULL);
    struct ps_stats after;
    int status = flush(w, err);

    if (!status)
        ret->push_s = now_s(NULL) - sent_s;
    w->store->ops->stats(w->store, &after);
    ret->push_bytes = after.bytes_pushed - ret->push_bytes;
    ret->bytes_in = after.bytes_in;
    return status == PS_EFENCED ? 0 : status;
}

/* The resume point after this step is stored with its push. */
static struct resume_point set_next_resume_point(struct sync_policy *w,
                                                 const struct step_buffers *step)
{
    struct resume_point next = w->resume_point;

    next.batch = step->batch->number + 1;
    next.steps++;
    next.codec_steps++;
    set_note(w, &next);
    return next;
}

static void count_step(struct sync_policy *w, const struct codec_policy_step *step)
{
    pthread_mutex_lock(&w->lock);
    codec_policy_stepped(&w->codecs, step);
    pthread_mutex_unlock(&w->lock);
}

int sync_policy_push(struct sync_policy *w, const struct step_buffers *step, struct err *err)
{
    struct codec_policy_step measured = { .n_left = step->plan.n_left,
                                          .n_rows = step->batch->n_unique,
                                          .compute_s = (double)step->compute_ns * 1e-9 };
    struct resume_point next;
    int status = sync_policy_begin(w, err);

    if (status)
        return status;
    next = set_next_resume_point(w, step);
    if (step->plan.n_left)
        status = start_measuring(w, &measured, err);
    if (!status)
        status = w->store->ops->push(w->store, step->clock, step->batch->n, true,
                                     step->sections, step->n_sections, err);
    if (!status && step->plan.n_left)
        status = end_measuring(w, &measured, err);
    if (status)
        return status;
    w->resume_point = next;
    count_step(w, &measured);
    return 0;
}

bool sync_policy_saves_residuals(const struct sync_policy *w)
{
    return w->file.is_kept;
}

bool sync_policy_saves_residuals_at(const struct sync_policy *w, uint64_t number)
{
    return w->file.is_kept && w->s->state_every && number % w->s->state_every == 0;
}

int sync_policy_begin(struct sync_policy *w, struct err *err)
{
    int status;

    if (!w->file.is_kept || w->file.has_begun)
        return 0;
    status = write_residuals(w, w->file.steps_before, false, err);
    w->file.has_begun = !status;
    return status;
}

void sync_policy_save_residuals(struct sync_policy *w)
{
    const uint64_t n_steps = w->resume_point.codec_steps;
    struct err err;

    if (sync_policy_saves_residuals_at(w, n_steps) && write_residuals(w, n_steps, false, &err))
        log_line_warn("%s", err.text);
}

void sync_policy_stats(const struct sync_policy *w, struct ps_stats *ret)
{
    uint64_t age = w->staleness_max;

    w->store->ops->stats(w->store, ret);
    ret->window_ns += w->flush_ns;
    if (age > ret->staleness_max)
        ret->staleness_max = age;
}

int sync_policy_end(struct sync_policy *w, struct err *err)
{
    if (!w || !w->file.is_kept)
        return 0;
    return write_residuals(w, w->resume_point.codec_steps,
                           w->file.has_begun || w->file.was_ended, err);
}
