#include "tests/support/far_ops.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

struct far_run {
    struct compute *far;
    const struct device_ops *cpu;
    struct compute *c;
};

static const struct far_seat *seat_of(const struct compute *far)
{
    return (const void *)far;
}

void far_ops_clear(struct far_ops *list)
{
    free(list->ops);
    *list = (struct far_ops){ 0 };
}

void far_ops_copy(struct far_ops *to, const struct far_ops *from)
{
    far_ops_clear(to);
    to->ops = memory_alloc(from->n * sizeof *to->ops + 1);
    if (from->n)
        memcpy(to->ops, from->ops, from->n * sizeof *to->ops);
    to->n = to->cap = from->n;
}

int far_ops_compare(const struct far_ops *a, const struct far_ops *b)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++)
        if (a->ops[i].run != b->ops[i].run ||
            memcmp(a->ops[i].args, b->ops[i].args, sizeof a->ops[i].args))
            return (int)i;
    return a->n == b->n ? -1 : (int)(a->n < b->n ? a->n : b->n);
}

void far_ops_run(struct far_ops *list, struct compute *far, const struct device_ops *cpu,
                 struct compute *cpu_c)
{
    const struct far_run r = { far, cpu, cpu_c };

    for (uint32_t i = 0; i < list->n; i++)
        list->ops[i].run(&r, list->ops[i].args);
    list->n = 0;
}

static void add(struct compute *far, void (*run)(const struct far_run *, const uint64_t *),
                const uint64_t *args, size_t n_args)
{
    struct far_ops *list = seat_of(far)->list(far);

    if (list->n == list->cap) {
        list->cap = 2 * list->cap + 16;
        list->ops = realloc(list->ops, list->cap * sizeof *list->ops);
        if (!list->ops)
            abort();
    }
    list->ops[list->n] = (struct far_op){ .run = run };
    memcpy(list->ops[list->n++].args, args, n_args * sizeof *args);
}

#define ADD(far, run, ...)                           \
    add(far, run, (const uint64_t[]){ __VA_ARGS__ }, \
        sizeof((const uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))

/* ---- numbers ---- */

static uint64_t of_pointer(const void *p)
{
    return (uintptr_t)p;
}

static uint64_t of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float to_float(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float x;

    memcpy(&x, &low, sizeof x);
    return x;
}

static void *at(const struct far_run *r, uint64_t pointer)
{
    return pointer ? seat_of(r->far)->real(r->far, (const void *)(uintptr_t)pointer) : NULL;
}

static uint64_t mask_y(const struct relu_mask *mask)
{
    return mask ? of_pointer(mask->y) : 0;
}

static uint64_t mask_ldy(const struct relu_mask *mask)
{
    return mask ? mask->ldy : 0;
}

static uint64_t mask_scale(const struct relu_mask *mask)
{
    return mask ? of_float(mask->scale) : 0;
}

/* Out of three arguments. */
static const struct relu_mask *to_mask(const struct far_run *r, const uint64_t *args,
                                       struct relu_mask *mask)
{
    *mask = (struct relu_mask){ at(r, args[0]), (uint32_t)args[1], to_float(args[2]) };
    return args[0] ? mask : NULL;
}

/* ---- linear ---- */

/* Out of six. */
static struct linear to_linear(const struct far_run *r, const uint64_t *a)
{
    return (struct linear){
        (uint32_t)a[0], (uint32_t)a[1], (uint32_t)a[2], at(r, a[3]), at(r, a[4]), at(r, a[5]), 0
    };
}

#define LINEAR(l) \
    (l)->n, (l)->in, (l)->out, of_pointer((l)->x), of_pointer((l)->w), of_pointer((l)->b)

static void run_linear_forward(const struct far_run *r, const uint64_t *a)
{
    const struct linear l = to_linear(r, a);

    r->cpu->linear_forward(r->c, &l, (enum device_act)a[6], at(r, a[7]), (uint32_t)a[8]);
}

static void linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                           float *y, uint32_t ldy)
{
    ADD(c, run_linear_forward, LINEAR(l), act, of_pointer(y), ldy);
}

static void run_linear_backward(const struct far_run *r, const uint64_t *a)
{
    const struct linear l = to_linear(r, a);
    struct relu_mask mask;

    r->cpu->linear_backward(r->c, &l, at(r, a[6]), at(r, a[7]), to_mask(r, a + 8, &mask),
                            at(r, a[11]), at(r, a[12]), NULL);
}

