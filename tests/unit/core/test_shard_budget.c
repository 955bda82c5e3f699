/* A shard under a memory budget: what is held, who makes room, and who stays. */
#include <errno.h>

#include "fixture.h"
#include "server/core/shard_internal.h"
#include "tests/support/share.h"

#define DIM 64u /* where nothing else is said */
#define DIM_MAX 256u
#define BATCH 512u

struct load {
    struct shard *s;
    struct worker *w;
    uint32_t table;
    uint64_t clock;
};

static struct load load_new(const struct table_spec *spec, uint64_t memory_max_bytes)
{
    struct load l = { .s = make_shard(0, 1, memory_max_bytes) };

    l.table = make_table(l.s, spec);
    l.w = join(l.s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    return l;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Pushes BATCH keys or fewer, in any order, doubles left out. The refusal, if any. */
static int load_push(struct load *l, const uint64_t *keys, uint32_t n_keys)
{
    static float ones[BATCH * DIM_MAX];
    uint64_t sorted[BATCH];
    struct push *push = next_push(l->w, l->clock++);
    uint32_t dim = shard_table(l->s, l->table)->spec.dim, n = 0;
    int status;

    enter_shard();
    if (ones[0] == 0)
        for (uint32_t i = 0; i < BATCH * DIM_MAX; i++)
            ones[i] = 1;
    memcpy(sorted, keys, n_keys * sizeof *keys);
    qsort(sorted, n_keys, sizeof *sorted, by_key);
    for (uint32_t i = 0; i < n_keys; i++)
        if (!n || sorted[n - 1] != sorted[i])
            sorted[n++] = sorted[i];
    add_gradient(push, l->table, dim, sorted, n, ones);
    status = try_push(l->s, l->w, push).status;
    (void)shard_advance(l->s, 1);
    return status;
}

static void assert_within(const struct shard *s)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < s->n_tables; i++) {
        const struct memory_budget *b = &s->tables[i]->budget;

        assert_true(b->max == 0 || b->used <= b->max);
        sum += b->used + sizeof *s->tables[i];
    }
    assert_true(sum == s->budget.used);
    assert_true(s->budget.max == 0 || s->budget.used <= s->budget.max);
}

static uint64_t n_rows(struct load *l)
{
    enter_shard();
    return table_n_rows(shard_table(l->s, l->table)->rows);
}

/* Every row is found by its key, and as many as are counted. */
static void assert_whole(struct load *l)
{
    struct table *t;
    uint64_t n = 0;

    enter_shard();
    t = shard_table(l->s, l->table)->rows;
    for (uint64_t i = 0; i < table_n_numbers(t); i++) {
        struct row *row = table_row(t, i);

        if (!row)
            continue;
        assert_true(find_row(l->s, l->table, row->key) == row);
        n++;
    }
    assert_true(n == table_n_rows(t));
    assert_within(l->s);
}

static struct table_spec spec_of(uint32_t dim, enum table_spec_victims victims,
                                 uint64_t max_bytes)
{
    struct table_spec spec = sparse_spec("emb", dim, TABLE_SPEC_ROWWISE_ADAGRAD);

    spec.limits.victims = victims;
    spec.limits.max_bytes = max_bytes;
    return spec;
}

/* Ten times as many new keys as the budget has room for. */
static void fill_ten_times(struct load *l, uint64_t max_bytes, uint32_t dim)
{
    uint64_t n_keys = 10 * max_bytes / (16 + 4 * dim + 4), keys[BATCH];

    for (uint64_t i = 0; i < n_keys; i += BATCH) {
        for (uint32_t k = 0; k < BATCH; k++)
            keys[k] = hash_mix(i + k);
        assert_int_equal(load_push(l, keys, BATCH), 0);
        assert_within(l->s);
    }
}

