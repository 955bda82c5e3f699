#include "server/admin/report.h"

#include <stdlib.h>

double report_overhead(const struct report_table *table)
{
    uint64_t held = table->slab_bytes + table->index_bytes;

    return table->n_rows ? (double)held / (double)table->n_rows - (double)table->payload_bytes
                         : 0;
}

void shard_report_free(struct shard_report *report)
{
    if (!report)
        return;
    free(report->tables);
    free(report->jobs);
    free(report->workers);
    free(report->waits);
    free(report);
}
