#include "deploy/psctl/cluster_query.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/address.h"
#include "common/memory.h"
#include "common/number.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/field.h"

#define SENSELESS "the answer makes no sense"

/* A node listens from its start on, but for a while in which it reserves memory. */
const char *cluster_query_hint(int status)
{
    return status == -ECONNREFUSED
               ? ": no psd listens there, or it has just been started, as its log says"
               : "";
}

uint32_t cluster_query_timeout_ms(const struct options *o, bool is_change)
{
    if (o->timeout_ms)
        return (uint32_t)o->timeout_ms;
    return is_change ? CLUSTER_QUERY_CHANGE_MS : CLUSTER_QUERY_READ_MS;
}

/* --- several servers --- */

int cluster_query_check_servers(const struct options *o, struct err *err)
{
    struct address servers[CLUSTER_QUERY_SERVERS_MAX];
    uint32_t n;

    return address_list(o->server, CLUSTER_QUERY_SERVERS_MAX, servers, &n, err);
}

/* etcd may name more than a person would. */
static uint32_t count_servers(const char *text)
{
    uint32_t n = 1;

    for (; *text; text++)
        n += *text == ',';
    return n;
}

bool cluster_query_choose(struct options *o,
                          void (*failed)(void *arg, const char *server, const struct err *err),
                          void *arg)
{
    const uint32_t max = count_servers(o->server);
    struct address *servers = memory_alloc(max * sizeof *servers);
    struct err *errs = memory_alloc(max * sizeof *errs);
    struct hello_reply *map = memory_alloc(sizeof *map);
    char token[TOKEN_FILE_MAX] = "";
    uint32_t n = 0, n_failed = 0;
    int status = address_list(o->server, max, servers, &n, errs);
    struct ps_admin_plan plan = { .token = token, .tls = o->tls };

    plan.timeout_ms =
        n > 1 && !o->timeout_ms ? CLUSTER_QUERY_CHOOSE_MS : cluster_query_timeout_ms(o, false);
    if (!status)
        status = token_file_read(&file_os, o->token_file, token, errs);
    if (status) /* no server would do */
        failed(arg, o->server, errs);
    for (; !status && !map->n_nodes && n_failed < n; n_failed += !map->n_nodes)
        if (!ps_admin_find(&plan, servers[n_failed].text, map, &errs[n_failed]))
            snprintf(o->server, sizeof o->server, "%s", servers[n_failed].text);
    status = map->n_nodes ? 0 : -ENOENT;
    for (uint32_t i = 0; status && i < n_failed; i++)
        failed(arg, servers[i].text, &errs[i]);
    free(servers);
    free(errs);
    free(map);
    return status == 0;
}

static bool set_count(struct cluster_query *q)
{
    q->n = q->options->has_node ? 1 : q->cluster->n_nodes;
    if (!q->options->has_node || q->options->node < q->cluster->n_nodes)
        return true;
    fprintf(stderr,
            "psctl: node: found %" PRIu32 ", expected 0 to %" PRIu32
            ", as the cluster has %" PRIu32 " node%s\n",
            q->options->node, q->cluster->n_nodes - 1, q->cluster->n_nodes,
            NUMBER_PLURAL(q->cluster->n_nodes));
    return false;
}

bool cluster_query_open(struct cluster_query *q, const struct options *o)
{
    struct err err = { 0 };

    *q = (struct cluster_query){ .options = o, .cluster = memory_alloc(sizeof *q->cluster) };
    if (!token_file_read(&file_os, o->token_file, q->token, &err) &&
        !ps_admin_find(
            &(struct ps_admin_plan){ .token = q->token,
                                     .tls = o->tls,
                                     .timeout_ms = cluster_query_timeout_ms(o, false) },
            o->server, q->cluster, &err))
        return set_count(q);
    fprintf(stderr, "psctl: %s%s\n", err.text, cluster_query_hint(err.status));
    return false;
}

static void free_answers(struct cluster_query *q)
{
    for (uint32_t i = 0; q->nodes && i < q->n; i++)
        free(q->nodes[i].json);
    free(q->nodes);
    free(q->moves);
    q->nodes = NULL;
    q->moves = NULL;
}

void cluster_query_close(struct cluster_query *q)
{
    free_answers(q);
    free(q->cluster);
}

/* --- nodes whose primary has another address than the list --- */

/* A psd that does not serve names its primary; the one that --server names is meant itself. */
static bool may_have_moved(const struct cluster_query *q, uint32_t i)
{
    return cluster_query_number(q, i) != q->cluster->node &&
           (q->nodes[i].json || q->nodes[i].err.status == PS_EMOVED);
}

/* ret: the peer of a standby; "": it is none. */
static void read_primary(const char *json, char ret[static MESSAGE_ADDRESS_MAX])
{
    cJSON *status = json ? cJSON_Parse(json) : NULL;
    const cJSON *replication = field_child(status, "replication");

    if (strcmp(field_text(replication, "role"), "standby") == 0)
        snprintf(ret, MESSAGE_ADDRESS_MAX, "%.127s", field_text(replication, "peer"));
    cJSON_Delete(status);
}