static void the_budget_is_never_passed_and_well_used(void **state)
{
    /* Memory comes in steps of up to 2 MiB: what is not used at the most. */
    static const struct {
        uint64_t bytes;
        uint32_t dim;
        double least;
    } budgets[] = { { 64 << 10, DIM, 0.5 },
                    { 1 << 20, DIM, 0.5 },
                    { 10 << 20, DIM, 0.8 },
                    { 40 << 20, DIM_MAX, 0.95 } };

    enum { N_CASES = COUNT_OF(budgets) * TABLE_SPEC_VICTIMS_END };

    (void)state;
    for (long n = share_first_of(N_CASES); n < N_CASES; n += share_step_of(N_CASES)) {
        const size_t i = (size_t)n % COUNT_OF(budgets);
        const enum table_spec_victims victims =
            (enum table_spec_victims)((size_t)n / COUNT_OF(budgets));
        bool whole = (i + (size_t)victims) % 2; /* the shard's budget, or the table's own */
        struct table_spec spec = spec_of(budgets[i].dim, victims, whole ? 0 : budgets[i].bytes);
        struct load l = load_new(&spec, whole ? budgets[i].bytes : 0);
        double used;

        fill_ten_times(&l, budgets[i].bytes, budgets[i].dim);
        assert_whole(&l);
        used = (double)shard_bytes(l.s) / (double)budgets[i].bytes;
        print_message("%5llu KiB, %s: %.3f used by %llu rows; %llu evicted, %llu refused\n",
                      (unsigned long long)budgets[i].bytes >> 10,
                      table_spec_victims_name(victims), used, (unsigned long long)n_rows(&l),
                      (unsigned long long)shard_counters(l.s)->rows_evicted,
                      (unsigned long long)shard_counters(l.s)->rows_refused);
        assert_true(used >= budgets[i].least);
        if (victims == TABLE_SPEC_VICTIMS_NONE)
            assert_true(shard_counters(l.s)->rows_evicted == 0);
        else
            assert_true(shard_counters(l.s)->rows_refused == 0 || budgets[i].bytes < (1 << 20));
        shard_free(l.s);
    }
}

/* Rows of 8 bytes of payload: now the index wants as much as they do. */
static void rows_are_evicted_for_the_index_too(void **state)
{
    struct table_spec spec = spec_of(1, TABLE_SPEC_VICTIMS_OLDEST, 2 << 20);
    struct load l = load_new(&spec, 0);

    (void)state;
    fill_ten_times(&l, 2 << 20, 1);
    assert_whole(&l);
    assert_true(shard_counters(l.s)->rows_evicted > 100000);
    assert_int_equal(shard_counters(l.s)->rows_refused, 0);
    shard_free(l.s);
}

struct place {
    uint64_t last; /* number of the last push of this key */
    uint64_t n;    /* how many */
    bool there;
};

static int by_last(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->last < y->last ? -1 : x->last > y->last;
}

static int by_n(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->n < y->n ? -1 : x->n > y->n;
}

/* Of two keys, one that has a row and one that lost it: how often is the one that stayed
 * ahead? 0.5 is chance, 1 is perfect (the area under the ROC curve, by ranks). */
static double rank_statistic(struct place *places, uint32_t n,
                             int (*order)(const void *, const void *))
{
    double ranks = 0, n_there = 0;

    qsort(places, n, sizeof *places, order);
    for (uint32_t i = 0; i < n; i++) {
        ranks += places[i].there ? i + 1 : 0;
        n_there += places[i].there;
    }
    return (ranks - n_there * (n_there + 1) / 2) / (n_there * ((double)n - n_there));
}

#define N_RANKED 60000u

/* Pushes keys that `draw` deals until each has lost its row several times, and says who has
 * one. */
static double ranked(enum table_spec_victims victims, uint32_t (*draw)(uint64_t i),
                     int (*order)(const void *, const void *))
{
    struct table_spec spec = spec_of(DIM, victims, 6 << 20); /* about 20,000 rows */
    struct load l = load_new(&spec, 0);
    struct place *places = calloc(N_RANKED, sizeof *places);
    uint64_t keys[BATCH];
    double result;

    for (uint64_t i = 0; i < 500000; i += BATCH) {
        for (uint32_t k = 0; k < BATCH; k++) {
            uint32_t key = draw(i + k);

            keys[k] = key;
            places[key].last = i + 1;
            places[key].n++;
        }
        assert_int_equal(load_push(&l, keys, BATCH), 0);
    }
    for (uint32_t i = 0; i < N_RANKED; i++)
        places[i].there = find_row(l.s, l.table, i) != NULL;
    assert_true(n_rows(&l) > 10000 && n_rows(&l) < 25000);
    assert_true(shard_counters(l.s)->rows_evicted > 10000);
    result = rank_statistic(places, N_RANKED, order);
    free(places);
    shard_free(l.s);
    return result;
}

