#include "server/disk_monitor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "common/clock.h"
#include "common/file_text.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/recovery/disk_usage.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_control.h"
#include "server/wal/wal_reader.h"

#define MEASURE_MS 10000u
#define SCRUB_FIRST_MS 10000u           /* a scrub that is overdue at the start */
#define SCRUB_RETRY_MS 600000u          /* one that could not be done */
#define BURST_BYTES (UINT64_C(1) << 20) /* read between two pauses */
#define NS_PER_MS UINT64_C(1000000)
#define MOVES_MAX 100u /* truncations under one log's reader */

struct disk_monitor {
    struct disk_monitor_config config;
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    bool stops;
    struct stats_disk seen;
    /* The thread's own: */
    struct file_ops slow;
    uint64_t n_burst_bytes, n_scrubbed_bytes, next_scrub_ms, next_measure_ms;
    uint32_t n_damaged; /* in this scrub */
    char first[200];    /* sentence of it */
};

/* --- sizes --- */

static void measure(struct disk_monitor *w)
{
    struct disk_usage usage;

    disk_usage_read(w->config.files, w->config.data_dir, &usage);
    uv_mutex_lock(&w->lock);
    w->seen.checkpoint_bytes = usage.checkpoint_bytes;
    w->seen.log_bytes = usage.log_bytes;
    w->seen.archived_bytes = usage.archived_bytes;
    w->seen.free_bytes = usage.free_bytes;
    w->seen.size_bytes = usage.size_bytes;
    memcpy(w->seen.file_system, usage.file_system, sizeof w->seen.file_system);
    uv_mutex_unlock(&w->lock);
    w->next_measure_ms = clock_mono_ms() + w->config.measure_every_ms;
}

/* --- waiting --- */

/* True: to stop. */
static bool rest(struct disk_monitor *w, uint64_t ms)
{
    uint64_t until_ms = clock_mono_ms() + ms, now_ms;
    bool stops;

    uv_mutex_lock(&w->lock);
    while (!w->stops && (now_ms = clock_mono_ms()) < until_ms)
        (void)uv_cond_timedwait(&w->wake, &w->lock, (until_ms - now_ms) * NS_PER_MS);
    stops = w->stops;
    uv_mutex_unlock(&w->lock);
    return stops;
}

/* Reads at the rate. A scrub may last for hours, so sizes are measured on the way. -ECANCELED: to stop. */
static int64_t read_slowly(void *state, int fd, void *dst, size_t n_bytes)
{
    struct disk_monitor *w = state;
    int64_t n = w->config.files->read(w->config.files->state, fd, dst, n_bytes);

    if (n <= 0)
        return n;
    w->n_scrubbed_bytes += (uint64_t)n;
    w->n_burst_bytes += (uint64_t)n;
    if (clock_mono_ms() >= w->next_measure_ms)
        measure(w);
    if (w->n_burst_bytes < BURST_BYTES)
        return n;
    if (rest(w, w->n_burst_bytes * 1000 / DISK_MONITOR_BYTES_PER_S))
        return -ECANCELED;
    w->n_burst_bytes = 0;
    return n;
}

static int open_slowly(void *state, const char *path, int *ret_fd)
{
    struct disk_monitor *w = state;

    return w->config.files->open_read(w->config.files->state, path, ret_fd);
}

static int64_t skip_slowly(void *state, int fd, uint64_t n_bytes)
{
    struct disk_monitor *w = state;

    return w->config.files->skip(w->config.files->state, fd, n_bytes);
}

static int close_slowly(void *state, int fd)
{
    struct disk_monitor *w = state;

    return w->config.files->close(w->config.files->state, fd);
}

static int list_slowly(void *state, const char *path, int (*each)(void *arg, const char *name),
                       void *arg)
{
    struct disk_monitor *w = state;

    return w->config.files->list(w->config.files->state, path, each, arg);
}

/* --- a scrub --- */

