#include "server/core/bsp.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/combine.h"
#include "server/core/lock_step.h"
#include "server/core/push_apply.h"
#include "server/core/replay_decisions.h"
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

/* Nobody can add to the queue's first clock any more. */
static bool is_complete(const struct bsp_queue *q)
{
    return q->run != q->job->run || job_all_ticked(q->job, q->first->clock);
}

static uint64_t bytes_of_clock(const struct bsp_held *first)
{
    uint64_t n_bytes = 0;

    for (const struct bsp_held *h = first; h && h->clock == first->clock; h = h->next)
        n_bytes += h->n_bytes;
    return n_bytes;
}

/* Of clocks that are complete. */
static uint64_t leaving_bytes(const struct shard *s)
{
    uint64_t n_bytes = bytes_of_clock(s->large_clock->held);

    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        n_bytes += is_complete(q) ? bytes_of_clock(q->first) : 0;
    return n_bytes;
}

/* Who is ahead gets half of the place, so that the clock that all wait for finds the other
 * half, and is told to come again; when that clock itself does not fit, waiting mends nothing. */
static int check_bytes(const struct shard *s, const struct worker *worker,
                       const struct push *push, size_t n_bytes, struct err *err)
{
    bool is_ahead = push->clock > job_min_clock(worker->job), is_late;
    uint64_t max = held_bytes_max(s) / (is_ahead ? 2 : 1);

    if (s->held_bytes + n_bytes <= max)
        return 0;
    is_late = !is_ahead && s->held_bytes - leaving_bytes(s) + n_bytes <= max;
    return err_set(err, is_ahead || is_late ? -ENOMEM : PS_EBUDGET,
                   "no place for %zu bytes of a push that must wait for its clock: %" PRIu64
                   " of %" PRIu64 " are taken%s",
                   n_bytes, s->held_bytes, max,
                   is_ahead  ? "; it has one when the slower workers have caught up"
                   : is_late ? "; it has one when the clock before is combined"
                             : "");
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

void bsp_count_held(struct shard *s, const struct bsp_held *held)
{
    for (uint32_t i = 0; i < held->n_sections; i++)
        s->tables[held->sections[i].table_id]->n_held++;
}

static void uncount_held(struct shard *s, const struct bsp_held *held)
{
    for (uint32_t i = 0; i < held->n_sections; i++) {
        struct shard_entry *entry = s->tables[held->sections[i].table_id];

        assert(entry->n_held > 0);
        entry->n_held--;
    }
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
    bsp_count_held(s, held);
}

void bsp_tick(struct shard *s, const struct worker *worker, uint64_t clock)
{
    struct bsp_queue *q = find_queue(s, worker->job, worker->job->run);

    for (struct bsp_held *h = q ? q->first : NULL; h && h->clock <= clock; h = h->next)
        if (h->rank == worker->rank && h->incarnation == worker->incarnation)
            h->finished = true;
}

bool bsp_is_behind(const struct shard *s, const struct job *job)
{
    const struct bsp_queue *q = s->queues;

    while (q && (q->job != job || !is_complete(q)))
        q = q->next;
    return q || s->large_clock->job == job;
}

bool bsp_has_complete(const struct shard *s)
{
    const struct bsp_queue *q = s->queues;

    while (q && !is_complete(q))
        q = q->next;
    return q;
}

/* --- release --- */

static void free_first(struct shard *s, struct bsp_held **at)
{
    struct bsp_held *h = *at;

    *at = h->next;
    s->held_bytes -= h->n_bytes;
    bsp_release_held(s, h);
}

/* Of a queue. */
static void remove_first(struct shard *s, struct bsp_held **at)
{
    uncount_held(s, *at);
    free_first(s, at);
}

void bsp_drop_late(struct shard *s, const struct worker *worker, uint64_t clock)
{
    struct bsp_queue *q = find_queue(s, worker->job, worker->job->run), **at_queue = &s->queues;
    struct bsp_held **at = q ? &q->first : NULL;

    while (at && *at && (*at)->clock <= clock) {
        if ((*at)->clock == clock && (*at)->rank == worker->rank &&
            (*at)->incarnation == worker->incarnation)
            remove_first(s, at);
        else
            at = &(*at)->next;
    }
    if (!q || q->first || q == s->large_clock->queue)
        return;
    while (*at_queue != q)
        at_queue = &(*at_queue)->next;
    *at_queue = q->next;
    recycle_queue(s, q);
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

/* Which pushes of the queue's first clock count, as of now. True if that has changed since the last time. */
static bool mark_counting(struct bsp_queue *q)
{
    uint64_t clock = q->first->clock;
    bool any = false;

    for (struct bsp_held *h = q->first; h && h->clock == clock; h = h->next) {
        bool counts = is_finished(q, h) && !is_replaced(q, h);

        any = any || counts != h->counts;
        h->counts = counts;
    }
    return any;
}

/* Drops the others. False if that was all of it. */
static bool drop_void(struct shard *s, struct bsp_queue *q)
{
    uint64_t clock = q->first->clock;
    struct bsp_held **at = &q->first;

    while (*at && (*at)->clock == clock) {
        if ((*at)->counts) {
            at = &(*at)->next;
            continue;
        }
        remove_first(s, at);
        s->counters.pushes_dropped++;
    }
    return at != &q->first;
}

static struct shard_event combine_event(const struct shard *s, const struct bsp_queue *q,
                                        uint64_t clock)
{
    return (struct shard_event){ .type = SHARD_EVENT_COMBINE,
                                 .version = s->version,
                                 .combine = { q->run, clock } };
}

/* For all rows of the batch, before one of them has changed: what the push under way still makes here may take the
 * place of any row that does not wait for this clock, and that row must not be one that the clock has changed. As
 * it is told, all that goes with a clock went before it. */
static void change_first(struct shard *s, const struct pending_rows *b)
{
    uint32_t chunk = b->entry->chunk_rows;

    for (uint32_t i = 0, n; i < b->n_keys; i += n) {
        n = b->n_keys - i < chunk ? b->n_keys - i : chunk;
        push_apply_first(s, b->entry, b->keys + i, n);
    }
}

/* The clock takes effect, in a version of its own; w: COMBINE_READY. */
static void begin_rows(struct shard *s, struct bsp_queue *q, struct combine *w, uint64_t clock)
{
    if (!w->n_batches) {
        w->phase = COMBINE_END;
        return;
    }
    s->version++;
    row_provenance_note_clock(s, q->run, clock);
    s->counters.combined_clocks++;
    if (s->replay)
        replay_decisions_begin(s);
    combine_begin(s, w, q->run, clock);
    for (uint32_t i = 0; w == s->small_clock && i < w->n_batches; i++)
        change_first(s, &w->batches[i].rows);
    if (q->run == q->job->run && clock >= q->job->applied_end)
        q->job->applied_end = clock + 1;
}

static void combine_at_once(struct shard *s, struct bsp_queue *q, uint64_t clock)
{
    struct combine *w = s->small_clock;

    combine_gather(s, w, q->first);
    (void)combine_keys(w, UINT64_MAX);
    begin_rows(s, q, w, clock);
    (void)combine_rows(s, w, UINT64_MAX);
}

/* The queue's first clock, which is complete, and its pushes marked. -ENOMEM: all is as it was. */
static int release_clock(struct shard *s, struct bsp_queue *q)
{
    uint64_t clock = q->first->clock;
    struct shard_event event = combine_event(s, q, clock);
    int status = combine_reserve(s->small_clock, q->first, false);

    if (!status && shard_events_reserve(s->events, &event) != 0)
        status = -ENOMEM;
    if (!status && drop_void(s, q))
        combine_at_once(s, q, clock);
    while (combine_trim(s->small_clock))
        ;
    if (status)
        return status;
    while (q->first && q->first->clock == clock)
        remove_first(s, &q->first);
    event.version = s->version;
    shard_events_record(s->events, &event);
    return 0;
}

/* --- release in slices --- */

/* What has not taken effect is left; the clock is as it was. */
static void leave_slices(struct shard *s)
{
    if (s->large_clock->phase > COMBINE_READY)
        return;
    while (combine_trim(s->large_clock))
        ;
    s->large_clock->queue = NULL;
    s->large_clock->job = NULL;
}

/* One that is tried again and again without space in the log would merge its keys each time: so this is asked for
 * before, too. False: no memory. */
static bool begin_slices(struct shard *s, struct bsp_queue *q)
{
    struct combine *w = s->large_clock;
    struct shard_event event = combine_event(s, q, q->first->clock);

    if (shard_events_reserve(s->events, &event) != 0 || combine_reserve(w, q->first, true) != 0)
        return false;
    w->queue = q;
    w->job = q->job;
    w->run = q->run;
    w->clock = q->first->clock;
    combine_gather(s, w, q->first);
    return true;
}

/* From the queue to the clock in slices. */
static void take_pushes(struct shard *s, struct combine *w, struct bsp_queue *q)
{
    struct bsp_held **at = &w->held;

    w->held = q->first;
    for (; *at && (*at)->clock == w->clock; at = &(*at)->next)
        uncount_held(s, *at);
    q->first = *at;
    *at = NULL;
}

static void remove_queue(struct shard *s, struct bsp_queue *q)
{
    struct bsp_queue **at = &s->queues;

    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    recycle_queue(s, q);
}

/* Others have come in between: a worker that came back may not have ended the clock, or it counts no more. Then
 * nothing happens, and it is begun again once it is complete. So it is without memory for the log. */
static void take_effect(struct shard *s)
{
    struct combine *w = s->large_clock;
    struct bsp_queue *q = w->queue;
    struct shard_event event = combine_event(s, q, w->clock);

    if (q->first->clock != w->clock || !is_complete(q) || mark_counting(q) ||
        shard_events_reserve(s->events, &event) != 0) {
        leave_slices(s);
        return;
    }
    (void)drop_void(s, q);
    take_pushes(s, w, q);
    begin_rows(s, q, w, w->clock);
    event.version = s->version;
    shard_events_record(s->events, &event);
    w->queue = NULL;
    if (!q->first)
        remove_queue(s, q);
}

/* One push or buffer after the other: to give back megabytes takes its time. Returns what was used. */
static uint64_t end_slices(struct shard *s)
{
    struct combine *w = s->large_clock;

    s->has_combined = true;
    w->job = NULL;
    if (w->held)
        free_first(s, &w->held);
    else if (!combine_trim(w))
        (void)bsp_release_some(s);
    return SHARD_SLICE_BYTES;
}

uint64_t bsp_more(struct shard *s, uint64_t n_bytes)
{
    struct combine *w = s->large_clock;
    uint64_t used = 0;

    while (used < n_bytes && w->phase != COMBINE_IDLE) {
        used += combine_keys(w, n_bytes - used);
        if (w->phase == COMBINE_READY)
            take_effect(s);
        used += combine_rows(s, w, n_bytes > used ? n_bytes - used : 0);
        if (w->phase == COMBINE_END)
            used += end_slices(s);
    }
    return used;
}

bool bsp_is_in_slices(const struct shard *s)
{
    return s->large_clock->phase != COMBINE_IDLE;
}

void bsp_finish(struct shard *s)
{
    while (s->large_clock->phase > COMBINE_READY)
        (void)bsp_more(s, s->slice_bytes);
}

static bool may_begin_slices(const struct shard *s)
{
    return s->large_clock->phase == COMBINE_IDLE &&
           (s->large.phase == PUSH_IDLE || s->large.phase >= PUSH_RELEASE);
}

static uint64_t cost_of(const struct shard *s, const struct bsp_held *h)
{
    /* One without rows takes its time, too. */
    uint64_t cost = (h->n_sections + UINT64_C(1)) * SHARD_KEY_COST;

    for (uint32_t i = 0; i < h->n_sections; i++)
        cost += (uint64_t)h->sections[i].n_keys * s->tables[h->sections[i].table_id]->row_cost;
    return cost;
}

/* Of the pushes from `first` on that are of its clock, in bytes of a slice. */
static uint64_t cost_of_clock(const struct shard *s, const struct bsp_held *first, bool all)
{
    uint64_t cost = 0;

    for (const struct bsp_held *h = first; h && h->clock == first->clock; h = h->next)
        cost += all || h->counts ? cost_of(s, h) : 0;
    return cost;
}

/* The queue's first clock, if it is complete and costs *n_bytes at most; else in slices, one after the other. True:
 * that is done. */
static bool release_small(struct shard *s, struct bsp_queue *q, uint64_t *n_bytes)
{
    uint64_t cost;

    if (q == s->large_clock->queue || !is_complete(q))
        return false;
    (void)mark_counting(q);
    cost = cost_of_clock(s, q->first, false);
    if (cost > *n_bytes) {
        if (may_begin_slices(s))
            (void)begin_slices(s, q);
        return false;
    }
    if (release_clock(s, q) != 0)
        return false;
    *n_bytes -= cost;
    return true;
}

bool bsp_release_some(struct shard *s)
{
    struct bsp_queue **at = &s->queues;
    uint64_t n_bytes = s->slice_bytes;
    bool any = false;

    while (*at && !s->replay) { /* then the log's owner calls again */
        struct bsp_queue *q = *at;

        if (!release_small(s, q, &n_bytes)) {
            at = &q->next;
            continue;
        }
        any = true;
        if (q->first)
            continue;
        *at = q->next;
        recycle_queue(s, q);
    }
    return any;
}

bool bsp_ends_large_clock(const struct shard *s, const struct worker *worker,
                          const struct push *push, uint64_t cost)
{
    const struct job *job = worker->job;
    const struct bsp_queue *q = push->tick ? find_queue(s, job, job->run) : NULL;

    const struct bsp_held *first = q ? q->first : NULL;
    uint32_t n_behind = 0;

    while (first && first->clock < worker->clock)
        first = first->next;
    if (!first || first->clock > push->clock)
        return false;
    for (uint32_t i = 0; i < job->n_workers; i++)
        n_behind += &job->workers[i] != worker && job_counts(&job->workers[i]) &&
                    job->workers[i].clock <= first->clock;
    return n_behind <= job->n_backups && cost_of_clock(s, first, true) + cost > s->slice_bytes;
}

bool lock_step_is_combining(const struct shard *s)
{
    return bsp_is_in_slices(s);
}

void lock_step_more(struct shard *s)
{
    (void)bsp_more(s, s->slice_bytes);
}

bool lock_step_has_combined(struct shard *s)
{
    bool has = s->has_combined;

    s->has_combined = false;
    return has;
}

/* --- release in one piece --- */

int bsp_replay_combine(struct shard *s, uint64_t run, uint64_t clock)
{
    struct bsp_queue **at = &s->queues, *q;
    int status;

    while (*at && (*at)->run != run)
        at = &(*at)->next;
    q = *at;
    if (!q || q->first->clock != clock || !is_complete(q))
        return PS_ECORRUPT;
    (void)mark_counting(q);
    status = release_clock(s, q);
    if (q->first)
        return status;
    *at = q->next;
    recycle_queue(s, q);
    return status;
}

static bool release_any(struct shard *s, struct bsp_queue *q)
{
    if (!is_complete(q))
        return false;
    (void)mark_counting(q);
    return release_clock(s, q) == 0;
}

bool bsp_release_clock(struct shard *s)
{
    struct bsp_queue **at = &s->queues, *q;

    if (s->replay)
        return false; /* the log's owner calls again */
    bsp_finish(s);
    leave_slices(s);
    while (*at && !release_any(s, *at))
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

void lock_step_finish(struct shard *s)
{
    (void)bsp_release(s);
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
    while (s->large_clock->held)
        free_first(s, &s->large_clock->held);
    combine_deinit(s->large_clock);
    combine_deinit(s->small_clock);
    while (s->pooled_held)
        free_pooled(s);
    s->queues = s->pooled_queues = NULL;
}
