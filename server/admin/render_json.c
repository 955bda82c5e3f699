#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec_catalog.h"
#include "server/admin/json.h"
#include "server/admin/render.h"

/* psctl's status wants numbers, /stats wants all. */
enum detail { NUMBERS_ONLY, WITH_LISTS };

static void put_net(struct json *j, const char *key, const struct stats_net *net)
{
    json_open(j, key);
    json_u64(j, "connections", net->connections);
    json_u64(j, "connections_total", net->connections_total);
    json_u64(j, "bytes_in", net->bytes_in);
    json_u64(j, "bytes_out", net->bytes_out);
    json_u64(j, "malformed_frames", net->malformed_frames);
    json_u64(j, "refused_requests", net->refused_requests);
    json_u64(j, "refused_greetings", net->refused_handshakes);
    json_u64(j, "slow_peers", net->slow_peers);
    json_u64(j, "evicted_peers", net->evicted_peers);
    json_u64(j, "greedy_peers", net->greedy_peers);
    json_u64(j, "held_bytes", net->held_bytes);
    json_u64(j, "refused_connections", net->refused_connections);
    json_u64(j, "unjoined_connections", net->unjoined_connections);
    json_u64(j, "parked_pulls", net->parked_pulls);
    json_u64(j, "parked_pulls_total", net->parked_pulls_total);
    json_u64(j, "expired_pulls", net->expired_pulls);
    json_u64(j, "delta_bytes", net->delta_bytes);
    json_close(j);
}

static void put_counters(struct json *j, const struct shard_counters *c)
{
    json_open(j, "counters");
    json_u64(j, "pulls", c->pulls);
    json_u64(j, "pushes", c->pushes);
    json_u64(j, "pushes_repeated", c->pushes_repeated);
    json_u64(j, "pushes_refused", c->pushes_refused);
    json_u64(j, "pushes_fenced", c->pushes_fenced);
    json_u64(j, "pushes_dropped", c->pushes_dropped);
    json_u64(j, "ticks", c->ticks);
    json_u64(j, "rows_pulled", c->rows_pulled);
    json_u64(j, "rows_pushed", c->rows_pushed);
    json_u64(j, "rows_new", c->rows_new);
    json_u64(j, "rows_refused", c->rows_refused);
    json_u64(j, "rows_unadmitted", c->rows_unadmitted);
    json_u64(j, "rows_evicted", c->rows_evicted);
    json_u64(j, "rows_idle", c->rows_idle);
    json_u64(j, "rows_expired", c->rows_expired);
    json_u64(j, "rows_rare", c->rows_rare);
    json_u64(j, "nan_pushes", c->nan_pushes);
    json_u64(j, "huge_pushes", c->huge_pushes);
    json_u64(j, "rows_clipped", c->rows_clipped);
    json_u64(j, "combined_clocks", c->combined_clocks);
    json_u64(j, "delta_rows_unchanged", c->delta_rows[SECTION_DELTA_NONE]);
    json_u64(j, "delta_rows_onebit", c->delta_rows[SECTION_DELTA_ONEBIT]);
    json_u64(j, "delta_rows_byte", c->delta_rows[SECTION_DELTA_INT8]);
    json_u64(j, "delta_rows_whole", c->delta_rows[SECTION_DELTA_FULL]);
    json_u64(j, "delta_restarts", c->delta_anew);
    json_u64(j, "delta_bytes_saved", c->delta_bytes_saved);
    json_close(j);
}

static void put_codecs(struct json *j, const struct shard_counters *c)
{
    json_open(j, "codecs");
    for (uint32_t id = 0; id < CODEC_ID_END; id++) {
        json_open(j, codec_by_id(id)->name);
        json_u64(j, "bytes_in", c->value_bytes_in[id]);
        json_u64(j, "bytes_out", c->value_bytes_out[id]);
        json_close(j);
    }
    json_close(j);
}

/* [[greatest value of a bucket, how many values are in it], ...], without empty ones. */
static void put_histogram(struct json *j, const char *key, const struct histogram *h)
{
    json_open_list(j, key);
    for (unsigned i = 0; h->n && i < HISTOGRAM_N_BUCKETS; i++) {
        uint64_t last, n = histogram_bucket(h, i, &last);

        if (!n)
            continue;
        json_open_list(j, NULL);
        json_u64(j, NULL, last);
        json_u64(j, NULL, n);
        json_close_list(j);
    }
    json_close_list(j);
}

