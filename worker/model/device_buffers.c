#include "worker/model/device_buffers.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "common/hash.h"

_Static_assert(DLRM_BUFFER_SETS <= DEVICE_BUFFER_SETS,
               "a device has a buffer set for each step");

#define ROWS_MIN 64u /* space for rows, at least */

/* ---- sizes ---- */

static uint32_t n_bags_max(const struct device_buffers *p)
{
    return p->n_max * p->n_fields; /* dlrm_config_check() */
}

static uint32_t n_spans_max(const struct device_buffers_set *s)
{
    return bag_transpose_n_spans_max(s->rows_cap, s->keys_cap);
}

static size_t transpose_bytes(const struct device_buffers_set *s, uint32_t n_keys)
{
    return sizeof(uint32_t) *
           (2 + ((size_t)s->rows_cap + 1) + ((size_t)n_spans_max(s) + 1) + n_keys);
}

/* The device makes the transpose itself. */
static bool makes_transpose(const struct device_buffers *p)
{
    return p->ops->wants_transpose && p->ops->transpose_bags;
}

/* Of the memory that it is copied from. */
static size_t host_transpose_bytes(const struct device_buffers *p,
                                   const struct device_buffers_set *s)
{
    return makes_transpose(p) ? sizeof(uint32_t) : transpose_bytes(s, s->keys_cap);
}

static bool grows(enum device_buffers_array a)
{
    return a == BUFFER_ROW_OF || a == BUFFER_TRANSPOSE || a == BUFFER_ORDER ||
           a == BUFFER_ORDER_STARTS || a == BUFFER_PULLED || a == BUFFER_PULLED_TO ||
           a == BUFFER_ROWS || a == BUFFER_WIDE || a == BUFFER_ROW_GRADS ||
           a == BUFFER_WIDE_GRADS;
}

/* What is between the gradients of tensors leaves with them. Indices are some even where a copy in has failed, so that
 * the ops behind it stay within their arrays. */
static bool is_zeroed(enum device_buffers_array a)
{
    return a == BUFFER_GRADS || a == BUFFER_STARTS || a == BUFFER_ROW_OF ||
           a == BUFFER_TRANSPOSE || a == BUFFER_ORDER || a == BUFFER_ORDER_STARTS ||
           a == BUFFER_PULLED_TO;
}

/* 0: the model has none, or the device no use for it. */
static size_t bytes_of(const struct device_buffers *p, const struct device_buffers_set *s,
                       enum device_buffers_array a)
{
    switch (a) {
    case BUFFER_NUMERIC:
        return (size_t)p->n_max * p->n_numeric * sizeof(float);
    case BUFFER_LABEL:
    case BUFFER_PROBS:
        return (size_t)p->n_max * p->n_tasks * sizeof(float);
    case BUFFER_STARTS:
        return ((size_t)n_bags_max(p) + 1) * sizeof(uint32_t);
    case BUFFER_ROW_OF:
        return s->keys_cap * sizeof(uint32_t);
    case BUFFER_TRANSPOSE:
        return p->ops->wants_transpose ? transpose_bytes(s, s->keys_cap) : 0;
    case BUFFER_ORDER:
        return makes_transpose(p) ? s->keys_cap * sizeof(uint32_t) : 0;
    case BUFFER_ORDER_STARTS:
        return makes_transpose(p) ? ((size_t)s->rows_cap + 1) * sizeof(uint32_t) : 0;
    case BUFFER_PULLED: /* of fp32, the longest */
        return p->takes_pulled ? (size_t)s->rows_cap * p->row_width * sizeof(float) : 0;
    case BUFFER_PULLED_TO:
        return p->takes_pulled ? s->rows_cap * sizeof(uint32_t) : 0;
    case BUFFER_ROWS:
    case BUFFER_ROW_GRADS:
        return (size_t)s->rows_cap * p->row_width * sizeof(float);
    case BUFFER_WIDE:
    case BUFFER_WIDE_GRADS:
        return p->wide ? s->rows_cap * sizeof(float) : 0;
    case BUFFER_DROP_KEYS:
        return p->n_drop_keys * sizeof(uint64_t);
    case BUFFER_VALUES:
    case BUFFER_GRADS:
        return p->dense_floats * sizeof(float);
    case BUFFER_LOSS:
        return p->n_tasks * sizeof(double);
    case BUFFER_N_ARRAYS:
        break;
    }
    return 0;
}

