#include "tests/unit/worker/fake_store.h"

#include <signal.h>
#include <time.h>

#include "common/crc32c.h"
#include "proto/codec_catalog.h"

struct fake_plan fake_plan_of(uint64_t seed, uint32_t n_permits)
{
    return (struct fake_plan){ .seed = seed,
                               .n_permits = n_permits,
                               .delay_max_us = 300,
                               .fence_pull = FAKE_NEVER,
                               .fence_push = FAKE_NEVER,
                               .fence_flush = FAKE_NEVER,
                               .refuse_push = FAKE_NEVER,
                               .hold_pull = FAKE_NEVER };
}

static struct fake *fake_of(const struct param_store *s)
{
    return (struct fake *)(uintptr_t)s;
}

uint64_t fake_now(const struct fake *f)
{
    return f->n_applied + f->n_missed;
}

static void fake_want(struct fake *f, bool holds, const char *what)
{
    if (!holds && !f->broken) {
        f->broken = true;
        f->how = what;
    }
}

static void fake_dawdle(struct fake *f, uint64_t salt)
{
    uint64_t us =
        f->plan.delay_max_us ? hash_mix2(f->plan.seed, salt) % f->plan.delay_max_us : 0;
    struct timespec t = { 0, (long)us * 1000 };

    nanosleep(&t, NULL);
}

uint64_t fake_hash(const uint64_t *keys, uint32_t n)
{
    uint64_t h = n;

    for (uint32_t i = 0; i < n; i++)
        h = hash_mix2(h, keys[i]);
    return h;
}

static int fake_table(struct param_store *s, const struct table_spec *spec, uint32_t *ret_table,
                      struct err *err)
{
    struct fake *f = fake_of(s);

    assert_true(f->n_tables < FAKE_TABLES_MAX);
    if (push_encoder_add_table(f->encoder, f->n_tables, spec))
        return err_set(err, -ENOMEM, "the fake has no memory for a table");
    f->dims[f->n_tables] = spec->dim;
    *ret_table = f->n_tables++;
    return 0;
}

static int fake_table_find(struct param_store *s, struct table_spec *spec, uint32_t *ret_table,
                           struct err *err)
{
    return fake_table(s, spec, ret_table, err);
}

/* Under the lock. */
static int fake_trouble(struct fake *f, uint64_t *fence_at, uint64_t n, struct err *err)
{
    if (n == *fence_at) {
        *fence_at = FAKE_NEVER;
        f->fenced = true;
        f->n_fences++;
    }
    return f->fenced ? err_set(err, PS_EFENCED, "the fake says: dead") : 0;
}

/* Under the lock. */
static int fake_begin_pull(struct fake *f, uint64_t clock, struct err *err)
{
    int status = fake_trouble(f, &f->plan.fence_pull, f->n_pulls++, err);

    if (status)
        return status;
    fake_want(f, clock >= fake_now(f), "a pull of a step that is pushed");
    fake_want(f, clock - fake_now(f) < f->plan.n_permits, "more batches than permits");
    if (clock - fake_now(f) > f->max_ahead)
        f->max_ahead = clock - fake_now(f);
    return 0;
}

