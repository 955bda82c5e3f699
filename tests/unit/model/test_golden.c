/*
 * The model against PyTorch (facebookresearch/dlrm's own DLRM_Net): every intermediate and
 * gradient of the first step, 20 steps of training with psd's own optimizers, and the loss at
 * its edges.
 */
#include <math.h>

#include "server/core/optimizer.h"
#include "tests/support/far_device.h"
#include "tests/support/npy.h"
#include "tests/unit/model/fixture.h"
#include "worker/compute/device.h"

enum { N_TABLES = 5 };

struct golden {
    const char *name;
    struct npy x, y, seg, indices, offsets, emb[N_TABLES];
    struct dlrm_config config;
    struct dlrm *m;
    struct batch batch;
    float *rows, *row_grads;
    float *state[DLRM_TENSORS_MAX], *row_state[N_TABLES]; /* of the optimizers */
    struct table_spec dense, sparse;
};

static const char *underscored(const char *prefix, const char *name)
{
    static _Thread_local char text[64];

    snprintf(text, sizeof text, "%s%s", prefix, name);
    for (char *c = text; *c; c++)
        if (*c == '.')
            *c = '_';
    return text;
}

static void read_config(struct golden *g)
{
    double bot[4], top[6];
    const size_t n_bot = npy_list(g->name, "bot", bot, 4),
                 n_top = npy_list(g->name, "top", top, 6);

    g->config =
        (struct dlrm_config){ .batch_max = (uint32_t)npy_param(g->name, "batch"),
                              .n_numeric = (uint32_t)npy_param(g->name, "dense"),
                              .n_fields = N_TABLES,
                              .dim = (uint32_t)npy_param(g->name, "dim"),
                              .self_interaction = npy_param(g->name, "self_interaction") > 0 };
    for (size_t i = 1; i + 1 < n_bot; i++)
        g->config.bottom[g->config.n_bottom++] = (uint32_t)bot[i];
    for (size_t i = 1; i + 1 < n_top; i++)
        g->config.top[g->config.n_top++] = (uint32_t)top[i];
}

static void read_optimizer(struct golden *g)
{
    char name[32];

    npy_param_text(g->name, "optimizer", name, sizeof name);
    g->dense.kind = TABLE_SPEC_DENSE;
    g->dense.optim = g->sparse.optim = TABLE_SPEC_SGD;
    if (!strcmp(name, "adagrad") || !strcmp(name, "rwsadagrad"))
        g->dense.optim = g->sparse.optim = TABLE_SPEC_ADAGRAD;
    if (!strcmp(name, "rwsadagrad"))
        g->sparse.optim = TABLE_SPEC_ROWWISE_ADAGRAD;
    g->dense.params.learning_rate = (float)npy_param(g->name, "lr");
    g->dense.params.epsilon = 1e-10f;
    g->sparse.params = g->dense.params;
}

/* Weights of the first step, and zero for what the optimizers remember
 * (Adagrad starts there). */
static void read_parameters(struct golden *g)
{
    char name[16];

    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(g->m, i);
        struct npy w = npy_load(g->name, underscored("", t->name));

        assert_int_equal(w.n, t->n_floats);
        memcpy(t->values, w.f, t->n_floats * sizeof(float));
        g->state[i] = memory_alloc(t->n_floats * sizeof(float));
        npy_free(&w);
    }
    for (uint32_t k = 0; k < N_TABLES; k++) {
        snprintf(name, sizeof name, "emb_%u", k);
        g->emb[k] = npy_load(g->name, name);
        g->row_state[k] = memory_alloc((size_t)g->emb[k].n * sizeof(float));
    }
}

static void golden_init(struct golden *g, const struct device_ops *ops, const char *name)
{
    struct err err = { 0 };

    *g = (struct golden){ .name = name };
    g->x = npy_load(name, "X");
    g->y = npy_load(name, "y");
    g->seg = npy_load(name, "seg");
    g->indices = npy_load(name, "indices");
    g->offsets = npy_load(name, "offsets");
    read_config(g);
    read_optimizer(g);
    if (dlrm_new_on(ops, &g->config, &g->m, &err))
        fail_msg("%s", err.text);
    read_parameters(g);
    fixture_batch_init(&g->batch, g->config.batch_max, g->config.n_numeric, N_TABLES,
                       (uint32_t)g->indices.n);
    g->rows = memory_alloc((size_t)g->indices.n * g->config.dim * sizeof(float));
    g->row_grads = memory_alloc((size_t)g->indices.n * g->config.dim * sizeof(float));
}

