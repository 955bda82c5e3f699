#include "worker/slot.h"

#include <errno.h>

#include "common/mem.h"

static int grow(float **array, size_t n_floats)
{
    float *grown = mem_try_realloc(*array, n_floats * sizeof *grown);

    if (!grown)
        return -ENOMEM;
    *array = grown;
    return 0;
}

int slot_reserve_rows(struct slot *slot, uint32_t dim, bool wide, struct err *err)
{
    uint32_t n_rows = slot->batch->n_unique, cap = n_rows + n_rows / 2;
    size_t n_floats = (size_t)cap * dim;

    if (n_rows <= slot->rows_cap)
        return 0;
    if (grow(&slot->rows, n_floats) || grow(&slot->row_grads, n_floats) ||
        (wide && (grow(&slot->wide, cap) || grow(&slot->wide_grads, cap))))
        return err_set(err, -ENOMEM, "no memory for %u embedding rows of %u floats", n_rows,
                       dim);
    slot->rows_cap = cap;
    return 0;
}
