#include "tests/sim/disk.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_INODE UINT32_MAX
#define NO_NAME UINT32_MAX
#define CLOSED UINT32_MAX
#define ROOT 0u /* inode of the directory in which data directories stand */

struct disk_inode {
    uint8_t *bytes; /* owned */
    size_t n_bytes, cap, n_synced;
    bool is_gated;       /* no sync helps any more */
    bool is_dir, stands; /* stands: a directory to which a path leads */
};

struct disk_name {
    uint64_t hash;
    char part[DISK_PART_MAX]; /* of a path */
    uint32_t dir;             /* inode of the directory that it is in */
    uint32_t live, durable;   /* inodes */
    uint32_t next;            /* of its bucket */
};

/* Names lead elsewhere: one, or with a rename two. */
struct disk_change {
    uint32_t dir, n;
    uint32_t names[2], inodes[2];
};

/* --- faults --- */

static bool dies(struct disk *d)
{
    if (!d->dead && d->n_ops++ != d->die_at)
        return false;
    d->n_faults++;
    d->dead = true;
    return true;
}

static int fails(struct disk *d)
{
    if (dies(d))
        return -EIO;
    if (d->full || d->failing) {
        d->n_faults++;
        return d->full ? -ENOSPC : -EIO;
    }
    return 0;
}

/* --- names --- */

static void *grow(void *items, uint32_t *cap, uint32_t n, size_t item_bytes)
{
    if (n < *cap)
        return items;
    *cap = *cap ? 2 * *cap : 64;
    items = realloc(items, *cap * item_bytes);
    assert(items);
    return items;
}

static uint64_t hash_of(uint32_t dir, const char *part, size_t n)
{
    uint64_t h = dir;

    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)part[i]) * UINT64_C(0x100000001b3);
    return hash_mix(h);
}

static uint32_t find_in(const struct disk *d, uint32_t dir, const char *part, size_t n)
{
    uint64_t hash = hash_of(dir, part, n);
    uint32_t i = d->buckets[hash % DISK_N_BUCKETS];

    while (i != NO_NAME && (d->names[i].hash != hash || d->names[i].dir != dir ||
                            strncmp(d->names[i].part, part, n) != 0 || d->names[i].part[n]))
        i = d->names[i].next;
    return i;
}