/* ---- memory ---- */

static void *host_alloc(const struct device_buffers *p, size_t n_bytes)
{
    return p->ops->host_alloc(p->c, n_bytes);
}

static void host_free(const struct device_buffers *p, void *memory, size_t n_bytes)
{
    if (memory)
        p->ops->host_free(p->c, memory, n_bytes);
}

static void free_array(const struct device_buffers *p, struct device_buffers_set *s,
                       enum device_buffers_array a)
{
    if (s->arrays[a])
        p->ops->memory_free(p->c, s->arrays[a], bytes_of(p, s, a));
    s->arrays[a] = NULL;
}

static int alloc_array(const struct device_buffers *p, struct device_buffers_set *s,
                       enum device_buffers_array a)
{
    const size_t n_bytes = bytes_of(p, s, a);

    if (!n_bytes)
        return 0;
    s->arrays[a] =
        (is_zeroed(a) ? p->ops->memory_alloc_zeroed : p->ops->memory_alloc)(p->c, n_bytes);
    return s->arrays[a] ? 0 : -ENOMEM;
}

static struct bag_transpose_arrays transpose_at(const struct device_buffers_set *s, void *block)
{
    uint32_t *counts = block, *first = counts + 2, *spans = first + s->rows_cap + 1;

    return (struct bag_transpose_arrays){ counts, first, spans, spans + n_spans_max(s) + 1 };
}

static int alloc_transpose(const struct device_buffers *p, struct device_buffers_set *s)
{
    struct bag_transpose_arrays there;

    if (!p->ops->wants_transpose)
        return 0;
    s->host_transpose = host_alloc(p, host_transpose_bytes(p, s));
    if (!s->host_transpose)
        return -ENOMEM;
    if (!makes_transpose(p))
        s->fill = transpose_at(s, s->host_transpose);
    there = transpose_at(s, s->arrays[BUFFER_TRANSPOSE]);
    s->transpose = (struct bag_transpose){ s->rows_cap, n_spans_max(s), there.counts,
                                           there.bags,  there.spans,    there.first };
    s->transposition =
        (struct bag_transposition){ .n_rows_max = s->rows_cap,
                                    .n_keys_max = s->keys_cap,
                                    .n_spans_max = n_spans_max(s),
                                    .n_rows = there.counts,
                                    .starts = s->arrays[BUFFER_STARTS],
                                    .order = s->arrays[BUFFER_ORDER],
                                    .order_starts = s->arrays[BUFFER_ORDER_STARTS],
                                    .to = there };
    return 0;
}

static void free_buffers(const struct device_buffers *p, struct device_buffers_set *s)
{
    host_free(p, s->host_transpose, host_transpose_bytes(p, s));
    s->host_transpose = NULL;
    for (int a = 0; a < BUFFER_N_ARRAYS; a++)
        if (grows((enum device_buffers_array)a))
            free_array(p, s, (enum device_buffers_array)a);
    s->keys_cap = s->rows_cap = 0;
}

static uint32_t with_headroom(uint32_t n)
{
    return n < UINT32_MAX / 2 ? n + n / 2 : n;
}

/* At least for some, so that every array has an address. */
static int reserve(struct device_buffers *p, struct device_buffers_set *s,
                   const struct batch *batch)
{
    uint32_t keys_cap = s->keys_cap, rows_cap = s->rows_cap;
    int status = 0;

    if (keys_cap && batch->n_keys <= keys_cap && batch->n_unique <= rows_cap)
        return 0;
    if (batch->n_keys > keys_cap)
        keys_cap = batch->n_keys > n_bags_max(p) ? with_headroom(batch->n_keys) : n_bags_max(p);
    if (batch->n_unique > rows_cap)
        rows_cap = with_headroom(batch->n_unique);
    free_buffers(p, s);
    s->keys_cap = keys_cap ? keys_cap : 1;
    s->rows_cap = rows_cap > ROWS_MIN ? rows_cap : ROWS_MIN;
    for (int a = 0; a < BUFFER_N_ARRAYS && !status; a++)
        if (grows((enum device_buffers_array)a))
            status = alloc_array(p, s, (enum device_buffers_array)a);
    if (!status)
        status = alloc_transpose(p, s);
    if (status)
        free_buffers(p, s);
    s->generation = ++p->n_generations;
    return status;
}

