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
#define DENSE 13

static const char *const tensors[][2] = { { "bot.0.W", "bot_0_W" }, { "bot.0.b", "bot_0_b" },
                                          { "bot.1.W", "bot_1_W" }, { "bot.1.b", "bot_1_b" },
                                          { "top.0.W", "top_0_W" }, { "top.0.b", "top_0_b" },
                                          { "top.1.W", "top_1_W" }, { "top.1.b", "top_1_b" },
                                          { "top.2.W", "top_2_W" }, { "top.2.b", "top_2_b" } };

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
        keys = harness_keys_of(k, (uint32_t)w.dims[0]);
        harness_assign_rows(h, "emb", keys, w.f, (uint32_t)w.dims[0]);
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
        keys = harness_keys_of(k, (uint32_t)w.dims[0]);
        harness_read_rows(h, "emb", keys, w.f, (uint32_t)w.dims[0]);
        npy_check(name, array, w.f, 0, w.n);
        free(keys);
        npy_free(&w);
    }
}

static void run(const char *name, const char *optimizer, const char *lr, const char *self)
{
    const char *flags[] = { "--job", name,      "--optimizer", optimizer, "--lr", lr,
                            self,    "--batch", "32",          "--dim",   "16",   "--bottom",
                            "32",    "--top",   "64,32",       NULL };
    struct harness_data d = harness_load(name);
    float losses[N_STEPS];
    struct harness h;

    harness_open(&h, flags, DENSE, N_TABLES);
    assign_all(&h, name);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        harness_fill(&h, &d, step);
        losses[step] = (float)harness_step(&h);
        if (step == 0 && npy_has(name, "array", "after01_bot_0_W"))
            check_parameters(&h, name, "after01");
        if (step == 4 && npy_has(name, "array", "after05_bot_0_W"))
            check_parameters(&h, name, "after05");
    }
    check_parameters(&h, name, "after20");
    npy_check(name, "loss", losses, 0, N_STEPS);
    harness_close(&h);
    harness_unload(&d);
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
