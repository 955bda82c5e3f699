/*
 * One shard's part in a checkpoint, on its loop, while it serves: a slice of its rows every
 * millisecond into a buffer, which libuv's pool writes (server/durable/saver.h).
 *
 *     state     waits for                                   then
 *     IDLE      shard_save_begin()
 *     WAITING   a push in slices to be through              READING
 *     READING   the next slice's turn; a buffer's write     CLOSING
 *     CLOSING   the file's last bytes and its sync          SYNCING
 *     SYNCING   the log, safe up to the walk's end          DONE, `done` is called
 *     DONE      shard_save_end()                            IDLE
 *
 * A failure leads to DONE from anywhere.
 */
#ifndef SERVER_SHARD_SAVE_H
#define SERVER_SHARD_SAVE_H

#include <uv.h>

#include "server/durable/saver.h"
#include "server/shard_log.h"

struct shard_save;

struct shard_save_config {
    uv_loop_t *loop;      /* borrowed */
    struct shard *shard;  /* borrowed */
    uint64_t bytes_per_s; /* at most; 0: half of the thread's time goes to reading */
};

typedef void (*shard_save_done)(void *arg, const struct part_facts *facts,
                                const struct err *err);

struct shard_save *shard_save_new(const struct shard_save_config *config) ON_SHARD;

/* From here on what changes the shard is in this log (borrowed). */
void shard_save_follow(struct shard_save *s, struct shard_log *log) ON_SHARD;

/* The loop ends: close its timer; free it when the loop has ended. */
void shard_save_stop(struct shard_save *s) ON_SHARD;
void shard_save_free(struct shard_save *s) ON_SHARD;

/* IDLE. `done` is called once, later: err->status 0 when the file and the log are safe. Where no
 * delta is possible the file is full, whatever config->base says. */
void shard_save_begin(struct shard_save *s, const struct saver_config *config,
                      shard_save_done done, void *arg) ON_SHARD;

/* Does nobody wait for requests, not yet or no more? Then as fast as it can be read. */
void shard_save_hurry(struct shard_save *s, bool hurries) ON_SHARD;

/* Bytes that have been read for files so far: a sign of life. */
uint64_t shard_save_bytes(const struct shard_save *s) ON_SHARD;

/* DONE. KEPT: the checkpoint is safe; the log is needed from record `needed` on. */
void shard_save_end(struct shard_save *s, enum shard_walk_end how, uint64_t needed) ON_SHARD;

#endif
