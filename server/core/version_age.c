#include "server/core/version_age.h"

#include <assert.h>

static struct version_age_mark *mark(struct version_age *h, uint32_t i)
{
    return &h->marks[(h->first + i) % VERSION_AGE_N_MARKS];
}

/* Of the marks that are a span old, only the last says something. */
static void drop_old(struct version_age *h, uint64_t now)
{
    while (h->n_marks > 1 && now >= h->span && mark(h, 1)->value <= now - h->span) {
        h->first = (h->first + 1) % VERSION_AGE_N_MARKS;
        h->n_marks--;
    }
}

void version_age_note(struct version_age *h, uint64_t value, uint64_t version)
{
    struct version_age_mark *last = h->n_marks ? mark(h, h->n_marks - 1) : NULL;

    if (!h->span || (last && (version <= last->version || value < last->value)))
        return;
    drop_old(h, value);
    /* drop_old() keeps the newest one. */
    if (last && value - h->open <= h->span / 32) {
        *last = (struct version_age_mark){ value, version };
        return;
    }
    assert(h->n_marks < VERSION_AGE_N_MARKS);
    *mark(h, h->n_marks++) = (struct version_age_mark){ value, version };
    h->open = value;
}

uint64_t version_age_version(struct version_age *h, uint64_t now)
{
    if (!h->span)
        return 0;
    drop_old(h, now);
    if (!h->n_marks || now < h->span || h->marks[h->first].value > now - h->span)
        return 0;
    return h->marks[h->first].version;
}
