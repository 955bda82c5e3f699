#include "server/core/snapshot_meta.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/memory.h"
#include "server/core/bsp.h"
#include "server/core/section_check.h"
#include "server/core/snapshot_bytes.h"

#define FORMAT 1u
#define PUSH_BYTES_MIN 40u

/* --- held pushes: encode --- */

static void encode_push(struct snapshot_writer *w, const struct bsp_held *h)
{
    snapshot_put_u32(w, h->rank);
    snapshot_put_u64(w, h->incarnation);
    snapshot_put_u64(w, h->seq);
    snapshot_put_u64(w, h->clock);
    snapshot_put_u32(w, h->n_samples);
    snapshot_put_u32(w, h->finished);
    snapshot_put_u32(w, h->n_sections);
    for (uint32_t i = 0; i < h->n_sections; i++) {
        const struct section *section = &h->sections[i];

        snapshot_put_u32(w, section->table_id);
        snapshot_put_u32(w, (uint32_t)section->codec);
        snapshot_put_u32(w, section->k);
        snapshot_put_u32(w, section->n_keys);
        snapshot_put_u64(w, section->key_bytes);
        snapshot_put_u64(w, section->value_bytes);
    }
}

static void encode_queue(const struct shard *s, struct snapshot_writer *w,
                         const struct bsp_queue *q)
{
    uint32_t job = 0, n_pushes = 0;

    while (membership_job(s->membership, job) != q->job)
        job++;
    for (const struct bsp_held *h = q->first; h; h = h->next)
        n_pushes++;
    snapshot_put_u32(w, job);
    snapshot_put_u64(w, q->run);
    snapshot_put_u32(w, n_pushes);
    for (const struct bsp_held *h = q->first; h; h = h->next)
        encode_push(w, h);
}

int snapshot_meta_encode(const struct shard *s, struct bytes *dst)
{
    struct snapshot_writer writer = { .dst = dst }, *w = &writer;
    uint32_t n_queues = 0;

    snapshot_put_u32(w, FORMAT);
    membership_encode(s->membership, w);
    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        n_queues++;
    snapshot_put_u32(w, n_queues);
    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        encode_queue(s, w, q);
    return w->no_memory ? -ENOMEM : 0;
}

const uint8_t *snapshot_meta_payload(const struct bsp_held *held, size_t *ret_n_bytes)
{
    *ret_n_bytes = held->n_bytes - sizeof *held - held->n_sections * sizeof held->sections[0];
    return (const uint8_t *)(held->sections + held->n_sections);
}

/* --- held pushes: decode --- */

/* Adds to *n_bytes what the section has behind the head. */
static void decode_section(struct snapshot_reader *src, struct section *section,
                           uint64_t *n_bytes)
{
    uint64_t n_left = (uint64_t)(src->end - src->at);

    *section = (struct section){ .table_id = snapshot_get_u32(src) };
    section->op = SECTION_GRADIENT;
    section->codec = (enum codec_id)snapshot_get_upto(src, CODEC_ID_END - 1);
    section->k = snapshot_get_u32(src);
    section->n_keys = snapshot_get_u32(src);
    section->key_bytes = (size_t)snapshot_get_u64(src);
    section->value_bytes = (size_t)snapshot_get_u64(src);
    src->bad = src->bad || section->key_bytes > n_left || section->value_bytes > n_left;
    *n_bytes += src->bad ? 0 : section->key_bytes + section->value_bytes;
    src->bad = src->bad || *n_bytes > n_left;
}

/* Where its payload will stand is still to be said. NULL: src is bad, or there is no memory. */
static struct bsp_held *decode_push(struct shard *s, struct snapshot_reader *src)
{
    struct bsp_held head = { 0 }, *h;
    struct section sections[SECTIONS_MAX];
    uint64_t n_bytes = 0;

