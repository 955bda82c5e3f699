#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proto/placement.h"
#include "proto/table_spec.h"

static struct table_spec sparse(void)
{
    struct table_spec spec = { .name = "emb",
                               .kind = TABLE_SPEC_SPARSE,
                               .dim = 16,
                               .seed = 7,
                               .init = TABLE_SPEC_INIT_UNIFORM,
                               .init_scale = 0.1f,
                               .optim = TABLE_SPEC_ADAGRAD };

    spec.params = table_spec_optim_defaults(TABLE_SPEC_ADAGRAD);
    return spec;
}

static struct table_spec dense(void)
{
    struct table_spec spec = sparse();

    spec.kind = TABLE_SPEC_DENSE;
    spec.dim = TABLE_SPEC_DENSE_BLOCK;
    spec.n_floats = 5000;
    return spec;
}

/* The sentence must hold each of these words. */
static void assert_refused(const struct table_spec *spec, const char *field, const char *found)
{
    struct err err = { 0 };

    assert_int_equal(table_spec_check(spec, &err), PS_ESPEC);
    assert_int_equal(err.status, PS_ESPEC);
    if (!strstr(err.text, field) || !strstr(err.text, found))
        fail_msg("\"%s\" does not speak of %s and %s", err.text, field, found);
    assert_int_equal(table_spec_check(spec, NULL), PS_ESPEC);
}

static void defaults_of_every_optimizer_pass(void **state)
{
    struct err err;

    (void)state;
    for (unsigned optim = 0; optim < TABLE_SPEC_OPTIM_END; optim++) {
        struct table_spec a = sparse(), b = dense();

        a.optim = b.optim = (enum table_spec_optim)optim;
        a.params = b.params = table_spec_optim_defaults((enum table_spec_optim)optim);
        assert_int_equal(table_spec_check(&a, &err), 0);
        assert_int_equal(table_spec_check(&b, &err), 0);
        assert_true(a.params.learning_rate > 0);
    }
}

static void names_are_printable_ascii_without_blanks(void **state)
{
    struct table_spec spec = sparse();

    (void)state;
    spec.name[0] = 0;
    assert_refused(&spec, "name", "no name");
    memcpy(spec.name, "a b", 4);
    assert_refused(&spec, "name", "0x20");
    memcpy(spec.name, "a\n", 3);
    assert_refused(&spec, "name", "0x0a");
    memcpy(spec.name, "\xc3\xa9", 3);
    assert_refused(&spec, "name", "0xc3");
    memset(spec.name, 'x', sizeof spec.name);
    assert_refused(&spec, "name", "127");
    spec.name[TABLE_SPEC_NAME_MAX - 1] = 0;
    assert_int_equal(table_spec_check(&spec, NULL), 0);
}

static void a_block_may_be_a_layer_where_the_optimizer_takes_it_whole(void **state)
{
    struct table_spec spec = sparse();

    (void)state;
    spec.kind = TABLE_SPEC_DENSE;
    spec.dim = TABLE_SPEC_LAYER_MAX;
    spec.n_floats = TABLE_SPEC_LAYER_MAX;
    assert_refused(&spec, "dim", "lamb or lars");
    spec.optim = TABLE_SPEC_LAMB;
    assert_int_equal(table_spec_check(&spec, NULL), 0);
    spec.optim = TABLE_SPEC_LARS;
    assert_int_equal(table_spec_check(&spec, NULL), 0);
    spec.n_floats *= 2;
    assert_refused(&spec, "n_floats", "one layer");
    spec.n_floats = spec.dim = TABLE_SPEC_LAYER_MAX + 1;
    assert_refused(&spec, "dim", "4194304");
    spec = sparse();
    spec.optim = TABLE_SPEC_LAMB;
    spec.dim = TABLE_SPEC_DIM_MAX + 1;
    assert_refused(&spec, "dim", "16385");
}

