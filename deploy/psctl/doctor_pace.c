/* Which worker of a job holds up the others, and what is known of the cause. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/number.h"
#include "deploy/psctl/cluster_report.h"
#include "deploy/psctl/doctor_findings.h"
#include "deploy/psctl/field.h"

#define SLOW_SHARE 0.5     /* clocks a second of a worker, against the others' */
#define SILENT_MS 3000     /* of a worker; one that trains sends more often */
#define BEAT_SLACK_MS 1000 /* of one that waits: it beats three times in a lease */
#define WAITED_SHARE 0.2   /* of the time between the reports, that pulls waited */
#define SNAPSHOTS_MIN 4 /* at a job's workers, so that one is slow and not only last just now */
#define LAST_SHARE 0.75 /* of the snapshots, at which it is clearly behind */

static const cJSON *worker_of(const cJSON *job, double rank)
{
    const cJSON *w;

    cJSON_ArrayForEach(w, field_child(job, "workers")) if (field_number(w, "rank") ==
                                                           rank) return w;
    return NULL;
}

/* --- snapshots: where a job's workers are at several moments --- */

static bool is_at_work(const cJSON *worker)
{
    const char *state = field_text(worker, "state");

    return strcmp(state, "live") == 0 || strcmp(state, "suspected") == 0;
}

/* At one moment: is no worker further behind than this one, and by how much is it behind the first? */
static bool is_last(const cJSON *job, double rank, double *ret_behind)
{
    const cJSON *own = worker_of(job, rank), *w;
    double clock = field_number(own, "clock");

    *ret_behind = 0;
    cJSON_ArrayForEach(w, field_child(job, "workers"))
    {
        double lead = field_number(w, "clock") - clock;

        if (!is_at_work(w))
            continue;
        if (lead < 0)
            return false;
        *ret_behind = lead > *ret_behind ? lead : *ret_behind;
    }
    return own != NULL;
}

/* Of equal workers each is last at times, and the others wait for it then. One that is slow is last at each moment, and
 * at most of them by half of what the bound allows, or by one clock. */
static bool is_last_all_along(const struct examination *e, const cJSON *job, const cJSON *old,
                              double rank)
{
    const double enough = field_number(job, "bound") > 2 ? field_number(job, "bound") / 2 : 1;
    uint32_t n = 1, n_behind = 0;
    const cJSON *snapshot;
    double behind;

    if (!is_last(job, rank, &behind) || (old && !is_last(old, rank, &(double){ 0 })))
        return false;
    n_behind += behind >= enough;
    cJSON_ArrayForEach(snapshot, field_child(e->after, "snapshots"))
    {
        const cJSON *then =
            field_find(field_child(snapshot, "jobs"), "name", field_text(job, "name"));

        if (!then)
            continue;
        if (!is_last(then, rank, &behind))
            return false;
        n++;
        n_behind += behind >= enough;
    }
    return n >= SNAPSHOTS_MIN && n_behind >= LAST_SHARE * n;
}

/* --- what is known of them --- */

/* What is known of a job's workers between the reports. */
struct pace {
    uint32_t n_live;
    double greatest;                  /* clock */
    const cJSON *slowest;             /* live, of the least clock */
    double its_clocks, others_clocks; /* each second: its own; mean of the other live ones */
};

static struct pace pace_of(const cJSON *job, const cJSON *old, double seconds)
{
    struct pace p = { 0 };
    double sum = 0;
    const cJSON *w;

    cJSON_ArrayForEach(w, field_child(job, "workers"))
    {
        double clock = field_number(w, "clock");

        if (!is_at_work(w))
            continue;
        p.n_live++;
        p.greatest = clock > p.greatest ? clock : p.greatest;
        sum += clock - field_number(worker_of(old, field_number(w, "rank")), "clock");
        if (!p.slowest || clock < field_number(p.slowest, "clock"))
            p.slowest = w;
    }
    if (!p.slowest || !old || seconds <= 0)
        return p;
    p.its_clocks = field_number(p.slowest, "clock") -
                   field_number(worker_of(old, field_number(p.slowest, "rank")), "clock");
    p.others_clocks = p.n_live > 1 ? (sum - p.its_clocks) / (p.n_live - 1) / seconds : 0;
    p.its_clocks /= seconds;
    return p;
}

