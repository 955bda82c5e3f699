#include "tests/unit/common/settings_example.h"

/* clang-format on */

int example_load(struct example_settings *settings, enum settings_action *action,
                 struct err *err, const char *const *words)
{
    int n = 0;

    while (words[n])
        n++;
    *settings = (struct example_settings){ 0 };
    *err = (struct err){ 0 };
    return settings_load(&example_table, n, (char **)(uintptr_t)words, 1, settings, action,
                         err);
}
