/*
 * Means of bags, rows of several widths, and clipping by the global norm against PyTorch (tests/golden/fields.py): the
 * first batch's probabilities and gradients, and 20 steps of SGD. Means also on a device with its own memory.
 */
#include "tests/support/far_device.h"
#include "tests/support/npy.h"
#include "tests/unit/model/fixture.h"

enum { N_FIELDS = 3, N_STEPS = 20 };

static const uint8_t of_field[N_FIELDS] = { 0, 1, 2 };
static const struct batch_groups groups = { N_FIELDS, of_field };

struct golden {
    char name[64];
    struct npy x, y, seg, indices, offsets, emb[N_FIELDS];
    struct dlrm_config config;
    struct dlrm *m;
    struct batch batch;
    float *rows, *row_grads;
    float lr;
};

/* Of an array: "proj.0.W" -> PREFIXproj_0_W. */
struct array_name {
    char text[64];
};

static struct array_name name_of(const char *prefix, const char *tensor)
{
    struct array_name name;

    snprintf(name.text, sizeof name.text, "%s%s", prefix, tensor);
    for (char *c = name.text; *c; c++)
        *c = *c == '.' ? '_' : *c;
    return name;
}

static struct array_name table_of(const char *prefix, uint32_t field)
{
    struct array_name name;

    snprintf(name.text, sizeof name.text, "%semb_%u", prefix, field);
    return name;
}

static void read_config(struct golden *g)
{
    char kind[16];

    npy_param_text(g->name, "kind", kind, sizeof kind);
    g->lr = (float)npy_param(g->name, "lr");
    g->config = (struct dlrm_config){ .kind = strcmp(kind, "dlrm") ? MODEL_DCNV2 : MODEL_DLRM,
                                      .batch_max = (uint32_t)npy_param(g->name, "batch"),
                                      .n_numeric = (uint32_t)npy_param(g->name, "dense"),
                                      .n_fields = N_FIELDS,
                                      .dim = (uint32_t)npy_param(g->name, "dim"),
                                      .n_groups = N_FIELDS,
                                      .n_bottom = 1,
                                      .bottom = { 6 },
                                      .n_top = 2,
                                      .top = { 16, 8 },
                                      .n_cross = 1,
                                      .clip_norm = (float)npy_param(g->name, "clip") };
    for (uint32_t k = 0; k < N_FIELDS; k++) {
        char name[16];

        snprintf(name, sizeof name, "dim_%u", k);
        g->config.group_dims[k] = (uint32_t)npy_param(g->name, name);
        snprintf(name, sizeof name, "mean_%u", k);
        g->config.means[0] |= (uint64_t)(npy_param(g->name, name) > 0) << k;
    }
}

static void read_parameters(struct golden *g)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(g->m, i);
        struct npy w = npy_load(g->name, name_of("", t->name).text);

        assert_int_equal(w.n, t->n_floats);
        memcpy(t->values, w.f, t->n_floats * sizeof(float));
        npy_free(&w);
    }
    for (uint32_t k = 0; k < N_FIELDS; k++)
        g->emb[k] = npy_load(g->name, table_of("", k).text);
}

static void golden_init(struct golden *g, const struct device_ops *ops, const char *name)
{
    struct err err = { 0 };

    *g = (struct golden){ 0 };
    snprintf(g->name, sizeof g->name, "field_%s", name);
    g->x = npy_load(g->name, "X");
    g->y = npy_load(g->name, "y");
    g->seg = npy_load(g->name, "seg");
    g->indices = npy_load(g->name, "indices");
    g->offsets = npy_load(g->name, "offsets");
    read_config(g);
    if (dlrm_new_on(ops, &g->config, &g->m, &err))
        fail_msg("%s", err.text);
    read_parameters(g);
    assert_int_equal(batch_init(&g->batch, g->config.batch_max, g->config.n_numeric, N_FIELDS),
                     0);
    g->batch.groups = &groups;
    g->rows = memory_alloc((size_t)g->indices.n * 16 * sizeof(float));
    g->row_grads = memory_alloc((size_t)g->indices.n * 16 * sizeof(float));
}

static void golden_deinit(struct golden *g)
{
    for (uint32_t k = 0; k < N_FIELDS; k++)
        npy_free(&g->emb[k]);
    npy_free(&g->x);
    npy_free(&g->y);
    npy_free(&g->seg);
    npy_free(&g->indices);
    npy_free(&g->offsets);
    dlrm_free(g->m);
    batch_deinit(&g->batch);
    free(g->rows);
    free(g->row_grads);
}

