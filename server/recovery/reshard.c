#include "server/recovery/reshard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/restore.h"
#include "server/core/sync_point.h"

/* A job on a shard. */
struct shard_progress {
    struct shard_progress *next; /* owned */
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t shard;
    enum table_spec_mode mode;
    bool is_alive;
    uint64_t n_steps, n_held;
    uint64_t n_acknowledged; /* pushes, of all workers */
    uint32_t n_workers;
    uint64_t incarnations[]; /* of each rank */
};

struct shard_number {
    struct shard_number *next; /* owned */
    uint32_t number;
};

struct reshard {
    struct shard_number *shards;      /* owned */
    struct shard_progress *progress;  /* owned: of this time */
    struct shard_progress *before;    /* owned: of the first time, where this is the second */
    const struct shard_progress *far; /* in `before`: why this is the second time */
    uint32_t near_shard;
    uint64_t clock; /* to which all go back; 0: this is the first time */
};

struct reshard *reshard_new(void)
{
    return memory_alloc(sizeof(struct reshard));
}

static void free_progress(struct shard_progress *p)
{
    struct shard_progress *next;

    for (; p; p = next) {
        next = p->next;
        free(p);
    }
}

static void free_shards(struct reshard *a)
{
    struct shard_number *next;

    for (; a->shards; a->shards = next) {
        next = a->shards->next;
        free(a->shards);
    }
}

void reshard_reset(struct reshard *a)
{
    free_progress(a->progress);
    a->progress = NULL;
    free_shards(a);
}

void reshard_free(struct reshard *a)
{
    if (!a)
        return;
    reshard_reset(a);
    free_progress(a->before);
    free(a);
}

/* --- noting --- */

static struct shard_progress *progress_of(const struct shard *s, const struct job *job) ON_SHARD
{
    struct shard_progress *p =
        memory_alloc(sizeof *p + job->n_workers * sizeof p->incarnations[0]);

    memcpy(p->job, job->name, sizeof p->job);
    p->mode = job->mode;
    p->is_alive = job_is_alive(job);
    p->n_steps = sync_point_n_steps(s, job);
    p->n_held = sync_point_n_held(s, job);
    p->n_workers = job->n_workers;
    for (uint32_t i = 0; i < job->n_workers; i++) {
        p->n_acknowledged += job->workers[i].last_seq;
        p->incarnations[i] = job->workers[i].incarnation;
    }
    return p;
}

void reshard_add(struct reshard *a, uint32_t number, struct shard *shard)
{
    struct membership *membership = shard_membership(shard);
    struct shard_number *n = memory_alloc(sizeof *n);

    *n = (struct shard_number){ a->shards, number };
    a->shards = n;
    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        struct shard_progress *p = progress_of(shard, membership_job(membership, i));

        p->shard = number;
        p->next = a->progress;
        a->progress = p;
    }
}

/* --- how far a job is --- */

static const struct shard_progress *find(const struct shard_progress *progress, const char *job,
                                         uint32_t shard)
{
    while (progress && (progress->shard != shard || strcmp(progress->job, job) != 0))
        progress = progress->next;
    return progress;
}

/* Is there a worker that both know as the same process? */
static bool share_worker(const struct shard_progress *a, const struct shard_progress *b)
{
    for (uint32_t i = 0; i < a->n_workers && i < b->n_workers; i++)
        if (a->incarnations[i] && a->incarnations[i] == b->incarnations[i])
            return true;
    return false;
}

/* Has the job been started again there, and that is all? The steps before are over, then, on every shard. */
static bool has_just_begun(const struct shard_progress *p, const struct shard_progress *far)
{
    bool any = false;

    if (p->n_steps || p->n_held || share_worker(p, far))
        return false;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        if (!p->incarnations[i])
            continue;
        any = true;
        if (i < far->n_workers && p->incarnations[i] < far->incarnations[i])
            return false;
    }
    return any;
}

/* A job on all shards. */
struct survey {
    const struct shard_progress *far,
        *near; /* the most steps, the fewest; near NULL: none, as the job is not there */
    uint32_t near_shard;
    uint64_t n_held;
    bool is_held, is_alive; /* in lock step; somebody counts */
};

static void consider(struct survey *s, const struct shard_progress *p, uint32_t shard)
{
    if (p && has_just_begun(p, s->far))
        return;
    if (!p && !s->far->is_alive)
        return; /* its place in the membership was given to another one */
    if (s->near && p && p->n_steps >= s->near->n_steps)
        return;
    s->near = p;
    s->near_shard = shard;
}

static struct survey survey(const struct reshard *a, const char *job)
{
    struct survey s = { 0 };

