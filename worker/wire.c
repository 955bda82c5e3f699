#include "worker/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "common/mem.h"
#include "worker/client/spool.h"
#include "worker/settings_wire.h"
#include "worker/state.h"

#define WARMUP_AUTO 32u      /* steps; without them topk costs 0.0016 of AUC on Criteo's logs */
#define REFRESH_ASYNC_MAX 8u /* asynchronous: there is no bound to tell */

struct wire {
    const struct settings *s; /* borrowed, as the store */
    struct store *store;
    pthread_mutex_t lock; /* of codecs, which pulls and pushes ask */
    struct codecs codecs;
    struct state *state;  /* owned; NULL without --state-dir */
    struct bookmark mark; /* as of the last push */
    bool goes_on;
    uint64_t bound;                 /* of dense tables, clocks */
    uint64_t dense_min_clock;       /* that the last pull of them carried */
    uint32_t dense_uses;            /* steps that have used it; 0: it has not been pulled */
    _Atomic uint64_t staleness_max; /* of dense tables that were used again */
    _Atomic uint64_t flush_ns;      /* that timed pushes waited */
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static double now_s(void *arg)
{
    (void)arg;
    return (double)now_ns() * 1e-9;
}

static void notice(void *arg, const char *sentence)
{
    (void)arg;
    log_info("%s", sentence);
}

static uint64_t dense_bound(const struct settings *s)
{
    int mode = s->dense_mode ? s->dense_mode : s->mode + SPEC_MODE_ASYNC;

    if (mode == SPEC_MODE_ASYNC)
        return UINT64_MAX;
    if (mode == SPEC_MODE_BSP)
        return 0;
    return s->dense_mode ? s->dense_staleness : s->staleness;
}

static void set_flow(const struct settings *s, enum choice_slot slot, double n_rows,
                     uint32_t dim, struct choice_flow *f)
{
    bool pushes =
        slot == CHOICE_ROWS_PUSH || slot == CHOICE_WIDE_PUSH || slot == CHOICE_DENSE_PUSH;

    *f = (struct choice_flow){ .n_rows = n_rows, .dim = dim };
    f->is_free = settings_wire_codec(s, slot, &f->codec);
    f->k = pushes ? (uint32_t)((float)dim * s->topk) : 0;
    f->k = f->k ? f->k : 1;
}

static struct codecs_options make_options(const struct wire *w, uint64_t n_dense_floats)
{
    const struct settings *s = w->s;
    struct codecs_options o = { .has_link = !s->local,
                                .warmup_steps = s->dense_push_warmup,
                                .warmup_codec = (enum codec_id)s->dense_push_warmup_codec,
                                .steps_before = w->mark.codec_steps,
                                .now_s = now_s,
                                .notice = notice };
    double n_blocks = (double)n_dense_floats / SPEC_DENSE_BLOCK;

