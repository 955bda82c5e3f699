/* What psworker chooses where nothing is said, and that tables keep what they were made with. */
#include "tests/unit/worker/click_log.h"

#include "worker/model_tables.h"

#define FLAGS_MAX 12u

struct choice {
    const char *flags[FLAGS_MAX]; /* up to a NULL */
    enum table_spec_optim dense;
    float rate, dense_rate;
};

static const struct choice choices[] = {
    /* Few samples a step: Adagrad, and longer steps for rows. */
    { { "--batch", "128" }, TABLE_SPEC_ADAGRAD, 0.03f, 0.01f },
    { { "--batch", "511" }, TABLE_SPEC_ADAGRAD, 0.03f, 0.01f },
    { { "--batch", "512" }, TABLE_SPEC_ADAM, 0.03f, 0.001f },
    { { "--batch", "512", "--optimizer", "rowwise_adagrad" }, TABLE_SPEC_ADAM, 0.03f, 0.001f },
    { { "--batch", "128", "--optimizer", "rowwise_adagrad" },
      TABLE_SPEC_ADAGRAD,
      0.03f,
      0.01f },
    /* Workers in lock step make one step together, others do not. */
    { { "--mode", "bsp", "--workers", "4", "--batch", "128" }, TABLE_SPEC_ADAM, 0.03f, 0.001f },
    { { "--mode", "ssp", "--workers", "4", "--batch", "128" },
      TABLE_SPEC_ADAGRAD,
      0.03f,
      0.01f },
    /* Codecs with error feedback do not go with Adam. */
    { { "--batch", "2048", "--push-codec", "int8" }, TABLE_SPEC_ADAM, 0.03f, 0.001f },
    { { "--batch", "2048", "--push-codec", "onebit" }, TABLE_SPEC_ADAGRAD, 0.03f, 0.01f },
    { { "--batch", "2048", "--dense-push-codec", "topk" }, TABLE_SPEC_ADAGRAD, 0.03f, 0.01f },
    { { "--batch", "2048", "--push-codec", "auto" }, TABLE_SPEC_ADAGRAD, 0.03f, 0.01f },
    /* What is given is taken, and the dense tables follow with the same optimizer. */
    { { "--batch", "128", "--lr", "0.02" }, TABLE_SPEC_ADAGRAD, 0.02f, 0.02f },
    { { "--batch", "2048", "--lr", "0.02" }, TABLE_SPEC_ADAM, 0.02f, 0.001f },
    { { "--batch", "2048", "--lr", "0.02", "--dense-optimizer", "same" },
      TABLE_SPEC_ADAGRAD,
      0.02f,
      0.02f },
    { { "--batch", "2048", "--dense-lr", "0.5" }, TABLE_SPEC_ADAM, 0.03f, 0.5f },
    { { "--batch", "2048", "--optimizer", "sgd" }, TABLE_SPEC_SGD, 0.1f, 0.1f },
    { { "--optimizer", "adam" }, TABLE_SPEC_ADAM, 0.001f, 0.001f },
    { { "--lr", "0.5", "--dense-optimizer", "momentum" }, TABLE_SPEC_MOMENTUM, 0.5f, 0.1f },
};

static uint32_t dense_warmup(const char *const *flags)
{
    struct settings s;
    uint32_t n;

    click_log_settings(&s, flags);
    n = settings_dense_schedule(&s, settings_optim(&s, true)).warmup_clocks;
    settings_free(&settings_worker, &s);
    return n;
}

#define FLAGS(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define DROPS(...) FLAGS("--dropout", "0.1", __VA_ARGS__)

static void mlps_with_adagrad_and_dropout_warm_up(void **state)
{
    (void)state;
    assert_int_equal(dense_warmup(FLAGS("--batch", "128")), 0);
    assert_int_equal(dense_warmup(FLAGS("--batch", "128", "--workers", "2", "--mode", "async")),
                     SETTINGS_WARMUP_AUTO);
    assert_int_equal(dense_warmup(DROPS("--batch", "128")), SETTINGS_WARMUP_AUTO);
    assert_int_equal(dense_warmup(DROPS("--batch", "128", "--warmup", "0")), 0);
    assert_int_equal(dense_warmup(DROPS("--batch", "128", "--warmup", "5")), 5);
    assert_int_equal(dense_warmup(DROPS("--batch", "128", "--lr", "0.01")), 0);
    assert_int_equal(dense_warmup(DROPS("--batch", "128", "--dense-lr", "0.01")), 0);
    assert_int_equal(dense_warmup(DROPS("--batch", "128", "--dense-optimizer", "same")), 0);
    assert_int_equal(dense_warmup(DROPS("--batch", "2048")), 0);
    assert_int_equal(dense_warmup(DROPS("--batch", "2048", "--push-codec", "onebit")), 0);
}

