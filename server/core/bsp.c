#include "server/core/bsp.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/key_codec.h"
#include "server/core/expire.h"
#include "server/core/pending_rows.h"
#include "server/core/push_apply.h"
#include "server/core/replay_decisions.h"
#include "server/core/row_admission.h"
#include "server/core/row_provenance.h"

#define HELD_BYTES_ALWAYS (UINT64_C(64) << 20) /* however small the budget: the largest frame */

static struct bsp_queue *find_queue(const struct shard *s, const struct job *job, uint64_t run)
{
    struct bsp_queue *q = s->queues;

    while (q && (q->job != job || q->run != run))
        q = q->next;
    return q;
}

/* There are never more than jobs that push at a time. */
static void recycle_queue(struct shard *s, struct bsp_queue *q)
{
    q->next = s->pooled_queues;
    s->pooled_queues = q;
}

static struct bsp_queue *make_queue(struct shard *s, struct job *job)
{
    struct bsp_queue *q = find_queue(s, job, job->run);

    if (q)
        return q;
    q = s->pooled_queues;
    if (q)
        s->pooled_queues = q->next;
    else
        q = memory_alloc(sizeof *q);
    *q = (struct bsp_queue){ .next = s->queues, .job = job, .run = job->run };
    s->queues = q;
    return q;
}

static uint32_t n_held_of(const struct bsp_queue *q, uint32_t rank)
{
    uint32_t n = 0;

    for (const struct bsp_held *h = q ? q->first : NULL; h; h = h->next)
        n += h->rank == rank;
    return n;
}

/* Held pushes are no rows: a full table must not stop the updates of the rows that it has. */
static uint64_t held_bytes_max(const struct shard *s)
{
    uint64_t max = s->config.memory_max_bytes / 4;

    if (!s->config.memory_max_bytes)
        return BSP_HELD_BYTES_MAX;
    return max < HELD_BYTES_ALWAYS ? HELD_BYTES_ALWAYS : max;
}

/* Who is ahead gets half of the place, so that the clock that all wait for finds the other
 * half, and is told to come again; when that clock itself does not fit, waiting mends nothing. */
static int check_bytes(const struct shard *s, const struct worker *worker,
                       const struct push *push, size_t n_bytes, struct err *err)
{
    bool is_ahead = push->clock > job_min_clock(worker->job);
    uint64_t max = held_bytes_max(s) / (is_ahead ? 2 : 1);

    if (s->held_bytes + n_bytes <= max)
        return 0;
    return err_set(err, is_ahead ? -ENOMEM : PS_EBUDGET,
                   "no place for %zu bytes of a push that must wait for its clock: %" PRIu64
                   " of %" PRIu64 " are taken%s",
                   n_bytes, s->held_bytes, max,
                   is_ahead ? "; it has one when the slower workers have caught up" : "");
}

static int check_space(const struct shard *s, const struct worker *worker,
                       const struct push *push, size_t n_bytes, struct err *err)
{
    if (n_held_of(find_queue(s, worker->job, worker->job->run), worker->rank) >=
        BSP_HELD_PUSHES_MAX)
        return err_set(err, PS_ETOOBIG,
                       "%u pushes of this worker wait for the others' clocks: no more are held",
                       BSP_HELD_PUSHES_MAX);
    return check_bytes(s, worker, push, n_bytes, err);
}

static uint8_t *copy_section(struct section *dst, const struct section *src, uint8_t *bytes)
{
    *dst = *src;
    dst->keys = bytes;
    dst->values = bytes + src->key_bytes;
    if (src->key_bytes)
        memcpy(bytes, src->keys, src->key_bytes);
    if (src->value_bytes)
        memcpy(bytes + src->key_bytes, src->values, src->value_bytes);
    return bytes + src->key_bytes + src->value_bytes;
}

/* --- memory of held pushes --- */

/* The newest of those let go that has space; NULL: there is none. */
static struct bsp_held *reuse_held(struct shard *s, size_t n_bytes)
{
    struct bsp_held **at = &s->pooled_held, *h;

