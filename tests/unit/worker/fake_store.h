/*
 * A store that counts instead of learning: every value that is pulled is the number of pushes
 * applied so far, so a slot's rows tell what its pull has seen. It takes its time, differently
 * every time (seeded), declares its worker dead or refuses a push where the plan says so, and
 * holds its caller to the contract: one pull and one push at a time, neither twice, no more
 * batches in flight than the permits, PS_EFENCED until resume().
 */
#ifndef TESTS_UNIT_WORKER_FAKE_STORE_H
#define TESTS_UNIT_WORKER_FAKE_STORE_H

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/crc.h"
#include "common/hash.h"
#include "proto/codec_catalog.h"
#include "worker/client/encode.h"
#include "worker/stop.h"
#include "worker/store.h"

#define FAKE_NEVER UINT64_MAX
#define FAKE_STEPS_MAX 256u
#define FAKE_TABLES_MAX 64u

struct fake_plan {
    uint64_t seed;
    uint32_t n_permits;
    uint64_t delay_max_us;
    uint64_t fence_pull, fence_push; /* before the n-th of them, from 0; FAKE_NEVER */
    uint64_t fence_flush;            /* likewise; FAKE_NEVER */
    uint64_t refuse_push, hold_pull; /* the latter waits for cancel() */
    uint64_t n_missed;         /* clocks that the others have gone on when it joins again */
    uint64_t link_ns_per_byte; /* of pushes, which a flush waits for */
    uint64_t n_between;        /* bytes of other requests that leave with every other push */
    uint64_t stop_after; /* so many pushes: SIGTERM, which fake.stop then knows of; 0: never */
    bool still; /* values do not tell the pushes: they are always the same, and like weights */
    bool encodes; /* pushes as a client does it; else bytes_of is of nothing */
};

/* Nothing goes wrong. */
static inline struct fake_plan fake_plan_of(uint64_t seed, uint32_t n_permits)
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

struct fake {
    struct store store;
    struct encoder *encoder; /* owned; applied pushes go through it, to one shard */
    struct buf buf;          /* owned: what it makes of one */
    struct push encoded;
    struct encoder_residuals owed; /* after it */
    struct fake_plan plan;
    const struct stop *stop; /* borrowed; if plan.stop_after */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool pulling, pushing, fenced, cancelled;
    uint64_t n_pulls, n_pushes, n_flushes; /* asked for, also what came to nothing */
    uint64_t bytes_pushed, bytes_between, bytes_waiting;
    uint64_t n_applied, n_fences, n_aheads, n_ahead_keys;
    uint64_t n_missed; /* clocks that it never had: the next push is for n_applied + n_missed */
    uint64_t pull_clock, max_ahead;
    uint32_t dims[FAKE_TABLES_MAX], n_tables;
    const struct ps_pull_section *sections;
    uint32_t n_sections;
    uint64_t keys_of[FAKE_STEPS_MAX];  /* of each applied push: a hash of its rows' keys */
    uint64_t bytes_of[FAKE_STEPS_MAX]; /* likewise of all its bytes, if plan.encodes */
    pthread_t pull_thread;
    bool broken; /* the caller broke the contract; asserted at the end, on the test's thread */
    const char *how;
};

static inline struct fake *fake_of(const struct store *s)
{
    return (struct fake *)(uintptr_t)s;
}

/* The clock of the next push. Under the lock. */
static inline uint64_t fake_now(const struct fake *f)
{
    return f->n_applied + f->n_missed;
}

static inline void fake_want(struct fake *f, bool holds, const char *what)
{
    if (!holds && !f->broken) {
        f->broken = true;
        f->how = what;
    }
}

static inline void fake_dawdle(struct fake *f, uint64_t salt)
{
    uint64_t us =
        f->plan.delay_max_us ? hash_mix2(f->plan.seed, salt) % f->plan.delay_max_us : 0;
    struct timespec t = { 0, (long)us * 1000 };

    nanosleep(&t, NULL);
}

static inline uint64_t fake_hash(const uint64_t *keys, uint32_t n)
{
    uint64_t h = n;

    for (uint32_t i = 0; i < n; i++)
        h = hash_mix2(h, keys[i]);
    return h;
}

static inline int fake_table(struct store *s, const struct table_spec *spec,
                             uint32_t *ret_table, struct err *err)
{
    struct fake *f = fake_of(s);

    assert_true(f->n_tables < FAKE_TABLES_MAX);
    if (encoder_add_table(f->encoder, f->n_tables, spec))
        return err_set(err, -ENOMEM, "the fake has no memory for a table");
    f->dims[f->n_tables] = spec->dim;
    *ret_table = f->n_tables++;
    return 0;
}

static inline int fake_table_find(struct store *s, struct table_spec *spec, uint32_t *ret_table,
                                  struct err *err)
{
    return fake_table(s, spec, ret_table, err);
}

/* Under the lock. */
static inline int fake_trouble(struct fake *f, uint64_t *fence_at, uint64_t n, struct err *err)
{
    if (n == *fence_at) {
        *fence_at = FAKE_NEVER;
        f->fenced = true;
        f->n_fences++;
    }
    return f->fenced ? err_set(err, PS_EFENCED, "the fake says: dead") : 0;
}

static inline int fake_pull_start(struct store *s, uint64_t clock,
                                  const struct ps_pull_section *sections, uint32_t n,
                                  struct err *err)
{
    struct fake *f = fake_of(s);
    int status;

