/* Kernels that sum over samples or inputs: norms, heads, bias gradients, loss. */
#include "tests/unit/cuda/lab.h"

#define EXACT 1e-6 /* a float's rounding, and a few more in sums */

static const uint32_t sizes[] = { 0, 1, 2, 31, 64, 65, 130, 257, 513, 700, 2100 };

/* A number of columns; every second one by fours, which are taken at once. */
static uint32_t width_of(struct lab *lab, uint32_t i, uint32_t most)
{
    return i % 2 ? 4 * (1 + lab_below(lab, most / 4)) : 1 + lab_below(lab, most);
}

/* ---- batch normalisation */

enum { MEAN, VAR, INV_STD, GAMMA, BETA, RUNNING_MEAN, RUNNING_VAR, N_OUTS };

struct norm_job {
    struct norm nm;
    struct norm_grads grads;
    struct relu_mask mask;
    bool is_masked;
    const float *x;
    float *outs[N_OUTS], *y, *dy;
    uint32_t ldy;
    enum device_act act;
    void *scratch;
};

static cudaError_t run_norm(void *arg)
{
    struct norm_job *j = arg;
    cudaError_t error = kernels_norm_batch(NULL, &j->nm, j->x, j->scratch);

    if (!error)
        error = kernels_norm_apply(NULL, &j->nm, j->act, j->x, j->y, j->ldy);
    if (!error)
        error = kernels_norm_backward(NULL, &j->nm, j->is_masked ? &j->mask : NULL, j->x, j->dy,
                                      &j->grads, j->scratch);
    return error;
}

static struct norm_job norm_job_of(struct lab *lab, uint32_t n, uint32_t width)
{
    struct norm_job j = { .nm = { .n = n, .width = width },
                          .ldy = width + 4 * lab_below(lab, 2) };
    float *x = lab_floats(lab, (size_t)n * width, 0);

    for (size_t i = 0; i < (size_t)n * width; i++)
        x[i] += 30; /* what two large sums would lose the variance of */
    j.x = x;
    j.nm.gamma = lab_floats(lab, width, 0);
    j.nm.beta = lab_floats(lab, width, 0);
    j.nm.running_mean = lab_floats(lab, width, 0);
    j.nm.running_var = lab_floats(lab, width, 0);
    for (int i = 0; i < N_OUTS; i++)
        j.outs[i] = lab_blank(lab, width * sizeof(float), 0);
    j.nm.mean = j.outs[MEAN];
    j.nm.var = j.outs[VAR];
    j.nm.inv_std = j.outs[INV_STD];
    j.grads = (struct norm_grads){ j.outs[GAMMA], j.outs[BETA], j.outs[RUNNING_MEAN],
                                   j.outs[RUNNING_VAR] };
    j.y = lab_blank(lab, (size_t)n * j.ldy * sizeof(float), 0);
    j.dy = lab_blank(lab, (size_t)n * width * sizeof(float), 0);
    j.mask = (struct relu_mask){ lab_floats(lab, (size_t)n * (width + 4), 0), width + 4, 1.5f };
    j.scratch = lab_blank(lab, kernels_sums_bytes(n + lab_below(lab, 50), width), 0);
    return j;
}

/* `least`: of what was added up to each, where that may have cancelled out. */
static void near_cpu(const float *got, const float *cpu, size_t n, double least)
{
    for (size_t i = 0; i < n; i++) {
        const double want = (double)cpu[i], magnitude = fmax(fabs(want), least);

        lab_near(got + i, &want, &magnitude, 1, EXACT);
    }
}