static int fake_pull_start(struct param_store *s, uint64_t clock,
                           const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct fake *f = fake_of(s);
    int status;

    pthread_mutex_lock(&f->lock);
    fake_want(f, !f->pulling, "two pulls at a time");
    status = fake_begin_pull(f, clock, err);
    if (!status) {
        f->pulling = true;
        f->pull_thread = pthread_self();
        f->pull_clock = clock;
        f->sections = sections;
        f->n_sections = n;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* In [-0.25, 0.25): of a key's k-th float. */
static float fake_weight(uint32_t table, uint64_t key, uint32_t k)
{
    return (hash_unit(hash_mix2(hash_mix2(key, table), k)) - 0.5f) / 2;
}

static void fake_fill(struct fake *f, const struct ps_pull_section *sections, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct ps_pull_section *p = &sections[i];
        const uint32_t dim = f->dims[p->table];

        for (size_t at = 0; at < (size_t)p->n_keys * dim; at++)
            p->dst[at] = f->plan.still
                             ? fake_weight(p->table, p->keys[at / dim], (uint32_t)(at % dim))
                             : (float)f->n_applied;
    }
}

static uint64_t fake_hash_bytes(uint64_t h, const uint8_t *bytes, size_t n_bytes)
{
    return hash_mix2(hash_mix2(h, n_bytes), crc32c_extend(0, bytes, n_bytes));
}

/* A push as the wire has it, if it has been encoded. */
static uint64_t fake_hash_push(const struct fake *f)
{
    const struct request *push =
        f->set.requests ? f->set.requests[0] : NULL; /* none was encoded */
    uint32_t n_sections = push ? push->n_sections : 0;
    uint64_t h = n_sections;

    for (uint32_t i = 0; i < n_sections; i++) {
        const struct section *s = &push->sections[i];

        h = hash_mix2(h, s->codec << 16 | s->k);
        h = fake_hash_bytes(h, s->keys, s->key_bytes);
        h = fake_hash_bytes(h, s->values, s->value_bytes);
    }
    return h;
}

static int fake_encode(struct fake *f, const struct ps_push_section *sections, uint32_t n,
                       struct err *err)
{
    request_set_release(&f->set);
    if (request_set_acquire(&f->set, n) ||
        push_encoder_push(f->encoder, sections, n, f->set.requests))
        return err_set(err, -ENOMEM, "the fake has no memory for a push");
    push_encoder_residuals(f->encoder, &f->residuals);
    return 0;
}

static int fake_pull_wait(struct param_store *s, struct err *err)
{
    struct fake *f = fake_of(s);
    int status;

    fake_dawdle(f, 2 * f->pull_clock);
    pthread_mutex_lock(&f->lock);
    while (f->pull_clock == f->plan.hold_pull && !f->cancelled)
        pthread_cond_wait(&f->changed, &f->lock);
    status = f->cancelled ? err_set(err, -ECANCELED, "cancelled")
                          : fake_trouble(f, &f->plan.fence_pull, FAKE_NEVER - 1, err);
    if (!status)
        fake_fill(f, f->sections, f->n_sections);
    f->pulling = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* Others may be under way, and end before it. */
static int fake_pull(struct param_store *s, uint64_t clock,
                     const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct fake *f = fake_of(s);
    int status;

    pthread_mutex_lock(&f->lock);
    status = fake_begin_pull(f, clock, err);
    f->n_pulling += !status;
    if (f->n_pulling > f->most_pulling)
        f->most_pulling = f->n_pulling;
    if (!status && clock > f->pull_clock)
        f->pull_clock = clock;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (status)
        return status;
    fake_dawdle(f, 2 * clock);
    pthread_mutex_lock(&f->lock);
    while ((clock == f->plan.hold_pull || f->most_pulling < f->plan.hold_until_pulling) &&
           !f->cancelled)
        pthread_cond_wait(&f->changed, &f->lock);
    status = f->cancelled ? err_set(err, -ECANCELED, "cancelled")
                          : fake_trouble(f, &f->plan.fence_pull, FAKE_NEVER - 1, err);
    if (!status)
        fake_fill(f, sections, n);
    f->n_pulling--;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return status;
}

static void fake_count_bytes(struct fake *f, const struct ps_push_section *sections, uint32_t n)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < n; i++)
        n_bytes += sections[i].n_keys *
                   codec_by_id(sections[i].codec)->row_bytes(f->dims[sections[i].table], 1);
    f->bytes_pushed += n_bytes;
    f->bytes_waiting += n_bytes;
    f->bytes_between += f->n_pushes % 2 ? 0 : f->plan.n_between;
}

/* A thread of its own takes note of the signal: on a busy machine many steps later, unless it is waited for. */
static void fake_ask_to_stop(struct fake *f)
{
    raise(SIGTERM);
    for (int ms = 0; !stop_signal_asked(f->stop) && ms < 120000; ms++)
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    fake_want(f, stop_signal_asked(f->stop), "a signal that nobody has heard of for 2 minutes");
}

static int fake_push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                     const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct fake *f = fake_of(s);
    int status;

    pthread_mutex_lock(&f->lock);
    fake_want(f, !f->pushing, "two pushes at a time");
    fake_want(f, s->ops->overlaps || !f->pulling, "a push within a pull");
    f->pushing = true;
    pthread_mutex_unlock(&f->lock);
    fake_dawdle(f, 2 * clock + 1);
    pthread_mutex_lock(&f->lock);
    status = fake_trouble(f, &f->plan.fence_push, f->n_pushes, err);
    if (!status && f->n_pushes == f->plan.refuse_push)
        status = err_set(err, PS_ENAN, "the fake refuses this push");
    f->n_pushes++;
    if (!status && f->plan.encodes)
        status = fake_encode(f, sections, n, err);
    if (!status) {
        fake_count_bytes(f, sections, n);
        fake_want(f, tick && n_samples && clock == fake_now(f), "a push out of turn");
        f->keys_of[f->n_applied % FAKE_STEPS_MAX] =
            fake_hash(sections[0].keys, sections[0].n_keys);
        f->bytes_of[f->n_applied % FAKE_STEPS_MAX] = fake_hash_push(f);
        if (++f->n_applied == f->plan.stop_after)
            fake_ask_to_stop(f);
    }
    f->pushing = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return status;
}

