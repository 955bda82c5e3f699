#include "tests/unit/cuda/slots.h"

void slots_open(struct slots *s, uint64_t seed, enum device_products products)
{
    s->rig = rig_open(seed, products);
    assert_int_equal(step_reserve(ops, s->rig.c), 0);
    for (uint32_t i = 0; i < DEVICE_SLOTS; i++) {
        float *host = ops->host_alloc(s->rig.c, step_bytes());

        assert_non_null(host);
        s->host[i] = step_in(host);
        s->device[i] = step_in(rig_floats(&s->rig, step_bytes() / sizeof(float)));
    }
}

void slots_close(struct slots *s)
{
    for (uint32_t i = 0; i < DEVICE_SLOTS; i++)
        ops->host_free(s->rig.c, s->host[i].at[0], step_bytes());
    rig_close(&s->rig);
}

void slots_draw(struct step *s, uint64_t seed, uint64_t n, enum slots_bags bags)
{
    struct fixture_rng numbers = { hash_mix2(seed, n), 0 }, own = { hash_mix2(n, seed), 0 },
                       same = { seed, 0 };

    step_draw_numbers(s, &numbers);
    step_draw_bags(s, bags == SLOTS_OWN_BAGS ? &own : &same);
}

bool slots_start(struct slots *s, uint32_t slot, uint64_t key)
{
    struct step *host = &s->host[slot], *device = &s->device[slot];
    struct compute *c = s->rig.c;
    bool recorded;

    device->n_rows = host->n_rows;
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_arrays[a].role == STEP_IN)
            ops->upload(c, slot, device->at[a], host->at[a],
                        step_arrays[a].n_floats * sizeof(float));
    recorded = ops->begin(c, slot, key);
    if (!recorded)
        step_ops(ops, c, device);
    ops->end(c, slot);
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_goes_out(a))
            ops->download(c, slot, host->at[a], device->at[a],
                          step_arrays[a].n_floats * sizeof(float));
    return recorded;
}

struct step slots_copy(const struct step *host)
{
    struct step copy = step_in(memory_alloc(step_bytes()));

    memcpy(copy.at[0], host->at[0], step_bytes());
    copy.n_rows = host->n_rows;
    return copy;
}

struct step *slots_one_by_one(uint64_t seed, enum device_products products,
                              enum slots_bags bags, uint32_t n)
{
    struct step *done = memory_alloc(n * sizeof *done);
    struct slots s;

    slots_open(&s, seed, products);
    for (uint32_t i = 0; i < n; i++) {
        slots_draw(&s.host[0], seed, i, bags);
        assert_false(slots_start(&s, 0, 0));
        assert_int_equal(ops->wait(s.rig.c, 0), 0);
        done[i] = slots_copy(&s.host[0]);
    }
    slots_close(&s);
    return done;
}

void slots_free(struct step *done, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free(done[i].at[0]);
    free(done);
}

uint32_t slots_at_once(struct slots *s, uint64_t seed, uint64_t key, enum slots_bags bags,
                       const struct step *want, uint32_t n)
{
    uint32_t n_wrong = 0;

    for (uint32_t i = 0; i < n + DEVICE_SLOTS; i++) {
        const uint32_t slot = i % DEVICE_SLOTS;

        if (i >= DEVICE_SLOTS) {
            assert_int_equal(ops->wait(s->rig.c, slot), 0);
            n_wrong += step_difference(&s->host[slot], &want[i - DEVICE_SLOTS]) != NULL;
        }
        if (i < n) {
            slots_draw(&s->host[slot], seed, i, bags);
            (void)slots_start(s, slot, key);
        }
    }
    return n_wrong;
}
