/* Duplicate keys removed by kernels: the numbers of batch_dedup(), in each order of threads, and on a stream of their own;
 * the transpose of the bags behind it. */
#include "tests/unit/cuda/lab.h"
#include "tests/unit/cuda/rig.h"
#include "worker/data/batch.h"

enum { FIELDS = 5, GROUPS = 3 };

static const uint8_t of_field[FIELDS] = { 2, 0, 2, 0, 2 }; /* group 1 has none */
static const struct batch_groups groups = { GROUPS, of_field };

/* Keys of so many bits, which are as good as no hashes when there are few; bags of up to `most` keys, or of one each. */
static void fill(struct batch *b, struct fixture_rng *rng, uint32_t n, uint32_t most,
                 unsigned bits, bool has_groups)
{
    assert_int_equal(batch_init(b, n, 0, FIELDS), 0);
    b->groups = has_groups ? &groups : NULL;
    b->n = n;
    for (uint32_t bag = 0; bag < n * FIELDS; bag++) {
        const uint32_t n_keys = most ? fixture_below(rng, most + 1) : 1;

        assert_int_equal(batch_reserve_keys(b, n_keys), 0);
        for (uint32_t i = 0; i < n_keys; i++)
            b->keys[b->n_keys++] =
                hash_mix2(rng->seed, rng->i++) >> (64 - bits) << 2 | of_field[bag % FIELDS];
        b->starts[bag + 1] = b->n_keys;
    }
}

static const struct {
    uint32_t n, most;
    unsigned bits;
    bool has_groups;
} cases[] = {
    { 1, 0, 60, false },  { 3, 2, 3, true },    { 821, 0, 11, true },
    { 40, 7, 60, false }, { 200, 0, 1, false },
};

struct arrays {
    uint32_t n_unique, group_starts[GROUPS + 1];
    uint64_t *unique;
    uint32_t *row_of, *order, *order_starts;
};

static void check(const struct arrays *got, struct batch *b)
{
    assert_int_equal(batch_dedup(b), 0);
    assert_int_equal(got->n_unique, b->n_unique);
    assert_memory_equal(got->unique, b->unique, b->n_unique * sizeof *b->unique);
    assert_memory_equal(got->row_of, b->row_of, b->n_keys * sizeof *b->row_of);
    assert_memory_equal(got->order, b->order, b->n_keys * sizeof *b->order);
    assert_memory_equal(got->order_starts, b->order_starts,
                        (b->n_unique + 1) * sizeof *b->order_starts);
    if (b->groups)
        assert_memory_equal(got->group_starts, b->group_starts, sizeof got->group_starts);
}

/* ---- the kernels ---- */

struct job {
    struct kernels_dedup_batch d;
    void *scratch;
};

static cudaError_t run(void *arg)
{
    const struct job *j = arg;

    return kernels_dedup(NULL, &j->d, j->scratch);
}

static void *copied(struct lab *lab, const void *from, size_t n_bytes)
{
    return memcpy(lab_blank(lab, n_bytes, 0), from, n_bytes);
}

static struct job job_of(struct lab *lab, const struct batch *b)
{
    const size_t n = b->n_keys;
    struct job j = { .d = { .n_keys = b->n_keys,
                            .n_bags = b->n * FIELDS,
                            .n_fields = FIELDS,
                            .n_groups = b->groups ? GROUPS : 0,
                            .keys = copied(lab, b->keys, n * sizeof *b->keys),
                            .starts = copied(lab, b->starts, (b->n * FIELDS + 1) * 4),
                            .of_field = copied(lab, of_field, FIELDS),
                            .unique = lab_blank(lab, n * sizeof(uint64_t), 0),
                            .row_of = lab_blank(lab, n * sizeof(uint32_t), 0),
                            .order = lab_blank(lab, n * sizeof(uint32_t), 0),
                            .order_starts = lab_blank(lab, (n + 1) * sizeof(uint32_t), 0),
                            .counts = lab_blank(lab, (GROUPS + 2) * sizeof(uint32_t), 0) },
                     .scratch = lab_blank(lab, kernels_dedup_bytes(b->n_keys), 0) };

    return j;
}

static void rows_are_those_of_the_cpu(void **state)
{
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arrays got;
        struct batch b;
        struct job j;

        fill(&b, &lab->rng, cases[i].n, cases[i].most, cases[i].bits, cases[i].has_groups);
        j = job_of(lab, &b);
        lab_each_order(lab, run, &j,
                       (struct lab_out[]){ { j.d.row_of, b.n_keys * sizeof(uint32_t), NULL },
                                           { j.d.order, b.n_keys * sizeof(uint32_t), NULL },
                                           { 0 } });
        got = (struct arrays){ j.d.counts[0], { 0 },     j.d.unique,
                               j.d.row_of,    j.d.order, j.d.order_starts };
        memcpy(got.group_starts, j.d.counts + 1, sizeof got.group_starts);
        check(&got, &b);
        batch_deinit(&b);
        lab_sweep(lab);
    }
}

/* ---- the transpose ---- */

struct transposing {
    struct bag_transposition t;
    void *scratch;
};

static cudaError_t transpose(void *arg)
{
    const struct transposing *x = arg;

    return kernels_transpose_bags(NULL, &x->t, x->scratch);
}

