/* The answers of several nodes as if one node had given them, by the rules of stats_total() (server/admin/stats.h). */
#ifndef DEPLOY_PSCTL_CLUSTER_REPORT_H
#define DEPLOY_PSCTL_CLUSTER_REPORT_H

#include <cjson/cJSON.h>

/* Of {"nodes":[...]}: their tables, jobs with workers, and waits, as far as the answers have these lists. Times of
 * waits are moved to the clock of the first node that answers. Nodes without an answer are left out. The caller's to
 * delete. */
cJSON *cluster_report_merge(const cJSON *answers);

#endif