static void inputs_of(const char *const *flags, uint32_t n_hats, float first,
                      const char *bottom)
{
    struct settings s;

    click_log_settings(&s, flags);
    assert_int_equal(settings_n_hats(&s), n_hats);
    assert_float_equal(settings_first_hat(&s), first, 0);
    assert_string_equal(settings_bottom(&s), bottom);
    settings_free(&settings_worker, &s);
}

static void numbers_have_hats_where_nothing_is_said(void **state)
{
    (void)state;
    inputs_of(FLAGS("--bottom", "auto"), 8, 0, "256,64");
    inputs_of(FLAGS("--bottom", "auto", "--format", "", "--numeric-as", "standardise"), 8,
              -3.5f, "256,64");
    inputs_of(FLAGS("--bottom", "auto", "--format", "", "--numeric-as", "raw"), 0, 0,
              "512,256,64");
    inputs_of(FLAGS("--bottom", "auto", "--numeric-hats", "0"), 0, 0, "512,256,64");
    inputs_of(FLAGS("--bottom", "auto", "--numeric-hats", "3"), 3, 0, "256,64");
    inputs_of(FLAGS("--bottom", "8"), 0, 0, "8");
    inputs_of(FLAGS("--bottom", "8", "--numeric-hats", "1"), 1, 0, "8");
    inputs_of(FLAGS("--bottom", "auto", "--model", "dcnv2"), 0, 0, "512,256,64");
}

static void a_job_begun_without_hats_goes_on_without(void **state)
{
    struct settings s;

    (void)state;
    click_log_settings(&s, FLAGS("--bottom", "auto"));
    assert_false(settings_keep_inputs(&s, 3, 0));
    assert_false(settings_keep_inputs(&s, 3, 3 * 10 * 256));
    assert_int_equal(settings_n_hats(&s), 8);
    assert_true(settings_keep_inputs(&s, 3, 3 * 512));
    assert_int_equal(settings_n_hats(&s), 0);
    assert_string_equal(settings_bottom(&s), "512,256,64");
    settings_free(&settings_worker, &s);
}

static void a_job_without_numbers_has_no_hats(void **state)
{
    struct settings s;

    (void)state;
    click_log_settings(&s, FLAGS("--bottom", "auto"));
    assert_false(settings_keep_inputs(&s, 0, 0));
    assert_int_equal(settings_n_hats(&s), 0);
    settings_free(&settings_worker, &s);
    click_log_settings(&s, FLAGS("--numeric-hats", "3"));
    assert_false(settings_keep_inputs(&s, 0, 0));
    assert_int_equal(settings_n_hats(&s), 0);
    settings_free(&settings_worker, &s);
}

static void settings_choose_what_suits_the_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(choices); i++) {
        const struct choice *want = &choices[i];
        enum table_spec_optim dense;
        struct settings s;

        click_log_settings(&s, want->flags);
        dense = settings_optim(&s, true);
        if (dense != want->dense)
            fail_msg("choice %zu: %s", i, table_spec_optim_name(dense));
        assert_float_equal(
            settings_optim_params(&s, false, settings_optim(&s, false)).learning_rate,
            want->rate, 0);
        assert_float_equal(settings_optim_params(&s, true, dense).learning_rate,
                           want->dense_rate, 0);
        settings_free(&settings_worker, &s);
    }
}

/* ---- tables that are there ---- */

/* Asks the store for the tables of a run with these flags; what open() says of them. *ret_block: of the first layer of
 * 1,100 outputs, as the model has it then. */
