/*
 * How an epoch of the log began (epochs.h), in a file beside its logs:
 *
 *     DATA_DIR/log/EPOCH/BEGINNING
 *
 *     psd epoch, format 1
 *     above 7                     checkpoints above this one and below EPOCH are no part of it: a start sets
 *                                 them aside, as one that was to do so may have been interrupted
 *     told                        the start was told what to begin from; else there is no such line
 *     at 7                        what, a line each: it is told again by a restart that nobody types, and
 *                                 must then not be done again
 *     crc32c 01234567             of all bytes before this line
 *
 * It is written before the checkpoint with which the epoch begins, so it counts with that.
 */
#ifndef SERVER_DURABLE_BEGINNING_H
#define SERVER_DURABLE_BEGINNING_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"

struct beginning {
    uint64_t above;
    bool was_told; /* the start was told something: epochs_leave() */
    char *told;    /* owned: what, or "" where it is not to count any more */
};

/* Of an epoch that epochs_make() has made; synced, in place as a whole. */
int beginning_write(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    const struct beginning *b, struct err *err) MUST_CHECK;

/* Where there is none, nothing was told and nothing is above. beginning_deinit() it, also on failure. PS_ECORRUPT. */
int beginning_read(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                   struct beginning *ret, struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void beginning_deinit(struct beginning *b);

#endif
