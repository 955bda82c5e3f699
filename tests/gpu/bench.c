/*
 * bench: what a training step costs on the GPU, op by op and as a whole.
 *
 *     bench run FACTS FOLDER [BATCH [DIM]]
 *                                FOLDER/bench.jsonl, one object a line, and FOLDER/rows-N.u32: the row that each of
 *                                the batch's bags holds, n x 26, for other programs that make the same step
 *     bench digest BATCH [KIND]  a number for each kind of steps (fp32, tf32, bf16); the same in every run, with graphs
 *                                and without
 *
 * Floors: arrays moved once at the speed of a copy, products at the rate of a large product, both from FACTS
 * (tests/gpu/facts.cu). A step's floor is the sum of its ops' larger ones. Times of ops are of many calls one after
 * the other, so arrays that fit in the GPU's L2 stay there, and an op may be faster than its floor.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec_catalog.h"
#include "tests/gpu/bench_model.h"
#include "tests/gpu/bench_rows.h"

enum {
    CODECS_DIM = 128
}; /* of models that are also measured with gradients that leave encoded */

static const enum device_products kinds[] = { DEVICE_TF32, DEVICE_BF16 };

/* A second. */
struct rates {
    double copy_bytes, tf32_flop, bf16_flop, in_bytes, out_bytes;
};

/* What a step costs. */
struct cost {
    double alone_s;             /* its ops, from the first launch to the end of the last */
    double whole_s;             /* with copies and the host's part, two in flight */
    double in_bytes, out_bytes; /* of one step's copies */
    double by_bytes_s, by_flop_s, floor_s;
};

static double fact(const char *facts, const char *name)
{
    char key[64];
    const char *at;
    double value;

    snprintf(key, sizeof key, "\"%s\":", name);
    at = strstr(facts, key);
    value = at ? strtod(at + strlen(key), NULL) : 0;
    if (value > 0)
        return value;
    fprintf(stderr, "bench: the facts have no %s, expected a number above 0\n", name);
    exit(1);
}

static struct rates read_rates(const char *path)
{
    static char facts[1 << 16];
    FILE *f = fopen(path, "r");

    if (!f || !fread(facts, 1, sizeof facts - 1, f)) {
        fprintf(stderr, "bench: %s cannot be read: run facts first\n", path);
        exit(1);
    }
    fclose(f);
    return (struct rates){ 1e9 * fact(facts, "copy_gb_s"),
                           1e12 * fact(facts, "gemm_tf32_tflop_s"),
                           1e12 * fact(facts, "gemm_bf16_tflop_s"),
                           1e9 * fact(facts, "h2d_gb_s"), 1e9 * fact(facts, "d2h_gb_s") };
}

static double flop_rate(const struct rates *r, enum device_products products)
{
    return products == DEVICE_BF16 ? r->bf16_flop : r->tf32_flop;
}

/* ---- what is measured ---- */

static void steps(struct bench_model *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bench_model_begin(x, i % DLRM_BUFFER_SETS);
        (void)bench_model_end(x, i % DLRM_BUFFER_SETS);
    }
}

/* The ops alone. What the host makes and copies comes before they begin. */
static double measure_alone(struct bench_model *x, struct op_monitor *w)
{
    double took[OP_MONITOR_RUNS_MAX], end;
    uint32_t n = 0;

    w->copies = true;
    steps(x, 4 * DLRM_BUFFER_SETS);
    w->copies = false;
    end = op_monitor_now_s() + 0.3;
    while (n < 10 || (n < OP_MONITOR_RUNS_MAX && op_monitor_now_s() < end)) {
        bench_model_begin(x, 0);
        (void)bench_model_end(x, 0);
        took[n++] = op_monitor_now_s() - w->began_s;
    }
    return op_monitor_median(took, n);
}