static void linear_backward(struct compute *c, const struct linear *l, const float *dy,
                            float *dx, const struct relu_mask *mask, float *dw, float *db,
                            float *sums)
{
    (void)sums; /* CPUs make none */
    ADD(c, run_linear_backward, LINEAR(l), of_pointer(dy), of_pointer(dx), mask_y(mask),
        mask_ldy(mask), mask_scale(mask), of_pointer(dw), of_pointer(db));
}

/* ---- norms and dropout ---- */

/* Out of nine. */
static struct norm to_norm(const struct far_run *r, const uint64_t *a)
{
    return (struct norm){ (uint32_t)a[0], (uint32_t)a[1], at(r, a[2]), at(r, a[3]), at(r, a[4]),
                          at(r, a[5]),    at(r, a[6]),    at(r, a[7]), at(r, a[8]) };
}

#define NORM(nm)                                                                               \
    (nm)->n, (nm)->width, of_pointer((nm)->gamma), of_pointer((nm)->beta),                     \
        of_pointer((nm)->running_mean), of_pointer((nm)->running_var), of_pointer((nm)->mean), \
        of_pointer((nm)->var), of_pointer((nm)->inv_std)

static void run_norm_batch(const struct far_run *r, const uint64_t *a)
{
    const struct norm nm = to_norm(r, a);

    r->cpu->norm_batch(r->c, &nm, at(r, a[9]));
}

static void norm_batch(struct compute *c, const struct norm *nm, const float *x)
{
    ADD(c, run_norm_batch, NORM(nm), of_pointer(x));
}

static void run_norm_running(const struct far_run *r, const uint64_t *a)
{
    const struct norm nm = to_norm(r, a);

    r->cpu->norm_running(r->c, &nm);
}

static void norm_running(struct compute *c, const struct norm *nm)
{
    ADD(c, run_norm_running, NORM(nm));
}

static void run_norm_apply(const struct far_run *r, const uint64_t *a)
{
    const struct norm nm = to_norm(r, a);

    r->cpu->norm_apply(r->c, &nm, (enum device_act)a[9], at(r, a[10]), at(r, a[11]),
                       (uint32_t)a[12]);
}

static void norm_apply(struct compute *c, const struct norm *nm, enum device_act act,
                       const float *x, float *y, uint32_t ldy)
{
    ADD(c, run_norm_apply, NORM(nm), act, of_pointer(x), of_pointer(y), ldy);
}

static void run_norm_backward(const struct far_run *r, const uint64_t *a)
{
    const struct norm nm = to_norm(r, a);
    const struct norm_grads grads = { at(r, a[14]), at(r, a[15]), at(r, a[16]), at(r, a[17]) };
    struct relu_mask mask;

    r->cpu->norm_backward(r->c, &nm, to_mask(r, a + 9, &mask), at(r, a[12]), at(r, a[13]),
                          &grads);
}

static void norm_backward(struct compute *c, const struct norm *nm,
                          const struct relu_mask *mask, const float *x, float *dy,
                          const struct norm_grads *grads)
{
    ADD(c, run_norm_backward, NORM(nm), mask_y(mask), mask_ldy(mask), mask_scale(mask),
        of_pointer(x), of_pointer(dy), of_pointer(grads->gamma), of_pointer(grads->beta),
        of_pointer(grads->running_mean), of_pointer(grads->running_var));
}

static void run_dropout(const struct far_run *r, const uint64_t *a)
{
    const struct dropout d = { (uint32_t)a[0], (uint32_t)a[1], to_float(a[2]), to_float(a[3]),
                               at(r, a[4]) };

    r->cpu->dropout(r->c, &d, at(r, a[5]));
}

static void dropout(struct compute *c, const struct dropout *d, float *y)
{
    ADD(c, run_dropout, d->n, d->width, of_float(d->p), of_float(d->scale), of_pointer(d->key),
        of_pointer(y));
}

/* ---- bags ---- */

/* Out of eleven. The number of rows is the one in the device's memory. */
static struct bags to_bags(const struct far_run *r, const uint64_t *a,
                           struct bag_transpose *transpose)
{
    *transpose = (struct bag_transpose){ (uint32_t)a[5], (uint32_t)a[6], at(r, a[7]),
                                         at(r, a[8]),    at(r, a[9]),    at(r, a[10]) };
    return (struct bags){ .n = (uint32_t)a[0],
                          .n_fields = (uint32_t)a[1],
                          .dim = (uint32_t)a[2],
                          .starts = at(r, a[3]),
                          .row_of = at(r, a[4]),
                          .transpose = transpose };
}