static void golden_deinit(struct golden *g)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++)
        free(g->state[i]);
    for (uint32_t k = 0; k < N_TABLES; k++) {
        free(g->row_state[k]);
        npy_free(&g->emb[k]);
    }
    npy_free(&g->x);
    npy_free(&g->y);
    npy_free(&g->seg);
    npy_free(&g->indices);
    npy_free(&g->offsets);
    dlrm_free(g->m);
    fixture_batch_deinit(&g->batch);
    free(g->rows);
    free(g->row_grads);
}

/* Batch `step`, whose bags come field by field in the files and sample by sample in a batch. */
static void read_batch(struct golden *g, uint32_t step)
{
    struct batch *b = &g->batch;
    const uint32_t n = b->n_max;

    b->n = n;
    b->n_keys = 0;
    memcpy(b->numeric, g->x.f + (size_t)step * n * b->n_numeric,
           (size_t)n * b->n_numeric * sizeof(float));
    memcpy(b->label, g->y.f + (size_t)step * n, n * sizeof(float));
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t k = 0; k < N_TABLES; k++) {
            const int64_t *seg = g->seg.i + step * N_TABLES + k;
            const int64_t *first = g->offsets.i + ((size_t)step * N_TABLES + k) * n + s;
            const int64_t end = s + 1 < n ? first[1] : seg[1] - seg[0];

            for (int64_t j = first[0]; j < end; j++)
                b->keys[b->n_keys++] = (uint64_t)k << 32 | (uint64_t)g->indices.i[seg[0] + j];
            b->starts[s * N_TABLES + k + 1] = b->n_keys;
        }
    fixture_dedup(b);
}

static float *row_of_key(struct golden *g, uint64_t key)
{
    return g->emb[key >> 32].f + (size_t)(uint32_t)key * g->config.dim;
}

static void pull_rows(struct golden *g)
{
    for (uint32_t i = 0; i < g->batch.n_unique; i++)
        memcpy(g->rows + (size_t)i * g->config.dim, row_of_key(g, g->batch.unique[i]),
               g->config.dim * sizeof(float));
}

static void push(struct golden *g, uint32_t step)
{
    const struct optimizer *dense = optimizer_find(g->dense.optim),
                           *sparse = optimizer_find(g->sparse.optim);
    const struct optimizer_step dense_step =
        optimizer_step_at(dense, &g->dense, step, step + 1);
    const struct optimizer_step sparse_step =
        optimizer_step_at(sparse, &g->sparse, step, step + 1);
    const uint32_t dim = g->config.dim;

    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(g->m, i);

        dense->step(t->values, g->state[i], t->grads, t->n_floats, &dense_step);
    }
    for (uint32_t i = 0; i < g->batch.n_unique; i++) {
        const uint64_t key = g->batch.unique[i];
        const size_t at = (size_t)(uint32_t)key * sparse->state_floats(dim);

        sparse->step(row_of_key(g, key), g->row_state[key >> 32] + at,
                     g->row_grads + (size_t)i * dim, dim, &sparse_step);
    }
}

static void check_debug_read(struct golden *g, const char *name)
{
    uint32_t n = 0;
    const float *got = debug_read(g->m, name, &n);
    struct npy want = npy_load(g->name, name);

    if (!got)
        fail_msg("debug_read knows no %s", name);
    assert_int_equal(n, want.n);
    npy_check(g->name, name, got, 0, -1);
    npy_free(&want);
}

