#include "server/wal/wal_writer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "server/wal/wal_control.h"
#include "server/wal/wal_portion.h"

#define INTERVAL_MS 1000u
#define RETRY_MS 1000u
#define CONTROL_MS 1000u /* between what is written of `durable` in the control file */
#define SEGMENT_BYTES (UINT64_C(64) << 20)
#define ZSTD_SKIP 15u /* blocks that go as they are after one that zstd could not shorten */

struct wal_writer {
    struct wal_writer_config config;

    struct wal_block *first, **last; /* owned: kept */
    struct wal_block *unwritten;     /* of the kept ones, the first that is not in the file */
    struct wal_block *released;      /* owned: to be given back */
    struct wal_block *surplus;       /* owned: to be freed */

    int fd; /* -1: no segment is open */
    struct wal_segment segment;
    char path[WAL_PATH_MAX];
    uint64_t n_bytes; /* of the segment */
    bool unsynced;
    struct wal_portion portion;
    uint64_t portion_bytes; /* written since the last sync, */
    uint64_t portion_raw;   /* which is so much before compression, */
    uint64_t portion_ns;    /* and took so long until busy_since_ns */
    uint64_t busy_since_ns;
    uint64_t version; /* of the last record written */
    uint64_t safe;    /* none: what was durable before progress.doubtful */
    uint32_t n_zstd_skips;
    struct wal_block_zstd zstd;

    bool sync_asked;   /* wal_writer_sync() */
    uint64_t leave_to; /* wal_writer_leave(); 0: not asked for, or done */
    uint64_t retry_at_ms;
    struct wal_control control; /* as it was written */
    uint64_t control_at_ms;     /* when; monotonic */
    int mark_fd;                /* -1: there is no mark */
    uint32_t n_marks;
    uint64_t marked; /* the mark's number */
    struct wal_progress progress;
    struct err *err; /* where a failure is told: of progress, or of an opener */
};

const struct wal_progress *wal_writer_progress(const struct wal_writer *w)
{
    return &w->progress;
}

static bool syncs(const struct wal_writer *w)
{
    return w->config.durability != WAL_NONE;
}

static uint64_t now_ns(const struct wal_writer *w)
{
    return w->config.clock_ns ? w->config.clock_ns(w->config.clock_state) : clock_mono_ns();
}

/* --- blocks --- */

static void release_until(struct wal_writer *w, uint64_t number)
{
    while (w->first && w->first != w->unwritten && w->first->last <= number) {
        struct wal_block *block = w->first;

        w->first = block->next;
        if (!w->first)
            w->last = &w->first;
        block->next = w->released;
        w->released = block;
    }
}

void wal_writer_drain(struct wal_writer *w, struct wal_queue *q)
{
    struct wal_block *taken = wal_queue_drain(q);

    if (taken && !w->unwritten)
        w->unwritten = taken;
    *w->last = taken;
    while (*w->last)
        w->last = &(*w->last)->next;
}

void wal_writer_report(struct wal_writer *w, struct wal_queue *q)
{
    struct wal_block **last = &w->surplus;

    while (*last)
        last = &(*last)->next;
    *last = wal_queue_recycle(q, w->released, &w->progress);
    w->released = NULL;
}

/* --- the segment's file --- */

static int failed(struct wal_writer *w, int status, const char *what)
{
    return err_set(w->err, status, "the write-ahead log: cannot %s: %s: %s", what,
                   status_text(status), w->path);
}

/* The time that the disk took up to now is that of the present portion. */
static void note_elapsed(struct wal_writer *w)
{
    uint64_t ns = now_ns(w);

    w->portion_ns += ns - w->busy_since_ns;
    w->busy_since_ns = ns;
}

/* The next portion begins. */
static void reset_portion(struct wal_writer *w)
{
    w->portion_bytes = w->portion_raw = w->portion_ns = 0;
}

/* The portion is on the disk; under none, it is the kernel's. */
static void note_speed(struct wal_writer *w)
{
    note_elapsed(w);
    wal_portion_note(&w->portion, w->portion_bytes, w->portion_raw, w->portion_ns,
                     w->unwritten ? WAL_PORTION_MORE_WAITS : WAL_PORTION_LAST);
    w->progress.disk_bytes_per_s = wal_portion_disk_speed(&w->portion);
    w->progress.raw_bytes_per_s = wal_portion_raw_speed(&w->portion);
    reset_portion(w);
}

