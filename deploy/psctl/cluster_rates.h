/* Two reports of a cluster, some time apart: what happened between them. */
#ifndef DEPLOY_PSCTL_CLUSTER_RATES_H
#define DEPLOY_PSCTL_CLUSTER_RATES_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/base.h"
#include "deploy/psctl/cluster_query.h"

/* The reports of all nodes: {"nodes":[...]}, as cluster_query_answers() gives them. The caller's to delete. */
cJSON *cluster_rates_ask(struct cluster_query *q);

/* Sleeps until the next report is due. */
void cluster_rates_wait(uint64_t ms);

/* Of a shard, each second. */
struct cluster_rates {
    double
        seconds; /* between its two reports; 0: there is no earlier one to compare with, and no rate */
    double pulls, pushes, rows, bytes;
    double cpu; /* 0 to 1: share of a core */
};

/* node, shard: of the later reports. */
struct cluster_rates cluster_rates_of(const cJSON *before, const cJSON *node,
                                      const cJSON *shard);

/* The same node or shard in the earlier reports, of the same process; NULL: it was not there. */
const cJSON *cluster_rates_node_before(const cJSON *before, const cJSON *node);
const cJSON *cluster_rates_shard_before(const cJSON *before, const cJSON *node,
                                        const cJSON *shard);

/* Seconds between two reports of a node. */
double cluster_rates_seconds(const cJSON *before, const cJSON *node);

#endif
