#include "server/recovery/disk_usage.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/recovery/timeline.h"

#define UNREAD ".unread"

static bool ends_in(const char *name, const char *end)
{
    size_t len = strlen(name), end_len = strlen(end);

    return len >= end_len && strcmp(name + len - end_len, end) == 0;
}

uint64_t disk_usage_dir(const char *path, const char *end)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    struct stat st;
    uint64_t sum = 0;

    while (dir && (entry = readdir(dir)) != NULL)
        if (ends_in(entry->d_name, end) &&
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_size;
    if (dir)
        closedir(dir);
    return sum;
}

/* --- logs --- */

struct newest {
    uint64_t epoch, wanted;
    bool is_one; /* a checkpoint in line is of the wanted one, or may be */
};

static void note_point(void *arg, const struct checkpoint_entry *item)
{
    struct newest *n = arg;

    if (item->is_archived)
        return;
    n->is_one = n->is_one || !item->manifest || item->manifest->map_id == n->wanted;
    if (item->manifest && item->manifest->map_id > n->epoch)
        n->epoch = item->manifest->map_id;
}

int disk_usage_is_archived(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                           bool *ret, struct err *err)
{
    struct newest n = { .wanted = epoch };
    int status = checkpoint_each(files, data_dir, note_point, &n, err);

    *ret = !status && epoch < n.epoch && !n.is_one;
    return status;
}

uint64_t disk_usage_segments(const struct file_ops *files, const char *dir, uint64_t from)
{
    struct wal_segments all = { 0 };
    char path[WAL_PATH_MAX];
    struct stat st;
    uint64_t sum = 0;

    if (wal_segment_list(files, dir, &all, NULL))
        all.n = 0;
    for (size_t i = 0; i < all.n; i++)
        if ((i + 1 == all.n || all.firsts[i + 1] > from) &&
            wal_segment_path(dir, all.firsts[i], path, NULL) == 0 && stat(path, &st) == 0)
            sum += (uint64_t)st.st_size;
    free(all.firsts);
    return sum;
}

void disk_usage_log(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    uint64_t *ret_bytes, uint64_t *ret_unread_bytes)
{
    char path[WAL_PATH_MAX];
    uint32_t n_shards;

    *ret_bytes = *ret_unread_bytes = 0;
    if (timeline_n_shards(files, data_dir, epoch, &n_shards, NULL))
        return;
    for (uint32_t i = 0; i < n_shards; i++) {
        if (timeline_log_dir(data_dir, epoch, i, path, NULL))
            return;
        *ret_bytes += disk_usage_dir(path, ".psl");
        *ret_unread_bytes += disk_usage_dir(path, UNREAD);
    }
}

static void add_logs(const struct file_ops *files, const char *data_dir, struct disk_usage *u)
{
    struct timeline_list epochs = { 0 };

    if (timeline_list(files, data_dir, &epochs, NULL))
        epochs.n = 0;
    for (size_t i = 0; i < epochs.n; i++) {
        uint64_t n_bytes, n_unread;
        bool is_archived = false;

        disk_usage_log(files, data_dir, epochs.items[i], &n_bytes, &n_unread);
        if (disk_usage_is_archived(files, data_dir, epochs.items[i], &is_archived, NULL))
            is_archived = false;
        u->log_bytes += is_archived ? 0 : n_bytes;
        u->archived_bytes += n_unread + (is_archived ? n_bytes : 0);
    }
    free(epochs.items);
}

/* --- checkpoints --- */

static void add_checkpoints(const struct file_ops *files, const char *data_dir,
                            struct disk_usage *u)
{
    struct directory_numbers in_line = { 0 }, archived = { 0 };
    char path[DIRECTORY_PATH_MAX];

    if (directory_path(data_dir, path, NULL))
        return;
    if (directory_list(files, path, &in_line, NULL))
        in_line.n = 0;
    if (directory_list_archived(files, path, &archived, NULL))
        archived.n = 0;
    for (size_t i = 0; i < in_line.n; i++)
        if (directory_number_path(data_dir, in_line.items[i], path, NULL) == 0)
            u->checkpoint_bytes += disk_usage_dir(path, "");
    for (size_t i = 0; i < archived.n; i++)
        if (directory_archived_path(data_dir, archived.items[i], path, NULL) == 0)
            u->archived_bytes += disk_usage_dir(path, "");
    free(in_line.items);
    free(archived.items);
}

/* The number of a device is one machine's, and until it boots again. */
static void name_file_system(const char *data_dir, char ret[static 40])
{
    char boot[9] = "";
    struct stat info;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (f && fscanf(f, "%8[0-9a-f]", boot) == 1 && stat(data_dir, &info) == 0)
        snprintf(ret, 40, "%s-%llx", boot, (unsigned long long)info.st_dev);
    if (f)
        (void)fclose(f);
}

void disk_usage_read(const struct file_ops *files, const char *data_dir, struct disk_usage *ret)
{
    struct statvfs fs;

    *ret = (struct disk_usage){ 0 };
    if (statvfs(data_dir, &fs) == 0) {
        ret->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        ret->size_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
    }
    name_file_system(data_dir, ret->file_system);
    add_checkpoints(files, data_dir, ret);
    add_logs(files, data_dir, ret);
}
