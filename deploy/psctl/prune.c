#include "deploy/psctl/prune.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "deploy/psctl/data_dir.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/data_dir_lock.h"
#include "server/recovery/disk_usage.h"
#include "server/recovery/timeline.h"

struct prune {
    const struct options *options; /* borrowed */
    const char *data_dir;          /* borrowed */
    cJSON *items;                  /* owned */
    uint64_t n_bytes;
    /* Of a stopped psd: */
    uint64_t *kept; /* owned: numbers of checkpoints that stay */
    size_t n_kept;
    uint64_t oldest_epoch;
    struct manifest *newest; /* owned */
    uint64_t *firsts;        /* owned: of the newest one's shards */
};

/* One thing that goes, or would. */
PRINTF_LIKE(3, 4)
static void add(struct prune *p, uint64_t n_bytes, const char *fmt, ...)
{
    char what[300];
    cJSON *item = cJSON_CreateObject();
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    p->n_bytes += n_bytes;
    cJSON_AddStringToObject(item, "what", what);
    data_dir_add_u64(item, "bytes", n_bytes);
    cJSON_AddItemToArray(p->items, item);
    if (!p->options->json)
        printf("%-13s %s, %" PRIu64 " bytes\n", p->options->yes ? "removed" : "not needed",
               what, n_bytes);
}

/* --- archived data --- */

static int prune_archived_checkpoints(struct prune *p, struct err *err)
{
    struct directory_numbers numbers = { 0 };
    char dir[DIRECTORY_PATH_MAX];
    int status = directory_path(p->data_dir, dir, err);

    if (!status)
        status = directory_list_archived(&file_os, dir, &numbers, err);
    for (size_t i = 0; i < numbers.n && !status; i++) {
        status = directory_archived_path(p->data_dir, numbers.items[i], dir, err);
        if (status)
            break;
        add(p, disk_usage_dir(dir, ""), "checkpoint %" PRIu64 ", archived", numbers.items[i]);
        if (p->options->yes)
            directory_remove(&file_os, dir);
    }
    free(numbers.items);
    return status;
}

static int prune_archived_log(struct prune *p, uint64_t epoch, struct err *err)
{
    uint64_t n_bytes, n_unread;
    bool is_archived;
    int status = disk_usage_is_archived(&file_os, p->data_dir, epoch, &is_archived, err);

    if (status)
        return status;
    disk_usage_log(&file_os, p->data_dir, epoch, &n_bytes, &n_unread);
    if (is_archived || (p->newest && epoch < p->oldest_epoch)) {
        add(p, n_bytes + n_unread,
            "write-ahead log of epoch %" PRIu64 ", which no checkpoint goes on with", epoch);
        if (p->options->yes)
            timeline_remove(&file_os, p->data_dir, epoch);
    } else if (n_unread) {
        add(p, n_unread, "segments of epoch %" PRIu64 " that no start could read", epoch);
        if (p->options->yes)
            timeline_remove_unread(&file_os, p->data_dir, epoch);
    }
    return 0;
}

static int prune_archived_logs(struct prune *p, struct err *err)
{
    struct timeline_list epochs = { 0 };
    int status = timeline_list(&file_os, p->data_dir, &epochs, err);

    for (size_t i = 0; i < epochs.n && !status; i++)
        status = prune_archived_log(p, epochs.items[i], err);
    free(epochs.items);
    return status;
}

/* --- psd is stopped: what the newest restore points do not need --- */

static bool is_kept(const struct prune *p, uint64_t number)
{
    for (size_t i = 0; i < p->n_kept; i++)
        if (p->kept[i] == number)
            return true;
    return false;
}

static void keep_point(struct prune *p, const struct checkpoint *c)
{
    const struct manifest *m = &c->links[0];

    for (uint32_t i = 0; i < c->n_links; i++)
        p->kept[p->n_kept++] = c->links[i].number;
    if (m->map_id < p->oldest_epoch)
        p->oldest_epoch = m->map_id;
    for (uint32_t i = 0; i < m->n_files && m->map_id == p->newest->map_id; i++)
        if (m->files[i].first < p->firsts[i])
            p->firsts[i] = m->files[i].first;
}

/* The newest --keep of them. The newest one must be whole. */
static int find_kept(struct prune *p, const struct directory_numbers *numbers, struct err *err)
{
    uint32_t n_points = 0;
    int status = 0;

    p->kept = memory_alloc((numbers->n + 1) * CHECKPOINT_CHAIN_MAX * sizeof *p->kept);
    for (size_t i = 0; i < numbers->n && n_points < p->options->keep; i++) {
        char dir[DIRECTORY_PATH_MAX];
        struct checkpoint c = { 0 };

        status = directory_number_path(p->data_dir, numbers->items[i], dir, err);
        if (status || checkpoint_is_unfinished(&file_os, dir))
            continue;
        status = checkpoint_open(&file_os, dir, &c, err);
        if (!status && !p->newest)
            status = checkpoint_verify(&file_os, &c, NULL, NULL, err);
        if (status) {
            checkpoint_close(&c);
            return status;
        }
        if (!p->newest) {
            p->newest = memory_alloc(sizeof *p->newest);
            *p->newest = c.links[0];
            p->oldest_epoch = c.links[0].map_id;
            p->firsts = memory_alloc(p->newest->n_files * sizeof *p->firsts);
            memset(p->firsts, 0xff, p->newest->n_files * sizeof *p->firsts);
        }
        keep_point(p, &c);
        n_points++;
        checkpoint_close(&c);
    }
    return status;
}

