/* What /stats, /metrics, /healthz and psctl are told about a node. */
#include <cjson/cJSON.h>
#include <unistd.h>

#include "server/admin/render.h"
#include "tests/unit/admin/fixture.h"

static cJSON *rendered(const struct node_report *node, const char *what)
{
    char *text = render_json(node, what);
    cJSON *json;

    assert_non_null(text);
    json = cJSON_Parse(text);
    if (!json)
        fail_msg("no JSON: %s", text);
    free(text);
    return json;
}

/* "totals.requests.pull.n", "shards.0.rows" */
static const cJSON *at(const cJSON *json, const char *path)
{
    char name[64];

    while (json && *path) {
        size_t n = strcspn(path, ".");

        snprintf(name, sizeof name, "%.*s", (int)n, path);
        json = cJSON_IsArray(json) ? cJSON_GetArrayItem(json, atoi(name))
                                   : cJSON_GetObjectItemCaseSensitive(json, name);
        path += n + (path[n] == '.');
    }
    if (!json)
        fail_msg("no such field");
    return json;
}

static void assert_number(const cJSON *json, const char *path, double want)
{
    const cJSON *item = at(json, path);

    assert_true(cJSON_IsNumber(item));
    if (item->valuedouble != want)
        fail_msg("%s is %g, expected %g", path, item->valuedouble, want);
}

static void assert_text(const cJSON *json, const char *path, const char *want)
{
    assert_string_equal(cJSON_GetStringValue(at(json, path)), want);
}

static void stats_show_each_shard_and_their_total(void **state)
{
    static const char nodes[2][128] = { "10.0.0.1:7070", "127.0.0.1:7070" };
    struct fixture f;
    cJSON *json;

    (void)state;
    fixture_init(&f);
    json = rendered(&f.node, "stats");
    assert_int_equal(cJSON_GetArraySize(at(json, "cluster_nodes")), 0); /* not known yet */
    cJSON_Delete(json);
    f.node.nodes = nodes;
    f.node.lease_ms = 7000;
    json = rendered(&f.node, "stats");
    assert_text(json, "address", "127.0.0.1:7070");
    assert_number(json, "pid", 77);
    assert_int_equal(cJSON_GetArraySize(at(json, "cluster_nodes")), 2);
    assert_text(json, "cluster_nodes.0.address", "10.0.0.1:7070");
    assert_number(json, "lease_ms", 7000);
    assert_number(json, "cluster_nodes.1.node", 1);
    assert_number(json, "cluster_nodes.1.first_shard", 2);
    assert_number(json, "cluster_nodes.1.n_shards", 2);
    assert_number(json, "shards.0.rows", 503);
    assert_number(json, "shards.1.shard", 3);
    assert_number(json, "shards.1.report_age_ms", 100);
    assert_number(json, "shards.1.requests.pull.n", 1000);
    assert_number(json, "shards.1.requests.pull.n_minute", 100);
    assert_number(json, "shards.1.requests.pull.n_refused", 1);
    assert_number(json, "shards.0.jobs.0.workers.1.clock", 10);
    assert_number(json, "shards.0.waits.0.until_unix_ms", 9000);
    assert_number(json, "totals.rows", 1006);
    assert_number(json, "totals.bytes", 2000);
    assert_number(json, "totals.counters.pulls", 40);
    assert_number(json, "totals.requests.pull.n", 2000);
    assert_number(json, "totals.requests.pull.n_minute", 200);
    assert_number(json, "totals.requests.pull.max_ns", 5000000); /* since the start */
    assert_true(at(json, "totals.requests.pull.p50_ns")->valuedouble >= 500000);
    assert_true(at(json, "totals.requests.pull.p99_ns")->valuedouble <= 1000000);
    assert_number(json, "totals.tables_bytes", 1800);
    assert_number(json, "totals.memory_max_bytes", 10000);
    assert_number(json, "totals.counters.rows_evicted", 10);
    assert_number(json, "shards.0.cpu_seconds", 12.000345);
    assert_number(json, "totals.cpu_seconds", 24.000691);
    assert_number(json, "totals.codecs.int8.bytes_in", 600);
    assert_number(json, "totals.codecs.fp32.bytes_out", 800);
    assert_number(json, "totals.net.malformed_frames", 2);
    assert_number(json, "totals.net.refused_requests", 4);
    assert_number(json, "totals.net.refused_greetings", 3);
    assert_number(json, "totals.live_workers", 1);
    assert_number(json, "totals.n_waits", 3);
    assert_number(json, "tables.0.rows", 1000);
    assert_number(json, "tables.0.pushes", 31);
    assert_text(json, "tables.1.name", "top\\w\"");
    assert_number(json, "jobs.0.min_clock", 7);
    assert_number(json, "jobs.0.deaths", 1);
    assert_number(json, "jobs.0.fenced", 2);
    assert_int_equal(cJSON_GetArraySize(at(json, "jobs.0.workers")), 2);
    assert_text(json, "jobs.0.workers.1.state", worker_state_name(WORKER_DEAD));
    assert_int_equal(cJSON_GetArraySize(at(json, "waits")), 3);
    cJSON_Delete(json);
    fixture_deinit(&f);
}