static void add_damage(struct disk_monitor *w, const char *sentence)
{
    log_line_error("scrub: %s", sentence);
    if (!w->n_damaged++)
        snprintf(w->first, sizeof w->first, "%.199s", sentence);
}

static void on_damage(void *arg, const char *sentence)
{
    add_damage(arg, sentence);
}

/* Its own files: those that they are deltas to are another checkpoint's. */
static int scrub_checkpoint(struct disk_monitor *w, uint64_t number)
{
    char dir[DIRECTORY_PATH_MAX];
    struct err err = { 0 };
    int status = directory_number_path(w->config.data_dir, number, dir, &err);

    if (!status)
        status = checkpoint_verify_own(&w->slow, dir, on_damage, w, &err);
    return status == -ECANCELED || status == -ENOMEM ? status : 0;
}

static int scrub_checkpoints(struct disk_monitor *w)
{
    struct directory_numbers numbers = { 0 };
    char dir[DIRECTORY_PATH_MAX];
    int status = directory_path(w->config.data_dir, dir, NULL);

    if (status || directory_list(w->config.files, dir, &numbers, NULL))
        numbers.n = 0;
    status = 0;
    for (size_t i = 0; i < numbers.n && !status; i++)
        status = scrub_checkpoint(w, numbers.items[i]);
    free(numbers.items);
    return status;
}

/* To the end of what can be read from record `from` on. */
static int read_log(struct disk_monitor *w, const char *dir, uint64_t from, struct wal_end *ret,
                    struct err *err)
{
    const struct wal_record *record;
    struct wal_reader *r;
    int status = wal_reader_open(&w->slow, dir, NULL, from, &r, err);

    if (status)
        return status;
    do
        status = wal_reader_next(r, &record, err);
    while (!status && record);
    if (!status)
        *ret = *wal_reader_end(r);
    wal_reader_free(r);
    return status;
}

/* The first segment of a log that begins at record `from` or behind; 0: there is none. */
static int next_segment(struct disk_monitor *w, const char *dir, uint64_t from, uint64_t *ret,
                        struct err *err)
{
    struct wal_segments all = { 0 };
    int status = wal_segment_list(w->config.files, dir, &all, err);

    *ret = 0;
    for (size_t i = all.n; i > 0 && all.firsts[i - 1] >= from; i--)
        *ret = all.firsts[i - 1];
    free(all.firsts);
    return status;
}

/* What the shard's control file says of this epoch; zeros: nothing. */
static struct wal_control read_control(struct disk_monitor *w, uint64_t epoch, uint32_t shard)
{
    struct wal_control c = { 0 };
    char path[WAL_PATH_MAX];

    if (wal_control_path(w->config.data_dir, shard, path, NULL) ||
        wal_control_read(w->config.files, path, &c, NULL) || c.epoch != epoch)
        c = (struct wal_control){ 0 };
    return c;
}

/* `before` was read before the log was. The writer may have gone back since: then less was durable. */
static void check_end(struct disk_monitor *w, const struct wal_control *before, uint32_t shard,
                      const struct wal_end *end)
{
    struct wal_control now = read_control(w, before->epoch, shard);
    uint64_t durable = now.durable < before->durable ? now.durable : before->durable;
    struct err text;

    if ((end->verdict != WAL_CLEAN && end->verdict != WAL_TORN) ||
        end->last_present >= durable || now.segment != before->segment)
        return;
    err_set(&text, 0,
            "the write-ahead log is cut behind record %" PRIu64 ": byte %" PRIu64
            " of %.150s; records up to %" PRIu64 " were on the disk",
            end->last_present, end->offset, end->path, durable);
    add_damage(w, text.text);
}

/* A log on its way past. */
struct log_scrub {
    const char *dir;
    struct wal_control known; /* read before the log was */
    uint32_t shard;
    uint64_t from; /* to be read next */
    uint64_t
        damaged; /* the record at which the reader ended, once: the writer may have been in the middle of a block */
    uint32_t n_moved; /* times that psd has truncated the log under the reader */
    char header[sizeof((struct wal_end *)0)->header_text]; /* the last that was told */
};