/* The directory that the path's last part is in; false: it does not stand. */
static bool find(const struct disk *d, const char *path, uint32_t *ret_dir,
                 const char **ret_part)
{
    const char *slash;
    uint32_t name;

    *ret_dir = ROOT;
    for (; (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        name = find_in(d, *ret_dir, path, (size_t)(slash - path));
        if (name == NO_NAME || d->names[name].live == NO_INODE)
            return false;
        *ret_dir = d->names[name].live;
    }
    *ret_part = path;
    return true;
}

static uint32_t find_live(const struct disk *d, const char *path)
{
    const char *part;
    uint32_t dir, name;

    if (!find(d, path, &dir, &part))
        return NO_NAME;
    name = find_in(d, dir, part, strlen(part));
    return name != NO_NAME && d->names[name].live != NO_INODE ? name : NO_NAME;
}

/* -ENOENT without its directory. */
static int name_at(struct disk *d, const char *path, uint32_t *ret)
{
    const char *part;
    uint32_t dir, *bucket;

    if (!find(d, path, &dir, &part))
        return -ENOENT;
    *ret = find_in(d, dir, part, strlen(part));
    if (*ret != NO_NAME)
        return 0;
    assert(strlen(part) < DISK_PART_MAX);
    d->names = grow(d->names, &d->cap_names, d->n_names, sizeof *d->names);
    *ret = d->n_names++;
    d->names[*ret] = (struct disk_name){ .hash = hash_of(dir, part, strlen(part)),
                                         .dir = dir,
                                         .live = NO_INODE,
                                         .durable = NO_INODE };
    memcpy(d->names[*ret].part, part, strlen(part) + 1);
    bucket = &d->buckets[d->names[*ret].hash % DISK_N_BUCKETS];
    d->names[*ret].next = *bucket;
    *bucket = *ret;
    return 0;
}

static void change(struct disk *d, uint32_t name, uint32_t inode, struct disk_change *c)
{
    d->names[name].live = inode;
    c->dir = d->names[name].dir;
    c->names[c->n] = name;
    c->inodes[c->n++] = inode;
}

static void note(struct disk *d, const struct disk_change *c)
{
    d->changes = grow(d->changes, &d->cap_changes, d->n_changes, sizeof *d->changes);
    d->changes[d->n_changes++] = *c;
}

static void make_durable(struct disk *d, const struct disk_change *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        d->names[c->names[i]].durable = c->inodes[i];
}

/* --- operations --- */

static uint32_t new_inode(struct disk *d)
{
    d->inodes = grow(d->inodes, &d->cap_inodes, d->n_inodes, sizeof *d->inodes);
    d->inodes[d->n_inodes] = (struct disk_inode){ 0 };
    return d->n_inodes++;
}

static int new_open(struct disk *d, uint32_t inode)
{
    uint32_t cap = d->cap_opens;

    d->opens = grow(d->opens, &cap, d->n_opens, sizeof *d->opens);
    d->offsets = grow(d->offsets, &d->cap_opens, d->n_opens, sizeof *d->offsets);
    d->opens[d->n_opens] = inode;
    d->offsets[d->n_opens] = 0;
    return (int)d->n_opens++;
}

/* An operation on what has to be there. */
static int resolve(struct disk *d, const char *path, uint32_t *ret_name)
{
    if (dies(d))
        return -EIO;
    *ret_name = find_live(d, path);
    return *ret_name == NO_NAME ? -ENOENT : 0;
}

/* An operation that takes room. */
static int make_name(struct disk *d, const char *path, uint32_t *ret_name)
{
    int status = fails(d);

    return status ? status : name_at(d, path, ret_name);
}

static void drop(struct disk *d, uint32_t name)
{
    struct disk_change c = { 0 };

    change(d, name, NO_INODE, &c);
    note(d, &c);
}

static int disk_open_read(void *state, const char *path, int *ret_fd)
{
    struct disk *d = state;
    uint32_t name;
    int status = resolve(d, path, &name);

    if (!status)
        *ret_fd = new_open(d, d->names[name].live);
    return status;
}

static int disk_create(void *state, const char *path, int *ret_fd)
{
    struct disk *d = state;
    struct disk_change c = { 0 };
    uint32_t name;
    int status = make_name(d, path, &name);

    if (status)
        return status;
    change(d, name, new_inode(d), &c);
    note(d, &c);
    *ret_fd = new_open(d, d->names[name].live);
    return 0;
}

static int64_t disk_read(void *state, int fd, void *dst, size_t n_bytes)
{
    struct disk *d = state;
    const struct disk_inode *inode = &d->inodes[d->opens[fd]];
    size_t left = inode->n_bytes - d->offsets[fd];

    if (dies(d))
        return -EIO;
    if (n_bytes > left)
        n_bytes = left;
    if (n_bytes > 1000 && dice_once_in(&d->dice, 8))
        n_bytes -= 999; /* short reads are usual */
    if (n_bytes)
        memcpy(dst, inode->bytes + d->offsets[fd], n_bytes);
    d->offsets[fd] += n_bytes;
    return (int64_t)n_bytes;
}

size_t disk_size(const struct disk *d, int fd)
{
    return d->inodes[d->opens[fd]].n_bytes;
}

int64_t disk_read_at(struct disk *d, int fd, uint64_t offset, void *dst, size_t n_bytes)
{
    const size_t end = disk_size(d, fd);
    const size_t left = offset < end ? end - (size_t)offset : 0;

    if (dies(d))
        return -EIO;
    n_bytes = n_bytes < left ? n_bytes : left;
    if (n_bytes)
        memcpy(dst, d->inodes[d->opens[fd]].bytes + offset, n_bytes);
    return (int64_t)n_bytes;
}

static int disk_write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    struct disk *d = state;
    struct disk_inode *inode = &d->inodes[d->opens[fd]];
    bool was_dead = d->dead;
    int status = fails(d);

    if (status)
        n_bytes = was_dead ? 0 : (size_t)dice_roll(&d->dice, n_bytes + 1);
    if (inode->n_bytes + n_bytes > inode->cap) {
        inode->cap = 2 * (inode->n_bytes + n_bytes);
        inode->bytes = realloc(inode->bytes, inode->cap);
        assert(inode->bytes);
    }
    if (n_bytes)
        memcpy(inode->bytes + inode->n_bytes, src, n_bytes);
    inode->n_bytes += n_bytes;
    return status;
}

/* In place: from there on nothing of the file is safe any more, though it was synced. */
static int disk_write_at(void *state, int fd, uint64_t offset, const void *src, size_t n_bytes)
{
    struct disk *d = state;
    struct disk_inode *inode = &d->inodes[d->opens[fd]];
    size_t n_before = inode->n_bytes;
    int status;

    if (offset >= n_before) {
        uint8_t *zeros = calloc(offset - n_before + n_bytes, 1);

        assert(zeros);
        memcpy(zeros + (offset - n_before), src, n_bytes);
        status = disk_write_all(state, fd, zeros, offset - n_before + n_bytes);
        free(zeros);
        return status;
    }
    if (offset + n_bytes > n_before) { /* an earlier write ended in the middle */
        const size_t n_inside = n_before - (size_t)offset;

        status = disk_write_at(state, fd, offset, src, n_inside);
        return status ? status
                      : disk_write_all(state, fd, (const uint8_t *)src + n_inside,
                                       n_bytes - n_inside);
    }
    status = dies(d) ? -EIO : 0;
    if (status)
        n_bytes = (size_t)dice_roll(&d->dice, n_bytes + 1);
    memcpy(inode->bytes + offset, src, n_bytes);
    if (inode->n_synced > offset)
        inode->n_synced = offset;
    return status;
}

