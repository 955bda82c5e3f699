/*
 * The position of a run in its training: after a kill the next process reads it and goes on with the next
 * step. Every push stores it in the push journal (client/push_journal.h), as it is after that push. 72 bytes,
 * little-endian:
 *
 *     0   version u32, 2 | epoch u32
 *     8   batches of that epoch that were pushed u64
 *     16  steps of the codecs, those of earlier runs included u64
 *     24  resume_point_settings() u64
 *     32  best validation's score f64 (trainer.c) | 40 validations since then u32 | 44 1: the stop is set u32
 *     48  the stop counter when the run began f32 | 52 plateau's n_flat u32 | 56 steps of this run u64
 *     64  steps of this run at the last validation that counts above u64
 *
 * Version 1 has the first 64 bytes, and 0 at 52.
 */
#ifndef WORKER_RESUME_POINT_H
#define WORKER_RESUME_POINT_H

#include "worker/settings.h"

#define RESUME_POINT_BYTES 72u

struct resume_point {
    uint32_t epoch;
    uint64_t batch, steps, codec_steps;
    uint64_t settings; /* resume_point_settings() */
    double best_score;
    uint32_t n_worse,
        n_flat;         /* validations: since the best one, for early stop; for plateau.h */
    uint64_t validated; /* steps at the last validation whose outcome is in here */
    bool stop_set;
    float control_start;
};

/* A number for all settings on which the order of a run's batches depends. */
uint64_t resume_point_settings(const struct settings *s);

void resume_point_write(const struct resume_point *b, uint8_t ret[RESUME_POINT_BYTES]);

/* PS_ESPEC: of a later version, or no resume point. */
int resume_point_read(const uint8_t *bytes, size_t n_bytes, struct resume_point *ret)
    MUST_CHECK;

#endif