/* As the worker makes them: one step is copied in, one computes, one is copied out. */
static double measure_whole(struct bench_model *x, struct op_monitor *w)
{
    double took[OP_MONITOR_RUNS_MAX], last, end = op_monitor_now_s() + 0.4;
    uint32_t n = 0;

    w->copies = true;
    steps(x, 2 * DLRM_BUFFER_SETS);
    for (uint32_t i = 0; i + 1 < DLRM_BUFFER_SETS; i++)
        bench_model_begin(x, i);
    last = op_monitor_now_s();
    for (uint32_t i = DLRM_BUFFER_SETS - 1;
         n < 10 || (n < OP_MONITOR_RUNS_MAX && op_monitor_now_s() < end); i++) {
        bench_model_begin(x, i % DLRM_BUFFER_SETS);
        (void)bench_model_end(x, (i + 1) % DLRM_BUFFER_SETS);
        took[n++] = op_monitor_now_s() - last;
        last = op_monitor_now_s();
    }
    for (uint32_t i = 0; i + 1 < DLRM_BUFFER_SETS; i++)
        (void)bench_model_end(x, (n + i) % DLRM_BUFFER_SETS);
    return op_monitor_median(took, n);
}

static void measure_ops(struct bench_model *x, struct op_monitor *w)
{
    w->ops = true;
    steps(x, 1);
    w->ops = false;
}

/* Gradients leave by this codec: what the ops add up to, and a step with its copies. */
static struct cost measure_codec(struct bench_model *x, struct op_monitor *w,
                                 enum codec_id codec, struct monitored_op *ret_ops)
{
    struct cost cost = { 0 };

    bench_model_encode(x, codec);
    w->records = w->copies = w->encodes = true;
    steps(x, DLRM_BUFFER_SETS);
    w->n = 0;
    measure_ops(x, w);
    *ret_ops = (struct monitored_op){ 0 };
    for (uint32_t i = 0; i < w->n; i++) {
        ret_ops->graph_s += w->at[i].graph_s;
        ret_ops->eager_s += w->at[i].eager_s;
        ret_ops->bytes += w->at[i].bytes;
    }
    cost.whole_s = measure_whole(x, w);
    w->in_bytes = w->out_bytes = 0;
    steps(x, 1);
    cost.in_bytes = w->in_bytes;
    cost.out_bytes = w->out_bytes;
    return cost;
}

static struct cost measure_step(struct bench_model *x, struct op_monitor *w, bool records)
{
    struct cost cost;

    w->records = records;
    cost.alone_s = measure_alone(x, w);
    cost.whole_s = measure_whole(x, w);
    w->in_bytes = w->out_bytes = 0;
    steps(x, 1);
    cost.in_bytes = w->in_bytes;
    cost.out_bytes = w->out_bytes;
    return cost;
}

/* ---- what is said ---- */

/* A median of nothing is no number. */
static void put_us(FILE *out, const char *name, double s)
{
    if (s > 0)
        fprintf(out, ",\"%s\":%.2f", name, 1e6 * s);
    else
        fprintf(out, ",\"%s\":null", name);
}

static void put_head(FILE *out, const char *kind, const struct bench_model *x,
                     enum device_products products)
{
    fprintf(out, "{\"kind\":\"%s\",\"batch\":%u,\"dim\":%u,\"products\":\"%s\",\"n_rows\":%u",
            kind, x->batch->n, x->dim, bench_products_name(products), x->batch->n_unique);
}

static void put_floors(FILE *out, const struct cost *floor, double took_s)
{
    put_us(out, "floor_bytes_us", floor->by_bytes_s);
    put_us(out, "floor_flop_us", floor->by_flop_s);
    put_us(out, "floor_us", floor->floor_s);
    fprintf(out, ",\"ratio\":%.3f", took_s / floor->floor_s);
}

/* Its floors are added to the step's. */
static void put_op(FILE *out, const struct rates *r, const struct bench_model *x,
                   enum device_products products, const struct monitored_op *op,
                   struct cost *step)
{
    struct cost floor = { .by_bytes_s = op->bytes / r->copy_bytes,
                          .by_flop_s = op->n_flop / flop_rate(r, products) };
    char name[64];

    floor.floor_s = fmax(floor.by_bytes_s, floor.by_flop_s);
    step->by_bytes_s += floor.by_bytes_s;
    step->by_flop_s += floor.by_flop_s;
    step->floor_s += floor.floor_s;
    snprintf(name, sizeof name, op->in ? "%s %u-%u" : "%s", op->name, op->in, op->out);
    put_head(out, "op", x, products);
    fprintf(out, ",\"op\":\"%s\",\"bytes\":%.0f,\"flop\":%.0f", name, op->bytes, op->n_flop);
    put_us(out, "graph_us", op->graph_s);
    put_us(out, "eager_us", op->eager_s);
    put_floors(out, &floor, op->graph_s > 0 ? op->graph_s : op->eager_s);
    fprintf(out, "}\n");
}

