#include "deploy/psctl/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/number.h"

#define WIDTH_MIN 20u
#define WIDTH_MAX 10000u

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value && value[0];
}

static uint32_t width_of(FILE *out)
{
    const char *columns = getenv("COLUMNS");
    struct winsize size = { 0 };
    uint64_t n;

    if (columns && !number_read_u64(columns, &n) && n >= WIDTH_MIN && n <= WIDTH_MAX)
        return (uint32_t)n;
    if (!isatty(fileno(out)) || ioctl(fileno(out), TIOCGWINSZ, &size) != 0)
        return 0;
    return size.ws_col >= WIDTH_MIN ? size.ws_col : 0;
}

struct terminal terminal_of(FILE *out, bool is_wide)
{
    const char *term = getenv("TERM");

    return (struct terminal){ .width = is_wide ? 0 : width_of(out),
                              .has_colours = isatty(fileno(out)) && !is_set("NO_COLOR") &&
                                             !(term && strcmp(term, "dumb") == 0) };
}

const char *terminal_begin(const struct terminal *t, enum terminal_style style)
{
    static const char *const codes[] = {
        [TERMINAL_PLAIN] = "",          [TERMINAL_BOLD] = "\033[1m",
        [TERMINAL_DIM] = "\033[2m",     [TERMINAL_GREEN] = "\033[32m",
        [TERMINAL_YELLOW] = "\033[33m", [TERMINAL_RED] = "\033[31m",
        [TERMINAL_REVERSE] = "\033[7m",
    };

    return t->has_colours ? codes[style] : "";
}

const char *terminal_end(const struct terminal *t, enum terminal_style style)
{
    return t->has_colours && style != TERMINAL_PLAIN ? "\033[0m" : "";
}
