#include "server/durable/deal.h"

#include "common/status.h"

#define STEP 8192u /* rows between two signs of life */

static int copy_rows(struct shard *to, uint32_t id, const struct shard_table *table,
                     void (*progress)(void *arg), void *arg) ON_SHARD
{
    uint64_t n = table_n_numbers(table->rows);
    int status = 0;

    for (uint64_t i = 0; i < n && !status; i++) {
        const struct row *row = table_row(table->rows, i);

        if (i % STEP == 0 && progress)
            progress(arg);
        if (row)
            status = shard_restore_row(to, id, row->key, row->stamp, row->floats);
    }
    return status;
}

int deal_table(struct shard *from, uint32_t from_id, struct shard *to,
               void (*progress)(void *arg), void *arg, struct err *err)
{
    const struct shard_table *table = shard_table(from, from_id);
    uint32_t id;
    int status = shard_table_ask(to, &table->spec, false, &id, err);

    if (status)
        return status;
    shard_restore_counts(to, id, table->n_pushes, shard_version(from));
    status = copy_rows(to, id, table, progress, arg);
    if (status)
        err_set(err, status, "table %s: %s", table->spec.name, status_text(status));
    return status;
}

int deal_rows(struct shard *from, struct shard *to, void (*progress)(void *arg), void *arg,
              struct err *err)
{
    int status = 0;

    for (uint32_t id = 0; id < shard_n_tables(from) && !status; id++)
        status = deal_table(from, id, to, progress, arg, err);
    return status;
}
