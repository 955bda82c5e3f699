#include "worker/data/parquet_column.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/memory.h"
#include "worker/data/parquet_thrift.h"

#define READ_BYTES (64u * 1024u)
#define HEAD_MAX (16u * 1024u * 1024u) /* of a page: its statistics may hold two long texts */

enum page_type { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_2 = 3 };

struct page_head {
    int64_t type, n_unpacked, n_packed;
    int64_t crc; /* of the packed bytes; -1: none */
    int64_t n_values, n_rows, encoding, def_encoding, rep_encoding;
    int64_t def_bytes, rep_bytes; /* version 2: levels, never packed */
    bool is_packed, has_rows;
};

static int damaged(const struct parquet_column *c, const char *what, struct err *err)
{
    return err_set(err, PS_EDATA, "%s: column '%.60s' is damaged: %s",
                   parquet_file_path(c->file), c->type->name, what);
}

static int no_memory(const struct parquet_column *c, uint64_t n_bytes, struct err *err)
{
    return err_set(err, -ENOMEM, "%s: column '%.60s': no memory for a page of %llu bytes",
                   parquet_file_path(c->file), c->type->name, (unsigned long long)n_bytes);
}

void parquet_column_init(struct parquet_column *c, const struct parquet_file *file,
                         const struct parquet_file_column *type)
{
    memset(c, 0, sizeof *c);
    c->file = file;
    c->type = type;
}

void parquet_column_deinit(struct parquet_column *c)
{
    bytes_deinit(&c->packed);
    bytes_deinit(&c->page);
    bytes_deinit(&c->dictionary_page);
    free(c->dictionary);
    parquet_decoder_deinit(&c->decoder);
}

void parquet_column_begin(struct parquet_column *c, const struct parquet_file_chunk *chunk)
{
    bytes_consume(&c->packed, bytes_len(&c->packed));
    c->chunk = *chunk;
    c->n_entries_left = chunk->n_values;
    c->page_bytes = 0;
    c->n_left = 0;
    c->has_numbers = false;
    c->n_dictionary = 0;
    c->n_levels = c->level_at = 0;
    c->begun = true;
}

/* ---- a page's bytes ---- */

/* Has n_bytes at least of the chunk, or all that there are, in `packed`. */
static int fetch(struct parquet_column *c, uint64_t n_bytes, struct err *err)
{
    uint64_t n = bytes_len(&c->packed);
    uint8_t *to;
    int status;

    if (n >= n_bytes || c->chunk.n_bytes == 0)
        return 0;
    n = n_bytes - n < READ_BYTES ? READ_BYTES : n_bytes - n;
    n = n < c->chunk.n_bytes ? n : c->chunk.n_bytes;
    to = bytes_reserve(&c->packed, (size_t)n);
    if (!to)
        return no_memory(c, n, err);
    status = parquet_file_read(c->file, c->chunk.at, to, (size_t)n, err);
    if (status)
        return status;
    bytes_commit(&c->packed, (size_t)n);
    c->chunk.at += n;
    c->chunk.n_bytes -= n;
    return 0;
}

/* Of a data page or a dictionary: fields 1 .. 4 of three structs differ in what they mean. */
static void read_page_fields(struct parquet_thrift *t, struct page_head *h)
{
    struct parquet_thrift_field f = { 0 };

    while (parquet_thrift_field(t, &f)) {
        const bool second = h->type == PAGE_DATA_2;

        if (f.id == 1)
            h->n_values = parquet_thrift_int(t, &f);
        else if (f.id == (second ? 4 : 2))
            h->encoding = parquet_thrift_int(t, &f);
        else if (second && f.id == 3)
            h->n_rows = parquet_thrift_int(t, &f);
        else if (second && f.id == 5)
            h->def_bytes = parquet_thrift_int(t, &f);
        else if (second && f.id == 6)
            h->rep_bytes = parquet_thrift_int(t, &f);
        else if (second && f.id == 7)
            h->is_packed = parquet_thrift_bool(t, &f);
        else if (h->type == PAGE_DATA && f.id == 3)
            h->def_encoding = parquet_thrift_int(t, &f);
        else if (h->type == PAGE_DATA && f.id == 4)
            h->rep_encoding = parquet_thrift_int(t, &f);
        else
            parquet_thrift_skip(t, &f);
    }
}

