/* Interactions: exact ones are the CPU's bit for bit, those on tensor cores within TF32 of float64. */
#include "tests/unit/cuda/lab.h"

struct job {
    enum kernels_math math;
    struct interact it;
    const float *t, *dr;
    float *r, *dt;
};

static cudaError_t run_both(void *arg)
{
    struct job *j = arg;
    const cudaError_t error = kernels_interact_forward(NULL, j->math, &j->it, j->t, j->r);

    return error ? error : kernels_interact_backward(NULL, j->math, &j->it, j->t, j->dr, j->dt);
}

/* Floats of R without gaps, and from a row to the next. */
static size_t r_width(const struct interact *it)
{
    const size_t v = it->n_vectors;

    return it->direct + (it->self ? v * (v + 1) / 2 : v * (v - 1) / 2);
}

static size_t r_step(const struct interact *it)
{
    return it->ldr ? it->ldr : r_width(it);
}

/* A width that leaves gaps in R, or none. */
static struct interact with_gaps(struct lab *lab, struct interact it)
{
    it.ldr = lab_below(lab, 2) ? (uint32_t)r_width(&it) + lab_below(lab, 9) : 0;
    return it;
}

/* Inputs, and both outputs in every order. */
static struct job run(struct lab *lab, enum kernels_math math, struct interact it, size_t shift)
{
    const size_t n_t = (size_t)it.n * it.n_vectors * it.dim, n_r = it.n * r_step(&it);
    struct job j = {
        .math = math,
        .it = it,
        .t = lab_floats(lab, n_t, shift),
        .dr = lab_floats(lab, n_r, shift),
        .r = lab_blank(lab, n_r * sizeof(float), shift * sizeof(float)),
        .dt = lab_blank(lab, n_t * sizeof(float), shift * sizeof(float)),
    };

    lab_each_order(lab, run_both, &j,
                   (struct lab_out[]){ { j.r, n_r * sizeof(float), NULL },
                                       { j.dt, n_t * sizeof(float), NULL },
                                       { 0 } });
    return j;
}

/* Gaps in R stay as they were. */
static void check_cpu(struct lab *lab, const struct job *j)
{
    const size_t n_t = (size_t)j->it.n * j->it.n_vectors * j->it.dim,
                 n_r = j->it.n * r_step(&j->it);
    float *r = lab_blank(lab, n_r * sizeof(float), 0),
          *dt = lab_blank(lab, n_t * sizeof(float), 0);

    device_cpu.interact_forward(lab->cpu, &j->it, j->t, r);
    device_cpu.interact_backward(lab->cpu, &j->it, j->t, j->dr, dt);
    lab_same(j->r, r, n_r);
    lab_same(j->dt, dt, n_t);
}

static void check_reference(struct lab *lab, const struct job *j, double tolerance)
{
    const size_t per_t = (size_t)j->it.n_vectors * j->it.dim, per_r = r_step(&j->it),
                 width = r_width(&j->it);
    const struct lab_sums r = lab_sums(lab, j->it.n * per_r),
                          dt = lab_sums(lab, j->it.n * per_t);

    for (size_t s = 0; s < j->it.n; s++) {
        lab_interact(&j->it, j->t + s * per_t, j->dr + s * per_r, r, s * per_r, dt, s * per_t);
        lab_near(j->r + s * per_r, r.at + s * per_r, r.magnitude + s * per_r, width, tolerance);
        for (size_t i = width; i < per_r; i++)
            assert_true(isnan(j->r[s * per_r + i])); /* as it was */
    }
    lab_near(j->dt, dt.at, dt.magnitude, j->it.n * per_t, tolerance);
}

static void exact_interactions_are_the_cpus_bit_for_bit(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 24; i++) {
        const uint32_t dim = 1 + lab_below(lab, i % 6 ? 40 : 200);
        const struct interact it = { lab_below(lab, 3),           1 + lab_below(lab, 40), dim,
                                     lab_below(lab, 2) ? dim : 0, lab_below(lab, 2) == 0, 0 };
        const struct job j = run(lab, KERNELS_FP32, with_gaps(lab, it), lab_below(lab, 2));

        check_cpu(lab, &j);
        check_reference(lab, &j, 1e-5);
        lab_sweep(lab);
    }
}

