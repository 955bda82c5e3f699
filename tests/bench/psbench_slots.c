#include "tests/bench/psbench_slots.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

void psbench_slots_init(struct psbench_slots *s, uint32_t depth)
{
    *s = (struct psbench_slots){ .items = memory_alloc(depth * sizeof *s->items),
                                 .free = memory_alloc(depth * sizeof *s->free),
                                 .n_free = depth,
                                 .depth = depth };
    for (uint32_t i = 0; i < depth; i++)
        s->free[i] = depth - 1 - i;
}

void psbench_slots_deinit(struct psbench_slots *s)
{
    free(s->items);
    free(s->free);
    *s = (struct psbench_slots){ 0 };
}

uint32_t psbench_slots_take(struct psbench_slots *s)
{
    uint32_t number = s->free[--s->n_free];

    s->items[number].used = true;
    return number;
}

bool psbench_slots_give(struct psbench_slots *s, uint64_t number, uint64_t now_ns)
{
    if (number >= s->depth || !s->items[number].used)
        return false;
    s->items[number].used = false;
    if (!s->n_free)
        s->freed_ns = now_ns;
    s->free[s->n_free++] = (uint32_t)number;
    return true;
}

/* counts->worst stays sorted, the slowest first. */
static void rank_worst(struct psbench_counts *counts, uint64_t latency_ns)
{
    struct psbench_worst *worst = counts->worst;
    uint32_t i = PSBENCH_WORST_MAX;

    while (i > 0 && worst[i - 1].latency_ns < latency_ns)
        i--;
    if (i == PSBENCH_WORST_MAX)
        return;
    memmove(&worst[i + 1], &worst[i], (PSBENCH_WORST_MAX - 1 - i) * sizeof *worst);
    worst[i] = (struct psbench_worst){ latency_ns, counts->n_rows };
}

void psbench_slots_count(const struct psbench_slot *slot, uint64_t now_ns, uint64_t bytes_in,
                         uint32_t n_rows, struct psbench_counts *counts)
{
    struct psbench_traffic *traffic = &counts->traffic[slot->kind];

    traffic->n_requests++;
    traffic->bytes_out += slot->n_bytes;
    traffic->bytes_in += bytes_in;
    counts->n_rows += n_rows;
    rank_worst(counts, now_ns - slot->due_ns);
}
