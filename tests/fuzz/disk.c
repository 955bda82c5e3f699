#include "tests/fuzz/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 48u

static void must(int status)
{
    assert(status == 0);
}

static void make_dirs(struct crash_files *disk, const char *dir)
{
    char path[CRASH_PATH_MAX];

    for (const char *at = dir; at; at = strchr(at + 1, '/')) {
        const char *end = strchr(at + 1, '/');

        snprintf(path, sizeof path, "%.*s", end ? (int)(end - dir) : (int)strlen(dir), dir);
        must(disk->ops.mkdir(disk->ops.state, path));
        must(disk->ops.sync_dir(disk->ops.state, path));
    }
}

static void take_name(struct harness_bytes *in, char name[NAME_MAX_BYTES])
{
    static const char known[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-.";
    size_t n = (size_t)harness_number(in, 1) % NAME_MAX_BYTES;

    for (size_t i = 0; i < n; i++) {
        char c = (char)harness_number(in, 1);

        name[i] = c && strchr(known, c) ? c : '_';
    }
    name[n] = '\0';
}

static void write_file(struct crash_files *disk, const char *path, struct harness_bytes *in)
{
    size_t n_bytes;
    uint8_t *bytes = harness_take(in, (size_t)harness_number(in, 4), &n_bytes);
    int fd;

    must(disk->ops.create(disk->ops.state, path, &fd));
    must(disk->ops.write_all(disk->ops.state, fd, bytes, n_bytes));
    must(disk->ops.sync(disk->ops.state, fd));
    must(disk->ops.close(disk->ops.state, fd));
    free(bytes);
}

void disk_fill(struct crash_files *disk, const char *dir, struct harness_bytes *in)
{
    char name[NAME_MAX_BYTES], path[CRASH_PATH_MAX];

    make_dirs(disk, dir);
    for (unsigned i = 0; i < DISK_FILES_MAX && harness_left(in); i++) {
        take_name(in, name);
        if (!name[0] || name[0] == '.')
            name[0] = '_', name[1] = '\0';
        snprintf(path, sizeof path, "%s/%s", dir, name);
        write_file(disk, path, in);
    }
    must(disk->ops.sync_dir(disk->ops.state, dir));
}

void disk_dump(const struct crash_files *disk, const char *dir, struct bytes *out)
{
    size_t n_dir = strlen(dir);

    for (long i = 0; i < disk->n_names; i++) {
        const struct crash_name *name = &disk->names[i];
        const char *last = name->path + n_dir + 1;

        if (name->live < 0 || name->is_dir || strncmp(name->path, dir, n_dir) != 0 ||
            name->path[n_dir] != '/' || strchr(last, '/'))
            continue;
        harness_put_number(out, strlen(last), 1);
        harness_put_text(out, last);
        harness_put_number(out, disk->inodes[name->live].n_bytes, 4);
        harness_put(out, disk->inodes[name->live].bytes, disk->inodes[name->live].n_bytes);
    }
}
