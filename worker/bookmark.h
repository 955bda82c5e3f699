/*
 * Where a run stands, beside its tables: what the process that comes after one that was killed
 * needs, so as to do the next step and no other. It goes with every push into the spool
 * (client/spool.h), as it is once that push is done; 64 bytes, little-endian:
 *
 *     0   version u32, 1 | epoch u32
 *     8   batches of that epoch that were pushed u64
 *     16  steps that codecs have seen, of earlier runs too u64
 *     24  which settings decide what comes when u64
 *     32  best validation AUC f64 | 40 validations since then u32 | 44 the stop was told u32
 *     48  the stop counter when the run began f32 | 52 0 u32 | 56 steps of this run u64
 */
#ifndef WORKER_BOOKMARK_H
#define WORKER_BOOKMARK_H

#include "worker/settings.h"

#define BOOKMARK_BYTES 64u

struct bookmark {
    uint32_t epoch;
    uint64_t batch, steps, codec_steps;
    uint64_t settings; /* bookmark_settings() */
    double best_auc;
    uint32_t n_worse;
    bool told_stop;
    float control_start;
};

/* A number for all settings on which the order of a run's batches depends. */
uint64_t bookmark_settings(const struct settings *s);

void bookmark_write(const struct bookmark *b, uint8_t ret[BOOKMARK_BYTES]);

/* PS_ESPEC: of a later version, or no bookmark. */
int bookmark_read(const uint8_t *bytes, size_t n_bytes, struct bookmark *ret) MUST_CHECK;

#endif
