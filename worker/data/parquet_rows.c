#include "worker/data/parquet_rows.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hashing a token of a few bytes costs less than calling a library for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/memory.h"
#include "common/number.h"
#include "worker/data/parquet_column.h"
#include "worker/data/parquet_token.h"

enum role { ROLE_LABEL, ROLE_NUMERIC, ROLE_FIELD };

/* What values become: numbers, or keys grouped by value. */
struct converted {
    float *numbers;    /* owned */
    struct batch keys; /* its keys alone are used */
    uint32_t *starts;  /* owned; value v has keys starts[v] .. starts[v + 1] - 1 */
    bool single;       /* each value has one key */
};

struct column {
    struct parquet_column in;
    enum role role;
    uint32_t index; /* of the numeric, of the field */
    bool is_list,
        is_simple; /* is_simple: a token has one key, its hash, unless it is missing */
    uint64_t seed, missing_key; /* as line_parser.c has them */
    struct converted dictionary, block;
    uint8_t *is_bad; /* owned; entries of the dictionary that refuse their row; NULL: none */
    uint64_t dictionary_id; /* of the one that was converted */
    bool has_bad;
};

struct refusal {
    char text[sizeof((struct err *)0)->text];
};

struct parquet_rows {
    struct parquet_file *file;                /* owned */
    const struct line_parser_plan *plan;      /* borrowed */
    struct column *columns;                   /* owned, [n_columns]: label, numerics, fields */
    struct parquet_file_chunk *chunks;        /* owned, [n_columns] */
    const struct parquet_file_column **types; /* owned, [n_columns] */
    uint32_t n_columns, n_block_max;
    uint64_t n_next; /* rows that were handed out: the row at hand is n_next - 1 */
    uint32_t group;  /* the one that was begun, if any */
    bool group_begun;
    uint64_t column_row; /* where all columns are */
    uint64_t block_row;  /* the first of the block */
    uint32_t n_block;
    struct refusal *refusals; /* owned, [n_refusals] */
    uint32_t n_refusals, refusals_cap;
    uint16_t
        refused[PARQUET_ROWS_BLOCK_MAX]; /* of a row, its refusal's number from 1; 0: none */
    void *scratch;                       /* owned; for PARQUET_VALUES_MAX values of any type */
    /* Of the block: the numbers of each numeric, and if all fields have one key in each row, those keys. */
    const float **numerics;      /* owned, [n_numeric]; borrowed */
    const uint64_t **field_keys; /* owned, [n_fields]; borrowed */
    bool all_single;
    uint32_t numbers[PARQUET_VALUES_MAX + 1];
};

/* ---- one value ---- */

static int convert_label(const struct parquet_rows *r, const struct column *c,
                         const struct parquet_values *v, uint32_t i, float *ret,
                         struct err *why)
{
    char space[PARQUET_TOKEN_BYTES];

    if (c->in.type->type == PARQUET_INT && !r->plan->n_positive && !r->plan->missing[0] &&
        (v->integers[i] == 0 || v->integers[i] == 1)) {
        *ret = (float)v->integers[i];
        return 0;
    }
    return line_parser_label(r->plan, c->index, parquet_token_of(c->in.type->type, v, i, space),
                             ret, why);
}

static int convert_number(const struct parquet_rows *r, const struct column *c,
                          const struct parquet_values *v, uint32_t i, float *ret,
                          struct err *why)
{
    const enum parquet_type type = c->in.type->type;
    char space[PARQUET_TOKEN_BYTES];

    if (c->role == ROLE_LABEL)
        return convert_label(r, c, v, i, ret, why);
    if (type != PARQUET_TEXT && !r->plan->missing[0]) {
        double x = parquet_token_number(type, v, i);

        *ret = isfinite(x) ? line_parser_transform(r->plan, c->index, x) : NAN;
        if (isfinite(*ret))
            return 0;
    }
    return line_parser_numeric(r->plan, c->index, parquet_token_of(type, v, i, space), ret,
                               why);
}

/* Adds the value's keys, one or more, or none. */
static int convert_keys(const struct parquet_rows *r, const struct column *c,
                        const struct parquet_values *v, uint32_t i, struct batch *to,
                        struct err *why)
{
    char space[PARQUET_TOKEN_BYTES];
    struct line_parser_span token = parquet_token_of(c->in.type->type, v, i, space);

