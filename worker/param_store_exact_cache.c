#include "worker/param_store_exact_cache.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log_line.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "worker/cache/device_rows.h"
#include "worker/cache/read_ahead.h"
#include "worker/cache/replica.h"
#include "worker/cache/side_thread.h"
#include "worker/client/request.h"
#include "worker/compute/thread_pool.h"
#include "worker/param_store_proxy.h"

/* --- may the copy be used? From the servers' answers (rules: param_store_exact_cache.h) ---
 *
 *     used     --- a doubt, a rejoin --->   emptied: a new generation
 *              --- too many doubts, rows left out --->   off, for good
 */

#define COHERENCE_DROPS_MAX 8u /* of the copy, for pushes of others */

struct coherence {
    struct replica *replica; /* borrowed */
    bool off;
    bool
        limited; /* a server may leave rows out: pushes are acknowledged before the next pull */
    bool
        must_count; /* another worker may have pushed: the next pull has to check the step counts */
    int doubt; /* not resolved: PS_ESEQ, PS_ECOUNT as replica_receive(); -EAGAIN: once; 0: none */
    uint32_t n_drops;
    uint64_t generation;  /* how often it was emptied */
    struct ps_stats seen; /* at the last check */
};

/* Empties the copy. */
static void coherence_drop(struct coherence *t) ON_SHARD
{
    struct err err;

    t->doubt = 0;
    t->must_count = false;
    t->generation++;
    if (!replica_clear(t->replica, &err))
        return;
    t->off = true;
    log_line_warn("the row cache is off: %s", err.text);
}

/* The first one stays until it is resolved. */
static void coherence_doubt(struct coherence *t, int status)
{
    if (status && !t->doubt)
        t->doubt = status;
}

static void drop_saying(struct coherence *t, const char *why) ON_SHARD
{
    t->off = ++t->n_drops >= COHERENCE_DROPS_MAX;
    log_line_warn("the row cache %s: %s", t->off ? "is off from here on" : "begins anew", why);
    coherence_drop(t);
}

static void switch_off(struct coherence *t, const char *why) ON_SHARD
{
    log_line_warn("the row cache is off from here on: %s", why);
    t->off = true;
    coherence_drop(t);
}

/* Empties the copy or turns it off, as the doubt requires, and logs why. */
static void coherence_resolve(struct coherence *t) ON_SHARD
{
    if (t->doubt == PS_ESEQ)
        drop_saying(t,
                    "another worker pushes to this job's tables, or a server has lost pushes");
    else if (t->doubt == PS_ECOUNT)
        switch_off(t, "a server does not send rows with their state");
    else if (t->doubt == -EAGAIN)
        coherence_drop(t);
    else if (t->doubt)
        switch_off(t, status_text(t->doubt));
}

/* Resolves the doubt, and compares the client library's counters with those of the last check. */
static void coherence_check(struct coherence *t, const struct ps_stats *now) ON_SHARD
{
    coherence_resolve(t);
    if (now->rejoins != t->seen.rejoins)
        coherence_drop(t);
    if (now->rows_refused != t->seen.rows_refused && !t->off)
        switch_off(t, "a server has left rows out, for want of memory");
    if (now->foreign != t->seen.foreign)
        t->must_count = true;
    t->seen = *now;
}

/* --- the copy --- */

/* A pull of what is not held. */
struct fetch {
    bool under_way;
    uint32_t n; /* sections that ask for state, then plain ones */
    struct ps_pull_section sections[SECTIONS_MAX]; /* what the servers are asked */
    uint64_t *n_pushes; /* owned: [n][n_shards] of the copy when it was sent */
    uint64_t *keys;     /* owned: of the sections that ask for state */
    uint64_t cap_keys;
};

/* Rows that are read ahead, while the batch before them computes. */
struct ahead {
    struct side_thread thread;
    struct read_ahead rows; /* of the thread while it runs; under the copy's lock */
    struct ps_pull_section asked[SECTIONS_MAX];
    uint32_t n;
    bool is_good; /* nothing but the step's push has happened since they were read */
    uint64_t generation;
};

