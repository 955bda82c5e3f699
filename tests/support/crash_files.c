#include "tests/support/crash_files.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True: this operation fails. */
static bool strikes(struct crash_files *c)
{
    if (c->dead)
        return true;
    if (c->n_ops++ != c->fail_at)
        return false;
    c->dead = c->dies;
    return true;
}

/* With space for one more; it doubles, as ASan copies all at each step. */
static void *grown(void *items, long n, size_t item_bytes)
{
    void *more = n & (n - 1) ? items : realloc(items, (size_t)(n ? 2 * n : 1) * item_bytes);

    assert(more);
    return more;
}

static struct crash_name *find(const struct crash_files *c, const char *path)
{
    for (long i = 0; i < c->n_names; i++)
        if (strcmp(c->names[i].path, path) == 0)
            return &c->names[i];
    return NULL;
}

static bool is_child(const struct crash_name *name, const char *dir)
{
    size_t n = strlen(dir);

    return strncmp(name->path, dir, n) == 0 && name->path[n] == '/' &&
           !strchr(name->path + n + 1, '/');
}

static struct crash_name *parent_of(const struct crash_files *c, const char *path)
{
    char dir[CRASH_PATH_MAX];
    const char *slash = strrchr(path, '/');

    if (!slash)
        return NULL;
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    return find(c, dir);
}

/* The name, made if it has to be. -ENOENT without its directory. */
static int name_at(struct crash_files *c, const char *path, bool is_dir,
                   struct crash_name **ret)
{
    struct crash_name *name, *parent = parent_of(c, path);

    assert(strlen(path) < CRASH_PATH_MAX);
    if (strchr(path, '/') && (!parent || parent->live < 0))
        return -ENOENT;
    name = find(c, path);
    if (!name) {
        c->names = grown(c->names, c->n_names, sizeof *c->names);
        name = &c->names[c->n_names++];
        *name = (struct crash_name){ .live = -1, .durable = -1 };
        snprintf(name->path, sizeof name->path, "%s", path);
    }
    name->is_dir = is_dir;
    *ret = name;
    return 0;
}

static long new_inode(struct crash_files *c)
{
    c->inodes = grown(c->inodes, c->n_inodes, sizeof *c->inodes);
    c->inodes[c->n_inodes] = (struct crash_inode){ 0 };
    return c->n_inodes++;
}

static int new_open(struct crash_files *c, long inode)
{
    c->opens = grown(c->opens, c->n_opens, sizeof *c->opens);
    c->opens[c->n_opens] = (struct crash_open){ .inode = inode };
    return (int)c->n_opens++;
}

/* An operation on what has to be there. */
static int resolve(struct crash_files *c, const char *path, struct crash_name **ret)
{
    if (strikes(c))
        return -EIO;
    *ret = find(c, path);
    return *ret && (*ret)->live >= 0 ? 0 : -ENOENT;
}

/* An operation on what is there, or is made. */
static int make_name(struct crash_files *c, const char *path, bool is_dir,
                     struct crash_name **ret)
{
    return strikes(c) ? -EIO : name_at(c, path, is_dir, ret);
}

static int crash_open_read(void *state, const char *path, int *ret_fd)
{
    struct crash_files *c = state;
    struct crash_name *name;
    int status = resolve(c, path, &name);

    if (!status)
        *ret_fd = new_open(c, name->live);
    return status;
}

static int crash_create(void *state, const char *path, int *ret_fd)
{
    struct crash_files *c = state;
    struct crash_name *name;
    int status = make_name(c, path, false, &name);

    if (status)
        return status;
    name->live = new_inode(c);
    *ret_fd = new_open(c, name->live);
    return 0;
}

static int64_t crash_read(void *state, int fd, void *dst, size_t n_bytes)
{
    struct crash_files *c = state;
    struct crash_open *open = &c->opens[fd];
    struct crash_inode *inode = &c->inodes[open->inode];

    if (strikes(c))
        return -EIO;
    if (n_bytes > 700)
        n_bytes = 700; /* short reads are usual here, so that nobody forgets them */
    if (n_bytes > inode->n_bytes - open->offset)
        n_bytes = inode->n_bytes - open->offset;
    if (n_bytes)
        memcpy(dst, inode->bytes + open->offset, n_bytes);
    open->offset += n_bytes;
    return (int64_t)n_bytes;
}

/* What was synced of a file that is written over is as it was: nobody here asks for more. */
static int crash_write_at(void *state, int fd, uint64_t offset, const void *src, size_t n_bytes)
{
    struct crash_files *c = state;
    struct crash_inode *inode = &c->inodes[c->opens[fd].inode];
    bool fails = strikes(c);

    if (fails)
        n_bytes = c->torn && c->n_ops == c->fail_at + 1 ? n_bytes / 2 : 0;
    if (n_bytes && offset + n_bytes > inode->n_bytes) {
        inode->bytes = realloc(inode->bytes, offset + n_bytes);
        assert(inode->bytes);
        if (offset > inode->n_bytes)
            memset(inode->bytes + inode->n_bytes, 0, offset - inode->n_bytes);
        inode->n_bytes = offset + n_bytes;
    }
    if (n_bytes)
        memcpy(inode->bytes + offset, src, n_bytes);
    return fails ? -EIO : 0;
}

static int crash_write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    const struct crash_files *c = state;

    return crash_write_at(state, fd, c->inodes[c->opens[fd].inode].n_bytes, src, n_bytes);
}

static int crash_sync(void *state, int fd)
{
    struct crash_files *c = state;
    struct crash_inode *inode = &c->inodes[c->opens[fd].inode];

    if (strikes(c))
        return -EIO;
    inode->n_synced = inode->n_bytes;
    return 0;
}

