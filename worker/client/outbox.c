#include "worker/client/outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

void outbox_init(struct outbox *o, uint32_t n_shards)
{
    o->n_shards = n_shards;
    o->bufs = mem_alloc(n_shards * sizeof *o->bufs);
    o->parcels = mem_alloc(n_shards * sizeof(struct parcel *));
}

void outbox_deinit(struct outbox *o)
{
    outbox_clear(o);
    free(o->bufs);
    free(o->parcels);
}

int outbox_make(struct outbox *o, uint32_t n_sections)
{
    uint32_t i;

    for (i = 0; i < o->n_shards; i++) {
        o->parcels[i] = parcel_new(n_sections);
        if (!o->parcels[i]) {
            outbox_clear(o);
            return -ENOMEM;
        }
    }
    return 0;
}

void outbox_clear(struct outbox *o)
{
    uint32_t i;

    for (i = 0; i < o->n_shards; i++) {
        parcel_free(o->parcels[i]);
        o->parcels[i] = NULL;
        buf_deinit(&o->bufs[i]);
    }
}

void outbox_forget(struct outbox *o)
{
    memset(o->parcels, 0, o->n_shards * sizeof(struct parcel *));
}