    if (!c->is_simple)
        return line_parser_value_keys(r->plan, c->index, token, to, why);
    if (token.len == 0 || (r->plan->missing[0] && line_parser_is_missing(r->plan, token)))
        return 0;
    if (to->n_keys == to->keys_cap && batch_reserve_keys(to, 1))
        return -ENOMEM;
    to->keys[to->n_keys++] = XXH3_64bits_withSeed(token.at, token.len, c->seed);
    return 0;
}

static int add_key(struct batch *to, uint64_t key)
{
    if (to->n_keys == to->keys_cap && batch_reserve_keys(to, 1))
        return -ENOMEM;
    to->keys[to->n_keys++] = key;
    return 0;
}

/* ---- the dictionary: each entry once, with the key of a missing one for an entry that is ---- */

static int reserve_dictionary(struct column *c, uint32_t n)
{
    struct converted *d = &c->dictionary;

    free(c->is_bad);
    c->is_bad = memory_try_alloc(n + (size_t)1);
    if (!c->is_bad)
        return -ENOMEM;
    if (c->role != ROLE_FIELD) {
        free(d->numbers);
        d->numbers = memory_try_alloc((n + (size_t)1) * sizeof *d->numbers);
        return d->numbers ? 0 : -ENOMEM;
    }
    free(d->starts);
    d->starts = memory_try_alloc((n + (size_t)1) * sizeof *d->starts);
    d->keys.n_keys = 0;
    return d->starts ? batch_reserve_keys(&d->keys, n) : -ENOMEM;
}

static int convert_entry(const struct parquet_rows *r, struct column *c,
                         const struct parquet_values *v, uint32_t i, uint32_t entry)
{
    struct converted *d = &c->dictionary;
    const uint32_t n_before = d->keys.n_keys;
    int status;

    if (c->role != ROLE_FIELD)
        return convert_number(r, c, v, i, &d->numbers[entry], NULL);
    status = convert_keys(r, c, v, i, &d->keys, NULL);
    /* In a LIST such an element counts for nothing. */
    if (!status && d->keys.n_keys == n_before && r->plan->missing_has_key && !c->is_list)
        status = add_key(&d->keys, c->missing_key);
    if (status)
        d->keys.n_keys = n_before;
    d->starts[entry + 1] = d->keys.n_keys;
    d->single &= d->keys.n_keys == entry + 1;
    return status;
}

static int convert_dictionary(const struct parquet_rows *r, struct column *c)
{
    const uint32_t n = c->in.n_dictionary;
    struct parquet_values v;
    int status = reserve_dictionary(c, n);

    c->has_bad = false;
    c->dictionary.single = true;
    for (uint32_t first = 0; first < n && !status; first += v.n) {
        parquet_column_dictionary(
            &c->in, first, n - first < PARQUET_VALUES_MAX ? n - first : PARQUET_VALUES_MAX, &v);
        for (uint32_t i = 0; i < v.n && !status; i++) {
            status = convert_entry(r, c, &v, i, first + i);
            if (status == PS_EDATA) {
                c->is_bad[first + i] = true;
                c->has_bad = true;
                status = 0;
            }
        }
    }
    c->dictionary_id = status ? 0 : c->in.dictionary_id;
    return status;
}

/* ---- a block of a column ---- */

static int no_memory(const struct parquet_rows *r, struct err *err)
{
    return err_set(err, -ENOMEM, "%s: no memory for a block of rows",
                   parquet_file_path(r->file));
}

/* The first refusal of a row stands: columns come in the order in which a line's are looked at. */
static int refuse_row(struct parquet_rows *r, uint32_t row, const struct err *why)
{
    if (r->refused[row])
        return 0;
    if (r->n_refusals == r->refusals_cap) {
        const uint32_t cap = r->refusals_cap ? r->refusals_cap * 2 : 8;
        struct refusal *more = memory_try_realloc(r->refusals, cap * sizeof *more);

        if (!more)
            return -ENOMEM;
        r->refusals = more;
        r->refusals_cap = cap;
    }
    memcpy(r->refusals[r->n_refusals].text, why->text, sizeof why->text);
    r->refused[row] = (uint16_t)++r->n_refusals;
    return 0;
}

