/* Which joins are refused before any job is looked at, and which beside a job that runs. */
#include "server/core/join_check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base.h"

#define GOOD .job = "ads", .rank = 1, .n_workers = 2, .mode = TABLE_SPEC_MODE_SSP, .bound = 4

static void fields_at_their_limits(void **state)
{
    char longest[TABLE_SPEC_NAME_MAX], too_long[TABLE_SPEC_NAME_MAX];
    struct membership_join joins[] = {
        { GOOD },
        { GOOD },
        { GOOD, .clock = MEMBERSHIP_CLOCK_END },
        { .job = "ads",
          .rank = MEMBERSHIP_N_WORKERS_MAX - 1,
          .n_workers = MEMBERSHIP_N_WORKERS_MAX,
          .mode = TABLE_SPEC_MODE_BSP },
        { .job = "", .n_workers = 1, .mode = TABLE_SPEC_MODE_BSP },
        { GOOD },
        { .job = "ads", .n_workers = 0, .mode = TABLE_SPEC_MODE_BSP },
        { .job = "ads",
          .n_workers = MEMBERSHIP_N_WORKERS_MAX + 1,
          .mode = TABLE_SPEC_MODE_BSP },
        { .job = "ads", .rank = 2, .n_workers = 2, .mode = TABLE_SPEC_MODE_BSP },
        { .job = "ads", .n_workers = 1, .mode = (enum table_spec_mode)77 },
        { GOOD, .clock = MEMBERSHIP_CLOCK_END + 1 },
        { .job = "ads", .n_workers = 3, .mode = TABLE_SPEC_MODE_BSP, .n_backups = 2 },
        { .job = "ads", .n_workers = 3, .mode = TABLE_SPEC_MODE_BSP, .n_backups = 3 },
        { .job = "ads",
          .n_workers = 100,
          .mode = TABLE_SPEC_MODE_BSP,
          .n_backups = MEMBERSHIP_N_BACKUPS_MAX + 1 },
        { GOOD, .n_backups = 1 },
    };
    const char *const sentences[] = { NULL,
                                      NULL,
                                      NULL,
                                      NULL,
                                      "1 to",
                                      "not more",
                                      " 0 workers",
                                      "expected 1 to",
                                      "rank 2 of 2",
                                      "mode number 77",
                                      "out of range",
                                      NULL,
                                      "3 backup workers of 3",
                                      "and at most 64",
                                      "1 backup workers in mode ssp" };

    (void)state;
    memset(longest, 'j', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    memset(too_long, 'j', sizeof too_long);
    joins[1].job = longest;
    joins[5].job = too_long;
    for (size_t i = 0; i < COUNT_OF(joins); i++) {
        struct err err = { 0 };
        int status = join_check_fields(&joins[i], &err);

        if (status != (sentences[i] ? -EINVAL : 0) ||
            (sentences[i] && !strstr(err.text, sentences[i])))
            fail_msg("row %zu: %d, %s", i, status, err.text);
    }
}

static void settings_of_a_job_that_runs(void **state)
{
    const struct job job = {
        .name = "ads", .n_workers = 2, .mode = TABLE_SPEC_MODE_SSP, .bound = 4
    };
    static const struct {
        struct membership_join join;
        const char *sentence;
    } rows[] = { { { GOOD }, NULL },
                 { { .job = "ads", .n_workers = 3, .mode = TABLE_SPEC_MODE_SSP, .bound = 4 },
                   "runs with 2 workers, rank 0 asked for 3" },
                 { { .job = "ads", .n_workers = 2, .mode = TABLE_SPEC_MODE_BSP, .bound = 4 },
                   "runs in mode ssp, rank 0 asked for bsp" },
                 { { .job = "ads", .n_workers = 2, .mode = TABLE_SPEC_MODE_SSP, .bound = 5 },
                   "runs with staleness 4, rank 0 asked for 5" } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct err err = { 0 };
        int status = join_check_settings(&job, &rows[i].join, &err);

        if (status != (rows[i].sentence ? PS_EJOB : 0) ||
            (rows[i].sentence && !strstr(err.text, rows[i].sentence)))
            fail_msg("row %zu: %d, %s", i, status, err.text);
        assert_int_equal(join_check_settings(&job, &rows[i].join, NULL), status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_at_their_limits),
        cmocka_unit_test(settings_of_a_job_that_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
