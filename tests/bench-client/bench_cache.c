/*
 * bench-cache SERVER ROWS SECONDS: a reader of libpsd with a cache, on the rows of `psbench pull --dim 16`, which has
 * filled them. Prints lines "NAME VALUE...": ns a key of pulls that are all in the cache (of the thread's own time, the
 * median of windows of 64 pulls), and the times of pulls, before their rows are there and after.
 *
 * bench-cache trace BYTES WARM <KEYS: keys, 8 bytes each, one by one through a row_cache of that size with rows of 16
 * floats. Prints the hits of those behind the first WARM, how many those are, the rows at the end and the bytes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/memory.h"
#include "worker/libpsd/psd.h"
#include "worker/libpsd/row_cache.h"

#define DIM 16u
#define KEYS_MAX 2600u
#define SECOND_NS UINT64_C(1000000000)
#define N_THREADS_MAX 2u

struct bench {
    psd *client;
    uint64_t n_rows;
    double seconds;
};

static void die(const char *what)
{
    fprintf(stderr, "bench-cache: %s: %s\n", what, psd_error());
    exit(1);
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Rows first, first + 1, ... as psbench numbers them: key hash_mix(i) of row i = 1 .. n_rows. */
static void fill_keys(uint64_t *keys, uint64_t first, uint32_t n, uint64_t n_rows)
{
    for (uint32_t i = 0; i < n; i++)
        keys[i] = hash_mix(1 + (first + i) % n_rows);
    qsort(keys, n, sizeof *keys, compare);
}

static void pull(psd *client, const uint64_t *keys, uint32_t n, float *rows)
{
    psd_rows section = { .size = sizeof section, .n = n, .keys = keys, .rows = rows };
    psd_op op;

    if (psd_pull(client, 0, &section, 1, &op) || psd_wait(client, op, -1))
        die("a pull");
}

static psd *open_client(const char *server)
{
    char url[256];
    psd *client;

    snprintf(url, sizeof url, "psd://%s", server);
    if (psd_open(&client, url, "reader=yes cache=256M max-age=1h name=bench-cache", NULL))
        die("start");
    if (psd_table(client, "psbench/16/adagrad/fp32", NULL) != 0)
        die("the table");
    return client;
}

/* ---- times of single pulls ---- */

static void print_times(const char *name, uint32_t n_keys, uint64_t *ns, uint32_t n)
{
    qsort(ns, n, sizeof *ns, compare);
    printf("%s %u %.1f %.1f\n", name, n_keys, (double)ns[n / 2] / 1e3,
           (double)ns[n - 1 - n / 100] / 1e3);
}

/* The same pulls twice: rows [first, first + n_pulls * n_keys), and then all of them from the cache. */
static void time_pulls(struct bench *b, uint64_t first, uint32_t n_keys, uint32_t n_pulls)
{
    static float rows[KEYS_MAX * DIM];
    uint64_t keys[KEYS_MAX], *ns = memory_alloc(n_pulls * sizeof *ns);

    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < n_pulls; i++) {
            uint64_t began_ns;

            fill_keys(keys, first + (uint64_t)i * n_keys, n_keys, b->n_rows);
            began_ns = clock_mono_ns();
            pull(b->client, keys, n_keys, rows);
            ns[i] = clock_mono_ns() - began_ns;
        }
        print_times(round ? "warm" : "cold", n_keys, ns, n_pulls);
    }
    free(ns);
}

/* ---- hits ---- */

#define WINDOW 64u /* pulls */
#define WINDOWS_MAX 65536u

struct hitter {
    struct bench *bench;
    uint32_t n_keys, n_sets, n_windows;
    uint64_t *keys;  /* [n_sets][n_keys] */
    uint64_t number; /* of the next pull */
    uint64_t *ns;    /* owned, [n_windows]: of WINDOW pulls each */
    pthread_t thread;
};

/* Hits never sleep: a thread's own time is what they cost, whoever else wants its core. */
static uint64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void *hit(void *arg)
{
    struct hitter *h = arg;
    float *rows = memory_alloc((size_t)h->n_keys * DIM * sizeof *rows);
    uint64_t began_ns = cpu_ns(), now_ns = began_ns,
             end_ns = began_ns + (uint64_t)(h->bench->seconds * (double)SECOND_NS);

    while (now_ns < end_ns && h->n_windows < WINDOWS_MAX) {
        for (uint32_t i = 0; i < WINDOW; i++, h->number++)
            pull(h->bench->client, h->keys + h->number % h->n_sets * h->n_keys, h->n_keys,
                 rows);
        h->ns[h->n_windows] = cpu_ns() - now_ns;
        now_ns += h->ns[h->n_windows++];
    }
    qsort(h->ns, h->n_windows, sizeof *h->ns, compare);
    free(rows);
    return NULL;
}