/* A reply's number is its request's plus 1; requests are odd. */
static void put_requests(struct json *j, const struct stats_requests *requests,
                         enum detail detail)
{
    json_open(j, "requests");
    for (unsigned type = 1; type < FRAME_TYPE_END; type += 2) {
        const struct stats_requests *r = &requests[type];

        json_open(j, frame_type_name(type));
        json_u64(j, "n", r->n);
        json_u64(j, "n_refused", r->n_refused);
        json_u64(j, "n_minute", r->minute_ns.n);
        json_u64(j, "p50_ns", histogram_quantile(&r->minute_ns, 0.5));
        json_u64(j, "p99_ns", histogram_quantile(&r->minute_ns, 0.99));
        json_u64(j, "max_ns", r->latency_ns.max);
        if (detail == WITH_LISTS)
            put_histogram(j, "minute_ns", &r->minute_ns);
        json_close(j);
    }
    json_close(j);
}

static void put_refusal(struct json *j, const struct shard_refusal *r)
{
    json_open(j, "last_refusal");
    json_u64(j, "n", r->n);
    if (r->n) {
        json_text(j, "text", r->text);
        json_text(j, "worker", r->worker);
        json_text(j, "table", r->table);
        json_u64(j, "key", r->key);
        json_u64(j, "clock", r->clock);
    }
    json_close(j);
}

static void put_log(struct json *j, const struct shard_report *r)
{
    const struct stats_log *l = &r->log;

    json_open(j, "log");
    json_bool(j, "on", l->is_on != 0);
    json_u64(j, "records", l->appended);
    json_u64(j, "durable", l->durable);
    json_u64(j, "held_bytes", l->held_bytes);
    json_u64(j, "bytes", l->bytes);
    json_u64(j, "syncs", l->n_syncs);
    json_u64(j, "failures", l->n_failures);
    json_u64(j, "dropped", l->n_dropped);
    json_bool(j, "failed", l->is_failed != 0);
    json_bool(j, "full", l->is_full != 0);
    json_bool(j, "gap", l->has_gap != 0);
    json_u64(j, "disk_bytes_per_s", l->disk_bytes_per_s);
    json_u64(j, "needed_bytes_per_s", l->needed_bytes_per_s);
    json_u64(j, "pushes_waiting", l->n_pushes_waiting);
    json_u64(j, "push_wait_us", l->push_wait_us);
    json_u64(j, "replies_waiting", l->n_waiting);
    json_text(j, "error", r->log_line_error);
    json_close(j);
}

/* Which rows come and go; what is 0 is off. */
static void put_limits(struct json *j, const struct table_spec_limits *l)
{
    json_open(j, "limits");
    json_u64(j, "admit_touches", l->admit_touches);
    json_u64(j, "admit_clocks", l->admit_clocks);
    json_u64(j, "idle_clocks", l->idle_clocks);
    json_u64(j, "ttl_s", l->ttl_s);
    json_u64(j, "rare_touches", l->rare_touches);
    json_u64(j, "rare_clocks", l->rare_clocks);
    json_text(j, "victims", table_spec_victims_name(l->victims));
    json_u64(j, "max_bytes", l->max_bytes);
    json_close(j);
}

static void put_memory(struct json *j, const struct stats_table *t)
{
    json_u64(j, "bytes", t->bytes);
    json_u64(j, "slab_bytes", t->slab_bytes);
    json_u64(j, "index_bytes", t->index_bytes);
    json_u64(j, "sketch_bytes", t->count_min_bytes);
    json_u64(j, "bytes_max", t->bytes_max);
    json_u64(j, "row_bytes", t->row_bytes);
    json_u64(j, "payload_bytes", t->payload_bytes);
    json_float(j, "overhead_bytes_per_row", (float)stats_overhead(t));
}

