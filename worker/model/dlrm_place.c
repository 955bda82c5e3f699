#include "worker/model/dlrm_place.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#define ROWS_MIN 64u /* room for rows, at least */

_Static_assert(DLRM_SLOTS <= COMPUTE_SLOTS, "a device has a slot for each step");

/* ---- sizes ---- */

static uint32_t n_bags_max(const struct dlrm_place *p)
{
    return p->n_max * p->n_fields; /* dlrm_config_check() */
}

static uint32_t n_spans_max(const struct dlrm_place_slot *s)
{
    return uses_n_spans_max(s->rows_cap, s->keys_cap);
}

/* counts, first, spans, bags: one behind the other, one copy. Those of a batch end with its last key. */
static size_t uses_bytes(const struct dlrm_place_slot *s, uint32_t n_keys)
{
    return sizeof(uint32_t) *
           (2 + ((size_t)s->rows_cap + 1) + ((size_t)n_spans_max(s) + 1) + n_keys);
}

static bool grows(enum dlrm_place_array a)
{
    return a == PLACE_ROW_OF || a == PLACE_USES || a == PLACE_ROWS || a == PLACE_WIDE ||
           a == PLACE_ROW_GRADS || a == PLACE_WIDE_GRADS;
}

/* 0: the model has none, or the device no use for it. */
static size_t bytes_of(const struct dlrm_place *p, const struct dlrm_place_slot *s,
                       enum dlrm_place_array a)
{
    switch (a) {
    case PLACE_NUMERIC:
        return (size_t)p->n_max * p->n_numeric * sizeof(float);
    case PLACE_LABEL:
    case PLACE_PROBS:
        return p->n_max * sizeof(float);
    case PLACE_STARTS:
        return ((size_t)n_bags_max(p) + 1) * sizeof(uint32_t);
    case PLACE_ROW_OF:
        return s->keys_cap * sizeof(uint32_t);
    case PLACE_USES:
        return p->ops->wants_uses ? uses_bytes(s, s->keys_cap) : 0;
    case PLACE_ROWS:
    case PLACE_ROW_GRADS:
        return (size_t)s->rows_cap * p->dim * sizeof(float);
    case PLACE_WIDE:
    case PLACE_WIDE_GRADS:
        return p->wide ? s->rows_cap * sizeof(float) : 0;
    case PLACE_VALUES:
    case PLACE_GRADS:
        return p->dense_floats * sizeof(float);
    case PLACE_LOSS:
        return sizeof(double);
    case PLACE_N_ARRAYS:
        break;
    }
    return 0;
}

/* ---- memory ---- */

static void *host_alloc(const struct dlrm_place *p, size_t n_bytes)
{
    return p->ops->host_alloc(p->c, n_bytes);
}

static void host_free(const struct dlrm_place *p, void *memory, size_t n_bytes)
{
    if (memory)
        p->ops->host_free(p->c, memory, n_bytes);
}

static void drop_array(const struct dlrm_place *p, struct dlrm_place_slot *s,
                       enum dlrm_place_array a)
{
    if (s->arrays[a])
        p->ops->memory_free(p->c, s->arrays[a], bytes_of(p, s, a));
    s->arrays[a] = NULL;
}

static int take_array(const struct dlrm_place *p, struct dlrm_place_slot *s,
                      enum dlrm_place_array a)
{
    const size_t n_bytes = bytes_of(p, s, a);

    if (!n_bytes)
        return 0;
    s->arrays[a] = p->ops->memory_alloc(p->c, n_bytes);
    return s->arrays[a] ? 0 : -ENOMEM;
}

static struct uses uses_at(const struct dlrm_place_slot *s, void *block)
{
    uint32_t *counts = block, *first = counts + 2, *spans = first + s->rows_cap + 1;

    return (struct uses){ counts, first, spans, spans + n_spans_max(s) + 1 };
}

static int take_uses(const struct dlrm_place *p, struct dlrm_place_slot *s)
{
    struct uses there;

    if (!p->ops->wants_uses)
        return 0;
    s->host_uses = host_alloc(p, bytes_of(p, s, PLACE_USES));
    if (!s->host_uses)
        return -ENOMEM;
    s->fill = uses_at(s, s->host_uses);
    there = uses_at(s, s->arrays[PLACE_USES]);
    s->uses = (struct bag_uses){ s->rows_cap, n_spans_max(s), there.counts,
                                 there.bags,  there.spans,    there.first };
    return 0;
}

static void drop_room(const struct dlrm_place *p, struct dlrm_place_slot *s)
{
    host_free(p, s->host_uses, bytes_of(p, s, PLACE_USES));
    s->host_uses = NULL;
    for (int a = 0; a < PLACE_N_ARRAYS; a++)
        if (grows((enum dlrm_place_array)a))
            drop_array(p, s, (enum dlrm_place_array)a);
    s->keys_cap = s->rows_cap = 0;
}

static uint32_t with_spare(uint32_t n)
{
    return n < UINT32_MAX / 2 ? n + n / 2 : n;
}

