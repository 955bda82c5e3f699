/* Batches that a device dedups: the same numbers; small ones, and those that it cannot do, are left to others. */
#include "tests/unit/model/fixture.h"
#include "worker/key_deduper.h"

enum { KEYS_MIN = 40 };

/* A device whose operation is the CPU's. A table of operations has no argument. */
static struct {
    uint32_t n_open, n_runs;
    bool cannot_open, cannot_run;
} the;

struct device_dedup {
    struct batch_scratch scratch;
};

static int fake_new(struct compute *c, struct device_dedup **ret, struct err *err)
{
    (void)c;
    if (the.cannot_open)
        return err_set(err, PS_EDEVICE, "no stream");
    *ret = memory_alloc(sizeof **ret);
    the.n_open++;
    return 0;
}

static void fake_free(struct device_dedup *d)
{
    batch_scratch_deinit(&d->scratch);
    free(d);
    the.n_open--;
}

static int fake_dedup(struct device_dedup *d, const struct key_dedup *k, uint32_t *ret_n_unique,
                      struct err *err)
{
    const struct batch_groups groups = { k->n_groups, k->of_field };
    struct batch b = { .n = k->n_bags / k->n_fields,
                       .n_fields = k->n_fields,
                       .n_keys = k->n_keys,
                       .keys = (uint64_t *)(uintptr_t)k->keys,
                       .starts = (uint32_t *)(uintptr_t)k->starts,
                       .unique = k->unique,
                       .row_of = k->row_of,
                       .order = k->order,
                       .order_starts = k->order_starts,
                       .groups = k->n_groups ? &groups : NULL };

    the.n_runs++;
    if (the.cannot_run)
        return err_set(err, PS_EDEVICE, "no memory there");
    assert_int_equal(batch_dedup_with(&b, &d->scratch), 0);
    if (k->n_groups)
        memcpy(k->group_starts, b.group_starts, (k->n_groups + 1) * sizeof *k->group_starts);
    *ret_n_unique = b.n_unique;
    return 0;
}

static struct dlrm *model_on(struct device_ops *ops)
{
    struct err err;
    struct dlrm *m;

    *ops = device_cpu;
    ops->dedup_new = fake_new;
    ops->dedup = fake_dedup;
    ops->dedup_free = fake_free;
    if (dlrm_new_on(ops, &fixture_plain, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

enum { N = 30, FIELDS = 3 };

static void fill(struct batch *b, const struct batch_groups *groups, uint32_t n)
{
    struct fixture_rng rng = { 7, n };

    assert_int_equal(batch_init(b, N, 0, FIELDS), 0);
    b->groups = groups;
    b->n = n;
    for (uint32_t bag = 0; bag < n * FIELDS; bag++) {
        b->keys[bag] = (uint64_t)(bag % FIELDS) << 32 | fixture_below(&rng, 9);
        b->starts[bag + 1] = bag + 1;
    }
    b->n_keys = n * FIELDS;
}

static void same(const struct batch *got, const struct batch *want)
{
    assert_int_equal(got->n_unique, want->n_unique);
    assert_memory_equal(got->unique, want->unique, want->n_unique * sizeof *want->unique);
    assert_memory_equal(got->row_of, want->row_of, want->n_keys * sizeof *want->row_of);
    assert_memory_equal(got->order, want->order, want->n_keys * sizeof *want->order);
    assert_memory_equal(got->group_starts, want->group_starts, sizeof want->group_starts);
}

static void a_batch_is_deduped_on_the_device_if_it_is_large(void **state)
{
    static const uint8_t of_field[FIELDS] = { 1, 0, 1 };
    static const struct batch_groups groups = { 2, of_field };
    struct device_ops ops;
    struct dlrm *m = model_on(&ops);
    struct key_deduper *d = key_deduper_new(m, KEYS_MIN);
    const struct batch_deduper *of_batches = key_deduper_of_batches(d);
    void *one = of_batches->open(of_batches->arg);

    (void)state;
    the.n_runs = 0;
    for (uint32_t n = 0; n <= N; n += 5) {
        const bool is_large = n * FIELDS >= KEYS_MIN;
        struct batch got, want;

        fill(&got, n % 2 ? &groups : NULL, n);
        fill(&want, n % 2 ? &groups : NULL, n);
        assert_int_equal(batch_dedup(&want), 0);
        assert_int_equal(of_batches->run(one, &got) == 0, is_large);
        if (is_large)
            same(&got, &want);
        batch_deinit(&got);
        batch_deinit(&want);
    }
    assert_int_equal(the.n_runs, 4);
    of_batches->close(one);
    assert_int_equal(the.n_open, 0);
    key_deduper_free(d);
    dlrm_free(m);
}

static void a_device_that_cannot_says_so(void **state)
{
    struct device_ops ops;
    struct dlrm *m = model_on(&ops);
    struct key_deduper *d = key_deduper_new(m, 1);
    const struct batch_deduper *of_batches = key_deduper_of_batches(d);
    struct batch b;
    void *one;

    (void)state;
    fill(&b, NULL, N);
    one = of_batches->open(of_batches->arg);
    the.cannot_open = true;
    assert_int_equal(of_batches->run(one, &b), PS_EDEVICE);
    the.cannot_open = false; /* it is not asked again */
    assert_int_equal(of_batches->run(one, &b), PS_EDEVICE);
    assert_int_equal(the.n_open, 0);
    of_batches->close(one);
    one = of_batches->open(of_batches->arg);
    the.cannot_run = true;
    assert_int_equal(of_batches->run(one, &b), PS_EDEVICE);
    the.cannot_run = false;
    assert_int_equal(of_batches->run(one, &b), 0);
    batch_deinit(&b);
    of_batches->close(one);
    key_deduper_free(d);
    dlrm_free(m);
}

static void the_cpu_has_no_such_operation(void **state)
{
    struct err err;
    struct dlrm *m;

    (void)state;
    assert_int_equal(dlrm_new(&fixture_plain, &m, &err), 0);
    assert_null(key_deduper_new(m, 1));
    assert_null(key_deduper_of_batches(NULL));
    key_deduper_free(NULL);
    dlrm_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_deduped_on_the_device_if_it_is_large),
        cmocka_unit_test(a_device_that_cannot_says_so),
        cmocka_unit_test(the_cpu_has_no_such_operation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
