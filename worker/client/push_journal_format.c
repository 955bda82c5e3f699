#include "worker/client/push_journal_format.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/memory.h"

#define VERSION 1u
#define SHARD_BYTES 24u
#define SECTION_BYTES 48u

static const char header_magic[8] = "psdpush\n", push_magic[4] = "PUSH";

/* ---- the header ---- */

void push_journal_format_header(const struct push_journal_header *h,
                                uint8_t ret[PUSH_JOURNAL_HEADER_BYTES])
{
    const uint32_t version = VERSION;
    uint32_t crc;

    memset(ret, 0, PUSH_JOURNAL_HEADER_BYTES);
    memcpy(ret, header_magic, sizeof header_magic);
    memcpy(ret + 8, &version, 4);
    memcpy(ret + 12, &h->rank, 4);
    memcpy(ret + 16, &h->incarnation, 8);
    memcpy(ret + 24, &h->first_seq, 8);
    memcpy(ret + 32, h->job, strnlen(h->job, TABLE_SPEC_NAME_MAX - 1));
    crc = crc32c_extend(0, ret, PUSH_JOURNAL_HEADER_BYTES - 4);
    memcpy(ret + PUSH_JOURNAL_HEADER_BYTES - 4, &crc, 4);
}

int push_journal_format_read_header(const uint8_t bytes[PUSH_JOURNAL_HEADER_BYTES],
                                    struct push_journal_header *ret)
{
    uint32_t version, crc;

    memcpy(&version, bytes + 8, 4);
    memcpy(&crc, bytes + PUSH_JOURNAL_HEADER_BYTES - 4, 4);
    if (memcmp(bytes, header_magic, sizeof header_magic) != 0 || version != VERSION ||
        crc != crc32c_extend(0, bytes, PUSH_JOURNAL_HEADER_BYTES - 4) ||
        bytes[32 + TABLE_SPEC_NAME_MAX - 1] != 0)
        return PS_ECORRUPT;
    memcpy(&ret->rank, bytes + 12, 4);
    memcpy(&ret->incarnation, bytes + 16, 8);
    memcpy(&ret->first_seq, bytes + 24, 8);
    memcpy(ret->job, bytes + 32, TABLE_SPEC_NAME_MAX);
    return ret->first_seq ? 0 : PS_ECORRUPT;
}

/* ---- a push, written ---- */

static size_t meta_bytes(const struct push_journal_push *p)
{
    size_t n = PUSH_JOURNAL_PUSH_HEAD_BYTES + p->note_bytes +
               (size_t)p->n_tables * TABLE_SPEC_NAME_MAX + (size_t)p->n_shards * SHARD_BYTES;

    for (uint32_t i = 0; i < p->n_shards; i++)
        n += (size_t)p->requests[i]->n_sections * SECTION_BYTES;
    return n;
}

static uint8_t *put_section(uint8_t *at, const struct request *request, const struct section *s)
{
    const uint8_t *rows = bytes_front(&request->bytes);
    const uint64_t places[4] = { s->key_bytes ? (uint64_t)(s->keys - rows) : 0, s->key_bytes,
                                 s->value_bytes ? (uint64_t)(s->values - rows) : 0,
                                 s->value_bytes };

    memset(at, 0, SECTION_BYTES);
    memcpy(at, &s->table_id, 4);
    at[4] = (uint8_t)s->op;
    at[5] = (uint8_t)s->codec;
    memcpy(at + 8, &s->k, 4);
    if (section_op_has_steps(s->op)) {
        const uint32_t low = (uint32_t)s->steps;
        const uint16_t high = (uint16_t)(s->steps >> 32);

        memcpy(at + 6, &high, 2);
        memcpy(at + 8, &low, 4);
    }
    memcpy(at + 12, &s->n_keys, 4);
    memcpy(at + 16, places, sizeof places);
    return at + SECTION_BYTES;
}

static uint8_t *put_shard(uint8_t *at, const struct request *request)
{
    const uint64_t n_bytes = bytes_len(&request->bytes);

    memset(at, 0, SHARD_BYTES);
    memcpy(at, &request->n_versions, 8);
    memcpy(at + 8, &request->n_sections, 4);
    memcpy(at + 16, &n_bytes, 8);
    at += SHARD_BYTES;
    for (uint32_t i = 0; i < request->n_sections; i++)
        at = put_section(at, request, &request->sections[i]);
    return at;
}

static void put_head(uint8_t *at, const struct push_journal_push *p, uint64_t n_bytes)
{
    const struct request *first = p->requests[0];
    const uint32_t tick = first->tick;

    memset(at, 0, PUSH_JOURNAL_PUSH_HEAD_BYTES);
    memcpy(at, push_magic, sizeof push_magic);
    memcpy(at + 4, &first->n_samples, 4);
    memcpy(at + 8, &n_bytes, 8);
    memcpy(at + 16, &p->seq, 8);
    memcpy(at + 24, &first->clock, 8);
    memcpy(at + 32, &p->map_id, 8);
    memcpy(at + 40, &p->n_shards, 4);
    memcpy(at + 44, &p->n_tables, 4);
    memcpy(at + 48, &p->note_bytes, 4);
    memcpy(at + 52, &tick, 4);
}

