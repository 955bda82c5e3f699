/* Which of its cases a long test takes: all, or each n-th with PS_SHARE=n (make test: a sixth; make ci: a third; make soak:
 * all). The seed says which these are, so every change of the sources has others. */
#ifndef TESTS_SUPPORT_SHARE_H
#define TESTS_SUPPORT_SHARE_H

#include <stdlib.h>

static inline long share_step(void)
{
    const char *text = getenv("PS_SHARE");
    const long n = text ? strtol(text, NULL, 10) : 1;

    return n > 0 ? n : 1;
}

/* Of a loop over n cases, of which it takes one at least. */
static inline long share_step_of(long n)
{
    const long step = share_step();

    return step < n ? step : n;
}

static inline long share_first_of(long n)
{
    const char *seed = getenv("PS_SEED");

    return seed ? (long)(strtoull(seed, NULL, 0) % (unsigned long long)share_step_of(n)) : 0;
}

/* Below share_step(). */
static inline long share_first(void)
{
    return share_first_of(share_step());
}

/* What only all cases together have to show is asked of them; make ci runs all cases of a program that calls this. */
static inline int share_is_all(void)
{
    return share_step() == 1;
}

#endif
