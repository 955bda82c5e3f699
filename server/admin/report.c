#include "server/admin/report.h"

#include <stdlib.h>

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
