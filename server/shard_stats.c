#include "server/shard_stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "common/clock.h"
#include "common/memory.h"
#include "server/core/learning.h"
#include "server/core/suspicion.h"
#include "server/core/sync_point.h"

#define FULL_SHOWN_MS 60000u    /* after a refusal */
#define STILL_MS 10000u         /* a job without a step for so long stands still */
#define READ_WAIT_SHOWN_MS 100u /* from there on a read waits for long */

/* User and system, of the calling thread. */
static uint64_t cpu_us(void)
{
    struct rusage usage = { 0 };

    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void copy_table(const struct shard_table *table, struct stats_table *ret)
{
    struct table_facts facts;

    table_facts(table->rows, &facts);
    *ret = (struct stats_table){ .spec = table->spec,
                                 .n_rows = facts.n_rows,
                                 .n_removed = facts.n_removed,
                                 .bytes = table_bytes(table->rows) + table->count_min_bytes,
                                 .slab_bytes = facts.slab_bytes,
                                 .index_bytes = facts.index_bytes,
                                 .count_min_bytes = table->count_min_bytes,
                                 .bytes_max = table->bytes_max,
                                 .row_bytes = facts.row_bytes,
                                 .payload_bytes = table->payload_bytes,
                                 .n_pushes = table->n_pushes,
                                 .rows_refused = table->rows_refused,
                                 .rows_pulled = table->rows_pulled,
                                 .rows_pushed = table->rows_pushed,
                                 .rows_unadmitted = table->rows_unadmitted,
                                 .rows_evicted = table->rows_evicted,
                                 .rows_idle = table->rows_idle,
                                 .rows_expired = table->rows_expired,
                                 .rows_rare = table->rows_rare };
}

static void copy_tables(struct shard *shard, struct shard_report *report) ON_SHARD
{
    report->tables = memory_alloc((shard_n_live_tables(shard) + 1) * sizeof *report->tables);
    for (uint32_t id = 0; id < shard_n_tables(shard); id++) {
        const struct shard_table *t = shard_table(shard, id);

        if (!t)
            continue;
        copy_table(t, &report->tables[report->n_tables]);
        report->tables_bytes += report->tables[report->n_tables++].bytes;
    }
}

static void copy_job(const struct job *job, struct stats_job *ret)
{
    snprintf(ret->name, sizeof ret->name, "%s", job->name);
    ret->mode = job->mode;
    ret->bound = job->bound;
    ret->n_workers = job->n_workers;
    ret->n_backups = job->n_backups;
    ret->min_clock = job_min_clock(job);
    ret->n_fenced = job->n_fenced;
    ret->n_lost = job->n_lost;
    ret->parked_ms = job->parked_ms;
    ret->n_deaths = job->n_deaths;
    ret->staleness_violations = job->staleness_violations;
    histogram_merge(&ret->staleness, &job->staleness);
    learning_summarise(job, &ret->learning);
    if (!job->curve || !job->curve->n)
        return;
    ret->curve = memory_alloc(sizeof *ret->curve);
    *ret->curve = *job->curve;
}

static void copy_worker(const struct worker *worker, uint64_t now_ms, struct stats_worker *ret)
{
    *ret = (struct stats_worker){ .rank = worker->rank,
                                  .state = worker->is_given_up ? WORKER_DEAD : worker->state,
                                  .incarnation = worker->incarnation,
                                  .clock = worker->clock,
                                  .n_skipped = worker->n_skipped,
                                  .last_seq = worker->last_seq,
                                  .is_suspected = worker->is_suspected && !worker->is_given_up,
                                  .is_given_up = worker->is_given_up,
                                  .doubts_itself = worker->doubts_itself,
                                  .reporters = worker->reporters,
                                  .agreed = worker->agreed,
                                  .learning = worker->learning };
    snprintf(ret->job, sizeof ret->job, "%s", worker->job->name);
    snprintf(ret->name, sizeof ret->name, "%s", worker->name);
    if (worker->state != WORKER_EXPECTED && worker->state != WORKER_LOST)
        ret->silent_ms = now_ms - worker->last_seen_ms;
}

static uint64_t position_of(const struct job *job)
{
    uint64_t position = 0;

    for (uint32_t rank = 0; rank < job->n_workers; rank++) {
        const struct worker *w = &job->workers[rank];

        position += w->clock + w->last_seq + w->join_number;
    }
    return position;
}

static void note_steps(struct shard_stats_steps *steps, const struct job *job, uint64_t now_ms)
{
    const uint64_t position = position_of(job);

    if (steps->run != job->run || steps->position != position)
        *steps = (struct shard_stats_steps){ job->run, position, now_ms, now_ms };
}

/* A worker's rate is what it said last. */
static void stop_rates(struct stats_job *job, struct stats_worker *workers)
{
    job->learning.samples_per_s = 0;
    for (uint32_t rank = 0; rank < job->n_workers; rank++)
        workers[rank].learning.samples_per_s = 0;
}

static void copy_jobs(const struct shard_stats_inputs *in, uint64_t now_ms,
                      struct shard_report *report) ON_SHARD
{
    struct membership *membership = shard_membership(in->shard);
    uint32_t n_workers = 0;

    report->n_jobs = membership_n_jobs(membership);
    for (uint32_t i = 0; i < report->n_jobs; i++)
        n_workers += membership_job(membership, i)->n_workers;
    report->jobs = memory_alloc((report->n_jobs + 1) * sizeof *report->jobs);
    report->workers = memory_alloc((n_workers + 1) * sizeof *report->workers);
    for (uint32_t i = 0; i < report->n_jobs; i++) {
        const struct job *job = membership_job(membership, i);
        struct stats_worker *workers = &report->workers[report->n_workers];

        copy_job(job, &report->jobs[i]);
        for (uint32_t rank = 0; rank < job->n_workers; rank++)
            copy_worker(&job->workers[rank], now_ms, &workers[rank]);
        report->n_workers += job->n_workers;
        note_steps(&in->steps[i], job, now_ms);
        if (now_ms - in->steps[i].since_ms >= STILL_MS)
            stop_rates(&report->jobs[i], workers);
    }
}

/* A time of the shard's clock as Unix time. */
static uint64_t unix_ms(const struct shard_report *report, uint64_t now_ms, uint64_t at_ms)
{
    return report->made_unix_ms + at_ms - now_ms;
}

/* Who has to say so, too, stands there by name: it may be a worker that relays nothing. */
static void explain_suspect(const struct worker *worker, uint64_t now_ms, uint32_t lease_ms,
                            char *dst, size_t n_bytes)
{
    const struct worker *silent = suspicion_silent_relay(worker, lease_ms, now_ms);
    int n = snprintf(dst, n_bytes, "%s; it is dead once all shards have refused it",
                     suspicion_lease_is_over(worker, lease_ms, now_ms)
                         ? "its lease is over"
                         : "others say that a shard does not hear it");

    if (silent)
        snprintf(dst + n, n_bytes - (size_t)n, ", which worker %u (%.40s) does not say yet",
                 silent->rank, silent->name);
}

/* True if other workers of its job wait for this one, or will; fills in all but its name. */
static bool describe_wait(const struct job *job, const struct worker *worker, uint64_t now_ms,
                          const struct shard_stats_inputs *in,
                          const struct shard_report *report, struct stats_wait *ret) ON_SHARD
{
    uint64_t lease_end_ms = worker->last_seen_ms + in->lease_ms;

    if (worker->is_given_up && !sync_point_n_held(in->shard, job))
        return false; /* nobody is here that could wait for it, and nothing */
    if (worker->is_given_up) {
        snprintf(ret->what, sizeof ret->what, "worker given up");
        snprintf(ret->why, sizeof ret->why,
                 "no worker of the job is heard; pushes of others wait for it");
        ret->since_unix_ms = unix_ms(report, now_ms, worker->last_seen_ms);
        ret->until_unix_ms =
            unix_ms(report, now_ms, worker->given_up_ms + MEMBERSHIP_GIVEN_UP_MS);
        return true;
    }
    if (worker->state == WORKER_EXPECTED && job->n_workers > 1) {
        snprintf(ret->what, sizeof ret->what, "worker expected");
        snprintf(ret->why, sizeof ret->why, "it has not joined; the others%s",
                 job_all_ticked(job, worker->clock) ? " go on without it (--backup-workers)"
                                                    : "' pulls wait for it");
        ret->since_unix_ms = unix_ms(report, now_ms, job->started_ms);
        ret->until_unix_ms = unix_ms(report, now_ms, job->join_deadline_ms);
        return true;
    }
    if (worker->is_suspected) {
        snprintf(ret->what, sizeof ret->what, "worker suspected");
        explain_suspect(worker, now_ms, in->lease_ms, ret->why, sizeof ret->why);
        ret->since_unix_ms = unix_ms(report, now_ms, worker->last_seen_ms);
        /* Then pulls that wait for it are refused. */
        ret->until_unix_ms = unix_ms(report, now_ms, worker->suspected_ms + in->park_max_ms);
        return true;
    }
    if (worker->state != WORKER_LIVE || now_ms - worker->last_seen_ms <= in->lease_ms / 2)
        return false;
    snprintf(ret->what, sizeof ret->what, "worker silent");
    snprintf(ret->why, sizeof ret->why,
             "no message since then; its lease ends at the deadline");
    ret->since_unix_ms = unix_ms(report, now_ms, worker->last_seen_ms);
    ret->until_unix_ms = unix_ms(report, now_ms, lease_end_ms > now_ms ? lease_end_ms : now_ms);
    return true;
}

/* A worker that has not joined yet has no name. */
static void name_worker(struct stats_wait *wait, const struct worker *worker)
{
    bool has_name = worker->name[0] != '\0';

    snprintf(wait->who, sizeof wait->who, "job %.28s, worker %u%s%.40s%s", worker->job->name,
             worker->rank, has_name ? " (" : "", worker->name, has_name ? ")" : "");
}

static void copy_silent_workers(const struct shard_stats_inputs *in, uint64_t now_ms,
                                struct shard_report *report) ON_SHARD
{
    struct membership *membership = shard_membership(in->shard);

    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        const struct job *job = membership_job(membership, i);

        for (uint32_t rank = 0; rank < job->n_workers; rank++) {
            struct stats_wait *wait = &report->waits[report->n_waits];

            if (report->n_waits == STATS_N_WAITS_MAX)
                return;
            if (!describe_wait(job, &job->workers[rank], now_ms, in, report, wait))
                continue;
            report->n_waits++;
            name_worker(wait, &job->workers[rank]);
        }
    }
}

