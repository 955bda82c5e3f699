#include "worker/device_push.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/error_feedback.h"

#define ROWS_AT_A_TIME 65536u /* between the device and the host */

static_assert(DLRM_NONE == ERROR_FEEDBACK_NONE, "an index' numbers are the device's");

struct gradient {
    struct device_push_table table;
    struct error_feedback index;
    uint32_t n_device_rows;
};

struct device_push {
    struct dlrm *model; /* borrowed, as the encoder */
    struct push_encoder *encoder;
    uint32_t n;
    struct gradient *gradients; /* owned, n */
    bool is_loaded;
    uint64_t n_flushed_rows;
    _Atomic uint64_t n_rows, n_bytes, n_flushed; /* for device_push_stats() */
};

/* ---- the run ---- */

static void note_stats(struct device_push *t)
{
    uint64_t n_rows = 0, n_bytes = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct gradient *f = &t->gradients[i];

        n_rows += f->index.n_rows;
        n_bytes += error_feedback_bytes(&f->index) +
                   (uint64_t)f->n_device_rows * f->index.dim * sizeof(float);
    }
    atomic_store_explicit(&t->n_rows, n_rows, memory_order_relaxed);
    atomic_store_explicit(&t->n_bytes, n_bytes, memory_order_relaxed);
    atomic_store_explicit(&t->n_flushed, t->n_flushed_rows, memory_order_relaxed);
}

void device_push_stats(const struct device_push *t, struct ps_stats *stats)
{
    stats->residual_rows += atomic_load_explicit(&t->n_rows, memory_order_relaxed);
    stats->residual_bytes += atomic_load_explicit(&t->n_bytes, memory_order_relaxed);
    stats->residual_flushed += atomic_load_explicit(&t->n_flushed, memory_order_relaxed);
}

static struct error_feedback *host_residual(const struct device_push *t,
                                            const struct gradient *f)
{
    return push_encoder_residual(t->encoder, f->table.table);
}

/* Residual rows whose keys the table does not have: the file of another model may hold such. */
static uint32_t n_unknown_rows(const struct error_feedback *host, uint32_t n_blocks)
{
    uint32_t n = 0;

    for (uint32_t i = host->oldest; i; i = host->newer[i - 1])
        n += host->keys[i - 1] >= n_blocks;
    return n;
}

/* The most residual rows at a time; an earlier run may have left more than the bound. */
static uint32_t rows_of(const struct device_push_table *table,
                        const struct error_feedback *host)
{
    if (!table->has_feedback)
        return host->n_rows;
    if (table->n_blocks)
        return table->n_blocks + n_unknown_rows(host, table->n_blocks);
    return host->rows_max > host->n_rows ? host->rows_max : host->n_rows;
}

static int reserve(struct device_push *t, struct gradient *f, struct err *err)
{
    const struct error_feedback *host = host_residual(t, f);
    const uint32_t n_rows = rows_of(&f->table, host);
    int status;

    error_feedback_init_index(&f->index, host->dim);
    f->index.rows_max = host->rows_max;
    if (!n_rows)
        return 0;
    if (n_rows >= ERROR_FEEDBACK_ROWS_MAX)
        return err_set(err, -ENOMEM,
                       "without a --residual-max the number of residual rows has no bound");
    status = dlrm_residual_reserve(t->model, f->table.gradient, n_rows);
    if (status == -ENOMEM)
        return err_set(err, status,
                       "the device has no memory for %u residual rows of %u floats "
                       "(--residual-max)",
                       n_rows, host->dim);
    f->n_device_rows = n_rows;
    return status ? dlrm_failed(t->model, status, err) : 0;
}

int device_push_new(struct dlrm *model, struct push_encoder *encoder,
                    const struct device_push_table *tables, uint32_t n,
                    struct device_push **ret, struct err *err)
{
    struct device_push *t = memory_alloc(sizeof *t);
    int status = 0;

    *t = (struct device_push){ .model = model, .encoder = encoder, .n = n };
    t->gradients = memory_alloc(n * sizeof *t->gradients);
    for (uint32_t i = 0; i < n && !status; i++) {
        t->gradients[i].table = tables[i];
        status = reserve(t, &t->gradients[i], err);
    }
    if (status) {
        dlrm_residual_release(model); /* the run continues without it and may need the memory */
        device_push_free(t);
        return status;
    }
    *ret = t;
    return 0;
}

