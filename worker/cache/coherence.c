#include "worker/cache/coherence.h"

#include <errno.h>

#include "common/log_line.h"

void coherence_drop(struct coherence *t)
{
    struct err err;

    t->doubt = 0;
    t->must_count = false;
    t->generation++;
    if (!replica_clear(t->replica, &err))
        return;
    t->off = true;
    log_line_warn("the row cache is off: %s", err.text);
}

static void drop_saying(struct coherence *t, const char *why) ON_SHARD
{
    t->off = ++t->n_drops >= COHERENCE_DROPS_MAX;
    log_line_warn("the row cache %s: %s", t->off ? "is off from here on" : "begins anew", why);
    coherence_drop(t);
}

static void switch_off(struct coherence *t, const char *why) ON_SHARD
{
    log_line_warn("the row cache is off from here on: %s", why);
    t->off = true;
    coherence_drop(t);
}

void coherence_resolve(struct coherence *t)
{
    if (t->doubt == PS_ESEQ)
        drop_saying(t,
                    "another worker pushes to this job's tables, or a server has lost pushes");
    else if (t->doubt == PS_ECOUNT)
        switch_off(t, "a server does not send rows with their state");
    else if (t->doubt == -EAGAIN)
        coherence_drop(t);
    else if (t->doubt)
        switch_off(t, status_text(t->doubt));
}

void coherence_check(struct coherence *t, const struct ps_stats *now)
{
    coherence_resolve(t);
    if (now->rejoins != t->seen.rejoins)
        coherence_drop(t);
    if (now->rows_refused != t->seen.rows_refused && !t->off)
        switch_off(t, "a server has left rows out, for want of memory");
    if (now->foreign != t->seen.foreign)
        t->must_count = true;
    t->seen = *now;
}