/* The same by the CPU, in memory of its own. */
static void check_norm(struct lab *lab, const struct norm_job *j, const float *start)
{
    const uint32_t n = j->nm.n, width = j->nm.width;
    float *outs[N_OUTS], *dy = lab_blank(lab, (size_t)n * width * sizeof *dy, 0),
                         *y = lab_blank(lab, (size_t)n * j->ldy * sizeof *y, 0);
    struct norm nm = j->nm;

    for (int i = 0; i < N_OUTS; i++)
        outs[i] = lab_blank(lab, width * sizeof(float), 0);
    nm.mean = outs[MEAN];
    nm.var = outs[VAR];
    nm.inv_std = outs[INV_STD];
    device_cpu.norm_batch(lab->cpu, &nm, j->x);
    near_cpu(j->outs[MEAN], outs[MEAN], width, 0);
    near_cpu(j->outs[VAR], outs[VAR], width, 0);
    near_cpu(j->outs[INV_STD], outs[INV_STD], width, 0);

    /* From here on by the kernel's statistics: then each element is exact. */
    device_cpu.norm_apply(lab->cpu, &j->nm, j->act, j->x, y, j->ldy);
    lab_same(j->y, y, (size_t)n * j->ldy);
    if (n)
        memcpy(dy, start, (size_t)n * width * sizeof *dy);
    device_cpu.norm_backward(
        lab->cpu, &j->nm, j->is_masked ? &j->mask : NULL, j->x, dy,
        &(struct norm_grads){ outs[GAMMA], outs[BETA], outs[RUNNING_MEAN], outs[RUNNING_VAR] });
    near_cpu(j->outs[GAMMA], outs[GAMMA], width, 1);
    near_cpu(j->outs[BETA], outs[BETA], width, 1);
    lab_same(j->outs[RUNNING_MEAN], outs[RUNNING_MEAN], width);
    lab_same(j->outs[RUNNING_VAR], outs[RUNNING_VAR], width);
    near_cpu(j->dy, dy, (size_t)n * width, 10);
}

static void norms_are_the_cpus_forward_and_backward(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint32_t n = sizes[i], width = width_of(lab, i, 70);
        struct norm_job j = norm_job_of(lab, n, width);
        float *start = lab_floats(lab, (size_t)n * width, 0);
        struct lab_out outs[N_OUTS + 1] = {
            [N_OUTS] = { 0 },
        };

        j.is_masked = i % 2;
        j.act = i % 4 < 2 ? DEVICE_RELU : DEVICE_LINEAR;
        outs[0] = (struct lab_out){ j.dy, (size_t)n * width * sizeof(float), start };
        outs[1] = (struct lab_out){ j.y, (size_t)n * j.ldy * sizeof(float), NULL };
        for (int k = 0; k < 4; k++)
            outs[2 + k] = (struct lab_out){ j.outs[k], width * sizeof(float), NULL };
        lab_each_order(lab, run_norm, &j, outs);
        check_norm(lab, &j, start);
        lab_sweep(lab);
    }
}

/* The variance of float64, where the first sample, from which differences are taken, is the odd one out. */
static void a_variance_survives_an_odd_first_sample(void **state)
{
    struct lab *lab = *state;
    struct norm_job j = norm_job_of(lab, 1000, 3);
    float *x = lab_floats(lab, 3000, 0);

    for (size_t o = 0; o < 3; o++)
        x[o] = 1e6f;
    j.x = x;
    lab_ran(kernels_norm_batch(NULL, &j.nm, x, j.scratch));
    for (size_t o = 0; o < 3; o++) {
        double mean = 0, var = 0;

        for (size_t s = 0; s < 1000; s++)
            mean += (double)x[s * 3 + o] / 1000;
        for (size_t s = 0; s < 1000; s++)
            var += ((double)x[s * 3 + o] - mean) * ((double)x[s * 3 + o] - mean) / 1000;
        lab_near(j.nm.mean + o, &mean, &mean, 1, EXACT);
        lab_near(j.nm.var + o, &var, &var, 1, EXACT);
    }
    lab_sweep(lab);
}

static void running_statistics_are_the_cpus(void **state)
{
    struct lab *lab = *state;
    struct norm_job j = norm_job_of(lab, 5, 300), k = norm_job_of(lab, 5, 300);

    ((float *)(uintptr_t)j.nm.running_var)[7] = -1.5f;
    k.nm.running_mean = j.nm.running_mean;
    k.nm.running_var = j.nm.running_var;
    lab_ran(kernels_norm_running(NULL, &j.nm));
    device_cpu.norm_running(lab->cpu, &k.nm);
    lab_same(j.nm.mean, k.nm.mean, 300);
    lab_same(j.nm.var, k.nm.var, 300);
    lab_same(j.nm.inv_std, k.nm.inv_std, 300);
    lab_sweep(lab);
}

