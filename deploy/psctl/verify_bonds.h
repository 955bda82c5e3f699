/*
 * What checkpoints and logs need of each other: a restore point all that its deltas stand on, and of its log the stretch
 * of its walk; a log the checkpoint that its epoch begins with, or a later one.
 *
 * A checkpoint whose log is cut is no restore point any more, and no damage: a newer one was safe then. It is kept as
 * others stand on it, or about to go.
 */
#ifndef DEPLOY_PSCTL_VERIFY_BONDS_H
#define DEPLOY_PSCTL_VERIFY_BONDS_H

#include "deploy/psctl/verify_report.h"

/* After all points and logs. psd may have gone on meanwhile: its newer checkpoints count, unread. -ENOMEM; what files
 * answer. */
int verify_bonds_check(struct verify_report *v, struct err *err) MUST_CHECK;

#endif
