/* Delay compensation: the papers' numbers through pushes, what is refused, and what no compensation may do. */
#include "golden.h"

#include <math.h>

#include "server/core/delay.h"

#define DIM 4u
#define N_WORKERS 4u

static const struct section_delay constant = { .lambda = 2, .constant = true };

/* What every worker pulled last. */
struct pulled {
    float then[N_WORKERS][GOLDEN_FLOATS];
    uint64_t keys[GOLDEN_ROWS];
};

static void run_golden(const char *name, bool is_constant)
{
    static struct pulled pulled;
    struct table_spec spec = dense_spec("t", GOLDEN_COLS, GOLDEN_FLOATS, TABLE_SPEC_SGD);
    struct npy p0 = npy_load(name, "p0"), g = npy_load(name, "g"),
               who = npy_load(name, "worker");
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w[N_WORKERS];
    struct push *push;
    uint32_t table;

    enter_shard();
    spec.params = (struct optimizer_params){ .learning_rate = (float)npy_param(name, "lr") };
    table = make_table(s, &spec);
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        w[i] = join(s, TABLE_SPEC_MODE_ASYNC, 0, i, N_WORKERS);
        memcpy(pulled.then[i], p0.f, sizeof pulled.then[i]);
    }
    for (uint32_t r = 0; r < GOLDEN_ROWS; r++)
        pulled.keys[r] = r;
    push = next_push(w[0], 0);
    push->tick = false;
    add_assign(push, table, GOLDEN_COLS, pulled.keys, GOLDEN_ROWS, p0.f);
    must_push(s, w[0], push);
    for (uint32_t t = 0; t < GOLDEN_STEPS; t++) {
        const uint32_t rank = (uint32_t)who.i[t];

        push = next_push(w[rank], w[rank]->clock);
        add_gradient_at(
            push, table, CODEC_FP32, GOLDEN_COLS, pulled.keys, GOLDEN_ROWS,
            g.f + (size_t)t * GOLDEN_FLOATS, pulled.then[rank],
            (struct section_delay){ (float)npy_param(name, "lambda"), is_constant });
        must_push(s, w[rank], push);
        read_weights(s, table, pulled.keys, GOLDEN_ROWS, pulled.then[rank]);
        npy_check(name, "p", pulled.then[rank], (int64_t)t * GOLDEN_FLOATS, GOLDEN_FLOATS);
    }
    npy_free(&p0);
    npy_free(&g);
    npy_free(&who);
    shard_free(s);
}

static void four_workers_learn_what_the_paper_has_them_learn(void **state)
{
    (void)state;
    run_golden("paper_dcasgd_c", true);
    run_golden("paper_dcasgd_a", false);
}

/* Of the weights as they are now, whatever their storage and the codec of the gradient; before the clip and the
 * optimizer. */
static void every_storage_and_codec_compensates_the_decoded_gradient(void **state)
{
    const uint64_t key = 3;
    const float start[DIM] = { 1, -2, 0.5f, 0 }, g[DIM] = { 1, -2, 3, 4 },
                then[DIM] = { 0.5f, -2, 1, -1 };

    (void)state;
    enter_shard();
    for (uint32_t i = 0; i < TABLE_SPEC_STORAGE_END * (uint32_t)CODEC_TOPK; i++) {
        const enum codec_id codec = (enum codec_id)(i % CODEC_TOPK);
        struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_ADAGRAD);
        float want[DIM], row[DIM], coded[DIM], got[DIM], wanted[DIM];
        uint8_t bytes[64];
        struct shard *s = make_shard(0, 1, 0);
        struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        struct push *push = next_push(w, 0);
        uint32_t table, plain;

        spec.storage = (enum table_spec_storage)(i / CODEC_TOPK);
        spec.clip_norm = 3;
        table = make_table(s, &spec);
        snprintf(spec.name, sizeof spec.name, "plain");
        plain = make_table(s, &spec);
        add_assign(push, table, DIM, &key, 1, start);
        add_assign(push, plain, DIM, &key, 1, start);
        must_push(s, w, push);
        codec_by_id(codec)->encode(g, DIM, 0, bytes);
        assert_int_equal(codec_by_id(codec)->decode(bytes, DIM, 0, coded), 0);
        read_weights(s, table, &key, 1, row);
        for (uint32_t j = 0; j < DIM; j++)
            want[j] = coded[j] + 2 * (coded[j] * coded[j]) * (row[j] - then[j]);
        push = next_push(w, w->clock);
        add_gradient_at(push, table, codec, DIM, &key, 1, g, then, constant);
        add_gradient(push, plain, DIM, &key, 1, want);
        must_push(s, w, push);
        read_weights(s, table, &key, 1, got);
        read_weights(s, plain, &key, 1, wanted);
        assert_floats_equal(got, wanted, DIM);
        shard_free(s);
    }
}