static void a_sample_that_shared_memory_does_not_hold_is_read_where_it_is(void **state)
{
    struct lab *lab = *state;
    const struct job j =
        run(lab, KERNELS_FP32, (struct interact){ 1, 50, 260, 260, true, 0 }, 0);

    check_cpu(lab, &j);
    lab_sweep(lab);
}

static void tensor_cores_are_within_tf32_of_double(void **state)
{
    static const uint32_t dims[] = { 16, 32, 64, 128 };
    static const uint32_t vectors[] = { 1, 2, 15, 16, 17, 27, 31, 32 };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(dims); i++)
        for (size_t k = 0; k < COUNT_OF(vectors); k++) {
            const struct interact it = {
                1 + lab_below(lab, 3),  vectors[k], dims[i], lab_below(lab, 2) ? dims[i] : 0,
                lab_below(lab, 2) == 0, 0
            };
            const struct job j = run(lab, KERNELS_TF32, with_gaps(lab, it), 0);

            check_reference(lab, &j, 1e-3);
            lab_sweep(lab);
        }
}

/* So the exact way is taken. */
static void shapes_that_tensor_cores_do_not_take_are_exact(void **state)
{
    static const struct {
        struct interact it;
        size_t shift; /* 1: at no multiple of 16 bytes */
    } cases[] = { { { 2, 33, 16, 16, false, 0 }, 0 },
                  { { 2, 9, 24, 0, true, 0 }, 0 },
                  { { 0, 27, 16, 16, false, 0 }, 0 },
                  { { 2, 5, 16, 16, false, 0 }, 1 },
                  { { 3, 6, 12, 12, false, 32 }, 0 } };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct job j = run(lab, KERNELS_TF32, cases[i].it, cases[i].shift);

        check_cpu(lab, &j);
        lab_sweep(lab);
    }
}

static void a_nan_stays_in_its_sample(void **state)
{
    struct lab *lab = *state;
    const struct interact it = { 3, 20, 32, 32, false, 0 };
    const size_t per_t = 20 * 32, per_r = 32 + 190;
    float *t = lab_floats(lab, 3 * per_t, 0), *r = lab_floats(lab, 3 * per_r, 0),
          *dt = lab_floats(lab, 3 * per_t, 0);

    t[per_t + 5 * 32 + 1] = NAN;
    lab_ran(kernels_interact_forward(NULL, KERNELS_TF32, &it, t, r));
    for (size_t i = 0; i < 3 * per_r; i++)
        if (i / per_r != 1)
            assert_true(r[i] == r[i]);
    assert_true(isnan(r[per_r + 32 + 5 * 4 / 2]));
    r[per_r + 32 + 10] = 0;
    lab_ran(kernels_interact_backward(NULL, KERNELS_TF32, &it, t, r, dt));
    for (size_t i = 0; i < 3 * per_t; i++)
        if (i / per_t != 1)
            assert_true(dt[i] == dt[i]);
    lab_sweep(lab);
}

/* Interactions with the sums of bags in them. */
struct bags_job {
    enum kernels_math math;
    struct bags b;
    struct interact it;
    const float *rows, *own, *dr; /* own: what stands in T, the bags' places NaN */
    float *t, *r, *dt;
    size_t n_t;
};

static cudaError_t run_bags(void *arg)
{
    struct bags_job *j = arg;
    cudaError_t error;

    memcpy(j->t, j->own, j->n_t * sizeof *j->t);
    error = kernels_interact_bags_forward(NULL, j->math, &j->b, j->rows, &j->it, j->t, j->r);
    return error ? error
                 : kernels_interact_bags_backward(NULL, j->math, &j->b, j->rows, &j->it, j->t,
                                                  j->dr, j->dt, NULL, NULL);
}

/* The same by the ops one after the other. */
static void check_bags(struct lab *lab, const struct bags_job *j)
{
    const size_t n_r = j->it.n * r_step(&j->it), ld = (size_t)j->it.n_vectors * j->it.dim;
    float *t = lab_blank(lab, j->n_t * sizeof *t, 0), *r = lab_blank(lab, n_r * sizeof *r, 0),
          *dt = lab_blank(lab, j->n_t * sizeof *dt, (uintptr_t)j->dt % 16);

    memcpy(t, j->own, j->n_t * sizeof *t);
    lab_ran(kernels_bag_sum(NULL, &j->b, j->rows,
                            t + (j->it.n_vectors - j->b.n_fields) * j->it.dim, (uint32_t)ld));
    lab_ran(kernels_interact_forward(NULL, j->math, &j->it, t, r));
    lab_ran(kernels_interact_backward(NULL, j->math, &j->it, t, j->dr, dt));
    lab_same(j->r, r, n_r);
    lab_same(j->dt, dt, j->n_t);
}

