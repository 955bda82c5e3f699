/* What a model promises beside its numbers: refusals, names and starts of tensors, running
 * statistics, repeatability, memory. */
#include <errno.h>
#include <math.h>

#include "tests/unit/model/fixture.h"

struct refusal {
    struct dlrm_config config;
    const char *words; /* of the sentence */
};

#define PLAIN .batch_max = 16, .n_numeric = 3, .n_fields = 4, .dim = 8

static const struct refusal refusals[] = {
    { { .batch_max = 0, .n_numeric = 3, .n_fields = 4, .dim = 8 },
      "batch is 0, expected 1 to" },
    { { .batch_max = UINT32_MAX, .n_numeric = 3, .n_fields = 4, .dim = 8 },
      "batch is 4294967295" },
    { { .batch_max = 16, .n_numeric = 3, .n_fields = 4, .dim = 0 }, "dim is 0, expected 1 to" },
    { { .batch_max = 16, .n_numeric = 3, .n_fields = 4, .dim = 1u << 20 }, "dim is 1048576" },
    { { .batch_max = 16, .n_numeric = UINT32_MAX, .dim = 8 },
      "number of numeric columns is 4294967295" },
    { { .batch_max = 16, .n_fields = UINT32_MAX, .dim = 8 },
      "number of categorical fields is 4294967295" },
    { { .batch_max = 16, .dim = 8 }, "neither numeric nor categorical" },
    { { .batch_max = 16, .n_fields = 1, .dim = 8 }, "a single field has no pairs; choose" },
    { { PLAIN, .n_bottom = 9 }, "the bottom MLP has 9 hidden layers, expected at most 8" },
    { { PLAIN, .n_top = 9 }, "the top MLP has 9 hidden layers" },
    { { PLAIN, .n_bottom = 1, .bottom = { 0 } }, "hidden layer 1 of the bottom MLP is 0 wide" },
    { { PLAIN, .n_top = 2, .top = { 4, 1u << 30 } },
      "hidden layer 2 of the top MLP is 1073741824 wide" },
    { { PLAIN, .n_top = 2, .top = { 65536, 65536 } },
      "layer 2 of the top MLP has 65536 x 65536 weights" },
    { { .batch_max = 16, .n_fields = 65536, .dim = 8, .n_top = 1, .top = { 2 } },
      "layer 1 of the top MLP has 2147450880 x 2 weights" },
    { { PLAIN, .kind = MODEL_DCNV2 }, "the number of cross layers is 0, expected 1 to 8" },
    { { PLAIN, .kind = MODEL_DCNV2, .n_cross = 9 }, "the number of cross layers is 9" },
    { { PLAIN, .kind = MODEL_DCNV2, .n_cross = 1, .cross_rank = 65537 },
      "the rank of the cross layers is 65537, expected 0 to 65536" },
    { { .batch_max = 16, .n_fields = 65536, .dim = 8, .kind = MODEL_DCNV2, .n_cross = 1 },
      "a cross layer has 524288 x 524288 weights, expected at most 2147483647; choose a "
      "smaller" },
    { { PLAIN, .dropout = 1 }, "dropout is 1, expected a number from 0 to below 1" },
    { { PLAIN, .dropout = -0.5f }, "dropout is -0.5" },
    { { PLAIN, .dropout = NAN }, "dropout is nan" },
    { { PLAIN, .l2_dense = -1 }, "l2_dense is -1" },
    { { PLAIN, .l2_dense = INFINITY }, "l2_dense is inf" },
    { { PLAIN, .l2_rows = NAN }, "l2_rows is nan" },
};

static void a_wrong_setting_is_refused_with_a_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        struct dlrm *m = NULL;
        struct err err = { 0 };

        assert_int_equal(dlrm_new(&refusals[i].config, &m, &err), PS_ESETTING);
        assert_null(m);
        if (!strstr(err.text, refusals[i].words))
            fail_msg("expected \"%s\" in \"%s\"", refusals[i].words, err.text);
    }
}

static void tensors_have_names_sizes_and_starts(void **state)
{
    static const struct {
        const char *name;
        uint32_t n_floats;
        double variance;
    } want[] = {
        { "bot.0.W", 5 * 3, 2.0 / 8 },   { "bot.0.b", 5, 1.0 / 5 },
        { "bot.1.W", 8 * 5, 2.0 / 13 },  { "bot.1.b", 8, 1.0 / 8 },
        { "top.0.W", 6 * 18, 2.0 / 24 }, { "top.0.b", 6, 1.0 / 6 },
        { "top.1.W", 5 * 6, 2.0 / 11 },  { "top.1.b", 5, 1.0 / 5 },
        { "top.2.W", 5, 2.0 / 6 },       { "top.2.b", 1, 1.0 },
    };
    struct dlrm *m;

    (void)state;
    assert_int_equal(dlrm_new(&fixture_plain, &m, NULL), 0);
    assert_int_equal(dlrm_n_tensors(m), COUNT_OF(want));
    for (uint32_t i = 0; i < COUNT_OF(want); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(m, i);
        const double scale = (double)t->init_scale;

        assert_string_equal(t->name, want[i].name);
        assert_int_equal(t->n_floats, want[i].n_floats);
        assert_int_equal(t->init, TABLE_SPEC_INIT_NORMAL);
        assert_true(fabs(scale * scale - want[i].variance) < 1e-6);
        assert_true(t->init_offset == 0 && !t->statistic);
    }
    assert_non_null(strstr(dlrm_device(m), "1 thread"));
    dlrm_free(m);
    dlrm_free(NULL);
}