static void numbers_out_of_range_are_refused_by_name(void **state)
{
    struct table_spec spec;

    (void)state;
#define REFUSED(change, field, found)        \
    do {                                     \
        spec = sparse();                     \
        change;                              \
        assert_refused(&spec, field, found); \
    } while (0)
    REFUSED(spec.dim = 0, "dim", "0");
    REFUSED(spec.dim = TABLE_SPEC_DIM_MAX + 1, "dim", "16385");
    REFUSED(spec.kind = (enum table_spec_kind)TABLE_SPEC_KIND_END, "kind", "sparse");
    REFUSED(spec.init = (enum table_spec_init)77, "init", "77");
    REFUSED(spec.optim = TABLE_SPEC_OPTIM_END, "optimizer", "13");
    REFUSED(spec.schedule.decay = TABLE_SPEC_DECAY_END, "decay", "plateau");
    REFUSED(spec.mode = TABLE_SPEC_MODE_END, "mode", "bsp");
    REFUSED(spec.n_floats = 1, "n_floats", "sparse");
    REFUSED(spec.init_scale = -1, "init_scale", "-1");
    REFUSED(spec.params.learning_rate = -0.5f, "learning_rate", "-0.5");
    REFUSED(spec.params.beta1 = 1, "beta1", "1");
    REFUSED(spec.params.beta2 = 1, "beta2", "1");
    REFUSED(spec.params.momentum = 1, "momentum", "1");
    REFUSED(spec.params.nesterov = 0.5f, "nesterov", "0.5");
    REFUSED(spec.params.nesterov = 2, "nesterov", "2");
    REFUSED(spec.schedule.decay_floor = 1.5f, "decay_floor", "1.5");
    REFUSED(spec.schedule.decay = TABLE_SPEC_DECAY_LINEAR, "decay_clocks", "linear");
    REFUSED((spec.schedule.decay = TABLE_SPEC_DECAY_EXP, spec.schedule.decay_clocks = 1),
            "decay_rate", "0");
    REFUSED((spec.optim = TABLE_SPEC_FTRL, spec.params.learning_rate = 0), "learning_rate",
            "FTRL");
    REFUSED((spec.optim = TABLE_SPEC_ADAGRAD, spec.params.epsilon = 0), "epsilon", "divides");
    REFUSED((spec.optim = TABLE_SPEC_ADAM, spec.params.epsilon = 0), "epsilon", "divides");
    REFUSED((spec.optim = TABLE_SPEC_ADAMW, spec.params.epsilon = 0), "epsilon", "adamw");
    REFUSED((spec.optim = TABLE_SPEC_LAMB, spec.params.epsilon = 0), "epsilon", "lamb");
    REFUSED((spec.optim = TABLE_SPEC_LARS, spec.params.epsilon = 0), "epsilon", "lars");
    REFUSED((spec.optim = TABLE_SPEC_SM3, spec.params.epsilon = 0), "epsilon", "sm3");
    REFUSED((spec.kind = TABLE_SPEC_DENSE), "n_floats", "dense");
    REFUSED(spec.storage = TABLE_SPEC_STORAGE_END, "storage", "fp16");
    REFUSED(spec.limits.victims = TABLE_SPEC_VICTIMS_END, "victims", "rarest");
    REFUSED(spec.limits.admit_touches = 16, "admit_touches", "16");
    REFUSED(spec.limits.rare_touches = 256, "rare_touches", "256");
    REFUSED(spec.limits.admit_touches = 2, "admit_clocks", "0");
    REFUSED(spec.limits.admit_clocks = 7, "admit_touches", "7");
    REFUSED((spec.limits.admit_touches = 1, spec.limits.admit_clocks = 7), "admit_touches",
            "1");
    REFUSED(spec.limits.rare_touches = 3, "rare_clocks", "3");
    REFUSED(spec.limits.rare_clocks = 9, "rare_touches", "9");
    REFUSED((spec.kind = TABLE_SPEC_DENSE, spec.n_floats = UINT64_MAX), "n_floats",
            "18446744073709551615");
#undef REFUSED
    spec = sparse();
    spec.params.beta1 = nextafterf(1, 0);
    spec.dim = TABLE_SPEC_DIM_MAX;
    spec.params.learning_rate = FLT_MAX;
    spec.seed = UINT64_MAX;
    assert_int_equal(table_spec_check(&spec, NULL), 0);
}

static void rows_of_sparse_tables_alone_decay(void **state)
{
    struct table_spec spec = sparse();

    (void)state;
    spec.row_decay = nextafterf(1, 0);
    assert_int_equal(table_spec_check(&spec, NULL), 0);
    assert_int_equal(table_spec_state_floats(&spec), spec.dim + 1);
    spec.row_decay = 9e-7f;
    assert_refused(&spec, "row_decay", "0 or at least 1e-06");
    spec.row_decay = 1;
    assert_refused(&spec, "row_decay", "1");
    spec.row_decay = -0.25f;
    assert_refused(&spec, "row_decay", "-0.25");
    spec.row_decay = 0.25f;
    spec.optim = TABLE_SPEC_FTRL;
    assert_refused(&spec, "row_decay", "ftrl_l2");
    spec = dense();
    spec.row_decay = 0.25f;
    assert_refused(&spec, "row_decay", "weight_decay");
}

