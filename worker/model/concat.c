#include "worker/model/concat.h"

#include <errno.h>

#include "worker/model/head_parts.h"

static bool has_top(const struct dlrm *m)
{
    return (dlrm_config_parts(m->config.kind) & MODEL_TOP) != 0;
}

static uint32_t bags_floats(const struct dlrm *m)
{
    return m->n_vectors * m->config.dim;
}

void concat_plan(struct dlrm *m)
{
    m->ldt = dlrm_internal_ld(m, has_top(m) ? m->r_width : bags_floats(m));
    if (has_top(m))
        head_parts_plan_top(m, m->ldt);
}

int concat_alloc(struct dlrm *m)
{
    m->t = dlrm_internal_alloc_zeroed(m, m->ldt);
    if (!m->t)
        return -ENOMEM;
    m->dt = dlrm_internal_alloc(m, m->ldt);
    if (!m->dt)
        return -ENOMEM;
    return has_top(m) ? head_parts_alloc_top(m) : 0;
}

void concat_deinit(struct dlrm *m)
{
    mlp_deinit(&m->top);
    dlrm_internal_free(m, m->t, m->ldt);
    dlrm_internal_free(m, m->dt, m->ldt);
}

void concat_forward(struct dlrm *m, const struct dlrm_io *io)
{
    if (m->config.n_fields)
        m->ops->bag_sum(m->c, &io->bags, io->rows, m->t, m->ldt);
    head_parts_make_means(m, &io->bags, m->t, m->ldt);
    if (m->n_inputs && has_top(m))
        m->ops->copy_rows(m->c, io->n, m->n_inputs, io->numeric, m->ldx, m->t + bags_floats(m),
                          m->ldt);
}

void concat_backward(struct dlrm *m, const struct dlrm_io *io)
{
    head_parts_make_means(m, &io->bags, m->dt, m->ldt);
    if (m->config.n_fields)
        m->ops->bag_grad(m->c, &io->bags, m->dt, m->ldt, io->row_grads);
}