/* Room for the batch's keys and rows; at least for some, so that every array has an address. */
static int make_room(struct dlrm_place *p, struct dlrm_place_slot *s, const struct batch *batch)
{
    uint32_t keys_cap = s->keys_cap, rows_cap = s->rows_cap;
    int status = 0;

    if (keys_cap && batch->n_keys <= keys_cap && batch->n_unique <= rows_cap)
        return 0;
    if (batch->n_keys > keys_cap)
        keys_cap = batch->n_keys > n_bags_max(p) ? with_spare(batch->n_keys) : n_bags_max(p);
    if (batch->n_unique > rows_cap)
        rows_cap = with_spare(batch->n_unique);
    drop_room(p, s);
    s->keys_cap = keys_cap ? keys_cap : 1;
    s->rows_cap = rows_cap > ROWS_MIN ? rows_cap : ROWS_MIN;
    for (int a = 0; a < PLACE_N_ARRAYS && !status; a++)
        if (grows((enum dlrm_place_array)a))
            status = take_array(p, s, (enum dlrm_place_array)a);
    if (!status)
        status = take_uses(p, s);
    if (status)
        drop_room(p, s);
    s->generation = ++p->n_generations;
    return status;
}

static int init_slot(struct dlrm_place *p, struct dlrm_place_slot *s)
{
    static const struct batch empty = { 0 };
    int status = 0;

    s->loss = host_alloc(p, sizeof *s->loss);
    if (!s->loss)
        return -ENOMEM;
    for (int a = 0; a < PLACE_N_ARRAYS && !status && !p->ops->shares_memory; a++)
        if (!grows((enum dlrm_place_array)a))
            status = take_array(p, s, (enum dlrm_place_array)a);
    return status || p->ops->shares_memory ? status : make_room(p, s, &empty);
}

int dlrm_place_init(struct dlrm_place *p, const struct compute_ops *ops, struct compute *c,
                    const struct dlrm_config *config, size_t dense_floats)
{
    int status = 0;

    *p = (struct dlrm_place){ .ops = ops,
                              .c = c,
                              .n_max = config->batch_max,
                              .n_numeric = config->n_numeric,
                              .n_fields = config->n_fields,
                              .dim = config->dim,
                              .wide = config->wide,
                              .records = !(config->dropout > 0),
                              .dense_floats = dense_floats };
    p->values = host_alloc(p, dense_floats * sizeof *p->values);
    if (!p->values)
        return -ENOMEM;
    p->grads = host_alloc(p, dense_floats * sizeof *p->grads);
    if (!p->grads)
        return -ENOMEM;
    p->probs = host_alloc(p, p->n_max * sizeof *p->probs);
    if (!p->probs)
        return -ENOMEM;
    dlrm_place_use(p, NULL, NULL);
    for (uint32_t i = 0; i < DLRM_SLOTS && !status; i++)
        status = init_slot(p, &p->slots[i]);
    return status;
}

void dlrm_place_deinit(struct dlrm_place *p)
{
    for (uint32_t i = 0; i < DLRM_SLOTS && p->ops; i++) {
        struct dlrm_place_slot *s = &p->slots[i];

        host_free(p, s->host_uses, bytes_of(p, s, PLACE_USES));
        host_free(p, s->loss, sizeof *s->loss);
        for (int a = 0; a < PLACE_N_ARRAYS; a++)
            drop_array(p, s, (enum dlrm_place_array)a);
    }
    host_free(p, p->values, p->dense_floats * sizeof *p->values);
    host_free(p, p->grads, p->dense_floats * sizeof *p->grads);
    host_free(p, p->probs, p->n_max * sizeof *p->probs);
    *p = (struct dlrm_place){ 0 };
}

void dlrm_place_use(struct dlrm_place *p, float *values, float *grads)
{
    p->host_values = values ? values : p->values;
    p->host_grads = grads ? grads : p->grads;
}

/* ---- a step ---- */

/* 21 bits of n, 2 of the slot, 1 of the way. Dropout's hash differs from step to step, and with it an
 * argument. */
static uint64_t key_of(const struct dlrm_place *p, uint32_t slot, uint32_t n,
                       enum dlrm_place_way way)
{
    if (way == PLACE_TRAIN && !p->records)
        return 0;
    return p->slots[slot].generation << 24 | n << 3 | slot << 1 | (way == PLACE_TRAIN);
}

static void put(const struct dlrm_place *p, uint32_t slot, enum dlrm_place_array a,
                const void *host, size_t n_bytes)
{
    if (n_bytes)
        p->ops->upload(p->c, slot, p->slots[slot].arrays[a], host, n_bytes);
}

static void put_uses(struct dlrm_place *p, uint32_t slot, const struct batch *b)
{
    struct dlrm_place_slot *s = &p->slots[slot];
    const struct uses_source source = { b->n * p->n_fields, b->n_unique, b->starts,
                                        b->row_of,          b->order,    b->order_starts };

    uses_build(&source, &s->fill);
    put(p, slot, PLACE_USES, s->host_uses, uses_bytes(s, b->n_keys));
}

/* The feed's memory first: a device may have to wait for its own copies before it reads memory that it did
 * not give. */