static void check_row_grads(struct golden *g)
{
    int64_t *ids = memory_alloc(g->batch.n_unique * sizeof *ids);
    char name[32];

    for (uint32_t k = 0, i = 0; k < N_TABLES; k++) {
        const uint32_t first = i;
        struct npy want;

        for (; i < g->batch.n_unique && g->batch.unique[i] >> 32 == k; i++)
            ids[i - first] = (uint32_t)g->batch.unique[i];
        snprintf(name, sizeof name, "d_emb_%u_idx", k);
        want = npy_load(g->name, name);
        assert_int_equal(want.n, i - first);
        npy_check(g->name, name, ids, 0, -1);
        snprintf(name, sizeof name, "d_emb_%u_rows", k);
        npy_check(g->name, name, g->row_grads + (size_t)first * g->config.dim, 0, -1);
        npy_free(&want);
    }
    free(ids);
}

static struct compute *cpu(void)
{
    struct compute *c;

    assert_int_equal(device_cpu.open(&(struct device_options){ .n_threads = 1 }, &c, NULL), 0);
    assert_int_equal(device_cpu.reserve(c, 64, 1, 1), 0);
    return c;
}

static void check_sample_losses(struct golden *g)
{
    struct compute *c = cpu();
    uint32_t n;
    const float *logits = debug_read(g->m, "logit", &n);
    float losses[64], dz;

    assert_true(g->batch.n <= COUNT_OF(losses));
    for (uint32_t s = 0; s < g->batch.n; s++) {
        double loss = 0;

        device_cpu.loss(c, &(struct cross_entropy){ .n = 1 }, logits + s, g->batch.label + s,
                        &dz, &loss);
        losses[s] = (float)loss;
    }
    npy_check(g->name, "sample_loss", losses, 0, -1);
    device_cpu.close(c);
}

/* Z and d_Z of the files are R's pairs once more, as full squares: Zflat stands for them. */
static void check_first_step(struct golden *g)
{
    static const char *const names[] = {
        "bot_0_pre",   "bot_0_out",   "bot_1_pre",   "bot_1_out",   "bag_0",   "bag_1",
        "bag_2",       "bag_3",       "bag_4",       "T",           "Zflat",   "R",
        "top_0_pre",   "top_0_out",   "top_1_pre",   "top_1_out",   "logit",   "prob",
        "d_bot_0_pre", "d_bot_0_out", "d_bot_1_pre", "d_bot_1_out", "d_bag_0", "d_bag_1",
        "d_bag_2",     "d_bag_3",     "d_bag_4",     "d_T",         "d_Zflat", "d_R",
        "d_top_0_pre", "d_top_0_out", "d_top_1_pre", "d_top_1_out", "d_logit",
    };

    for (size_t i = 0; i < COUNT_OF(names); i++)
        check_debug_read(g, names[i]);
    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++)
        npy_check(g->name, underscored("d_", dlrm_tensor(g->m, i)->name),
                  dlrm_tensor(g->m, i)->grads, 0, -1);
    check_sample_losses(g);
    check_row_grads(g);
}

static void check_parameters(struct golden *g, uint32_t n_steps)
{
    char prefix[24], name[48];

    snprintf(prefix, sizeof prefix, "after%02u_", n_steps);
    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++)
        npy_check(g->name, underscored(prefix, dlrm_tensor(g->m, i)->name),
                  dlrm_tensor(g->m, i)->values, 0, -1);
    for (uint32_t k = 0; k < N_TABLES; k++) {
        snprintf(name, sizeof name, "%semb_%u", prefix, k);
        npy_check(g->name, name, g->emb[k].f, 0, -1);
    }
}

/* Of all parameters, bit for bit. */
static uint64_t hash_of(const struct golden *g)
{
    uint64_t hash = 0;
    uint32_t bits;

    for (uint32_t i = 0; i < dlrm_n_tensors(g->m); i++)
        for (uint32_t k = 0; k < dlrm_tensor(g->m, i)->n_floats; k++) {
            memcpy(&bits, dlrm_tensor(g->m, i)->values + k, sizeof bits);
            hash = hash_mix2(hash, bits);
        }
    for (uint32_t k = 0; k < N_TABLES; k++)
        for (size_t i = 0; i < (size_t)g->emb[k].n; i++) {
            memcpy(&bits, g->emb[k].f + i, sizeof bits);
            hash = hash_mix2(hash, bits);
        }
    return hash;
}

