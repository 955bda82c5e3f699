/* A standby as operators and refused workers see it. */
#ifndef SERVER_STANDBY_REPORT_H
#define SERVER_STANDBY_REPORT_H

#include "server/admin/stats.h"
#include "server/net/group_view.h"
#include "server/standby.h"

void standby_report(const struct standby *s, const char *primary, struct stats_standby *ret)
    ON_MAIN;

/* PS_EMOVED and a sentence. */
int standby_report_refusal(const struct standby *s, const char *primary, struct err *err)
    ON_MAIN;

/* What other nodes and clients hear of this node's two psd: as the report says, of whichever side. `serves`: workers may
 * come. Nothing where there is, and was, no other one. */
void standby_report_groups(const struct stats_standby *report, const char *own_address,
                           bool serves, struct group_view *groups) ON_MAIN;

#endif