static int disk_sync(void *state, int fd)
{
    struct disk *d = state;
    struct disk_inode *inode = &d->inodes[d->opens[fd]];

    if (dies(d))
        return -EIO;
    if (d->sync_fails || d->failing) {
        d->n_faults++;
        if (inode->n_bytes > inode->n_synced)
            inode->is_gated = d->is_gated = true;
        return -EIO;
    }
    if (!inode->is_gated)
        inode->n_synced = inode->n_bytes;
    return 0;
}

static int disk_close(void *state, int fd)
{
    struct disk *d = state;

    assert(d->opens[fd] != CLOSED);
    d->opens[fd] = CLOSED;
    return dies(d) ? -EIO : 0;
}

static int disk_rename(void *state, const char *from, const char *to)
{
    struct disk *d = state;
    struct disk_change c = { 0 };
    uint32_t old, new;
    int status = resolve(d, from, &old);

    if (!status)
        status = name_at(d, to, &new);
    if (status)
        return status;
    assert(d->names[old].dir == d->names[new].dir);
    change(d, new, d->names[old].live, &c);
    change(d, old, NO_INODE, &c);
    note(d, &c);
    return 0;
}

static int disk_unlink(void *state, const char *path)
{
    struct disk *d = state;
    uint32_t name;
    int status = resolve(d, path, &name);

    if (!status)
        drop(d, name);
    return status;
}

static int disk_mkdir(void *state, const char *path)
{
    struct disk *d = state;
    struct disk_change c = { 0 };
    uint32_t name, inode;
    int status = make_name(d, path, &name);

    if (status || d->names[name].live != NO_INODE)
        return status;
    inode = new_inode(d);
    d->inodes[inode].is_dir = true;
    change(d, name, inode, &c);
    if (c.dir == ROOT)
        d->names[name].durable = inode; /* what stands at the top was there before */
    else
        note(d, &c);
    return 0;
}

static int disk_rmdir(void *state, const char *path)
{
    struct disk *d = state;
    uint32_t name;
    int status = resolve(d, path, &name);

    if (status)
        return status;
    for (uint32_t i = 0; i < d->n_names; i++)
        if (d->names[i].dir == d->names[name].live && d->names[i].live != NO_INODE)
            return -ENOTEMPTY;
    drop(d, name);
    return 0;
}

static int disk_sync_dir(void *state, const char *path)
{
    struct disk *d = state;
    uint32_t dir, n = 0;
    int status = resolve(d, path, &dir);

    if (status)
        return status;
    dir = d->names[dir].live;
    if (d->sync_fails || d->failing) {
        d->n_faults++;
        return -EIO;
    }
    for (uint32_t i = 0; i < d->n_changes; i++)
        if (d->changes[i].dir == dir)
            make_durable(d, &d->changes[i]);
        else
            d->changes[n++] = d->changes[i];
    d->n_changes = n;
    return 0;
}

static int disk_list(void *state, const char *path, int (*each)(void *, const char *),
                     void *arg)
{
    struct disk *d = state;
    char part[DISK_PART_MAX];
    uint32_t dir;
    int status = resolve(d, path, &dir);

    if (status)
        return status;
    dir = d->names[dir].live;
    for (uint32_t i = 0; i < d->n_names && !status; i++)
        if (d->names[i].live != NO_INODE && d->names[i].dir == dir) {
            memcpy(part, d->names[i].part,
                   sizeof part); /* names may move: each() may make one */
            status = each(arg, part);
        }
    return status;
}

/* --- life --- */

void disk_init(struct disk *d, struct dice dice)
{
    *d = (struct disk){ .dice = dice,
                        .die_at = DISK_NEVER,
                        .ops = { .state = d,
                                 .open_read = disk_open_read,
                                 .create = disk_create,
                                 .read = disk_read,
                                 .write_all = disk_write_all,
                                 .write_at = disk_write_at,
                                 .sync = disk_sync,
                                 .close = disk_close,
                                 .rename = disk_rename,
                                 .unlink = disk_unlink,
                                 .mkdir = disk_mkdir,
                                 .rmdir = disk_rmdir,
                                 .sync_dir = disk_sync_dir,
                                 .list = disk_list } };
    memset(d->buckets, 0xff, sizeof d->buckets); /* NO_NAME */
    (void)new_inode(d);
    d->inodes[ROOT].is_dir = d->inodes[ROOT].stands = true;
}

