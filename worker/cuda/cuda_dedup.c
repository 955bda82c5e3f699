/* Duplicate keys removed beside the steps (device_ops.dedup): a stream of its own, and the arrays of a batch in the
 * device's memory, which grow to the largest. */
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/cuda/cuda.h"

struct device_dedup {
    int device;            /* its number */
    cudaStream_t stream;   /* owned */
    struct scratch memory; /* owned: the arrays of a batch, then the kernels' scratch */
    uint32_t *counts;      /* owned, pinned: kernels_dedup.counts */
    uint8_t *of_field;     /* owned, pinned */
    uint32_t fields_cap;
    struct cuda_error fault;
};

static bool check(struct device_dedup *d, cudaError_t e)
{
    return cuda_error_check(&d->fault, "removing duplicate keys", e);
}

/* Clears the failure: the next batch is another attempt. */
static int report(struct device_dedup *d, struct err *err)
{
    const struct cuda_error fault = d->fault;

    d->fault = (struct cuda_error){ 0 };
    return err_set(err, PS_EDEVICE, "%s", fault.text);
}

void cuda_dedup_free(struct device_dedup *d)
{
    if (!d)
        return;
    cuda_try_device(d->device);
    if (d->stream)
        (void)cudaStreamDestroy(d->stream);
    scratch_free(&d->memory);
    if (d->counts)
        (void)cudaFreeHost(d->counts);
    if (d->of_field)
        (void)cudaFreeHost(d->of_field);
    free(d);
}

static size_t counts_bytes(uint32_t n_groups)
{
    return (1 + (n_groups ? n_groups + 1 : 0)) * sizeof(uint32_t);
}

int cuda_dedup_new(struct compute *c, struct device_dedup **ret, struct err *err)
{
    struct device_dedup *d = memory_alloc(sizeof *d);
    int status = 0;

    d->device = c->device;
    if (!cuda_use_device(d->device, &d->fault) ||
        !check(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking)) ||
        !check(d, cudaHostAlloc((void **)&d->counts, counts_bytes(DEVICE_GROUPS_MAX),
                                cudaHostAllocDefault)))
        status = report(d, err);
    if (status)
        cuda_dedup_free(d);
    else
        *ret = d;
    return status;
}

static bool reserve_fields(struct device_dedup *d, uint32_t n_fields)
{
    if (n_fields <= d->fields_cap)
        return true;
    if (d->of_field)
        (void)cudaFreeHost(d->of_field);
    d->of_field = NULL;
    d->fields_cap = 0;
    if (!check(d, cudaHostAlloc((void **)&d->of_field, n_fields, cudaHostAllocDefault)))
        return false;
    d->fields_cap = n_fields;
    return true;
}

/* Of arrays one behind the other. */
struct cursor {
    char *at;
};

static void *next(struct cursor *c, size_t n_bytes)
{
    void *at = c->at;

    c->at += (n_bytes + 7) / 8 * 8;
    return at;
}

/* Where a batch's arrays are in `memory`; NULL: from 0 on. Returns where they end. */
static char *lay_out(const struct key_dedup *k, void *memory, struct kernels_dedup_batch *ret)
{
    const size_t n = k->n_keys, n_starts = k->n_groups ? (size_t)k->n_bags + 1 : 0;
    struct cursor at = { memory };

    *ret = (struct kernels_dedup_batch){ .n_keys = k->n_keys,
                                         .n_bags = k->n_bags,
                                         .n_fields = k->n_fields,
                                         .n_groups = k->n_groups };
    ret->keys = next(&at, n * sizeof *ret->keys);
    ret->unique = next(&at, n * sizeof *ret->unique);
    ret->row_of = next(&at, n * sizeof *ret->row_of);
    ret->order = next(&at, n * sizeof *ret->order);
    ret->order_starts = next(&at, (n + 1) * sizeof *ret->order_starts);
    ret->counts = next(&at, counts_bytes(k->n_groups));
    ret->starts = next(&at, n_starts * sizeof *ret->starts);
    ret->of_field = next(&at, k->n_groups ? k->n_fields : 0);
    return at.at;
}

static bool put(struct device_dedup *d, const void *device, const void *host, size_t n_bytes)
{
    return check(d, cudaMemcpyAsync((void *)(uintptr_t)device, host, n_bytes,
                                    cudaMemcpyHostToDevice, d->stream));
}

static bool get(struct device_dedup *d, void *host, const void *device, size_t n_bytes)
{
    return check(d, cudaMemcpyAsync(host, device, n_bytes, cudaMemcpyDeviceToHost, d->stream));
}

static bool put_all(struct device_dedup *d, const struct key_dedup *k,
                    const struct kernels_dedup_batch *there)
{
    if (!put(d, there->keys, k->keys, k->n_keys * sizeof *k->keys))
        return false;
    if (!k->n_groups)
        return true;
    memcpy(d->of_field, k->of_field, k->n_fields);
    return put(d, there->of_field, d->of_field, k->n_fields) &&
           put(d, there->starts, k->starts, ((size_t)k->n_bags + 1) * sizeof *k->starts);
}

/* What depends on the number of rows is copied once that is known. */
static bool get_all(struct device_dedup *d, const struct key_dedup *k,
                    const struct kernels_dedup_batch *there)
{
    uint32_t n_unique;

    if (!get(d, d->counts, there->counts, counts_bytes(k->n_groups)) ||
        !get(d, k->row_of, there->row_of, k->n_keys * sizeof *k->row_of) ||
        !get(d, k->order, there->order, k->n_keys * sizeof *k->order) ||
        !check(d, cudaStreamSynchronize(d->stream)))
        return false;
    n_unique = d->counts[0];
    return get(d, k->unique, there->unique, n_unique * sizeof *k->unique) &&
           get(d, k->order_starts, there->order_starts,
               ((size_t)n_unique + 1) * sizeof *k->order_starts) &&
           check(d, cudaStreamSynchronize(d->stream));
}

/* With headroom: batches differ a little in their numbers of keys. */
static bool reserve(struct device_dedup *d, const struct key_dedup *k)
{
    struct kernels_dedup_batch none;
    const size_t n_bytes =
        (size_t)(uintptr_t)lay_out(k, NULL, &none) + kernels_dedup_bytes(k->n_keys);

    if (k->n_groups && !reserve_fields(d, k->n_fields))
        return false;
    return n_bytes <= d->memory.n_bytes ||
           check(d, scratch_reserve(&d->memory, n_bytes + n_bytes / 4));
}

static bool run(struct device_dedup *d, const struct key_dedup *k)
{
    struct kernels_dedup_batch there;
    char *scratch;

    if (!cuda_use_device(d->device, &d->fault) || !reserve(d, k))
        return false;
    scratch = lay_out(k, d->memory.memory, &there);
    return put_all(d, k, &there) && check(d, kernels_dedup(d->stream, &there, scratch)) &&
           get_all(d, k, &there);
}

int cuda_dedup_run(struct device_dedup *d, const struct key_dedup *k, uint32_t *ret_n_unique,
                   struct err *err)
{
    if (!run(d, k)) {
        (void)cudaStreamSynchronize(
            d->stream); /* nothing writes to the caller's arrays later */
        return report(d, err);
    }
    *ret_n_unique = d->counts[0];
    if (k->n_groups)
        memcpy(k->group_starts, d->counts + 1, (k->n_groups + 1) * sizeof *k->group_starts);
    return 0;
}
