/*
 * A file of arrays, npy or safetensors, as psctl import gets it. Of what is accepted every byte of every array can be
 * read, tables have the arrays that their names say, and numbers that pass are in order and finite.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/psctl/import.h"
#include "tests/fuzz/text.h"

#define BYTES_MAX (1u << 20) /* of all arrays: they may lie over each other */

/* --- the target --- */

static uint64_t read_all(const struct tensor_inputs *set)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < set->n && n_bytes < BYTES_MAX; i++) {
        const struct tensor_input *t = &set->items[i];
        uint8_t *bytes = malloc(t->n_bytes + 1);
        struct err err = { 0 };

        assert(bytes && tensor_input_read(t, 0, bytes, t->n_bytes, &err) == 0);
        assert(t->n_dims <= TENSOR_INPUT_DIMS_MAX && memchr(t->name, 0, sizeof t->name));
        free(bytes);
        n_bytes += t->n_bytes;
    }
    return n_bytes;
}

static void check_order(const struct import_table *t)
{
    uint64_t *keys = malloc(t->n_rows * sizeof *keys + 1);
    struct err err = { 0 };
    bool is_signed = t->keys->type[0] == 'I';

    assert(keys && tensor_input_read(t->keys, 0, keys, t->n_rows * sizeof *keys, &err) == 0);
    for (uint64_t i = 1; i < t->n_rows; i++)
        assert(is_signed ? (int64_t)keys[i - 1] < (int64_t)keys[i] : keys[i - 1] < keys[i]);
    free(keys);
}

static void check_tables(const struct tensor_inputs *set)
{
    struct import_table *tables = NULL;
    struct err err = { 0 };
    uint32_t n = 0;

    if (import_find_tables(set, &tables, &n, &err)) {
        assert(err.text[0]);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct import_table *t = &tables[i];
        struct table_spec spec = { .kind = t->keys ? TABLE_SPEC_SPARSE : TABLE_SPEC_DENSE,
                                   .dim = t->keys ? (uint32_t)t->dim : 4,
                                   .n_floats = t->keys ? 0 : t->weights->n_bytes / 4,
                                   .optim = (enum table_spec_optim)(i % TABLE_SPEC_OPTIM_END) };

        assert(t->name[0] && t->weights);
        if (!import_check_numbers(t, &err) && t->keys)
            check_order(t);
        if (spec.kind == TABLE_SPEC_SPARSE || spec.n_floats)
            (void)!import_check_spec(t, &spec, &err);
    }
    free(tables);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct tensor_inputs set;
    struct err err = { 0 };
    struct text file;

    text_new(&file, bytes, n_bytes);
    if (tensor_inputs_open(&set, file.path, &err)) {
        assert(err.text[0] && set.n == 0);
    } else {
        if (read_all(&set) < BYTES_MAX)
            check_tables(&set);
        tensor_inputs_close(&set);
    }
    text_free(&file);
}

/* --- seeds --- */

static void put_safetensors(struct bytes *out, const char *json, const void *data,
                            size_t n_bytes)
{
    harness_put_number(out, strlen(json), 8);
    harness_put_text(out, json);
    harness_put(out, data, n_bytes);
}

static void put_npy(struct bytes *out, const char *dict, const void *data, size_t n_bytes)
{
    harness_put(out, "\x93NUMPY\1", 8);
    harness_put_number(out, strlen(dict), 2);
    harness_put_text(out, dict);
    harness_put(out, data, n_bytes);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    static const struct {
        int64_t keys[2];
        float rows[4], state[4];
    } data = { { -3, 9 }, { 1, 2, 3, 4 }, { 0, 1, 0, 1 } };

    switch (i) {
    case 0:
        put_safetensors(
            out,
            "{\"__metadata__\":{\"psd:a/e\":\"{\\\"steps\\\":7}\"},"
            "\"a/e.keys\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
            "\"a/e.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,32]},"
            "\"a/e.state.s\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[32,48]},"
            "\"top\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[32,48]}}",
            &data, sizeof data);
        return true;
    case 1:
        put_npy(out, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n", data.rows,
                sizeof data.rows);
        return true;
    case 2:
        put_npy(out, "{'shape': (), 'fortran_order': True, 'descr': '<i8'}", data.keys, 8);
        return true;
    default:
        return false;
    }
}