static void put_step(FILE *out, const struct rates *r, const struct bench_model *x,
                     enum device_products products, const struct cost *graph,
                     const struct cost *eager, const struct cost *floor)
{
    put_head(out, "step", x, products);
    fprintf(out, ",\"device\":\"%s\"", dlrm_device(x->m));
    put_us(out, "graph_us", graph->alone_s);
    put_us(out, "eager_us", eager->alone_s);
    put_floors(out, floor, graph->alone_s);
    fprintf(out, ",\"samples_per_s\":%.0f,\"eager_samples_per_s\":%.0f",
            x->batch->n / graph->alone_s, x->batch->n / eager->alone_s);
    put_us(out, "whole_graph_us", graph->whole_s);
    put_us(out, "whole_eager_us", eager->whole_s);
    put_us(out, "floor_in_us", graph->in_bytes / r->in_bytes);
    put_us(out, "floor_out_us", graph->out_bytes / r->out_bytes);
    fprintf(out, ",\"in_bytes\":%.0f,\"out_bytes\":%.0f,\"whole_samples_per_s\":%.0f}\n",
            graph->in_bytes, graph->out_bytes, x->batch->n / graph->whole_s);
    fflush(out);
}

/* After all else of a model. */
static void run_codecs(FILE *out, const struct rates *r, struct bench_model *x,
                       struct op_monitor *w, enum device_products products)
{
    static const enum codec_id codecs[] = { CODEC_BF16, CODEC_INT8, CODEC_ONEBIT, CODEC_TOPK };

    for (size_t i = 0; i < COUNT_OF(codecs); i++) {
        struct monitored_op ops;
        const struct cost cost = measure_codec(x, w, codecs[i], &ops);
        const struct cost floor = { .by_bytes_s = ops.bytes / r->copy_bytes,
                                    .floor_s = ops.bytes / r->copy_bytes };

        put_head(out, "encode", x, products);
        fprintf(out, ",\"codec\":\"%s\",\"bytes\":%.0f", codec_by_id(codecs[i])->name,
                ops.bytes);
        put_us(out, "graph_us", ops.graph_s);
        put_us(out, "eager_us", ops.eager_s);
        put_floors(out, &floor, ops.graph_s > 0 ? ops.graph_s : ops.eager_s);
        put_us(out, "whole_graph_us", cost.whole_s);
        put_us(out, "floor_out_us", cost.out_bytes / r->out_bytes);
        fprintf(out, ",\"in_bytes\":%.0f,\"out_bytes\":%.0f,\"whole_samples_per_s\":%.0f}\n",
                cost.in_bytes, cost.out_bytes, x->batch->n / cost.whole_s);
    }
    fflush(out);
}

static void run_one(FILE *out, const struct rates *r, const struct batch *batch, uint32_t dim,
                    enum device_products products)
{
    struct cost graph, eager, floor = { 0 };
    struct bench_model x;
    struct op_monitor w;

    bench_model_init(&x, &w, batch, dim, products);
    steps(&x, 4);
    measure_ops(&x, &w);
    for (uint32_t i = 0; i < w.n; i++)
        put_op(out, r, &x, products, &w.at[i], &floor);
    graph = measure_step(&x, &w, true);
    eager = measure_step(&x, &w, false);
    put_step(out, r, &x, products, &graph, &eager, &floor);
    if (products == DEVICE_TF32 && dim == CODECS_DIM)
        run_codecs(out, r, &x, &w, products);
    bench_model_deinit(&x);
}

/* ---- programs ---- */

static FILE *create(const char *folder, const char *name)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (f)
        return f;
    fprintf(stderr, "bench: %s cannot be written\n", path);
    exit(1);
}

static void write_rows(const char *folder, const struct batch *b)
{
    char name[64];
    FILE *f;

    snprintf(name, sizeof name, "rows-%u.u32", b->n);
    f = create(folder, name);
    if (fwrite(b->row_of, sizeof *b->row_of, b->n_keys, f) != b->n_keys || fclose(f)) {
        fprintf(stderr, "bench: %s/%s cannot be written\n", folder, name);
        exit(1);
    }
}

