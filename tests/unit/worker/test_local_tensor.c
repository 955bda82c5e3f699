/* Local steps and slow momentum against PyTorch and the paper, and what a worker's copy of a dense table may not do. */
#include "worker/cache/local_tensor.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "server/core/optimizer.h"
#include "tests/support/npy.h"

#include "common/memory.h"

#define WORKERS_MAX 4u
#define ROWS 5u
#define COLS 8u
#define FLOATS (ROWS * COLS)

static struct table_spec spec_of(enum table_spec_optim optim)
{
    return (struct table_spec){ .name = "job/t",
                                .kind = TABLE_SPEC_DENSE,
                                .dim = COLS,
                                .n_floats = FLOATS,
                                .optim = optim,
                                .params = table_spec_optim_defaults(optim) };
}

static const struct local_tensor_uses nothing_more;

static uint32_t number(const char *name, const char *param)
{
    return (uint32_t)npy_param(name, param);
}

/* The servers' part: momentum SGD of the mean. */
struct server {
    struct table_spec spec;
    float weights[FLOATS], state[FLOATS], mean[FLOATS];
    double square, next_square; /* mean over workers of the last round's and this one's */
};

static void server_init(struct server *s, const char *name, const float *weights)
{
    *s = (struct server){ .spec = spec_of(TABLE_SPEC_MOMENTUM) };
    s->spec.params.learning_rate = (float)npy_param(name, "slow_lr");
    s->spec.params.momentum = (float)npy_param(name, "slow_momentum");
    memcpy(s->weights, weights, sizeof s->weights);
}

static void server_add(struct server *s, const float *difference, uint32_t n_workers)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        s->mean[i] += difference[i] / (float)n_workers;
}

static void server_step(struct server *s, uint64_t t)
{
    const struct optimizer *optim = optimizer_find(TABLE_SPEC_MOMENTUM);
    const struct optimizer_step step = optimizer_step_at(optim, &s->spec, t - 1, t);

    for (uint32_t r = 0; r < ROWS; r++)
        optim->step(s->weights + r * COLS, s->state + r * COLS, s->mean + r * COLS, COLS,
                    &step);
    memset(s->mean, 0, sizeof s->mean);
    s->square = s->next_square;
    s->next_square = 0;
}

/* Steps of one worker in one round, and what the servers get of them. */
static void run_round(struct local_tensor *t, const char *name, const float *gradients,
                      uint32_t first, struct server *server)
{
    const uint32_t n_steps = number(name, "local_steps"), n_workers = number(name, "workers");
    float weights[FLOATS];

    memcpy(weights, server->weights, sizeof weights);
    local_tensor_take(t, weights);
    assert_memory_equal(weights, server->weights, sizeof weights);
    if (t->added)
        local_tensor_stretch(
            t, local_tensor_theta(server->square, local_tensor_merged_square(t), n_workers),
            weights);
    for (uint32_t i = 0; i < n_steps; i++) {
        local_tensor_step(t, gradients + (size_t)i * FLOATS, first + i);
        local_tensor_read(t, weights);
        npy_check(name, "local", weights, (int64_t)(first + i) * FLOATS, FLOATS);
    }
    if (t->added)
        server->next_square += local_tensor_square(t) / n_workers;
    server_add(server, local_tensor_difference(t), n_workers);
}

/* The mean of what the workers have seen, by a table that adds up. */
static void freeze_all(struct local_tensor *tensors, uint32_t n_workers)
{
    const uint64_t n = local_tensor_frozen_floats(&tensors[0].spec);
    float mean[FLOATS + COLS] = { 0 }, own[FLOATS + COLS];

    for (uint32_t w = 0; w < n_workers; w++) {
        local_tensor_variance(&tensors[w], own);
        for (uint32_t i = 0; i < n; i++)
            mean[i] += own[i] / (float)n_workers;
    }
    for (uint32_t w = 0; w < n_workers; w++)
        local_tensor_freeze(&tensors[w], mean);
}

static void set_if_given(float *param, const char *name, const char *key)
{
    if (npy_has(name, "param", key))
        *param = (float)npy_param(name, key);
}

