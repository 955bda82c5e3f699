/*
 * A shard and what workers may send it: u8 setting | requests. A push's sections are made of the bytes that
 * come, or well, with values that come.
 *
 * Whatever it accepts, its clipped tables stay finite, its versions and clocks grow, a refusal changes no
 * version, and a shard that is made again from its event log, or from a scan and the event log behind it, is
 * the same, bit for bit.
 */
#include <errno.h>

#include "tests/unit/core/events_fixture.h"

#include "tests/fuzz/harness.h"

enum { N_WORKERS = 3, N_TABLES = 4, N_REQUESTS_MAX = 40, N_KEYS_MAX = 12 };

static const uint32_t dims[N_TABLES] = { 4, 3, 5, 300 };

struct world {
    struct harness_bytes in;
    struct shard_config config;
    struct shard *s;
    struct delta_memory memory;
    struct pull_deltas *deltas; /* of the one connection that all pulls come from */
    struct event_log *event_log;
    struct kept_scan scan;
    uint64_t now_ms, incarnations, version;
    enum table_spec_mode mode;
};

static uint64_t number(struct world *w, unsigned n_bytes)
{
    return harness_number(&w->in, n_bytes);
}

/* --- what there is --- */

static struct table_spec spec_of(const struct world *w, uint32_t id, bool limits)
{
    static const enum table_spec_optim optims[N_TABLES] = { TABLE_SPEC_ADAGRAD, TABLE_SPEC_SGD,
                                                            TABLE_SPEC_FTRL,
                                                            TABLE_SPEC_ROWWISE_ADAGRAD };
    static const char *const names[N_TABLES] = { "a", "b", "c", "d" };
    struct table_spec spec = sparse_spec(names[id], dims[id], optims[id]);

    if (id == 2)
        spec = dense_spec(names[id], dims[id], 30, TABLE_SPEC_ADAMW);
    spec.storage = (enum table_spec_storage)(id % TABLE_SPEC_STORAGE_END);
    spec.mode = id == 1 ? w->mode : TABLE_SPEC_MODE_JOB;
    spec.clip_norm = id < 3 ? 1 : 0;
    if (limits && id == 0)
        spec.limits = (struct table_spec_limits){ .admit_touches = 2, .admit_clocks = 9 };
    if (limits && id == 1)
        spec.limits = (struct table_spec_limits){ .rare_touches = 2, .rare_clocks = 3 };
    if (limits && id == 3)
        spec.limits = (struct table_spec_limits){ .victims = TABLE_SPEC_VICTIMS_OLDEST,
                                                  .max_bytes = 20 << 10 };
    return spec;
}

static void begin(struct world *w)
{
    uint64_t setting = number(w, 1);

    w->mode = (enum table_spec_mode)(TABLE_SPEC_MODE_ASYNC + setting % 3);
    w->config = (struct shard_config){ .n_shards = 1,
                                       .memory_max_bytes = setting & 8 ? 64 << 10 : 0,
                                       .lease_ms = LEASE_MS,
                                       .join_ms = JOIN_MS,
                                       .park_ms = 1000,
                                       .sync_steps = 3 };
    w->event_log = event_log_new();
    enter_shard();
    w->s = shard_new(&w->config);
    w->deltas = pull_deltas_new(&w->memory);
    shard_set_events(w->s, &w->event_log->sink);
    for (uint32_t id = 0; id < N_TABLES; id++) {
        struct table_spec spec = spec_of(w, id, setting & 4);

        (void)make_table(w->s, &spec);
    }
}

static struct worker *worker_of(struct world *w, uint32_t rank)
{
    enter_shard();
    return membership_worker(shard_membership(w->s), "job", rank);
}

/* --- requests --- */

