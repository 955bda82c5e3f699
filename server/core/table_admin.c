#include "server/core/table_admin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "server/core/bsp.h"
#include "server/core/lock_step.h"
#include "server/core/push.h"
#include "server/core/shard_log_events.h"

#define SEARCHED_SECTIONS_MAX 65536u /* for a sentence: a millisecond */

static bool is_of_job(const struct shard_entry *entry, const char *job)
{
    size_t n = strlen(job);

    return entry && strncmp(entry->table.spec.name, job, n) == 0 &&
           (entry->table.spec.name[n] == '/' || !entry->table.spec.name[n]);
}

/* Has psctl set a say in it? */
static bool is_settable(const struct shard_entry *entry, const char *job)
{
    return is_of_job(entry, job) && (!table_spec_only_adds(&entry->table.spec) ||
                                     strcmp(entry->table.spec.name, job) == 0);
}

static void count(const struct shard_entry *entry, struct table_admin_counts *counts)
{
    counts->n_tables++;
    counts->n_rows += table_n_rows(entry->table.rows);
    counts->n_bytes += entry->budget.used;
}

void table_admin_count(struct shard *s, const char *job, bool is_set,
                       struct table_admin_counts *ret)
{
    *ret = (struct table_admin_counts){ 0 };
    for (uint32_t id = 0; id < s->n_tables; id++)
        if (is_set ? is_settable(s->tables[id], job) : is_of_job(s->tables[id], job))
            count(s->tables[id], ret);
}

static uint64_t hash_job(const char *table)
{
    uint64_t hash = 0;

    for (size_t i = 0; table[i] && table[i] != '/'; i++)
        hash = hash_mix2(hash, (uint8_t)table[i]);
    return hash;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The longest run of equal numbers; returns its length, at most n. */
static uint32_t find_longest_run(const uint64_t *sorted, uint32_t n, uint64_t *ret)
{
    uint32_t longest = 0;

    for (uint32_t i = 0, first = 0; i < n; i++) {
        first = sorted[i] == sorted[first] ? first : i;
        if (i - first + 1 <= longest)
            continue;
        longest = i - first + 1;
        *ret = sorted[i];
    }
    return longest;
}

uint32_t table_admin_most(const struct shard *s, char ret_job[static TABLE_SPEC_NAME_MAX])
{
    uint64_t *hashes = memory_try_alloc((s->n_tables + 1) * sizeof *hashes), most = 0;
    uint32_t n = 0, n_most;

    ret_job[0] = '\0';
    if (!hashes)
        return 0;
    for (uint32_t id = 0; id < s->n_tables; id++)
        if (s->tables[id])
            hashes[n++] = hash_job(s->tables[id]->table.spec.name);
    qsort(hashes, n, sizeof *hashes, compare_u64);
    n_most = find_longest_run(hashes, n, &most);
    free(hashes);
    for (uint32_t id = 0; n_most && !ret_job[0] && id < s->n_tables; id++)
        if (s->tables[id] && hash_job(s->tables[id]->table.spec.name) == most)
            snprintf(ret_job, TABLE_SPEC_NAME_MAX, "%.*s",
                     (int)strcspn(s->tables[id]->table.spec.name, "/"),
                     s->tables[id]->table.spec.name);
    return n_most;
}

/* --- may it be done? --- */

static bool names_table(const struct bsp_held *h, uint32_t id)
{
    for (uint32_t i = 0; i < h->n_sections; i++)
        if (h->sections[i].table_id == id)
            return true;
    return false;
}

/* The job whose push for the table is found, or NULL. A job whose workers are all given up is none: begin() ends what
 * it waits for. *n_left: sections that may still be looked at, as millions may be held; 0 if the search had to stop. */
static const struct job *find_holder(const struct shard *s, uint32_t id, uint32_t *n_left)
{
    for (const struct bsp_queue *q = s->queues; q; q = q->next) {
        if (job_is_deserted(q->job))
            continue;
        for (const struct bsp_held *h = q->first; h; h = h->next) {
            if (names_table(h, id))
                return q->job;
            *n_left -= h->n_sections < *n_left ? h->n_sections + 1 : *n_left;
            if (!*n_left)
                return NULL;
        }
    }
    return NULL;
}

static int check_not_held(const struct shard *s, const struct shard_entry *entry,
                          uint32_t *n_left, struct err *err)
{
    const struct job *job = entry->n_held ? find_holder(s, entry->id, n_left) : NULL;

    if (!entry->n_held || (!job && *n_left))
        return 0;
    return err_set(err, -EBUSY, "table %s: pushes of %s%.64s wait for their clock, and name it",
                   entry->table.spec.name, job ? "job " : "a job", job ? job->name : "");
}

/* Jobs "a" and "a/b" can both have a table "a/b/c". */
static bool may_share_tables(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b), n = n_a < n_b ? n_a : n_b;

    return strncmp(a, b, n) == 0 && (n_a == n_b || (n_a < n_b ? b : a)[n] == '/');
}

