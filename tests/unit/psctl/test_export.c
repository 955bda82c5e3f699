/* Tables as arrays, and arrays as files of both formats. */
#include <errno.h>
#include <inttypes.h>

#include "deploy/psctl/export.h"
#include "deploy/psctl/tensor_files.h"
#include "server/core/restore.h"
#include "server/core/row_init.h"
#include "tests/support/crash_files.h"
#include "tests/unit/core/fixture.h"

/* --- arrays --- */

/* All of a tensor's bytes; free() them. */
static uint8_t *bytes_of(const struct tensor_array *t)
{
    uint8_t *bytes = malloc((size_t)tensor_files_array_bytes(t) + 1),
            *part = malloc(t->part_bytes + 1);
    size_t n = 0;

    for (uint64_t i = 0; i < t->n_parts; i++) {
        size_t n_part = t->part(t->owner, i, part);

        assert_true(n_part <= t->part_bytes && n + n_part <= tensor_files_array_bytes(t));
        memcpy(bytes + n, part, n_part);
        n += n_part;
    }
    assert_int_equal(n, tensor_files_array_bytes(t));
    free(part);
    return bytes;
}

static void assert_tensor(const struct tensor_array *t, const char *name,
                          enum tensor_files_type type, uint32_t n_dims, uint64_t first,
                          uint64_t second)
{
    assert_string_equal(t->name, name);
    assert_int_equal(t->type, type);
    assert_int_equal(t->n_dims, n_dims);
    assert_int_equal(t->dims[0], first);
    if (n_dims == 2)
        assert_int_equal(t->dims[1], second);
}

static void rows_of_a_sparse_table_stand_by_key_as_i64_with_their_state(void **state)
{
    const uint64_t keys[3] = { 7, UINT64_MAX, 3 }; /* the second is -1 */
    const float rows[3][6] = { { 1, 2, 3, 4, 5, 6 },
                               { 11, 12, 13, 14, 15, 16 },
                               { 21, 22, 23, 24, 25, 26 } };
    const int64_t want_keys[3] = { -1, 3, 7 };
    const float want_w[3][2] = { { 11, 12 }, { 21, 22 }, { 1, 2 } };
    const float want_v[3][2] = { { 15, 16 }, { 25, 26 }, { 5, 6 } };
    struct table_spec spec = sparse_spec("job/emb", 2, TABLE_SPEC_ADAM);
    struct shard *s = make_shard(0, 1, 0);
    struct export_arrays a;
    uint8_t *bytes;

    (void)state;
    make_table(s, &spec);
    enter_shard();
    for (int i = 0; i < 3; i++)
        assert_int_equal(restore_row(s, 0, keys[i], 0, rows[i]), 0);
    assert_int_equal(export_init(&a, s, 0, EXPORT_WITH_STATE, NULL), 0);
    assert_int_equal(a.n_tensors, 4);
    assert_tensor(&a.tensors[0], "job/emb.keys", TENSOR_FILES_I64, 1, 3, 0);
    assert_tensor(&a.tensors[1], "job/emb.weight", TENSOR_FILES_F32, 2, 3, 2);
    assert_tensor(&a.tensors[2], "job/emb.state.m", TENSOR_FILES_F32, 2, 3, 2);
    assert_tensor(&a.tensors[3], "job/emb.state.v", TENSOR_FILES_F32, 2, 3, 2);
    bytes = bytes_of(&a.tensors[0]);
    assert_memory_equal(bytes, want_keys, sizeof want_keys);
    free(bytes);
    bytes = bytes_of(&a.tensors[1]);
    assert_memory_equal(bytes, want_w, sizeof want_w);
    free(bytes);
    bytes = bytes_of(&a.tensors[3]);
    assert_memory_equal(bytes, want_v, sizeof want_v);
    free(bytes);
    export_deinit(&a);
    shard_free(s);
}

static void half_weights_are_exported_as_floats_and_rowwise_state_has_one_number(void **state)
{
    const uint16_t payload[4] = { 0x3f80, 0x4000, 0, 0x4040 }; /* 1, 2; f32 2 behind padding */
    const float want[2] = { 1, 2 };
    struct table_spec spec = sparse_spec("half", 2, TABLE_SPEC_ROWWISE_ADAGRAD);
    struct shard *s = make_shard(0, 1, 0);
    struct export_arrays a;
    uint8_t *bytes;
    float sum;

    (void)state;
    spec.storage = TABLE_SPEC_BF16;
    make_table(s, &spec);
    enter_shard();
    assert_int_equal(restore_row(s, 0, 1, 0, payload), 0);
    assert_int_equal(export_init(&a, s, 0, EXPORT_WITH_STATE, NULL), 0);
    assert_int_equal(a.n_tensors, 3);
    bytes = bytes_of(&a.tensors[1]);
    assert_memory_equal(bytes, want, sizeof want);
    free(bytes);
    assert_tensor(&a.tensors[2], "half.state.s", TENSOR_FILES_F32, 1, 1, 0);
    bytes = bytes_of(&a.tensors[2]);
    memcpy(&sum, bytes, sizeof sum);
    assert_true(sum == 3);
    free(bytes);
    export_deinit(&a);
    shard_free(s);
}