/* ---- layers of one output */

struct head_job {
    struct linear l;
    enum device_act act;
    const struct relu_mask *mask;
    const float *dy;
    float *y, *dx, *dw, *db, *sums; /* sums NULL: not wanted */
    uint32_t ldy;
    void *scratch;
};

static cudaError_t run_head(void *arg)
{
    struct head_job *j = arg;
    cudaError_t error = kernels_head_forward(NULL, &j->l, j->act, j->y, j->ldy);

    return error ? error
                 : kernels_head_backward(NULL, &j->l, j->dy, j->dx, j->mask, j->dw, j->db,
                                         j->sums, j->scratch);
}

static void check_head(struct lab *lab, const struct head_job *j)
{
    const uint32_t n = j->l.n, in = j->l.in;
    float *y = lab_blank(lab, (size_t)n * j->ldy * sizeof *y, 0),
          *dx = lab_blank(lab, (size_t)n * in * sizeof *dx, 0),
          *dw = lab_blank(lab, in * sizeof *dw, 0), *db = lab_blank(lab, sizeof *db, 0);
    double *want = lab_blank(lab, (in + 1) * sizeof *want, 0),
           *magnitude = lab_blank(lab, (in + 1) * sizeof *want, 0);

    assert_int_equal(device_cpu.reserve(lab->cpu, n, in, 1), 0);
    device_cpu.linear_forward(lab->cpu, &j->l, j->act, y, j->ldy);
    device_cpu.linear_backward(lab->cpu, &j->l, j->dy, dx, j->mask, dw, db, NULL);
    lab_same(j->y, y, (size_t)n * j->ldy);
    lab_same(j->dx, dx, (size_t)n * in);
    for (uint32_t i = 0; i <= in; i++) {
        want[i] = magnitude[i] = 0;
        for (size_t s = 0; s < n; s++) {
            const double x = (double)j->dy[s] * (i < in ? (double)j->l.x[s * in + i] : 1);

            want[i] += x;
            magnitude[i] += fabs(x);
        }
    }
    lab_near(j->dw, want, magnitude, in, EXACT);
    lab_near(j->db, want + in, magnitude + in, 1, EXACT);
    for (uint32_t i = 0; i < in && j->sums; i++) {
        want[i] = magnitude[i] = 0;
        for (size_t s = 0; s < n; s++) {
            want[i] += (double)dx[s * in + i];
            magnitude[i] += fabs((double)dx[s * in + i]);
        }
    }
    if (j->sums)
        lab_near(j->sums, want, magnitude, in, EXACT);
}

static void a_layer_of_one_output_is_the_cpus(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint32_t n = sizes[i], in = width_of(lab, i, i % 3 ? 40 : 300);
        const struct relu_mask mask = { lab_floats(lab, (size_t)n * (in + 4), 0), in + 4,
                                        1.25f };
        struct head_job j = {
            .l = { n, in, 1, lab_floats(lab, (size_t)n * in, 0), lab_floats(lab, in, 0),
                   lab_floats(lab, 1, 0), 0 },
            .act = i % 2 ? DEVICE_RELU : DEVICE_LINEAR,
            .mask = i % 3 ? &mask : NULL,
            .dy = lab_floats(lab, n, 0),
            .ldy = 1 + lab_below(lab, 3),
            .dx = lab_blank(lab, (size_t)n * in * sizeof(float), 0),
            .dw = lab_blank(lab, in * sizeof(float), 0),
            .db = lab_blank(lab, sizeof(float), 0),
            .scratch = lab_blank(lab, kernels_sums_bytes(n, in), 0),
        };

        j.y = lab_blank(lab, (size_t)n * j.ldy * sizeof(float), 0);
        lab_each_order(lab, run_head, &j,
                       (struct lab_out[]){ { j.y, (size_t)n * j.ldy * sizeof(float), NULL },
                                           { j.dx, (size_t)n * in * sizeof(float), NULL },
                                           { j.dw, in * sizeof(float), NULL },
                                           { j.db, sizeof(float), NULL },
                                           { 0 } });
        check_head(lab, &j);
        lab_sweep(lab);
    }
}