static struct bag_transpose_arrays arrays_of(struct lab *lab, const struct batch *b,
                                             uint32_t n_spans_max)
{
    return (struct bag_transpose_arrays){
        .counts = lab_blank(lab, 2 * sizeof(uint32_t), 0),
        .first = lab_blank(lab, (b->n_unique + 1) * sizeof(uint32_t), 0),
        .spans = lab_blank(lab, (n_spans_max + 1) * sizeof(uint32_t), 0),
        .bags = lab_blank(lab, (b->n_keys + 1) * sizeof(uint32_t), 0)
    };
}

static void check_transpose(struct lab *lab, const struct batch *b)
{
    const uint32_t n_spans = bag_transpose_n_spans_max(b->n_unique, b->n_keys);
    const struct bag_transpose_arrays want = arrays_of(lab, b, n_spans);
    const size_t n_words = b->n_unique + 1;
    struct transposing x = { .t = { .n_bags = b->n * FIELDS,
                                    .n_rows_max = b->n_unique + lab_below(lab, 3000),
                                    .n_keys_max = b->n_keys + lab_below(lab, 300),
                                    .n_spans_max = n_spans,
                                    .n_rows = copied(lab, &b->n_unique, sizeof b->n_unique),
                                    .starts = copied(lab, b->starts, (b->n * FIELDS + 1) * 4),
                                    .order = copied(lab, b->order, b->n_keys * 4 + 1),
                                    .order_starts = copied(lab, b->order_starts, n_words * 4),
                                    .to = arrays_of(lab, b, n_spans) } };

    x.scratch = lab_blank(lab, kernels_transpose_bags_bytes(&x.t), 0);
    bag_transpose_build(&(struct bag_transpose_input){ b->n * FIELDS, b->n_unique, b->starts,
                                                       b->row_of, b->order, b->order_starts },
                        &want);
    lab_each_order(lab, transpose, &x,
                   (struct lab_out[]){ { x.t.to.counts, 2 * 4, NULL },
                                       { x.t.to.first, n_words * 4, NULL },
                                       { x.t.to.spans, (want.counts[1] + 1) * 4, NULL },
                                       { x.t.to.bags, b->n_keys * 4, NULL },
                                       { 0 } });
    assert_memory_equal(x.t.to.counts, want.counts, 2 * 4);
    assert_memory_equal(x.t.to.first, want.first, n_words * 4);
    assert_memory_equal(x.t.to.spans, want.spans, (want.counts[1] + 1) * 4);
    assert_memory_equal(x.t.to.bags, want.bags, b->n_keys * 4);
}

/* Of one key, of rows of many uses, of bags of any length, of many rows. */
static void a_transpose_is_the_hosts(void **state)
{
    static const struct {
        uint32_t n, most;
        unsigned bits;
    } batches[] = { { 1, 0, 60 }, { 500, 0, 1 }, { 90, 6, 5 }, { 700, 0, 60 } };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(batches); i++) {
        struct batch b;

        fill(&b, &lab->rng, batches[i].n, batches[i].most, batches[i].bits, false);
        assert_int_equal(batch_dedup(&b), 0);
        check_transpose(lab, &b);
        batch_deinit(&b);
        lab_sweep(lab);
    }
}

/* ---- the device ---- */

static void *host(const struct rig *r, size_t n_bytes)
{
    void *memory = ops->host_alloc(r->c, n_bytes);

    assert_non_null(memory);
    return memory;
}

/* As a loader's batch: arrays of the device's host memory. */
static void dedup(const struct rig *r, struct device_dedup *d, struct batch *b)
{
    const size_t n = (size_t)b->n_keys + 1;
    uint64_t *keys = host(r, 2 * n * sizeof *keys);
    uint32_t *words = host(r, 3 * n * sizeof *words),
             *starts = host(r, (b->n * FIELDS + 1) * sizeof *starts);
    struct arrays got = { 0, { 0 }, keys + n, words, words + n, words + 2 * n };
    const struct key_dedup k = {
        b->n_keys,  b->n * FIELDS, FIELDS,           b->groups ? GROUPS : 0,
        keys,       starts,        of_field,         got.unique,
        got.row_of, got.order,     got.order_starts, got.group_starts
    };
    struct err err;

    memcpy(keys, b->keys, b->n_keys * sizeof *keys);
    memcpy(starts, b->starts, (b->n * FIELDS + 1) * sizeof *starts);
    if (ops->dedup(d, &k, &got.n_unique, &err))
        fail_msg("%s", err.text);
    check(&got, b);
    ops->host_free(r->c, keys, 2 * n * sizeof *keys);
    ops->host_free(r->c, words, 3 * n * sizeof *words);
    ops->host_free(r->c, starts, (b->n * FIELDS + 1) * sizeof *starts);
}

static void open_both(struct rig *r, struct device_dedup **ret)
{
    struct err err;

    *r = rig_open(rig_seed(), DEVICE_FP32);
    if (ops->dedup_new(r->c, ret, &err))
        fail_msg("%s", err.text);
}

static void a_stream_of_its_own_removes_them_from_batch_after_batch(void **state)
{
    struct device_dedup *d;
    struct rig r;

    (void)state;
    open_both(&r, &d);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct batch b;

        fill(&b, &r.rng, cases[i].n, cases[i].most, cases[i].bits, cases[i].has_groups);
        dedup(&r, d, &b);
        batch_deinit(&b);
    }
    ops->dedup_free(d);
    ops->dedup_free(NULL);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_of_the_cpu),
        cmocka_unit_test(a_transpose_is_the_hosts),
        cmocka_unit_test(a_stream_of_its_own_removes_them_from_batch_after_batch),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
