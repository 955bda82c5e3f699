#include "worker/data/moments.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/data/prescan.h"

/* Knuth, The Art of Computer Programming 2, 4.2.2, (15) and (16). */
struct moment {
    uint64_t n;
    double mean, sum_of_squares; /* of differences from the mean */
};

static void add_row(void *arg, const struct batch *row)
{
    struct moment *moments = arg;

    for (uint32_t i = 0; i < row->n_numeric; i++) {
        struct moment *moment = &moments[i];
        double x = (double)row->numeric[i], delta = x - moment->mean;

        if (isnan(x))
            continue;
        moment->n++;
        moment->mean += delta / (double)moment->n;
        moment->sum_of_squares += delta * (x - moment->mean);
    }
}

int moments_measure(const struct schema *schema, struct input_pipes *pipes, char *const *files,
                    uint32_t n_files, uint64_t n_rows_max, float *ret_mean, float *ret_std,
                    struct err *err)
{
    const uint32_t n_numeric = schema_n_numeric(schema);
    struct moment *moments = memory_try_alloc((n_numeric + 1) * sizeof *moments);
    struct prescan p = { .schema = schema,
                         .plan = *schema_plan(schema),
                         .pipes = pipes,
                         .files = files,
                         .n_files = n_files,
                         .n_rows_max = n_rows_max,
                         .on_row = add_row,
                         .arg = moments };
    int status;

    if (!moments)
        return err_set(err, -ENOMEM, "no memory to measure %u columns", n_numeric);
    p.plan.numeric_as = LINE_PARSER_RAW; /* as they stand, NaN if missing */
    p.plan.numeric_missing = NAN;
    status = prescan_run(&p, err);
    for (uint32_t i = 0; i < n_numeric && !status; i++) {
        double n = (double)moments[i].n, std = n > 0 ? sqrt(moments[i].sum_of_squares / n) : 0;

        ret_mean[i] = (float)moments[i].mean;
        ret_std[i] = std > 0 ? (float)std : 1;
    }
    free(moments);
    return status;
}
