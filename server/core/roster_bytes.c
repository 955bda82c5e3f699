#include "server/core/roster_bytes.h"

#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"
#include "server/core/roster_state.h"

#define FORMAT 1u
#define PLACE_BYTES_MIN 52u

static void encode_worker(struct state_writer *w, const struct worker *worker)
{
    state_put_u32(w, (uint32_t)worker->state);
    state_put_u64(w, worker->incarnation);
    state_put_u64(w, worker->fenced_below);
    state_put_u64(w, worker->clock);
    state_put_u64(w, worker->last_seq);
    state_put_u64(w, worker->refused_seq);
    state_put_u32(w, (uint32_t)worker->refused_status);
    state_put_text(w, worker->name);
}

static void encode_job(struct state_writer *w, const struct roster_entry *entry)
{
    const struct job *job = &entry->job;

    state_put_text(w, job->name);
    state_put_u64(w, job->run);
    state_put_u32(w, (uint32_t)job->mode);
    state_put_u32(w, job->bound);
    state_put_u64(w, job->reached);
    state_put_u32(w, job->n_workers);
    state_put_u32(w, entry->workers_cap);
    for (uint32_t i = 0; i < entry->workers_cap; i++)
        encode_worker(w, &job->workers[i]);
}

void roster_encode(const struct roster *r, struct state_writer *w)
{
    state_put_u32(w, FORMAT);
    state_put_u64(w, r->n_runs);
    state_put_u32(w, r->n_jobs);
    for (uint32_t i = 0; i < r->n_jobs; i++)
        encode_job(w, r->entries[i]);
}

static void decode_worker(struct state_reader *src, struct worker *worker)
{
    worker->state = (enum worker_state)state_get_upto(src, WORKER_LOST);
    worker->incarnation = state_get_u64(src);
    worker->fenced_below = state_get_u64(src);
    worker->clock = state_get_u64(src);
    worker->last_seq = state_get_u64(src);
    worker->refused_seq = state_get_u64(src);
    worker->refused_status = (int)state_get_u32(src);
    state_get_text(src, worker->name, sizeof worker->name);
    src->bad = src->bad || worker->clock > ROSTER_CLOCK_END ||
               (worker->refused_seq != 0) != (worker->refused_status != 0) ||
               worker->refused_seq > worker->last_seq;
}

/* Another one of that name, or with that run? */
static bool is_twice(const struct roster *r, const struct job *job)
{
    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (strcmp(r->entries[i]->job.name, job->name) == 0 ||
            r->entries[i]->job.run == job->run)
            return true;
    return false;
}

static void decode_head(struct roster *r, struct state_reader *src, struct roster_entry *entry)
{
    struct job *job = &entry->job;

    entry->roster = r;
    state_get_text(src, job->name, sizeof job->name);
    job->run = state_get_u64(src);
    job->mode = (enum spec_mode)state_get_upto(src, SPEC_MODE_BSP);
    job->bound = state_get_u32(src);
    job->reached = state_get_u64(src);
    job->n_workers = state_get_upto(src, ROSTER_N_WORKERS_MAX);
    entry->workers_cap = state_get_upto(src, ROSTER_N_WORKERS_MAX);
    src->bad = src->bad || !job->name[0] || job->run == 0 || job->run > r->n_runs ||
               job->mode == SPEC_MODE_JOB || is_twice(r, job) || job->n_workers == 0 ||
               (job->bound && job->mode != SPEC_MODE_SSP) || job->reached > ROSTER_CLOCK_END ||
               entry->workers_cap < job->n_workers ||
               (entry->workers_cap & (entry->workers_cap - 1)) ||
               entry->workers_cap > (size_t)(src->end - src->at) / PLACE_BYTES_MIN;
}

/* The entry is the roster's, however it ends. */
static int decode_job(struct roster *r, struct state_reader *src, struct roster_entry *entry)
{
    struct job *job = &entry->job;

    decode_head(r, src, entry);
    r->entries[r->n_jobs++] = entry;
    if (src->bad)
        return PS_ECORRUPT;
    job->workers = mem_try_alloc(entry->workers_cap * sizeof *job->workers);
    if (!job->workers)
        return -ENOMEM;
    for (uint32_t i = 0; i < entry->workers_cap; i++) {
        job->workers[i].job = job;
        job->workers[i].rank = i;
        decode_worker(src, &job->workers[i]);
    }
    return src->bad ? PS_ECORRUPT : 0;
}

int roster_decode(struct roster *r, struct state_reader *src, uint64_t now_ms)
{
    uint32_t format = state_get_u32(src), n_jobs;
    int status = 0;

    r->n_runs = state_get_u64(src);
    n_jobs = state_get_upto(src, ROSTER_N_JOBS_MAX);
    if (src->bad || format != FORMAT || r->n_jobs)
        return PS_ECORRUPT;
    for (uint32_t i = 0; i < n_jobs && !status; i++) {
        struct roster_entry *entry = mem_try_alloc(sizeof *entry);

        status = entry ? decode_job(r, src, entry) : -ENOMEM;
    }
    if (status) {
        /* What a half-read job might be asked for. */
        for (uint32_t i = 0; i < r->n_jobs; i++)
            if (!r->entries[i]->job.workers)
                r->entries[i]->job.n_workers = r->entries[i]->workers_cap = 0;
        return status;
    }
    roster_renew(r, now_ms);
    return 0;
}
