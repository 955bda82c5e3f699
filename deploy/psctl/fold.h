/* Lines that are wider than the terminal, broken between words, as fold(1) does. */
#ifndef DEPLOY_PSCTL_FOLD_H
#define DEPLOY_PSCTL_FOLD_H

#include <stdio.h>

#include "deploy/psctl/terminal.h"

/*
 * Prints the text. What goes on in another line is indented: below the value of `name         value`, whose value begins
 * in column FOLD_LABEL, else by FOLD_INDENT. A word that is wider than the terminal stays whole. Colours take no width.
 */
#define FOLD_LABEL 13u
#define FOLD_INDENT 4u

void fold_print(const char *text, const struct terminal *terminal, FILE *out);

/* The same of what is written to the stream that fold_open() returns, up to fold_close(). */
struct fold {
    char *text; /* owned */
    size_t n_bytes;
    FILE *stream; /* owned */
};

FILE *fold_open(struct fold *f);
void fold_close(struct fold *f, const struct terminal *terminal, FILE *out);

#endif
