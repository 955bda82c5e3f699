#include "worker/model/dlrm_place.h"

#include <assert.h>
#include <math.h>

#include "common/hash.h"

_Static_assert(DLRM_SLOTS <= COMPUTE_SLOTS, "a device has a slot for each step");

void dlrm_place_use(struct dlrm_place *p, float *values, float *grads)
{
    p->host_values = values ? values : p->values;
    p->host_grads = grads ? grads : p->grads;
}

/* 21 bits of n, 2 of the slot, 1 of the way. */
static uint64_t key_of(const struct dlrm_place *p, uint32_t slot, uint32_t n,
                       enum dlrm_place_way way)
{
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
    put(p, slot, PLACE_USES, s->host_uses, dlrm_place_uses_bytes(s, b->n_keys));
}

static void put_batch(struct dlrm_place *p, uint32_t slot, const struct dlrm_step *step,
                      enum dlrm_place_way way)
{
    const struct batch *b = step->batch;

    put(p, slot, PLACE_NUMERIC, b->numeric, (size_t)b->n * p->n_numeric * sizeof(float));
    if (way == PLACE_TRAIN)
        put(p, slot, PLACE_LABEL, b->label, b->n * sizeof(float));
    put(p, slot, PLACE_STARTS, b->starts, ((size_t)b->n * p->n_fields + 1) * sizeof(uint32_t));
    put(p, slot, PLACE_ROW_OF, b->row_of, b->n_keys * sizeof(uint32_t));
    if (way == PLACE_TRAIN)
        dlrm_rows_put(&p->rows, slot, step, p->slots[slot].arrays[PLACE_ROWS]);
    else
        put(p, slot, PLACE_ROWS, step->rows, (size_t)b->n_unique * p->dim * sizeof(float));
    if (p->wide)
        put(p, slot, PLACE_WIDE, step->wide, b->n_unique * sizeof(float));
    if (way == PLACE_TRAIN)
        put(p, slot, PLACE_DROP_KEYS, p->slots[slot].host_drop_keys,
            p->n_drop_keys * sizeof(uint64_t));
    if (way == PLACE_TRAIN && p->ops->wants_uses)
        put_uses(p, slot, b);
}

/* README.md, rule 8. */
static void draw_drop_keys(const struct dlrm_place *p, uint32_t slot, uint64_t number)
{
    const uint64_t step = hash_mix2(p->seed, number);

    for (uint32_t i = 0; i < p->n_drop_keys; i++)
        p->slots[slot].host_drop_keys[i] = hash_mix2(step, i);
}

/* A slot that has the values that are wanted, or has been asked to; NULL: they are the host's alone. */
static const struct dlrm_place_slot *who_has_values(const struct dlrm_place *p)
{
    for (uint32_t i = 0; i < DLRM_SLOTS; i++)
        if (p->slots[i].values_seen == p->n_values)
            return &p->slots[i];
    return NULL;
}

static void put_values(struct dlrm_place *p, uint32_t slot)
{
    const struct dlrm_place_slot *has = who_has_values(p);
    struct dlrm_place_slot *s = &p->slots[slot];

    s->values_again = has && s->values_seen != p->n_values;
    s->n_doubts = p->n_doubts;
    if (!has)
        put(p, slot, PLACE_VALUES, p->host_values, p->dense_floats * sizeof(float));
    else if (s->values_again)
        p->ops->upload_again(p->c, slot, s->arrays[PLACE_VALUES], has->arrays[PLACE_VALUES],
                             p->dense_floats * sizeof(float));
    s->values_seen = p->n_values;
}

/* A failure may be that of the copy which others have gone on from: nobody's values are trusted, and steps that were given
 * another slot's and are not judged yet have failed with it. */
static int judge_values(struct dlrm_place *p, const struct dlrm_place_slot *s, int status)
{
    const bool is_doubtful = s->values_again && s->n_doubts != p->n_doubts;

    for (uint32_t i = 0; i < DLRM_SLOTS && status; i++)
        p->slots[i].values_seen = 0;
    p->n_doubts += status != 0;
    return !status && is_doubtful ? PS_EDEVICE : status;
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
        .drop_keys = p->slots[slot].host_drop_keys,
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
        .drop_keys = at[PLACE_DROP_KEYS],
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
    draw_drop_keys(p, slot, step->number);
    if (p->ops->shares_memory) {
        *ret = shared_io(p, slot, step);
    } else {
        status = dlrm_place_make_room(p, s, step->batch);
        if (!status)
            status = dlrm_rows_reserve(&p->rows, slot, s->rows_cap);
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
    fetch(p, slot, p->slots[slot].loss, PLACE_LOSS, sizeof(double));
    if (step->travel)
        return;
    fetch(p, slot, step->row_grads, PLACE_ROW_GRADS, n_rows * p->dim * sizeof(float));
    if (p->wide)
        fetch(p, slot, step->wide_grads, PLACE_WIDE_GRADS, n_rows * sizeof(float));
    fetch(p, slot, p->host_grads, PLACE_GRADS, p->dense_floats * sizeof(float));
}

int dlrm_place_wait(struct dlrm_place *p, uint32_t slot, double *ret_loss)
{
    struct dlrm_place_slot *s = &p->slots[slot];
    int status;

    assert(slot < DLRM_SLOTS && s->busy);
    status = dlrm_rows_judge(&p->rows, slot, p->ops->wait(p->c, slot));
    status = judge_values(p, s, status);
    s->busy = false;
    *ret_loss = status ? (double)NAN : *s->loss;
    return status;
}