static void normalised_layers_have_four_tensors_more(void **state)
{
    static const char *const names[] = { "bot.0.W",    "bot.0.b",    "bot.0.gamma",
                                         "bot.0.beta", "bot.0.mean", "bot.0.var",
                                         "bot.1.W",    "bot.1.b",    "bot.1.gamma",
                                         "bot.1.beta", "bot.1.mean", "bot.1.var" };
    struct dlrm_config config = fixture_plain;
    struct dlrm *m;

    (void)state;
    config.batch_norm = true;
    assert_int_equal(dlrm_new(&config, &m, NULL), 0);
    assert_int_equal(dlrm_n_tensors(m), 4 * 6 + 2);
    for (uint32_t i = 0; i < COUNT_OF(names); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(m, i);
        const bool is_mean = strstr(t->name, "mean"), is_var = strstr(t->name, "var");

        assert_string_equal(t->name, names[i]);
        assert_true(t->statistic == (is_mean || is_var));
        assert_true(t->init_offset == (is_var || strstr(t->name, "gamma") ? 1 : 0));
        assert_true(t->init ==
                    (t->n_floats && i % 6 < 2 ? TABLE_SPEC_INIT_NORMAL : TABLE_SPEC_INIT_ZERO));
    }
    dlrm_free(m);
}

