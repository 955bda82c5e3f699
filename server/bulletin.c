#include "server/bulletin.h"

#include <stdlib.h>

#include "common/mem.h"

int bulletin_init(struct bulletin *b)
{
    b->newest = NULL;
    return uv_mutex_init(&b->lock);
}

void bulletin_deinit(struct bulletin *b)
{
    bulletin_return(b->newest);
    b->newest = NULL;
    uv_mutex_destroy(&b->lock);
}

void bulletin_post(struct bulletin *b, struct shard_report *report)
{
    struct bulletin_sheet *sheet = mem_alloc(sizeof *sheet), *old;

    sheet->report = report;
    atomic_store(&sheet->n_holders, 1);
    uv_mutex_lock(&b->lock);
    old = b->newest;
    b->newest = sheet;
    uv_mutex_unlock(&b->lock);
    bulletin_return(old);
}

struct bulletin_sheet *bulletin_take(struct bulletin *b)
{
    struct bulletin_sheet *sheet;

    uv_mutex_lock(&b->lock);
    sheet = b->newest;
    if (sheet)
        atomic_fetch_add(&sheet->n_holders, 1);
    uv_mutex_unlock(&b->lock);
    return sheet;
}

void bulletin_return(struct bulletin_sheet *sheet)
{
    if (!sheet || atomic_fetch_sub(&sheet->n_holders, 1) != 1)
        return;
    shard_report_free(sheet->report);
    free(sheet);
}
