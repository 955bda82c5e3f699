#include "worker/slot.h"

#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"

static void drop(const struct slot_shape *shape, float **array, size_t n_floats)
{
    dlrm_host_free(shape->model, *array, n_floats * sizeof **array);
    *array = NULL;
}

static void drop_rows(struct slot *slot, const struct slot_shape *shape)
{
    const size_t n_floats = (size_t)slot->rows_cap * shape->dim;

    drop(shape, &slot->rows, n_floats);
    drop(shape, &slot->row_grads, n_floats);
    drop(shape, &slot->wide, slot->rows_cap);
    drop(shape, &slot->wide_grads, slot->rows_cap);
    free(slot->versions);
    free(slot->places);
    slot->versions = NULL;
    slot->places = NULL;
    slot->rows_cap = 0;
}

int slot_init(struct slot *slot, const struct slot_shape *shape, struct err *err)
{
    const size_t n_bytes = dlrm_dense_floats(shape->model) * sizeof *slot->dense;

    *slot = (struct slot){ .dense = dlrm_host_alloc(shape->model, n_bytes) };
    if (slot->dense && !shape->encodes)
        slot->dense_grads = dlrm_host_alloc(shape->model, n_bytes);
    if (slot->dense && (slot->dense_grads || shape->encodes))
        return 0;
    slot_deinit(slot, shape);
    return err_set(err, -ENOMEM, "no memory for %zu dense weights",
                   dlrm_dense_floats(shape->model));
}

void slot_deinit(struct slot *slot, const struct slot_shape *shape)
{
    drop_rows(slot, shape);
    drop(shape, &slot->dense, dlrm_dense_floats(shape->model));
    drop(shape, &slot->dense_grads, dlrm_dense_floats(shape->model));
    travel_step_deinit(&slot->travel, shape->model);
    travel_copy_deinit(&slot->copy);
    *slot = (struct slot){ 0 };
}

static int take(const struct slot_shape *shape, float **ret, size_t n_floats)
{
    *ret = dlrm_host_alloc(shape->model, n_floats * sizeof **ret);
    return *ret ? 0 : -ENOMEM;
}

/* Only the host looks at them. */
static int take_places(const struct slot_shape *shape, struct slot *slot)
{
    if (!shape->places)
        return 0;
    slot->versions = mem_try_alloc(slot->rows_cap * sizeof *slot->versions);
    slot->places = mem_try_alloc(slot->rows_cap * sizeof *slot->places);
    return slot->versions && slot->places ? 0 : -ENOMEM;
}

/* An array of rows, and one of gradients where there are such. */
static int take_two(const struct slot_shape *shape, float **ret_rows, float **ret_grads,
                    size_t n_floats)
{
    int status = take(shape, ret_rows, n_floats);

    return status || shape->encodes ? status : take(shape, ret_grads, n_floats);
}

int slot_reserve_rows(struct slot *slot, const struct slot_shape *shape, struct err *err)
{
    uint32_t n_rows = slot->batch->n_unique, cap = n_rows ? n_rows + n_rows / 2 : 1;
    size_t n_floats = (size_t)cap * shape->dim;

    if (slot->rows_cap && n_rows <= slot->rows_cap)
        return 0;
    drop_rows(slot, shape);
    slot->rows_cap = cap;
    if (!take_two(shape, &slot->rows, &slot->row_grads, n_floats) &&
        (!shape->wide || !take_two(shape, &slot->wide, &slot->wide_grads, cap)) &&
        !take_places(shape, slot))
        return 0;
    drop_rows(slot, shape);
    return err_set(err, -ENOMEM, "no memory for %u embedding rows of %u floats", n_rows,
                   shape->dim);
}
