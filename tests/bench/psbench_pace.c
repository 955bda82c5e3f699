#include "tests/bench/psbench_pace.h"

#include <math.h>

#include "common/hash.h"

static double unit(struct psbench_pace *p)
{
    return (double)(hash_mix2(p->seed, p->n_drawn++) >> 11) * 0x1p-53;
}

void psbench_pace_start(struct psbench_pace *p, const struct psbench_settings *s, uint32_t i,
                        uint32_t n, uint64_t now_ns)
{
    *p = (struct psbench_pace){ .open_loop = s->rate > 0,
                                .poisson = s->arrivals == PSBENCH_POISSON,
                                .pause_ns = 1e3 * (double)s->pause_us,
                                .start_ns = now_ns,
                                .seed = hash_mix2(s->seed, i) };
    if (!p->open_loop)
        return;
    p->gap_ns = 1e9 * n / (double)s->rate;
    if (p->poisson)
        psbench_pace_next(p);
    else
        p->due_ns = p->gap_ns * i / n;
}

uint64_t psbench_pace_due(const struct psbench_pace *p, uint64_t now_ns)
{
    if (p->open_loop)
        return p->start_ns + (uint64_t)p->due_ns;
    return p->paused_ns > now_ns ? p->paused_ns : now_ns;
}

void psbench_pace_answered(struct psbench_pace *p, uint64_t now_ns)
{
    if (p->pause_ns > 0)
        p->paused_ns = now_ns + (uint64_t)(p->pause_ns * (0.5 + unit(p)));
}

void psbench_pace_next(struct psbench_pace *p)
{
    p->due_ns += p->poisson ? -log1p(-unit(p)) * p->gap_ns : p->gap_ns;
}

void psbench_pace_unsent(struct psbench_pace *p, uint64_t end_ns,
                         void (*each)(void *owner, uint64_t due_ns), void *owner)
{
    for (; p->open_loop && psbench_pace_due(p, end_ns) < end_ns; psbench_pace_next(p))
        each(owner, psbench_pace_due(p, end_ns));
}
