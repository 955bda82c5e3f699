/* What is reported in sentences while something is read: how many, and the last. */
#ifndef TESTS_SUPPORT_TOLD_H
#define TESTS_SUPPORT_TOLD_H

#include <stdio.h>

struct told {
    int n;
    char last[300];
};

/* arg: a struct told. */
static inline void told_hear(void *arg, const char *sentence)
{
    struct told *told = arg;

    told->n++;
    snprintf(told->last, sizeof told->last, "%s", sentence);
}

#endif
