/* What psctl doctor looks at, and the sentences that it has found. */
#ifndef DEPLOY_PSCTL_DOCTOR_FINDINGS_H
#define DEPLOY_PSCTL_DOCTOR_FINDINGS_H

#include <cjson/cJSON.h>
#include <stdarg.h>

#include "common/base.h"
#include "deploy/psctl/cluster_query.h"

#define NO_NODE (-1)

enum severity { PROBLEM, WARNING, NOTE, N_SEVERITIES };

struct examination {
    const cJSON *before, *after;
    cJSON *merged;   /* owned: tables, jobs and waits of all nodes */
    double lease_ms; /* the longest of the nodes; 0: not known */
    cJSON *findings[N_SEVERITIES];
};

/* node: NO_NODE: of the cluster or a job. */
PRINTF_LIKE(4, 0)
void doctor_findings_add(struct examination *e, enum severity severity, double node,
                         const char *fmt, va_list args);

PRINTF_LIKE(4, 5)
void doctor_say(struct examination *e, enum severity severity, double node, const char *fmt,
                ...);

/* Asks the nodes that have answered the last question, and no other: a silent one costs its deadline. {"nodes":[...]}
 * in their order, {} for one without an answer. The caller's to delete. */
cJSON *doctor_ask_again(const struct cluster_query *q, const char *command);

/* --- doctor_settings.c: nodes whose settings contradict each other, or themselves, as psctl config shows them --- */

/* The settings of the nodes that have answered become part of their reports. Who may not ask for them has reports
 * without. */
void doctor_settings_ask(const struct cluster_query *q, cJSON *reports);

void doctor_settings_examine(struct examination *e);

/* --- doctor_pace.c: which worker of a job holds up the others --- */

/* Adds where all workers are now to looks, which become "looks" of the later reports. */
void doctor_pace_look(const struct cluster_query *q, cJSON *looks);

/* old: the job in the earlier reports, or NULL; seconds: from then on. */
void doctor_pace_examine(struct examination *e, const cJSON *job, const cJSON *old,
                         double seconds);

#endif
