#include "tests/unit/cuda/rig.h"

uint64_t rig_seed(void)
{
    const char *text = getenv("PS_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 4711;

    print_message("PS_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

void rig_needs_emulation(void)
{
    if (!emu_rt_is_real())
        return;
    print_message("skipped: only the emulated device can be asked this\n");
    skip();
}

struct rig rig_open(uint64_t seed, enum device_products products)
{
    struct rig r = { .rng = { seed, 0 } };
    struct err err;

    if (getenv("RIG_WITHOUT_BF16") && products == DEVICE_BF16)
        products = DEVICE_TF32;
    emu_rt_seed(seed);
    if (ops->open(&(struct device_options){ .n_threads = 1, .products = products }, &r.c, &err))
        fail_msg("%s", err.text);
    return r;
}

void rig_sweep(struct rig *r)
{
    while (r->n_owned) {
        const struct rig_owned *o = &r->owned[--r->n_owned];

        ops->memory_free(r->c, o->memory, o->n_bytes);
    }
}

void rig_close(struct rig *r)
{
    rig_sweep(r);
    ops->close(r->c);
    assert_int_equal(emu_rt_alive(), 0);
}

float *rig_floats(struct rig *r, size_t n)
{
    const size_t n_bytes = (n ? n : 1) * sizeof(float);
    float *memory = ops->memory_alloc_zeroed(r->c, n_bytes);

    assert_non_null(memory);
    assert_true(r->n_owned < RIG_OWNED_MAX);
    r->owned[r->n_owned++] = (struct rig_owned){ memory, n_bytes };
    return memory;
}

void rig_wait(struct rig *r, uint32_t set)
{
    if (ops->wait(r->c, set))
        fail_msg("%s", ops->failure(r->c));
}

float *rig_put(struct rig *r, const float *x, size_t n, size_t shift)
{
    float *memory = rig_floats(r, n + shift) + shift;

    ops->upload(r->c, 0, memory, x, n * sizeof *x);
    rig_wait(r, 0);
    return memory;
}

void rig_get(struct rig *r, float *x, const float *memory, size_t n)
{
    ops->download(r->c, 0, x, memory, n * sizeof *x);
    rig_wait(r, 0);
}

float *rig_random(struct rig *r, size_t n)
{
    float *x = memory_alloc(n * sizeof *x + 1);

    fixture_fill(&r->rng, x, n, 1);
    return x;
}

void rig_near(const char *what, const float *got, const double *want, size_t n,
              double tolerance)
{
    double norm = 0, off = 0;

    for (size_t i = 0; i < n; i++) {
        norm += want[i] * want[i];
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    }
    if (!(sqrt(off) <= tolerance * sqrt(norm) + 1e-30))
        fail_msg("%s: %zu numbers are %.3g off, of norm %.3g: more than %.3g", what, n,
                 sqrt(off), sqrt(norm), tolerance);
}