void device_buffers_take_pulled(struct device_buffers *p)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++)
        free_buffers(p, &p->sets[i]); /* the next step reserves them again */
    p->takes_pulled = true;
}

void device_buffers_use(struct device_buffers *p, float *values, float *grads)
{
    p->host_values = values ? values : p->values;
    p->host_grads = grads ? grads : p->grads;
}

static int init_set(struct device_buffers *p, struct device_buffers_set *s)
{
    static const struct batch empty = { 0 };
    int status = 0;

    s->loss = host_alloc(p, p->n_tasks * sizeof *s->loss);
    if (!s->loss)
        return -ENOMEM;
    if (p->n_drop_keys)
        s->host_drop_keys = host_alloc(p, bytes_of(p, s, BUFFER_DROP_KEYS));
    if (p->n_drop_keys && !s->host_drop_keys)
        return -ENOMEM;
    for (int a = 0; a < BUFFER_N_ARRAYS && !status && !p->ops->shares_memory; a++)
        if (!grows((enum device_buffers_array)a))
            status = alloc_array(p, s, (enum device_buffers_array)a);
    return status || p->ops->shares_memory ? status : reserve(p, s, &empty);
}

int device_buffers_init_host(struct device_buffers *p, const struct device_ops *ops,
                             struct compute *c, const struct dlrm_config *config,
                             size_t dense_floats)
{
    *p = (struct device_buffers){ .ops = ops,
                                  .c = c,
                                  .config = config,
                                  .row_width = dlrm_config_row_width(config),
                                  .n_max = config->batch_max,
                                  .n_tasks = dlrm_config_n_tasks(config),
                                  .n_numeric = config->n_numeric,
                                  .n_fields = config->n_fields,
                                  .dim = config->dim,
                                  .wide = config->wide,
                                  .n_drop_keys = config->dropout > 0 ? config->n_top : 0,
                                  .seed = config->seed,
                                  .dense_floats = dense_floats };
    for (uint32_t i = 0; i < p->n_tasks; i++)
        p->task_weights[i] = dlrm_config_task_weight(config, i);
    device_row_cache_init(&p->rows, ops, c, config->dim);
    p->values = host_alloc(p, dense_floats * sizeof *p->values);
    if (!p->values)
        return -ENOMEM;
    p->grads = host_alloc(p, dense_floats * sizeof *p->grads);
    if (!p->grads)
        return -ENOMEM;
    p->probs = host_alloc(p, (size_t)p->n_max * p->n_tasks * sizeof *p->probs);
    if (!p->probs)
        return -ENOMEM;
    device_buffers_use(p, NULL, NULL);
    return 0;
}

int device_buffers_init(struct device_buffers *p, const struct device_ops *ops,
                        struct compute *c, const struct dlrm_config *config,
                        size_t dense_floats)
{
    int status = device_buffers_init_host(p, ops, c, config, dense_floats);

    for (uint32_t i = 0; i < DLRM_BUFFER_SETS && !status; i++)
        status = init_set(p, &p->sets[i]);
    return status;
}

void device_buffers_deinit(struct device_buffers *p)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS && p->ops; i++) {
        struct device_buffers_set *s = &p->sets[i];

        host_free(p, s->host_transpose, host_transpose_bytes(p, s));
        host_free(p, s->host_drop_keys, bytes_of(p, s, BUFFER_DROP_KEYS));
        host_free(p, s->loss, p->n_tasks * sizeof *s->loss);
        for (int a = 0; a < BUFFER_N_ARRAYS; a++)
            free_array(p, s, (enum device_buffers_array)a);
    }
    device_row_cache_deinit(&p->rows);
    host_free(p, p->values, p->dense_floats * sizeof *p->values);
    host_free(p, p->grads, p->dense_floats * sizeof *p->grads);
    host_free(p, p->probs, (size_t)p->n_max * p->n_tasks * sizeof *p->probs);
    *p = (struct device_buffers){ 0 };
}

/* ---- a step ---- */

