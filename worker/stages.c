#include "worker/stages.h"

#include <stdio.h>

static const char *const names[STAGES_N] = { "read",    "fetch",   "servers",
                                             "compute", "deliver", "network" };

const char *stages_name(enum stage stage)
{
    return names[stage];
}

struct stages stages_since(const struct stages *now, const struct stages *before)
{
    struct stages s;

    for (uint32_t i = 0; i < STAGES_N; i++)
        s.ns[i] = now->ns[i] > before->ns[i] ? now->ns[i] - before->ns[i] : 0;
    return s;
}

enum stage stages_bottleneck(const struct stages *s)
{
    uint32_t most = 0;

    for (uint32_t i = 1; i < STAGES_N; i++)
        if (s->ns[i] > s->ns[most])
            most = i;
    return (enum stage)most;
}

double stages_share(const struct stages *s, enum stage stage, uint64_t wall_ns)
{
    double share = wall_ns ? (double)s->ns[stage] / (double)wall_ns : 0;

    return share < 1 ? share : 1;
}

void stages_sentence(const struct stages *s, uint64_t wall_ns, char *dst, size_t n_bytes)
{
    enum stage most = stages_bottleneck(s);
    int n =
        snprintf(dst, n_bytes,
                 most == STAGE_SERVERS ? "waiting for %s is the bottleneck: %.0f %% of the time"
                                       : "%s is the bottleneck: busy %.0f %%",
                 names[most], 100 * stages_share(s, most, wall_ns));

    for (uint32_t i = 0; i < STAGES_N && n >= 0 && (size_t)n < n_bytes; i++)
        if (i != most)
            n += snprintf(dst + n, n_bytes - (size_t)n, ", %s %.0f %%", names[i],
                          100 * stages_share(s, (enum stage)i, wall_ns));
}
