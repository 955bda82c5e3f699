#include "tests/support/bad_disk.h"

#include <errno.h>
#include <string.h>

#include "common/hash.h"

static int bad_sync(void *state, int fd)
{
    struct bad_disk *d = state;
    struct crash_inode *inode = &d->files.inodes[d->files.opens[fd].inode];
    int status = d->files.ops.sync(d->files.ops.state, fd);

    if (status && !d->files.dead && inode->n_bytes > inode->n_synced) {
        memset(inode->bytes + inode->n_synced, 0, inode->n_bytes - inode->n_synced);
        inode->n_synced = inode->n_bytes;
    }
    return status;
}

static int bad_write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    struct bad_disk *d = state;

    if (d->full)
        return -ENOSPC;
    return d->files.ops.write_all(d->files.ops.state, fd, src, n_bytes);
}

/* What is written over counts as not synced, with all behind it. */
static int bad_write_at(void *state, int fd, uint64_t offset, const void *src, size_t n_bytes)
{
    struct bad_disk *d = state;
    struct crash_inode *inode = &d->files.inodes[d->files.opens[fd].inode];

    if (d->full && offset + n_bytes > inode->n_bytes)
        return -ENOSPC;
    if (inode->n_synced > offset)
        inode->n_synced = offset;
    return d->files.ops.write_at(d->files.ops.state, fd, offset, src, n_bytes);
}

#define PASS_1(name, type)                      \
    static int bad_##name(void *state, type a)  \
    {                                           \
        struct bad_disk *d = state;             \
        return d->files.ops.name(&d->files, a); \
    }
#define PASS_2(name, type_a, type_b)                       \
    static int bad_##name(void *state, type_a a, type_b b) \
    {                                                      \
        struct bad_disk *d = state;                        \
        return d->files.ops.name(&d->files, a, b);         \
    }
PASS_2(open_read, const char *, int *)
PASS_2(create, const char *, int *)
PASS_1(close, int)
PASS_2(rename, const char *, const char *)
PASS_1(unlink, const char *)
PASS_1(mkdir, const char *)
PASS_1(rmdir, const char *)
PASS_1(sync_dir, const char *)

static int64_t bad_read(void *state, int fd, void *dst, size_t n_bytes)
{
    struct bad_disk *d = state;

    return d->files.ops.read(&d->files, fd, dst, n_bytes);
}

static int bad_list(void *state, const char *path, int (*each)(void *, const char *), void *arg)
{
    struct bad_disk *d = state;

    return d->files.ops.list(&d->files, path, each, arg);
}

void bad_disk_init(struct bad_disk *d)
{
    crash_files_init(&d->files);
    d->full = false;
    d->ops = (struct file_ops){ .state = d,
                                .open_read = bad_open_read,
                                .create = bad_create,
                                .read = bad_read,
                                .write_all = bad_write_all,
                                .write_at = bad_write_at,
                                .sync = bad_sync,
                                .close = bad_close,
                                .rename = bad_rename,
                                .unlink = bad_unlink,
                                .mkdir = bad_mkdir,
                                .rmdir = bad_rmdir,
                                .sync_dir = bad_sync_dir,
                                .list = bad_list };
}

static void lose_sectors(struct crash_inode *inode, uint64_t seed)
{
    size_t n_more = inode->n_bytes - inode->n_synced;

    if (n_more == 0)
        return;
    n_more = hash_mix2(seed, 1) % (n_more + 1);
    for (size_t i = 0; i < n_more; i++)
        if (hash_mix2(seed, 2 + (inode->n_synced + i) / 512) % 3 == 0)
            inode->bytes[inode->n_synced + i] = 0;
    inode->n_synced += n_more;
}

void bad_disk_power_cut(struct bad_disk *d, uint64_t seed, bool keeps_names)
{
    struct crash_files *c = &d->files;

    for (long i = 0; seed && i < c->n_inodes; i++)
        lose_sectors(&c->inodes[i], hash_mix2(seed, (uint64_t)i));
    for (long i = 0; seed && i < c->n_names; i++)
        if (keeps_names || hash_mix2(seed, 1000 + (uint64_t)i) % 2)
            c->names[i].durable = c->names[i].live;
    crash_files_power_cut(c);
}