static void put_tables(struct json *j, const struct shard_report *r)
{
    json_open_list(j, "tables");
    for (uint32_t i = 0; i < r->n_tables; i++) {
        const struct stats_table *t = &r->tables[i];

        json_open(j, NULL);
        json_text(j, "name", t->spec.name);
        json_text(j, "kind", table_spec_kind_name(t->spec.kind));
        json_u64(j, "dim", t->spec.dim);
        json_u64(j, "n_floats", t->spec.n_floats);
        json_text(j, "optimizer", table_spec_optim_name(t->spec.optim));
        json_float(j, "learning_rate", t->spec.params.learning_rate);
        json_text(j, "mode", table_spec_mode_name(t->spec.mode));
        json_u64(j, "bound", t->spec.bound);
        json_text(j, "storage", table_spec_storage_name(t->spec.storage));
        put_limits(j, &t->spec.limits);
        json_u64(j, "rows", t->n_rows);
        put_memory(j, t);
        json_u64(j, "pushes", t->n_pushes);
        json_u64(j, "rows_pulled", t->rows_pulled);
        json_u64(j, "rows_pushed", t->rows_pushed);
        json_u64(j, "rows_refused", t->rows_refused);
        json_u64(j, "rows_unadmitted", t->rows_unadmitted);
        json_u64(j, "rows_removed", t->n_removed);
        json_u64(j, "rows_evicted", t->rows_evicted);
        json_u64(j, "rows_idle", t->rows_idle);
        json_u64(j, "rows_expired", t->rows_expired);
        json_u64(j, "rows_rare", t->rows_rare);
        json_close(j);
    }
    json_close_list(j);
}

/* {"0": n, "1": n, ...}: each value up to 15 alone, then runs "16-31", "32-63" ... as wide as
 * the histogram is coarse. */
static void put_staleness(struct json *j, const struct histogram *h)
{
    uint64_t max = h->max, below = 0;
    char key[48];

    json_open(j, "staleness");
    for (uint64_t first = 0, last; h->n && first <= max; first = last + 1) {
        uint64_t n;

        last = first < 16 ? first : first * 2 - 1;
        n = histogram_count_le(h, last);
        snprintf(key, sizeof key, first == last ? "%llu" : "%llu-%llu",
                 (unsigned long long)first, (unsigned long long)last);
        if (n > below)
            json_u64(j, key, n - below);
        below = n > below ? n : below;
        if (last > UINT64_MAX / 4)
            break;
    }
    json_close(j);
    json_u64(j, "staleness_max", max);
    json_u64(j, "staleness_p50", histogram_quantile(h, 0.5));
    json_u64(j, "staleness_p99", histogram_quantile(h, 0.99));
}

/* All are null before the first report. */
static void put_learning(struct json *j, const struct learning_summary *l)
{
    const bool is_known = l->unix_ms != 0;

    if (is_known)
        json_u64(j, "samples", l->samples);
    else
        json_maybe_float(j, "samples", NAN);
    json_maybe_float(j, "samples_per_s", is_known ? l->samples_per_s : NAN);
    json_maybe_float(j, "loss", is_known ? l->loss : NAN);
    json_maybe_float(j, "auc", is_known ? l->auc : NAN);
    json_maybe_float(j, "logloss", is_known ? l->logloss : NAN);
    json_u64(j, "reported_unix_ms", l->unix_ms);
    if (l->kept_epoch) {
        json_u64(j, "kept_epoch", l->kept_epoch);
        json_u64(j, "kept_step", l->kept_step);
    }
    if (!is_known) {
        json_maybe_float(j, "busy", NAN);
        return;
    }
    json_open(j, "busy");
    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        json_float(j, learning_stage_name(i), l->busy[i]);
    json_close(j);
}

static void put_worker_learning(struct json *j, const struct learning_worker *w)
{
    struct learning_summary l = { .unix_ms = w->unix_ms,
                                  .samples = w->samples,
                                  .samples_per_s = w->samples_per_s,
                                  .loss = w->loss,
                                  .auc = w->auc,
                                  .logloss = w->logloss };

    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        l.busy[i] = (float)w->busy[i] / 1000;
    put_learning(j, &l);
}