static void a_correction_that_is_no_number_or_too_large_is_left_out(void **state)
{
    const float w[DIM] = { 1e30f, 1, INFINITY, 2 }, then[DIM] = { 0, 1, 0, 1 };
    float g[DIM] = { 1e14f, 3e38f, 1, 1 };

    (void)state;
    delay_compensate(constant, w, (const optimizer_gradient *)then, DIM, g);
    assert_true(g[0] == 1e14f && g[1] == 3e38f && g[2] == 1 && g[3] == 3);
    delay_compensate((struct section_delay){ .lambda = 2 }, w, (const optimizer_gradient *)then,
                     DIM, g);
    assert_true(g[0] == 1e14f && g[1] == 3e38f && g[2] == 1 && fabsf(g[3] - 9) < 1e-5f);
}

static void refuse(struct shard *s, struct worker *w, struct push *push, int status,
                   const char *about)
{
    const uint64_t n_pushes = shard_table(s, push->sections[0].table_id)->n_pushes;
    const uint32_t table = push->sections[0].table_id;
    struct shard_push_result result = try_push(s, w, push);

    assert_int_equal(result.status, status);
    if (!strstr(result.text, about))
        fail_msg("\"%s\" says nothing of %s", result.text, about);
    assert_int_equal(shard_table(s, table)->n_pushes, n_pushes);
}

static struct push *push_of(struct worker *w, uint32_t table, const float *then, float lambda)
{
    static const uint64_t key = 7;
    const float g[DIM] = { 1, 2, 3, 4 };
    struct push *push = next_push(w, w->clock);

    add_gradient_at(push, table, CODEC_FP32, DIM, &key, 1, g, then,
                    (struct section_delay){ .lambda = lambda });
    return push;
}

static void what_cannot_be_compensated_is_refused_with_a_sentence(void **state)
{
    const float then[DIM] = { 0 }, infinite[DIM] = { 0, 0, 0, INFINITY };
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push;
    uint32_t table, lock_step;

    (void)state;
    enter_shard();
    table = make_table(s, &spec);
    spec.mode = TABLE_SPEC_MODE_BSP;
    snprintf(spec.name, sizeof spec.name, "exact");
    lock_step = make_table(s, &spec);
    refuse(s, w, push_of(w, lock_step, then, 1), PS_EPROTO, "lock step");
    refuse(s, w, push_of(w, table, infinite, 1), PS_ENAN, "NaN or infinity");
    refuse(s, w, push_of(w, table, then, -1), PS_EPROTO, "0 to 1e+06");
    refuse(s, w, push_of(w, table, then, 2e6f), PS_EPROTO, "0 to 1e+06");
    refuse(s, w, push_of(w, table, then, NAN), PS_EPROTO, "0 to 1e+06");
    push = push_of(w, table, then, 1);
    push->sections[0].steps |= UINT64_C(1) << 33;
    refuse(s, w, push, PS_EPROTO, "form 2");
    push = push_of(w, table, then, 1);
    push->sections[0].value_bytes -= 4;
    refuse(s, w, push, PS_EWIDTH, "28 bytes");
    push = push_of(w, table, then, 1);
    push->sections[0].codec = CODEC_TOPK;
    push->sections[0].k = 2;
    refuse(s, w, push, PS_ECODEC, "topk");
    must_push(s, w, push_of(w, table, then, 1));
    shard_free(s);
}

static void keys_that_are_compensated_go_through_the_admission_filter(void **state)
{
    const float then[DIM] = { 0 };
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    uint32_t table;

    (void)state;
    enter_shard();
    spec.limits.admit_touches = 2;
    spec.limits.admit_clocks = 100;
    table = make_table(s, &spec);
    must_push(s, w, push_of(w, table, then, 1));
    assert_null(find_row(s, table, 7));
    must_push(s, w, push_of(w, table, then, 1));
    assert_non_null(find_row(s, table, 7));
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_workers_learn_what_the_paper_has_them_learn),
        cmocka_unit_test(every_storage_and_codec_compensates_the_decoded_gradient),
        cmocka_unit_test(a_correction_that_is_no_number_or_too_large_is_left_out),
        cmocka_unit_test(what_cannot_be_compensated_is_refused_with_a_sentence),
        cmocka_unit_test(keys_that_are_compensated_go_through_the_admission_filter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