static uint32_t crc_of(const uint8_t *head, size_t n_meta, const struct push_journal_push *p)
{
    uint32_t crc = crc32c_extend(0, head, PUSH_JOURNAL_PUSH_HEAD_BYTES - 4);

    crc = crc32c_extend(crc, head + PUSH_JOURNAL_PUSH_HEAD_BYTES,
                        n_meta - PUSH_JOURNAL_PUSH_HEAD_BYTES);
    for (uint32_t i = 0; i < p->n_shards; i++)
        crc = crc32c_extend(crc, bytes_front(&p->requests[i]->bytes),
                            bytes_len(&p->requests[i]->bytes));
    return crc;
}

int push_journal_format_push(const struct push_journal_push *p, struct bytes *out)
{
    size_t n_meta = meta_bytes(p);
    uint8_t *head = bytes_reserve(out, n_meta), *at;
    uint64_t n_bytes = n_meta;
    uint32_t crc;

    if (!head)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->n_shards; i++)
        n_bytes += bytes_len(&p->requests[i]->bytes);
    put_head(head, p, n_bytes);
    at = head + PUSH_JOURNAL_PUSH_HEAD_BYTES;
    memcpy(at, p->note, p->note_bytes);
    at += p->note_bytes;
    for (uint32_t i = 0; i < p->n_tables; i++, at += TABLE_SPEC_NAME_MAX) {
        memset(at, 0, TABLE_SPEC_NAME_MAX);
        memcpy(at, p->names[i], strnlen(p->names[i], TABLE_SPEC_NAME_MAX - 1));
    }
    for (uint32_t i = 0; i < p->n_shards; i++)
        at = put_shard(at, p->requests[i]);
    crc = crc_of(head, n_meta, p);
    memcpy(head + PUSH_JOURNAL_PUSH_HEAD_BYTES - 4, &crc, 4);
    bytes_commit(out, n_meta);
    return 0;
}

/* ---- a push, read ---- */

/* What is left of a record. */
struct span {
    const uint8_t *at;
    size_t n;
};

static const uint8_t *get(struct span *s, size_t n)
{
    const uint8_t *at = s->at;

    if (n > s->n)
        return NULL;
    s->at += n;
    s->n -= n;
    return at;
}

static bool lies_in(uint64_t start, uint64_t n_bytes, uint64_t space)
{
    return start <= space && n_bytes <= space - start;
}

static int get_section(struct span *in, const struct push_journal_push *p,
                       const struct bytes *rows, struct section *ret)
{
    const uint8_t *at = get(in, SECTION_BYTES);
    uint64_t places[4];

    if (!at)
        return PS_ECORRUPT;
    *ret = (struct section){ .op = (enum section_op)at[4], .codec = (enum codec_id)at[5] };
    memcpy(&ret->table_id, at, 4);
    memcpy(&ret->k, at + 8, 4);
    if (section_op_has_steps(ret->op)) {
        uint16_t high;

        memcpy(&high, at + 6, 2);
        ret->steps = (uint64_t)high << 32 | ret->k;
        ret->k = 0;
    }
    memcpy(&ret->n_keys, at + 12, 4);
    memcpy(places, at + 16, sizeof places);
    if (ret->table_id >= p->n_tables || at[4] >= SECTION_OP_END || at[5] >= CODEC_ID_END ||
        !lies_in(places[0], places[1], bytes_len(rows)) ||
        !lies_in(places[2], places[3], bytes_len(rows)))
        return PS_ECORRUPT;
    ret->keys = bytes_front(rows) + places[0];
    ret->key_bytes = places[1];
    ret->values = bytes_front(rows) + places[2];
    ret->value_bytes = places[3];
    return 0;
}

/* A request with room for its rows, which its sections point into; they come later. */
static int get_shard(struct span *in, const struct push_journal_push *p, struct request **ret)
{
    const uint8_t *at = get(in, SHARD_BYTES);
    uint64_t n_bytes;
    uint32_t n_sections;
    int status = 0;

    if (!at)
        return PS_ECORRUPT;
    memcpy(&n_sections, at + 8, 4);
    memcpy(&n_bytes, at + 16, 8);
    if (n_sections > SECTIONS_MAX || n_bytes > in->n)
        return PS_ECORRUPT;
    *ret = request_new(n_sections);
    if (!*ret)
        return -ENOMEM;
    memcpy(&(*ret)->n_versions, at, 8);
    if (!bytes_reserve(&(*ret)->bytes, n_bytes))
        return -ENOMEM;
    bytes_commit(&(*ret)->bytes, n_bytes);
    for (uint32_t i = 0; i < n_sections && !status; i++)
        status = get_section(in, p, &(*ret)->bytes, &(*ret)->sections[i]);
    return status;
}