static void join_one(struct world *w)
{
    uint64_t dice = number(w, 1);
    struct membership_join ask = { .job = "job",
                                   .rank = (uint32_t)(dice % N_WORKERS),
                                   .n_workers = N_WORKERS,
                                   .mode = w->mode,
                                   .bound = w->mode == TABLE_SPEC_MODE_SSP ? 2 : 0,
                                   .clock = dice >> 4,
                                   .name = "tester" };
    const struct worker *old = worker_of(w, ask.rank);
    struct worker *worker;
    struct err err = { 0 };

    ask.incarnation = old && dice & 8 ? old->incarnation : ++w->incarnations;
    ask.last_acked = old && dice & 8 ? old->last_seq : 0;
    enter_shard();
    if (membership_join(shard_membership(w->s), &ask, w->now_ms, &worker, &err) == 0)
        assert(worker->state == WORKER_LIVE && worker->rank == ask.rank);
    else
        assert(err.status);
}

/* Keys that are in order, rows of the right length. */
static void add_good_section(struct world *w, struct push *push, uint32_t id)
{
    static const enum codec_id codecs[] = { CODEC_FP32, CODEC_BF16, CODEC_FP16, CODEC_INT8,
                                            CODEC_TOPK };
    static float values[N_KEYS_MAX * 3 * 300];
    uint64_t keys[N_KEYS_MAX], dice = number(w, 1), key = number(w, 1) % 6;
    uint32_t n_keys = (uint32_t)(dice % (N_KEYS_MAX + 1));
    enum section_op op = dice >= 0xf8   ? SECTION_ASSIGN_STATE
                         : dice >= 0xf0 ? SECTION_ASSIGN
                         : dice >= 0xd0 ? SECTION_GRADIENT_AT
                                        : SECTION_GRADIENT;
    enum codec_id codec = codecs[number(w, 1) % COUNT_OF(codecs)];
    uint32_t bits = (uint32_t)number(w, 4), n_floats = dims[id];

    enter_shard();
    if (op == SECTION_ASSIGN_STATE && !shard_table(w->s, id))
        op = SECTION_ASSIGN;
    if (op == SECTION_ASSIGN_STATE) {
        n_floats += table_spec_state_floats(&shard_table(w->s, id)->spec);
        codec = CODEC_FP32;
    }
    for (uint32_t i = 0; i < n_keys; i++, key += 1 + bits % 3)
        keys[i] = key;
    for (size_t i = 0; i < (size_t)n_keys * n_floats; i++, bits = bits * 2654435761u + 1) {
        uint32_t x = i < 8 ? bits : (bits & 0x80ffffffu) | 0x3d000000u;

        memcpy(&values[i], &x, sizeof x);
    }
    if (op == SECTION_GRADIENT_AT && codec != CODEC_TOPK)
        (void)add_gradient_at(push, id, codec, n_floats, keys, n_keys, values,
                              values + N_KEYS_MAX * 300, (struct section_delay){ .lambda = 2 });
    else
        (void)add_section(push, id, op, codec, n_floats, keys, n_keys, values);
}

/* Anything. */
static void add_any_section(struct world *w, struct push *push, uint32_t id)
{
    struct section *section = &push->sections[push->n_sections++];
    size_t n_keys_bytes = number(w, 1), n_value_bytes = number(w, 2);

    *section = (struct section){ .table_id = id == 3 ? (uint32_t)number(w, 4) : id,
                                 .op = (enum section_op)(number(w, 1) % SECTION_OP_END),
                                 .codec = (enum codec_id)(number(w, 1) % CODEC_ID_END),
                                 .n_keys = (uint32_t)number(w, 1) };
    section->k = section->codec == CODEC_TOPK ? (uint32_t)number(w, 1) : 0;
    section->keys = harness_take(&w->in, n_keys_bytes, &section->key_bytes);
    section->values = harness_take(&w->in, n_value_bytes, &section->value_bytes);
}

static struct push *make_push(struct world *w, const struct worker *worker, uint64_t dice)
{
    struct push *push = next_push(worker, worker->clock);
    uint64_t how = number(w, 1);

    push->tick = dice & 1;
    push->n_samples = (uint32_t)(how % 5);
    if (dice & 2) {
        push->seq += how % 3 - 1;
        push->clock += how / 3 % 4 - 1;
    }
    for (uint32_t i = 0; i < (dice >> 2) % 4; i++) {
        uint64_t what = number(w, 1);

        if (what & 0x10)
            add_any_section(w, push, (uint32_t)(what % N_TABLES));
        else
            add_good_section(w, push, (uint32_t)(what % N_TABLES));
    }
    return push;
}

