#include "server/durable/reach.h"

#include <inttypes.h>

#include "server/durable/manifests.h"

struct promise {
    const struct reach *reach;
    uint64_t through, number; /* the furthest, and whose it is; 0: nobody's */
    uint64_t damaged;         /* a newer one without a manifest to ask; 0: there is none */
};

static void note(void *arg, const struct manifests_item *item)
{
    struct promise *p = arg;
    const struct manifest *m = item->manifest;
    uint32_t i = p->reach->shard_index;

    if (item->is_aside || item->number <= p->reach->number)
        return;
    if (!m) {
        p->damaged = item->number;
    } else if (m->map_id == p->reach->epoch && i < m->n_files &&
               m->files[i].through > p->through) {
        p->through = m->files[i].through;
        p->number = item->number;
    }
}

int reach_check(const struct reach *reach, const struct log_end *end, struct err *err)
{
    struct promise p = { .reach = reach };
    int status = manifests_each(reach->files, reach->data_dir, note, &p, err);

    if (status)
        return status;
    if (end->last < p.through)
        return err_set(err, PS_ECORRUPT,
                       "shard %" PRIu32 ": the push log ends behind record %" PRIu64
                       "; checkpoint %" PRIu64 ", which is damaged, had all up to %" PRIu64
                       ": mend it, or go without what came behind, with --at NUMBER or "
                       "--at JOB:CLOCK",
                       reach->shard_index, end->last, p.number, p.through);
    if (end->verdict == LOG_GAP && p.damaged)
        return err_set(err, PS_ECORRUPT,
                       "shard %" PRIu32 ": the push log has a gap behind record %" PRIu64
                       "; checkpoint %" PRIu64 ", which is damaged, may have what came behind: "
                       "mend it, or go without, with --at NUMBER or --at JOB:CLOCK",
                       reach->shard_index, end->last, p.damaged);
    return 0;
}