static void put_workers(struct json *j, const struct shard_report *r, const char *job)
{
    json_open_list(j, "workers");
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const struct stats_worker *w = &r->workers[i];

        if (strcmp(w->job, job) != 0)
            continue;
        json_open(j, NULL);
        json_u64(j, "rank", w->rank);
        json_text(j, "name", w->name);
        json_text(j, "state",
                  w->is_suspected && w->state == WORKER_LIVE ? "suspected"
                                                             : worker_state_name(w->state));
        json_u64(j, "clock", w->clock);
        json_u64(j, "skipped_clocks", w->n_skipped);
        json_u64(j, "incarnation", w->incarnation);
        json_u64(j, "last_seq", w->last_seq);
        json_u64(j, "silent_ms", w->silent_ms);
        put_worker_learning(j, &w->learning);
        json_close(j);
    }
    json_close_list(j);
}

static void put_jobs(struct json *j, const struct shard_report *r)
{
    json_open_list(j, "jobs");
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        const struct stats_job *job = &r->jobs[i];

        json_open(j, NULL);
        json_text(j, "name", job->name);
        json_text(j, "mode", table_spec_mode_name(job->mode));
        json_u64(j, "bound", job->bound);
        json_u64(j, "n_workers", job->n_workers);
        json_u64(j, "n_backups", job->n_backups);
        json_u64(j, "min_clock", job->min_clock);
        json_u64(j, "fenced", job->n_fenced);
        json_u64(j, "deaths", job->n_deaths);
        json_u64(j, "lost_pushes", job->n_lost);
        json_u64(j, "parked_ms", job->parked_ms);
        put_staleness(j, &job->staleness);
        json_u64(j, "staleness_violations", job->staleness_violations);
        put_learning(j, &job->learning);
        put_workers(j, r, job->name);
        json_close(j);
    }
    json_close_list(j);
}

static void put_waits(struct json *j, const struct shard_report *r)
{
    json_open_list(j, "waits");
    for (uint32_t i = 0; i < r->n_waits; i++) {
        const struct stats_wait *w = &r->waits[i];

        json_open(j, NULL);
        json_text(j, "what", w->what);
        json_text(j, "who", w->who);
        json_text(j, "why", w->why);
        json_u64(j, "since_unix_ms", w->since_unix_ms);
        json_u64(j, "until_unix_ms", w->until_unix_ms);
        json_close(j);
    }
    json_close_list(j);
}

static uint64_t violations(const struct shard_report *r)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < r->n_jobs; i++)
        n += r->jobs[i].staleness_violations;
    return n;
}

/* What a shard and the total of the shards have alike, but for lists. */
static void put_numbers(struct json *j, const struct shard_report *r, enum detail detail)
{
    json_u64(j, "rows", stats_n_rows(r));
    json_u64(j, "bytes", r->bytes);
    json_u64(j, "tables_bytes", r->tables_bytes);
    json_u64(j, "memory_max_bytes", r->memory_max_bytes);
    json_seconds(j, "cpu_seconds", r->cpu_us);
    json_u64(j, "live_workers", stats_n_live_workers(r));
    json_u64(j, "n_waits", r->n_waits);
    json_u64(j, "staleness_violations", violations(r));
    put_counters(j, &r->counters);
    put_net(j, "net", &r->net);
    put_requests(j, r->requests, detail);
    put_codecs(j, &r->counters);
    put_log(j, r);
    put_refusal(j, &r->last_refusal);
}

static void put_restore(struct json *j, const struct node_report *node)
{
    const struct stats_restore *restore = &node->restore;
    char text[STATS_RESTORE_TEXT_MAX];

    if (!restore->is_on)
        return;
    stats_restore_text(restore, node->clock_unix_ms, text);
    json_open(j, "restoring");
    json_u64(j, "since_unix_ms", restore->since_unix_ms);
    json_u64(j, "rows", restore->n_rows);
    json_u64(j, "log_records", restore->n_records);
    json_u64(j, "bytes", restore->n_bytes);
    json_u64(j, "total_bytes", restore->n_total_bytes);
    json_text(j, "text", text);
    json_close(j);
}

