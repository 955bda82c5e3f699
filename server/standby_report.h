/* A standby as operators and refused workers see it. */
#ifndef SERVER_STANDBY_REPORT_H
#define SERVER_STANDBY_REPORT_H

#include "server/admin/stats.h"
#include "server/standby.h"

void standby_report(const struct standby *s, const char *primary, struct stats_standby *ret)
    ON_MAIN;

/* PS_EMOVED and a sentence. */
int standby_report_refusal(const struct standby *s, const char *primary, struct err *err)
    ON_MAIN;

#endif
