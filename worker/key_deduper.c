#include "worker/key_deduper.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/log_line.h"
#include "common/memory.h"

struct key_deduper {
    struct dlrm *model; /* borrowed */
    uint32_t keys_min;
    struct batch_deduper ops;
    atomic_bool has_failed; /* a sentence has been logged */
};

/* A reading thread's. */
struct one {
    struct key_deduper *all;     /* borrowed */
    struct device_dedup *device; /* owned, once there was a large batch; NULL: none */
    bool cannot;
};

static int report(struct one *one, int status, const struct err *err)
{
    if (status && !atomic_exchange(&one->all->has_failed, true))
        log_line_warn("duplicate keys are removed on the CPU: %s", err->text);
    return status;
}

static void *open_one(void *arg)
{
    struct one *one = memory_alloc(sizeof *one);

    *one = (struct one){ .all = arg };
    return one;
}

static int open_device(struct one *one)
{
    struct err err;
    int status = PS_EDEVICE;

    if (one->device)
        return 0;
    if (!one->cannot)
        status = report(one, dlrm_dedup_new(one->all->model, &one->device, &err), &err);
    one->cannot = status != 0;
    return status;
}

static int run_one(void *arg, struct batch *b)
{
    const struct key_dedup keys = { .n_keys = b->n_keys,
                                    .n_bags = b->n * b->n_fields,
                                    .n_fields = b->n_fields,
                                    .n_groups = b->groups ? b->groups->n : 0,
                                    .keys = b->keys,
                                    .starts = b->starts,
                                    .of_field = b->groups ? b->groups->of_field : NULL,
                                    .unique = b->unique,
                                    .row_of = b->row_of,
                                    .order = b->order,
                                    .order_starts = b->order_starts,
                                    .group_starts = b->group_starts };
    struct one *one = arg;
    struct err err;

    if (!b->n_keys || b->n_keys < one->all->keys_min || open_device(one))
        return PS_EDEVICE;
    return report(one, dlrm_dedup(one->all->model, one->device, &keys, &b->n_unique, &err),
                  &err);
}

static void close_one(void *arg)
{
    struct one *one = arg;

    if (one->device)
        dlrm_dedup_free(one->all->model, one->device);
    free(one);
}

struct key_deduper *key_deduper_new(struct dlrm *model, uint32_t keys_min)
{
    struct key_deduper *d;

    if (!dlrm_dedups(model))
        return NULL;
    d = memory_alloc(sizeof *d);
    *d = (struct key_deduper){ .model = model, .keys_min = keys_min };
    d->ops = (struct batch_deduper){ open_one, run_one, close_one, d };
    return d;
}

void key_deduper_free(struct key_deduper *d)
{
    free(d);
}

const struct batch_deduper *key_deduper_of_batches(const struct key_deduper *d)
{
    return d ? &d->ops : NULL;
}