static int check_workers_of(const struct job *job, struct err *err)
{
    for (uint32_t rank = 0; rank < job->n_workers; rank++) {
        const struct worker *w = &job->workers[rank];

        if (w->state == WORKER_LIVE && !w->is_given_up)
            return err_set(err, -EBUSY, "job %.64s has workers: rank %u (%s) is live",
                           job->name, rank, w->name);
        if (w->state == WORKER_EXPECTED)
            return err_set(err, -EBUSY,
                           "job %.64s has begun: rank %u is expected, until --join-timeout is "
                           "over",
                           job->name, rank);
    }
    return 0;
}

static int check_workers(struct shard *s, const char *name, struct err *err) ON_SHARD
{
    int status = 0;

    for (uint32_t i = 0; i < membership_n_jobs(s->membership) && !status; i++) {
        const struct job *job = membership_job(s->membership, i);

        if (may_share_tables(job->name, name))
            status = check_workers_of(job, err);
    }
    return status;
}

/* Nothing changes. */
static int check_settings(struct shard *s, const char *job, const char *settings,
                          struct err *err)
{
    int status = 0;

    for (uint32_t id = 0; id < s->n_tables && !status; id++) {
        struct table_spec spec;

        if (!is_settable(s->tables[id], job))
            continue;
        spec = s->tables[id]->table.spec;
        status = table_spec_set(&spec, settings, err);
    }
    return status;
}

int table_admin_check(struct shard *s, const char *job, const char *settings, struct err *err)
{
    size_t n_chars = strnlen(job, TABLE_SPEC_NAME_MAX);
    uint32_t n_left = SEARCHED_SECTIONS_MAX;
    int status;

    if (n_chars == 0 || n_chars == TABLE_SPEC_NAME_MAX)
        return err_set(err, -EINVAL, "a job's name has 1 to %u characters",
                       TABLE_SPEC_NAME_MAX - 1);
    status = check_workers(s, job, err);
    for (uint32_t id = 0; id < s->n_tables && !status; id++)
        if (is_of_job(s->tables[id], job))
            status = check_not_held(s, s->tables[id], &n_left, err);
    return status || !settings ? status : check_settings(s, job, settings, err);
}

/* --- no joins meanwhile --- */

static const struct shard_locked_job *find_lock(const struct shard *s, const char *job,
                                                uint64_t now_ms)
{
    for (uint32_t i = 0; i < SHARD_LOCKED_JOBS_MAX; i++) {
        const struct shard_locked_job *lock = &s->locked_jobs[i];

        if (lock->name[0] && now_ms < lock->until_ms && may_share_tables(lock->name, job))
            return lock;
    }
    return NULL;
}

int table_admin_may_join(const struct shard *s, const char *job, uint64_t now_ms,
                         struct err *err)
{
    const struct shard_locked_job *lock = find_lock(s, job, now_ms);

    return lock ? err_set(err, -EBUSY,
                          "the tables of job %.64s are being dropped or changed by an operator",
                          lock->name)
                : 0;
}

int table_admin_lock(struct shard *s, const char *job, uint64_t now_ms, uint64_t until_ms,
                     struct err *err)
{
    int status = table_admin_may_join(s, job, now_ms, err);

    for (uint32_t i = 0; i < SHARD_LOCKED_JOBS_MAX && !status; i++) {
        struct shard_locked_job *lock = &s->locked_jobs[i];

        if (lock->name[0] && now_ms < lock->until_ms)
            continue;
        *lock = (struct shard_locked_job){ .until_ms = until_ms };
        memcpy(lock->name, job, strnlen(job, sizeof lock->name - 1));
        return 0;
    }
    return status
               ? status
               : err_set(err, -EBUSY, "tables of %u jobs are being dropped or changed already",
                         SHARD_LOCKED_JOBS_MAX);
}

void table_admin_unlock(struct shard *s, const char *job)
{
    for (uint32_t i = 0; i < SHARD_LOCKED_JOBS_MAX; i++)
        if (strcmp(s->locked_jobs[i].name, job) == 0)
            s->locked_jobs[i] = (struct shard_locked_job){ 0 };
}