struct exact_cache {
    struct param_store_proxy forward;
    uint32_t n_shards, n_tables;
    struct ps_state_sink sink;
    pthread_mutex_t lock;        /* the copy and the order of pulls and pushes; all below */
    struct replica *replica;     /* owned */
    struct thread_pool *threads; /* owned: read its rows; NULL: none but the caller's */
    struct coherence coherence;
    struct fetch fetch;
    bool is_ahead; /* the fetch is prefetch()'s */
    struct wanted_rows {
        struct ps_pull_section
            sections[SECTIONS_MAX]; /* arrays borrowed until pull_wait; keys: see prefetch() */
        struct ps_pull_section wanted[SECTIONS_MAX]; /* without the rows that were read ahead */
        uint32_t n;
        uint64_t clock, generation;
        bool plain; /* it is inner's as it is */
    } request;
    struct ahead ahead;
    uint64_t n_shown; /* keys in the push under way */
    /* For stats(), which does not wait for the lock: a push that waits for the servers holds it, and somebody
     * asks for how long (wait_monitor.h). */
    _Atomic uint64_t rows_asked, rows_missing, rows_pulled_again, rows_ahead, asked_bytes,
        got_bytes, device_rows;
};

static struct exact_cache *exact_cache_of(const struct param_store *s)
{
    return (struct exact_cache *)(void *)(uintptr_t)s;
}

/* After a call of inner's. */
static int note(struct exact_cache *m, int status) ON_SHARD
{
    if (status) {
        m->fetch.under_way = m->fetch.under_way && status != PS_EFENCED;
        coherence_drop(&m->coherence);
    }
    return status;
}

/* --- a fetch --- */

static int reserve(struct exact_cache *m, uint64_t n_keys, struct err *err)
{
    struct fetch *f = &m->fetch;
    uint64_t *keys;

    if (n_keys <= f->cap_keys)
        return 0;
    keys = memory_try_realloc(f->keys, (n_keys + n_keys / 2) * sizeof *keys);
    if (!keys)
        return err_set(err, -ENOMEM, "no memory for %llu keys", (unsigned long long)n_keys);
    f->keys = keys;
    f->cap_keys = n_keys + n_keys / 2;
    return 0;
}

