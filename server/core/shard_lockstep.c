#include "server/core/shard_lockstep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define HELD_BYTES_ALWAYS (UINT64_C(64) << 20) /* however small the budget: the largest frame */

static struct shard_queue *find_queue(const struct shard *s, const struct job *job,
                                      uint64_t run)
{
    struct shard_queue *q = s->queues;

    while (q && (q->job != job || q->run != run))
        q = q->next;
    return q;
}

/* There are never more than jobs that push at a time. */
static void put_by(struct shard *s, struct shard_queue *q)
{
    q->next = s->spare_queues;
    s->spare_queues = q;
}

static struct shard_queue *make_queue(struct shard *s, struct job *job)
{
    struct shard_queue *q = find_queue(s, job, job->run);

    if (q)
        return q;
    q = s->spare_queues;
    if (q)
        s->spare_queues = q->next;
    else
        q = mem_alloc(sizeof *q);
    *q = (struct shard_queue){ .next = s->queues, .job = job, .run = job->run };
    s->queues = q;
    return q;
}

static uint32_t n_held_of(const struct shard_queue *q, uint32_t rank)
{
    uint32_t n = 0;

    for (const struct shard_held *h = q ? q->first : NULL; h; h = h->next)
        n += h->rank == rank;
    return n;
}

/* Held pushes are no rows: a full table must not stop the updates of the rows that it has. */
static uint64_t held_bytes_max(const struct shard *s)
{
    uint64_t max = s->config.memory_max_bytes / 4;

    if (!s->config.memory_max_bytes)
        return SHARD_HELD_BYTES_MAX;
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

static int check_room(const struct shard *s, const struct worker *worker,
                      const struct push *push, size_t n_bytes, struct err *err)
{
    if (n_held_of(find_queue(s, worker->job, worker->job->run), worker->rank) >=
        SHARD_HELD_PUSHES_MAX)
        return err_set(err, PS_ETOOBIG,
                       "%u pushes of this worker wait for the others' clocks: no more are held",
                       SHARD_HELD_PUSHES_MAX);
    return check_bytes(s, worker, push, n_bytes, err);
}

/* Does any table wait for clocks, when this job pushes to it? */
static bool job_is_held(const struct shard *s, const struct job *job)
{
    return job->mode == SPEC_MODE_BSP || s->n_bsp_tables > 0;
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

/* --- memory --- */

/* The newest of those let go that has room; NULL: there is none. */
static struct shard_held *take_spare(struct shard *s, size_t n_bytes)
{
    struct shard_held **at = &s->spare_held, *h;

    while (*at && (*at)->cap_bytes < n_bytes)
        at = &(*at)->next;
    h = *at;
    if (!h)
        return NULL;
    *at = h->next;
    s->spare_held_bytes -= h->cap_bytes;
    mem_show(h->sections, h->cap_bytes - sizeof *h);
    return h;
}

static void free_spare(struct shard *s)
{
    struct shard_held *h = s->spare_held;

    s->spare_held = h->next;
    s->spare_held_bytes -= h->cap_bytes;
    free(h);
}

struct shard_held *shard_lockstep_make_held(struct shard *s, size_t n_bytes)
{
    struct shard_held *h = take_spare(s, n_bytes);
    size_t cap_bytes = n_bytes + n_bytes / 8; /* for one that is a little larger */

    if (h) {
        cap_bytes = h->cap_bytes;
    } else {
        /* Another one takes the place of one that has become too small, so that there are never more than were held at
         * a time. */
        if (s->spare_held)
            free_spare(s);
        h = mem_try_realloc(NULL, cap_bytes);
    }
    if (h)
        *h = (struct shard_held){ .n_users = 1, .n_bytes = n_bytes, .cap_bytes = cap_bytes };
    return h;
}

void shard_lockstep_let_go(struct shard *s, struct shard_held *held)
{
    if (--held->n_users != 0)
        return;
    if (s->spare_held_bytes + held->cap_bytes > SHARD_HELD_SPARE_BYTES) {
        free(held);
        return;
    }
    mem_hide(held->sections, held->cap_bytes - sizeof *held);
    held->next = s->spare_held;
    s->spare_held = held;
    s->spare_held_bytes += held->cap_bytes;
}

/* --- in --- */

static struct shard_held *copy_push(struct shard *s, const struct push *push,
                                    const struct shard_part *parts, size_t n_bytes,
                                    uint32_t n_sections)
{
    struct shard_held *h = shard_lockstep_make_held(s, n_bytes);
    uint8_t *bytes;

    if (!h)
        return NULL;
    bytes = (uint8_t *)(h->sections + n_sections);
    h->seq = push->seq;
    h->clock = push->clock;
    h->n_samples = push->n_samples;
    for (uint32_t i = 0; i < push->n_sections; i++)
        if (parts[i].waits)
            bytes = copy_section(&h->sections[h->n_sections++], &push->sections[i], bytes);
    return h;
}

int shard_lockstep_copy(struct shard *s, const struct worker *worker, const struct push *push,
                        const struct shard_part *parts, struct shard_held **ret_held,
                        struct err *err)
{
    size_t n_bytes = sizeof(struct shard_held);
    uint32_t n_sections = 0;
    int status;

    *ret_held = NULL;
    /* A late push is one of tables that do not wait. */
    if (!job_is_held(s, worker->job) || push->clock < worker->clock)
        return 0;
    for (uint32_t i = 0; i < push->n_sections; i++) {
        if (!parts[i].waits)
            continue;
        n_bytes += sizeof(struct section) + push->sections[i].key_bytes +
                   push->sections[i].value_bytes;
        n_sections++;
    }
    status = s->again ? 0 : check_room(s, worker, push, n_bytes, err);
    if (status)
        return status;
    *ret_held = copy_push(s, push, parts, n_bytes, n_sections);
    return *ret_held ? 0 : -ENOMEM;
}

bool shard_lockstep_is_before(const struct shard_held *a, const struct shard_held *b)
{
    if (a->clock != b->clock)
        return a->clock < b->clock;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    if (a->incarnation != b->incarnation)
        return a->incarnation < b->incarnation;
    return a->seq < b->seq;
}

void shard_lockstep_hold(struct shard *s, struct worker *worker, struct shard_held *held)
{
    struct shard_held **at;

    if (!held)
        return;
    held->rank = worker->rank;
    held->incarnation = worker->incarnation;
    at = &make_queue(s, worker->job)->first;
    while (*at && shard_lockstep_is_before(*at, held))
        at = &(*at)->next;
    held->next = *at;
    *at = held;
    s->held_bytes += held->n_bytes;
}

void shard_lockstep_tick(struct shard *s, const struct worker *worker, uint64_t clock)
{
    struct shard_queue *q = find_queue(s, worker->job, worker->job->run);

    for (struct shard_held *h = q ? q->first : NULL; h && h->clock <= clock; h = h->next)
        if (h->rank == worker->rank && h->incarnation == worker->incarnation)
            h->finished = true;
}

/* Nobody can add to the queue's first clock any more. */
static bool is_complete(const struct shard_queue *q)
{
    return q->run != q->job->run || job_all_ticked(q->job, q->first->clock);
}

bool shard_lockstep_is_behind(const struct shard *s, const struct job *job)
{
    const struct shard_queue *q = find_queue(s, job, job->run);

    return q && q->first && is_complete(q);
}

/* --- out --- */

static void free_first(struct shard *s, struct shard_held **at)
{
    struct shard_held *h = *at;

    *at = h->next;
    s->held_bytes -= h->n_bytes;
    shard_lockstep_let_go(s, h);
}

/* Has its worker ticked past the push's clock, or reached a later one otherwise? */
static bool is_finished(const struct shard_queue *q, const struct shard_held *h)
{
    const struct worker *w;

    if (h->finished || q->run != q->job->run)
        return h->finished;
    w = &q->job->workers[h->rank];
    return w->incarnation == h->incarnation && w->clock > h->clock;
}

/* Does a newer incarnation of h's rank have a finished push of the same clock? It stands behind
 * h. */
static bool is_done_again(const struct shard_queue *q, const struct shard_held *h)
{
    for (const struct shard_held *p = h->next; p && p->clock == h->clock && p->rank == h->rank;
         p = p->next)
        if (p->incarnation != h->incarnation && is_finished(q, p))
            return true;
    return false;
}

/* Drops what does not count of the queue's first clock. False if that was all of it. */
static bool drop_void(struct shard *s, struct shard_queue *q)
{
    uint64_t clock = q->first->clock;
    struct shard_held **at = &q->first;

    while (*at && (*at)->clock == clock) {
        if (is_finished(q, *at) && !is_done_again(q, *at)) {
            at = &(*at)->next;
            continue;
        }
        free_first(s, at);
        s->counters.pushes_dropped++;
    }
    return at != &q->first;
}

/* The queue's first clock, which is complete. -ENOMEM: all is as it was. */
static int release_clock(struct shard *s, struct shard_queue *q)
{
    uint64_t clock = q->first->clock;
    struct shard_event event = { .type = SHARD_EVENT_COMBINE,
                                 .version = s->version,
                                 .combine = { q->run, clock } };

    if (shard_combine_reserve(s, q->first) != 0 ||
        shard_journal_reserve(s->journal, &event) != 0)
        return -ENOMEM;
    shard_combine(s, drop_void(s, q) ? q->first : NULL, q->run);
    if (s->version > event.version && q->run == q->job->run && clock >= q->job->reached)
        q->job->reached = clock + 1;
    while (q->first && q->first->clock == clock)
        free_first(s, &q->first);
    event.version = s->version;
    shard_journal_record(s->journal, &event);
    return 0;
}

static bool release_queue(struct shard *s, struct shard_queue *q)
{
    bool any = false;

    while (q->first && is_complete(q) && release_clock(s, q) == 0)
        any = true;
    return any;
}

int shard_lockstep_release_again(struct shard *s, uint64_t run, uint64_t clock)
{
    struct shard_queue **at = &s->queues, *q;
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
    put_by(s, q);
    return status;
}

bool shard_lockstep_release(struct shard *s)
{
    struct shard_queue **at = &s->queues;
    bool any = false;

    if (s->again)
        return false; /* the journal says when */
    while (*at) {
        struct shard_queue *q = *at;

        any = release_queue(s, q) || any;
        if (q->first) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        put_by(s, q);
    }
    return any;
}

static void free_queues(struct shard *s, struct shard_queue *first)
{
    struct shard_queue *next;

    for (struct shard_queue *q = first; q; q = next) {
        next = q->next;
        while (q->first)
            free_first(s, &q->first);
        free(q);
    }
}

void shard_lockstep_free(struct shard *s)
{
    free_queues(s, s->queues);
    free_queues(s, s->spare_queues);
    while (s->spare_held)
        free_spare(s);
    s->queues = s->spare_queues = NULL;
}
