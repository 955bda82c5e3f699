#include "server/core/delta_rows.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "server/core/delta_sparse.h"
#include "server/core/row_init.h"

#define LANES 8u
#define FOUND_MAX 64u         /* rows that are looked up at a time */
#define HUGE_DIFFERENCE 1e30f /* it might be infinite once it is added */

/* --- rows --- */

/* Without memory nothing is kept. */
static void make_table(struct delta_rows *d)
{
    if (d->is_bare ||
        table_new(&d->rows, (uint32_t)(d->spec->dim * sizeof(float)), 0, &d->memory->budget))
        d->rows = NULL;
}

static int reserve_scratch(struct delta_memory *m, uint32_t dim)
{
    float *scratch;

    if (dim <= m->dim_max)
        return 0;
    scratch = memory_try_realloc(m->scratch, 3 * (size_t)dim * sizeof *scratch);
    if (!scratch)
        return -ENOMEM;
    m->scratch = scratch;
    m->dim_max = dim;
    return 0;
}

void delta_memory_deinit(struct delta_memory *m)
{
    free(m->scratch);
    *m = (struct delta_memory){ 0 };
}

int delta_rows_init(struct delta_rows *d, const struct table_spec *spec,
                    struct delta_memory *memory)
{
    *d = (struct delta_rows){ .memory = memory, .spec = spec };
    return reserve_scratch(memory, spec->dim);
}

int delta_rows_init_bare(struct delta_rows *d, const struct table_spec *spec,
                         struct delta_memory *memory)
{
    const int status = delta_rows_init(d, spec, memory);

    d->is_bare = true;
    return status;
}

void delta_rows_deinit(struct delta_rows *d)
{
    table_free(d->rows);
    *d = (struct delta_rows){ 0 };
}

uint64_t delta_rows_n(const struct delta_rows *d)
{
    return d->rows ? table_n_rows(d->rows) : 0;
}

static void begin_anew(struct delta_rows *d)
{
    table_free(d->rows);
    d->rows = NULL;
    make_table(d);
    d->is_full = false;
    d->n_missed = 0;
}

static void find(const struct delta_rows *d, const uint64_t *keys, uint32_t n,
                 struct row **ret_rows)
{
    if (d->rows)
        table_find_batch(d->rows, keys, n, ret_rows);
    else
        memset((void *)ret_rows, 0, n * sizeof *ret_rows);
}

/* NULL: there is no memory for it. */
static struct row *insert(struct delta_rows *d, uint64_t key)
{
    struct row *row;

    return d->rows && table_insert(d->rows, key, &row) == 0 ? row : NULL;
}

/* What the client has; `init` is memory for the row that the key would start with. */
static const float *have(const struct delta_rows *d, const struct row *row, uint64_t key,
                         float *init)
{
    if (row)
        return row->floats;
    row_init_row(d->spec, key, init);
    return init;
}

static const struct codec *codec_of(enum section_delta_mode mode, const struct codec *full)
{
    if (mode == SECTION_DELTA_FULL)
        return full;
    return codec_by_id(mode == SECTION_DELTA_ONEBIT ? CODEC_ONEBIT : CODEC_INT8);
}

size_t delta_rows_answer_bytes(const struct table_spec *spec, const struct codec *full,
                               uint32_t n_keys)
{
    return section_delta_bytes(n_keys) + n_keys * full->row_bytes(spec->dim, 0);
}

/* --- writing --- */

void delta_writer_open(struct delta_writer *w, struct delta_rows *rows,
                       const struct codec *full, const struct section_delta *asked,
                       uint32_t n_keys, uint64_t number, uint8_t *dst)
{
    const bool goes_on = asked->base && asked->base == rows->number && !rows->is_full;

    *w = (struct delta_writer){ .rows = rows,
                                .full = full,
                                .asked = *asked,
                                .head = dst,
                                .keeps = true,
                                .number = number,
                                .is_anew = !goes_on };
    if (!goes_on)
        begin_anew(rows);
    rows->number = 0;
    rows->writing = number;
    memset(dst, 0, section_delta_bytes(n_keys));
    memcpy(dst, &number, sizeof number);
    dst[12] = (uint8_t)(goes_on ? 0 : SECTION_DELTA_ANEW);
    w->at = dst + section_delta_bytes(n_keys);
}