static int fake_flush(struct param_store *s, struct err *err)
{
    struct fake *f = fake_of(s);
    uint64_t ns;
    int status;

    pthread_mutex_lock(&f->lock);
    status = fake_trouble(f, &f->plan.fence_flush, f->n_flushes++, err);
    ns = f->bytes_waiting * f->plan.link_ns_per_byte;
    f->bytes_waiting = 0;
    pthread_mutex_unlock(&f->lock);
    if (!status && ns)
        nanosleep(&(struct timespec){ 0, (long)ns }, NULL);
    return status;
}

static uint64_t fake_resume(struct param_store *s)
{
    struct fake *f = fake_of(s);
    uint64_t clock;

    pthread_mutex_lock(&f->lock);
    fake_want(f, !f->pulling && !f->n_pulling && !f->pushing,
              "resumed while a call is under way");
    f->fenced = false;
    f->n_missed += f->plan.n_missed;
    clock = fake_now(f);
    pthread_mutex_unlock(&f->lock);
    return clock;
}

static uint64_t fake_clock(const struct param_store *s)
{
    (void)s;
    return 0;
}

static void fake_stats(const struct param_store *s, struct ps_stats *ret)
{
    struct fake *f = fake_of(s);

    pthread_mutex_lock(&f->lock);
    *ret = (struct ps_stats){ .bytes_pushed = f->bytes_pushed,
                              .bytes_out = f->bytes_pushed + f->bytes_between,
                              .residual_rows = f->residuals.n_rows,
                              .residual_bytes = f->residuals.n_bytes,
                              .residual_flushed = f->residuals.n_flushed };
    pthread_mutex_unlock(&f->lock);
}

static struct push_encoder *fake_encoder(const struct param_store *s)
{
    return fake_of((struct param_store *)(uintptr_t)s)->encoder;
}

static void fake_cancel(struct param_store *s)
{
    struct fake *f = fake_of(s);

    pthread_mutex_lock(&f->lock);
    f->cancelled = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static int fake_ahead(struct param_store *s, const struct ps_pull_section *sections, uint32_t n,
                      struct err *err)
{
    struct fake *f = fake_of(s);

    (void)err;
    fake_want(f, n >= 1 && !f->pulling && !f->pushing, "ahead within another call");
    f->n_aheads++;
    f->n_ahead_keys = fake_hash(sections[0].keys, sections[0].n_keys);
    return 0;
}

#define FAKE_OPS                                                                              \
    .table = fake_table, .table_find = fake_table_find, .pull_start = fake_pull_start,        \
    .pull_wait = fake_pull_wait, .push = fake_push, .flush = fake_flush, .leave = fake_flush, \
    .clock = fake_clock, .stats = fake_stats, .encoder = fake_encoder, .resume = fake_resume, \
    .cancel = fake_cancel

const struct param_store_ops fake_overlaps = { FAKE_OPS, .overlaps = true };
const struct param_store_ops fake_pulls = { FAKE_OPS, .pull = fake_pull, .overlaps = true };
const struct param_store_ops fake_serial = { FAKE_OPS, .prefetch = fake_ahead };

void fake_init(struct fake *f, const struct param_store_ops *ops, const struct fake_plan *plan)
{
    *f = (struct fake){ .store.ops = ops, .plan = *plan, .encoder = push_encoder_new(1) };
    request_set_init(&f->set, 1, 0);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
}

void fake_deinit(struct fake *f)
{
    if (f->broken)
        fail_msg("seed %llu: %s", (unsigned long long)f->plan.seed, f->how);
    push_encoder_free(f->encoder);
    request_set_deinit(&f->set);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
}

bool fake_wait_pull(struct fake *f, uint64_t clock)
{
    struct timespec until;
    bool asked;
    int late = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    pthread_mutex_lock(&f->lock);
    while (!(f->n_pulls > 0 && f->pull_clock >= clock) && !late)
        late = pthread_cond_timedwait(&f->changed, &f->lock, &until);
    asked = f->n_pulls > 0 && f->pull_clock >= clock;
    pthread_mutex_unlock(&f->lock);
    return asked;
}