static uint32_t uniform(uint64_t i)
{
    return (uint32_t)(hash_mix2(3, i) % N_RANKED);
}

static uint32_t in_turn(uint64_t i)
{
    return (uint32_t)(i % N_RANKED);
}

/* The cube of a uniform number: some come far more often than others. */
static uint32_t skewed(uint64_t i)
{
    double u = (double)(hash_mix2(4, i) >> 11) * 0x1p-53;

    return (uint32_t)(u * u * u * N_RANKED);
}

static void oldest_keeps_the_newest_rows_and_rarest_the_most_pushed(void **state)
{
    const double newest_uniform = ranked(TABLE_SPEC_VICTIMS_OLDEST, uniform, by_last);
    const double newest_in_turn = ranked(TABLE_SPEC_VICTIMS_OLDEST, in_turn, by_last);
    const double newest_skewed = ranked(TABLE_SPEC_VICTIMS_OLDEST, skewed, by_last);
    const double most_pushed = ranked(TABLE_SPEC_VICTIMS_RAREST, skewed, by_n);
    const double most_by_age = ranked(TABLE_SPEC_VICTIMS_OLDEST, skewed, by_n);

    (void)state;
    print_message(
        "stays ahead of who goes: oldest %.4f (uniform), %.4f (in turn), %.4f (skewed); "
        "rarest %.4f, oldest by that measure %.4f (skewed)\n",
        newest_uniform, newest_in_turn, newest_skewed, most_pushed, most_by_age);
    assert_true(newest_uniform > 0.97);
    assert_true(newest_in_turn > 0.97);
    assert_true(newest_skewed > 0.97);
    assert_true(most_pushed > most_by_age + 0.02);
}

/* One push that is larger than the budget: its own rows are no victims. */
static void a_push_does_not_evict_its_own_rows(void **state)
{
    struct table_spec spec = spec_of(DIM, TABLE_SPEC_VICTIMS_OLDEST, 64 << 10);
    struct load l = load_new(&spec, 0);
    uint64_t keys[BATCH], n_there = 0, n_refused;

    (void)state;
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t k = 0; k < BATCH; k++)
            keys[k] = round * 1000 + k;
        n_refused = shard_counters(l.s)->rows_refused;
        assert_int_equal(load_push(&l, keys, BATCH), 0);
        n_refused = shard_counters(l.s)->rows_refused - n_refused;
        n_there = 0;
        for (uint32_t k = 0; k < BATCH; k++)
            n_there += find_row(l.s, l.table, keys[k]) != NULL;
        assert_int_equal(n_there + n_refused, BATCH);
        assert_int_equal(n_there, n_rows(&l)); /* those of the push before have made room */
        assert_whole(&l);
    }
    assert_true(n_there > 100);
    shard_free(l.s);
}

/* The oldest rows are those that the push comes to last. */
static void pending_rows_of_a_push_are_not_evicted_for_its_new_ones(void **state)
{
    struct table_spec spec = spec_of(DIM, TABLE_SPEC_VICTIMS_OLDEST, 64 << 10);
    struct load l = load_new(&spec, 0);
    uint64_t keys[BATCH], n_old = 0;

    (void)state;
    for (uint64_t k = 0; k < 100; k++)
        keys[k] = 1000000 + k;
    assert_int_equal(load_push(&l, keys, 100), 0);
    for (uint64_t round = 0; round < 2; round++) {
        for (uint64_t k = 0; k < 10; k++)
            keys[k] = 1000 * round + k;
        assert_int_equal(load_push(&l, keys, 10), 0);
    }
    for (uint64_t k = 0; k < BATCH; k++)
        keys[k] = k < BATCH - 100 ? 100000 + k : 1000000 + k - (BATCH - 100);
    for (uint32_t k = BATCH - 100; k < BATCH; k++)
        n_old += find_row(l.s, l.table, keys[k]) != NULL;
    assert_int_equal(n_old, 100);
    assert_int_equal(load_push(&l, keys, BATCH), 0);
    for (uint32_t k = BATCH - 100; k < BATCH; k++)
        assert_int_equal(row_touches(find_row(l.s, l.table, keys[k])), 2);
    assert_true(shard_counters(l.s)->rows_evicted > 0);
    assert_whole(&l);
    shard_free(l.s);
}

