#include "worker/data/file_rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/data/input_pipe.h"
#include "worker/data/line_parser_simd.h"
#include "worker/data/line_reader.h"
#include "worker/data/parquet_file.h"
#include "worker/data/parquet_rows.h"
#include "worker/data/row_cache_file.h"

#define TOO_LONG "the line is longer than 1 MiB"

struct file_rows {
    const struct data_loader_options *options; /* borrowed */
    const char *path;                          /* borrowed */
    const struct line_parser_plan *plan;       /* borrowed */
    const atomic_bool *stop;                   /* borrowed */
    struct input_pipe *pipe;                   /* borrowed; NULL: a file */
    struct row_cache_file_key key;             /* if a cache is wanted */
    struct row_cache_file_reader *cached;      /* owned; NULL: the text is read */
    struct line_reader *reader;                /* owned; the text */
    struct parquet_rows *parquet;              /* owned; in place of the reader */
    struct row_cache_file_writer *writer;      /* owned; NULL: nothing is written */
    struct line_reader_line line;              /* of the text, if no record was made of it */
    bool at_parquet_row;                       /* in place of the line */
    const struct parsed_row *record;           /* of the row; NULL: not made yet */
    struct batch one;                          /* for a row on its way into a record */
    struct bytes made;                         /* the record, where there is no writer */
    uint64_t n_rows, n_cached, text_bytes;
};

static bool is_stopped(const struct file_rows *r)
{
    return r->stop && atomic_load_explicit(r->stop, memory_order_relaxed);
}

static void notify(const struct file_rows *r, const struct err *what, const char *then)
{
    char sentence[sizeof what->text + 80];
    size_t n = strlen(what->text);

    if (!r->options->on_notice)
        return;
    memcpy(sentence, "data cache: ", 12);
    memcpy(sentence + 12, what->text, n);
    memcpy(sentence + 12 + n, then, strlen(then) + 1);
    r->options->on_notice(r->options->notice_arg, sentence);
}

/* ---- the cache being written ---- */

/* A cache that cannot be written ends nothing but itself. */
static void give_up_writing(struct file_rows *r, const struct err *why)
{
    row_cache_file_abort(r->writer);
    r->writer = NULL;
    notify(r, why, "; reading goes on without it");
}

static void start_writing(struct file_rows *r)
{
    struct err why;

    if (r->key.path[0] &&
        row_cache_file_create(&r->key, r->options->data_cache, &r->writer, &why) != 0) {
        r->writer = NULL;
        notify(r, &why, "; reading goes on without it");
    }
}

static void finish_writing(struct file_rows *r)
{
    struct row_cache_file_writer *w = r->writer;
    struct err why;

    r->writer = NULL;
    if (w && row_cache_file_commit(w, r->text_bytes, r->path, &why) != 0)
        notify(r, &why, "; reading goes on without it");
}

/* ---- records ---- */

static int parse(struct file_rows *r, struct batch *b, struct err *why)
{
    if (r->parquet)
        return parquet_rows_add(r->parquet, b, why);
    if (r->line.too_long)
        return err_set(why, PS_EDATA, TOO_LONG);
    return line_parser_simd_parse(r->plan, r->line.bytes, r->line.len, b, why);
}

/* Appends what the line becomes. */
static int make_record(struct file_rows *r, struct bytes *to)
{
    struct err why;
    int status;

    batch_clear(&r->one);
    status = parse(r, &r->one, &why);
    if (status == PS_EDATA && r->line.too_long)
        return parsed_row_put_refusal(to, PARSED_ROW_TOO_LONG, r->line.number, "",
                                      r->text_bytes);
    if (status == PS_EDATA)
        return parsed_row_put_refusal(to, PARSED_ROW_MALFORMED, r->line.number, why.text,
                                      r->text_bytes);
    return status ? status : parsed_row_put_row(to, &r->one, r->text_bytes);
}

static const struct parsed_row *record_at(const struct bytes *b, size_t at)
{
    return (const struct parsed_row *)(const void *)(b->bytes + at);
}

static int record_in(struct file_rows *r, struct bytes *to)
{
    size_t at = bytes_len(to);
    int status = make_record(r, to);

    if (!status)
        r->record = record_at(to, to->start + at);
    return status;
}

