/* Each fault in two reports of a cluster, and the sentence that names it; without one there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/doctor.h"
#include "deploy/psctl/field.h"

/* A cluster of two nodes of one shard, a job of two workers, two seconds apart. Nothing is wrong. */
static const char before_json[] =
    "{\"nodes\":["
    "{\"node\":0,\"version\":\"1\",\"started_unix_ms\":1000,\"now_unix_ms\":1000000,\"ready\":"
    "true,\"healthy\":true,"
    "\"huge_pages\":true,\"durability\":\"fsync\",\"memory_max_bytes\":1000,"
    "\"checkpoints\":{\"last_unix_ms\":990000,\"last_number\":3,\"last_error\":\"\",\"every_"
    "ms\":60000},"
    "\"disk\":{\"free_bytes\":600000000000,\"size_bytes\":1000000000000,\"log_bytes\":1048576,"
    "\"fill_bytes_per_s\":0,\"fill_over_ms\":600000,\"damaged_files\":0},"
    "\"totals\":{\"rows\":10,\"bytes\":100,\"counters\":{\"rows_refused\":0,\"nan_pushes\":0},"
    "\"net\":{}},"
    "\"shards\":[{\"shard\":0,\"reported\":true,\"report_age_ms\":100,\"cpu_seconds\":1,"
    "\"counters\":{\"rows_pulled\":0,\"rows_pushed\":0},\"net\":{},\"log\":{\"push_wait_us\":0}"
    ","
    "\"tables\":[{\"name\":\"j/emb\",\"rows_pulled\":0,\"rows_pushed\":0}]}],"
    "\"jobs\":[{\"name\":\"j\",\"mode\":\"ssp\",\"bound\":2,\"n_workers\":2,\"min_clock\":10,"
    "\"parked_ms\":0,"
    "\"staleness\":{},\"staleness_p99\":0,\"workers\":["
    "{\"rank\":0,\"name\":\"fast\",\"state\":\"live\",\"clock\":10,\"silent_ms\":100},"
    "{\"rank\":1,\"name\":\"other\",\"state\":\"live\",\"clock\":10,\"silent_ms\":100}]}],"
    "\"waits\":[]},"
    "{\"node\":1,\"version\":\"1\",\"started_unix_ms\":1000,\"now_unix_ms\":1000100,\"ready\":"
    "true,\"healthy\":true,"
    "\"huge_pages\":true,\"durability\":\"fsync\",\"memory_max_bytes\":1000,"
    "\"checkpoints\":{\"last_unix_ms\":990000,\"last_number\":3,\"last_error\":\"\",\"every_"
    "ms\":60000},"
    "\"disk\":{\"free_bytes\":600000000000,\"size_bytes\":1000000000000},"
    "\"totals\":{\"rows\":10,\"bytes\":100,\"counters\":{},\"net\":{}},"
    "\"shards\":[{\"shard\":1,\"reported\":true,\"report_age_ms\":100,\"cpu_seconds\":1,"
    "\"counters\":{\"rows_pulled\":0,\"rows_pushed\":0},\"net\":{},\"log\":{},\"tables\":[]}],"
    "\"jobs\":[],\"waits\":[]}]}";

/* Where the fault is made: a path such as "nodes.0.disk.free_bytes". */
struct change {
    const char *path, *json; /* the new value */
};

static cJSON *item_at(cJSON *root, const char *path, char last[static 64], cJSON **ret_parent)
{
    char copy[200], *save = NULL;
    cJSON *at = root;

    snprintf(copy, sizeof copy, "%s", path);
    *ret_parent = NULL;
    for (char *word = strtok_r(copy, ".", &save); word; word = strtok_r(NULL, ".", &save)) {
        *ret_parent = at;
        snprintf(last, 64, "%s", word);
        at = cJSON_IsArray(at) ? cJSON_GetArrayItem(at, atoi(word))
                               : cJSON_GetObjectItemCaseSensitive(at, word);
    }
    return at;
}

static void apply(cJSON *root, const struct change *change)
{
    cJSON *parent, *value = cJSON_Parse(change->json), *old;
    char last[64];

    assert_non_null(value);
    old = item_at(root, change->path, last, &parent);
    assert_non_null(parent);
    if (cJSON_IsArray(parent))
        cJSON_ReplaceItemInArray(parent, atoi(last), value);
    else if (old)
        cJSON_ReplaceItemInObjectCaseSensitive(parent, last, value);
    else
        cJSON_AddItemToObject(parent, last, value);
}

