#include "worker/travel.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "worker/client/residual.h"

#define ROWS_AT_A_TIME 65536u /* between the device and the host */

static_assert(DLRM_NONE == RESIDUAL_NONE, "an index' numbers are the device's");

struct flow {
    struct travel_table table;
    struct residual index;
    uint32_t n_device_rows;
};

struct travel {
    struct dlrm *model; /* borrowed, as the encoder */
    struct encoder *encoder;
    uint32_t n;
    struct flow *flows; /* owned, n */
    bool is_loaded;
    uint64_t n_settled_rows;
    _Atomic uint64_t n_rows, n_bytes, n_settled; /* for travel_stats() */
};

/* What a step has of one flow. */
struct travel_part {
    struct owed owed;
    uint8_t *bytes; /* in the step's room */
};

/* ---- the run's ---- */

static void note_stats(struct travel *t)
{
    uint64_t n_rows = 0, n_bytes = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct flow *f = &t->flows[i];

        n_rows += f->index.n_rows;
        n_bytes += residual_bytes(&f->index) +
                   (uint64_t)f->n_device_rows * f->index.dim * sizeof(float);
    }
    atomic_store_explicit(&t->n_rows, n_rows, memory_order_relaxed);
    atomic_store_explicit(&t->n_bytes, n_bytes, memory_order_relaxed);
    atomic_store_explicit(&t->n_settled, t->n_settled_rows, memory_order_relaxed);
}

void travel_stats(const struct travel *t, struct ps_stats *stats)
{
    stats->residual_rows += atomic_load_explicit(&t->n_rows, memory_order_relaxed);
    stats->residual_bytes += atomic_load_explicit(&t->n_bytes, memory_order_relaxed);
    stats->residual_settled += atomic_load_explicit(&t->n_settled, memory_order_relaxed);
}

static struct residual *host_residual(const struct travel *t, const struct flow *f)
{
    return encoder_residual(t->encoder, f->table.table);
}

/* Rows that an earlier run has left to keys that the table does not have: a file of another model may name them. */
static uint32_t n_strange(const struct residual *host, uint32_t n_blocks)
{
    uint32_t n = 0;

    for (uint32_t i = host->oldest; i; i = host->newer[i - 1])
        n += host->keys[i - 1] >= n_blocks;
    return n;
}

/* As many rows as may ever be owed something at a time; what an earlier run has left may be more than the bound. */
static uint32_t rows_of(const struct travel_table *table, const struct residual *host)
{
    if (!table->may_owe)
        return host->n_rows;
    if (table->n_blocks)
        return table->n_blocks + n_strange(host, table->n_blocks);
    return host->rows_max > host->n_rows ? host->rows_max : host->n_rows;
}

static int reserve(struct travel *t, struct flow *f, struct err *err)
{
    const struct residual *host = host_residual(t, f);
    const uint32_t n_rows = rows_of(&f->table, host);
    int status;

    residual_init_index(&f->index, host->dim);
    f->index.rows_max = host->rows_max;
    if (!n_rows)
        return 0;
    if (n_rows >= RESIDUAL_ROWS_MAX)
        return err_set(err, -ENOMEM,
                       "without a --residual-max there is no end to what may be owed");
    status = dlrm_owed_reserve(t->model, f->table.flow, n_rows);
    if (status == -ENOMEM)
        return err_set(err, status,
                       "the device has no room for %u rows of %u floats that may be owed "
                       "(--residual-max)",
                       n_rows, host->dim);
    f->n_device_rows = n_rows;
    return status ? dlrm_failed(t->model, status, err) : 0;
}

int travel_new(struct dlrm *model, struct encoder *encoder, const struct travel_table *tables,
               uint32_t n, struct travel **ret, struct err *err)
{
    struct travel *t = mem_alloc(sizeof *t);
    int status = 0;

    *t = (struct travel){ .model = model, .encoder = encoder, .n = n };
    t->flows = mem_alloc(n * sizeof *t->flows);
    for (uint32_t i = 0; i < n && !status; i++) {
        t->flows[i].table = tables[i];
        status = reserve(t, &t->flows[i], err);
    }
    if (status) {
        dlrm_owed_release(model); /* who goes on without it may need the memory */
        travel_free(t);
        return status;
    }
    *ret = t;
    return 0;
}

