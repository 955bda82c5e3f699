/*
 * "So long ago" as a row's version: a row knows the number of the push that last changed it and
 * nothing of clocks or time, which would cost every row 8 bytes.
 *
 *     note(100, 7)   all pushes up to number 7 had come when the measure stood at 100
 *     note(140, 9)
 *     version(200)   with a span of 80, marks at 120 or before count, so 7: rows whose version
 *                    is 7 or less were not pushed within the span
 *
 * The measure is clocks or milliseconds, and only grows. Marks that lie within 1/32 of the span
 * are one, the later: so an answer comes at most that much later than the span says, and never
 * earlier. Nothing is known of the time before the first mark: after a restart no row
 * is older than the span until a whole span has passed.
 */
#ifndef SERVER_CORE_VERSION_AGE_H
#define SERVER_CORE_VERSION_AGE_H

#include "common/base.h"

#define VERSION_AGE_N_MARKS 34u /* 33 within a span, and one beyond it */

struct version_age_mark {
    uint64_t value, version;
};

/* Zeroed but for the span, to begin with. */
struct version_age {
    uint64_t span; /* in units of the measure; 0: nothing is ever beyond it */
    uint32_t first, n_marks;
    uint64_t open; /* the least value that the newest mark stands for */
    struct version_age_mark marks[VERSION_AGE_N_MARKS]; /* a ring, ascending in both */
};

/* All pushes up to number `version` had come when the measure stood at `value`. */
void version_age_note(struct version_age *h, uint64_t value, uint64_t version);

/* Rows of this version and below were not pushed within the span before `now`; 0: none that is
 * known of. */
uint64_t version_age_version(struct version_age *h, uint64_t now);

#endif
