#include "server/core/slab.h"

#include <stdlib.h>

#define HUGE_BYTES (UINT64_C(2) << 20)
#define LAST_BYTES ((size_t)64 << 20)

/* log2 of the largest power of two of things that n_bytes hold; 0 if they hold none. */
static uint32_t things_shift(size_t n_bytes, size_t thing_bytes)
{
    uint32_t shift = 0;

    while (((size_t)2 << shift) * thing_bytes <= n_bytes)
        shift++;
    return shift;
}

void slab_init(struct slab *s, size_t thing_bytes, size_t first_bytes,
               struct memory_budget *parent)
{
    *s = (struct slab){ .thing_bytes = thing_bytes,
                        .first_shift = things_shift(first_bytes, thing_bytes),
                        .last_shift = things_shift(LAST_BYTES, thing_bytes),
                        .budget = { .parent = parent } };
}

static size_t slab_bytes(const struct slab *s, uint32_t slab)
{
    uint32_t shift = s->first_shift + (slab ? slab - 1 : 0);

    return s->thing_bytes << (shift < s->last_shift ? shift : s->last_shift);
}

/* What a slab costs of which n things have been used. */
static uint64_t held_bytes(const struct slab *s, uint32_t slab, uint64_t n)
{
    uint64_t whole = slab_whole_pages(slab_bytes(s, slab));
    uint64_t used = (n * s->thing_bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);

    if (n == 0)
        return 0;
    return whole < HUGE_BYTES || used > whole ? whole : used;
}

void slab_deinit(struct slab *s)
{
    for (uint32_t i = 0; i < s->n_slabs; i++)
        memory_unmap(s->slabs[i], slab_bytes(s, i));
    free(s->slabs);
    memory_budget_release(&s->budget, s->budget.used);
}

/* Space for one more pointer. */
static int grow_list(struct slab *s)
{
    uint32_t cap = s->slabs_cap ? s->slabs_cap * 2 : 8;
    void *list = s->slabs;
    int status;

    if (s->n_slabs < s->slabs_cap)
        return 0;
    status = slab_grow_block(&s->budget, &list, s->slabs_cap * sizeof *s->slabs,
                             cap * sizeof *s->slabs);
    if (status)
        return status;
    s->slabs = list;
    s->slabs_cap = cap;
    return 0;
}

/* The next slab is mapped; what of it is used is taken from the budget thing by thing. */
static int map_next(struct slab *s)
{
    int status = grow_list(s);

    if (status)
        return status;
    s->slabs[s->n_slabs] = memory_map(slab_bytes(s, s->n_slabs));
    if (!s->slabs[s->n_slabs])
        return -ENOMEM;
    s->n_slabs++;
    return 0;
}

int slab_next(struct slab *s, uint64_t *ret_number)
{
    uint64_t at, cost;
    uint32_t slab = (uint32_t)slab_of(s, s->n_things, &at);
    int status;

    cost = held_bytes(s, slab, at + 1) - held_bytes(s, slab, at);
    status = cost ? memory_budget_acquire(&s->budget, cost) : 0;
    if (status)
        return status;
    if (slab == s->n_slabs)
        status = map_next(s);
    if (status) {
        memory_budget_release(&s->budget, cost);
        return status;
    }
    *ret_number = s->n_things++;
    return 0;
}

static bool is_limited(const struct memory_budget *b)
{
    while (b && !b->max)
        b = b->parent;
    return b != NULL;
}

bool slab_ahead(struct slab *s, uint64_t n_things, void **ret_pages, size_t *ret_bytes)
{
    uint64_t from = s->n_ahead > s->n_things ? s->n_ahead : s->n_things, at, start, end;
    uint64_t want = (n_things * s->thing_bytes) & ~(HUGE_BYTES - 1);
    uint64_t have = (from - s->n_things) * s->thing_bytes, more;
    uint32_t slab;

    if (!s->n_slabs || have >= want || is_limited(&s->budget))
        return false;
    more = (want - have + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
    slab = (uint32_t)slab_of(s, from, &at);
    if (slab_bytes(s, slab) < HUGE_BYTES || (slab == s->n_slabs && map_next(s)))
        return false;
    start = (at * s->thing_bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
    end = start + more < slab_bytes(s, slab) ? start + more : slab_bytes(s, slab);
    /* The first thing of which not all is named; behind the slab's last, the next slab's first. */
    s->n_ahead = from - at + end / s->thing_bytes;
    if (start >= end)
        return false;
    *ret_pages = s->slabs[slab] + start;
    *ret_bytes = end - start;
    return true;
}
