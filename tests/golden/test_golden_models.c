/*
 * The models beside DLRM as PyTorch trains them (models.py), and with meta learning (meta.py): probabilities and
 * gradients of the first batch, losses of 20 batches and all parameters after them, through the worker's tables and a
 * store.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base.h"
#include "common/memory.h"
#include "tests/golden/harness.h"

enum { N_TABLES = 3, DENSE = 5, N_STEPS = 20 };

/* A tensor's name as the arrays of a case have it: top.0.W -> PREFIXtop_0_W. */
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

static struct array_name table_name(const char *prefix, const char *table, uint32_t field)
{
    struct array_name name;

    snprintf(name.text, sizeof name.text, "%s%s_%u", prefix, table, field);
    return name;
}

static void assign_rows(struct harness *h, const char *name, const char *table)
{
    for (uint32_t k = 0; k < N_TABLES; k++) {
        struct npy w = npy_load(name, table_name("", table, k).text);
        uint64_t *keys = harness_keys_of(k, (uint32_t)w.dims[0]);

        harness_assign_rows(h, table, keys, w.f, (uint32_t)w.dims[0]);
        free(keys);
        npy_free(&w);
    }
}

static void assign_all(struct harness *h, const char *name)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(h->model); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(h->model, i);
        struct npy w = npy_load(name, name_of("", t->name).text);

        assert_int_equal(w.n, t->n_floats);
        harness_assign_dense(h, t->name, w.f, t->n_floats);
        npy_free(&w);
    }
    assign_rows(h, name, "emb");
    if (npy_has(name, "array", "wide_0"))
        assign_rows(h, name, "wide");
}

static void check_row_grads(const struct harness *h, const char *name, const char *table,
                            const float *grads, uint32_t width)
{
    for (uint32_t i = 0; i < h->batch.n_unique; i++) {
        const uint64_t key = h->batch.unique[i];

        npy_check(name, table_name("d_", table, (uint32_t)(key >> 32)).text,
                  grads + (size_t)i * width, (int64_t)(uint32_t)key * width, width);
    }
}

/* Of the step just made; the tables have its gradients already. */
static void check_grads(struct harness *h, const char *name)
{
    const uint32_t dim = (uint32_t)npy_param(name, "dim");

    for (uint32_t i = 0; i < dlrm_n_tensors(h->model); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(h->model, i);

        npy_check(name, name_of("d_", t->name).text, t->grads, 0, t->n_floats);
    }
    check_row_grads(h, name, "emb", h->buffers.row_grads, dim);
    if (h->buffers.wide_grads)
        check_row_grads(h, name, "wide", h->buffers.wide_grads, 1);
}

static void check_rows(struct harness *h, const char *name, const char *table)
{
    for (uint32_t k = 0; k < N_TABLES; k++) {
        const struct array_name after = table_name("after20_", table, k);
        struct npy w = npy_load(name, after.text);
        uint64_t *keys = harness_keys_of(k, (uint32_t)w.dims[0]);

        harness_read_rows(h, table, keys, w.f, (uint32_t)w.dims[0]);
        npy_check(name, after.text, w.f, 0, w.n);
        free(keys);
        npy_free(&w);
    }
}

static void check_parameters(struct harness *h, const char *name)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(h->model); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(h->model, i);
        float *w = memory_alloc(t->n_floats * sizeof *w);

        harness_read_dense(h, t->name, w, t->n_floats);
        npy_check(name, name_of("after20_", t->name).text, w, 0, t->n_floats);
        free(w);
    }
    check_rows(h, name, "emb");
    if (npy_has(name, "array", "wide_0"))
        check_rows(h, name, "wide");
}

/* Flags of a kind of model, NULL-terminated, and the weights of its labels. */
struct flavour {
    const char *flags[8];
    uint32_t n_labels;
    float weights[2];
    bool is_meta;
};

