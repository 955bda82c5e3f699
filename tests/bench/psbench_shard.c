#include "tests/bench/psbench_shard.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <uv.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "server/core/shard.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_fill.h"
#include "tests/bench/psbench_handshake.h"

enum order { NOTHING, MEASURE, STOP };

struct psbench_shard {
    struct psbench_shard_config config;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum order order; /* guarded by lock, as what follows until the next blank line */
    bool done;
    double rows_per_s;
    struct err err;

    struct shard *shard; /* owned by the thread, as what follows */
    struct worker *worker;
    struct push push;
    struct pull pull;
    uint64_t seq;
    uint32_t next_set;
    double pulls_due;
    uint8_t *answer; /* owned: what pulls are answered into */
};

static int one_push(struct psbench_shard *s) ON_SHARD
{
    struct shard_push_result result;
    int status;

    s->push.seq = ++s->seq;
    status = shard_push(s->shard, s->worker, &s->push, 0, &result);
    s->push.clock++;
    if (status || result.status)
        return err_set(&s->err, status ? status : result.status, "local: %.200s",
                       result.text[0] ? result.text : status_text(result.status));
    return 0;
}

static int one_pull(struct psbench_shard *s) ON_SHARD
{
    uint64_t min_clock, version;

    s->pull.clock = s->push.clock;
    return shard_pull(s->shard, s->worker, &s->pull, s->answer, &min_clock, &version, &s->err);
}

static int fill_shard(struct psbench_shard *s) ON_SHARD
{
    const struct psbench_shard_config *cfg = &s->config;
    struct psbench_fill *fill =
        psbench_fill_new(cfg->settings, cfg->shard, cfg->n_shards, 0, 1);
    struct section *section = &s->push.sections[0], kept = *section;
    int status = 0;

    while (!status && psbench_fill_next(fill, section))
        status = one_push(s);
    *section = kept;
    psbench_fill_free(fill);
    return status;
}

/* The shard, its table, and the one worker that it knows. */
static int make_shard(struct psbench_shard *s) ON_SHARD
{
    struct shard_config config = { .shard = s->config.shard,
                                   .n_shards = s->config.n_shards,
                                   .lease_ms = UINT32_MAX,
                                   .join_ms = UINT32_MAX,
                                   .park_ms = 1000 };
    struct membership_join join = { .job = "psbench",
                                    .n_workers = 1,
                                    .incarnation = 1,
                                    .mode = TABLE_SPEC_MODE_ASYNC,
                                    .name = "psbench" };
    struct table_request request;
    uint32_t id = 0;
    int status;

    psbench_handshake_table(s->config.settings, &request);
    s->shard = shard_new(&config);
    status = shard_table_open(s->shard, &request.spec, false, &id, &s->err);
    if (!status)
        status = membership_join(shard_membership(s->shard), &join, 0, &s->worker, &s->err);
    s->push.sections[0].table_id = s->pull.sections[0].table_id = id;
    return status;
}

static void make_messages(struct psbench_shard *s)
{
    const struct psbench_settings *settings = s->config.settings;
    const struct psbench_pool *pool = s->config.pool;
    const struct codec *codec = codec_by_id((uint32_t)settings->codec);
    struct section *push = &s->push.sections[0], *pull = &s->pull.sections[0];

    s->push.n_samples = 1;
    s->push.tick = true;
    s->push.n_sections = s->pull.n_sections = 1;
    push->codec = codec->id;
    push->k = psbench_handshake_k(settings);
    push->n_keys = pull->n_keys = pool->n_keys;
    push->values = pool->values;
    push->value_bytes = pool->value_bytes;
    pull->codec = codec->feedback ? CODEC_FP32 : codec->id;
    s->answer =
        memory_alloc(codec_by_id(pull->codec)->row_bytes(settings->dim, 0) * pool->n_keys);
}

static bool is_pull_next(struct psbench_shard *s)
{
    const struct psbench_settings *settings = s->config.settings;

    if (settings->load != PSBENCH_MIX)
        return settings->load == PSBENCH_PULL;
    s->pulls_due += (double)settings->pull_share;
    if (s->pulls_due < 1)
        return false;
    s->pulls_due--;
    return true;
}

static int one_request(struct psbench_shard *s) ON_SHARD
{
    const struct psbench_pool *pool = s->config.pool;
    bool pulls = is_pull_next(s);
    struct section *section = pulls ? &s->pull.sections[0] : &s->push.sections[0];

    section->keys = psbench_pool_set(pool, s->next_set++ % pool->n_sets, &section->key_bytes);
    return pulls ? one_pull(s) : one_push(s);
}

static int measure(struct psbench_shard *s, double *ret_rows_per_s) ON_SHARD
{
    double seconds = (double)s->config.settings->seconds;
    uint64_t start_ns = uv_hrtime(), now_ns, n_rows = 0;
    int status;

    do {
        status = one_request(s);
        n_rows += s->config.pool->n_keys;
        now_ns = uv_hrtime();
    } while (!status && (double)(now_ns - start_ns) < seconds * 1e9);
    *ret_rows_per_s = (double)n_rows * 1e9 / (double)(now_ns - start_ns);
    return status;
}

static enum order next_order(struct psbench_shard *s)
{
    enum order order;

    pthread_mutex_lock(&s->lock);
    while (s->order == NOTHING)
        pthread_cond_wait(&s->changed, &s->lock);
    order = s->order;
    s->order = NOTHING;
    pthread_mutex_unlock(&s->lock);
    return order;
}

static void say_done(struct psbench_shard *s, double rows_per_s)
{
    pthread_mutex_lock(&s->lock);
    s->done = true;
    s->rows_per_s = rows_per_s;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *on_thread(void *shard)
{
    struct psbench_shard *s = shard;
    double rows_per_s = 0;
    int status;

    enter_shard();
    status = psbench_cpu_pin(s->config.cpu, &s->err);
    if (!status)
        status = make_shard(s);
    make_messages(s);
    if (!status)
        status = fill_shard(s);
    say_done(s, 0);
    while (next_order(s) == MEASURE) {
        if (!status)
            status = measure(s, &rows_per_s);
        if (status && !s->err.status)
            err_set(&s->err, status, "local: %s", status_text(status));
        say_done(s, rows_per_s);
    }
    shard_free(s->shard);
    free(s->answer);
    return NULL;
}

int psbench_shard_start(const struct psbench_shard_config *config, struct psbench_shard **ret,
                        struct err *err)
{
    struct psbench_shard *s = memory_alloc(sizeof *s);

    s->config = *config;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, on_thread, s)) {
        free(s);
        return err_set(err, -EAGAIN, "local: no thread");
    }
    *ret = s;
    return 0;
}

static void give_order(struct psbench_shard *s, enum order order)
{
    pthread_mutex_lock(&s->lock);
    s->order = order;
    s->done = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void psbench_shard_measure(struct psbench_shard *s)
{
    give_order(s, MEASURE);
}

int psbench_shard_wait(struct psbench_shard *s, double *ret_rows_per_s, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    while (!s->done)
        pthread_cond_wait(&s->changed, &s->lock);
    *ret_rows_per_s = s->rows_per_s;
    if (s->err.status && err)
        *err = s->err;
    pthread_mutex_unlock(&s->lock);
    return s->err.status;
}

void psbench_shard_stop(struct psbench_shard *s)
{
    if (!s)
        return;
    give_order(s, STOP);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}