/* Where a column's block stands, and values that wait for their entries. */
struct filling {
    struct column *c;
    uint32_t n_rows;         /* wanted */
    uint32_t n_begun;        /* rows */
    uint32_t n_values_left;  /* of the entries at hand, not read yet */
    struct parquet_values v; /* read, unless the page has numbers */
    uint32_t at, n;          /* the next one of them, and how many there are */
};

/* The row at hand has all its values. */
static int close_row(const struct parquet_rows *r, struct filling *f)
{
    struct converted *b = &f->c->block;

    if (f->c->role != ROLE_FIELD || f->n_begun == 0)
        return 0;
    if (b->keys.n_keys == b->starts[f->n_begun - 1] && r->plan->missing_has_key &&
        add_key(&b->keys, f->c->missing_key))
        return -ENOMEM;
    b->starts[f->n_begun] = b->keys.n_keys;
    b->single &= b->keys.n_keys == f->n_begun;
    return 0;
}

static int begin_row(const struct parquet_rows *r, struct filling *f)
{
    int status = close_row(r, f);

    if (f->c->role != ROLE_FIELD)
        f->c->block.numbers[f->n_begun] =
            f->c->role == ROLE_LABEL ? 0 : r->plan->numeric_missing;
    f->n_begun++;
    return status;
}

static int read_values(struct parquet_rows *r, struct filling *f, struct err *err)
{
    struct column *c = f->c;
    const uint32_t n =
        f->n_values_left < PARQUET_VALUES_MAX ? f->n_values_left : PARQUET_VALUES_MAX;
    int status;

    if (c->in.has_numbers) {
        status = parquet_column_numbers(&c->in, r->numbers, n, err);
        f->n = n;
    } else {
        f->v = (struct parquet_values){ .integers = r->scratch };
        status = parquet_column_values(&c->in, n, &f->v, err);
        f->n = f->v.n;
    }
    f->at = 0;
    f->n_values_left -= status ? 0 : f->n;
    return status;
}

/* A value of the row at hand, straight from what was read. */
static int put_value(struct parquet_rows *r, struct filling *f, const struct parquet_values *v,
                     uint32_t i)
{
    struct column *c = f->c;
    const uint32_t row = f->n_begun - 1, n_before = c->block.keys.n_keys;
    struct err why;
    int status = c->role == ROLE_FIELD
                     ? convert_keys(r, c, v, i, &c->block.keys, &why)
                     : convert_number(r, c, v, i, &c->block.numbers[row], &why);

    if (status != PS_EDATA)
        return status;
    c->block.keys.n_keys = n_before;
    return refuse_row(r, row, &why);
}

static int put_entry(struct parquet_rows *r, struct filling *f, uint32_t entry)
{
    struct column *c = f->c;
    const struct converted *d = &c->dictionary;
    struct parquet_values v;
    uint32_t n;

    if (c->has_bad && c->is_bad[entry]) {
        parquet_column_dictionary(&c->in, entry, 1, &v);
        return put_value(r, f, &v, 0);
    }
    if (c->role != ROLE_FIELD) {
        c->block.numbers[f->n_begun - 1] = d->numbers[entry];
        return 0;
    }
    n = d->starts[entry + 1] - d->starts[entry];
    if (c->block.keys.keys_cap - c->block.keys.n_keys < n &&
        batch_reserve_keys(&c->block.keys, n))
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        c->block.keys.keys[c->block.keys.n_keys + i] = d->keys.keys[d->starts[entry] + i];
    c->block.keys.n_keys += n;
    return 0;
}

static int next_value(struct parquet_rows *r, struct filling *f, struct err *err)
{
    int status;

    if (f->at == f->n && (status = read_values(r, f, err)) != 0)
        return status;
    status = f->c->in.has_numbers ? put_entry(r, f, r->numbers[f->at])
                                  : put_value(r, f, &f->v, f->at);
    f->at++;
    return status ? no_memory(r, err) : 0;
}

static int put_missing(struct parquet_rows *r, struct filling *f, struct err *err)
{
    struct err why;

    if (f->c->role != ROLE_LABEL)
        return 0;
    if (line_parser_label(r->plan, f->c->index,
                          (struct line_parser_span){ (char *)(uintptr_t) "", 0 },
                          &f->c->block.numbers[f->n_begun - 1], &why) == 0)
        return 0;
    return refuse_row(r, f->n_begun - 1, &why) ? no_memory(r, err) : 0;
}

