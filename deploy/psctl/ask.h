/* Commands that a running psd answers. */
#ifndef DEPLOY_PSCTL_ASK_H
#define DEPLOY_PSCTL_ASK_H

#include "deploy/psctl/options.h"

/* Asks, and shows the answer (show.h). Returns the exit code. */
int ask_show(const struct options *o, const char *command);

/* psctl row TABLE KEY: asks on, until it has come to the node that keeps the row. */
int ask_row(const struct options *o, const char *const *words, uint32_t n_words);

/* An answer, as it came or for people. Returns the exit code. */
int ask_tell(const struct options *o, const char *command, const char *json);

#endif
