/* Every gradient of every kind of model, against differences of the loss of a reference in
 * double. */
#include <math.h>

#include "tests/unit/model/fixture.h"

/* The model once more: the formulas at the head of dlrm.h in double, with plain loops and no
 * backward. Its loss, moved a little to either side of a parameter, tells what the gradient
 * must be. */
struct reference {
    struct fixture *f;
    uint64_t step;
    bool training;
    double *tensors[DLRM_TENSORS_MAX]; /* with the offsets */
    double *rows, *wide;
    double *logits;
};

static double *reference_copy(const float *x, size_t n, double offset)
{
    double *to = memory_alloc(n * sizeof *to + 1);

    for (size_t i = 0; i < n; i++)
        to[i] = (double)x[i] + offset;
    return to;
}

static void reference_init(struct reference *t, struct fixture *f, bool training, uint64_t step)
{
    const size_t n_rows = f->batch.n_unique;

    *t = (struct reference){ .f = f, .training = training, .step = step };
    for (uint32_t i = 0; i < dlrm_n_tensors(f->m); i++) {
        struct dlrm_tensor *tensor = dlrm_tensor(f->m, i);

        t->tensors[i] =
            reference_copy(tensor->values, tensor->n_floats, (double)tensor->init_offset);
    }
    t->rows = reference_copy(f->rows, n_rows * f->config.dim, 0);
    t->wide = f->wide ? reference_copy(f->wide, n_rows, 0) : NULL;
    t->logits = memory_alloc(f->batch.n * sizeof *t->logits + 1);
}

static void reference_deinit(struct reference *t)
{
    for (uint32_t i = 0; i < DLRM_TENSORS_MAX; i++)
        free(t->tensors[i]);
    free(t->rows);
    free(t->wide);
    free(t->logits);
}

/* In place. gamma, beta, running mean, running variance. */
static void reference_norm(const struct reference *t, double *const *tensors, double *x,
                           uint32_t n, uint32_t width)
{
    for (uint32_t o = 0; o < width; o++) {
        double mean = tensors[2][o], var = tensors[3][o];

        if (t->training) {
            mean = var = 0;
            for (uint32_t s = 0; s < n; s++)
                mean += x[s * width + o] / n;
            for (uint32_t s = 0; s < n; s++)
                var += (x[s * width + o] - mean) * (x[s * width + o] - mean) / n;
        }
        for (uint32_t s = 0; s < n; s++)
            x[s * width + o] =
                (x[s * width + o] - mean) / sqrt(var + 1e-5) * tensors[0][o] + tensors[1][o];
    }
}

struct reference_mlp {
    uint32_t in, n_hidden, out;
    const uint32_t *hidden;
    bool relu_last;
    double dropout;
};

/* Frees x, returns its own. *tensor: the first of the MLP, and on return the one after it. */
static double *reference_mlp(const struct reference *t, const struct reference_mlp *mlp,
                             double *x, uint32_t *tensor)
{
    const uint32_t n = t->f->batch.n;
    const uint64_t key = hash_mix2(t->f->config.seed, t->step);

    for (uint32_t i = 0, in = mlp->in; i <= mlp->n_hidden; i++) {
        const uint32_t out = i < mlp->n_hidden ? mlp->hidden[i] : mlp->out;
        const bool relu = i < mlp->n_hidden || mlp->relu_last;
        const double *w = t->tensors[(*tensor)++], *b = t->tensors[(*tensor)++];
        double *y = memory_alloc((size_t)n * out * sizeof *y + 1);

        for (uint32_t s = 0; s < n; s++)
            for (uint32_t o = 0; o < out; o++) {
                y[s * out + o] = b[o];
                for (uint32_t k = 0; k < in; k++)
                    y[s * out + o] += w[o * in + k] * x[s * in + k];
            }
        if (relu && t->f->config.batch_norm) {
            reference_norm(t, t->tensors + *tensor, y, n, out);
            *tensor += 4;
        }
        for (uint32_t k = 0; k < n * out; k++) {
            if (relu && y[k] < 0)
                y[k] = 0;
            if (t->training && i < mlp->n_hidden && mlp->dropout > 0)
                y[k] = (double)hash_unit(hash_mix2(hash_mix2(key, i), k)) < mlp->dropout
                           ? 0
                           : y[k] / (1 - mlp->dropout);
        }
        free(x);
        x = y;
        in = out;
    }
    return x;
}