/* Entries up to the last one of the rows that are wanted; *ret_n of them are used up. */
static int put_entries(struct parquet_rows *r, struct filling *f, const uint32_t *rep,
                       const uint32_t *def, uint32_t n, uint32_t *ret_n, struct err *err)
{
    const uint32_t def_max = f->c->in.type->def_max;
    int status = 0;
    uint32_t i, k, n_rows = f->n_begun;

    f->n_values_left = f->at = f->n = 0;
    for (k = 0; k < n && (n_rows < f->n_rows || (rep && rep[k])); k++) {
        n_rows += !rep || !rep[k];
        f->n_values_left += !def || def[k] == def_max;
    }
    for (i = 0; i < k && !status; i++) {
        if ((!rep || !rep[i]) && begin_row(r, f))
            return no_memory(r, err);
        if (f->n_begun == 0)
            return err_set(err, PS_EDATA,
                           "%s: column '%.60s' is damaged: a row group begins inside a row",
                           parquet_file_path(r->file), f->c->in.type->name);
        status = !def || def[i] == def_max ? next_value(r, f, err)
                 : rep                     ? 0
                                           : put_missing(r, f, err);
    }
    *ret_n = k;
    return status;
}

/* ---- the same for columns without LISTs, from a dictionary in which each entry is one number or key ---- */

static bool is_gathered(const struct parquet_rows *r, const struct column *c,
                        const uint32_t *def)
{
    if (!c->in.has_numbers || c->in.n_dictionary == 0 || c->has_bad || c->is_list ||
        (def && c->role == ROLE_LABEL))
        return false;
    return c->role != ROLE_FIELD ||
           (c->dictionary.single && c->block.single && (!def || r->plan->missing_has_key));
}

/* numbers has one entry more than values, of any kind that the dictionary has. */
static void spread_keys(uint64_t *to, const uint64_t *keys, const uint32_t *numbers,
                        const uint32_t *def, uint32_t n, uint64_t missing_key)
{
    for (uint32_t i = 0; !def && i < n; i++)
        to[i] = keys[numbers[i]];
    for (uint32_t i = 0, at = 0; def && i < n; i++) {
        const uint64_t key = keys[numbers[at]];

        to[i] = def[i] ? key : missing_key;
        at += def[i];
    }
}

static void spread_numbers(float *to, const float *values, const uint32_t *numbers,
                           const uint32_t *def, uint32_t n, float missing)
{
    for (uint32_t i = 0; !def && i < n; i++)
        to[i] = values[numbers[i]];
    for (uint32_t i = 0, at = 0; def && i < n; i++) {
        const float value = values[numbers[at]];

        to[i] = def[i] ? value : missing;
        at += def[i];
    }
}

static int gather(struct parquet_rows *r, struct filling *f, const uint32_t *def, uint32_t n,
                  struct err *err)
{
    struct column *c = f->c;
    struct converted *b = &c->block;
    const uint32_t first = f->n_begun;
    uint32_t n_values = 0;
    int status;

    for (uint32_t i = 0; def && i < n; i++)
        n_values += def[i];
    status = parquet_column_numbers(&c->in, r->numbers, def ? n_values : n, err);
    if (status)
        return status;
    r->numbers[def ? n_values : n] = 0;
    f->n_begun += n;
    if (c->role != ROLE_FIELD) {
        spread_numbers(b->numbers + first, c->dictionary.numbers, r->numbers, def, n,
                       r->plan->numeric_missing);
        return 0;
    }
    assert(b->keys.n_keys == first);
    if (b->keys.keys_cap < first + n && batch_reserve_keys(&b->keys, n))
        return no_memory(r, err);
    spread_keys(b->keys.keys + first, c->dictionary.keys.keys, r->numbers, def, n,
                c->missing_key);
    b->keys.n_keys += n;
    for (uint32_t i = first; i < first + n; i++)
        b->starts[i + 1] = i + 1;
    return 0;
}

/* ---- and from plain values, where a token has one key at most ---- */

