/* What is done to each element by itself: the CPU's bits, at any width, stride and address. */
#include "proto/codec.h"
#include "tests/unit/cuda/lab.h"
#include "worker/compute/cpu_epilogue.h"

struct job {
    uint32_t n, width, lda, ldb;
    enum device_act act;
    const float *a, *b;
    const struct relu_mask *mask;
    const struct dropout *drop;
    float *y;
};

/* Zeros of both signs, NaN and infinity among the numbers. */
static float *odd_floats(struct lab *lab, size_t n, size_t shift)
{
    static const float odd[] = { 0.0f, -0.0f, NAN, INFINITY, -INFINITY, 1e-42f };
    float *x = lab_floats(lab, n, shift);

    for (size_t i = 0; i < n; i++)
        if (lab_below(lab, 5) == 0)
            x[i] = odd[lab_below(lab, COUNT_OF(odd))];
    return x;
}

/* Equal bits, or both NaN: which NaN it is, is the processor's choice. */
static void same_or_nan(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] == got[i] || want[i] == want[i])
            lab_same(got + i, want + i, 1);
}

/* Every second case by fours, and every third at no multiple of 16 bytes. */
struct shape {
    uint32_t n, width, pad;
    size_t shift;
};

static struct shape shape_of(struct lab *lab, uint32_t i)
{
    const uint32_t by = i % 2 ? 4 : 1;

    return (struct shape){ lab_below(lab, 40), by * (1 + lab_below(lab, i % 10 ? 20 : 300)),
                           by * lab_below(lab, 3), i % 3 == 0 };
}

static cudaError_t run_add(void *arg)
{
    struct job *j = arg;

    return kernels_add_rows(NULL, j->n, j->width, j->a, j->lda, j->b, j->ldb, j->mask, j->y);
}

static void sums_of_rows_go_through_the_mask(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 40; i++) {
        const struct shape s = shape_of(lab, i);
        const size_t n = (size_t)s.n * s.width, ld = s.width + s.pad;
        const struct relu_mask mask = { odd_floats(lab, s.n * ld, s.shift), (uint32_t)ld,
                                        1.25f };
        struct job j = { .n = s.n,
                         .width = s.width,
                         .lda = (uint32_t)ld,
                         .ldb = (uint32_t)ld,
                         .a = odd_floats(lab, s.n * ld, s.shift),
                         .b = i % 4 ? odd_floats(lab, s.n * ld, s.shift) : NULL,
                         .mask = i % 5 ? &mask : NULL,
                         .y = lab_blank(lab, n * sizeof(float), s.shift * sizeof(float)) };
        float *want = lab_blank(lab, n * sizeof(float), 0);

        lab_each_order(lab, run_add, &j,
                       (struct lab_out[]){ { j.y, n * sizeof(float), NULL }, { 0 } });
        device_cpu.add_rows(lab->cpu, s.n, s.width, j.a, j.lda, j.b, j.ldb, j.mask, want);
        same_or_nan(j.y, want, n);
        lab_sweep(lab);
    }
}

static cudaError_t run_copy(void *arg)
{
    struct job *j = arg;

    return kernels_copy_rows(NULL, j->n, j->width, j->a, j->lda, j->y, j->ldb);
}

static void rows_are_copied_between_strides(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 40; i++) {
        const struct shape s = shape_of(lab, i);
        const size_t ldx = s.width + s.pad, ldy = s.width + lab_below(lab, 2) * 4;
        struct job j = { .n = s.n,
                         .width = s.width,
                         .lda = (uint32_t)ldx,
                         .ldb = (uint32_t)ldy,
                         .a = odd_floats(lab, s.n * ldx, s.shift),
                         .y = lab_blank(lab, s.n * ldy * sizeof(float),
                                        s.shift * sizeof(float)) };
        float *want = lab_blank(lab, s.n * ldy * sizeof(float), 0);

        lab_each_order(lab, run_copy, &j,
                       (struct lab_out[]){ { j.y, s.n * ldy * sizeof(float), NULL }, { 0 } });
        device_cpu.copy_rows(lab->cpu, s.n, s.width, j.a, j.lda, want, j.ldb);
        same_or_nan(j.y, want, s.n * ldy);
        lab_sweep(lab);
    }
}

struct hats_job {
    struct number_hats h;
    const float *x;
    float *y;
};

static cudaError_t run_hats(void *arg)
{
    struct hats_job *j = arg;

    return kernels_number_hats(NULL, &j->h, j->x, j->y);
}

