#include "worker/tune/job_drop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/ps_admin.h"

#define DROP_MS 8000u

static struct ps_admin_plan plan_of(const struct settings *s)
{
    return (struct ps_admin_plan){ .token = s->token, .tls = s->tls, .timeout_ms = DROP_MS };
}

static int find_cluster(const struct settings *s, struct hello_reply *ret, struct err *err)
{
    const struct ps_admin_plan plan = plan_of(s);
    char list[SETTINGS_TEXT_MAX], *rest = list, *server;
    int status = -ENOENT;

    memcpy(list, s->servers, sizeof list);
    while (status && (server = strsep(&rest, ",")) != NULL)
        if (server[0])
            status = ps_admin_find(&plan, server, ret, err);
    return status;
}

/* The list of nodes is as the cluster was made; of a node with a standby the group knows who serves. */
static const char *server_of(const struct hello_reply *cluster, uint32_t node)
{
    const struct group *group = &cluster->groups.items[node];
    const bool is_known =
        cluster->groups.n == cluster->n_nodes && group->term && group->primary[0];

    return is_known ? group->primary : cluster->nodes[node];
}

static int command_nodes(const struct settings *s, const struct hello_reply *cluster,
                         const char *command, const char *job, struct err *err)
{
    struct ps_admin_plan plan = plan_of(s);
    int status = 0;

    plan.command = command;
    plan.argument = job;
    for (uint32_t i = 0; i < cluster->n_nodes && !status; i++) {
        char *answer = NULL;

        status = ps_admin_one(&plan, server_of(cluster, i), &answer, err);
        free(answer);
    }
    return status;
}

static int run_commands(const struct settings *s, const char *job, bool drops, struct err *err)
{
    struct hello_reply *cluster = memory_alloc(sizeof *cluster);
    int status = find_cluster(s, cluster, err);

    if (!status)
        status = command_nodes(s, cluster, "drop-check", job, err);
    if (!status && drops)
        status = command_nodes(s, cluster, "drop", job, err);
    free(cluster);
    return status;
}

int job_drop(const struct settings *s, const char *job, struct err *err)
{
    return run_commands(s, job, true, err);
}

int job_drop_check(const struct settings *s, const char *job, struct err *err)
{
    return run_commands(s, job, false, err);
}