static void put_replication(struct json *j, const struct stats_standby *standby)
{
    if (!standby->is_on)
        return;
    json_open(j, "replication");
    json_text(j, "role", standby->role);
    json_text(j, "state", standby->state);
    json_u64(j, "term", standby->term);
    json_text(j, "peer", standby->peer);
    json_bool(j, "in_sync", standby->in_sync);
    json_u64(j, "standby_lag_records", standby->lag_records);
    json_u64(j, "standby_lag_ms", standby->lag_ms);
    json_u64(j, "differences", standby->n_differences);
    json_bool(j, "missing", standby->is_missing);
    json_bool(j, "promote_loses", standby->promote_loses);
    json_bool(j, "unheard", standby->is_unheard);
    json_text(j, "refused", standby->refusal);
    json_u64(j, "gone_unix_ms", standby->gone_unix_ms);
    json_text(j, "note", standby->note);
    json_close(j);
}

static void put_coordination(struct json *j, const struct stats_coordination *c)
{
    if (!c->is_on)
        return;
    json_open(j, "coordination");
    json_text(j, "service", c->service);
    json_bool(j, "away", c->is_away);
    if (c->is_away) {
        json_u64(j, "away_unix_ms", c->away_unix_ms);
        json_text(j, "error", c->error);
    }
    json_u64(j, "takeovers", c->n_takeovers);
    json_u64(j, "patience_ms", c->patience_ms);
    if (c->has_claim) {
        json_open(j, "claim");
        json_u64(j, "term", c->term);
        json_text(j, "primary", c->primary);
        json_text(j, "standby", c->standby);
        json_bool(j, "in_sync", c->in_sync);
        json_close(j);
    }
    json_close(j);
}

/* Days that are left; below 0: it has expired. */
static double days_until(uint64_t unix_ms, uint64_t now_unix_ms)
{
    return ((double)unix_ms - (double)now_unix_ms) / 86400e3;
}

static void put_tls(struct json *j, const struct stats_tls *tls, uint64_t now_unix_ms)
{
    if (!tls->is_on)
        return;
    json_open(j, "tls");
    json_u64(j, "certificate_expires_unix_ms", tls->own_unix_ms);
    json_float(j, "certificate_days", (float)days_until(tls->own_unix_ms, now_unix_ms));
    json_u64(j, "ca_expires_unix_ms", tls->ca_unix_ms);
    json_float(j, "ca_days", (float)days_until(tls->ca_unix_ms, now_unix_ms));
    json_text(j, "certificate_fault", tls->fault);
    json_close(j);
}

static void put_node(struct json *j, const struct node_report *node)
{
    char sentence[STATS_HEALTH_MAX];
    bool ok = render_health(node, sentence, sizeof sentence) == 0;

    json_text(j, "version", node->version);
    json_text(j, "address", node->address);
    json_text(j, "http_address", node->http_address);
    json_text(j, "durability", node->durability);
    json_u64(j, "node", node->node);
    json_u64(j, "n_nodes", node->n_nodes);
    json_u64(j, "n_shards", node->n_shards);
    json_u64(j, "shards_per_node", node->shards_per_node);
    json_u64(j, "lease_ms", node->lease_ms);
    json_u64(j, "pid", node->pid);
    json_u64(j, "started_unix_ms", node->started_unix_ms);
    json_u64(j, "now_unix_ms", node->clock_unix_ms);
    json_u64(j, "rss_bytes", node->rss_bytes);
    json_u64(j, "memory_max_bytes", node->memory_max_bytes);
    json_u64(j, "memory_reserve_left_bytes", node->memory_reserve_left_bytes);
    json_u64(j, "client_memory_max_bytes", node->client_memory_max_bytes);
    json_seconds(j, "cpu_seconds", node->cpu_us);
    json_bool(j, "huge_pages", node->has_huge_pages);
    json_bool(j, "ready", node->ready);
    json_bool(j, "stopping", node->stopping);
    json_bool(j, "healthy", ok);
    json_text(j, "health", sentence);
    put_restore(j, node);
    put_replication(j, &node->standby);
    put_coordination(j, &node->coordination);
    put_tls(j, &node->tls, node->clock_unix_ms);
}