static void numbers_become_hats_as_on_the_cpu(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 40; i++) {
        const struct shape s = shape_of(lab, i);
        const uint32_t n_hats = lab_below(lab, 10), width = s.width * number_hats_width(n_hats);
        struct hats_job j = { .h = { s.n, s.width, n_hats, (float)lab_below(lab, 5) - 2.5f,
                                     width + s.pad },
                              .x = odd_floats(lab, (size_t)s.n * s.width, s.shift) };
        const size_t n_bytes = (size_t)s.n * j.h.ldy * sizeof(float);
        float *want = lab_blank(lab, n_bytes, 0);

        j.y = lab_blank(lab, n_bytes, s.shift * sizeof(float));
        lab_each_order(lab, run_hats, &j, (struct lab_out[]){ { j.y, n_bytes, NULL }, { 0 } });
        device_cpu.number_hats(lab->cpu, &j.h, j.x, want);
        same_or_nan(j.y, want, (size_t)s.n * j.h.ldy);
        lab_sweep(lab);
    }
}

static cudaError_t run_mask(void *arg)
{
    struct job *j = arg;

    return kernels_mask(NULL, j->n, j->width, j->mask, j->y);
}

static cudaError_t run_bias(void *arg)
{
    struct job *j = arg;

    return kernels_bias(NULL, j->n, j->width, j->b, j->act, j->y, j->lda);
}

static void what_follows_a_product_is_done_in_place(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 40; i++) {
        const struct shape s = shape_of(lab, i);
        const size_t n = (size_t)s.n * s.width, ld = s.width + s.pad;
        const struct relu_mask mask = { odd_floats(lab, s.n * ld, s.shift), (uint32_t)ld, 2 };
        float *start = odd_floats(lab, s.n * ld, 0), *want = odd_floats(lab, s.n * ld, 0);
        struct job j = { .n = s.n,
                         .width = s.width,
                         .lda = (uint32_t)ld,
                         .act = i % 4 < 2 ? DEVICE_RELU : DEVICE_LINEAR,
                         .b = odd_floats(lab, s.width, s.shift),
                         .mask = &mask,
                         .y = lab_blank(lab, s.n * ld * sizeof(float),
                                        s.shift * sizeof(float)) };

        lab_each_order(lab, run_bias, &j,
                       (struct lab_out[]){ { j.y, s.n * ld * sizeof(float), start }, { 0 } });
        memcpy(want, start, s.n * ld * sizeof *want);
        cpu_epilogue_bias(s.n, s.width, want, (uint32_t)ld, j.b, j.act, want, (uint32_t)ld);
        same_or_nan(j.y, want, s.n * ld);

        lab_each_order(lab, run_mask, &j,
                       (struct lab_out[]){ { j.y, n * sizeof(float), start }, { 0 } });
        cpu_epilogue_mask(s.n, s.width, start, s.width, &mask, want, s.width);
        same_or_nan(j.y, want, n);
        lab_sweep(lab);
    }
}

static cudaError_t run_axpy(void *arg)
{
    struct job *j = arg;

    return kernels_axpy(NULL, j->n, 0.3f, j->a, j->y);
}

static cudaError_t run_dropout(void *arg)
{
    struct job *j = arg;

    return kernels_dropout(NULL, j->drop, j->y);
}

static void axpy_and_dropout_have_the_cpus_bits(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 30; i++) {
        const struct shape s = shape_of(lab, i);
        const size_t n = (size_t)s.n * s.width;
        float *start = odd_floats(lab, n, 0), *want = lab_floats(lab, n, 0);
        uint64_t *key = lab_blank(lab, sizeof *key, 0);
        const struct dropout drop = { s.n, s.width, 0.3f, 1 / 0.7f, key };
        struct job j = { .n = (uint32_t)n,
                         .a = odd_floats(lab, n, s.shift),
                         .drop = &drop,
                         .y = lab_blank(lab, n * sizeof(float), s.shift * sizeof(float)) };

        *key = lab->rng.i;
        memcpy(want, start, n * sizeof *want);
        lab_each_order(lab, run_axpy, &j,
                       (struct lab_out[]){ { j.y, n * sizeof(float), start }, { 0 } });
        device_cpu.axpy(lab->cpu, n, 0.3f, j.a, want);
        same_or_nan(j.y, want, n);

        memcpy(want, start, n * sizeof *want);
        lab_each_order(lab, run_dropout, &j,
                       (struct lab_out[]){ { j.y, n * sizeof(float), start }, { 0 } });
        device_cpu.dropout(lab->cpu, &drop, want);
        same_or_nan(j.y, want, n);
        lab_sweep(lab);
    }
}

struct cross_job {
    struct cross_shape s;
    const float *x0, *u, *x, *more; /* more: NULL, or dx0 */
    float *y, *du, *dx0;
};

static cudaError_t run_cross(void *arg)
{
    struct cross_job *j = arg;
    const cudaError_t error = kernels_cross_forward(NULL, &j->s, j->x0, j->u, j->x, j->y);

    return error
               ? error
               : kernels_cross_backward(NULL, &j->s, j->x0, j->u, j->x, j->more, j->du, j->dx0);
}

