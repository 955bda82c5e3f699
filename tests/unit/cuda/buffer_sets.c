#include "tests/unit/cuda/buffer_sets.h"

void buffer_sets_open(struct buffer_sets *s, uint64_t seed, enum device_products products)
{
    s->rig = rig_open(seed, products);
    assert_int_equal(step_reserve(ops, s->rig.c), 0);
    for (uint32_t i = 0; i < DEVICE_BUFFER_SETS; i++) {
        float *host = ops->host_alloc(s->rig.c, step_bytes());

        assert_non_null(host);
        s->host[i] = step_in(host);
        s->device[i] = step_in(rig_floats(&s->rig, step_bytes() / sizeof(float)));
    }
}

void buffer_sets_close(struct buffer_sets *s)
{
    for (uint32_t i = 0; i < DEVICE_BUFFER_SETS; i++)
        ops->host_free(s->rig.c, s->host[i].at[0], step_bytes());
    rig_close(&s->rig);
}

void buffer_sets_draw(struct step *s, uint64_t seed, uint64_t n, enum buffer_sets_bags bags)
{
    struct fixture_rng numbers = { hash_mix2(seed, n), 0 }, own = { hash_mix2(n, seed), 0 },
                       same = { seed, 0 };

    step_draw_numbers(s, &numbers);
    step_draw_bags(s, bags == BUFFER_SETS_OWN_BAGS ? &own : &same);
}

bool buffer_sets_start(struct buffer_sets *s, uint32_t set, uint64_t key)
{
    struct step *host = &s->host[set], *device = &s->device[set];
    struct compute *c = s->rig.c;
    bool recorded;

    device->n_rows = host->n_rows;
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_arrays[a].role == STEP_IN)
            ops->upload(c, set, device->at[a], host->at[a],
                        step_arrays[a].n_floats * sizeof(float));
    recorded = ops->begin(c, set, key);
    if (!recorded)
        step_ops(ops, c, device);
    ops->end(c, set);
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_goes_out(a))
            ops->download(c, set, host->at[a], device->at[a],
                          step_arrays[a].n_floats * sizeof(float));
    return recorded;
}

struct step buffer_sets_copy(const struct step *host)
{
    struct step copy = step_in(memory_alloc(step_bytes()));

    memcpy(copy.at[0], host->at[0], step_bytes());
    copy.n_rows = host->n_rows;
    return copy;
}

struct step *buffer_sets_one_by_one(uint64_t seed, enum device_products products,
                                    enum buffer_sets_bags bags, uint32_t n)
{
    struct step *done = memory_alloc(n * sizeof *done);
    struct buffer_sets s;

    buffer_sets_open(&s, seed, products);
    for (uint32_t i = 0; i < n; i++) {
        buffer_sets_draw(&s.host[0], seed, i, bags);
        assert_false(buffer_sets_start(&s, 0, 0));
        rig_wait(&s.rig, 0);
        done[i] = buffer_sets_copy(&s.host[0]);
    }
    buffer_sets_close(&s);
    return done;
}

void buffer_sets_free(struct step *done, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free(done[i].at[0]);
    free(done);
}

uint32_t buffer_sets_at_once(struct buffer_sets *s, uint64_t seed, uint64_t key,
                             enum buffer_sets_bags bags, const struct step *want, uint32_t n)
{
    uint32_t n_wrong = 0;

    for (uint32_t i = 0; i < n + DEVICE_BUFFER_SETS; i++) {
        const uint32_t set = i % DEVICE_BUFFER_SETS;

        if (i >= DEVICE_BUFFER_SETS) {
            rig_wait(&s->rig, set);
            n_wrong += step_difference(&s->host[set], &want[i - DEVICE_BUFFER_SETS]) != NULL;
        }
        if (i < n) {
            buffer_sets_draw(&s->host[set], seed, i, bags);
            (void)buffer_sets_start(s, set, key);
        }
    }
    return n_wrong;
}
