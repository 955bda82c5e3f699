/* When a disk will be full. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/base.h"
#include "deploy/psctl/disk_forecast.h"

#define GB 1e9

/* Of --keep 3 and --log-max 8 GB, 1 GB of rows, 4 deltas: 24 GB of log and 8 GB of checkpoints, of which 4 and 2 are
 * there. */
struct world {
    double free, fill, others, every_ms, pushed;
};

static cJSON *report(const struct world *w, int number, double pushed)
{
    char text[600];
    cJSON *node;

    snprintf(
        text, sizeof text,
        "{\"node\":%d,\"checkpoints\":{\"every_ms\":%.0f,\"log_max_bytes\":8e9,\"keep\":3,"
        "\"deltas\":4},"
        "\"disk\":{\"free_bytes\":%.0f,\"fill_bytes_per_s\":%.0f,\"others_fill_bytes_per_s\":"
        "%.0f,\"log_bytes\":4e9,\"checkpoint_bytes\":2e9},"
        "\"totals\":{\"bytes\":1e9,\"log\":{\"bytes\":%.0f}}}",
        number, w->every_ms, w->free, w->fill, w->others, pushed);
    node = cJSON_Parse(text);
    assert_non_null(node);
    return node;
}

static cJSON *cluster_of(cJSON *node)
{
    cJSON *all = cJSON_CreateObject();

    cJSON_AddItemToArray(cJSON_AddArrayToObject(all, "nodes"), node);
    return all;
}

static const cJSON *node_of(const cJSON *all, int i)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(all, "nodes"), i);
}

static double full_s(const struct world *w)
{
    cJSON *before = cluster_of(report(w, 0, 100)),
          *after = cluster_of(report(w, 0, 100 + w->pushed));
    double s = disk_forecast_of(before, after, node_of(after, 0)).full_s;

    cJSON_Delete(before);
    cJSON_Delete(after);
    return s;
}

static void each_disk_is_full_when_it_will_be(void **state)
{
    static const struct {
        struct world w;
        double full_s;
    } rows[] = {
        { { 25 * GB, .1 * GB, 0, 0, 1 }, 250 },          /* psd may take 26 GB */
        { { 27 * GB, .1 * GB, 0, 0, 1 }, INFINITY },     /* and no more */
        { { 25 * GB, .1 * GB, 0, 10000, 1 }, INFINITY }, /* 3 GB of log: a checkpoint each 10 s */
        { { 25 * GB, .1 * GB, 0, 0, 0 }, INFINITY },     /* the training has ended */
        { { 25 * GB, .1 * GB, .1 * GB, 0, 0 }, 250 },    /* others go on */
        { { 36 * GB, .2 * GB, .1 * GB, 0, 1 }, 180 },    /* both, */
        { { 66 * GB, .2 * GB, .1 * GB, 0, 1 }, 400 },    /* and psd's bound comes first */
        { { 66 * GB, 0, 0, 0, 1 }, INFINITY },           { { 0, .1 * GB, 0, 0, 1 }, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (!(isinf(rows[i].full_s) ? isinf(full_s(&rows[i].w))
                                    : fabs(full_s(&rows[i].w) - rows[i].full_s) < .001))
            fail_msg("row %zu: full in %g s, expected %g", i, full_s(&rows[i].w),
                     rows[i].full_s);
}

/* It says neither its bounds nor whose files grow. */
static void of_an_older_psd_the_rate_alone_counts(void **state)
{
    cJSON *all =
        cluster_of(cJSON_Parse("{\"disk\":{\"free_bytes\":1000,\"fill_bytes_per_s\":10}}"));
    struct disk_forecast f = disk_forecast_of(all, all, node_of(all, 0));

    (void)state;
    assert_true(f.full_s > 99 && f.full_s < 101);
    assert_true(isinf(f.may_grow));
    cJSON_Delete(all);
}

/* Two nodes that push 0.1 GB/s each: for either one the other's files are none of psd's, unless they share a disk. */
static void nodes_that_share_a_disk_fill_it_together(void **state)
{
    static const struct {
        const char *file_systems[2];
        double free, full_s, others_rate;
    } rows[] = { { { "a-1", "a-1" }, 50 * GB, 250, 0 },
                 { { "a-1", "a-1" }, 53 * GB, INFINITY, 0 },
                 { { "a-1", "a-2" }, 50 * GB, 250, .1 * GB },
                 { { "", "" }, 50 * GB, 250, .1 * GB } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct world w = { rows[i].free, .2 * GB, .1 * GB, 0, 1 };
        cJSON *before = NULL, *after = NULL;
        struct disk_forecast f;

        for (int k = 0; k < 2; k++) {
            cJSON **to = k ? &after : &before;

            *to = cluster_of(report(&w, 0, 100 + k));
            cJSON_AddItemToArray(cJSON_GetObjectItem(*to, "nodes"), report(&w, 1, 100 + k));
            for (int n = 0; n < 2; n++)
                cJSON_AddStringToObject(cJSON_GetObjectItem(node_of(*to, n), "disk"),
                                        "file_system", rows[i].file_systems[n]);
        }
        f = disk_forecast_of(before, after, node_of(after, 1));
        if (isinf(rows[i].full_s) ? !isinf(f.full_s) : fabs(f.full_s - rows[i].full_s) > .001)
            fail_msg("row %zu: full in %g s", i, f.full_s);
        assert_true(fabs(f.others_rate - rows[i].others_rate) < 1);
        cJSON_Delete(before);
        cJSON_Delete(after);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_disk_is_full_when_it_will_be),
        cmocka_unit_test(of_an_older_psd_the_rate_alone_counts),
        cmocka_unit_test(nodes_that_share_a_disk_fill_it_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