/* The later reports, two seconds on, with the changes. */
static cJSON *examine(const struct change *changes, size_t n)
{
    static const struct change later[] = {
        { "nodes.0.now_unix_ms", "1002000" },
        { "nodes.1.now_unix_ms", "1002100" },
        { "nodes.0.jobs.0.workers.0.clock", "14" },
        { "nodes.0.jobs.0.workers.1.clock", "14" },
    };
    cJSON *before = cJSON_Parse(before_json), *after = cJSON_Parse(before_json), *findings;

    assert_non_null(before);
    for (size_t i = 0; i < COUNT_OF(later); i++)
        apply(after, &later[i]);
    for (size_t i = 0; i < n; i++)
        apply(after, &changes[i]);
    findings = doctor_examine(before, after);
    cJSON_Delete(before);
    cJSON_Delete(after);
    return findings;
}

struct fault {
    struct change changes[6];
    const char *severity;
    double node; /* -1: of none */
    const char *words[3];
};

/* Where the job's workers were between the two reports. */
#define MOMENT(a, b)                                                                      \
    "{\"jobs\":[{\"name\":\"j\",\"workers\":[{\"rank\":0,\"state\":\"live\",\"clock\":" a \
    "},{\"rank\":1,\"state\":\"live\",\"clock\":" b "}]}]}"
#define LAST_ALL_ALONG                                                         \
    {                                                                          \
        "snapshots", "[" MOMENT("12", "10") "," MOMENT("13", "11") "," MOMENT( \
                         "13", "12") "," MOMENT("14", "12") "]"                \
    }
#define LAST_IN_TURNS                                                          \
    {                                                                          \
        "snapshots", "[" MOMENT("12", "10") "," MOMENT("11", "13") "," MOMENT( \
                         "13", "12") "," MOMENT("14", "12") "]"                \
    }
#define SELDOM_BEHIND                                                          \
    {                                                                          \
        "snapshots", "[" MOMENT("11", "11") "," MOMENT("12", "12") "," MOMENT( \
                         "13", "12") "," MOMENT("14", "12") "]"                \
    }

/* What a node says of itself, as psctl config has it. */
#define SETTING(name, value, equal) \
    "{\"name\":\"" name "\",\"value\":\"" value "\",\"equal\":" equal "}"
#define SETTINGS(cluster, node, shards, listen, more)                                       \
    "[" SETTING("cluster", cluster, "true") "," SETTING("node", node, "false") "," SETTING( \
        "shards", shards, "true") "," SETTING("listen", listen, "false") "," more "]"
#define NO_MORE SETTING("advertise", "", "false")

/* Of a member, with the words that "..." stands for. */
#define MEMBER(role, state, in_sync)                         \
    "{\"role\":\"" role "\",\"state\":\"" state              \
    "\",\"term\":2,\"peer\":\"b:7070\",\"in_sync\":" in_sync \
    ",\"standby_lag_records\":7,\"standby_lag_ms\":3}"

#define DISK(free, size, fill, others, archived)                                            \
    {                                                                                       \
        "nodes.0.disk", "{\"free_bytes\":" free ",\"size_bytes\":" size                     \
                        ",\"log_bytes\":1048576,\"fill_over_ms\":600000,"                   \
                        "\"fill_bytes_per_s\":" fill ",\"others_fill_bytes_per_s\":" others \
                        ",\"aside_bytes\":" archived "}"                                    \
    }
#define BOUNDS(every_ms)                                                                \
    {                                                                                   \
        "nodes.0.checkpoints", "{\"last_unix_ms\":990000,\"every_ms\":" every_ms        \
                               ",\"log_max_bytes\":8589934592,\"keep\":3,\"deltas\":8}" \
    }
#define PUSHES                                   \
    {                                            \
        "nodes.0.totals.log", "{\"bytes\":7000}" \
    }

