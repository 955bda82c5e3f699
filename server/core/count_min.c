#include "server/core/count_min.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"

#define N_ROWS 4u
#define CELLS_MIN (UINT64_C(1) << 12)
#define CELLS_BEGIN (UINT64_C(1) << 19)
#define CELLS_MAX (UINT64_C(1) << 23)

struct generation {
    uint8_t *cells;   /* owned; N_ROWS runs of n_cells / 2 bytes */
    uint64_t n_cells; /* in a row; a power of two */
    uint64_t n_touches;
};

struct count_min {
    struct memory_budget *parent; /* borrowed */
    struct generation now, last;
    uint64_t cells_max;
};

static uint64_t bytes_of(uint64_t n_cells)
{
    return N_ROWS * n_cells / 2;
}

/* What both generations may have by the budgets above. */
static uint64_t cells_allowed(const struct memory_budget *b)
{
    uint64_t n_cells = CELLS_MAX;

    for (; b; b = b->parent)
        while (b->max && n_cells > CELLS_MIN && 2 * bytes_of(n_cells) > b->max / 16)
            n_cells /= 2;
    return n_cells;
}

static void drop(struct count_min *s, struct generation *g)
{
    if (g->cells)
        memory_budget_release(s->parent, bytes_of(g->n_cells));
    free(g->cells);
    *g = (struct generation){ 0 };
}

static int make(struct count_min *s, uint64_t n_cells, struct generation *ret)
{
    uint8_t *cells;

    if (memory_budget_acquire(s->parent, bytes_of(n_cells)) != 0)
        return PS_EBUDGET;
    cells = memory_try_alloc(bytes_of(n_cells));
    if (!cells) {
        memory_budget_release(s->parent, bytes_of(n_cells));
        return -ENOMEM;
    }
    *ret = (struct generation){ .cells = cells, .n_cells = n_cells };
    return 0;
}

int count_min_new(struct count_min **ret_sketch, struct memory_budget *parent)
{
    struct count_min *s = memory_alloc(sizeof *s);
    uint64_t n_cells;
    int status;

    s->parent = parent;
    s->cells_max = cells_allowed(parent);
    n_cells = s->cells_max < CELLS_BEGIN ? s->cells_max : CELLS_BEGIN;
    status = make(s, n_cells, &s->now);
    if (!status)
        status = make(s, n_cells, &s->last);
    if (status) {
        count_min_free(s);
        return status;
    }
    *ret_sketch = s;
    return 0;
}

void count_min_free(struct count_min *s)
{
    if (!s)
        return;
    drop(s, &s->now);
    drop(s, &s->last);
    free(s);
}

/* A key's counters: one of each row, by bits of two hashes that have nothing to do with those
 * that choose shards and segments. */
struct cells {
    uint64_t hash[2];
};

static struct cells cells_of(uint64_t key)
{
    uint64_t hash = hash_mix(key ^ UINT64_C(0x736b65746368));

    return (struct cells){ { hash, hash_mix(hash) } };
}

static uint64_t cell(const struct generation *g, struct cells p, uint32_t row)
{
    return row * g->n_cells + ((p.hash[row / 2] >> (row % 2 * 32)) & (g->n_cells - 1));
}

static uint32_t get(const struct generation *g, uint64_t at)
{
    return (uint32_t)(g->cells[at / 2] >> (at % 2 * 4)) & 0xfu;
}

static void set(struct generation *g, uint64_t at, uint32_t count)
{
    uint8_t *cell = &g->cells[at / 2];
    unsigned shift = at % 2 * 4;

    *cell = (uint8_t)((*cell & ~(0xfu << shift)) | count << shift);
}

static uint32_t least(const struct generation *g, struct cells p)
{
    uint32_t min = COUNT_MIN_COUNT_MAX;

    for (uint32_t row = 0; row < N_ROWS; row++) {
        uint32_t count = get(g, cell(g, p, row));

        min = count < min ? count : min;
    }
    return min;
}

/* Conservative update: only the counters at the minimum grow, the others have counted others
 * already. */
static void add(struct generation *g, struct cells p, uint32_t min)
{
    g->n_touches++;
    if (min == COUNT_MIN_COUNT_MAX)
        return;
    for (uint32_t row = 0; row < N_ROWS; row++)
        if (get(g, cell(g, p, row)) == min)
            set(g, cell(g, p, row), min + 1);
}

uint32_t count_min_add(struct count_min *s, uint64_t key)
{
    struct cells p = cells_of(key);
    uint32_t min = least(&s->now, p);

    add(&s->now, p, min);
    return min + (min < COUNT_MIN_COUNT_MAX) + least(&s->last, p);
}

uint32_t count_min_count(const struct count_min *s, uint64_t key)
{
    struct cells p = cells_of(key);

    return least(&s->now, p) + least(&s->last, p);
}

/* For a stream like the one that g has counted. It shrinks by halves: one quiet half-window
 * says little. */
static uint64_t cells_for(const struct count_min *s, const struct generation *g)
{
    uint64_t n_cells = g->n_cells / 2 > CELLS_MIN ? g->n_cells / 2 : CELLS_MIN;

    while (n_cells < s->cells_max && n_cells < 2 * g->n_touches)
        n_cells *= 2;
    return n_cells;
}

void count_min_end_window(struct count_min *s)
{
    struct generation next = s->last;
    uint64_t n_cells = cells_for(s, &s->now);

    s->last = s->now;
    if (n_cells == next.n_cells || make(s, n_cells, &s->now) != 0) {
        s->now = (struct generation){ .cells = next.cells, .n_cells = next.n_cells };
        memset(s->now.cells, 0, bytes_of(s->now.n_cells));
        return;
    }
    drop(s, &next);
}

uint64_t count_min_bytes(const struct count_min *s)
{
    return bytes_of(s->now.n_cells) + bytes_of(s->last.n_cells);
}
