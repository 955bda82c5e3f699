#include "deploy/psctl/doctor.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"
#include "common/status.h"
#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/cluster_rates.h"
#include "deploy/psctl/cluster_report.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/disk_forecast.h"
#include "deploy/psctl/doctor_findings.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/fold.h"
#include "deploy/psctl/terminal.h"

/* From where on something is worth a sentence. */
#define OLD_REPORT_MS 3000 /* a shard's; it makes about one a second */
#define DISK_FULL_S 86400  /* the disk is full in less, at its rate */
#define DISK_SOON_S 3600   /* in less, and it is a problem */
#define DISK_LOW 0.05      /* share of the disk that is free */
#define FILL_TIMES \
    60 /* a rate foretells no more than so many times what it was measured over */
#define DISK_WORTH 0.01 /* archived files are named from this share of a disk on */
#define DISK_FULL_BYTES 1e6
#define FILL_OVER_MIN_MS 10000 /* a rate that was measured over less says little */
#define FILL_OVER_SURE_MS 300000
#define MEMORY_HIGH 0.9       /* share of the budget */
#define HOT_TIMES 2.0         /* rows a second of a shard, against the others' mean */
#define HOT_ROWS_PER_S 1000.0 /* and at least so many */
#define BUSY_CPU 0.9          /* share of a core */
#define WAIT_MIN_MS 2000      /* a wait that is younger is none */
#define WAITED_MIN_S 0.1      /* of pushes; a burst waits less */
#define CHECKPOINT_TIMES 3    /* older than so many intervals */
#define CHECKPOINT_SLACK_MS 60000
#define CHECKPOINT_AGE_MS 86400000.0 /* without an interval */
#define CLOCKS_APART_MS 5000
#define CERTIFICATE_SOON_DAYS 14

#define N_SNAPSHOTS 7   /* at the workers, between the two reports */
#define TIMEOUT_MS 3000 /* twice, and --every: within 10 s */

PRINTF_LIKE(4, 5)
static void say(struct examination *e, enum severity severity, double node, const char *fmt,
                ...)
{
    va_list args;

    va_start(args, fmt);
    doctor_findings_add(e, severity, node, fmt, args);
    va_end(args);
}

/* By how much a number of a group has grown since the earlier report. */
static double grown(const cJSON *before, const cJSON *after, const char *group,
                    const char *name)
{
    return before ? field_number(field_child(after, group), name) -
                        field_number(field_child(before, group), name)
                  : 0;
}

/* --- a node --- */

/* It serves nobody for the other member's sake, which examine_replication() says. */
static bool is_in_replication(const cJSON *node)
{
    const cJSON *r = field_child(node, "replication");

    return strcmp(field_text(r, "role"), "standby") == 0 ||
           strcmp(field_text(r, "state"), "awaits its standby") == 0;
}

static void examine_standby(struct examination *e, const cJSON *node, const cJSON *r, double n)
{
    const char *state = field_text(r, "state"), *primary = field_text(r, "peer");
    double lag = field_number(r, "standby_lag_records");
    const bool advises = strstr(field_text(node, "health"), "psctl promote") != NULL;

    if (field_text(r, "refused")[0])
        say(e, PROBLEM, n,
            "it is a standby, and its primary %s, which lives, refuses it: %s. It asks again "
            "every 2 s%s",
            primary, field_text(r, "refused"),
            strstr(field_text(r, "refused"), "psctl promote")
                ? ""
                : "; mend that, and do not promote it");
    else if (strcmp(state, "not following") == 0 || strcmp(state, "spare") == 0 ||
             strcmp(state, "stopped") == 0) /* "spare": of an older psd */
        say(e, PROBLEM, n, "it is a standby and does not follow its primary %s: %s%s%s",
            primary, field_text(node, "health"),
            advises ? ""
            : field_is_true(r, "promote_loses")
                ? "; if that one is dead, psctl promote --accept-loss makes this one the "
                  "primary"
                : "; if that one is dead, psctl promote makes this one the primary",
            field_is_true(r, "unheard") ? " (it has not followed since its own start, so it "
                                          "does not know whether it has all)"
                                        : "");
    else if (strcmp(state, "following") == 0)
        say(e, WARNING, n,
            "it is a standby and not in sync with its primary %s: %.0f record%s behind (with "
            "--standby-ack no there it never is in sync)",
            primary, lag, NUMBER_PLURAL(lag));
    else if (!field_is_true(r, "in_sync"))
        say(e, NOTE, n, "it is a standby of %s, and not in sync yet: %s", primary, state);
    else if (!field_is_true(node, "healthy"))
        say(e, PROBLEM, n, "it is a standby, and not healthy: %s", field_text(node, "health"));
}

