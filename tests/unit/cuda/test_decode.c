/* Rows as servers send them, decoded on the device: the CPU's op in every order of threads; whole steps with the bits of steps whose rows the
 * host has decoded, under a scheduler that keeps nothing but what it must. */
#include "tests/unit/cuda/lab.h"
#include "tests/unit/cuda/row_steps.h"
#include "worker/cuda/device_cuda.h"

/* ---- the kernel ---- */

struct shape {
    enum codec_id codec;
    uint32_t n, dim, n_more; /* n_more: rows of the array that none is decoded to */
    bool shifted;            /* the array is a float behind an address that is aligned */
};

static cudaError_t run_decode(void *arg)
{
    return kernels_decode_rows(NULL, arg);
}

/* Every row once, in an order that is drawn. */
static const uint32_t *draw_order(struct lab *lab, uint32_t n, uint32_t n_rows)
{
    uint32_t *to = lab_blank(lab, n_rows * sizeof *to + 1, 0);

    for (uint32_t i = 0; i < n_rows; i++)
        to[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = i + lab_below(lab, n_rows - i), taken = to[at];

        to[at] = to[i];
        to[i] = taken;
    }
    return to;
}

/* Any bytes: subnormals, infinities and every NaN are among them. */
static const uint8_t *draw_bytes(struct lab *lab, size_t n_bytes)
{
    uint8_t *bytes = lab_blank(lab, n_bytes + 1, 0);

    for (size_t i = 0; i < n_bytes; i++)
        bytes[i] = (uint8_t)lab_below(lab, 256);
    for (size_t i = 0; i + 4 <= n_bytes; i += 4 * (1 + lab_below(lab, 4)))
        memset(bytes + i, lab_below(lab, 2) ? 0xff : 0, 2);
    return bytes;
}

static void check_decode(struct lab *lab, const struct shape *s)
{
    const size_t row_bytes = s->dim * (s->codec == CODEC_FP32 ? sizeof(float) : 2),
                 n_floats = (size_t)(s->n + s->n_more) * s->dim;
    const float *start = lab_floats(lab, n_floats, 0);
    float *want = lab_blank(lab, n_floats * sizeof *want + 1, 0);
    struct row_decode d = { .codec = s->codec,
                            .n = s->n,
                            .dim = s->dim,
                            .bytes = draw_bytes(lab, s->n * row_bytes),
                            .to = draw_order(lab, s->n, s->n + s->n_more),
                            .rows = lab_blank(lab, n_floats * sizeof(float),
                                              s->shifted ? sizeof(float) : 0) },
                      cpu = d;

    lab_each_order(lab, run_decode, &d,
                   (struct lab_out[]){ { d.rows, n_floats * sizeof *want, start }, { 0 } });
    memcpy(want, start, n_floats * sizeof *want);
    cpu.rows = want;
    device_cpu.decode_rows(lab->cpu, 0, &cpu);
    lab_same(d.rows, want, n_floats);
    lab_sweep(lab);
}

static void rows_are_the_cpus_in_every_order(void **state)
{
    static const struct shape shapes[] = {
        { CODEC_BF16, 0, 4, 3, false },   { CODEC_BF16, 1, 1, 0, false },
        { CODEC_BF16, 40, 16, 9, false }, { CODEC_BF16, 40, 16, 0, true },
        { CODEC_BF16, 300, 128, 5, 0 },   { CODEC_BF16, 33, 7, 5, false },
        { CODEC_FP16, 40, 16, 9, false }, { CODEC_FP16, 21, 5, 2, false },
        { CODEC_FP32, 40, 16, 9, false }, { CODEC_FP32, 9, 3, 30, true },
        { CODEC_FP32, 12, 1032, 1, 0 },   { CODEC_FP16, 9, 2060, 1, false },
    };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        check_decode(*state, &shapes[i]);
}

/* ---- steps ---- */

static const struct world_way pulls = { .ops = &device_cuda, .pulls = true };

static void steps_that_decode_have_the_bits_of_steps_whose_rows_the_host_decodes(void **state)
{
    const uint64_t seed = ((struct lab *)*state)->rng.seed;

    for (uint64_t i = 0; i < 6; i++) {
        struct dlrm_row_counts counts;
        struct world w;

        world_init(&w, i % 2 ? 5 : 8, WORLD_KEYS, hash_mix2(seed, i));
        counts = row_steps_same(&w, &pulls, seed + i);
        assert_int_equal(counts.n_copied, world_n_rows(&w));
        world_deinit(&w);
    }
}

static void a_dependency_that_is_lost_is_seen(void **state)
{
    row_steps_lost_wait(&pulls, ((struct lab *)*state)->rng.seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_cpus_in_every_order),
        cmocka_unit_test(steps_that_decode_have_the_bits_of_steps_whose_rows_the_host_decodes),
        cmocka_unit_test(a_dependency_that_is_lost_is_seen),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