/* T [n][n_vectors][dim] */
static double *reference_vectors(const struct reference *t, uint32_t *tensor)
{
    const struct dlrm_config *cfg = &t->f->config;
    const struct batch *b = &t->f->batch;
    const uint32_t dim = cfg->dim, first = cfg->n_numeric ? 1 : 0,
                   n_vectors = first + cfg->n_fields;
    double *T = memory_alloc((size_t)b->n * n_vectors * dim * sizeof *T + 1);

    if (first) {
        const struct reference_mlp mlp = { cfg->n_numeric, cfg->n_bottom, dim,
                                           cfg->bottom,    true,          0 };
        double *d = reference_mlp(
            t, &mlp, reference_copy(b->numeric, (size_t)b->n * cfg->n_numeric, 0), tensor);

        for (uint32_t i = 0; i < b->n * dim; i++)
            T[(i / dim) * n_vectors * dim + i % dim] = d[i];
        free(d);
    }
    for (uint32_t bag = 0; bag < b->n * cfg->n_fields; bag++)
        for (uint32_t j = b->starts[bag]; j < b->starts[bag + 1]; j++)
            for (uint32_t d = 0; d < dim; d++)
                T[((bag / cfg->n_fields) * n_vectors + first + bag % cfg->n_fields) * dim +
                  d] += t->rows[b->row_of[j] * dim + d];
    return T;
}

static double reference_dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* R; frees T. */
static double *reference_interact(const struct reference *t, double *T, uint32_t r_width)
{
    const struct dlrm_config *cfg = &t->f->config;
    const uint32_t dim = cfg->dim, n_vectors = (cfg->n_numeric ? 1 : 0) + cfg->n_fields;
    double *R, *r;

    if (cfg->concat || !cfg->n_fields)
        return T;
    r = R = memory_alloc((size_t)t->f->batch.n * r_width * sizeof *R + 1);
    for (uint32_t s = 0; s < t->f->batch.n; s++) {
        const double *v = T + (size_t)s * n_vectors * dim;

        for (uint32_t d = 0; cfg->n_numeric && d < dim; d++)
            *r++ = v[d];
        for (uint32_t i = 0; i < n_vectors; i++)
            for (uint32_t j = 0; j < i + (cfg->self_interaction ? 1 : 0); j++)
                *r++ = reference_dot(v + i * dim, v + j * dim, dim);
    }
    free(T);
    return R;
}

/* T of the other kinds: the bags, and in front of a top MLP the numeric columns behind them. */
static double *reference_concat(const struct reference *t, uint32_t width)
{
    const struct dlrm_config *cfg = &t->f->config;
    const struct batch *b = &t->f->batch;
    const uint32_t dim = cfg->dim, n_bags = cfg->n_fields;
    double *T = memory_alloc((size_t)b->n * width * sizeof *T + 1);

    for (uint32_t s = 0; s < b->n; s++) {
        double *row = T + (size_t)s * width;

        for (uint32_t f = 0; f < n_bags; f++)
            for (uint32_t j = b->starts[s * n_bags + f]; j < b->starts[s * n_bags + f + 1]; j++)
                for (uint32_t d = 0; d < dim; d++)
                    row[f * dim + d] += t->rows[b->row_of[j] * dim + d];
        for (uint32_t k = 0; k < cfg->n_numeric; k++)
            row[n_bags * dim + k] = (double)b->numeric[s * cfg->n_numeric + k];
    }
    return T;
}

static void reference_add_linear(const struct reference *t, double *z, uint32_t *tensor)
{
    const struct batch *b = &t->f->batch;
    const uint32_t n_numeric = b->n_numeric;
    const double *w = n_numeric ? t->tensors[(*tensor)++] : NULL,
                 *bias = t->tensors[(*tensor)++];

    for (uint32_t s = 0; s < b->n; s++) {
        z[s] += bias[0];
        for (uint32_t k = 0; k < n_numeric; k++)
            z[s] += w[k] * (double)b->numeric[s * n_numeric + k];
    }
}