/* Every worker that has not left is heard, so it is none of them that the others wait for. */
static bool is_heard(const struct job *job, uint64_t now_ms, uint32_t lease_ms,
                     uint32_t *ret_n_live)
{
    *ret_n_live = 0;
    for (uint32_t rank = 0; rank < job->n_workers; rank++) {
        const struct worker *w = &job->workers[rank];

        if (w->state == WORKER_EXPECTED || w->is_suspected || w->is_given_up ||
            (w->state == WORKER_LIVE && now_ms - w->last_seen_ms > lease_ms / 2))
            return false;
        *ret_n_live += w->state == WORKER_LIVE;
    }
    return *ret_n_live > 0;
}

static bool waits_for_pulls(const struct shard_report *report, const char *job)
{
    char who[sizeof report->waits->who];
    const int n = snprintf(who, sizeof who, "job %.28s, ", job);

    for (uint32_t i = 0; i < report->n_waits; i++)
        if (strncmp(report->waits[i].who, who, (size_t)n) == 0)
            return true;
    return false;
}

/* What holds a job up may be another node, of which this one hears nothing: but its workers, which are here, send no
 * steps. */
static void copy_still_jobs(const struct shard_stats_inputs *in, uint64_t now_ms,
                            struct shard_report *report) ON_SHARD
{
    struct membership *membership = shard_membership(in->shard);

    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        const struct job *job = membership_job(membership, i);
        struct shard_stats_steps *steps = &in->steps[i];
        struct stats_wait *wait = &report->waits[report->n_waits];
        uint32_t n_live;