/* ---- the text ---- */

static int check_header(struct file_rows *r, struct err *err)
{
    struct line_reader_line line;
    struct err why;
    int status = line_reader_next(r->reader, &line, err);

    if (status || !line.bytes)
        return status;
    status = line_parser_check_header(r->plan, line.bytes, line.len, &why);
    return status ? err_set(err, status, "%s: header: %s", input_pipe_name(r->path), why.text)
                  : 0;
}

/* Rows that one worker takes of a file, one after another: of the others' nothing is decoded. */
static uint32_t rows_together(const struct data_loader_options *o)
{
    return o->by_rows && o->n_ranks > 1 ? o->batch : PARQUET_ROWS_BLOCK_MAX;
}

static int open_text(struct file_rows *r, struct err *err)
{
    int status;

    if (!r->pipe && parquet_file_is_one(r->path)) {
        status =
            parquet_rows_open(r->path, r->plan, rows_together(r->options), &r->parquet, err);
        if (!status)
            start_writing(r);
        return status;
    }
    status = line_reader_open_pipe(r->path, r->pipe, &r->reader, err);
    if (!status && schema_has_header(r->options->schema))
        status = check_header(r, err);
    if (!status)
        start_writing(r);
    return status;
}

/* A record of the line into the cache's block. */
static int write_row(struct file_rows *r, struct err *err)
{
    struct err why;
    int status;

    /* What was written up to here is told only now: the record of the row before may be in use
     * until this call. */
    if (r->record && row_cache_file_row_added(r->writer, r->text_bytes, &why) != 0) {
        give_up_writing(r, &why);
        return 0;
    }
    status = record_in(r, row_cache_file_space(r->writer));
    return status ? err_set(err, status, "no memory for a row") : 0;
}

static bool is_at_row(const struct file_rows *r)
{
    return r->cached ? r->record != NULL : r->line.bytes || r->at_parquet_row;
}

static int next_source_row(struct file_rows *r, struct err *err)
{
    int status = 0;

    if (r->parquet) {
        r->at_parquet_row = parquet_rows_next(r->parquet);
        r->line.number = parquet_rows_number(r->parquet);
        r->text_bytes = parquet_rows_bytes(r->parquet);
    } else {
        status = line_reader_next(r->reader, &r->line, err);
        r->text_bytes = line_reader_bytes(r->reader);
    }
    return status;
}

static int next_line(struct file_rows *r, struct err *err)
{
    struct err why;
    int status = next_source_row(r, err);

    if (!status && r->writer && r->at_parquet_row)
        status = parquet_rows_fetch(r->parquet, err);
    if (status)
        return status;
    if (is_at_row(r)) {
        status = r->writer ? write_row(r, err) : 0;
    } else {
        if (r->writer && r->record &&
            row_cache_file_row_added(r->writer, r->text_bytes, &why) != 0)
            give_up_writing(r, &why);
        finish_writing(r);
    }
    if (!r->writer)
        r->record = NULL;
    return status;
}

/* ---- either ---- */

/* -ENOENT: there is none that is any good. */
static int open_cache(struct file_rows *r, struct err *err)
{
    struct err why;
    int status = row_cache_file_open(&r->key, &r->cached, &why);

    if (status == 0)
        return 0;
    r->cached = NULL;
    if (status == -ENOMEM)
        return err_set(err, status, "%s", why.text);
    if (status != -ENOENT)
        notify(r, &why, "; it is written anew");
    return -ENOENT;
}

/* Of a pipe nothing is kept for a later pass: there is none. */
static int begin_pipe(struct file_rows *r, struct err *err)
{
    return input_pipes_begin(r->options->pipes, r->path,
                             r->options->is_prescan ? INPUT_PIPE_PRESCAN : INPUT_PIPE_PASS,
                             r->stop, &r->pipe, err);
}

