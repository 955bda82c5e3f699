#include "server/replication/log_end.h"

#include <stdlib.h>

#include "server/checkpoint/checkpoint.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_reader.h"

/* Of the newest segment: the ones before end where it begins. */
static int read_segment(const struct file_ops *files, const char *dir, uint64_t first,
                        uint64_t *ret, struct err *err)
{
    const struct wal_record *record;
    struct wal_reader *reader;
    int status = wal_reader_open(files, dir, NULL, first, &reader, err);

    if (status)
        return status;
    do
        status = wal_reader_next(reader, &record, err);
    while (!status && record);
    if (!status)
        *ret = wal_reader_end(reader)->last;
    wal_reader_free(reader);
    return status;
}

static int read_shard(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                      uint32_t shard_index, uint64_t *ret, struct err *err)
{
    struct wal_segments segments = { 0 };
    char dir[WAL_PATH_MAX];
    int status = timeline_log_dir(data_dir, epoch, shard_index, dir, err);

    if (!status)
        status = wal_segment_list(files, dir, &segments, err);
    if (!status && segments.n)
        status = read_segment(files, dir, segments.firsts[segments.n - 1], ret, err);
    free(segments.firsts);
    return status;
}

/* A checkpoint may be newer than what a power cut has left of the log. */
struct newest {
    uint64_t epoch, *last;
    uint32_t n_shards;
};

static void note_checkpoint(void *arg, const struct checkpoint_entry *entry)
{
    const struct newest *n = arg;
    const struct manifest *m = entry->manifest;

    if (!m || entry->is_archived || m->map_id != n->epoch)
        return;
    for (uint32_t i = 0; i < n->n_shards && i < m->n_files; i++)
        if (m->files[i].first > n->last[i])
            n->last[i] = m->files[i].first;
}

int log_end_read(const struct file_ops *files, const char *data_dir, uint32_t n_shards,
                 uint64_t *ret_epoch, uint64_t *ret_last, struct err *err)
{
    struct newest newest = { .last = ret_last, .n_shards = n_shards };
    int status = timeline_newest(files, data_dir, 0, ret_epoch, err);

    for (uint32_t i = 0; i < n_shards && !status; i++) {
        ret_last[i] = 0;
        status = read_shard(files, data_dir, *ret_epoch, i, &ret_last[i], err);
    }
    newest.epoch = *ret_epoch;
    return status ? status : checkpoint_each(files, data_dir, note_checkpoint, &newest, err);
}