/* A push is acknowledged once: its number is used up, applied or not; or nothing has happened. */
static void push_one(struct world *w)
{
    uint64_t dice = number(w, 1), last_seq;
    struct worker *worker = worker_of(w, (uint32_t)(dice >> 4) % N_WORKERS);
    struct shard_push_result result;
    uint64_t before;
    struct push *push;
    int status;

    enter_shard();
    if (!worker || worker->state != WORKER_LIVE)
        return;
    before = shard_version(w->s);
    last_seq = worker->last_seq;
    push = make_push(w, worker, dice);
    status = shard_push(w->s, worker, push, w->now_ms, &result);
    assert(status == 0 || status == result.status);
    assert(!result.status == !result.text[0]);
    assert(worker->last_seq == last_seq + (status == 0 && !result.repeated));
    if (status == 0 && !result.repeated)
        assert(push->seq == last_seq + 1);
    else
        assert(shard_version(w->s) == before);
    free_push(push);
}

static void pull_one(struct world *w)
{
    uint64_t dice = number(w, 1);
    struct worker *worker = worker_of(w, (uint32_t)(dice % N_WORKERS));
    uint32_t id = (uint32_t)(dice / N_WORKERS % N_TABLES);
    const uint64_t keys[] = { number(w, 1), 256 + number(w, 1) };
    struct pull *pull = make_pull(dice >> 4, id, keys, id == 2 ? 0 : 2);
    struct shard_pull_op op;
    struct err err = { 0 };
    size_t n_bytes;
    uint8_t *dst;
    int status = 0;

    pull->sections[0].state = dice & 1;
    pull->sections[0].codec = dice & 1 ? CODEC_FP32 : (enum codec_id)(dice % CODEC_ID_END);
    pull->sections[0].present = dice & 2;
    if (!(dice & 3))
        pull->sections[0].delta = (struct section_delta){ .asked = true,
                                                          .mode = 1 + (dice >> 4) % 3,
                                                          .tolerance = dice & 4 ? 0.1f : 0,
                                                          .base = dice >> 2 & 3,
                                                          .rows_max = (uint32_t)keys[0] };
    if (dice % 7 == 6) {
        pull->sections[0].n_keys = 0;
        pull->sections[0].key_bytes = 0;
        pull->sections[0].delta.asked = false;
        pull->sections[0].scan_bytes = 1 + (uint32_t)keys[0] * 40;
        pull->sections[0].cursor = keys[1] << 56 | keys[0];
    }
    enter_shard();
    if (worker && worker->state != WORKER_LIVE)
        worker = NULL;
    if (shard_pull_plan(w->s, pull, 1 << 20, &n_bytes, &err) == 0 &&
        shard_pull_ready(w->s, worker, pull)) {
        dst = malloc(n_bytes);
        assert(dst || !n_bytes);
        shard_pull_begin(w->s, worker, pull, dst, &op);
        op.deltas = w->deltas;
        while (!op.done && !status)
            status = shard_pull_more(w->s, &op, &err);
        assert(op.dst <= dst + n_bytes);
        if (!status) {
            assert(op.version == shard_version(w->s));
            shard_pull_end(w->s, worker, &op);
        }
        free(dst);
    }
    free_pull(pull);
}

static void leave_one(struct world *w)
{
    struct worker *worker = worker_of(w, (uint32_t)(number(w, 1) % N_WORKERS));

    enter_shard();
    if (worker)
        membership_leave(shard_membership(w->s), worker);
    (void)shard_advance(w->s, w->now_ms);
}

static void time_passes(struct world *w)
{
    w->now_ms += number(w, 1) * 200;
    enter_shard();
    (void)shard_advance(w->s, w->now_ms);
}

