/*
 * What a worker has pushed and not every shard has judged yet, kept in files, so that a process
 * that was killed comes back as the same incarnation, sends it again byte for byte, and goes on
 * with the next step.
 *
 *     DIR/JOB.RANK.N.pushes      N = 1, 2 ...: segments (spool_format.h), each some 8 MiB
 *
 *     a push       is written before its first byte is sent, with a note of the caller's: where it stands
 *     a segment    goes, or is written over, when all shards have judged its pushes; the newest push never goes
 *     a new life   (a process that goes on, a new incarnation) begins a segment of its own
 *     the end      of a run: all go
 *
 * Nothing is synced: a killed process loses nothing by that. What a power cut leaves is found out
 * by checksums and by the shards' counts of pushes; then the worker joins as somebody new. So it
 * is when pushes cannot be kept (a full disk): training goes on, a notice says so, and they are kept
 * again as soon as that works and no earlier push is under way.
 *
 * One process at a time: the caller sees to it. All is called by the thread that pushes, or while
 * nobody does.
 */
#ifndef WORKER_CLIENT_SPOOL_H
#define WORKER_CLIENT_SPOOL_H

#include "worker/client/ps_types.h"
#include "worker/client/spool_found.h"

struct spool;

/* Makes the folder if need be, reads what is there, and begins a segment. What is damaged is told
 * and dropped, all of it. PS_ESPEC: the files are another worker's. -errno, -ENOMEM. */
int spool_open(const struct spool_options *options, struct spool **ret, struct err *err)
    MUST_CHECK;

/* The files stay. NULL is fine. */
void spool_close(struct spool *s);

/* As whom to join. */
void spool_origin(const struct spool *s, struct ps_origin *ret);

/* The note of the newest push that was found; its length, 0 if there is none. */
uint32_t spool_found_note(const struct spool *s, uint8_t ret[SPOOL_NOTE_MAX]);

/* Goes with the pushes from here on. */
void spool_set_note(struct spool *s, const uint8_t *note, uint32_t n_bytes);

/* Has anything been found that was not taken? And the next of it, in order: the caller's, for
 * spool_format_free_push(); NULL: no more. */
bool spool_has_found(const struct spool *s);
struct spool_push *spool_take(struct spool *s);

/* Drops what was not taken, and says why. */
void spool_drop_found(struct spool *s, const char *why);

/* Keeps the next push of this incarnation; the spool's note goes with it. `acked`: all shards
 * have judged those up to this number. */
void spool_put(struct spool *s, uint64_t incarnation, struct spool_push *push, uint64_t acked);

/* The run is over: nobody goes on from here. */
void spool_remove(struct spool *s);

#endif