        if (!is_heard(job, now_ms, in->lease_ms, &n_live) || waits_for_pulls(report, job->name))
            steps->unexplained_ms = now_ms;
        if (now_ms - steps->unexplained_ms < STILL_MS || report->n_waits == STATS_N_WAITS_MAX)
            continue;
        report->n_waits++;
        snprintf(wait->what, sizeof wait->what, "job stands still");
        snprintf(wait->who, sizeof wait->who, "job %.63s", job->name);
        snprintf(wait->why, sizeof wait->why,
                 "its %u worker%s heard, and no step has come: they wait for another node, "
                 "which psctl why and doctor name, or read data, or validate",
                 n_live, n_live == 1 ? " is" : "s are");
        wait->since_unix_ms = unix_ms(report, now_ms, steps->unexplained_ms);
    }
}

/* The log takes no event: because of its disk, or of the standby. */
static void copy_full_log(const struct shard_stats_inputs *in, struct shard_report *report)
    ON_SHARD
{
    struct stats_wait *wait = &report->waits[report->n_waits];

    if (!in->replies->is_full || report->n_waits == STATS_N_WAITS_MAX)
        return;
    report->n_waits++;
    snprintf(wait->what, sizeof wait->what, "write-ahead log full");
    snprintf(wait->who, sizeof wait->who, "pushes, joins and tables of shard %u",
             in->shard_number);
    if (report->log_line_error[0])
        snprintf(wait->why, sizeof wait->why, "it cannot be written: %.130s",
                 report->log_line_error);
    else if (report->log.is_full ||
             !fetch_handler_describe_full(dispatch_fetches(in->dispatch), wait))
        snprintf(wait->why, sizeof wait->why,
                 "the disk is slower than pushes: %llu bytes are not written",
                 (unsigned long long)report->log.held_bytes);
    wait->since_unix_ms = unix_ms(report, report->made_mono_ms, in->replies->full_since_ms);
}