static void rows_of_a_sparse_table_come_and_go_by_its_limits(void **state)
{
    struct table_spec spec = sparse();

    (void)state;
    spec.limits = (struct table_spec_limits){ .admit_touches = 1 };
    assert_int_equal(table_spec_check(&spec, NULL), 0);
    spec.limits = (struct table_spec_limits){ .admit_touches = TABLE_SPEC_ADMIT_MAX,
                                              .admit_clocks = UINT64_MAX,
                                              .idle_clocks = UINT64_MAX,
                                              .ttl_s = UINT32_MAX,
                                              .rare_touches = TABLE_SPEC_RARE_MAX,
                                              .rare_clocks = UINT64_MAX,
                                              .victims = TABLE_SPEC_VICTIMS_RAREST,
                                              .max_bytes = UINT64_MAX };
    assert_int_equal(table_spec_check(&spec, NULL), 0);
}

static void a_dense_table_has_no_limits_but_any_storage(void **state)
{
    const struct {
        const char *name;
        struct table_spec_limits limits;
    } all[] = {
        { "admit_touches", { .admit_touches = 1 } },
        { "admit_clocks", { .admit_clocks = 1 } },
        { "idle_clocks", { .idle_clocks = 1 } },
        { "ttl_s", { .ttl_s = 1 } },
        { "rare_touches", { .rare_touches = 1 } },
        { "rare_clocks", { .rare_clocks = 1 } },
        { "victims", { .victims = 1 } },
        { "max_bytes", { .max_bytes = 1 } },
    };
    struct table_spec spec = dense();

    (void)state;
    for (unsigned storage = 0; storage < TABLE_SPEC_STORAGE_END; storage++) {
        spec.storage = (enum table_spec_storage)storage;
        assert_int_equal(table_spec_check(&spec, NULL), 0);
    }
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        spec.limits = all[i].limits;
        assert_refused(&spec, all[i].name, "dense");
    }
}

static void nan_and_infinity_are_out_of_every_range(void **state)
{
    static const size_t at[] = {
        offsetof(struct table_spec, init_scale),
        offsetof(struct table_spec, params.learning_rate),
        offsetof(struct table_spec, params.epsilon),
        offsetof(struct table_spec, params.momentum),
        offsetof(struct table_spec, params.nesterov),
        offsetof(struct table_spec, params.weight_decay),
        offsetof(struct table_spec, params.beta1),
        offsetof(struct table_spec, params.beta2),
        offsetof(struct table_spec, params.initial_accumulator),
        offsetof(struct table_spec, params.lr_decay),
        offsetof(struct table_spec, params.ftrl_beta),
        offsetof(struct table_spec, params.ftrl_l1),
        offsetof(struct table_spec, params.ftrl_l2),
        offsetof(struct table_spec, schedule.decay_rate),
        offsetof(struct table_spec, schedule.decay_floor),
        offsetof(struct table_spec, clip_norm),
        offsetof(struct table_spec, row_decay),
    };
    const float bad[] = { NAN, INFINITY, -INFINITY };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(at); i++)
        for (size_t b = 0; b < COUNT_OF(bad); b++) {
            struct table_spec spec = sparse();

            memcpy((char *)&spec + at[i], &bad[b], sizeof bad[b]);
            assert_refused(&spec, "emb", b ? "inf" : "nan");
        }
}

static bool is_padding(size_t at)
{
    const size_t holes[][2] = {
        { offsetof(struct table_spec, dim) + 4, offsetof(struct table_spec, n_floats) },
        { offsetof(struct table_spec, params) + sizeof(struct optimizer_params),
          offsetof(struct table_spec, schedule) },
        { offsetof(struct table_spec, schedule.decay) + 4,
          offsetof(struct table_spec, schedule.decay_start) },
        { offsetof(struct table_spec, row_decay) + 4, offsetof(struct table_spec, limits) },
    };

    for (size_t i = 0; i < COUNT_OF(holes); i++)
        if (at >= holes[i][0] && at < holes[i][1])
            return true;
    return false;
}

