#include "worker/sync_policy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "worker/client/push_journal.h"
#include "worker/error_feedback_state.h"

#define WARMUP_AUTO 32u      /* steps; without them topk costs 0.0016 of AUC on Criteo's logs */
#define REFRESH_ASYNC_MAX 8u /* asynchronous: there is no bound to tell */

struct sync_policy {
    const struct settings *s; /* borrowed, as the store */
    struct param_store *store;
    pthread_mutex_t lock; /* of codecs, which the threads of pulls and of pushes use */
    struct codec_policy codecs;
    struct error_feedback_state *state; /* owned; NULL without --state-dir */
    struct resume_point resume_point;   /* as of the last push */
    bool resumes;                       /* an earlier process has left it */
    uint64_t bound;                     /* of dense tables, clocks */
    uint64_t dense_min_clock;           /* that the last pull of them carried */
    uint32_t dense_uses;                /* steps that have used it; 0: it has not been pulled */
    _Atomic uint64_t staleness_max;     /* of dense tables that were used again */
    _Atomic uint64_t flush_ns;          /* that timed pushes waited */
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
                                                uint64_t n_dense_floats)
{
    const struct settings *s = w->s;
    struct codec_policy_options o = { .has_link = !s->local,
                                      .warmup_steps = s->dense_push_warmup,
                                      .warmup_codec = (enum codec_id)s->dense_push_warmup_codec,
                                      .steps_before = w->resume_point.codec_steps,
                                      .now_s = now_s,
                                      .notice = notice };
    double n_blocks = (double)n_dense_floats / TABLE_SPEC_DENSE_BLOCK;

    init_rows(s, CODEC_POLICY_ROWS_PUSH, 0, s->dim, &o.rows[CODEC_POLICY_ROWS_PUSH]);
    init_rows(s, CODEC_POLICY_ROWS_PULL, 0, s->dim, &o.rows[CODEC_POLICY_ROWS_PULL]);
    init_rows(s, CODEC_POLICY_WIDE_PUSH, 0, s->wide, &o.rows[CODEC_POLICY_WIDE_PUSH]);
    init_rows(s, CODEC_POLICY_WIDE_PULL, 0, s->wide, &o.rows[CODEC_POLICY_WIDE_PULL]);
    init_rows(s, CODEC_POLICY_DENSE_PUSH, n_blocks, TABLE_SPEC_DENSE_BLOCK,
              &o.rows[CODEC_POLICY_DENSE_PUSH]);
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

/* The resume point of an earlier process, which setup has checked; or the beginning. */
static void read_resume_point(struct sync_policy *w)
{
    uint8_t note[PUSH_JOURNAL_NOTE_MAX];
    uint32_t n_bytes = w->store->journal ? push_journal_found_note(w->store->journal, note) : 0;

    w->resume_point =
        (struct resume_point){ .settings = resume_point_settings(w->s),
                               .codec_steps = error_feedback_state_steps_before(w->state),
                               .best_auc = -1 };
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
                    uint64_t n_dense_floats, bool trains, struct sync_policy **ret,
                    struct err *err)
{
    struct push_encoder *encoder = store->ops->encoder(store);
    struct sync_policy *w = memory_alloc(sizeof *w);
    struct codec_policy_options options;
    int status = 0;

    *w = (struct sync_policy){ .s = s, .store = store, .bound = dense_bound(s) };
    pthread_mutex_init(&w->lock, NULL);
    if (trains) {
        push_encoder_bound_residuals(encoder, s->residual_max_bytes);
        status = error_feedback_state_open(&file_os, s, encoder, &w->state, err);
        read_resume_point(w);
    }
    if (status) {
        sync_policy_free(w);
        return status;
    }
    options = make_options(w, n_dense_floats);
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
    error_feedback_state_free(w->state);
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

bool sync_policy_wants_dense(struct sync_policy *w, uint64_t clock)
{
    uint32_t refresh;

    pthread_mutex_lock(&w->lock);
    refresh = codec_policy_refresh(&w->codecs);
    pthread_mutex_unlock(&w->lock);
    if (!w->dense_uses || w->dense_uses >= refresh)
        return true;
    return dense_age(w, clock) > w->bound;
}

void sync_policy_pulled(struct sync_policy *w, uint64_t clock, bool with_dense)
{
    uint64_t age = dense_age(w, clock);
    struct ps_stats stats;

    w->dense_uses++;
    if (!with_dense) {
        if (age > w->staleness_max)
            w->staleness_max = age;
        return;
    }
    w->store->ops->stats(w->store, &stats);
    w->dense_min_clock = stats.pulled_clock;
    w->dense_uses = 1;
}

void sync_policy_reset(struct sync_policy *w)
{
    w->dense_uses = 0;
    pthread_mutex_lock(&w->lock);
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

static int push(struct sync_policy *w, const struct step_buffers *step, struct err *err)
{
    return w->store->ops->push(w->store, step->clock, step->batch->n, true, step->sections,
                               step->n_sections, err);
}

/* Pushes, and measures the time until the last answer. A push that was sent counts as delivered, even if
 * this worker turns out to be dead meanwhile: the next call reports that again. */
static int push_timed(struct sync_policy *w, const struct step_buffers *step,
                      struct codec_policy_step *measured, struct err *err)
{
    const struct param_store_ops *ops = w->store->ops;
    struct ps_stats before, after;
    int status = flush(w, err);
    double sent_s;

    if (status)
        return status;
    ops->stats(w->store, &before);
    status = push(w, step, err);
    sent_s = now_s(NULL);
    if (status)
        return status;
    ops->stats(w->store, &after);
    measured->push_bytes = after.bytes_pushed - before.bytes_pushed;
    status = flush(w, err);
    if (!status)
        measured->push_s = now_s(NULL) - sent_s;
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

static void count_step(struct sync_policy *w, struct codec_policy_step *step)
{
    struct ps_stats stats;

    w->store->ops->stats(w->store, &stats);
    step->bytes_in = stats.bytes_in;
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
        status = push_timed(w, step, &measured, err);
    else
        status = push(w, step, err);
    if (status)
        return status;
    w->resume_point = next;
    count_step(w, &measured);
    return 0;
}

bool sync_policy_saves_residuals(const struct sync_policy *w)
{
    return w->state != NULL;
}

bool sync_policy_saves_residuals_at(const struct sync_policy *w, uint64_t number)
{
    return error_feedback_state_is_due(w->state, number);
}

int sync_policy_begin(struct sync_policy *w, struct err *err)
{
    return error_feedback_state_begin(w->state, err);
}

void sync_policy_save_residuals(struct sync_policy *w)
{
    error_feedback_state_stepped(w->state, w->resume_point.codec_steps);
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
    return w ? error_feedback_state_end(w->state, w->resume_point.codec_steps, err) : 0;
}