/* Whose pushes a shard gets: the job's name if there is one alone. */
static void name_pushes(const struct shard_stats_inputs *in, struct stats_wait *wait) ON_SHARD
{
    struct membership *membership = shard_membership(in->shard);
    const struct job *live = NULL;
    uint32_t n_live = 0;

    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        const struct job *job = membership_job(membership, i);
        bool is_live = false;

        for (uint32_t rank = 0; rank < job->n_workers; rank++)
            is_live = is_live || (job->workers[rank].state == WORKER_LIVE &&
                                  !job->workers[rank].is_given_up);
        n_live += is_live;
        live = is_live ? job : live;
    }
    if (n_live == 1)
        snprintf(wait->who, sizeof wait->who, "job %.28s, pushes to shard %u", live->name,
                 in->shard_number);
    else if (n_live)
        snprintf(wait->who, sizeof wait->who, "pushes of %u jobs to shard %u", n_live,
                 in->shard_number);
    else
        snprintf(wait->who, sizeof wait->who, "pushes to shard %u", in->shard_number);
}

static void copy_slow_disk(const struct shard_stats_inputs *in, struct shard_report *report)
    ON_SHARD
{
    struct stats_wait *wait = &report->waits[report->n_waits];

    if (!in->log || report->n_waits == STATS_N_WAITS_MAX || !shard_wal_is_bound(in->log, wait))
        return;
    report->n_waits++;
    name_pushes(in, wait);
}

/* Replies that wait for the disk: who waits are workers, but what for is one thing. */
static void copy_queued_replies(const struct shard_stats_inputs *in,
                                struct shard_report *report)
{
    struct stats_wait *wait = &report->waits[report->n_waits];
    const struct reply_queue *replies = in->replies;