/* Truncation removes segments in ascending order. *ret_done: nothing is left. */
static int follow_truncation(struct disk_monitor *w, struct log_scrub *l, bool *ret_done,
                             struct err *err)
{
    uint64_t first;
    int status = next_segment(w, l->dir, 1, &first, err);

    if (!status && ++l->n_moved > MOVES_MAX)
        status = err_set(err, -EBUSY, "psd has truncated the log each time: %.150s", l->dir);
    *ret_done = !first;
    l->from = first > l->from ? first : l->from;
    return status;
}

/* What is damaged twice stays so. Behind it the log is read on from the next segment. */
static int pass_damage(struct disk_monitor *w, struct log_scrub *l, const struct wal_end *end,
                       bool *ret_done, struct err *err)
{
    uint64_t at = end->last_present + 1;
    int status = 0;

    if (l->damaged != at) {
        l->damaged = l->from = at;
        return 0;
    }
    add_damage(w, end->text);
    status = next_segment(w, l->dir, at + 1, &l->from, err);
    *ret_done = !l->from;
    return status;
}

/* A segment that is read twice is damaged once. */
static void add_headers(struct disk_monitor *w, struct log_scrub *l, const struct wal_end *end)
{
    if (!end->n_headers || strcmp(l->header, end->header_text) == 0)
        return;
    add_damage(w, end->header_text);
    w->n_damaged += end->n_headers - 1;
    memcpy(l->header, end->header_text, sizeof l->header);
}

static int scrub_stretch(struct disk_monitor *w, struct log_scrub *l, bool *ret_done,
                         struct err *err)
{
    struct wal_end end = { 0 };
    int status = read_log(w, l->dir, l->from, &end, err);

    if (status == -ENOENT || (!status && end.is_truncated))
        return follow_truncation(w, l, ret_done, err);
    if (status)
        return status;
    add_headers(w, l, &end);
    if (end.verdict == WAL_DAMAGED)
        return pass_damage(w, l, &end, ret_done, err);
    check_end(w, &l->known, l->shard, &end);
    *ret_done = true;
    if (end.verdict == WAL_GAP) {
        status = next_segment(w, l->dir, end.last_present + 2, &l->from, err);
        *ret_done = !l->from;
    }
    return status;
}

static int scrub_log(struct disk_monitor *w, uint64_t epoch, uint32_t shard, const char *dir)
{
    struct log_scrub l = { .dir = dir, .known = read_control(w, epoch, shard), .shard = shard };
    struct err err = { 0 };
    int status = next_segment(w, dir, 1, &l.from, &err);
    bool done = !l.from;

    while (!done && !status)
        status = scrub_stretch(w, &l, &done, &err);
    if (!status || status == -ECANCELED || status == -ENOMEM)
        return status;
    if (status == -EBUSY)
        log_line_warn("scrub: %s", err.text);
    else
        add_damage(w, err.text);
    return status == -EBUSY ? status : 0;
}

static int scrub_epoch(struct disk_monitor *w, uint64_t epoch)
{
    const char *data_dir = w->config.data_dir;
    char dir[WAL_PATH_MAX];
    uint32_t n_shards = 0;
    bool is_archived = true;
    int status = disk_usage_is_archived(w->config.files, data_dir, epoch, &is_archived, NULL);

    if (status || is_archived ||
        timeline_n_shards(w->config.files, data_dir, epoch, &n_shards, NULL))
        n_shards = 0;
    status = 0;
    for (uint32_t i = 0; i < n_shards && !status; i++)
        if (timeline_log_dir(data_dir, epoch, i, dir, NULL) == 0)
            status = scrub_log(w, epoch, i, dir);
    return status;
}

