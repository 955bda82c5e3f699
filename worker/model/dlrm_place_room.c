/* Sizes and memory of dlrm_place.h's arrays. */
#include "worker/model/dlrm_place.h"

#include <errno.h>

#define ROWS_MIN 64u /* room for rows, at least */

/* ---- sizes ---- */

static uint32_t n_bags_max(const struct dlrm_place *p)
{
    return p->n_max * p->n_fields; /* dlrm_config_check() */
}

static uint32_t n_spans_max(const struct dlrm_place_slot *s)
{
    return uses_n_spans_max(s->rows_cap, s->keys_cap);
}

size_t dlrm_place_uses_bytes(const struct dlrm_place_slot *s, uint32_t n_keys)
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
        return p->ops->wants_uses ? dlrm_place_uses_bytes(s, s->keys_cap) : 0;
    case PLACE_ROWS:
    case PLACE_ROW_GRADS:
        return (size_t)s->rows_cap * p->dim * sizeof(float);
    case PLACE_WIDE:
    case PLACE_WIDE_GRADS:
        return p->wide ? s->rows_cap * sizeof(float) : 0;
    case PLACE_DROP_KEYS:
        return p->n_drop_keys * sizeof(uint64_t);
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

/* At least for some, so that every array has an address. */
int dlrm_place_make_room(struct dlrm_place *p, struct dlrm_place_slot *s,
                         const struct batch *batch)
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
    if (p->n_drop_keys)
        s->host_drop_keys = host_alloc(p, bytes_of(p, s, PLACE_DROP_KEYS));
    if (p->n_drop_keys && !s->host_drop_keys)
        return -ENOMEM;
    for (int a = 0; a < PLACE_N_ARRAYS && !status && !p->ops->shares_memory; a++)
        if (!grows((enum dlrm_place_array)a))
            status = take_array(p, s, (enum dlrm_place_array)a);
    return status || p->ops->shares_memory ? status : dlrm_place_make_room(p, s, &empty);
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
                              .n_drop_keys = config->dropout > 0 ? config->n_top : 0,
                              .seed = config->seed,
                              .dense_floats = dense_floats };
    dlrm_rows_init(&p->rows, ops, c, config->dim);
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
        host_free(p, s->host_drop_keys, bytes_of(p, s, PLACE_DROP_KEYS));
        host_free(p, s->loss, sizeof *s->loss);
        for (int a = 0; a < PLACE_N_ARRAYS; a++)
            drop_array(p, s, (enum dlrm_place_array)a);
    }
    dlrm_rows_deinit(&p->rows);
    host_free(p, p->values, p->dense_floats * sizeof *p->values);
    host_free(p, p->grads, p->dense_floats * sizeof *p->grads);
    host_free(p, p->probs, p->n_max * sizeof *p->probs);
    *p = (struct dlrm_place){ 0 };
}
