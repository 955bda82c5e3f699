/*
 * The residuals of a worker as a file, so that a restart keeps them. Little-endian:
 *
 *     offset  bytes  header
 *     0       8      "psdowed\n"
 *     8       4      version, 1
 *     12      4      n_tables that have residuals
 *     16      8      clock: steps that the worker had finished
 *     24      4      rank of the worker
 *     28      4      1: written at the end of a run; 0: while it ran
 *     32      64     name of the job, padded with NUL
 *
 *     then each table: name char[128], padded; dim u32; 0 u32; n_rows u64
 *                      rows, the oldest residual first: key u64, floats f32[dim]
 *     last:            length of the file u64; 0 u32; crc32c of all bytes before it u32
 *
 * A file is whole or not there: it is written beside the old one, synced, renamed over it, and its directory synced.
 * The order of the rows is part of the state: it says which are flushed first, and so a run that goes on takes the
 * same steps as one that never stopped.
 */
#ifndef WORKER_CLIENT_ERROR_FEEDBACK_FILE_H
#define WORKER_CLIENT_ERROR_FEEDBACK_FILE_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"

#define ERROR_FEEDBACK_FILE_JOB_MAX 64u /* bytes of a job's name, with NUL */
#define ERROR_FEEDBACK_FILE_PATH_MAX 1024u

struct push_encoder;

/* The owner of the residuals, and their clock. */
struct error_feedback_file {
    char job[ERROR_FEEDBACK_FILE_JOB_MAX];
    uint32_t rank;
    uint64_t clock;
    bool is_ended;
};

/* Makes `dir` if need be, and writes the residuals of all tables of `e`. On failure the file is the one
 * before, or, if the last step failed, the new one. */
int error_feedback_file_write(const struct file_ops *files, const char *dir,
                              const struct error_feedback_file *f, struct push_encoder *e,
                              struct err *err) MUST_CHECK;

/* Fills the residuals of `e`, which has all its tables and no residual yet; ret->job and rank
 * say whose file is expected, the rest is filled. Nothing changes unless all went well.
 *
 *     -ENOENT       there is no file
 *     PS_ECORRUPT   not all of it is what was written
 *     PS_ESPEC      it is whole, but another job's, rank's or model's, or of a later version
 *     -ENOMEM, -errno */
int error_feedback_file_read(const struct file_ops *files, const char *dir,
                             struct push_encoder *e, struct error_feedback_file *ret,
                             struct err *err) MUST_CHECK;

#endif
