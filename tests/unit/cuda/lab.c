#include "tests/unit/cuda/lab.h"

int lab_open(void **state)
{
    struct lab *lab = memory_alloc(sizeof *lab);
    struct err err;

    lab->rng.seed = seed_of_run(4711);
    lab->orders[1] = 1;
    for (int i = 2; i < LAB_ORDERS; i++)
        lab->orders[i] = hash_mix2(lab->rng.seed, (uint64_t)i) | 2;
    *state = lab;
    return device_cpu.open(&(struct device_options){ .n_threads = 1, .products = DEVICE_BLAS },
                           &lab->cpu, &err);
}

void lab_sweep(struct lab *lab)
{
    while (lab->n_owned)
        lab_device_free(lab->owned[--lab->n_owned]);
}

int lab_close(void **state)
{
    struct lab *lab = *state;

    lab_sweep(lab);
    device_cpu.close(lab->cpu);
    free(lab);
    return 0;
}

void *lab_blank(struct lab *lab, size_t n_bytes, size_t shift)
{
    void *bytes = lab_device_alloc(n_bytes + shift);

    assert_true(lab->n_owned < LAB_OWNED_MAX);
    lab->owned[lab->n_owned++] = bytes;
    memset(bytes, 0xff, n_bytes + shift);
    return (uint8_t *)bytes + shift;
}

float *lab_floats(struct lab *lab, size_t n, size_t shift)
{
    float *x = lab_blank(lab, n * sizeof *x, shift * sizeof *x);

    fixture_fill(&lab->rng, x, n, 1);
    return x;
}

void lab_ran(cudaError_t launched)
{
    assert_int_equal(launched, cudaSuccess);
    assert_int_equal(lab_device_finish(), cudaSuccess);
}

void lab_each_order(struct lab *lab, lab_run *run, void *job, const struct lab_out *outs)
{
    void *first[LAB_OUTS_MAX];

    for (int o = 0; o < LAB_ORDERS; o++) {
        for (int i = 0; outs[i].at; i++) {
            if (outs[i].start)
                memcpy(outs[i].at, outs[i].start, outs[i].n_bytes);
            else
                memset(outs[i].at, 0xff, outs[i].n_bytes);
        }
        lab_device_order(lab->orders[o]);
        lab_ran(run(job));
        for (int i = 0; outs[i].at; i++) {
            if (o == 0) {
                first[i] = lab_blank(lab, outs[i].n_bytes, 0);
                memcpy(first[i], outs[i].at, outs[i].n_bytes);
            } else if (memcmp(first[i], outs[i].at, outs[i].n_bytes) != 0) {
                fail_msg("output %d differs in order %llu", i,
                         (unsigned long long)lab->orders[o]);
            }
        }
    }
}

struct lab_sums lab_sums(struct lab *lab, size_t n)
{
    const struct lab_sums s = { lab_blank(lab, n * sizeof(double), 0),
                                lab_blank(lab, n * sizeof(double), 0) };

    for (size_t i = 0; i < n; i++)
        s.at[i] = s.magnitude[i] = 0;
    return s;
}

void lab_interact(const struct interact *it, const float *t, const float *dr, struct lab_sums r,
                  size_t at_r, struct lab_sums dt, size_t at_t)
{
    for (uint32_t d = 0; d < it->direct; d++)
        lab_add(r, at_r++, (double)t[d], 1);
    dr += it->direct;
    for (uint32_t i = 0; i < it->n_vectors; i++)
        for (uint32_t j = 0; j < i + it->self; j++, dr++, at_r++)
            for (size_t d = 0; d < it->dim; d++) {
                const double a = (double)t[i * it->dim + d], b = (double)t[j * it->dim + d];

                lab_add(r, at_r, a, b);
                lab_add(dt, at_t + i * it->dim + d, (double)*dr, b);
                lab_add(dt, at_t + j * it->dim + d, (double)*dr, a);
            }
}

struct lab_bags lab_bags(struct lab *lab, uint32_t n_bags, uint32_t n_rows, uint32_t keys_end)
{
    const struct lab_bags bags = {
        lab_blank(lab, ((size_t)n_bags + 1) * sizeof(uint32_t), 0),
        lab_blank(lab, ((size_t)n_bags * keys_end + 1) * sizeof(uint32_t), 0)
    };
    uint32_t n_keys = 0;

    bags.starts[0] = 0;
    for (uint32_t bag = 0; bag < n_bags; bag++) {
        for (uint32_t k = lab_below(lab, lab_below(lab, 4) ? 2 : keys_end); k; k--)
            bags.row_of[n_keys++] = lab_below(lab, n_rows);
        bags.starts[bag + 1] = n_keys;
    }
    return bags;
}

void lab_same(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("[%zu] of %zu is %.9g, want %.9g", i, n, (double)got[i], (double)want[i]);
}

void lab_near(const float *got, const double *want, const double *magnitude, size_t n,
              double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * magnitude[i]))
            fail_msg("[%zu] of %zu is %.9g, want %.9g within %.3g of %.9g", i, n,
                     (double)got[i], want[i], tolerance, magnitude[i]);
}
