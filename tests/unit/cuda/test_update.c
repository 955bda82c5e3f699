/* An optimizer's step on rows that stay: the CPU's bits, of what each codec writes. (That those are the servers':
 * tests/unit/worker/test_device_rows.c.) */
#include "proto/codec_catalog.h"
#include "tests/unit/cuda/lab.h"

static cudaError_t run_update(void *arg)
{
    return kernels_update_rows(NULL, arg);
}

enum { N_MAX = 9, PLACES = 12, RULES = ROW_UPDATE_ADAM + 1 };

static uint32_t states_of(enum row_update_rule rule, uint32_t dim)
{
    static const uint32_t n_arrays[] = { 0, 1, 1, 0, 2 };

    return rule == ROW_UPDATE_ROWWISE ? 1 : n_arrays[rule] * dim;
}

/* n of the places, none twice, some of them none. */
static uint32_t *draw_places(struct lab *lab, uint32_t n)
{
    uint32_t *places = lab_blank(lab, n * sizeof *places + 1, 0), all[PLACES];

    for (uint32_t i = 0; i < PLACES; i++)
        all[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t other = i + lab_below(lab, PLACES - i), place = all[other];

        all[other] = all[i];
        places[i] = lab_below(lab, 4) ? place : DEVICE_NONE;
    }
    return places;
}

static struct row_update draw_update(struct lab *lab, enum row_update_rule rule,
                                     enum codec_id codec, uint32_t dim)
{
    struct row_update_factors *factors = lab_blank(lab, sizeof *factors, 0);
    uint32_t *n = lab_blank(lab, sizeof *n, 0);
    const struct codec *by = codec_by_id(codec);
    struct row_update u = { .rule = rule,
                            .codec = codec,
                            .dim = dim,
                            .n_states = states_of(rule, dim),
                            .k = codec == CODEC_TOPK ? 1 + lab_below(lab, dim) : 0,
                            .n_max = N_MAX,
                            .n = n,
                            .factors = factors };
    const size_t row_bytes = by->row_bytes(dim, u.k);
    uint8_t *bytes;

    *n = lab_below(lab, N_MAX + 1);
    *factors = (struct row_update_factors){ 0.1f,  1e-8f,  lab_below(lab, 2) ? 0.01f : 0,
                                            0.9f,  0.125f, 0.99f,
                                            0.01f, 1.5f };
    bytes = lab_blank(lab, *n * row_bytes + 1, lab_below(lab, 4));
    for (uint32_t i = 0; i < *n; i++)
        by->encode(lab_floats(lab, dim, 0), dim, u.k, bytes + i * row_bytes);
    u.bytes = bytes;
    u.places = draw_places(lab, *n);
    return u;
}

/* Sums of squares are none below 0. */
static float *draw_states(struct lab *lab, size_t n)
{
    float *states = lab_floats(lab, n + 1, 0);

    for (size_t i = 0; i < n; i++)
        states[i] = states[i] * states[i];
    return states;
}

static void check_update(struct lab *lab, struct row_update u)
{
    const size_t n_kept = (size_t)PLACES * u.dim, n_states = (size_t)PLACES * u.n_states;
    float *kept = lab_floats(lab, n_kept, 0), *states = draw_states(lab, n_states);
    struct row_update cpu = u;

    u.kept = lab_blank(lab, n_kept * sizeof *kept, 0);
    u.states = lab_blank(lab, n_states * sizeof *states + 1, 0);
    cpu.kept = lab_blank(lab, n_kept * sizeof *kept, 0);
    cpu.states = lab_blank(lab, n_states * sizeof *states + 1, 0);
    memcpy(cpu.kept, kept, n_kept * sizeof *kept);
    memcpy(cpu.states, states, n_states * sizeof *states);
    lab_each_order(lab, run_update, &u,
                   (struct lab_out[]){ { u.kept, n_kept * sizeof *kept, kept },
                                       { u.states, n_states * sizeof *states, states },
                                       { 0 } });
    device_cpu.update_rows(lab->cpu, &cpu);
    lab_same(u.kept, cpu.kept, n_kept);
    lab_same(u.states, cpu.states, n_states);
    lab_sweep(lab);
}

static void rows_are_the_cpus_in_every_order(void **state)
{
    static const uint32_t dims[] = { 1, 7, 16, 17, 32, 33, 64, 100, 128, 257, 300 };
    struct lab *lab = *state;

    for (int rule = 0; rule < RULES; rule++)
        for (int codec = 0; codec < CODEC_ID_END; codec++)
            for (uint32_t i = 0; i < 3; i++)
                check_update(lab,
                             draw_update(lab, (enum row_update_rule)rule, (enum codec_id)codec,
                                         dims[lab_below(lab, COUNT_OF(dims))]));
}

static void a_rule_that_there_is_not_is_no_launch(void **state)
{
    const struct row_update u = { .rule = (enum row_update_rule)RULES };

    (void)state;
    assert_int_equal(kernels_update_rows(NULL, &u), cudaErrorInvalidValue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_cpus_in_every_order),
        cmocka_unit_test(a_rule_that_there_is_not_is_no_launch),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
