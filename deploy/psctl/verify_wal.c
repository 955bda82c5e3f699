#include "deploy/psctl/verify_wal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/recovery/timeline.h"

#define SCANS_MAX 32u

/* --- one scan --- */

static struct verify_wal_stretch *add_stretch(struct verify_wal *log, uint64_t first)
{
    struct verify_wal_stretch *all = memory_alloc((log->n_stretches + 1) * sizeof *all);

    for (uint32_t i = 0; i < log->n_stretches; i++)
        all[i] = log->stretches[i];
    free(log->stretches);
    log->stretches = all;
    all[log->n_stretches] = (struct verify_wal_stretch){ first, first - 1 };
    return &all[log->n_stretches++];
}

static int read_stretch(struct wal_reader *r, struct verify_wal *log,
                        struct verify_wal_stretch *ret, struct err *err)
{
    const struct wal_record *record;
    int status = wal_reader_next(r, &record, err);

    while (!status && record) {
        ret->last = record->number;
        log->n_records++;
        log->n_pushes += record->event.type == SHARD_EVENT_PUSH;
        status = wal_reader_next(r, &record, err);
    }
    if (status)
        return status;
    log->end = *wal_reader_end(r);
    if (log->end.n_headers)
        memcpy(log->header_text, log->end.header_text, sizeof log->header_text);
    return 0;
}

/* Behind a gap the log goes on with the next segment's first record. */
static uint64_t next_first(const struct wal_segments *segments, uint64_t last)
{
    for (size_t i = 0; i < segments->n; i++)
        if (segments->firsts[i] > last + 1)
            return segments->firsts[i];
    return 0;
}

static int read_all(const struct file_ops *files, const char *dir,
                    const struct wal_segments *segments, struct verify_wal *log,
                    struct err *err)
{
    uint64_t from = segments->n ? segments->firsts[0] : 0;
    int status = 0;

    while (from && !status) {
        struct verify_wal_stretch *stretch = add_stretch(log, from);
        struct wal_reader *r;

        status = wal_reader_open(files, dir, NULL, from, &r, err);
        if (status)
            return status;
        status = read_stretch(r, log, stretch, err);
        wal_reader_free(r);
        from = !status && log->end.verdict == WAL_GAP ? next_first(segments, stretch->last) : 0;
    }
    return status;
}

/* --- a log that moves on --- */

/* Of what was listed nothing is gone, and nothing has come in between. */
static bool stands(const struct wal_segments *listed, const struct wal_segments *now)
{
    return now->n >= listed->n &&
           (!listed->n ||
            memcmp(listed->firsts, now->firsts, listed->n * sizeof *listed->firsts) == 0);
}

/* What is missing of a log that psd has truncated meanwhile says nothing. */
static int has_moved(const struct file_ops *files, const char *dir,
                     const struct wal_segments *listed, bool *ret, struct err *err)
{
    struct wal_segments now = { 0 };
    int status = wal_segment_list(files, dir, &now, err);

    *ret = !status && !stands(listed, &now);
    free(now.firsts);
    return status;
}

/* One scan. *ret_moved: it was truncated meanwhile, and the next one may succeed. */
static int scan(const struct file_ops *files, const char *dir, struct verify_wal *log,
                bool *ret_moved, struct err *err)
{
    struct wal_segments segments = { 0 };
    int status = wal_segment_list(files, dir, &segments, err);

    *ret_moved = false;
    log->n_segments = (uint32_t)segments.n;
    log->newest_segment = segments.n ? segments.firsts[segments.n - 1] : 0;
    if (!status)
        status = read_all(files, dir, &segments, log, err);
    if (status == -ENOENT || (!status && verify_wal_is_damaged(log))) {
        int listed = has_moved(files, dir, &segments, ret_moved, err);

        status = listed ? listed : status;
    }
    free(segments.firsts);
    return status;
}

int verify_wal_read(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    uint32_t shard_index, struct verify_wal *ret, struct err *err)
{
    char dir[WAL_PATH_MAX];
    int status = timeline_log_dir(data_dir, epoch, shard_index, dir, err);
    bool moved = !status;

    *ret = (struct verify_wal){ 0 };
    for (uint32_t i = 0; i < SCANS_MAX && moved; i++) {
        verify_wal_free(ret);
        *ret = (struct verify_wal){ .epoch = epoch, .shard_index = shard_index };
        status = scan(files, dir, ret, &moved, err);
    }
    if (moved)
        status = err_set(
            err, -EBUSY,
            "psd has truncated the log each time that it was read: try again, or verify "
            "a copy: %.150s",
            dir);
    if (status)
        verify_wal_free(ret);
    return status;
}

/* --- what it says --- */

bool verify_wal_is_damaged(const struct verify_wal *log)
{
    return log->end.verdict == WAL_DAMAGED || log->end.n_unread;
}

uint64_t verify_wal_covered(const struct verify_wal *log, uint64_t from)
{
    for (uint32_t i = 0; i < log->n_stretches; i++)
        if (log->stretches[i].first <= from && log->stretches[i].last + 1 >= from)
            return log->stretches[i].last >= from ? log->stretches[i].last : from - 1;
    return from - 1;
}

uint64_t verify_wal_last(const struct verify_wal *log)
{
    uint64_t last = 0;

    for (uint32_t i = 0; i < log->n_stretches; i++)
        if (log->stretches[i].last >= log->stretches[i].first)
            last = log->stretches[i].last;
    return last;
}

void verify_wal_free(struct verify_wal *log)
{
    free(log->stretches);
    log->stretches = NULL;
    log->n_stretches = 0;
}
