#include "tests/unit/data/fixture.h"

#include <errno.h>

#include "worker/data/batch.h"

/* Memory that a caller gives: never zeroed, and all of it is to come back as it went. */
struct vault {
    struct batch_allocator memory;
    size_t n_out, bytes_out;
    uint32_t n_taken;
};

static void *vault_alloc(void *arg, size_t n_bytes)
{
    struct vault *v = arg;
    void *block = memory_try_alloc(n_bytes);

    if (!block)
        return NULL;
    v->n_out++;
    v->n_taken++;
    v->bytes_out += n_bytes;
    return memset(block, 0xff, n_bytes);
}

static void vault_free(void *arg, void *memory, size_t n_bytes)
{
    struct vault *v = arg;

    assert_non_null(memory);
    ((volatile uint8_t *)memory)[n_bytes - 1] = 0; /* the sanitizer knows how many there are */
    v->n_out--;
    v->bytes_out -= n_bytes;
    free(memory);
}

static void vault_open(struct vault *v)
{
    *v = (struct vault){ .memory = { vault_alloc, vault_free, v } };
}

static void vault_is_whole(const struct vault *v)
{
    assert_int_equal(v->n_out, 0);
    assert_int_equal(v->bytes_out, 0);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void put_key(struct batch *b, uint64_t key)
{
    assert_int_equal(batch_reserve_keys(b, 1), 0);
    b->keys[b->n_keys++] = key;
}

/* What batch_dedup() must give, the slow way. */
static void check_against_reference(const struct batch *b)
{
    uint64_t *sorted = memory_alloc((b->n_keys + 1) * sizeof *sorted);
    uint32_t n = 0;

    memcpy(sorted, b->keys, b->n_keys * sizeof *sorted);
    qsort(sorted, b->n_keys, sizeof *sorted, by_value);
    for (uint32_t i = 0; i < b->n_keys; i++)
        if (i == 0 || sorted[i] != sorted[n - 1])
            sorted[n++] = sorted[i];
    assert_int_equal(b->n_unique, n);
    assert_memory_equal(b->unique, sorted, n * sizeof *sorted);
    for (uint32_t i = 0; i < b->n_keys; i++) {
        assert_true(b->row_of[i] < n);
        assert_true(b->unique[b->row_of[i]] == b->keys[i]);
    }
    assert_int_equal(b->order_starts[0], 0);
    assert_int_equal(b->order_starts[n], b->n_keys);
    for (uint32_t u = 0; u < n; u++) {
        assert_true(b->order_starts[u] < b->order_starts[u + 1]);
        for (uint32_t i = b->order_starts[u]; i < b->order_starts[u + 1]; i++) {
            assert_int_equal(b->row_of[b->order[i]], u);
            assert_true(i == b->order_starts[u] || b->order[i - 1] < b->order[i]);
        }
    }
    free(sorted);
}

/* Fields in groups: the keys of a group stand together, and each group is what a batch of its fields alone has. */
static void check_groups(const struct batch *b)
{
    for (uint32_t g = 0; g < b->groups->n; g++) {
        const uint32_t first = batch_group_start(b, g), end = batch_group_start(b, g + 1);

        for (uint32_t u = first; u < end; u++) {
            assert_true(u == first || b->unique[u - 1] < b->unique[u]);
            for (uint32_t i = b->order_starts[u]; i < b->order_starts[u + 1]; i++) {
                assert_int_equal(b->row_of[b->order[i]], u);
                assert_true(b->unique[u] == b->keys[b->order[i]]);
                assert_true(i == b->order_starts[u] || b->order[i - 1] < b->order[i]);
            }
        }
        for (uint32_t bag = 0; bag < b->n * b->n_fields; bag++)
            for (uint32_t i = b->starts[bag]; i < b->starts[bag + 1]; i++)
                if (b->groups->of_field[bag % b->n_fields] == g)
                    assert_true(b->row_of[i] >= first && b->row_of[i] < end);
    }
    assert_int_equal(batch_group_start(b, b->groups->n), b->n_unique);
    assert_int_equal(b->order_starts[b->n_unique], b->n_keys);
}

static uint64_t key_of_kind(uint32_t kind, uint64_t seed, uint64_t *counter)
{
    uint64_t h = hash_mix2(seed, (*counter)++);

    switch (kind) {
    case 0:
        return h;
    case 1:
        return h % 10;
    case 2:
        return h << 48;
    case 3:
        return h & UINT64_C(0xff00ff0000000001);
    case 4:
        return h % 3 ? (h & 1 ? 0 : UINT64_MAX) : h;
    case 5:
        return 42;
    /* Many that are of few slots, among those that are hashes. */
    default:
        return h % 2 ? h : UINT64_C(0x7777777777000000) + h % 3000;
    }
}

#define N_KINDS 7u

static void dedup_agrees_with_a_sort(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;
    struct batch_scratch memory = { 0 };
    struct batch b;

    (void)state;
    assert_int_equal(batch_init(&b, 16, 3, 4), 0);
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t n = fixture_draw(seed, &counter, round % 10 == 0 ? 20000 : 70);

        batch_clear(&b);
        for (uint32_t i = 0; i < n; i++)
            put_key(&b, key_of_kind(round % N_KINDS, seed, &counter));
        assert_int_equal(round % 2 ? batch_dedup(&b) : batch_dedup_with(&b, &memory), 0);
        check_against_reference(&b);
    }
    batch_scratch_deinit(&memory);
    batch_deinit(&b);
}