/* As in a model: the mask reads the layer's input. All is made at once then, to the bits of one by one. */
static void a_layer_of_one_output_is_made_at_once_where_the_mask_reads_x(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint32_t n = sizes[i], in = width_of(lab, i, 300);
        const float *x = lab_floats(lab, (size_t)n * in, 0);
        float *copy = lab_blank(lab, (size_t)n * in * sizeof *copy, 0);
        const struct relu_mask mask = { x, in, i % 2 ? 1.25f : 1 },
                               other = { copy, in, mask.scale };
        struct head_job j = {
            .l = { n, in, 1, x, lab_floats(lab, in, 0), lab_floats(lab, 1, 0), 0 },
            .mask = &mask,
            .dy = lab_floats(lab, n, 0),
            .ldy = 1,
            .y = lab_blank(lab, n * sizeof(float), 0),
            .dx = lab_blank(lab, (size_t)n * in * sizeof(float), 0),
            .dw = lab_blank(lab, in * sizeof(float), 0),
            .db = lab_blank(lab, sizeof(float), 0),
            .sums = lab_blank(lab, in * sizeof(float), 0),
            .scratch = lab_blank(lab, kernels_sums_bytes(n, in), 0),
        };
        float *dw = lab_blank(lab, in * sizeof *dw, 0), *db = lab_blank(lab, sizeof *db, 0),
              *sums = lab_blank(lab, in * sizeof *sums, 0),
              *dx = lab_blank(lab, (size_t)n * in * sizeof *dx, 0);

        lab_each_order(lab, run_head, &j,
                       (struct lab_out[]){ { j.dx, (size_t)n * in * sizeof(float), NULL },
                                           { j.dw, in * sizeof(float), NULL },
                                           { j.db, sizeof(float), NULL },
                                           { j.sums, in * sizeof(float), NULL },
                                           { 0 } });
        check_head(lab, &j);
        if (n)
            memcpy(copy, x, (size_t)n * in * sizeof *copy);
        lab_ran(kernels_head_backward(NULL, &j.l, j.dy, dx, &other, dw, db, sums, j.scratch));
        lab_same(j.dx, dx, (size_t)n * in);
        lab_same(j.dw, dw, in);
        lab_same(j.db, db, 1);
        lab_same(j.sums, sums, in);
        lab_sweep(lab);
    }
}

static void of_a_layer_of_one_output_either_gradient_may_be_left_out(void **state)
{
    struct lab *lab = *state;
    const struct linear l = {
        70, 9, 1, lab_floats(lab, 630, 0), lab_floats(lab, 9, 0), lab_floats(lab, 1, 0), 0
    };
    float *dy = lab_floats(lab, 70, 0);
    float *dx = lab_blank(lab, 630 * sizeof *dx, 0), *dw = lab_blank(lab, 9 * sizeof *dw, 0),
          *db = lab_floats(lab, 1, 0);
    void *scratch = lab_blank(lab, kernels_sums_bytes(70, 9), 0);

    for (int i = 0; i < 70; i++)
        dy[i] = fabsf(dy[i]);
    lab_ran(kernels_head_backward(NULL, &l, dy, dx, NULL, NULL, NULL, NULL, NULL));
    assert_true(dx[629] == dy[69] * l.w[8] && dw[0] != dw[0]);
    dx[0] = NAN;
    lab_ran(kernels_head_backward(NULL, &l, dy, NULL, NULL, dw, db, NULL, scratch));
    assert_true(dx[0] != dx[0] && dw[8] == dw[8] && fabsf(*db) > 1);
    lab_sweep(lab);
}

/* ---- bias gradients */

struct bias_job {
    uint32_t n, width;
    const float *dy;
    float *db;
    void *scratch;
};

