#include "server/core/pull_deltas.h"

#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

struct known_table {
    uint32_t table_id;
    struct table_spec spec; /* the rows' */
    struct delta_rows rows;
};

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

static void free_table(struct known_table *t)
{
    delta_rows_deinit(&t->rows);
    free(t);
}

void pull_deltas_free(struct pull_deltas *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_tables; i++)
        free_table(p->tables[i]);
    free((void *)p->tables);
    free(p);
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

static int add(struct pull_deltas *p, uint32_t table_id, const struct table_spec *spec)
{
    struct known_table *t;

    if (p->n_tables == PULL_DELTAS_TABLES_MAX)
        return -ENOBUFS;
    t = reserve(p) ? NULL : memory_try_alloc(sizeof *t);
    if (!t)
        return -ENOMEM;
    *t = (struct known_table){ .table_id = table_id, .spec = *spec };
    if (delta_rows_init(&t->rows, &t->spec, p->memory)) {
        free_table(t);
        return -ENOMEM;
    }
    p->tables[p->n_tables++] = t;
    return 0;
}

int pull_deltas_find(struct pull_deltas *p, uint32_t table_id, const struct table_spec *spec,
                     struct delta_rows **ret)
{
    uint32_t i = 0;
    int status;

    while (i < p->n_tables && p->tables[i]->table_id != table_id)
        i++;
    status = i < p->n_tables ? 0 : add(p, table_id, spec);
    if (!status)
        *ret = &p->tables[i]->rows;
    return status;
}

uint64_t pull_deltas_next_number(struct pull_deltas *p)
{
    return ++p->n_answers;
}
