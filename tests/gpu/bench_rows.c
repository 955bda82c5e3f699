#include "tests/gpu/bench_rows.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "tests/gpu/op_monitor.h"
#include "worker/cuda/device_cuda.h"
#include "worker/model/data_parallel.h"

enum { RUNS = 15, CALLS = 10, TABLES = 4, ROW_DIM = 16, DIM = 128 };

static const struct device_ops *const gpu = &device_cuda;

static void must(int status, const char *what)
{
    if (!status)
        return;
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static void *taken(void *memory)
{
    must(!memory, "no memory for rows");
    return memory;
}

/* ---- duplicate keys ---- */

static bool is_same(const struct key_dedup *got, uint32_t n_unique, const struct batch *want)
{
    return n_unique == want->n_unique &&
           !memcmp(got->unique, want->unique, n_unique * sizeof *want->unique) &&
           !memcmp(got->row_of, want->row_of, want->n_keys * sizeof *want->row_of) &&
           !memcmp(got->order, want->order, want->n_keys * sizeof *want->order) &&
           !memcmp(got->order_starts, want->order_starts,
                   (n_unique + 1) * sizeof *want->order_starts);
}

static double seconds_on_cpu(struct batch *batch)
{
    double took[RUNS];

    for (uint32_t i = 0; i < RUNS; i++) {
        const double start = op_monitor_now_s();

        must(batch_dedup(batch), "dedup");
        took[i] = op_monitor_now_s() - start;
    }
    return op_monitor_median(took, RUNS);
}

/* As a reading thread calls it: copies in, kernels, copies out, and the wait for them. */
static double seconds_on_gpu(struct compute *c, const struct batch *batch)
{
    const size_t n = batch->n_keys, n_bytes = n * 28 + 64;
    uint64_t *keys = taken(gpu->host_alloc(c, n_bytes));
    uint32_t *words = (uint32_t *)(keys + 2 * n), n_unique = 0;
    const struct key_dedup k = { .n_keys = batch->n_keys,
                                 .n_bags = batch->n * batch->n_fields,
                                 .n_fields = batch->n_fields,
                                 .keys = memcpy(keys, batch->keys, n * sizeof *keys),
                                 .unique = keys + n,
                                 .row_of = words,
                                 .order = words + n,
                                 .order_starts = words + 2 * n };
    struct device_dedup *d;
    double took[RUNS];
    struct err err;

    must(gpu->dedup_new(c, &d, &err), err.text);
    for (uint32_t i = 0; i < RUNS; i++) {
        const double start = op_monitor_now_s();

        must(gpu->dedup(d, &k, &n_unique, &err), err.text);
        took[i] = op_monitor_now_s() - start;
    }
    must(!is_same(&k, n_unique, batch), "the device numbers rows in another way");
    gpu->dedup_free(d);
    gpu->host_free(c, keys, n_bytes);
    return op_monitor_median(took, RUNS);
}

/* ---- rows of other widths ---- */

struct projected {
    struct row_projection p;
    float *memory; /* owned: zeros */
    uint32_t *starts;
    size_t n_bytes;
    float *rows, *drows, *wide;
};

static void open_projected(struct compute *c, struct projected *x, uint32_t n_rows)
{
    const size_t n = n_rows, n_weights = (size_t)DIM * ROW_DIM;
    uint32_t starts[TABLES + 1];

    *x = (struct projected){ .p = { .dim = DIM, .n_groups = TABLES, .n_rows_max = n_rows } };
    x->n_bytes = (2 * n * ROW_DIM + n * DIM + 2 * TABLES * n_weights) * sizeof(float);
    x->memory = taken(gpu->memory_alloc_zeroed(c, x->n_bytes));
    x->starts = taken(gpu->memory_alloc_zeroed(c, sizeof starts));
    x->rows = x->memory;
    x->drows = x->rows + n * ROW_DIM;
    x->wide = x->drows + n * ROW_DIM;
    for (uint32_t g = 0; g < TABLES; g++) {
        float *w = x->wide + n * DIM + 2 * g * n_weights;

        x->p.groups[g] = (struct row_projection_group){ ROW_DIM, w, w + n_weights };
    }
    for (uint32_t g = 0; g <= TABLES; g++)
        starts[g] = (uint32_t)((uint64_t)n_rows * g / TABLES);
    x->p.starts = x->starts;
    gpu->upload(c, 0, x->starts, starts, sizeof starts);
    must(gpu->wait(c, 0), gpu->failure(c));
}

static double seconds_of(struct compute *c, const struct projected *x, bool is_backward)
{
    double took[RUNS];

    for (uint32_t i = 0; i < RUNS; i++) {
        const double start = op_monitor_now_s();

        (void)gpu->begin(c, 0, 0);
        for (uint32_t k = 0; k < CALLS; k++)
            if (is_backward)
                gpu->project_backward(c, &x->p, x->rows, x->wide, x->drows);
            else
                gpu->project_forward(c, &x->p, x->rows, x->wide);
        gpu->end(c, 0);
        must(gpu->wait(c, 0), gpu->failure(c));
        took[i] = (op_monitor_now_s() - start) / CALLS;
    }
    return op_monitor_median(took, RUNS);
}

static void run_projections(FILE *out, struct compute *c, const struct batch *batch)
{
    struct projected x;

    open_projected(c, &x, batch->n_unique);
    for (int is_backward = 0; is_backward < 2; is_backward++)
        fprintf(out,
                "{\"kind\":\"project\",\"pass\":\"%s\",\"batch\":%u,\"rows\":%u,\"from\":%d,"
                "\"dim\":%d,\"tables\":%d,\"us\":%.1f}\n",
                is_backward ? "backward" : "forward", batch->n, batch->n_unique, ROW_DIM, DIM,
                TABLES, 1e6 * seconds_of(c, &x, is_backward));
    gpu->memory_free(c, x.memory, x.n_bytes);
    gpu->memory_free(c, x.starts, (TABLES + 1) * sizeof *x.starts);
}

/* ---- a batch in parts for several devices ---- */

enum { DENSE_FLOATS = 2400000 }; /* of NVIDIA's MLPs */

/* Medians of one thread. */
static void seconds_of_parts(struct data_parallel *p, const struct dlrm_step *step,
                             double *ret_divide, double *ret_add)
{
    const struct data_parallel_sums to = { taken(calloc(DENSE_FLOATS, sizeof(float))),
                                           step->row_grads, NULL };
    const double losses[DLRM_DEVICES_MAX] = { 0 };
    double divide[RUNS], add[RUNS];

    for (uint32_t i = 0; i < RUNS; i++) {
        const double start = op_monitor_now_s();
        double divided;

        must(data_parallel_divide(p, 0, step), "no memory for parts");
        divided = op_monitor_now_s();
        (void)data_parallel_add(p, 0, losses, &to);
        divide[i] = divided - start;
        add[i] = op_monitor_now_s() - divided;
    }
    free(to.dense);
    *ret_divide = op_monitor_median(divide, RUNS);
    *ret_add = op_monitor_median(add, RUNS);
}

static uint32_t n_rows_of_parts(const struct data_parallel *p, uint32_t n)
{
    struct dlrm_step part;
    float *grads;
    uint32_t n_rows = 0;

    for (uint32_t d = 0; d < n; d++)
        if (data_parallel_part(p, 0, d, &part, &grads))
            n_rows += part.batch->n_unique;
    return n_rows;
}

static void run_parts(FILE *out, struct compute *c, const struct batch *batch, uint32_t n)
{
    const struct dlrm_config config = { .batch_max = batch->n,
                                        .n_numeric = batch->n_numeric,
                                        .n_fields = batch->n_fields,
                                        .dim = DIM,
                                        .n_threads = 1,
                                        .n_devices = n };
    float *rows = taken(calloc((size_t)batch->n_unique * DIM, sizeof *rows)),
          *grads = taken(calloc((size_t)batch->n_unique * DIM, sizeof *grads));
    const struct dlrm_step step = { .batch = batch, .rows = rows, .row_grads = grads };
    struct data_parallel *p;
    double divide, add;

    must(data_parallel_new(gpu, c, &config, DENSE_FLOATS, &p), "no memory for parts");
    seconds_of_parts(p, &step, &divide, &add);
    fprintf(out,
            "{\"kind\":\"parts\",\"batch\":%u,\"rows\":%u,\"dim\":%d,\"parts\":%u,"
            "\"rows_of_parts\":%u,\"divide_us\":%.1f,\"add_us\":%.1f}\n",
            batch->n, batch->n_unique, DIM, n, n_rows_of_parts(p, n), 1e6 * divide, 1e6 * add);
    data_parallel_free(p);
    free(rows);
    free(grads);
}

void bench_rows_run(FILE *out, struct batch *batch)
{
    const struct device_options options = { .n_threads = 1, .products = DEVICE_FP32 };
    const double cpu_s = seconds_on_cpu(batch);
    struct compute *c;
    struct err err = { 0 };

    must(gpu->open(&options, &c, &err), err.text);
    fprintf(out,
            "{\"kind\":\"dedup\",\"batch\":%u,\"keys\":%u,\"rows\":%u,\"cpu_us\":%.1f,"
            "\"gpu_us\":%.1f}\n",
            batch->n, batch->n_keys, batch->n_unique, 1e6 * cpu_s,
            1e6 * seconds_on_gpu(c, batch));
    run_projections(out, c, batch);
    run_parts(out, c, batch, 2);
    run_parts(out, c, batch, 8);
    gpu->close(c);
    fflush(out);
}