static int sync_file(struct wal_writer *w)
{
    const struct file_ops *files = w->config.files;
    int status;

    if (!w->unsynced)
        return 0;
    status = files->sync(files->state, w->fd);
    if (status)
        return failed(w, status, "sync");
    w->unsynced = false;
    note_speed(w);
    w->progress.n_syncs++;
    w->progress.durable = w->progress.written;
    release_until(w, w->progress.durable);
    return 0;
}

/* A file that is given up, or was synced: how closing ends changes nothing. */
static void drop_file(struct wal_writer *w)
{
    if (w->fd >= 0)
        (void)!w->config.files->close(w->config.files->state, w->fd);
    w->fd = -1;
    w->unsynced = false;
    reset_portion(w);
}

static int write_bytes(struct wal_writer *w, const void *bytes, size_t n_bytes)
{
    const struct file_ops *files = w->config.files;
    int status;

    w->unsynced = true;
    status = files->write_all(files->state, w->fd, bytes, n_bytes);
    if (status)
        return failed(w, status, "write");
    w->n_bytes += n_bytes;
    w->portion_bytes += n_bytes;
    w->progress.n_writes++;
    w->progress.stored_bytes += n_bytes;
    return 0;
}

/* --- the control file --- */

static int write_control(struct wal_writer *w, const struct wal_control *c, struct err *err)
{
    int status = 0;

    if (w->config.control[0])
        status = wal_control_write(w->config.files, w->config.control, c, err);
    if (!status)
        w->control = *c;
    return status;
}

/* Without a mark it is only later that the control file has what is durable. */
static void open_mark(struct wal_writer *w)
{
    if (w->mark_fd < 0 && w->config.control[0] &&
        wal_control_mark_create(w->config.files, w->config.control, &w->mark_fd))
        w->mark_fd = -1;
}

/* After each sync, before anything of it is acknowledged. If it fails, what it said before is true. */
static void note_mark(struct wal_writer *w)
{
    struct wal_control c = w->control;

    c.durable = w->progress.durable;
    if (w->mark_fd < 0 || !c.mark || c.durable == w->marked)
        return;
    if (wal_control_mark_write(w->config.files, w->mark_fd, &c, w->n_marks++) == 0)
        w->marked = c.durable;
}

/* In words that hold whatever happens: under none, names of segments are not durable before wal_writer_sync(). */
static int note_segment(struct wal_writer *w)
{
    open_mark(w);
    return write_control(
        w,
        &(struct wal_control){ .epoch = w->config.identity.map_id,
                               .segment = syncs(w) ? w->segment.first : w->control.segment,
                               .durable = w->progress.durable,
                               .mark = w->mark_fd >= 0 ? w->segment.crc : 0 },
        w->err);
}

/* Before files of records from `first` on are given up: neither the control file nor what will be written to it next
 * names any of them. */
static int rewind_control(struct wal_writer *w, uint64_t first)
{
    if (!w->config.control[0])
        return 0;
    wal_control_reset(&w->control, first);
    return wal_control_rewind(w->config.files, w->config.control, w->config.identity.map_id,
                              first, w->err);
}

static uint64_t control_due_ms(const struct wal_writer *w)
{
    return w->config.control[0] && w->progress.durable > w->control.durable
               ? w->control_at_ms + CONTROL_MS
               : UINT64_MAX;
}

/* It may fail: what it says then is old, and true. */
static void note_durable(struct wal_writer *w, uint64_t now_ms)
{
    struct wal_control c = w->control;

    if (now_ms < control_due_ms(w))
        return;
    c.durable = w->progress.durable;
    (void)!write_control(w, &c, NULL);
    w->control_at_ms = now_ms;
}

/* The log is closed behind what is durable; under none this says nothing of what is behind that. */
static void note_closed(struct wal_writer *w)
{
    struct wal_control c = w->control;

    c.durable = w->progress.durable;
    c.is_closed = syncs(w);
    c.mark = 0;
    (void)!write_control(w, &c, NULL);
}

/* --- segments --- */