/* 1 bit of an update, 21 of n, 2 of the buffer set, 1 of the pass. */
static uint64_t key_of(const struct device_buffers *p, uint32_t set, uint32_t n,
                       enum device_buffers_pass pass, bool updates)
{
    return p->sets[set].generation << 25 | (uint64_t)updates << 24 | n << 3 | set << 1 |
           (pass == DEVICE_BUFFERS_TRAIN);
}

static void put(const struct device_buffers *p, uint32_t set, enum device_buffers_array a,
                const void *host, size_t n_bytes)
{
    if (n_bytes)
        p->ops->upload(p->c, set, p->sets[set].arrays[a], host, n_bytes);
}

static void put_transpose(struct device_buffers *p, uint32_t set, const struct batch *b)
{
    struct device_buffers_set *s = &p->sets[set];
    const struct bag_transpose_input source = {
        b->n * p->n_fields, b->n_unique, b->starts, b->row_of, b->order, b->order_starts
    };

    bag_transpose_build(&source, &s->fill);
    put(p, set, BUFFER_TRANSPOSE, s->host_transpose, transpose_bytes(s, b->n_keys));
}

static void put_pulled(struct device_buffers *p, uint32_t set, const struct dlrm_step *step)
{
    const struct dlrm_pulled *pulled = step->pulled;
    const size_t row_bytes =
        (pulled->codec == CODEC_FP32 ? sizeof(float) : sizeof(uint16_t)) * p->row_width;
    const struct row_decode decode = { .codec = pulled->codec,
                                       .n = step->batch->n_unique,
                                       .dim = p->row_width,
                                       .bytes = p->sets[set].arrays[BUFFER_PULLED],
                                       .to = p->sets[set].arrays[BUFFER_PULLED_TO],
                                       .rows = p->sets[set].arrays[BUFFER_ROWS] };
    uint8_t *at = p->sets[set].arrays[BUFFER_PULLED];

    assert(p->takes_pulled && row_decode_takes(pulled->codec));
    for (uint32_t i = 0; i < pulled->n_parts; i++) {
        const struct codec_rows *part = &pulled->parts[i];

        if (part->n)
            p->ops->upload(p->c, set, at, part->bytes, part->n * row_bytes);
        at += part->n * row_bytes;
    }
    put(p, set, BUFFER_PULLED_TO, pulled->to, decode.n * sizeof *pulled->to);
    if (decode.n)
        p->ops->decode_rows(p->c, set, &decode);
}

/* Rows of several widths are not kept on the device. */
static void put_rows(struct device_buffers *p, uint32_t set, const struct dlrm_step *step,
                     enum device_buffers_pass pass)
{
    const bool is_training = pass == DEVICE_BUFFERS_TRAIN;

    if (step->pulled) {
        put_pulled(p, set, step);
        p->rows.n_copied += is_training ? step->batch->n_unique : 0;
        return;
    }
    if (is_training && !dlrm_config_n_projections(p->config)) {
        device_row_cache_put(&p->rows, set, step, p->sets[set].arrays[BUFFER_ROWS]);
        return;
    }
    put(p, set, BUFFER_ROWS, step->rows,
        dlrm_config_row_floats(p->config, step->batch) * sizeof(float));
    p->rows.n_copied += is_training ? step->batch->n_unique : 0;
}

/* The transpose's first word, which the device wants without the rest of it, too. */
static void put_n_rows(struct device_buffers *p, uint32_t set, const struct batch *b)
{
    uint32_t *n_rows = p->sets[set].host_transpose;

    *n_rows = b->n_unique;
    put(p, set, BUFFER_TRANSPOSE, n_rows, sizeof *n_rows);
}

/* What the device makes the transpose of. */
static void put_order(struct device_buffers *p, uint32_t set, const struct batch *b)
{
    p->sets[set].transposition.n_bags = b->n * p->n_fields;
    put(p, set, BUFFER_ORDER, b->order, b->n_keys * sizeof *b->order);
    put(p, set, BUFFER_ORDER_STARTS, b->order_starts,
        ((size_t)b->n_unique + 1) * sizeof *b->order_starts);
}

static void put_batch(struct device_buffers *p, uint32_t set, const struct dlrm_step *step,
                      enum device_buffers_pass pass)
{
    const struct batch *b = step->batch;