static uint64_t count_keys(const struct ps_pull_section *sections, uint32_t n)
{
    uint64_t n_keys = 0;

    for (uint32_t i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    return n_keys;
}

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t counted(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Rows that a pull was to bring. */
static void count_asked(struct exact_cache *m, const struct ps_pull_section *s, uint32_t n_keys)
{
    const struct table_spec *spec = replica_spec(m->replica, s->table);

    count(&m->asked_bytes, n_keys * codec_by_id(s->codec)->row_bytes(spec->dim, 0));
    if (spec->kind == TABLE_SPEC_SPARSE)
        count(&m->rows_asked, n_keys);
}

static void count_section(struct exact_cache *m, const struct ps_pull_section *s,
                          const uint64_t *missing, uint32_t n_missing)
{
    const struct table_spec *spec = replica_spec(m->replica, s->table);
    uint32_t n_repeated = 0;

    if (!m->is_ahead)
        count_asked(m, s, s->n_keys);
    if (spec->kind != TABLE_SPEC_SPARSE)
        return;
    for (uint32_t i = 0; i < n_missing; i++)
        n_repeated += replica_was_evicted(m->replica, s->table, missing[i]);
    count(&m->rows_missing, n_missing);
    count(&m->rows_pulled_again, n_repeated);
}

static void add_section(struct exact_cache *m, const struct ps_pull_section *s,
                        const uint64_t *keys, uint32_t n_keys) ON_SHARD
{
    struct fetch *f = &m->fetch;
    uint64_t *n_pushes = f->n_pushes + (size_t)f->n * m->n_shards;

    f->sections[f->n++] = (struct ps_pull_section){
        .table = s->table, .codec = CODEC_FP32, .n_keys = n_keys, .keys = keys, .sink = &m->sink
    };
    for (uint32_t i = 0; i < m->n_shards; i++)
        n_pushes[i] = replica_n_pushes(m->replica, i, s->table);
}

/* The step counts of all tables are in doubt: also of those that nothing is asked of. */
static void add_counts(struct exact_cache *m, const struct ps_pull_section *sections,
                       uint32_t n) ON_SHARD
{
    for (uint32_t t = 0; t < m->n_tables; t++) {
        const struct ps_pull_section count = { .table = t };
        uint32_t i = 0;

        while (i < n && sections[i].table != t)
            i++;
        if (i == n && replica_covers(m->replica, t) && m->fetch.n < SECTIONS_MAX)
            add_section(m, &count, NULL, 0);
    }
}

/* What of these sections is to be asked of the servers: rows that are not held; step counts, if
 * they are in doubt; what is not covered. There is space for the keys. */
static void compose(struct exact_cache *m, const struct ps_pull_section *sections, uint32_t n)
    ON_SHARD
{
    bool counts = m->coherence.must_count && !m->is_ahead;
    struct fetch *f = &m->fetch;
    uint64_t *keys = f->keys;

    f->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_missing;

        if (!replica_covers(m->replica, sections[i].table)) {
            if (!m->is_ahead)
                f->sections[f->n++] = sections[i];
            continue;
        }
        n_missing = replica_missing(m->replica, sections[i].table, sections[i].keys,
                                    sections[i].n_keys, keys);
        if (n_missing || counts)
            add_section(m, &sections[i], keys, n_missing);
        count_section(m, &sections[i], keys, n_missing);
        keys += n_missing;
    }
    if (!counts)
        return;
    add_counts(m, sections, n);
    m->coherence.must_count = false;
}

/* The sink: one shard's rows of one section of the fetch. What is wrong with them is told when
 * the whole answer is in, for then the rows can be pulled plainly. */
static int take(void *arg, const struct ps_pull_section *s, uint32_t shard,
                const uint32_t *numbers, uint32_t n, const uint8_t *values, size_t value_bytes)
{
    struct exact_cache *m = arg;
    size_t i = (size_t)(s - m->fetch.sections);
    uint8_t flags = 0;
    int status = 0;

    pthread_mutex_lock(&m->lock);
    enter_shard();
    /* The copy that has begun anew since it was asked takes none of it. */
    if (m->coherence.generation == m->request.generation)
        status = replica_receive(m->replica, s, m->fetch.n_pushes[i * m->n_shards + shard],
                                 shard, numbers, n, values, value_bytes, &flags);
    count(&m->got_bytes, value_bytes);
    m->coherence.limited = m->coherence.limited || flags & SECTION_STATE_LIMITED;
    coherence_doubt(&m->coherence, status);
    pthread_mutex_unlock(&m->lock);
    return 0;
}

static int start_fetch(struct exact_cache *m, uint64_t clock, struct err *err) ON_SHARD
{
    int status;

    if (!m->fetch.n)
        return 0;
    status = m->forward.inner->ops->pull_start(m->forward.inner, clock, m->fetch.sections,
                                               m->fetch.n, err);
    m->fetch.under_way = !status;
    return note(m, status);
}

/* If there is one. Not under the lock: pushes go on meanwhile. */
static int wait_fetch(struct exact_cache *m, struct err *err) ON_SHARD
{
    bool is_under_way;
    int status;

    pthread_mutex_lock(&m->lock);
    is_under_way = m->fetch.under_way;
    pthread_mutex_unlock(&m->lock);
    if (!is_under_way)
        return 0;
    status = m->forward.inner->ops->pull_wait(m->forward.inner, err);
    pthread_mutex_lock(&m->lock);
    m->fetch.under_way = false;
    m->is_ahead = false;
    note(m, status);
    coherence_resolve(&m->coherence);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* --- rows that are read ahead --- */

/* Not of tables whose rows change without a push of theirs, or are a device's. */
static bool may_read_ahead(const struct exact_cache *m, uint32_t table)
{
    return replica_covers(m->replica, table) &&
           replica_spec(m->replica, table)->kind == TABLE_SPEC_SPARSE &&
           !replica_is_on_device(m->replica, table) &&
           !(replica_spec(m->replica, table)->row_decay > 0);
}

/* What fails is left for the pull. */
static void read_rows_ahead(struct exact_cache *m) ON_SHARD
{
    const struct read_ahead_keys current = { m->request.sections, m->request.n },
                                 missing = { m->fetch.sections, m->fetch.n };
    struct ps_pull_section now[SECTIONS_MAX];
    struct ahead *a = &m->ahead;
    uint32_t n = 0;
    struct err err;

    if (read_ahead_begin(&a->rows, a->asked, a->n))
        return;
    for (uint32_t i = 0; i < a->n; i++) {
        if (!may_read_ahead(m, a->asked[i].table))
            continue;
        now[n] = read_ahead_split(&a->rows, i, current, missing);
        n += now[n].n_keys > 0;
    }
    a->is_good = n && replica_read_alone(m->replica, now, n, &err) == 0;
    a->generation = m->coherence.generation;
}

static bool may_run_ahead(const struct exact_cache *m)
{
    return !m->coherence.off && !m->coherence.limited && !m->coherence.doubt &&
           !m->fetch.under_way && !m->request.plain &&
           m->coherence.generation == m->request.generation;
}

/* A failure is the next call's, too. */
static void run_ahead(struct exact_cache *m) ON_SHARD
{
    struct ahead *a = &m->ahead;
    struct err err;

    if (!may_run_ahead(m) || reserve(m, count_keys(a->asked, a->n), &err))
        return;
    m->is_ahead = true;
    replica_ask_ahead(m->replica);
    compose(m, a->asked, a->n);
    if (!start_fetch(m, m->request.clock, &err) && a->thread.is_there)
        read_rows_ahead(m);
    m->is_ahead = m->fetch.under_way;
}

static void run_ahead_locked(void *arg)
{
    struct exact_cache *m = arg;

    enter_shard();
    pthread_mutex_lock(&m->lock);
    run_ahead(m);
    pthread_mutex_unlock(&m->lock);
}

/* Before every call that uses what the thread uses, or that ends what it looks at. */
static void stop_ahead(struct exact_cache *m)
{
    side_thread_cancel(&m->ahead.thread);
}

static void prefetch_end(struct param_store *s)
{
    side_thread_wait(&exact_cache_of(s)->ahead.thread);
}

/* Without the thread missing rows are asked for, and no more. */
static int prefetch(struct param_store *s, const struct ps_pull_section *sections, uint32_t n,
                    struct err *err)
{
    struct exact_cache *m = exact_cache_of(s);

    (void)err;
    assert(n <= SECTIONS_MAX);
    stop_ahead(m);
    pthread_mutex_lock(&m->lock);
    m->ahead.is_good = false;
    m->ahead.n = n;
    for (uint32_t i = 0; i < n; i++)
        m->ahead.asked[i] = sections[i];
    pthread_mutex_unlock(&m->lock);
    if (m->ahead.thread.is_there)
        side_thread_ask(&m->ahead.thread);
    else
        run_ahead_locked(m);
    return 0;
}

/* What the pull is to bring: what was read ahead stands in its dsts, if nothing has happened since. */
static void want(struct exact_cache *m)
{
    struct ahead *a = &m->ahead;
    const bool is_read = a->is_good && a->generation == m->coherence.generation;

    a->is_good = false;
    for (uint32_t i = 0; i < m->request.n; i++) {
        struct ps_pull_section *wanted = &m->request.wanted[i];
        uint32_t n_read;

        *wanted = m->request.sections[i];
        n_read = is_read ? read_ahead_take(&a->rows, wanted) : 0;
        if (!n_read)
            continue;
        count_asked(m, wanted, n_read);
        count(&m->rows_ahead, n_read);
    }
}

/* A push changes rows of the last pull: else what was read ahead may be of before. The encoder may have added rows with
 * residuals (error_feedback_flush.h). */
static void check_push(struct exact_cache *m, const struct ps_push_section *sections,
                       uint32_t n)
{
    const struct read_ahead_keys current = { m->request.sections, m->request.n };
    struct ahead *a = &m->ahead;
    uint64_t n_keys = 0;

    for (uint32_t i = 0; i < n && a->is_good; i++) {
        n_keys += sections[i].n_keys;
        if (replica_spec(m->replica, sections[i].table)->kind == TABLE_SPEC_SPARSE)
            a->is_good = read_ahead_is_push_of(current, &sections[i]);
    }
    a->is_good = a->is_good && n_keys == m->n_shown;
}

/* --- pull --- */

/* A device's rows come as all others, without a place. */
static void clear_places(struct ps_pull_section *section)
{
    for (uint32_t i = 0; i < section->n_keys && section->versions; i++) {
        section->versions[i] = 0;
        section->places[i] = DEVICE_ROWS_NO_PLACE;
    }
    section->versions = NULL;
    section->places = NULL;
}

static int start_plain(struct exact_cache *m, struct err *err)
{
    struct ps_pull_section *plain = m->request.wanted;

    m->request.plain = true;
    for (uint32_t i = 0; i < m->request.n; i++) {
        plain[i] = m->request.sections[i];
        clear_places(&plain[i]);
    }
    return m->forward.inner->ops->pull_start(m->forward.inner, m->request.clock, plain,
                                             m->request.n, err);
}

static int start(struct exact_cache *m, struct err *err) ON_SHARD
{
    struct ps_stats now;
    int status;

    m->forward.inner->ops->stats(m->forward.inner, &now);
    coherence_check(&m->coherence, &now);
    if (!m->coherence.off && !replica_begin_interval(m->replica))
        coherence_drop(&m->coherence);
    m->request.generation = m->coherence.generation;
    if (m->coherence.off)
        return start_plain(m, err);
    status = reserve(m, count_keys(m->request.sections, m->request.n), err);
    if (status)
        return status;
    want(m);
    compose(m, m->request.wanted, m->request.n);
    return start_fetch(m, m->request.clock, err);
}

/* What prefetch() has asked for is part of this; and where a push may leave rows out, that is known
 * before the copy is used. */
static int end_earlier(struct exact_cache *m, struct err *err) ON_SHARD
{
    bool must_flush;
    int status = wait_fetch(m, err);

    pthread_mutex_lock(&m->lock);
    must_flush = !status && m->coherence.limited && !m->coherence.off;
    pthread_mutex_unlock(&m->lock);
    return must_flush ? m->forward.inner->ops->flush(m->forward.inner, err) : status;
}

/* is_ahead: also where a push has been fenced after prefetch(). */
static void begin_request(struct exact_cache *m, uint64_t clock,
                          const struct ps_pull_section *sections, uint32_t n)
{
    assert(n <= SECTIONS_MAX);
    m->is_ahead = false;
    m->request.n = n;
    m->request.clock = clock;
    m->request.generation = 0;
    m->request.plain = false;
    for (uint32_t i = 0; i < n; i++)
        m->request.sections[i] = sections[i];
}

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct exact_cache *m = exact_cache_of(s);
    int status;

    enter_shard();
    stop_ahead(m);
    status = end_earlier(m, err);
    pthread_mutex_lock(&m->lock);
    begin_request(m, clock, sections, n);
    status = status ? note(m, status) : start(m, err);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* The servers answer alone: rows of a validation are wanted once, and would push out those of the
 * training. */
static int pull_for_eval(struct param_store *s, uint64_t clock,
                         const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct exact_cache *m = exact_cache_of(s);
    int status;

    enter_shard();
    stop_ahead(m);
    status = end_earlier(m, err);
    pthread_mutex_lock(&m->lock);
    begin_request(m, clock, sections, n);
    status = status ? note(m, status) : start_plain(m, err);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* The sections that the copy answers. */
static int read_held(struct exact_cache *m, struct err *err) ON_SHARD
{
    struct ps_pull_section held[SECTIONS_MAX];
    uint32_t n = 0;
    int status = 0;

    for (uint32_t i = 0; i < m->request.n; i++)
        if (replica_covers(m->replica, m->request.wanted[i].table))
            held[n++] = m->request.wanted[i];
    if (n)
        status = replica_read(m->replica, held, n, err);
    atomic_store_explicit(&m->device_rows, replica_n_device_rows(m->replica),
                          memory_order_relaxed);
    return status;
}

/* What is held, unless the copy began anew meanwhile: then the same question, plainly. */
static int answer(struct exact_cache *m, struct err *err) ON_SHARD
{
    bool is_held;
    int status = 0;

    pthread_mutex_lock(&m->lock);
    is_held = !m->coherence.off && m->coherence.generation == m->request.generation;
    if (is_held)
        status = read_held(m, err);
    pthread_mutex_unlock(&m->lock);
    if (is_held)
        return status;
    status = start_plain(m, err);
    return status ? status : m->forward.inner->ops->pull_wait(m->forward.inner, err);
}

static int pull_wait(struct param_store *s, struct err *err)
{
    struct exact_cache *m = exact_cache_of(s);
    int status;

    enter_shard();
    if (m->request.plain)
        return m->forward.inner->ops->pull_wait(m->forward.inner, err);
    status = wait_fetch(m, err);
    return status ? status : answer(m, err);
}

/* --- push --- */

/* The tap, called by inner's push, under the lock. */
static uint64_t show(void *arg, uint32_t shard, const struct request *push)
{
    struct exact_cache *m = arg;
    uint64_t n_versions = 1, n_left_out = 0;
    int status;

    enter_shard();
    for (uint32_t i = 0; i < push->n_sections; i++)
        m->n_shown += push->sections[i].n_keys;
    if (m->coherence.off)
        return n_versions;
    status = replica_push(m->replica, shard, push, &n_versions, &n_left_out);
    /* A row that is on its way here as it was before this push would miss it. */
    if (!status && n_left_out && m->fetch.under_way)
        status = -EAGAIN;
    coherence_doubt(&m->coherence, status);
    return n_versions;
}

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct exact_cache *m = exact_cache_of(s);
    int status;

    enter_shard();
    stop_ahead(m);
    pthread_mutex_lock(&m->lock);
    m->n_shown = 0;
    status = note(m, m->forward.inner->ops->push(m->forward.inner, clock, n_samples, tick,
                                                 sections, n, err));
    check_push(m, sections, n);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* --- rows on a device --- */

static bool replicate(struct param_store *s, uint32_t table, uint32_t n_places)
{
    struct exact_cache *m = exact_cache_of(s);
    bool is_there;

    enter_shard();
    pthread_mutex_lock(&m->lock);
    is_there = !m->coherence.off && replica_move_to_device(m->replica, table, n_places);
    pthread_mutex_unlock(&m->lock);
    return is_there;
}

/* Of rows that came plainly the device keeps none. */
static void begin_update(struct param_store *s, struct device_rows_step *step)
{
    struct exact_cache *m = exact_cache_of(s);

    enter_shard();
    pthread_mutex_lock(&m->lock);
    if (!m->coherence.off)
        replica_begin_update(m->replica, step);
    if (m->request.plain || m->coherence.off)
        memset(step->places, 0xff, step->n * sizeof *step->places);
    pthread_mutex_unlock(&m->lock);
}

/* --- the rest --- */

static uint64_t resume(struct param_store *s)
{
    stop_ahead(exact_cache_of(s));
    return param_store_proxy_resume(s);
}

static int leave(struct param_store *s, struct err *err)
{
    stop_ahead(exact_cache_of(s));
    return param_store_proxy_leave(s, err);
}

static int keep_table(struct param_store *s, const struct table_spec *spec, uint32_t table,
                      struct err *err)
{
    struct exact_cache *m = exact_cache_of(s);
    int status;

    enter_shard();
    pthread_mutex_lock(&m->lock);
    status = replica_add_table(m->replica, table, spec, err);
    m->n_tables += !status;
    pthread_mutex_unlock(&m->lock);
    if (!status && !replica_covers(m->replica, table))
        log_line_info("the row cache leaves table %s out: its rows come late or go by rules "
                      "(--admit-touches, --idle-clocks, --ttl, --rare-touches, --table-max, "
                      "--row-decay with "
                      "16-bit rows)",
                      spec->name);
    return status;
}

static void stats(const struct param_store *s, struct ps_stats *ret)
{
    const struct exact_cache *m = exact_cache_of(s);
    const uint64_t asked = counted(&m->rows_asked), missing = counted(&m->rows_missing),
                   asked_bytes = counted(&m->asked_bytes), got_bytes = counted(&m->got_bytes);

    m->forward.inner->ops->stats(m->forward.inner, ret);
    ret->rows_asked = asked;
    ret->rows_cached = asked > missing ? asked - missing : 0;
    ret->rows_pulled_again = counted(&m->rows_pulled_again);
    ret->rows_read_ahead = counted(&m->rows_ahead);
    ret->rows_on_device = counted(&m->device_rows);
    ret->bytes_saved = asked_bytes > got_bytes ? asked_bytes - got_bytes : 0;
}

static void close_store(struct param_store *s)
{
    struct exact_cache *m = exact_cache_of(s);

    enter_shard();
    side_thread_end(&m->ahead.thread);
    read_ahead_deinit(&m->ahead.rows);
    m->forward.inner->ops->close(m->forward.inner);
    replica_free(m->replica);
    thread_pool_free(m->threads);
    pthread_mutex_destroy(&m->lock);
    free(m->fetch.n_pushes);
    free(m->fetch.keys);
    free(m);
}

static const struct param_store_ops ops = { .table = param_store_proxy_table,
                                            .table_find = param_store_proxy_table_find,
                                            .pull_start = pull_start,
                                            .pull_for_eval = pull_for_eval,
                                            .pull_wait = pull_wait,
                                            .push = push,
                                            .flush = param_store_proxy_flush,
                                            .leave = leave,
                                            .copy = param_store_proxy_copy,
                                            .clock = param_store_proxy_clock,
                                            .stats = stats,
                                            .encoder = param_store_proxy_encoder,
                                            .resume = resume,
                                            .cancel = param_store_proxy_cancel,
                                            .prefetch = prefetch,
                                            .prefetch_end = prefetch_end,
                                            .replicate = replicate,
                                            .begin_update = begin_update,
                                            .close = close_store };

static void run_tasks(void *arg, uint32_t n_tasks, thread_pool_task *task, void *job)
{
    thread_pool_run(arg, n_tasks, task, job);
}

/* Without them it is slower, and no more. */
static struct task_threads start_threads(struct exact_cache *m,
                                         const struct param_store_exact_cache_options *options)
{
    const uint32_t n = options->n_threads < m->n_shards ? options->n_threads : m->n_shards;

    if (n < 2 || thread_pool_new(n, &m->threads))
        return (struct task_threads){ 0 };
    return (struct task_threads){ n, run_tasks, m->threads };
}

struct param_store *
param_store_exact_cache_new(struct param_store *inner,
                            const struct param_store_exact_cache_options *options)
{
    struct exact_cache *m = memory_alloc(sizeof *m);
    const struct ps_tap tap = { show, m };

    m->forward = (struct param_store_proxy){ { &ops, inner->journal }, inner, keep_table };
    m->sink = (struct ps_state_sink){ .take = take, .arg = m };
    pthread_mutex_init(&m->lock, NULL);
    m->n_shards = inner->ops->set_tap(inner, &tap);
    m->fetch.n_pushes =
        memory_alloc((size_t)SECTIONS_MAX * m->n_shards * sizeof *m->fetch.n_pushes);
    m->replica = replica_new(&(struct replica_options){ .n_shards = m->n_shards,
                                                        .mode = options->mode,
                                                        .max_bytes = options->max_bytes,
                                                        .n_turns = 2,
                                                        .threads = start_threads(m, options) });
    m->coherence.replica = m->replica;
    m->forward.inner->ops->stats(m->forward.inner, &m->coherence.seen);
    if (side_thread_start(&m->ahead.thread, run_ahead_locked, m))
        log_line_info("the row cache reads no rows ahead: its thread cannot start");
    return &m->forward.store;
}
