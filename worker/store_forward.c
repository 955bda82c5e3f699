#include "worker/store_forward.h"

static struct store_forward *forward_of(const struct store *s)
{
    return (struct store_forward *)(void *)(uintptr_t)s;
}

int store_forward_table(struct store *s, const struct table_spec *spec, uint32_t *ret_table,
                        struct err *err)
{
    struct store_forward *f = forward_of(s);
    int status = f->inner->ops->table(f->inner, spec, ret_table, err);

    return status ? status : f->keep_table(s, spec, *ret_table, err);
}

int store_forward_table_find(struct store *s, struct table_spec *spec, uint32_t *ret_table,
                             struct err *err)
{
    struct store_forward *f = forward_of(s);
    int status = f->inner->ops->table_find(f->inner, spec, ret_table, err);

    return status ? status : f->keep_table(s, spec, *ret_table, err);
}

int store_forward_flush(struct store *s, struct err *err)
{
    struct store *inner = forward_of(s)->inner;

    return inner->ops->flush(inner, err);
}

int store_forward_leave(struct store *s, struct err *err)
{
    struct store *inner = forward_of(s)->inner;

    return inner->ops->leave(inner, err);
}

uint64_t store_forward_clock(const struct store *s)
{
    struct store *inner = forward_of(s)->inner;

    return inner->ops->clock(inner);
}

struct encoder *store_forward_encoder(const struct store *s)
{
    struct store *inner = forward_of(s)->inner;

    return inner->ops->encoder(inner);
}

uint64_t store_forward_resume(struct store *s)
{
    struct store *inner = forward_of(s)->inner;

    return inner->ops->resume(inner);
}

void store_forward_cancel(struct store *s)
{
    struct store *inner = forward_of(s)->inner;

    if (inner->ops->cancel)
        inner->ops->cancel(inner);
}