/* Flips a bit in every 4 bytes behind the name in turn, so that no field can be forgotten. */
static void every_field_that_differs_is_found(void **state)
{
    struct table_spec have = dense(), want;
    struct err err;

    (void)state;
    memcpy(&want, &have, sizeof want);
    assert_int_equal(table_spec_same(&have, &want, &err), 0);
    for (size_t at = TABLE_SPEC_NAME_MAX; at < sizeof have; at += 4) {
        if (is_padding(at))
            continue;
        memcpy(&want, &have, sizeof want);
        ((char *)&want)[at] ^= 1;
        if (table_spec_same(&have, &want, &err) != PS_ESPEC)
            fail_msg("byte %zu of the specification is not compared", at);
    }
}

static void a_difference_is_reported_with_both_values(void **state)
{
    const struct table_spec have = sparse();
    struct table_spec want = have;
    struct err err;

    (void)state;
    want.dim = 32;
    assert_int_equal(table_spec_same(&have, &want, &err), PS_ESPEC);
    assert_string_equal(err.text, "table emb: dim is 16 here, 32 was asked for");
    want = have;
    want.optim = TABLE_SPEC_FTRL;
    assert_int_equal(table_spec_same(&have, &want, &err), PS_ESPEC);
    assert_string_equal(err.text, "table emb: optimizer is adagrad here, ftrl was asked for");
    want = have;
    want.limits.victims = TABLE_SPEC_VICTIMS_RAREST;
    assert_int_equal(table_spec_same(&have, &want, &err), PS_ESPEC);
    assert_string_equal(err.text, "table emb: victims is none here, rarest was asked for");
    want = have;
    want.params.learning_rate = nextafterf(0.01f, 1);
    assert_int_equal(table_spec_same(&have, &want, &err), PS_ESPEC);
    assert_string_equal(err.text,
                        "table emb: learning_rate is 0.01 here, 0.010000001 was asked for");
    want = have;
    want.clip_norm = -0.0f;
    assert_int_equal(table_spec_same(&have, &want, &err), PS_ESPEC);
    want = have;
    want.seed = UINT64_MAX;
    assert_int_equal(table_spec_same(&have, &want, &err), PS_ESPEC);
    assert_string_equal(err.text,
                        "table emb: seed is 7 here, 18446744073709551615 was asked for");
    want = have;
    memcpy(want.name, "other", 6);
    assert_int_equal(table_spec_same(&have, &want, NULL), PS_ESPEC);
}

static void settings_list_the_optimizers_in_the_order_of_their_numbers(void **state)
{
    char list[200] = "";
    size_t n = 0;

    (void)state;
    for (unsigned i = 0; i < TABLE_SPEC_OPTIM_END; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? "|" : "",
                              table_spec_optim_name((enum table_spec_optim)i));
    assert_string_equal(TABLE_SPEC_OPTIM_CHOICE, list);
}

/* Rows may have been assigned with a sum of squares of 0 while epsilon was added to its root. */
static void epsilon_is_not_set_to_0_where_a_sum_may_be_0(void **state)
{
    const enum table_spec_optim optims[] = { TABLE_SPEC_ADAGRAD, TABLE_SPEC_ROWWISE_ADAGRAD,
                                             TABLE_SPEC_SM3 };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(optims); i++) {
        struct table_spec spec = sparse();
        struct err err = { 0 };

        spec.optim = optims[i];
        spec.params = table_spec_optim_defaults(spec.optim);
        spec.params.initial_accumulator = 1;
        assert_int_equal(table_spec_set(&spec, "epsilon=0", &err), PS_ESPEC);
        assert_non_null(strstr(err.text, "not set to 0"));
        assert_int_equal(table_spec_set(&spec, "epsilon=1e-30", &err), 0);
        spec.params.epsilon = 0; /* made so: then no sum is 0 */
        assert_int_equal(table_spec_set(&spec, "epsilon=0,lr=0.5", &err), 0);
    }
}

