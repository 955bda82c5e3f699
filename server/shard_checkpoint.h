/*
 * One shard's part of a checkpoint, on its loop, while it serves requests. Each millisecond a slice of rows
 * is copied into a buffer, which libuv's pool writes (server/checkpoint/shard_file_writer.h).
 *
 *     state     waits for                                   then
 *     IDLE      shard_checkpoint_begin()                    WAITING
 *     WAITING   the end of a push in slices                 READING
 *     READING   the next slice's turn; a buffer's write     CLOSING
 *     CLOSING   the file's last bytes and its sync          SYNCING
 *     SYNCING   the log, durable up to the scan's end       DONE, `done` is called
 *     DONE      shard_checkpoint_end()                      IDLE
 *
 * A failure leads to DONE from any state.
 */
#ifndef SERVER_SHARD_CHECKPOINT_H
#define SERVER_SHARD_CHECKPOINT_H

#include <uv.h>

#include "server/checkpoint/shard_file_writer.h"
#include "server/shard_wal.h"

struct shard_checkpoint;

struct shard_checkpoint_config {
    uv_loop_t *loop;      /* borrowed */
    struct shard *shard;  /* borrowed */
    uint64_t bytes_per_s; /* at most; 0: half of the thread's time goes to reading */
};

typedef void (*shard_checkpoint_done)(void *arg, const struct shard_file_facts *facts,
                                      const struct err *err);

struct shard_checkpoint *shard_checkpoint_new(const struct shard_checkpoint_config *config)
    ON_SHARD;

/* Sets the log (borrowed) that records the shard's changes. */
void shard_checkpoint_follow(struct shard_checkpoint *s, struct shard_wal *log) ON_SHARD;

/* _stop closes the timer; _free after the loop has ended. */
void shard_checkpoint_stop(struct shard_checkpoint *s) ON_SHARD;
void shard_checkpoint_free(struct shard_checkpoint *s) ON_SHARD;

/* In IDLE. `done` is called once, later: err->status 0 when the file and the log are durable. If no delta is
 * possible the file is full, whatever config->base says. */
void shard_checkpoint_begin(struct shard_checkpoint *s,
                            const struct shard_file_writer_config *config,
                            shard_checkpoint_done done, void *arg) ON_SHARD;

/* True: no requests are served, so rows are read at full speed. */
void shard_checkpoint_hurry(struct shard_checkpoint *s, bool hurries) ON_SHARD;

/* Bytes read for files so far: a sign of progress. */
uint64_t shard_checkpoint_bytes(const struct shard_checkpoint *s) ON_SHARD;

/* In DONE. KEPT: the checkpoint is durable; the log is needed from record `needed` on. */
void shard_checkpoint_end(struct shard_checkpoint *s, enum snapshot_scan_end how,
                          uint64_t needed) ON_SHARD;

#endif