/* Do the two have the same rows? */
static void examine_audit(struct examination *e, const cJSON *r, double n)
{
    if (field_text(r, "note")[0])
        say(e, NOTE, n, "%s", field_text(r, "note"));
    if (field_number(r, "differences") > 0)
        say(e, WARNING, n,
            "its standby %s has found rows that differ, and copied anew, %.0f time%s: see the "
            "logs of both, and check their memory and processors",
            field_text(r, "peer"), field_number(r, "differences"),
            NUMBER_PLURAL(field_number(r, "differences")));
}

/* ", gone for 12 s"; "" where that is not known. */
static const char *describe_gone(const cJSON *node, const cJSON *r, char *dst, size_t dst_bytes)
{
    const double since_ms = field_number(r, "gone_unix_ms");
    char cell[FIELD_CELL_MAX];

    dst[0] = '\0';
    if (since_ms > 0)
        snprintf(dst, dst_bytes, ", gone for %s",
                 field_format_lasting(cell, field_number(node, "now_unix_ms") - since_ms));
    return dst;
}

/* Of a node that has, or had, another member. */
static void examine_replication(struct examination *e, const cJSON *node, double n)
{
    const cJSON *r = field_child(node, "replication");
    const char *state = field_text(r, "state"), *peer = field_text(r, "peer");
    double lag = field_number(r, "standby_lag_records");
    char gone[80];

    examine_audit(e, r, n);
    if (strcmp(field_text(r, "role"), "standby") == 0) {
        examine_standby(e, node, r, n);
        return;
    }
    if (field_text(r, "refused")[0]) {
        say(e, PROBLEM, n, "%s", field_text(r, "refused"));
        if (strcmp(state, "awaits its standby") != 0 && field_number(r, "gone_unix_ms") <= 0)
            return;
    }
    if (!r || !peer[0] || field_is_true(r, "in_sync"))
        return;
    if (strcmp(state, "awaits its standby") == 0)
        say(e, PROBLEM, n,
            "it waits for its standby %s, and refuses workers (%s): start that one; if it is "
            "lost for good, psctl promote --accept-loss here",
            peer, field_text(node, "health"));
    else if (strcmp(state, "no standby") == 0)
        say(e, WARNING, n,
            "its standby %s is missing%s: a failure of this node stops its jobs, and its disk "
            "alone has their pushes; start psd --standby there",
            peer, describe_gone(node, r, gone, sizeof gone));
    else if (field_child(r, "missing") && !field_is_true(r, "missing"))
        say(e, NOTE, n,
            "its standby %s follows, and is never in sync, with --standby-ack no: psctl "
            "promote "
            "then takes --accept-loss",
            peer);
    else if (strcmp(state, "standby copies") == 0)
        say(e, NOTE, n, "its standby %s copies, and is not in sync yet", peer);
    else
        say(e, WARNING, n,
            "its standby %s is not in sync (%s), %.0f record%s behind: a failure of this node "
            "may lose pushes",
            peer, state, lag, NUMBER_PLURAL(lag));
}

static void examine_coordination(struct examination *e, const cJSON *node, double n)
{
    const cJSON *c = field_child(node, "coordination");
    const char *error = field_text(c, "error");
    /* One that waits for it at its start: which is a sentence of the node's health. */
    const bool is_said = !field_is_true(node, "healthy") && error[0] &&
                         strstr(field_text(node, "health"), error);

    if (field_is_true(c, "away") && !is_said)
        say(e, WARNING, n,
            "the coordination service %s does not answer, and no standby takes over: %s",
            field_text(c, "service"), error);
}

static void examine_certificate(struct examination *e, const cJSON *tls, const char *days,
                                const char *which, double n)
{
    const double left = field_number(tls, days);
    char text[FIELD_CELL_MAX];

    if (!field_child(tls, days) || left >= CERTIFICATE_SOON_DAYS)
        return;
    field_format_lasting(text, fabs(left) * 86400e3);
    if (left <= 0)
        say(e, PROBLEM, n,
            "%s has expired %s ago: no new connection to it comes about; renew it, and reload "
            "psd",
            which, text);
    else
        say(e, WARNING, n, "%s expires in %s: renew it, and reload psd", which, text);
}

