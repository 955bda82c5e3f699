#include "tests/sim/agree.h"

#include "server/core/shard_internal.h"
#include "server/core/suspicion.h"

static const struct worker *worker_of(const struct shard_record *rec, uint32_t rank)
{
    enter_shard();
    return rec->life.core ? membership_worker(shard_membership(rec->life.core), "job", rank)
                          : NULL;
}

/* --- who is refused --- */

static void raise_to(uint64_t *at, uint64_t incarnation)
{
    if (incarnation > *at)
        *at = incarnation;
}

static void bar(struct record_rank *r, const struct worker *worker)
{
    if (worker->barred <= r->barred)
        return;
    r->barred = worker->barred;
    r->before = worker->incarnation;
}

/* Nothing more of it is taken. */
static bool refuses(const struct record_rank *r, uint64_t incarnation)
{
    return r->refused >= incarnation || (r->barred >= incarnation && r->before < incarnation);
}

void agree_suspected(struct world *w, uint32_t shard)
{
    struct shard_record *rec = w->records[shard];

    for (uint32_t rank = 0; rank < w->plan.n_workers; rank++) {
        const struct worker *worker = worker_of(rec, rank);

        if (worker && worker->is_suspected && w->plan.liar != PLAN_NOBODY)
            world_fail(w, "shard %u: rank %u is suspected, as rank %u lies", shard, rank,
                       w->plan.liar);
        if (worker && worker->is_suspected)
            raise_to(&rec->ranks[rank].suspected_once, worker->incarnation);
        if (worker && worker->is_suspected && !suspicion_is_private(worker))
            raise_to(&rec->ranks[rank].refused, worker->incarnation);
        if (worker && worker->is_barred)
            bar(&rec->ranks[rank], worker);
    }
}

void agree_started(struct world *w, uint32_t shard)
{
    for (uint32_t rank = 0; rank < PLAN_N_WORKERS_MAX; rank++) {
        struct record_rank *r = &w->records[shard]->ranks[rank];

        raise_to(&r->refused, r->barred);
        r->refused_before = r->refused;
        r->suspected_us = 0;
    }
    w->records[shard]->n_starts++;
}

/* --- deaths --- */

void agree_begin_join(struct world *w, uint32_t shard)
{
    w->records[shard]->is_joining = true;
}

void agree_end_join(struct world *w, uint32_t shard)
{
    w->records[shard]->is_joining = false;
}

/* The job starts afresh: who has been given up is dead with its steps, and none of the next ones is combined without it. */
static bool dies_with_run(const struct shard_record *rec)
{
    return rec->is_joining;
}

static void check_death(const struct world *w, uint32_t shard, const struct fact *fact)
{
    if (dies_with_run(w->records[shard]))
        return;
    for (uint32_t i = 0; i < w->plan.n_shards; i++)
        if (i != shard && !refuses(&w->records[i]->ranks[fact->rank], fact->incarnation))
            world_fail(w,
                       "shard %u: rank %u, incarnation %llu, is dead, and shard %u would take "
                       "what comes of it",
                       shard, fact->rank, (unsigned long long)fact->incarnation, i);
}

/* --- clocks --- */

/* Has the incarnation a reason to count on it that this push is in shard `lacks`: it was acknowledged, or another one was made
 * behind it? Pulls are answered before a push is safe, so what a shard that ended had taken is not a reason. */
static bool counts_on(const struct world *w, uint32_t lacks, uint32_t rank,
                      uint64_t incarnation, uint64_t clock)
{
    for (const struct sent_push *p = w->push_history.first; p; p = p->next) {
        if (p->rank != rank || p->incarnation != incarnation || p->shard != lacks)
            continue;
        if (p->clock == clock ? p->tick && p->is_acked
                              : p->clock > clock && w->records[lacks]->n_starts == 1)
            return true;
    }
    return false;
}

/* NULL: the shard has not recorded that this incarnation died. */
static const struct fact *find_death(const struct history *h, uint32_t rank,
                                     uint64_t incarnation)
{
    for (uint64_t i = 0; i < h->n; i++)
        if (h->facts[i].type == SHARD_EVENT_GONE && h->facts[i].state == WORKER_DEAD &&
            h->facts[i].rank == rank && h->facts[i].incarnation == incarnation)
            return &h->facts[i];
    return NULL;
}

static bool took_push_since(const struct history *h, uint32_t rank, uint64_t incarnation,
                            uint64_t clock, uint64_t since_us)
{
    for (uint64_t i = 0; i < h->n; i++)
        if (h->facts[i].type == SHARD_EVENT_PUSH && h->facts[i].rank == rank &&
            h->facts[i].incarnation == incarnation && h->facts[i].push->clock == clock &&
            h->facts[i].at_us > since_us)
            return true;
    return false;
}

