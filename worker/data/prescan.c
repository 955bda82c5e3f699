#include "worker/data/prescan.h"

#include <errno.h>

#include "worker/data/line_parser_simd.h"
#include "worker/data/line_reader.h"
#include "worker/data/parquet_file.h"
#include "worker/data/parquet_rows.h"

struct progress {
    struct prescan *of;
    struct batch batch; /* one row */
    uint64_t rows_left;
};

static int read_rows(struct progress *p, struct line_reader *reader, struct err *err)
{
    struct line_reader_line line;
    int status;

    while (p->rows_left > 0) {
        status = line_reader_next(reader, &line, err);
        if (status || !line.bytes)
            return status;
        p->rows_left--;
        batch_clear(&p->batch);
        status = line.too_long ? PS_EDATA
                               : line_parser_simd_parse(&p->of->plan, line.bytes, line.len,
                                                        &p->batch, NULL);
        if (status == -ENOMEM)
            return err_set(err, status, "no memory for a row");
        if (!status)
            p->of->on_row(p->of->arg, &p->batch);
    }
    return 0;
}

static int read_parquet(struct progress *p, const char *path, struct err *err)
{
    struct parquet_rows *rows;
    int status = parquet_rows_open(path, &p->of->plan, PARQUET_ROWS_BLOCK_MAX, &rows, err);

    if (status)
        return status;
    while (p->rows_left > 0 && !status && parquet_rows_next(rows)) {
        p->rows_left--;
        batch_clear(&p->batch);
        status = parquet_rows_fetch(rows, err);
        if (status)
            break;
        status = parquet_rows_add(rows, &p->batch, NULL);
        if (!status)
            p->of->on_row(p->of->arg, &p->batch);
        status = status == -ENOMEM ? err_set(err, status, "no memory for a row") : 0;
    }
    parquet_rows_close(rows);
    return status;
}

static int read_file(struct progress *p, const char *path, struct err *err)
{
    struct line_reader_line header;
    struct line_reader *reader;
    int status;

    if (parquet_file_is_one(path))
        return read_parquet(p, path, err);
    status = line_reader_open_prescan(p->of->pipes, path, &reader, err);
    if (status)
        return status;
    if (schema_has_header(p->of->schema))
        status = line_reader_next(reader, &header, err);
    if (!status)
        status = read_rows(p, reader, err);
    line_reader_close(reader);
    return status;
}

int prescan_run(struct prescan *p, struct err *err)
{
    struct progress progress = { .of = p, .rows_left = p->n_rows_max };
    int status = batch_init_labels(&progress.batch, NULL, 1, schema_n_labels(p->schema),
                                   p->plan.n_numeric, p->plan.n_fields);

    if (status)
        err_set(err, status, "no memory to read %u columns", p->plan.n_columns);
    for (uint32_t i = 0; i < p->n_files && progress.rows_left > 0 && !status; i++)
        status = read_file(&progress, p->files[i], err);
    batch_deinit(&progress.batch);
    return status;
}