static void examine_tls(struct examination *e, const cJSON *node, double n)
{
    const cJSON *tls = field_child(node, "tls");

    if (!tls)
        return;
    examine_certificate(e, tls, "certificate_days", "its certificate (tls-cert)", n);
    examine_certificate(e, tls, "ca_days", "its CA's certificate (tls-ca)", n);
    if (field_text(tls, "certificate_fault")[0])
        say(e, WARNING, n, "its certificate (tls-cert) %s",
            field_text(tls, "certificate_fault"));
}

static void examine_state(struct examination *e, const cJSON *node, double n)
{
    if (field_child(node, "restoring"))
        say(e, NOTE, n, "it is not ready yet, it is %s",
            field_text(field_child(node, "restoring"), "text"));
    else if (field_is_true(node, "stopping"))
        say(e, WARNING, n, "it is stopping");
    else if (!field_is_true(node, "ready") && !is_in_replication(node))
        say(e, WARNING, n, "it is not ready yet");
    if (!field_is_true(node, "healthy") && !is_in_replication(node))
        say(e, PROBLEM, n, "it is not healthy: %s", field_text(node, "health"));
    if (field_child(node, "huge_pages") && !field_is_true(node, "huge_pages"))
        say(e, WARNING, n,
            "huge pages are off, so each row costs a TLB miss: write madvise to "
            "/sys/kernel/mm/transparent_hugepage/enabled");
    if (strcmp(field_text(node, "durability"), "off") == 0)
        say(e, NOTE, n, "it keeps nothing on disk: a restart loses all rows (--data-dir)");
}

/* What makes space: of those who take it. */
static const char *disk_advice(const struct disk_forecast *f, const cJSON *disk, char *dst,
                               size_t n_bytes)
{
    double archived = field_number(disk, "aside_bytes");
    char bytes[FIELD_CELL_MAX];

    if (archived > DISK_WORTH * field_number(disk, "size_bytes"))
        snprintf(dst, n_bytes, "psctl prune removes %s that no start needs",
                 field_format_bytes(bytes, archived));
    else if (f->own_rate <= 0 && f->others_rate <= 0)
        snprintf(dst, n_bytes, "psd's files take %s of it",
                 field_format_bytes(bytes, field_number(disk, "log_bytes") +
                                               field_number(disk, "checkpoint_bytes")));
    else if (f->own_rate <= f->others_rate)
        snprintf(dst, n_bytes, "it is not psd's files that grow");
    else if (isinf(f->may_grow))
        snprintf(dst, n_bytes, "--log-max and --keep bound what psd keeps");
    else
        snprintf(dst, n_bytes,
                 "psd's files may grow by %s yet: a smaller --log-max or --keep bounds them",
                 field_format_bytes(bytes, f->may_grow));
    return dst;
}

static void examine_disk_space(struct examination *e, const cJSON *node, const cJSON *disk,
                               double n)
{
    const struct disk_forecast f = disk_forecast_of(e->before, e->after, node);
    double size = field_number(disk, "size_bytes"), over = field_number(disk, "fill_over_ms");
    bool is_low = size > 0 && f.free < DISK_LOW * size;
    char left[FIELD_CELL_MAX], lasting[FIELD_CELL_MAX], speed[FIELD_CELL_MAX],
        measured[FIELD_CELL_MAX], advice[160];

    if (size > 0 && f.free < DISK_FULL_BYTES) {
        say(e, PROBLEM, n,
            "its disk is full: of %s the write-ahead logs take %s, the checkpoints %s: make "
            "space on it, then psctl checkpoint, which shortens the logs",
            field_format_bytes(left, size),
            field_format_bytes(speed, field_number(disk, "log_bytes")),
            field_format_bytes(measured, field_number(disk, "checkpoint_bytes")));
        return;
    }
    field_format_bytes(left, f.free);
    disk_advice(&f, disk, advice, sizeof advice);
    if (over >= FILL_OVER_MIN_MS && f.full_s < DISK_FULL_S &&
        f.full_s * 1000 < FILL_TIMES * over)
        say(e,
            f.full_s < DISK_SOON_S && (is_low || over >= FILL_OVER_SURE_MS) ? PROBLEM : WARNING,
            n, "its disk is full in %s at the rate of the last %s: %s/s, %s are free; %s",
            field_format_lasting(lasting, f.full_s * 1000),
            field_format_lasting(measured, over),
            field_format_bytes(speed, f.own_rate + f.others_rate), left, advice);
    else if (is_low)
        say(e, WARNING, n, "its disk is nearly full: %s are free of %s; %s", left,
            field_format_bytes(speed, size), advice);
}

