#include "worker/data/loader_pass.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "worker/data/file_rows.h"
#include "worker/data/input_pipe.h"
#include "worker/data/shuffle.h"

struct loader_pass {
    struct data_loader_options options;
    const atomic_bool *stop; /* borrowed */
    struct shuffle *window;  /* owned, of records; NULL: file order */
    struct file_rows *rows;  /* owned; of file next_file - 1; NULL between files */
    uint32_t next_file;
    uint64_t n_rows; /* of the files so far: the number of the next one */
    uint64_t n_batches;
    uint64_t n_negatives;                 /* rows with label 0 so far, drawn or not */
    uint64_t bytes_before, cached_before; /* of the files that are closed */
    struct data_loader_counts counts;
    bool drained; /* the files have no more */
};

int loader_pass_new(const struct data_loader_options *options, const atomic_bool *stop,
                    struct loader_pass **ret_pass, struct err *err)
{
    struct loader_pass *p = memory_try_alloc(sizeof *p);
    uint64_t seed = hash_mix2(options->seed, options->rank);

    if (!p)
        return err_set(err, -ENOMEM, "no memory to read data");
    p->options = *options;
    p->stop = stop;
    if (options->shuffle_rows > 1 && shuffle_new(options->shuffle_rows, seed, &p->window)) {
        loader_pass_free(p);
        return err_set(err, -ENOMEM, "no memory to shuffle %u rows", options->shuffle_rows);
    }
    *ret_pass = p;
    return 0;
}

void loader_pass_free(struct loader_pass *p)
{
    if (!p)
        return;
    shuffle_free(p->window);
    file_rows_close(p->rows);
    free(p);
}

void loader_pass_counts(const struct loader_pass *p, struct data_loader_counts *ret)
{
    *ret = p->counts;
    ret->rows_read = p->n_rows;
    ret->bytes = p->bytes_before + (p->rows ? file_rows_text_bytes(p->rows) : 0);
    ret->cached = p->cached_before + (p->rows ? file_rows_n_cached(p->rows) : 0);
}

static bool stopped(const struct loader_pass *p)
{
    return p->stop && atomic_load_explicit(p->stop, memory_order_relaxed);
}

/* ---- files ---- */

static bool is_my_file(const struct loader_pass *p, uint32_t file)
{
    return p->options.by_rows || file % p->options.n_ranks == p->options.rank;
}

/* A file of another rank must be read past only when rows have to be counted. */
static bool may_skip(const struct loader_pass *p, uint32_t file)
{
    const struct data_loader_range *range = &p->options.range;

    return !is_my_file(p, file) && range->first_row == 0 && range->end_row == 0;
}

static int open_file(struct loader_pass *p, struct err *err)
{
    int status =
        file_rows_open(&p->options, p->options.paths[p->next_file], p->stop, &p->rows, err);

    p->next_file += status == 0;
    return status;
}

/* What its file_rows_finish() reads is not counted: no row of it was asked for. */
static int close_file(struct loader_pass *p, struct err *err)
{
    int status;

    p->bytes_before += file_rows_text_bytes(p->rows);
    p->cached_before += file_rows_n_cached(p->rows);
    status = file_rows_finish(p->rows, err);
    file_rows_close(p->rows);
    p->rows = NULL;
    return status;
}

/* To the next row of any file, in order; false behind the last. */
static int next_row(struct loader_pass *p, bool *ret_there, struct err *err)
{
    int status = 0;

    *ret_there = false;
    while (!status && !stopped(p)) {
        if (!p->rows && p->next_file == p->options.n_paths)
            return 0;
        if (!p->rows && may_skip(p, p->next_file)) {
            p->next_file++;
            continue;
        }
        if (!p->rows && (status = open_file(p, err)) != 0)
            return status;
        status = file_rows_next(p->rows, ret_there, err);
        if (status || *ret_there)
            return status;
        status = close_file(p, err);
    }
    return status;
}

/* ---- rows ---- */

static bool is_mine(const struct loader_pass *p, uint64_t row)
{
    const struct data_loader_options *o = &p->options;

    if (row < o->range.first_row)
        return false;
    if (!o->by_rows)
        return is_my_file(p, p->next_file - 1);
    return (row - o->range.first_row) / o->batch % o->n_ranks == o->rank;
}

static int count_bad(struct loader_pass *p, uint32_t file,
                     const struct file_rows_refusal *refusal, struct err *err)
{
    const char *path = input_pipe_name(p->options.paths[file]);
    unsigned long long line = refusal->line;

    if (!p->counts.bad_rows)
        snprintf(p->counts.bad_row, sizeof p->counts.bad_row, "%.96s:%llu: %.70s", path, line,
                 refusal->why.text);
    if (++p->counts.bad_rows <= p->options.bad_rows_max)
        return 0;
    return err_set(err, PS_EDATA, "%s:%llu: %s; %llu malformed so far, limit %llu", path, line,
                   refusal->why.text, (unsigned long long)p->counts.bad_rows,
                   (unsigned long long)p->options.bad_rows_max);
}

/* To the next row of this rank, in file order; false behind the last. */
static int next_own(struct loader_pass *p, bool *ret_there, struct err *err)
{
    int status;

    do {
        *ret_there = false;
        if (p->options.range.end_row && p->n_rows >= p->options.range.end_row)
            return p->rows ? close_file(p, err) : 0;
        status = next_row(p, ret_there, err);
        if (status || !*ret_there)
            return status;
    } while (!is_mine(p, p->n_rows++));
    return file_rows_fetch(p->rows, err);
}