static bool is_hashed(const struct parquet_rows *r, const struct column *c)
{
    const enum parquet_type type = c->in.type->type;

    return c->role == ROLE_FIELD && !c->in.has_numbers && !c->is_list && c->is_simple &&
           c->block.single && r->plan->missing_has_key && !r->plan->missing[0] &&
           (type == PARQUET_TEXT || type == PARQUET_INT || type == PARQUET_UINT);
}

/* The empty token's key is that of a missing one. */
static void hash_values(const struct column *c, const struct parquet_values *v, uint64_t *to)
{
    const enum parquet_type type = c->in.type->type;
    char space[PARQUET_TOKEN_BYTES];

    for (uint32_t i = 0; i < v->n; i++) {
        struct line_parser_span token =
            type == PARQUET_TEXT ? v->texts[i] : parquet_token_of(type, v, i, space);

        to[i] = XXH3_64bits_withSeed(token.at, token.len, c->seed);
    }
}

static int hash_entries(struct parquet_rows *r, struct filling *f, const uint32_t *def,
                        uint32_t n, struct err *err)
{
    struct column *c = f->c;
    struct converted *b = &c->block;
    const uint32_t first = f->n_begun;
    uint64_t *keys;
    uint32_t n_values = 0, n_done = 0;

    for (uint32_t i = 0; def && i < n; i++)
        n_values += def[i];
    n_values = def ? n_values : n;
    if (b->keys.keys_cap < first + n && batch_reserve_keys(&b->keys, n))
        return no_memory(r, err);
    /* At the back of their rows' places, so that they can be spread from the front. */
    keys = b->keys.keys + first + (n - n_values);
    while (n_done < n_values) {
        struct parquet_values v = { .integers = r->scratch };
        int status = parquet_column_values(&c->in, n_values - n_done, &v, err);

        if (status)
            return status;
        hash_values(c, &v, keys + n_done);
        n_done += v.n;
    }
    for (uint32_t i = 0, at = 0; def && i < n; i++)
        b->keys.keys[first + i] = def[i] ? keys[at++] : c->missing_key;
    for (uint32_t i = first; i < first + n; i++)
        b->starts[i + 1] = i + 1;
    b->keys.n_keys += n;
    f->n_begun += n;
    return 0;
}

/* ---- blocks ---- */

static int too_few(const struct parquet_rows *r, const struct column *c, struct err *err)
{
    return err_set(err, PS_EDATA,
                   "%s: column '%.60s' is damaged: it has fewer rows than its row group",
                   parquet_file_path(r->file), c->in.type->name);
}

static int read_column(struct parquet_rows *r, struct column *c, uint32_t n_rows,
                       struct err *err)
{
    struct filling f = { .c = c, .n_rows = n_rows };
    const uint32_t *rep, *def;
    uint32_t n, n_used;
    int status = 0;

    c->block.keys.n_keys = 0;
    c->block.single = true;
    /* Behind a LIST's last row its end shows only with the next row, or at the chunk's end. */
    while (!status && (f.n_begun < n_rows || c->is_list)) {
        status = parquet_column_levels(&c->in, f.n_begun < n_rows ? n_rows - f.n_begun : 1,
                                       &rep, &def, &n, err);
        if (status || n == 0)
            break;
        if (!c->is_list && close_row(r, &f))
            return no_memory(r, err);
        if (c->in.has_numbers && c->dictionary_id != c->in.dictionary_id &&
            convert_dictionary(r, c))
            return no_memory(r, err);
        n_used = n;
        status = is_gathered(r, c, def) ? gather(r, &f, def, n, err)
                 : is_hashed(r, c)      ? hash_entries(r, &f, def, n, err)
                                        : put_entries(r, &f, rep, def, n, &n_used, err);
        parquet_column_take(&c->in, n_used);
        if (n_used < n)
            break;
    }
    if (!status && f.n_begun < n_rows)
        status = too_few(r, c, err);
    return status ? status : close_row(r, &f) ? no_memory(r, err) : 0;
}

static int begin_group(struct parquet_rows *r, uint32_t group, struct err *err)
{
    int status = parquet_file_chunks(r->file, group, r->types, r->n_columns, r->chunks, err);

    if (status)
        return status;
    for (uint32_t i = 0; i < r->n_columns; i++)
        parquet_column_begin(&r->columns[i].in, &r->chunks[i]);
    r->group = group;
    r->group_begun = true;
    r->column_row = group ? parquet_file_group_end(r->file, group - 1) : 0;
    return 0;
}

