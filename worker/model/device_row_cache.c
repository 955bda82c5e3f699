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

static void drop_plan(const struct device_row_cache *r, struct device_row_cache_plan *p)
{
    if (p->host)
        r->ops->host_free(r->c, p->host, p->cap * sizeof *p->host);
    if (p->device)
        r->ops->memory_free(r->c, p->device, p->cap * sizeof *p->device);
    *p = (struct device_row_cache_plan){ 0 };
}

static void drop_kept(struct device_row_cache *r)
{
    if (r->kept)
        r->ops->memory_free(r->c, r->kept, kept_bytes(r));
    free(r->versions);
    r->kept = NULL;
    r->versions = NULL;
    r->n_places = 0;
}

void device_row_cache_deinit(struct device_row_cache *r)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS && r->ops; i++)
        drop_plan(r, &r->plans[i]);
    drop_kept(r);
}

int device_row_cache_keep(struct device_row_cache *r, size_t n_bytes)
{
    const size_t n = n_bytes / (r->dim * sizeof *r->kept);

    assert(!r->n_places);
    if (!n || r->ops->shares_memory)
        return 0;
    r->n_places = n < DEVICE_ROW_NEW ? (uint32_t)n : DEVICE_ROW_NEW;
    r->versions = memory_try_alloc(r->n_places * sizeof *r->versions);
    if (r->versions)
        r->kept = r->ops->memory_alloc(r->c, kept_bytes(r));
    if (r->kept)
        return 0;
    drop_kept(r);
    return -ENOMEM;
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
    const struct row_upload upload = { n, r->dim, step->rows, p->device, device, r->kept };
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
