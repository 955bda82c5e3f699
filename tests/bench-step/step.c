/*
 * bench-step: what a training step costs, op by op and as a whole, on this machine, now.
 *
 *     bench-step [--json] [--seconds S] [--threads N]
 *
 * The model is the reference DLRM (13 numeric columns, 26 fields, dim 16, 512-256-64-16,
 * 512-256-1), the rows stand in memory. Each op's best time is set against two floors: its
 * arrays moved once at the speed of memcpy over arrays of 8 MiB, and its products at the best
 * rate that any product of these shapes reached. With --json one object a line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/bench-step/timed.h"
#include "worker/compute/thread_pool.h"
#include "worker/model/dlrm.h"

enum { N_NUMERIC = 13, N_FIELDS = 26, DIM = 16, COPY_BYTES = 8 << 20, COPY_PARTS = 16 };

struct options {
    bool json;
    double seconds; /* of each measurement */
    uint32_t n_threads;
};

struct model {
    struct dlrm *m;
    struct batch batch;
    float *rows, *row_grads;
};

static void must(int status, const char *what, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench-step: %s: %s\n", what, err ? err->text : status_text(status));
    exit(1);
}

static float random_float(uint64_t i, float scale)
{
    return (2 * hash_unit(hash_mix2(7, i)) - 1) * scale;
}

/* Keys: in each field a few are frequent and many are rare, as in click logs. */
static void fill_batch(struct batch *b, uint32_t n)
{
    must(batch_init(b, n, N_NUMERIC, N_FIELDS), "batch", NULL);
    must(batch_reserve_keys(b, n * N_FIELDS), "keys", NULL);
    b->n = n;
    for (uint32_t i = 0; i < n; i++)
        b->label[i] = (float)(hash_mix2(1, i) & 1);
    for (uint32_t i = 0; i < n * N_NUMERIC; i++)
        b->numeric[i] = random_float(i, 1);
    for (uint32_t i = 0; i < n * N_FIELDS; i++) {
        const double u = (double)hash_unit(hash_mix2(2, i));

        b->keys[i] = hash_mix2(i % N_FIELDS, (uint64_t)(1e5 * u * u * u * u));
        b->starts[i + 1] = i + 1;
    }
    b->n_keys = n * N_FIELDS;
    must(batch_dedup(b), "dedup", NULL);
}