    while (*at && (*at)->cap_bytes < n_bytes)
        at = &(*at)->next;
    h = *at;
    if (!h)
        return NULL;
    *at = h->next;
    s->pooled_bytes -= h->cap_bytes;
    memory_show(h->sections, h->cap_bytes - sizeof *h);
    return h;
}

static void free_pooled(struct shard *s)
{
    struct bsp_held *h = s->pooled_held;

    s->pooled_held = h->next;
    s->pooled_bytes -= h->cap_bytes;
    free(h);
}

struct bsp_held *bsp_make_held(struct shard *s, size_t n_bytes)
{
    struct bsp_held *h = reuse_held(s, n_bytes);
    size_t cap_bytes = n_bytes + n_bytes / 8; /* for one that is a little larger */

    if (h) {
        cap_bytes = h->cap_bytes;
    } else {
        /* Another one takes the place of one that has become too small, so that there are never more than were held at
         * a time. */
        if (s->pooled_held)
            free_pooled(s);
        h = memory_try_realloc(NULL, cap_bytes);
    }
    if (h)
        *h = (struct bsp_held){ .n_users = 1, .n_bytes = n_bytes, .cap_bytes = cap_bytes };
    return h;
}

void bsp_release_held(struct shard *s, struct bsp_held *held)
{
    if (--held->n_users != 0)
        return;
    if (s->pooled_bytes + held->cap_bytes > BSP_POOL_BYTES) {
        free(held);
        return;
    }
    memory_hide(held->sections, held->cap_bytes - sizeof *held);
    held->next = s->pooled_held;
    s->pooled_held = held;
    s->pooled_bytes += held->cap_bytes;
}

/* --- hold --- */

static struct bsp_held *copy_push(struct shard *s, const struct push *push,
                                  const struct push_section *sections, size_t n_bytes,
                                  uint32_t n_sections)
{
    struct bsp_held *h = bsp_make_held(s, n_bytes);
    uint8_t *bytes;

    if (!h)
        return NULL;
    bytes = (uint8_t *)(h->sections + n_sections);
    h->seq = push->seq;
    h->clock = push->clock;
    h->n_samples = push->n_samples;
    for (uint32_t i = 0; i < push->n_sections; i++)
        if (sections[i].waits)
            bytes = copy_section(&h->sections[h->n_sections++], &push->sections[i], bytes);
    return h;
}

int bsp_copy(struct shard *s, const struct worker *worker, const struct push *push,
             const struct push_section *sections, struct bsp_held **ret_held, struct err *err)
{
    size_t n_bytes = sizeof(struct bsp_held);
    uint32_t n_sections = 0;
    int status;

    /* A late push is one of tables that do not wait. */
    if (push->clock < worker->clock)
        return 0;
    for (uint32_t i = 0; i < push->n_sections; i++) {
        if (!sections[i].waits)
            continue;
        n_bytes += sizeof(struct section) + push->sections[i].key_bytes +
                   push->sections[i].value_bytes;
        n_sections++;
    }
    status = s->replay ? 0 : check_space(s, worker, push, n_bytes, err);
    if (status)
        return status;
    *ret_held = copy_push(s, push, sections, n_bytes, n_sections);
    return *ret_held ? 0 : -ENOMEM;
}

bool bsp_is_before(const struct bsp_held *a, const struct bsp_held *b)
{
    if (a->clock != b->clock)
        return a->clock < b->clock;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    if (a->incarnation != b->incarnation)
        return a->incarnation < b->incarnation;
    return a->seq < b->seq;
}

void bsp_hold(struct shard *s, struct worker *worker, struct bsp_held *held)
{
    struct bsp_held **at;

    held->rank = worker->rank;
    held->incarnation = worker->incarnation;
    at = &make_queue(s, worker->job)->first;
    while (*at && bsp_is_before(*at, held))
        at = &(*at)->next;
    held->next = *at;
    *at = held;
    s->held_bytes += held->n_bytes;
}

