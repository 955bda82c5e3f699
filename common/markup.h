/*
 * Text inside HTML and SVG. Names of columns, jobs and files are data: they may hold markup, control characters, bytes
 * that are no UTF-8, or characters that turn the direction of what follows.
 */
#ifndef COMMON_MARKUP_H
#define COMMON_MARKUP_H

#include <stdio.h>

#include "common/base.h"

/* As text, or inside an attribute's quotes. Markup is escaped; U+FFFD stands for what is no printable character. */
void markup_put(FILE *out, const char *text);

#endif