static void model_init(struct model *x, const struct device_ops *ops, uint32_t n,
                       uint32_t n_threads, bool bf16)
{
    const struct dlrm_config config = { .batch_max = n,
                                        .n_numeric = N_NUMERIC,
                                        .n_fields = N_FIELDS,
                                        .dim = DIM,
                                        .n_bottom = 3,
                                        .bottom = { 512, 256, 64 },
                                        .n_top = 2,
                                        .top = { 512, 256 },
                                        .n_threads = n_threads,
                                        .products = bf16 ? DEVICE_BF16 : DEVICE_FP32 };
    struct err err = { 0 };

    *x = (struct model){ 0 };
    must(dlrm_new_on(ops, &config, &x->m, &err), "model", &err);
    fill_batch(&x->batch, n);
    for (uint32_t i = 0; i < dlrm_n_tensors(x->m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(x->m, i);

        for (uint32_t k = 0; k < t->n_floats; k++)
            t->values[k] = random_float((uint64_t)i << 32 | k, t->init_scale);
    }
    x->rows = memory_alloc((size_t)x->batch.n_unique * DIM * sizeof(float));
    x->row_grads = memory_alloc((size_t)x->batch.n_unique * DIM * sizeof(float));
    for (uint32_t i = 0; i < x->batch.n_unique * DIM; i++)
        x->rows[i] = random_float(i, 0.1f);
}

static void model_deinit(struct model *x)
{
    dlrm_free(x->m);
    batch_deinit(&x->batch);
    free(x->rows);
    free(x->row_grads);
}

static void model_step(struct model *x, uint64_t step)
{
    const struct dlrm_step s = {
        .batch = &x->batch, .rows = x->rows, .row_grads = x->row_grads, .number = step
    };
    double loss;

    must(dlrm_step(x->m, &s, &loss), "step", NULL);
}

static void copy_part(void *job, uint32_t task, uint32_t thread)
{
    uint8_t *bytes = job;
    const size_t part = COPY_BYTES / COPY_PARTS;

    (void)thread;
    memcpy(bytes + COPY_BYTES + task * part, bytes + task * part, part);
}

/* Bytes read and written a second. */
static double copy_rate(const struct options *o)
{
    uint8_t *bytes = memory_alloc((size_t)2 * COPY_BYTES);
    const double end = timed_now_s() + o->seconds;
    double best = 1e9;
    struct thread_pool *p;

    must(thread_pool_new(o->n_threads, &p), "threads", NULL);
    memset(bytes, 1, (size_t)2 * COPY_BYTES);
    while (timed_now_s() < end) {
        const double start = timed_now_s();

        thread_pool_run(p, COPY_PARTS, copy_part, bytes);
        if (timed_now_s() - start < best)
            best = timed_now_s() - start;
    }
    thread_pool_free(p);
    free(bytes);
    return 2 * COPY_BYTES / best;
}

static double best_flop_rate(const struct timed *t)
{
    double best = 1;

    for (uint32_t i = 0; i < t->n; i++)
        if (t->ops[i].n_flop / t->ops[i].best_s > best)
            best = t->ops[i].n_flop / t->ops[i].best_s;
    return best;
}

static void print_op(const struct options *o, const char *products, const struct timed_op *op,
                     double copy, double flop)
{
    const double by_bytes = op->bytes / copy, by_flop = op->n_flop / flop,
                 floor = by_bytes > by_flop ? by_bytes : by_flop;
    char name[64];

    snprintf(name, sizeof name, op->in ? "%s %u-%u" : "%s", op->name, op->in, op->out);
    if (o->json)
        printf("{\"event\":\"op\",\"products\":\"%s\",\"threads\":%u,\"op\":\"%s\",\"us\":%.1f,"
               "\"floor_bytes_us\":%.1f,\"floor_flop_us\":%.1f,\"ratio\":%.2f}\n",
               products, o->n_threads, name, 1e6 * op->best_s, 1e6 * by_bytes, 1e6 * by_flop,
               op->best_s / floor);
    else
        printf("  %-26s %9.1f %11.1f %11.1f %7.2f\n", name, 1e6 * op->best_s, 1e6 * by_bytes,
               1e6 * by_flop, op->best_s / floor);
}

static void measure_ops(const struct options *o, bool bf16, double copy)
{
    const char *products = bf16 ? "bf16" : "fp32";
    static struct timed t;
    struct model x;
    double flop, end, sum = 0;

    model_init(&x, timed_ops(&t), 2048, o->n_threads, bf16);
    end = timed_now_s() + 3 * o->seconds;
    for (uint64_t step = 0; step < 3 || timed_now_s() < end; step++) {
        timed_restart(&t);
        model_step(&x, step);
    }
    flop = best_flop_rate(&t);
    if (!o->json)
        printf("%s: copy %.1f GB/s, products %.0f GFLOP/s at best; batch 2048\n"
               "  %-26s %9s %11s %11s %7s\n",
               dlrm_device(x.m), copy * 1e-9, flop * 1e-9, "op", "us", "floor bytes",
               "floor FLOPs", "ratio");
    for (uint32_t i = 0; i < t.n; i++) {
        print_op(o, products, &t.ops[i], copy, flop);
        sum += t.ops[i].best_s;
    }
    if (!o->json)
        printf("  %-26s %9.1f\n", "sum", 1e6 * sum);
    model_deinit(&x);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure_steps(const struct options *o, uint32_t n, uint32_t n_threads, bool bf16)
{
    enum { STEPS_MAX = 1 << 16 };
    double *took = memory_alloc(STEPS_MAX * sizeof *took), end;
    uint32_t n_steps = 0;
    struct model x;

    model_init(&x, &device_cpu, n, n_threads, bf16);
    for (uint64_t step = 0; step < 3; step++)
        model_step(&x, step);
    end = timed_now_s() + 2 * o->seconds;
    while (n_steps < 3 || (n_steps < STEPS_MAX && timed_now_s() < end)) {
        const double start = timed_now_s();

        model_step(&x, n_steps);
        took[n_steps++] = timed_now_s() - start;
    }
    qsort(took, n_steps, sizeof *took, compare);
    if (o->json)
        printf("{\"event\":\"step\",\"products\":\"%s\",\"threads\":%u,\"batch\":%u,"
               "\"samples_per_s\":%.0f,\"best_samples_per_s\":%.0f}\n",
               bf16 ? "bf16" : "fp32", n_threads, n, n / took[n_steps / 2], n / took[0]);
    else
        printf("  %-4s %8u %7u %14.0f %14.0f\n", bf16 ? "bf16" : "fp32", n_threads, n,
               n / took[n_steps / 2], n / took[0]);
    model_deinit(&x);
    free(took);
}

static struct options parse(int argc, char **argv)
{
    struct options o = { .seconds = 0.5, .n_threads = 1 };

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            o.json = true;
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc && atof(argv[i + 1]) > 0)
            o.seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc && atoi(argv[i + 1]) > 0)
            o.n_threads = (uint32_t)atoi(argv[++i]);
        else {
            fprintf(stderr, "usage: bench-step [--json] [--seconds S] [--threads N]\n");
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    static const uint32_t batches[] = { 128, 2048 };
    const struct options o = parse(argc, argv);
    const double copy = copy_rate(&o);

    for (int bf16 = 0; bf16 < 2; bf16++)
        measure_ops(&o, bf16, copy);
    if (!o.json)
        printf("whole steps, samples/s\n  %-4s %8s %7s %14s %14s\n", "", "threads", "batch",
               "median", "best");
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (uint32_t n_threads = 1; n_threads <= 2; n_threads++)
            for (size_t i = 0; i < COUNT_OF(batches); i++)
                measure_steps(&o, batches[i], n_threads, bf16);
    return 0;
}