void bsp_tick(struct shard *s, const struct worker *worker, uint64_t clock)
{
    struct bsp_queue *q = find_queue(s, worker->job, worker->job->run);

    for (struct bsp_held *h = q ? q->first : NULL; h && h->clock <= clock; h = h->next)
        if (h->rank == worker->rank && h->incarnation == worker->incarnation)
            h->finished = true;
}

/* Nobody can add to the queue's first clock any more. */
static bool is_complete(const struct bsp_queue *q)
{
    return q->run != q->job->run || job_all_ticked(q->job, q->first->clock);
}

bool bsp_is_behind(const struct shard *s, const struct job *job)
{
    const struct bsp_queue *q = find_queue(s, job, job->run);

    return q && q->first && is_complete(q);
}

/* --- combine --- */

/* One held section and how far the merge has come in it. */
struct contribution {
    const struct section *section; /* borrowed from the held push */
    struct shard_entry *entry;
    const struct codec *codec;
    size_t row_bytes;
    float weight;
    uint32_t order;       /* by (rank, seq, place in the push) */
    const uint64_t *keys; /* scratch */
    uint32_t at;          /* the next key */
};

/* All that one clock is made of; everything in it is scratch. */
struct clock_work {
    struct contribution *contributions; /* sorted by (table, order) */
    uint32_t n_contributions;
    struct pending_rows *batches; /* one for each table */
    uint32_t n_batches;
    uint64_t n_keys;  /* of all contributions */
    uint64_t *merged; /* space for n_keys: the batches' keys */
};

static uint64_t rank_samples(const struct bsp_held *h, uint64_t clock)
{
    uint64_t most = 0;

    for (uint32_t rank = h->rank; h && h->clock == clock && h->rank == rank; h = h->next)
        if (h->n_samples > most)
            most = h->n_samples;
    return most;
}

/* N, and how many ranks take part. */
static uint64_t all_samples(const struct bsp_held *first, uint64_t *ret_n_ranks)
{
    const struct bsp_held *before = NULL;
    uint64_t total = 0;

    *ret_n_ranks = 0;
    for (const struct bsp_held *h = first; h && h->clock == first->clock;
         before = h, h = h->next) {
        if (before && before->rank == h->rank)
            continue;
        total += rank_samples(h, first->clock);
        ++*ret_n_ranks;
    }
    return total;
}

static int by_table(const void *a, const void *b)
{
    const struct contribution *x = a, *y = b;

    if (x->section->table_id != y->section->table_id)
        return x->section->table_id < y->section->table_id ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void add_contribution(const struct shard *s, struct clock_work *work,
                             const struct section *section, float weight)
{
    struct contribution *c = &work->contributions[work->n_contributions];

    *c = (struct contribution){ .section = section,
                                .entry = s->tables[section->table_id],
                                .codec = codec_by_id((uint32_t)section->codec),
                                .weight = weight,
                                .order = work->n_contributions++ };
    c->row_bytes = c->codec->row_bytes(c->entry->table.spec.dim, section->k);
}

static int reserve_work(struct shard *s, struct clock_work *work, const struct bsp_held *first)
{
    uint64_t n_sections = 0;

    for (const struct bsp_held *h = first; h && h->clock == first->clock; h = h->next) {
        n_sections += h->n_sections;
        for (uint32_t i = 0; i < h->n_sections; i++)
            work->n_keys += h->sections[i].n_keys;
    }
    work->contributions =
        shard_scratch(&s->contributions, n_sections, sizeof *work->contributions);
    work->batches = shard_scratch(&s->batches, n_sections, sizeof *work->batches);
    work->merged = shard_scratch(&s->keys, 2 * work->n_keys, sizeof *work->merged);
    return work->contributions && work->batches && work->merged ? 0 : -ENOMEM;
}

static void gather(const struct shard *s, struct clock_work *work, const struct bsp_held *first)
{
    uint64_t *keys = work->merged + work->n_keys; /* the upper half of the scratch */
    uint64_t n_ranks, total = all_samples(first, &n_ranks), samples = 0;
    const struct bsp_held *before = NULL;

    for (const struct bsp_held *h = first; h && h->clock == first->clock;
         before = h, h = h->next) {
        float weight;

        if (!before || before->rank != h->rank)
            samples = rank_samples(h, first->clock);
        weight = (float)(total ? (double)samples / (double)total : 1.0 / (double)n_ranks);
        for (uint32_t i = 0; i < h->n_sections; i++)
            add_contribution(s, work, &h->sections[i], weight);
    }
    qsort(work->contributions, work->n_contributions, sizeof *work->contributions, by_table);
    for (uint32_t i = 0; i < work->n_contributions; i++) {
        struct contribution *c = &work->contributions[i];
        int status =
            key_codec_decode(c->section->keys, c->section->key_bytes, c->section->n_keys, keys);

        assert(!status); /* it was checked when it came */
        c->keys = keys;
        keys += c->section->n_keys;
    }
}

/* The least key that any of n contributions is at; false when all are at their end. */
static bool next_key(const struct contribution *c, uint32_t n, uint64_t *ret_key)
{
    bool any = false;

    *ret_key = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].at == c[i].section->n_keys || (any && c[i].keys[c[i].at] >= *ret_key))
            continue;
        *ret_key = c[i].keys[c[i].at];
        any = true;
    }
    return any;
}

