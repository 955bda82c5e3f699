#include "worker/data/moments.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/data/line_parser_simd.h"
#include "worker/data/line_reader.h"
#include "worker/data/parquet_file.h"
#include "worker/data/parquet_rows.h"

/* Knuth, The Art of Computer Programming 2, 4.2.2, (15) and (16). */
struct moment {
    uint64_t n;
    double mean, sum_of_squares; /* of differences from the mean */
};

struct measure {
    struct line_parser_plan
        plan;               /* the schema's, but with numbers as they stand, NaN if missing */
    struct moment *moments; /* owned, [n_numeric] */
    struct batch batch;     /* one row */
    uint64_t rows_left;
};

static void add_row(struct measure *m)
{
    for (uint32_t i = 0; i < m->plan.n_numeric; i++) {
        struct moment *moment = &m->moments[i];
        double x = (double)m->batch.numeric[i], delta = x - moment->mean;

        if (isnan(x))
            continue;
        moment->n++;
        moment->mean += delta / (double)moment->n;
        moment->sum_of_squares += delta * (x - moment->mean);
    }
}

static int read_rows(struct measure *m, struct line_reader *reader, struct err *err)
{
    struct line_reader_line line;
    int status;

    while (m->rows_left > 0) {
        status = line_reader_next(reader, &line, err);
        if (status || !line.bytes)
            return status;
        m->rows_left--;
        batch_clear(&m->batch);
        status = line.too_long
                     ? PS_EDATA
                     : line_parser_simd_parse(&m->plan, line.bytes, line.len, &m->batch, NULL);
        if (status == -ENOMEM)
            return err_set(err, status, "no memory for a row");
        if (!status)
            add_row(m);
    }
    return 0;
}

static int read_parquet(struct measure *m, const char *path, struct err *err)
{
    struct parquet_rows *rows;
    int status = parquet_rows_open(path, &m->plan, PARQUET_ROWS_BLOCK_MAX, &rows, err);

    if (status)
        return status;
    while (m->rows_left > 0 && !status && parquet_rows_next(rows)) {
        m->rows_left--;
        batch_clear(&m->batch);
        status = parquet_rows_fetch(rows, err);
        if (status)
            break;
        status = parquet_rows_add(rows, &m->batch, NULL);
        if (!status)
            add_row(m);
        status = status == -ENOMEM ? err_set(err, status, "no memory for a row") : 0;
    }
    parquet_rows_close(rows);
    return status;
}

static int read_file(struct measure *m, struct input_pipes *pipes, const char *path,
                     const struct schema *schema, struct err *err)
{
    struct line_reader_line header;
    struct line_reader *reader;
    int status;

    if (parquet_file_is_one(path))
        return read_parquet(m, path, err);
    status = line_reader_open_prescan(pipes, path, &reader, err);
    if (status)
        return status;
    if (schema_has_header(schema))
        status = line_reader_next(reader, &header, err);
    if (!status)
        status = read_rows(m, reader, err);
    line_reader_close(reader);
    return status;
}

int moments_measure(const struct schema *schema, struct input_pipes *pipes, char *const *files,
                    uint32_t n_files, uint64_t n_rows_max, float *ret_mean, float *ret_std,
                    struct err *err)
{
    struct measure m = { .plan = *schema_plan(schema), .rows_left = n_rows_max };
    int status;

    m.plan.numeric_as = LINE_PARSER_RAW;
    m.plan.numeric_missing = NAN;
    m.moments = memory_try_alloc((m.plan.n_numeric + 1) * sizeof *m.moments);
    status = m.moments ? batch_init_labels(&m.batch, NULL, 1, schema_n_labels(schema),
                                           m.plan.n_numeric, m.plan.n_fields)
                       : -ENOMEM;
    if (status)
        err_set(err, status, "no memory to measure %u columns", m.plan.n_numeric);
    for (uint32_t i = 0; i < n_files && m.rows_left > 0 && !status; i++)
        status = read_file(&m, pipes, files[i], schema, err);
    for (uint32_t i = 0; i < m.plan.n_numeric && !status; i++) {
        double n = (double)m.moments[i].n,
               std = n > 0 ? sqrt(m.moments[i].sum_of_squares / n) : 0;

        ret_mean[i] = (float)m.moments[i].mean;
        ret_std[i] = std > 0 ? (float)std : 1;
    }
    free(m.moments);
    batch_deinit(&m.batch);
    return status;
}
