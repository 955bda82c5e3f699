/*
 * Settings that a primary and its standby have in common, as text: NAME=VALUE, separated by blanks, in a fixed order. A
 * standby with other ones would decide otherwise once it is the primary.
 */
#ifndef SERVER_STANDBY_SETTINGS_H
#define SERVER_STANDBY_SETTINGS_H

#include "proto/message_replication.h"
#include "server/cluster/claim.h"
#include "server/settings.h"

/* Those that all nodes of a cluster have in common, too. */
void standby_settings_shared(const struct settings *s, char ret[static CLAIM_SETTINGS_MAX]);

void standby_settings_text(const struct settings *s, const struct hello_reply *map,
                           char ret[static MESSAGE_SETTINGS_MAX]);

/* Settings, layout, memory and address of one that asks to follow. PS_ECLUSTER, PS_EPROTO, with a sentence. */
int standby_settings_check(const struct settings *s, const struct hello_reply *map,
                           const struct follow *asked, struct err *err) MUST_CHECK;

#define STANDBY_SETTINGS_NOTE_MAX 200u

/* True, and a sentence for operators: the two compute otherwise (replication/arithmetic.h). That is no reason to
 * refuse: what comes of it an audit finds. "" is a psd that does not say. */
bool standby_settings_arithmetic_differs(const char *primary, const char *standby,
                                         char ret[static STANDBY_SETTINGS_NOTE_MAX]);

#endif
