/* Jobs and workers as bytes of a checkpoint (snapshot_meta.h). */
#include <errno.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/learning.h"
#include "server/core/membership.h"
#include "server/core/membership_internal.h"
#include "server/core/snapshot_bytes.h"

#define FORMAT 3u
#define FORMAT_WITHOUT_BACKUPS 2u
#define FORMAT_WITHOUT_LEARNING 1u
#define PLACE_BYTES_MIN 52u

static void encode_worker(struct snapshot_writer *w, const struct worker *worker)
{
    snapshot_put_u32(w, (uint32_t)worker->state);
    snapshot_put_u64(w, worker->incarnation);
    snapshot_put_u64(w, worker->fenced_below);
    snapshot_put_u64(w, worker->clock);
    snapshot_put_u64(w, worker->last_seq);
    snapshot_put_u64(w, worker->refused_seq);
    snapshot_put_u32(w, (uint32_t)worker->refused_status);
    snapshot_put_text(w, worker->name);
}

static void encode_job(struct snapshot_writer *w, const struct membership_entry *entry)
{
    const struct job *job = &entry->job;

    snapshot_put_text(w, job->name);
    snapshot_put_u64(w, job->run);
    snapshot_put_u32(w, (uint32_t)job->mode);
    snapshot_put_u32(w, job->bound);
    snapshot_put_u64(w, job->applied_end);
    snapshot_put_u32(w, job->n_workers);
    snapshot_put_u32(w, entry->workers_cap);
    for (uint32_t i = 0; i < entry->workers_cap; i++)
        encode_worker(w, &job->workers[i]);
}

static bool has_learning(const struct membership *r)
{
    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (r->entries[i]->job.curve && r->entries[i]->job.curve->n)
            return true;
    return false;
}

static bool has_backups(const struct membership *r)
{
    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (r->entries[i]->job.n_backups)
            return true;
    return false;
}

/* Where no job has backup workers, or no worker has reported either, older programs can read it. */
void membership_encode(const struct membership *r, struct snapshot_writer *w)
{
    const uint32_t format = has_backups(r)    ? FORMAT
                            : has_learning(r) ? FORMAT_WITHOUT_BACKUPS
                                              : FORMAT_WITHOUT_LEARNING;

    snapshot_put_u32(w, format);
    snapshot_put_u64(w, r->n_runs);
    snapshot_put_u32(w, r->n_jobs);
    for (uint32_t i = 0; i < r->n_jobs; i++)
        encode_job(w, r->entries[i]);
    for (uint32_t i = 0; i < r->n_jobs && format >= FORMAT_WITHOUT_BACKUPS; i++)
        learning_encode(&r->entries[i]->job, w);
    for (uint32_t i = 0; i < r->n_jobs && format == FORMAT; i++)
        snapshot_put_u32(w, r->entries[i]->job.n_backups);
}

static void decode_worker(struct snapshot_reader *src, struct worker *worker)
{
    worker->state = (enum worker_state)snapshot_get_upto(src, WORKER_LOST);
    worker->incarnation = snapshot_get_u64(src);
    worker->fenced_below = snapshot_get_u64(src);
    worker->clock = snapshot_get_u64(src);
    worker->last_seq = snapshot_get_u64(src);
    worker->refused_seq = snapshot_get_u64(src);
    worker->refused_status = (int)snapshot_get_u32(src);
    snapshot_get_text(src, worker->name, sizeof worker->name);
    src->bad = src->bad || worker->clock > MEMBERSHIP_CLOCK_END ||
               (worker->refused_seq != 0) != (worker->refused_status != 0) ||
               worker->refused_seq > worker->last_seq;
}

/* Another one of that name, or with that run? */
static bool is_known_job(const struct membership *r, const struct job *job)
{
    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (strcmp(r->entries[i]->job.name, job->name) == 0 ||
            r->entries[i]->job.run == job->run)
            return true;
    return false;
}

