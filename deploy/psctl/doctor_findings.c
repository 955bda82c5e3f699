#include "deploy/psctl/doctor_findings.h"

#include <stdio.h>

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