static void check_case(const char *name, enum table_spec_optim optim)
{
    const uint32_t n_workers = number(name, "workers"), n_rounds = number(name, "rounds"),
                   n_steps = number(name, "local_steps");
    struct npy p0 = npy_load(name, "p0"), g = npy_load(name, "g");
    const struct local_tensor_uses uses = { npy_has(name, "param", "freeze_after"),
                                            npy_has(name, "param", "adaptive") };
    struct table_spec spec = spec_of(optim);
    struct local_tensor tensors[WORKERS_MAX];
    struct server server;

    spec.params.learning_rate = (float)npy_param(name, "lr");
    set_if_given(&spec.params.momentum, name, "momentum");
    set_if_given(&spec.params.beta2, name, "beta2");
    set_if_given(&spec.params.epsilon, name, "eps");
    set_if_given(&spec.params.weight_decay, name, "weight_decay");
    server_init(&server, name, p0.f);
    for (uint32_t w = 0; w < n_workers; w++)
        assert_int_equal(local_tensor_init(&tensors[w], &spec, LOCAL_TENSOR_STEPS, uses), 0);
    for (uint32_t r = 0; r < n_rounds; r++) {
        struct server before = server;

        if (npy_has(name, "param", "freeze_after") && r == number(name, "freeze_after"))
            freeze_all(tensors, n_workers);
        for (uint32_t w = 0; w < n_workers; w++) {
            memcpy(server.weights, before.weights, sizeof server.weights);
            run_round(&tensors[w], name, g.f + (size_t)(w * n_rounds + r) * n_steps * FLOATS,
                      (r * n_workers + w) * n_steps, &server);
        }
        server_step(&server, r + 1);
        npy_check(name, "server", server.weights, (int64_t)r * FLOATS, FLOATS);
    }
    for (uint32_t w = 0; w < n_workers; w++)
        local_tensor_deinit(&tensors[w]);
    npy_free(&p0);
    npy_free(&g);
}

static void local_steps_and_slow_momentum_are_the_papers(void **state)
{
    (void)state;
    check_case("slowmo_sgd", TABLE_SPEC_SGD);
    check_case("slowmo_momentum", TABLE_SPEC_MOMENTUM);
    check_case("slowmo_adagrad", TABLE_SPEC_ADAGRAD);
    check_case("slowmo_adam", TABLE_SPEC_ADAM);
}

static void a_frozen_second_moment_is_that_of_one_bit_adam(void **state)
{
    (void)state;
    check_case("slowmo_frozen_adam", TABLE_SPEC_ADAM);
}

static void a_frozen_coefficient_is_that_of_one_bit_lamb(void **state)
{
    (void)state;
    check_case("slowmo_frozen_lamb", TABLE_SPEC_LAMB);
}

static void a_merge_with_an_adaptive_weight_is_between_mean_and_sum(void **state)
{
    (void)state;
    check_case("slowmo_adaptive", TABLE_SPEC_MOMENTUM);
    assert_true(local_tensor_theta(4, 4, 3) == 1); /* all alike */
    assert_true(local_tensor_theta(6, 2, 3) == 3); /* orthogonal, */
    assert_true(local_tensor_theta(6, 1, 3) == 3); /* and against each other */
    assert_true(local_tensor_theta(0, 0, 3) == 1);
}

/* The table is not split: blocks of 8 floats would have lengths of their own. */
static void a_whole_table_is_the_layer_of_lamb_and_lars(void **state)
{
    (void)state;
    check_case("slowmo_lamb", TABLE_SPEC_LAMB);
    check_case("slowmo_lars", TABLE_SPEC_LARS);
}

static void fill(float *floats, float value)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        floats[i] = value + (float)i;
}