static const struct fault faults[] = {
    { { { "nodes.0.settings", SETTINGS("a:1,b:1", "0", "1", "0.0.0.0:1", NO_MORE) },
        { "nodes.1.settings", SETTINGS("a:1,b:1", "1", "2", "0.0.0.0:1", NO_MORE) } },
      "problem",
      -1,
      { "nodes differ in shards, which must be equal", "node 0 has 1, node 1 has 2" } },
    { { { "nodes.0.settings", SETTINGS("a:1,b:1", "0", "1", "0.0.0.0:1", NO_MORE) },
        { "nodes.1.settings", SETTINGS("b:1,a:1", "1", "1", "0.0.0.0:1", NO_MORE) } },
      "problem",
      -1,
      { "nodes differ in cluster, which must be equal", "node 1 has b:1,a:1" } },
    { { { "nodes.0.settings", SETTINGS("a:1,b:1", "0", "1", "0.0.0.0:1", NO_MORE) },
        { "nodes.1.settings", SETTINGS("a:1,b:1", "0", "1", "0.0.0.0:1", NO_MORE) } },
      "problem",
      1,
      { "it says that it is node 0, and the list of the cluster has its address as node 1" } },
    { { { "nodes.1.settings", SETTINGS("a:1,b:7180", "1", "1", "0.0.0.0:7170", NO_MORE) } },
      "warning",
      1,
      { "it listens on 0.0.0.0:7170, and others look for it at b:7180",
        "--advertise b:7180" } },
    { { { "nodes.0.tls", "{\"certificate_days\":13.25,\"ca_days\":300}" } },
      "warning",
      0,
      { "its certificate (tls-cert) expires in 13 d: renew it", "reload psd" } },
    { { { "nodes.1.tls", "{\"certificate_days\":300,\"ca_days\":-2.25}" } },
      "problem",
      1,
      { "its CA's certificate (tls-ca) has expired 2 d ago", "no new connection" } },
    { { { "nodes.1.tls",
          "{\"certificate_days\":300,\"certificate_fault\":\"is not of the CA\"}" } },
      "warning",
      1,
      { "its certificate (tls-cert) is not of the CA", "" } },
    { { { "nodes.0.replication", MEMBER("primary", "no standby", "false") } },
      "warning",
      0,
      { "its standby b:7070 is missing: a failure", "start psd --standby there" } },
    { { { "nodes.0.replication", "{\"role\":\"primary\",\"state\":\"no "
                                 "standby\",\"peer\":\"b:7070\",\"in_sync\":false,"
                                 "\"missing\":true,\"gone_unix_ms\":880000}" },
        { "nodes.0.now_unix_ms", "1000000" } },
      "warning",
      0,
      { "its standby b:7070 is missing, gone for 2 min: a failure" } },
    { { { "nodes.0.replication", "{\"role\":\"primary\",\"state\":\"standby "
                                 "follows\",\"peer\":\"b:7070\",\"in_sync\":false,"
                                 "\"missing\":false}" } },
      "note",
      0,
      { "its standby b:7070 follows, and is never in sync, with --standby-ack no" } },
    { { { "nodes.0.replication", "{\"role\":\"standby\",\"state\":\"not "
                                 "following\",\"peer\":\"b:7070\",\"in_sync\":false,"
                                 "\"refused\":\"it has 2 shards\"}" },
        { "nodes.0.ready", "false" },
        { "nodes.0.healthy", "false" },
        { "nodes.0.health", "\"b:7070 is asked\"" } },
      "problem",
      0,
      { "its primary b:7070, which lives, refuses it: it has 2 shards. It asks again",
        "do not promote it" } },
    { { { "nodes.0.replication", MEMBER("primary", "standby follows", "false") } },
      "warning",
      0,
      { "its standby b:7070 is not in sync (standby follows), 7 records behind" } },
    { { { "nodes.0.replication", MEMBER("primary", "standby copies", "false") } },
      "note",
      0,
      { "its standby b:7070 copies" } },
    { { { "nodes.0.replication", MEMBER("primary", "awaits its standby", "false") },
        { "nodes.0.ready", "false" },
        { "nodes.0.healthy", "false" },
        { "nodes.0.health", "\"standby b:7070 may be the primary by now\"" } },
      "problem",
      0,
      { "it waits for its standby b:7070",
        "refuses workers (standby b:7070 may be the primary by now)",
        "psctl promote --accept-loss" } },
    { { { "nodes.0.replication", MEMBER("standby", "not following", "false") },
        { "nodes.0.ready", "false" },
        { "nodes.0.healthy", "false" },
        { "nodes.0.health", "\"b:7070 is asked: connection refused\"" } },
      "problem",
      0,
      { "does not follow its primary b:7070: b:7070 is asked: connection refused" } },
    { { { "nodes.0.replication",
          "{\"role\":\"standby\",\"state\":\"spare\",\"peer\":\"b:7070\",\"in_sync\":false,"
          "\"promote_loses\":true,\"unheard\":true}" },
        { "nodes.0.ready", "false" },
        { "nodes.0.healthy", "false" },
        { "nodes.0.health", "\"b:7070 is asked\"" } },
      "problem",
      0,
      { "psctl promote --accept-loss makes this one the primary (it has not followed since" } },
    { { { "nodes.0.replication", MEMBER("standby", "following", "false") },
        { "nodes.0.ready", "false" } },
      "warning",
      0,
      { "a standby and not in sync with its primary b:7070: 7 records behind (with "
        "--standby-ack no" } },
    { { { "nodes.0.replication", MEMBER("standby", "copying", "false") },
        { "nodes.0.ready", "false" } },
      "note",
      0,
      { "a standby of b:7070, and not in sync yet: copying" } },
    { { { "nodes.0.replication", MEMBER("standby", "in sync", "true") },
        { "nodes.0.healthy", "false" },
        { "nodes.0.health", "\"disk\"" } },
      "problem",
      0,
      { "it is a standby, and not healthy: disk" } },
    { { { "nodes.0.coordination",
          "{\"service\":\"etcd://h:1/c\",\"away\":true,\"error\":\"etcd at h:1: refused\"}" } },
      "warning",
      0,
      { "the coordination service etcd://h:1/c does not answer", "no standby takes over",
        "etcd at h:1: refused" } },
    { { { "nodes.1", "{\"node\":1,\"error\":\"psd at x: connection refused\"}" } },
      "problem",
      1,
      { "it does not answer: psd at x: connection refused" } },
    { { { "nodes.0.disk.fill_bytes_per_s", "55555555" } },
      "warning",
      0,
      { "its disk is full in 3 h at the rate of the last 10 min: 53.0 MiB/s, 558.8 GiB are "
        "free" } },
    { { { "nodes.0.disk.fill_bytes_per_s", "1000000000" } },
      "problem",
      0,
      { "its disk is full in 10 min", "--log-max and --keep bound what psd keeps" } },
    { { DISK("20000000000", "1000000000000", "55555555", "0", "0"), BOUNDS("0"), PUSHES },
      "problem",
      0,
      { "its disk is full in 6 min at the rate of the last 10 min: 53.0 MiB/s, 18.6 GiB are "
        "free",
        "psd's files may grow by 24.0 GiB yet: a smaller --log-max or --keep bounds them" } },
    { { DISK("600000000000", "1000000000000", "55555555", "54000000", "0"), BOUNDS("0") },
      "warning",
      0,
      { "its disk is full in 3 h", "it is not psd's files that grow" } },
    { { DISK("600000000000", "1000000000000", "55555555", "54000000", "30000000000"),
        BOUNDS("0") },
      "warning",
      0,
      { "psctl prune removes 27.9 GiB that no start needs" } },
    { { DISK("4096", "1000000000000", "55555555", "0", "3145728") },
      "problem",
      0,
      { "its disk is full: of 931.3 GiB the write-ahead logs take 1.0 MiB, the checkpoints",
        "make space on it, then psctl checkpoint" } },
    { { { "nodes.0.disk.free_bytes", "1000000000" } },
      "warning",
      0,
      { "its disk is nearly full: 953.7 MiB are free of 931.3 GiB; psd's files take 1.0 "
        "MiB" } },
    { { { "nodes.0.disk.damaged_files", "2" }, { "nodes.0.disk.damage", "\"checksum of a\"" } },
      "problem",
      0,
      { "damaged files on its disk: 2: checksum of a" } },
    { { { "nodes.0.healthy", "false" }, { "nodes.0.health", "\"shard 0 is stuck\"" } },
      "problem",
      0,
      { "it is not healthy: shard 0 is stuck" } },
    { { { "nodes.0.huge_pages", "false" } }, "warning", 0, { "huge pages are off" } },
    { { { "nodes.0.checkpoints.last_unix_ms", "100000" } },
      "warning",
      0,
      { "its checkpoint is too old: 15 min, and one is due every 60 s",
        "1.0 MiB of write-ahead log" } },
    { { { "nodes.0.checkpoints.last_unix_ms", "0" }, { "nodes.0.started_unix_ms", "1000" } },
      "warning",
      0,
      { "its checkpoint is too old: none for 17 min" } },
    { { { "nodes.0.checkpoints.last_error", "\"no space\"" } },
      "problem",
      0,
      { "its last checkpoint failed: no space" } },
    { { { "nodes.0.totals.bytes", "950" } },
      "warning",
      0,
      { "its memory is nearly full: rows take 950 B of 1000 B" } },
    { { { "nodes.0.totals.counters.rows_refused", "7" } },
      "problem",
      0,
      { "its memory is full: new rows that were refused in the last seconds: 7" } },
    { { { "nodes.0.totals.counters.nan_pushes", "1" },
        { "nodes.0.totals.last_refusal",
          "{\"text\":\"a NaN\",\"worker\":\"w1\",\"table\":\"j/emb\"}" } },
      "problem",
      0,
      { "pushes with NaN that were refused in the last seconds: 1; table j/emb, worker w1: a "
        "NaN" } },
    { { { "nodes.0.shards.0.log.failed", "true" },
        { "nodes.0.shards.0.log.error", "\"I/O error\"" } },
      "problem",
      0,
      { "the write-ahead log of shard 0 cannot be written: I/O error" } },
    { { { "nodes.0.shards.0.log.gap", "true" }, { "nodes.0.shards.0.log.dropped", "5" } },
      "problem",
      0,
      { "the write-ahead log of shard 0 has a gap: records lost on a failing disk: 5; "
        "until" } },
    { { { "nodes.0.shards.0.log.push_wait_us", "1500000" },
        { "nodes.0.shards.0.log.disk_bytes_per_s", "1048576" } },
      "warning",
      0,
      { "the disk of shard 0 is slower than its pushes: it takes 1.0 MiB/s; pushes waited 1.5 "
        "s in "
        "the last 2.0 s" } },
    { { { "nodes.0.shards.0.log",
          "{\"full\":true,\"pushes_waiting\":3,\"disk_bytes_per_s\":1048576,"
          "\"needed_bytes_per_s\":4194304}" } },
      "warning",
      0,
      { "it takes 1.0 MiB/s, about 4.0 MiB/s are needed; pushes that wait now: 3" } },
    { { { "nodes.0.shards.0.report_age_ms", "12000" } },
      "problem",
      0,
      { "shard 0 has not reported for 12 s: it is stuck" } },
    { { { "nodes.0.shards.0.cpu_seconds", "2.96" } },
      "warning",
      0,
      { "shard 0 is busy for 98 % of the time" } },
    { { { "nodes.0.shards.0.counters.rows_pulled", "40000" },
        { "nodes.1.shards.0.counters.rows_pulled", "2000" },
        { "nodes.0.shards.0.tables.0.rows_pulled", "40000" } },
      "warning",
      0,
      { "shard 0 is hot: 20.0 k rows/s, the others 1.0 k on average; table j/emb is 100 % of "
        "it" } },
    { { { "nodes.0.jobs.0.workers.1.clock", "12" },
        { "nodes.0.jobs.0.parked_ms", "1000" },
        LAST_ALL_ALONG },
      "warning",
      -1,
      { "job j: worker 1 (other) is slow, 2 clocks behind, and the others' pulls waited 50 %",
        "it is heard, and finishes 1.0 clocks/s" } },
    { { { "nodes.0.jobs.0.workers.1.clock", "10" },
        { "nodes.0.jobs.0.parked_ms", "1000" },
        LAST_ALL_ALONG },
      "warning",
      -1,
      { "it is heard, and has finished no clock" } },
    { { { "nodes.0.jobs.0.workers.1.clock", "12" },
        { "nodes.0.jobs.0.workers.1.silent_ms", "5000" } },
      "warning",
      -1,
      { "worker 1 (other) is slow",
        "nothing was heard of it for 5 s: its process is stopped" } },
    { { { "nodes.0.lease_ms", "9000" },
        { "nodes.0.jobs.0.workers.1.clock", "12" },
        { "nodes.0.jobs.0.workers.1.silent_ms", "4100" } },
      "warning",
      -1,
      { "nothing was heard of it for 4 s: its process is stopped", "" } },
    { { { "nodes.0.lease_ms", "30000" },
        { "nodes.0.jobs.0.workers.1.clock", "12" },
        { "nodes.0.jobs.0.parked_ms", "1000" },
        { "nodes.0.jobs.0.workers.1.silent_ms", "5000" },
        LAST_ALL_ALONG },
      "warning",
      -1,
      { "worker 1 (other) is slow",
        "nothing was heard of it for 5 s: it reads its data, or computes, or" } },
    { { { "nodes.0.jobs.0.workers.1.clock", "10" },
        { "nodes.0.jobs.0.mode", "\"async\"" },
        LAST_ALL_ALONG },
      "warning",
      -1,
      { "worker 1 (other) is slow, 4 clocks behind, the others finish 2.0 clocks/s" } },
    { { { "nodes.0.jobs.0.workers.1.state", "\"dead\"" } },
      "problem",
      -1,
      { "job j: worker 1 (other) is dead at clock 14" } },
    { { { "nodes.0.jobs.0.workers.1.state", "\"lost\"" } },
      "problem",
      -1,
      { "job j: worker 1 never came" } },
    { { { "nodes.0.jobs.0.workers.1.clock", "12" },
        { "nodes.0.jobs.0.parked_ms", "1000" },
        { "nodes.0.jobs.0.staleness_p99", "2" } },
      "note",
      -1,
      { "job j: staleness is pinned at its bound of 2" } },
    { { { "nodes.0.jobs.0.staleness_violations", "3" } },
      "problem",
      -1,
      { "pulls that were answered beyond the bound: 3" } },
    { { { "nodes.0.jobs.0.lost_pushes", "3" } },
      "problem",
      -1,
      { "pushes that were acknowledged and are lost since a restart: 3" } },
    { { { "nodes.0.waits", "[{\"what\":\"worker expected\",\"who\":\"job j, worker "
                           "1\",\"why\":\"it has not joined\","
                           "\"since_unix_ms\":992000}]" } },
      "warning",
      -1,
      { "worker expected, for 10 s: job j, worker 1; it has not joined" } },
    { { { "nodes.1.now_unix_ms", "1012000" } },
      "warning",
      1,
      { "its clock is 10 s before that of node 0" } },
    { { { "nodes.1.version", "\"2\"" } },
      "note",
      1,
      { "it runs version 2, node 0 version 1" } },
    { { { "nodes.0.durability", "\"off\"" } }, "note", 0, { "it keeps nothing on disk" } },
    { { { "nodes.0.restoring", "{\"text\":\"restoring: 45 %\"}" } },
      "note",
      0,
      { "it is restoring: 45 %" } },
    { { { "nodes.0.stopping", "true" } }, "warning", 0, { "it is stopping" } },
};

