#include "server/standby_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory.h"
#include "server/checkpoint/checkpoint.h"
#include "server/recovery/timeline.h"

void standby_files_close(const struct file_ops *files, struct standby_files *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        (void)files->close(files->state, f->items[i].fd);
    free(f->items);
    *f = (struct standby_files){ 0 };
}

/* -ENOENT: there is no such file. */
static int add(const struct file_ops *files, const char *data_dir, const char *name,
               struct standby_files *ret, struct err *err)
{
    struct standby_file *items, *item;
    char path[CHECKPOINT_FILE_PATH_MAX + MESSAGE_FILE_NAME_MAX];
    struct stat facts;
    int status;

    if (ret->n == STANDBY_FILES_MAX)
        return err_set(err, -EMFILE, "the restore point has more than %u files",
                       STANDBY_FILES_MAX);
    items = memory_try_realloc(ret->items, (ret->n + 1) * sizeof *items);
    if (!items)
        return err_set(err, -ENOMEM, "no memory for a list of files");
    ret->items = items;
    item = &items[ret->n];
    snprintf(path, sizeof path, "%s/%s", data_dir, name);
    status = files->open_read(files->state, path, &item->fd);
    if (status)
        return err_set(err, status, "cannot open: %s: %s", status_text(status), path);
    ret->n++;
    if (fstat(item->fd, &facts))
        return err_set(err, -errno, "cannot read the size of %s: %s", path,
                       status_text(-errno));
    item->n_bytes = (uint64_t)facts.st_size;
    snprintf(item->name, sizeof item->name, "%s", name);
    return 0;
}

static int add_shards_files(const struct file_ops *files, const char *data_dir,
                            const struct manifest *m, struct standby_files *ret,
                            struct err *err)
{
    char name[MESSAGE_FILE_NAME_MAX], file[MANIFEST_NAME_MAX];
    int status = 0;

    for (uint32_t i = 0; i < m->n_files && !status; i++) {
        manifest_file_name(i, file);
        snprintf(name, sizeof name, "checkpoints/%020" PRIu64 "/%.60s", m->number, file);
        status = add(files, data_dir, name, ret, err);
    }
    return status;
}

static int add_restore_point(const struct file_ops *files, const char *data_dir,
                             const struct checkpoint *c, struct standby_files *ret,
                             struct err *err)
{
    char name[MESSAGE_FILE_NAME_MAX];
    int status = 0;

    for (uint32_t i = c->n_links; i > 0 && !status; i--)
        status = add_shards_files(files, data_dir, &c->links[i - 1], ret, err);
    for (uint32_t i = c->n_links; i > 0 && !status; i--) {
        snprintf(name, sizeof name, "checkpoints/%020" PRIu64 "/MANIFEST",
                 c->links[i - 1].number);
        status = add(files, data_dir, name, ret, err);
    }
    return status;
}

/* A checkpoint may be removed between its finding and its opening: then a newer one is there. */
#define TRIES_MAX 3u

static int open_newest(const struct file_ops *files, const char *data_dir, uint64_t timeline,
                       uint32_t n_shards, struct standby_files *ret, uint64_t *ret_firsts,
                       struct err *err)
{
    struct checkpoint c;
    int status = checkpoint_find(files, data_dir, 0, &c, NULL, NULL, err);

    if (status == PS_ENOCHECKPOINT && !timeline)
        return 0;
    if (status)
        return status;
    if (c.links[0].map_id != timeline || c.links[0].n_files != n_shards)
        status = timeline ? err_set(err, PS_ENOCHECKPOINT,
                                    "no checkpoint of log epoch %" PRIu64 " is whole", timeline)
                          : 0;
    else
        status = add_restore_point(files, data_dir, &c, ret, err);
    for (uint32_t i = 0; i < n_shards && ret->n && !status; i++)
        ret_firsts[i] = c.links[0].files[i].first;
    checkpoint_close(&c);
    return status;
}

int standby_files_open(const struct file_ops *files, const char *data_dir, uint64_t timeline,
                       uint32_t n_shards, struct standby_files *ret, uint64_t *ret_firsts,
                       struct err *err)
{
    char name[MESSAGE_FILE_NAME_MAX];
    int status = -ENOENT;

    *ret = (struct standby_files){ 0 };
    for (uint32_t i = 0; i < TRIES_MAX && status == -ENOENT; i++) {
        standby_files_close(files, ret);
        memset(ret_firsts, 0, n_shards * sizeof *ret_firsts);
        snprintf(name, sizeof name, "log/%020" PRIu64 "/BEGINNING", timeline);
        status = timeline ? add(files, data_dir, name, ret, err) : 0;
        if (!status)
            status = open_newest(files, data_dir, timeline, n_shards, ret, ret_firsts, err);
    }
    if (status)
        standby_files_close(files, ret);
    return status;
}

int standby_files_list(const struct standby_files *f, struct bytes *ret)
{
    for (uint32_t i = 0; i < f->n; i++) {
        char *line = (char *)bytes_reserve(ret, MESSAGE_FILE_NAME_MAX + 24);

        if (!line)
            return -ENOMEM;
        bytes_commit(ret, (size_t)snprintf(line, MESSAGE_FILE_NAME_MAX + 24, "%" PRIu64 " %s\n",
                                           f->items[i].n_bytes, f->items[i].name));
    }
    return 0;
}

const struct standby_file *standby_files_find(const struct standby_files *f, const char *name)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (strcmp(f->items[i].name, name) == 0)
            return &f->items[i];
    return NULL;
}

int standby_files_read(const struct standby_file *file, uint64_t offset, uint32_t max_bytes,
                       struct bytes *ret)
{
    const uint64_t left = offset < file->n_bytes ? file->n_bytes - offset : 0;
    const size_t n_bytes = left < max_bytes ? (size_t)left : max_bytes;
    uint8_t *space = n_bytes ? bytes_reserve(ret, n_bytes) : NULL;
    size_t n = 0;

    if (!n_bytes)
        return 0;
    if (!space)
        return -ENOMEM;
    while (n < n_bytes) {
        const ssize_t part = pread(file->fd, space + n, n_bytes - n, (off_t)(offset + n));

        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return part < 0 ? -errno : -EIO;
        n += (size_t)part;
    }
    bytes_commit(ret, n_bytes);
    return 0;
}

int standby_files_has_log(const struct file_ops *files, const char *data_dir, uint64_t timeline,
                          uint32_t shard_index, uint64_t first, uint64_t lost_through,
                          bool *ret, struct err *err)
{
    struct wal_segments segments = { 0 };
    char dir[WAL_PATH_MAX];
    int status = timeline_log_dir(data_dir, timeline, shard_index, dir, err);

    if (!status)
        status = wal_segment_list(files, dir, &segments, err);
    *ret = !status && segments.n && segments.firsts[0] <= first && first > lost_through;
    free(segments.firsts);
    return status;
}
