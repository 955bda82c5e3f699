#include "server/core/shard_held_bytes.h"

#include <errno.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/roster_bytes.h"
#include "server/core/shard_lockstep.h"
#include "server/core/shard_section.h"

#define FORMAT 1u
#define PUSH_BYTES_MIN 40u
#define SECTION_BYTES 32u

static void encode_push(struct state_writer *w, const struct shard_held *h)
{
    state_put_u32(w, h->rank);
    state_put_u64(w, h->incarnation);
    state_put_u64(w, h->seq);
    state_put_u64(w, h->clock);
    state_put_u32(w, h->n_samples);
    state_put_u32(w, h->finished);
    state_put_u32(w, h->n_sections);
    for (uint32_t i = 0; i < h->n_sections; i++) {
        const struct section *section = &h->sections[i];

        state_put_u32(w, section->table_id);
        state_put_u32(w, (uint32_t)section->codec);
        state_put_u32(w, section->k);
        state_put_u32(w, section->n_keys);
        state_put_u64(w, section->key_bytes);
        state_put_u64(w, section->value_bytes);
    }
}

static void encode_queue(const struct shard *s, struct state_writer *w,
                         const struct shard_queue *q)
{
    uint32_t job = 0, n_pushes = 0;

    while (roster_job(s->roster, job) != q->job)
        job++;
    for (const struct shard_held *h = q->first; h; h = h->next)
        n_pushes++;
    state_put_u32(w, job);
    state_put_u64(w, q->run);
    state_put_u32(w, n_pushes);
    for (const struct shard_held *h = q->first; h; h = h->next)
        encode_push(w, h);
}

void shard_held_encode(const struct shard *s, struct state_writer *w)
{
    uint32_t n_queues = 0;

    state_put_u32(w, FORMAT);
    roster_encode(s->roster, w);
    for (const struct shard_queue *q = s->queues; q; q = q->next)
        n_queues++;
    state_put_u32(w, n_queues);
    for (const struct shard_queue *q = s->queues; q; q = q->next)
        encode_queue(s, w, q);
}

const uint8_t *shard_held_payload(const struct shard_held *held, size_t *ret_n_bytes)
{
    *ret_n_bytes = held->n_bytes - sizeof *held - held->n_sections * sizeof held->sections[0];
    return (const uint8_t *)(held->sections + held->n_sections);
}

/* --- back again --- */

/* Adds to *n_bytes what the section has behind the head. */
static void decode_section(struct state_reader *src, struct section *section, uint64_t *n_bytes)
{
    uint64_t n_left = (uint64_t)(src->end - src->at);

    *section = (struct section){ .table_id = state_get_u32(src) };
    section->op = SECTION_GRADIENT;
    section->codec = (enum codec_id)state_get_upto(src, CODEC_ID_END - 1);
    section->k = state_get_u32(src);
    section->n_keys = state_get_u32(src);
    section->key_bytes = (size_t)state_get_u64(src);
    section->value_bytes = (size_t)state_get_u64(src);
    src->bad = src->bad || section->key_bytes > n_left || section->value_bytes > n_left;
    *n_bytes += src->bad ? 0 : section->key_bytes + section->value_bytes;
    src->bad = src->bad || *n_bytes > n_left;
}

/* Where its payload will stand is still to be said. NULL: src is bad, or there is no memory. */
static struct shard_held *decode_push(struct shard *s, struct state_reader *src)
{
    struct shard_held head = { 0 }, *h;
    struct section sections[SECTIONS_MAX];
    uint64_t n_bytes = 0;

    head.rank = state_get_upto(src, ROSTER_N_WORKERS_MAX - 1);
    head.incarnation = state_get_u64(src);
    head.seq = state_get_u64(src);
    head.clock = state_get_u64(src);
    head.n_samples = state_get_u32(src);
    head.finished = state_get_upto(src, 1);
    head.n_sections = state_get_upto(src, SECTIONS_MAX);
    src->bad = src->bad || head.clock >= ROSTER_CLOCK_END;
    for (uint32_t i = 0; i < head.n_sections && !src->bad; i++)
        decode_section(src, &sections[i], &n_bytes);
    if (src->bad)
        return NULL;
    head.n_bytes = sizeof head + head.n_sections * sizeof head.sections[0] + (size_t)n_bytes;
    h = shard_lockstep_make_held(s, head.n_bytes);
    if (!h)
        return NULL;
    head.n_users = h->n_users;
    head.cap_bytes = h->cap_bytes;
    *h = head;
    if (h->n_sections)
        memcpy(h->sections, sections, h->n_sections * sizeof sections[0]);
    return h;
}

/* Of the place in its queue: whose it is has been read. */
static bool fits(const struct shard_queue *q, const struct shard_held *before,
                 const struct shard_held *h)
{
    return (!before || shard_lockstep_is_before(before, h)) &&
           (q->run != q->job->run || h->rank < q->job->n_workers);
}