static void expect(const struct fault *fault)
{
    size_t n = 0;
    cJSON *findings;
    const cJSON *f;
    bool is_found = false;
    char *all;

    while (n < COUNT_OF(fault->changes) && fault->changes[n].path)
        n++;
    findings = examine(fault->changes, n);
    all = cJSON_Print(findings);
    cJSON_ArrayForEach(f, findings)
    {
        bool is_it = strcmp(field_text(f, "severity"), fault->severity) == 0 &&
                     (fault->node < 0 ? !field_child(f, "node")
                                      : field_number(f, "node") == fault->node);

        for (size_t i = 0; i < COUNT_OF(fault->words) && fault->words[i]; i++)
            is_it = is_it && strstr(field_text(f, "text"), fault->words[i]);
        is_found = is_found || is_it;
    }
    if (!is_found)
        fail_msg("%s: expected a %s with \"%s\", found %s", fault->changes[0].path,
                 fault->severity, fault->words[0], all);
    cJSON_free(all);
    cJSON_Delete(findings);
}

static void each_fault_has_its_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(faults); i++)
        expect(&faults[i]);
}

/* Workers that all wait, for another node perhaps, send no more than their heartbeats. */
static void nothing_is_said_of_a_cluster_that_is_well(void **state)
{
    static const struct change beats[] = { { "nodes.0.lease_ms", "10000" },
                                           { "nodes.0.jobs.0.workers.1.clock", "12" },
                                           { "nodes.0.jobs.0.workers.1.silent_ms", "3300" } };
    cJSON *findings = examine(NULL, 0);

    (void)state;
    assert_int_equal(cJSON_GetArraySize(findings), 0);
    cJSON_Delete(findings);
    findings = examine(beats, COUNT_OF(beats));
    assert_int_equal(cJSON_GetArraySize(findings), 0);
    cJSON_Delete(findings);
}