static void put_batch(struct dlrm_place *p, uint32_t slot, const struct dlrm_step *step,
                      enum dlrm_place_way way)
{
    const struct batch *b = step->batch;

    put(p, slot, PLACE_NUMERIC, b->numeric, (size_t)b->n * p->n_numeric * sizeof(float));
    if (way == PLACE_TRAIN)
        put(p, slot, PLACE_LABEL, b->label, b->n * sizeof(float));
    put(p, slot, PLACE_STARTS, b->starts, ((size_t)b->n * p->n_fields + 1) * sizeof(uint32_t));
    put(p, slot, PLACE_ROW_OF, b->row_of, b->n_keys * sizeof(uint32_t));
    put(p, slot, PLACE_ROWS, step->rows, (size_t)b->n_unique * p->dim * sizeof(float));
    if (p->wide)
        put(p, slot, PLACE_WIDE, step->wide, b->n_unique * sizeof(float));
    if (way == PLACE_TRAIN && p->ops->wants_uses)
        put_uses(p, slot, b);
}

static void put_values(struct dlrm_place *p, uint32_t slot)
{
    struct dlrm_place_slot *s = &p->slots[slot];

    if (s->values_seen != p->n_values)
        put(p, slot, PLACE_VALUES, p->host_values, p->dense_floats * sizeof(float));
    s->values_seen = p->n_values;
}

/* The caller's own arrays. */
static struct dlrm_io shared_io(const struct dlrm_place *p, uint32_t slot,
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
        .bags = { b->n, p->n_fields, p->dim, b->n_unique, b->starts, b->row_of, NULL },
        .row_grads = step->row_grads,
        .wide_grads = step->wide_grads,
        .grads = p->host_grads,
        .probs = p->probs,
        .loss = p->slots[slot].loss,
    };
}

static struct dlrm_io device_io(const struct dlrm_place *p, uint32_t slot, uint32_t n,
                                enum dlrm_place_way way)
{
    const struct dlrm_place_slot *s = &p->slots[slot];
    void *const *at = s->arrays;

    return (struct dlrm_io){
        .n = n,
        .n_rows = s->rows_cap,
        .numeric = at[PLACE_NUMERIC],
        .label = at[PLACE_LABEL],
        .rows = at[PLACE_ROWS],
        .wide = at[PLACE_WIDE],
        .values = at[PLACE_VALUES],
        .bags = { n, p->n_fields, p->dim, s->rows_cap, at[PLACE_STARTS], at[PLACE_ROW_OF],
                  p->ops->wants_uses ? &s->uses : NULL },
        .row_grads = at[PLACE_ROW_GRADS],
        .wide_grads = at[PLACE_WIDE_GRADS],
        .grads = at[PLACE_GRADS],
        .probs = at[PLACE_PROBS],
        .loss = at[PLACE_LOSS],
        .key = key_of(p, slot, n, way),
    };
}

int dlrm_place_in(struct dlrm_place *p, uint32_t slot, const struct dlrm_step *step,
                  enum dlrm_place_way way, struct dlrm_io *ret)
{
    struct dlrm_place_slot *s = &p->slots[slot];
    int status;

    assert(slot < DLRM_SLOTS && !s->busy);
    if (p->ops->shares_memory) {
        *ret = shared_io(p, slot, step);
    } else {
        status = make_room(p, s, step->batch);
        if (status)
            return status;
        if (!step->keeps_dense || !p->n_values)
            p->n_values++;
        put_batch(p, slot, step, way);
        put_values(p, slot);
        *ret = device_io(p, slot, step->batch->n, way);
    }
    s->busy = true;
    return 0;
}

static void fetch(const struct dlrm_place *p, uint32_t slot, void *host,
                  enum dlrm_place_array a, size_t n_bytes)
{
    if (n_bytes)
        p->ops->download(p->c, slot, host, p->slots[slot].arrays[a], n_bytes);
}

void dlrm_place_out(struct dlrm_place *p, uint32_t slot, const struct dlrm_step *step,
                    enum dlrm_place_way way)
{
    const size_t n_rows = step->batch->n_unique;

    if (p->ops->shares_memory)
        return;
    if (way == PLACE_PREDICT) {
        fetch(p, slot, p->probs, PLACE_PROBS, step->batch->n * sizeof(float));
        return;
    }
    fetch(p, slot, step->row_grads, PLACE_ROW_GRADS, n_rows * p->dim * sizeof(float));
    if (p->wide)
        fetch(p, slot, step->wide_grads, PLACE_WIDE_GRADS, n_rows * sizeof(float));
    fetch(p, slot, p->host_grads, PLACE_GRADS, p->dense_floats * sizeof(float));
    fetch(p, slot, p->slots[slot].loss, PLACE_LOSS, sizeof(double));
}

int dlrm_place_wait(struct dlrm_place *p, uint32_t slot, double *ret_loss)
{
    struct dlrm_place_slot *s = &p->slots[slot];
    int status;

    assert(slot < DLRM_SLOTS && s->busy);
    status = p->ops->wait(p->c, slot);
    s->busy = false;
    *ret_loss = status ? (double)NAN : *s->loss;
    return status;
}
