/*
 * One shard's file of a checkpoint, written while the shard goes on. The shard's thread fills buffers, a
 * slice at a time between requests; another thread writes them. No thread, loop or lock in here: who has
 * those calls, and sees to it that a buffer's way from one thread to the other is a barrier.
 *
 *     shard's thread                               another thread, one call at a time, in this order
 *     saver_begin   -EAGAIN: again, later
 *     saver_fill    MORE, MORE, FULL ...
 *     saver_take -> buffer ----------------------> saver_write
 *     saver_give_back <---------------------------
 *     saver_fill    ... READ; last buffers as above
 *        note `through`, the log's last record --> saver_close, or saver_discard
 *     saver_end     KEPT: the manifest is written
 *
 * There are two buffers, so that one is filled while the other is written. Nothing is allocated after
 * saver_begin().
 *
 * The file is a checkpoint only with the log from record `first` + 1 through `through` (shard_walk.h), so
 * the manifest is written when the log is durable through `through`.
 */
#ifndef SERVER_DURABLE_SAVER_H
#define SERVER_DURABLE_SAVER_H

#include "common/file.h"
#include "server/core/shard_walk.h"
#include "server/store/checkpoint.h"

struct saver;
struct saver_buffer;

struct saver_config {
    const struct file_ops *files; /* borrowed until saver_end() */
    const char *data_dir;         /* borrowed for saver_begin() */
    uint64_t number;              /* checkpoint_next()'s */
    uint32_t shard_index;         /* on its node */
    struct part_identity identity;
    /* The checkpoint whose file of this shard was the last that ended KEPT, or that the shard was loaded from, for a
     * delta; 0: full. */
    uint64_t base;
};

enum saver_state {
    SAVER_MORE, /* the next slice may be asked for */
    SAVER_FULL, /* not before a buffer has been given back */
    SAVER_READ  /* all is in buffers */
};

struct saver_facts {
    uint64_t n_numbers, n_seen; /* row numbers: there are, looked at */
    uint64_t n_bytes;           /* of the file, written */
};

/* The first moment: `first` is the number of the last record that the shard's journal was given (0: none).
 * -EAGAIN: a push in slices is in between; -EINVAL: no delta is possible now (shard_walk_may_be_delta()), so take base 0;
 * -ENOMEM, -ENAMETOOLONG. On failure all is as it was. */
int saver_begin(const struct saver_config *config, struct shard *shard, uint64_t first,
                struct saver **ret, struct err *err) ON_SHARD MUST_CHECK;

/* One slice: costs what a slice of shard_walk_more() costs; none where it is FULL or READ. */
enum saver_state saver_fill(struct saver *s, struct shard *shard) ON_SHARD;

/* The next buffer to be written, or NULL: none is full yet, or one is out. */
struct saver_buffer *saver_take(struct saver *s) ON_SHARD;
void saver_give_back(struct saver *s, struct saver_buffer *buffer) ON_SHARD;

/* READ, and every buffer has been written: time for saver_close(). */
bool saver_is_written(const struct saver *s) ON_SHARD;

/* Writes the buffer; syncs where it is time. The first one makes the file. A failure is told again by every
 * later call, to here and to saver_close(). */
int saver_write(struct saver *s, struct saver_buffer *buffer, struct err *err) MUST_CHECK;

/* Footer, sync, close; the directory is checkpoint_commit()'s to sync. `through`: number of the last record that the journal was given
 * when READ was said. After a failure the file is gone, or is left where it cannot be removed. */
int saver_close(struct saver *s, uint64_t through, struct part_facts *ret, struct err *err)
    MUST_CHECK;

/* Instead of saver_close(), at any time at which no buffer is out: the file is given up. */
void saver_discard(struct saver *s);

/* Behind saver_close() or saver_discard(). KEPT: the manifest is written, and this file is what the next delta is
 * one to. DROPPED: the next one has to be full. Frees it. */
void saver_end(struct saver *s, struct shard *shard, enum shard_walk_end how) ON_SHARD;

void saver_facts(const struct saver *s, struct saver_facts *ret) ON_SHARD;

/* All of the above at once, on the shard's thread, for who serves nobody meanwhile: first and through are the
 * same. progress(arg) between slices (NULL is fine). -EAGAIN is not said: shard_settle() before it. Ends KEPT. */
int saver_save(const struct saver_config *config, struct shard *shard, uint64_t first,
               void (*progress)(void *), void *arg, struct part_facts *ret, struct err *err)
    ON_SHARD MUST_CHECK;

/* Adds the shard's jobs to a manifest in the making. */
void saver_note_jobs(struct shard *shard, struct manifest *m) ON_SHARD;

#endif