/* Sum of squares of a - b, in lanes. */
static double square_sum(const float *a, const float *b, uint32_t n)
{
    double lanes[LANES] = { 0 }, sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        const double x = (double)a[i] - (double)b[i];

        lanes[i % LANES] += x * x;
    }
    for (uint32_t i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

static float largest(const float *x, uint32_t n)
{
    float max = 0;

    for (uint32_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    return max;
}

static bool is_shorter(const struct delta_writer *w, enum section_delta_mode mode)
{
    const uint32_t dim = w->rows->spec->dim;

    return codec_of(mode, w->full)->row_bytes(dim, 0) < w->full->row_bytes(dim, 0);
}

/* Of a row that the client has, what is left comes later. Another one comes whole: the largest floats would be few of
 * those that differ. */
static enum section_delta_mode write_sparse(struct delta_writer *w, bool is_known,
                                            const float *difference, double allowed,
                                            float *sent)
{
    const uint32_t dim = w->rows->spec->dim;

    w->row_bytes = delta_sparse_encode(difference, dim, allowed, w->at,
                                       w->full->row_bytes(dim, 0) - 1, sent);
    return w->row_bytes && (is_known || square_sum(difference, sent, dim) <= allowed)
               ? SECTION_DELTA_ONEBIT
               : SECTION_DELTA_FULL;
}

/* difference, sent: of dim floats. A sum that is not a number is within nothing. On ONEBIT, INT8: w->at has the bytes,
 * and `sent` what they say. A row that is not known may get no place: what a forced mode loses of it would never come.
 */
static enum section_delta_mode choose(struct delta_writer *w, bool is_known,
                                      const float *weights, const float *base,
                                      const float *difference, float *sent)
{
    const uint32_t dim = w->rows->spec->dim;
    const float tolerance = w->asked.tolerance;
    const double allowed = (double)dim * (double)tolerance * (double)tolerance;
    const bool is_any = w->asked.mode == SECTION_DELTA_FULL || !is_known;
    const struct codec *codec;
    double sum;
    float max;
    int status;

    if (tolerance == 0)
        return SECTION_DELTA_FULL;
    sum = square_sum(weights, base, dim);
    if (sum <= allowed)
        return SECTION_DELTA_NONE;
    max = largest(difference, dim);
    if (!isfinite(sum) || !(max < HUGE_DIFFERENCE))
        return SECTION_DELTA_FULL;
    if (w->asked.mode == SECTION_DELTA_SPARSE)
        return write_sparse(w, is_known, difference, allowed, sent);
    for (enum section_delta_mode mode = SECTION_DELTA_ONEBIT; mode < SECTION_DELTA_FULL;
         mode++) {
        if (!is_shorter(w, mode) || (!is_any && mode != w->asked.mode) ||
            (is_any && mode == SECTION_DELTA_INT8 && max / 254 > tolerance))
            continue;
        codec = codec_of(mode, w->full);
        w->row_bytes = codec->row_bytes(dim, 0);
        codec->encode(difference, dim, 0, w->at);
        status = codec->decode(w->at, dim, 0, sent);
        assert(!status);
        (void)status;
        if (!is_any || mode == SECTION_DELTA_INT8 ||
            square_sum(difference, sent, dim) <= allowed)
            return mode;
    }
    return SECTION_DELTA_FULL;
}

/* Writes the row whole; what it then is in `sent`. */
static enum section_delta_mode write_full(struct delta_writer *w, const float *weights,
                                          const float *base, float *sent)
{
    const uint32_t dim = w->rows->spec->dim;
    int status;

    w->row_bytes = w->full->row_bytes(dim, 0);
    w->full->encode(weights, dim, 0, w->at);
    status = w->full->decode(w->at, dim, 0, sent);
    assert(!status);
    (void)status;
    return memcmp(sent, base, dim * sizeof *sent) == 0 ? SECTION_DELTA_NONE
                                                       : SECTION_DELTA_FULL;
}

/* A row that is not here yet, if it may be kept. */
static struct row *keep(struct delta_writer *w, uint64_t key)
{
    struct row *row = NULL;

    if (!w->keeps)
        return NULL;
    if (delta_rows_n(w->rows) < w->asked.rows_max)
        row = insert(w->rows, key);
    if (row)
        return row;
    w->keeps = false;
    w->n_kept = w->n;
    return NULL;
}

static void put_mode(const struct delta_writer *w, enum section_delta_mode mode)
{
    uint8_t *at = w->head + SECTION_DELTA_HEAD_BYTES + w->n / 4;

    *at = (uint8_t)(*at | (uint32_t)mode << 2 * (w->n % 4));
}

/* A later answer has the rows now: this one's rows go whole, and are not kept. */
static void put_whole(struct delta_writer *w, const float *weights)
{
    const uint32_t dim = w->rows->spec->dim;

    if (w->keeps)
        w->n_kept = w->n;
    w->keeps = false;
    w->full->encode(weights, dim, 0, w->at);
    w->at += w->full->row_bytes(dim, 0);
    put_mode(w, SECTION_DELTA_FULL);
    w->counts.rows[SECTION_DELTA_FULL]++;
    w->n++;
}

static void put_difference(struct delta_writer *w, uint64_t key, struct row *row,
                           const float *weights)
{
    const uint32_t dim = w->rows->spec->dim;
    float *init = w->rows->memory->scratch, *difference = init + dim, *sent = difference + dim;
    const float *base = have(w->rows, row, key, init);
    enum section_delta_mode mode;

    for (uint32_t i = 0; i < dim; i++)
        difference[i] = weights[i] - base[i];
    mode = choose(w, row != NULL, weights, base, difference, sent);
    if (mode == SECTION_DELTA_FULL)
        mode = write_full(w, weights, base, sent);
    else if (mode != SECTION_DELTA_NONE)
        for (uint32_t i = 0; i < dim; i++)
            sent[i] += base[i];
    if (mode != SECTION_DELTA_NONE) {
        row = row ? row : keep(w, key);
        if (row)
            memcpy(row->floats, sent, dim * sizeof *sent);
        else
            w->rows->n_missed++;
        w->at += w->row_bytes;
    }
    put_mode(w, mode);
    w->counts.rows[mode]++;
    w->n++;
}

void delta_writer_find(const struct delta_writer *w, const uint64_t *keys, uint32_t n,
                       struct row **ret_rows)
{
    find(w->rows, keys, n, ret_rows);
}

void delta_writer_put(struct delta_writer *w, uint64_t key, struct row *row,
                      const float *weights)
{
    if (w->rows->writing == w->number)
        put_difference(w, key, row, weights);
    else
        put_whole(w, weights);
}

uint8_t *delta_writer_close(struct delta_writer *w)
{
    const uint32_t n_kept = w->keeps ? w->n : w->n_kept;

    if (w->rows->writing == w->number) {
        w->rows->number = w->number;
        w->rows->is_full = w->rows->n_missed > delta_rows_n(w->rows);
    }
    memcpy(w->head + 8, &n_kept, sizeof n_kept);
    return w->at;
}

/* --- reading --- */

uint64_t delta_rows_ask(struct delta_rows *d)
{
    d->base = d->number;
    d->number = 0;
    return d->base;
}

/* An answer that is being read. */
struct reader {
    struct delta_rows *rows;
    const struct codec *full;
    bool is_sparse;
    const uint8_t *modes, *at, *end;
    uint32_t n_kept;
};

static int open_answer(struct reader *r, struct delta_rows *d,
                       const struct delta_answer *answer, uint64_t *ret_number)
{
    const size_t head_bytes = section_delta_bytes(answer->n);

    if (answer->value_bytes < head_bytes)
        return PS_ECOUNT;
    *r = (struct reader){ .rows = d,
                          .full = answer->full,
                          .is_sparse = answer->is_sparse,
                          .modes = answer->values + SECTION_DELTA_HEAD_BYTES,
                          .at = answer->values + head_bytes,
                          .end = answer->values + answer->value_bytes };
    memcpy(ret_number, answer->values, sizeof *ret_number);
    memcpy(&r->n_kept, answer->values + 8, sizeof r->n_kept);
    if (answer->values[12] > SECTION_DELTA_ANEW || r->n_kept > answer->n ||
        (answer->n % 4 && r->modes[answer->n / 4] >> 2 * (answer->n % 4)))
        return PS_ECODEC;
    if (answer->values[12])
        begin_anew(d);
    else if (!d->base)
        return PS_ECODEC; /* of rows that are not here */
    return 0;
}

/* What a mode other than NONE brings. */
static int read_values(struct reader *r, enum section_delta_mode mode, float *dst)
{
    const size_t n_bytes = (size_t)(r->end - r->at);
    const uint32_t dim = r->rows->spec->dim;
    const struct codec *codec = codec_of(mode, r->full);
    size_t n_read = codec->row_bytes(dim, 0);
    int status = PS_ECOUNT;

    if (mode == SECTION_DELTA_ONEBIT && r->is_sparse)
        status = delta_sparse_decode(r->at, n_bytes, dim, dst, &n_read);
    else if (n_read <= n_bytes)
        status = codec->decode(r->at, dim, 0, dst);
    if (!status)
        r->at += n_read;
    return status;
}

static int read_row(struct reader *r, uint32_t i, uint64_t key, struct row *row, float *dst)
{
    const enum section_delta_mode mode = r->modes[i / 4] >> 2 * (i % 4) & 3;
    const uint32_t dim = r->rows->spec->dim;
    const float *base = have(r->rows, row, key, r->rows->memory->scratch);
    int status;

    if (mode == SECTION_DELTA_NONE) {
        memcpy(dst, base, dim * sizeof *dst);
        return 0;
    }
    status = read_values(r, mode, dst);
    if (status)
        return status;
    for (uint32_t k = 0; mode != SECTION_DELTA_FULL && k < dim; k++)
        dst[k] += base[k];
    if (!row && i < r->n_kept && !(row = insert(r->rows, key)))
        r->rows->is_full = true;
    if (row)
        memcpy(row->floats, dst, dim * sizeof *dst);
    return 0;
}

/* Rows first .. first + n. */
static int read_some(struct reader *r, const struct delta_answer *answer, uint32_t first,
                     uint32_t n, float *dst)
{
    struct row *rows[FOUND_MAX];
    uint64_t keys[FOUND_MAX] = { 0 };
    int status = 0;

    for (uint32_t i = 0; i < n; i++)
        keys[i] = answer->keys[answer->numbers[first + i]];
    find(r->rows, keys, n, rows);
    for (uint32_t i = 0; i < n && !status; i++)
        status = read_row(r, first + i, keys[i], rows[i],
                          dst + (size_t)answer->numbers[first + i] * r->rows->spec->dim);
    return status;
}

int delta_rows_read(struct delta_rows *d, const struct delta_answer *answer, float *dst)
{
    struct reader r;
    uint64_t number = 0;
    int status = open_answer(&r, d, answer, &number);

    for (uint32_t i = 0, n; i < answer->n && !status; i += n) {
        n = answer->n - i < FOUND_MAX ? answer->n - i : FOUND_MAX;
        status = read_some(&r, answer, i, n, dst);
    }
    if (!status && r.at != r.end)
        status = PS_ECOUNT;
    d->number = status || d->is_full ? 0 : number;
    return status;
}
