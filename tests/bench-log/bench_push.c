#include "tests/bench-log/bench_push.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/hash.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "server/core/optimizer.h"
#include "server/wal/wal_queue.h"
#include "tests/unit/recovery/recorder.h"

#define DIM 16u
#define N_KEYS 2000u
#define N_ROWS 400000u
#define N_PUSHES 200u /* of one turn */
#define N_TURNS 15u
#define N_MESSAGES 64u /* different ones */

struct side {
    struct shard *shard;
    struct worker *worker;
    struct push push;
    struct wal_queue queue;
    struct recorder recorder;
};

struct message {
    uint8_t *keys, *values;
    size_t key_bytes, value_bytes;
};

static double cpu_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct message make_message(const struct codec *codec, uint64_t seed)
{
    const size_t row_bytes = codec->row_bytes(DIM, 0);
    struct message m = { .keys = malloc((size_t)N_KEYS * KEY_CODEC_BYTES_MAX),
                         .values = malloc(N_KEYS * row_bytes),
                         .value_bytes = N_KEYS * row_bytes };
    uint64_t *keys = malloc(N_KEYS * sizeof *keys);
    float row[DIM];

    if (!m.keys || !m.values || !keys)
        exit(1);
    for (uint32_t i = 0; i < N_KEYS; i++) {
        uint64_t step = N_ROWS / N_KEYS;

        keys[i] = i * step + hash_mix2(seed, i) % step;
        for (uint32_t k = 0; k < DIM; k++)
            row[k] = 0.01f * hash_unit(hash_mix2(seed + i, k));
        codec->encode(row, DIM, 0, m.values + i * row_bytes);
    }
    m.key_bytes = key_codec_encode(keys, N_KEYS, m.keys);
    free(keys);
    return m;
}

static int reserve(void *owner, size_t n_bytes)
{
    return wal_queue_reserve(owner, n_bytes);
}

static uint64_t append(void *owner, const struct wal_record *record)
{
    return wal_queue_append(owner, record, 1);
}

static void begin(struct side *side)
{
    const struct shard_config config = { .n_shards = 1, .lease_ms = 1000, .join_ms = 1000 };
    struct table_spec spec = { .name = "t",
                               .kind = TABLE_SPEC_SPARSE,
                               .dim = DIM,
                               .init = TABLE_SPEC_INIT_UNIFORM,
                               .init_scale = 0.1f,
                               .optim = TABLE_SPEC_ROWWISE_ADAGRAD };
    const struct membership_join join = { .job = "job",
                                          .n_workers = 1,
                                          .incarnation = 1,
                                          .mode = TABLE_SPEC_MODE_ASYNC,
                                          .name = "bench" };
    struct err err;
    uint32_t id;

    enter_shard();
    spec.params = table_spec_optim_defaults(spec.optim);
    side->shard = shard_new(&config);
    wal_queue_init(&side->queue, &(struct wal_queue_config){ .next_number = 1 });
    recorder_init(&side->recorder,
                  &(struct recorder_config){ .sink = { &side->queue, reserve, append } });
    if (shard_table_open(side->shard, &spec, false, &id, &err) ||
        membership_join(shard_membership(side->shard), &join, 0, &side->worker, &err)) {
        fprintf(stderr, "bench-log: %s\n", err.text);
        exit(1);
    }
}

/* In the writer's place: what was appended is given back at once. */
static void drain(struct side *side)
{
    struct wal_progress progress = side->queue.progress;

    progress.written = progress.durable = side->queue.next_number - 1;
    wal_block_free(wal_queue_recycle(&side->queue, wal_queue_drain(&side->queue), &progress));
}

/* The same shard with a log and without: another would have other memory. */
static void turn(struct side *side, const struct shard_events *journal,
                 const struct message *messages, enum codec_id codec, double *best_s)
{
    struct shard_push_result result;
    double from = cpu_s(), took;

    enter_shard();
    shard_set_events(side->shard, journal);
    for (uint32_t i = 0; i < N_PUSHES; i++) {
        const struct message *m = &messages[i % N_MESSAGES];

        side->push = (struct push){ .seq = side->worker->last_seq + 1,
                                    .clock = side->worker->clock,
                                    .n_samples = 1,
                                    .tick = true,
                                    .n_sections = 1 };
        side->push.sections[0] = (struct section){ .op = SECTION_GRADIENT,
                                                   .codec = codec,
                                                   .n_keys = N_KEYS,
                                                   .keys = m->keys,
                                                   .key_bytes = m->key_bytes,
                                                   .values = m->values,
                                                   .value_bytes = m->value_bytes };
        if (shard_push(side->shard, side->worker, &side->push, 0, &result) || result.status) {
            fprintf(stderr, "bench-log: %s\n", result.text);
            exit(1);
        }
        if (side->recorder.last % 16 == 15)
            drain(side);
    }
    took = cpu_s() - from;
    if (took < *best_s)
        *best_s = took;
}

static void bench_codec(enum codec_id codec)
{
    static struct side side;
    struct message messages[N_MESSAGES];
    double without_s = 1e9, with_s = 1e9;

    enter_shard();
    side = (struct side){ 0 };
    begin(&side);
    for (uint32_t i = 0; i < N_MESSAGES; i++)
        messages[i] = make_message(codec_by_id(codec), i);
    for (uint32_t i = 0; i < N_TURNS; i++) {
        turn(&side, NULL, messages, codec, &without_s);
        turn(&side, &side.recorder.events, messages, codec, &with_s);
    }
    printf("push of %u rows of dim %u, %s: %.1f us without a log, %.1f us with: %.1f us more "
           "(%.1f %%), best of %u turns\n",
           N_KEYS, DIM, codec_by_id(codec)->name, without_s / N_PUSHES * 1e6,
           with_s / N_PUSHES * 1e6, (with_s - without_s) / N_PUSHES * 1e6,
           100 * (with_s / without_s - 1), N_TURNS);
    for (uint32_t i = 0; i < N_MESSAGES; i++) {
        free(messages[i].keys);
        free(messages[i].values);
    }
    shard_free(side.shard);
    wal_queue_deinit(&side.queue);
}

void bench_push(void)
{
    bench_codec(CODEC_INT8);
    bench_codec(CODEC_FP32);
}