static int open_tables_of(struct param_store *store, const char *const *flags,
                          uint32_t *ret_block, struct err *err)
{
    struct dlrm_config config = { .batch_max = 1,
                                  .n_numeric = 2,
                                  .n_fields = 2,
                                  .dim = 4,
                                  .top = { ret_block ? 1100 : 8 },
                                  .n_top = 1 };
    struct model_tables *tables = NULL;
    struct dlrm *model;
    struct settings s;
    int status;

    click_log_settings(&s, flags);
    config.whole_layers = settings_has_layers(&s);
    must(dlrm_new(&config, &model, err), err);
    status = model_tables_create(&s, model, 2, store, &tables, err);
    for (uint32_t i = 0; ret_block && i < dlrm_n_tensors(model); i++)
        if (strcmp(dlrm_tensor(model, i)->name, "top.0.W") == 0)
            *ret_block = dlrm_tensor(model, i)->block;
    model_tables_free(tables);
    dlrm_free(model);
    settings_free(&settings_worker, &s);
    return status;
}

static int open_tables(struct param_store *store, const char *const *flags, struct err *err)
{
    return open_tables_of(store, flags, NULL, err);
}

static struct table_spec spec_of(struct param_store *store, const char *name, uint32_t dim)
{
    struct table_spec spec = { .dim = dim };
    struct err err = { 0 };
    uint32_t id;

    snprintf(spec.name, sizeof spec.name, "%s", name);
    must(store->ops->table_find(store, &spec, &id, &err), &err);
    return spec;
}

static void tables_keep_what_they_were_made_with(void **state)
{
    /* As psworkers before this one made them by default. */
    const char *const old[] = { "--lr", "0.01", "--dense-optimizer", "same", "--init-scale",
                                "0.05", NULL };
    const char *const nothing[] = { "--batch", "2048", NULL };
    const char *const other[] = { "--lr", "0.02", NULL };
    const char *const other_dense[] = { "--dense-optimizer", "adam", NULL };
    struct err err = { 0 };
    struct param_store *store;
    struct table_spec rows, wide, dense;

    (void)state;
    must(param_store_local_open(&(struct param_store_local_options){ .job = "job" }, &store,
                                &err),
         &err);
    must(open_tables(store, old, &err), &err);
    must(open_tables(store, nothing, &err), &err);
    rows = spec_of(store, "job/emb", 4);
    wide = spec_of(store, "job/wide", 1);
    dense = spec_of(store, "job/top.0.W", 0);
    assert_float_equal(rows.params.learning_rate, 0.01f, 0);
    assert_float_equal(rows.init_scale, 0.05f, 0);
    assert_float_equal(wide.params.learning_rate, 0.01f, 0);
    assert_int_equal(dense.optim, TABLE_SPEC_ADAGRAD);
    assert_float_equal(dense.params.learning_rate, 0.01f, 0);
    /* What is said must be so. */
    assert_int_equal(open_tables(store, other, &err), PS_ESPEC);
    assert_int_equal(open_tables(store, other_dense, &err), PS_ESPEC);
    store->ops->close(store);
}

static void new_tables_have_the_defaults(void **state)
{
    const char *const flags[] = { "--batch", "2048", NULL };
    struct err err = { 0 };
    struct param_store *store;
    struct table_spec rows, dense;

    (void)state;
    must(param_store_local_open(&(struct param_store_local_options){ .job = "job" }, &store,
                                &err),
         &err);
    must(open_tables(store, flags, &err), &err);
    rows = spec_of(store, "job/emb", 4);
    dense = spec_of(store, "job/top.0.W", 0);
    assert_int_equal(rows.optim, TABLE_SPEC_ADAGRAD);
    assert_float_equal(rows.params.learning_rate, 0.03f, 0);
    assert_float_equal(rows.init_scale, 0.01f, 0);
    assert_int_equal(dense.optim, TABLE_SPEC_ADAM);
    assert_float_equal(dense.params.learning_rate, 0.001f, 0);
    store->ops->close(store);
}

static struct param_store *open_store(void)
{
    struct err err = { 0 };
    struct param_store *store;

    must(param_store_local_open(&(struct param_store_local_options){ .job = "job" }, &store,
                                &err),
         &err);
    return store;
}