static struct dlrm_tensor *tensor_named(struct dlrm *m, const char *name)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(m); i++)
        if (!strcmp(dlrm_tensor(m, i)->name, name))
            return dlrm_tensor(m, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* momentum * (running - batch): the batch's variance unbiased, as torch keeps it. */
static void running_statistics_move_a_tenth_towards_the_batch(void **state)
{
    struct fixture_rng rng = { 8, 0 };
    struct dlrm_config config = fixture_plain;
    struct fixture f;
    struct dlrm_tensor *mean, *var;
    const float *pre;
    uint32_t n_pre = 0;

    (void)state;
    config.batch_norm = true;
    fixture_init(&f, &config, 12, &rng);
    fixture_step(&f, 0);
    mean = tensor_named(f.m, "top.0.mean");
    var = tensor_named(f.m, "top.0.var");
    pre = debug_read(f.m, "top_0_pre", &n_pre);
    assert_int_equal(n_pre, 12 * mean->n_floats);
    for (uint32_t o = 0; o < mean->n_floats; o++) {
        double sum = 0, squares = 0;

        for (uint32_t s = 0; s < 12; s++)
            sum += (double)pre[s * mean->n_floats + o] / 12;
        for (uint32_t s = 0; s < 12; s++)
            squares += ((double)pre[s * mean->n_floats + o] - sum) *
                       ((double)pre[s * mean->n_floats + o] - sum);
        assert_true(fabs((double)mean->grads[o] - 0.1 * ((double)mean->values[o] - sum)) <
                    1e-6);
        assert_true(fabs((double)var->grads[o] -
                         0.1 * (1 + (double)var->values[o] - squares / 11)) < 1e-6);
    }
    fixture_deinit(&f);
}

static void the_same_step_gives_the_same_bits(void **state)
{
    struct fixture_rng rng = { 9, 0 };
    struct dlrm_config config = fixture_plain;
    struct fixture f;
    float *first;
    size_t bytes;

    (void)state;
    config.dropout = 0.3f;
    config.wide = config.batch_norm = true;
    fixture_init(&f, &config, 16, &rng);
    fixture_step(&f, 5);
    bytes = (size_t)f.batch.n_unique * config.dim * sizeof *first;
    first = memory_alloc(bytes);
    memcpy(first, f.row_grads, bytes);
    fixture_step(&f, 6);
    assert_memory_not_equal(first, f.row_grads, bytes); /* another mask */
    fixture_step(&f, 5);
    assert_memory_equal(first, f.row_grads, bytes);
    free(first);
    fixture_deinit(&f);
}

static void a_sample_is_scored_the_same_in_any_batch(void **state)
{
    struct fixture_rng rng = { 10, 0 };
    struct fixture f;
    float alone;

    (void)state;
    fixture_init(&f, &fixture_plain, 16, &rng);
    f.batch.n = 1;
    fixture_predict(&f);
    alone = dlrm_probs(f.m)[0];
    f.batch.n = 16;
    fixture_predict(&f);
    assert_true(fabsf(alone - dlrm_probs(f.m)[0]) < 1e-6f);
    assert_true(alone > 0 && alone < 1);
    fixture_deinit(&f);
}

static void a_batch_without_samples_moves_nothing(void **state)
{
    struct fixture_rng rng = { 12, 0 };
    struct dlrm_config config = fixture_plain;
    struct fixture f;

    (void)state;
    config.wide = config.batch_norm = true;
    config.dropout = 0.5f;
    fixture_init(&f, &config, 0, &rng);
    for (uint32_t i = 0; i < dlrm_n_tensors(f.m); i++)
        fixture_fill(&rng, dlrm_tensor(f.m, i)->grads, dlrm_tensor(f.m, i)->n_floats, 1);
    fixture_step(&f, 0);
    assert_true(f.loss == 0);
    for (uint32_t i = 0; i < dlrm_n_tensors(f.m); i++)
        for (uint32_t k = 0; k < dlrm_tensor(f.m, i)->n_floats; k++)
            assert_true(dlrm_tensor(f.m, i)->grads[k] == 0);
    fixture_deinit(&f);
}

static void a_batch_of_empty_bags_works_without_rows(void **state)
{
    struct fixture_rng rng = { 13, 0 };
    struct dlrm_step step;
    struct fixture f;

    (void)state;
    fixture_init(&f, &fixture_plain, 7, &rng);
    memset(f.batch.starts, 0, (7 * 4 + 1) * sizeof *f.batch.starts);
    f.batch.n_keys = f.batch.n_unique = 0;
    step = (struct dlrm_step){ .batch = &f.batch };
    assert_int_equal(dlrm_step(f.m, &step, &f.loss), 0);
    assert_true(isfinite(f.loss));
    fixture_deinit(&f);
}

static void the_debug_read_knows_no_other_names(void **state)
{
    static const char *const names[] = { "",          "d_",        "bag_4",
                                         "bag_0x",    "bot_2_pre", "top_3_out",
                                         "mid_0_out", "top_0_mid", "d_prob",
                                         "Z",         "bot__pre",  "top_99999999999_pre" };
    struct fixture_rng rng = { 14, 0 };
    struct fixture f;
    uint32_t n;

    (void)state;
    fixture_init(&f, &fixture_plain, 4, &rng);
    fixture_step(&f, 0);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (debug_read(f.m, names[i], &n))
            fail_msg("the debug read answers to \"%s\"", names[i]);
    assert_non_null(debug_read(f.m, "bag_3", &n));
    fixture_deinit(&f);
}

#ifdef PS_FAULTS
/* Allocations of a model. */
static long fail_each_allocation(const struct dlrm_config *config)
{
    long k = 0;
    int status = -ENOMEM;

    for (; status == -ENOMEM && k < 1000; k++) {
        struct dlrm *m = NULL;
        struct err err = { 0 };

        memory_fail_after(k);
        status = dlrm_new(config, &m, &err);
        memory_fail_after(-1);
        assert_true(!status == (m != NULL));
        assert_true(!status || strstr(err.text, "no memory for batches of 16 samples"));
        dlrm_free(m);
    }
    assert_int_equal(status, 0);
    return k;
}
#endif

static void every_failing_allocation_is_reported_and_leaks_nothing(void **state)
{
    (void)state;
#ifdef PS_FAULTS
    for (int kind = 0; kind < MODEL_KINDS; kind++) {
        struct dlrm_config config = fixture_plain;

        config.batch_norm = true;
        config.n_cross = 2;
        config.cross_rank = 3;
        fixture_turn_into(&config, (enum model_kind)kind);
        assert_true(fail_each_allocation(&config) > (kind == MODEL_LR ? 8 : 12));
        config.cross_rank = 0;
        fail_each_allocation(&config);
    }
#else
    print_message("skipped: this build cannot make an allocation fail\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_setting_is_refused_with_a_sentence),
        cmocka_unit_test(tensors_have_names_sizes_and_starts),
        cmocka_unit_test(normalised_layers_have_four_tensors_more),
        cmocka_unit_test(running_statistics_move_a_tenth_towards_the_batch),
        cmocka_unit_test(the_same_step_gives_the_same_bits),
        cmocka_unit_test(a_sample_is_scored_the_same_in_any_batch),
        cmocka_unit_test(a_batch_without_samples_moves_nothing),
        cmocka_unit_test(a_batch_of_empty_bags_works_without_rows),
        cmocka_unit_test(the_debug_read_knows_no_other_names),
        cmocka_unit_test(every_failing_allocation_is_reported_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
