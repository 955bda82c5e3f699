/* How a row begins, and comes from a checkpoint. */
#include "fixture.h"
#include "server/core/row_admission.h"
#include "server/core/row_init.h"
#include "server/core/weights.h"

#define DIM 7u /* odd: halves are padded */

static struct shard_entry *entry_of(struct shard *s, const struct table_spec *spec)
{
    uint32_t id = make_table(s, spec); /* may move s->tables */

    return s->tables[id];
}

/* As a push of its own does that has no other row. */
static struct row *grow(struct shard *s, struct shard_entry *entry, uint64_t key)
{
    struct row *row = NULL;

    row_admission_rows(s, entry, SECTION_GRADIENT, UINT64_MAX, &key, 1, &row);
    return row;
}

static void
a_new_row_holds_its_initial_weights_as_stored_and_the_state_that_follows(void **state)
{
    (void)state;
    for (int storage = 0; storage < TABLE_SPEC_STORAGE_END; storage++)
        for (int optim = 0; optim < TABLE_SPEC_OPTIM_END; optim++) {
            struct table_spec spec = sparse_spec("emb", DIM, (enum table_spec_optim)optim);
            struct shard *s = make_shard(0, 1, 0);
            float weights[DIM], want_state[3 * DIM + 2];
            uint8_t stored[4 * DIM + 4] = { 0 };
            struct shard_entry *entry;
            struct row *row;
            uint32_t n_bytes, state_bytes;

            spec.storage = (enum table_spec_storage)storage;
            spec.params.initial_accumulator = 0.125f;
            entry = entry_of(s, &spec);
            row = grow(s, entry, 77);
            assert_non_null(row);
            assert_true(row->key == 77 && row->stamp == 0);
            n_bytes = weights_bytes(spec.storage, DIM);
            row_init_row(&spec, 77, weights);
            weights_set(spec.storage, weights, DIM, stored);
            assert_memory_equal(row->floats, stored, n_bytes);
            weights_load(spec.storage, stored, DIM, weights);
            entry->optim->init(weights, want_state, DIM, &spec.params);
            state_bytes = entry->optim->state_floats(DIM) * (uint32_t)sizeof(float);
            assert_int_equal(entry->table.payload_bytes, n_bytes + state_bytes);
            if (state_bytes)
                assert_memory_equal((char *)row->floats + n_bytes, want_state, state_bytes);
            assert_int_equal(s->counters.rows_new, 1);
            shard_free(s);
        }
}

static void a_table_has_an_equal_part_of_its_budget_on_each_shard(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);

    (void)state;
    for (uint32_t shard = 0; shard < 3; shard++) {
        struct shard *s = make_shard(shard, 3, 0);

        spec.limits.max_bytes = 3000002;
        assert_int_equal(entry_of(s, &spec)->table.bytes_max, 1000000);
        shard_free(s);
    }
}

/* Fills a budget with churn, then builds the same rows again in another order. */
static void rows_that_filled_a_budget_fit_again_in_any_order(void **state)
{
    static const uint64_t budgets[] = { 100000, 1 << 20, 5 << 20 };

    (void)state;
    for (size_t b = 0; b < COUNT_OF(budgets); b++) {
        struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD);
        struct shard *s = make_shard(0, 1, budgets[b]), *again = make_shard(0, 1, budgets[b]);
        struct shard_entry *entry;
        struct row *row;

        spec.limits.victims = TABLE_SPEC_VICTIMS_OLDEST;
        entry = entry_of(s, &spec);
        make_table(again, &spec);
        for (uint64_t i = 1; i < 3 * budgets[b] / 72; i++) {
            row = grow(s, entry, hash_mix(i));
            assert_non_null(row);
            row_touch(row, i);
        }
        assert_true(s->counters.rows_evicted > 1000);
        for (uint64_t i = table_n_numbers(entry->table.rows); i-- > 0;) {
            row = table_row(entry->table.rows, i);
            if (row)
                assert_int_equal(restore_row(again, 0, row->key, row->stamp, row->floats), 0);
        }
        assert_int_equal(table_n_rows(again->tables[0]->table.rows),
                         table_n_rows(entry->table.rows));
        assert_true(again->budget.used <= budgets[b] + budgets[b] / 32);
        assert_int_equal(again->budget.max, budgets[b]);
        shard_free(s);
        shard_free(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_new_row_holds_its_initial_weights_as_stored_and_the_state_that_follows),
        cmocka_unit_test(a_table_has_an_equal_part_of_its_budget_on_each_shard),
        cmocka_unit_test(rows_that_filled_a_budget_fit_again_in_any_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