void travel_free(struct travel *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n; i++)
        residual_deinit(&t->flows[i].index);
    free(t->flows);
    free(t);
}

/* ---- from the host, and to it ---- */

static uint32_t some_of(uint32_t n_left)
{
    return n_left < ROWS_AT_A_TIME ? n_left : ROWS_AT_A_TIME;
}

/* The host's rows, the oldest first, as many as fit the arrays, get numbers in the index. Returns the row behind them. */
static uint32_t number_rows(struct flow *f, const struct residual *host, uint32_t row,
                            uint32_t n, uint32_t *at, float *rows)
{
    for (uint32_t i = 0; i < n; i++, row = host->newer[row - 1]) {
        at[i] = residual_touch(&f->index, host->keys[row - 1]);
        memcpy(rows + (size_t)i * host->dim, host->floats + (size_t)(row - 1) * host->dim,
               host->dim * sizeof *rows);
    }
    return row;
}

/* And go where these say. */
static int put_rows(struct travel *t, struct flow *f, const struct residual *host)
{
    const uint32_t n_most = some_of(host->n_rows);
    uint32_t *at = mem_try_alloc(n_most * sizeof *at);
    float *rows = mem_try_alloc((size_t)n_most * host->dim * sizeof *rows);
    uint32_t row = host->oldest, n, n_left = host->n_rows;
    int status = at && rows ? residual_reserve(&f->index, n_left) : -ENOMEM;

    for (; n_left && !status; n_left -= n) {
        n = some_of(n_left);
        row = number_rows(f, host, row, n, at, rows);
        status = dlrm_owed_put(t->model, f->table.flow, at, n, rows);
    }
    free(at);
    free(rows);
    return status;
}

int travel_load(struct travel *t, struct err *err)
{
    int status = 0;

    if (t->is_loaded)
        return 0;
    for (uint32_t i = 0; i < t->n && !status; i++)
        if (host_residual(t, &t->flows[i])->n_rows)
            status = put_rows(t, &t->flows[i], host_residual(t, &t->flows[i]));
    if (status)
        return dlrm_failed(t->model, status, err);
    for (uint32_t i = 0; i < t->n; i++)
        residual_deinit(host_residual(t, &t->flows[i]));
    note_stats(t);
    t->is_loaded = true;
    return 0;
}

bool travel_is_loaded(const struct travel *t)
{
    return t->is_loaded;
}

/* All rows that have a number, so that few copies do. */
static int get_rows(struct travel *t, const struct flow *f, struct residual *ret)
{
    const uint32_t n_all = f->index.n_numbers, n_most = some_of(n_all);
    uint32_t *at = mem_try_alloc(n_most * sizeof *at), n;
    int status = at ? residual_copy(ret, &f->index) : -ENOMEM;

    for (uint32_t got = 0; got < n_all && !status; got += n) {
        n = some_of(n_all - got);
        for (uint32_t i = 0; i < n; i++)
            at[i] = got + i;
        status =
            dlrm_owed_get(t->model, f->table.flow, at, n, ret->floats + (size_t)got * ret->dim);
    }
    free(at);
    return status;
}

static int copy_failed(struct travel *t, int status, struct err *err)
{
    const uint64_t n_rows = atomic_load_explicit(&t->n_rows, memory_order_relaxed);
    struct err why;

    (void)dlrm_failed(t->model, status, &why);
    return err_set(err, status,
                   "what lossy codecs owe to %llu rows cannot be had from the device: %.300s",
                   (unsigned long long)n_rows, why.text);
}

int travel_copy(struct travel *t, struct travel_copy *ret, struct err *err)
{
    int status = 0;

    assert(t->is_loaded);
    *ret = (struct travel_copy){ t->n, mem_alloc(t->n * sizeof *ret->residuals) };
    for (uint32_t i = 0; i < t->n; i++) {
        residual_init(&ret->residuals[i], t->flows[i].index.dim);
        ret->residuals[i].rows_max = t->flows[i].index.rows_max;
    }
    for (uint32_t i = 0; i < t->n && !status; i++)
        if (t->flows[i].index.n_rows)
            status = get_rows(t, &t->flows[i], &ret->residuals[i]);
    if (!status)
        return 0;
    travel_copy_deinit(ret);
    return copy_failed(t, status, err);
}

