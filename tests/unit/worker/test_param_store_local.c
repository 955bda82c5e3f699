#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/seed.h"
#include "worker/param_store.h"

/* Tables in this process: several shards that threads share are held against one shard, bit for bit, with random
 * batches of two sparse tables and a dense one. */
#define KEYS_MAX 40u
#define DIM 5u
#define N_FLOATS 37u
#define BLOCK 16u
#define N_TABLES 3u

static const uint64_t blocks[3] = { 0, 1, 2 };

struct rows {
    float emb[KEYS_MAX * DIM], wide[KEYS_MAX], dense[3 * BLOCK];
    uint8_t present[KEYS_MAX / 8 + 1];
};

struct run {
    uint64_t seed, n_random;
    uint32_t n;
    uint64_t keys[KEYS_MAX];
};

static uint64_t draw(struct run *r, uint64_t below)
{
    return hash_mix2(r->seed, r->n_random++) % below;
}

static void draw_keys(struct run *r)
{
    uint64_t key = 0;

    for (r->n = 0; r->n < KEYS_MAX && draw(r, 30); r->n++) {
        key += 1 + draw(r, 2) * draw(r, 60);
        r->keys[r->n] = key * UINT64_C(0x100000001);
    }
}

static struct param_store *open_store(uint32_t n_shards, uint32_t n_threads, const char *dir)
{
    const struct param_store_local_options options = {
        .job = "job", .checkpoint_dir = dir, .n_shards = n_shards, .n_threads = n_threads
    };
    struct param_store *s;
    struct err err;

    if (param_store_local_open(&options, &s, &err))
        fail_msg("%s", err.text);
    return s;
}

static void make_tables(struct param_store *s, enum table_spec_optim optim)
{
    const struct table_spec shapes[N_TABLES] = {
        { .dim = DIM },
        { .dim = 1 },
        { .kind = TABLE_SPEC_DENSE, .dim = BLOCK, .n_floats = N_FLOATS },
    };

    for (uint32_t i = 0; i < N_TABLES; i++) {
        struct table_spec spec = shapes[i];
        struct err err;
        uint32_t number;

        spec.optim = optim;
        spec.params = table_spec_optim_defaults(optim);
        spec.seed = i + 1;
        spec.init = TABLE_SPEC_INIT_UNIFORM;
        spec.init_scale = 0.1f;
        snprintf(spec.name, sizeof spec.name, "job/%u", i);
        assert_int_equal(s->ops->table(s, &spec, &number, &err), 0);
        assert_int_equal(number, i);
    }
}

static int try_pull(struct param_store *s, const struct run *r, bool asks_presence,
                    struct rows *ret, struct err *err)
{
    const struct ps_pull_section sections[N_TABLES] = {
        { .n_keys = r->n,
          .keys = r->keys,
          .dst = ret->emb,
          .codec = CODEC_BF16,
          .present = asks_presence ? ret->present : NULL },
        { .table = 1, .n_keys = r->n, .keys = r->keys, .dst = ret->wide, .codec = CODEC_FP32 },
        { .table = 2, .n_keys = 3, .keys = blocks, .dst = ret->dense, .codec = CODEC_FP32 },
    };
    int status;

    memset(ret, 0, sizeof *ret);
    status = s->ops->pull_start(s, 0, sections, N_TABLES, err);
    return status ? status : s->ops->pull_wait(s, err);
}

static void pull(struct param_store *s, const struct run *r, bool asks_presence,
                 struct rows *ret)
{
    struct err err;

    if (try_pull(s, r, asks_presence, ret, &err))
        fail_msg("%s", err.text);
}

/* Gradients of the batch; `codec` of the first table. */
static int push(struct param_store *s, const struct run *r, enum codec_id codec,
                const struct rows *gradient, uint64_t clock, struct err *err)
{
    const struct ps_push_section sections[N_TABLES] = {
        { .codec = codec, .n_keys = r->n, .keys = r->keys, .values = gradient->emb },
        { .table = 1,
          .codec = CODEC_FP32,
          .n_keys = r->n,
          .keys = r->keys,
          .values = gradient->wide },
        { .table = 2,
          .codec = CODEC_FP32,
          .n_keys = 3,
          .keys = blocks,
          .values = gradient->dense },
    };

    return s->ops->push(s, clock, 8, true, sections, N_TABLES, err);
}