static void examine_disk(struct examination *e, const cJSON *node, double n)
{
    const cJSON *disk = field_child(node, "disk");

    if (!disk)
        return;
    examine_disk_space(e, node, disk, n);
    if (field_number(disk, "damaged_files") > 0)
        say(e, PROBLEM, n,
            "damaged files on its disk: %.0f: %s; a checkpoint now replaces them, "
            "psctl verify names all",
            field_number(disk, "damaged_files"), field_text(disk, "damage"));
}

static void examine_checkpoints(struct examination *e, const cJSON *node, double n)
{
    const cJSON *c = field_child(node, "checkpoints");
    double now = field_number(node, "now_unix_ms"), last = field_number(c, "last_unix_ms"),
           every = field_number(c, "every_ms"),
           age = now - (last > 0 ? last : field_number(node, "started_unix_ms")),
           limit =
               every > 0 ? CHECKPOINT_TIMES * every + CHECKPOINT_SLACK_MS : CHECKPOINT_AGE_MS;
    char old[FIELD_CELL_MAX], interval[FIELD_CELL_MAX], bytes[FIELD_CELL_MAX];

    if (strcmp(field_text(node, "durability"), "off") == 0 || field_child(node, "restoring"))
        return;
    if (field_text(c, "last_error")[0])
        say(e, PROBLEM, n, "its last checkpoint failed: %s", field_text(c, "last_error"));
    if (age < limit || field_child(c, "under_way") ||
        field_number(field_child(node, "totals"), "rows") == 0)
        return;
    field_format_bytes(bytes, field_number(field_child(node, "disk"), "log_bytes"));
    field_format_lasting(old, age);
    if (every > 0)
        say(e, WARNING, n,
            "its checkpoint is too old: %s%s, and one is due every %s; a start replays "
            "%s of write-ahead log",
            last > 0 ? "" : "none for ", old, field_format_lasting(interval, every), bytes);
    else
        say(e, WARNING, n,
            "its checkpoint is too old: %s%s, and --checkpoint-every is 0; a start "
            "replays %s of write-ahead log (psctl checkpoint)",
            last > 0 ? "" : "none for ", old, bytes);
}

static void examine_memory(struct examination *e, const cJSON *node, double n)
{
    const cJSON *totals = field_child(node, "totals"),
                *old = field_child(cluster_rates_node_before(e->before, node), "totals");
    double bytes = field_number(totals, "bytes"), max = field_number(node, "memory_max_bytes"),
           refused = grown(old, totals, "counters", "rows_refused");
    char held[FIELD_CELL_MAX], limit[FIELD_CELL_MAX];

    if (refused > 0)
        say(e, PROBLEM, n,
            "its memory is full: new rows that were refused in the last seconds: %.0f "
            "(--memory-max, --table-full)",
            refused);
    else if (max > 0 && bytes > MEMORY_HIGH * max)
        say(e, WARNING, n, "its memory is nearly full: rows take %s of %s (--memory-max)",
            field_format_bytes(held, bytes), field_format_bytes(limit, max));
}

/* What peers do wrong, as far as it has happened between the reports. */
static void examine_peers(struct examination *e, const cJSON *node, double n)
{
    const cJSON *totals = field_child(node, "totals"),
                *old = field_child(cluster_rates_node_before(e->before, node), "totals"),
                *refusal = field_child(totals, "last_refusal");
    double nans = grown(old, totals, "counters", "nan_pushes"),
           malformed = grown(old, totals, "net", "malformed_frames"),
           greedy = grown(old, totals, "net", "greedy_peers");

    if (nans > 0)
        say(e, PROBLEM, n,
            "pushes with NaN that were refused in the last seconds: %.0f; table %s, worker %s: "
            "%s",
            nans, field_text(refusal, "table"), field_text(refusal, "worker"),
            field_text(refusal, "text"));
    if (malformed > 0)
        say(e, WARNING, n, "broken messages in the last seconds: %.0f; its log names the peers",
            malformed);
    if (greedy > 0)
        say(e, WARNING, n,
            "connections that were closed in the last seconds because they held most of "
            "--client-memory: %.0f",
            greedy);
}

