#include "tests/bench/psbench_limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_run.h"
#include "tests/bench/psbench_wire.h"

#define TRY_S 0.2f
#define TRY_WARMUP_S 0.1f
#define TRIES 4u /* of the load: asleep and spinning in turn */

struct rounds {
    double actual[PSBENCH_ROUNDS_MAX], wire[PSBENCH_ROUNDS_MAX], table[PSBENCH_ROUNDS_MAX];
    double serial[PSBENCH_ROUNDS_MAX], ratio[PSBENCH_ROUNDS_MAX];
};

struct limits {
    const struct psbench_settings *settings;
    struct psbench_settings actual; /* with the better way to wait */
    struct psbench_pools *pools;
    struct psbench_counts *counts;
    struct psbench_limits *ret;
    struct psbench_core **core; /* made by the server core's thread */
    bool loaded;
    struct psbench_wire_config wire;
    double table_rows_per_s;
    int status;
    struct err *err;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct psbench_spread psbench_spread_of(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare);
    return (struct psbench_spread){ .median = (values[(n - 1) / 2] + values[n / 2]) / 2,
                                    .min = values[0],
                                    .max = values[n - 1] };
}

static int run_load(struct limits *l, const struct psbench_settings *s,
                    struct psbench_counts *counts)
{
    int status = psbench_run(s, l->pools, counts, l->err);

    if (!status && counts->n_shards != 1)
        status = err_set(l->err, -EINVAL,
                         "limits: are those of one core, but the server has %u shards",
                         counts->n_shards);
    return status;
}

/* The first run fills the table; what went wrong in any is to be told. */
static void keep_troubles(struct psbench_counts *to, const struct psbench_counts *from)
{
    if (from->n_errors && !to->n_errors)
        memcpy(to->first_error, from->first_error, sizeof to->first_error);
    to->n_errors += from->n_errors;
    to->n_filled += from->n_filled;
    to->n_rows_refused += from->n_rows_refused;
}

/* Waking psbench costs the server an interrupt for each answer that finds it asleep; a spinning
 * psbench costs a core, which may be the server's. */
static int find_best_wait(struct limits *l)
{
    struct psbench_settings tried = l->actual;
    struct psbench_counts *c = memory_alloc(2 * sizeof *c); /* asleep, spinning */
    int status = 0;

    tried.seconds = TRY_S;
    tried.warmup_seconds = TRY_WARMUP_S;
    for (uint32_t i = 0; i < TRIES && !status; i++) {
        tried.spin = i % 2;
        status = run_load(l, &tried, &c[i % 2]);
    }
    if (!status) {
        l->ret->try_sleeps = (double)c[0].n_rows / c[0].seconds;
        l->ret->try_spins = (double)c[1].n_rows / c[1].seconds;
        l->actual.spin = l->ret->try_spins > l->ret->try_sleeps;
    }
    keep_troubles(l->counts, &c[0]);
    keep_troubles(l->counts, &c[1]);
    free(c);
    return status;
}

/* Rows/s of the round that has just been added to the counts. */
static int run_actual(struct limits *l, double *ret_rows_per_s)
{
    struct psbench_counts *c = l->counts;
    uint64_t n_rows = c->n_rows;
    double seconds = c->seconds;
    int status = run_load(l, &l->actual, c);

    if (status)
        return status;
    if (c->n_rows == n_rows)
        return err_set(l->err, -EIO, "limits: no request was answered: %.150s",
                       c->n_errors ? c->first_error : "the time is too short");
    *ret_rows_per_s = (double)(c->n_rows - n_rows) / (c->seconds - seconds);
    return 0;
}

static void *on_table_thread(void *limits)
{
    struct limits *l = limits;

    l->status = psbench_cpu_pin(l->ret->server_cpu, l->err);
    if (!l->status && !*l->core)
        l->status = psbench_core_new(l->settings, l->core, l->err);
    if (!l->status && !l->loaded)
        l->status = psbench_core_load(*l->core, l->settings, &l->pools->items[0], l->err);
    l->loaded = true;
    if (!l->status)
        l->table_rows_per_s = psbench_core_run(*l->core, (double)l->settings->seconds);
    return NULL;
}

static int run_table(struct limits *l, double *ret_rows_per_s)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, on_table_thread, l))
        return err_set(l->err, -EAGAIN, "limits: no thread");
    pthread_join(thread, NULL);
    *ret_rows_per_s = l->table_rows_per_s;
    return l->status;
}

