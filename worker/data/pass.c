#include "worker/data/pass.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"
#include "worker/data/reader.h"
#include "worker/data/shuffle.h"

#define SHOWN_PATH_MAX 90u

struct pass {
    struct feed_options options;
    const struct row_plan *plan; /* borrowed */
    const atomic_bool *stop;     /* borrowed */
    struct shuffle *window;      /* owned; NULL: file order */
    struct reader *reader;       /* owned; of file next_file - 1; NULL between files */
    uint32_t next_file;
    uint64_t n_rows;                  /* of the files so far: the number of the next one */
    uint64_t n_batches, bytes_before; /* bytes of the files that are closed */
    struct feed_counts counts;
    bool drained; /* the files have no more */
};

int pass_new(const struct feed_options *options, const atomic_bool *stop,
             struct pass **ret_pass, struct err *err)
{
    struct pass *p = mem_try_alloc(sizeof *p);
    uint64_t seed = hash_mix2(options->seed, options->rank);

    if (!p)
        return err_set(err, -ENOMEM, "no memory to read data");
    p->options = *options;
    p->stop = stop;
    p->plan = options->labelled ? schema_plan(options->schema)
                                : schema_plan_unlabelled(options->schema);
    if (options->shuffle_rows > 1 && shuffle_new(options->shuffle_rows, seed, &p->window)) {
        pass_free(p);
        return err_set(err, -ENOMEM, "no memory to shuffle %u rows", options->shuffle_rows);
    }
    *ret_pass = p;
    return 0;
}

void pass_free(struct pass *p)
{
    if (!p)
        return;
    shuffle_free(p->window);
    reader_close(p->reader);
    free(p);
}

void pass_counts(const struct pass *p, struct feed_counts *ret)
{
    *ret = p->counts;
    ret->bytes = p->bytes_before + (p->reader ? reader_bytes(p->reader) : 0);
}

/* The end of a path that is too long for a sentence. */
static const char *shown_path(const struct pass *p, uint32_t file)
{
    const char *path = p->options.paths[file];
    size_t len = strlen(path);

    return len > SHOWN_PATH_MAX ? path + len - SHOWN_PATH_MAX : path;
}

static bool stopped(const struct pass *p)
{
    return p->stop && atomic_load_explicit(p->stop, memory_order_relaxed);
}

/* ---- files ---- */

static bool is_my_file(const struct pass *p, uint32_t file)
{
    return p->options.by_rows || file % p->options.n_ranks == p->options.rank;
}

/* A file of another rank must be read past only when rows have to be counted. */
static bool may_skip(const struct pass *p, uint32_t file)
{
    const struct feed_range *range = &p->options.range;

    return !is_my_file(p, file) && range->first_row == 0 && range->end_row == 0;
}

static int check_header(struct pass *p, struct err *err)
{
    struct reader_line line;
    struct err why;
    int status = reader_next(p->reader, &line, err);

    if (status || !line.bytes)
        return status;
    status = row_check_header(p->plan, line.bytes, line.len, &why);
    return status ? err_set(err, status, "%s: header: %s", shown_path(p, p->next_file - 1),
                            why.text)
                  : 0;
}

static int open_file(struct pass *p, struct err *err)
{
    int status = reader_open(p->options.paths[p->next_file], &p->reader, err);

    if (status)
        return status;
    p->next_file++;
    return schema_has_header(p->options.schema) ? check_header(p, err) : 0;
}

static void close_file(struct pass *p)
{
    p->bytes_before += reader_bytes(p->reader);
    reader_close(p->reader);
    p->reader = NULL;
}

/* The next row of any file, in order; bytes NULL behind the last. */
static int next_row(struct pass *p, struct reader_line *ret, struct err *err)
{
    int status = 0;

    *ret = (struct reader_line){ 0 };
    while (!status && !stopped(p)) {
        if (!p->reader && p->next_file == p->options.n_paths)
            return 0;
        if (!p->reader && may_skip(p, p->next_file)) {
            p->next_file++;
            continue;
        }
        if (!p->reader && (status = open_file(p, err)) != 0)
            return status;
        status = reader_next(p->reader, ret, err);
        if (status || ret->bytes)
            return status;
        close_file(p);
    }
    return status;
}

/* ---- rows ---- */

static bool is_mine(const struct pass *p, uint64_t row)
{
    const struct feed_options *o = &p->options;

    if (row < o->range.first_row)
        return false;
    if (!o->by_rows)
        return is_my_file(p, p->next_file - 1);
    return (row - o->range.first_row) / o->batch % o->n_ranks == o->rank;
}

static int count_bad(struct pass *p, const struct shuffle_line *line, const char *why,
                     struct err *err)
{
    if (++p->counts.bad_rows <= p->options.bad_rows_max)
        return 0;
    return err_set(err, PS_EDATA, "%s:%llu: %s; %llu malformed rows so far, limit %llu",
                   shown_path(p, line->file), (unsigned long long)line->number, why,
                   (unsigned long long)p->counts.bad_rows,
                   (unsigned long long)p->options.bad_rows_max);
}

/* The next row of this rank, in file order; bytes NULL behind the last. */
static int next_own(struct pass *p, struct shuffle_line *ret, struct err *err)
{
    struct reader_line line;
    int status;

    for (;;) {
        *ret = (struct shuffle_line){ 0 };
        if (p->options.range.end_row && p->n_rows >= p->options.range.end_row)
            return 0;
        status = next_row(p, &line, err);
        if (status || !line.bytes)
            return status;
        if (!is_mine(p, p->n_rows++))
            continue;
        *ret = (struct shuffle_line){ .bytes = line.bytes,
                                      .len = line.len,
                                      .number = line.number,
                                      .file = p->next_file - 1 };
        if (!line.too_long)
            return 0;
        status = count_bad(p, ret, "the line is longer than 1 MiB", err);
        if (status)
            return status;
    }
}

/* The same, through the window. */
static int next_shuffled(struct pass *p, struct shuffle_line *ret, struct err *err)
{
    struct shuffle_line in;
    int status;

    if (!p->window)
        return next_own(p, ret, err);
    while (!p->drained) {
        status = next_own(p, &in, err);
        if (status)
            return status;
        p->drained = !in.bytes;
        if (p->drained)
            break;
        if (shuffle_put(p->window, &in, ret))
            return err_set(err, -ENOMEM, "no memory to shuffle %u rows",
                           p->options.shuffle_rows);
        if (ret->bytes)
            return 0;
    }
    shuffle_drain(p->window, ret);
    return 0;
}

static int add_row(struct pass *p, const struct shuffle_line *line, struct batch *b,
                   struct err *err)
{
    struct err why;
    int status = row_parse(p->plan, line->bytes, line->len, b, &why);

    if (status == PS_EDATA)
        return count_bad(p, line, why.text, err);
    if (status)
        return err_set(err, status, "no memory for a batch of %u rows", b->n_max);
    p->counts.rows++;
    return 0;
}

int pass_fill(struct pass *p, struct batch *b, struct err *err)
{
    struct shuffle_line line;
    int status;

    batch_clear(b);
    while (b->n < b->n_max) {
        status = next_shuffled(p, &line, err);
        if (!status && !line.bytes)
            break;
        if (!status)
            status = add_row(p, &line, b, err);
        if (status)
            return status;
    }
    if (stopped(p) || (p->options.drop_last && b->n < b->n_max)) {
        p->counts.rows -= b->n;
        batch_clear(b);
    }
    b->number = p->n_batches++;
    return batch_dedup(b) ? err_set(err, -ENOMEM, "no memory for a batch of %u keys", b->n_keys)
                          : 0;
}