static int find_group(struct parquet_rows *r, uint64_t row, struct err *err)
{
    uint32_t group = r->group;

    while (row >= parquet_file_group_end(r->file, group))
        group++;
    return r->group_begun && group == r->group ? 0 : begin_group(r, group, err);
}

static void point_at_block(struct parquet_rows *r)
{
    const struct column *c = r->columns + r->plan->n_labels;

    for (uint32_t i = 0; i < r->plan->n_numeric; i++)
        r->numerics[i] = (c++)->block.numbers;
    r->all_single = true;
    for (uint32_t f = 0; f < r->plan->n_fields; f++, c++) {
        r->field_keys[f] = c->block.keys.keys;
        r->all_single &= c->block.single;
    }
}

static int read_block(struct parquet_rows *r, uint64_t row, struct err *err)
{
    struct parquet_values scratch = { .integers = r->scratch };
    uint64_t n;
    int status = find_group(r, row, err);

    if (status)
        return status;
    n = parquet_file_group_end(r->file, r->group) - row;
    n = n < r->n_block_max ? n : r->n_block_max;
    r->n_block = r->n_refusals = 0;
    memset(r->refused, 0, sizeof r->refused);
    for (uint32_t i = 0; i < r->n_columns && !status; i++) {
        status = parquet_column_skip(&r->columns[i].in, row - r->column_row, &scratch, err);
        if (!status)
            status = read_column(r, &r->columns[i], (uint32_t)n, err);
    }
    if (status)
        return status;
    r->block_row = row;
    r->n_block = (uint32_t)n;
    r->column_row = row + n;
    point_at_block(r);
    return 0;
}

int parquet_rows_fetch(struct parquet_rows *r, struct err *err)
{
    const uint64_t row = r->n_next - 1;

    assert(r->n_next > 0);
    if (row - r->block_row < r->n_block && row >= r->block_row)
        return 0;
    return read_block(r, row, err);
}

/* ---- rows ---- */

bool parquet_rows_next(struct parquet_rows *r)
{
    if (r->n_next == parquet_file_n_rows(r->file))
        return false;
    r->n_next++;
    return true;
}

uint64_t parquet_rows_number(const struct parquet_rows *r)
{
    return r->n_next;
}

uint64_t parquet_rows_bytes(const struct parquet_rows *r)
{
    const uint64_t n_rows = parquet_file_n_rows(r->file);

    if (r->n_next == n_rows)
        return parquet_file_n_bytes(r->file);
    return (uint64_t)((double)parquet_file_n_bytes(r->file) *
                      ((double)r->n_next / (double)n_rows));
}

static int add_single(const struct parquet_rows *r, uint32_t row, struct batch *b)
{
    const uint32_t n_fields = r->plan->n_fields, n = b->n_keys;
    uint32_t *ends = b->starts + (size_t)b->n * n_fields + 1;

    if (b->keys_cap - n < n_fields && batch_reserve_keys(b, n_fields))
        return -ENOMEM;
    for (uint32_t f = 0; f < n_fields; f++) {
        b->keys[n + f] = r->field_keys[f][row];
        ends[f] = n + f + 1;
    }
    b->n_keys = n + n_fields;
    return 0;
}

static int add_bags(const struct parquet_rows *r, const struct column *fields, uint32_t row,
                    struct batch *b)
{
    uint32_t *ends = b->starts + (size_t)b->n * b->n_fields + 1, n = b->n_keys, n_row = 0;

    for (uint32_t f = 0; f < r->plan->n_fields; f++)
        n_row += fields[f].block.starts[row + 1] - fields[f].block.starts[row];
    if (b->keys_cap - n < n_row && batch_reserve_keys(b, n_row))
        return -ENOMEM;
    for (uint32_t f = 0; f < r->plan->n_fields; f++) {
        const struct converted *k = &fields[f].block;

        for (uint32_t at = k->starts[row]; at < k->starts[row + 1]; at++)
            b->keys[n++] = k->keys.keys[at];
        ends[f] = n;
    }
    b->n_keys = n;
    return 0;
}

