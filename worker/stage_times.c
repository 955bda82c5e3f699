#include "worker/stage_times.h"

#include <stdio.h>

static const char *const names[STAGE_TIMES_N] = { "read",    "fetch",   "servers",
                                                  "compute", "deliver", "network" };

const char *stage_times_name(enum stage stage)
{
    return names[stage];
}

struct stage_times stage_times_since(const struct stage_times *now,
                                     const struct stage_times *before)
{
    struct stage_times s;

    for (uint32_t i = 0; i < STAGE_TIMES_N; i++)
        s.ns[i] = now->ns[i] > before->ns[i] ? now->ns[i] - before->ns[i] : 0;
    return s;
}

enum stage stage_times_bottleneck(const struct stage_times *s)
{
    uint32_t most = 0;

    for (uint32_t i = 1; i < STAGE_TIMES_N; i++)
        if (s->ns[i] > s->ns[most])
            most = i;
    return (enum stage)most;
}

double stage_times_share(const struct stage_times *s, enum stage stage, uint64_t wall_ns)
{
    double share = wall_ns ? (double)s->ns[stage] / (double)wall_ns : 0;

    return share < 1 ? share : 1;
}

void stage_times_sentence(const struct stage_times *s, uint64_t wall_ns, char *dst,
                          size_t n_bytes)
{
    enum stage most = stage_times_bottleneck(s);
    int n =
        snprintf(dst, n_bytes,
                 most == STAGE_SERVERS ? "waiting for %s is the bottleneck: %.0f %% of the time"
                                       : "%s is the bottleneck: busy %.0f %%",
                 names[most], 100 * stage_times_share(s, most, wall_ns));

    for (uint32_t i = 0; i < STAGE_TIMES_N && n >= 0 && (size_t)n < n_bytes; i++)
        if (i != most)
            n += snprintf(dst + n, n_bytes - (size_t)n, ", %s %.0f %%", names[i],
                          100 * stage_times_share(s, (enum stage)i, wall_ns));
}
