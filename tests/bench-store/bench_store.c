/*
 * What a checkpoint costs: a slice on the shard's thread, the writing beside it, a delta of 1 % of the rows,
 * and loading. One shard, rows of dim 16 with row-wise Adagrad. CPU time is told beside the wall's, for
 * machines that others use, too.
 *
 *     bench-store [DIR [MILLIONS]]     DIR: where it is made and removed; /tmp without. 10 without
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/memory.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/loader.h"
#include "server/checkpoint/shard_file_writer.h"
#include "server/core/replay.h"
#include "server/core/restore.h"

#define DIM 16u
#define SLICES_MAX 100000u

struct lap {
    uint64_t wall_ns, cpu_ns;
};

struct bench {
    char dir[512];
    uint64_t n_rows;
    struct shard *shard; /* owned */
    uint64_t *slice_ns;  /* owned, SLICES_MAX */
};

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static struct lap lap_begin(void)
{
    return (struct lap){ clock_ns(CLOCK_MONOTONIC), clock_ns(CLOCK_THREAD_CPUTIME_ID) };
}

static void lap_end(struct lap *lap)
{
    lap->wall_ns = clock_ns(CLOCK_MONOTONIC) - lap->wall_ns;
    lap->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - lap->cpu_ns;
}

static void report(const char *what, const struct lap *lap, uint64_t n_bytes)
{
    printf("%-28s %8.1f MB  wall %6.0f ms, %7.1f MB/s   cpu %6.0f ms, %7.1f MB/s\n", what,
           (double)n_bytes * 1e-6, (double)lap->wall_ns * 1e-6,
           (double)n_bytes * 1e3 / (double)lap->wall_ns, (double)lap->cpu_ns * 1e-6,
           (double)n_bytes * 1e3 / (double)lap->cpu_ns);
    fflush(stdout);
}

static void must(int status, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench-store: %s\n", err->text);
    exit(1);
}

static struct shard *make_shard(void)
{
    return shard_new(&(struct shard_config){
        .n_shards = 1, .lease_ms = 1000, .join_ms = 1000, .park_ms = 1000 });
}

static void touch(struct bench *b, uint64_t every, uint64_t version) ON_SHARD
{
    float payload[DIM + 1];

    for (uint32_t i = 0; i <= DIM; i++)
        payload[i] = (float)version * 0.5f;
    for (uint64_t i = 0; i < b->n_rows; i += every)
        if (restore_row(b->shard, 0, hash_mix(i), row_stamp(version, 1, 0), payload))
            exit(1);
    restore_counts(b->shard, 0, version, version);
}

static void fill(struct bench *b) ON_SHARD
{
    struct table_spec spec = { .name = "emb",
                               .dim = DIM,
                               .optim = TABLE_SPEC_ROWWISE_ADAGRAD,
                               .params =
                                   table_spec_optim_defaults(TABLE_SPEC_ROWWISE_ADAGRAD) };
    struct err err;
    uint32_t id;

    b->shard = make_shard();
    must(shard_table_open(b->shard, &spec, false, &id, &err), &err);
    touch(b, 1, 1);
}

static int ascending(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return (a > b) - (a < b);
}