    pthread_mutex_lock(&f->lock);
    fake_want(f, !f->pulling, "two pulls at a time");
    status = fake_trouble(f, &f->plan.fence_pull, f->n_pulls++, err);
    if (!status) {
        fake_want(f, clock >= fake_now(f), "a pull of a step that is pushed");
        fake_want(f, clock - fake_now(f) < f->plan.n_permits, "more batches than permits");
        if (clock - fake_now(f) > f->max_ahead)
            f->max_ahead = clock - fake_now(f);
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
static inline float fake_weight(uint32_t table, uint64_t key, uint32_t k)
{
    return (hash_unit(hash_mix2(hash_mix2(key, table), k)) - 0.5f) / 2;
}

static inline void fake_fill(struct fake *f)
{
    for (uint32_t i = 0; i < f->n_sections; i++) {
        const struct ps_pull_section *p = &f->sections[i];
        const uint32_t dim = f->dims[p->table];

        for (size_t at = 0; at < (size_t)p->n_keys * dim; at++)
            p->dst[at] = f->plan.still
                             ? fake_weight(p->table, p->keys[at / dim], (uint32_t)(at % dim))
                             : (float)f->n_applied;
    }
}

static inline uint64_t fake_hash_bytes(uint64_t h, const uint8_t *bytes, size_t n_bytes)
{
    return hash_mix2(hash_mix2(h, n_bytes), crc_extend(0, bytes, n_bytes));
}

/* A push as the wire has it; it has been encoded. */
static inline uint64_t fake_hash_push(const struct fake *f)
{
    uint64_t h = f->encoded.n_sections;

    for (uint32_t i = 0; i < f->encoded.n_sections; i++) {
        const struct section *s = &f->encoded.sections[i];

        h = hash_mix2(h, s->codec << 16 | s->k);
        h = fake_hash_bytes(h, s->keys, s->key_bytes);
        h = fake_hash_bytes(h, s->values, s->value_bytes);
    }
    return h;
}

static inline int fake_encode(struct fake *f, const struct ps_push_section *sections,
                              uint32_t n, struct err *err)
{
    buf_consume(&f->buf, buf_len(&f->buf));
    if (encoder_push(f->encoder, sections, n, &f->buf, &f->encoded))
        return err_set(err, -ENOMEM, "the fake has no memory for a push");
    encoder_residuals(f->encoder, &f->owed);
    return 0;
}

static inline int fake_pull_wait(struct store *s, struct err *err)
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
        fake_fill(f);
    f->pulling = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return status;
}

static inline void fake_count_bytes(struct fake *f, const struct ps_push_section *sections,
                                    uint32_t n)
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
static inline void fake_ask_to_stop(struct fake *f)
{
    raise(SIGTERM);
    for (int ms = 0; !stop_asked(f->stop) && ms < 120000; ms++)
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    fake_want(f, stop_asked(f->stop), "a signal that nobody has heard of for 2 minutes");
}

static inline int fake_push(struct store *s, uint64_t clock, uint32_t n_samples, bool tick,
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

static inline int fake_flush(struct store *s, struct err *err)
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

static inline uint64_t fake_resume(struct store *s)
{
    struct fake *f = fake_of(s);
    uint64_t clock;

    pthread_mutex_lock(&f->lock);
    fake_want(f, !f->pulling && !f->pushing, "resumed while a call is under way");
    f->fenced = false;
    f->n_missed += f->plan.n_missed;
    clock = fake_now(f);
    pthread_mutex_unlock(&f->lock);
    return clock;
}

static inline uint64_t fake_clock(const struct store *s)
{
    (void)s;
    return 0;
}

static inline void fake_stats(const struct store *s, struct ps_stats *ret)
{
    struct fake *f = fake_of(s);

    pthread_mutex_lock(&f->lock);
    *ret = (struct ps_stats){ .bytes_pushed = f->bytes_pushed,
                              .bytes_out = f->bytes_pushed + f->bytes_between,
                              .residual_rows = f->owed.n_rows,
                              .residual_bytes = f->owed.n_bytes,
                              .residual_settled = f->owed.n_settled };
    pthread_mutex_unlock(&f->lock);
}

static inline struct encoder *fake_encoder(const struct store *s)
{
    return fake_of((struct store *)(uintptr_t)s)->encoder;
}

static inline void fake_cancel(struct store *s)
{
    struct fake *f = fake_of(s);

    pthread_mutex_lock(&f->lock);
    f->cancelled = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static inline int fake_ahead(struct store *s, const struct ps_pull_section *sections,
                             uint32_t n, struct err *err)
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

static const struct store_ops fake_overlaps = { FAKE_OPS, .overlaps = true };
static const struct store_ops fake_serial = { FAKE_OPS, .ahead = fake_ahead };

static inline void fake_init(struct fake *f, const struct store_ops *ops,
                             const struct fake_plan *plan)
{
    *f = (struct fake){ .store.ops = ops, .plan = *plan, .encoder = encoder_new(1) };
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
}

static inline void fake_deinit(struct fake *f)
{
    if (f->broken)
        fail_msg("seed %llu: %s", (unsigned long long)f->plan.seed, f->how);
    encoder_free(f->encoder);
    buf_deinit(&f->buf);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
}

/* Waits until the pull of this clock has been asked for; false after 2 minutes. */
static inline bool fake_wait_pull(struct fake *f, uint64_t clock)
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

#endif
