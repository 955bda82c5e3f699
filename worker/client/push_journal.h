/*
 * The worker's write-ahead log: pushes that some shard may not have acknowledged, in files. A process that was killed
 * restarts as the same incarnation, sends them again byte for byte, and continues with the next step.
 *
 *     DIR/JOB.RANK.N.pushes      N = 1, 2 ...: segments (push_journal_format.h), each some 8 MiB
 *
 *     a push       is written before its first byte is sent, with the caller's note: its position
 *     a segment    is removed or overwritten when all shards have acknowledged its pushes; the newest
 *                  push stays
 *     a new life   (a process that goes on, or a new incarnation) begins a segment of its own
 *     the end      of a run removes all segments
 *
 * Nothing is synced: a killed process loses nothing by that. After a power failure checksums and the shards' counts
 * of pushes show missing pushes; then the worker joins with a new incarnation. It also does so when pushes cannot be
 * written (a full disk). Then training goes on with a notice, and pushes are written again once writing works and no
 * earlier push is unacknowledged.
 *
 * One process at a time: the caller locks. For the thread that pushes, or while no thread does.
 */
#ifndef WORKER_CLIENT_PUSH_JOURNAL_H
#define WORKER_CLIENT_PUSH_JOURNAL_H

#include "common/file.h"
#include "worker/client/ps_types.h"
#include "worker/client/push_journal_format.h"

/* The owner of a journal, and its place. */
struct push_journal_options {
    const struct file_ops *files; /* borrowed, as all here */
    const char *dir, *job;
    uint32_t rank;
    uint64_t incarnation;   /* of a worker that finds nothing to go on from */
    uint64_t segment_bytes; /* a new one begins behind so many; 0: 8 MiB */
    void (*notice)(void *arg, const char *sentence);
    void *notice_arg;
};

struct push_journal;

/* Makes the folder if need be, reads what is there, and begins a segment. Corrupt files are reported
 * by a notice, and all of them dropped. PS_ESPEC: the files are another worker's. -errno, -ENOMEM. */
int push_journal_open(const struct push_journal_options *options, struct push_journal **ret,
                      struct err *err) MUST_CHECK;

/* The files stay. NULL is fine. */
void push_journal_close(struct push_journal *s);

/* As whom to join. */
void push_journal_origin(const struct push_journal *s, struct ps_origin *ret);

/* The note of the newest push that was found; its length, 0 if there is none. */
uint32_t push_journal_found_note(const struct push_journal *s,
                                 uint8_t ret[PUSH_JOURNAL_NOTE_MAX]);

/* Written with the pushes from here on. */
void push_journal_set_note(struct push_journal *s, const uint8_t *note, uint32_t n_bytes);

/* True if pushes of an earlier process are left. push_journal_pop() returns the next of them, in order: the caller's,
 * for push_journal_format_free_push(); NULL: no more. */
bool push_journal_has_found(const struct push_journal *s);
struct push_journal_push *push_journal_pop(struct push_journal *s);

/* Drops the pushes that were not taken; a notice says why. */
void push_journal_drop_found(struct push_journal *s, const char *why);

/* Writes the next push of this incarnation, with the note. `acked`: all shards have acknowledged
 * those up to this number. */
void push_journal_put(struct push_journal *s, uint64_t incarnation,
                      struct push_journal_push *push, uint64_t acked);

/* The run is over: removes all segments. */
void push_journal_remove(struct push_journal *s);

#endif
