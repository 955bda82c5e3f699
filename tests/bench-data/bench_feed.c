/*
 * The feed of psworker: batches that a loader makes of a file's cache of parsed rows, taken by a caller that does nothing
 * with them. Samples per second of wall time, the best of several rounds, with the CPU time of all its threads, and a
 * digest of all batches.
 *
 *     bench-feed [--batch N] [--threads N] [--rounds N] FILE CACHE
 *
 * FILE: Criteo text. CACHE: a folder; a first pass, not counted, writes its rows there, unless they are there already.
 * tests/bench/feed.py runs two builds of it in turn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "common/clock.h"
#include "common/memory.h"
#include "worker/data/data_loader.h"

struct bench {
    uint32_t n_batch, n_threads, n_rounds;
    char *file, *cache;
    struct schema *schema;
};

struct pass {
    uint64_t n_samples, n_keys, n_unique, ns, cpu_ns, busy_ns, digest;
};

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(int status, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench-feed: %s\n", err->text);
    exit(1);
}

static void add(uint64_t *digest, const void *bytes, size_t n_bytes)
{
    *digest = XXH3_64bits_withSeed(bytes, n_bytes, *digest);
}

static void add_batch(uint64_t *digest, const struct batch *b)
{
    add(digest, b->label, b->n * sizeof *b->label);
    add(digest, b->numeric, (size_t)b->n * b->n_numeric * sizeof *b->numeric);
    add(digest, b->starts, ((size_t)b->n * b->n_fields + 1) * sizeof *b->starts);
    add(digest, b->unique, b->n_unique * sizeof *b->unique);
    add(digest, b->row_of, b->n_keys * sizeof *b->row_of);
    add(digest, b->order, b->n_keys * sizeof *b->order);
    add(digest, b->order_starts, (b->n_unique + 1ul) * sizeof *b->order_starts);
}

/* with_digest: its time is not the feed's. */
static struct pass run(const struct bench *b, bool with_digest)
{
    const struct data_loader_options options = { .schema = b->schema,
                                                 .paths = (char *const *)&b->file,
                                                 .n_paths = 1,
                                                 .n_ranks = 1,
                                                 .by_rows = true,
                                                 .batch = b->n_batch,
                                                 .queue = b->n_threads > 4 ? b->n_threads : 4,
                                                 .n_threads = b->n_threads,
                                                 .data_cache = b->cache,
                                                 .labelled = true };
    struct pass p = { 0 };
    struct data_loader *loader;
    struct batch *batch;
    uint64_t since_ns, since_cpu_ns;
    struct err err;

    must(data_loader_open(&options, &loader, &err), &err);
    since_ns = clock_mono_ns();
    since_cpu_ns = cpu_ns();
    for (;;) {
        must(data_loader_next(loader, &batch, &err), &err);
        if (!batch)
            break;
        p.n_samples += batch->n;
        p.n_keys += batch->n_keys;
        p.n_unique += batch->n_unique;
        if (with_digest)
            add_batch(&p.digest, batch);
    }
    p.ns = clock_mono_ns() - since_ns;
    p.cpu_ns = cpu_ns() - since_cpu_ns;
    p.busy_ns = data_loader_busy_ns(loader);
    data_loader_close(loader);
    return p;
}

static void report(const struct bench *b, const struct pass *best, uint64_t digest)
{
    printf(
        "{\"event\":\"bench-feed\",\"batch\":%u,\"threads\":%u,\"samples\":%llu,\"keys\":%llu,"
        "\"unique\":%llu,\"samples_per_s\":%.0f,\"samples_per_cpu_s\":%.0f,\"ns_per_key\":%.2f,"
        "\"busy\":%.3f,"
        "\"digest\":\"%016llx\"}\n",
        b->n_batch, b->n_threads, (unsigned long long)best->n_samples,
        (unsigned long long)best->n_keys, (unsigned long long)best->n_unique,
        (double)best->n_samples * 1e9 / (double)best->ns,
        (double)best->n_samples * 1e9 / (double)best->cpu_ns,
        (double)best->ns / (double)best->n_keys, (double)best->busy_ns / (double)best->ns,
        (unsigned long long)digest);
}

static int misuse(void)
{
    fprintf(stderr, "bench-feed [--batch N] [--threads N] [--rounds N] FILE CACHE\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = { .n_batch = 65536, .n_threads = 2, .n_rounds = 3 };
    struct pass best = { 0 };
    uint64_t digest;
    struct err err;

    for (int i = 1; i < argc; i++) {
        uint32_t *to = strcmp(argv[i], "--batch") == 0     ? &b.n_batch
                       : strcmp(argv[i], "--threads") == 0 ? &b.n_threads
                       : strcmp(argv[i], "--rounds") == 0  ? &b.n_rounds
                                                           : NULL;
        char **path = !b.file ? &b.file : &b.cache;

        if (!to && (argv[i][0] == '-' || b.cache))
            return misuse();
        if (!to)
            *path = argv[i];
        else if (++i == argc || (*to = (uint32_t)strtoul(argv[i], NULL, 10)) == 0)
            return misuse();
    }
    if (!b.cache)
        return misuse();
    must(schema_new(&(struct schema_text){ .preset = "criteo" }, NULL, &b.schema, &err), &err);
    digest = run(&b, true).digest;
    for (uint32_t i = 0; i < b.n_rounds; i++) {
        struct pass p = run(&b, false);

        if (i == 0 || p.ns < best.ns)
            best = p;
    }
    report(&b, &best, digest);
    schema_free(b.schema);
    return 0;
}
