/*
 * psctl verify PATH: is all that a data directory (or one checkpoint) holds whole, and can each restore point be made
 * again from it? Every byte is read once; nothing is written. What a running psd is just writing or removing is no
 * damage.
 */
#ifndef DEPLOY_PSCTL_VERIFY_H
#define DEPLOY_PSCTL_VERIFY_H

#include "deploy/psctl/options.h"

/* words[0]: PATH. EXIT_FAILED where something is damaged. */
int verify_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
