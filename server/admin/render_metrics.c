/*
 * Prometheus' text format, 0.0.4: all samples of a name stand together under its HELP and TYPE.
 * Most names are rows of a table: where the number stands in a shard's report, and what it
 * means.
 *
 * https://prometheus.io/docs/instrumenting/exposition_formats/
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "server/admin/metrics_tables.h"
#include "server/admin/metrics_text.h"
#include "server/admin/render.h"

#define NET(name, type, field, help)                                      \
    {                                                                     \
        "psd_" name, type, help, offsetof(struct stats_net, field), false \
    }
static const struct metrics_family net_families[] = {
    NET("connections", "gauge", connections, "Connections open now."),
    NET("connections_opened_total", "counter", connections_total, "Connections taken."),
    NET("received_bytes_total", "counter", bytes_in, "Bytes received from workers."),
    NET("sent_bytes_total", "counter", bytes_out, "Bytes sent to workers."),
    NET("malformed_frames_total", "counter", malformed_frames,
        "Frames whose magic, type, length or checksum was wrong; each closed its connection."),
    NET("refused_requests_total", "counter", refused_requests,
        "Deprecated: psd_requests_refused_total, which has each type."),
    NET("refused_greetings_total", "counter", refused_handshakes,
        "Handshakes refused by the listener."),
    NET("slow_peers_total", "counter", slow_peers,
        "Connections closed for a message not finished in time."),
    NET("evicted_peers_total", "counter", evicted_peers,
        "Connections closed that did nothing: for too long, or in the way of others."),
    NET("greedy_peers_total", "counter", greedy_peers,
        "Connections closed as they held most of --client-memory, or of the replies that wait "
        "for the "
        "write-ahead log."),
    NET("held_bytes", "gauge", held_bytes,
        "Memory of messages and replies that connections have received or not sent yet."),
    NET("refused_connections_total", "counter", refused_connections,
        "Connections refused as no place was left, for all or for their address."),
    NET("unjoined_connections", "gauge", unjoined_connections,
        "Connections open now that have not joined a job."),
    NET("parked_pulls", "gauge", parked_pulls, "Pulls that wait for slower workers now."),
    NET("pulls_parked_total", "counter", parked_pulls_total,
        "Pulls that had to wait for slower workers."),
    NET("pulls_expired_total", "counter", expired_pulls, "Parked pulls whose deadline passed."),
    NET("delta_bytes", "gauge", delta_bytes,
        "Memory of what workers are known to have: rows, keys of their last pulls."),
};

#define SHARD(name, type, field, help)                                       \
    {                                                                        \
        "psd_" name, type, help, offsetof(struct shard_report, field), false \
    }
static const struct metrics_family shard_families[] = {
    SHARD("shard_bytes", "gauge", bytes, "Memory of rows, index and held pushes."),
    SHARD("shard_tables_bytes", "gauge", tables_bytes,
          "Memory of rows, index and sketches: what the budget counts."),
    SHARD("shard_memory_max_bytes", "gauge", memory_max_bytes,
          "Budget of a shard; 0 is no limit."),
    SHARD("shard_version", "gauge", version, "Deprecated: psd_shard_changes_total."),
    SHARD("shard_changes_total", "counter", version,
          "Pushes, in lock step clocks, that have changed rows; of before a restart, too."),
    SHARD("pulls_total", "counter", counters.pulls, "Pulls answered."),
    SHARD("pushes_total", "counter", counters.pushes,
          "Pushes that used up their number: applied, held or refused."),
    SHARD("pushes_repeated_total", "counter", counters.pushes_repeated,
          "Pushes sent again and not applied again."),
    SHARD("pushes_refused_total", "counter", counters.pushes_refused, "Pushes refused."),
    SHARD("pushes_fenced_total", "counter", counters.pushes_fenced,
          "Pushes of workers that are suspected, dead or replaced."),
    SHARD("pushes_dropped_total", "counter", counters.pushes_dropped,
          "Held pushes of a clock that their worker did not end, or did again."),
    SHARD("pushes_not_finite_total", "counter", counters.nan_pushes,
          "Pushes that held NaN or infinity."),
    SHARD("pushes_beyond_gradient_max_total", "counter", counters.huge_pushes,
          "Pushes refused for a finite gradient beyond gradient-max."),
    SHARD("rows_clipped_total", "counter", counters.rows_clipped,
          "Rows of pushes with a gradient clipped to gradient-max."),
    SHARD("ticks_total", "counter", counters.ticks, "Steps that workers finished."),
    SHARD("combined_clocks_total", "counter", counters.combined_clocks,
          "Lock-step clocks applied."),
    SHARD("rows_pulled_total", "counter", counters.rows_pulled, "Rows read."),
    SHARD("delta_rows_unchanged_total", "counter", counters.delta_rows[SECTION_DELTA_NONE],
          "Rows that a pull of differences left out, as the worker's are close enough."),
    SHARD("delta_rows_onebit_total", "counter", counters.delta_rows[SECTION_DELTA_ONEBIT],
          "Rows sent as differences of one bit a float, or sparse."),
    SHARD("delta_rows_byte_total", "counter", counters.delta_rows[SECTION_DELTA_INT8],
          "Rows sent as differences of a byte a float."),
    SHARD("delta_rows_whole_total", "counter", counters.delta_rows[SECTION_DELTA_FULL],
          "Rows sent whole in answer to a pull of differences."),
    SHARD("delta_restarts_total", "counter", counters.delta_anew,
          "Answers with differences that did not go on from an earlier one."),
    SHARD("delta_saved_bytes_total", "counter", counters.delta_bytes_saved,
          "Bytes that whole rows would have taken beyond their differences."),
    SHARD("rows_pushed_total", "counter", counters.rows_pushed, "Rows updated."),
    SHARD("rows_created_total", "counter", counters.rows_new, "Rows made on first touch."),
    SHARD("rows_refused_total", "counter", counters.rows_refused,
          "New rows refused for want of memory."),
    SHARD("rows_unadmitted_total", "counter", counters.rows_unadmitted,
          "Pushes of keys that have not come often enough to get a row."),
    SHARD("rows_evicted_total", "counter", counters.rows_evicted,
          "Rows removed to make space under a full budget."),
    SHARD("rows_idle_total", "counter", counters.rows_idle,
          "Rows removed as no push came for idle_clocks."),
    SHARD("rows_expired_total", "counter", counters.rows_expired,
          "Rows removed as no push came for their time to live."),
    SHARD("rows_rare_total", "counter", counters.rows_rare,
          "Rows removed as too few pushes came in rare_clocks."),
    SHARD("log_records", "gauge", log.appended, "Deprecated: psd_log_records_total."),
    SHARD("log_records_total", "counter", log.appended,
          "Records of the write-ahead log: the number of the last."),
    SHARD("log_durable_records", "gauge", log.durable,
          "Deprecated: psd_log_durable_records_total."),
    SHARD("log_durable_records_total", "counter", log.durable,
          "Records that are known to be on the disk: the number of the last."),
    SHARD("log_held_bytes", "gauge", log.held_bytes,
          "Memory of records that are not safe yet."),
    SHARD("log_written_bytes_total", "counter", log.bytes,
          "Bytes written to the write-ahead log."),
    SHARD("log_syncs_total", "counter", log.n_syncs, "Syncs of the write-ahead log."),
    SHARD("log_failures_total", "counter", log.n_failures,
          "Writes and syncs of the write-ahead log that failed."),
    SHARD("log_dropped_records_total", "counter", log.n_dropped,
          "Records dropped because the disk failed and memory was full."),
    SHARD("log_failed", "gauge", log.is_failed,
          "1 while the write-ahead log cannot be written."),
    SHARD("log_has_gap", "gauge", log.has_gap,
          "1 while records are missing from the write-ahead log, until the next checkpoint."),
    SHARD(
        "log_full", "gauge", log.is_full,
        "1 while pushes, joins and tables wait as the memory of the write-ahead log is full."),
    SHARD("log_disk_bytes_per_second", "gauge", log.disk_bytes_per_s,
          "Speed of the write-ahead log's disk, measured in its last syncs; 0: not known."),
    SHARD("log_pushes_waiting", "gauge", log.n_pushes_waiting,
          "Pushes that wait now because the write-ahead log's disk is slower."),
    SHARD("log_replies_waiting", "gauge", log.n_waiting,
          "Replies that wait until their event is on the disk."),
};

#define JOB(name, type, field, help)                                          \
    {                                                                         \
        "psd_job_" name, type, help, offsetof(struct stats_job, field), false \
    }
static const struct metrics_family job_families[] = {
    JOB("min_clock", "gauge", min_clock,
        "Steps that the slowest counted worker of a job has finished."),
    JOB("fenced_total", "counter", n_fenced,
        "Messages of workers that are suspected, dead or replaced."),
    JOB("lost_pushes_total", "counter", n_lost,
        "Pushes that had been acknowledged and were not there after a restart (durability "
        "async)."),
    JOB("worker_deaths_total", "counter", n_deaths, "Workers whose lease ended."),
    JOB("staleness_violations_total", "counter", staleness_violations,
        "Pulls answered beyond the bound; must be 0."),
};

static void put_one(FILE *out, const char *name, const char *type, const char *help,
                    double value)
{
    metrics_text_head(out, name, type, help);
    fprintf(out, "%s %.17g\n", name, value);
}

static uint64_t n_waits(const struct node_report *node)
{
    uint64_t n = node->n_waits;

    for (uint32_t s = 0; s < node->n_shards; s++)
        n += node->shards[s] ? node->shards[s]->n_waits : 0;
    return n;
}

/* The names that every Prometheus client library has for these. */
static void put_process(FILE *out, const struct node_report *node)
{
    put_one(out, "process_cpu_seconds_total", "counter",
            "Time that the process has computed, user and system.", (double)node->cpu_us / 1e6);
    put_one(out, "process_resident_memory_bytes", "gauge", "Resident memory of the process.",
            (double)node->rss_bytes);
    put_one(out, "process_virtual_memory_bytes", "gauge", "Address space of the process.",
            (double)node->virtual_bytes);
    put_one(out, "process_start_time_seconds", "gauge", "When the process started, Unix time.",
            (double)node->started_unix_ms / 1000);
    put_one(out, "process_open_fds", "gauge", "Open file descriptors.", (double)node->n_fds);
    put_one(out, "process_max_fds", "gauge", "Limit of file descriptors.",
            (double)node->n_fds_max);
    put_one(out, "process_threads", "gauge", "Threads of the process.",
            (double)node->n_threads);
}

