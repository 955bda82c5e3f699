#include "worker/client/outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

void outbox_init(struct outbox *o, uint32_t n_shards, size_t max_bytes)
{
    o->n_shards = n_shards;
    o->bufs = mem_alloc(n_shards * sizeof *o->bufs);
    o->parcels = mem_alloc(n_shards * sizeof(struct parcel *));
    spares_init(&o->spares, 2 * n_shards, max_bytes);
}

void outbox_deinit(struct outbox *o)
{
    outbox_clear(o);
    parcel_free_spares(&o->spares);
    spares_deinit(&o->spares);
    free(o->bufs);
    free(o->parcels);
}

int outbox_make(struct outbox *o, uint32_t n_sections)
{
    uint32_t i;

    for (i = 0; i < o->n_shards; i++) {
        o->parcels[i] = parcel_take(&o->spares, n_sections);
        if (!o->parcels[i]) {
            outbox_clear(o);
            return -ENOMEM;
        }
        o->bufs[i] = o->parcels[i]->bytes; /* to be filled; parcel_fill() takes it back */
        o->parcels[i]->bytes = (struct buf){ 0 };
    }
    return 0;
}

void outbox_clear(struct outbox *o)
{
    uint32_t i;

    for (i = 0; i < o->n_shards && o->parcels[i]; i++) {
        o->parcels[i]->bytes = o->bufs[i];
        o->bufs[i] = (struct buf){ 0 };
        parcel_free(o->parcels[i]);
        o->parcels[i] = NULL;
    }
}

void outbox_forget(struct outbox *o)
{
    memset(o->parcels, 0, o->n_shards * sizeof(struct parcel *));
}