static void scan_some(struct world *w)
{
    enter_shard();
    if (w->scan.mode != SNAPSHOT_SCAN_DELTA && !w->scan.scan && !w->scan.n_slices)
        assert(try_scan_begin(w->s, SNAPSHOT_SCAN_FULL, w->event_log->n, &w->scan) == 0);
    else if (w->scan.scan && scan_on(w->s, &w->scan, 2000 + number(w, 1) * 8))
        scan_end(w->s, &w->scan, SNAPSHOT_SCAN_KEPT);
}

static void request(struct world *w)
{
    switch (number(w, 1) % 8) {
    case 0:
        join_one(w);
        break;
    case 1:
        pull_one(w);
        break;
    case 2:
        leave_one(w);
        break;
    case 3:
        time_passes(w);
        break;
    case 4:
        scan_some(w);
        break;
    default:
        push_one(w);
    }
}

/* --- what must hold --- */

/* The rows, through any reader's eyes: what a table clips cannot grow beyond all numbers. */
static void check_finite(struct world *w)
{
    enter_shard();
    for (uint32_t id = 0; id < 3; id++) {
        const struct shard_table *t = shard_table(w->s, id);
        float weights[8];

        for (uint64_t i = 0; i < table_n_numbers(t->rows); i++) {
            const struct row *row = table_row(t->rows, i);
            uint64_t key = row ? row->key : 0;

            if (!row)
                continue;
            read_weights(w->s, id, &key, 1, weights);
            for (uint32_t k = 0; k < dims[id]; k++)
                assert(weights[k] - weights[k] == 0);
        }
    }
}

static void check_versions(struct world *w)
{
    enter_shard();
    assert(shard_version(w->s) >= w->version);
    w->version = shard_version(w->s);
    for (uint32_t id = 0; id < N_TABLES; id++) {
        const struct shard_table *t = shard_table(w->s, id);

        for (uint64_t i = 0; i < table_n_numbers(t->rows); i++) {
            const struct row *row = table_row(t->rows, i);

            assert(!row || row_version(row) <= w->version);
        }
    }
}

static void check_replay(struct world *w, size_t n_scans)
{
    struct shard *again;

    assert(try_restore(&w->config, &w->scan, n_scans, w->event_log, w->event_log->n, w->now_ms,
                       &again) == 0);
    assert_same_shard(w->s, again);
    shard_free(again);
}

static void end(struct world *w)
{
    enter_shard();
    check_finite(w);
    check_replay(w, 0);
    if (w->scan.n_slices && !w->scan.scan)
        check_replay(w, 1);
    if (w->scan.scan)
        scan_end(w->s, &w->scan, SNAPSHOT_SCAN_DROPPED);
    kept_scan_free(&w->scan);
    pull_deltas_free(w->deltas);
    delta_memory_deinit(&w->memory);
    shard_free(w->s);
    event_log_free(w->event_log);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct world w = { .in = { bytes, bytes + n_bytes } };

    begin(&w);
    for (unsigned i = 0; i < N_REQUESTS_MAX && harness_left(&w.in); i++) {
        request(&w);
        check_versions(&w);
    }
    end(&w);
}

/* --- seeds: three workers, and pushes of all kinds --- */

bool harness_seed(uint32_t i, struct bytes *out)
{
    if (i >= 16)
        return false;
    harness_put_number(out, i, 1);
    for (uint64_t rank = 0; rank < N_WORKERS; rank++)
        harness_put_number(out, rank << 8, 2);
    for (uint64_t n = 0; n < 20; n++) {
        if (n % 4 == 3) {
            harness_put_number(out, 4 | n << 8, 2);
            continue;
        }
        harness_put_number(out, 5 + (n + i) % 3, 1);
        harness_put_number(out, 1 | (1 + n % 3) << 2 | (n % N_WORKERS) << 4, 1);
        harness_put_number(out, hash_mix2(n, 1), 1);
        for (uint64_t k = 0; k < 1 + n % 3; k++) {
            harness_put_number(out, (n + k + i) % N_TABLES, 1);
            harness_put_number(out, hash_mix2(n, k) % 100, 2);
            harness_put_number(out, k, 1);
            harness_put_number(out, 0x3d000000u + hash_mix2(n, k) % 0xffffff, 4);
        }
    }
    return true;
}