int parquet_rows_add(struct parquet_rows *r, struct batch *b, struct err *why)
{
    const struct line_parser_plan *p = r->plan;
    const uint32_t row = (uint32_t)(r->n_next - 1 - r->block_row);
    float *numeric = b->numeric + (size_t)b->n * p->n_numeric,
          *labels = b->label + (size_t)b->n * b->n_labels;

    assert(row < r->n_block && b->n < b->n_max && b->n_numeric == p->n_numeric &&
           b->n_fields == p->n_fields);
    assert(!p->n_labels || b->n_labels == p->n_labels);
    if (r->refused[row])
        return err_set(why, PS_EDATA, "%s", r->refusals[r->refused[row] - 1].text);
    for (uint32_t i = 0; i < b->n_labels; i++)
        labels[i] = p->n_labels ? r->columns[i].block.numbers[row] : 0;
    for (uint32_t i = 0; i < p->n_numeric; i++)
        numeric[i] = r->numerics[i][row];
    if (r->all_single ? add_single(r, row, b)
                      : add_bags(r, r->columns + p->n_labels + p->n_numeric, row, b))
        return -ENOMEM;
    b->n++;
    return 0;
}

/* ---- opening ---- */

static int no_column(const struct parquet_rows *r, const char *name, struct err *err)
{
    char names[120] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < parquet_file_n_columns(r->file); i++) {
        const char *each = parquet_file_column(r->file, i)->name;

        if (n + strlen(each) + 8 > sizeof names) {
            memcpy(names + n, ", ...", sizeof ", ...");
            break;
        }
        n += (size_t)sprintf(names + n, "%s%s", i ? ", " : "", each);
    }
    return err_set(err, PS_EDATA, "%s: no column is called '%.40s'; there are %s",
                   parquet_file_path(r->file), name, names);
}

static int find_column(const struct parquet_rows *r, uint32_t column,
                       const struct parquet_file_column **ret, struct err *err)
{
    const char *name = r->plan->names ? r->plan->names[column] : NULL;
    const uint32_t n = parquet_file_n_columns(r->file);
    uint32_t n_found = 0;

    if (!name || !name[0]) {
        if (n != r->plan->n_columns)
            return err_set(err, PS_EDATA, "%s: %u column%s, %u expected",
                           parquet_file_path(r->file), n, NUMBER_PLURAL(n), r->plan->n_columns);
        *ret = parquet_file_column(r->file, column);
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(parquet_file_column(r->file, i)->name, name) == 0 && n_found++ == 0)
            *ret = parquet_file_column(r->file, i);
    if (n_found > 1)
        return err_set(err, PS_EDATA, "%s: %u columns are called '%.60s'",
                       parquet_file_path(r->file), n_found, name);
    return n_found ? 0 : no_column(r, name, err);
}

static int check_type(const struct parquet_rows *r, const struct column *c,
                      const struct parquet_file_column *type, struct err *err)
{
    if (type->refused[0])
        return err_set(err, PS_EDATA,
                       "%s: column '%.60s' is a %s; integers, reals, booleans, texts and LISTs "
                       "of them can be read",
                       parquet_file_path(r->file), type->name, type->refused);
    if (type->rep_max && (c->role != ROLE_FIELD || r->plan->fields[c->index].is_bucket))
        return err_set(err, PS_EDATA,
                       "%s: column '%.60s' is a LIST, which can be categorical only, not %s",
                       parquet_file_path(r->file), type->name,
                       c->role == ROLE_LABEL ? "a label" : "numeric or bucketised");
    return 0;
}

static int alloc_column(struct column *c)
{
    if (batch_init(&c->dictionary.keys, 1, 0, 0) || batch_init(&c->block.keys, 1, 0, 0))
        return -ENOMEM;
    c->block.numbers = memory_try_alloc(PARQUET_ROWS_BLOCK_MAX * sizeof *c->block.numbers);
    c->block.starts = memory_try_alloc((PARQUET_ROWS_BLOCK_MAX + 1) * sizeof *c->block.starts);
    return c->block.numbers && c->block.starts ? 0 : -ENOMEM;
}