static void a_worker_has_left_a_node_when_it_has_left_all_shards(void **state)
{
    const enum worker_state before[] = { WORKER_EXPECTED, WORKER_LIVE, WORKER_LEFT,
                                         WORKER_DEAD };
    struct fixture f;

    (void)state;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        struct shard_report *total;

        fixture_init(&f);
        f.shards[0]->workers[0].state = before[i];
        f.shards[1]->workers[0].state = WORKER_LEFT;
        total = stats_total(&f.node);
        assert_int_equal(total->workers[0].state, before[i]);
        shard_report_free(total);
        fixture_deinit(&f);
    }
}

static void
a_worker_is_suspected_where_one_shard_suspects_it_and_none_knows_better(void **state)
{
    struct fixture f;
    cJSON *json;

    (void)state;
    for (uint32_t suspecting = 0; suspecting < 2; suspecting++) {
        fixture_init(&f);
        f.shards[suspecting]->workers[0].is_suspected = true;
        json = rendered(&f.node, "workers");
        assert_text(json, "jobs.0.workers.0.state", "suspected");
        cJSON_Delete(json);
        f.shards[!suspecting]->workers[0].state = WORKER_DEAD;
        json = rendered(&f.node, "workers");
        assert_text(json, "jobs.0.workers.0.state", worker_state_name(WORKER_DEAD));
        cJSON_Delete(json);
        fixture_deinit(&f);
    }
}

static void a_table_reports_its_memory_and_which_rows_come_and_go(void **state)
{
    struct fixture f;
    cJSON *json;

    (void)state;
    fixture_init(&f);
    json = rendered(&f.node, "tables");
    assert_text(json, "tables.0.storage", "bf16");
    assert_number(json, "tables.0.limits.idle_clocks", 70);
    assert_number(json, "tables.0.limits.ttl_s", 0);
    assert_text(json, "tables.0.limits.victims", "oldest");
    assert_number(json, "tables.0.limits.max_bytes", 8);
    assert_number(json, "tables.0.slab_bytes", 120000);
    assert_number(json, "tables.0.index_bytes", 8000);
    assert_number(json, "tables.0.sketch_bytes", 128);
    assert_number(json, "tables.0.bytes_max", 8);
    assert_number(json, "tables.0.row_bytes", 120);
    assert_number(json, "tables.0.payload_bytes", 104);
    assert_number(json, "tables.0.overhead_bytes_per_row", 24);
    assert_number(json, "tables.1.overhead_bytes_per_row",
                  16); /* a dense one's: of a block's head */
    assert_number(json, "tables.0.rows_removed", 18);
    assert_number(json, "tables.0.rows_evicted", 10);
    assert_number(json, "tables.0.rows_idle", 6);
    assert_number(json, "tables.0.rows_expired", 2);
    assert_number(json, "tables.0.rows_rare", 0);
    assert_number(json, "tables.0.rows_unadmitted", 154);
    cJSON_Delete(json);
    fixture_deinit(&f);
}

