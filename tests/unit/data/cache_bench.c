#include "tests/unit/data/cache_bench.h"

static void on_notice(void *arg, const char *sentence)
{
    struct cache_bench *b = arg;

    b->n_notices++;
    snprintf(b->notice, sizeof b->notice, "%s", sentence);
}

void write_log(struct cache_bench *b, uint32_t file, uint32_t n, uint32_t bad, const char *salt)
{
    char *text = memory_alloc(n * 80 + 100), name[16];
    size_t at = (size_t)sprintf(text, "y,a,b,c,d\n");

    for (uint32_t i = 0; i < n; i++) {
        unsigned h = (unsigned)hash_mix(i + file * 1000);

        at +=
            (size_t)sprintf(text + at, "%u,%s%u,%s,%08x%s,%s%x\n%s", h & 1,
                            bad && i % bad == bad - 1 ? "x" : "", h % 99991, h & 2 ? "-3" : "",
                            h >> 8, h & 4 ? "|t" : "", salt, h >> 20, h & 24 ? "" : "\r\n");
    }
    snprintf(name, sizeof name, "part-%u", file);
    fixture_write(&b->folder, name, text, at, b->names[file]);
    b->paths[file] = b->names[file];
    free(text);
}

void cache_bench_new(struct cache_bench *b, const char *inner_separator, uint32_t bad)
{
    struct schema_text text = { .delimiter = ",",
                                .header = true,
                                .label = "y",
                                .numeric = "a,b",
                                .categorical = "c,d",
                                .inner_separator = inner_separator,
                                .missing_as = *inner_separator ? SCHEMA_MISSING_SKIP
                                                               : SCHEMA_MISSING_KEY };

    memset(b, 0, sizeof *b);
    fixture_folder_new(&b->folder);
    crash_files_init(&b->disk);
    b->schema = fixture_schema(&text, "y,a,b,c,d");
    write_log(b, 0, 70, bad, "");
    write_log(b, 1, 50, bad, "");
    b->options = (struct data_loader_options){ .schema = b->schema,
                                               .paths = b->paths,
                                               .n_paths = 2,
                                               .n_ranks = 1,
                                               .by_rows = true,
                                               .batch = 8,
                                               .queue = 1,
                                               .labelled = true,
                                               .seed = 3,
                                               .bad_rows_max = 1000,
                                               .data_cache = "cache",
                                               .cache_files = &b->disk.ops,
                                               .on_notice = on_notice,
                                               .notice_arg = b };
}

void cache_bench_free(struct cache_bench *b)
{
    assert_int_equal(crash_files_n_open(&b->disk), 0);
    crash_files_deinit(&b->disk);
    schema_free(b->schema);
    fixture_folder_free(&b->folder);
}

static void add(uint64_t *digest, const void *bytes, size_t n_bytes)
{
    *digest = XXH3_64bits_withSeed(bytes, n_bytes, *digest);
}

static void add_batch(uint64_t *digest, const struct batch *b)
{
    add(digest, &b->number, sizeof b->number);
    add(digest, b->label, b->n * sizeof *b->label);
    add(digest, b->numeric, (size_t)b->n * b->n_numeric * sizeof *b->numeric);
    add(digest, b->starts, ((size_t)b->n * b->n_fields + 1) * sizeof *b->starts);
    add(digest, b->keys, b->n_keys * sizeof *b->keys);
    add(digest, b->unique, b->n_unique * sizeof *b->unique);
    add(digest, b->row_of, b->n_keys * sizeof *b->row_of);
}

struct outcome run(const struct data_loader_options *options)
{
    struct err err = { 0 };
    struct outcome out = { 0 };
    struct data_loader_counts counts;
    struct batch batch;
    struct loader_pass *p = NULL;

    out.status = batch_init(&batch, options->batch, 2, 2);
    if (!out.status)
        out.status = loader_pass_new(options, NULL, &p, &err);
    while (!out.status) {
        out.status = loader_pass_fill(p, &batch, &err);
        if (out.status || batch.n == 0)
            break;
        add_batch(&out.digest, &batch);
        loader_pass_counts(p, &counts);
        add(&out.digest, &counts.bytes, sizeof counts.bytes);
        add(&out.digest, &counts.bad_rows, sizeof counts.bad_rows);
    }
    if (p) {
        loader_pass_counts(p, &counts);
        out.rows = counts.rows;
        out.bad_rows = counts.bad_rows;
        out.bytes = counts.bytes;
        out.cached = counts.cached;
    }
    snprintf(out.text, sizeof out.text, "%s", err.text);
    loader_pass_free(p);
    batch_deinit(&batch);
    return out;
}

struct outcome run_plain(const struct cache_bench *b)
{
    struct data_loader_options options = b->options;

    options.data_cache = NULL;
    return run(&options);
}

void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->status, b->status);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->bad_rows, b->bad_rows);
    assert_int_equal(a->bytes, b->bytes);
    assert_true(a->digest == b->digest);
}

uint64_t run_same(struct cache_bench *b)
{
    struct outcome plain = run_plain(b), cached = run(&b->options);

    assert_same(&plain, &cached);
    return cached.cached;
}

const char *cache_of(const struct cache_bench *b, uint32_t file)
{
    char part[16];

    snprintf(part, sizeof part, "cache/part-%u.", file);
    for (long i = 0; i < b->disk.n_names; i++)
        if (b->disk.names[i].live >= 0 && strncmp(b->disk.names[i].path, part, 13) == 0)
            return b->disk.names[i].path;
    return NULL;
}

uint32_t n_files(const struct cache_bench *b)
{
    uint32_t n = 0;

    for (long i = 0; i < b->disk.n_names; i++)
        n += b->disk.names[i].live >= 0 && !b->disk.names[i].is_dir;
    return n;
}
