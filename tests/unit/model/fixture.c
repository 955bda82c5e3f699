#include "tests/unit/model/fixture.h"

#include <math.h>

void fixture_fill(struct fixture_rng *rng, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = fixture_float(rng, scale);
}

void fixture_batch_init(struct batch *b, uint32_t n_max, uint32_t n_numeric, uint32_t n_fields,
                        uint32_t n_keys)
{
    *b = (struct batch){ .n_max = n_max,
                         .n_labels = 1,
                         .n_numeric = n_numeric,
                         .n_fields = n_fields,
                         .keys_cap = n_keys };
    b->label = memory_alloc(n_max * DLRM_TASKS_MAX * sizeof(float) + 1);
    b->numeric = memory_alloc((size_t)n_max * n_numeric * sizeof(float) + 1);
    b->starts = memory_alloc(((size_t)n_max * n_fields + 1) * sizeof(uint32_t));
    b->keys = memory_alloc(n_keys * sizeof(uint64_t) + 1);
    b->row_of = memory_alloc(n_keys * sizeof(uint32_t) + 1);
    b->unique = memory_alloc(n_keys * sizeof(uint64_t) + 1);
    b->order = memory_alloc(n_keys * sizeof(uint32_t) + 1);
    b->order_starts = memory_alloc((n_keys + 1) * sizeof(uint32_t));
}

void fixture_batch_deinit(struct batch *b)
{
    free(b->label);
    free(b->numeric);
    free(b->starts);
    free(b->keys);
    free(b->row_of);
    free(b->unique);
    free(b->order);
    free(b->order_starts);
}

static int fixture_compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The positions that hold each row, the plain way. */
static void fixture_order(struct batch *b)
{
    uint32_t at = 0;

    for (uint32_t r = 0; r < b->n_unique; r++) {
        b->order_starts[r] = at;
        for (uint32_t i = 0; i < b->n_keys; i++)
            if (b->row_of[i] == r)
                b->order[at++] = i;
    }
    b->order_starts[b->n_unique] = at;
}

void fixture_dedup(struct batch *b)
{
    uint32_t n = 0;

    if (b->n_keys)
        memcpy(b->unique, b->keys, b->n_keys * sizeof *b->keys);
    qsort(b->unique, b->n_keys, sizeof *b->unique, fixture_compare);
    for (uint32_t i = 0; i < b->n_keys; i++)
        if (!i || b->unique[i] != b->unique[n - 1])
            b->unique[n++] = b->unique[i];
    b->n_unique = n;
    for (uint32_t i = 0; i < b->n_keys; i++) {
        const uint64_t *at =
            bsearch(&b->keys[i], b->unique, n, sizeof *b->unique, fixture_compare);

        b->row_of[i] = (uint32_t)(at - b->unique);
    }
    fixture_order(b);
    for (uint32_t g = 0; b->groups && g <= b->groups->n; g++)
        for (b->group_starts[g] = 0; b->group_starts[g] < n; b->group_starts[g]++)
            if (b->unique[b->group_starts[g]] >> 32 >= g)
                break;
}

void fixture_batch_fill(struct batch *b, uint32_t n, struct fixture_rng *rng)
{
    uint32_t at = 0;

    b->n = n;
    fixture_fill(rng, b->numeric, (size_t)n * b->n_numeric, 2);
    for (uint32_t s = 0; s < n * b->n_labels; s++)
        b->label[s] = (float)fixture_below(rng, 2);
    for (uint32_t bag = 0; bag < n * b->n_fields; bag++) {
        const uint64_t group = b->groups ? b->groups->of_field[bag % b->n_fields] : 0;

        for (uint32_t k = fixture_below(rng, 4); k > 0; k--)
            b->keys[at++] = group << 32 | fixture_below(rng, 3 + n);
        b->starts[bag + 1] = at;
    }
    b->n_keys = at;
    fixture_dedup(b);
}

void fixture_turn_into(struct dlrm_config *config, enum model_kind kind)
{
    const uint32_t parts = dlrm_config_parts(kind);

    config->kind = kind;
    config->wide = parts & MODEL_EMBEDDINGS && (config->wide || parts & MODEL_FIRST_ORDER);
    config->dim = parts & MODEL_EMBEDDINGS ? config->dim : 1;
}

struct dlrm_config fixture_config(struct fixture_rng *rng, struct fixture_most most)
{
    struct dlrm_config c = { .batch_max = 1 + fixture_below(rng, most.samples),
                             .n_numeric = fixture_below(rng, 4),
                             .n_fields = fixture_below(rng, 5),
                             .dim = 1 + fixture_below(rng, most.dim),
                             .n_bottom = fixture_below(rng, 3),
                             .n_top = fixture_below(rng, 3),
                             .seed = rng->seed,
                             .n_threads = 1 };

