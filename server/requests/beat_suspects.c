#include "server/requests/beat_suspects.h"

#include <errno.h>
#include <stdio.h>

#include "server/core/suspicion.h"

bool beat_suspects_report(struct membership *membership, struct worker *from,
                          const struct suspects *all, uint64_t now_ms)
{
    bool any = false;

    from->doubts_itself = false;
    for (uint32_t i = 0; i < all->n; i++) {
        const struct membership_report report = { .from = from->rank,
                                                  .rank = all->items[i].rank,
                                                  .incarnation = all->items[i].incarnation,
                                                  .is_agreed = all->items[i].is_agreed };

        if (membership_suspect(membership, from->job, &report, now_ms))
            any = true;
    }
    return any;
}

/* For this worker: those that it has not said are refused by all. */
static void list_suspects(const struct worker *to, struct suspects *ret)
{
    const struct job *job = to->job;

    for (uint32_t i = 0; i < job->n_workers && ret->n < MESSAGE_SUSPECTS_MAX; i++) {
        struct worker *w = &job->workers[i];

        if (!w->is_suspected || w == to || suspicion_has(&w->agreed, to->rank))
            continue;
        w->is_reported = true;
        ret->items[ret->n++] = (struct suspect){ .rank = w->rank,
                                                 .incarnation = w->incarnation,
                                                 .clock = w->clock };
    }
}

/* Names what this shard does not do: the worker would take a plain answer for a refusal of all that it has ever named
 * here; older workers take each answer with status 0 so. */
static void list_doubted(const struct worker *to, const struct suspects *named,
                         struct status_reply *answer)
{
    const struct job *job = to->job;

    for (uint32_t i = 0; i < job->n_workers && !answer->status; i++) {
        if (!membership_doubts(&job->workers[i], to->rank))
            continue;
        answer->status = -EINPROGRESS;
        snprintf(answer->text, sizeof answer->text,
                 "rank %u is heard here, so another worker has to say, too, that a shard "
                 "suspects it",
                 i);
    }
    for (uint32_t i = 0; i < named->n; i++) {
        const struct suspect *s = &named->items[i];

        if (s->rank < job->n_workers && job->workers[s->rank].incarnation == s->incarnation &&
            membership_doubts(&job->workers[s->rank], to->rank))
            answer->doubted.items[answer->doubted.n++] = *s;
    }
}

void beat_suspects_answer(const struct worker *to, const struct suspects *named,
                          struct status_reply *answer)
{
    list_suspects(to, &answer->suspects);
    list_doubted(to, named, answer);
}