#define ETCD_IS_AWAY "etcd at h:1: refused"
#define AWAY                                                                           \
    { "nodes.0.coordination",                                                          \
      "{\"service\":\"etcd://h:1/c\",\"away\":true,\"error\":\"" ETCD_IS_AWAY "\"}" }, \
    {                                                                                  \
        "nodes.0.waits", "[{\"what\":\"coordination\",\"who\":\"etcd://h:1/c\","       \
                         "\"why\":\"" ETCD_IS_AWAY "\",\"since_unix_ms\":1000}]"       \
    }

/* Of the node that serves, and of one that waits for it at its start. */
static void etcd_that_is_away_is_one_sentence_of_a_node(void **state)
{
    static const struct change serves[] = { AWAY };
    static const struct change starts[] = {
        AWAY,
        { "nodes.0.healthy", "false" },
        { "nodes.0.health",
          "\"the coordination service has to say who is the primary: " ETCD_IS_AWAY "\"" }
    };
    cJSON *findings = examine(serves, COUNT_OF(serves));

    (void)state;
    assert_int_equal(cJSON_GetArraySize(findings), 1);
    cJSON_Delete(findings);
    findings = examine(starts, COUNT_OF(starts));
    assert_int_equal(cJSON_GetArraySize(findings), 1);
    cJSON_Delete(findings);
}