/* With the gradient of the first vector on its way to who made it. */
static void check_first(struct lab *lab, const struct bags_job *j)
{
    const uint32_t dim = j->it.dim;
    const size_t n = (size_t)j->it.n * dim, ld = (size_t)j->it.n_vectors * dim;
    const struct relu_mask mask = { lab_floats(lab, n, 0), dim, 1.25f };
    const struct relu_mask *through = lab_below(lab, 2) ? &mask : NULL;
    float *first = lab_blank(lab, n * sizeof *first, 0),
          *want = lab_blank(lab, n * sizeof *want, 0),
          *dt = lab_blank(lab, j->n_t * sizeof *dt, (uintptr_t)j->dt % 16);

    lab_ran(kernels_add_rows(NULL, j->it.n, dim, j->dr, (uint32_t)r_step(&j->it), j->dt,
                             (uint32_t)ld, through, want));
    lab_ran(kernels_interact_bags_backward(NULL, j->math, &j->b, j->rows, &j->it, j->t, j->dr,
                                           dt, through, first));
    lab_same(first, want, n);
    for (size_t s = 0; s < j->it.n; s++)
        lab_same(dt + s * ld + dim, j->dt + s * ld + dim, ld - dim);
}

/* Of bags of no row, of one, or, if it is wanted, of several. Where rows, or dt, lie at no multiple of 16 bytes, there is
 * another way to the same bits. */
static void run_with_bags(struct lab *lab, enum kernels_math math, struct interact it,
                          uint32_t n_own, uint32_t keys_end, size_t rows_shift, size_t dt_shift)
{
    const uint32_t n_fields = it.n_vectors - n_own, n_bags = it.n * n_fields, n_rows = 9;
    const size_t ld = (size_t)it.n_vectors * it.dim, n_t = it.n * ld, n_r = it.n * r_step(&it);
    const struct lab_bags bags = lab_bags(lab, n_bags, n_rows, keys_end);
    float *rows = lab_floats(lab, n_rows * it.dim, rows_shift), *own = lab_floats(lab, n_t, 0);
    struct bags_job j;

    for (uint32_t d = 0; d < it.dim; d++) /* the sum of a bag of this row is 0, not -0 */
        rows[d] = -0.0f;
    for (size_t i = 0; i < n_t; i++)
        if (i % ld >= (size_t)n_own * it.dim)
            own[i] = NAN;
    j = (struct bags_job){ .math = math,
                           .b = { it.n, n_fields, it.dim, n_rows, bags.starts, bags.row_of,
                                  NULL },
                           .it = it,
                           .rows = rows,
                           .own = own,
                           .dr = lab_floats(lab, n_r, 0),
                           .t = lab_blank(lab, n_t * sizeof(float), 0),
                           .r = lab_blank(lab, n_r * sizeof(float), 0),
                           .dt = lab_blank(lab, n_t * sizeof(float), dt_shift * sizeof(float)),
                           .n_t = n_t };
    lab_each_order(lab, run_bags, &j,
                   (struct lab_out[]){ { j.r, n_r * sizeof(float), NULL },
                                       { j.dt, n_t * sizeof(float), NULL },
                                       { 0 } });
    check_bags(lab, &j);
    if (it.direct)
        check_first(lab, &j);
    lab_sweep(lab);
}

static void bags_that_the_interaction_gathers_end_in_the_same_bits(void **state)
{
    static const uint32_t dims[] = { 16, 32, 64, 128 };
    static const uint32_t vectors[] = { 1, 2, 9, 16, 17, 27, 32 };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(dims); i++)
        for (size_t k = 0; k < COUNT_OF(vectors); k++) {
            const uint32_t n_own = vectors[k] > 1 ? lab_below(lab, 2) : 0;
            const struct interact it = {
                3, vectors[k], dims[i], lab_below(lab, 3) ? dims[i] : 0, lab_below(lab, 2) == 0,
                0
            };

            run_with_bags(lab, KERNELS_TF32, with_gaps(lab, it), n_own, k % 2 ? 2 : 20, 0, 0);
        }
}