/* --- before a change --- */

/* Does a push that is between its slices change tables of the job? */
static bool is_pushed_to(const struct shard *s, const char *job)
{
    const struct push_op *op = &s->large;

    for (uint32_t i = 0; push_is_running(op) && i < op->push->n_sections; i++)
        if (is_of_job(op->sections[i].in.entry, job))
            return true;
    return false;
}

/* All nodes have said that no worker of these jobs is live: who is given up is dead. */
static void end_deserted(struct shard *s, const char *name) ON_SHARD
{
    for (uint32_t i = 0; i < membership_n_jobs(s->membership); i++) {
        const struct job *job = membership_job(s->membership, i);

        if (may_share_tables(job->name, name) && job_is_deserted(job))
            membership_end_deserted(s->membership, job);
    }
}

/* What is under way ends first, in slices: a push, and clocks that only waited for who is gone. */
static int begin(struct shard *s, const char *job, const char *settings,
                 struct table_admin_counts *ret, struct err *err) ON_SHARD
{
    int status;

    *ret = (struct table_admin_counts){ 0 };
    if (is_pushed_to(s, job))
        return err_set(err, -EAGAIN, "a large push to tables of job %.64s is under way", job);
    end_deserted(s, job);
    (void)bsp_release_some(s);
    if (lock_step_is_combining(s))
        return err_set(err, -EAGAIN, "a large clock in lock step is being applied");
    shard_log_events_rows(s);
    status = table_admin_check(s, job, settings, err);
    if (status == -EBUSY && bsp_has_complete(s))
        err->status = status = -EAGAIN; /* its pushes may be the ones that are in the way */
    return status;
}

static int reserve(struct shard *s, const struct shard_event *event, const char *table,
                   struct err *err)
{
    int status = shard_events_reserve(s->events, event);

    if (status == -EAGAIN)
        return err_set(err, status,
                       "table %s: the write-ahead log is full, as the disk is slow", table);
    return status ? err_set(err, status, "table %s: no memory", table) : 0;
}

/* --- drop --- */

int table_admin_drop(struct shard *s, const char *job, struct table_admin_counts *ret,
                     struct err *err)
{
    int status = begin(s, job, NULL, ret, err);

    for (uint32_t id = 0; id < s->n_tables && !status; id++) {
        const struct shard_entry *entry = s->tables[id];
        const struct shard_event event = { .type = SHARD_EVENT_DROP,
                                           .version = s->version,
                                           .drop = { id } };

        if (!is_of_job(entry, job))
            continue;
        status = reserve(s, &event, entry->table.spec.name, err);
        if (status)
            return status;
        count(entry, ret);
        shard_remove_table(s, id);
        shard_events_record(s->events, &event);
    }
    return status;
}

/* --- set --- */

int table_admin_set_spec(struct shard *s, uint32_t id, const struct table_spec *spec,
                         struct err *err)
{
    struct shard_entry *entry = s->tables[id];
    int status;

    if (strnlen(spec->name, TABLE_SPEC_NAME_MAX) == TABLE_SPEC_NAME_MAX)
        return err_set(err, PS_ESPEC, "a table's name has no end");
    status = table_spec_check(spec, err);
    if (!status)
        status = table_spec_same_layout(&entry->table.spec, spec, err);
    if (status)
        return status;
    entry->table.spec = *spec;
    /* A delta has the specification of its base. */
    s->base.counts = s->base.is_there = false;
    return 0;
}

int table_admin_set(struct shard *s, const char *job, const char *settings,
                    struct table_admin_counts *ret, struct err *err)
{
    int status = begin(s, job, settings, ret, err);

    for (uint32_t id = 0; id < s->n_tables && !status; id++) {
        struct table_spec spec;
        const struct shard_event event = { .type = SHARD_EVENT_SPEC,
                                           .version = s->version,
                                           .table = { id, &spec } };

        if (!is_settable(s->tables[id], job))
            continue;
        spec = s->tables[id]->table.spec;
        status = table_spec_set(&spec, settings, err);
        if (!status && table_spec_same(&s->tables[id]->table.spec, &spec, NULL) == 0)
            continue; /* an earlier call has set it */
        if (!status)
            status = reserve(s, &event, spec.name, err);
        if (!status)
            status = table_admin_set_spec(s, id, &spec, err);
        if (status)
            return status;
        count(s->tables[id], ret);
        shard_events_record(s->events, &event);
    }
    return status;
}