/* A row that was added to no batch, as it is malformed or there is no memory. */
static int check_refusal(struct loader_pass *p, int status, uint32_t file,
                         const struct file_rows_refusal *refusal, struct err *err)
{
    if (status == PS_EDATA)
        return count_bad(p, file, refusal, err);
    return err_set(err, status, "no memory for a batch of %u rows", p->options.batch);
}

/* Draws whether the batch's last sample stays: by the seed and the number of negative samples before it, so that what
 * is passed over (options.skip) draws the same. */
static bool is_kept(struct loader_pass *p, const struct batch *b)
{
    const float keep = p->options.keep_negatives;

    if (!(keep > 0 && keep < 1) || b->label[b->n - 1] > 0)
        return true;
    return hash_unit(hash_mix2(hash_mix2(p->options.seed, ~(uint64_t)p->options.rank),
                               p->n_negatives++)) < keep;
}

/* What came of adding a row to the batch. */
static int take_sample(struct loader_pass *p, int status, uint32_t file, struct batch *b,
                       const struct file_rows_refusal *refusal, struct err *err)
{
    if (status)
        return check_refusal(p, status, file, refusal, err);
    if (is_kept(p, b))
        p->counts.rows++;
    else
        batch_drop_last(b);
    return 0;
}

/* Straight from the file to the batch. */
static int add_next(struct loader_pass *p, struct batch *b, bool *ret_there, struct err *err)
{
    struct file_rows_refusal refusal;
    int status = next_own(p, ret_there, err);

    if (status || !*ret_there)
        return status;
    status = file_rows_add(p->rows, b, &refusal);
    return take_sample(p, status, p->next_file - 1, b, &refusal, err);
}

/* ---- the window ---- */

/* Puts the row at hand into the window; `ret` has what fell out, or bytes NULL. A line that is
 * too long never gets in. */
static int put(struct loader_pass *p, struct shuffle_line *ret, struct err *err)
{
    struct file_rows_refusal refusal;
    const struct parsed_row *record;
    struct shuffle_line in;
    int status = file_rows_record(p->rows, &record);

    *ret = (struct shuffle_line){ 0 };
    if (!status && record->kind == PARSED_ROW_TOO_LONG)
        return check_refusal(p, file_rows_add_record(record, NULL, &refusal), p->next_file - 1,
                             &refusal, err);
    if (!status) {
        in = (struct shuffle_line){ .bytes = (char *)(uintptr_t)record, /* only copied */
                                    .len = record->n_bytes,
                                    .file = p->next_file - 1 };
        status = shuffle_put(p->window, &in, ret);
    }
    return status
               ? err_set(err, -ENOMEM, "no memory to shuffle %u rows", p->options.shuffle_rows)
               : 0;
}

static int next_shuffled(struct loader_pass *p, struct shuffle_line *ret, struct err *err)
{
    bool there;

    *ret = (struct shuffle_line){ 0 };
    while (!p->drained) {
        int status = next_own(p, &there, err);

        if (!status && there)
            status = put(p, ret, err);
        if (status || ret->bytes)
            return status;
        p->drained = !there;
    }
    shuffle_drain(p->window, ret);
    return 0;
}

static int add_shuffled(struct loader_pass *p, struct batch *b, bool *ret_there,
                        struct err *err)
{
    struct file_rows_refusal refusal;
    struct shuffle_line line;
    int status = next_shuffled(p, &line, err);

    *ret_there = line.bytes != NULL;
    if (status || !*ret_there)
        return status;
    status =
        file_rows_add_record((const struct parsed_row *)(const void *)line.bytes, b, &refusal);
    return take_sample(p, status, line.file, b, &refusal, err);
}

/* ---- batches ---- */

static int fill(struct loader_pass *p, struct batch *b, struct err *err)
{
    bool there = true;
    int status = 0;

    batch_clear(b);
    while (b->n < b->n_max && there && !status)
        status = p->window ? add_shuffled(p, b, &there, err) : add_next(p, b, &there, err);
    if (status)
        return status;
    if (stopped(p) || (p->options.drop_last && b->n < b->n_max)) {
        p->counts.rows -= b->n;
        batch_clear(b);
    }
    return 0;
}

/* Which rows are malformed, and so where a batch ends, shows when they are parsed: what is passed
 * over costs that. */
static int skip(struct loader_pass *p, struct batch *b, struct err *err)
{
    int status = 0;

    while (p->n_batches < p->options.skip && !status) {
        status = fill(p, b, err);
        p->counts.rows -= status ? 0 : b->n;
        if (!b->n)
            break;
        p->counts.skipped = ++p->n_batches;
    }
    return status;
}

int loader_pass_read(struct loader_pass *p, struct batch *b, struct err *err)
{
    int status = skip(p, b, err);

    if (!status)
        status = fill(p, b, err);
    if (status)
        return status;
    b->number = p->n_batches++;
    return 0;
}

int loader_pass_dedup(struct batch *b, struct batch_scratch *memory, struct err *err)
{
    return batch_dedup_with(b, memory)
               ? err_set(err, -ENOMEM, "no memory for a batch of %u keys", b->n_keys)
               : 0;
}

int loader_pass_fill(struct loader_pass *p, struct batch *b, struct err *err)
{
    int status = loader_pass_read(p, b, err);

    return status ? status : loader_pass_dedup(b, &b->scratch, err);
}