static bool is_at(const struct contribution *c, uint64_t key)
{
    return c->at < c->section->n_keys && c->keys[c->at] == key;
}

/* Writes the union of the keys of n contributions, ascending; returns how many. */
static uint32_t merge(struct contribution *c, uint32_t n, uint64_t *dst)
{
    uint32_t n_merged = 0;
    uint64_t key;

    while (next_key(c, n, &key)) {
        for (uint32_t i = 0; i < n; i++)
            c[i].at += is_at(&c[i], key);
        dst[n_merged++] = key;
    }
    for (uint32_t i = 0; i < n; i++)
        c[i].at = 0;
    return n_merged;
}

/* How many contributions from c on are to the same table. */
static uint32_t n_of_table(const struct clock_work *work, uint32_t first)
{
    uint32_t n = 1;

    while (first + n < work->n_contributions &&
           work->contributions[first + n].entry == work->contributions[first].entry)
        n++;
    return n;
}

/* One batch of rows for each table. */
static void make_batches(struct clock_work *work)
{
    uint64_t *merged = work->merged;

    for (uint32_t i = 0, n; i < work->n_contributions; i += n) {
        struct pending_rows *b = &work->batches[work->n_batches++];

        n = n_of_table(work, i);
        *b = (struct pending_rows){ .entry = work->contributions[i].entry, .keys = merged };
        b->n_keys = merge(&work->contributions[i], n, merged);
        merged += b->n_keys;
    }
}

static void add_weighted(float *restrict sum, const float *restrict row, float weight,
                         uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        sum[i] += weight * row[i];
}

static void scale(float *restrict row, float weight, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        row[i] *= weight;
}

/* Finite gradients may add up to more than a float holds: infinite, it would leave NaN in the row. */
static void clamp(float *restrict sum, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        sum[i] = sum[i] > FLT_MAX ? FLT_MAX : sum[i] < -FLT_MAX ? -FLT_MAX : sum[i];
}

/* s->gradient = sum of the weighted rows of `key`, in the order of c. */
static void sum_rows(struct shard *s, struct contribution *c, uint32_t n, uint64_t key,
                     uint32_t dim)
{
    bool first = true;

    for (uint32_t i = 0; i < n; i++) {
        float *row = first ? s->gradient : s->values;
        int status;

        if (!is_at(&c[i], key))
            continue;
        status = c[i].codec->decode(c[i].section->values + c[i].at++ * c[i].row_bytes, dim,
                                    c[i].section->k, row);
        assert(!status); /* as with the keys */
        if (first)
            scale(row, c[i].weight, dim);
        else
            add_weighted(s->gradient, row, c[i].weight, dim);
        first = false;
    }
    clamp(s->gradient, dim);
}