static void put_checkpoints(struct json *j, const struct node_report *node)
{
    json_open(j, "checkpoints");
    json_u64(j, "done", node->checkpoints_done);
    json_u64(j, "failed", node->checkpoints_failed);
    json_u64(j, "last_number", node->last_checkpoint_number);
    json_u64(j, "last_unix_ms", node->last_checkpoint_unix_ms);
    json_u64(j, "last_bytes", node->last_checkpoint_bytes);
    json_u64(j, "last_rows", node->last_checkpoint_rows);
    json_u64(j, "last_took_ms", node->last_checkpoint_took_ms);
    json_u64(j, "every_ms", node->checkpoint_every_ms);
    json_u64(j, "log_max_bytes", node->log_max_bytes);
    json_u64(j, "keep", node->checkpoints_kept);
    json_u64(j, "deltas", node->checkpoint_deltas);
    json_text(j, "last_error", node->last_checkpoint_error);
    if (node->checkpoint_since_unix_ms) {
        json_open(j, "under_way");
        json_u64(j, "number", node->checkpoint_number);
        json_u64(j, "since_unix_ms", node->checkpoint_since_unix_ms);
        json_u64(j, "until_unix_ms", node->checkpoint_until_unix_ms);
        json_close(j);
    }
    json_close(j);
}

static void put_disk(struct json *j, const struct stats_disk *disk)
{
    if (!disk->is_on)
        return;
    json_open(j, "disk");
    json_u64(j, "checkpoint_bytes", disk->checkpoint_bytes);
    json_u64(j, "log_bytes", disk->log_bytes);
    json_u64(j, "aside_bytes", disk->archived_bytes);
    json_u64(j, "free_bytes", disk->free_bytes);
    json_u64(j, "size_bytes", disk->size_bytes);
    json_text(j, "file_system", disk->file_system);
    json_u64(j, "fill_bytes_per_s", disk->fill_bytes_per_s);
    json_u64(j, "others_fill_bytes_per_s", disk->others_fill_bytes_per_s);
    json_u64(j, "fill_over_ms", disk->fill_over_ms);
    json_u64(j, "scrubs", disk->n_scrubs);
    json_u64(j, "scrubbed_bytes", disk->scrubbed_bytes);
    json_u64(j, "scrubbed_unix_ms", disk->scrubbed_unix_ms);
    json_u64(j, "damaged_files", disk->n_damaged);
    json_text(j, "damage", disk->damage);
    json_close(j);
}

static void put_shard(struct json *j, const struct node_report *node, uint32_t i,
                      enum detail detail)
{
    const struct shard_report *r = node->shards[i];

    json_open(j, NULL);
    json_u64(j, "shard", r ? r->shard : (uint64_t)node->node * node->shards_per_node + i);
    json_bool(j, "reported", r != NULL);
    if (r) {
        json_u64(j, "report_age_ms",
                 node->clock_mono_ms > r->made_mono_ms ? node->clock_mono_ms - r->made_mono_ms
                                                       : 0);
        json_u64(j, "version", r->version);
        put_numbers(j, r, NUMBERS_ONLY);
    }
    if (r && detail == WITH_LISTS) {
        put_tables(j, r);
        put_jobs(j, r);
        put_waits(j, r);
    }
    json_close(j);
}

static void put_shards(struct json *j, const struct node_report *node, enum detail detail)
{
    json_open_list(j, "shards");
    for (uint32_t i = 0; i < node->n_shards; i++)
        put_shard(j, node, i, detail);
    json_close_list(j);
}

/* All of the node but its shards. */
static void put_whole(struct json *j, const struct node_report *node,
                      const struct shard_report *total, enum detail detail)
{
    put_node(j, node);
    put_checkpoints(j, node);
    put_disk(j, &node->disk);
    put_net(j, "door", &node->listener);
    json_open(j, "http");
    json_u64(j, "connections", node->http_connections);
    json_u64(j, "evicted", node->http_evicted);
    json_close(j);
    json_open(j, "totals");
    put_numbers(j, total, detail);
    json_close(j);
}

/* The cluster's map: all that a node knows of others without asking them. */
static void put_cluster_nodes(struct json *j, const struct node_report *node)
{
    json_open_list(j, "cluster_nodes");
    for (uint32_t i = 0; node->nodes && i < node->n_nodes; i++) {
        json_open(j, NULL);
        json_u64(j, "node", i);
        json_text(j, "address", node->nodes[i]);
        json_u64(j, "first_shard", (uint64_t)i * node->shards_per_node);
        json_u64(j, "n_shards", node->shards_per_node);
        json_close(j);
    }
    json_close_list(j);
}