/* A segment that begins with record `first`; its name is durable before anything in it is. */
static int begin_segment(struct wal_writer *w, uint64_t first, uint32_t flags, uint64_t durable,
                         uint64_t unix_ms)
{
    const struct file_ops *files = w->config.files;
    uint8_t header[WAL_SEGMENT_HEADER_BYTES];
    int status = wal_segment_path(w->config.dir, first, w->path, w->err);

    if (status)
        return status;
    /* One of this name has failed before it held anything durable, and may have been noted. */
    if (w->progress.state == WAL_WRITER_FAILED) {
        status = rewind_control(w, first);
        if (status)
            return status;
        (void)!files->unlink(files->state, w->path);
    }
    status = files->create(files->state, w->path, &w->fd);
    if (status) {
        w->fd = -1;
        return failed(w, status, "create");
    }
    w->n_bytes = 0;
    w->segment = (struct wal_segment){ .flags = flags,
                                       .identity = w->config.identity,
                                       .first = first,
                                       .durable = durable,
                                       .version = w->version,
                                       .unix_ms = unix_ms };
    wal_segment_encode(header, &w->segment);
    w->progress.n_segments++;
    status = write_bytes(w, header, sizeof header);
    if (!status && syncs(w)) {
        status = files->sync_dir(files->state, w->config.dir);
        if (status)
            status = failed(w, status, "sync the directory of");
    }
    return status ? status : note_segment(w);
}

static int end_segment(struct wal_writer *w)
{
    int status = syncs(w) ? sync_file(w) : 0;

    if (!status)
        drop_file(w);
    return status;
}

/* --- writing --- */

/* For this block, or NULL: what could not be shortened lately is not tried. */
static struct wal_block_zstd *zstd_for(struct wal_writer *w)
{
    if (w->config.zstd == WAL_ZSTD_OFF || !w->portion.compresses)
        return NULL;
    if (w->n_zstd_skips) {
        w->n_zstd_skips--;
        return NULL;
    }
    return &w->zstd;
}

/* none: the segment behind those that a failed sync may have lost tells of a gap, and of what was durable
 * before it; also where it has to be begun again. */
static int begin_next(struct wal_writer *w, uint64_t first, bool gap, uint64_t unix_ms)
{
    bool behind_doubt = w->progress.doubtful && first == w->progress.doubtful + 1;

    return begin_segment(w, first, gap || behind_doubt ? WAL_SEGMENT_GAP : 0,
                         behind_doubt ? w->safe : w->progress.durable, unix_ms);
}

static int write_block(struct wal_writer *w, struct wal_block *block, uint64_t unix_ms)
{
    struct wal_block_zstd *zstd = zstd_for(w);
    const uint8_t *bytes;
    size_t n_bytes;
    bool is_first =
        block->first == w->segment.first; /* an empty segment, which is begun once */
    int status = 0;

    if (w->fd >= 0 && (block->gap || (block->begins_segment && !is_first) ||
                       w->n_bytes >= w->config.segment_bytes))
        status = end_segment(w);
    if (!status && w->fd < 0)
        status = begin_next(w, block->first, block->gap, unix_ms);
    if (status)
        return status;
    wal_block_seal(block, w->segment.crc, w->progress.durable, zstd, &bytes, &n_bytes);
    if (zstd && bytes != zstd->bytes.bytes)
        w->n_zstd_skips = ZSTD_SKIP;
    status = write_bytes(w, bytes, n_bytes);
    if (status)
        return status;
    w->progress.raw_bytes += block->n_bytes;
    w->portion_raw += block->n_bytes;
    w->progress.written = block->last;
    if (block->version)
        w->version = block->version;
    w->unwritten = block->next;
    if (!syncs(w))
        release_until(w, w->progress.written);
    return 0;
}

/* Is a portion written that is to be synced before more is? Under none nothing is. */
static bool is_portion_full(const struct wal_writer *w)
{
    return syncs(w) && w->portion_bytes >= wal_portion_next(&w->portion);
}

/* When the oldest record that is not durable must be. Before that where much is kept: what is not
 * synced takes memory, and the longer a sync is put off the longer it lasts. */
static uint64_t sync_due_ms(const struct wal_writer *w)
{
    if (w->sync_asked || is_portion_full(w))
        return 0;
    if (!syncs(w) || !w->first)
        return UINT64_MAX;
    if (w->config.durability == WAL_FSYNC)
        return 0;
    return w->first->since_ms + w->config.interval_ms;
}

/* none: what was written is kept no more, in files that are closed. If they cannot be synced it may be lost,
 * and calling again would not report it (invariant 2). */