/* Ends in what PyTorch ends in, to within the golden numbers' tolerance; the bits it ends in. */
static uint64_t run_on(const struct device_ops *ops, const char *name)
{
    struct golden g;
    uint32_t n_steps;
    const bool full = npy_has(name, "array", "T");
    uint64_t hash;
    float *losses;
    double loss;

    golden_init(&g, ops, name);
    n_steps = (uint32_t)npy_param(name, "steps");
    losses = memory_alloc(n_steps * sizeof *losses);
    for (uint32_t step = 0; step < n_steps; step++) {
        read_batch(&g, step);
        pull_rows(&g);
        assert_int_equal(dlrm_step(g.m,
                                   &(struct dlrm_step){ .batch = &g.batch,
                                                        .rows = g.rows,
                                                        .row_grads = g.row_grads,
                                                        .number = step },
                                   &loss),
                         0);
        losses[step] = (float)loss;
        npy_check(name, "loss", losses + step, step, 1);
        if (full && !step)
            check_first_step(&g);
        push(&g, step);
        if (step + 1 == n_steps || (full && (step == 0 || step == 4)))
            check_parameters(&g, step + 1);
    }
    hash = hash_of(&g);
    free(losses);
    golden_deinit(&g);
    return hash;
}

static void run(const char *name)
{
    static const struct far_device_plan plan = { .late = true, .replays = true };
    const uint64_t want = run_on(&device_cpu, name);

    assert_true(run_on(far_device_ops(&device_cpu, &plan), name) == want);
}

static void one_id_a_field_trains_as_in_pytorch(void **state)
{
    (void)state;
    run("dlrm_onehot");
}

static void bags_of_none_to_five_ids_train_as_in_pytorch(void **state)
{
    (void)state;
    run("dlrm_multihot");
}

static void self_interaction_trains_as_in_pytorch(void **state)
{
    (void)state;
    run("dlrm_onehot_self");
    run("dlrm_multihot_self");
}

static void adagrad_trains_as_in_pytorch(void **state)
{
    (void)state;
    run("dlrm_multihot_adagrad");
}

static void rowwise_adagrad_trains_as_in_dlrm(void **state)
{
    (void)state;
    run("dlrm_multihot_rwsadagrad");
    run("dlrm_onehot_rwsadagrad");
}

static void the_loss_neither_overflows_nor_saturates_at_its_edges(void **state)
{
    const char *name = "loss_edge";
    struct npy z = npy_load(name, "z"), y = npy_load(name, "y");
    const uint32_t n = (uint32_t)z.n;
    float *out = memory_alloc(n * sizeof *out), *dz = memory_alloc(n * sizeof *dz);
    struct compute *c = cpu();
    double loss, part = 0, sum = 0, mean;

    (void)state;
    device_cpu.prob(c, n, z.f, out);
    npy_check(name, "prob", out, 0, -1);
    for (uint32_t i = 0; i < n; i++) {
        device_cpu.loss(c, &(struct cross_entropy){ .n = 1 }, z.f + i, y.f + i, dz + i, &loss);
        assert_true(isfinite(dz[i]));
        out[i] = (float)loss;
        part += loss;
        if ((i + 1) % device_block(n) == 0 || i + 1 == n) {
            sum += part;
            part = 0;
        }
    }
    npy_check(name, "d_bce_logits", dz, 0, -1);
    npy_check(name, "bce_logits", out, 0, -1);
    device_cpu.loss(c, &(struct cross_entropy){ .n = n }, z.f, y.f, dz, &mean);
    assert_true(mean == sum / n);
    device_cpu.close(c);
    npy_free(&z);
    npy_free(&y);
    free(out);
    free(dz);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_id_a_field_trains_as_in_pytorch),
        cmocka_unit_test(bags_of_none_to_five_ids_train_as_in_pytorch),
        cmocka_unit_test(self_interaction_trains_as_in_pytorch),
        cmocka_unit_test(adagrad_trains_as_in_pytorch),
        cmocka_unit_test(rowwise_adagrad_trains_as_in_dlrm),
        cmocka_unit_test(the_loss_neither_overflows_nor_saturates_at_its_edges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
