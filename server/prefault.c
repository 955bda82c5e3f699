#include "server/prefault.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define HUGE_BYTES (UINT64_C(2) << 20)

void prefault_init(struct prefault *a, uv_loop_t *loop, struct shard *shard)
{
    *a = (struct prefault){ .loop = loop, .shard = shard };
}

static void on_work(uv_work_t *work)
{
    struct prefault *a = CONTAINER_OF(work, struct prefault, work);

    enter_pool();
    memory_populate(a->pages, a->n_bytes);
}

static void begin(struct prefault *a) ON_SHARD;

static void on_touched(uv_work_t *work, int status)
{
    struct prefault *a = CONTAINER_OF(work, struct prefault, work);

    (void)status;
    enter_shard();
    if (a->state == PREFAULT_STOPPED)
        return;
    a->state = PREFAULT_IDLE;
    begin(a);
}

/* The next part of what the tables want, if there is one. */
static void begin(struct prefault *a)
{
    for (uint32_t i = 0; i < a->n_tables; i++) {
        const struct shard_table *t = shard_table(a->shard, i);
        uint64_t n_wanted = a->tables[i].n_wanted;

        if (!t || !n_wanted || !table_ahead(t->rows, n_wanted, &a->pages, &a->n_bytes))
            continue;
        if (uv_queue_work(a->loop, &a->work, on_work, on_touched) == 0)
            a->state = PREFAULT_BUSY;
        return;
    }
}

static uint64_t wanted(const struct table *rows, uint64_t n_grown)
{
    struct table_facts facts;
    uint64_t most, least;

    if (!n_grown)
        return 0;
    table_facts(rows, &facts);
    least = 3 * HUGE_BYTES / facts.row_bytes;
    most = PREFAULT_BYTES_MAX / facts.row_bytes;
    n_grown *= PREFAULT_TICKS;
    return n_grown < least ? least : n_grown < most ? n_grown : most;
}

static void follow_tables(struct prefault *a) ON_SHARD
{
    uint32_t n = shard_n_tables(a->shard);
    struct prefault_table *tables;

    if (n <= a->n_tables) /* less: after a failed restore */
        return;
    tables = memory_alloc(n * sizeof *tables);
    if (a->n_tables)
        memcpy(tables, a->tables, a->n_tables * sizeof *tables);
    free(a->tables);
    a->tables = tables;
    a->n_tables = n;
}

void prefault_tick(struct prefault *a)
{
    follow_tables(a);
    for (uint32_t i = 0; i < a->n_tables; i++) {
        const struct shard_table *t = shard_table(a->shard, i);
        uint64_t n = t ? table_n_numbers(t->rows) : 0;

        a->tables[i].n_wanted = t ? wanted(t->rows, n - a->tables[i].n_numbers) : 0;
        a->tables[i].n_numbers = n;
    }
    if (a->state == PREFAULT_IDLE)
        begin(a);
}

void prefault_stop(struct prefault *a)
{
    a->state = PREFAULT_STOPPED;
}

void prefault_deinit(struct prefault *a)
{
    free(a->tables);
    a->tables = NULL;
    a->n_tables = 0;
}