static void decode_head(struct membership *r, struct snapshot_reader *src,
                        struct membership_entry *entry)
{
    struct job *job = &entry->job;

    entry->membership = r;
    snapshot_get_text(src, job->name, sizeof job->name);
    job->run = snapshot_get_u64(src);
    job->mode = (enum table_spec_mode)snapshot_get_upto(src, TABLE_SPEC_MODE_BSP);
    job->bound = snapshot_get_u32(src);
    job->applied_end = snapshot_get_u64(src);
    job->n_workers = snapshot_get_upto(src, MEMBERSHIP_N_WORKERS_MAX);
    entry->workers_cap = snapshot_get_upto(src, MEMBERSHIP_N_WORKERS_MAX);
    src->bad = src->bad || !job->name[0] || job->run == 0 || job->run > r->n_runs ||
               job->mode == TABLE_SPEC_MODE_JOB || is_known_job(r, job) ||
               job->n_workers == 0 || (job->bound && job->mode != TABLE_SPEC_MODE_SSP) ||
               job->applied_end > MEMBERSHIP_CLOCK_END || entry->workers_cap < job->n_workers ||
               (entry->workers_cap & (entry->workers_cap - 1)) ||
               entry->workers_cap > (size_t)(src->end - src->at) / PLACE_BYTES_MIN;
}

/* The entry is the membership's, however it ends. */
static int decode_job(struct membership *r, struct snapshot_reader *src,
                      struct membership_entry *entry)
{
    struct job *job = &entry->job;

    decode_head(r, src, entry);
    r->entries[r->n_jobs++] = entry;
    if (src->bad)
        return PS_ECORRUPT;
    job->workers = memory_try_alloc(entry->workers_cap * sizeof *job->workers);
    if (!job->workers)
        return -ENOMEM;
    for (uint32_t i = 0; i < entry->workers_cap; i++) {
        job->workers[i].job = job;
        job->workers[i].rank = i;
        decode_worker(src, &job->workers[i]);
    }
    return src->bad ? PS_ECORRUPT : 0;
}

static int decode_backups(struct snapshot_reader *src, struct job *job)
{
    job->n_backups = snapshot_get_upto(src, MEMBERSHIP_N_BACKUPS_MAX);
    if (src->bad || (job->n_backups &&
                     (job->mode != TABLE_SPEC_MODE_BSP || job->n_backups >= job->n_workers)))
        return PS_ECORRUPT;
    return 0;
}

int membership_decode(struct membership *r, struct snapshot_reader *src, uint64_t now_ms)
{
    uint32_t format = snapshot_get_u32(src), n_jobs;
    int status = 0;

    r->n_runs = snapshot_get_u64(src);
    n_jobs = snapshot_get_upto(src, MEMBERSHIP_N_JOBS_MAX);
    if (src->bad || format < FORMAT_WITHOUT_LEARNING || format > FORMAT || r->n_jobs)
        return PS_ECORRUPT;
    for (uint32_t i = 0; i < n_jobs && !status; i++) {
        struct membership_entry *entry = memory_try_alloc(sizeof *entry);

        status = entry ? decode_job(r, src, entry) : -ENOMEM;
    }
    for (uint32_t i = 0; i < n_jobs && !status && format >= FORMAT_WITHOUT_BACKUPS; i++) {
        status = learning_decode(&r->entries[i]->job, src);
        if (src->bad)
            status = PS_ECORRUPT;
    }
    for (uint32_t i = 0; i < n_jobs && !status && format == FORMAT; i++)
        status = decode_backups(src, &r->entries[i]->job);
    if (status) {
        /* What a half-read job might be asked for. */
        for (uint32_t i = 0; i < r->n_jobs; i++)
            if (!r->entries[i]->job.workers)
                r->entries[i]->job.n_workers = r->entries[i]->workers_cap = 0;
        return status;
    }
    membership_renew(r, now_ms);
    return 0;
}
