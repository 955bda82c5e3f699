#include "server/wal/wal_segment.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/memory.h"

#define FORMAT 1u
#define NAME_DIGITS 20u
#define NAME_END ".psl"
#define UNREAD ".unread"

static const char magic[8] = "PSDLOG\n";

void wal_segment_encode(uint8_t dst[static WAL_SEGMENT_HEADER_BYTES],
                        struct wal_segment *header)
{
    const struct wal_identity *identity = &header->identity;
    const uint32_t words[] = { FORMAT,          header->flags,      identity->node,
                               identity->shard, identity->n_shards, 0 };
    const uint64_t numbers[] = { identity->map_id, header->first, header->durable,
                                 header->version, header->unix_ms };

    memset(dst, 0, WAL_SEGMENT_HEADER_BYTES);
    memcpy(dst, magic, sizeof magic);
    memcpy(dst + 8, words, sizeof words);
    memcpy(dst + 32, numbers, sizeof numbers);
    header->crc = crc32c_extend(0, dst, 76);
    memcpy(dst + 76, &header->crc, 4);
}

void wal_segment_identity(const uint8_t src[static WAL_SEGMENT_HEADER_BYTES],
                          struct wal_identity *ret)
{
    memcpy(&ret->node, src + 16, 4);
    memcpy(&ret->shard, src + 20, 4);
    memcpy(&ret->n_shards, src + 24, 4);
    memcpy(&ret->map_id, src + 32, 8);
}

void wal_segment_set_identity(uint8_t dst[static WAL_SEGMENT_HEADER_BYTES],
                              const struct wal_identity *identity)
{
    memcpy(dst + 16, &identity->node, 4);
    memcpy(dst + 20, &identity->shard, 4);
    memcpy(dst + 24, &identity->n_shards, 4);
    memcpy(dst + 32, &identity->map_id, 8);
}

const char *wal_segment_decode(const uint8_t src[static WAL_SEGMENT_HEADER_BYTES],
                               struct wal_segment *ret)
{
    uint32_t words[6];
    uint64_t numbers[5];

    memcpy(words, src + 8, sizeof words);
    memcpy(numbers, src + 32, sizeof numbers);
    memcpy(&ret->crc, src + 76, 4);
    if (memcmp(src, magic, sizeof magic) != 0)
        return "no segment of a log: the magic is wrong";
    if (words[0] != FORMAT)
        return "the format version is not 1, which this program reads";
    if (crc32c_extend(0, src, 76) != ret->crc)
        return "the header fails its checksum";
    if (words[1] & ~(uint32_t)WAL_SEGMENT_FLAGS_KNOWN)
        return "the header has unknown flags";
    ret->flags = words[1];
    ret->identity = (struct wal_identity){
        .node = words[2], .shard = words[3], .n_shards = words[4], .map_id = numbers[0]
    };
    ret->first = numbers[1];
    ret->durable = numbers[2];
    ret->version = numbers[3];
    ret->unix_ms = numbers[4];
    if (!ret->first || ret->durable >= ret->first)
        return "the header's numbers do not fit";
    return NULL;
}

int wal_segment_path(const char *dir, uint64_t first, char ret[static WAL_PATH_MAX],
                     struct err *err)
{
    int n = snprintf(ret, WAL_PATH_MAX, "%s/%020" PRIu64 NAME_END, dir, first);