static void put_replication(FILE *out, const struct stats_standby *standby)
{
    put_one(
        out, "psd_standby_missing", "gauge",
        "1 while there is to be a standby, and none is in sync; with --standby-ack no: and it "
        "does not follow.",
        standby->is_missing);
    if (!standby->is_on)
        return;
    put_one(out, "psd_term", "gauge", "The term of the primary, as this node knows it.",
            (double)standby->term);
    put_one(out, "psd_standby_in_sync", "gauge",
            "1 while the standby has all that the primary acknowledges.", standby->in_sync);
    put_one(out, "psd_standby_lag_records", "gauge",
            "Records of the write-ahead logs that the standby does not have yet.",
            (double)standby->lag_records);
    put_one(out, "psd_standby_lag_seconds", "gauge",
            "How old the state is that the standby has, while it lacks records.",
            (double)standby->lag_ms / 1000);
    put_one(out, "psd_standby_differences_total", "counter",
            "Times that the standby has found a row of its own that is not the primary's.",
            (double)standby->n_differences);
}

static void put_coordination(FILE *out, const struct stats_coordination *c)
{
    put_one(out, "psd_coordination_away", "gauge",
            "1 while the coordination service does not answer: no standby takes over.",
            c->is_away);
}

static void put_expiry(FILE *out, const char *which, uint64_t unix_ms)
{
    if (unix_ms)
        fprintf(out, "psd_certificate_expiry_timestamp_seconds{certificate=\"%s\"} %.0f\n",
                which, (double)unix_ms / 1000);
}