/* Nor that a standby in sync, which serves nobody, is not ready; and a fault of one member is one sentence. */
static void a_pair_that_is_well_is_silent_and_a_fault_of_it_is_one_sentence(void **state)
{
    static const struct change
        primary[] = { { "nodes.0.replication", MEMBER("primary", "in sync", "true") } },
        standby[] = { { "nodes.0.replication", MEMBER("standby", "in sync", "true") },
                      { "nodes.0.ready", "false" } },
        waits[] = { { "nodes.0.replication", MEMBER("primary", "awaits its standby", "false") },
                    { "nodes.0.ready", "false" },
                    { "nodes.0.healthy", "false" },
                    { "nodes.0.waits",
                      "[{\"what\":\"standby\",\"who\":\"node 0\",\"why\":\"w\","
                      "\"since_unix_ms\":900000}]" } };
    cJSON *findings[] = { examine(primary, COUNT_OF(primary)),
                          examine(standby, COUNT_OF(standby)),
                          examine(waits, COUNT_OF(waits)) };

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cJSON_GetArraySize(findings[i]), i == 2);
        cJSON_Delete(findings[i]);
    }
}

/* However fast it grows: psd's files are bounded, and grow by pushes alone. */
static void a_disk_that_will_not_be_full_is_not_foretold_to_be(void **state)
{
    static const struct change
        log_max[] = { DISK("60000000000", "1000000000000", "55555555", "0", "0"), BOUNDS("0"),
                      PUSHES },
        every[] = { DISK("60000000000", "1000000000000", "155555555", "0", "0"),
                    BOUNDS("60000"), PUSHES },
        ended[] = { DISK("60000000000", "1000000000000", "155555555", "0", "0"), BOUNDS("0") };
    cJSON *findings[] = { examine(log_max, COUNT_OF(log_max)), examine(every, COUNT_OF(every)),
                          examine(ended, COUNT_OF(ended)) };

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cJSON_GetArraySize(findings[i]), 0);
        cJSON_Delete(findings[i]);
    }
}