/* So long a worker that only waits may be silent. */
static double quiet_ms(const struct examination *e)
{
    return fmax(SILENT_MS, e->lease_ms > 0 ? e->lease_ms / 3 + BEAT_SLACK_MS : 0);
}

/* Why a worker is behind. */
static void put_cause(const struct examination *e, const struct pace *p, char *dst,
                      size_t n_bytes)
{
    double silent = field_number(p->slowest, "silent_ms");
    char lasting[FIELD_CELL_MAX];

    if (silent > SILENT_MS && silent <= quiet_ms(e))
        snprintf(
            dst, n_bytes,
            "nothing was heard of it for %s: it reads its data, or computes, or its process "
            "is stopped",
            field_format_lasting(lasting, silent));
    else if (silent > SILENT_MS)
        snprintf(dst, n_bytes,
                 "nothing was heard of it for %s: its process is stopped or hangs, or its "
                 "network is cut",
                 field_format_lasting(lasting, silent));
    else if (p->its_clocks > 0)
        snprintf(dst, n_bytes,
                 "it is heard, and finishes %.1f clocks/s: it reads its data, or computes, "
                 "more slowly",
                 p->its_clocks);
    else
        snprintf(dst, n_bytes,
                 "it is heard, and has finished no clock in the last seconds: it reads "
                 "its data, or computes");
}

/* Are so few behind the first that lock step goes on without them? */
static bool are_backups(const cJSON *job, double greatest)
{
    const double n_backups = field_number(job, "n_backups");
    uint32_t n_behind = 0;
    const cJSON *w;

    cJSON_ArrayForEach(w, field_child(job, "workers")) n_behind +=
        is_at_work(w) && field_number(w, "clock") < greatest;
    return n_backups > 0 && n_behind <= n_backups;
}

void doctor_pace_examine(struct examination *e, const cJSON *job, const cJSON *old,
                         double seconds)
{
    struct pace p = pace_of(job, old, seconds);
    double bound = field_number(job, "bound"), behind, waited;
    bool is_async = strcmp(field_text(job, "mode"), "async") == 0,
         is_ssp = strcmp(field_text(job, "mode"), "ssp") == 0;
    char cause[300], who[FIELD_CELL_MAX + 40];
    bool is_silent, lasts;

    if (p.n_live < 2 || are_backups(job, p.greatest))
        return;
    behind = p.greatest - field_number(p.slowest, "clock");
    waited =
        old && seconds > 0
            ? (field_number(job, "parked_ms") - field_number(old, "parked_ms")) / 1000 / seconds
            : 0;
    is_silent = field_number(p.slowest, "silent_ms") > quiet_ms(e);
    lasts = is_last_all_along(e, job, old, field_number(p.slowest, "rank"));
    put_cause(e, &p, cause, sizeof cause);
    snprintf(who, sizeof who, "worker %.0f (%.60s)", field_number(p.slowest, "rank"),
             field_text(p.slowest, "name"));
    if (!is_async && behind > 0 && (is_silent || (waited > WAITED_SHARE && lasts)))
        doctor_say(e, WARNING, NO_NODE,
                   "job %s: %s is slow, %.0f clock%s behind, and the others' pulls waited "
                   "%.0f %% of the time; %s",
                   field_text(job, "name"), who, behind, NUMBER_PLURAL(behind),
                   waited > 1 ? 100 : waited * 100, cause);
    else if (is_async && (is_silent || (p.its_clocks < SLOW_SHARE * p.others_clocks && lasts)))
        doctor_say(
            e, WARNING, NO_NODE,
            "job %s: %s is slow, %.0f clock%s behind, the others finish %.1f clocks/s; %s",
            field_text(job, "name"), who, behind, NUMBER_PLURAL(behind), p.others_clocks,
            cause);
    if (is_ssp && bound > 0 && waited > WAITED_SHARE &&
        field_number(job, "staleness_p99") >= bound)
        doctor_say(e, NOTE, NO_NODE,
                   "job %s: staleness is pinned at its bound of %.0f: 99 %% of the pulls reach "
                   "it (--staleness)",
                   field_text(job, "name"), bound);
}

void doctor_pace_snapshot(const struct cluster_query *q, cJSON *snapshots)
{
    cJSON *answers = doctor_ask_answering(q, "workers");

    cJSON_AddItemToArray(snapshots, cluster_report_merge(answers));
    cJSON_Delete(answers);
}