    for (const struct shard_progress *p = a->progress; p; p = p->next) {
        if (strcmp(p->job, job) != 0)
            continue;
        s.n_held += p->n_held;
        s.is_held = s.is_held || p->mode == TABLE_SPEC_MODE_BSP || p->n_held;
        s.is_alive = s.is_alive || p->is_alive;
        if (!s.far || p->n_steps > s.far->n_steps)
            s.far = p;
    }
    s.near = s.far;
    s.near_shard = s.far->shard;
    for (const struct shard_number *n = a->shards; n && s.near; n = n->next)
        consider(&s, find(a->progress, job, n->number), n->number);
    return s;
}

static uint64_t n_steps_of(const struct shard_progress *p)
{
    return p ? p->n_steps : 0;
}

static bool is_torn(const struct survey *s)
{
    return s->is_held && n_steps_of(s->near) < s->far->n_steps;
}

/* Has the list named this job before? */
static bool is_first_of_job(const struct reshard *a, const struct shard_progress *p)
{
    const struct shard_progress *first = a->progress;

    while (strcmp(first->job, p->job) != 0)
        first = first->next;
    return first == p;
}

/* --- what is told --- */

#define AS_BEFORE "start with the layout that wrote this"

static void report(const struct reshard_config *config, const struct err *sentence)
{
    if (config->report)
        config->report(config->arg, sentence->text);
}

static void report_left_out(const struct reshard_config *config, const struct survey *s)
{
    struct err text;

    err_set(&text, 0,
            "job %.60s is as after %" PRIu64 " steps: %" PRIu64
            " pushes of the next ones, which wait for those of other workers, are left out",
            s->far->job, s->far->n_steps, s->n_held);
    report(config, &text);
}

static void report_torn(const struct reshard_config *config, const struct survey *s)
{
    struct err text;

    err_set(&text, 0,
            "job %.60s, in lock step: rows of shard %" PRIu32 " are as after %" PRIu64
            " steps, of shard %" PRIu32 " as after %" PRIu64 "; what waited is left out",
            s->far->job, s->far->shard, s->far->n_steps, s->near_shard, n_steps_of(s->near));
    report(config, &text);
}

static int refuse_unseen(const struct survey *s, struct err *err)
{
    return err_set(err, PS_ENOCHECKPOINT,
                   "job %.50s is under way in lock step, and the nodes do not see each other's "
                   "steps: name all directories with --restore DIR,DIR, or on each node --at "
                   "%.50s:%" PRIu64 ", the smallest of all",
                   s->far->job, s->far->job, n_steps_of(s->near));
}

static int refuse_two(const struct survey *s, const char *other, struct err *err)
{
    return err_set(err, PS_ENOCHECKPOINT,
                   "jobs %.40s and %.40s have finished more steps on some shards than on "
                   "others: " AS_BEFORE ", or with --at %.40s:%" PRIu64,
                   other, s->far->job, s->far->job, n_steps_of(s->near));
}

static int refuse_none(const struct survey *s, struct err *err)
{
    return err_set(err, PS_ENOCHECKPOINT,
                   "job %.60s has finished %" PRIu64 " steps on shard %" PRIu32
                   ", and none on shard %" PRIu32 ": " AS_BEFORE
                   ", or with --at NUMBER from before it",
                   s->far->job, s->far->n_steps, s->far->shard, s->near_shard);
}

static int refuse_unclear(const struct survey *s, struct err *err)
{
    return err_set(err, PS_ENOCHECKPOINT,
                   "job %.60s: %" PRIu64 " steps on shard %" PRIu32 " and %" PRIu64
                   " on shard %" PRIu32 " are not of the same workers: " AS_BEFORE
                   ", or with --at %.40s:CLOCK",
                   s->far->job, s->far->n_steps, s->far->shard, n_steps_of(s->near),
                   s->near_shard, s->far->job);
}

static int refuse_others(const struct reshard *a, const struct shard_progress *other,
                         struct err *err)
{
    return err_set(err, PS_ENOCHECKPOINT,
                   "job %.40s goes back to step %" PRIu64
                   ", and pushes of job %.40s would go with "
                   "it: " AS_BEFORE ", or with --at %.40s:%" PRIu64 ", without them",
                   a->far->job, a->clock, other->job, a->far->job, a->clock);
}

int reshard_explain(const struct reshard *a, int status, struct err *err)
{
    const struct err why = *err;

    if (!a->clock || status != PS_ENOCHECKPOINT)
        return status;
    return err_set(err, status,
                   "job %.40s has finished %" PRIu64 " steps on shard %" PRIu32 ", %" PRIu64
                   " on shard %" PRIu32 ", and not all can go back: %.70s: " AS_BEFORE
                   ", or with --at NUMBER",
                   a->far->job, a->far->n_steps, a->far->shard, a->clock, a->near_shard,
                   why.text);
}