void device_push_free(struct device_push *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n; i++)
        error_feedback_deinit(&t->gradients[i].index);
    free(t->gradients);
    free(t);
}

/* ---- residuals to the device and back ---- */

static uint32_t next_rows(uint32_t n_left)
{
    return n_left < ROWS_AT_A_TIME ? n_left : ROWS_AT_A_TIME;
}

/* Gives the host's rows numbers in the index, the oldest first, as many as fit the arrays. Returns the next row. */
static uint32_t number_rows(struct gradient *f, const struct error_feedback *host, uint32_t row,
                            uint32_t n, uint32_t *at, float *rows)
{
    for (uint32_t i = 0; i < n; i++, row = host->newer[row - 1]) {
        at[i] = error_feedback_touch(&f->index, host->keys[row - 1]);
        memcpy(rows + (size_t)i * host->dim, host->floats + (size_t)(row - 1) * host->dim,
               host->dim * sizeof *rows);
    }
    return row;
}

/* Copies the host's rows to the device, at those numbers. */
static int upload_rows(struct device_push *t, struct gradient *f,
                       const struct error_feedback *host)
{
    const uint32_t n_most = next_rows(host->n_rows);
    uint32_t *at = memory_try_alloc(n_most * sizeof *at);
    float *rows = memory_try_alloc((size_t)n_most * host->dim * sizeof *rows);
    uint32_t row = host->oldest, n, n_left = host->n_rows;
    int status = at && rows ? error_feedback_reserve(&f->index, n_left) : -ENOMEM;

    for (; n_left && !status; n_left -= n) {
        n = next_rows(n_left);
        row = number_rows(f, host, row, n, at, rows);
        status = dlrm_residual_put(t->model, f->table.gradient, at, n, rows);
    }
    free(at);
    free(rows);
    return status;
}

int device_push_load(struct device_push *t, struct err *err)
{
    int status = 0;

    if (t->is_loaded)
        return 0;
    for (uint32_t i = 0; i < t->n && !status; i++)
        if (host_residual(t, &t->gradients[i])->n_rows)
            status = upload_rows(t, &t->gradients[i], host_residual(t, &t->gradients[i]));
    if (status)
        return dlrm_failed(t->model, status, err);
    for (uint32_t i = 0; i < t->n; i++)
        error_feedback_deinit(host_residual(t, &t->gradients[i]));
    note_stats(t);
    t->is_loaded = true;
    return 0;
}

bool device_push_is_loaded(const struct device_push *t)
{
    return t->is_loaded;
}

/* Copies all numbered rows, so that few copies suffice. */
static int download_rows(struct device_push *t, const struct gradient *f,
                         struct error_feedback *ret)
{
    const uint32_t n_all = f->index.n_numbers, n_most = next_rows(n_all);
    uint32_t *at = memory_try_alloc(n_most * sizeof *at), n;
    int status = at ? error_feedback_copy(ret, &f->index) : -ENOMEM;

    for (uint32_t got = 0; got < n_all && !status; got += n) {
        n = next_rows(n_all - got);
        for (uint32_t i = 0; i < n; i++)
            at[i] = got + i;
        status = dlrm_residual_get(t->model, f->table.gradient, at, n,
                                   ret->floats + (size_t)got * ret->dim);
    }
    free(at);
    return status;
}

static int copy_failed(struct device_push *t, int status, struct err *err)
{
    const uint64_t n_rows = atomic_load_explicit(&t->n_rows, memory_order_relaxed);
    struct err why;

    (void)dlrm_failed(t->model, status, &why);
    return err_set(err, status,
                   "the residuals of %llu rows cannot be read from the device: %.300s",
                   (unsigned long long)n_rows, why.text);
}

int device_push_copy(struct device_push *t, struct device_push_copy *ret, struct err *err)
{
    int status = 0;

    assert(t->is_loaded);
    *ret = (struct device_push_copy){ t->n, memory_alloc(t->n * sizeof *ret->residuals) };
    for (uint32_t i = 0; i < t->n; i++) {
        error_feedback_init(&ret->residuals[i], t->gradients[i].index.dim);
        ret->residuals[i].rows_max = t->gradients[i].index.rows_max;
    }
    for (uint32_t i = 0; i < t->n && !status; i++)
        if (t->gradients[i].index.n_rows)
            status = download_rows(t, &t->gradients[i], &ret->residuals[i]);
    if (!status)
        return 0;
    device_push_copy_deinit(ret);
    return copy_failed(t, status, err);
}

