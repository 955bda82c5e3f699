#include "worker/client/pulled_rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

void pulled_rows_deinit(struct pulled_rows *p)
{
    for (uint32_t i = 0; i < p->n_shards; i++)
        bytes_deinit(&p->buffers[i]);
    free(p->buffers);
    free(p->parts);
    *p = (struct pulled_rows){ 0 };
}

static int reserve(struct pulled_rows *p, uint32_t n_shards)
{
    uint32_t *to = p->to;

    pulled_rows_deinit(p);
    p->to = to;
    p->parts = memory_try_alloc(n_shards * sizeof *p->parts);
    p->buffers = memory_try_alloc(n_shards * sizeof *p->buffers);
    if (p->parts && p->buffers) {
        p->n_shards = n_shards;
        return 0;
    }
    free(p->parts);
    free(p->buffers);
    *p = (struct pulled_rows){ .to = to };
    return -ENOMEM;
}

int pulled_rows_begin(struct pulled_rows *p, enum codec_id codec, uint32_t n_shards)
{
    const int status = p->n_shards == n_shards ? 0 : reserve(p, n_shards);

    p->codec = codec;
    p->n = 0;
    return status;
}

void pulled_rows_take(struct pulled_rows *p, uint32_t shard, const uint32_t *numbers,
                      struct codec_rows rows)
{
    p->parts[shard] = rows;
    if (rows.n)
        memcpy(p->to + p->n, numbers, rows.n * sizeof *p->to);
    p->n += rows.n;
}

void pulled_rows_keep(struct pulled_rows *p, uint32_t shard, struct bytes *buffer)
{
    const struct bytes before = p->buffers[shard];

    p->buffers[shard] = *buffer;
    *buffer = before;
}
