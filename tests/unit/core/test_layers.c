/* LAMB and LARS of a dense table that is one layer: a block of more floats than rows have. */
#include <math.h>

#include "fixture.h"
#include "server/core/shard_internal.h"
#include "server/core/snapshot_scan.h"
#include "tests/support/npy.h"

#define ROWS 170u
#define COLS 250u
#define N_FLOATS (ROWS * COLS)
#define STEPS 5u
#define EVERY 97u
#define N_KEPT ((N_FLOATS + EVERY - 1) / EVERY)

_Static_assert(N_FLOATS > TABLE_SPEC_DIM_MAX, "a layer that no row could hold");

static struct table_spec layer_spec(const char *name, enum table_spec_optim optim)
{
    struct table_spec spec = dense_spec("layer", N_FLOATS, N_FLOATS, optim);

    spec.init = TABLE_SPEC_INIT_ZERO;
    spec.params.learning_rate = (float)npy_param(name, "lr");
    spec.params.epsilon = (float)npy_param(name, "eps");
    spec.params.weight_decay = (float)npy_param(name, "weight_decay");
    if (optim == TABLE_SPEC_LARS) {
        spec.params.momentum = (float)npy_param(name, "momentum");
        return spec;
    }
    spec.params.beta1 = (float)npy_param(name, "beta1");
    spec.params.beta2 = (float)npy_param(name, "beta2");
    return spec;
}

static void fill(const struct npy *a, const struct npy *b, uint32_t step, float *ret)
{
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < COLS; j++)
            ret[i * COLS + j] = a->f[step * ROWS + i] * b->f[step * COLS + j];
}

static void check(const char *name, uint32_t step, const float *w)
{
    float kept[N_KEPT], norm;
    double sum = 0;

    for (uint32_t i = 0; i < N_KEPT; i++)
        kept[i] = w[(size_t)i * EVERY];
    for (uint32_t i = 0; i < N_FLOATS; i++)
        sum += (double)w[i] * (double)w[i];
    norm = (float)sqrt(sum);
    npy_check(name, "p", kept, (int64_t)step * N_KEPT, N_KEPT);
    npy_check(name, "norm", &norm, step, 1);
}

/* As one of n_shards, the one that has the layer, in lock step. Returns the weights, which the caller frees. */
static float *train(const char *name, enum table_spec_optim optim, uint32_t n_shards)
{
    static const uint64_t key = 0;
    const struct table_spec spec = layer_spec(name, optim);
    const uint32_t owner = placement_shard(key, table_spec_salt(&spec), n_shards);
    struct shard *s = make_shard(owner, n_shards, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 1);
    const uint32_t table = make_table(s, &spec);
    struct npy a = npy_load(name, "a"), b = npy_load(name, "b");
    float *floats = memory_alloc(N_FLOATS * sizeof *floats);
    struct push *push = next_push(w, 0);

    fill(&a, &b, 0, floats);
    add_assign(push, table, N_FLOATS, &key, 1, floats);
    push->tick = false;
    must_push(s, w, push);
    for (uint32_t t = 0; t < STEPS; t++) {
        push = next_push(w, t);
        fill(&a, &b, 1 + t, floats);
        add_gradient(push, table, N_FLOATS, &key, 1, floats);
        must_push(s, w, push);
        check(name, t, find_row(s, table, key)->floats);
    }
    memcpy(floats, find_row(s, table, key)->floats, N_FLOATS * sizeof *floats);
    npy_free(&a);
    npy_free(&b);
    shard_free(s);
    return floats;
}

static void compare(const char *name, enum table_spec_optim optim)
{
    float *one = train(name, optim, 1), *several = train(name, optim, 5);

    assert_memory_equal(one, several, N_FLOATS * sizeof *one);
    free(one);
    free(several);
}

static void a_layer_is_stepped_as_a_whole_on_whichever_shard_has_it(void **state)
{
    (void)state;
    enter_shard();
    compare("layer_lamb", TABLE_SPEC_LAMB);
    compare("layer_lars", TABLE_SPEC_LARS);
}

static void topk_of_a_layer_is_refused(void **state)
{
    static const uint64_t key = 0;
    const struct table_spec spec = dense_spec("layer", N_FLOATS, N_FLOATS, TABLE_SPEC_LAMB);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    const uint32_t table = make_table(s, &spec);
    float *g = memory_alloc(N_FLOATS * sizeof *g);
    struct push *push = next_push(w, 0);
    struct section *section;
    struct shard_push_result result;

    (void)state;
    enter_shard();
    section = add_gradient(push, table, N_FLOATS, &key, 1, g);
    section->codec = CODEC_TOPK;
    section->k = 2;
    section->value_bytes = 12;
    result = try_push(s, w, push);
    assert_int_equal(result.status, PS_ECODEC);
    assert_int_equal(shard_table(s, table)->n_pushes, 0);
    free(g);
    shard_free(s);
}

static void a_scan_gives_a_layer_in_a_slice_of_its_size(void **state)
{
    const struct table_spec spec = dense_spec("layer", N_FLOATS, N_FLOATS, TABLE_SPEC_LAMB),
                            rows = dense_spec("rows", 4, 8, TABLE_SPEC_LAMB);
    const size_t row_bytes = 16 + 3 * (size_t)N_FLOATS * sizeof(float);
    static const uint64_t keys[] = { 0, 1 };
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct dice dice = dice_of_this_run("layer");
    float *g = memory_alloc(N_FLOATS * sizeof *g);
    struct snapshot_scan_slice slice;
    struct snapshot_scan *scan;
    struct push *push;
    uint64_t n_rows = 0;
    uint8_t *bytes;

    (void)state;
    enter_shard();
    (void)make_table(s, &rows);
    assert_int_equal(snapshot_scan_bytes_max(s), SNAPSHOT_SCAN_BYTES);
    (void)make_table(s, &spec);
    assert_true(row_bytes > SNAPSHOT_SCAN_BYTES);
    assert_int_equal(snapshot_scan_bytes_max(s), row_bytes);
    for (uint32_t i = 0; i < N_FLOATS; i++)
        g[i] = roll_float(&dice);
    push = next_push(w, 0);
    add_gradient(push, 0, 4, keys, 2, g);
    add_gradient(push, 1, N_FLOATS, keys, 1, g);
    must_push(s, w, push);
    bytes = memory_alloc(row_bytes);
    assert_int_equal(snapshot_scan_begin(s, SNAPSHOT_SCAN_FULL, &scan), 0);
    do {
        const size_t n_bytes = snapshot_scan_slice_bytes(s, scan);

        assert_true(n_bytes == SNAPSHOT_SCAN_BYTES || n_bytes == row_bytes);
        snapshot_scan_more(s, scan, bytes, n_bytes, &slice);
        if (slice.what == SNAPSHOT_SCAN_ROWS)
            n_rows += slice.n_items;
        if (slice.what == SNAPSHOT_SCAN_ROWS && slice.table_id == 1 && slice.n_items)
            assert_memory_equal(bytes + 16, find_row(s, 1, 0)->floats, row_bytes - 16);
    } while (slice.what != SNAPSHOT_SCAN_DONE);
    assert_int_equal(n_rows, 3);
    snapshot_scan_end(s, scan, SNAPSHOT_SCAN_KEPT);
    free(g);
    free(bytes);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_is_stepped_as_a_whole_on_whichever_shard_has_it),
        cmocka_unit_test(topk_of_a_layer_is_refused),
        cmocka_unit_test(a_scan_gives_a_layer_in_a_slice_of_its_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