static void cross_layers_have_the_cpus_bits(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 40; i++) {
        const struct shape s = shape_of(lab, i);
        const size_t ld = s.width + s.pad, n = s.n * ld, n_u = (size_t)s.n * s.width;
        const size_t at = s.shift * sizeof(float), n_bytes = n * sizeof(float);
        float *start = odd_floats(lab, n, 0), *want_y = odd_floats(lab, n, 0);
        float *want = odd_floats(lab, n, 0), *want_du = lab_blank(lab, n_u * sizeof(float), 0);
        struct cross_job j = { .s = { s.n, s.width, (uint32_t)ld },
                               .x0 = odd_floats(lab, n, s.shift),
                               .u = odd_floats(lab, n_u, s.shift),
                               .x = odd_floats(lab, n, s.shift),
                               .y = lab_blank(lab, n_bytes, at),
                               .du = lab_blank(lab, n_u * sizeof(float), at),
                               .dx0 = lab_blank(lab, n_bytes, at) };

        j.more = i % 4 < 2 ? j.dx0 : NULL;
        memcpy(want, start, n_bytes);
        memcpy(want_y, start, n_bytes);
        lab_each_order(lab, run_cross, &j,
                       (struct lab_out[]){ { j.y, n_bytes, start },
                                           { j.du, n_u * sizeof(float), NULL },
                                           { j.dx0, n_bytes, start },
                                           { 0 } });
        device_cpu.cross_forward(lab->cpu, &j.s, j.x0, j.u, j.x, want_y);
        device_cpu.cross_backward(lab->cpu, &j.s, j.x0, j.u, j.x, j.more ? want : NULL, want_du,
                                  want);
        same_or_nan(j.y, want_y, n);
        same_or_nan(j.du, want_du, n_u);
        same_or_nan(j.dx0, want, n);
        lab_sweep(lab);
    }
}

static void check_operand(struct lab *lab, uint32_t n, uint32_t width, uint32_t ldx,
                          uint32_t ldy)
{
    float *x = odd_floats(lab, (size_t)n * ldx, 0);
    float *padded = lab_blank(lab, (size_t)n * ldy * sizeof *padded, 0);
    uint16_t *halves = lab_blank(lab, (size_t)n * ldy * sizeof *halves, 0),
             *want = lab_blank(lab, width * sizeof *want, 0);

    lab_ran(kernels_pad(NULL, n, width, x, ldx, padded, ldy));
    lab_ran(kernels_to_bf16(NULL, n, width, x, ldx, halves, ldy));
    for (size_t s = 0; s < n; s++) {
        assert_memory_equal(padded + s * ldy, x + s * ldx, width * sizeof *x);
        codec_bf16.encode(x + s * ldx, width, 0, (uint8_t *)want);
        assert_memory_equal(halves + s * ldy, want, width * sizeof *want);
        for (uint32_t o = width; o < ldy; o++)
            assert_true(padded[s * ldy + o] == 0 && halves[s * ldy + o] == 0);
    }
    lab_sweep(lab);
}

static void operands_of_products_are_filled_up_with_zeros(void **state)
{
    static const struct {
        uint32_t width, ldx, ldy;
    } cases[] = { { 37, 40, 41 }, { 37, 40, 40 }, { 37, 37, 40 }, { 36, 36, 48 }, { 1, 4, 8 } };

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_operand(*state, 9, cases[i].width, cases[i].ldx, cases[i].ldy);
}

static void a_transposed_matrix_has_zeros_behind_it(void **state)
{
    static const struct {
        uint32_t n, width, n_rows, ld;
    } cases[] = { { 37, 70, 72, 40 }, { 32, 32, 32, 32 }, { 1, 5, 5, 1 }, { 64, 33, 36, 64 } };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const uint32_t n = cases[i].n, width = cases[i].width, ld = cases[i].ld;
        float *x = lab_floats(lab, (size_t)n * width, 0),
              *y = lab_blank(lab, (size_t)cases[i].n_rows * ld * sizeof *y, 0);

        lab_ran(kernels_transpose(NULL, n, width, x, y, cases[i].n_rows, ld));
        for (uint32_t o = 0; o < cases[i].n_rows; o++)
            for (uint32_t s = 0; s < ld; s++)
                assert_true(y[o * ld + s] == (o < width && s < n ? x[s * width + o] : 0));
        lab_sweep(lab);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_copied_between_strides),
        cmocka_unit_test(numbers_become_hats_as_on_the_cpu),
        cmocka_unit_test(sums_of_rows_go_through_the_mask),
        cmocka_unit_test(what_follows_a_product_is_done_in_place),
        cmocka_unit_test(axpy_and_dropout_have_the_cpus_bits),
        cmocka_unit_test(cross_layers_have_the_cpus_bits),
        cmocka_unit_test(operands_of_products_are_filled_up_with_zeros),
        cmocka_unit_test(a_transposed_matrix_has_zeros_behind_it),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
