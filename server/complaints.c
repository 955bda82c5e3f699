#include "server/complaints.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct complaint *find(struct complaints *c, const char *what, int status,
                              uint64_t now_ms)
{
    struct complaint *kind;

    for (uint32_t i = 0; i < COMPLAINTS_KINDS; i++) {
        kind = &c->kinds[i];
        if (kind->what && kind->status == status && strcmp(kind->what, what) == 0)
            return kind;
    }
    kind = &c->kinds[c->next];
    c->next = (c->next + 1) % COMPLAINTS_KINDS;
    *kind = (struct complaint){
        .what = what, .status = status, .n_left = COMPLAINTS_AT_ONCE, .filled_ms = now_ms
    };
    return kind;
}

static void fill(struct complaint *kind, uint64_t now_ms)
{
    uint64_t n = (now_ms - kind->filled_ms) / COMPLAINTS_EVERY_MS;

    kind->filled_ms += n * COMPLAINTS_EVERY_MS;
    kind->n_left =
        n < COMPLAINTS_AT_ONCE - kind->n_left ? kind->n_left + (uint32_t)n : COMPLAINTS_AT_ONCE;
}

bool complaints_pass(struct complaints *c, const char *what, int status, uint64_t now_ms,
                     char ret_more[static 64])
{
    struct complaint *kind = find(c, what, status, now_ms);

    fill(kind, now_ms);
    if (!kind->n_left) {
        kind->n_suppressed++;
        return false;
    }
    kind->n_left--;
    ret_more[0] = '\0';
    if (kind->n_suppressed)
        snprintf(ret_more, 64, " (and %" PRIu64 " lines like it)", kind->n_suppressed);
    kind->n_suppressed = 0;
    return true;
}
