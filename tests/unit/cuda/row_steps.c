#include "tests/unit/cuda/row_steps.h"

#include "tests/emu/rt.h"
#include "worker/cuda/device_cuda.h"

enum { COMPUTE = 1 }; /* the stream of operations */

static const struct world_way copies = { .ops = &device_cuda };

static void play(const struct world *w, const struct world_way *way, uint64_t seed,
                 struct world_end *end)
{
    emu_rt_seed(seed);
    assert_true(world_play(w, way, end));
    assert_int_equal(emu_rt_alive(), 0);
}

struct dlrm_row_counts row_steps_same(const struct world *w, const struct world_way *way,
                                      uint64_t seed)
{
    struct world_end want, got;
    struct dlrm_row_counts counts;

    play(w, &copies, seed, &want);
    play(w, way, seed, &got);
    assert_int_equal(world_n_failed(&want) + world_n_failed(&got), 0);
    assert_int_equal(world_n_wrong(w, &got, &want), 0);
    counts = got.counts;
    world_end_free(&want);
    world_end_free(&got);
    return counts;
}

void row_steps_lost_wait(const struct world_way *way, uint64_t seed)
{
    struct world_end want, got;
    struct world w;
    uint32_t n_wrong = 0;

    if (emu_rt_is_real()) {
        print_message("skipped: only the emulated device forgets a wait\n");
        skip();
    }
    world_init(&w, 8, WORLD_KEYS, seed);
    play(&w, &copies, seed, &want);
    for (uint64_t i = 0; i < 8; i++) {
        emu_rt_seed(seed + i);
        emu_rt_ignore_waits(COMPUTE);
        assert_true(world_play(&w, way, &got));
        n_wrong += world_n_wrong(&w, &got, &want);
        world_end_free(&got);
    }
    assert_true(n_wrong > 0);
    world_end_free(&want);
    world_deinit(&w);
}
