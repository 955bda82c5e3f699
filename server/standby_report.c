#include "server/standby.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *state_name(const struct standby_view *v)
{
    static const char *const names[] = {
        [STANDBY_READING] = "reading",     [STANDBY_DIALLING] = "not following",
        [STANDBY_COPYING] = "copying",     [STANDBY_REBUILDING] = "loading",
        [STANDBY_FOLLOWING] = "following", [STANDBY_SEALING] = "sealing",
        [STANDBY_PROMOTING] = "promoting", [STANDBY_PRIMARY] = "primary",
        [STANDBY_STOPPED] = "stopped"
    };

    return v->state == STANDBY_FOLLOWING && v->in_sync ? "in sync" : names[v->state];
}

/* What a person can do about a primary that does not answer. One that refuses says it itself. */
static const char *advice(const struct standby_view *v)
{
    if (v->is_refused || v->is_moved || !v->why[0])
        return "";
    if (v->is_useless)
        return "; its data is not the primary's, so it is not promoted: start the primary "
               "there, and it copies anew";
    if (!v->has_data)
        return "; this standby has no data yet: start the primary there";
    return v->may_lack
               ? "; if it is dead, psctl promote --accept-loss makes this one the primary"
               : "; if it is dead, psctl promote makes this one the primary";
}

static void describe(const struct standby_view *v, const char *primary, char *dst,
                     size_t dst_bytes)
{
    const char *rises = v->is_promoting ? "it becomes the primary: " : "";

    switch (v->state) {
    case STANDBY_READING:
        snprintf(dst, dst_bytes, "the data directory is read");
        break;
    case STANDBY_DIALLING:
        if (v->is_promoting)
            snprintf(dst, dst_bytes, "it becomes the primary");
        else
            snprintf(dst, dst_bytes, "%s is asked to be followed%s%s%s%s", primary,
                     v->why[0] ? ": " : "", v->why,
                     v->is_refused ? "; it is asked again every 2 s" : "", advice(v));
        break;
    case STANDBY_COPYING:
        snprintf(dst, dst_bytes, "copying from %s: %" PRIu64 " of %" PRIu64 " bytes", primary,
                 v->n_bytes, v->n_total_bytes);
        break;
    case STANDBY_REBUILDING:
        snprintf(dst, dst_bytes, "%sthe shards load", rises);
        break;
    case STANDBY_FOLLOWING:
        snprintf(dst, dst_bytes, "%s", v->why);
        break;
    case STANDBY_SEALING:
    case STANDBY_PROMOTING:
        snprintf(dst, dst_bytes, "it becomes the primary%s%s", v->why[0] ? ": " : "", v->why);
        break;
    case STANDBY_PRIMARY:
    case STANDBY_STOPPED:
        break;
    }
}

void standby_report(const struct standby *s, const char *primary, struct stats_standby *ret)
{
    struct standby_view v;

    standby_see(s, &v);
    *ret = (struct stats_standby){ .is_on = true,
                                   .term = v.term,
                                   .in_sync = v.state == STANDBY_FOLLOWING && v.in_sync,
                                   .lag_records = v.lag_records,
                                   .lag_ms = v.lag_ms,
                                   .wait_since_unix_ms = v.since_unix_ms };
    ret->promote_loses = v.may_lack;
    ret->is_unheard = v.is_unheard;
    ret->is_rising = v.state >= STANDBY_SEALING;
    if (v.state == STANDBY_DIALLING && v.is_refused && !v.is_promoting)
        snprintf(ret->refusal, sizeof ret->refusal, "%.255s", v.why);
    snprintf(ret->role, sizeof ret->role, "standby");
    snprintf(ret->state, sizeof ret->state, "%s", state_name(&v));
    snprintf(ret->peer, sizeof ret->peer, "%.127s", primary);
    snprintf(ret->note, sizeof ret->note, "%s", v.note);
    if (v.hindrance[0])
        snprintf(ret->wait, sizeof ret->wait, "%s", v.hindrance);
    else
        describe(&v, primary, ret->wait, sizeof ret->wait);
}

int standby_report_refusal(const struct standby *s, const char *primary, struct err *err)
{
    struct standby_view v;
    const char *advice = "ask there, or promote this one (psctl promote)";

    standby_see(s, &v);
    if (v.state == STANDBY_SEALING || v.state == STANDBY_PROMOTING)
        advice = "it becomes the primary, try again";
    else if ((v.is_refused && !v.is_moved) || !v.has_data)
        advice = "ask there";
    return err_set(err, PS_EMOVED, "this psd is a standby of %.100s (%s): %s", primary,
                   state_name(&v), advice);
}

int standby_report_no_primary(const struct standby *s, const char *primary, struct err *err)
{
    struct standby_view v;

    standby_see(s, &v);
    if (v.state != STANDBY_DIALLING || v.has_data || !v.is_moved)
        return standby_report_refusal(s, primary, err);
    return err_set(
        err, -ENODATA,
        "it is a standby without data: promote the psd that has data (psctl promote)");
}

void standby_report_groups(const struct stats_standby *report, const char *own_address,
                           bool serves, struct group_view *groups)
{
    bool is_primary = strcmp(report->role, "primary") == 0;
    struct group group = { .term = report->term, .in_sync = report->in_sync };

    /* Until a primary serves nobody says who is the one: workers are told to come again. Without a term it has had no
     * standby. */
    if (!report->is_on || (is_primary && (!serves || !report->term)))
        return;
    if (report->is_rising) {
        group_view_clear_primary(groups);
        return;
    }
    snprintf(group.primary, sizeof group.primary, "%s",
             is_primary ? own_address : report->peer);
    snprintf(group.standby, sizeof group.standby, "%s",
             !is_primary               ? own_address
             : report->peer_is_refused ? ""
                                       : report->peer);
    group_view_set_own(groups, is_primary ? GROUP_VIEW_PRIMARY : GROUP_VIEW_OTHER, &group);
}