static int scrub_logs(struct disk_monitor *w)
{
    struct timeline_list epochs = { 0 };
    int status = 0;

    if (timeline_list(w->config.files, w->config.data_dir, &epochs, NULL))
        epochs.n = 0;
    for (size_t i = 0; i < epochs.n && !status; i++)
        status = scrub_epoch(w, epochs.items[i]);
    free(epochs.items);
    return status;
}

static bool has_segment(struct disk_monitor *w, const struct wal_control *c, const char *dir)
{
    struct wal_segments all = { 0 };
    int status = wal_segment_list(w->config.files, dir, &all, NULL);
    bool has = status || (all.n && all.firsts[all.n - 1] >= c->segment);

    free(all.firsts);
    return has;
}

/* Is the segment that the control file names there, or a later one? */
static void check_newest(struct disk_monitor *w, uint32_t shard, const struct wal_control *c)
{
    struct wal_control now;
    char dir[WAL_PATH_MAX];
    struct err text;

    if (!c->segment || c->is_closed ||
        timeline_log_dir(w->config.data_dir, c->epoch, shard, dir, NULL) ||
        has_segment(w, c, dir))
        return;
    now = read_control(w, c->epoch, shard);
    if (now.segment != c->segment) /* the writer gave it up */
        return;
    err_set(&text, 0, "segment %020" PRIu64 ".psl of the write-ahead log is gone: %.170s",
            c->segment, dir);
    add_damage(w, text.text);
}

/* Removed files of logs: only the control files know of them. */
static void scrub_controls(struct disk_monitor *w)
{
    struct wal_control *all;
    uint32_t n;

    if (wal_control_read_all(w->config.files, w->config.data_dir, on_damage, w, &all, &n, NULL))
        n = 0;
    wal_control_keep_newest(all, n, 0);
    for (uint32_t i = 0; i < n; i++)
        check_newest(w, i, &all[i]);
    free(all);
}

/* --- when it was --- */

#define STATE_FORMAT "psd scrub, format 1\nlast %" PRIu64 "\n"

static bool state_path(const struct disk_monitor *w, const char *suffix,
                       char ret[static WAL_PATH_MAX])
{
    int n = snprintf(ret, WAL_PATH_MAX, "%s/scrub.state%s", w->config.data_dir, suffix);

    return n > 0 && (size_t)n < WAL_PATH_MAX;
}

/* Unix ms; 0: not known. */
static uint64_t read_last(struct disk_monitor *w)
{
    struct bytes text = { 0 };
    char path[WAL_PATH_MAX];
    uint64_t last = 0;

    if (!state_path(w, "", path) || file_text_read(w->config.files, path, 1000, &text) ||
        sscanf((const char *)text.bytes + text.start, "psd scrub, format 1 last %" SCNu64,
               &last) != 1)
        last = 0;
    bytes_deinit(&text);
    return last;
}

/* Without the file the next start counts from itself. */
static void write_last(struct disk_monitor *w, uint64_t unix_ms)
{
    const struct file_ops *files = w->config.files;
    char path[WAL_PATH_MAX], tmp[WAL_PATH_MAX], text[100];
    int n = snprintf(text, sizeof text, STATE_FORMAT, unix_ms);

    if (state_path(w, "", path) && state_path(w, ".tmp", tmp) &&
        file_text_write(files, tmp, text, (size_t)n) == 0)
        (void)!files->rename(files->state, tmp, path);
}

/* Restarts do not put a scrub off: it is so long after the last one, or after the first start. */
static uint64_t first_scrub_ms(struct disk_monitor *w, uint64_t every_ms)
{
    uint64_t now_ms = clock_unix_ms(), last_ms = read_last(w), ms = 0;

    if (!last_ms || last_ms > now_ms) {
        last_ms = now_ms;
        write_last(w, last_ms);
    }
    if (now_ms - last_ms < every_ms)
        ms = every_ms - (now_ms - last_ms);
    if (ms < SCRUB_FIRST_MS)
        ms = every_ms < SCRUB_FIRST_MS ? every_ms : SCRUB_FIRST_MS;
    return clock_mono_ms() + ms;
}