void travel_copy_deinit(struct travel_copy *copy)
{
    for (uint32_t i = 0; i < copy->n; i++)
        residual_deinit(&copy->residuals[i]);
    free(copy->residuals);
    *copy = (struct travel_copy){ 0 };
}

void travel_swap(struct travel *t, struct travel_copy *copy)
{
    for (uint32_t i = 0; i < copy->n; i++) {
        struct residual *host = host_residual(t, &t->flows[i]), theirs = *host;

        *host = copy->residuals[i];
        copy->residuals[i] = theirs;
    }
}

/* ---- a step's ---- */

static size_t bytes_of(const struct travel_part *part)
{
    return part->owed.n * part->owed.row_bytes;
}

/* Numbers that owed_take() wants room for. */
static size_t numbers_of(const struct travel_part *part)
{
    return 2 * (size_t)part->owed.n;
}

/* Room for the numbers of all parts, and then for their bytes, one behind the other: what lies so on the device, too, is one
 * copy. */
static int reserve_room(struct travel_step *step, struct dlrm *model)
{
    size_t want = 0;

    for (uint32_t i = 0; i < step->n; i++)
        want += numbers_of(&step->parts[i]) * sizeof *step->room + bytes_of(&step->parts[i]);
    if (want <= step->room_bytes)
        return 0;
    dlrm_host_free(model, step->room, step->room_bytes);
    step->room_bytes = want + want / 2;
    step->room = dlrm_host_alloc(model, step->room_bytes);
    if (step->room)
        return 0;
    step->room_bytes = 0;
    return -ENOMEM;
}

/* Where the bytes begin. */
static uint8_t *bytes_in(const struct travel_step *step)
{
    uint32_t *end = step->room;

    for (uint32_t i = 0; i < step->n; i++)
        end += numbers_of(&step->parts[i]);
    return (uint8_t *)end;
}

static void open_step(const struct travel *t, struct travel_step *step)
{
    if (step->parts)
        return;
    step->n = t->n;
    step->parts = mem_alloc(t->n * sizeof *step->parts);
    step->flows = mem_alloc(dlrm_n_flows(t->model) * sizeof *step->flows);
}

void travel_step_deinit(struct travel_step *step, struct dlrm *model)
{
    for (uint32_t i = 0; i < step->n; i++)
        owed_deinit(&step->parts[i].owed);
    dlrm_host_free(model, step->room, step->room_bytes);
    free(step->parts);
    free(step->flows);
    *step = (struct travel_step){ 0 };
}

/* All that can fail. */
static int prepare(struct travel *t, struct travel_step *step,
                   const struct ps_push_section *sections)
{
    int status = 0;

    for (uint32_t i = 0; i < t->n && !status; i++)
        status = owed_prepare(&step->parts[i].owed, &t->flows[i].index, &sections[i]);
    return status ? status : reserve_room(step, t->model);
}

int travel_begin(struct travel *t, struct travel_step *step,
                 const struct ps_push_section *sections, struct err *err)
{
    uint32_t *numbers;
    uint8_t *bytes;

    open_step(t, step);
    if (prepare(t, step, sections))
        return err_set(err, -ENOMEM, "no memory for a step's gradients as they travel");
    numbers = step->room;
    bytes = bytes_in(step);
    for (uint32_t i = 0; i < t->n; i++) {
        struct travel_part *part = &step->parts[i];

        owed_take(&part->owed, &t->flows[i].index, &sections[i], numbers);
        numbers += numbers_of(part);
        part->bytes = bytes;
        bytes += bytes_of(part);
        t->n_settled_rows += part->owed.settles ? part->owed.n : 0;
        step->flows[t->flows[i].table.flow] = (struct dlrm_travel){ .codec = part->owed.codec,
                                                                    .k = part->owed.k,
                                                                    .n = part->owed.n,
                                                                    .from = part->owed.from,
                                                                    .owed_at = part->owed.at,
                                                                    .bytes = part->bytes };
    }
    note_stats(t);
    return 0;
}

void travel_sections(const struct travel_step *step, struct ps_push_section *sections)
{
    for (uint32_t i = 0; i < step->n; i++) {
        const struct owed *o = &step->parts[i].owed;

        sections[i].codec = o->codec;
        sections[i].n_keys = o->n;
        sections[i].keys = o->keys;
        sections[i].values = NULL;
        sections[i].encoded = step->parts[i].bytes;
    }
}
