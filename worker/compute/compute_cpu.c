#include "worker/compute/compute.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/mem.h"
#include "worker/compute/cpu.h"
#include "worker/compute/cpu_gemm.h"

struct compute {
    char text[96];
};

static int cpu_open(struct compute **ret_c, struct err *err)
{
    struct compute *c = mem_alloc(sizeof *c);

    (void)err;
    snprintf(c->text, sizeof c->text, "cpu: OpenBLAS with %s kernels, pinned to 1 thread",
             cpu_gemm_pin());
    *ret_c = c;
    return 0;
}

static void cpu_close(struct compute *c)
{
    free(c);
}

static const char *cpu_describe(const struct compute *c)
{
    return c->text;
}

/* Every op is done when it returns, and none can fail. */
static int cpu_wait(struct compute *c)
{
    (void)c;
    return 0;
}

const struct compute_ops compute_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .wait = cpu_wait,
    .linear_forward = cpu_linear_forward,
    .linear_backward = cpu_linear_backward,
    .norm_batch = cpu_norm_batch,
    .norm_running = cpu_norm_running,
    .norm_apply = cpu_norm_apply,
    .norm_backward = cpu_norm_backward,
    .dropout = cpu_rows_dropout,
    .bag_sum = cpu_bag_sum,
    .bag_grad = cpu_bag_grad,
    .wide_sum = cpu_bag_wide_sum,
    .wide_grad = cpu_bag_wide_grad,
    .interact_forward = cpu_interact_forward,
    .interact_backward = cpu_interact_backward,
    .prob = cpu_loss_prob,
    .loss = cpu_loss_mean,
    .loss_grad = cpu_loss_grad,
    .add_rows = cpu_rows_add,
    .axpy = cpu_rows_axpy,
};
