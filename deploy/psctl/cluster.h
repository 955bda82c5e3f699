/* psctl cluster: who serves each group of shards, who may take over, and who waits for what. */
#ifndef DEPLOY_PSCTL_CLUSTER_H
#define DEPLOY_PSCTL_CLUSTER_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "deploy/psctl/options.h"
#include "deploy/psctl/terminal.h"
#include "proto/group.h"

/* Asks etcd with --coord, else the node at --server, for the groups; then all members at once. EXIT_FAILED if a member
 * has not answered, or a group has no primary, or two. */
int cluster_run(const struct options *o, const char *const *words, uint32_t n_words);

/* Of the members' answers, one for each: {"group":0, "address":"h:1", "status":{...}, "waits":[...]}, or with "error".
 * {"groups":[...]}; the caller's to delete. */
cJSON *cluster_summary(const struct groups *groups, const cJSON *members);

/* As text. */
void cluster_print(const cJSON *summary, const struct terminal *terminal, FILE *out);

#endif