static void
a_dense_table_is_one_array_without_padding_and_what_is_missing_is_initial(void **state)
{
    const float block[4] = { 1, 2, 3, 4 };
    struct table_spec spec = dense_spec("top", 4, 10, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct export_arrays a;
    float want[12];
    uint8_t *bytes;

    (void)state;
    make_table(s, &spec);
    enter_shard();
    assert_int_equal(restore_row(s, 0, 1, 0, block), 0);
    for (uint64_t i = 0; i < 3; i++)
        row_init_row(&spec, i, want + 4 * i);
    memcpy(want + 4, block, sizeof block);
    assert_int_equal(export_init(&a, s, 0, EXPORT_WEIGHTS, NULL), 0);
    assert_int_equal(a.n_tensors, 1);
    assert_tensor(&a.tensors[0], "top", TENSOR_FILES_F32, 1, 10, 0);
    bytes = bytes_of(&a.tensors[0]);
    assert_memory_equal(bytes, want, 40);
    free(bytes);
    export_deinit(&a);
    shard_free(s);
}

/* Factors of a block that are as many as its weights: no last block of theirs is padded. */
static void see_factors(uint32_t dim, enum table_spec_optim optim, const char *name)
{
    struct table_spec spec = dense_spec("top", dim, 2 * dim + 1, optim);
    const uint32_t first = table_spec_state_floats(&spec);
    struct shard *s = make_shard(0, 1, 0);
    const struct tensor_array *t;
    struct export_arrays a;
    float row[64], *got;

    assert_true(dim + first <= COUNT_OF(row));
    make_table(s, &spec);
    enter_shard();
    for (uint64_t i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < dim + first; k++)
            row[k] = (float)(100 * i + k);
        assert_int_equal(restore_row(s, 0, i, 0, row), 0);
    }
    assert_int_equal(export_init(&a, s, 0, EXPORT_WITH_STATE, NULL), 0);
    t = &a.tensors[a.n_tensors - 1];
    assert_tensor(t, name, TENSOR_FILES_F32, 2, 3, dim);
    got = (float *)(void *)bytes_of(t);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t k = 0; k < dim; k++)
            assert_true(got[i * dim + k] == (float)(100 * i + first + k));
    free(got);
    export_deinit(&a);
    shard_free(s);
}

static void factors_as_wide_as_a_block_stand_by_block(void **state)
{
    (void)state;
    see_factors(16, TABLE_SPEC_CAME, "top.state.f");
    see_factors(18, TABLE_SPEC_CAME, "top.state.f");
    see_factors(4, TABLE_SPEC_SM3_MATRIX, "top.state.s");
}

static void the_arrays_of_a_state_are_all_of_it(void **state)
{
    (void)state;
    for (int optim = 0; optim < TABLE_SPEC_OPTIM_END; optim++)
        for (uint32_t dim = 1; dim < 40; dim++) {
            const struct table_spec spec = { .dim = dim,
                                             .optim = (enum table_spec_optim)optim };
            uint32_t n = 0;

            for (uint32_t i = 0; i < export_n_states(spec.optim); i++) {
                n += export_state_width(&spec, i);
                if (export_state_is_as_weights(spec.optim, i))
                    assert_int_equal(export_state_width(&spec, i), dim);
            }
            assert_int_equal(n, table_spec_state_floats(&spec));
        }
}