static void a_batch_without_keys_has_no_unique_ones(void **state)
{
    struct batch b;

    (void)state;
    assert_int_equal(batch_init(&b, 1, 0, 0), 0);
    assert_int_equal(batch_dedup(&b), 0);
    assert_int_equal(b.n_unique, 0);
    batch_deinit(&b);
    batch_deinit(&b);
}

static void more_keys_than_a_number_can_count_are_refused(void **state)
{
    struct batch b;

    (void)state;
    assert_int_equal(batch_init(&b, UINT32_MAX, 0, 1024), -ENOMEM);
    assert_int_equal(batch_init(&b, 4, 0, 4), 0);
    put_key(&b, 1);
    assert_int_equal(batch_reserve_keys(&b, UINT32_MAX), -ENOMEM);
    assert_true(b.keys[0] == 1);
    batch_deinit(&b);
}

static void what_a_device_copies_lies_in_the_memory_that_was_given(void **state)
{
    struct vault v;
    struct batch b;

    (void)state;
    vault_open(&v);
    assert_int_equal(batch_init_in(&b, &v.memory, 50, 3, 4), 0);
    assert_int_equal(v.n_out, 8);
    /* label, numeric, starts, row_of, order, order_starts; keys, unique */
    assert_int_equal(v.bytes_out, 4 * (50 + 151 + 201 + 201 + 201 + 202) + 8 * (201 + 201));
    assert_int_equal(batch_dedup(&b), 0);
    for (uint64_t round = 1; round <= 6; round++) {
        batch_clear(&b);
        for (uint64_t i = 0; i < 300 * round; i++)
            put_key(&b, hash_mix2(round, i % 90));
        assert_int_equal(batch_dedup(&b), 0);
        check_against_reference(&b);
        assert_int_equal(v.n_out, 8);
    }
    /* 201 keys, then twice as many each time, up to 3216 */
    assert_int_equal(v.n_taken, 8 + 4 * 5);
    batch_deinit(&b);
    vault_is_whole(&v);
}

#define N_FIELDS 7u

/* Bags of 0 to 3 keys; the keys of a field are its own. */
static void fill_grouped(struct batch *b, uint64_t seed, uint64_t *counter, uint32_t n_keys_max)
{
    batch_clear(b);
    b->n = fixture_draw(seed, counter, b->n_max + 1);
    for (uint32_t bag = 0; bag < b->n * N_FIELDS; bag++) {
        for (uint32_t i = fixture_draw(seed, counter, 4); i > 0; i--)
            put_key(b, hash_mix2(bag % N_FIELDS, fixture_draw(seed, counter, n_keys_max)));
        b->starts[bag + 1] = b->n_keys;
    }
}

