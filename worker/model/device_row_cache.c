#include "worker/model/device_row_cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

void device_row_cache_init(struct device_row_cache *r, const struct device_ops *ops,
                           struct compute *c, uint32_t dim)
{
    *r = (struct device_row_cache){ .ops = ops, .c = c, .dim = dim };
}

/* ---- memory ---- */

static size_t kept_bytes(const struct device_row_cache *r)
{
    return (size_t)r->n_places * r->dim * sizeof *r->kept;
}

static size_t states_bytes(const struct device_row_cache *r)
{
    return (size_t)r->n_places * r->n_states * sizeof *r->states;
}

static size_t update_bytes(uint32_t n)
{
    return sizeof(struct device_row_cache_update) + n * sizeof(uint32_t);
}

static void drop_update(const struct device_row_cache *r, struct device_row_cache_plan *p)
{
    if (p->host_update)
        r->ops->host_free(r->c, p->host_update, update_bytes(p->update_cap));
    if (p->device_update)
        r->ops->memory_free(r->c, p->device_update, update_bytes(p->update_cap));
    p->host_update = p->device_update = NULL;
    p->update_cap = 0;
}

/* But for the update's part. */
static void drop_plan(const struct device_row_cache *r, struct device_row_cache_plan *p)
{
    if (p->host)
        r->ops->host_free(r->c, p->host, p->cap * sizeof *p->host);
    if (p->device)
        r->ops->memory_free(r->c, p->device, p->cap * sizeof *p->device);
    p->host = p->device = NULL;
    p->cap = 0;
}

void device_row_cache_release(struct device_row_cache *r)
{
    if (r->kept)
        r->ops->memory_free(r->c, r->kept, kept_bytes(r));
    if (r->states)
        r->ops->memory_free(r->c, r->states, states_bytes(r));
    free(r->versions);
    r->kept = r->states = NULL;
    r->is_replica = false;
    r->n_states = 0;
    r->versions = NULL;
    r->n_places = 0;
}

void device_row_cache_deinit(struct device_row_cache *r)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS && r->ops; i++) {
        drop_plan(r, &r->plans[i]);
        drop_update(r, &r->plans[i]);
    }
    device_row_cache_release(r);
}

int device_row_cache_keep(struct device_row_cache *r, size_t n_bytes)
{
    const size_t n = n_bytes / ((r->dim + r->n_states) * sizeof *r->kept);

    assert(!r->n_places);
    if (!n || r->ops->shares_memory)
        return 0;
    r->n_places = n < DEVICE_ROW_NEW ? (uint32_t)n : DEVICE_ROW_NEW;
    r->versions = memory_try_alloc(r->n_places * sizeof *r->versions);
    if (r->versions)
        r->kept = r->ops->memory_alloc(r->c, kept_bytes(r));
    if (r->kept && r->n_states)
        r->states = r->ops->memory_alloc(r->c, states_bytes(r));
    if (r->kept && (r->states || !r->n_states))
        return 0;
    device_row_cache_release(r);
    return -ENOMEM;
}

int device_row_cache_replicate(struct device_row_cache *r, const struct dlrm_replica *replica)
{
    int status;

    if (!r->ops->update_rows)
        return 0;
    r->rule = replica->rule;
    r->n_states = replica->n_states;
    status = device_row_cache_keep(r, replica->n_bytes);
    r->is_replica = !status && r->n_places;
    if (!r->is_replica)
        r->n_states = 0;
    return status;
}

int device_row_cache_reserve(struct device_row_cache *r, uint32_t set, uint32_t n)
{
    struct device_row_cache_plan *p = &r->plans[set];

    if (!r->n_places || n <= p->cap)
        return 0;
    drop_plan(r, p);
    p->cap = n;
    p->host = r->ops->host_alloc(r->c, n * sizeof *p->host);
    if (p->host)
        p->device = r->ops->memory_alloc_zeroed(r->c, n * sizeof *p->device); /* indices */
    if (p->device)
        return 0;
    drop_plan(r, p);
    return -ENOMEM;
}