static void find_primaries(struct cluster_query *q, const struct ps_admin_plan *plan)
{
    const bool is_status = strcmp(plan->command, "status") == 0;
    struct ps_admin_plan roles = *plan;
    struct ps_admin_node *asked = memory_alloc(q->n * sizeof *asked);
    uint32_t *which = memory_alloc(q->n * sizeof *which), n = 0;

    roles.command = "status";
    roles.argument = NULL;
    roles.beat_ms = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        if (!may_have_moved(q, i))
            continue;
        which[n] = i;
        asked[n++].server = q->nodes[i].server;
        if (is_status)
            read_primary(q->nodes[i].json, q->moves[i].primary);
    }
    if (!is_status && n)
        ps_admin_ask(&roles, asked, n);
    for (uint32_t k = 0; k < n; k++) {
        if (!is_status)
            read_primary(asked[k].json, q->moves[which[k]].primary);
        free(asked[k].json);
    }
    free(asked);
    free(which);
}

/* The other member's answer takes the place of the standby's; if it has none, that one stays. */
static void ask_primaries(struct cluster_query *q, const struct ps_admin_plan *plan)
{
    for (uint32_t i = 0; i < q->n; i++) {
        struct ps_admin_node primary = { .server = q->moves[i].primary };

        if (!primary.server[0])
            continue;
        ps_admin_ask(plan, &primary, 1);
        q->moves[i].is_shown = primary.json != NULL;
        if (!primary.json)
            continue;
        free(q->nodes[i].json);
        q->nodes[i] = primary;
    }
}

void cluster_query_ask(struct cluster_query *q, const struct ps_admin_plan *plan)
{
    struct ps_admin_plan complete = *plan;

    free_answers(q);
    complete.token = q->token;
    complete.tls = q->options->tls;
    complete.timeout_ms = cluster_query_timeout_ms(q->options, plan->beat_ms != 0);
    q->nodes = memory_alloc(q->n * sizeof *q->nodes);
    for (uint32_t i = 0; i < q->n; i++)
        q->nodes[i].server = cluster_query_number(q, i) == q->cluster->node
                                 ? q->options->server
                                 : cluster_query_address(q, i);
    ps_admin_ask(&complete, q->nodes, q->n);
    q->moves = memory_alloc(q->n * sizeof *q->moves);
    if (plan->beat_ms) /* reports of progress are by a node's place */
        return;
    find_primaries(q, &complete);
    ask_primaries(q, &complete);
}

bool cluster_query_is_alone(const struct cluster_query *q)
{
    return q->n == 1;
}

uint32_t cluster_query_number(const struct cluster_query *q, uint32_t i)
{
    return q->options->has_node ? q->options->node : i;
}

const char *cluster_query_address(const struct cluster_query *q, uint32_t i)
{
    return q->cluster->nodes[cluster_query_number(q, i)];
}

const char *cluster_query_failure(const struct cluster_query *q, uint32_t i)
{
    return q->nodes[i].json ? "" : q->nodes[i].err.text;
}

void cluster_query_print_moves(const struct cluster_query *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        if (q->moves[i].primary[0])
            fprintf(stderr, "psctl: node %" PRIu32 ": %s is a standby now, of %s, which %s\n",
                    cluster_query_number(q, i), cluster_query_address(q, i),
                    q->moves[i].primary, q->moves[i].is_shown ? "is shown" : "does not answer");
}

uint32_t cluster_query_print_failures(const struct cluster_query *q)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->n; i++) {
        if (q->nodes[i].json)
            continue;
        n++;
        fprintf(stderr, "psctl: ");
        if (!cluster_query_is_alone(q))
            fprintf(stderr, "node %" PRIu32 ": ", cluster_query_number(q, i));
        fprintf(stderr, "%s%s\n", q->nodes[i].err.text,
                cluster_query_hint(q->nodes[i].err.status));
    }
    return n;
}

cJSON *cluster_query_answers(const struct cluster_query *q, uint32_t *ret_n_failed)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "nodes");
    uint32_t n_failed = 0;

    for (uint32_t i = 0; i < q->n; i++) {
        const char *json = q->nodes[i].json;
        cJSON *item = json ? cJSON_Parse(json) : NULL, *node;

        if (!cJSON_IsObject(item)) {
            cJSON_Delete(item);
            item = cJSON_CreateObject();
            cJSON_AddStringToObject(item, "error", json ? SENSELESS : q->nodes[i].err.text);
            n_failed++;
        }
        node = cJSON_CreateNumber(cluster_query_number(q, i));
        if (cJSON_HasObjectItem(item, "node"))
            cJSON_ReplaceItemInObjectCaseSensitive(item, "node", node);
        else
            cJSON_AddItemToObject(item, "node", node);
        cJSON_AddItemToArray(list, item);
    }
    if (ret_n_failed)
        *ret_n_failed = n_failed;
    return root;
}

int cluster_query_print_json(const struct cluster_query *q)
{
    uint32_t n_failed;
    const char *json;

    if (!cluster_query_is_alone(q)) {
        data_dir_print_json(cluster_query_answers(q, &n_failed));
        return n_failed ? EXIT_FAILED : EXIT_ANSWERED;
    }
    json = q->nodes[0].json;
    if (!json) {
        cluster_query_print_failures(q);
        return EXIT_FAILED;
    }
    printf("%s%s", json, json[0] && json[strlen(json) - 1] == '\n' ? "" : "\n");
    return EXIT_ANSWERED;
}