static int crash_close(void *state, int fd)
{
    struct crash_files *c = state;

    assert(c->opens[fd].inode >= 0);
    c->opens[fd].inode = -1;
    return strikes(c) ? -EIO : 0;
}

static int rename_one(struct crash_files *c, const char *from, const char *to)
{
    struct crash_name *old = find(c, from), *new;
    int status = name_at(c, to, old->is_dir, &new);

    if (status)
        return status;
    old = find(c, from); /* name_at() may have moved the names */
    new->live = old->live;
    old->live = -1;
    return 0;
}

/* The files of a directory that has another name now. They are as durable as before, as far as its new name is;
 * below the old one they stay so, in case that it comes back. */
static void rename_files(struct crash_files *c, const char *from, const char *to)
{
    long n_names = c->n_names;

    for (long i = 0; i < n_names; i++) {
        char old_path[CRASH_PATH_MAX], new_path[CRASH_PATH_MAX];
        long durable = c->names[i].durable;
        int status;

        if (c->names[i].live < 0 || !is_child(&c->names[i], from))
            continue;
        snprintf(old_path, sizeof old_path, "%s", c->names[i].path);
        assert(strlen(to) + strlen(old_path + strlen(from)) < sizeof new_path);
        snprintf(new_path, sizeof new_path, "%.80s%.79s", to, old_path + strlen(from));
        status = rename_one(c, old_path, new_path);
        assert(status == 0); /* its directory is there */
        find(c, new_path)->durable = durable;
    }
}

static int crash_rename(void *state, const char *from, const char *to)
{
    struct crash_files *c = state;
    struct crash_name *old;
    bool is_dir;
    int status = resolve(c, from, &old);

    if (status)
        return status;
    is_dir = old->is_dir;
    status = rename_one(c, from, to);
    if (!status && is_dir)
        rename_files(c, from, to);
    return status;
}

static int crash_unlink(void *state, const char *path)
{
    struct crash_files *c = state;
    struct crash_name *name;
    int status = resolve(c, path, &name);

    if (!status)
        name->live = -1;
    return status;
}

static int crash_mkdir(void *state, const char *path)
{
    struct crash_files *c = state;
    struct crash_name *name;
    int status = make_name(c, path, true, &name);

    if (status)
        return status;
    name->live = 0;
    if (!strchr(path, '/'))
        name->durable = 0; /* what stands at the top was there before */
    return 0;
}

static int crash_rmdir(void *state, const char *path)
{
    struct crash_files *c = state;
    struct crash_name *name;
    int status = resolve(c, path, &name);

    if (status)
        return status;
    for (long i = 0; i < c->n_names; i++)
        if (c->names[i].live >= 0 && is_child(&c->names[i], path))
            return -ENOTEMPTY;
    name->live = -1;
    return 0;
}

static int crash_sync_dir(void *state, const char *path)
{
    struct crash_files *c = state;
    struct crash_name *name;
    int status = resolve(c, path, &name);

    if (status)
        return status;
    for (long i = 0; i < c->n_names; i++)
        if (is_child(&c->names[i], path))
            c->names[i].durable = c->names[i].live;
    return 0;
}

static int crash_list(void *state, const char *path, int (*each)(void *, const char *),
                      void *arg)
{
    struct crash_files *c = state;
    struct crash_name *name;
    int status = resolve(c, path, &name);

    if (status)
        return status;
    for (long i = 0; i < c->n_names && !status; i++)
        if (c->names[i].live >= 0 && is_child(&c->names[i], path))
            status = each(arg, c->names[i].path + strlen(path) + 1);
    return status;
}

void crash_files_init(struct crash_files *c)
{
    *c = (struct crash_files){ .fail_at = -1,
                               .ops = { .state = c,
                                        .open_read = crash_open_read,
                                        .create = crash_create,
                                        .read = crash_read,
                                        .write_all = crash_write_all,
                                        .write_at = crash_write_at,
                                        .sync = crash_sync,
                                        .close = crash_close,
                                        .rename = crash_rename,
                                        .unlink = crash_unlink,
                                        .mkdir = crash_mkdir,
                                        .rmdir = crash_rmdir,
                                        .sync_dir = crash_sync_dir,
                                        .list = crash_list } };
}

void crash_files_deinit(struct crash_files *c)
{
    for (long i = 0; i < c->n_inodes; i++)
        free(c->inodes[i].bytes);
    free(c->inodes);
    free(c->names);
    free(c->opens);
}

void crash_files_heal(struct crash_files *c)
{
    c->n_ops = 0;
    c->fail_at = -1;
    c->torn = c->dies = c->dead = false;
}

void crash_files_power_cut(struct crash_files *c)
{
    for (long i = 0; i < c->n_names; i++) {
        /* Stands before its children. */
        struct crash_name *parent = parent_of(c, c->names[i].path);

        c->names[i].live = parent && parent->live < 0 ? -1 : c->names[i].durable;
    }
    for (long i = 0; i < c->n_inodes; i++)
        c->inodes[i].n_bytes = c->inodes[i].n_synced;
    for (long i = 0; i < c->n_opens; i++)
        c->opens[i].inode = -1;
    crash_files_heal(c);
}

struct crash_inode *crash_files_at(struct crash_files *c, const char *path)
{
    struct crash_name *name = find(c, path);

    return name && !name->is_dir && name->live >= 0 ? &c->inodes[name->live] : NULL;
}

bool crash_files_is_there(const struct crash_files *c, const char *path)
{
    const struct crash_name *name = find(c, path);

    return name && name->live >= 0;
}

long crash_files_n_open(const struct crash_files *c)
{
    long n = 0;

    for (long i = 0; i < c->n_opens; i++)
        n += c->opens[i].inode >= 0;
    return n;
}