    put(p, set, BUFFER_NUMERIC, b->numeric, (size_t)b->n * p->n_numeric * sizeof(float));
    if (pass == DEVICE_BUFFERS_TRAIN)
        put(p, set, BUFFER_LABEL, b->label, (size_t)b->n * p->n_tasks * sizeof(float));
    put(p, set, BUFFER_STARTS, b->starts, ((size_t)b->n * p->n_fields + 1) * sizeof(uint32_t));
    put(p, set, BUFFER_ROW_OF, b->row_of, b->n_keys * sizeof(uint32_t));
    put_rows(p, set, step, pass);
    if (p->wide)
        put(p, set, BUFFER_WIDE, step->wide, b->n_unique * sizeof(float));
    if (pass == DEVICE_BUFFERS_TRAIN)
        put(p, set, BUFFER_DROP_KEYS, p->sets[set].host_drop_keys,
            p->n_drop_keys * sizeof(uint64_t));
    if (makes_transpose(p))
        put_n_rows(p, set, b);
    if (pass == DEVICE_BUFFERS_TRAIN && makes_transpose(p))
        put_order(p, set, b);
    else if (pass == DEVICE_BUFFERS_TRAIN && p->ops->wants_transpose)
        put_transpose(p, set, b);
}

/* README.md, rule 8. */
static void draw_drop_keys(const struct device_buffers *p, uint32_t set, uint64_t number)
{
    const uint64_t step = hash_mix2(p->seed, number);

    for (uint32_t i = 0; i < p->n_drop_keys; i++)
        p->sets[set].host_drop_keys[i] = hash_mix2(step, i);
}

/* A buffer set that has the values that are wanted, or has been asked to; NULL: they are the host's alone. */
static const struct device_buffers_set *set_with_values(const struct device_buffers *p)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++)
        if (p->sets[i].values_version == p->n_values)
            return &p->sets[i];
    return NULL;
}

static void put_values(struct device_buffers *p, uint32_t set)
{
    const struct device_buffers_set *has = set_with_values(p);
    struct device_buffers_set *s = &p->sets[set];

    s->values_copied = has && s->values_version != p->n_values;
    s->n_failures = p->n_failures;
    if (!has)
        put(p, set, BUFFER_VALUES, p->host_values, p->dense_floats * sizeof(float));
    else if (s->values_copied)
        p->ops->upload_from_device(p->c, set, s->arrays[BUFFER_VALUES],
                                   has->arrays[BUFFER_VALUES], p->dense_floats * sizeof(float));
    s->values_version = p->n_values;
}

/* A failure may be that of the copy that other buffer sets have used: all values become invalid. Steps in flight that
 * use another buffer set's values have failed with it. */
static int finish_values(struct device_buffers *p, const struct device_buffers_set *s,
                         int status)
{
    const bool source_failed = s->values_copied && s->n_failures != p->n_failures;

    for (uint32_t i = 0; i < DLRM_BUFFER_SETS && status; i++)
        p->sets[i].values_version = 0;
    p->n_failures += status != 0;
    return !status && source_failed ? PS_EDEVICE : status;
}

/* The caller's own arrays. */
static struct dlrm_io shared_io(const struct device_buffers *p, uint32_t set,
                                const struct dlrm_step *step)
{
    const struct batch *b = step->batch;

    return (struct dlrm_io){
        .n = b->n,
        .n_rows = b->n_unique,
        .numeric = b->numeric,
        .label = b->label,
        .rows = step->rows,
        .wide = step->wide,
        .values = p->host_values,
        .drop_keys = p->sets[set].host_drop_keys,
        .n_row_floats = dlrm_config_row_floats(p->config, b),
        .bags = { b->n, p->n_fields, p->dim, b->n_unique, b->starts, b->row_of, NULL },
        .row_grads = step->row_grads,
        .wide_grads = step->wide_grads,
        .grads = p->host_grads,
        .probs = p->probs,
        .loss = p->sets[set].loss,
    };
}

