/* Rows over the bus or from where they have stayed: the CPU's op in every order of threads; whole steps with the bits of steps that
 * copy all, under a scheduler that keeps nothing but what it must. */
#include "tests/unit/cuda/lab.h"
#include "tests/unit/cuda/row_steps.h"
#include "worker/cuda/device_cuda.h"

/* ---- the kernel ---- */

struct shape {
    uint32_t n, dim, n_places;
    uint32_t shifted; /* arrays that are a float behind an address that is aligned */
    uint32_t n_states;
};

enum { HOST = 1, ROWS = 2, KEPT = 4 };

static size_t shift_of(const struct shape *s, uint32_t array)
{
    return s->shifted & array ? 1 : 0;
}

static cudaError_t run_upload(void *arg)
{
    return kernels_upload_rows(NULL, arg);
}

/* A third each: there, to stay, neither. Places are drawn without one being drawn twice. */
static void draw_how(struct lab *lab, const struct shape *s, uint32_t *how)
{
    uint32_t *places = lab_blank(lab, s->n_places * sizeof *places + 1, 0),
             n_left = s->n_places;

    for (uint32_t i = 0; i < s->n_places; i++)
        places[i] = i;
    for (uint32_t r = 0; r < s->n; r++) {
        const uint32_t kind = n_left ? lab_below(lab, 3) : 2;
        const uint32_t at = kind < 2 ? lab_below(lab, n_left) : 0;

        how[r] = DEVICE_ROW_NEW;
        if (kind == 2)
            continue;
        how[r] = places[at] | (kind ? DEVICE_ROW_KEPT : 0);
        places[at] = places[--n_left];
    }
}

static void check_upload(struct lab *lab, const struct shape *s)
{
    const size_t n = (size_t)s->n * s->dim, n_kept = (size_t)s->n_places * s->dim;
    float *start = lab_floats(lab, n_kept, 0), *want_kept = lab_blank(lab, n_kept * 4 + 1, 0);
    float *want = lab_blank(lab, n * sizeof *want + 1, 0);
    uint32_t *how = lab_blank(lab, s->n * sizeof *how + 1, 0);
    const size_t n_states = (size_t)s->n_places * s->n_states;
    float *states = lab_floats(lab, n_states + 1, 0),
          *want_states = lab_blank(lab, n_states * 4 + 1, 0);
    struct row_upload u = { .n = s->n,
                            .dim = s->dim,
                            .host = lab_floats(lab, n, shift_of(s, HOST)),
                            .how = how,
                            .rows = lab_blank(lab, n * 4, shift_of(s, ROWS) * 4),
                            .kept = lab_blank(lab, n_kept * 4, shift_of(s, KEPT) * 4),
                            .n_states = s->n_states,
                            .host_states = lab_floats(lab, (size_t)s->n * s->n_states + 1,
                                                      shift_of(s, HOST)),
                            .states = lab_blank(lab, n_states * 4 + 4, shift_of(s, KEPT) * 4),
                            .alone = s->n_states > 0 },
                      cpu = u;

    draw_how(lab, s, how);
    lab_each_order(lab, run_upload, &u,
                   (struct lab_out[]){ { u.rows, n * sizeof *want, NULL },
                                       { u.kept, n_kept * sizeof *want, start },
                                       { u.states, n_states * sizeof *want, states },
                                       { 0 } });
    memcpy(want_states, states, n_states * sizeof *states);
    memcpy(want_kept, start, n_kept * sizeof *start);
    cpu.rows = want;
    cpu.kept = want_kept;
    cpu.states = want_states;
    device_cpu.upload_rows(lab->cpu, 0, &cpu);
    lab_same(u.rows, want, n);
    lab_same(u.kept, want_kept, n_kept);
    lab_same(u.states, want_states, n_states);
    lab_sweep(lab);
}

/* Each with fewer rows than places, or more; some with more than the few blocks take at once. */
static void rows_are_the_cpus_in_every_order(void **state)
{
    static const struct shape shapes[] = {
        { 0, 4, 3, 0, 0 },        { 1, 1, 1, 0, 0 },      { 7, 3, 4, 0, 0 },
        { 40, 16, 50, 0, 0 },     { 40, 16, 9, HOST, 0 }, { 40, 16, 9, ROWS, 0 },
        { 40, 16, 9, KEPT, 0 },   { 9, 5, 30, HOST, 0 },  { 40, 16, 50, 0, 1 },
        { 40, 16, 9, 0, 32 },     { 9, 5, 30, KEPT, 10 }, { 300, 1024, 80, 0, 0 },
        { 140, 1032, 140, 0, 0 }, { 700, 64, 0, 0, 0 },   { 2500, 64, 2000, 0, 0 },
    };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        check_upload(*state, &shapes[i]);
}

/* ---- steps ---- */

static const struct world_way keeps = { .ops = &device_cuda, .keeps = true };
static const struct world_way keeps_blank = { .ops = &device_cuda,
                                              .keeps = true,
                                              .blanks = true };

static void steps_with_rows_that_stay_have_the_bits_of_steps_that_copy_all(void **state)
{
    const uint64_t seed = ((struct lab *)*state)->rng.seed;

    for (uint64_t i = 0; i < 12; i++) {
        struct dlrm_row_counts counts;
        struct world w;

        world_init(&w, i % 2 ? 5 : 8, i % 3 ? WORLD_KEYS : 4, hash_mix2(seed, i));
        counts = row_steps_same(&w, &keeps_blank, seed + i);
        assert_int_equal(counts.n_kept, world_n_there(&w));
        world_deinit(&w);
    }
}

static void a_dependency_that_is_lost_is_seen(void **state)
{
    row_steps_lost_wait(&keeps, ((struct lab *)*state)->rng.seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_cpus_in_every_order),
        cmocka_unit_test(steps_with_rows_that_stay_have_the_bits_of_steps_that_copy_all),
        cmocka_unit_test(a_dependency_that_is_lost_is_seen),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
