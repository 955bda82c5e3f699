/* What is held: CLUSTER's promises, by what the store has and by every record that was acknowledged. */
#include <string.h>

#include "tests/group-sim/world.h"

static bool has_record(const struct member *m, uint64_t value)
{
    const uint64_t number = m->w->promises[value].number;

    return number <= m->last && m->entries[number - 1].value == value;
}

/* A person has had this member serve with what it has. */
static void excuse_by_person(struct world *w, struct member *m)
{
    for (uint64_t value = 1; value <= w->n_values; value++) {
        struct promise *p = &w->promises[value];

        if (!p->is_acked || p->is_excused || has_record(m, value))
            continue;
        p->is_excused = true;
        w->counts->n_excused++;
    }
    m->person_run = 0;
    w->is_person_asked = false;
}

/* A process was killed, or its last word was that nobody is in sync: what neither its disk nor, if one is in sync, the other member has is lost, and may be. With
 * fsync nothing of that kind can be: both would have to be without what was on one's disk. */
static void excuse_lost(struct world *w)
{
    for (uint64_t value = 1; value <= w->n_values; value++) {
        struct promise *p = &w->promises[value];
        bool is_held = false;

        if (!p->is_acked || p->is_excused)
            continue;
        for (int i = 0; i < WORLD_MEMBERS; i++) {
            const struct member *m = &w->members[i];

            if (strcmp(w->truth.primary, m->config.name) == 0 ||
                (w->truth.in_sync && strcmp(w->truth.standby, m->config.name) == 0))
                is_held = is_held || has_record(m, value);
        }
        if (is_held)
            continue;
        if (w->is_synced && !w->has_lost)
            world_violate(w, "record %llu was acknowledged, and is on no disk",
                          (unsigned long long)p->number);
        p->is_excused = true;
        w->counts->n_excused++;
    }
}

static bool is_alive(const struct world *w, uint64_t run)
{
    for (int i = 0; i < WORLD_MEMBERS; i++)
        if (w->members[i].is_up && w->members[i].config.run == run)
            return true;
    return false;
}

void check_update_truth(struct world *w)
{
    const struct coord_item *item = coord_mem_find(w->store, "groups/0");
    const uint64_t term = w->is_true ? w->truth.term : 0;

    w->is_true = item != NULL;
    if (!item || item->mod_revision == w->truth_revision)
        return;
    w->truth_revision = item->mod_revision;
    if (group_record_read(item->value, &w->truth)) {
        world_violate(w, "the store has %.100s", item->value);
        return;
    }
    if (w->truth.term == term) {
        excuse_lost(w);
        return;
    }
    for (int i = 0; i < WORLD_MEMBERS; i++)
        if (w->members[i].person_run && w->members[i].person_run == w->truth.primary_run)
            excuse_by_person(w, &w->members[i]);
    if (!is_alive(w, w->truth.primary_run))
        excuse_lost(w); /* as if it had been killed right after */
}

static bool is_true_primary(const struct member *m)
{
    const struct world *w = m->w;

    return w->is_true && w->truth.term == m->g.term && w->truth.primary_run == m->config.run &&
           strcmp(w->truth.primary, m->config.name) == 0;
}

/* This member acknowledges a record of its log. */
void check_ack(struct member *m, uint64_t number)
{
    struct world *w = m->w;
    struct promise *p = &w->promises[m->entries[number - 1].value];
    const uint64_t term = m->g.term;

    if (term < WORLD_TERMS_MAX) {
        if (w->acker[term] && w->acker[term] != m->index + 1)
            world_violate(w, "both members acknowledge under term %llu",
                          (unsigned long long)term);
        w->acker[term] = m->index + 1;
    }
    if (!is_true_primary(m))
        world_violate(w,
                      "member %d acknowledges record %llu under term %llu, which is over: it "
                      "is %llu of member %s",
                      m->index, (unsigned long long)number, (unsigned long long)term,
                      (unsigned long long)w->truth.term, w->truth.primary);
    if (!p->is_acked)
        w->counts->n_acknowledged++;
    p->is_acked = true;
    p->is_excused = false;
    p->number = number;
}

/* Pulls are answered by whoever leads, and by nobody else. */
void check_serves(struct member *m)
{
    if (group_may_serve(&m->g, world_clock(m)) && !is_true_primary(m))
        world_violate(m->w, "member %d answers pulls under term %llu, which is over", m->index,
                      (unsigned long long)m->g.term);
}

/* It begins to serve: all that was promised has to be in its log. */
void check_lead(struct member *m)
{
    struct world *w = m->w;

    w->counts->n_leads++;
    check_update_truth(w);
    if (!is_true_primary(m))
        return; /* it hears late of its own term, which is over: its first acknowledgement would tell */
    for (uint64_t value = 1; value <= w->n_values; value++) {
        const struct promise *p = &w->promises[value];

        if (p->is_acked && !p->is_excused && !has_record(m, value))
            world_violate(
                w, "member %d leads term %llu without record %llu, which was acknowledged",
                m->index, (unsigned long long)m->g.term, (unsigned long long)p->number);
    }
}

void check_excuse(struct world *w)
{
    check_update_truth(w);
    if (w->is_true)
        excuse_lost(w);
}