/* The mean sizes of what the load has sent and got. */
static void measure_sizes(struct limits *l)
{
    const struct psbench_counts *c = l->counts;

    for (int kind = 0; kind < PSBENCH_KIND_END; kind++) {
        const struct psbench_traffic *t = &c->traffic[kind];

        l->wire.request_bytes[kind] = l->wire.answer_bytes[kind] = PSBENCH_WIRE_BYTES_MIN;
        if (!t->n_requests)
            continue;
        l->wire.request_bytes[kind] = (uint32_t)(t->bytes_out / t->n_requests);
        l->wire.answer_bytes[kind] = (uint32_t)(t->bytes_in / t->n_requests);
    }
}

/* Which way is better depends on sizes and on the machine. */
static int find_best_way(struct limits *l)
{
    static const uint32_t sizes[] = { 64u << 10, 256u << 10, 1u << 20 };
    struct psbench_wire_config best = l->wire, tried = l->wire;
    struct psbench_wire_result result;
    double most = 0;
    int status = 0;

    tried.seconds = TRY_S;
    for (size_t i = 0; i < 2 * COUNT_OF(sizes) && !status; i++) {
        tried.read_bytes = sizes[i / 2];
        tried.spins = i % 2;
        status = psbench_wire_run(&tried, &result, l->err);
        if (!status && result.requests_per_s > most) {
            most = result.requests_per_s;
            best = tried;
        }
    }
    l->wire.read_bytes = l->ret->read_bytes = best.read_bytes;
    l->wire.spins = l->ret->spins = best.spins;
    return status;
}

static int run_wire(struct limits *l, double *ret_rows_per_s)
{
    struct psbench_wire_result result;
    int status = 0;

    measure_sizes(l);
    if (!l->ret->read_bytes)
        status = find_best_way(l);
    if (!status)
        status = psbench_wire_run(&l->wire, &result, l->err);
    if (status)
        return status;
    l->ret->wire_server_busy = result.server_busy;
    l->ret->wire_client_busy = result.client_busy;
    *ret_rows_per_s = result.requests_per_s * l->settings->keys_per_request;
    return 0;
}

static int run_rounds(struct limits *l, struct rounds *r)
{
    uint32_t i, n = l->settings->rounds;
    int status = l->actual.spin ? 0 : find_best_wait(l);

    for (i = 0; i < n && !status; i++) {
        status = run_actual(l, &r->actual[i]);
        if (!status)
            status = run_wire(l, &r->wire[i]);
        if (!status)
            status = run_table(l, &r->table[i]);
        if (status)
            break;
        r->serial[i] = 1 / (1 / r->wire[i] + 1 / r->table[i]);
        r->ratio[i] = r->actual[i] / r->serial[i];
    }
    return status;
}

static void prepare(struct limits *l)
{
    const struct psbench_settings *s = l->settings;
    float pulls = s->load == PSBENCH_PULL ? 1 : s->load == PSBENCH_MIX ? s->pull_share : 0;

    l->actual = *s;
    l->wire.connections = s->connections;
    l->wire.depth = s->depth;
    l->wire.pull_share = pulls;
    l->wire.seconds = s->seconds;
    l->wire.server_cpu = l->ret->server_cpu;
}

int psbench_limits_run(const struct psbench_settings *s, struct psbench_pools *pools,
                       struct psbench_core **core, struct psbench_counts *counts,
                       struct psbench_limits *ret, struct err *err)
{
    struct rounds *r = memory_alloc(sizeof *r);
    struct limits l = {
        .settings = s, .pools = pools, .core = core, .counts = counts, .ret = ret, .err = err
    };
    int status;

    *ret = (struct psbench_limits){ .n_rounds = s->rounds };
    status = psbench_cpu_parse("server-cpu", s->server_cpu, &ret->server_cpu, err);
    if (!status)
        status = psbench_cpu_parse("client-cpu", s->client_cpu, &ret->client_cpu, err);
    prepare(&l);
    if (!status)
        status = run_rounds(&l, r);
    if (!status) {
        ret->actual = psbench_spread_of(r->actual, s->rounds);
        ret->wire = psbench_spread_of(r->wire, s->rounds);
        ret->table = psbench_spread_of(r->table, s->rounds);
        ret->serial = psbench_spread_of(r->serial, s->rounds);
        ret->ratio = psbench_spread_of(r->ratio, s->rounds);
        ret->chunk = psbench_core_chunk(*core);
        ret->ahead = psbench_core_ahead(*core);
    }
    free(r);
    return status;
}
