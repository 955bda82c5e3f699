/* Which of its cases a long test takes: all, or each n-th with PS_SHARE=n (make test: a third; make ci: all). The seed says which these are,
 * so every change of the sources has others. */
#ifndef TESTS_SUPPORT_SHARE_H
#define TESTS_SUPPORT_SHARE_H

#include <stdlib.h>

static inline long share_step(void)
{
    const char *text = getenv("PS_SHARE");
    const long n = text ? strtol(text, NULL, 10) : 1;

    return n > 0 ? n : 1;
}

/* Below share_step(). */
static inline long share_first(void)
{
    const char *seed = getenv("PS_SEED");

    return seed ? (long)(strtoull(seed, NULL, 0) % (unsigned long long)share_step()) : 0;
}

#endif
