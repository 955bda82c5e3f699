/*
 * What reading click logs costs on one core, in MB of text a second, beside what the machine
 * itself can do with the same bytes: memcpy(), and zstd's unpacking alone. All in one run, the
 * best of several rounds each, so that the ratios mean something on a machine that others use.
 *
 *     bench-data [--rows N] [--batch N] [--window N] [--rounds N] [--json] [--parquet FILE] [FILE]
 *
 * FILE: Criteo text, plain or .zst; without one, rows of worker/data/synth.h. Text, packed text
 * and cache are written to a folder of its own under $TMPDIR, and read from the page cache.
 *
 * --parquet: a file with columns called as in Criteo's log (label, I1 .. I13, C1 .. C26), of those that it has; its rows
 * for each second that a core spends on them are told as well. FILE should have the same rows.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "common/memory.h"
#include "worker/data/file_rows.h"
#include "worker/data/input_stream.h"
#include "worker/data/line_parser_simd.h"
#include "worker/data/line_reader.h"
#include "worker/data/loader_pass.h"
#include "worker/data/parquet_file.h"
#include "worker/data/synth.h"

#define PATH_MAX_BYTES 512u
#define DEDUP_BATCHES 24u

struct bench {
    uint64_t n_rows;
    uint32_t n_batch, n_window, n_rounds;
    bool json;
    const char *file, *parquet;
    uint64_t n_parquet_rows;
    char folder[PATH_MAX_BYTES / 2], text_path[PATH_MAX_BYTES], zstd_path[PATH_MAX_BYTES];
    char *text; /* owned */
    size_t n_text, n_packed;
    void *packed; /* owned */
    struct schema *schema, *parquet_schema;
};

/* One thing measured: does it once over all of the text; a number that keeps the compiler from
 * leaving it out. */
