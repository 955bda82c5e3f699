#include "worker/client/parcel.h"

#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

struct parcel *parcel_new(uint32_t n_sections)
{
    struct parcel *p = mem_try_alloc(sizeof *p + n_sections * sizeof p->sections[0]);

    if (p)
        p->n_sections = p->cap_sections = n_sections;
    return p;
}

static void destroy(struct parcel *p)
{
    buf_deinit(&p->bytes);
    free(p);
}

/* One that has come back, as it was; NULL: there is none. */
static struct parcel *take_back(struct spares *home)
{
    struct spare *spare = spares_take(home);
    struct parcel *p = spare ? CONTAINER_OF(spare, struct parcel, spare) : NULL;

    if (p)
        mem_show(p->bytes.bytes, p->bytes.cap_bytes);
    return p;
}

static struct parcel *with_room(struct parcel *p, uint32_t n_sections)
{
    struct parcel *grown;

    if (n_sections <= p->cap_sections)
        return p;
    grown = mem_try_realloc(p, sizeof *p + n_sections * sizeof p->sections[0]);
    if (grown)
        grown->cap_sections = n_sections;
    else
        destroy(p);
    return grown;
}

struct parcel *parcel_take(struct spares *home, uint32_t n_sections)
{
    struct parcel *p = take_back(home);

    p = p ? with_room(p, n_sections) : parcel_new(n_sections);
    if (!p)
        return NULL;
    buf_consume(&p->bytes, buf_len(&p->bytes));
    *p = (struct parcel){ .home = home,
                          .bytes = p->bytes,
                          .most_bytes = p->most_bytes,
                          .n_sections = n_sections,
                          .cap_sections = p->cap_sections };
    return p;
}

void parcel_free_spares(struct spares *home)
{
    struct parcel *p;

    while ((p = take_back(home)) != NULL)
        destroy(p);
}

void parcel_fill(struct parcel *p, struct buf *bytes, const struct section *sections)
{
    buf_deinit(&p->bytes);
    p->bytes = *bytes;
    *bytes = (struct buf){ 0 };
    memcpy(p->sections, sections, p->n_sections * sizeof *sections);
}

void parcel_free(struct parcel *p)
{
    if (!p)
        return;
    if (p->most_bytes < p->bytes.end)
        p->most_bytes = p->bytes.end;
    mem_hide(p->bytes.bytes, p->bytes.cap_bytes);
    if (p->home && spares_give(p->home, &p->spare, sizeof *p + p->most_bytes))
        return; /* it may be somebody else's by now */
    mem_show(p->bytes.bytes, p->bytes.cap_bytes);
    destroy(p);
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
                      struct message_zstd *zstd, struct buf *out)
{
    struct push m;

    m.seq = p->seq;
    m.clock = p->clock;
    m.n_samples = p->n_samples;
    m.tick = p->tick;
    m.n_sections = p->n_sections;
    translate(p, shard_ids, m.sections);
    return message_write_push(out, request_id, &m, zstd);
}

int parcel_write_pull(const struct parcel *p, const uint32_t *shard_ids, uint64_t request_id,
                      struct message_zstd *zstd, uint32_t deadline_ms, struct buf *out)
{
    struct pull m;

    m.clock = p->clock;
    m.unfinished = p->unfinished;
    m.deadline_ms = deadline_ms;
    m.n_sections = p->n_sections;
    translate(p, shard_ids, m.sections);
    return message_write_pull(out, request_id, &m, zstd);
}