static void every_number_has_a_name_and_no_other(void **state)
{
    (void)state;
    for (unsigned i = 0; i < TABLE_SPEC_OPTIM_END; i++)
        for (unsigned k = 0; k < i; k++)
            assert_string_not_equal(table_spec_optim_name((enum table_spec_optim)i),
                                    table_spec_optim_name((enum table_spec_optim)k));
    assert_string_equal(table_spec_init_name(TABLE_SPEC_INIT_ZERO), "zero");
    assert_string_equal(table_spec_mode_name(TABLE_SPEC_MODE_SSP), "ssp");
    assert_string_equal(table_spec_decay_name(TABLE_SPEC_DECAY_LINEAR), "linear");
    assert_string_equal(table_spec_kind_name(TABLE_SPEC_DENSE), "dense");
    assert_string_equal(table_spec_storage_name(TABLE_SPEC_BF16), "bf16");
    assert_null(table_spec_storage_name(TABLE_SPEC_STORAGE_END));
    assert_string_equal(table_spec_victims_name(TABLE_SPEC_VICTIMS_OLDEST), "oldest");
    assert_null(table_spec_victims_name(TABLE_SPEC_VICTIMS_END));
    assert_null(table_spec_kind_name(TABLE_SPEC_KIND_END));
    assert_null(table_spec_optim_name((enum table_spec_optim)99));
}

static void a_dense_array_has_a_block_for_every_float(void **state)
{
    struct table_spec spec = dense();

    (void)state;
    assert_int_equal(table_spec_n_blocks(&spec), 5);
    spec.n_floats = 5120;
    assert_int_equal(table_spec_n_blocks(&spec), 5);
    spec.n_floats = 5121;
    assert_int_equal(table_spec_n_blocks(&spec), 6);
    spec.n_floats = 1;
    assert_int_equal(table_spec_n_blocks(&spec), 1);
}

static void slots_are_assigned_to_shards_in_equal_runs(void **state)
{
    uint32_t counts[PLACEMENT_N_SHARDS_MAX];

    (void)state;
    for (uint32_t n = 1; n <= PLACEMENT_N_SHARDS_MAX; n += n < 20 ? 1 : 251) {
        memset(counts, 0, sizeof counts);
        for (uint32_t slot = 0; slot < PLACEMENT_N_SLOTS; slot++) {
            assert_true(placement_slot_shard(slot, n) < n);
            assert_true(slot == 0 ||
                        placement_slot_shard(slot, n) >= placement_slot_shard(slot - 1, n));
            counts[placement_slot_shard(slot, n)]++;
        }
        for (uint32_t i = 0; i < n; i++)
            assert_true(counts[i] == PLACEMENT_N_SLOTS / n ||
                        counts[i] == PLACEMENT_N_SLOTS / n + 1);
    }
}

#define README_SLOT_0 3618
#define README_SLOT_1 2320
#define README_SHARD_1 1
#define README_SALT UINT64_C(0xa59dde20c3f5e975)
#define README_MAP_ID UINT64_C(0x55525711a9ec3df9)

/* The numbers of proto/README.md, which a client's author can check himself against. */
static void routes_are_those_of_the_readme(void **state)
{
    struct table_spec spec = dense();
    char a[] = "10.0.0.1:7070", b[] = "10.0.0.2:7070";
    char *const nodes[] = { a, b };

    (void)state;
    memcpy(spec.name, "top_0_W", 8);
    assert_int_equal(placement_slot(0, 0), README_SLOT_0);
    assert_int_equal(placement_slot(1, 0), README_SLOT_1);
    assert_int_equal(placement_shard(1, 0, 3), README_SHARD_1);
    assert_true(table_spec_salt(&spec) == README_SALT);
    assert_true(placement_map_id(2, nodes, 2) == README_MAP_ID);
    spec.kind = TABLE_SPEC_SPARSE;
    assert_true(table_spec_salt(&spec) == 0);
}

static void another_cluster_has_another_map_id(void **state)
{
    char a[] = "h:1", b[] = "h:2", ab[] = "h:1\nh:2";
    char *const both[] = { a, b }, *const turned[] = { b, a }, *const one[] = { ab };

    (void)state;
    assert_true(placement_map_id(1, both, 2) != placement_map_id(2, both, 2));
    assert_true(placement_map_id(1, both, 2) != placement_map_id(1, turned, 2));
    assert_true(placement_map_id(1, both, 2) != placement_map_id(1, both, 1));
    /* It is the text's hash. */
    assert_true(placement_map_id(1, both, 2) == placement_map_id(1, one, 1));
}