static int prune_checkpoints(struct prune *p, struct err *err)
{
    struct directory_numbers numbers = { 0 };
    char dir[DIRECTORY_PATH_MAX];
    int status = directory_path(p->data_dir, dir, err);

    if (!status)
        status = directory_list(&file_os, dir, &numbers, err);
    if (!status)
        status = find_kept(p, &numbers, err);
    for (size_t i = 0; i < numbers.n && !status && p->newest; i++) {
        if (is_kept(p, numbers.items[i]))
            continue;
        status = directory_number_path(p->data_dir, numbers.items[i], dir, err);
        if (!status)
            add(p, disk_usage_dir(dir, ""), "checkpoint %" PRIu64, numbers.items[i]);
        if (!status && p->options->yes)
            directory_remove(&file_os, dir);
    }
    free(numbers.items);
    return status;
}

/* Of one shard: segments with records of the oldest kept checkpoint alone. */
static int prune_log(struct prune *p, uint32_t shard, struct err *err)
{
    uint64_t needed = p->firsts[shard] + 1, n_bytes = 0;
    struct wal_segments all = { 0 };
    char dir[WAL_PATH_MAX], name[32];
    int status = timeline_log_dir(p->data_dir, p->newest->map_id, shard, dir, err);

    if (!status)
        status = wal_segment_list(&file_os, dir, &all, err);
    for (size_t i = 0; i + 1 < all.n && all.firsts[i + 1] <= needed; i++) {
        snprintf(name, sizeof name, "%020" PRIu64 ".psl", all.firsts[i]);
        n_bytes += disk_usage_dir(dir, name);
    }
    free(all.firsts);
    if (status || !n_bytes)
        return status;
    add(p, n_bytes, "write-ahead log of shard %" PRIu32 " before record %" PRIu64, shard,
        needed);
    return p->options->yes ? wal_segment_truncate(&file_os, dir, needed, err) : 0;
}

static int prune_stopped(struct prune *p, struct err *err)
{
    int status = prune_checkpoints(p, err);

    for (uint32_t i = 0; !status && p->newest && i < p->newest->n_files; i++)
        status = prune_log(p, i, err);
    return status;
}

/* --- one data directory --- */

static void print_end(const struct prune *p, bool runs)
{
    if (runs)
        printf("psd runs on it: what is its own is left to it (psctl checkpoint, --keep)\n");
    printf("%s%" PRIu64 " bytes%s\n", p->options->yes ? "removed " : "", p->n_bytes,
           p->options->yes ? "" : " are not needed; prune --yes removes them");
}

static int prune_one(struct prune *p, bool *ret_runs, struct err *err)
{
    struct data_dir_lock lock;
    int status;

    if (access(p->data_dir, F_OK))
        return err_set(err, PS_ENOCHECKPOINT, "no such directory: %.200s", p->data_dir);
    status = data_dir_lock_acquire(p->data_dir, &lock, err);
    *ret_runs = status == -EBUSY;
    if (status && !*ret_runs)
        return status;
    status = *ret_runs
                 ? 0
                 : prune_stopped(p, err); /* it reads the newest one before anything goes */
    if (!status)
        status = prune_archived_checkpoints(p, err);
    if (!status)
        status = prune_archived_logs(p, err);
    data_dir_lock_release(&lock);
    return status;
}

static int run_one(const struct options *o, const char *path)
{
    struct prune p = { .options = o, .data_dir = path, .items = cJSON_CreateArray() };
    struct err err = { 0 };
    bool runs = false;
    cJSON *root;

    err.status = prune_one(&p, &runs, &err);
    free(p.kept);
    free(p.newest);
    free(p.firsts);
    if (err.status) {
        cJSON_Delete(p.items);
        return data_dir_fail(&err);
    }
    if (!o->json) {
        cJSON_Delete(p.items);
        print_end(&p, runs);
        return EXIT_ANSWERED;
    }
    root = cJSON_CreateObject();
    cJSON_AddBoolToObject(root, "removed", o->yes);
    data_dir_add_u64(root, "bytes", p.n_bytes);
    cJSON_AddItemToObject(root, "items", p.items);
    data_dir_print_json(root);
    return EXIT_ANSWERED;
}

int prune_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)n_words;
    return data_dir_each(o, words[0], run_one);
}
