#include "worker/mirror/trust.h"

#include <errno.h>

#include "common/log.h"

void trust_drop(struct trust *t)
{
    struct err err;

    t->doubt = 0;
    t->must_count = false;
    t->generation++;
    if (!replica_clear(t->replica, &err))
        return;
    t->off = true;
    log_warn("the row cache is off: %s", err.text);
}

static void drop_saying(struct trust *t, const char *why) ON_SHARD
{
    t->off = ++t->n_drops >= TRUST_DROPS_MAX;
    log_warn("the row cache %s: %s", t->off ? "is off from here on" : "begins anew", why);
    trust_drop(t);
}

static void switch_off(struct trust *t, const char *why) ON_SHARD
{
    log_warn("the row cache is off from here on: %s", why);
    t->off = true;
    trust_drop(t);
}

void trust_settle(struct trust *t)
{
    if (t->doubt == PS_ESEQ)
        drop_saying(t,
                    "somebody else pushes to this job's tables, or a server has lost pushes");
    else if (t->doubt == PS_ECOUNT)
        switch_off(t, "a server does not send rows with their state");
    else if (t->doubt == -EAGAIN)
        trust_drop(t);
    else if (t->doubt)
        switch_off(t, status_text(t->doubt));
}

void trust_look(struct trust *t, const struct ps_stats *now)
{
    trust_settle(t);
    if (now->rejoins != t->seen.rejoins)
        trust_drop(t);
    if (now->rows_refused != t->seen.rows_refused && !t->off)
        switch_off(t, "a server has left rows out, for want of memory");
    if (now->foreign != t->seen.foreign)
        t->must_count = true;
    t->seen = *now;
}