/* Shard `has` combined the clock with this incarnation's push, shard `lacks` without. */
static void check_difference(const struct world *w, uint32_t has, uint32_t lacks, uint32_t rank,
                             uint64_t clock)
{
    const struct shard_record *with = w->records[has], *without = w->records[lacks];
    uint64_t incarnation = with->model.combined[clock].incarnations[rank];
    const struct fact *death = find_death(&without->history, rank, incarnation);

    if (counts_on(w, lacks, rank, incarnation, clock))
        world_fail(w,
                   "clock %llu has rank %u in shard %u and not in shard %u, and it was not the "
                   "last, or acknowledged",
                   (unsigned long long)clock, rank, has, lacks);
    if (death && with->ranks[rank].refused_before < incarnation &&
        took_push_since(&with->history, rank, incarnation, clock, death->at_us))
        world_fail(w,
                   "clock %llu: shard %u took the push of rank %u, which was dead at shard %u",
                   (unsigned long long)clock, has, rank, lacks);
}

/* A job whose workers have all ended starts afresh, and need not do so at all shards. */
static bool is_first_run(const struct shard_record *rec, uint64_t clock)
{
    return rec->model.run == 1 && rec->model.combined[clock].run == 1;
}

/* Against those shards that have combined the clock before. What is in the log counts: without fsync it may be gone. */
static void check_clock(const struct world *w, uint32_t shard, uint64_t clock)
{
    const struct model_combined *c;

    /* With backup workers each shard has its own first ones. */
    if (w->plan.durability != WAL_FSYNC || clock >= PLAN_N_STEPS_MAX || w->plan.n_backups)
        return;
    c = &w->records[shard]->model.combined[clock];
    for (uint32_t i = 0; i < w->plan.n_shards; i++) {
        const struct model_combined *other = &w->records[i]->model.combined[clock];

        if (!is_first_run(w->records[shard], clock) || !is_first_run(w->records[i], clock))
            continue;
        for (uint32_t rank = 0; rank < w->plan.n_workers; rank++) {
            /* Who takes a rank does its clock again: the older process's push stays where that did not come. */
            if (c->incarnations[rank] > other->incarnations[rank])
                check_difference(w, shard, i, rank, clock);
            if (c->incarnations[rank] < other->incarnations[rank])
                check_difference(w, i, shard, rank, clock);
        }
    }
}

void agree_recorded(struct world *w, uint32_t shard, const struct fact *fact)
{
    struct record_rank *r = &w->records[shard]->ranks[fact->rank];

    if (fact->type == SHARD_EVENT_GONE) {
        raise_to(&r->refused, fact->incarnation);
        if (fact->state == WORKER_DEAD)
            check_death(w, shard, fact);
    } else if (fact->type == SHARD_EVENT_JOIN && fact->incarnation) {
        raise_to(&r->refused, fact->incarnation - 1); /* those before it */
    } else if (fact->type == SHARD_EVENT_PUSH) {
        if (refuses(r, fact->incarnation) && r->refused_before < fact->incarnation)
            world_fail(w,
                       "shard %u takes a push of rank %u, incarnation %llu, which it refuses",
                       shard, fact->rank, (unsigned long long)fact->incarnation);
    } else if (fact->type == SHARD_EVENT_COMBINE) {
        check_clock(w, shard, fact->clock);
    }
}

uint64_t agree_n_whole(const struct world *w, uint32_t shard)
{
    const struct model *m = &w->records[shard]->model;
    uint64_t clock;

    for (clock = 0; clock < w->plan.n_steps && is_first_run(w->records[shard], clock); clock++)
        for (uint32_t rank = 0; rank < w->plan.n_workers; rank++)
            if (!m->combined[clock].incarnations[rank])
                return clock;
    return clock;
}

/* Which incarnation of the rank was to push for the clock: the last that came to the shard and did not go on behind it, as the
 * shards together are further (ADVANCE); 1: none has. 0: it has died there before the clock was combined. */
static uint64_t find_due(const struct history *h, uint32_t rank, uint64_t clock)
{
    uint64_t due = 1, before = 1;

    for (uint64_t i = 0; i < h->n; i++) {
        const struct fact *fact = &h->facts[i];

        if (fact->type == SHARD_EVENT_COMBINE && fact->clock == clock)
            break;
        if (fact->rank != rank)
            continue;
        if (fact->type == SHARD_EVENT_JOIN && fact->begins <= clock &&
            fact->incarnation != due) {
            before = due;
            due = fact->incarnation;
        } else if (fact->type == SHARD_EVENT_ADVANCE && fact->clock > clock) {
            due = before;
        } else if (fact->type == SHARD_EVENT_GONE && fact->state == WORKER_DEAD) {
            due = 0;
        }
    }
    return due;
}

/* Its worker, which none of the plan's faults hurts, has come back as a later incarnation: as a shard had not heard of it for a
 * lease. */
static bool was_suspected(const struct world *w, uint32_t rank, uint64_t incarnation)
{
    for (uint32_t i = 0; i < w->plan.n_shards; i++)
        if (w->records[i]->ranks[rank].suspected_once >= incarnation)
            return true;
    return false;
}