static void the_staleness_histogram_names_each_value_that_was_seen(void **state)
{
    struct fixture f;
    cJSON *json;

    (void)state;
    fixture_init(&f);
    json = rendered(&f.node, "stats");
    assert_number(json, "jobs.0.staleness.0", 20);
    assert_number(json, "jobs.0.staleness.3", 10);
    assert_number(json, "jobs.0.staleness.32-63", 4);
    assert_int_equal(cJSON_GetArraySize(at(json, "jobs.0.staleness")), 3);
    assert_number(json, "jobs.0.staleness_max", 40);
    assert_number(json, "jobs.0.staleness_violations", 0);
    cJSON_Delete(json);
    fixture_deinit(&f);
}

/* One shard of the node has the reports: its learning is the node's. */
static void what_workers_learn_is_in_stats_metrics_and_the_curve(void **state)
{
    struct fixture f;
    struct stats_job *job;
    cJSON *json;
    char *text;

    (void)state;
    fixture_init(&f);
    json = rendered(&f.node, "workers");
    assert_true(cJSON_IsNull(at(json, "jobs.0.samples")) &&
                cJSON_IsNull(at(json, "jobs.0.busy")));
    cJSON_Delete(json);
    job = &f.shards[1]->jobs[0];
    job->learning = (struct learning_summary){ .unix_ms = 5,
                                               .samples = UINT64_C(1) << 53,
                                               .samples_per_s = 12.5f,
                                               .loss = 0.5f,
                                               .auc = NAN,
                                               .logloss = NAN,
                                               .busy = { 0.25f } };
    f.shards[1]->workers[1].learning = (struct learning_worker){
        .unix_ms = 4, .samples = 9, .loss = NAN, .auc = 0.75f, .logloss = 1, .busy = { 125 }
    };
    job->curve = memory_alloc(sizeof *job->curve);
    job->curve->n = 2;
    job->curve->points[0] = (struct learning_point){
        .unix_ms = 3, .clock = 1, .samples = 10, .loss = 0.75f, .auc = NAN, .logloss = NAN
    };
    job->curve->points[1] = job->curve->points[0];
    job->curve->points[1].auc = 0.625f;
    json = rendered(&f.node, "workers");
    assert_number(json, "jobs.0.samples", 9007199254740992.0);
    assert_number(json, "jobs.0.samples_per_s", 12.5);
    assert_number(json, "jobs.0.loss", 0.5);
    assert_true(cJSON_IsNull(at(json, "jobs.0.auc")));
    assert_number(json, "jobs.0.busy.read", 0.25);
    assert_number(json, "jobs.0.workers.1.samples", 9);
    assert_true(cJSON_IsNull(at(json, "jobs.0.workers.1.loss")));
    assert_number(json, "jobs.0.workers.1.auc", 0.75);
    assert_number(json, "jobs.0.workers.1.busy.read", 0.125);
    cJSON_Delete(json);
    text = render_metrics(&f.node);
    assert_non_null(strstr(text, "\npsd_job_loss{shard=\"3\",job=\"criteo\"} 0.5\n"));
    assert_null(strstr(text, "psd_job_auc{"));
    free(text);
    text = render_curve(&f.node, "criteo");
    json = cJSON_Parse(text);
    assert_string_equal(at(json, "job")->valuestring, "criteo");
    assert_int_equal(cJSON_GetArraySize(at(json, "points")), 2);
    assert_number(json, "points.0.ms", 3);
    assert_number(json, "points.0.loss", 0.75);
    assert_true(cJSON_IsNull(at(json, "points.0.auc")));
    assert_number(json, "points.1.auc", 0.625);
    cJSON_Delete(json);
    free(text);
    text = render_curve(&f.node, "no\"body");
    assert_string_equal(text, "{\"job\":\"no\\\"body\",\"points\":[]}\n");
    free(text);
    fixture_deinit(&f);
}

static void numbers_of_64_bits_stay_exact_and_names_of_peers_stay_text(void **state)
{
    struct fixture f;
    char *text;

    (void)state;
    fixture_init(&f);
    text = render_json(&f.node, "workers");
    assert_non_null(strstr(text, "\"incarnation\":18446744073709551615,"));
    assert_non_null(strstr(text, "\"name\":\"a\\\"b\\\\c\\u000ad\\u0001?<script>\""));
    for (const char *p = text; *p; p++)
        assert_true((unsigned char)*p < 0x7f && (*p >= 0x20 || *p == '\n'));
    free(text);
    fixture_deinit(&f);
}