/* The slices are timed; writing is, on its own, as another thread would do it. */
static void save(struct bench *b, const char *what, uint64_t base, struct manifest *m) ON_SHARD
{
    struct shard_file_writer_config config = {
        .files = &file_os, .data_dir = b->dir, .identity = { .n_shards = 1 }, .base = base
    };
    struct lap writing = { 0 };
    struct shard_file_writer_buffer *buffer;
    struct shard_file_writer *s;
    struct err err;
    uint32_t n = 0;

    *m = (struct manifest){ .n_nodes = 1, .shards_per_node = 1, .n_shards = 1, .n_files = 1 };
    must(checkpoint_next(&file_os, b->dir, &m->number, &err), &err);
    config.number = m->number;
    m->base = base;
    must(shard_file_writer_begin(&config, b->shard, 0, &s, &err), &err);
    while (!shard_file_writer_is_written(s)) {
        uint64_t begun = clock_ns(CLOCK_MONOTONIC);

        (void)shard_file_writer_fill(s, b->shard);
        b->slice_ns[n++ % SLICES_MAX] = clock_ns(CLOCK_MONOTONIC) - begun;
        buffer = shard_file_writer_next(s);
        if (buffer) {
            struct lap lap = lap_begin();

            must(shard_file_writer_write(s, buffer, &err), &err);
            lap_end(&lap);
            writing.wall_ns += lap.wall_ns;
            writing.cpu_ns += lap.cpu_ns;
            shard_file_writer_recycle(s, buffer);
        }
    }
    must(shard_file_writer_close(s, 0, &m->files[0], &err), &err);
    must(checkpoint_commit(&file_os, b->dir, m, 5, NULL, &err), &err);
    shard_file_writer_end(s, b->shard, SNAPSHOT_SCAN_KEPT);
    report(what, &writing, m->files[0].n_bytes);
    n = n < SLICES_MAX ? n : SLICES_MAX;
    qsort(b->slice_ns, n, sizeof *b->slice_ns, ascending);
    printf("  %u slices: median %.1f us, p99 %.1f us, longest %.1f us\n", n,
           (double)b->slice_ns[n / 2] * 1e-3, (double)b->slice_ns[n * 99 / 100] * 1e-3,
           (double)b->slice_ns[n - 1] * 1e-3);
}

static void load(struct bench *b, const char *what) ON_SHARD
{
    struct shard *shard = make_shard();
    struct checkpoint c;
    struct loader_facts facts;
    struct err err;
    struct lap lap;

    must(checkpoint_find(&file_os, b->dir, 0, &c, NULL, NULL, &err), &err);
    lap = lap_begin();
    must(checkpoint_verify(&file_os, &c, NULL, NULL, &err), &err);
    lap_end(&lap);
    report("verify", &lap, c.links[0].files[0].n_bytes);
    lap = lap_begin();
    must(loader_load(&(struct loader_config){ .files = &file_os, .checkpoint = &c }, 0, shard,
                     0, &facts, &err),
         &err);
    replay_end(shard, 0);
    lap_end(&lap);
    report(what, &lap, facts.n_bytes);
    printf("  %.0f ns a row\n", (double)lap.cpu_ns / (double)facts.n_rows);
    if (table_n_rows(shard_table(shard, 0)->rows) != b->n_rows)
        exit(1);
    checkpoint_close(&c);
    shard_free(shard);
}

static void clean(struct bench *b)
{
    char base[DIRECTORY_PATH_MAX], dir[DIRECTORY_PATH_MAX];
    struct directory_numbers numbers;

    if (directory_path(b->dir, base, NULL) || directory_list(&file_os, base, &numbers, NULL))
        return;
    for (size_t i = 0; i < numbers.n; i++)
        if (directory_number_path(b->dir, numbers.items[i], dir, NULL) == 0)
            directory_remove(&file_os, dir);
    free(numbers.items);
    (void)rmdir(base);
    (void)rmdir(b->dir);
}

int main(int argc, char **argv)
{
    struct bench b = { .slice_ns = memory_alloc(SLICES_MAX * sizeof(uint64_t)) };
    struct manifest *m = memory_alloc(sizeof *m);

    enter_shard();
    snprintf(b.dir, sizeof b.dir, "%s/bench-store.%d", argc > 1 ? argv[1] : "/tmp",
             (int)getpid());
    b.n_rows = (argc > 2 ? strtoull(argv[2], NULL, 10) : 10) * 1000000;
    fill(&b);
    save(&b, "write, full", 0, m);
    load(&b, "load, full");
    touch(&b, 100, 2);
    save(&b, "write, delta of 1 %", m->number, m);
    load(&b, "load, full and delta");
    shard_free(b.shard);
    clean(&b);
    free(m);
    free(b.slice_ns);
    return 0;
}