static void read_page_head(struct parquet_thrift *t, struct page_head *h)
{
    struct parquet_thrift_field f = { 0 };

    *h = (struct page_head){ .type = -1,
                             .n_unpacked = -1,
                             .n_packed = -1,
                             .crc = -1,
                             .n_values = -1,
                             .n_rows = -1,
                             .encoding = -1,
                             .def_encoding = PARQUET_ENCODING_RLE,
                             .rep_encoding = PARQUET_ENCODING_RLE,
                             .is_packed = true };
    while (parquet_thrift_field(t, &f)) {
        if (f.id == 1)
            h->type = parquet_thrift_int(t, &f);
        else if (f.id == 2)
            h->n_unpacked = parquet_thrift_int(t, &f);
        else if (f.id == 3)
            h->n_packed = parquet_thrift_int(t, &f);
        else if (f.id == 4)
            h->crc = (uint32_t)parquet_thrift_int(t, &f);
        else if ((f.id == 5 && h->type == PAGE_DATA) ||
                 (f.id == 7 && h->type == PAGE_DICTIONARY) ||
                 (f.id == 8 && h->type == PAGE_DATA_2)) {
            if (parquet_thrift_struct(t, &f))
                read_page_fields(t, h);
        } else {
            parquet_thrift_skip(t, &f);
        }
    }
}

static int check_head(struct parquet_column *c, const struct page_head *h, struct err *err)
{
    const uint64_t n_there = bytes_len(&c->packed) - c->page_bytes + c->chunk.n_bytes;

    if (h->n_unpacked < 0 || h->n_packed < 0 || (uint64_t)h->n_packed > n_there)
        return damaged(c, "a page is longer than the column", err);
    if (h->type == PAGE_INDEX)
        return 0;
    if (h->type != PAGE_DATA && h->type != PAGE_DATA_2 && h->type != PAGE_DICTIONARY)
        return damaged(c, "a page of an unknown kind", err);
    if (h->n_unpacked > PARQUET_PAGE_MAX)
        return err_set(err, PS_EDATA,
                       "%s: column '%.60s' has a page of %lld bytes; %u can be read",
                       parquet_file_path(c->file), c->type->name, (long long)h->n_unpacked,
                       PARQUET_PAGE_MAX);
    if (h->n_values < 0 ||
        (h->type != PAGE_DICTIONARY && (uint64_t)h->n_values > c->n_entries_left))
        return damaged(c, "a page has more values than the column", err);
    if (h->def_bytes < 0 || h->rep_bytes < 0 || h->def_bytes + h->rep_bytes > h->n_unpacked ||
        h->def_bytes + h->rep_bytes > h->n_packed)
        return damaged(c, "levels are longer than their page", err);
    return 0;
}

/* To the next page: its head; its bytes, at the front of `packed` behind the head. */
static int next_page(struct parquet_column *c, struct page_head *h, size_t *ret_head_bytes,
                     struct err *err)
{
    struct parquet_thrift t;
    uint64_t want = 256;
    size_t n;
    int status;

    bytes_consume(&c->packed, c->page_bytes);
    c->page_bytes = 0;
    for (;; want *= 2) {
        status = fetch(c, want, err);
        if (status)
            return status;
        n = bytes_len(&c->packed);
        if (n == 0)
            return damaged(c, "it ends before its last value", err);
        t = (struct parquet_thrift){ .at = bytes_front(&c->packed),
                                     .end = bytes_front(&c->packed) + n };
        read_page_head(&t, h);
        if (!t.bad)
            break;
        if (c->chunk.n_bytes == 0 || want > HEAD_MAX)
            return damaged(c, "the head of a page", err);
    }
    *ret_head_bytes = c->page_bytes = (size_t)(t.at - bytes_front(&c->packed));
    return check_head(c, h, err);
}

/* The page at hand is in `packed`, all of it. */
static int fetch_page(struct parquet_column *c, const struct page_head *h, size_t head_bytes,
                      struct err *err)
{
    int status = fetch(c, head_bytes + (uint64_t)h->n_packed, err);