/* Keys at random of the first n_used rows, all of them in the cache. */
static void time_hits(struct bench *b, uint32_t n_keys, uint64_t n_used, uint32_t n_threads)
{
    struct hitter hitters[N_THREADS_MAX] = { 0 };
    const uint32_t n_sets = (uint32_t)(n_used / n_keys < 4000 ? n_used / n_keys : 4000);
    uint64_t *keys = memory_alloc((size_t)n_sets * n_keys * sizeof *keys);
    double ns = 0;

    for (uint32_t i = 0; i < n_sets * n_keys; i++)
        keys[i] = hash_mix(1 + (n_used <= n_sets * n_keys ? i : hash_mix2(5, i) % n_used));
    for (uint32_t i = 0; i < n_sets; i++) {
        uint64_t *set = keys + (size_t)i * n_keys;

        qsort(set, n_keys, sizeof *set, compare);
        for (uint32_t k = 1; k < n_keys; k++) /* twice is refused: the next number will do */
            if (set[k] <= set[k - 1])
                set[k] = set[k - 1] + 1;
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        hitters[i] = (struct hitter){ .bench = b,
                                      .n_keys = n_keys,
                                      .n_sets = n_sets,
                                      .keys = keys,
                                      .number = i * 977,
                                      .ns = memory_alloc(WINDOWS_MAX * sizeof(uint64_t)) };
        if (pthread_create(&hitters[i].thread, NULL, hit, &hitters[i]))
            abort();
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        pthread_join(hitters[i].thread, NULL);
        ns += (double)hitters[i].ns[hitters[i].n_windows / 2] / WINDOW / n_keys;
        free(hitters[i].ns);
    }
    printf("hit %u %llu %u %.2f\n", n_keys, (unsigned long long)n_used, n_threads,
           ns / n_threads);
    fflush(stdout);
    free(keys);
}

static void fill_cache(struct bench *b)
{
    static float rows[KEYS_MAX * DIM];
    uint64_t keys[KEYS_MAX];

    for (uint64_t i = 0; i < b->n_rows; i += KEYS_MAX) {
        fill_keys(keys, i, KEYS_MAX, b->n_rows);
        pull(b->client, keys, KEYS_MAX, rows);
    }
}

static int run(const char *server, uint64_t n_rows, double seconds)
{
    struct bench b = { .n_rows = n_rows, .seconds = seconds, .client = open_client(server) };
    psd_cache_stats stats = { .size = sizeof stats };
    uint32_t n_small = (uint32_t)(n_rows / 26 / 10), n_large = (uint32_t)(n_rows / 2600 / 4);

    time_pulls(&b, 0, 26, n_small < 4000 ? n_small : 4000);
    time_pulls(&b, n_rows / 2, 2600, n_large < 400 ? n_large : 400);
    fill_cache(&b);
    for (uint32_t threads = 1; threads <= N_THREADS_MAX; threads++) {
        time_hits(&b, 26, 2600, threads);
        time_hits(&b, 26, n_rows, threads);
        time_hits(&b, 2600, 2600, threads);
        time_hits(&b, 2600, n_rows, threads);
    }
    if (psd_get_cache_stats(b.client, &stats))
        die("stats");
    printf("cache %llu %llu %llu\n", (unsigned long long)stats.rows,
           (unsigned long long)stats.bytes, (unsigned long long)stats.evictions);
    psd_close(b.client);
    return 0;
}

/* ---- trace ---- */

static int run_trace(uint64_t n_bytes, uint64_t n_warm)
{
    struct row_cache *cache = row_cache_new(n_bytes, 3600 * SECOND_NS, 0);
    struct row_cache_stats stats;
    uint64_t key, n = 0, n_hits = 0, oldest_ns = UINT64_MAX;
    float row[DIM] = { 0 };
    struct row_cache_rows one = { .dim = DIM, .n = 1, .keys = &key, .rows = row };

    if (!cache)
        return 1;
    row_cache_start(cache, DIM);
    for (; fread(&key, sizeof key, 1, stdin) == 1; n++) {
        bool is_hit = !row_cache_read(cache, &one, 0, 1, n, &oldest_ns);

        n_hits += is_hit && n >= n_warm;
        if (!is_hit)
            row_cache_put(cache, &one, n, n);
    }
    row_cache_stats(cache, &stats);
    printf("%llu %llu %llu %llu\n", (unsigned long long)n_hits,
           (unsigned long long)(n - n_warm), (unsigned long long)stats.n_rows,
           (unsigned long long)stats.n_bytes);
    row_cache_free(cache);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "trace") == 0)
        return run_trace(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 4 && strtoull(argv[2], NULL, 10) >= KEYS_MAX)
        return run(argv[1], strtoull(argv[2], NULL, 10), strtod(argv[3], NULL));
    fprintf(stderr, "usage: bench-cache SERVER ROWS SECONDS | trace BYTES WARM <KEYS\n");
    return 2;
}