    if (!replies->n_waiting || report->n_waits == STATS_N_WAITS_MAX)
        return;
    report->n_waits++;
    snprintf(wait->what, sizeof wait->what, "acknowledgement");
    snprintf(wait->who, sizeof wait->who, "%llu repl%s of shard %u",
             (unsigned long long)replies->n_waiting, replies->n_waiting == 1 ? "y" : "ies",
             in->shard_number);
    snprintf(wait->why, sizeof wait->why, "%.159s",
             report->log_line_error[0] ? report->log_line_error
             : replies->by_standby < replies->by_log
                 ? "the standby, which is in sync, has not acknowledged the records yet"
                 : "the write-ahead log is being synced");
    wait->since_unix_ms = report->made_unix_ms - (uv_hrtime() - replies->since_ns) / 1000000;
}

/* Tables were refused a moment ago. */
static void copy_full_tables(const struct shard_stats_inputs *in, struct shard_report *report)
    ON_SHARD
{
    const struct table_handler_full *full = dispatch_full_tables(in->dispatch);
    uint64_t ago_ms = uv_now(in->loop) - full->refused_ms;
    struct stats_wait *wait = &report->waits[report->n_waits];

    if (!full->refused_ms || ago_ms > FULL_SHOWN_MS || report->n_waits == STATS_N_WAITS_MAX)
        return;
    report->n_waits++;
    snprintf(wait->what, sizeof wait->what, "table refused");
    snprintf(wait->who, sizeof wait->who, "new tables of shard %u", in->shard_number);
    snprintf(wait->why, sizeof wait->why,
             "it has %u, which is all of --tables-max; %.64s has %u of them: psctl drop",
             full->n_tables, full->job, full->n_most);
    wait->since_unix_ms = report->made_unix_ms - ago_ms;
    wait->until_unix_ms = wait->since_unix_ms + FULL_SHOWN_MS;
}

/* Many readers wait for each other, if training leaves them their share. */
static void copy_waiting_reads(const struct shard_stats_inputs *in, struct shard_report *report)
{
    struct stats_wait *wait = &report->waits[report->n_waits];
    const struct channel_loop_line *line = &in->connections->config.channels->low_line;
    uint64_t ms = line->first ? (uv_hrtime() - line->first->since_ns) / 1000000 : 0;

    if (ms < READ_WAIT_SHOWN_MS || report->n_waits == STATS_N_WAITS_MAX)
        return;
    report->n_waits++;
    snprintf(wait->what, sizeof wait->what, "reads");
    snprintf(wait->who, sizeof wait->who, "%zu readers' connections to shard %u", line->n,
             in->shard_number);
    snprintf(
        wait->why, sizeof wait->why,
        "shard %u is busy: readers have their share of its time, and send more requests than "
        "fit in it; more shards or fewer readers help",
        in->shard_number);
    wait->since_unix_ms = report->made_unix_ms - ms;
}

static void copy_waits(const struct shard_stats_inputs *in, uint64_t now_ms,
                       struct shard_report *report) ON_SHARD
{
    const struct pull_handler_times now = { uv_now(in->loop), now_ms, report->made_unix_ms,
                                            in->lease_ms };

    report->waits = memory_alloc((STATS_N_WAITS_MAX + 1) * sizeof *report->waits);
    report->n_waits = pull_handler_report(dispatch_pulls(in->dispatch), &now, report->waits,
                                          STATS_N_WAITS_MAX / 2);
    if (!in->follows) {
        copy_silent_workers(in, now_ms, report);
        copy_still_jobs(in, now_ms, report);
    }
    copy_full_log(in, report);
    copy_full_tables(in, report);
    copy_slow_disk(in, report);
    report->n_waits += unpack_queue_report(dispatch_bodies(in->dispatch), report->made_unix_ms,
                                           &report->waits[report->n_waits],
                                           STATS_N_WAITS_MAX - report->n_waits);
    copy_queued_replies(in, report);
    copy_waiting_reads(in, report);
}