    set_flow(s, CHOICE_ROWS_PUSH, 0, s->dim, &o.flows[CHOICE_ROWS_PUSH]);
    set_flow(s, CHOICE_ROWS_PULL, 0, s->dim, &o.flows[CHOICE_ROWS_PULL]);
    set_flow(s, CHOICE_WIDE_PUSH, 0, s->wide, &o.flows[CHOICE_WIDE_PUSH]);
    set_flow(s, CHOICE_WIDE_PULL, 0, s->wide, &o.flows[CHOICE_WIDE_PULL]);
    set_flow(s, CHOICE_DENSE_PUSH, n_blocks, SPEC_DENSE_BLOCK, &o.flows[CHOICE_DENSE_PUSH]);
    if (o.flows[CHOICE_DENSE_PUSH].is_free && !o.warmup_steps)
        o.warmup_steps = WARMUP_AUTO;
    set_flow(s, CHOICE_DENSE_PULL, n_blocks, SPEC_DENSE_BLOCK, &o.flows[CHOICE_DENSE_PULL]);
    if (settings_wire_refresh(s, &o.refresh, NULL))
        o.refresh = 1;
    o.overlaps = w->store->ops->overlaps && settings_ahead(s) > 0;
    o.refresh_max = w->bound < REFRESH_ASYNC_MAX ? (uint32_t)w->bound + 1 : REFRESH_ASYNC_MAX;
    return o;
}

/* One that reads measures nothing: auto is fp32. */
static void settle(struct codecs_options *o)
{
    o->refresh = 1;
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        o->flows[i].is_free = false;
}

/* Where the process before this one stood (setup_spool() has checked it); or the beginning. */
static void open_bookmark(struct wire *w)
{
    uint8_t note[SPOOL_NOTE_MAX];
    uint32_t n_bytes = w->store->spool ? spool_found_note(w->store->spool, note) : 0;

    w->mark = (struct bookmark){ .settings = bookmark_settings(w->s),
                                 .codec_steps = state_steps_before(w->state),
                                 .best_auc = -1 };
    w->goes_on = n_bytes && !bookmark_read(note, n_bytes, &w->mark);
}

struct bookmark *wire_bookmark(struct wire *w)
{
    return &w->mark;
}

bool wire_goes_on(const struct wire *w)
{
    return w->goes_on;
}

static void note_bookmark(struct wire *w, const struct bookmark *mark)
{
    uint8_t note[BOOKMARK_BYTES];

    if (!w->store->spool)
        return;
    bookmark_write(mark, note);
    spool_set_note(w->store->spool, note, sizeof note);
}

void wire_mark(struct wire *w)
{
    note_bookmark(w, &w->mark);
}

int wire_new(const struct settings *s, struct store *store, uint64_t n_dense_floats,
             bool trains, struct wire **ret, struct err *err)
{
    struct encoder *encoder = store->ops->encoder(store);
    struct wire *w = mem_alloc(sizeof *w);
    struct codecs_options options;
    int status = 0;

    *w = (struct wire){ .s = s, .store = store, .bound = dense_bound(s) };
    pthread_mutex_init(&w->lock, NULL);
    if (trains) {
        encoder_bound_residuals(encoder, s->residual_max_bytes);
        status = state_open(&file_os, s, encoder, &w->state, err);
        open_bookmark(w);
    }
    if (status) {
        wire_free(w);
        return status;
    }
    options = make_options(w, n_dense_floats);
    if (!trains)
        settle(&options);
    codecs_init(&w->codecs, &options);
    *ret = w;
    return 0;
}

void wire_free(struct wire *w)
{
    if (!w)
        return;
    state_free(w->state);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

enum codec_id wire_codec(struct wire *w, enum choice_slot slot)
{
    enum codec_id codec;

    pthread_mutex_lock(&w->lock);
    codec = codecs_at(&w->codecs, slot);
    pthread_mutex_unlock(&w->lock);
    return codec;
}

void wire_plan(struct wire *w, struct codecs_plan *ret)
{
    pthread_mutex_lock(&w->lock);
    codecs_plan(&w->codecs, ret);
    pthread_mutex_unlock(&w->lock);
}

void wire_encode_elsewhere(struct wire *w)
{
    codecs_encode_elsewhere(&w->codecs);
}

static uint64_t dense_age(const struct wire *w, uint64_t clock)
{
    return clock > w->dense_min_clock ? clock - w->dense_min_clock : 0;
}

bool wire_wants_dense(struct wire *w, uint64_t clock)
{
    uint32_t refresh;

    pthread_mutex_lock(&w->lock);
    refresh = codecs_refresh(&w->codecs);
    pthread_mutex_unlock(&w->lock);
    if (!w->dense_uses || w->dense_uses >= refresh)
        return true;
    return dense_age(w, clock) > w->bound;
}

void wire_pulled(struct wire *w, uint64_t clock, bool with_dense)
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

void wire_forget(struct wire *w)
{
    w->dense_uses = 0;
    pthread_mutex_lock(&w->lock);
    codecs_forget(&w->codecs);
    pthread_mutex_unlock(&w->lock);
}

static int flush(struct wire *w, struct err *err)
{
    uint64_t since_ns = now_ns();
    int status = w->store->ops->flush(w->store, err);

    atomic_fetch_add(&w->flush_ns, now_ns() - since_ns);
    return status;
}

/* The push, and how long the link and the servers had it. One that was handed over is delivered,
 * even where this worker turns out to be dead while it waits: the next call tells it again. */
static int push_timed(struct wire *w, uint64_t clock, uint32_t n_samples,
                      const struct ps_push_section *sections, uint32_t n,
                      struct codecs_step *step, struct err *err)
{
    const struct store_ops *ops = w->store->ops;
    struct ps_stats before, after;
    int status = flush(w, err);
    double sent_s;

    if (status)
        return status;
    ops->stats(w->store, &before);
    status = ops->push(w->store, clock, n_samples, true, sections, n, err);
    sent_s = now_s(NULL);
    if (status)
        return status;
    ops->stats(w->store, &after);
    step->push_bytes = after.bytes_pushed - before.bytes_pushed;
    status = flush(w, err);
    if (!status)
        step->push_s = now_s(NULL) - sent_s;
    return status == PS_EFENCED ? 0 : status;
}

/* What the bookmark is once this step is pushed goes with its push. */
static struct bookmark note_step(struct wire *w, const struct slot *slot)
{
    struct bookmark next = w->mark;

    next.batch = slot->batch->number + 1;
    next.steps++;
    next.codec_steps++;
    note_bookmark(w, &next);
    return next;
}

static void count_step(struct wire *w, struct codecs_step *step)
{
    struct ps_stats stats;

    w->store->ops->stats(w->store, &stats);
    step->bytes_in = stats.bytes_in;
    pthread_mutex_lock(&w->lock);
    codecs_stepped(&w->codecs, step);
    pthread_mutex_unlock(&w->lock);
}

int wire_push(struct wire *w, const struct slot *slot, const struct codecs_plan *plan,
              const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct codecs_step step = { .n_left = plan->n_left,
                                .n_rows = slot->batch->n_unique,
                                .compute_s = (double)slot->compute_ns * 1e-9 };
    uint32_t n_samples = slot->batch->n;
    struct bookmark next;
    int status = wire_begin(w, err);

    if (status)
        return status;
    next = note_step(w, slot);
    if (plan->n_left)
        status = push_timed(w, slot->clock, n_samples, sections, n, &step, err);
    else
        status = w->store->ops->push(w->store, slot->clock, n_samples, true, sections, n, err);
    if (status)
        return status;
    w->mark = next;
    count_step(w, &step);
    return 0;
}

bool wire_keeps(const struct wire *w)
{
    return w->state != NULL;
}

bool wire_keeps_at(const struct wire *w, uint64_t number)
{
    return state_is_due(w->state, number);
}

int wire_begin(struct wire *w, struct err *err)
{
    return state_begin(w->state, err);
}

void wire_keep(struct wire *w)
{
    state_stepped(w->state, w->mark.codec_steps);
}

void wire_stats(const struct wire *w, struct ps_stats *ret)
{
    uint64_t age = w->staleness_max;

    w->store->ops->stats(w->store, ret);
    ret->room_ns += w->flush_ns;
    if (age > ret->staleness_max)
        ret->staleness_max = age;
}

int wire_end(struct wire *w, struct err *err)
{
    return w ? state_end(w->state, w->mark.codec_steps, err) : 0;
}