static void blocks_of_a_dense_table_stay_when_the_shard_is_full(void **state)
{
    struct table_spec spec = spec_of(DIM, TABLE_SPEC_VICTIMS_OLDEST, 0),
                      top = dense_spec("top", DIM, 100 * DIM, TABLE_SPEC_SGD);
    struct load l = load_new(&spec, 4 << 20), d = l;
    uint64_t keys[100];

    (void)state;
    d.table = make_table(l.s, &top);
    for (uint32_t i = 0; i < 100; i++)
        keys[i] = i;
    assert_int_equal(load_push(&d, keys, 100), 0);
    fill_ten_times(&l, 4 << 20, DIM);
    assert_true(shard_counters(l.s)->rows_evicted > 10000);
    for (uint32_t i = 0; i < 100; i++)
        assert_non_null(find_row(l.s, d.table, i));
    shard_free(l.s);
}

/* Each table makes room among its own rows: memory that another has is not given up. */
static void a_table_that_comes_late_gets_what_is_left(void **state)
{
    struct table_spec spec = spec_of(DIM, TABLE_SPEC_VICTIMS_OLDEST, 0), late = spec;
    struct load l = load_new(&spec, 4 << 20), second = l;
    uint64_t keys[BATCH];

    (void)state;
    memcpy(late.name, "late", 5);
    second.table = make_table(l.s, &late);
    fill_ten_times(&l, 4 << 20, DIM);
    for (uint64_t i = 0; i < 20 * BATCH; i += BATCH) {
        for (uint32_t k = 0; k < BATCH; k++)
            keys[k] = i + k;
        second.clock = l.clock++;
        assert_int_equal(load_push(&second, keys, BATCH), 0);
        assert_within(l.s);
    }
    assert_whole(&l);
    assert_whole(&second);
    assert_true(n_rows(&second) + shard_table(l.s, second.table)->rows_refused +
                    shard_table(l.s, second.table)->rows_evicted ==
                20 * BATCH);
    shard_free(l.s);
}

#ifdef PS_FAULTS
static void a_failed_allocation_under_eviction_leaves_a_whole_shard(void **state)
{
    struct table_spec spec = spec_of(DIM, TABLE_SPEC_VICTIMS_RAREST, 1 << 20);
    uint64_t keys[BATCH];
    bool all_worked = false;

    (void)state;
    spec.limits.admit_touches = 2; /* the sketch is allocated, too */
    spec.limits.admit_clocks = 8;
    for (long k = share_first(); !all_worked; k += share_step()) {
        struct load l = load_new(&spec, 0);
        int status = 0;

        memory_fail_after(k);
        for (uint64_t i = 0; i < 12000 && !status; i += BATCH) {
            for (uint32_t n = 0; n < BATCH; n++)
                keys[n] = hash_mix((i + n) / (2 * BATCH) * BATCH + n);
            status = load_push(&l, keys, BATCH);
        }
        memory_fail_after(-1);
        all_worked = status == 0;
        assert_true(status == 0 || status == -ENOMEM);
        assert_whole(&l);
        for (uint64_t i = 0; i < 12000; i += BATCH) { /* and it goes on */
            for (uint32_t n = 0; n < BATCH; n++)
                keys[n] = hash_mix((i + n) / (2 * BATCH) * BATCH + n);
            assert_int_equal(load_push(&l, keys, BATCH), 0);
        }
        assert_whole(&l);
        assert_true(k < 1000);
        shard_free(l.s);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_budget_is_never_passed_and_well_used),
        cmocka_unit_test(rows_are_evicted_for_the_index_too),
        cmocka_unit_test(oldest_keeps_the_newest_rows_and_rarest_the_most_pushed),
        cmocka_unit_test(a_push_does_not_evict_its_own_rows),
        cmocka_unit_test(pending_rows_of_a_push_are_not_evicted_for_its_new_ones),
        cmocka_unit_test(blocks_of_a_dense_table_stay_when_the_shard_is_full),
        cmocka_unit_test(a_table_that_comes_late_gets_what_is_left),
#ifdef PS_FAULTS
        cmocka_unit_test(a_failed_allocation_under_eviction_leaves_a_whole_shard),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