static void run_batch(FILE *out, const struct rates *r, const char *folder, uint32_t n,
                      uint32_t only_dim)
{
    static const uint32_t dims[] = { 128, 16, 64 };
    struct batch batch;

    bench_batch_fill(&batch, n);
    write_rows(folder, &batch);
    bench_rows_run(out, &batch);
    for (size_t d = 0; d < COUNT_OF(dims); d++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++)
            if (!only_dim || only_dim == dims[d])
                run_one(out, r, &batch, dims[d], kinds[k]);
    batch_deinit(&batch);
}

/* What matters most comes first: there may be no time for all. 0: all batches, all dims. */
static int run(const char *facts, const char *folder, uint32_t only, uint32_t only_dim)
{
    static const uint32_t batches[] = { 65536, 2048, 8192 };
    const struct rates r = read_rates(facts);
    FILE *out = create(folder, "bench.jsonl");

    for (size_t b = 0; b < COUNT_OF(batches) && !only; b++)
        run_batch(out, &r, folder, batches[b], only_dim);
    if (only)
        run_batch(out, &r, folder, only, only_dim);
    return fclose(out) ? 1 : 0;
}

/* Of steps in all buffer sets, from the first to records of records; all have to be the same. */
static uint64_t digest_of(struct bench_model *x, struct op_monitor *w, bool records)
{
    uint64_t first = 0;

    w->records = records;
    for (uint32_t i = 0; i < 4 * DLRM_BUFFER_SETS; i++) {
        uint64_t digest;

        bench_model_begin(x, i % DLRM_BUFFER_SETS);
        digest = bench_model_digest(x, i % DLRM_BUFFER_SETS,
                                    bench_model_end(x, i % DLRM_BUFFER_SETS));
        if (i && digest != first) {
            fprintf(stderr, "bench: step %u ends in other bits than step 0%s\n", i,
                    records ? ", with graphs" : "");
            exit(1);
        }
        first = digest;
    }
    return first;
}

static int digest(uint32_t n, const char *only)
{
    static const enum device_products all[] = { DEVICE_FP32, DEVICE_TF32, DEVICE_BF16 };
    static const uint32_t dims[] = { 16, 128 };
    struct batch batch;
    int n_wrong = 0;

    bench_batch_fill(&batch, n);
    for (size_t k = 0; k < COUNT_OF(all) * COUNT_OF(dims); k++) {
        const enum device_products products = all[k / COUNT_OF(dims)];
        const uint32_t dim = dims[k % COUNT_OF(dims)];
        struct bench_model x;
        struct op_monitor w;
        uint64_t eager, graph;

        if (only && strcmp(only, bench_products_name(products)) != 0)
            continue;
        bench_model_init(&x, &w, &batch, dim, products);
        eager = digest_of(&x, &w, false);
        graph = digest_of(&x, &w, true);
        printf("batch %u, dim %u, %s: %016llx%s\n", n, dim, bench_products_name(products),
               (unsigned long long)graph, graph == eager ? "" : ", without graphs another");
        n_wrong += graph != eager;
        bench_model_deinit(&x);
    }
    batch_deinit(&batch);
    return n_wrong != 0;
}

/* Samples; 0: no number of samples. */
static uint32_t batch_of(const char *text)
{
    const int n = atoi(text);

    return n > 0 && n <= (int)DLRM_BATCH_MAX ? (uint32_t)n : 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && !strcmp(argv[1], "run"))
        return run(argv[2], argv[3], 0, 0);
    if ((argc == 5 || argc == 6) && !strcmp(argv[1], "run") && batch_of(argv[4]))
        return run(argv[2], argv[3], batch_of(argv[4]), argv[5] ? (uint32_t)atoi(argv[5]) : 0);
    if ((argc == 3 || argc == 4) && !strcmp(argv[1], "digest") && batch_of(argv[2]))
        return digest(batch_of(argv[2]), argv[3]);
    fprintf(stderr,
            "usage: bench run FACTS FOLDER [BATCH [DIM]] | bench digest BATCH [KIND]\n");
    return 2;
}
