/* psd_table(): a name and words become a number. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "worker/libpsd/options.h"

/* A name without "/" is one of the job. */
static int full_name(const psd *c, const char *name, char dst[TABLE_SPEC_NAME_MAX],
                     struct err *err)
{
    bool is_full = strchr(name, '/') || !c->job[0];
    int n = snprintf(dst, TABLE_SPEC_NAME_MAX, "%s%s%s", is_full ? "" : c->job,
                     is_full ? "" : "/", name);

    return n >= (int)TABLE_SPEC_NAME_MAX
               ? err_set(err, PS_ESPEC,
                         "the table's name is longer than %d bytes with its job's",
                         TABLE_SPEC_NAME_MAX - 1)
               : 0;
}

/* The number of a table that this handle has, and has not dropped, or -1. */
static int find_table(psd *c, const char *name)
{
    uint32_t i = 0;

    uv_mutex_lock(&c->lock);
    while (i < c->n_tables && (c->is_dropped[i] || strcmp(c->tables[i].name, name) != 0))
        i++;
    i = i < c->n_tables ? i : UINT32_MAX;
    uv_mutex_unlock(&c->lock);
    return (int)i;
}

/* Behind the gate: the engine has one request for a table at a time. */
static int add_table(psd *c, struct table_spec *spec, bool must_exist, struct err *err)
{
    uint32_t number = 0;
    int status = must_exist ? ps_table_find(c->client, spec, &number, err)
                            : ps_table(c->client, spec, &number, err);

    if (status)
        return status;
    uv_mutex_lock(&c->lock);
    c->tables[number] = *spec;
    c->n_tables = number + 1;
    uv_mutex_unlock(&c->lock);
    return (int)number;
}

static int find_or_add(psd *c, struct table_spec *spec, bool must_exist, struct err *err)
{
    int number = find_table(c, spec->name), status;

    if (number < 0)
        return add_table(c, spec, must_exist, err);
    status = must_exist ? 0 : table_spec_same(&c->tables[number], spec, err);
    return status ? status : number;
}

static int get_table(psd *c, const char *name, const char *words, struct err *err)
{
    struct table_spec spec;
    char full[TABLE_SPEC_NAME_MAX];
    int status = full_name(c, name, full, err);

    if (status)
        return status;
    memset(&spec, 0, sizeof spec);
    strcpy(spec.name, full);
    if (words)
        status = options_read_spec(&spec, full, words, err);
    if (!status)
        status = handle_pass(c, &c->changing, HANDLE_FOREVER, err);
    if (status)
        return status;
    status = find_or_add(c, &spec, !words, err);
    handle_pass_back(c, &c->changing);
    return status;
}

int psd_table(psd *c, const char *name, const char *spec)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    if (!name || !name[0])
        status = err_set(&err, -EINVAL, "psd_table() has no name");
    else
        status = get_table(c, name, spec, &err);
    return handle_leave(c, status, &err);
}

int psd_get_table(psd *c, int table, psd_table_info *ret)
{
    psd_table_info filled = { 0 };
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    uv_mutex_lock(&c->lock);
    if (table < 0 || (uint32_t)table >= c->n_tables) {
        status = err_set(&err, PS_ENOTABLE, "no table has number %d, there are %u", table,
                         c->n_tables);
    } else {
        const struct table_spec *spec = &c->tables[table];

        filled.dim = spec->dim;
        filled.n_floats = spec->n_floats;
        filled.lr = spec->params.learning_rate;
        filled.n_state = table_spec_state_floats(spec);
        snprintf(filled.name, sizeof filled.name, "%s", spec->name);
        snprintf(filled.optimizer, sizeof filled.optimizer, "%s",
                 table_spec_optim_name(spec->optim));
    }
    uv_mutex_unlock(&c->lock);
    if (!status)
        status = handle_fill(ret, &filled, sizeof filled, &err);
    return handle_leave(c, status, &err);
}