static int sync_written(struct wal_writer *w, uint64_t unix_ms)
{
    const struct file_ops *files = w->config.files;
    struct wal_progress *p = &w->progress;
    uint64_t assured = p->doubtful > p->durable ? p->doubtful : p->durable;
    int status = 0;

    /* The segment that tells of a gap is there before anything behind the gap is called durable. */
    if (p->doubtful && p->doubtful == p->written && w->fd < 0)
        status = begin_next(w, p->written + 1, false, unix_ms);
    if (!status)
        status = wal_segment_sync(files, w->config.dir, assured, p->written + 1, w->err);
    if (!status)
        status = wal_segment_sync_names(files, w->config.dir, w->err);
    if (status) {
        w->safe = p->doubtful >= p->durable ? w->safe : p->durable;
        p->doubtful = p->written;
        return status;
    }
    p->durable = p->written;
    p->n_syncs++;
    w->control.segment = w->fd >= 0 ? w->segment.first : w->control.segment;
    return 0;
}

static int sync_due(struct wal_writer *w, uint64_t unix_ms)
{
    int status = 0;

    if (syncs(w))
        status = sync_file(w);
    else if (w->sync_asked)
        status = sync_written(w, unix_ms);
    if (!status && !w->unwritten)
        w->sync_asked = false;
    return status;
}

/* The disk begins with what will be synced soon, while the next block is made. */
static void begin_write_back(struct wal_writer *w)
{
    const struct file_ops *files = w->config.files;

    if (syncs(w) && files->write_back)
        files->write_back(files->state, w->fd);
}

/* All that waits, or a portion of it. */
static int write_portion(struct wal_writer *w, uint64_t unix_ms)
{
    int status = 0;

    while (w->unwritten && !status && !is_portion_full(w)) {
        status = write_block(w, w->unwritten, unix_ms);
        if (!status && w->unwritten)
            begin_write_back(w);
    }
    if (!syncs(w))
        note_speed(w);
    return status;
}

/* The segment has no record from leave_to on, and at least one before it. */
static int leave(struct wal_writer *w, uint64_t unix_ms)
{
    uint64_t last = w->progress.written;
    int status = 0;

    if (w->fd >= 0 && last < w->leave_to && w->segment.first <= last) {
        status = end_segment(w);
        if (!status)
            status = begin_next(w, last + 1, false, unix_ms);
    }
    if (!status)
        w->leave_to = 0;
    return status;
}

/* --- failing, and beginning again --- */

static void fail(struct wal_writer *w, uint64_t now_ms)
{
    if (w->progress.state == WAL_WRITER_OK)
        w->progress.failed_since_ms = now_ms;
    w->progress.state = WAL_WRITER_FAILED;
    w->progress.n_failures++;
    w->retry_at_ms = now_ms + w->config.retry_ms;
    drop_file(w);
    /* Nothing of the file's that was not synced is trusted: all that is kept goes to another. */
    w->unwritten = w->first;
    if (syncs(w))
        w->progress.written = w->progress.durable;
}

/* Writes what there is; syncs it if that is due, and after a failure always. */
static int work(struct wal_writer *w, uint64_t now_ms, uint64_t unix_ms)
{
    bool failed = w->progress.state == WAL_WRITER_FAILED;
    int status;

    w->busy_since_ns = now_ns(w);
    status = write_portion(w, unix_ms);
    if (!status && (failed || now_ms >= sync_due_ms(w)))
        status = sync_due(w, unix_ms);
    if (!status && w->leave_to)
        status = leave(w, unix_ms);
    if (status) {
        fail(w, now_ms);
    } else if (failed) {
        w->progress.state = WAL_WRITER_OK;
        w->progress.err = (struct err){ 0 };
    }
    if (!status) {
        note_mark(w);
        note_durable(w, now_ms);
    }
    note_elapsed(w);
    return status;
}

static uint64_t due_ms(const struct wal_writer *w)
{
    uint64_t sync_ms = sync_due_ms(w), control_ms = control_due_ms(w);

    if (w->progress.state == WAL_WRITER_FAILED)
        return w->retry_at_ms;
    if (w->unwritten)
        return 0;
    return sync_ms < control_ms ? sync_ms : control_ms;
}

