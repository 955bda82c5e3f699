#include "worker/param_store_proxy.h"

static struct param_store_proxy *forward_of(const struct param_store *s)
{
    return (struct param_store_proxy *)(void *)(uintptr_t)s;
}

int param_store_proxy_table(struct param_store *s, const struct table_spec *spec,
                            uint32_t *ret_table, struct err *err)
{
    struct param_store_proxy *f = forward_of(s);
    int status = f->inner->ops->table(f->inner, spec, ret_table, err);

    return status ? status : f->keep_table(s, spec, *ret_table, err);
}

int param_store_proxy_table_find(struct param_store *s, struct table_spec *spec,
                                 uint32_t *ret_table, struct err *err)
{
    struct param_store_proxy *f = forward_of(s);
    int status = f->inner->ops->table_find(f->inner, spec, ret_table, err);

    return status ? status : f->keep_table(s, spec, *ret_table, err);
}

int param_store_proxy_flush(struct param_store *s, struct err *err)
{
    struct param_store *inner = forward_of(s)->inner;

    return inner->ops->flush(inner, err);
}

int param_store_proxy_leave(struct param_store *s, struct err *err)
{
    struct param_store *inner = forward_of(s)->inner;

    return inner->ops->leave(inner, err);
}

int param_store_proxy_copy(struct param_store *s, struct param_store *to, struct err *err)
{
    struct param_store *inner = forward_of(s)->inner;

    return inner->ops->copy(inner, to, err);
}

uint64_t param_store_proxy_clock(const struct param_store *s)
{
    struct param_store *inner = forward_of(s)->inner;

    return inner->ops->clock(inner);
}

struct push_encoder *param_store_proxy_encoder(const struct param_store *s)
{
    struct param_store *inner = forward_of(s)->inner;

    return inner->ops->encoder(inner);
}

uint64_t param_store_proxy_resume(struct param_store *s)
{
    struct param_store *inner = forward_of(s)->inner;

    return inner->ops->resume(inner);
}

void param_store_proxy_cancel(struct param_store *s)
{
    struct param_store *inner = forward_of(s)->inner;

    if (inner->ops->cancel)
        inner->ops->cancel(inner);
}
