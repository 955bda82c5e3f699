#include "worker/data/parquet_thrift.h"

#define DEPTH_MAX 32u /* of structs and lists inside each other; Parquet's own need 6 */

static uint64_t fail(struct parquet_thrift *t)
{
    t->bad = true;
    t->at = t->end;
    return 0;
}

static uint8_t read_byte(struct parquet_thrift *t)
{
    return t->at < t->end ? *t->at++ : (uint8_t)fail(t);
}

static uint64_t read_varint(struct parquet_thrift *t)
{
    uint64_t x = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = read_byte(t);

        x |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return x;
    }
    return fail(t);
}

static int64_t read_zigzag(struct parquet_thrift *t)
{
    uint64_t x = read_varint(t);

    return (int64_t)(x >> 1 ^ (0 - (x & 1)));
}

static void pass(struct parquet_thrift *t, uint64_t n_bytes)
{
    if (n_bytes > (uint64_t)(t->end - t->at))
        fail(t);
    else
        t->at += n_bytes;
}

bool parquet_thrift_field(struct parquet_thrift *t, struct parquet_thrift_field *f)
{
    uint8_t head = read_byte(t);
    int64_t id;

    if (t->bad || head == 0)
        return false;
    id = head >> 4 ? f->id + (head >> 4) : read_zigzag(t);
    f->type = head & 15;
    if (t->bad || f->type == 0 || id < 0 || id > INT16_MAX) {
        fail(t);
        return false;
    }
    f->id = (int32_t)id;
    return true;
}

int64_t parquet_thrift_int(struct parquet_thrift *t, const struct parquet_thrift_field *f)
{
    if (f->type == PARQUET_THRIFT_BYTE)
        return (int8_t)read_byte(t);
    if (f->type >= PARQUET_THRIFT_I16 && f->type <= PARQUET_THRIFT_I64)
        return read_zigzag(t);
    return (int64_t)fail(t);
}

bool parquet_thrift_bool(struct parquet_thrift *t, const struct parquet_thrift_field *f)
{
    if (f->type != PARQUET_THRIFT_TRUE && f->type != PARQUET_THRIFT_FALSE)
        fail(t);
    return !t->bad && f->type == PARQUET_THRIFT_TRUE;
}

const uint8_t *parquet_thrift_binary(struct parquet_thrift *t,
                                     const struct parquet_thrift_field *f, size_t *ret_n_bytes)
{
    uint64_t n = f->type == PARQUET_THRIFT_BINARY ? read_varint(t) : fail(t);
    const uint8_t *begin = t->at;

    pass(t, n);
    *ret_n_bytes = t->bad ? 0 : (size_t)n;
    return t->bad ? t->end : begin;
}

/* Each element of a list, of any type, takes a byte at least. */
static uint32_t read_list_head(struct parquet_thrift *t, uint8_t *ret_type)
{
    uint8_t head = read_byte(t);
    uint64_t n = head >> 4 == 15 ? read_varint(t) : head >> 4;

    *ret_type = head & 15;
    if (n > (uint64_t)(t->end - t->at) || n > UINT32_MAX)
        return (uint32_t)fail(t);
    return (uint32_t)n;
}

uint32_t parquet_thrift_list(struct parquet_thrift *t, const struct parquet_thrift_field *f,
                             uint8_t type)
{
    uint8_t found;
    uint32_t n = f->type == PARQUET_THRIFT_LIST ? read_list_head(t, &found) : (uint32_t)fail(t);

    if (n > 0 && found != type)
        return (uint32_t)fail(t);
    return n;
}

int64_t parquet_thrift_element(struct parquet_thrift *t)
{
    return read_zigzag(t);
}

bool parquet_thrift_struct(struct parquet_thrift *t, const struct parquet_thrift_field *f)
{
    if (f->type != PARQUET_THRIFT_STRUCT)
        fail(t);
    return !t->bad;
}

static void skip(struct parquet_thrift *t, uint8_t type, bool is_element, unsigned depth);

static void skip_elements(struct parquet_thrift *t, unsigned depth)
{
    uint8_t type;
    uint32_t n = read_list_head(t, &type);

    for (uint32_t i = 0; i < n && !t->bad; i++)
        skip(t, type, true, depth);
}

static void skip_map(struct parquet_thrift *t, unsigned depth)
{
    uint64_t n = read_varint(t);
    uint8_t types = n ? read_byte(t) : 0;

    if (n > (uint64_t)(t->end - t->at))
        fail(t);
    for (uint64_t i = 0; i < n && !t->bad; i++) {
        skip(t, types >> 4, true, depth);
        skip(t, types & 15, true, depth);
    }
}

static void skip_struct(struct parquet_thrift *t, unsigned depth)
{
    struct parquet_thrift_field f = { 0 };

    while (parquet_thrift_field(t, &f))
        skip(t, f.type, false, depth);
}

/* A truth stands in its field's type, and as a byte in a list. */
static void skip(struct parquet_thrift *t, uint8_t type, bool is_element, unsigned depth)
{
    if (depth == DEPTH_MAX) {
        fail(t);
        return;
    }
    switch (type) {
    case PARQUET_THRIFT_TRUE:
    case PARQUET_THRIFT_FALSE:
        pass(t, is_element);
        return;
    case PARQUET_THRIFT_BYTE:
        pass(t, 1);
        return;
    case PARQUET_THRIFT_I16:
    case PARQUET_THRIFT_I32:
    case PARQUET_THRIFT_I64:
        read_varint(t);
        return;
    case PARQUET_THRIFT_DOUBLE:
        pass(t, 8);
        return;
    case PARQUET_THRIFT_BINARY:
        pass(t, read_varint(t));
        return;
    case PARQUET_THRIFT_LIST:
    case PARQUET_THRIFT_SET:
        skip_elements(t, depth + 1);
        return;
    case PARQUET_THRIFT_MAP:
        skip_map(t, depth + 1);
        return;
    case PARQUET_THRIFT_STRUCT:
        skip_struct(t, depth + 1);
        return;
    case PARQUET_THRIFT_UUID:
        pass(t, 16);
        return;
    default:
        fail(t);
    }
}

void parquet_thrift_skip(struct parquet_thrift *t, const struct parquet_thrift_field *f)
{
    skip(t, f->type, false, 0);
}