#define BAGS(b)                                                                        \
    (b)->n, (b)->n_fields, (b)->dim, of_pointer((b)->starts), of_pointer((b)->row_of), \
        (b)->transpose->n_rows_max, (b)->transpose->n_spans_max,                       \
        of_pointer((b)->transpose->counts), of_pointer((b)->transpose->bags),          \
        of_pointer((b)->transpose->spans), of_pointer((b)->transpose->first)

static void run_bag_sum(const struct far_run *r, const uint64_t *a)
{
    struct bag_transpose transpose;
    const struct bags b = to_bags(r, a, &transpose);

    r->cpu->bag_sum(r->c, &b, at(r, a[11]), at(r, a[12]), (uint32_t)a[13]);
}

static void bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                    uint32_t ld)
{
    ADD(c, run_bag_sum, BAGS(b), of_pointer(rows), of_pointer(sums), ld);
}

static void run_bag_mean(const struct far_run *r, const uint64_t *a)
{
    struct bag_transpose transpose;
    const struct bags b = to_bags(r, a, &transpose);

    r->cpu->bag_mean(r->c, &b, (uint32_t)a[11], (uint32_t)a[12], at(r, a[13]), (uint32_t)a[14]);
}

static void bag_mean(struct compute *c, const struct bags *b, uint32_t first, uint32_t end,
                     float *x, uint32_t ld)
{
    ADD(c, run_bag_mean, BAGS(b), first, end, of_pointer(x), ld);
}

/* The uses of row r in order, and nothing else: to[row][d] += from[bag's place][d]. */
static void sum_uses(const struct bag_transpose *u, uint32_t dim, const float *from,
                     size_t (*place)(const struct bags *b, uint32_t bag, uint32_t ld),
                     const struct bags *b, uint32_t ld, float *to)
{
    if (u->counts[0] > u->n_rows_max || u->counts[1] > u->n_spans_max)
        abort();
    for (uint32_t row = 0; row < u->counts[0]; row++) {
        float *sum = to + (size_t)row * dim;
        const uint32_t end = u->spans[u->first[row + 1]];

        memset(sum, 0, dim * sizeof *sum);
        for (uint32_t i = u->spans[u->first[row]]; i < end; i++)
            for (uint32_t d = 0; d < dim; d++)
                sum[d] += from[place(b, u->bags[i], ld) + d];
    }
}

static size_t place_of_bag(const struct bags *b, uint32_t bag, uint32_t ld)
{
    return (size_t)(bag / b->n_fields) * ld + (size_t)(bag % b->n_fields) * b->dim;
}

static size_t place_of_sample(const struct bags *b, uint32_t bag, uint32_t ld)
{
    (void)ld;
    return bag / b->n_fields;
}

static void run_bag_grad(const struct far_run *r, const uint64_t *a)
{
    struct bag_transpose transpose;
    const struct bags b = to_bags(r, a, &transpose);

    sum_uses(&transpose, b.dim, at(r, a[11]), place_of_bag, &b, (uint32_t)a[12], at(r, a[13]));
}

static void bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                     float *drows)
{
    ADD(c, run_bag_grad, BAGS(b), of_pointer(dsums), ld, of_pointer(drows));
}

static void run_wide_sum(const struct far_run *r, const uint64_t *a)
{
    struct bag_transpose transpose;
    const struct bags b = to_bags(r, a, &transpose);

    r->cpu->wide_sum(r->c, &b, at(r, a[11]), at(r, a[12]));
}

static void wide_sum(struct compute *c, const struct bags *b, const float *weights, float *z)
{
    ADD(c, run_wide_sum, BAGS(b), of_pointer(weights), of_pointer(z));
}

static void run_wide_grad(const struct far_run *r, const uint64_t *a)
{
    struct bag_transpose transpose;
    const struct bags b = to_bags(r, a, &transpose);

    sum_uses(&transpose, 1, at(r, a[11]), place_of_sample, &b, 0, at(r, a[12]));
}

static void wide_grad(struct compute *c, const struct bags *b, const float *dz, float *dweights)
{
    ADD(c, run_wide_grad, BAGS(b), of_pointer(dz), of_pointer(dweights));
}

/* ---- the rest ---- */

static struct interact to_interact(const uint64_t *a)
{
    return (struct interact){ (uint32_t)a[0], (uint32_t)a[1], (uint32_t)a[2],
                              (uint32_t)a[3], a[4] != 0,      0 };
}

#define INTERACT(it) (it)->n, (it)->n_vectors, (it)->dim, (it)->direct, (it)->self

static void run_interact_forward(const struct far_run *r, const uint64_t *a)
{
    const struct interact it = to_interact(a);

    r->cpu->interact_forward(r->c, &it, at(r, a[5]), at(r, a[6]));
}