    if (status)
        return status;
    assert(bytes_len(&c->packed) >= head_bytes + (uint64_t)h->n_packed);
    c->page_bytes = head_bytes + (size_t)h->n_packed;
    if (h->crc >= 0 &&
        crc32(0, bytes_front(&c->packed) + head_bytes, (uInt)h->n_packed) != (uLong)h->crc)
        return damaged(c, "the checksum of a page is wrong", err);
    return 0;
}

/* The same where nothing of it is wanted. */
static int pass_page(struct parquet_column *c, const struct page_head *h, size_t head_bytes)
{
    const uint64_t n_more = head_bytes + (uint64_t)h->n_packed - bytes_len(&c->packed);

    c->page_bytes = head_bytes + (size_t)h->n_packed;
    if (c->page_bytes > bytes_len(&c->packed)) {
        c->page_bytes = bytes_len(&c->packed);
        c->chunk.at += n_more;
        c->chunk.n_bytes -= n_more;
    }
    return 0;
}

/* n_unpacked bytes out of those at `at`, in memory of `to`, or where they are if they are not packed. */
static int unpack(struct parquet_column *c, const uint8_t *at, size_t n_packed,
                  size_t n_unpacked, bool is_packed, struct bytes *to, const uint8_t **ret,
                  struct err *err)
{
    const enum parquet_codec codec = is_packed ? c->chunk.codec : PARQUET_CODEC_NONE;
    uint8_t *space;

    *ret = at;
    if (codec == PARQUET_CODEC_NONE)
        return n_packed == n_unpacked ? 0 : damaged(c, "the size of a page", err);
    if (n_unpacked == 0)
        return 0;
    if (n_unpacked > parquet_codec_unpacked_max(codec, n_packed))
        return damaged(c, "the size of a page", err);
    bytes_consume(to, bytes_len(to));
    space = bytes_reserve(to, n_unpacked);
    if (!space)
        return no_memory(c, n_unpacked, err);
    if (!parquet_codec_unpack(codec, at, n_packed, space, n_unpacked))
        return damaged(c, "a page cannot be unpacked", err);
    *ret = space;
    return 0;
}

/* ---- the dictionary ---- */

static size_t element_bytes(const struct parquet_file_column *type)
{
    return type->type == PARQUET_TEXT ? sizeof(struct line_parser_span) : 8;
}

static void point(const struct parquet_file_column *type, void *at, struct parquet_values *to)
{
    if (type->type == PARQUET_TEXT)
        to->texts = at;
    else if (type->type == PARQUET_INT || type->type == PARQUET_UINT)
        to->integers = at;
    else
        to->reals = at;
}

void parquet_column_dictionary(const struct parquet_column *c, uint32_t first, uint32_t n,
                               struct parquet_values *to)
{
    assert(first + (uint64_t)n <= c->n_dictionary);
    to->n = n;
    point(c->type, (uint8_t *)c->dictionary + first * element_bytes(c->type), to);
}

static int decode_dictionary(struct parquet_column *c, const uint8_t *at, size_t n_bytes,
                             uint32_t n, struct err *err)
{
    struct parquet_values to;
    int status = 0;

    if (c->type->storage == PARQUET_STORAGE_BOOLEAN ||
        n > n_bytes / parquet_decoder_value_bytes_min(c->type) ||
        !parquet_decoder_begin(&c->decoder, c->type, PARQUET_ENCODING_PLAIN, at, at + n_bytes,
                               n))
        return damaged(c, "the dictionary", err);
    free(c->dictionary);
    c->dictionary = memory_try_alloc((n + (size_t)1) * element_bytes(c->type));
    if (!c->dictionary)
        return no_memory(c, n * element_bytes(c->type), err);
    for (uint32_t i = 0; i < n && !status; i += to.n) {
        point(c->type, (uint8_t *)c->dictionary + i * element_bytes(c->type), &to);
        status = parquet_decoder_read(
            &c->decoder, n - i < PARQUET_VALUES_MAX ? n - i : PARQUET_VALUES_MAX, &to);
    }
    if (status)
        return damaged(c, "the dictionary", err);
    c->n_dictionary = n;
    c->dictionary_id++;
    return 0;
}