static struct meta_learning *open_meta(struct harness *h, const char *name)
{
    const struct meta_learning_options options = {
        .field = (uint32_t)npy_param(name, "field"),
        .inner_lr = (float)npy_param(name, "inner_lr"),
        .inner_steps = (uint32_t)npy_param(name, "inner_steps")
    };
    struct meta_learning *meta;
    struct meta_learning_scores scores;

    assert_int_equal(meta_learning_new(h->model, &h->config, &options, &meta), 0);
    harness_meta_predict(h, meta, &scores);
    npy_check(name, "adapted", scores.probs, 0, -1);
    return meta;
}

static void run(const char *kind, const char *case_name, const char *optimizer,
                const struct flavour *of)
{
    const char *flags[24] = { "--model", kind, "--optimizer", optimizer, "--batch", "24" };
    char name[64], lr[32];
    float losses[N_STEPS];
    struct harness_data d;
    struct meta_learning *meta = NULL;
    struct harness h;
    uint32_t n = 6;

    snprintf(name, sizeof name, "%s_%s_%s", of->is_meta ? "meta" : "model", case_name,
             optimizer);
    snprintf(lr, sizeof lr, "%g", npy_param(name, "lr"));
    flags[n++] = "--job", flags[n++] = name;
    flags[n++] = "--lr", flags[n++] = lr;
    for (uint32_t i = 0; of->flags[i]; i++)
        flags[n++] = of->flags[i];
    d = harness_load(name);
    harness_open_tasks(&h, flags, DENSE, N_TABLES, of->n_labels, of->weights);
    assign_all(&h, name);
    harness_fill(&h, &d, 0);
    harness_forward(&h);
    npy_check(name, "prob", dlrm_probs(h.model), 0, -1);
    if (of->is_meta)
        meta = open_meta(&h, name);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        harness_fill(&h, &d, step);
        losses[step] = (float)(meta ? harness_meta_step(&h, meta) : harness_step(&h));
        if (step == 0)
            check_grads(&h, name);
    }
    npy_check(name, "loss", losses, 0, N_STEPS);
    check_parameters(&h, name);
    meta_learning_free(meta);
    harness_close(&h);
    harness_unload(&d);
}

static const struct flavour
    shallow = { { NULL }, 1, { 1 }, false },
    embeds = { { "--dim", "8" }, 1, { 1 }, false },
    deep = { { "--dim", "8", "--top", "16,8" }, 1, { 1 }, false },
    low_rank = { { "--dim", "8", "--top", "16,8", "--cross-layers", "3", "--cross-rank=4" },
                 1,
                 { 1 },
                 false },
    tasks = { { "--dim", "8", "--top", "16,8", "--cross-layers", "1" }, 2, { 1, 0.3f }, false },
    meta_deep = { { "--dim", "8", "--top", "16,8" }, 1, { 1 }, true },
    meta_tasks = {
        { "--dim", "8", "--top", "16,8", "--cross-layers", "1" }, 2, { 1, 0.3f }, true
    };

/* kind: of the case that has this name */
#define GOLDEN(name, kind, more)             \
    static void name(void **state)           \
    {                                        \
        (void)state;                         \
        run(#kind, #name, "sgd", &more);     \
        run(#kind, #name, "adagrad", &more); \
    }

GOLDEN(lr, lr, shallow)
GOLDEN(fm, fm, embeds)
GOLDEN(wide_deep, wide_deep, deep)
GOLDEN(deepfm, deepfm, deep)
GOLDEN(dcnv2, dcnv2, deep)
GOLDEN(dcnv2_low_rank, dcnv2, low_rank)
GOLDEN(dcnv2_tasks, dcnv2, tasks)

static void meta_learning(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        run("deepfm", "deepfm", i ? "adagrad" : "sgd", &meta_deep);
        run("dcnv2", "dcnv2_tasks", i ? "adagrad" : "sgd", &meta_tasks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lr),          cmocka_unit_test(fm),
        cmocka_unit_test(wide_deep),   cmocka_unit_test(deepfm),
        cmocka_unit_test(dcnv2),       cmocka_unit_test(dcnv2_low_rank),
        cmocka_unit_test(dcnv2_tasks), cmocka_unit_test(meta_learning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
