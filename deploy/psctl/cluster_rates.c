#include "deploy/psctl/cluster_rates.h"

#include <time.h>

#include "deploy/psctl/field.h"

cJSON *cluster_rates_ask(struct cluster_query *q)
{
    cluster_query_ask(q, &(struct ps_admin_plan){ .command = "stats" });
    return cluster_query_answers(q, NULL);
}

void cluster_rates_wait(uint64_t ms)
{
    struct timespec left = { .tv_sec = (time_t)(ms / 1000),
                             .tv_nsec = (long)(ms % 1000) * 1000000 };

    while (nanosleep(&left, &left) != 0)
        ;
}

static const cJSON *find_number(const cJSON *list, const char *name, double value)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) if (field_child(item, name) &&
                                       field_number(item, name) == value) return item;
    return NULL;
}

/* A process that was started anew counts from 0. */
const cJSON *cluster_rates_node_before(const cJSON *before, const cJSON *node)
{
    const cJSON *same =
        find_number(field_child(before, "nodes"), "node", field_number(node, "node"));

    return same && field_number(same, "started_unix_ms") ==
                       field_number(node, "started_unix_ms")
               ? same
               : NULL;
}

const cJSON *cluster_rates_shard_before(const cJSON *before, const cJSON *node,
                                        const cJSON *shard)
{
    return find_number(field_child(cluster_rates_node_before(before, node), "shards"), "shard",
                       field_number(shard, "shard"));
}

double cluster_rates_seconds(const cJSON *before, const cJSON *node)
{
    const cJSON *same = cluster_rates_node_before(before, node);

    return same ? (field_number(node, "now_unix_ms") - field_number(same, "now_unix_ms")) / 1000
                : 0;
}

/* When the shard has made its report, by its node's clock. */
static double made_ms(const cJSON *node, const cJSON *shard)
{
    return field_number(node, "now_unix_ms") - field_number(shard, "report_age_ms");
}

static double grown(const cJSON *before, const cJSON *after, const char *group,
                    const char *name)
{
    double n = field_number(field_child(after, group), name) -
               field_number(field_child(before, group), name);

    return n > 0 ? n : 0;
}

struct cluster_rates cluster_rates_of(const cJSON *before, const cJSON *node,
                                      const cJSON *shard)
{
    const cJSON *old_node = cluster_rates_node_before(before, node),
                *old = cluster_rates_shard_before(before, node, shard);
    struct cluster_rates r = { 0 };

    if (!old || !field_is_true(old, "reported") || !field_is_true(shard, "reported"))
        return r;
    r.seconds = (made_ms(node, shard) - made_ms(old_node, old)) / 1000;
    if (r.seconds < 0.1) /* the same report: its age is rounded */
        return (struct cluster_rates){ 0 };
    r.pulls = grown(old, shard, "counters", "pulls") / r.seconds;
    r.pushes = grown(old, shard, "counters", "pushes") / r.seconds;
    r.rows = (grown(old, shard, "counters", "rows_pulled") +
              grown(old, shard, "counters", "rows_pushed")) /
             r.seconds;
    r.bytes = (grown(old, shard, "net", "bytes_in") + grown(old, shard, "net", "bytes_out")) /
              r.seconds;
    r.cpu = (field_number(shard, "cpu_seconds") - field_number(old, "cpu_seconds")) / r.seconds;
    return r;
}
