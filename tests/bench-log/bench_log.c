/*
 * What the write-ahead log costs: the loop's thread in ns for each record and KiB, the disk in MB/s, and
 * how long a group waits for its sync. Pushes of three sizes, of fp32 and of int8 rows. Before that, a
 * shard's pushes with a log and without (bench_push.h).
 *
 *     bench-log [DIR]     DIR: where the logs are made and removed; /tmp without
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hash.h"
#include "proto/key_codec.h"
#include "server/wal/wal_thread.h"
#include "tests/bench-log/bench_push.h"

#define DIM 16u
#define POOL_BYTES ((size_t)32 << 20)
#define BYTES_TOTAL (UINT64_C(192) << 20)

struct pushes {
    const char *name;
    struct push push;
    uint8_t *keys, *values; /* owned, POOL_BYTES: each push takes another part of them */
};

static uint64_t now_ns(void)
{
    return uv_hrtime();
}

static void die(const char *what, const struct err *err)
{
    fprintf(stderr, "bench-log: %s: %s\n", what, err->text);
    exit(1);
}

/* n_keys keys of 10 M as they are delta-coded, and rows of that many bytes: gradients of a normal
 * kind in fp32, or noise, as int8 leaves it. */
static struct pushes make(const char *name, uint32_t n_keys, uint32_t row_bytes)
{
    struct pushes p = { .name = name,
                        .keys = malloc(POOL_BYTES),
                        .values = malloc(POOL_BYTES) };

    if (!p.keys || !p.values)
        exit(1);
    for (size_t i = 0; i < POOL_BYTES; i++)
        p.keys[i] = (uint8_t)(i % 2 ? 0x80 | hash_mix(i) % 20 : hash_mix(i));
    for (size_t i = 0; i < POOL_BYTES / 4; i++) {
        uint64_t h = hash_mix2(i, 9);
        float g = ((float)(h & 0xffff) + (float)(h >> 16 & 0xffff) + (float)(h >> 32 & 0xffff) -
                   98302.5f) *
                  1e-8f;

        memcpy(p.values + 4 * i, row_bytes == 4 * DIM ? (void *)&g : (void *)&h, 4);
    }
    p.push = (struct push){ .seq = 1, .n_samples = 2048, .tick = true, .n_sections = 1 };
    p.push.sections[0] = (struct section){ .codec = CODEC_INT8,
                                           .n_keys = n_keys,
                                           .key_bytes = (size_t)n_keys * 2,
                                           .value_bytes = (size_t)n_keys * row_bytes };
    return p;
}

/* The push number i: other bytes than those before. */
static void turn(struct pushes *p, uint64_t i)
{
    struct section *s = &p->push.sections[0];

    s->keys = p->keys + i * 7919 * 64 % (POOL_BYTES - s->key_bytes);
    s->values = p->values + i * s->value_bytes / 4 * 4 % (POOL_BYTES - s->value_bytes);
}

static int remove_one(void *arg, const char *name)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", (const char *)arg, name);
    return unlink(path);
}

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static void ignore_progress(void *owner)
{
    (void)owner;
}

struct bench {
    uv_loop_t loop;
    struct mailbox mailbox;
    struct wal_thread *log;
    char dir[300];
};

static void start(struct bench *b, const char *root, enum wal_durability durability,
                  enum wal_zstd zstd)
{
    const struct wal_end end = { 0 };
    struct wal_thread_config config = { .mailbox = &b->mailbox,
                                        .on_progress = ignore_progress };
    struct err err;

    snprintf(b->dir, sizeof b->dir, "%s/bench-log-XXXXXX", root);
    if (!mkdtemp(b->dir) || uv_loop_init(&b->loop) || mailbox_init(&b->mailbox, &b->loop, b)) {
        perror(b->dir);
        exit(1);
    }
    config.writer = (struct wal_writer_config){
        .files = &file_os, .identity = { .n_shards = 1 }, .durability = durability, .zstd = zstd
    };
    snprintf(config.writer.dir, sizeof config.writer.dir, "%s", b->dir);
    if (wal_thread_start(&config, &end, &b->log, &err))
        die("start", &err);
}

static void stop(struct bench *b)
{
    struct err err;

    if (wal_thread_close(b->log, &err))
        die("close", &err);
    mailbox_close(&b->mailbox);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&b->loop))
        exit(1);
    mailbox_deinit(&b->mailbox);
    if (file_os.list(NULL, b->dir, remove_one, b->dir) == 0)
        (void)!rmdir(b->dir);
}

static void wait_for_space(struct bench *b, struct wal_thread_view *view)
{
    for (wal_thread_view(b->log, view); view->state == WAL_QUEUE_FULL;
         wal_thread_view(b->log, view)) {
        usleep(200);
        uv_run(&b->loop, UV_RUN_NOWAIT);
    }
}