static void a_question_gets_its_part_and_an_unknown_one_nothing(void **state)
{
    struct fixture f;
    cJSON *json;

    (void)state;
    fixture_init(&f);
    json = rendered(&f.node, "status");
    assert_number(json, "totals.rows", 1006);
    assert_null(cJSON_GetObjectItem(json, "tables"));
    cJSON_Delete(json);
    json = rendered(&f.node, "tables");
    assert_number(json, "tables.0.learning_rate", 0.01);
    assert_int_equal(cJSON_GetArraySize(at(json, "tables")), 2);
    assert_null(cJSON_GetObjectItem(json, "totals"));
    cJSON_Delete(json);
    json = rendered(&f.node, "why");
    assert_int_equal(cJSON_GetArraySize(at(json, "waits")), 3);
    assert_number(json, "now_unix_ms", 1700000060123);
    cJSON_Delete(json);
    assert_null(render_json(&f.node, "secrets"));
    assert_null(render_json(&f.node, ""));
    fixture_deinit(&f);
}

static void a_node_before_its_first_reports_is_shown_too(void **state)
{
    struct fixture f;
    struct node_report node;
    char *metrics;
    cJSON *json;

    (void)state;
    fixture_init(&f);
    node = f.node;
    node.shards = &f.shards[2];
    node.n_shards = 1;
    node.ready = false;
    json = rendered(&node, "stats");
    assert_null(cJSON_GetObjectItemCaseSensitive(json, "restoring"));
    cJSON_Delete(json);
    node.restore = (struct stats_restore){ .is_on = true, .n_rows = 5, .n_records = 6 };
    json = rendered(&node, "status");
    assert_number(json, "restoring.rows", 5);
    assert_number(json, "restoring.log_records", 6);
    assert_number(json, "restoring.total_bytes", 0);
    cJSON_Delete(json);
    json = rendered(&node, "stats");
    assert_true(cJSON_IsFalse(at(json, "shards.0.reported")));
    assert_number(json, "totals.rows", 0);
    cJSON_Delete(json);
    metrics = render_metrics(&node);
    assert_non_null(strstr(metrics, "psd_ready 0\n"));
    assert_non_null(strstr(metrics, "psd_restoring 1\n"));
    assert_non_null(strstr(metrics, "psd_restore_records 6\n"));
    free(metrics);
    fixture_deinit(&f);
}

static void health_is_red_when_a_shard_is_stuck_or_a_checkpoint_failed(void **state)
{
    struct fixture f;
    char sentence[320];

    (void)state;
    fixture_init(&f);
    assert_int_equal(render_health(&f.node, sentence, sizeof sentence), 0);
    assert_string_equal(sentence, "ok");
    f.node.clock_mono_ms += RENDER_STUCK_MS;
    assert_int_equal(render_health(&f.node, sentence, sizeof sentence), -1);
    assert_non_null(strstr(sentence, "shard 2 is stuck"));
    f.node.restore.is_on = true; /* a shard that loads makes no report */
    assert_int_equal(render_health(&f.node, sentence, sizeof sentence), 0);
    f.node.restore.is_on = false;
    f.node.clock_mono_ms = 10000;
    f.node.n_shards = 3;
    assert_int_equal(render_health(&f.node, sentence, sizeof sentence), -1);
    f.node.ready = false; /* it is still loading: no reason to kill it */
    assert_int_equal(render_health(&f.node, sentence, sizeof sentence), 0);
    f.node.n_shards = 2;
    snprintf(f.node.last_checkpoint_error, sizeof f.node.last_checkpoint_error,
             "no space left on device");
    assert_int_equal(render_health(&f.node, sentence, sizeof sentence), -1);
    assert_non_null(strstr(sentence, "no space left"));
    fixture_deinit(&f);
}