/* --- shards --- */

/* `waited`: seconds, of all pushes. */
static void say_slow_disk(struct examination *e, const cJSON *node, const cJSON *shard,
                          double n, double waited)
{
    const cJSON *log = field_child(shard, "log");
    double needed = field_number(log, "needed_bytes_per_s"),
           waiting = field_number(log, "pushes_waiting");
    char speed[FIELD_CELL_MAX], need[FIELD_CELL_MAX + 24] = "", waits[80] = "",
                                                      text[FIELD_CELL_MAX];

    if (needed > 0)
        snprintf(need, sizeof need, ", about %s/s are needed",
                 field_format_bytes(text, needed));
    if (waited >= WAITED_MIN_S)
        snprintf(waits, sizeof waits, "; pushes waited %.1f s in the last %.1f s", waited,
                 cluster_rates_seconds(e->before, node));
    else if (waiting > 0)
        snprintf(waits, sizeof waits, "; pushes that wait now: %.0f", waiting);
    say(e, WARNING, n, "the disk of shard %.0f is slower than its pushes: it takes %s/s%s%s",
        field_number(shard, "shard"),
        field_format_bytes(speed, field_number(log, "disk_bytes_per_s")), need, waits);
}

static void examine_log(struct examination *e, const cJSON *node, const cJSON *shard, double n)
{
    const cJSON *log = field_child(shard, "log"),
                *old = cluster_rates_shard_before(e->before, node, shard);
    double number = field_number(shard, "shard"),
           waited = grown(old, shard, "log", "push_wait_us") / 1e6;

    if (field_is_true(log, "failed"))
        say(e, PROBLEM, n, "the write-ahead log of shard %.0f cannot be written: %s", number,
            field_text(log, "error"));
    else if (field_is_true(log, "full") || waited >= WAITED_MIN_S)
        say_slow_disk(e, node, shard, n, waited);
    if (field_is_true(log, "gap"))
        say(e, PROBLEM, n,
            "the write-ahead log of shard %.0f has a gap: records lost on a "
            "failing disk: %.0f; until the next checkpoint a restart loses what came after it",
            number, field_number(log, "dropped"));
}

static void examine_shard(struct examination *e, const cJSON *node, const cJSON *shard,
                          double n)
{
    struct cluster_rates r = cluster_rates_of(e->before, node, shard);
    double number = field_number(shard, "shard"), age = field_number(shard, "report_age_ms");
    char lasting[FIELD_CELL_MAX];

    if (field_is_true(shard, "reported") && age > OLD_REPORT_MS)
        say(e, PROBLEM, n, "shard %.0f has not reported for %s: it is stuck", number,
            field_format_lasting(lasting, age));
    if (r.cpu > BUSY_CPU)
        say(e, WARNING, n,
            "shard %.0f is busy for %.0f %% of the time: more shards, or fewer rows a "
            "step, make training faster",
            number, r.cpu > 1 ? 100 : r.cpu * 100);
    examine_log(e, node, shard, n);
}

/* The table of which a shard has handled most rows between the reports, and its share. */
static const char *busiest_table(const struct examination *e, const cJSON *node,
                                 const cJSON *shard, double *ret_share)
{
    const cJSON *old =
                    field_child(cluster_rates_shard_before(e->before, node, shard), "tables"),
                *table;
    const char *name = "";
    double most = 0, all = 0;

    cJSON_ArrayForEach(table, field_child(shard, "tables"))
    {
        const cJSON *was = field_find(old, "name", field_text(table, "name"));
        double n = field_number(table, "rows_pulled") + field_number(table, "rows_pushed") -
                   field_number(was, "rows_pulled") - field_number(was, "rows_pushed");

        all += n;
        if (n > most) {
            most = n;
            name = field_text(table, "name");
        }
    }
    *ret_share = all > 0 ? most / all : 0;
    return name;
}

