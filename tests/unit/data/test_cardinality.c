#include "tests/unit/data/fixture.h"

#include <errno.h>
#include <math.h>

#include "worker/data/cardinality.h"

static const struct schema_text three = { .delimiter = ",",
                                          .header = true,
                                          .label = "y",
                                          .categorical = "a,b,c",
                                          .inner_separator = "|" };

/* A file whose columns have n_a, n_b and n_c different tokens. */
static void write_log(const struct fixture_folder *folder, uint32_t n_rows, const uint32_t n[3],
                      char path[FIXTURE_PATH_MAX])
{
    char *text = memory_alloc(64 + n_rows * 64);
    size_t at = (size_t)sprintf(text, "y,a,b,c\n");

    for (uint32_t i = 0; i < n_rows; i++)
        at += (size_t)sprintf(text + at, "1,t%u,t%u,t%u|t0\n", i % n[0], i % n[1], i % n[2]);
    at += (size_t)sprintf(text + at, "malformed\n");
    fixture_write(folder, "log", text, at, path);
    free(text);
}

static void the_keys_of_each_group_are_counted(void **state)
{
    static const uint8_t apart[] = { 0, 1, 2 }, first_two[] = { 1, 1, 0 };
    const struct batch_groups three_groups = { 3, apart }, two_groups = { 2, first_two };
    static const uint32_t cases[][3] = {
        { 1, 2, 3 }, { 10, 100, 1000 }, { 9000, 11000, 20000 }, { 50000, 60000, 1 }
    };
    struct schema *s = fixture_schema(&three, "y,a,b,c");
    uint64_t counts[3];
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const uint32_t *n = cases[i];
        struct fixture_folder folder;
        char path[FIXTURE_PATH_MAX], *paths[] = { path };

        fixture_folder_new(&folder);
        write_log(&folder, 60000, n, path);
        assert_int_equal(
            cardinality_measure(s, &three_groups, NULL, paths, 1, UINT64_MAX, counts, &err), 0);
        for (uint32_t c = 0; c < 3; c++)
            if (fabs((double)counts[c] / n[c] - 1) > (n[c] < 2000 ? 0.02 : 0.06))
                fail_msg("case %zu: %llu of %u", i, (unsigned long long)counts[c], n[c]);
        assert_int_equal(
            cardinality_measure(s, &two_groups, NULL, paths, 1, UINT64_MAX, counts, &err), 0);
        assert_true(fabs((double)counts[1] / (n[0] + n[1]) - 1) < 0.06);
        fixture_folder_free(&folder);
    }
    schema_free(s);
}

static void only_the_first_rows_count(void **state)
{
    static const uint8_t of_field[] = { 0, 1, 2 };
    const struct batch_groups groups = { 3, of_field };
    struct schema *s = fixture_schema(&three, "y,a,b,c");
    const uint32_t n[] = { 500, 7, 1 };
    char path[FIXTURE_PATH_MAX], none[FIXTURE_PATH_MAX], *paths[] = { path, none };
    struct fixture_folder folder;
    uint64_t counts[3];
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    write_log(&folder, 1000, n, path);
    fixture_path(&folder, "none", none);
    assert_int_equal(cardinality_measure(s, &groups, NULL, paths, 2, 20, counts, &err), 0);
    assert_true(counts[0] == 20 && counts[1] == 7 && counts[2] == 1);
    assert_int_equal(cardinality_measure(s, &groups, NULL, paths, 2, 0, counts, &err), 0);
    assert_true(counts[0] == 0 && counts[1] == 0 && counts[2] == 0);
    assert_int_equal(cardinality_measure(s, &groups, NULL, paths, 2, UINT64_MAX, counts, &err),
                     -ENOENT);
    schema_free(s);
    fixture_folder_free(&folder);
}

#ifdef PS_FAULTS
static void every_failed_allocation_is_reported(void **state)
{
    static const uint8_t of_field[] = { 0, 0, 1 };
    const struct batch_groups groups = { 2, of_field };
    struct schema *s = fixture_schema(&three, "y,a,b,c");
    const uint32_t n[] = { 5, 7, 1 };
    char path[FIXTURE_PATH_MAX], *paths[] = { path };
    struct fixture_folder folder;
    uint64_t counts[2];
    struct err err;
    int status = -1;

    (void)state;
    fixture_folder_new(&folder);
    write_log(&folder, 30, n, path);
    for (long k = 0; status != 0; k++) {
        memory_fail_after(k);
        status = cardinality_measure(s, &groups, NULL, paths, 1, UINT64_MAX, counts, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
    }
    schema_free(s);
    fixture_folder_free(&folder);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_keys_of_each_group_are_counted),
        cmocka_unit_test(only_the_first_rows_count),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