static void keys_stand_by_the_groups_of_their_fields(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;
    uint8_t of_field[N_FIELDS];
    struct batch_groups groups = { .of_field = of_field };
    struct batch b, plain;

    (void)state;
    assert_int_equal(batch_init(&b, 64, 0, N_FIELDS), 0);
    assert_int_equal(batch_init(&plain, 64, 0, N_FIELDS), 0);
    for (uint32_t round = 0; round < 200; round++) {
        uint64_t before = counter;

        groups.n = 1 + fixture_draw(seed, &counter, round % 20 ? N_FIELDS : BATCH_GROUPS_MAX);
        for (uint32_t f = 0; f < N_FIELDS; f++)
            of_field[f] = (uint8_t)fixture_draw(seed, &counter, groups.n);
        before = counter;
        fill_grouped(&b, seed, &counter, round % 3 ? 20 : 100000);
        fill_grouped(&plain, seed, &before, round % 3 ? 20 : 100000);
        b.groups = &groups;
        assert_int_equal(batch_dedup(&b), 0);
        assert_int_equal(batch_dedup(&plain), 0);
        assert_int_equal(b.n_unique, plain.n_unique);
        check_groups(&b);
    }
    batch_deinit(&b);
    batch_deinit(&plain);
}

#ifdef PS_FAULTS
static void a_failed_allocation_for_groups_is_reported(void **state)
{
    const uint8_t of_field[N_FIELDS] = { 0, 1, 1, 0, 2 };
    const struct batch_groups groups = { 3, of_field };
    int status = -1;

    (void)state;
    for (long k = 0; status != 0; k++) {
        uint64_t counter = 0;
        struct batch b;

        assert_int_equal(batch_init(&b, 64, 0, N_FIELDS), 0);
        fill_grouped(&b, 1, &counter, 100);
        b.groups = &groups;
        memory_fail_after(k);
        status = batch_dedup(&b);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        if (!status)
            check_groups(&b);
        batch_deinit(&b);
    }
}

static void the_same_size_again_allocates_nothing(void **state)
{
    struct batch b;

    (void)state;
    assert_int_equal(batch_init(&b, 100, 2, 8), 0);
    for (uint64_t round = 0; round < 5; round++) {
        batch_clear(&b);
        for (uint64_t i = 0; i < 800; i++)
            put_key(&b, hash_mix2(round, i));
        assert_int_equal(batch_dedup(&b), 0);
        check_against_reference(&b);
        memory_fail_after(0);
    }
    memory_fail_after(-1);
    batch_deinit(&b);
}

static int fill(struct batch *b)
{
    for (uint64_t i = 0; i < 5000; i++) {
        if (batch_reserve_keys(b, 1))
            return -ENOMEM;
        b->keys[b->n_keys++] = hash_mix(i % 1000);
    }
    return batch_dedup(b);
}

static void every_failed_allocation_leaves_the_keys(const struct batch_allocator *memory)
{
    int status = -1;

    for (long k = 0; status != 0; k++) {
        struct batch b;

        memory_fail_after(k);
        status = batch_init_in(&b, memory, 8, 1, 2);
        if (!status)
            status = fill(&b);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        for (uint32_t i = 0; i < b.n_keys; i++)
            assert_true(b.keys[i] == hash_mix(i % 1000));
        if (!status)
            check_against_reference(&b);
        batch_deinit(&b);
    }
}

static void every_failed_allocation_is_reported_and_leaves_the_keys(void **state)
{
    struct vault v;

    (void)state;
    every_failed_allocation_leaves_the_keys(NULL);
    vault_open(&v);
    every_failed_allocation_leaves_the_keys(&v.memory);
    vault_is_whole(&v);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dedup_agrees_with_a_sort),
        cmocka_unit_test(keys_stand_by_the_groups_of_their_fields),
        cmocka_unit_test(a_batch_without_keys_has_no_unique_ones),
        cmocka_unit_test(what_a_device_copies_lies_in_the_memory_that_was_given),
        cmocka_unit_test(more_keys_than_a_number_can_count_are_refused),
#ifdef PS_FAULTS
        cmocka_unit_test(a_failed_allocation_for_groups_is_reported),
        cmocka_unit_test(the_same_size_again_allocates_nothing),
        cmocka_unit_test(every_failed_allocation_is_reported_and_leaves_the_keys),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