void wal_writer_work(struct wal_writer *w, uint64_t now_ms, uint64_t unix_ms,
                     uint64_t *ret_due_ms)
{
    wal_block_free(w->surplus);
    w->surplus = NULL;
    w->err = &w->progress.err;
    if (w->progress.state == WAL_WRITER_OK || now_ms >= w->retry_at_ms)
        (void)!work(w, now_ms, unix_ms);
    *ret_due_ms = due_ms(w);
}

void wal_writer_sync(struct wal_writer *w)
{
    w->sync_asked = true;
}

void wal_writer_leave(struct wal_writer *w, uint64_t number)
{
    w->leave_to = number;
}

int wal_writer_close(struct wal_writer *w, uint64_t now_ms, uint64_t unix_ms)
{
    uint8_t end[WAL_BLOCK_HEADER_BYTES];
    int status;

    w->err = &w->progress.err;
    do
        status = work(w, now_ms, unix_ms);
    while (!status && w->unwritten);
    if (!status && w->fd >= 0 && syncs(w))
        status = sync_file(w);
    if (!status && w->fd >= 0) {
        wal_block_seal_end(end, w->segment.crc, w->progress.written, w->progress.durable);
        status = write_bytes(w, end, sizeof end);
    }
    if (!status && w->fd >= 0 && syncs(w))
        status = sync_file(w);
    if (status && w->progress.state == WAL_WRITER_OK)
        fail(w, now_ms);
    if (!status)
        note_closed(w);
    drop_file(w);
    return status;
}

/* --- opening, cutting --- */

/* What was read is told to workers as applied, so it must be on the disk. What no reader reaches any more
 * would stand in the way of what is written now: a reader stops before it, or has been told to. */
static int adopt(struct wal_writer *w, const struct wal_end *end)
{
    const struct file_ops *files = w->config.files;
    const char *dir = w->config.dir;
    uint64_t unread = end->last + (end->verdict == WAL_STOPPED ? 1 : 2);
    int status = wal_segment_make_dir(files, dir, w->err);

    if (!status && syncs(w))
        status = wal_segment_sync_names(files, dir, w->err);
    if (!status && syncs(w))
        status = wal_segment_sync(files, dir, end->durable, end->last_present, w->err);
    return status ? status : wal_segment_archive(files, dir, unread, w->err);
}

static int begin(struct wal_writer *w, const struct wal_end *end, uint64_t unix_ms)
{
    int status = rewind_control(w, end->last + 1);

    if (!status)
        status = adopt(w, end);
    if (status)
        return status;
    w->progress.written = end->last;
    w->progress.durable = syncs(w) ? end->last : end->durable;
    w->version = end->version;
    status =
        begin_segment(w, end->last + 1, end->last_present < end->last ? WAL_SEGMENT_GAP : 0,
                      syncs(w) ? end->last_present : end->durable, unix_ms);
    return status || !syncs(w) ? status : sync_file(w);
}

int wal_writer_open(const struct wal_writer_config *config, const struct wal_end *end,
                    uint64_t unix_ms, struct wal_writer **ret, struct err *err)
{
    struct wal_writer *w;
    struct err unwanted;
    int status;

    if (end->verdict == WAL_DAMAGED)
        return err_set(err, PS_ECORRUPT, "%s", end->text);
    w = memory_alloc(sizeof *w);
    w->config = *config;
    w->config.interval_ms = config->interval_ms ? config->interval_ms : INTERVAL_MS;
    w->config.retry_ms = config->retry_ms ? config->retry_ms : RETRY_MS;
    w->config.segment_bytes = config->segment_bytes ? config->segment_bytes : SEGMENT_BYTES;
    w->last = &w->first;
    w->fd = w->mark_fd = -1;
    wal_portion_init(&w->portion);
    w->busy_since_ns = now_ns(w);
    w->err = err ? err : &unwanted;
    status = begin(w, end, unix_ms);
    if (status) {
        wal_writer_free(w);
        return status;
    }
    *ret = w;
    return 0;
}

void wal_writer_free(struct wal_writer *w)
{
    if (!w)
        return;
    drop_file(w);
    if (w->mark_fd >= 0)
        (void)!w->config.files->close(w->config.files->state, w->mark_fd);
    wal_block_free(w->first);
    wal_block_free(w->released);
    wal_block_free(w->surplus);
    wal_block_zstd_deinit(&w->zstd);
    free(w);
}

int wal_writer_truncate(struct wal_writer *w, uint64_t number, struct err *err)
{
    return wal_segment_truncate(w->config.files, w->config.dir, number, err);
}
