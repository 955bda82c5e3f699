#include "deploy/psctl/doctor_findings.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"

#define SENTENCE_MAX 500

static const char *const severities[] = { "problem", "warning", "note" };

void doctor_findings_add(struct examination *e, enum severity severity, double node,
                         const char *fmt, va_list args)
{
    cJSON *finding = cJSON_CreateObject();
    char sentence[SENTENCE_MAX];

    vsnprintf(sentence, sizeof sentence, fmt, args);
    cJSON_AddStringToObject(finding, "severity", severities[severity]);
    if (node != NO_NODE)
        cJSON_AddNumberToObject(finding, "node", node);
    cJSON_AddStringToObject(finding, "text", sentence);
    cJSON_AddItemToArray(e->findings[severity], finding);
}

void doctor_say(struct examination *e, enum severity severity, double node, const char *fmt,
                ...)
{
    va_list args;

    va_start(args, fmt);
    doctor_findings_add(e, severity, node, fmt, args);
    va_end(args);
}

cJSON *doctor_ask_again(const struct cluster_query *q, const char *command)
{
    struct ps_admin_node *asked = memory_alloc(q->n * sizeof *asked);
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "nodes");
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->n; i++)
        if (q->nodes[i].json)
            asked[n++].server = q->nodes[i].server;
    ps_admin_ask(
        &(struct ps_admin_plan){ .token = q->token,
                                 .tls = q->options->tls,
                                 .command = command,
                                 .timeout_ms = cluster_query_timeout_ms(q->options, false) },
        asked, n);
    n = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        char *json = q->nodes[i].json ? asked[n++].json : NULL;
        cJSON *answer = json ? cJSON_Parse(json) : NULL;

        cJSON_AddItemToArray(list, answer ? answer : cJSON_CreateObject());
        free(json);
    }
    free(asked);
    return root;
}