static void
a_coordination_service_that_is_away_is_shown_and_is_no_fault_of_the_node(void **state)
{
    struct fixture f;
    char sentence[320], *metrics;
    cJSON *json;

    (void)state;
    fixture_init(&f);
    json = rendered(&f.node, "stats");
    assert_null(cJSON_GetObjectItem(json, "coordination"));
    cJSON_Delete(json);
    f.node.coordination = (struct stats_coordination){ .is_on = true,
                                                       .is_away = true,
                                                       .away_unix_ms = 7,
                                                       .service = "etcd://h:1/c",
                                                       .error = "etcd at h:1: refused",
                                                       .has_claim = true,
                                                       .term = 3,
                                                       .primary = "a:1",
                                                       .in_sync = true };
    assert_int_equal(render_health(&f.node, sentence, sizeof sentence), 0);
    assert_non_null(strstr(sentence, "ok, but the coordination service does not answer"));
    assert_non_null(strstr(sentence, "etcd at h:1: refused"));
    json = rendered(&f.node, "stats");
    assert_text(json, "coordination.service", "etcd://h:1/c");
    assert_number(json, "coordination.away_unix_ms", 7);
    assert_number(json, "coordination.claim.term", 3);
    assert_text(json, "coordination.claim.primary", "a:1");
    cJSON_Delete(json);
    metrics = render_metrics(&f.node);
    assert_non_null(strstr(metrics, "\npsd_coordination_away 1\n"));
    free(metrics);
    fixture_deinit(&f);
}

static void certificates_are_shown_with_the_days_that_they_are_good_for(void **state)
{
    const uint64_t day_ms = 86400000;
    struct fixture f;
    char *text;
    cJSON *json;

    (void)state;
    fixture_init(&f);
    text = render_json(&f.node, "stats");
    assert_null(strstr(text, "\"tls\""));
    free(text);
    text = render_metrics(&f.node);
    assert_null(strstr(text, "\npsd_certificate_expiry_timestamp_seconds{"));
    free(text);
    f.node.clock_unix_ms = 100 * day_ms;
    f.node.tls = (struct stats_tls){ true, 130 * day_ms, 98 * day_ms, "lacks \"x\"" };
    text = render_json(&f.node, "stats");
    json = cJSON_Parse(text);
    assert_number(json, "tls.certificate_expires_unix_ms", 130 * 86400e3);
    assert_number(json, "tls.certificate_days", 30);
    assert_number(json, "tls.ca_days", -2);
    assert_string_equal(
        cJSON_GetObjectItem(cJSON_GetObjectItem(json, "tls"), "certificate_fault")->valuestring,
        "lacks \"x\"");
    cJSON_Delete(json);
    free(text);
    text = render_metrics(&f.node);
    assert_non_null(strstr(
        text, "\npsd_certificate_expiry_timestamp_seconds{certificate=\"node\"} 11232000\n"));
    assert_non_null(strstr(
        text, "\npsd_certificate_expiry_timestamp_seconds{certificate=\"ca\"} 8467200\n"));
    free(text);
    fixture_deinit(&f);
}