static int read_dictionary(struct parquet_column *c, const struct page_head *h,
                           size_t head_bytes, struct err *err)
{
    const uint8_t *packed, *at;
    int status = fetch_page(c, h, head_bytes, err);

    c->n_dictionary = 0;
    if (status)
        return status;
    if ((h->encoding != PARQUET_ENCODING_PLAIN &&
         h->encoding != PARQUET_ENCODING_PLAIN_DICTIONARY) ||
        h->n_values > h->n_unpacked)
        return damaged(c, "the dictionary", err);
    packed = bytes_front(&c->packed) + head_bytes;
    status = unpack(c, packed, (size_t)h->n_packed, (size_t)h->n_unpacked, true,
                    &c->dictionary_page, &at, err);
    if (!status && at == packed && h->n_unpacked > 0) {
        /* It outlives the page. */
        uint8_t *space;

        bytes_consume(&c->dictionary_page, bytes_len(&c->dictionary_page));
        space = bytes_reserve(&c->dictionary_page, (size_t)h->n_unpacked);
        if (!space)
            return no_memory(c, (uint64_t)h->n_unpacked, err);
        at = memcpy(space, packed, (size_t)h->n_unpacked);
    }
    return status ? status
                  : decode_dictionary(c, at, (size_t)h->n_unpacked, (uint32_t)h->n_values, err);
}

/* ---- data pages ---- */

static int begin_values(struct parquet_column *c, const struct page_head *h, const uint8_t *at,
                        const uint8_t *end, struct err *err)
{
    c->has_numbers = h->encoding == PARQUET_ENCODING_PLAIN_DICTIONARY ||
                     h->encoding == PARQUET_ENCODING_RLE_DICTIONARY;
    if (c->has_numbers) {
        const uint32_t width = at < end ? *at : 0;

        if (width > 32)
            return damaged(c, "numbers of more than 32 bits", err);
        parquet_rle_init(&c->numbers, at < end ? at + 1 : end, end, width);
        return 0;
    }
    if (!parquet_decoder_knows(c->type, h->encoding))
        return err_set(err, PS_EDATA,
                       "%s: column '%.60s' has values in encoding %lld, which cannot be read",
                       parquet_file_path(c->file), c->type->name, (long long)h->encoding);
    if (!parquet_decoder_begin(&c->decoder, c->type, (enum parquet_encoding)h->encoding, at,
                               end, (uint64_t)h->n_values))
        return damaged(c, "the values of a page", err);
    return 0;
}

static uint32_t width_of(uint32_t level_max)
{
    return level_max > 1 ? 2 : level_max;
}

/* Version 1: levels in front of the values, packed with them, each behind its length. */
static bool begin_levels(struct parquet_rle *r, uint32_t level_max, const uint8_t **at,
                         const uint8_t *end)
{
    uint32_t n;

    if (level_max == 0)
        return true;
    if (end - *at < 4)
        return false;
    memcpy(&n, *at, 4);
    *at += 4;
    if (n > (size_t)(end - *at))
        return false;
    parquet_rle_init(r, *at, *at + n, width_of(level_max));
    *at += n;
    return true;
}

static int begin_page_1(struct parquet_column *c, const struct page_head *h,
                        const uint8_t *packed, struct err *err)
{
    const uint8_t *at, *end;
    int status =
        unpack(c, packed, (size_t)h->n_packed, (size_t)h->n_unpacked, true, &c->page, &at, err);

    if (status)
        return status;
    if ((c->type->def_max && h->def_encoding != PARQUET_ENCODING_RLE) ||
        (c->type->rep_max && h->rep_encoding != PARQUET_ENCODING_RLE))
        return err_set(err, PS_EDATA,
                       "%s: column '%.60s' has levels in encoding %lld, which cannot be read",
                       parquet_file_path(c->file), c->type->name, (long long)h->def_encoding);
    end = at + h->n_unpacked;
    if (!begin_levels(&c->reps, c->type->rep_max, &at, end) ||
        !begin_levels(&c->defs, c->type->def_max, &at, end))
        return damaged(c, "the levels of a page", err);
    return begin_values(c, h, at, end, err);
}