int file_rows_open(const struct data_loader_options *options, const char *path,
                   const atomic_bool *stop, struct file_rows **ret, struct err *err)
{
    const struct file_ops *files = options->cache_files ? options->cache_files : &file_os;
    struct file_rows *r = memory_try_alloc(sizeof *r);
    int status = -ENOENT;

    if (!r)
        return err_set(err, -ENOMEM, "%s: no memory to read it", path);
    r->options = options;
    r->path = path;
    r->stop = stop;
    r->plan = options->labelled ? schema_plan(options->schema)
                                : schema_plan_unlabelled(options->schema);
    if (batch_init_labels(&r->one, NULL, 1, schema_n_labels(options->schema),
                          r->plan->n_numeric, r->plan->n_fields)) {
        status = err_set(err, -ENOMEM, "%s: no memory to read it", path);
    } else if (begin_pipe(r, err)) {
        status = err->status;
    } else if (!r->pipe && options->data_cache && options->data_cache[0]) {
        status = row_cache_file_key_init(&r->key, options->data_cache, files, path,
                                         options->schema, r->plan, err);
        status = status ? status : open_cache(r, err);
    }
    if (status == -ENOENT && !r->cached)
        status = open_text(r, err);
    if (status) {
        file_rows_close(r);
        return status;
    }
    *ret = r;
    return 0;
}

void file_rows_close(struct file_rows *r)
{
    if (!r)
        return;
    row_cache_file_close(r->cached);
    row_cache_file_abort(r->writer);
    line_reader_close(r->reader);
    parquet_rows_close(r->parquet);
    batch_deinit(&r->one);
    bytes_deinit(&r->made);
    free(r);
}

/* The cache is no good from here on. */
static int turn_to_text(struct file_rows *r, const struct err *why, struct err *err)
{
    int status;

    notify(r, why, "; it is written anew");
    row_cache_file_close(r->cached);
    r->cached = NULL;
    r->record = NULL;
    status = open_text(r, err);
    /* The last of these is the row that the cache could not give. */
    for (uint64_t i = 0;
         i <= r->n_rows && !status && !is_stopped(r) && (i == 0 || is_at_row(r)); i++)
        status = next_line(r, err);
    return status;
}

static int next_cached(struct file_rows *r, struct err *err)
{
    struct err why;
    int status = row_cache_file_next(r->cached, &r->record, &why);

    if (status == -ENOMEM)
        return err_set(err, status, "%s", why.text);
    if (status)
        return turn_to_text(r, &why, err);
    r->n_cached += r->record != NULL;
    r->text_bytes = r->record ? r->record->text_bytes : row_cache_file_text_bytes(r->cached);
    return 0;
}

int file_rows_next(struct file_rows *r, bool *ret_there, struct err *err)
{
    int status = r->cached ? next_cached(r, err) : next_line(r, err);

    *ret_there = !status && is_at_row(r);
    r->n_rows += *ret_there;
    return status;
}

int file_rows_fetch(struct file_rows *r, struct err *err)
{
    return r->parquet && !r->record ? parquet_rows_fetch(r->parquet, err) : 0;
}

int file_rows_add_record(const struct parsed_row *record, struct batch *b,
                         struct file_rows_refusal *ret)
{
    if (record->kind == PARSED_ROW_ROW || record->kind == PARSED_ROW_BAGS)
        return parsed_row_add(record, b);
    ret->line = parsed_row_line(record);
    return err_set(&ret->why, PS_EDATA, "%s",
                   record->kind == PARSED_ROW_TOO_LONG ? TOO_LONG
                                                       : parsed_row_sentence(record));
}

int file_rows_add(struct file_rows *r, struct batch *b, struct file_rows_refusal *ret)
{
    if (r->record)
        return file_rows_add_record(r->record, b, ret);
    ret->line = r->line.number;
    return parse(r, b, &ret->why);
}

int file_rows_record(struct file_rows *r, const struct parsed_row **ret)
{
    int status = 0;

    if (!r->record) {
        bytes_consume(&r->made, bytes_len(&r->made));
        status = record_in(r, &r->made);
    }
    *ret = r->record;
    return status;
}

int file_rows_finish(struct file_rows *r, struct err *err)
{
    int status = 0;

    while (r->writer && !status && !is_stopped(r))
        status = next_line(r, err);
    return status;
}

uint64_t file_rows_text_bytes(const struct file_rows *r)
{
    return r->text_bytes;
}

uint64_t file_rows_n_cached(const struct file_rows *r)
{
    return r->n_cached;
}