/* A worker that is ahead makes steps while its push and a pull are under way: none is lost, and none counts twice. */
static void steps_between_a_push_and_the_pull_behind_it_stay(void **state)
{
    struct table_spec spec = spec_of(TABLE_SPEC_SGD);
    float weights[FLOATS], gradient[FLOATS];
    struct local_tensor t;

    (void)state;
    spec.params.learning_rate = 1;
    assert_int_equal(local_tensor_init(&t, &spec, LOCAL_TENSOR_STEPS, nothing_more), 0);
    fill(weights, 8);
    local_tensor_take(&t, weights);
    for (uint32_t i = 0; i < FLOATS; i++)
        gradient[i] = 0.5f;
    local_tensor_step(&t, gradient, 0);
    assert_true(local_tensor_difference(&t)[3] == 0.5f);
    local_tensor_step(&t, gradient, 1);
    fill(weights, 100); /* the servers' now, with the first step and those of others */
    local_tensor_take(&t, weights);
    assert_true(weights[3] == 103 - 0.5f);
    assert_true(local_tensor_difference(&t)[3] == 0.5f);
    assert_true(local_tensor_difference(&t)[3] == 0);
    local_tensor_deinit(&t);
}

static void gradients_add_up_and_change_nothing_here(void **state)
{
    const struct table_spec spec = spec_of(TABLE_SPEC_ADAGRAD);
    float weights[FLOATS], want[FLOATS], gradient[FLOATS];
    struct local_tensor t;

    (void)state;
    assert_int_equal(local_tensor_init(&t, &spec, LOCAL_TENSOR_SUM, nothing_more), 0);
    fill(weights, 8);
    local_tensor_take(&t, weights);
    fill(want, 8);
    fill(gradient, 1);
    local_tensor_step(&t, gradient, 0);
    local_tensor_step(&t, gradient, 1);
    local_tensor_read(&t, weights);
    assert_memory_equal(weights, want, sizeof want);
    assert_true(local_tensor_difference(&t)[5] == 12);
    assert_true(local_tensor_difference(&t)[5] == 0);
    fill(weights, 20);
    fill(want, 20);
    local_tensor_take(&t, weights);
    assert_memory_equal(weights, want, sizeof want);
    local_tensor_deinit(&t);
}

/* The optimizer begins anew, too: Adagrad's first step has full length. */
static void what_is_reset_is_not_pushed(void **state)
{
    struct table_spec spec = spec_of(TABLE_SPEC_ADAGRAD);
    float weights[FLOATS], gradient[FLOATS];
    struct local_tensor t;

    (void)state;
    spec.params.learning_rate = 0.25f;
    assert_int_equal(local_tensor_init(&t, &spec, LOCAL_TENSOR_STEPS, nothing_more), 0);
    fill(weights, 8);
    fill(gradient, 1);
    local_tensor_take(&t, weights);
    for (uint32_t i = 0; i < 5; i++)
        local_tensor_step(&t, gradient, i);
    local_tensor_reset(&t);
    assert_false(t.is_here);
    fill(weights, 8);
    local_tensor_take(&t, weights);
    assert_true(local_tensor_difference(&t)[0] == 0);
    local_tensor_step(&t, gradient, 5);
    assert_true(fabsf(local_tensor_difference(&t)[2] - 0.25f) < 1e-6f);
    local_tensor_deinit(&t);
}

static void no_memory_is_an_error(void **state)
{
#ifdef PS_FAULTS
    const struct table_spec spec = spec_of(TABLE_SPEC_ADAM);
    struct local_tensor t;
    int status;

    memory_fail_after(0);
    status = local_tensor_init(&t, &spec, LOCAL_TENSOR_STEPS, nothing_more);
    memory_fail_after(-1);
    assert_int_equal(status, -ENOMEM);
    local_tensor_deinit(&t);
#endif
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_steps_and_slow_momentum_are_the_papers),
        cmocka_unit_test(a_frozen_second_moment_is_that_of_one_bit_adam),
        cmocka_unit_test(a_frozen_coefficient_is_that_of_one_bit_lamb),
        cmocka_unit_test(a_merge_with_an_adaptive_weight_is_between_mean_and_sum),
        cmocka_unit_test(a_whole_table_is_the_layer_of_lamb_and_lars),
        cmocka_unit_test(steps_between_a_push_and_the_pull_behind_it_stay),
        cmocka_unit_test(gradients_add_up_and_change_nothing_here),
        cmocka_unit_test(what_is_reset_is_not_pushed),
        cmocka_unit_test(no_memory_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
