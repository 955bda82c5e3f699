/*
 * The DLRM runs of 20 steps that PyTorch made (vectors dlrm_*), through the worker's tables and
 * a store: losses of each step, and all parameters after 1, 5 and 20 steps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/base.h"
#include "tests/golden/harness.h"
#include "tests/support/npy.h"

#define N_TABLES 5
#define N_STEPS 20
#define BATCH 32
#define DENSE 13
#define DIM 16

static const char *const tensors[][2] = { { "bot.0.W", "bot_0_W" }, { "bot.0.b", "bot_0_b" },
                                          { "bot.1.W", "bot_1_W" }, { "bot.1.b", "bot_1_b" },
                                          { "top.0.W", "top_0_W" }, { "top.0.b", "top_0_b" },
                                          { "top.1.W", "top_1_W" }, { "top.1.b", "top_1_b" },
                                          { "top.2.W", "top_2_W" }, { "top.2.b", "top_2_b" } };

static uint64_t key_of(uint32_t table, int64_t id)
{
    return (uint64_t)table << 32 | (uint64_t)id;
}

/* All keys of one table, ascending. */
static uint64_t *keys_of(uint32_t table, uint32_t n_rows)
{
    uint64_t *keys = malloc(n_rows * sizeof *keys);

    assert_non_null(keys);
    for (uint32_t i = 0; i < n_rows; i++)
        keys[i] = key_of(table, i);
    return keys;
}

static void assign_all(struct harness *h, const char *name)
{
    for (size_t i = 0; i < COUNT_OF(tensors); i++) {
        struct npy w = npy_load(name, tensors[i][1]);

        harness_assign_dense(h, tensors[i][0], w.f, (uint32_t)w.n);
        npy_free(&w);
    }
    for (uint32_t k = 0; k < N_TABLES; k++) {
        char emb[16];
        struct npy w;
        uint64_t *keys;

        snprintf(emb, sizeof emb, "emb_%u", k);
        w = npy_load(name, emb);
        keys = keys_of(k, (uint32_t)w.dims[0]);
        harness_assign_rows(h, keys, w.f, (uint32_t)w.dims[0]);
        free(keys);
        npy_free(&w);
    }
}

static void check_parameters(struct harness *h, const char *name, const char *after)
{
    char array[64];

    for (size_t i = 0; i < COUNT_OF(tensors); i++) {
        struct npy w = npy_load(name, tensors[i][1]);

        harness_read_dense(h, tensors[i][0], w.f, (uint32_t)w.n);
        snprintf(array, sizeof array, "%s_%s", after, tensors[i][1]);
        npy_check(name, array, w.f, 0, w.n);
        npy_free(&w);
    }
    for (uint32_t k = 0; k < N_TABLES; k++) {
        uint64_t *keys;
        struct npy w;

        snprintf(array, sizeof array, "%s_emb_%u", after, k);
        w = npy_load(name, array);
        keys = keys_of(k, (uint32_t)w.dims[0]);
        harness_read_rows(h, keys, w.f, (uint32_t)w.dims[0]);
        npy_check(name, array, w.f, 0, w.n);
        free(keys);
        npy_free(&w);
    }
}

struct data {
    struct npy X, y, seg, indices, offsets;
};

/* Bag (table, sample) of a step: from its offset to the next one's, the last to the segment's
 * end. */
static void fill(struct batch *b, const struct data *d, uint32_t step)
{
    batch_clear(b);
    b->n = BATCH;
    memcpy(b->numeric, d->X.f + (size_t)step * BATCH * DENSE, BATCH * DENSE * sizeof(float));
    memcpy(b->label, d->y.f + (size_t)step * BATCH, BATCH * sizeof(float));
    b->n_keys = 0;
    for (uint32_t i = 0; i < BATCH; i++)
        for (uint32_t k = 0; k < N_TABLES; k++) {
            size_t s = (size_t)step * N_TABLES + k;
            const int64_t *offsets = d->offsets.i + s * BATCH;
            int64_t from = d->seg.i[s] + offsets[i];
            int64_t to = i + 1 < BATCH ? d->seg.i[s] + offsets[i + 1] : d->seg.i[s + 1];

            assert_int_equal(batch_reserve_keys(b, (uint32_t)(to - from)), 0);
            b->starts[i * N_TABLES + k] = b->n_keys;
            for (int64_t j = from; j < to; j++)
                b->keys[b->n_keys++] = key_of(k, d->indices.i[j]);
        }
    b->starts[BATCH * N_TABLES] = b->n_keys;
}

static struct data load(const char *name)
{
    return (struct data){ npy_load(name, "X"), npy_load(name, "y"), npy_load(name, "seg"),
                          npy_load(name, "indices"), npy_load(name, "offsets") };
}

static void run(const char *name, const char *optimizer, const char *lr, const char *self)
{
    const char *flags[] = { "--job", name,      "--optimizer", optimizer, "--lr", lr,
                            self,    "--batch", "32",          "--dim",   "16",   "--bottom",
                            "32",    "--top",   "64,32",       NULL };
    struct data d = load(name);
    float losses[N_STEPS];
    struct harness h;

    harness_open(&h, flags, DENSE, N_TABLES);
    assign_all(&h, name);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        fill(&h.batch, &d, step);
        losses[step] = (float)harness_step(&h);
        if (step == 0 && npy_has(name, "array", "after01_bot_0_W"))
            check_parameters(&h, name, "after01");
        if (step == 4 && npy_has(name, "array", "after05_bot_0_W"))
            check_parameters(&h, name, "after05");
    }
    check_parameters(&h, name, "after20");
    npy_check(name, "loss", losses, 0, N_STEPS);
    harness_close(&h);
    npy_free(&d.X);
    npy_free(&d.y);
    npy_free(&d.seg);
    npy_free(&d.indices);
    npy_free(&d.offsets);
}

#define GOLDEN(name, optimizer, lr, self)        \
    static void name(void **state)               \
    {                                            \
        (void)state;                             \
        run("dlrm_" #name, optimizer, lr, self); \
    }

GOLDEN(multihot, "sgd", "0.1", "--self-interaction=no")
GOLDEN(multihot_self, "sgd", "0.1", "--self-interaction=yes")
GOLDEN(onehot, "sgd", "0.1", "--self-interaction=no")
GOLDEN(onehot_self, "sgd", "0.1", "--self-interaction=yes")
GOLDEN(multihot_adagrad, "adagrad", "0.01", "--self-interaction=no")
GOLDEN(multihot_rwsadagrad, "rowwise_adagrad", "0.01", "--self-interaction=no")
GOLDEN(onehot_rwsadagrad, "rowwise_adagrad", "0.01", "--self-interaction=no")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(multihot),
        cmocka_unit_test(multihot_self),
        cmocka_unit_test(onehot),
        cmocka_unit_test(onehot_self),
        cmocka_unit_test(multihot_adagrad),
        cmocka_unit_test(multihot_rwsadagrad),
        cmocka_unit_test(onehot_rwsadagrad),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