static void draw_gradient(struct run *r, struct rows *ret)
{
    float *at = (float *)ret;

    memset(ret, 0, sizeof *ret);
    for (uint32_t i = 0; i < KEYS_MAX * DIM + KEYS_MAX + 3 * BLOCK; i++)
        at[i] = (float)draw(r, 2001) / 1000.0f - 1.0f;
}

static void assert_same(struct param_store *one, struct param_store *many, const struct run *r,
                        bool asks_presence)
{
    struct rows want, got;

    pull(one, r, asks_presence, &want);
    pull(many, r, asks_presence, &got);
    assert_memory_equal(&got, &want, sizeof got);
}

static void shards_and_threads_change_no_bit(void **state)
{
    static const enum table_spec_optim optims[] = { TABLE_SPEC_ADAGRAD, TABLE_SPEC_ADAM,
                                                    TABLE_SPEC_SGD };
    static const enum codec_id codecs[] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_ONEBIT };
    struct run r = { .seed = seed_by_the_clock() };

    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        const enum codec_id codec = codecs[draw(&r, 4)];
        struct param_store *one = open_store(1, 1, NULL);
        struct param_store *many =
            open_store(2 + (uint32_t)draw(&r, 7), 1 + (uint32_t)draw(&r, 4), NULL);

        make_tables(one, optims[round % 3]);
        make_tables(many, optims[round % 3]);
        for (uint64_t clock = 0; clock < 25; clock++) {
            struct rows gradient;
            struct err err;

            draw_keys(&r);
            draw_gradient(&r, &gradient);
            assert_same(one, many, &r, draw(&r, 2));
            assert_int_equal(push(one, &r, codec, &gradient, clock, &err), 0);
            assert_int_equal(push(many, &r, codec, &gradient, clock, &err), 0);
            assert_same(one, many, &r, draw(&r, 2));
        }
        one->ops->close(one);
        many->ops->close(many);
    }
}

static void a_saved_model_is_read_by_any_number_of_shards(void **state)
{
    char dir[] = "/tmp/psd-local-XXXXXX", command[64];
    struct run r = { .seed = seed_by_the_clock() };
    struct param_store *first = open_store(5, 3, NULL), *again;
    struct rows gradient;
    struct err err;

    (void)state;
    assert_non_null(mkdtemp(dir));
    make_tables(first, TABLE_SPEC_ADAGRAD);
    for (uint64_t clock = 0; clock < 10; clock++) {
        draw_keys(&r);
        draw_gradient(&r, &gradient);
        assert_int_equal(push(first, &r, CODEC_FP32, &gradient, clock, &err), 0);
    }
    assert_int_equal(param_store_local_save(first, dir, &err), 0);
    for (uint32_t n = 1; n < 9; n++) {
        again = open_store(n, 2, dir);
        make_tables(again, TABLE_SPEC_ADAGRAD); /* finds them */
        assert_same(first, again, &r, true);
        again->ops->close(again);
    }
    first->ops->close(first);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void a_gradient_that_one_shard_refuses_has_a_sentence(void **state)
{
    struct param_store *s = open_store(4, 2, NULL);
    struct run r = { .n = 8, .keys = { 1, 2, 3, 4, 5, 6, 7, 8 } };
    struct rows gradient = { 0 };
    struct err err = { 0 };

    (void)state;
    make_tables(s, TABLE_SPEC_SGD);
    gradient.emb[3 * DIM] = NAN;
    assert_int_equal(push(s, &r, CODEC_FP32, &gradient, 0, &err), PS_ENAN);
    assert_non_null(strstr(err.text, "job/0"));
    gradient.emb[3 * DIM] = 0;
    assert_int_equal(push(s, &r, CODEC_FP32, &gradient, 1, &err), 0);
    s->ops->close(s);
}

#ifdef PS_FAULTS
#define N_SHARDS 4u

static const struct run some = { .n = 12, .keys = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 } };

/* True if an allocation has failed since memory_fail_anywhere(); none does any more. */
static bool one_failed(void)
{
    const bool any = memory_n_failed_anywhere() > 0;

    memory_fail_anywhere(-1, 0);
    return any;
}