/* A run of other flags keeps the warm-up that the tables were made with. */
static void with_dropout_dense_tables_alone_are_made_with_a_warmup(void **state)
{
    const char *const *flags[] = { DROPS("--batch", "128"), FLAGS("--batch", "128") };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        const uint32_t want = i == 0 ? SETTINGS_WARMUP_AUTO : 0;
        struct param_store *store = open_store();
        struct err err = { 0 };

        must(open_tables(store, flags[i], &err), &err);
        must(open_tables(store, flags[1 - i], &err), &err);
        assert_int_equal(spec_of(store, "job/top.0.W", 0).schedule.warmup_clocks, want);
        assert_int_equal(spec_of(store, "job/top.0.b", 0).schedule.warmup_clocks, want);
        assert_int_equal(spec_of(store, "job/emb", 4).schedule.warmup_clocks, 0);
        assert_int_equal(spec_of(store, "job/wide", 1).schedule.warmup_clocks, 0);
        store->ops->close(store);
    }
}

/* ---- layers in blocks, and whole ---- */

static void a_job_with_another_optimizer_does_not_go_on_with_whole_layers(void **state)
{
    struct param_store *store = open_store();
    struct err err = { 0 };
    uint32_t block = 0;

    (void)state;
    must(open_tables_of(store, FLAGS("--batch", "128"), &block, &err), &err);
    assert_int_equal(block, TABLE_SPEC_DENSE_BLOCK);
    assert_int_equal(open_tables_of(store, FLAGS("--dense-optimizer", "lamb"), &block, &err),
                     PS_ESPEC);
    assert_string_equal(
        err.text, "table job/bot.0.W: optimizer is adagrad here, lamb was asked for: what "
                  "an earlier run of job \"job\" has made it with stays; go on with the "
                  "same model and training settings, or take another --job");
    must(open_tables_of(store, FLAGS("--batch", "128"), &block, &err), &err);
    assert_int_equal(block, TABLE_SPEC_DENSE_BLOCK);
    store->ops->close(store);
}

/* As psworkers made them before LAMB had whole layers: all that it has is in blocks. */
static struct param_store *store_of_blocks(const char *const *flags)
{
    static const char *const names[] = { "job/top.0.W", "job/top.0.b", "job/top.1.W" };
    struct param_store *whole = open_store(), *store = open_store();
    struct err err = { 0 };
    uint32_t block = 0, id;

    must(open_tables_of(whole, flags, &block, &err), &err);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct table_spec spec = spec_of(whole, names[i], 0);

        assert_int_equal(spec.dim, spec.n_floats);
        assert_true(spec.dim > TABLE_SPEC_DENSE_BLOCK);
        spec.dim = TABLE_SPEC_DENSE_BLOCK;
        must(store->ops->table(store, &spec, &id, &err), &err);
    }
    whole->ops->close(whole);
    return store;
}

static void blocks_of_an_earlier_psworker_stay_with_an_optimizer_of_whole_layers(void **state)
{
    const char *const *named = FLAGS("--dense-optimizer", "lamb", "--dense-lr", "0.01");
    const char *const *flags[] = { named, FLAGS("--batch", "128") };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        struct param_store *store = store_of_blocks(named);
        struct err err = { 0 };
        uint32_t block = 0;

        must(open_tables_of(store, flags[i], &block, &err), &err);
        assert_int_equal(block, TABLE_SPEC_DENSE_BLOCK);
        assert_int_equal(spec_of(store, "job/top.0.W", 0).optim, TABLE_SPEC_LAMB);
        store->ops->close(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_choose_what_suits_the_steps),
        cmocka_unit_test(mlps_with_adagrad_and_dropout_warm_up),
        cmocka_unit_test(numbers_have_hats_where_nothing_is_said),
        cmocka_unit_test(a_job_begun_without_hats_goes_on_without),
        cmocka_unit_test(a_job_without_numbers_has_no_hats),
        cmocka_unit_test(tables_keep_what_they_were_made_with),
        cmocka_unit_test(new_tables_have_the_defaults),
        cmocka_unit_test(with_dropout_dense_tables_alone_are_made_with_a_warmup),
        cmocka_unit_test(a_job_with_another_optimizer_does_not_go_on_with_whole_layers),
        cmocka_unit_test(blocks_of_an_earlier_psworker_stay_with_an_optimizer_of_whole_layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