static void examine_load(struct examination *e)
{
    const cJSON *node, *shard, *hot_node = NULL, *hot = NULL;
    double sum = 0, most = 0, mean, share;
    uint32_t n = 0;
    char rate[FIELD_CELL_MAX], others[FIELD_CELL_MAX];
    const char *table;

    cJSON_ArrayForEach(node, field_child(e->after, "nodes"))
    {
        cJSON_ArrayForEach(shard, field_child(node, "shards"))
        {
            struct cluster_rates r = cluster_rates_of(e->before, node, shard);

            n += r.seconds > 0;
            sum += r.rows;
            if (r.rows > most) {
                most = r.rows;
                hot = shard;
                hot_node = node;
            }
        }
    }
    mean = n > 1 ? (sum - most) / (n - 1) : 0;
    if (n < 2 || most < HOT_ROWS_PER_S || most < HOT_TIMES * mean)
        return;
    table = busiest_table(e, hot_node, hot, &share);
    say(e, WARNING, field_number(hot_node, "node"),
        "shard %.0f is hot: %s rows/s, the others %s on average; table %s is %.0f %% of it: a "
        "few of "
        "its keys are in most steps, and a worker's row cache keeps their reads away",
        field_number(hot, "shard"), field_format_short(rate, most),
        field_format_short(others, mean), table, share * 100);
}

/* Of a node, or of a server that was asked for the nodes. A certificate that has expired is never seen from inside. */
static void say_silence(struct examination *e, double node, const char *error)
{
    if (strstr(error, status_text(PS_ETLSEXPIRED)))
        say(e, PROBLEM, node,
            "its certificate (tls-cert) is refused: %s: renew it, and reload psd", error);
    else if (node == NO_NODE)
        say(e, PROBLEM, node, "%s", error);
    else
        say(e, PROBLEM, node, "it does not answer: %s; jobs that need its rows wait for it",
            error);
}

static void examine_node(struct examination *e, const cJSON *node)
{
    double n = field_number(node, "node");
    const cJSON *shard;

    if (field_child(node, "error")) {
        say_silence(e, n, field_text(node, "error"));
        return;
    }
    e->lease_ms = fmax(e->lease_ms, field_number(node, "lease_ms"));
    examine_state(e, node, n);
    examine_disk(e, node, n);
    examine_checkpoints(e, node, n);
    examine_memory(e, node, n);
    examine_peers(e, node, n);
    examine_replication(e, node, n);
    examine_coordination(e, node, n);
    examine_tls(e, node, n);
    cJSON_ArrayForEach(shard, field_child(node, "shards")) examine_shard(e, node, shard, n);
}

/* --- jobs --- */

/* Of a list of the first node that has answered and has it, in the earlier reports. */
static const cJSON *job_before(const cJSON *merged, const cJSON *job)
{
    return field_find(field_child(merged, "jobs"), "name", field_text(job, "name"));
}

static bool is_state(const cJSON *worker, const char *state)
{
    return strcmp(field_text(worker, "state"), state) == 0;
}

static void examine_workers(struct examination *e, const cJSON *job)
{
    const cJSON *w;

    cJSON_ArrayForEach(w, field_child(job, "workers"))
    {
        double rank = field_number(w, "rank");

        if (is_state(w, "dead"))
            say(e, PROBLEM, NO_NODE,
                "job %s: worker %.0f (%s) is dead at clock %.0f; start it again "
                "with the same options, and it goes on",
                field_text(job, "name"), rank, field_text(w, "name"), field_number(w, "clock"));
        else if (is_state(w, "lost"))
            say(e, PROBLEM, NO_NODE, "job %s: worker %.0f never came (--join-timeout)",
                field_text(job, "name"), rank);
    }
}

static void examine_job(struct examination *e, const cJSON *job, const cJSON *merged_before,
                        double seconds)
{
    const cJSON *old = job_before(merged_before, job);
    double violations = field_number(job, "staleness_violations"),
           lost = field_number(job, "lost_pushes"), was_lost = field_number(old, "lost_pushes");

    examine_workers(e, job);
    doctor_pace_examine(e, job, old, seconds);
    if (violations > 0)
        say(e, PROBLEM, NO_NODE,
            "job %s: pulls that were answered beyond the bound: %.0f: a fault of psd",
            field_text(job, "name"), violations);
    if (lost > 0)
        say(e, old && lost > was_lost ? PROBLEM : NOTE, NO_NODE,
            "job %s: pushes that were acknowledged and are lost since a restart: %.0f "
            "(--durability)",
            field_text(job, "name"), lost);
}