static void interact_forward(struct compute *c, const struct interact *it, const float *t,
                             float *ret)
{
    ADD(c, run_interact_forward, INTERACT(it), of_pointer(t), of_pointer(ret));
}

static void run_interact_backward(const struct far_run *r, const uint64_t *a)
{
    const struct interact it = to_interact(a);

    r->cpu->interact_backward(r->c, &it, at(r, a[5]), at(r, a[6]), at(r, a[7]));
}

static void interact_backward(struct compute *c, const struct interact *it, const float *t,
                              const float *dr, float *dt)
{
    ADD(c, run_interact_backward, INTERACT(it), of_pointer(t), of_pointer(dr), of_pointer(dt));
}

/* Out of four. */
static struct pair_sum to_pair_sum(const uint64_t *a)
{
    return (struct pair_sum){ (uint32_t)a[0], (uint32_t)a[1], (uint32_t)a[2], (uint32_t)a[3] };
}

#define PAIR_SUM(p) (p)->n, (p)->n_vectors, (p)->dim, (p)->ld

static void run_pair_sum_forward(const struct far_run *r, const uint64_t *a)
{
    const struct pair_sum p = to_pair_sum(a);

    r->cpu->pair_sum_forward(r->c, &p, at(r, a[4]), at(r, a[5]));
}

static void pair_sum_forward(struct compute *c, const struct pair_sum *p, const float *t,
                             float *z)
{
    ADD(c, run_pair_sum_forward, PAIR_SUM(p), of_pointer(t), of_pointer(z));
}

static void run_pair_sum_backward(const struct far_run *r, const uint64_t *a)
{
    const struct pair_sum p = to_pair_sum(a);

    r->cpu->pair_sum_backward(r->c, &p, at(r, a[4]), at(r, a[5]), at(r, a[6]), at(r, a[7]));
}

static void pair_sum_backward(struct compute *c, const struct pair_sum *p, const float *t,
                              const float *dz, const float *dx, float *dt)
{
    ADD(c, run_pair_sum_backward, PAIR_SUM(p), of_pointer(t), of_pointer(dz), of_pointer(dx),
        of_pointer(dt));
}

/* Out of three. */
static struct cross_shape to_cross(const uint64_t *a)
{
    return (struct cross_shape){ (uint32_t)a[0], (uint32_t)a[1], (uint32_t)a[2] };
}

#define CROSS(s) (s)->n, (s)->width, (s)->ld

static void run_cross_forward(const struct far_run *r, const uint64_t *a)
{
    const struct cross_shape s = to_cross(a);

    r->cpu->cross_forward(r->c, &s, at(r, a[3]), at(r, a[4]), at(r, a[5]), at(r, a[6]));
}

static void cross_forward(struct compute *c, const struct cross_shape *s, const float *x0,
                          const float *u, const float *x, float *y)
{
    ADD(c, run_cross_forward, CROSS(s), of_pointer(x0), of_pointer(u), of_pointer(x),
        of_pointer(y));
}

static void run_cross_backward(const struct far_run *r, const uint64_t *a)
{
    const struct cross_shape s = to_cross(a);

    r->cpu->cross_backward(r->c, &s, at(r, a[3]), at(r, a[4]), at(r, a[5]), at(r, a[6]),
                           at(r, a[7]), at(r, a[8]));
}

static void cross_backward(struct compute *c, const struct cross_shape *s, const float *x0,
                           const float *u, const float *dy, const float *more, float *du,
                           float *dx0)
{
    ADD(c, run_cross_backward, CROSS(s), of_pointer(x0), of_pointer(u), of_pointer(dy),
        of_pointer(more), of_pointer(du), of_pointer(dx0));
}

static void run_prob(const struct far_run *r, const uint64_t *a)
{
    r->cpu->prob(r->c, (uint32_t)a[0], at(r, a[1]), at(r, a[2]));
}

static void prob(struct compute *c, uint32_t n, const float *z, float *p)
{
    ADD(c, run_prob, n, of_pointer(z), of_pointer(p));
}

static void run_loss(const struct far_run *r, const uint64_t *a)
{
    const struct cross_entropy e = { (uint32_t)a[0], to_float(a[1]), to_float(a[2]),
                                     to_float(a[3]), (uint32_t)a[4], to_float(a[5]) };

    r->cpu->loss(r->c, &e, at(r, a[6]), at(r, a[7]), at(r, a[8]), at(r, a[9]));
}

