#include "worker/data/parsed_row.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define FIXED_BYTES 24u /* what stands before the numbers, and before a sentence */

static_assert(sizeof(struct parsed_row) == 16, "as the table says");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records stand as they are in memory");

/* Where the parts of a ROW or BAGS are. */
struct parts {
    uint32_t label, n_keys, numeric, counts;
    uint64_t keys, end;
};

static struct parts parts_of(uint32_t kind, uint32_t n_floats, uint32_t n_fields,
                             uint64_t n_keys)
{
    struct parts p = { .label = 16, .n_keys = 20, .numeric = FIXED_BYTES };

    p.counts = p.numeric + n_floats * 4;
    p.keys = p.counts + (kind == PARSED_ROW_BAGS ? n_fields * UINT64_C(4) : 0);
    p.keys = (p.keys + 7) / 8 * 8;
    p.end = p.keys + n_keys * 8;
    return p;
}

static void put_u32(uint8_t *at, uint32_t x)
{
    memcpy(at, &x, sizeof x);
}

static uint32_t get_u32(const uint8_t *at)
{
    uint32_t x;

    memcpy(&x, at, sizeof x);
    return x;
}

/* Space for a record, its last 8 bytes 0 and its head written. */
static uint8_t *begin(struct bytes *to, uint64_t n_bytes, enum parsed_row_kind kind,
                      uint64_t text_bytes)
{
    struct parsed_row head = { .n_bytes = (uint32_t)n_bytes,
                               .kind = kind,
                               .text_bytes = text_bytes };
    uint8_t *at = n_bytes <= UINT32_MAX ? bytes_reserve(to, n_bytes) : NULL;

    if (!at)
        return NULL;
    memset(at + n_bytes - 8, 0, 8);
    memcpy(at, &head, sizeof head);
    bytes_commit(to, n_bytes);
    return at;
}

/* Behind the first label: numbers, and more labels. */
static uint32_t n_floats_of(const struct batch *b)
{
    return b->n_numeric + b->n_labels - 1;
}

static bool has_one_key_each(const struct batch *row)
{
    bool each = row->n_keys == row->n_fields;

    for (uint32_t f = 0; f < row->n_fields && each; f++)
        each = row->starts[f + 1] == f + 1;
    return each;
}

int parsed_row_put_row(struct bytes *to, const struct batch *row, uint64_t text_bytes)
{
    enum parsed_row_kind kind = has_one_key_each(row) ? PARSED_ROW_ROW : PARSED_ROW_BAGS;
    struct parts p = parts_of(kind, n_floats_of(row), row->n_fields, row->n_keys);
    uint8_t *at = begin(to, p.end, kind, text_bytes);

    assert(row->n == 1);
    if (!at)
        return -ENOMEM;
    memcpy(at + p.label, row->label, 4);
    put_u32(at + p.n_keys, row->n_keys);
    memset(at + p.keys - 8 * (p.keys > FIXED_BYTES), 0, 8 * (p.keys > FIXED_BYTES));
    memcpy(at + p.numeric, row->numeric, row->n_numeric * 4);
    memcpy(at + p.numeric + row->n_numeric * 4, row->label + 1, (row->n_labels - 1) * 4);
    for (uint32_t f = 0; f < row->n_fields && kind == PARSED_ROW_BAGS; f++)
        put_u32(at + p.counts + 4 * f, row->starts[f + 1] - row->starts[f]);
    memcpy(at + p.keys, row->keys, row->n_keys * 8);
    return 0;
}

int parsed_row_put_refusal(struct bytes *to, enum parsed_row_kind kind, uint64_t number,
                           const char *sentence, uint64_t text_bytes)
{
    size_t n_text = strlen(sentence) + 1;
    uint8_t *at = begin(to, FIXED_BYTES + (n_text + 7) / 8 * 8, kind, text_bytes);

    assert(kind == PARSED_ROW_MALFORMED || kind == PARSED_ROW_TOO_LONG);
    if (!at)
        return -ENOMEM;
    memcpy(at + 16, &number, sizeof number);
    memcpy(at + FIXED_BYTES, sentence, n_text);
    return 0;
}

static bool is_sound_row(const uint8_t *at, const struct parsed_row *r, uint32_t n_floats,
                         uint32_t n_fields)
{
    uint32_t n_keys = get_u32(at + 20);
    struct parts p = parts_of(r->kind, n_floats, n_fields, n_keys);
    uint64_t sum = 0;

    if (p.end != r->n_bytes)
        return false;
    if (r->kind == PARSED_ROW_ROW)
        return n_keys == n_fields;
    for (uint32_t f = 0; f < n_fields; f++)
        sum += get_u32(at + p.counts + 4 * f);
    return sum == n_keys;
}

bool parsed_row_is_sound(const void *bytes, size_t n_bytes, uint32_t n_floats,
                         uint32_t n_fields)
{
    const uint8_t *at = bytes;
    struct parsed_row r;

    if (n_bytes < FIXED_BYTES)
        return false;
    memcpy(&r, at, sizeof r);
    if (r.n_bytes > n_bytes || r.n_bytes < FIXED_BYTES || r.n_bytes % 8)
        return false;
    if (r.kind == PARSED_ROW_ROW || r.kind == PARSED_ROW_BAGS)
        return is_sound_row(at, &r, n_floats, n_fields);
    return r.kind <= PARSED_ROW_TOO_LONG && r.n_bytes > FIXED_BYTES && at[r.n_bytes - 1] == 0;
}

int parsed_row_add(const struct parsed_row *r, struct batch *b)
{
    const uint8_t *at = (const uint8_t *)r;
    uint32_t n_keys = get_u32(at + 20), sum = b->n_keys;
    uint32_t *ends = b->starts + (size_t)b->n * b->n_fields + 1;
    float *label = b->label + (size_t)b->n * b->n_labels;
    struct parts p = parts_of(r->kind, n_floats_of(b), b->n_fields, n_keys);

    assert(b->n < b->n_max && p.end == r->n_bytes);
    if (batch_reserve_keys(b, n_keys))
        return -ENOMEM;
    memcpy(label, at + p.label, 4);
    memcpy(label + 1, at + p.numeric + b->n_numeric * 4, (b->n_labels - 1) * 4);
    memcpy(b->numeric + (size_t)b->n * b->n_numeric, at + p.numeric, b->n_numeric * 4);
    memcpy(b->keys + b->n_keys, at + p.keys, n_keys * sizeof *b->keys);
    if (r->kind == PARSED_ROW_ROW) {
        for (uint32_t f = 0; f < b->n_fields; f++)
            ends[f] = sum + f + 1;
    } else {
        for (uint32_t f = 0; f < b->n_fields; f++)
            ends[f] = sum += get_u32(at + p.counts + 4 * f);
    }
    b->n_keys += n_keys;
    b->n++;
    return 0;
}

uint64_t parsed_row_line(const struct parsed_row *r)
{
    uint64_t number;

    memcpy(&number, (const uint8_t *)r + 16, sizeof number);
    return number;
}

const char *parsed_row_sentence(const struct parsed_row *r)
{
    return (const char *)r + FIXED_BYTES;
}