void agree_check_end(const struct world *w, uint32_t shard)
{
    const struct shard_record *rec = w->records[shard];

    for (uint64_t clock = w->plan.n_backups ? w->plan.n_steps : agree_n_whole(w, shard);
         clock < w->plan.n_steps && is_first_run(rec, clock); clock++)
        for (uint32_t rank = 0; rank < w->plan.n_workers; rank++) {
            uint64_t due = find_due(&rec->history, rank, clock);

            if (!rec->model.combined[clock].incarnations[rank] && !was_suspected(w, rank, due))
                world_fail(w,
                           "shard %u: clock %llu is combined without rank %u, incarnation "
                           "%llu, which no shard has suspected",
                           shard, (unsigned long long)clock, rank, (unsigned long long)due);
        }
}

/* --- suspects --- */

/* Pushes that come now wait, and behind each the heartbeats of its connection. */
static bool log_holds_pushes(const struct shard_record *rec)
{
    const struct wal_queue *q = rec->life.queue;

    return q && (atomic_load(&q->state) == WAL_QUEUE_FULL ||
                 wal_queue_wait_ms(q, machine_ms_of(rec->life.process)));
}

/* Is this worker heard at all shards, and tells each what the others suspect? */
static bool is_relay(const struct world *w, uint32_t rank)
{
    for (uint32_t n = 0; n < w->plan.n_shards; n++) {
        const struct worker *worker = worker_of(w->records[n], rank);

        if (!worker || worker->state != WORKER_LIVE || !worker->relays ||
            worker->is_suspected ||
            worker->last_seen_ms + w->plan.lease_ms / 2 <
                machine_ms_of(w->records[n]->life.process) ||
            log_holds_pushes(w->records[n]))
            return false;
    }
    return rank != w->plan.mute;
}

/* How many have to tell that shard of the suspect: two if so many others are there, or are to come; one less where it
 * does not hear the suspect itself. */
static uint32_t n_needed(const struct world *w, uint32_t shard, uint32_t suspect)
{
    const struct worker *it = worker_of(w->records[shard], suspect);
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->plan.n_workers && n < 2; i++) {
        const struct worker *other = worker_of(w->records[shard], i);

        n += i != suspect && other &&
             (other->state == WORKER_EXPECTED ||
              (other->state == WORKER_LIVE && !other->is_suspected));
    }
    return n > 1 && it && it->doubts_itself ? n - 1 : n;
}

/* Is each shard told by as many as it believes? */
static bool is_relayed(const struct world *w, uint32_t rank)
{
    uint32_t n_relays = 0;

    for (uint32_t i = 0; i < w->plan.n_workers; i++)
        n_relays += i != rank && is_relay(w, i);
    for (uint32_t shard = 0; shard < w->plan.n_shards; shard++)
        if (n_relays < n_needed(w, shard, rank))
            return false;
    return n_relays > 0;
}

void agree_turn(struct world *w, uint32_t shard)
{
    uint64_t now_us = machine_now_us();

    agree_suspected(w, shard);
    for (uint32_t rank = 0; w->plan.n_shards > 1 && rank < w->plan.n_workers; rank++) {
        struct record_rank *r = &w->records[shard]->ranks[rank];
        const struct worker *worker = worker_of(w->records[shard], rank);

        if (!worker || !worker->is_suspected) {
            r->suspected_us = 0;
            continue;
        }
        if (!r->suspected_us || r->suspected != worker->incarnation || !is_relayed(w, rank) ||
            w->lines) { /* pushes may wait for a standby, too */
            r->suspected = worker->incarnation;
            r->suspected_us = now_us;
        }
        if (now_us - r->suspected_us > 1000 * (uint64_t)w->plan.lease_ms * AGREE_LEASES)
            world_fail(w, "shard %u: rank %u is suspected for %llu us, and all shards are told",
                       shard, rank, (unsigned long long)(now_us - r->suspected_us));
    }
}

/* --- what is lost --- */

static bool is_recorded(const struct history *h, const struct sent_push *push)
{
    for (uint64_t i = 0; i < h->n; i++)
        if (h->facts[i].push == push)
            return true;
    return false;
}

void agree_joined(struct world *w, uint32_t shard, const struct membership_join *join,
                  const struct worker *worker)
{
    const struct history *h = &w->records[shard]->history;

    for (struct sent_push *p = w->push_history.first; p; p = p->next) {
        if (p->shard != shard || p->rank != join->rank || p->incarnation != join->incarnation)
            continue;
        if (p->seq >= worker->lost_first && p->seq <= worker->lost_last) {
            p->is_reported_lost = true;
            if (is_recorded(h, p))
                world_fail(w, "shard %u: rank %u is told that push %llu is lost, and it is not",
                           shard, p->rank, (unsigned long long)p->seq);
        }
        if (p->is_acked && p->seq <= join->last_acked && !p->is_reported_lost &&
            !is_recorded(h, p))
            world_fail(w, "shard %u: push %llu of rank %u is lost, and it is not told", shard,
                       (unsigned long long)p->seq, p->rank);
    }
}