/* What a log or a checkpoint of before has is taken; a new table and `psctl set` have narrower ranges. */
static void new_tables_have_ranges_in_which_no_gradient_makes_infinity(void **state)
{
    struct table_spec spec;
    struct err err;

    (void)state;
#define REFUSED_NEW(change, field)                                     \
    do {                                                               \
        spec = sparse();                                               \
        change;                                                        \
        assert_int_equal(table_spec_check(&spec, NULL), 0);            \
        assert_int_equal(table_spec_check_new(&spec, &err), PS_ESPEC); \
        assert_non_null(strstr(err.text, field));                      \
    } while (0)
    REFUSED_NEW(spec.params.learning_rate = 3e38f, "learning_rate");
    REFUSED_NEW(spec.params.learning_rate = 1.001e6f, "learning_rate");
    REFUSED_NEW(spec.params.epsilon = 1e7f, "epsilon");
    REFUSED_NEW(spec.params.weight_decay = 1e7f, "weight_decay");
    REFUSED_NEW(spec.init_scale = 1e7f, "init_scale");
    REFUSED_NEW(spec.params.initial_accumulator = 1e31f, "initial_accumulator");
    REFUSED_NEW((spec.optim = TABLE_SPEC_SGD, spec.params.learning_rate = 3,
                 spec.params.weight_decay = 1),
                "weight_decay");
    REFUSED_NEW((spec.optim = TABLE_SPEC_ADAMW, spec.params.learning_rate = 2,
                 spec.params.weight_decay = 0.75f),
                "weight_decay is 1.5");
    REFUSED_NEW((spec.optim = TABLE_SPEC_LION, spec.params.learning_rate = 2,
                 spec.params.weight_decay = 0.75f),
                "weight_decay is 1.5");
    REFUSED_NEW((spec.optim = TABLE_SPEC_LAMB, spec.params.epsilon = 1e-13f), "1e-12");
    REFUSED_NEW((spec.optim = TABLE_SPEC_LARS, spec.params.epsilon = 1e-13f), "1e-12");
    spec = sparse();
    spec.optim = TABLE_SPEC_FTRL;
    spec.params = table_spec_optim_defaults(TABLE_SPEC_FTRL);
    assert_int_equal(table_spec_check_new(&spec, NULL), 0);
    spec.params.learning_rate = 1e-9f;
    assert_int_equal(table_spec_check_new(&spec, &err), PS_ESPEC);
    spec = sparse();
    spec.optim = TABLE_SPEC_ADAM;
    spec.params = table_spec_optim_defaults(TABLE_SPEC_ADAM);
    assert_int_equal(table_spec_check_new(&spec, NULL), 0);
    spec.params.epsilon = 1e-30f;
    assert_int_equal(table_spec_check_new(&spec, &err), PS_ESPEC);
    spec = sparse();
    assert_int_equal(table_spec_set(&spec, "lr=2e6", &err), PS_ESPEC);
    assert_int_equal(table_spec_set(&spec, "lr=1e6", &err), 0);
    spec.params.learning_rate = 3e38f; /* an old one can be cured, and set otherwise */
    assert_int_equal(table_spec_set(&spec, "lr=2e6", &err), PS_ESPEC);
    assert_int_equal(table_spec_set(&spec, "clip=1", &err), 0);
    assert_int_equal(table_spec_set(&spec, "lr=0.5", &err), 0);
#undef REFUSED_NEW
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_every_optimizer_pass),
        cmocka_unit_test(names_are_printable_ascii_without_blanks),
        cmocka_unit_test(a_block_may_be_a_layer_where_the_optimizer_takes_it_whole),
        cmocka_unit_test(numbers_out_of_range_are_refused_by_name),
        cmocka_unit_test(new_tables_have_ranges_in_which_no_gradient_makes_infinity),
        cmocka_unit_test(rows_of_sparse_tables_alone_decay),
        cmocka_unit_test(rows_of_a_sparse_table_come_and_go_by_its_limits),
        cmocka_unit_test(a_dense_table_has_no_limits_but_any_storage),
        cmocka_unit_test(nan_and_infinity_are_out_of_every_range),
        cmocka_unit_test(every_field_that_differs_is_found),
        cmocka_unit_test(a_difference_is_reported_with_both_values),
        cmocka_unit_test(settings_list_the_optimizers_in_the_order_of_their_numbers),
        cmocka_unit_test(epsilon_is_not_set_to_0_where_a_sum_may_be_0),
        cmocka_unit_test(every_number_has_a_name_and_no_other),
        cmocka_unit_test(a_dense_array_has_a_block_for_every_float),
        cmocka_unit_test(slots_are_assigned_to_shards_in_equal_runs),
        cmocka_unit_test(routes_are_those_of_the_readme),
        cmocka_unit_test(another_cluster_has_another_map_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