static int add_column(struct parquet_rows *r, enum role role, uint32_t index, uint32_t column,
                      struct err *err)
{
    const struct line_parser_plan *p = r->plan;
    struct column *c = &r->columns[r->n_columns];
    int status;

    c->role = role;
    c->index = index;
    status = find_column(r, column, &r->types[r->n_columns], err);
    if (!status)
        status = check_type(r, c, r->types[r->n_columns], err);
    if (status)
        return status;
    parquet_column_init(&c->in, r->file, r->types[r->n_columns++]);
    c->is_list = c->in.type->rep_max > 0;
    if (role == ROLE_FIELD) {
        c->is_simple =
            !p->fields[index].is_bucket && !p->fields[index].space && !p->inner_separator[0];
        c->seed = p->fields[index].seed;
        c->missing_key =
            line_parser_key_of(&p->fields[index], XXH3_64bits_withSeed("", 0, c->seed));
    }
    return alloc_column(c) ? no_memory(r, err) : 0;
}

static int add_columns(struct parquet_rows *r, struct err *err)
{
    const struct line_parser_plan *p = r->plan;
    const size_t n = (size_t)p->n_labels + p->n_numeric + p->n_fields + 1;
    int status = 0;

    r->columns = memory_try_alloc(n * sizeof *r->columns);
    r->chunks = memory_try_alloc(n * sizeof *r->chunks);
    r->types = memory_try_alloc(n * sizeof *r->types);
    r->numerics = memory_try_alloc(n * sizeof *r->numerics);
    r->field_keys = memory_try_alloc(n * sizeof *r->field_keys);
    r->scratch = memory_try_alloc(PARQUET_VALUES_MAX * sizeof(struct line_parser_span));
    if (!r->columns || !r->chunks || !r->types || !r->numerics || !r->field_keys || !r->scratch)
        return no_memory(r, err);
    for (uint32_t i = 0; i < p->n_labels && !status; i++)
        status = add_column(r, ROLE_LABEL, i, p->label_columns[i], err);
    for (uint32_t i = 0; i < p->n_numeric && !status; i++)
        status = add_column(r, ROLE_NUMERIC, i, p->numeric_columns[i], err);
    for (uint32_t f = 0; f < p->n_fields && !status; f++)
        status = add_column(r, ROLE_FIELD, f, p->fields[f].column, err);
    return status;
}

/* Blocks that end where the rows do that are wanted together. */
static uint32_t block_size(uint32_t n_rows)
{
    const uint32_t n_blocks = (n_rows + PARQUET_ROWS_BLOCK_MAX - 1) / PARQUET_ROWS_BLOCK_MAX;

    return n_blocks ? (n_rows + n_blocks - 1) / n_blocks : PARQUET_ROWS_BLOCK_MAX;
}

int parquet_rows_open(const char *path, const struct line_parser_plan *plan,
                      uint32_t block_rows, struct parquet_rows **ret, struct err *err)
{
    struct parquet_rows *r = memory_try_alloc(sizeof *r);
    int status;

    if (!r)
        return err_set(err, -ENOMEM, "%s: no memory to read it", path);
    r->plan = plan;
    r->n_block_max = block_size(block_rows);
    status = parquet_file_open(path, &r->file, err);
    if (!status)
        status = add_columns(r, err);
    if (status) {
        parquet_rows_close(r);
        return status;
    }
    *ret = r;
    return 0;
}

static void deinit_converted(struct converted *c)
{
    free(c->numbers);
    free(c->starts);
    batch_deinit(&c->keys);
}

void parquet_rows_close(struct parquet_rows *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_columns; i++) {
        parquet_column_deinit(&r->columns[i].in);
        deinit_converted(&r->columns[i].dictionary);
        deinit_converted(&r->columns[i].block);
        free(r->columns[i].is_bad);
    }
    parquet_file_close(r->file);
    free(r->columns);
    free(r->chunks);
    free((void *)r->types);
    free((void *)r->numerics);
    free((void *)r->field_keys);
    free(r->scratch);
    free(r->refusals);
    free(r);
}

int parquet_rows_count(const char *path, uint64_t *ret_rows, struct err *err)
{
    struct parquet_file *file;
    int status = parquet_file_open(path, &file, err);

    if (status)
        return status;
    *ret_rows = parquet_file_n_rows(file);
    parquet_file_close(file);
    return 0;
}