    for (uint32_t i = 0; i < DLRM_LAYERS_MAX; i++) {
        c.bottom[i] = 1 + fixture_below(rng, most.width);
        c.top[i] = 1 + fixture_below(rng, most.width);
    }
    c.n_cross = 1 + fixture_below(rng, 3);
    c.cross_rank = fixture_below(rng, 4);
    c.concat = fixture_below(rng, 3) == 0;
    c.self_interaction = fixture_below(rng, 2) == 0;
    c.wide = fixture_below(rng, 2) == 0;
    c.batch_norm = fixture_below(rng, 3) == 0;
    c.dropout = fixture_below(rng, 3) ? 0 : 0.3f;
    c.l2_dense = fixture_below(rng, 2) ? 0.1f : 0;
    c.l2_rows = fixture_below(rng, 2) ? 0.1f : 0;
    if (fixture_below(rng, 2))
        fixture_turn_into(&c, (enum model_kind)fixture_below(rng, MODEL_KINDS));
    return c;
}

static void init_groups(struct fixture *f)
{
    if (!f->config.n_groups)
        return;
    f->of_field = memory_alloc(f->config.n_fields + 1);
    for (uint32_t i = 0; i < f->config.n_fields; i++)
        f->of_field[i] = (uint8_t)(i % f->config.n_groups);
    f->groups = (struct batch_groups){ f->config.n_groups, f->of_field };
    f->batch.groups = &f->groups;
}

void fixture_init_on(struct fixture *f, const struct device_ops *ops,
                     const struct dlrm_config *config, uint32_t n, struct fixture_rng *rng)
{
    struct err err = { 0 };
    size_t n_rows, n_floats;

    *f = (struct fixture){ .config = *config };
    if (dlrm_new_on(ops, config, &f->m, &err))
        fail_msg("dlrm_new: %s", err.text);
    for (uint32_t i = 0; i < dlrm_n_tensors(f->m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(f->m, i);

        fixture_fill(rng, t->values, t->n_floats,
                     t->init == TABLE_SPEC_INIT_NORMAL ? 2 * t->init_scale : 0.5f);
    }
    fixture_batch_init(&f->batch, config->batch_max, config->n_numeric, config->n_fields,
                       3 * config->batch_max * config->n_fields);
    f->batch.n_labels = dlrm_config_n_tasks(config);
    init_groups(f);
    fixture_batch_fill(&f->batch, n, rng);
    n_rows = f->batch.n_unique;
    n_floats = dlrm_config_row_floats(config, &f->batch);
    f->rows = memory_alloc(n_floats * sizeof(float) + 1);
    f->row_grads = memory_alloc(n_floats * sizeof(float) + 1);
    fixture_fill(rng, f->rows, n_floats, 0.7f);
    if (config->wide) {
        f->wide = memory_alloc(n_rows * sizeof(float) + 1);
        f->wide_grads = memory_alloc(n_rows * sizeof(float) + 1);
        fixture_fill(rng, f->wide, n_rows, 0.7f);
    }
}

void fixture_init(struct fixture *f, const struct dlrm_config *config, uint32_t n,
                  struct fixture_rng *rng)
{
    fixture_init_on(f, &device_cpu, config, n, rng);
}

void fixture_deinit(struct fixture *f)
{
    dlrm_free(f->m);
    fixture_batch_deinit(&f->batch);
    free(f->rows);
    free(f->row_grads);
    free(f->wide);
    free(f->wide_grads);
    free(f->of_field);
}

struct dlrm_step fixture_step_of(const struct fixture *f, uint64_t number)
{
    return (struct dlrm_step){ .batch = &f->batch,
                               .rows = f->rows,
                               .wide = f->wide,
                               .row_grads = f->row_grads,
                               .wide_grads = f->wide_grads,
                               .number = number };
}

void fixture_must(const struct dlrm *m, int status)
{
    struct err err;

    if (status && dlrm_failed(m, status, &err))
        fail_msg("%s", err.text);
}

void fixture_step(struct fixture *f, uint64_t number)
{
    const struct dlrm_step step = fixture_step_of(f, number);

    fixture_must(f->m, dlrm_step(f->m, &step, &f->loss));
}

void fixture_predict(struct fixture *f)
{
    const struct dlrm_step step = fixture_step_of(f, 0);

    assert_int_equal(dlrm_predict(f->m, &step), 0);
}

void fixture_near(const char *what, const float *got, const float *want, size_t n,
                  double tolerance)
{
    double norm = 1e-30, off = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];

        norm += (double)want[i] * (double)want[i];
        off += d * d;
    }
    if (!(sqrt(off / norm) <= tolerance))
        fail_msg("%s: %zu numbers are %.3g off, more than %.3g", what, n, sqrt(off / norm),
                 tolerance);
}

const float *fixture_read(struct fixture *f, const char *name)
{
    uint32_t n;
    const float *x = debug_read(f->m, name, &n);

    assert_non_null(x);
    return x;
}
