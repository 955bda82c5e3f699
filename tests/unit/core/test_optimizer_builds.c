/* Every build of every optimizer, and of what starts a row, against the plain one. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "server/core/optimizer.h"
#include "server/core/row_init.h"

#define N_STEPS 4u

static const float corners[] = { 0,        -0.0f,     1e-20f,  -1e-20f,  1e18f, 0x1p-149f,
                                 FLT_MIN,  -FLT_MIN,  FLT_MAX, -FLT_MAX, 1,     -1,
                                 INFINITY, -INFINITY, NAN,     0x1p-126f };

/* `n_corners` 0: none, so that no NaN hides what differs. */
static float value(uint64_t h, size_t n_corners)
{
    return n_corners && h % 7 == 0 ? corners[(h >> 8) % n_corners] : 2 * hash_unit(h) - 1;
}

/* Which NaN is the compiler's choice, where both of an addition's sides are one. */
static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static struct table_spec spec_of(enum table_spec_optim id, uint32_t dim, uint64_t round)
{
    struct table_spec spec = { .kind = round % 2 ? TABLE_SPEC_DENSE : TABLE_SPEC_SPARSE,
                               .dim = dim,
                               .optim = id,
                               .params = table_spec_optim_defaults(id) };

    spec.params.weight_decay = round % 3 ? 0 : 0.01f;
    spec.params.nesterov = round % 4 ? 0 : 1;
    spec.params.ftrl_l1 = round % 2 ? 0.01f : 0;
    spec.params.ftrl_l2 = 0.001f;
    spec.params.initial_accumulator = round % 5 ? 0 : 0.1f;
    return spec;
}

/* The same steps in two builds, on rows whose floats stand at odd multiples of 4 bytes; the
 * gradient stands anywhere. */
static void compare(enum table_spec_optim id, enum simd build, uint32_t dim, uint64_t round)
{
    const struct optimizer *plain = optimizer_build(id, SIMD_PLAIN),
                           *optim = optimizer_build(id, build);
    const struct table_spec spec = spec_of(id, dim, round);
    const uint32_t n_state = plain->state_floats(dim), n_floats = dim + n_state;
    const size_t n_corners = round % 3 == 0 ? 0 : round % 3 == 1 ? 8 : COUNT_OF(corners);
    float *a = malloc((1 + n_floats) * sizeof *a), *want = a + 1;
    float *b = malloc((1 + n_floats) * sizeof *b), *got = b + 1;
    char *bytes = malloc((dim + 1) * sizeof *a);
    optimizer_gradient *g = (optimizer_gradient *)(bytes + round % sizeof *a);

    for (uint32_t i = 0; i < dim; i++)
        want[i] = value(hash_mix2(round, i), n_corners);
    plain->init(want, want + dim, dim, &spec.params);
    memcpy(got, want, n_floats * sizeof *got);
    for (uint32_t t = 1; t <= N_STEPS; t++) {
        const struct optimizer_step step = optimizer_step_at(plain, &spec, t, t);

        for (uint32_t i = 0; i < dim; i++)
            g[i] = value(hash_mix2(round + t, i), n_corners);
        plain->step(want, want + dim, g, dim, &step);
        optim->step(got, got + dim, g, dim, &step);
        for (uint32_t i = 0; i < n_floats; i++)
            if (!same(got[i], want[i]))
                fail_msg(
                    "optimizer %u build %u dim %u round %llu step %u [%u]: %a, expected %a",
                    (unsigned)id, (unsigned)build, dim, (unsigned long long)round, t, i,
                    (double)got[i], (double)want[i]);
    }
    free(a);
    free(b);
    free(bytes);
}

static void every_build_leaves_the_plain_bits(void **state)
{
    (void)state;
    for (unsigned id = 0; id < TABLE_SPEC_OPTIM_END; id++)
        for (unsigned build = SIMD_PLAIN; build < SIMD_END; build++)
            for (uint32_t dim = 1; dim <= 4200 && simd_runs((enum simd)build);
                 dim += dim < 130 ? 1 : 1009)
                for (uint64_t round = 0; round < 12; round++)
                    compare((enum table_spec_optim)id, (enum simd)build, dim,
                            dim * 100 + round);
}

/* The header's formula, with its lanes written out. */
static void rowwise_adagrad_adds_squares_in_sixteen_lanes(void **state)
{
    (void)state;
    for (uint32_t dim = 1; dim <= 130; dim++) {
        const struct table_spec spec = spec_of(TABLE_SPEC_ROWWISE_ADAGRAD, dim, 1);
        const struct optimizer *optim = optimizer_find(TABLE_SPEC_ROWWISE_ADAGRAD);
        const struct optimizer_step step = optimizer_step_at(optim, &spec, 0, 1);
        float w[130] = { 0 }, g[130], lane[16] = { 0 }, sum = 0.25f;

        for (uint32_t i = 0; i < dim; i++) {
            g[i] = value(hash_mix2(dim, i), 0);
            lane[i % 16] += g[i] * g[i];
        }
        for (uint32_t width = 8; width; width /= 2)
            for (uint32_t i = 0; i < width; i++)
                lane[i] += lane[i + width];
        optim->step(w, &sum, g, dim, &step);
        assert_true(sum == 0.25f + lane[0] / (float)dim);
    }
}

static void every_build_starts_rows_alike(void **state)
{
    struct table_spec spec = { .seed = 11, .init_scale = 0.3f };
    float want[1200], got[1200];

    (void)state;
    for (unsigned init = 0; init < TABLE_SPEC_INIT_END; init++)
        for (unsigned build = SIMD_PLAIN; build < SIMD_END; build++)
            for (uint32_t dim = 1; dim <= 1200 && simd_runs((enum simd)build);
                 dim += dim < 130 ? 1 : 333) {
                spec.init = (enum table_spec_init)init;
                spec.dim = dim;
                row_init_row_build(&spec, dim, SIMD_PLAIN, want);
                row_init_row_build(&spec, dim, (enum simd)build, got);
                assert_memory_equal(got, want, dim * sizeof *got);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_build_leaves_the_plain_bits),
        cmocka_unit_test(rowwise_adagrad_adds_squares_in_sixteen_lanes),
        cmocka_unit_test(every_build_starts_rows_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