static void problems_come_first(void **state)
{
    static const struct change changes[] = { { "nodes.0.durability", "\"off\"" },
                                             { "nodes.0.huge_pages", "false" },
                                             { "nodes.0.healthy", "false" } };
    cJSON *findings = examine(changes, COUNT_OF(changes));

    (void)state;
    assert_string_equal(field_text(cJSON_GetArrayItem(findings, 0), "severity"), "problem");
    assert_string_equal(field_text(cJSON_GetArrayItem(findings, 1), "severity"), "warning");
    assert_string_equal(field_text(cJSON_GetArrayItem(findings, 2), "severity"), "note");
    cJSON_Delete(findings);
}

static void expect_silence(const struct change *changes, size_t n)
{
    cJSON *findings = examine(changes, n);
    const cJSON *first = cJSON_GetArrayItem(findings, 0);

    if (first)
        fail_msg("found: %s", field_text(first, "text"));
    cJSON_Delete(findings);
}

/* On a busy machine each of equal workers is last at times, and is waited for. */
static void a_worker_that_is_last_at_times_is_not_slow(void **state)
{
    static const struct change others[] = { LAST_IN_TURNS,
                                            SELDOM_BEHIND,
                                            { "snapshots", "[]" } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        const struct change changes[] = { { "nodes.0.jobs.0.workers.1.clock", "12" },
                                          { "nodes.0.jobs.0.parked_ms", "1000" },
                                          others[i] },
                            async[] = { { "nodes.0.jobs.0.workers.1.clock", "10" },
                                        { "nodes.0.jobs.0.mode", "\"async\"" },
                                        others[i] };

        expect_silence(changes, COUNT_OF(changes));
        expect_silence(async, COUNT_OF(async));
    }
}