static void a_table_without_rows_is_empty_arrays(void **state)
{
    struct table_spec spec = sparse_spec("none", 2, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct export_arrays a;

    (void)state;
    make_table(s, &spec);
    enter_shard();
    assert_int_equal(export_init(&a, s, 0, EXPORT_WITH_STATE, NULL), 0);
    assert_int_equal(a.n_tensors, 2);
    assert_tensor(&a.tensors[1], "none.weight", TENSOR_FILES_F32, 2, 0, 2);
    assert_int_equal(tensor_files_array_bytes(&a.tensors[1]), 0);
    export_deinit(&a);
    shard_free(s);
}

/* --- files --- */

static size_t count_up(void *owner, uint64_t i, uint8_t *dst)
{
    float pair[2] = { (float)i, -(float)i };

    (void)owner;
    memcpy(dst, pair, sizeof pair);
    return sizeof pair;
}

static size_t name_keys(void *owner, uint64_t i, uint8_t *dst)
{
    int64_t key = (int64_t)i - 5;

    (void)owner;
    memcpy(dst, &key, sizeof key);
    return sizeof key;
}

/* More than the writer's buffer holds. */
#define N_ROWS 300000u

static const struct tensor_array weights = { .name = "w",
                                             .type = TENSOR_FILES_F32,
                                             .n_dims = 2,
                                             .dims = { N_ROWS, 2 },
                                             .n_parts = N_ROWS,
                                             .part_bytes = 8,
                                             .part = count_up };
static const struct tensor_array keys = { .name = "k\"ey",
                                          .type = TENSOR_FILES_I64,
                                          .n_dims = 1,
                                          .dims = { 9 },
                                          .n_parts = 9,
                                          .part_bytes = 8,
                                          .part = name_keys };

static void an_npy_file_is_its_head_and_the_numbers(void **state)
{
    static const char dictionary[] =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (300000, 2), }";
    struct crash_files c;
    const struct crash_inode *file;
    float pair[2];

    (void)state;
    crash_files_init(&c);
    assert_int_equal(tensor_files_write_npy(&c.ops, "w.npy", &weights, NULL), 0);
    file = crash_files_at(&c, "w.npy");
    assert_memory_equal(file->bytes, "\x93NUMPY\x01\x00\xf6\x00", 10);
    assert_memory_equal(file->bytes + 10, dictionary, sizeof dictionary - 1);
    assert_int_equal(file->bytes[255], '\n');
    assert_int_equal(file->n_bytes, 256 + tensor_files_array_bytes(&weights));
    memcpy(pair, file->bytes + 256 + 8 * 299999, sizeof pair);
    assert_true(pair[0] == 299999 && pair[1] == -299999);
    assert_int_equal(tensor_files_write_npy(&c.ops, "k.npy", &keys, NULL), 0);
    assert_non_null(strstr((const char *)crash_files_at(&c, "k.npy")->bytes + 10,
                           "'<i8', 'fortran_order': False, 'shape': (9,), }"));
    crash_files_deinit(&c);
}

static void a_safetensors_file_has_keys_first_and_says_where_each_array_is(void **state)
{
    static const char head[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"said\"},"
        "\"k\\\"ey\":{\"dtype\":\"I64\",\"shape\":[9],\"data_offsets\":[0,72]},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[300000,2],\"data_offsets\":[72,2400072]}}";
    const struct tensor_array tensors[2] = { weights, keys };
    static char said[] = "said";
    const struct safetensors_note note = { "note", said };
    struct crash_files c;
    const struct crash_inode *file;
    uint64_t n_head;
    int64_t key;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(tensor_files_write_safetensors(&c.ops, "m", tensors, 2, &note, 1, NULL),
                     0);
    file = crash_files_at(&c, "m");
    memcpy(&n_head, file->bytes, sizeof n_head);
    assert_int_equal(n_head % 8, 0);
    assert_memory_equal(file->bytes + 8, head, sizeof head - 1);
    for (size_t i = sizeof head - 1; i < n_head; i++)
        assert_int_equal(file->bytes[8 + i], ' ');
    memcpy(&key, file->bytes + 8 + n_head + 8, sizeof key);
    assert_int_equal(key, -4);
    assert_int_equal(file->n_bytes, 8 + n_head + 2400072);
    crash_files_deinit(&c);
}

static int write_both(struct crash_files *c, struct err *err)
{
    const struct tensor_array tensors[2] = { weights, keys };
    int status = tensor_files_write_npy(&c->ops, "w.npy", &weights, err);

    return status ? status
                  : tensor_files_write_safetensors(&c->ops, "m", tensors, 2, NULL, 0, err);
}

static void whatever_fails_leaves_a_whole_file_or_none(void **state)
{
    struct crash_files c;
    long n_ops;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(write_both(&c, NULL), 0);
    n_ops = c.n_ops;
    crash_files_deinit(&c);
    assert_true(n_ops > 10);
    for (long k = 0; k < n_ops; k++) {
        struct err err = { 0 };
        int status;

        crash_files_init(&c);
        c.fail_at = k;
        c.torn = true;
        status = write_both(&c, &err);
        assert_int_equal(status, -EIO);
        assert_int_equal(err.status, -EIO);
        assert_true(strstr(err.text, "w.npy") || strstr(err.text, " m"));
        assert_null(crash_files_at(&c, "w.npy.tmp"));
        assert_null(crash_files_at(&c, "m.tmp"));
        assert_int_equal(crash_files_n_open(&c), 0);
        assert_true(!crash_files_at(&c, "w.npy") ||
                    crash_files_at(&c, "w.npy")->n_bytes ==
                        256 + tensor_files_array_bytes(&weights));
        crash_files_deinit(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_sparse_table_stand_by_key_as_i64_with_their_state),
        cmocka_unit_test(half_weights_are_exported_as_floats_and_rowwise_state_has_one_number),
        cmocka_unit_test(
            a_dense_table_is_one_array_without_padding_and_what_is_missing_is_initial),
        cmocka_unit_test(factors_as_wide_as_a_block_stand_by_block),
        cmocka_unit_test(the_arrays_of_a_state_are_all_of_it),
        cmocka_unit_test(a_table_without_rows_is_empty_arrays),
        cmocka_unit_test(an_npy_file_is_its_head_and_the_numbers),
        cmocka_unit_test(a_safetensors_file_has_keys_first_and_says_where_each_array_is),
        cmocka_unit_test(whatever_fails_leaves_a_whole_file_or_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