static cudaError_t run_bias_grad(void *arg)
{
    struct bias_job *j = arg;

    return kernels_bias_grad(NULL, j->n, j->width, j->dy, j->db, j->scratch);
}

static void bias_gradients_are_sums_over_samples(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint32_t n = sizes[i], width = 1 + lab_below(lab, 100);
        struct bias_job j = { n, width, lab_floats(lab, (size_t)n * width, 0),
                              lab_blank(lab, width * sizeof(float), 0),
                              lab_blank(lab, kernels_sums_bytes(n, width), 0) };
        double *want = lab_blank(lab, width * sizeof *want, 0),
               *magnitude = lab_blank(lab, width * sizeof *want, 0);

        lab_each_order(lab, run_bias_grad, &j,
                       (struct lab_out[]){ { j.db, width * sizeof(float), NULL }, { 0 } });
        for (size_t o = 0; o < width; o++)
            want[o] = magnitude[o] = 0;
        for (size_t k = 0; k < (size_t)n * width; k++) {
            want[k % width] += (double)j.dy[k];
            magnitude[k % width] += fabs((double)j.dy[k]);
        }
        lab_near(j.db, want, magnitude, width, EXACT);
        lab_sweep(lab);
    }
}

/* ---- loss */

struct loss_job {
    struct cross_entropy e;
    const float *z, *y;
    float *p, *dz;
    double *loss;
    void *scratch;
};

static cudaError_t run_loss(void *arg)
{
    struct loss_job *j = arg;
    const cudaError_t error = kernels_prob(NULL, j->e.n, j->z, j->p);

    return error ? error : kernels_loss(NULL, &j->e, j->z, j->y, j->dz, j->loss, j->scratch);
}

static void probabilities_and_loss_are_the_cpus(void **state)
{
    static const float far[] = { 0, -0.0f, 100, -100, 1e30f, -1e30f };
    struct lab *lab = *state;

    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint32_t n = sizes[i];
        float *z = lab_floats(lab, n, 0), *y = lab_floats(lab, n, 0),
              *want = lab_blank(lab, n * sizeof *want, 0);
        double loss = -1;
        struct loss_job j = { { n, 0.5f * (float)(n % 3), 0.1f * (float)(n % 2),
                                0.7f * (float)(n % 2) },
                              z,
                              y,
                              lab_blank(lab, n * sizeof(float), 0),
                              lab_blank(lab, n * sizeof(float), 0),
                              lab_blank(lab, sizeof(double), 0),
                              lab_blank(lab, kernels_sums_bytes(n, 1), 0) };

        for (uint32_t s = 0; s < n; s++) {
            z[s] = s % 50 < COUNT_OF(far) && i % 2 ? far[s % 50] : 8 * z[s];
            y[s] = y[s] > 0;
        }
        lab_each_order(lab, run_loss, &j,
                       (struct lab_out[]){ { j.p, n * sizeof(float), NULL },
                                           { j.dz, n * sizeof(float), NULL },
                                           { j.loss, sizeof(double), NULL },
                                           { 0 } });
        device_cpu.prob(lab->cpu, n, z, want);
        near_cpu(j.p, want, n, 0); /* exp() is the device's */
        assert_int_equal(device_cpu.reserve(lab->cpu, n, 1, 1), 0);
        device_cpu.loss(lab->cpu, &j.e, z, y, want, &loss);
        near_cpu(j.dz, want, n, 1.0 / n);
        assert_true(fabs(*j.loss - loss) <= 1e-13 * fabs(loss));
        lab_sweep(lab);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_the_cpus_forward_and_backward),
        cmocka_unit_test(a_variance_survives_an_odd_first_sample),
        cmocka_unit_test(running_statistics_are_the_cpus),
        cmocka_unit_test(a_layer_of_one_output_is_the_cpus),
        cmocka_unit_test(a_layer_of_one_output_is_made_at_once_where_the_mask_reads_x),
        cmocka_unit_test(of_a_layer_of_one_output_either_gradient_may_be_left_out),
        cmocka_unit_test(bias_gradients_are_sums_over_samples),
        cmocka_unit_test(probabilities_and_loss_are_the_cpus),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
