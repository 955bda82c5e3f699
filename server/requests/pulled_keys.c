#include "server/requests/pulled_keys.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

struct kept_section {
    uint32_t n_keys;
    size_t at, n_bytes; /* in the bytes */
};

struct pulled_keys {
    struct memory_budget *budget; /* borrowed */
    size_t n_bytes;               /* that it takes of the budget */
    uint64_t request_id;
    uint32_t n_users; /* the set, and pushes */
    uint32_t n_sections;
    const uint8_t *bytes; /* behind the sections */
    struct kept_section sections[];
};

struct pulled_keys_set {
    struct memory_budget *budget; /* borrowed */
    uint32_t n;
    struct pulled_keys *pulls[SECTION_PULLS_KEPT]; /* used; by request id, ascending */
};

static size_t key_bytes(const struct pull *pull)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++)
        n_bytes += pull->sections[i].key_bytes;
    return n_bytes;
}

void pulled_keys_release(struct pulled_keys *keys)
{
    if (!keys || --keys->n_users)
        return;
    memory_budget_release(keys->budget, keys->n_bytes);
    free(keys);
}

/* Space for n_bytes: that of `old`, which is taken, if nobody else uses it and it is neither too small nor four times
 * too large. Pulls of one job are of about one size, so from the first ones on no memory is asked for. */
static struct pulled_keys *acquire_space(struct memory_budget *budget, size_t n_bytes,
                                         struct pulled_keys *old)
{
    struct pulled_keys *k;

    if (old && old->n_users == 1 && old->n_bytes >= n_bytes && old->n_bytes / 4 <= n_bytes)
        return old;
    pulled_keys_release(old);
    n_bytes += n_bytes / 4;
    if (memory_budget_acquire(budget, n_bytes))
        return NULL;
    k = memory_try_alloc(n_bytes);
    if (k)
        k->n_bytes = n_bytes;
    else
        memory_budget_release(budget, n_bytes);
    return k;
}

/* Takes `old`, or NULL, for its memory. */
static struct pulled_keys *copy_keys(struct memory_budget *budget, uint64_t request_id,
                                     const struct pull *pull, struct pulled_keys *old)
{
    const size_t head_bytes =
        sizeof(struct pulled_keys) + pull->n_sections * sizeof(struct kept_section);
    struct pulled_keys *k;
    uint8_t *bytes;
    size_t at = 0;

    k = acquire_space(budget, head_bytes + key_bytes(pull), old);
    if (!k)
        return NULL;
    bytes = (uint8_t *)k + head_bytes;
    *k = (struct pulled_keys){ .budget = budget,
                               .n_bytes = k->n_bytes,
                               .request_id = request_id,
                               .n_users = 1,
                               .n_sections = pull->n_sections,
                               .bytes = bytes };
    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct section *s = &pull->sections[i];

        k->sections[i] = (struct kept_section){ s->n_keys, at, s->key_bytes };
        if (s->key_bytes)
            memcpy(bytes + at, s->keys, s->key_bytes);
        at += s->key_bytes;
    }
    return k;
}

void pulled_keys_free(struct pulled_keys_set *set)
{
    if (!set)
        return;
    for (uint32_t i = 0; i < set->n; i++)
        pulled_keys_release(set->pulls[i]);
    memory_budget_release(set->budget, sizeof *set);
    free(set);
}

static struct pulled_keys_set *make_set(struct memory_budget *budget)
{
    struct pulled_keys_set *set;

    if (memory_budget_acquire(budget, sizeof *set))
        return NULL;
    set = memory_try_alloc(sizeof *set);
    if (set)
        *set = (struct pulled_keys_set){ .budget = budget };
    else
        memory_budget_release(budget, sizeof *set);
    return set;
}

static struct pulled_keys *remove_at(struct pulled_keys_set *set, uint32_t i)
{
    struct pulled_keys *removed = set->pulls[i];

    set->n--;
    memmove((void *)&set->pulls[i], (const void *)&set->pulls[i + 1],
            (set->n - i) * sizeof set->pulls[0]);
    return removed;
}

/* Where it stands, or would. */
static uint32_t place_of(const struct pulled_keys_set *set, uint64_t request_id)
{
    uint32_t i = set->n;

    while (i && set->pulls[i - 1]->request_id >= request_id)
        i--;
    return i;
}

/* One that is older than all others of a full set is not kept. Sets *ret_removed to what goes for it, or NULL. */
static bool make_place(struct pulled_keys_set *set, uint64_t request_id,
                       struct pulled_keys **ret_removed)
{
    const uint32_t i = place_of(set, request_id);

    *ret_removed = NULL;
    if (i < set->n && set->pulls[i]->request_id == request_id)
        *ret_removed =
            remove_at(set, i); /* a client that gives a number twice means the later one */
    else if (set->n == SECTION_PULLS_KEPT && i > 0)
        *ret_removed = remove_at(set, 0);
    return set->n < SECTION_PULLS_KEPT;
}

bool pulled_keys_keep(struct pulled_keys_set **set, struct memory_budget *budget,
                      uint64_t request_id, const struct pull *pull)
{
    struct pulled_keys *keys, *removed;
    uint32_t i;

    if (!*set)
        *set = make_set(budget);
    if (!*set || !make_place(*set, request_id, &removed))
        return false;
    if (key_bytes(pull) > PULLED_KEYS_BYTES_MAX) {
        pulled_keys_release(removed);
        return false;
    }
    keys = copy_keys(budget, request_id, pull, removed);
    if (!keys)
        return false;
    i = place_of(*set, request_id);
    memmove((void *)&(*set)->pulls[i + 1], (const void *)&(*set)->pulls[i],
            ((*set)->n - i) * sizeof(*set)->pulls[0]);
    (*set)->pulls[i] = keys;
    (*set)->n++;
    return true;
}

struct pulled_keys *pulled_keys_acquire(struct pulled_keys_set *set, uint64_t request_id)
{
    const uint32_t i = set ? place_of(set, request_id) : 0;

    if (!set || i == set->n || set->pulls[i]->request_id != request_id)
        return NULL;
    set->pulls[i]->n_users++;
    return set->pulls[i];
}

int pulled_keys_put(const struct pulled_keys *keys, size_t max_bytes, struct push *push)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < push->n_sections; i++) {
        struct section *s = &push->sections[i];
        const struct kept_section *k;

        if (s->keys_at) {
            if (s->keys_at > keys->n_sections)
                return PS_ECOUNT;
            k = &keys->sections[s->keys_at - 1];
            if (k->n_keys != s->n_keys)
                return PS_ECOUNT;
            s->keys = keys->bytes + k->at;
            s->key_bytes = k->n_bytes;
            s->keys_at = 0;
        }
        n_bytes += s->key_bytes + s->value_bytes;
    }
    return n_bytes > max_bytes ? PS_ETOOBIG : 0;
}
