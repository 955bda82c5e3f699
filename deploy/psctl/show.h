/* An answer of psd's (JSON) as something to read at a terminal. */
#ifndef DEPLOY_PSCTL_SHOW_H
#define DEPLOY_PSCTL_SHOW_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base.h"

/* False when the text is not what psd answers to this command. */
bool show_answer(const char *command, const char *json, FILE *out);

#endif
