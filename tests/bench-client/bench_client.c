/*
 * bench-client SERVER ROWS KEYS DEPTH SECONDS [THREADS]: pulls through one handle of libpsd, as a reader, of which each
 * thread has DEPTH / THREADS under way. The rows are those of `psbench pull --dim 16`, which has filled them. Prints
 * pulls a second, from the first answer behind a warm-up of a fifth of SECONDS. tests/bench/client.py compares it with
 * psbench.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/memory.h"
#include "worker/libpsd/psd.h"

#define DIM 16u
#define N_SETS 512u /* of keys, used in turn */
#define SECOND_NS UINT64_C(1000000000)

struct bench {
    psd *client;
    uint32_t table, n_keys, depth, n_threads;
    uint64_t n_rows, start_ns, end_ns; /* of what is counted */
    uint64_t *keys;                    /* owned, N_SETS x n_keys, ascending in each set */
};

struct puller {
    struct bench *bench;
    uint32_t number;
    pthread_t thread;
    uint64_t n_counted;
};

/* One of a thread's pulls under way. */
struct slot {
    psd_op pull;
    psd_rows section;
};

static void die(const char *what)
{
    fprintf(stderr, "bench-client: %s: %s\n", what, psd_error());
    exit(1);
}

static int compare_keys(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Different rows, as psbench numbers them: key hash_mix(i) of row i = 1 .. n_rows. */
static void fill_set(const struct bench *b, uint32_t set)
{
    const uint64_t first = hash_mix2(7, set) % b->n_rows;
    uint64_t *keys = b->keys + (size_t)set * b->n_keys;

    for (uint32_t i = 0; i < b->n_keys; i++)
        keys[i] = hash_mix(1 + (first + i * (b->n_rows / b->n_keys)) % b->n_rows);
    qsort(keys, b->n_keys, sizeof *keys, compare_keys);
}

static void start(struct bench *b, struct slot *slot, uint64_t number)
{
    slot->section.keys = b->keys + number % N_SETS * b->n_keys;
    if (psd_pull(b->client, 0, &slot->section, 1, &slot->pull))
        die("a pull");
}

static void *pull_all(void *arg)
{
    struct puller *p = arg;
    struct bench *b = p->bench;
    uint32_t depth = b->depth / b->n_threads;
    struct slot *slots = memory_alloc(depth * sizeof *slots);
    uint64_t n = 0, now = 0;

    for (uint32_t i = 0; i < depth; i++) {
        slots[i].section = (psd_rows){ .size = sizeof(psd_rows),
                                       .table = b->table,
                                       .n = b->n_keys,
                                       .rows = memory_alloc(b->n_keys * DIM * sizeof(float)) };
        start(b, &slots[i], p->number * 97 + n++);
    }
    while (now < b->end_ns) {
        struct slot *oldest = &slots[n % depth];

        if (psd_wait(b->client, oldest->pull, -1))
            die("an answer");
        now = clock_mono_ns();
        p->n_counted += now >= b->start_ns && now < b->end_ns;
        start(b, oldest, p->number * 97 + n++);
    }
    for (uint32_t i = 0; i < depth; i++) {
        if (psd_wait(b->client, slots[i].pull, -1))
            die("an answer");
        free(slots[i].section.rows);
    }
    free(slots);
    return NULL;
}

static void open_client(struct bench *b, const char *server)
{
    char url[256];
    int table = -1;

    snprintf(url, sizeof url, "psd://%s", server);
    if (!psd_open(&b->client, url, "reader=yes name=bench-client", NULL))
        table = psd_table(b->client, "psbench/16/adagrad/fp32", NULL);
    if (table < 0)
        die("start");
    b->table = (uint32_t)table;
}

static void run(struct bench *b, double seconds)
{
    struct puller *pullers = memory_alloc(b->n_threads * sizeof *pullers);
    uint64_t n_counted = 0;

    b->start_ns = clock_mono_ns() + (uint64_t)(seconds / 5 * (double)SECOND_NS);
    b->end_ns = b->start_ns + (uint64_t)(seconds * (double)SECOND_NS);
    for (uint32_t i = 0; i < b->n_threads; i++) {
        pullers[i] = (struct puller){ .bench = b, .number = i };
        if (pthread_create(&pullers[i].thread, NULL, pull_all, &pullers[i]))
            abort();
    }
    for (uint32_t i = 0; i < b->n_threads; i++) {
        pthread_join(pullers[i].thread, NULL);
        n_counted += pullers[i].n_counted;
    }
    free(pullers);
    printf("%.0f\n", (double)n_counted / seconds);
}

int main(int argc, char **argv)
{
    struct bench b = { .n_threads = 1 };
    double seconds;

    if (argc < 6 || argc > 7) {
        fprintf(stderr, "usage: bench-client SERVER ROWS KEYS DEPTH SECONDS [THREADS]\n");
        return 2;
    }
    b.n_rows = strtoull(argv[2], NULL, 10);
    b.n_keys = (uint32_t)strtoul(argv[3], NULL, 10);
    b.depth = (uint32_t)strtoul(argv[4], NULL, 10);
    seconds = strtod(argv[5], NULL);
    if (argc == 7)
        b.n_threads = (uint32_t)strtoul(argv[6], NULL, 10);
    if (!b.n_keys || b.n_keys > b.n_rows || !b.n_threads || b.depth < b.n_threads ||
        seconds <= 0) {
        fprintf(stderr, "bench-client: expected 0 < KEYS <= ROWS, 0 < THREADS <= DEPTH, "
                        "SECONDS > 0\n");
        return 2;
    }
    b.keys = memory_alloc((size_t)N_SETS * b.n_keys * sizeof *b.keys);
    for (uint32_t i = 0; i < N_SETS; i++)
        fill_set(&b, i);
    open_client(&b, argv[1]);
    run(&b, seconds);
    psd_close(b.client);
    free(b.keys);
    return 0;
}