    head.rank = snapshot_get_upto(src, MEMBERSHIP_N_WORKERS_MAX - 1);
    head.incarnation = snapshot_get_u64(src);
    head.seq = snapshot_get_u64(src);
    head.clock = snapshot_get_u64(src);
    head.n_samples = snapshot_get_u32(src);
    head.finished = snapshot_get_upto(src, 1);
    head.n_sections = snapshot_get_upto(src, SECTIONS_MAX);
    src->bad = src->bad || head.clock >= MEMBERSHIP_CLOCK_END;
    for (uint32_t i = 0; i < head.n_sections && !src->bad; i++)
        decode_section(src, &sections[i], &n_bytes);
    if (src->bad)
        return NULL;
    head.n_bytes = sizeof head + head.n_sections * sizeof head.sections[0] + (size_t)n_bytes;
    h = bsp_make_held(s, head.n_bytes);
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
static bool fits(const struct bsp_queue *q, const struct bsp_held *before,
                 const struct bsp_held *h)
{
    return (!before || bsp_is_before(before, h)) &&
           (q->run != q->job->run || h->rank < q->job->n_workers);
}

static int decode_pushes(struct shard *s, struct snapshot_reader *src, struct bsp_queue *q,
                         uint32_t n_pushes)
{
    struct bsp_held **at = &q->first, *before = NULL;

    for (uint32_t i = 0; i < n_pushes; i++) {
        struct bsp_held *h = decode_push(s, src);

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

static bool is_known_run(const struct shard *s, uint64_t run)
{
    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        if (q->run == run)
            return true;
    return false;
}

/* *at: the end of the shard's queues. */
static int decode_queue(struct shard *s, struct snapshot_reader *src, struct bsp_queue **at)
{
    uint32_t job = snapshot_get_u32(src), n_pushes;
    uint64_t run = snapshot_get_u64(src);

    n_pushes =
        snapshot_get_upto(src, (uint32_t)((size_t)(src->end - src->at) / PUSH_BYTES_MIN));
    if (src->bad || n_pushes == 0 || job >= membership_n_jobs(s->membership) || run == 0 ||
        is_known_run(s, run))
        return PS_ECORRUPT;
    *at = memory_alloc(sizeof **at);
    **at = (struct bsp_queue){ .job = membership_job(s->membership, job), .run = run };
    return decode_pushes(s, src, *at, n_pushes);
}

/* A held push is applied without another check, and these bytes may be anything: so all is checked here. */
static int check_section(struct shard *s, const struct section *sent)
{
    uint64_t keys[SHARD_CHUNK_MAX], wrong_key;
    uint32_t wrong_row;
    struct section rest = *sent;
    struct shard_section section;
    struct err err;
    int status = section_check_table(s, &rest, &section, &err);

    if (!status)
        status = section_check_sizes(s, &section, &err);
    while (!status && section.keys.n_left) {
        uint32_t n =
            section.keys.n_left < SHARD_CHUNK_MAX ? section.keys.n_left : SHARD_CHUNK_MAX;

        status = section_check_keys(s, &section, n, keys, &wrong_key, &err);
        if (!status)
            status = section_check_values(s, &section, 0, n, CODEC_FINITE, &wrong_row);
        rest.values += n * section.row_bytes;
    }
    return status ? PS_ECORRUPT : 0;
}

static int decode_payload(struct shard *s, struct snapshot_reader *src, struct bsp_held *h)
{
    uint8_t *dst = (uint8_t *)(h->sections + h->n_sections);
    int status = 0;

    for (uint32_t i = 0; i < h->n_sections && !status; i++) {
        struct section *section = &h->sections[i];
        size_t n_bytes = section->key_bytes + section->value_bytes;
        const uint8_t *bytes = snapshot_get(src, n_bytes);

        if (!bytes)
            return PS_ECORRUPT;
        if (n_bytes)
            memcpy(dst, bytes, n_bytes);
        section->keys = dst;
        section->values = dst + section->key_bytes;
        dst += n_bytes;
        status = check_section(s, section);
    }
    if (!status)
        bsp_count_held(s, h);
    return status;
}

int snapshot_meta_decode(struct shard *s, const uint8_t *bytes, size_t n_bytes, uint64_t now_ms)
{
    struct snapshot_reader src = { .at = bytes, .end = bytes + n_bytes };
    struct bsp_queue **at = &s->queues;
    uint32_t n_queues;
    int status;

    if (snapshot_get_u32(&src) != FORMAT || s->queues)
        return PS_ECORRUPT;
    status = membership_decode(s->membership, &src, now_ms);
    n_queues = status ? 0 : snapshot_get_u32(&src);
    for (uint32_t i = 0; i < n_queues && !status; i++) {
        status = decode_queue(s, &src, at);
        if (*at)
            at = &(*at)->next;
    }
    for (struct bsp_queue *q = s->queues; q && !status; q = q->next)
        for (struct bsp_held *h = q->first; h && !status; h = h->next)
            status = decode_payload(s, &src, h);
    return status ? status : src.bad || src.at != src.end ? PS_ECORRUPT : 0;
}