static double longest_seconds(const struct examination *e)
{
    const cJSON *node;
    double most = 0, s;

    cJSON_ArrayForEach(node, field_child(e->after, "nodes"))
    {
        s = cluster_rates_seconds(e->before, node);
        most = s > most ? s : most;
    }
    return most;
}

static void examine_jobs(struct examination *e)
{
    cJSON *before = cluster_report_merge(e->before);
    double seconds = longest_seconds(e);
    const cJSON *job;

    cJSON_ArrayForEach(job, field_child(e->merged, "jobs"))
        examine_job(e, job, before, seconds);
    cJSON_Delete(before);
}

/* --- waits --- */

/* What has its own sentence above, or is no fault. */
static bool has_own_sentence(const char *what)
{
    static const char *const named[] = { "parked pull",
                                         "checkpoint",
                                         "acknowledgement",
                                         "restore",
                                         "worker silent",
                                         "write-ahead log full",
                                         "write-ahead log's disk",
                                         "greeting",
                                         "standby",
                                         "job stands still",
                                         "coordination" };

    for (size_t i = 0; i < COUNT_OF(named); i++)
        if (strcmp(named[i], what) == 0)
            return true;
    return false;
}

static bool stood_before(const cJSON *waits, const cJSON *wait)
{
    const cJSON *w;

    cJSON_ArrayForEach(w, waits)
    {
        if (w == wait)
            return false;
        if (strcmp(field_text(w, "what"), field_text(wait, "what")) == 0 &&
            strcmp(field_text(w, "who"), field_text(wait, "who")) == 0)
            return true;
    }
    return false;
}

static void examine_waits(struct examination *e)
{
    const cJSON *waits = field_child(e->merged, "waits"), *w;
    char lasting[FIELD_CELL_MAX];

    cJSON_ArrayForEach(w, waits)
    {
        double ms = field_number(e->merged, "now_unix_ms") - field_number(w, "since_unix_ms");

        if (has_own_sentence(field_text(w, "what")) || stood_before(waits, w) ||
            ms < WAIT_MIN_MS)
            continue;
        say(e, WARNING, NO_NODE, "%s, for %s: %s; %s", field_text(w, "what"),
            field_format_lasting(lasting, ms), field_text(w, "who"), field_text(w, "why"));
    }
}

/* --- the cluster --- */

static void examine_cluster(struct examination *e)
{
    const cJSON *node, *first = NULL;

    cJSON_ArrayForEach(node, field_child(e->after, "nodes"))
    {
        double apart, n = field_number(node, "node");

        if (field_child(node, "error"))
            continue;
        if (!first) {
            first = node;
            continue;
        }
        apart = field_number(node, "now_unix_ms") - field_number(first, "now_unix_ms");
        if (apart > CLOCKS_APART_MS || apart < -CLOCKS_APART_MS)
            say(e, WARNING, n,
                "its clock is %.0f s %s that of node %.0f: logs are hard to compare (NTP)",
                (apart > 0 ? apart : -apart) / 1000, apart > 0 ? "before" : "behind",
                field_number(first, "node"));
        if (strcmp(field_text(node, "version"), field_text(first, "version")) != 0)
            say(e, NOTE, n, "it runs version %s, node %.0f version %s",
                field_text(node, "version"), field_number(first, "node"),
                field_text(first, "version"));
    }
}

static void begin_findings(struct examination *e)
{
    for (int i = 0; i < N_SEVERITIES; i++)
        e->findings[i] = cJSON_CreateArray();
}

/* Problems first. */
static cJSON *take_findings(struct examination *e)
{
    cJSON *all = cJSON_CreateArray(), *item;

    for (int i = 0; i < N_SEVERITIES; i++) {
        while ((item = cJSON_DetachItemFromArray(e->findings[i], 0)) != NULL)
            cJSON_AddItemToArray(all, item);
        cJSON_Delete(e->findings[i]);
    }
    return all;
}