static void put_tls(FILE *out, const struct stats_tls *tls)
{
    metrics_text_head(
        out, "psd_certificate_expiry_timestamp_seconds", "gauge",
        "When the node's certificate, or the first of its CA's, expires, Unix time.");
    put_expiry(out, "node", tls->own_unix_ms);
    put_expiry(out, "ca", tls->ca_unix_ms);
}

static void put_checkpoints(FILE *out, const struct node_report *node)
{
    put_one(out, "psd_checkpoints_total", "counter", "Checkpoints written.",
            (double)node->checkpoints_done);
    put_one(out, "psd_checkpoints_failed_total", "counter", "Checkpoints that failed.",
            (double)node->checkpoints_failed);
    put_one(out, "psd_last_checkpoint_timestamp_seconds", "gauge",
            "When the last checkpoint was whole, Unix time.",
            (double)node->last_checkpoint_unix_ms / 1000);
    put_one(out, "psd_last_checkpoint_bytes", "gauge",
            "Size of the last checkpoint's files; of a delta, its own.",
            (double)node->last_checkpoint_bytes);
    put_one(out, "psd_last_checkpoint_rows", "gauge", "Rows in the last checkpoint's files.",
            (double)node->last_checkpoint_rows);
    put_one(out, "psd_last_checkpoint_duration_seconds", "gauge",
            "How long the last checkpoint took; 0: it was there at the start.",
            (double)node->last_checkpoint_took_ms / 1000);
}

