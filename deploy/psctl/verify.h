/*
 * psctl verify PATH: is all that a data directory (or one checkpoint) holds whole, and can each restore point be made
 * again from it? Every byte is read once; nothing is written. What a running psd is just writing or removing is no
 * damage.
 */
#ifndef DEPLOY_PSCTL_VERIFY_H
#define DEPLOY_PSCTL_VERIFY_H

#include <cjson/cJSON.h>

#include "common/file.h"
#include "deploy/psctl/options.h"

enum verify_output { VERIFY_LINES, VERIFY_QUIETLY };

/*
 * What checkpoints and logs need of each other: a restore point all that its deltas stand on, and of its log the stretch
 * of its walk; a log the checkpoint that its epoch begins with, or a later one.
 *
 * A checkpoint whose log is truncated is no restore point any more, and no damage: a newer one was safe then. It is kept as
 * others stand on it, or about to go.
 */

/* {"checkpoints": [...], "logs": [...], "damage": [SENTENCE ...]}, the caller's to delete; with VERIFY_LINES also a line
 * on stdout for each. A failure is about this process, or there is nothing: PS_ENOCHECKPOINT. */
int verify_path(const struct file_ops *files, const char *path, enum verify_output output,
                cJSON **ret_json, struct err *err) MUST_CHECK;

/* words[0]: PATH. EXIT_FAILED where something is damaged. */
int verify_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