/* False: it was interrupted, and does not count. */
static bool scrub(struct disk_monitor *w)
{
    int status;

    w->n_damaged = 0;
    w->n_scrubbed_bytes = w->n_burst_bytes = 0;
    w->first[0] = '\0';
    status = scrub_checkpoints(w);
    if (!status)
        status = scrub_logs(w);
    if (status && status != -ECANCELED)
        log_line_warn("scrub: given up, to be done again: %s", status_text(status));
    if (status)
        return false;
    scrub_controls(w);
    write_last(w, clock_unix_ms());
    log_line_info("scrub: %" PRIu64
                  " bytes of checkpoints and write-ahead logs read again: %" PRIu32
                  " files damaged",
                  w->n_scrubbed_bytes, w->n_damaged);
    uv_mutex_lock(&w->lock);
    w->seen.n_scrubs++;
    w->seen.scrubbed_bytes += w->n_scrubbed_bytes;
    w->seen.n_damaged = w->n_damaged;
    w->seen.scrubbed_unix_ms = clock_unix_ms();
    memcpy(w->seen.damage, w->first, sizeof w->seen.damage);
    uv_mutex_unlock(&w->lock);
    return true;
}

/* --- the thread --- */

static void thread_main(void *arg)
{
    struct disk_monitor *w = arg;
    uint64_t every_ms = w->config.scrub_every_ms, now_ms, ms;

    w->next_scrub_ms = every_ms ? first_scrub_ms(w, every_ms) : 0;
    do {
        measure(w);
        now_ms = clock_mono_ms();
        if (every_ms && now_ms >= w->next_scrub_ms) {
            bool counts = scrub(w);

            now_ms = clock_mono_ms();
            w->next_scrub_ms =
                now_ms + (counts || every_ms < SCRUB_RETRY_MS ? every_ms : SCRUB_RETRY_MS);
        }
        ms = w->next_measure_ms > now_ms ? w->next_measure_ms - now_ms : 0;
        if (every_ms && w->next_scrub_ms - now_ms < ms)
            ms = w->next_scrub_ms - now_ms;
    } while (!rest(w, ms));
}

int disk_monitor_start(const struct disk_monitor_config *config, struct disk_monitor **ret,
                       struct err *err)
{
    struct disk_monitor *w = memory_alloc(sizeof *w);
    int status;

    *w = (struct disk_monitor){ .config = *config,
                                .slow = { .state = w,
                                          .open_read = open_slowly,
                                          .read = read_slowly,
                                          .close = close_slowly,
                                          .list = list_slowly,
                                          .skip = config->files->skip ? skip_slowly : NULL } };
    if (uv_mutex_init(&w->lock) || uv_cond_init(&w->wake))
        abort(); /* only without memory */
    w->seen.is_on = true;
    if (!w->config.measure_every_ms)
        w->config.measure_every_ms = MEASURE_MS;
    status = uv_thread_create(&w->thread, thread_main, w);
    if (status) {
        uv_cond_destroy(&w->wake);
        uv_mutex_destroy(&w->lock);
        free(w);
        return err_set(err, status, "cannot start a thread: %s (ulimit -v and -u)",
                       status_text(status));
    }
    *ret = w;
    return 0;
}

void disk_monitor_view(struct disk_monitor *w, struct stats_disk *ret)
{
    *ret = (struct stats_disk){ 0 };
    if (!w)
        return;
    uv_mutex_lock(&w->lock);
    *ret = w->seen;
    uv_mutex_unlock(&w->lock);
}

void disk_monitor_close(struct disk_monitor *w)
{
    if (!w)
        return;
    uv_mutex_lock(&w->lock);
    w->stops = true;
    uv_cond_signal(&w->wake);
    uv_mutex_unlock(&w->lock);
    uv_thread_join(&w->thread);
    uv_cond_destroy(&w->wake);
    uv_mutex_destroy(&w->lock);
    free(w);
}