/* The next n rows of the batch, at most SHARD_CHUNK_MAX. */
static void apply_chunk(struct shard *s, struct pending_rows *b, uint32_t n,
                        struct contribution *c, uint32_t n_c, const struct optimizer_step *step)
{
    const uint64_t *keys = b->keys + b->n_done;
    struct row *rows[SHARD_CHUNK_MAX];

    table_find_batch(b->entry->table.rows, keys, n, rows);
    row_admission_rows(s, b->entry, SECTION_GRADIENT, s->version, keys, n, rows);
    for (uint32_t i = 0; i < n; i++) {
        sum_rows(s, c, n_c, keys[i], b->entry->table.spec.dim);
        push_apply_step(s, b->entry, rows[i], s->gradient, step, s->version);
    }
    b->n_done += n;
}

/* For all rows of the batch, before one of them has changed: what the push under way still makes here may take the
 * place of any row that does not wait for this clock, and that row must not be one that the clock has changed. As
 * it is told, all that goes with a clock went before it. */
static void change_first(struct shard *s, const struct pending_rows *b, uint32_t chunk)
{
    for (uint32_t i = 0, n; i < b->n_keys; i += n) {
        n = b->n_keys - i < chunk ? b->n_keys - i : chunk;
        push_apply_first(s, b->entry, b->keys + i, n);
    }
}

static void apply_batch(struct shard *s, struct pending_rows *b, struct contribution *c,
                        uint32_t n_c, uint64_t clock)
{
    const struct optimizer_step step = optimizer_step_at(b->entry->optim, &b->entry->table.spec,
                                                         clock, ++b->entry->table.n_pushes);
    uint32_t chunk = b->entry->chunk_rows;

    change_first(s, b, chunk);
    while (b->n_done < b->n_keys) {
        uint32_t n = b->n_keys - b->n_done;

        apply_chunk(s, b, n < chunk ? n : chunk, c, n_c, &step);
    }
}

static void apply_clock(struct shard *s, struct clock_work *work, uint64_t run, uint64_t clock)
{
    struct contribution *c = work->contributions;

    for (uint32_t i = 0; i < work->n_batches; i++)
        pending_rows_begin(&work->batches[i]);
    for (uint32_t i = 0; i < work->n_batches; i++) {
        struct pending_rows *b = &work->batches[i];
        uint32_t n = n_of_table(work, (uint32_t)(c - work->contributions));

        expire_note_push(b->entry, run, clock, s->version);
        apply_batch(s, b, c, n, clock);
        pending_rows_end(b);
        c += n;
    }
}

static void trim(struct shard *s)
{
    struct bytes *all[] = { &s->keys, &s->contributions, &s->batches };

    for (size_t i = 0; i < COUNT_OF(all); i++)
        shard_trim(all[i]);
}

/* Scratch to combine the clock of `first`, or less of it. -ENOMEM. */
static int reserve_combine(struct shard *s, const struct bsp_held *first)
{
    struct clock_work work = { 0 };
    int status = reserve_work(s, &work, first);

    if (status)
        trim(s);
    return status;
}

/* Applies the clock of `first`, of run `run` of its job: that push and the following ones of the same clock, which are
 * sorted by (rank, seq) and hold one incarnation of each rank. NULL: no push of the clock counts. reserve_combine() has
 * passed. */
static void combine(struct shard *s, const struct bsp_held *first, uint64_t run)
{
    struct clock_work work = { 0 };

    if (first) {
        int status = reserve_work(s, &work, first);

        assert(!status); /* reserve_combine() has been there */
        gather(s, &work, first);
        make_batches(&work);
    }
    if (work.n_batches) {
        s->version++;
        row_provenance_note_clock(s, run, first->clock);
        s->counters.combined_clocks++;
        if (s->replay)
            replay_decisions_begin(s);
        apply_clock(s, &work, run, first->clock);
    }
    trim(s);
}