void disk_deinit(struct disk *d)
{
    for (uint32_t i = 0; i < d->n_inodes; i++)
        free(d->inodes[i].bytes);
    free(d->inodes);
    free(d->names);
    free(d->changes);
    free(d->opens);
    free(d->offsets);
}

void disk_kill(struct disk *d)
{
    if (d->dead)
        d->die_at = DISK_NEVER;
    d->dead = false;
    d->n_opens = 0;
}

static void tear(struct disk *d, struct disk_inode *inode)
{
    size_t n = inode->n_bytes - inode->n_synced, kept = 0;
    uint64_t how = inode->is_gated ? 0 : dice_roll(&d->dice, 4);

    inode->is_gated = false;
    if (n && how)
        kept = how == 1 ? n : (size_t)dice_roll(&d->dice, n + 1);
    if (how == 3 && kept) { /* blocks that were allotted and not written */
        size_t from = (size_t)dice_roll(&d->dice, kept);

        memset(inode->bytes + inode->n_synced + from, 0,
               (size_t)dice_roll(&d->dice, kept - from + 1));
    }
    inode->n_synced = inode->n_bytes = inode->n_synced + kept;
}

/* What stands in a directory to which no path leads is gone with it. */
static void persist_dirs(struct disk *d)
{
    bool goes_on = true;

    for (uint32_t i = 1; i < d->n_inodes; i++)
        d->inodes[i].stands = false;
    while (goes_on) {
        goes_on = false;
        for (uint32_t i = 0; i < d->n_names; i++) {
            struct disk_name *name = &d->names[i];

            if (name->durable == NO_INODE || !d->inodes[name->dir].stands ||
                !d->inodes[name->durable].is_dir || d->inodes[name->durable].stands)
                continue;
            d->inodes[name->durable].stands = goes_on = true;
        }
    }
}

/* Of each directory's changes a beginning happened. */
static void persist_names(struct disk *d)
{
    bool *stopped = calloc(d->n_inodes, sizeof *stopped);

    assert(stopped);
    for (uint32_t i = 0; i < d->n_changes; i++) {
        const struct disk_change *c = &d->changes[i];

        stopped[c->dir] = stopped[c->dir] || dice_once_in(&d->dice, 3);
        if (!stopped[c->dir])
            make_durable(d, c);
    }
    free(stopped);
    d->n_changes = 0;
    persist_dirs(d);
    for (uint32_t i = 0; i < d->n_names; i++) {
        struct disk_name *name = &d->names[i];

        if (!d->inodes[name->dir].stands)
            name->durable = NO_INODE;
        name->live = name->durable;
    }
}

void disk_power_cut(struct disk *d)
{
    for (uint32_t i = 1; i < d->n_inodes; i++)
        if (!d->inodes[i].is_dir)
            tear(d, &d->inodes[i]);
    persist_names(d);
    d->is_gated = false;
    disk_kill(d);
}

void disk_heal(struct disk *d)
{
    d->full = d->failing = d->sync_fails = false;
    d->die_at = DISK_NEVER;
}

static void *copy(const void *src, size_t n_bytes)
{
    void *dst = malloc(n_bytes + 1);

    assert(dst);
    if (n_bytes)
        memcpy(dst, src, n_bytes);
    return dst;
}

void disk_clone(const struct disk *d, struct dice dice, struct disk *ret)
{
    struct disk c;

    disk_init(&c, dice);
    free(c.inodes);
    c.inodes = copy(d->inodes, d->n_inodes * sizeof *d->inodes);
    c.n_inodes = c.cap_inodes = d->n_inodes;
    for (uint32_t i = 0; i < c.n_inodes; i++) {
        c.inodes[i].bytes =
            c.inodes[i].n_bytes ? copy(c.inodes[i].bytes, c.inodes[i].n_bytes) : NULL;
        c.inodes[i].cap = c.inodes[i].n_bytes;
    }
    c.names = copy(d->names, d->n_names * sizeof *d->names);
    c.n_names = c.cap_names = d->n_names;
    memcpy(c.buckets, d->buckets, sizeof c.buckets);
    c.changes = copy(d->changes, d->n_changes * sizeof *d->changes);
    c.n_changes = c.cap_changes = d->n_changes;
    c.is_gated = d->is_gated;
    *ret = c;
    ret->ops.state = ret;
}
