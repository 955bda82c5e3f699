/* One question to all nodes of a cluster at once, or with --node to one. A node that does not answer costs the deadline
 * once, however many there are. */
#ifndef DEPLOY_PSCTL_CLUSTER_QUERY_H
#define DEPLOY_PSCTL_CLUSTER_QUERY_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/token_file.h"
#include "deploy/psctl/options.h"
#include "worker/client/ps_admin.h"

/* --timeout 0ms: of what only looks, and of what changes something. */
#define CLUSTER_QUERY_READ_MS 8000u
#define CLUSTER_QUERY_CHANGE_MS 30000u

/* --timeout, or what it stands for. */
uint32_t cluster_query_timeout_ms(const struct options *o, bool is_change);

/* What a silent server of several costs, unless --timeout says: one of them is mostly a dead machine. */
#define CLUSTER_QUERY_CHOOSE_MS 2000u
#define CLUSTER_QUERY_SERVERS_MAX 64u

/* --server may name several nodes: the first that answers is left there. False: none does, and `failed` was called for
 * each of them. -EINVAL of the second function: it is no such list. */
bool cluster_query_choose(struct options *o,
                          void (*failed)(void *arg, const char *server, const struct err *err),
                          void *arg);
int cluster_query_check_servers(const struct options *o, struct err *err) MUST_CHECK;

/* The psd at a node's address of the list is a standby now. */
struct cluster_query_move {
    char primary[MESSAGE_ADDRESS_MAX]; /* of which; "": it is not */
    bool is_shown;                     /* its answer took the standby's place */
};

struct cluster_query {
    const struct options *options; /* borrowed */
    char token[TOKEN_FILE_MAX];
    struct hello_reply *cluster; /* owned */
    uint32_t n;                  /* nodes that are asked */
    struct ps_admin_node
        *nodes; /* owned, n of them with their answers; NULL before the first question */
    struct cluster_query_move *moves; /* owned, n of them */
};

/* Asks the node in the options for the list of all. False: no answer, or no such node; stderr says why.
 * cluster_query_close() in either case. */
bool cluster_query_open(struct cluster_query *q, const struct options *o);
void cluster_query_close(struct cluster_query *q);

/* Sends the plan, whose token and timeout are filled in, and waits for all answers. Those before are freed. The node
 * that --server named is asked under that name, because this machine can reach it by that name. Where another node of
 * the list is a standby now, the answer is its primary's: cluster_query_print_moves(). */
void cluster_query_ask(struct cluster_query *q, const struct ps_admin_plan *plan);

/* One node is asked: a cluster of one, or --node. */
bool cluster_query_is_alone(const struct cluster_query *q);

/* Of nodes[i]: its number in the cluster; its address there; why there is no answer, "" if there is one. */
uint32_t cluster_query_number(const struct cluster_query *q, uint32_t i);
const char *cluster_query_address(const struct cluster_query *q, uint32_t i);
const char *cluster_query_failure(const struct cluster_query *q, uint32_t i);
/* What makes a failure of this status clearer: ": no psd listens there ...", or "". */
const char *cluster_query_hint(int status);

/* A line on stderr for each node whose primary is elsewhere. */
void cluster_query_print_moves(const struct cluster_query *q);

/* A line on stderr for each node that has not answered. Returns how many. */
uint32_t cluster_query_print_failures(const struct cluster_query *q);

/* The answers, parsed: {"nodes":[...]}, each with its number and, where there is no answer, an error. *ret_n_failed may
 * be NULL. The caller's to delete. */
cJSON *cluster_query_answers(const struct cluster_query *q, uint32_t *ret_n_failed);

/* One node: its answer as it came. Several: the object above, in a line. Returns the exit code. */
int cluster_query_print_json(const struct cluster_query *q);

#endif
