#include "server/prefault.h"

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
    for (uint32_t i = 0; i < shard_n_tables(a->shard); i++) {
        struct table *rows = shard_table(a->shard, i)->rows;

        if (!a->n_wanted[i] || !table_ahead(rows, a->n_wanted[i], &a->pages, &a->n_bytes))
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

void prefault_tick(struct prefault *a)
{
    for (uint32_t i = 0; i < shard_n_tables(a->shard); i++) {
        const struct table *rows = shard_table(a->shard, i)->rows;
        uint64_t n = table_n_numbers(rows);

        a->n_wanted[i] = wanted(rows, n - a->n_numbers[i]);
        a->n_numbers[i] = n;
    }
    if (a->state == PREFAULT_IDLE)
        begin(a);
}

void prefault_stop(struct prefault *a)
{
    a->state = PREFAULT_STOPPED;
}
