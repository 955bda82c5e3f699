#include "tests/support/far_rows.h"

#include <stdlib.h>

#include "common/memory.h"

int far_rows_check(const struct row_upload *u, size_t n_places)
{
    bool *named = memory_alloc(n_places + 1);
    int bad = -1;

    for (uint32_t i = 0; i < u->n && bad < 0; i++) {
        const uint32_t place = u->how[i] & ~DEVICE_ROW_KEPT;

        if (u->how[i] == DEVICE_ROW_NEW)
            continue;
        if (place >= n_places || named[place])
            bad = (int)i;
        else
            named[place] = true;
    }
    free(named);
    return bad;
}
