/*
 * Writes one shard's file of a checkpoint while the shard serves requests. The shard's thread fills buffers, a
 * slice at a time between requests; another thread writes them. The caller has the threads, and passes each
 * buffer from one thread to the other with a memory barrier.
 *
 *     shard's thread                               another thread, one call at a time, in this order
 *     shard_file_writer_begin   -EAGAIN: again, later
 *     shard_file_writer_fill    MORE, MORE, FULL ...
 *     shard_file_writer_next -> buffer ----------------------> shard_file_writer_write
 *     shard_file_writer_recycle <---------------------------
 *     shard_file_writer_fill    ... READ; last buffers as above
 *        note `through`, the log's last record --> shard_file_writer_close, or shard_file_writer_discard
 *     shard_file_writer_end     KEPT: the manifest is written
 *
 * There are two buffers, so that one is filled while the other is written. Nothing is allocated after
 * shard_file_writer_begin().
 *
 * The file is a checkpoint only with the log from record `first` + 1 through `through` (snapshot_scan.h), so
 * the manifest is written when the log is durable through `through`.
 */
#ifndef SERVER_CHECKPOINT_SHARD_FILE_WRITER_H
#define SERVER_CHECKPOINT_SHARD_FILE_WRITER_H

#include "common/file.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/snapshot_scan.h"

struct shard_file_writer;
struct shard_file_writer_buffer;

struct shard_file_writer_config {
    const struct file_ops *files; /* borrowed until shard_file_writer_end() */
    const char *data_dir;         /* borrowed for shard_file_writer_begin() */
    uint64_t number;              /* checkpoint_next()'s */
    uint32_t shard_index;         /* on its node */
    struct shard_file_identity identity;
    /* The checkpoint whose file of this shard was the last that ended KEPT, or that the shard was loaded from, for a
     * delta; 0: full. */
    uint64_t base;
};

enum shard_file_writer_state {
    SHARD_FILE_WRITER_MORE, /* call shard_file_writer_fill() again */
    SHARD_FILE_WRITER_FULL, /* wait until a buffer is recycled */
    SHARD_FILE_WRITER_READ  /* the scan is complete */
};

struct shard_file_writer_facts {
    uint64_t n_numbers, n_seen; /* row numbers: in all, scanned */
    uint64_t n_bytes;           /* of the file, written */
};

/* Begins the scan: `first` is the number of the last record of the shard's log (0: none).
 * -EAGAIN: a push in slices is running; -EINVAL: no delta is possible now (snapshot_scan_may_be_delta()),
 * so use base 0; -ENOMEM, -ENAMETOOLONG. On failure nothing has changed. */
int shard_file_writer_begin(const struct shard_file_writer_config *config, struct shard *shard,
                            uint64_t first, struct shard_file_writer **ret, struct err *err)
    ON_SHARD MUST_CHECK;

/* Reads one slice (snapshot_scan_more()); nothing if FULL or READ. */
enum shard_file_writer_state shard_file_writer_fill(struct shard_file_writer *s,
                                                    struct shard *shard) ON_SHARD;

/* Of all slices so far. */
uint64_t shard_file_writer_read_bytes(const struct shard_file_writer *s) ON_SHARD;

/* The next buffer to write, or NULL: none is full yet, or one is being written. */
struct shard_file_writer_buffer *shard_file_writer_next(struct shard_file_writer *s) ON_SHARD;
void shard_file_writer_recycle(struct shard_file_writer *s,
                               struct shard_file_writer_buffer *buffer) ON_SHARD;

/* True if READ and every buffer is written: call shard_file_writer_close(). */
bool shard_file_writer_is_written(const struct shard_file_writer *s) ON_SHARD;

/* Writes the buffer; syncs from time to time. The first call creates the file. A failure is returned again by every
 * later call of this function and of shard_file_writer_close(). */
int shard_file_writer_write(struct shard_file_writer *s,
                            struct shard_file_writer_buffer *buffer, struct err *err)
    MUST_CHECK;

/* Footer, sync, close; the directory is checkpoint_commit()'s to sync. `through`: number of the log's last
 * record when the scan became READ. After a failure the file is removed, if that is possible. */
int shard_file_writer_close(struct shard_file_writer *s, uint64_t through,
                            struct shard_file_facts *ret, struct err *err) MUST_CHECK;

/* Instead of shard_file_writer_close(), at any time without a buffer in use: removes the file. */
void shard_file_writer_discard(struct shard_file_writer *s);

/* Ends the writer after shard_file_writer_close() or shard_file_writer_discard(); frees it. KEPT: the manifest is
 * written, and this file may be the base of the next delta. DROPPED: the next file must be full. */
void shard_file_writer_end(struct shard_file_writer *s, struct shard *shard,
                           enum snapshot_scan_end how) ON_SHARD;

void shard_file_writer_facts(const struct shard_file_writer *s,
                             struct shard_file_writer_facts *ret) ON_SHARD;

/* All of the above at once, on the shard's thread, for callers that serve no requests: first and through are the
 * same. progress(arg) between slices (NULL is fine). Never -EAGAIN: call shard_finish_push() before. Ends KEPT. */
int shard_file_writer_save(const struct shard_file_writer_config *config, struct shard *shard,
                           uint64_t first, void (*progress)(void *), void *arg,
                           struct shard_file_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

/* Adds the shard's jobs to a manifest. */
void shard_file_writer_note_jobs(struct shard *shard, struct manifest *m) ON_SHARD;

#endif