cJSON *doctor_examine(const cJSON *before, const cJSON *after)
{
    struct examination e = { .before = before, .after = after };
    const cJSON *node;

    e.merged = cluster_report_merge(after);
    begin_findings(&e);
    cJSON_ArrayForEach(node, field_child(after, "nodes")) examine_node(&e, node);
    examine_cluster(&e);
    doctor_settings_examine(&e);
    examine_load(&e);
    examine_jobs(&e);
    examine_waits(&e);
    cJSON_Delete(e.merged);
    return take_findings(&e);
}

/* --- the command --- */

static enum terminal_style style_of(const char *severity)
{
    return strcmp(severity, "problem") == 0   ? TERMINAL_RED
           : strcmp(severity, "warning") == 0 ? TERMINAL_YELLOW
                                              : TERMINAL_DIM;
}

static void print_findings(const struct options *o, const cJSON *findings)
{
    struct terminal terminal = terminal_of(stdout, o->output == OPTIONS_WIDE);
    struct fold fold;
    FILE *out = fold_open(&fold);
    const cJSON *f;

    cJSON_ArrayForEach(f, findings)
    {
        enum terminal_style style = style_of(field_text(f, "severity"));

        fputs(terminal_begin(&terminal, style), out);
        fputs(field_text(f, "severity"), out);
        fputs(terminal_end(&terminal, style), out);
        fputs(": ", out);
        if (field_child(f, "node"))
            fprintf(out, "node %.0f: ", field_number(f, "node"));
        field_put(out, "", field_text(f, "text"), "\n");
    }
    fold_close(&fold, &terminal, stdout);
}

static bool has_problem(const cJSON *findings)
{
    return field_find(findings, "severity", "problem") != NULL;
}

static void print_all_well(const cJSON *after)
{
    int n_nodes = cJSON_GetArraySize(field_child(after, "nodes")), n_shards = 0;
    const cJSON *node;

    cJSON_ArrayForEach(node, field_child(after, "nodes")) n_shards +=
        cJSON_GetArraySize(field_child(node, "shards"));
    printf("nothing is wrong: %d node%s, %d shard%s\n", n_nodes, NUMBER_PLURAL(n_nodes),
           n_shards, NUMBER_PLURAL(n_shards));
}

/* after: NULL: no node has answered. */
static int print(const struct options *o, cJSON *findings, const cJSON *after)
{
    cJSON *root;
    int code = has_problem(findings) ? EXIT_FAILED : EXIT_ANSWERED;

    if (o->json) {
        root = cJSON_CreateObject();
        cJSON_AddItemToObject(root, "findings", findings);
        data_dir_print_json(root);
        return code;
    }
    print_findings(o, findings);
    if (!field_find(findings, "severity", "problem") &&
        !field_find(findings, "severity", "warning"))
        print_all_well(after);
    cJSON_Delete(findings);
    return code;
}

static int ask_twice(const struct options *o, struct cluster_query *q)
{
    cJSON *before = cluster_rates_ask(q), *snapshots = cJSON_CreateArray(), *after;
    int code;

    for (int i = 0; i < N_SNAPSHOTS; i++) {
        cluster_rates_wait(o->every_ms / (N_SNAPSHOTS + 1));
        doctor_pace_snapshot(q, snapshots);
    }
    cluster_rates_wait(o->every_ms / (N_SNAPSHOTS + 1));
    after = cluster_rates_ask(q);
    cJSON_AddItemToObject(after, "snapshots", snapshots);
    doctor_settings_ask(q, after);
    code = print(o, doctor_examine(before, after), after);
    cJSON_Delete(before);
    cJSON_Delete(after);
    return code;
}

static void on_silent_server(void *arg, const char *server, const struct err *err)
{
    char text[sizeof err->text + 128];

    (void)server;
    snprintf(text, sizeof text, "%s%s", err->text, cluster_query_hint(err->status));
    say_silence(arg, NO_NODE, text);
}

int doctor_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct options hasty = *o;
    struct examination silent = { 0 };
    struct cluster_query q;
    int code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    hasty.timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
    begin_findings(&silent);
    if (!cluster_query_choose(&hasty, on_silent_server, &silent))
        return print(o, take_findings(&silent), NULL);
    cJSON_Delete(take_findings(&silent));
    if (cluster_query_open(&q, &hasty))
        code = ask_twice(o, &q);
    cluster_query_close(&q);
    return code;
}