static void put_node(FILE *out, const struct node_report *node)
{
    char sentence[STATS_HEALTH_MAX];

    metrics_text_head(out, "psd_build_info", "gauge", "The program's version.");
    fprintf(out, "psd_build_info{node=\"%" PRIu32 "\"", node->node);
    metrics_text_label(out, "version", node->version);
    fprintf(out, "} 1\n");
    put_one(out, "psd_ready", "gauge", "1 when the node takes work.",
            node->ready && !node->stopping);
    put_one(out, "psd_restoring", "gauge",
            "1 while the node restores its data, before it takes work.", node->restore.is_on);
    put_one(out, "psd_restore_bytes", "gauge",
            "Bytes that the start has read of checkpoints and write-ahead logs.",
            (double)node->restore.n_bytes);
    put_one(out, "psd_restore_expected_bytes", "gauge",
            "Bytes of checkpoints and write-ahead logs that the start must read; 0: not known.",
            (double)node->restore.n_total_bytes);
    put_one(out, "psd_restore_records", "gauge",
            "Records of write-ahead logs that the start has replayed.",
            (double)node->restore.n_records);
    put_one(out, "psd_healthy", "gauge",
            "1 when every shard reports, its write-ahead log works, the last checkpoint "
            "did not fail, and the node waits for no standby.",
            render_health(node, sentence, sizeof sentence) == 0);
    put_replication(out, &node->standby);
    put_coordination(out, &node->coordination);
    put_tls(out, &node->tls);
    put_one(out, "psd_start_time_seconds", "gauge", "When the node started, Unix time.",
            (double)node->started_unix_ms / 1000);
    put_one(out, "psd_resident_memory_bytes", "gauge", "Memory of the process.",
            (double)node->rss_bytes);
    put_one(out, "psd_memory_max_bytes", "gauge", "Memory budget of the node; 0 is no limit.",
            (double)node->memory_max_bytes);
    put_one(out, "psd_memory_reserve_left_bytes", "gauge",
            "Memory reserved at the start that no table uses yet.",
            (double)node->memory_reserve_left_bytes);
    put_one(out, "psd_client_memory_max_bytes", "gauge", "Limit of the sum of psd_held_bytes.",
            (double)node->client_memory_max_bytes);
    put_checkpoints(out, node);
    put_one(out, "psd_http_connections", "gauge", "Connections to the stats endpoint.",
            (double)node->http_connections);
    put_one(out, "psd_http_evicted_total", "counter",
            "Connections to the stats endpoint cut off: too slow, or the oldest of too many.",
            (double)node->http_evicted);
    put_one(
        out, "psd_waits", "gauge",
        "Waits now, as psctl why lists them: parked pulls, workers, greetings, a checkpoint.",
        (double)n_waits(node));
}

