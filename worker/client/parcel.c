#include "worker/client/parcel.h"

#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

struct parcel *parcel_new(uint32_t n_sections)
{
    struct parcel *p = mem_try_alloc(sizeof *p + n_sections * sizeof p->sections[0]);

    if (p)
        p->n_sections = n_sections;
    return p;
}

void parcel_fill(struct parcel *p, struct buf *bytes, const struct section *sections)
{
    p->bytes = *bytes;
    *bytes = (struct buf){ 0 };
    memcpy(p->sections, sections, p->n_sections * sizeof *sections);
}

void parcel_free(struct parcel *p)
{
    if (!p)
        return;
    buf_deinit(&p->bytes);
    free(p);
}

/* The parcel's sections with the shard's table numbers. */
static void translate(const struct parcel *p, const uint32_t *shard_ids, struct section *dst)
{
    uint32_t i;

    memcpy(dst, p->sections, p->n_sections * sizeof *dst);
    for (i = 0; i < p->n_sections; i++)
        dst[i].table_id = shard_ids[p->sections[i].table_id];
}

int parcel_write_push(const struct parcel *p, const uint32_t *shard_ids, uint64_t request_id,
                      bool compress, struct buf *out)
{
    struct push m;

    m.seq = p->seq;
    m.clock = p->clock;
    m.n_samples = p->n_samples;
    m.tick = p->tick;
    m.n_sections = p->n_sections;
    translate(p, shard_ids, m.sections);
    return message_write_push(out, request_id, &m, compress);
}

int parcel_write_pull(const struct parcel *p, const uint32_t *shard_ids, uint64_t request_id,
                      bool compress, uint32_t deadline_ms, struct buf *out)
{
    struct pull m;

    m.clock = p->clock;
    m.unfinished = p->unfinished;
    m.deadline_ms = deadline_ms;
    m.n_sections = p->n_sections;
    translate(p, shard_ids, m.sections);
    return message_write_pull(out, request_id, &m, compress);
}