int device_row_cache_reserve_update(struct device_row_cache *r, uint32_t set, uint32_t n,
                                    bool *ret_moved)
{
    struct device_row_cache_plan *p = &r->plans[set];

    *ret_moved = false;
    if (p->update_cap && n <= p->update_cap)
        return 0;
    drop_update(r, p);
    p->update_cap = n < UINT32_MAX / 2 ? n + n / 2 + 1 : n;
    p->host_update = r->ops->host_alloc(r->c, update_bytes(p->update_cap));
    if (p->host_update)
        p->device_update =
            r->ops->memory_alloc_zeroed(r->c, update_bytes(p->update_cap)); /* indices */
    *ret_moved = true;
    if (p->device_update)
        return 0;
    drop_update(r, p);
    return -ENOMEM;
}

/* ---- a step ---- */

/* How row i comes, and what stands at its place then. */
static uint32_t note(struct device_row_cache *r, uint64_t version, uint32_t place)
{
    if (!version || place >= r->n_places)
        return DEVICE_ROW_NEW;
    if (r->versions[place] == version)
        return place | DEVICE_ROW_KEPT;
    r->versions[place] = version;
    return place;
}

/* Returns how many are there. */
static uint32_t plan(struct device_row_cache *r, const struct dlrm_step *step, uint32_t *how)
{
    uint32_t n_there = 0;

    for (uint32_t i = 0; i < step->batch->n_unique; i++) {
        how[i] = note(r, step->versions[i], step->places[i]);
        n_there += how[i] >> 31;
    }
    return n_there;
}

static void put_kept(struct device_row_cache *r, uint32_t set, const struct dlrm_step *step,
                     float *device)
{
    const uint32_t n = step->batch->n_unique;
    struct device_row_cache_plan *p = &r->plans[set];
    const struct row_upload upload = { .n = n,
                                       .dim = r->dim,
                                       .host = step->rows,
                                       .how = p->device,
                                       .rows = device,
                                       .kept = r->kept,
                                       .n_states = r->n_states,
                                       .host_states = step->states,
                                       .states = r->states,
                                       .alone = r->is_replica };
    const uint32_t n_there = plan(r, step, p->host);

    assert(n <= p->cap);
    r->ops->upload(r->c, set, p->device, p->host, n * sizeof *p->host);
    r->ops->upload_rows(r->c, set, &upload);
    p->in_flight = true;
    p->n_failures = r->n_failures;
    r->n_kept += n_there;
    r->n_copied += n - n_there;
}

void device_row_cache_put(struct device_row_cache *r, uint32_t set,
                          const struct dlrm_step *step, float *device)
{
    const uint32_t n = step->batch->n_unique;

    if (!n)
        return;
    if (r->n_places && step->versions) {
        put_kept(r, set, step, device);
        return;
    }
    r->ops->upload(r->c, set, device, step->rows, (size_t)n * r->dim * sizeof *device);
    r->n_copied += n;
}

/* Where the places are, behind the head. */
static uint32_t *places_of(struct device_row_cache_update *update)
{
    return (uint32_t *)(update + 1);
}

const struct row_update *device_row_cache_update(struct device_row_cache *r, uint32_t set,
                                                 const struct dlrm_step *step, uint32_t n,
                                                 const uint8_t *bytes)
{
    const struct dlrm_encoded *encoded = &step->encoded[DLRM_ROWS];
    struct device_row_cache_plan *p = &r->plans[set];

    assert(r->is_replica && n <= p->update_cap);
    p->host_update->n = n;
    p->host_update->factors = step->update->factors;
    if (n)
        memcpy(places_of(p->host_update), step->update->places,
               n * sizeof *step->update->places);
    r->ops->upload(r->c, set, p->device_update, p->host_update, update_bytes(n));
    p->update = (struct row_update){ .rule = r->rule,
                                     .codec = encoded->codec,
                                     .dim = r->dim,
                                     .n_states = r->n_states,
                                     .k = encoded->k,
                                     .n_max = p->update_cap,
                                     .n = &p->device_update->n,
                                     .factors = &p->device_update->factors,
                                     .bytes = bytes,
                                     .places = places_of(p->device_update),
                                     .kept = r->kept,
                                     .states = r->states };
    return &p->update;
}

int device_row_cache_finish(struct device_row_cache *r, uint32_t set, int status)
{
    struct device_row_cache_plan *p = &r->plans[set];
    const bool source_failed = p->in_flight && p->n_failures != r->n_failures;

    p->in_flight = false;
    if (status && r->n_places) {
        memset(r->versions, 0, r->n_places * sizeof *r->versions);
        r->n_failures++;
    }
    return !status && source_failed ? PS_EDEVICE : status;
}
