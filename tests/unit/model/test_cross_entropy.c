/* The loss with a weight of positive samples, smoothed labels and an offset of the logit, against PyTorch 1.13:
 *
 *     z = (z + offset).double(), y = y + smoothing * (0.5 - y)
 *     F.binary_cross_entropy_with_logits(z, y, pos_weight=1 + more), and its gradient
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "worker/compute/device.h"

enum { N = 8 };

static const float z[N] = { -30, -2.5f, -0.25f, 0, 0.75f, 3, 40, -1 };
static const float y[N] = { 1, 0, 1, 0, 1, 0, 1, 0 };

static const struct {
    float more, smoothing, offset;
    double loss;
    float dz[N];
} golden[] = {
    { 1.5f,
      0,
      0,
      10.2707390023661,
      { -0.3125f, 0.0094822725f, -0.175680157f, 0.0625f, -0.100256657f, 0.119071766f, 0,
        0.0336176777f } },
    { 0,
      0.1f,
      0,
      4.48708704851674,
      { -0.11875f, 0.00323227241f, -0.0640220625f, 0.0562499999f, -0.0338526625f, 0.112821766f,
        0.00625000009f, 0.0273676776f } },
    { -0.75f,
      0.2f,
      0,
      1.87881349274277,
      { -0.028125f, 0.00564610201f, -0.0103384202f, 0.0546874999f, -0.000533365205f,
        0.107016383f, 0.0125000002f, 0.0279713518f } },
    { 0,
      0,
      1.5f,
      4.54399191684903,
      { -0.125f, 0.0336176777f, -0.0278375174f, 0.10219681f, -0.0119186831f, 0.123626632f, 0,
        0.0778074164f } },
    { 2,
      0.05f,
      2.30258509f,
      11.5474453561083,
      { -0.365625f, 0.0497932803f, -0.0388355895f, 0.109943182f, -0.0135078365f, 0.121224782f,
        0.00312500005f, 0.0938229025f } },
};

static void the_loss_and_its_gradient_are_pytorchs(void **state)
{
    struct compute *c;
    struct err err;

    (void)state;
    assert_int_equal(device_cpu.open(&(struct device_options){ .n_threads = 1 }, &c, &err), 0);
    assert_int_equal(device_cpu.reserve(c, N, 1, 1), 0);
    for (size_t i = 0; i < COUNT_OF(golden); i++) {
        const struct cross_entropy e = { N, golden[i].more, golden[i].smoothing,
                                         golden[i].offset };
        float dz[N];
        double loss;

        device_cpu.loss(c, &e, z, y, dz, &loss);
        assert_true(fabs(loss - golden[i].loss) < 1e-12 * golden[i].loss);
        for (uint32_t s = 0; s < N; s++)
            if (fabsf(dz[s] - golden[i].dz[s]) > 1e-7f * fabsf(golden[i].dz[s]) + 1e-12f)
                fail_msg("case %zu, sample %u: the gradient is %.9g, PyTorch's %.9g", i, s,
                         (double)dz[s], (double)golden[i].dz[s]);
    }
    device_cpu.close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_and_its_gradient_are_pytorchs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
