#include "tests/sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void world_fail(const struct world *w, const char *fmt, ...)
{
    unsigned long long seed = (unsigned long long)w->plan.seed;
    va_list args;

    printf("seed %llu%s, at %.3f ms, event %llu: ", seed, w->what,
           (double)machine_now_us() / 1000, (unsigned long long)machine.events.n_run);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    plan_print(&w->plan, stdout);
    printf("again: sim --seed %llu%s --trace\n", seed, w->what);
    fflush(stdout);
    _Exit(1);
}

void world_trace(const struct world *w, const char *fmt, ...)
{
    va_list args;

    if (!w->is_traced)
        return;
    printf("%10.3f  ", (double)machine_now_us() / 1000);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}
