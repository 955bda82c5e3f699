/* One question to every node of a cluster. */
#ifndef DEPLOY_PSCTL_ASK_NODES_H
#define DEPLOY_PSCTL_ASK_NODES_H

#include "common/token_file.h"
#include "deploy/psctl/ask.h"
#include "worker/client/ps_admin.h"

struct ask_nodes {
    const struct options *options; /* borrowed */
    char token[TOKEN_FILE_MAX];
    struct hello_reply *cluster; /* owned */
    struct ps_admin_node *nodes; /* owned, cluster->n_nodes, and their answers */
};

/* Learns of the node in the options which others there are. False: it did not answer, stderr says why. ask_nodes_deinit() in
 * either case. */
bool ask_nodes_find(struct ask_nodes *a, const struct options *o) MUST_CHECK;

void ask_nodes_deinit(struct ask_nodes *a);

/* A cluster of one node. */
bool ask_nodes_is_alone(const struct ask_nodes *a);

/* Asks all: the plan but for its token. The node that was named is asked under that name, by which it can be reached. */
void ask_nodes_run(struct ask_nodes *a, const struct ps_admin_plan *plan);

/* One JSON object, {"nodes":[...]}: each answer with its node's number, or why there is none. Returns the exit code: answered
 * if all have. */
int ask_nodes_tell_json(const struct ask_nodes *a);

/* psctl why: what waits on any of them. */
int ask_nodes_why(const struct options *o, const char *const *words, uint32_t n_words);

#endif
