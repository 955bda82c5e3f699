#include "tests/unit/admin/fixture.h"
#define NASTY "a\"b\\c\nd\x01\xff<script>"

static void fixture_job(struct shard_report *r, uint32_t s)
{
    r->n_jobs = 1;
    r->jobs = memory_alloc(sizeof *r->jobs);
    snprintf(r->jobs[0].name, sizeof r->jobs[0].name, "criteo");
    r->jobs[0].mode = TABLE_SPEC_MODE_SSP;
    r->jobs[0].bound = 4;
    r->jobs[0].n_workers = 2;
    r->jobs[0].min_clock = 7 + s;
    r->jobs[0].n_fenced = 1;
    r->jobs[0].n_deaths = 1;
    for (uint32_t i = 0; i < 17; i++) /* ten of 0, five of 3, two of 40 */
        histogram_record(&r->jobs[0].staleness, i < 10 ? 0 : i < 15 ? 3 : 40);
    r->n_workers = 2;
    r->workers = memory_alloc(2 * sizeof *r->workers);
    for (uint32_t i = 0; i < 2; i++) {
        struct stats_worker *w = &r->workers[i];

        snprintf(w->job, sizeof w->job, "criteo");
        snprintf(w->name, sizeof w->name, i ? NASTY : "psworker host:12");
        w->rank = i;
        w->state = i ? WORKER_DEAD : WORKER_LIVE;
        w->incarnation = UINT64_MAX;
        w->clock = 7 + s + 3 * i;
        w->silent_ms = 100;
    }
}

static void fixture_tables(struct shard_report *r, uint32_t s)
{
    r->n_tables = 2;
    r->tables = memory_alloc(2 * sizeof *r->tables);
    snprintf(r->tables[0].spec.name, TABLE_SPEC_NAME_MAX, "emb");
    r->tables[0].spec.dim = 16;
    r->tables[0].spec.optim = TABLE_SPEC_ADAGRAD;
    r->tables[0].spec.params.learning_rate = 0.01f;
    r->tables[0].spec.storage = TABLE_SPEC_BF16;
    r->tables[0].spec.limits = (struct table_spec_limits){ .idle_clocks = 70,
                                                           .victims = TABLE_SPEC_VICTIMS_OLDEST,
                                                           .max_bytes = 8 };
    r->tables[0].n_rows = 500;
    r->tables[0].slab_bytes = 500 * 120;
    r->tables[0].index_bytes = 500 * 8;
    r->tables[0].count_min_bytes = 64;
    r->tables[0].payload_bytes = 104;
    r->tables[0].row_bytes = 120;
    r->tables[0].bytes_max = 4;
    r->tables[0].n_removed = 9;
    r->tables[0].rows_evicted = 5;
    r->tables[0].rows_idle = 3;
    r->tables[0].rows_expired = 1;
    r->tables[0].rows_rare = 0;
    r->tables[0].rows_unadmitted = 77;
    r->tables[0].n_pushes = 30 + s;
    snprintf(r->tables[1].spec.name, TABLE_SPEC_NAME_MAX, "top\\w\"");
    r->tables[1].spec.kind = TABLE_SPEC_DENSE;
    r->tables[1].n_rows = 3;
    r->tables[1].slab_bytes = 2 << 20; /* places for more blocks than it will have */
    r->tables[1].index_bytes = 4096;
    r->tables[1].payload_bytes = 1024;
    r->tables[1].row_bytes = 1040;
}

static struct shard_report *fixture_shard(uint32_t s)
{
    struct shard_report *r = memory_alloc(sizeof *r);

    r->made_mono_ms = 10000 - 100;
    r->shard = 2 + s;
    r->bytes = 1000;
    r->tables_bytes = 900;
    r->memory_max_bytes = 5000;
    r->cpu_us = 12000345 + s;
    r->version = 50 + s;
    r->counters.pulls = 20;
    r->counters.rows_evicted = 5;
    r->counters.value_bytes_in[CODEC_INT8] = 300;
    r->counters.value_bytes_out[CODEC_FP32] = 400;
    r->net.malformed_frames = 1;
    r->net.refused_requests = 2;
    r->requests[FRAME_PULL].n = 100;
    r->requests[FRAME_PULL].n_refused = 1;
    for (uint64_t i = 1; i <= 100; i++)
        histogram_record(&r->requests[FRAME_PULL].minute_ns, i * 10000);
    histogram_merge(&r->requests[FRAME_PULL].latency_ns, &r->requests[FRAME_PULL].minute_ns);
    r->requests[FRAME_PULL].n += 900; /* of longer ago */
    for (uint32_t i = 0; i < 900; i++)
        histogram_record(&r->requests[FRAME_PULL].latency_ns, 5000000);
    fixture_tables(r, s);
    fixture_job(r, s);
    r->n_waits = 1;
    r->waits = memory_alloc(sizeof *r->waits);
    snprintf(r->waits[0].what, sizeof r->waits[0].what, "parked pull");
    snprintf(r->waits[0].who, sizeof r->waits[0].who, "job criteo, worker 0 (" NASTY ")");
    snprintf(r->waits[0].why, sizeof r->waits[0].why,
             "min clock is 7, needs 12: worker 1 is at 7");
    r->waits[0].since_unix_ms = 1000;
    r->waits[0].until_unix_ms = 9000;
    return r;
}

void fixture_init(struct fixture *f)
{
    *f = (struct fixture){ 0 };
    f->shards[0] = fixture_shard(0);
    f->shards[1] = fixture_shard(1);
    snprintf(f->waits[0].what, sizeof f->waits[0].what, "checkpoint");
    f->node = (struct node_report){ .version = "0.1.0",
                                    .address = "127.0.0.1:7070",
                                    .http_address = "127.0.0.1:7071",
                                    .node = 1,
                                    .n_nodes = 2,
                                    .n_shards = 2,
                                    .shards_per_node = 2,
                                    .started_unix_ms = 1700000000123,
                                    .clock_unix_ms = 1700000060123,
                                    .clock_mono_ms = 10000,
                                    .pid = 77,
                                    .rss_bytes = 1 << 20,
                                    .ready = true,
                                    .listener = { .refused_handshakes = 3 },
                                    .metrics_tables = 8,
                                    .n_waits = 1,
                                    .waits = f->waits,
                                    .shards = f->shards };
}

void fixture_deinit(struct fixture *f)
{
    for (size_t i = 0; i < COUNT_OF(f->shards); i++)
        shard_report_free((struct shard_report *)(uintptr_t)f->shards[i]);
}
