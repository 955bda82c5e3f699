#include "tests/bench/psbench_local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_report.h"
#include "tests/bench/psbench_shard.h"

/* One number of shards. */
struct local_case {
    uint32_t n_threads;
    struct psbench_pools pools;
    struct psbench_shard *shards[PSBENCH_LOCAL_THREADS_MAX];       /* owned */
    double totals[PSBENCH_ROUNDS_MAX], ratios[PSBENCH_ROUNDS_MAX]; /* to the first case */
    double each[PSBENCH_LOCAL_THREADS_MAX];                        /* of the last round */
};

struct local {
    const struct psbench_settings *settings;
    struct local_case *cases; /* owned */
    uint32_t n_cases;
};

static int refuse_threads(const char *text, struct err *err)
{
    return err_set(err, PS_ESETTING,
                   "threads: found \"%.60s\", expected up to %u numbers from 1 to %u", text,
                   PSBENCH_LOCAL_CASES_MAX, PSBENCH_LOCAL_THREADS_MAX);
}

static int parse_threads(struct local *l, struct err *err)
{
    char text[SETTINGS_TEXT_MAX], *rest = text, *word;
    uint64_t n;

    memcpy(text, l->settings->threads, sizeof text);
    while ((word = strsep(&rest, ","))) {
        if (l->n_cases == PSBENCH_LOCAL_CASES_MAX || number_read_u64(word, &n) || n < 1 ||
            n > PSBENCH_LOCAL_THREADS_MAX)
            return refuse_threads(l->settings->threads, err);
        l->cases[l->n_cases++].n_threads = (uint32_t)n;
    }
    return 0;
}

/* All shards of a case fill side by side; returns when they are full. */
static int start_case(const struct local *l, struct local_case *c, struct err *err)
{
    int status = psbench_pools_init(&c->pools, l->settings, c->n_threads, err);
    double unused;
    uint32_t i;

    for (i = 0; i < c->n_threads && !status; i++) {
        struct psbench_shard_config config = { .settings = l->settings,
                                               .pool = &c->pools.items[i],
                                               .shard = i,
                                               .n_shards = c->n_threads,
                                               .cpu = psbench_cpu_nth(i) };

        status = psbench_shard_start(&config, &c->shards[i], err);
    }
    for (i = 0; i < c->n_threads && c->shards[i]; i++)
        if (psbench_shard_wait(c->shards[i], &unused, status ? NULL : err) && !status)
            status = err->status;
    return status;
}

static int run_round(struct local_case *c, uint32_t round, struct err *err)
{
    int status = 0;
    uint32_t i;

    c->totals[round] = 0;
    for (i = 0; i < c->n_threads; i++)
        psbench_shard_measure(c->shards[i]);
    for (i = 0; i < c->n_threads; i++) {
        if (psbench_shard_wait(c->shards[i], &c->each[i], status ? NULL : err) && !status)
            status = err->status;
        c->totals[round] += c->each[i];
    }
    return status;
}

static int run_rounds(struct local *l, struct err *err)
{
    uint32_t round, i;
    int status = 0;

    for (round = 0; round < l->settings->rounds; round++)
        for (i = 0; i < l->n_cases; i++) {
            struct local_case *c = &l->cases[i];

            status = run_round(c, round, err);
            if (status)
                return status;
            c->ratios[round] = c->totals[round] / l->cases[0].totals[round];
        }
    return 0;
}

static void report(const struct local *l, cJSON *line)
{
    cJSON *list = cJSON_AddArrayToObject(line, "threads"), *item, *each;
    uint32_t n = l->settings->rounds, i, j;

    for (i = 0; i < l->n_cases; i++) {
        struct local_case *c = &l->cases[i];
        struct psbench_spread total = psbench_spread_of(c->totals, n);
        struct psbench_spread ratio = psbench_spread_of(c->ratios, n);

        printf("  %2u shards  %7.3f M rows/s (%.3f to %.3f)  x %.2f (%.2f to %.2f)  each",
               c->n_threads, total.median / 1e6, total.min / 1e6, total.max / 1e6, ratio.median,
               ratio.min, ratio.max);
        item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "threads", c->n_threads);
        psbench_report_spread(item, "rows_per_s", &total);
        psbench_report_spread(item, "ratio", &ratio);
        each = cJSON_AddArrayToObject(item, "each");
        for (j = 0; j < c->n_threads; j++) {
            printf(" %.3f", c->each[j] / 1e6);
            cJSON_AddItemToArray(each, cJSON_CreateNumber(c->each[j]));
        }
        printf("\n");
        cJSON_AddItemToArray(list, item);
    }
}

static void clean_up(struct local *l)
{
    for (uint32_t i = 0; i < l->n_cases; i++) {
        for (uint32_t j = 0; j < l->cases[i].n_threads; j++)
            psbench_shard_stop(l->cases[i].shards[j]);
        psbench_pools_deinit(&l->cases[i].pools);
    }
    free(l->cases);
}

int psbench_local_run(struct psbench_settings *s, struct err *err)
{
    struct local l = { .settings = s,
                       .cases = memory_alloc(PSBENCH_LOCAL_CASES_MAX * sizeof *l.cases) };
    int status = parse_threads(&l, err);
    uint32_t i;
    cJSON *line;

    for (i = 0; i < l.n_cases && !status; i++)
        status = start_case(&l, &l.cases[i], err);
    if (!status)
        status = run_rounds(&l, err);
    if (!status) {
        printf("local %s, %u keys a request, dim %u, %llu rows over all shards, median of %u "
               "rounds\n",
               psbench_report_load_name(s->load), s->keys_per_request, s->dim,
               (unsigned long long)s->rows, s->rounds);
        line = psbench_report_open(s);
        report(&l, line);
        if (s->json[0])
            status = psbench_report_append(s->json, line, err);
        else
            cJSON_Delete(line);
    }
    clean_up(&l);
    return status;
}