static void metrics_hold_what_stats_hold(void **state)
{
    static const char *const lines[] = {
        "# TYPE psd_requests_total counter\n",
        "\npsd_requests_total{shard=\"2\",type=\"pull\"} 1000\n",
        "\npsd_request_duration_seconds_bucket{shard=\"3\",type=\"pull\",le=\"+Inf\"} 1000\n",
        "\npsd_request_duration_seconds_count{shard=\"3\",type=\"pull\"} 1000\n",
        "\npsd_table_rows{shard=\"2\",table=\"emb\"} 500\n",
        "\npsd_table_rows{shard=\"3\",table=\"top\\\\w\\\"\"} 3\n",
        "\npsd_request_duration_seconds_bucket{shard=\"3\",type=\"pull\",le=\"0.001\"} 100\n",
        "\npsd_request_duration_seconds_bucket{shard=\"3\",type=\"join\",le=\"+Inf\"} 0\n",
        "\npsd_job_staleness_clocks_bucket{shard=\"2\",job=\"criteo\",le=\"+Inf\"} 17\n",
        "\npsd_job_staleness_clocks_count{shard=\"2\",job=\"criteo\"} 17\n",
        "\npsd_job_staleness_violations_total{shard=\"2\",job=\"criteo\"} 0\n",
        "\npsd_worker_live{shard=\"2\",rank=\"1\",job=\"criteo\"} 0\n",
        "\npsd_values_received_bytes_total{shard=\"2\",codec=\"int8\"} 300\n",
        "\npsd_refused_greetings_total{shard=\"door\"} 3\n",
        "\npsd_malformed_frames_total{shard=\"3\"} 1\n",
        "\npsd_healthy 1\n",
        "\npsd_waits 3\n", /* a parked pull of each shard, and the node's own */
        "\npsd_shard_tables_bytes{shard=\"2\"} 900\n",
        "\npsd_shard_cpu_seconds_total{shard=\"3\"} 12.000346\n",
        "\npsd_rows_evicted_total{shard=\"3\"} 5\n",
        "\npsd_table_index_bytes{shard=\"2\",table=\"emb\"} 4000\n",
        "\npsd_table_row_overhead_bytes{shard=\"2\",table=\"emb\"} 24.000\n",
        "\npsd_table_rows_idle_total{shard=\"2\",table=\"emb\"} 3\n",
        "\npsd_table_rows_removed_total{shard=\"2\",table=\"emb\"} 9\n",
    };
    struct fixture f;
    char *text;

    (void)state;
    fixture_init(&f);
    text = render_metrics(&f.node);
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        if (!strstr(text, lines[i]))
            fail_msg("missing: %s", lines[i]);
    /* Buckets of what nobody charts would be half of all samples. */
    assert_null(strstr(text, "type=\"join\",le=\"0"));
    assert_null(
        strstr(text, "psd_job_staleness_clocks_bucket{shard=\"2\",job=\"criteo\",le=\"0"));
    free(text);
    fixture_deinit(&f);
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;

    for (text = strstr(text, what); text; text = strstr(text + 1, what))
        n++;
    return n;
}

static void tables_beyond_the_limit_are_one_sum_on_each_shard(void **state)
{
    struct fixture f;
    char *text;

    (void)state;
    fixture_init(&f);
    f.node.metrics_tables = 1;
    text = render_metrics(&f.node);
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"2\",table=\"emb\"} 500\n"));
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"3\",table=\"emb\"} 500\n"));
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"3\"} 3\n"));
    assert_int_equal(count(text, "\npsd_table_rows{"), 4);
    /* What is of one row has no sum. */
    assert_int_equal(count(text, "\npsd_table_row_bytes{"), 2);
    assert_int_equal(count(text, "\npsd_table_row_overhead_bytes{"), 2);
    assert_null(strstr(text, "table=\"top"));
    free(text);

    f.node.metrics_tables = 0;
    text = render_metrics(&f.node);
    assert_null(strstr(text, "table=\""));
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"2\"} 503\n"));
    assert_int_equal(count(text, "\npsd_table_rows{"), 2);
    assert_int_equal(count(text, "\npsd_table_row_bytes{"), 0);
    assert_int_equal(count(text, "# TYPE psd_table_row_bytes gauge\n"), 1);
    free(text);
    fixture_deinit(&f);
}

/* Shards that made their tables in another order, or that lack one, agree on which are shown. */
static void the_tables_that_are_shown_are_the_first_shards(void **state)
{
    struct stats_table tables[2];
    struct shard_report *last;
    struct fixture f;
    char *text;

    (void)state;
    fixture_init(&f);
    last = (struct shard_report *)(uintptr_t)f.shards[1];
    memcpy(tables, last->tables, sizeof tables);
    last->tables[0] = tables[1];
    last->tables[1] = tables[0];
    f.node.metrics_tables = 1;
    text = render_metrics(&f.node);
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"3\",table=\"emb\"} 500\n"));
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"3\"} 3\n"));
    free(text);

    last->n_tables = 1; /* the other one is not there yet */
    text = render_metrics(&f.node);
    assert_null(strstr(text, "\npsd_table_rows{shard=\"3\",table"));
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"3\"} 3\n"));
    free(text);

    f.node.shards = (const struct shard_report *const[]){ NULL, last };
    text = render_metrics(&f.node);
    assert_non_null(strstr(text, "\npsd_table_rows{shard=\"3\",table=\"top"));
    assert_int_equal(count(text, "\npsd_table_rows{"), 1);
    free(text);
    memcpy(last->tables, tables, sizeof tables);
    fixture_deinit(&f);
}