static void copy_net(const struct shard_stats_inputs *in, struct stats_net *net) ON_SHARD
{
    struct connection_set_counts connections;
    struct dispatch_counts dispatch;

    connection_set_count(in->connections, &connections);
    dispatch_count(in->dispatch, &dispatch);
    *net = (struct stats_net){ .connections = connections.connections,
                               .connections_total = connections.connections_total,
                               .bytes_in = connections.bytes_in,
                               .bytes_out = connections.bytes_out,
                               .malformed_frames = connections.malformed,
                               .slow_peers = connections.slow,
                               .evicted_peers = connections.evicted,
                               .greedy_peers = connections.greedy,
                               .held_bytes = connections.held_bytes,
                               .refused_requests = dispatch.refused,
                               .parked_pulls = dispatch.pulls.parked,
                               .parked_pulls_total = dispatch.pulls.parked_total,
                               .expired_pulls = dispatch.pulls.expired,
                               .delta_bytes = dispatch.pulls.delta_bytes };
}

void shard_stats_minute_deinit(struct shard_stats_minute *m)
{
    for (uint32_t i = 0; i < SHARD_STATS_N_KEPT; i++)
        free(m->kept[i]);
}

/* The oldest goes, and how it is now is kept in its place. */
static void keep(struct shard_stats_minute *m, const struct stats_requests *requests,
                 uint64_t now_ms)
{
    struct histogram *kept = memory_alloc(FRAME_TYPE_END / 2 * sizeof *kept);

    for (size_t i = 1; i < FRAME_TYPE_END; i += 2)
        if (requests[i].n)
            histogram_merge(&kept[i / 2], &requests[i].latency_ns);
    free(m->kept[m->oldest]);
    m->kept[m->oldest] = kept;
    m->oldest = (m->oldest + 1) % SHARD_STATS_N_KEPT;
    m->kept_ms = now_ms;
}

static void copy_requests(const struct stats_requests *requests, struct shard_stats_minute *m,
                          struct shard_report *report)
{
    static const struct histogram none;
    const struct histogram *before = m->kept[m->oldest];

    for (size_t i = 1; i < FRAME_TYPE_END; i += 2) { /* a reply's type is even */
        struct stats_requests *r = &report->requests[i];

        r->n = requests[i].n;
        r->n_refused = requests[i].n_refused;
        if (!requests[i].n)
            continue;
        histogram_merge(&r->latency_ns, &requests[i].latency_ns);
        histogram_difference(&r->minute_ns, &r->latency_ns, before ? &before[i / 2] : &none);
    }
    if (report->made_mono_ms - m->kept_ms >= SHARD_STATS_KEPT_EVERY_MS)
        keep(m, requests, report->made_mono_ms);
}

struct shard_report *shard_stats_make(const struct shard_stats_inputs *in)
{
    struct shard_report *report = memory_alloc(sizeof *report);
    uint64_t now_ms = dispatch_now_ms(in->dispatch);

    report->made_unix_ms = clock_unix_ms();
    report->made_mono_ms = clock_mono_ms();
    report->shard = in->shard_number;
    report->cpu_us = cpu_us();
    report->bytes = shard_bytes(in->shard);
    report->memory_max_bytes = in->memory_max_bytes;
    report->version = shard_version(in->shard);
    report->counters = *shard_counters(in->shard);
    report->last_refusal = *shard_last_refusal(in->shard);
    if (in->log)
        shard_wal_report(in->log, &report->log, report->log_line_error);
    copy_net(in, &report->net);
    copy_requests(dispatch_requests(in->dispatch), in->minute, report);
    histogram_merge(&report->read_wait_ns, &in->connections->read_wait_ns);
    copy_tables(in->shard, report);
    pull_handler_count_waiting(dispatch_pulls(in->dispatch));
    copy_jobs(in, now_ms, report);
    copy_waits(in, now_ms, report);
    return report;
}