static void loss(struct compute *c, const struct cross_entropy *e, const float *z,
                 const float *y, float *dz, double *ret)
{
    ADD(c, run_loss, e->n, of_float(e->more), of_float(e->smoothing), of_float(e->offset),
        e->ld, of_float(e->weight), of_pointer(z), of_pointer(y), of_pointer(dz),
        of_pointer(ret));
}

static void run_add_rows(const struct far_run *r, const uint64_t *a)
{
    struct relu_mask mask;

    r->cpu->add_rows(r->c, (uint32_t)a[0], (uint32_t)a[1], at(r, a[2]), (uint32_t)a[3],
                     at(r, a[4]), (uint32_t)a[5], to_mask(r, a + 6, &mask), at(r, a[9]));
}

static void add_rows(struct compute *c, uint32_t n, uint32_t width, const float *a,
                     uint32_t lda, const float *b, uint32_t ldb, const struct relu_mask *mask,
                     float *sum)
{
    ADD(c, run_add_rows, n, width, of_pointer(a), lda, of_pointer(b), ldb, mask_y(mask),
        mask_ldy(mask), mask_scale(mask), of_pointer(sum));
}

static void run_copy_rows(const struct far_run *r, const uint64_t *a)
{
    r->cpu->copy_rows(r->c, (uint32_t)a[0], (uint32_t)a[1], at(r, a[2]), (uint32_t)a[3],
                      at(r, a[4]), (uint32_t)a[5]);
}

static void copy_rows(struct compute *c, uint32_t n, uint32_t width, const float *x,
                      uint32_t ldx, float *y, uint32_t ldy)
{
    ADD(c, run_copy_rows, n, width, of_pointer(x), ldx, of_pointer(y), ldy);
}

static void run_number_hats(const struct far_run *r, const uint64_t *a)
{
    const struct number_hats h = { (uint32_t)a[0], (uint32_t)a[1], (uint32_t)a[2],
                                   to_float(a[3]), (uint32_t)a[4] };

    r->cpu->number_hats(r->c, &h, at(r, a[5]), at(r, a[6]));
}

static void number_hats(struct compute *c, const struct number_hats *h, const float *x,
                        float *y)
{
    ADD(c, run_number_hats, h->n, h->n_numbers, h->n_hats, of_float(h->first), h->ldy,
        of_pointer(x), of_pointer(y));
}

static void run_axpy(const struct far_run *r, const uint64_t *a)
{
    r->cpu->axpy(r->c, a[0], to_float(a[1]), at(r, a[2]), at(r, a[3]));
}

static void axpy(struct compute *c, size_t n, float a, const float *x, float *y)
{
    ADD(c, run_axpy, n, of_float(a), of_pointer(x), of_pointer(y));
}

/* Without rows the arrays may be empty, too, and then have no address in any memory. */
static void run_encode(const struct far_run *r, const uint64_t *a)
{
    const uint32_t *n = at(r, a[4]);

    if (*n == 0)
        return;
    r->cpu->encode(r->c,
                   &(struct device_encode){ (enum codec_id)a[0], (uint32_t)a[1], (uint32_t)a[2],
                                            (uint32_t)a[3], n, at(r, a[5]), at(r, a[6]),
                                            at(r, a[7]), at(r, a[8]), at(r, a[9]) });
}

static void encode(struct compute *c, const struct device_encode *e)
{
    ADD(c, run_encode, e->codec, e->dim, e->k, e->n_max, of_pointer(e->n), of_pointer(e->rows),
        of_pointer(e->from), of_pointer(e->residual), of_pointer(e->residual_at),
        of_pointer(e->bytes));
}

void far_ops_table(struct device_ops *ops)
{
    ops->linear_forward = linear_forward;
    ops->linear_backward = linear_backward;
    ops->norm_batch = norm_batch;
    ops->norm_running = norm_running;
    ops->norm_apply = norm_apply;
    ops->norm_backward = norm_backward;
    ops->dropout = dropout;
    ops->bag_sum = bag_sum;
    ops->bag_grad = bag_grad;
    ops->bag_mean = bag_mean;
    ops->wide_sum = wide_sum;
    ops->wide_grad = wide_grad;
    ops->interact_forward = interact_forward;
    ops->interact_backward = interact_backward;
    ops->pair_sum_forward = pair_sum_forward;
    ops->pair_sum_backward = pair_sum_backward;
    ops->cross_forward = cross_forward;
    ops->cross_backward = cross_backward;
    ops->prob = prob;
    ops->loss = loss;
    ops->add_rows = add_rows;
    ops->copy_rows = copy_rows;
    ops->number_hats = number_hats;
    ops->axpy = axpy;
    ops->encode = encode;
}