/* The files have bags field by field, a batch sample by sample. */
static void read_batch(struct golden *g, uint32_t step)
{
    struct batch *b = &g->batch;
    const uint32_t n = b->n_max;

    batch_clear(b);
    b->n = n;
    memcpy(b->numeric, g->x.f + (size_t)step * n * b->n_numeric,
           (size_t)n * b->n_numeric * sizeof(float));
    memcpy(b->label, g->y.f + (size_t)step * n, n * sizeof(float));
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t k = 0; k < N_FIELDS; k++) {
            const int64_t *seg = g->seg.i + step * N_FIELDS + k;
            const int64_t *first = g->offsets.i + ((size_t)step * N_FIELDS + k) * n + s;
            const int64_t end = s + 1 < n ? first[1] : seg[1] - seg[0];

            assert_int_equal(batch_reserve_keys(b, (uint32_t)(end - first[0])), 0);
            for (int64_t j = first[0]; j < end; j++)
                b->keys[b->n_keys++] = (uint64_t)k << 32 | (uint64_t)g->indices.i[seg[0] + j];
            b->starts[s * N_FIELDS + k + 1] = b->n_keys;
        }
    assert_int_equal(batch_dedup(b), 0);
}

/* Calls each(g, field, its row in the table, the row's place in the step's arrays). */
static void each_row(struct golden *g,
                     void (*each)(struct golden *g, uint32_t field, uint32_t row, size_t at))
{
    size_t at = 0;

    for (uint32_t u = 0; u < g->batch.n_unique; u++) {
        const uint32_t field = (uint32_t)(g->batch.unique[u] >> 32);

        each(g, field, (uint32_t)g->batch.unique[u], at);
        at += g->config.group_dims[field];
    }
}

static void pull_row(struct golden *g, uint32_t field, uint32_t row, size_t at)
{
    const uint32_t dim = g->config.group_dims[field];

    memcpy(g->rows + at, g->emb[field].f + (size_t)row * dim, dim * sizeof(float));
}

static void push_row(struct golden *g, uint32_t field, uint32_t row, size_t at)
{
    const uint32_t dim = g->config.group_dims[field];

    for (uint32_t d = 0; d < dim; d++)
        g->emb[field].f[(size_t)row * dim + d] -= g->lr * g->row_grads[at + d];
}

static void check_row(struct golden *g, uint32_t field, uint32_t row, size_t at)
{
    const uint32_t dim = g->config.group_dims[field];

    npy_check(g->name, table_of("d_", field).text, g->row_grads + at, (int64_t)row * dim, dim);
}

static void push(struct golden *g)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(g->m, i);

        for (uint32_t k = 0; k < t->n_floats; k++)
            t->values[k] -= g->lr * t->grads[k];
    }
    each_row(g, push_row);
}

static void check_tensors(struct golden *g, const char *prefix, bool of_grads)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(g->m, i);

        npy_check(g->name, name_of(prefix, t->name).text, of_grads ? t->grads : t->values, 0,
                  -1);
    }
}

static void run(const struct device_ops *ops, const char *name)
{
    float losses[N_STEPS];
    struct golden g;

    golden_init(&g, ops, name);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        const struct dlrm_step step = { .batch = &g.batch,
                                        .rows = g.rows,
                                        .row_grads = g.row_grads };
        double loss;

        read_batch(&g, i);
        each_row(&g, pull_row);
        if (i == 0) {
            assert_int_equal(dlrm_predict(g.m, &step), 0);
            npy_check(g.name, "prob", dlrm_probs(g.m), 0, -1);
        }
        assert_int_equal(dlrm_step(g.m, &step, &loss), 0);
        losses[i] = (float)loss;
        if (i == 0) {
            check_tensors(&g, "d_", true);
            each_row(&g, check_row);
        }
        push(&g);
    }
    npy_check(g.name, "loss", losses, 0, -1);
    check_tensors(&g, "after20_", false);
    for (uint32_t k = 0; k < N_FIELDS; k++)
        npy_check(g.name, table_of("after20_", k).text, g.emb[k].f, 0, -1);
    golden_deinit(&g);
}

static void means_are_those_of_embedding_bag(void **state)
{
    const struct far_device_plan plan = { .late = true, .replays = true };

    (void)state;
    run(&device_cpu, "mean_dlrm");
    run(&device_cpu, "mean_dcnv2");
    run(far_device_ops(&device_cpu, &plan), "mean_dlrm");
    run(far_device_ops(&device_cpu, &plan), "mean_dcnv2");
}

static void rows_of_several_widths_are_those_of_a_linear_layer(void **state)
{
    (void)state;
    run(&device_cpu, "mixed_dlrm");
    run(&device_cpu, "mixed_mean_dcnv2");
}

static void gradients_are_clipped_as_clip_grad_norm_does(void **state)
{
    const struct far_device_plan plan = { .late = true, .replays = true };

    (void)state;
    run(&device_cpu, "clip_dlrm");
    run(far_device_ops(&device_cpu, &plan), "clip_dlrm");
    run(&device_cpu, "clip_mixed_dcnv2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_those_of_embedding_bag),
        cmocka_unit_test(rows_of_several_widths_are_those_of_a_linear_layer),
        cmocka_unit_test(gradients_are_clipped_as_clip_grad_norm_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
