/* What a stream shows: how wide, and whether in colours. */
#ifndef DEPLOY_PSCTL_TERMINAL_H
#define DEPLOY_PSCTL_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base.h"

enum terminal_style {
    TERMINAL_PLAIN,
    TERMINAL_BOLD,
    TERMINAL_DIM,
    TERMINAL_GREEN,
    TERMINAL_YELLOW,
    TERMINAL_RED,
    TERMINAL_REVERSE
};

struct terminal {
    uint32_t width; /* columns; 0: without an end */
    bool has_colours;
};

/* Of a terminal its own width, of anything else none; COLUMNS wins over both. Colours on a terminal, unless NO_COLOR is
 * set or TERM is dumb. is_wide: without an end in any case. */
struct terminal terminal_of(FILE *out, bool is_wide);

/* What stands before and behind a text of this style; "" without colours. */
const char *terminal_begin(const struct terminal *t, enum terminal_style style);
const char *terminal_end(const struct terminal *t, enum terminal_style style);

#endif