static int decode_pushes(struct shard *s, struct state_reader *src, struct shard_queue *q,
                         uint32_t n_pushes)
{
    struct shard_held **at = &q->first, *before = NULL;

    for (uint32_t i = 0; i < n_pushes; i++) {
        struct shard_held *h = decode_push(s, src);

        if (!h)
            return src->bad ? PS_ECORRUPT : -ENOMEM;
        *at = h;
        at = &h->next;
        s->held_bytes += h->n_bytes;
        if (!fits(q, before, h))
            return PS_ECORRUPT;
        before = h;
    }
    return 0;
}

static bool is_twice(const struct shard *s, uint64_t run)
{
    for (const struct shard_queue *q = s->queues; q; q = q->next)
        if (q->run == run)
            return true;
    return false;
}

/* *at: the end of the shard's queues. */
static int decode_queue(struct shard *s, struct state_reader *src, struct shard_queue **at)
{
    uint32_t job = state_get_u32(src), n_pushes;
    uint64_t run = state_get_u64(src);

    n_pushes = state_get_upto(src, (uint32_t)((size_t)(src->end - src->at) / PUSH_BYTES_MIN));
    if (src->bad || n_pushes == 0 || job >= roster_n_jobs(s->roster) || run == 0 ||
        is_twice(s, run))
        return PS_ECORRUPT;
    *at = mem_alloc(sizeof **at);
    **at = (struct shard_queue){ .job = roster_job(s->roster, job), .run = run };
    return decode_pushes(s, src, *at, n_pushes);
}

/* A held push is applied without being asked again: so it is asked here. *rest is part->section, and
 * part->rows.keys has room for a chunk. */
static int check_rows(struct shard *s, struct shard_part *part, struct section *rest,
                      struct err *err)
{
    uint64_t wrong_key;

    while (part->reader.n_left) {
        uint32_t n =
            part->reader.n_left < SHARD_CHUNK_MAX ? part->reader.n_left : SHARD_CHUNK_MAX;
        int status = shard_section_keys(s, part->rows.entry, rest, &part->reader, n,
                                        part->rows.keys, &wrong_key, err);

        if (!status)
            status = shard_section_values(part, 0, n, &wrong_key, err);
        if (status)
            return status;
        rest->values += n * part->row_bytes;
    }
    return 0;
}

static int check_section(struct shard *s, const struct section *section)
{
    uint64_t keys[SHARD_CHUNK_MAX];
    struct section rest = *section;
    struct shard_part part = { .section = &rest, .rows.keys = keys };
    struct err err;
    int status = shard_section_table(s, section, &part.rows.entry, &err);

    if (!status)
        status =
            shard_section_codec(part.rows.entry, section, &part.codec, &part.row_bytes, &err);
    if (!status)
        status = shard_section_count(part.rows.entry, section, &err);
    if (!status)
        status =
            shard_section_width(part.rows.entry, section, part.codec, part.row_bytes, &err);
    if (!status)
        status = shard_section_open(part.rows.entry, section, &part.reader, &err);
    if (!status)
        status = check_rows(s, &part, &rest, &err);
    return status ? PS_ECORRUPT : 0;
}

static int decode_payload(struct shard *s, struct state_reader *src, struct shard_held *h)
{
    uint8_t *dst = (uint8_t *)(h->sections + h->n_sections);
    int status = 0;

    for (uint32_t i = 0; i < h->n_sections && !status; i++) {
        struct section *section = &h->sections[i];
        size_t n_bytes = section->key_bytes + section->value_bytes;
        const uint8_t *bytes = state_get(src, n_bytes);

        if (!bytes)
            return PS_ECORRUPT;
        if (n_bytes)
            memcpy(dst, bytes, n_bytes);
        section->keys = dst;
        section->values = dst + section->key_bytes;
        dst += n_bytes;
        status = check_section(s, section);
    }
    return status;
}

int shard_held_decode(struct shard *s, const uint8_t *bytes, size_t n_bytes, uint64_t now_ms)
{
    struct state_reader src = { .at = bytes, .end = bytes + n_bytes };
    struct shard_queue **at = &s->queues;
    uint32_t n_queues;
    int status;

    if (state_get_u32(&src) != FORMAT || s->queues)
        return PS_ECORRUPT;
    status = roster_decode(s->roster, &src, now_ms);
    n_queues = status ? 0 : state_get_u32(&src);
    for (uint32_t i = 0; i < n_queues && !status; i++) {
        status = decode_queue(s, &src, at);
        if (*at)
            at = &(*at)->next;
    }
    for (struct shard_queue *q = s->queues; q && !status; q = q->next)
        for (struct shard_held *h = q->first; h && !status; h = h->next)
            status = decode_payload(s, &src, h);
    return status ? status : src.bad || src.at != src.end ? PS_ECORRUPT : 0;
}