void device_push_copy_deinit(struct device_push_copy *copy)
{
    for (uint32_t i = 0; i < copy->n; i++)
        error_feedback_deinit(&copy->residuals[i]);
    free(copy->residuals);
    *copy = (struct device_push_copy){ 0 };
}

void device_push_swap(struct device_push *t, struct device_push_copy *copy)
{
    for (uint32_t i = 0; i < copy->n; i++) {
        struct error_feedback *host = host_residual(t, &t->gradients[i]), theirs = *host;

        *host = copy->residuals[i];
        copy->residuals[i] = theirs;
    }
}

/* ---- a step ---- */

static size_t bytes_of(const struct error_feedback_index *o)
{
    return o->n * o->row_bytes;
}

/* Numbers that error_feedback_index_acquire() writes. */
static size_t numbers_of(const struct error_feedback_index *o)
{
    return 2 * (size_t)o->n;
}

/* Space for the numbers of all sections and then for their bytes, contiguous: the same layout on the
 * device makes both one copy. */
static int reserve_buffer(struct device_push_step *step, struct dlrm *model)
{
    size_t want = 0;

    for (uint32_t i = 0; i < step->n; i++)
        want +=
            numbers_of(&step->indexes[i]) * sizeof *step->buffer + bytes_of(&step->indexes[i]);
    if (want <= step->buffer_bytes)
        return 0;
    dlrm_host_free(model, step->buffer, step->buffer_bytes);
    step->buffer_bytes = want + want / 2;
    step->buffer = dlrm_host_alloc(model, step->buffer_bytes);
    if (step->buffer)
        return 0;
    step->buffer_bytes = 0;
    return -ENOMEM;
}

/* Where the bytes begin. */
static uint8_t *bytes_in(const struct device_push_step *step)
{
    uint32_t *end = step->buffer;

    for (uint32_t i = 0; i < step->n; i++)
        end += numbers_of(&step->indexes[i]);
    return (uint8_t *)end;
}

static void open_step(const struct device_push *t, struct device_push_step *step)
{
    if (step->indexes)
        return;
    step->n = t->n;
    step->indexes = memory_alloc(t->n * sizeof *step->indexes);
    step->encoded = memory_alloc(dlrm_n_gradients(t->model) * sizeof *step->encoded);
}

void device_push_step_deinit(struct device_push_step *step, struct dlrm *model)
{
    for (uint32_t i = 0; i < step->n; i++)
        error_feedback_index_deinit(&step->indexes[i]);
    dlrm_host_free(model, step->buffer, step->buffer_bytes);
    free(step->indexes);
    free(step->encoded);
    *step = (struct device_push_step){ 0 };
}

/* All that can fail; no residual changes. */
static int prepare(struct device_push *t, struct device_push_step *step,
                   const struct ps_push_section *sections)
{
    int status = 0;

    for (uint32_t i = 0; i < t->n && !status; i++)
        status = error_feedback_index_prepare(&step->indexes[i], &t->gradients[i].index,
                                              &sections[i]);
    return status ? status : reserve_buffer(step, t->model);
}

int device_push_begin(struct device_push *t, struct device_push_step *step,
                      struct ps_push_section *sections, struct err *err)
{
    uint32_t *numbers;
    uint8_t *bytes;

    open_step(t, step);
    if (prepare(t, step, sections))
        return err_set(err, -ENOMEM, "no memory for a step's encoded gradients");
    numbers = step->buffer;
    bytes = bytes_in(step);
    for (uint32_t i = 0; i < t->n; i++) {
        struct error_feedback_index *o = &step->indexes[i];

        error_feedback_index_acquire(o, &t->gradients[i].index, &sections[i], numbers);
        numbers += numbers_of(o);
        t->n_flushed_rows += o->flushes ? o->n : 0;
        step->encoded[t->gradients[i].table.gradient] =
            (struct dlrm_encoded){ .codec = o->codec,
                                   .k = o->k,
                                   .n = o->n,
                                   .from = o->from,
                                   .residual_at = o->at,
                                   .bytes = bytes };
        sections[i].codec = o->codec;
        sections[i].n_keys = o->n;
        sections[i].keys = o->keys;
        sections[i].values = NULL;
        sections[i].encoded = bytes;
        bytes += bytes_of(o);
    }
    note_stats(t);
    return 0;
}