static uint64_t append(struct bench *b, const struct wal_record *r)
{
    if (wal_thread_reserve(b->log, wal_record_bytes(r)))
        exit(1);
    return wal_thread_append(b->log, r, now_ns() / 1000000);
}

static struct wal_record record_of(const struct pushes *p)
{
    return (struct wal_record){ .event = { .type = SHARD_EVENT_PUSH,
                                           .push = { { "job", 0, 1 }, &p->push, 0 } } };
}

/* As many as fit BYTES_TOTAL, as fast as the log takes them. */
static void run_stream(struct pushes *p, const char *root, enum wal_durability durability,
                       enum wal_zstd zstd)
{
    const struct wal_record r = record_of(p);
    size_t n_bytes = wal_record_bytes(&r);
    uint32_t n = (uint32_t)(BYTES_TOTAL / n_bytes);
    uint64_t *ns, begin, end, waited = 0;
    struct wal_thread_view view;
    struct bench b;

    n = n < 200000 ? n : 200000;
    ns = calloc(n, sizeof *ns);
    start(&b, root, durability, zstd);
    begin = now_ns();
    for (uint32_t i = 0; i < n; i++) {
        uint64_t from = now_ns();

        wait_for_space(&b, &view);
        waited += now_ns() - from;
        turn(p, i);
        from = now_ns();
        (void)append(&b, &r);
        ns[i] = now_ns() - from;
    }
    do
        wal_thread_view(b.log, &view);
    while (view.progress.written < n);
    stop(&b); /* and synced */
    end = now_ns();
    qsort(ns, n, sizeof *ns, by_size);
    printf("%-14s %6.0f KiB  %-6s %-5s  append p50 %7.0f ns (%5.1f ns/KiB)  p99 %8.0f ns  "
           "%6.0f MB/s  stored %3.0f %%  syncs %" PRIu64 "  full %3.0f %%\n",
           p->name, (double)n_bytes / 1024, durability == WAL_NONE ? "none" : "async",
           zstd == WAL_ZSTD_OFF ? "plain" : "zstd", (double)ns[n / 2],
           (double)ns[n / 2] * 1024 / (double)n_bytes, (double)ns[n * 99 / 100],
           (double)n * (double)n_bytes / 1e6 / ((double)(end - begin) / 1e9),
           100.0 * (double)view.progress.stored_bytes / (double)view.progress.raw_bytes,
           view.progress.n_syncs, 100.0 * (double)waited / (double)(end - begin));
    free(ns);
}

/* Groups of n pushes, each group when the one before is durable: what a reply waits. */
static void run_groups(struct pushes *p, const char *root, uint32_t n_group)
{
    enum { N = 200 };
    const struct wal_record r = record_of(p);
    uint64_t ns[N], begin = 0;
    struct wal_thread_view view;
    struct bench b;

    start(&b, root, WAL_FSYNC, WAL_ZSTD_WHERE_IT_PAYS);
    begin = now_ns();
    for (uint32_t i = 0; i < N; i++) {
        uint64_t from = now_ns(), number = 0;

        for (uint32_t k = 0; k < n_group; k++) {
            turn(p, number);
            number = append(&b, &r);
        }
        for (wal_thread_view(b.log, &view); view.acknowledged < number;
             wal_thread_view(b.log, &view))
            uv_run(&b.loop, UV_RUN_NOWAIT);
        ns[i] = now_ns() - from;
    }
    begin = now_ns() - begin;
    qsort(ns, N, sizeof *ns, by_size);
    printf(
        "%-14s fsync, groups of %3u: reply after p50 %6.2f ms  p99 %6.2f ms  %6.0f pushes/s\n",
        p->name, n_group, (double)ns[N / 2] / 1e6, (double)ns[N * 99 / 100] / 1e6,
        (double)N * n_group / ((double)begin / 1e9));
    stop(&b);
}

int main(int argc, char **argv)
{
    const char *root = argc > 1 ? argv[1] : "/tmp";
    struct pushes all[] = { make("int8 small", 100, DIM + 4), make("int8", 2000, DIM + 4),
                            make("fp32", 2000, 4 * DIM) };

    bench_push();
    (void)fflush(stdout);
    for (size_t i = 0; i < COUNT_OF(all); i++)
        for (enum wal_durability d = WAL_NONE; d <= WAL_ASYNC; d++)
            for (enum wal_zstd z = WAL_ZSTD_OFF; z <= WAL_ZSTD_WHERE_IT_PAYS; z++)
                run_stream(&all[i], root, d, z);
    for (uint32_t n = 1; n <= 16; n *= 4)
        run_groups(&all[1], root, n);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        free(all[i].keys);
        free(all[i].values);
    }
    return 0;
}