static void put_disk(FILE *out, const struct stats_disk *disk)
{
    if (!disk->is_on)
        return;
    put_one(out, "psd_disk_checkpoint_bytes", "gauge",
            "Bytes of checkpoints in the data directory.", (double)disk->checkpoint_bytes);
    put_one(out, "psd_disk_log_bytes", "gauge",
            "Bytes of write-ahead logs in the data directory.", (double)disk->log_bytes);
    put_one(out, "psd_disk_aside_bytes", "gauge",
            "Bytes of archived checkpoints and logs in the data directory; psctl prune removes "
            "them.",
            (double)disk->archived_bytes);
    put_one(out, "psd_disk_free_bytes", "gauge",
            "Bytes that psd may still write to the data directory's file system.",
            (double)disk->free_bytes);
    put_one(out, "psd_disk_bytes", "gauge", "Size of the data directory's file system.",
            (double)disk->size_bytes);
    put_one(out, "psd_scrubs_total", "counter",
            "Scrubs: how often all checkpoints and write-ahead logs were read and checked.",
            (double)disk->n_scrubs);
    put_one(out, "psd_scrub_bytes_total", "counter", "Bytes read by scrubs.",
            (double)disk->scrubbed_bytes);
    put_one(out, "psd_scrub_damaged_files", "gauge", "Files that the last scrub found damaged.",
            (double)disk->n_damaged);
    put_one(out, "psd_last_scrub_timestamp_seconds", "gauge",
            "End of the last scrub, Unix time.", (double)disk->scrubbed_unix_ms / 1000);
}

static void put_net(FILE *out, const struct node_report *node)
{
    for (size_t i = 0; i < COUNT_OF(net_families); i++) {
        const struct metrics_family *f = &net_families[i];

        metrics_text_head(out, f->name, f->type, f->help);
        fprintf(out, "%s{shard=\"door\"} %" PRIu64 "\n", f->name,
                metrics_text_field(&node->listener, f));
        for (uint32_t s = 0; s < node->n_shards; s++)
            if (node->shards[s])
                fprintf(out, "%s{shard=\"%" PRIu32 "\"} %" PRIu64 "\n", f->name,
                        node->shards[s]->shard, metrics_text_field(&node->shards[s]->net, f));
    }
}

