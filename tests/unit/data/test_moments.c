#include "tests/unit/data/fixture.h"

#include <errno.h>
#include <math.h>

#include "worker/data/moments.h"

static const struct schema_text two_numbers = {
    .delimiter = ",",
    .header = true,
    .label = "y",
    .numeric = "a,b",
    .numeric_as = SCHEMA_STANDARDISE,
};

static void the_mean_and_spread_of_what_is_there_are_found(void **state)
{
    struct schema *s = fixture_schema(&two_numbers, "y,a,b");
    struct fixture_folder folder;
    char p[FIXTURE_PATH_MAX], q[FIXTURE_PATH_MAX], *paths[] = { p, q };
    float mean[2], std[2];
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    fixture_write_text(&folder, "p", "y,a,b\n1,2,7\n0,4,\nmalformed\n0,4,7\n1,4,seven\n", p);
    fixture_write_text(&folder, "q", "y,a,b\n1,5,\n1,5,\n0,7,7\n1,9,7\n0,4,7\n1000,1000,1000\n",
                       q);
    assert_int_equal(moments_measure(s, NULL, paths, 2, UINT64_MAX, mean, std, &err), 0);
    assert_true(mean[0] == 5 && std[0] == 2); /* of 2 4 4 5 5 7 9 4 */
    assert_true(mean[1] == 7 && std[1] == 1); /* constant: the spread counts as 1 */
    assert_int_equal(moments_measure(s, NULL, paths, 2, 2, mean, std, &err), 0);
    assert_true(mean[0] == 3 && std[0] == 1);
    assert_int_equal(moments_measure(s, NULL, paths, 2, 0, mean, std, &err), 0);
    assert_true(mean[0] == 0 && std[0] == 1);
    fixture_path(&folder, "none", q);
    assert_int_equal(moments_measure(s, NULL, paths, 2, UINT64_MAX, mean, std, &err), -ENOENT);
    schema_free(s);
    fixture_folder_free(&folder);
}

static void large_values_keep_their_spread(void **state)
{
    struct schema *s = fixture_schema(&two_numbers, "y,a,b");
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], *paths[] = { path }, *text = memory_alloc(1000000);
    size_t at = (size_t)sprintf(text, "y,a,b\n");
    float mean[2], std[2];
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    for (unsigned i = 0; i < 20000; i++)
        at += (size_t)sprintf(text + at, "1,%u,%u\n", 8000000 + i % 2 * 2, i % 10);
    fixture_write(&folder, "log", text, at, path);
    assert_int_equal(moments_measure(s, NULL, paths, 1, UINT64_MAX, mean, std, &err), 0);
    assert_true(mean[0] == 8000001 && fabsf(std[0] - 1) < 1e-6f);
    assert_true(fabsf(mean[1] - 4.5f) < 1e-6f && fabsf(std[1] - sqrtf(8.25f)) < 1e-6f);
    free(text);
    schema_free(s);
    fixture_folder_free(&folder);
}

#ifdef PS_FAULTS
static void every_failed_allocation_is_reported(void **state)
{
    struct schema *s = fixture_schema(&two_numbers, "y,a,b");
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], *paths[] = { path };
    float mean[2], std[2];
    int status = -1;

    (void)state;
    fixture_folder_new(&folder);
    fixture_write_text(&folder, "p", "y,a,b\n1,2,7\n", path);
    for (long k = 0; status != 0; k++) {
        struct err err;

        memory_fail_after(k);
        status = moments_measure(s, NULL, paths, 1, 10, mean, std, &err);
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
        cmocka_unit_test(the_mean_and_spread_of_what_is_there_are_found),
        cmocka_unit_test(large_values_keep_their_spread),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