typedef uint64_t work_fn(struct bench *b);

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double seconds(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

static void must(int status, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench-data: %s\n", err->text);
    exit(1);
}

/* ---- the work ---- */

static uint64_t copy(struct bench *b)
{
    char *to = memory_alloc(1 << 20);
    uint64_t sum = 0;

    for (size_t at = 0; at < b->n_text; at += 1 << 20) {
        size_t n = b->n_text - at < 1 << 20 ? b->n_text - at : 1 << 20;

        memcpy(to, b->text + at, n);
        sum += (uint8_t)to[n / 2];
    }
    free(to);
    return sum;
}

static uint64_t unpack(struct bench *b)
{
    char *to = memory_alloc(b->n_text);
    uint64_t n = ZSTD_decompress(to, b->n_text, b->packed, b->n_packed);

    free(to);
    return n;
}

static uint64_t lines_of(const char *path)
{
    struct line_reader_line line;
    struct line_reader *r;
    struct err err;
    uint64_t n = 0;

    must(line_reader_open(path, &r, &err), &err);
    for (;;) {
        must(line_reader_next(r, &line, &err), &err);
        if (!line.bytes)
            break;
        n += line.len;
    }
    line_reader_close(r);
    return n;
}

static uint64_t scan(struct bench *b)
{
    return lines_of(b->text_path);
}

static uint64_t scan_zstd(struct bench *b)
{
    return lines_of(b->zstd_path);
}

static uint64_t parse(struct bench *b)
{
    struct line_reader_line line;
    struct line_reader *r;
    struct batch batch;
    struct err err;
    uint64_t sum = 0;

    must(
        batch_init(&batch, b->n_batch, schema_n_numeric(b->schema), schema_n_fields(b->schema)),
        &(struct err){ .text = "no memory" });
    batch_clear(&batch);
    must(line_reader_open(b->text_path, &r, &err), &err);
    for (;;) {
        must(line_reader_next(r, &line, &err), &err);
        if (!line.bytes)
            break;
        must(line_parser_simd_parse(schema_plan(b->schema), line.bytes, line.len, &batch, &err),
             &err);
        if (batch.n < batch.n_max)
            continue;
        sum += batch.keys[0];
        batch_clear(&batch);
    }
    line_reader_close(r);
    batch_deinit(&batch);
    return sum;
}

/* A whole pass, in this thread. */
static uint64_t pass_with(struct bench *b, const struct schema *schema, const char *path,
                          uint32_t n_window, const char *cache)
{
    struct data_loader_options options = { .schema = schema,
                                           .paths = (char *[]){ (char *)(uintptr_t)path },
                                           .n_paths = 1,
                                           .n_ranks = 1,
                                           .by_rows = true,
                                           .batch = b->n_batch,
                                           .shuffle_rows = n_window,
                                           .seed = 1,
                                           .queue = 1,
                                           .data_cache = cache,
                                           .labelled = true };
    struct batch batch;
    struct loader_pass *p;
    struct err err;
    uint64_t sum = 0;

    must(batch_init(&batch, b->n_batch, schema_n_numeric(schema), schema_n_fields(schema)),
         &(struct err){ .text = "no memory" });
    must(loader_pass_new(&options, NULL, &p, &err), &err);
    do {
        must(loader_pass_fill(p, &batch, &err), &err);
        sum += batch.n_unique;
    } while (batch.n);
    loader_pass_free(p);
    batch_deinit(&batch);
    return sum;
}

static uint64_t pass_over(struct bench *b, const char *path, uint32_t n_window,
                          const char *cache)
{
    return pass_with(b, b->schema, path, n_window, cache);
}

static uint64_t feed_text(struct bench *b)
{
    return pass_over(b, b->text_path, 0, NULL);
}

static uint64_t feed_text_shuffled(struct bench *b)
{
    return pass_over(b, b->text_path, b->n_window, NULL);
}

static uint64_t feed_zstd(struct bench *b)
{
    return pass_over(b, b->zstd_path, 0, NULL);
}

static void drop_page_cache(const struct bench *b)
{
    DIR *dir = opendir(b->folder);
    struct dirent *entry;
    char path[PATH_MAX_BYTES + 256];

    while (dir && (entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", b->folder, entry->d_name);
        if (strstr(entry->d_name, ".rows"))
            remove(path);
    }
    if (dir)
        closedir(dir);
}

static uint64_t feed_and_write_cache(struct bench *b)
{
    drop_page_cache(b);
    return pass_over(b, b->text_path, 0, b->folder);
}

/* The share of the rows alone in a whole feed: nothing is done with a batch of them. */
static uint64_t rows_of(struct bench *b, const struct schema *schema, const char *path,
                        const char *cache)
{
    struct data_loader_options options = { .schema = schema,
                                           .labelled = true,
                                           .data_cache = cache };
    struct file_rows_refusal refusal;
    struct batch batch;
    struct file_rows *rows;
    struct err err;
    uint64_t sum = 0;
    bool there;

    must(batch_init(&batch, b->n_batch, schema_n_numeric(schema), schema_n_fields(schema)),
         &(struct err){ .text = "no memory" });
    batch_clear(&batch);
    must(file_rows_open(&options, path, NULL, &rows, &err), &err);
    for (;;) {
        must(file_rows_next(rows, &there, &err), &err);
        if (!there)
            break;
        must(file_rows_fetch(rows, &err), &err);
        must(file_rows_add(rows, &batch, &refusal), &refusal.why);
        if (batch.n < batch.n_max)
            continue;
        sum += batch.n_keys ? batch.keys[0] : 1;
        batch_clear(&batch);
    }
    file_rows_close(rows);
    batch_deinit(&batch);
    return sum + 1;
}

static uint64_t rows_of_cache(struct bench *b)
{
    return rows_of(b, b->schema, b->text_path, b->folder);
}

static uint64_t rows_of_parquet(struct bench *b)
{
    return b->parquet ? rows_of(b, b->parquet_schema, b->parquet, NULL) : 0;
}

static uint64_t feed_parquet(struct bench *b)
{
    return b->parquet ? pass_with(b, b->parquet_schema, b->parquet, 0, NULL) : 0;
}

static uint64_t feed_cache(struct bench *b)
{
    return pass_over(b, b->text_path, 0, b->folder);
}

static uint64_t feed_cache_shuffled(struct bench *b)
{
    return pass_over(b, b->text_path, b->n_window, b->folder);
}

static void fill(struct bench *b, struct line_reader *r, struct batch *batch)
{
    struct line_reader_line line = { 0 };
    struct err err;

    must(batch_init(batch, b->n_batch, schema_n_numeric(b->schema), schema_n_fields(b->schema)),
         &(struct err){ .text = "no memory" });
    batch_clear(batch);
    while (batch->n < batch->n_max) {
        must(line_reader_next(r, &line, &err), &err);
        if (!line.bytes)
            return;
        must(line_parser_simd_parse(schema_plan(b->schema), line.bytes, line.len, batch, &err),
             &err);
    }
}

/* Nanoseconds an id: of many batches one after another, since a processor learns a single one by
 * heart. */
static double dedup_ns(struct bench *b)
{
    static const struct err no_memory = { .text = "no memory" };
    struct batch batches[DEDUP_BATCHES];
    double best = 0;
    struct line_reader *r;
    struct err err;

    must(line_reader_open(b->text_path, &r, &err), &err);
    for (uint32_t i = 0; i < DEDUP_BATCHES; i++)
        fill(b, r, &batches[i]);
    for (uint32_t round = 0; round < 3 * b->n_rounds; round++) {
        double start = seconds(), ns;
        uint64_t n_keys = 0;

        for (uint32_t i = 0; i < DEDUP_BATCHES; i++) {
            must(batch_dedup(&batches[i]), &no_memory);
            n_keys += batches[i].n_keys;
        }
        ns = (seconds() - start) * 1e9 / (double)n_keys;
        best = round == 0 || ns < best ? ns : best;
    }
    for (uint32_t i = 0; i < DEDUP_BATCHES; i++)
        batch_deinit(&batches[i]);
    line_reader_close(r);
    return best;
}

/* ---- the files ---- */

static void read_text(struct bench *b)
{
    size_t cap = 0, n;
    struct input_stream *s;
    struct err err;

    must(input_stream_open(b->file, NULL, &s, &err), &err);
    do {
        if (b->n_text + (1 << 20) > cap) {
            cap = cap * 2 + (4 << 20);
            b->text = memory_try_realloc(b->text, cap);
        }
        must(b->text ? input_stream_read(s, b->text + b->n_text, 1 << 20, &n, &err) : -1,
             b->text ? &err : &(struct err){ .text = "no memory" });
        b->n_text += n;
    } while (n);
    input_stream_close(s);
}

static void write_file(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *f = fopen(path, "w");

    if (!f || fwrite(bytes, 1, n_bytes, f) != n_bytes || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

/* The columns of a Criteo log that the file has. */
static void prepare_parquet(struct bench *b)
{
    char numeric[256] = "", categorical[512] = "", *at[2] = { numeric, categorical };
    struct parquet_file *file;
    struct err err;

    if (!b->parquet)
        return;
    must(parquet_file_open(b->parquet, &file, &err), &err);
    b->n_parquet_rows = parquet_file_n_rows(file);
    for (uint32_t i = 0; i < parquet_file_n_columns(file); i++) {
        const char *name = parquet_file_column(file, i)->name;
        bool is_category = name[0] == 'C';

        if ((name[0] == 'I' || is_category) && strlen(name) <= 3)
            at[is_category] += sprintf(
                at[is_category], "%s%s",
                at[is_category] == (is_category ? categorical : numeric) ? "" : ",", name);
    }
    parquet_file_close(file);
    must(schema_open(&(struct schema_text){ .delimiter = "\\t",
                                            .label = "label",
                                            .numeric = numeric,
                                            .categorical = categorical },
                     NULL, b->parquet, &b->parquet_schema, &err),
         &err);
}

static void prepare(struct bench *b)
{
    const struct synth_options synth = { .rows = b->n_rows,
                                         .seed = 1,
                                         .n_numeric = 13,
                                         .n_categorical = 26,
                                         .cardinality = 100000,
                                         .zipf = 1.1,
                                         .positive_rate = 0.25 };
    const char *tmp = getenv("TMPDIR");
    struct err err;

    snprintf(b->folder, sizeof b->folder, "%s/bench-data-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(b->folder)) {
        perror(b->folder);
        exit(1);
    }
    snprintf(b->text_path, sizeof b->text_path, "%s/log", b->folder);
    snprintf(b->zstd_path, sizeof b->zstd_path, "%s/log.zst", b->folder);
    if (!b->file)
        must(synth_write(&synth, b->text_path, &err), &err);
    b->file = b->file ? b->file : b->text_path;
    read_text(b);
    write_file(b->text_path, b->text, b->n_text);
    b->n_packed = ZSTD_compressBound(b->n_text);
    b->packed = memory_alloc(b->n_packed);
    b->n_packed = ZSTD_compress(b->packed, b->n_packed, b->text, b->n_text, 3);
    write_file(b->zstd_path, b->packed, b->n_packed);
    must(schema_new(&(struct schema_text){ .preset = "criteo" }, NULL, &b->schema, &err), &err);
    prepare_parquet(b);
}

static void clean_up(struct bench *b)
{
    drop_page_cache(b);
    remove(b->text_path);
    remove(b->zstd_path);
    rmdir(b->folder);
    schema_free(b->schema);
    schema_free(b->parquet_schema);
    free(b->packed);
    free(b->text);
}

/* ---- measuring and telling ---- */

static const struct item {
    const char *name, *what;
    work_fn *work;
} items[] = {
    { "memcpy", "memcpy, from memory", copy },
    { "zstd", "zstd's unpacking, from memory", unpack },
    { "scan", "lines of the text", scan },
    { "scan_zstd", "lines of the packed text", scan_zstd },
    { "parse_hash", "lines, parsed, tokens hashed", parse },
    { "feed_text", "whole feed: text", feed_text },
    { "feed_text_shuffled", "whole feed: text, shuffled", feed_text_shuffled },
    { "feed_zstd", "whole feed: packed text", feed_zstd },
    { "feed_writing_cache", "whole feed: text, cache written", feed_and_write_cache },
    { "cache", "rows of the cache", rows_of_cache },
    { "feed_cache", "whole feed: cache", feed_cache },
    { "feed_cache_shuffled", "whole feed: cache, shuffled", feed_cache_shuffled },
    /* Last, and left out of the report without --parquet. */
    { "parquet", "rows of Parquet", rows_of_parquet },
    { "feed_parquet", "whole feed: Parquet", feed_parquet },
};

#define N_PARQUET_ITEMS 2u

/* The best of each: seconds, and seconds of a core. */
struct times {
    double wall[COUNT_OF(items)], cpu[COUNT_OF(items)];
};

static void keep_best(double *best, uint32_t round, double took)
{
    if (round == 0 || took < *best)
        *best = took;
}

/* Round after round over all of them, so that a slow moment of the machine meets every one. */
static uint64_t measure(struct bench *b, struct times *best)
{
    uint64_t kept = 0;

    for (uint32_t round = 0; round < b->n_rounds; round++)
        for (size_t i = 0; i < COUNT_OF(items); i++) {
            double start = seconds(), cpu_start = seconds_of(CLOCK_THREAD_CPUTIME_ID);

            kept += items[i].work(b);
            keep_best(&best->wall[i], round, seconds() - start);
            keep_best(&best->cpu[i], round, seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_start);
        }
    return kept;
}

static void report(const struct bench *b, const struct times *times, double ns)
{
    const double *best = times->wall;
    const size_t n = COUNT_OF(items) - (b->parquet ? 0 : N_PARQUET_ITEMS);
    double mb = (double)b->n_text * 1e-6;

    if (b->json)
        printf("{\"event\":\"bench-data\",\"text_bytes\":%zu,\"packed_bytes\":%zu,"
               "\"batch\":%u,\"window\":%u,\"dedup_ns_per_id\":%.2f",
               b->n_text, b->n_packed, b->n_batch, b->n_window, ns);
    else
        printf("%.1f MB of text, batches of %u, window of %u rows, best of %u rounds, one "
               "thread\n\n%-32s %8s %9s %9s\n",
               mb, b->n_batch, b->n_window, b->n_rounds, "", "MB/s", "/ memcpy", "/ zstd");
    for (size_t i = 0; i < n; i++)
        if (b->json)
            printf(",\"%s_mb_per_s\":%.1f", items[i].name, mb / best[i]);
        else
            printf("%-32s %8.0f %9.3f %9.2f\n", items[i].what, mb / best[i], best[0] / best[i],
                   best[1] / best[i]);
    for (size_t i = COUNT_OF(items) - N_PARQUET_ITEMS; i < n; i++)
        printf(b->json ? ",\"%s_rows_per_s\":%.0f" : "%-32s %8.0f rows per second of a core\n",
               b->json ? items[i].name : items[i].what,
               (double)b->n_parquet_rows / times->cpu[i]);
    if (b->json)
        printf("}\n");
    else
        printf("%-32s %8.1f ns an id\n", "unique keys of a batch", ns);
}

static int misuse(void)
{
    fprintf(stderr, "bench-data [--rows N] [--batch N] [--window N] [--rounds N] [--json] "
                    "[--parquet FILE] [FILE]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = { .n_rows = 100000, .n_batch = 2048, .n_window = 10000, .n_rounds = 5 };
    struct times best = { 0 };
    double ns;

    for (int i = 1; i < argc; i++) {
        uint32_t *to = strcmp(argv[i], "--batch") == 0    ? &b.n_batch
                       : strcmp(argv[i], "--window") == 0 ? &b.n_window
                       : strcmp(argv[i], "--rounds") == 0 ? &b.n_rounds
                                                          : NULL;
        bool rows = strcmp(argv[i], "--rows") == 0;

        if (strcmp(argv[i], "--json") == 0)
            b.json = true;
        else if (strcmp(argv[i], "--parquet") == 0 && i + 1 < argc)
            b.parquet = argv[++i];
        else if (argv[i][0] != '-' && !b.file)
            b.file = argv[i];
        else if ((!to && !rows) || ++i == argc || strtoul(argv[i], NULL, 10) == 0)
            return misuse();
        else if (rows)
            b.n_rows = strtoul(argv[i], NULL, 10);
        else
            *to = (uint32_t)strtoul(argv[i], NULL, 10);
    }
    prepare(&b);
    if (measure(&b, &best) == 0)
        fprintf(stderr, "bench-data: nothing was read\n");
    ns = dedup_ns(&b);
    report(&b, &best, ns);
    clean_up(&b);
    return 0;
}
