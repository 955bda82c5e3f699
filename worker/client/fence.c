#include "worker/client/fence.h"

#define DICE_SIDES 1000u

uint32_t fence_count(struct fence *f, uint64_t now_ms)
{
    uint32_t n_recent = 1, i;

    for (i = 0; i < FENCE_N_MAX && i < f->n; i++)
        n_recent += now_ms - f->at_ms[i] < FENCE_WINDOW_MS;
    f->at_ms[f->n++ % FENCE_N_MAX] = now_ms;
    return n_recent;
}

uint32_t fence_delay_ms(uint32_t n)
{
    return n > 1 ? 50u << (n - 1) : 0;
}

uint64_t fence_next(uint64_t own, uint64_t fenced_below, uint64_t unix_ms, uint64_t dice)
{
    uint64_t next = own < UINT64_MAX ? own + 1 : own;

    if (unix_ms > next && unix_ms >= fenced_below)
        return unix_ms;
    if (fenced_below > next)
        next = fenced_below;
    return next < UINT64_MAX - DICE_SIDES ? next + dice % DICE_SIDES : next;
}
