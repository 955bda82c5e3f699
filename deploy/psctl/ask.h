/* Commands that a running psd answers. */
#ifndef DEPLOY_PSCTL_ASK_H
#define DEPLOY_PSCTL_ASK_H

#include "deploy/psctl/options.h"

#define ASK_TOKEN_MAX 256u

/* Asks, and shows the answer (show.h). Returns the exit code. */
int ask_show(const struct options *o, const char *command);

/* psctl row TABLE KEY: asks on, until it has come to the node that keeps the row. */
int ask_row(const struct options *o, const char *const *words, uint32_t n_words);

/* One line of o->token_file, without the blanks at its end. */
int ask_token(const struct options *o, char token[static ASK_TOKEN_MAX], struct err *err)
    MUST_CHECK;

/* An answer, as it came or for people. Returns the exit code. */
int ask_tell(const struct options *o, const char *command, const char *json);

#endif