    if (n < 0 || (size_t)n >= WAL_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", dir);
    return 0;
}

/* True if it is the name of a segment. */
static bool read_name(const char *name, uint64_t *ret_first)
{
    uint64_t first = 0;

    if (strlen(name) != NAME_DIGITS + strlen(NAME_END) ||
        strcmp(name + NAME_DIGITS, NAME_END) != 0)
        return false;
    for (size_t i = 0; i < NAME_DIGITS; i++) {
        uint64_t digit = (uint64_t)(name[i] - '0');

        if (digit > 9 || first > (UINT64_MAX - digit) / 10)
            return false;
        first = first * 10 + digit;
    }
    *ret_first = first;
    return first > 0;
}

static int on_name(void *arg, const char *name)
{
    struct wal_segments *all = arg;
    uint64_t first, *more;

    if (!read_name(name, &first))
        return 0;
    more = memory_try_realloc(all->firsts, (all->n + 1) * sizeof *more);
    if (!more)
        return -ENOMEM;
    all->firsts = more;
    all->firsts[all->n++] = first;
    return 0;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

int wal_segment_list(const struct file_ops *files, const char *dir, struct wal_segments *ret,
                     struct err *err)
{
    int status;

    *ret = (struct wal_segments){ 0 };
    status = files->list(files->state, dir, on_name, ret);
    if (status && status != -ENOENT)
        return err_set(err, status, "cannot list: %s: %s", status_text(status), dir);
    if (ret->n)
        qsort(ret->firsts, ret->n, sizeof *ret->firsts, by_number);
    return 0;
}

/* --- the directory --- */

static int fail(struct err *err, int status, const char *what, const char *path)
{
    return err_set(err, status, "the write-ahead log: cannot %s: %s: %s", what,
                   status_text(status), path);
}

int wal_segment_make_dir(const struct file_ops *files, const char *dir, struct err *err)
{
    int status = files->mkdir(files->state, dir);

    return status ? fail(err, status, "make the directory", dir) : 0;
}

static int sync_one(const struct file_ops *files, const char *dir, struct err *err)
{
    int status = files->sync_dir(files->state, dir);

    return status ? fail(err, status, "sync the directory", dir) : 0;
}

int wal_segment_sync_names(const struct file_ops *files, const char *dir, struct err *err)
{
    char parent[WAL_PATH_MAX];
    char *slash;
    int n = snprintf(parent, sizeof parent, "%s", dir), status;

    if (n < 0 || (size_t)n >= sizeof parent)
        return fail(err, -ENAMETOOLONG, "sync the directory", dir);
    status = sync_one(files, dir, err);
    slash = strrchr(parent, '/');
    if (status || !slash || slash == parent)
        return status;
    *slash = '\0';
    return sync_one(files, parent, err);
}

/* --- segments --- */

static int sync_segment(const struct file_ops *files, const char *dir, uint64_t first,
                        struct err *err)
{
    char path[WAL_PATH_MAX];
    int fd, status = wal_segment_path(dir, first, path, err);

    if (status)
        return status;
    status = files->open_read(files->state, path, &fd);
    if (status)
        return fail(err, status, "open", path);
    status = files->sync(files->state, fd);
    (void)!files->close(files->state, fd);
    return status ? fail(err, status, "sync", path) : 0;
}

int wal_segment_sync(const struct file_ops *files, const char *dir, uint64_t durable,
                     uint64_t last, struct err *err)
{
    struct wal_segments all;
    int status = wal_segment_list(files, dir, &all, err);

    for (size_t i = 0; i < all.n && !status; i++) {
        bool is_durable = i + 1 < all.n && all.firsts[i + 1] <= durable + 1;

        if (all.firsts[i] <= last && !is_durable && durable < last)
            status = sync_segment(files, dir, all.firsts[i], err);
    }
    free(all.firsts);
    return status;
}

static int archive(const struct file_ops *files, const char *dir, uint64_t first,
                   struct err *err)
{
    char path[WAL_PATH_MAX], archived_path[WAL_PATH_MAX + sizeof UNREAD];
    int status = wal_segment_path(dir, first, path, err);

    if (status)
        return status;
    snprintf(archived_path, sizeof archived_path, "%s" UNREAD, path);
    status = files->rename(files->state, path, archived_path);
    return status ? fail(err, status, "archive", path) : 0;
}

int wal_segment_archive(const struct file_ops *files, const char *dir, uint64_t first,
                        struct err *err)
{
    struct wal_segments all;
    int status = wal_segment_list(files, dir, &all, err);

    for (size_t i = all.n; i > 0 && all.firsts[i - 1] >= first && !status; i--)
        status = archive(files, dir, all.firsts[i - 1], err);
    free(all.firsts);
    return status;
}

static int remove_segments(const struct file_ops *files, const char *dir, uint64_t number,
                           struct err *err)
{
    struct wal_segments all;
    char path[WAL_PATH_MAX];
    int status = wal_segment_list(files, dir, &all, err);

    for (size_t i = 0; i + 1 < all.n && all.firsts[i + 1] <= number && !status; i++) {
        status = wal_segment_path(dir, all.firsts[i], path, err);
        if (!status && (status = files->unlink(files->state, path)) != 0)
            fail(err, status, "remove", path);
    }
    free(all.firsts);
    return status;
}

/* Archived segments that begin below a record. */
struct unread {
    const struct file_ops *files;
    const char *dir;
    uint64_t number;
};

/* A file that cannot be removed stays for the next time. */
static int remove_unread(void *arg, const char *name)
{
    const struct unread *u = arg;
    const char *end = strstr(name, ".psl" UNREAD);
    char path[WAL_PATH_MAX + 64];

    if (!end || strcmp(end, ".psl" UNREAD) != 0 || strtoull(name, NULL, 10) >= u->number)
        return 0;
    snprintf(path, sizeof path, "%s/%.60s", u->dir, name);
    (void)!u->files->unlink(u->files->state, path);
    return 0;
}

int wal_segment_truncate(const struct file_ops *files, const char *dir, uint64_t number,
                         struct err *err)
{
    struct unread unread = { files, dir, number };
    int status = remove_segments(files, dir, number, err);

    if (status)
        return status;
    status = files->list(files->state, dir, remove_unread, &unread);
    return status && status != -ENOENT ? fail(err, status, "list", dir) : 0;
}