static void without_memory_there_is_no_text(void **state)
{
    struct fixture f;
    char *text;

    (void)state;
    fixture_init(&f);
#ifdef PS_FAULTS
    memory_fail_after(0);
    text = render_metrics(&f.node);
    memory_fail_after(-1);
    assert_null(text);
#endif
    text = render_metrics(&f.node);
    assert_non_null(text);
    free(text);
    fixture_deinit(&f);
}

static void a_job_shows_its_bound_and_an_async_one_has_none(void **state)
{
    struct fixture f;
    char *text;

    (void)state;
    fixture_init(&f);
    f.shards[0]->jobs[0].mode = TABLE_SPEC_MODE_SSP;
    f.shards[0]->jobs[0].bound = 4;
    f.shards[1]->jobs[0].mode = TABLE_SPEC_MODE_BSP;
    f.shards[1]->jobs[0].bound = 4; /* of no use in lock step */
    text = render_metrics(&f.node);
    assert_non_null(
        strstr(text, "\npsd_job_staleness_bound_clocks{shard=\"2\",job=\"criteo\"} 4\n"));
    assert_non_null(
        strstr(text, "\npsd_job_staleness_bound_clocks{shard=\"3\",job=\"criteo\"} 0\n"));
    free(text);
    f.shards[0]->jobs[0].mode = TABLE_SPEC_MODE_ASYNC;
    text = render_metrics(&f.node);
    assert_int_equal(count(text, "\npsd_job_staleness_bound_clocks{"), 1);
    free(text);
    fixture_deinit(&f);
}

static void promtool_has_no_complaint_about_the_metrics(void **state)
{
    char path[] = "/tmp/psd-metrics-XXXXXX", command[128], complaint[200] = "";
    struct fixture f;
    char *text;
    FILE *out;

    (void)state;
    if (system("command -v promtool >/dev/null") != 0) {
        print_message("skipped: there is no promtool\n");
        skip();
    }
    fixture_init(&f);
    text = render_metrics(&f.node);
    out = fdopen(mkstemp(path), "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    snprintf(command, sizeof command, "promtool check metrics <%s 2>&1", path);
    out = popen(command, "r");
    assert_non_null(out);
    while (fgets(complaint, sizeof complaint, out))
        print_message("%s", complaint);
    assert_int_equal(pclose(out), 0);
    assert_string_equal(complaint, "");
    unlink(path);
    free(text);
    fixture_deinit(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats_show_each_shard_and_their_total),
        cmocka_unit_test(a_worker_has_left_a_node_when_it_has_left_all_shards),
        cmocka_unit_test(
            a_worker_is_suspected_where_one_shard_suspects_it_and_none_knows_better),
        cmocka_unit_test(a_table_reports_its_memory_and_which_rows_come_and_go),
        cmocka_unit_test(the_staleness_histogram_names_each_value_that_was_seen),
        cmocka_unit_test(what_workers_learn_is_in_stats_metrics_and_the_curve),
        cmocka_unit_test(numbers_of_64_bits_stay_exact_and_names_of_peers_stay_text),
        cmocka_unit_test(a_question_gets_its_part_and_an_unknown_one_nothing),
        cmocka_unit_test(a_node_before_its_first_reports_is_shown_too),
        cmocka_unit_test(health_is_red_when_a_shard_is_stuck_or_a_checkpoint_failed),
        cmocka_unit_test(
            a_coordination_service_that_is_away_is_shown_and_is_no_fault_of_the_node),
        cmocka_unit_test(certificates_are_shown_with_the_days_that_they_are_good_for),
        cmocka_unit_test(metrics_hold_what_stats_hold),
        cmocka_unit_test(tables_beyond_the_limit_are_one_sum_on_each_shard),
        cmocka_unit_test(the_tables_that_are_shown_are_the_first_shards),
        cmocka_unit_test(without_memory_there_is_no_text),
        cmocka_unit_test(a_job_shows_its_bound_and_an_async_one_has_none),
        cmocka_unit_test(promtool_has_no_complaint_about_the_metrics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
