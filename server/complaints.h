/*
 * What a shard says in the log of its peers and of what it left out: of each kind of line a few at once,
 * then one a minute that counts those in between. Two workers that fight for one rank go on for hours.
 */
#ifndef SERVER_COMPLAINTS_H
#define SERVER_COMPLAINTS_H

#include <stdbool.h>

#include "common/base.h"

#define COMPLAINTS_KINDS 16u
#define COMPLAINTS_AT_ONCE 3u
#define COMPLAINTS_EVERY_MS 60000u

struct complaints {
    struct complaint {
        const char *what; /* borrowed, static; NULL: none yet */
        int status;
        uint32_t n_left;    /* lines that may be written at once */
        uint64_t filled_ms; /* when n_left was last added to */
        uint64_t n_suppressed;
    } kinds[COMPLAINTS_KINDS];
    uint32_t next; /* where a new kind goes when all are taken */
};

/* May a line of this kind be written now? ret_more: what to write behind it, " (and 7 lines like it)"
 * or "". `what`: static; its text counts. */
bool complaints_pass(struct complaints *c, const char *what, int status, uint64_t now_ms,
                     char ret_more[static 64]);

#endif
