#include "worker/atomic_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(const char *path, int status, struct err *err)
{
    return err_set(err, status, "--output: %.300s cannot be written: %s", path,
                   strerror(-status));
}

static bool is_below(const char *path, const char *dir)
{
    return strncmp(path, dir, strlen(dir)) == 0;
}

/* Whether a new file can take the name. /dev/stdout may lead to a plain file, but to one that others have open. */
static bool is_replaceable(const char *path)
{
    struct stat st;

    if (is_below(path, "/dev/") || is_below(path, "/proc/"))
        return false;
    if (stat(path, &st) == 0)
        return S_ISREG(st.st_mode);
    return errno == ENOENT && lstat(path, &st) != 0; /* not a link to nowhere */
}

/* Where the new file is to stand: in place of what `path` leads to, which must be ours to write. */
static int find_place(const char *path, struct atomic_file *o, struct err *err)
{
    if (access(path, F_OK) == 0) {
        if (access(path, W_OK) != 0 || !realpath(path, o->path))
            return refuse(path, -errno, err);
    } else {
        snprintf(o->path, sizeof o->path, "%s", path);
    }
    snprintf(o->part, sizeof o->part, "%s.part", o->path);
    return 0;
}

/* Who may read the file stays as it was; where that cannot be had, it is as of any new file. */
static void keep_mode(const struct atomic_file *o)
{
    struct stat st;

    if (stat(o->path, &st) == 0)
        (void)!fchmod(fileno(o->stream), st.st_mode & 07777);
}

int atomic_file_open(const char *path, struct atomic_file *ret, struct err *err)
{
    const char *opened = path;
    int status;

    *ret = (struct atomic_file){ .stream = stdout };
    if (strcmp(path, "-") == 0)
        return 0;
    if (is_replaceable(path)) {
        status = find_place(path, ret, err);
        if (status)
            return status;
        opened = ret->part;
    }
    ret->stream = fopen(opened, "w");
    if (!ret->stream)
        return refuse(opened, -errno, err);
    if (ret->part[0])
        keep_mode(ret);
    else
        snprintf(ret->path, sizeof ret->path, "%s", path);
    return 0;
}

/* To the disk before it takes the name: a power cut must not leave an empty file in place of the old one. */
static int finish(struct atomic_file *o)
{
    if (fflush(o->stream) != 0)
        return -errno;
    return o->part[0] && fsync(fileno(o->stream)) != 0 ? -errno : 0;
}

int atomic_file_close(struct atomic_file *o, int status, struct err *err)
{
    int late = status ? 0 : finish(o);

    if (o->stream != stdout && fclose(o->stream) != 0 && !late)
        late = -errno;
    if (!status && !late && o->part[0] && rename(o->part, o->path) != 0)
        late = -errno;
    if ((status || late) && o->part[0])
        (void)unlink(o->part);
    if (!status && late)
        status =
            o->stream == stdout
                ? err_set(err, late, "the predictions cannot be written: %s", strerror(-late))
                : refuse(o->path, late, err);
    o->stream = NULL;
    return status;
}

int atomic_file_try(const char *path, struct err *err)
{
    struct atomic_file file;
    struct err ignored;
    int status;

    if (strcmp(path, "-") == 0 || !is_replaceable(path))
        return 0;
    status = atomic_file_open(path, &file, err);
    if (!status)
        (void)!atomic_file_close(&file, -ECANCELED, &ignored); /* the part is removed */
    return status;
}

int atomic_file_write(const char *path, const char *text, size_t n_bytes, struct err *err)
{
    struct atomic_file file;
    int status = atomic_file_open(path, &file, err);

    if (status)
        return status;
    return atomic_file_close(
        &file, fwrite(text, 1, n_bytes, file.stream) == n_bytes ? 0 : -errno, err);
}