/* Pair by pair. */
static void reference_add_pairs(const struct reference *t, const double *T, uint32_t width,
                                double *z)
{
    const uint32_t dim = t->f->config.dim;

    for (uint32_t s = 0; s < t->f->batch.n; s++)
        for (uint32_t i = 0; i < t->f->config.n_fields; i++)
            for (uint32_t j = 0; j < i; j++)
                z[s] += reference_dot(T + (size_t)s * width + i * dim,
                                      T + (size_t)s * width + j * dim, dim);
}

/* x_L of a cross network; frees T, which is x_0. */
static double *reference_cross(const struct reference *t, double *T, uint32_t width,
                               uint32_t *tensor)
{
    const struct dlrm_config *cfg = &t->f->config;
    const uint32_t rank = cfg->cross_rank, in = rank ? rank : width;
    double *x = memory_alloc((size_t)t->f->batch.n * width * sizeof *x + 1);
    double *narrow = memory_alloc(in * sizeof *narrow),
           *u = memory_alloc(width * sizeof *u + 1);

    memcpy(x, T, (size_t)t->f->batch.n * width * sizeof *x);
    for (uint32_t l = 0; l < cfg->n_cross; l++) {
        const double *v = rank ? t->tensors[(*tensor)++] : NULL, *w = t->tensors[(*tensor)++],
                     *b = t->tensors[(*tensor)++];

        for (uint32_t s = 0; s < t->f->batch.n; s++) {
            double *row = x + (size_t)s * width;

            for (uint32_t k = 0; k < in; k++)
                narrow[k] = v ? reference_dot(v + k * width, row, width) : row[k];
            for (uint32_t o = 0; o < width; o++)
                u[o] = reference_dot(w + o * in, narrow, in) + b[o];
            for (uint32_t o = 0; o < width; o++)
                row[o] += T[(size_t)s * width + o] * u[o];
        }
    }
    free(narrow), free(u), free(T);
    return x;
}

/* Logits of any kind but DLRM, without first-order weights beside the rows. */
static double *reference_head(const struct reference *t)
{
    const struct dlrm_config *cfg = &t->f->config;
    const uint32_t parts = dlrm_config_parts(cfg->kind),
                   width = (uint32_t)dlrm_config_r_width(cfg);
    const bool has_pairs = cfg->kind == MODEL_FM || cfg->kind == MODEL_DEEPFM;
    const struct reference_mlp top = { width,    cfg->n_top, 1,
                                       cfg->top, false,      (double)cfg->dropout };
    double *z = memory_alloc(t->f->batch.n * sizeof *z + 1), *T = reference_concat(t, width);
    uint32_t tensor = 0;

    if (parts & MODEL_LINEAR)
        reference_add_linear(t, z, &tensor);
    if (has_pairs)
        reference_add_pairs(t, T, width, z);
    if (parts & MODEL_CROSS)
        T = reference_cross(t, T, width, &tensor);
    if (parts & MODEL_TOP) {
        double *deep = T = reference_mlp(t, &top, T, &tensor);

        for (uint32_t s = 0; s < t->f->batch.n; s++)
            z[s] += deep[s];
    }
    free(T);
    return z;
}

static double *reference_dlrm(const struct reference *t)
{
    const struct dlrm_config *cfg = &t->f->config;
    const uint32_t r_width = (uint32_t)dlrm_config_r_width(cfg);
    const struct reference_mlp top = { r_width,  cfg->n_top, 1,
                                       cfg->top, false,      (double)cfg->dropout };
    uint32_t tensor = 0;
    double *T = reference_vectors(t, &tensor);

    return reference_mlp(t, &top, reference_interact(t, T, r_width), &tensor);
}

static double reference_l2(const struct reference *t)
{
    const struct dlrm_config *cfg = &t->f->config;
    double sum = 0;

    for (uint32_t i = 0; i < dlrm_n_tensors(t->f->m); i++) {
        const struct dlrm_tensor *tensor = dlrm_tensor(t->f->m, i);

        if (strpbrk(tensor->name, "VW"))
            sum += (double)cfg->l2_dense / 2 *
                   reference_dot(t->tensors[i], t->tensors[i], tensor->n_floats);
    }
    return sum + (double)cfg->l2_rows / 2 *
                     reference_dot(t->rows, t->rows, t->f->batch.n_unique * cfg->dim);
}

