#include "server/core/pull_deltas.h"

#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

struct known_table {
    uint32_t table_id;
    struct table_spec spec; /* the rows' */
    struct delta_rows rows;
};

/* With its place in the list. */
#define TABLE_BYTES (sizeof(struct known_table) + 2 * sizeof(struct known_table *))

struct pull_deltas {
    struct delta_memory *memory; /* borrowed */
    struct known_table **tables; /* owned, as each */
    uint32_t n_tables, cap_tables;
    uint64_t n_answers;
};

struct pull_deltas *pull_deltas_new(struct delta_memory *memory)
{
    struct pull_deltas *p = memory_try_alloc(sizeof *p);

    if (p)
        *p = (struct pull_deltas){ .memory = memory };
    return p;
}

static void free_table(struct pull_deltas *p, struct known_table *t)
{
    delta_rows_deinit(&t->rows);
    free(t);
    memory_budget_release(&p->memory->budget, TABLE_BYTES);
}

void pull_deltas_free(struct pull_deltas *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_tables; i++)
        free_table(p, p->tables[i]);
    free((void *)p->tables);
    free(p);
}

void pull_deltas_drop(struct pull_deltas *p, bool (*is_there)(void *arg, uint32_t table_id),
                      void *arg)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_tables; i++) {
        if (is_there(arg, p->tables[i]->table_id))
            p->tables[n++] = p->tables[i];
        else
            free_table(p, p->tables[i]);
    }
    p->n_tables = n;
}

static int reserve(struct pull_deltas *p)
{
    const uint32_t cap = p->cap_tables ? 2 * p->cap_tables : 16;
    struct known_table **tables;

    if (p->n_tables < p->cap_tables)
        return 0;
    tables = memory_try_realloc((void *)p->tables, cap * sizeof(struct known_table *));
    if (!tables)
        return -ENOMEM;
    p->tables = tables;
    p->cap_tables = cap;
    return 0;
}

/* False: there is no place for it. */
static bool add(struct pull_deltas *p, uint32_t table_id, const struct table_spec *spec)
{
    struct known_table *t = NULL;

    if (p->n_tables == PULL_DELTAS_TABLES_MAX ||
        memory_budget_acquire(&p->memory->budget, TABLE_BYTES))
        return false;
    if (!reserve(p))
        t = memory_try_alloc(sizeof *t);
    if (!t) {
        memory_budget_release(&p->memory->budget, TABLE_BYTES);
        return false;
    }
    *t = (struct known_table){ .table_id = table_id, .spec = *spec };
    if (delta_rows_init(&t->rows, &t->spec, p->memory)) {
        free_table(p, t);
        return false;
    }
    p->tables[p->n_tables++] = t;
    return true;
}

int pull_deltas_find(struct pull_deltas *p, uint32_t table_id, const struct table_spec *spec,
                     struct delta_rows **ret)
{
    uint32_t i = 0;

    while (i < p->n_tables && p->tables[i]->table_id != table_id)
        i++;
    if (i == p->n_tables && !add(p, table_id, spec))
        return delta_rows_init_bare(*ret, spec, p->memory);
    *ret = &p->tables[i]->rows;
    return 0;
}

uint64_t pull_deltas_next_number(struct pull_deltas *p)
{
    return ++p->n_answers;
}
