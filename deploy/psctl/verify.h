/*
 * psctl verify PATH: checks that a data directory (or one checkpoint) is whole, and that each restore point can be
 * restored from it. Reads every byte once; writes nothing. Files that a running psd is writing or removing are not
 * damage.
 */
#ifndef DEPLOY_PSCTL_VERIFY_H
#define DEPLOY_PSCTL_VERIFY_H

#include <cjson/cJSON.h>

#include "common/file.h"
#include "deploy/psctl/options.h"

enum verify_output { VERIFY_LINES, VERIFY_QUIETLY };

/*
 * Checks that checkpoints and logs fit together. A restore point needs every checkpoint of its delta chain, and the log
 * records from `first` to `through`. A log needs the checkpoint that its epoch began with, or a later one.
 *
 * A checkpoint whose log was truncated is not a restore point and not damage: a newer one was durable then. It is kept
 * because a later delta needs it, or it is about to be removed.
 */

/* Returns {"checkpoints": [...], "logs": [...], "damage": [SENTENCE ...]}, which the caller deletes; with VERIFY_LINES
 * also prints a line for each. A failure is one of this process, or PS_ENOCHECKPOINT: the directory has no data. */
int verify_path(const struct file_ops *files, const char *path, enum verify_output output,
                cJSON **ret_json, struct err *err) MUST_CHECK;

/* words[0]: PATH. EXIT_FAILED where something is damaged. */
int verify_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