static int get_rows(struct span *in, struct request *request)
{
    size_t n_bytes = bytes_len(&request->bytes);
    const uint8_t *rows = get(in, n_bytes);

    if (!rows)
        return PS_ECORRUPT;
    if (n_bytes)
        memcpy(request->bytes.bytes + request->bytes.start, rows, n_bytes);
    return 0;
}

static int get_names(struct span *in, struct push_journal_push *p)
{
    const uint8_t *names = get(in, (size_t)p->n_tables * TABLE_SPEC_NAME_MAX);

    if (!names)
        return PS_ECORRUPT;
    p->found_names = memory_try_alloc((size_t)p->n_tables * TABLE_SPEC_NAME_MAX + 1);
    if (!p->found_names)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->n_tables; i++) {
        memcpy(p->found_names[i], names + (size_t)i * TABLE_SPEC_NAME_MAX, TABLE_SPEC_NAME_MAX);
        if (p->found_names[i][TABLE_SPEC_NAME_MAX - 1])
            return PS_ECORRUPT;
    }
    return 0;
}

static int read_requests(struct span *in, const uint8_t *head, struct push_journal_push *p)
{
    uint32_t n_samples, tick;
    uint64_t clock;
    int status = 0;

    memcpy(&n_samples, head + 4, 4);
    memcpy(&clock, head + 24, 8);
    memcpy(&tick, head + 52, 4);
    p->requests = memory_try_alloc(p->n_shards * sizeof(struct request *));
    if (!p->requests)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->n_shards && !status; i++) {
        status = get_shard(in, p, &p->requests[i]);
        if (status)
            break;
        p->requests[i]->clock = clock;
        p->requests[i]->n_samples = n_samples;
        p->requests[i]->tick = tick == 1;
    }
    for (uint32_t i = 0; i < p->n_shards && !status; i++)
        status = get_rows(in, p->requests[i]);
    return status;
}

static int get_push(struct span *in, struct push_journal_push *p)
{
    const uint8_t *head = get(in, PUSH_JOURNAL_PUSH_HEAD_BYTES), *note;
    int status;

    memcpy(&p->seq, head + 16, 8);
    memcpy(&p->map_id, head + 32, 8);
    memcpy(&p->n_shards, head + 40, 4);
    memcpy(&p->n_tables, head + 44, 4);
    memcpy(&p->note_bytes, head + 48, 4);
    note = get(in, p->note_bytes);
    if (!note || p->note_bytes > PUSH_JOURNAL_NOTE_MAX || !p->n_shards ||
        p->n_shards > PUSH_JOURNAL_SHARDS_MAX)
        return PS_ECORRUPT;
    memcpy(p->note, note, p->note_bytes);
    status = get_names(in, p);
    if (!status)
        status = read_requests(in, head, p);
    return !status && in->n ? PS_ECORRUPT : status;
}

/* How long the record is that begins here, or why there is none. */
static int measure(const uint8_t *bytes, size_t n_bytes, uint64_t *ret)
{
    static const uint8_t none[PUSH_JOURNAL_PUSH_HEAD_BYTES];
    uint32_t want, crc;

    if (n_bytes < sizeof none || memcmp(bytes, none, sizeof none) == 0)
        return -ENOENT;
    memcpy(ret, bytes + 8, 8);
    if (memcmp(bytes, push_magic, sizeof push_magic) != 0 ||
        *ret < PUSH_JOURNAL_PUSH_HEAD_BYTES || *ret > n_bytes)
        return PS_ECORRUPT;
    memcpy(&want, bytes + PUSH_JOURNAL_PUSH_HEAD_BYTES - 4, 4);
    crc = crc32c_extend(0, bytes, PUSH_JOURNAL_PUSH_HEAD_BYTES - 4);
    crc = crc32c_extend(crc, bytes + PUSH_JOURNAL_PUSH_HEAD_BYTES,
                        *ret - PUSH_JOURNAL_PUSH_HEAD_BYTES);
    return crc == want ? 0 : PS_ECORRUPT;
}

int push_journal_format_read_push(const uint8_t *bytes, size_t n_bytes,
                                  struct push_journal_push **ret, size_t *ret_bytes)
{
    struct push_journal_push *p;
    uint64_t n_record;
    int status = measure(bytes, n_bytes, &n_record);
    struct span in;

    if (status)
        return status;
    p = memory_try_alloc(sizeof *p);
    if (!p)
        return -ENOMEM;
    in = (struct span){ bytes, n_record };
    status = get_push(&in, p);
    if (status) {
        push_journal_format_free_push(p);
        return status;
    }
    *ret = p;
    *ret_bytes = n_record;
    return 0;
}

void push_journal_format_free_push(struct push_journal_push *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; p->requests && i < p->n_shards; i++)
        request_free(p->requests[i]);
    free(p->requests);
    free(p->found_names);
    free(p);
}