/* --- release --- */

static void free_first(struct shard *s, struct bsp_held **at)
{
    struct bsp_held *h = *at;

    *at = h->next;
    s->held_bytes -= h->n_bytes;
    bsp_release_held(s, h);
}

/* Has its worker ticked past the push's clock, or reached a later one otherwise? */
static bool is_finished(const struct bsp_queue *q, const struct bsp_held *h)
{
    const struct worker *w;

    if (h->finished || q->run != q->job->run)
        return h->finished;
    w = &q->job->workers[h->rank];
    return w->incarnation == h->incarnation && w->clock > h->clock;
}

/* Does a newer incarnation of h's rank have a finished push of the same clock? It stands behind
 * h. */
static bool is_replaced(const struct bsp_queue *q, const struct bsp_held *h)
{
    for (const struct bsp_held *p = h->next; p && p->clock == h->clock && p->rank == h->rank;
         p = p->next)
        if (p->incarnation != h->incarnation && is_finished(q, p))
            return true;
    return false;
}

/* Drops what does not count of the queue's first clock. False if that was all of it. */
static bool drop_void(struct shard *s, struct bsp_queue *q)
{
    uint64_t clock = q->first->clock;
    struct bsp_held **at = &q->first;

    while (*at && (*at)->clock == clock) {
        if (is_finished(q, *at) && !is_replaced(q, *at)) {
            at = &(*at)->next;
            continue;
        }
        free_first(s, at);
        s->counters.pushes_dropped++;
    }
    return at != &q->first;
}

/* The queue's first clock, which is complete. -ENOMEM: all is as it was. */
static int release_clock(struct shard *s, struct bsp_queue *q)
{
    uint64_t clock = q->first->clock;
    struct shard_event event = { .type = SHARD_EVENT_COMBINE,
                                 .version = s->version,
                                 .combine = { q->run, clock } };

    if (reserve_combine(s, q->first) != 0 || shard_events_reserve(s->events, &event) != 0)
        return -ENOMEM;
    combine(s, drop_void(s, q) ? q->first : NULL, q->run);
    if (s->version > event.version && q->run == q->job->run && clock >= q->job->applied_end)
        q->job->applied_end = clock + 1;
    while (q->first && q->first->clock == clock)
        free_first(s, &q->first);
    event.version = s->version;
    shard_events_record(s->events, &event);
    return 0;
}

int bsp_replay_combine(struct shard *s, uint64_t run, uint64_t clock)
{
    struct bsp_queue **at = &s->queues, *q;
    int status;

    while (*at && (*at)->run != run)
        at = &(*at)->next;
    q = *at;
    if (!q || q->first->clock != clock || !is_complete(q))
        return PS_ECORRUPT;
    status = release_clock(s, q);
    if (q->first)
        return status;
    *at = q->next;
    recycle_queue(s, q);
    return status;
}

bool bsp_release_clock(struct shard *s)
{
    struct bsp_queue **at = &s->queues, *q;

    if (s->replay)
        return false; /* the log's owner calls again */
    while (*at && (!is_complete(*at) || release_clock(s, *at) != 0))
        at = &(*at)->next;
    q = *at;
    if (!q)
        return false;
    if (!q->first) {
        *at = q->next;
        recycle_queue(s, q);
    }
    return true;
}

bool bsp_release(struct shard *s)
{
    bool any = false;

    while (bsp_release_clock(s))
        any = true;
    return any;
}

static void free_queues(struct shard *s, struct bsp_queue *first)
{
    struct bsp_queue *next;

    for (struct bsp_queue *q = first; q; q = next) {
        next = q->next;
        while (q->first)
            free_first(s, &q->first);
        free(q);
    }
}

void bsp_deinit(struct shard *s)
{
    free_queues(s, s->queues);
    free_queues(s, s->pooled_queues);
    while (s->pooled_held)
        free_pooled(s);
    s->queues = s->pooled_queues = NULL;
}