static int begin_page_2(struct parquet_column *c, const struct page_head *h,
                        const uint8_t *packed, struct err *err)
{
    const size_t n_levels = (size_t)(h->rep_bytes + h->def_bytes);
    const uint8_t *at = packed + h->rep_bytes;
    int status;

    parquet_rle_init(&c->reps, packed, at, width_of(c->type->rep_max));
    parquet_rle_init(&c->defs, at, at + h->def_bytes, width_of(c->type->def_max));
    status = unpack(c, packed + n_levels, (size_t)h->n_packed - n_levels,
                    (size_t)h->n_unpacked - n_levels, h->is_packed, &c->page, &at, err);
    return status ? status
                  : begin_values(c, h, at, at + ((size_t)h->n_unpacked - n_levels), err);
}

static int begin_page(struct parquet_column *c, const struct page_head *h, size_t head_bytes,
                      struct err *err)
{
    const uint8_t *packed;
    int status = fetch_page(c, h, head_bytes, err);

    if (status)
        return status;
    packed = bytes_front(&c->packed) + head_bytes;
    status = h->type == PAGE_DATA ? begin_page_1(c, h, packed, err)
                                  : begin_page_2(c, h, packed, err);
    if (status)
        return status;
    c->n_left = (uint64_t)h->n_values;
    return 0;
}

/* To the next data page with entries, which is begun unless at most n_pass rows are all that it has: then they are
 * passed, and *ret_passed says how many. Both 0 at the end. */
static int next_data_page(struct parquet_column *c, uint64_t n_pass, uint64_t *ret_passed,
                          struct err *err)
{
    struct page_head h;
    size_t head_bytes = 0;
    int status = 0;

    *ret_passed = 0;
    while (!status && c->n_entries_left > 0 && c->n_left == 0 && *ret_passed == 0) {
        int64_t n_rows;

        status = next_page(c, &h, &head_bytes, err);
        if (status)
            return status;
        if (h.type == PAGE_DICTIONARY) {
            status = read_dictionary(c, &h, head_bytes, err);
            continue;
        }
        if (h.type == PAGE_INDEX) {
            status = pass_page(c, &h, head_bytes);
            continue;
        }
        c->n_entries_left -= (uint64_t)h.n_values;
        n_rows = c->type->rep_max == 0 ? h.n_values : h.n_rows;
        if (n_rows > 0 && (uint64_t)n_rows <= n_pass) {
            *ret_passed = (uint64_t)n_rows;
            status = pass_page(c, &h, head_bytes);
        } else {
            status = begin_page(c, &h, head_bytes, err);
        }
    }
    return status;
}

/* ---- entries ---- */

static bool are_levels_sound(const uint32_t *levels, uint32_t n, uint32_t max)
{
    bool sound = true;

    for (uint32_t i = 0; i < n; i++)
        sound &= levels[i] <= max;
    return sound;
}

static int decode_levels(struct parquet_column *c, uint32_t n, struct err *err)
{
    const struct parquet_file_column *t = c->type;

    if ((t->rep_max && !parquet_rle_read(&c->reps, c->rep, n)) ||
        !parquet_rle_read(&c->defs, c->def, n) || !are_levels_sound(c->def, n, t->def_max))
        return damaged(c, "the levels of a page", err);
    c->n_levels = n;
    c->level_at = 0;
    return 0;
}