static void bags_that_it_does_not_gather_do_too(void **state)
{
    static const struct {
        enum kernels_math math;
        struct interact it;
        size_t rows_shift, dt_shift;
    } cases[] = { { KERNELS_FP32, { 3, 27, 16, 16, false, 0 }, 0, 0 },
                  { KERNELS_FP32, { 3, 7, 5, 5, true, 0 }, 1, 1 },
                  { KERNELS_TF32, { 3, 9, 24, 24, false, 0 }, 0, 0 },
                  { KERNELS_TF32, { 3, 33, 16, 0, false, 0 }, 0, 0 },
                  { KERNELS_TF32, { 3, 27, 32, 32, false, 384 }, 1, 0 },
                  { KERNELS_TF32, { 3, 27, 32, 32, false, 384 }, 0, 1 },
                  { KERNELS_TF32, { 0, 27, 32, 32, false, 384 }, 0, 0 } };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        run_with_bags(lab, cases[i].math, cases[i].it, 1, 20, cases[i].rows_shift,
                      cases[i].dt_shift);
}

struct pair_job {
    struct pair_sum p;
    const float *t, *dz, *dx;
    float *z, *dt;
};

static cudaError_t run_pairs(void *arg)
{
    struct pair_job *j = arg;
    const cudaError_t error = kernels_pair_sum_forward(NULL, &j->p, j->t, j->z);

    return error ? error : kernels_pair_sum_backward(NULL, &j->p, j->t, j->dz, j->dx, j->dt);
}

/* On top of dx, on nothing, and in place. */
static void the_sum_of_pairs_is_the_cpus_bit_for_bit(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 40; i++) {
        struct pair_job j = { .p = { lab_below(lab, 40), lab_below(lab, 12),
                                     1 + lab_below(lab, i % 10 ? 40 : 300), 0 } };
        const size_t n_own = (size_t)j.p.n_vectors * j.p.dim, shift = i % 3 == 0;
        const size_t n_t = j.p.n * (n_own + i % 4);
        float *z = lab_floats(lab, j.p.n, 0), *start = lab_floats(lab, n_t, 0);
        float *want_z = lab_blank(lab, j.p.n * sizeof(float), 0);
        float *want = lab_blank(lab, n_t * sizeof(float), 0);

        j.p.ld = (uint32_t)(n_own + i % 4);
        j.t = lab_floats(lab, n_t, shift);
        j.dz = lab_floats(lab, j.p.n, 0);
        j.z = lab_blank(lab, j.p.n * sizeof(float), 0);
        j.dt = lab_blank(lab, n_t * sizeof(float), shift * sizeof(float));
        j.dx = i % 3 == 0 ? NULL : i % 3 == 1 ? j.dt : lab_floats(lab, n_t, shift);
        lab_each_order(lab, run_pairs, &j,
                       (struct lab_out[]){ { j.z, j.p.n * sizeof(float), z },
                                           { j.dt, n_t * sizeof(float), start },
                                           { 0 } });
        memcpy(want_z, z, j.p.n * sizeof *z);
        memcpy(want, start, n_t * sizeof *want);
        device_cpu.pair_sum_forward(lab->cpu, &j.p, j.t, want_z);
        device_cpu.pair_sum_backward(lab->cpu, &j.p, j.t, j.dz, j.dx == j.dt ? want : j.dx,
                                     want);
        lab_same(j.z, want_z, j.p.n);
        lab_same(j.dt, want, n_t);
        lab_sweep(lab);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_interactions_are_the_cpus_bit_for_bit),
        cmocka_unit_test(a_sample_that_shared_memory_does_not_hold_is_read_where_it_is),
        cmocka_unit_test(tensor_cores_are_within_tf32_of_double),
        cmocka_unit_test(shapes_that_tensor_cores_do_not_take_are_exact),
        cmocka_unit_test(a_nan_stays_in_its_sample),
        cmocka_unit_test(bags_that_the_interaction_gathers_end_in_the_same_bits),
        cmocka_unit_test(bags_that_it_does_not_gather_do_too),
        cmocka_unit_test(the_sum_of_pairs_is_the_cpus_bit_for_bit),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