/* Fills logits; the loss with L2. */
static double reference_loss(struct reference *t)
{
    const struct dlrm_config *cfg = &t->f->config;
    const struct batch *b = &t->f->batch;
    const double *weights = cfg->kind == MODEL_LR ? t->rows : t->wide;
    double *z = cfg->kind == MODEL_DLRM ? reference_dlrm(t) : reference_head(t), loss = 0;

    for (uint32_t s = 0; s < b->n; s++) {
        for (uint32_t j = b->starts[s * cfg->n_fields];
             weights && j < b->starts[(s + 1) * cfg->n_fields]; j++)
            z[s] += weights[b->row_of[j]];
        t->logits[s] = z[s];
        loss += (fmax(z[s], 0) - z[s] * (double)b->label[s] + log1p(exp(-fabs(z[s])))) / b->n;
    }
    free(z);
    return loss + reference_l2(t);
}

/* Steps of 1e-6 in double leave about 1e-9; what remains is the model's own float arithmetic,
 * relative to the largest gradient of its array. */
static const double step_size = 1e-6, tolerance = 2e-5;

static double slope(struct reference *t, double *parameter)
{
    const double at = *parameter;
    double up, down;

    *parameter = at + step_size;
    up = reference_loss(t);
    *parameter = at - step_size;
    down = reference_loss(t);
    *parameter = at;
    return (up - down) / (2 * step_size);
}

static void check_array(struct reference *t, const char *name, double *parameters,
                        const float *grads, size_t n)
{
    double *want = memory_alloc(n * sizeof *want + 1), largest = 0;

    for (size_t i = 0; i < n; i++) {
        want[i] = slope(t, parameters + i);
        largest = fmax(largest, fabs(want[i]));
    }
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)grads[i] - want[i]) <= tolerance * fmax(largest, 0.05)))
            fail_msg("%s[%zu]: gradient %.9g, the loss says %.9g (largest of the array %.3g)",
                     name, i, (double)grads[i], want[i], largest);
    free(want);
}

static void check_logits(struct fixture *f, struct reference *t)
{
    const float *logits = fixture_read(f, "logit");

    for (uint32_t s = 0; s < f->batch.n; s++)
        if (!(fabs((double)logits[s] - t->logits[s]) < 1e-5 * (1 + fabs(t->logits[s]))))
            fail_msg("logit %u is %.9g, the reference's %.9g", s, (double)logits[s],
                     t->logits[s]);
}

static void check_model(const struct dlrm_config *config, uint32_t n, uint64_t seed)
{
    struct fixture_rng rng = { seed, 0 };
    struct fixture f;
    struct reference t;

    fixture_init(&f, config, n, &rng);
    fixture_step(&f, seed);
    reference_init(&t, &f, true, seed);
    if (!(fabs(f.loss + reference_l2(&t) - reference_loss(&t)) < 1e-5))
        fail_msg("loss %.9g, the reference's %.9g", f.loss + reference_l2(&t),
                 reference_loss(&t));
    check_logits(&f, &t);
    for (uint32_t i = 0; i < dlrm_n_tensors(f.m); i++) {
        struct dlrm_tensor *tensor = dlrm_tensor(f.m, i);

        if (!tensor->statistic)
            check_array(&t, tensor->name, t.tensors[i], tensor->grads, tensor->n_floats);
    }
    check_array(&t, "rows", t.rows, f.row_grads, (size_t)f.batch.n_unique * config->dim);
    if (config->wide)
        check_array(&t, "wide", t.wide, f.wide_grads, f.batch.n_unique);
    reference_deinit(&t);

    fixture_predict(&f);
    reference_init(&t, &f, false, 0);
    reference_loss(&t);
    check_logits(&f, &t);
    reference_deinit(&t);
    fixture_deinit(&f);
}

static const struct dlrm_config plain = { .batch_max = 9,
                                          .n_numeric = 3,
                                          .n_fields = 3,
                                          .dim = 4,
                                          .n_bottom = 1,
                                          .bottom = { 5 },
                                          .n_top = 2,
                                          .top = { 6, 5 },
                                          .n_cross = 2,
                                          .seed = 11 };

static void the_plain_model_follows_its_loss(void **state)
{
    (void)state;
    check_model(&plain, 9, 1);
}

