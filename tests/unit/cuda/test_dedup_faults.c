/* Duplicate keys removed on a device of which a call fails: a sentence, and then the next batch. */
#include "tests/unit/cuda/rig.h"

enum { N = 9, FIELDS = 2, KEYS = N * FIELDS, GROUPS = 2 };

/* A key for each bag, out of a few. */
struct keys {
    uint64_t keys[KEYS], unique[KEYS];
    uint32_t starts[KEYS + 1], row_of[KEYS], order[KEYS], order_starts[KEYS + 1];
    uint32_t group_starts[GROUPS + 1], n_unique;
};

static int dedup(struct device_dedup *d, struct keys *k, struct err *err)
{
    static const uint8_t of_field[FIELDS] = { 1, 0 };
    const struct key_dedup arrays = { KEYS,      KEYS,      FIELDS,          GROUPS,
                                      k->keys,   k->starts, of_field,        k->unique,
                                      k->row_of, k->order,  k->order_starts, k->group_starts };

    memset(k, 0xff, sizeof *k);
    for (uint32_t i = 0; i < KEYS; i++)
        k->keys[i] = i % FIELDS << 8 | i / 3;
    for (uint32_t i = 0; i <= KEYS; i++)
        k->starts[i] = i;
    return ops->dedup(d, &arrays, &k->n_unique, err);
}

static void check_rows(const struct keys *k)
{
    assert_int_equal(k->n_unique, 12);
    assert_int_equal(k->group_starts[1], 6);
    assert_int_equal(k->order_starts[12], KEYS);
    for (uint32_t i = 0; i < KEYS; i++)
        assert_true(k->unique[k->row_of[i]] == k->keys[i]);
}

static void check_sentence(int status, const struct err *err)
{
    assert_int_equal(status, PS_EDEVICE);
    assert_non_null(strstr(err->text, "removing duplicate keys"));
}

static void each_call_that_can_fail_is_reported(void **state)
{
    struct rig r = rig_open(rig_seed(), DEVICE_FP32);
    struct device_dedup *d = NULL;
    struct err err;
    struct keys k;
    int status;

    (void)state;
    for (long i = 0; !d; i++) {
        emu_rt_fail(i, EMU_RT_ONCE);
        status = ops->dedup_new(r.c, &d, &err);
        if (status)
            check_sentence(status, &err);
    }
    for (long i = 0; i == 0 || status; i++) {
        ops->dedup_free(d);
        emu_rt_fail(-1, EMU_RT_ONCE);
        assert_int_equal(ops->dedup_new(r.c, &d, &err), 0);
        emu_rt_fail(i, EMU_RT_ONCE);
        status = dedup(d, &k, &err);
        assert_int_equal(status != 0, emu_rt_has_failed());
        emu_rt_fail(-1, EMU_RT_ONCE);
        if (status)
            check_sentence(status, &err);
        if (status && i % 16 == 5) /* of some, as it takes long */
            assert_int_equal(dedup(d, &k, &err), 0);
        if (!status || i % 16 == 5)
            check_rows(&k);
    }
    ops->dedup_free(d);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_that_can_fail_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