static void put_status(struct json *j, const struct node_report *node,
                       const struct shard_report *total, enum detail detail)
{
    put_whole(j, node, total, detail);
    put_cluster_nodes(j, node);
    put_shards(j, node, detail);
}

static bool put_live(struct json *j, const struct node_report *node,
                     const struct shard_report *total, const char *what)
{
    json_open(j, NULL);
    put_whole(j, node, total, NUMBERS_ONLY);
    if (strcmp(what, "live") == 0) {
        put_jobs(j, total);
        put_waits(j, total);
    }
    json_close(j);
    return true;
}

static bool put(struct json *j, const struct node_report *node,
                const struct shard_report *total, const char *what)
{
    bool everything = strcmp(what, "stats") == 0, known = everything;

    json_open(j, NULL);
    if (everything || strcmp(what, "status") == 0) {
        put_status(j, node, total, everything ? WITH_LISTS : NUMBERS_ONLY);
        known = true;
    }
    if (everything || strcmp(what, "tables") == 0) {
        put_tables(j, total);
        known = true;
    }
    if (everything || strcmp(what, "workers") == 0) {
        put_jobs(j, total);
        known = true;
    }
    if (everything || strcmp(what, "why") == 0) {
        if (!everything)
            json_u64(j, "now_unix_ms", node->clock_unix_ms);
        put_waits(j, total);
        known = true;
    }
    json_close(j);
    fputc('\n', j->out);
    return known;
}

static char *render(const struct node_report *node, const char *what,
                    bool (*write)(struct json *j, const struct node_report *node,
                                  const struct shard_report *total, const char *what))
{
    struct shard_report *total;
    struct json j = { 0 };
    char *text = NULL;
    size_t n_bytes;
    bool known;

    j.out = open_memstream(&text, &n_bytes);
    if (!j.out)
        return NULL;
    total = stats_total(node);
    known = write(&j, node, total, what);
    shard_report_free(total);
    if (ferror(j.out))
        known = false;
    if (fclose(j.out) != 0 || !known) {
        free(text);
        return NULL;
    }
    return text;
}

char *render_json(const struct node_report *node, const char *what)
{
    return render(node, what, put);
}

char *render_live(const struct node_report *node)
{
    return render(node, "live", put_live);
}

char *render_live_short(const struct node_report *node)
{
    return render(node, "live_short", put_live);
}

/* --- a job's curve --- */

/* The newest that any shard has; NULL: none has one. */
static const struct stats_job *find_curve(const struct node_report *node, const char *job)
{
    const struct stats_job *newest = NULL;

    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t i = 0; node->shards[s] && i < node->shards[s]->n_jobs; i++) {
            const struct stats_job *at = &node->shards[s]->jobs[i];

            if (at->curve && strcmp(at->name, job) == 0 &&
                (!newest || at->learning.unix_ms > newest->learning.unix_ms))
                newest = at;
        }
    return newest;
}

static void put_point(struct json *j, const struct learning_point *p)
{
    json_open(j, NULL);
    json_u64(j, "ms", p->unix_ms);
    json_u64(j, "clock", p->clock);
    json_u64(j, "samples", p->samples);
    json_maybe_float(j, "samples_per_s", p->samples_per_s);
    json_maybe_float(j, "loss", p->loss);
    json_maybe_float(j, "auc", p->auc);
    json_maybe_float(j, "logloss", p->logloss);
    json_close(j);
}

char *render_curve(const struct node_report *node, const char *job)
{
    const struct stats_job *found = find_curve(node, job);
    struct json j = { 0 };
    char *text = NULL;
    size_t n_bytes;
    bool failed;

    j.out = open_memstream(&text, &n_bytes);
    if (!j.out)
        return NULL;
    json_open(&j, NULL);
    json_text(&j, "job", job);
    json_open_list(&j, "points");
    for (uint32_t i = 0; found && i < found->curve->n; i++)
        put_point(&j, &found->curve->points[i]);
    json_close_list(&j);
    json_close(&j);
    fputc('\n', j.out);
    failed = ferror(j.out) != 0;
    if (fclose(j.out) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}
