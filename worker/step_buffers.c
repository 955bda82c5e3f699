#include "worker/step_buffers.h"

#include <errno.h>
#include <stdlib.h>

#include "common/log_line.h"
#include "common/memory.h"

static void free_array(const struct step_buffers_shape *shape, float **array, size_t n_floats)
{
    dlrm_host_free(shape->model, *array, n_floats * sizeof **array);
    *array = NULL;
}

static void free_to(struct step_buffers *step, const struct step_buffers_shape *shape)
{
    if (!step->pulled)
        return;
    dlrm_host_free(shape->model, step->pulled->to, step->rows_cap * sizeof *step->pulled->to);
    step->pulled->to = NULL;
}

static void free_rows(struct step_buffers *step, const struct step_buffers_shape *shape)
{
    const size_t n_floats = (size_t)step->rows_cap * shape->dim;

    free_array(shape, &step->rows, n_floats);
    free_array(shape, &step->row_grads, n_floats);
    free_array(shape, &step->states, (size_t)step->rows_cap * shape->n_states);
    free_array(shape, &step->wide, step->rows_cap);
    free_array(shape, &step->wide_grads, step->rows_cap);
    free_to(step, shape);
    free(step->versions);
    free(step->places);
    step->versions = NULL;
    step->places = NULL;
    step->rows_cap = 0;
}

void step_buffers_decode(struct step_buffers_shape *shape)
{
    if (!dlrm_decodes(shape->model))
        return;
    dlrm_take_pulled(shape->model);
    shape->decodes = true;
    log_line_info("rows come to the device as the servers send them");
}

const struct dlrm_pulled *step_buffers_pulled(struct step_buffers *step)
{
    const struct pulled_rows *pulled = step->pulled;

    if (!pulled)
        return NULL;
    step->pulled_step =
        (struct dlrm_pulled){ pulled->codec, pulled->n_shards, pulled->parts, pulled->to };
    return &step->pulled_step;
}

int step_buffers_init(struct step_buffers *step, const struct step_buffers_shape *shape,
                      struct err *err)
{
    const size_t n_bytes = dlrm_dense_floats(shape->model) * sizeof *step->dense;

    *step = (struct step_buffers){ .dense = dlrm_host_alloc(shape->model, n_bytes) };
    if (step->dense && !shape->encodes)
        step->dense_grads = dlrm_host_alloc(shape->model, n_bytes);
    if (step->dense && (step->dense_grads || shape->encodes))
        return 0;
    step_buffers_deinit(step, shape);
    return err_set(err, -ENOMEM, "no memory for %zu dense weights",
                   dlrm_dense_floats(shape->model));
}

void step_buffers_deinit(struct step_buffers *step, const struct step_buffers_shape *shape)
{
    free_rows(step, shape);
    if (step->pulled)
        pulled_rows_deinit(step->pulled);
    free(step->pulled);
    free_array(shape, &step->dense, dlrm_dense_floats(shape->model));
    free_array(shape, &step->dense_grads, dlrm_dense_floats(shape->model));
    free(step->update_places);
    device_push_step_deinit(&step->device, shape->model);
    device_push_copy_deinit(&step->copy);
    *step = (struct step_buffers){ 0 };
}

static int alloc_array(const struct step_buffers_shape *shape, float **ret, size_t n_floats)
{
    *ret = dlrm_host_alloc(shape->model, n_floats * sizeof **ret);
    return *ret ? 0 : -ENOMEM;
}

/* Only the host reads the numbers. */
static int alloc_places(const struct step_buffers_shape *shape, struct step_buffers *step)
{
    if (!shape->places)
        return 0;
    step->versions = memory_try_alloc(step->rows_cap * sizeof *step->versions);
    step->places = memory_try_alloc(step->rows_cap * sizeof *step->places);
    if (!step->versions || !step->places)
        return -ENOMEM;
    return shape->n_states
               ? alloc_array(shape, &step->states, (size_t)step->rows_cap * shape->n_states)
               : 0;
}

/* An array of rows, and one of gradients where there are such. */
static int alloc_two(const struct step_buffers_shape *shape, float **ret_rows,
                     float **ret_grads, size_t n_floats)
{
    int status = alloc_array(shape, ret_rows, n_floats);

    return status || shape->encodes ? status : alloc_array(shape, ret_grads, n_floats);
}

/* Where the rows of a pull go. */
static int alloc_to(const struct step_buffers_shape *shape, struct step_buffers *step)
{
    if (!step->pulled)
        step->pulled = memory_try_alloc(sizeof *step->pulled);
    if (!step->pulled)
        return -ENOMEM;
    step->pulled->to = dlrm_host_alloc(shape->model, step->rows_cap * sizeof *step->pulled->to);
    return step->pulled->to ? 0 : -ENOMEM;
}

/* Embedding rows, and their gradients where there are such. */
static int alloc_embeddings(const struct step_buffers_shape *shape, struct step_buffers *step,
                            size_t n_floats)
{
    int status;

    if (!shape->decodes)
        return alloc_two(shape, &step->rows, &step->row_grads, n_floats);
    status = alloc_to(shape, step);
    return status || shape->encodes ? status : alloc_array(shape, &step->row_grads, n_floats);
}

int step_buffers_reserve_rows(struct step_buffers *step, const struct step_buffers_shape *shape,
                              struct err *err)
{
    uint32_t n_rows = step->batch->n_unique, cap = n_rows ? n_rows + n_rows / 2 : 1;
    size_t n_floats = (size_t)cap * shape->dim;

    if (step->rows_cap && n_rows <= step->rows_cap)
        return 0;
    free_rows(step, shape);
    step->rows_cap = cap;
    if (!alloc_embeddings(shape, step, n_floats) &&
        (!shape->wide || !alloc_two(shape, &step->wide, &step->wide_grads, cap)) &&
        !alloc_places(shape, step))
        return 0;
    free_rows(step, shape);
    return err_set(err, -ENOMEM, "no memory for %u embedding rows of %u floats", n_rows,
                   shape->dim);
}
