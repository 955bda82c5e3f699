/* What is reported in sentences while something is read: how many, and the last. */
#ifndef TESTS_SUPPORT_REPORTS_H
#define TESTS_SUPPORT_REPORTS_H

#include <stdio.h>

struct reports {
    int n;
    char last[300];
};

/* arg: a struct reports. */
static inline void reports_add(void *arg, const char *sentence)
{
    struct reports *reports = arg;

    reports->n++;
    snprintf(reports->last, sizeof reports->last, "%s", sentence);
}

#endif