/* With a push of `some`. */
static struct param_store *open_trained(uint32_t n_shards, uint32_t n_threads)
{
    struct param_store *s = open_store(n_shards, n_threads, NULL);
    struct run r = { .seed = 1 };
    struct rows gradient;
    struct err err;

    make_tables(s, TABLE_SPEC_ADAGRAD);
    draw_gradient(&r, &gradient);
    assert_int_equal(push(s, &some, CODEC_FP32, &gradient, 0, &err), 0);
    return s;
}

/* Each one alone, in turn: a sentence, or all of the model. */
static void an_open_without_memory_has_a_sentence(void **state)
{
    char dir[] = "/tmp/psd-local-XXXXXX", command[64];
    struct param_store *first = open_trained(3, 1);
    const struct param_store_local_options options = {
        .job = "job", .checkpoint_dir = dir, .n_shards = N_SHARDS, .n_threads = 1
    };
    uint32_t n_failures = 0;
    bool any = true;
    struct err err;

    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(param_store_local_save(first, dir, &err), 0);
    for (long k = 0; any; k++) {
        struct param_store *s = NULL;
        int status;

        err = (struct err){ 0 };
        memory_fail_anywhere(k, 1);
        status = param_store_local_open(&options, &s, &err);
        any = one_failed();
        n_failures += status != 0;
        if (status) {
            assert_true(any && err.status == status && err.text[0]);
            continue;
        }
        make_tables(s, TABLE_SPEC_ADAGRAD);
        assert_same(first, s, &some, true);
        s->ops->close(s);
    }
    assert_true(n_failures >= N_SHARDS);
    first->ops->close(first);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* The others answer, and all of them the next pull. */
static void pull_without_memory(uint32_t n_threads)
{
    struct param_store *one = open_trained(1, 1);
    uint32_t n_of_a_shard = 0;
    bool any = true;
    struct rows want;

    pull(one, &some, false, &want);
    for (long k = 0; any; k++) {
        struct param_store *s = open_trained(N_SHARDS, n_threads);
        struct err err = { 0 };
        struct rows got;
        int status;

        memory_fail_anywhere(k, 1);
        status = try_pull(s, &some, false, &got, &err);
        any = one_failed();
        n_of_a_shard += status && strstr(err.text, "bytes of rows");
        if (status) {
            assert_true(any && status == -ENOMEM && err.text[0]);
            pull(s, &some, false, &got);
        }
        assert_memory_equal(&got, &want, sizeof got);
        s->ops->close(s);
    }
    assert_int_equal(n_of_a_shard, N_SHARDS);
    one->ops->close(one);
}

static void a_pull_that_one_shard_fails_has_a_sentence(void **state)
{
    (void)state;
    pull_without_memory(1);
    pull_without_memory(3);
}

/* What other shards have of it stays. Nobody sends it again: a shard that lacks it refuses the next one. */
static void push_without_memory(uint32_t n_threads)
{
    uint32_t n_failures = 0;
    bool any = true;

    for (long k = 0; any; k++) {
        struct param_store *s = open_store(N_SHARDS, n_threads, NULL);
        struct rows gradient = { 0 }, got;
        struct err err = { 0 };
        int status, again;

        make_tables(s, TABLE_SPEC_ADAGRAD);
        memory_fail_anywhere(k, 1);
        status = push(s, &some, CODEC_INT8, &gradient, 0, &err);
        any = one_failed();
        n_failures += status != 0;
        if (status)
            assert_true(any && status == -ENOMEM && err.text[0]);
        again = push(s, &some, CODEC_INT8, &gradient, 1, &err);
        assert_true(again == 0 || (status && again == PS_ESEQ));
        pull(s, &some, false, &got);
        s->ops->close(s);
    }
    assert_true(n_failures >= N_SHARDS);
}

static void a_push_without_memory_has_a_sentence(void **state)
{
    (void)state;
    push_without_memory(1);
    push_without_memory(3);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef PS_FAULTS
        cmocka_unit_test(an_open_without_memory_has_a_sentence),
        cmocka_unit_test(a_pull_that_one_shard_fails_has_a_sentence),
        cmocka_unit_test(a_push_without_memory_has_a_sentence),
#endif
        cmocka_unit_test(shards_and_threads_change_no_bit),
        cmocka_unit_test(a_saved_model_is_read_by_any_number_of_shards),
        cmocka_unit_test(a_gradient_that_one_shard_refuses_has_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