static struct dlrm_io device_io(const struct device_buffers *p, uint32_t set,
                                const struct dlrm_step *step, enum device_buffers_pass pass)
{
    const uint32_t n = step->batch->n;
    const struct device_buffers_set *s = &p->sets[set];
    void *const *at = s->arrays;

    return (struct dlrm_io){
        .n = n,
        .n_rows = s->rows_cap,
        .numeric = at[BUFFER_NUMERIC],
        .label = at[BUFFER_LABEL],
        .rows = at[BUFFER_ROWS],
        .wide = at[BUFFER_WIDE],
        .values = at[BUFFER_VALUES],
        .drop_keys = at[BUFFER_DROP_KEYS],
        .n_row_floats = (size_t)s->rows_cap * p->row_width,
        .bags = { n, p->n_fields, p->dim, s->rows_cap, at[BUFFER_STARTS], at[BUFFER_ROW_OF],
                  p->ops->wants_transpose ? &s->transpose : NULL },
        .transposition =
            pass == DEVICE_BUFFERS_TRAIN && makes_transpose(p) ? &s->transposition : NULL,
        .row_grads = at[BUFFER_ROW_GRADS],
        .wide_grads = at[BUFFER_WIDE_GRADS],
        .grads = at[BUFFER_GRADS],
        .probs = at[BUFFER_PROBS],
        .loss = at[BUFFER_LOSS],
        .key = key_of(p, set, n, pass, pass == DEVICE_BUFFERS_TRAIN && step->update),
    };
}

int device_buffers_reserve(struct device_buffers *p, uint32_t set, const struct batch *batch)
{
    struct device_buffers_set *s = &p->sets[set];
    int status;

    assert(set < DLRM_BUFFER_SETS && !s->busy);
    if (p->ops->shares_memory)
        return 0;
    status = reserve(p, s, batch);
    return status ? status : device_row_cache_reserve(&p->rows, set, s->rows_cap);
}

int device_buffers_reserve_update(struct device_buffers *p, uint32_t set, uint32_t n)
{
    bool has_moved;
    const int status = device_row_cache_reserve_update(&p->rows, set, n, &has_moved);

    if (has_moved)
        p->sets[set].generation = ++p->n_generations;
    return status;
}

void device_buffers_in(struct device_buffers *p, uint32_t set, const struct dlrm_step *step,
                       enum device_buffers_pass pass, struct dlrm_io *ret)
{
    draw_drop_keys(p, set, step->number);
    if (p->ops->shares_memory) {
        *ret = shared_io(p, set, step);
    } else {
        if (!step->keeps_dense || !p->n_values)
            p->n_values++;
        put_batch(p, set, step, pass);
        put_values(p, set);
        *ret = device_io(p, set, step, pass);
    }
    p->sets[set].busy = true;
}

static void fetch(const struct device_buffers *p, uint32_t set, void *host,
                  enum device_buffers_array a, size_t n_bytes)
{
    if (n_bytes)
        p->ops->download(p->c, set, host, p->sets[set].arrays[a], n_bytes);
}

void device_buffers_out(struct device_buffers *p, uint32_t set, const struct dlrm_step *step,
                        enum device_buffers_pass pass)
{
    const size_t n_rows = step->batch->n_unique;

    if (p->ops->shares_memory)
        return;
    if (pass == DEVICE_BUFFERS_PREDICT) {
        fetch(p, set, p->probs, BUFFER_PROBS,
              (size_t)step->batch->n * p->n_tasks * sizeof(float));
        return;
    }
    fetch(p, set, p->sets[set].loss, BUFFER_LOSS, p->n_tasks * sizeof(double));
    if (step->encoded)
        return;
    fetch(p, set, step->row_grads, BUFFER_ROW_GRADS,
          dlrm_config_row_floats(p->config, step->batch) * sizeof(float));
    if (p->wide)
        fetch(p, set, step->wide_grads, BUFFER_WIDE_GRADS, n_rows * sizeof(float));
    fetch(p, set, p->host_grads, BUFFER_GRADS, p->dense_floats * sizeof(float));
}

/* Of all tasks, each with its weight. */
static double total_loss(const struct device_buffers *p, const double *losses)
{
    double sum = 0;

    for (uint32_t i = 0; i < p->n_tasks; i++)
        sum += (double)p->task_weights[i] * losses[i];
    return sum;
}

int device_buffers_wait(struct device_buffers *p, uint32_t set, double *ret_loss)
{
    struct device_buffers_set *s = &p->sets[set];
    int status;

    assert(set < DLRM_BUFFER_SETS && s->busy);
    status = device_row_cache_finish(&p->rows, set, p->ops->wait(p->c, set));
    status = finish_values(p, s, status);
    s->busy = false;
    *ret_loss = status ? (double)NAN : total_loss(p, s->loss);
    return status;
}