/* --- judging --- */

static int go_back(struct reshard *a, const struct survey *s, struct recover_shard_at *ret,
                   struct err *err)
{
    if (!n_steps_of(s->near))
        return refuse_none(s, err);
    if (!share_worker(s->far, s->near))
        return refuse_unclear(s, err);
    a->far = s->far;
    a->near_shard = s->near_shard;
    a->clock = s->near->n_steps;
    a->before = a->progress;
    a->progress = NULL;
    free_shards(a);
    *ret = (struct recover_shard_at){ .job = a->far->job, .clock = a->clock };
    return 0;
}

static int check_first(struct reshard *a, const struct reshard_config *config,
                       struct recover_shard_at *ret, struct err *err)
{
    bool is_asked = config->at.job || config->at.number;
    struct survey torn = { 0 };

    for (const struct shard_progress *p = a->progress; p; p = p->next) {
        struct survey s;

        if (!is_first_of_job(a, p))
            continue;
        s = survey(a, p->job);
        if (s.is_held && s.is_alive && config->n_unseen_nodes && !is_asked)
            return refuse_unseen(&s, err);
        if (is_torn(&s) && torn.far && !is_asked)
            return refuse_two(&s, torn.far->job, err);
        if (is_torn(&s) && is_asked)
            report_torn(config, &s);
        else if (is_torn(&s))
            torn = s;
        else if (s.n_held)
            report_left_out(config, &s);
    }
    return torn.far ? go_back(a, &torn, ret, err) : 0;
}

/* All are at that clock, and nobody else has lost anything by it. */
static int check_second(struct reshard *a, const struct reshard_config *config, struct err *err)
{
    uint64_t n_left_out = 0;
    struct err text;

    for (const struct shard_progress *p = a->before; p; p = p->next) {
        const struct shard_progress *now = find(a->progress, p->job, p->shard);
        uint64_t n_acknowledged = now ? now->n_acknowledged : 0;

        if (strcmp(p->job, a->far->job) == 0)
            n_left_out += p->n_acknowledged - n_acknowledged + (now ? now->n_held : 0);
        else if (n_acknowledged != p->n_acknowledged)
            return refuse_others(a, p, err);
    }
    err_set(&text, 0,
            "job %.50s had finished %" PRIu64 " steps on shard %" PRIu32
            " and is brought to %" PRIu64 ", which all shards had: %" PRIu64
            " pushes of later ones are left out",
            a->far->job, a->far->n_steps, a->far->shard, a->clock, n_left_out);
    report(config, &text);
    return 0;
}

int reshard_check(struct reshard *a, const struct reshard_config *config,
                  struct recover_shard_at *ret_restart, struct err *err)
{
    *ret_restart = (struct recover_shard_at){ 0 };
    if (a->clock)
        return check_second(a, config, err);
    return check_first(a, config, ret_restart, err);
}

/* --- rows --- */

#define STEP 8192u /* rows between two signs of life */

static int copy_rows(struct shard *to, uint32_t id, const struct shard_table *table,
                     int (*progress)(void *arg), void *arg) ON_SHARD
{
    uint64_t n = table_n_numbers(table->rows);
    int status = 0;

    for (uint64_t i = 0; i < n && !status; i++) {
        const struct row *row = table_row(table->rows, i);

        if (i % STEP == 0 && progress)
            status = progress(arg);
        if (row && !status)
            status = restore_row(to, id, row->key, row->stamp, row->floats);
    }
    return status;
}

int reshard_table(struct shard *from, uint32_t from_id, struct shard *to,
                  int (*progress)(void *arg), void *arg, struct err *err)
{
    const struct shard_table *table = shard_table(from, from_id);
    uint32_t id;
    int status = shard_table_restore(to, &table->spec, &id, err);

    if (status)
        return status;
    restore_counts(to, id, table->n_pushes, shard_version(from));
    status = copy_rows(to, id, table, progress, arg);
    if (status)
        err_set(err, status, "table %s: %s", table->spec.name, status_text(status));
    return status;
}

int reshard_rows(struct shard *from, struct shard *to, int (*progress)(void *arg), void *arg,
                 struct err *err)
{
    int status = 0;

    for (uint32_t id = 0; id < shard_n_tables(from) && !status; id++)
        if (shard_table(from, id))
            status = reshard_table(from, id, to, progress, arg, err);
    return status;
}