static void a_backup_worker_that_is_behind_is_not_slow(void **state)
{
    const struct change silent[] = { { "nodes.0.jobs.0.n_backups", "1" },
                                     { "nodes.0.jobs.0.workers.1.clock", "12" },
                                     { "nodes.0.jobs.0.workers.1.silent_ms", "5000" } },
                        last[] = { { "nodes.0.jobs.0.n_backups", "1" },
                                   { "nodes.0.jobs.0.workers.1.clock", "12" },
                                   { "nodes.0.jobs.0.parked_ms", "1000" },
                                   LAST_ALL_ALONG };

    (void)state;
    expect_silence(silent, COUNT_OF(silent));
    expect_silence(last, COUNT_OF(last));
}

/* A standby has its primary's cluster; --advertise says that both addresses lead to the node. */
static void settings_that_agree_are_silent(void **state)
{
    static const struct change well[][2] = {
        { { "nodes.0.settings", SETTINGS("a:1,b:1", "0", "1", "0.0.0.0:1", NO_MORE) },
          { "nodes.1.settings", SETTINGS("a:1,b:1", "1", "1", "[::]:1", NO_MORE) } },
        { { "nodes.0.settings", SETTINGS("a:1,b:1", "0", "2", "0.0.0.0:1", NO_MORE) },
          { "nodes.1.settings",
            SETTINGS("", "0", "0", ":9", SETTING("standby", "b:1", "false")) } },
        { { "nodes.0.settings",
            SETTINGS("a:1,b:1", "0", "1", "0.0.0.0:9", SETTING("advertise", "a:1", "false")) },
          { "nodes.1.settings", "[]" } },
    };

    (void)state;
    for (size_t i = 0; i < 2; i++)
        expect_silence(well[i], 2);
    expect_silence(well[2], 1);
}

/* A node that was started anew between the reports counts from 0: no rate is made of that. */
static void a_restart_is_no_rate(void **state)
{
    static const struct change changes[] = { { "nodes.0.started_unix_ms", "1001000" },
                                             { "nodes.0.totals.counters.rows_refused", "7" },
                                             { "nodes.0.shards.0.cpu_seconds", "9" } };
    cJSON *findings = examine(changes, COUNT_OF(changes));

    (void)state;
    assert_int_equal(cJSON_GetArraySize(findings), 0);
    cJSON_Delete(findings);
}

/* Answers of something else crash nothing. */
static void answers_without_sense_are_survived(void **state)
{
    static const char *const texts[] = {
        "{}", "[]", "{\"nodes\":7}", "{\"nodes\":[7,\"x\",null,[]]}",
        "{\"nodes\":[{\"shards\":[1],\"jobs\":[[]],\"waits\":{},\"tables\":[{}]}]}"
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        for (size_t k = 0; k < COUNT_OF(texts); k++) {
            cJSON *a = cJSON_Parse(texts[i]), *b = cJSON_Parse(texts[k]);

            cJSON_Delete(doctor_examine(a, b));
            cJSON_Delete(a);
            cJSON_Delete(b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_has_its_sentence),
        cmocka_unit_test(nothing_is_said_of_a_cluster_that_is_well),
        cmocka_unit_test(etcd_that_is_away_is_one_sentence_of_a_node),
        cmocka_unit_test(a_pair_that_is_well_is_silent_and_a_fault_of_it_is_one_sentence),
        cmocka_unit_test(a_disk_that_will_not_be_full_is_not_foretold_to_be),
        cmocka_unit_test(problems_come_first),
        cmocka_unit_test(settings_that_agree_are_silent),
        cmocka_unit_test(a_worker_that_is_last_at_times_is_not_slow),
        cmocka_unit_test(a_backup_worker_that_is_behind_is_not_slow),
        cmocka_unit_test(a_restart_is_no_rate),
        cmocka_unit_test(answers_without_sense_are_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