static void put_shards(FILE *out, const struct node_report *node)
{
    for (size_t i = 0; i < COUNT_OF(shard_families); i++) {
        const struct metrics_family *f = &shard_families[i];

        metrics_text_head(out, f->name, f->type, f->help);
        for (uint32_t s = 0; s < node->n_shards; s++)
            if (node->shards[s])
                fprintf(out, "%s{shard=\"%" PRIu32 "\"} %" PRIu64 "\n", f->name,
                        node->shards[s]->shard, metrics_text_field(node->shards[s], f));
    }
    metrics_text_head(out, "psd_shard_cpu_seconds_total", "counter",
                      "Time that the shard's thread has computed, user and system.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        if (node->shards[s])
            fprintf(out, "psd_shard_cpu_seconds_total{shard=\"%" PRIu32 "\"} %.6f\n",
                    node->shards[s]->shard, (double)node->shards[s]->cpu_us / 1e6);
    metrics_text_head(
        out, "psd_log_push_wait_seconds_total", "counter",
        "Time that pushes waited for the log's disk, of all that wait no longer.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        if (node->shards[s])
            fprintf(out, "psd_log_push_wait_seconds_total{shard=\"%" PRIu32 "\"} %.6f\n",
                    node->shards[s]->shard, (double)node->shards[s]->log.push_wait_us / 1e6);
    metrics_text_head(out, "psd_shard_report_age_seconds", "gauge",
                      "Age of the shard's last report.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        if (node->shards[s])
            fprintf(out, "psd_shard_report_age_seconds{shard=\"%" PRIu32 "\"} %.3f\n",
                    node->shards[s]->shard,
                    node->clock_mono_ms > node->shards[s]->made_mono_ms
                        ? (double)(node->clock_mono_ms - node->shards[s]->made_mono_ms) / 1000
                        : 0.0);
}

static void put_codec_bytes(FILE *out, const struct node_report *node, const char *name,
                            const char *help, size_t offset)
{
    metrics_text_head(out, name, "counter", help);
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t id = 0; node->shards[s] && id < CODEC_ID_END; id++) {
            const char *counters = (const char *)&node->shards[s]->counters;

            fprintf(out, "%s{shard=\"%" PRIu32 "\",codec=\"%s\"} %" PRIu64 "\n", name,
                    node->shards[s]->shard, codec_by_id(id)->name,
                    ((const uint64_t *)(const void *)(counters + offset))[id]);
        }
}

/* Those of no shard are operators'. */
static void put_request_counts(FILE *out, const struct node_report *node, const char *name,
                               const char *help, uint64_t n_of_operators, size_t offset)
{
    metrics_text_head(out, name, "counter", help);
    fprintf(out, "%s{shard=\"door\",type=\"%s\"} %" PRIu64 "\n", name,
            frame_type_name(FRAME_ADMIN), n_of_operators);
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (unsigned type = 1; node->shards[s] && type < FRAME_TYPE_END; type += 2) {
            const char *requests = (const char *)&node->shards[s]->requests[type];

            fprintf(out, "%s{shard=\"%" PRIu32 "\",type=\"%s\"} %" PRIu64 "\n", name,
                    node->shards[s]->shard, frame_type_name(type),
                    *(const uint64_t *)(const void *)(requests + offset));
        }
}

/* One histogram: cumulative buckets at `limits`, each shown as limit / scale; `labels` without
 * braces. The thread that records goes on meanwhile in no copy of ours, so +Inf and _count are
 * one number. */
static void put_histogram(FILE *out, const char *name, const char *labels,
                          const struct histogram *h, const uint64_t *limits, size_t n_limits,
                          double scale)
{
    uint64_t n = h->n, below = 0;

    for (size_t i = 0; i < n_limits; i++) {
        uint64_t le = histogram_count_le(h, limits[i]);

        below = le > below ? le : below;
        below = below < n ? below : n;
        fprintf(out, "%s_bucket{%s,le=\"%.9g\"} %" PRIu64 "\n", name, labels,
                (double)limits[i] / scale, below);
    }
    fprintf(out, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", name, labels, n);
    fprintf(out, "%s_sum{%s} %.9g\n", name, labels, (double)h->sum / scale);
    fprintf(out, "%s_count{%s} %" PRIu64 "\n", name, labels, n);
}

/* Of what nobody charts: the mean alone, in the only bucket that a histogram must have. */
static void put_mean(FILE *out, const char *name, const char *labels, const struct histogram *h,
                     double scale)
{
    put_histogram(out, name, labels, h, NULL, 0, scale);
}

static const uint64_t ns_limits[] = { 10000,      25000,      50000,     100000,    250000,
                                      500000,     1000000,    2500000,   5000000,   10000000,
                                      25000000,   50000000,   100000000, 250000000, 1000000000,
                                      5000000000, 30000000000 };

static void put_latencies(FILE *out, const struct node_report *node)
{
    const char *name = "psd_request_duration_seconds";
    char labels[128];

    metrics_text_head(
        out, name, "histogram",
        "From a request's last byte to its reply; a pull's parked time included.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (unsigned type = 1; node->shards[s] && type < FRAME_TYPE_END; type += 2) {
            snprintf(labels, sizeof labels, "shard=\"%" PRIu32 "\",type=\"%s\"",
                     node->shards[s]->shard, frame_type_name(type));
            if (type == FRAME_PULL || type == FRAME_PUSH)
                put_histogram(out, name, labels, &node->shards[s]->requests[type].latency_ns,
                              ns_limits, COUNT_OF(ns_limits), 1e9);
            else
                put_mean(out, name, labels, &node->shards[s]->requests[type].latency_ns, 1e9);
        }
}

static void put_read_waits(FILE *out, const struct node_report *node)
{
    const char *name = "psd_read_wait_seconds";
    char labels[32];

    metrics_text_head(
        out, name, "histogram",
        "At most so long a reader's request waited for its turn, before it was read.");
    for (uint32_t s = 0; s < node->n_shards; s++) {
        if (!node->shards[s])
            continue;
        snprintf(labels, sizeof labels, "shard=\"%" PRIu32 "\"", node->shards[s]->shard);
        put_mean(out, name, labels, &node->shards[s]->read_wait_ns, 1e9);
    }
}

/* shard="0",job="..." as text, to be freed; NULL without memory. */
static char *job_labels(const struct shard_report *shard, const struct stats_job *job)
{
    char *labels = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&labels, &n_bytes);

    if (!out)
        return NULL;
    fprintf(out, "shard=\"%" PRIu32 "\"", shard->shard);
    metrics_text_label(out, "job", job->name);
    if (fclose(out) != 0) {
        free(labels);
        return NULL;
    }
    return labels;
}

static void put_staleness(FILE *out, const struct node_report *node)
{
    const char *name = "psd_job_staleness_clocks";

    metrics_text_head(out, name, "histogram",
                      "Clocks that answered pulls were ahead of the job's min clock.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t i = 0; node->shards[s] && i < node->shards[s]->n_jobs; i++) {
            const struct stats_job *job = &node->shards[s]->jobs[i];
            char *labels = job_labels(node->shards[s], job);

            if (labels)
                put_mean(out, name, labels, &job->staleness, 1);
            free(labels);
        }
}

static void put_bounds(FILE *out, const struct node_report *node)
{
    const char *name = "psd_job_staleness_bound_clocks";

    metrics_text_head(
        out, name, "gauge",
        "Clocks that a pull may be ahead of the job's min clock; not of an async job.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t n = 0; node->shards[s] && n < node->shards[s]->n_jobs; n++) {
            const struct stats_job *job = &node->shards[s]->jobs[n];

            if (job->mode == TABLE_SPEC_MODE_ASYNC)
                continue;
            fprintf(out, "%s{shard=\"%" PRIu32 "\"", name, node->shards[s]->shard);
            metrics_text_label(out, "job", job->name);
            fprintf(out, "} %" PRIu32 "\n", job->mode == TABLE_SPEC_MODE_SSP ? job->bound : 0);
        }
}

static double samples_of(const struct learning_summary *l)
{
    return (double)l->samples;
}

static double samples_per_s_of(const struct learning_summary *l)
{
    return (double)l->samples_per_s;
}

static double loss_of(const struct learning_summary *l)
{
    return (double)l->loss;
}

static double auc_of(const struct learning_summary *l)
{
    return (double)l->auc;
}

static double logloss_of(const struct learning_summary *l)
{
    return (double)l->logloss;
}

/* What workers report: a sample of each job, of the shard that gets the reports, and none of what is not known. */
static void put_learning(FILE *out, const struct node_report *node)
{
    static const struct {
        const char *name, *type, *help;
        double (*value)(const struct learning_summary *l);
    } families[] = {
        { "psd_job_samples_total", "counter", "Samples that a job's workers have trained on.",
          samples_of },
        { "psd_job_samples_per_second", "gauge", "Samples a second of a job's live workers.",
          samples_per_s_of },
        { "psd_job_loss", "gauge", "Mean loss that a job's workers reported last.", loss_of },
        { "psd_job_auc", "gauge", "AUC of a job's last validation.", auc_of },
        { "psd_job_logloss", "gauge", "Log-loss of a job's last validation.", logloss_of },
    };

    for (size_t i = 0; i < COUNT_OF(families); i++) {
        metrics_text_head(out, families[i].name, families[i].type, families[i].help);
        for (uint32_t s = 0; s < node->n_shards; s++)
            for (uint32_t n = 0; node->shards[s] && n < node->shards[s]->n_jobs; n++) {
                const struct learning_summary *l = &node->shards[s]->jobs[n].learning;
                const double value = families[i].value(l);

                if (!l->unix_ms || isnan(value))
                    continue;
                fprintf(out, "%s{shard=\"%" PRIu32 "\"", families[i].name,
                        node->shards[s]->shard);
                metrics_text_label(out, "job", node->shards[s]->jobs[n].name);
                fprintf(out, "} %.9g\n", value);
            }
    }
}

static void put_jobs(FILE *out, const struct node_report *node)
{
    for (size_t i = 0; i < COUNT_OF(job_families); i++) {
        const struct metrics_family *f = &job_families[i];

        metrics_text_head(out, f->name, f->type, f->help);
        for (uint32_t s = 0; s < node->n_shards; s++)
            for (uint32_t n = 0; node->shards[s] && n < node->shards[s]->n_jobs; n++) {
                fprintf(out, "%s{shard=\"%" PRIu32 "\"", f->name, node->shards[s]->shard);
                metrics_text_label(out, "job", node->shards[s]->jobs[n].name);
                fprintf(out, "} %" PRIu64 "\n",
                        metrics_text_field(&node->shards[s]->jobs[n], f));
            }
    }
    metrics_text_head(
        out, "psd_job_parked_seconds_total", "counter",
        "Time that pulls of a job have waited for slower workers, those that wait now "
        "included.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t n = 0; node->shards[s] && n < node->shards[s]->n_jobs; n++) {
            fprintf(out, "psd_job_parked_seconds_total{shard=\"%" PRIu32 "\"",
                    node->shards[s]->shard);
            metrics_text_label(out, "job", node->shards[s]->jobs[n].name);
            fprintf(out, "} %.3f\n", (double)node->shards[s]->jobs[n].parked_ms / 1000);
        }
    put_bounds(out, node);
    put_staleness(out, node);
    put_learning(out, node);
}

static uint64_t worker_clock(const struct stats_worker *w)
{
    return w->clock;
}

static uint64_t worker_is_live(const struct stats_worker *w)
{
    return w->state == WORKER_LIVE;
}

static void put_workers(FILE *out, const struct node_report *node, const char *name,
                        const char *help, uint64_t (*value)(const struct stats_worker *))
{
    metrics_text_head(out, name, "gauge", help);
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t i = 0; node->shards[s] && i < node->shards[s]->n_workers; i++) {
            const struct stats_worker *w = &node->shards[s]->workers[i];

            fprintf(out, "%s{shard=\"%" PRIu32 "\",rank=\"%" PRIu32 "\"", name,
                    node->shards[s]->shard, w->rank);
            metrics_text_label(out, "job", w->job);
            fprintf(out, "} %" PRIu64 "\n", value(w));
        }
}

/* False without memory. */
static bool put_all(FILE *out, const struct node_report *node)
{
    put_node(out, node);
    put_disk(out, &node->disk);
    put_process(out, node);
    put_net(out, node);
    put_shards(out, node);
    if (!metrics_tables_put(out, node))
        return false;
    put_codec_bytes(out, node, "psd_values_received_bytes_total",
                    "Encoded row values received.",
                    offsetof(struct shard_counters, value_bytes_in));
    put_codec_bytes(out, node, "psd_values_sent_bytes_total", "Encoded row values sent.",
                    offsetof(struct shard_counters, value_bytes_out));
    put_request_counts(out, node, "psd_requests_total", "Requests answered.",
                       node->admin_requests, offsetof(struct stats_requests, n));
    put_request_counts(out, node, "psd_requests_refused_total", "Requests refused.",
                       node->listener.refused_requests,
                       offsetof(struct stats_requests, n_refused));
    put_latencies(out, node);
    put_read_waits(out, node);
    put_jobs(out, node);
    put_workers(out, node, "psd_worker_clock", "Steps that a worker has finished.",
                worker_clock);
    put_workers(out, node, "psd_worker_live", "1 while a worker is live or suspected.",
                worker_is_live);
    return true;
}

char *render_metrics(const struct node_report *node)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&text, &n_bytes);
    bool failed;

    if (!out)
        return NULL;
    failed = !put_all(out, node) || ferror(out) != 0;
    if (fclose(out) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}