int parquet_column_levels(struct parquet_column *c, uint32_t n_max, const uint32_t **ret_rep,
                          const uint32_t **ret_def, uint32_t *ret_n, struct err *err)
{
    const struct parquet_file_column *t = c->type;
    uint64_t passed;
    uint32_t n;
    int status = c->n_left ? 0 : next_data_page(c, 0, &passed, err);

    *ret_rep = *ret_def = NULL;
    *ret_n = 0;
    if (status || c->n_left == 0)
        return status;
    n = c->n_left < n_max ? (uint32_t)c->n_left : n_max;
    if (c->level_at == c->n_levels) {
        if (t->rep_max == 0 &&
            (t->def_max == 0 || parquet_rle_take_run(&c->defs, t->def_max, n))) {
            *ret_n = n;
            return 0;
        }
        /* Of a LIST how many entries make the rows shows only then. */
        n = t->rep_max ? PARQUET_LEVELS_MAX : n < PARQUET_LEVELS_MAX ? n : PARQUET_LEVELS_MAX;
        status = decode_levels(c, n < c->n_left ? n : (uint32_t)c->n_left, err);
        if (status)
            return status;
    }
    *ret_n = c->n_levels - c->level_at;
    *ret_rep = t->rep_max ? c->rep + c->level_at : NULL;
    *ret_def = c->def + c->level_at;
    return 0;
}

void parquet_column_take(struct parquet_column *c, uint32_t n)
{
    assert(n <= c->n_left);
    c->n_left -= n;
    if (c->level_at < c->n_levels)
        c->level_at += n;
    assert(c->level_at <= c->n_levels);
}

int parquet_column_numbers(struct parquet_column *c, uint32_t *dst, uint32_t n, struct err *err)
{
    uint32_t max = 0;

    if (!parquet_rle_read(&c->numbers, dst, n))
        return damaged(c, "numbers of its dictionary", err);
    for (uint32_t i = 0; i < n; i++)
        max = dst[i] > max ? dst[i] : max;
    return n == 0 || max < c->n_dictionary ? 0 : damaged(c, "numbers of its dictionary", err);
}

int parquet_column_values(struct parquet_column *c, uint32_t n_max, struct parquet_values *to,
                          struct err *err)
{
    int status = parquet_decoder_read(&c->decoder, n_max, to);

    if (status == -ENOMEM)
        return no_memory(c, PARQUET_VALUES_MAX, err);
    return status ? damaged(c, "the values of a page", err) : 0;
}

static int skip_values(struct parquet_column *c, uint64_t n, struct parquet_values *scratch,
                       struct err *err)
{
    int status = 0;

    if (c->has_numbers)
        return parquet_rle_skip(&c->numbers, n) ? 0
                                                : damaged(c, "numbers of its dictionary", err);
    while (n > 0 && !status) {
        status = parquet_column_values(
            c, n < PARQUET_VALUES_MAX ? (uint32_t)n : PARQUET_VALUES_MAX, scratch, err);
        n -= status ? 0 : scratch->n;
    }
    return status;
}

/* Entries of the next n_rows rows among these, and values among the entries. */
static uint32_t count_entries(const struct parquet_column *c, const uint32_t *rep,
                              const uint32_t *def, uint32_t n, uint64_t *n_rows,
                              uint32_t *ret_values)
{
    uint32_t i;

    *ret_values = 0;
    for (i = 0; i < n && (*n_rows > 0 || (rep && rep[i])); i++) {
        *n_rows -= !rep || !rep[i];
        *ret_values += !def || def[i] == c->type->def_max;
    }
    return i;
}

int parquet_column_skip(struct parquet_column *c, uint64_t n_rows,
                        struct parquet_values *scratch, struct err *err)
{
    while (n_rows > 0 || c->type->rep_max) {
        const uint32_t n_max =
                           n_rows < PARQUET_VALUES_MAX ? (uint32_t)n_rows : PARQUET_VALUES_MAX,
                       *rep, *def;
        uint32_t n, n_taken, n_values;
        uint64_t passed;
        int status;

        if (c->n_left == 0) {
            status = next_data_page(c, n_rows, &passed, err);
            n_rows -= passed;
            if (status || (c->n_left == 0 && passed == 0))
                return status   ? status
                       : n_rows ? damaged(c, "it has fewer rows than its row group", err)
                                : 0;
            if (passed)
                continue;
        }
        status = parquet_column_levels(c, n_max ? n_max : 1, &rep, &def, &n, err);
        if (status)
            return status;
        n_taken = count_entries(c, rep, def, n, &n_rows, &n_values);
        parquet_column_take(c, n_taken);
        status = skip_values(c, n_values, scratch, err);
        if (status || n_taken < n)
            return status;
    }
    return 0;
}