static void so_does_the_diagonal_of_self_interaction(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.self_interaction = true;
    check_model(&config, 8, 2);
}

static void so_does_concatenation(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.concat = true;
    check_model(&config, 8, 3);
}

static void so_does_batch_normalisation(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.batch_norm = true;
    check_model(&config, 9, 4);
}

static void so_does_dropout_with_a_fixed_mask(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.dropout = 0.4f;
    check_model(&config, 9, 5);
    config.batch_norm = true;
    check_model(&config, 9, 6);
}

static void so_does_the_first_order_term(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.wide = true;
    check_model(&config, 9, 7);
}

static void so_does_l2_on_weights_and_rows(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.l2_dense = 0.3f;
    config.l2_rows = 0.2f;
    check_model(&config, 9, 8);
}

static void so_does_a_model_without_numeric_columns(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.n_numeric = 0;
    check_model(&config, 9, 9);
    config.concat = true;
    check_model(&config, 9, 10);
}

static void so_does_a_model_without_fields(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.n_fields = 0;
    check_model(&config, 9, 11);
    config.concat = config.self_interaction = config.wide = true;
    check_model(&config, 9, 12);
}

static void so_does_a_model_without_hidden_layers(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.n_bottom = config.n_top = 0;
    check_model(&config, 9, 13);
}

static void so_does_a_batch_of_one(void **state)
{
    (void)state;
    check_model(&plain, 1, 14);
}

/* Each kind as it is meant, without numeric columns, without fields, and with all switches. */
static void so_does_each_kind_of_model(void **state)
{
    (void)state;
    for (int kind = 0; kind < MODEL_KINDS; kind++) {
        struct dlrm_config config = plain;
        const uint64_t seed = 100 + 10 * (uint64_t)kind;

        fixture_turn_into(&config, (enum model_kind)kind);
        check_model(&config, 9, seed);
        config.l2_dense = 0.3f;
        config.l2_rows = 0.2f;
        config.dropout = 0.4f;
        check_model(&config, 9, seed + 1);
        config.n_numeric = 0;
        check_model(&config, 8, seed + 2);
        config.n_numeric = 3;
        config.n_fields = 0;
        check_model(&config, 8, seed + 3);
    }
}

static void so_do_cross_layers_of_any_number_and_rank(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    fixture_turn_into(&config, MODEL_DCNV2);
    for (config.n_cross = 1; config.n_cross <= 3; config.n_cross++)
        for (config.cross_rank = 0; config.cross_rank <= 3; config.cross_rank++)
            check_model(&config, 9, 200 + 10 * config.n_cross + config.cross_rank);
    config.n_top = 0;
    config.wide = true;
    check_model(&config, 9, 250);
}

/* Batch normalisation is left to its own tests: with few samples it divides by next to
 * nothing. */
static void and_any_mixture_of_switches(void **state)
{
    const uint64_t seed = seed_of_run(20240607);
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < 60; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        struct dlrm_config config =
            fixture_config(&rng, (struct fixture_most){ .samples = 9, .dim = 20, .width = 6 });

        config.batch_norm = false;
        if (dlrm_config_check(&config, NULL))
            continue;
        check_model(&config, config.batch_max, hash_mix2(seed, i));
        n_checked++;
    }
    assert_true(n_checked > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_model_follows_its_loss),
        cmocka_unit_test(so_does_the_diagonal_of_self_interaction),
        cmocka_unit_test(so_does_concatenation),
        cmocka_unit_test(so_does_batch_normalisation),
        cmocka_unit_test(so_does_dropout_with_a_fixed_mask),
        cmocka_unit_test(so_does_the_first_order_term),
        cmocka_unit_test(so_does_l2_on_weights_and_rows),
        cmocka_unit_test(so_does_a_model_without_numeric_columns),
        cmocka_unit_test(so_does_a_model_without_fields),
        cmocka_unit_test(so_does_a_model_without_hidden_layers),
        cmocka_unit_test(so_does_a_batch_of_one),
        cmocka_unit_test(so_does_each_kind_of_model),
        cmocka_unit_test(so_do_cross_layers_of_any_number_and_rank),
        cmocka_unit_test(and_any_mixture_of_switches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
