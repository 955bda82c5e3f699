/*
 * The pace of pushes while a standby follows and is not in sync. A standby that is slower than pushes come would never
 * have all of them: so pushes are slowed down until it has, gently, and never for one that stands still.
 *
 *     it will have all within CATCH_UP_MS, as it goes     nothing
 *     not so, for CATCH_UP_PATIENCE_MS                    pushes get three quarters of the standby's speed
 *     still not so                                        an eighth less each time, down to half of its speed
 *     it has stood still so long                          nothing: pushes do not wait for it
 *
 * A value of numbers of records and of milliseconds: no clock, no lock.
 */
#ifndef SERVER_REPLICATION_CATCH_UP_H
#define SERVER_REPLICATION_CATCH_UP_H

#include <stdint.h>

#define CATCH_UP_WINDOW_MS 500u
#define CATCH_UP_PATIENCE_MS 2000u
#define CATCH_UP_MS 20000u
#define CATCH_UP_SLOWEST \
    16u /* pushes keep this part of their own speed, whatever the standby's is */

struct catch_up {
    uint64_t since_ms, appended, received; /* at the begin of the window */
    uint64_t records_per_s;                /* that pushes may bring; 0: any number */
    uint64_t least_per_s;                  /* never less */
    uint64_t from, from_ms;                /* the record and the time that it counts from */
    uint32_t n_late, n_idle, n_done;       /* windows in a row */
};

/* A standby that has all up to `received` follows. */
void catch_up_begin(struct catch_up *c, uint64_t appended, uint64_t received, uint64_t now_ms);

/* The newest record, and the newest that the standby has; called at least a few times a second. */
void catch_up_note(struct catch_up *c, uint64_t appended, uint64_t received, uint64_t now_ms);

/* So long after now_ms the next push may come; 0: at once. */
uint64_t catch_up_wait_ms(const struct catch_up *c, uint64_t appended, uint64_t now_ms);

#endif
