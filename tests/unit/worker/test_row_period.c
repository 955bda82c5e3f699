/* Embedding tables with a period over servers in this process, against a plain reference. */
#include <math.h>
#include <string.h>

#include "common/hash.h"
#include "tests/support/seed.h"
#include "tests/unit/worker/cluster.h"
#include "worker/param_store_periodic.h"

#define DIM 8u
#define RATE 0.125f

#define N_ROWS 40u
#define ROW_PERIOD 3u

static uint32_t row_period(const void *arg, const char *table)
{
    (void)arg;
    assert_string_equal(table, "job/emb");
    return ROW_PERIOD;
}

static uint32_t one(const void *arg, const char *table)
{
    (void)arg;
    (void)table;
    return 1;
}

/* The rows of the servers, and what a worker has of them: each row when it was first asked for in the period. */
struct rows_bench {
    struct cluster *cluster;
    struct param_store *store;
    uint32_t table, n;
    uint64_t clock, keys[N_ROWS], all[N_ROWS];
    float servers[N_ROWS][DIM], got[N_ROWS][DIM], gradients[N_ROWS][DIM];
    bool is_here[N_ROWS];
    float here[N_ROWS][DIM], sums[N_ROWS][DIM];
};

static void pull_rows(struct rows_bench *b, struct param_store *store, uint32_t n,
                      const uint64_t *keys, float *dst)
{
    const struct ps_pull_section section = {
        .table = b->table, .n_keys = n, .keys = keys, .dst = dst
    };
    struct err err;

    assert_int_equal(store->ops->pull_start(store, b->clock, &section, 1, &err), 0);
    assert_int_equal(store->ops->pull_wait(store, &err), 0);
}

static void pull_and_see(struct rows_bench *b)
{
    uint64_t n_before, n_new = 0;

    pull_rows(b, &b->cluster->store, N_ROWS, b->all, b->servers[0]);
    n_before = b->cluster->stats.rows_pulled;
    pull_rows(b, b->store, b->n, b->keys, b->got[0]);
    for (uint32_t i = 0; i < b->n; i++) {
        const uint64_t row = b->keys[i];

        n_new += !b->is_here[row];
        if (!b->is_here[row])
            memcpy(b->here[row], b->servers[row], sizeof b->here[row]);
        b->is_here[row] = true;
        assert_memory_equal(b->got[i], b->here[row], sizeof b->got[i]);
    }
    assert_int_equal(b->cluster->stats.rows_pulled - n_before, n_new);
}

/* What the servers have then; `ends`: the period does. */
static void see_rows(struct rows_bench *b, bool ends)
{
    float want[N_ROWS][DIM];

    memcpy(want, b->servers, sizeof want);
    for (uint32_t row = 0; row < N_ROWS && ends; row++)
        for (uint32_t k = 0; k < DIM; k++) {
            want[row][k] -= RATE * b->sums[row][k];
            b->sums[row][k] = 0;
            b->is_here[row] = false;
        }
    pull_rows(b, &b->cluster->store, N_ROWS, b->all, b->servers[0]);
    for (uint32_t row = 0; row < N_ROWS; row++)
        for (uint32_t k = 0; k < DIM; k++)
            assert_true(fabsf(b->servers[row][k] - want[row][k]) <= 2e-5f);
}

static void push_and_see(struct rows_bench *b, uint64_t seed)
{
    struct ps_push_section section = {
        .table = b->table, .n_keys = b->n, .keys = b->keys, .values = b->gradients[0]
    };
    struct err err;

    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t k = 0; k < DIM; k++) {
            b->gradients[i][k] = (float)(hash_unit(hash_mix2(seed, i * DIM + k)) - 0.5);
            b->sums[b->keys[i]][k] += b->gradients[i][k];
        }
    assert_int_equal(b->store->ops->push(b->store, b->clock++, 8, true, &section, 1, &err), 0);
    see_rows(b, b->clock % ROW_PERIOD == 0);
}

static void rows_are_pulled_and_pushed_once_in_a_period(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    const struct param_store_periodic_options options = { .rule = LOCAL_TENSOR_SUM,
                                                          .period_of = one,
                                                          .row_period_of = row_period };
    struct table_spec spec = { .name = "job/emb",
                               .kind = TABLE_SPEC_SPARSE,
                               .dim = DIM,
                               .init = TABLE_SPEC_INIT_UNIFORM,
                               .init_scale = 1,
                               .optim = TABLE_SPEC_SGD,
                               .params = table_spec_optim_defaults(TABLE_SPEC_SGD) };
    static struct rows_bench b;
    struct err err;

    (void)state;
    b = (struct rows_bench){ .cluster = cluster_new(2, TABLE_SPEC_MODE_ASYNC, 0) };
    b.store = param_store_periodic_new(&b.cluster->store, &options);
    assert_true(!b.store->ops->has_places && !b.store->ops->prefetch);
    spec.params.learning_rate = RATE;
    spec.params.weight_decay = 0;
    assert_int_equal(b.store->ops->table(b.store, &spec, &b.table, &err), 0);
    for (uint32_t i = 0; i < N_ROWS; i++)
        b.all[i] = i;
    for (uint32_t step = 0; step < 200; step++) {
        b.n = 0;
        for (uint32_t i = 0; i < N_ROWS; i++)
            if (hash_mix2(seed, step * N_ROWS + i) % 4 == 0)
                b.keys[b.n++] = i;
        pull_and_see(&b);
        push_and_see(&b, seed + step);
        if (step % 50 == 49) { /* declared dead: what is not pushed is dropped */
            (void)b.store->ops->resume(b.store);
            memset(b.is_here, 0, sizeof b.is_here);
            memset(b.sums, 0, sizeof b.sums);
        }
    }
    assert_int_equal(b.store->ops->leave(b.store, &err), 0);
    see_rows(&b, true);
    b.store->ops->close(b.store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_pulled_and_pushed_once_in_a_period),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
