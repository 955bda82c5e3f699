#include "server/checkpoint/directory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define NUMBER_DIGITS 20
#define ARCHIVED_SUFFIX ".aside"
#define NAME_MAX_BYTES 64u /* of a file of ours, with NUL */

int directory_path(const char *data_dir, char ret[static DIRECTORY_PATH_MAX], struct err *err)
{
    /* Space for /checkpoints/NUMBER behind it, so that no later path is cut. */
    if (strlen(data_dir) + 40 > DIRECTORY_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "the data directory's path is longer than %u bytes",
                       DIRECTORY_PATH_MAX - 40);
    snprintf(ret, DIRECTORY_PATH_MAX, "%s/checkpoints", data_dir);
    return 0;
}

int directory_number_path(const char *data_dir, uint64_t number,
                          char ret[static DIRECTORY_PATH_MAX], struct err *err)
{
    int status = directory_path(data_dir, ret, err);
    size_t len;

    if (status)
        return status;
    len = strlen(ret);
    snprintf(ret + len, DIRECTORY_PATH_MAX - len, "/%0*" PRIu64, NUMBER_DIGITS, number);
    return 0;
}

int directory_archived_path(const char *data_dir, uint64_t number,
                            char ret[static DIRECTORY_PATH_MAX], struct err *err)
{
    int status = directory_number_path(data_dir, number, ret, err);
    size_t len;

    if (status)
        return status;
    len = strlen(ret);
    snprintf(ret + len, DIRECTORY_PATH_MAX - len, ARCHIVED_SUFFIX);
    return 0;
}

/* The last name of a path, without slashes behind it. */
struct name {
    size_t at, len;
};

static struct name last_name(const char *path)
{
    size_t end = strlen(path), at;

    while (end > 1 && path[end - 1] == '/')
        end--;
    for (at = end; at > 0 && path[at - 1] != '/';)
        at--;
    return (struct name){ at, end - at };
}

static bool ends_archived(const char *path, struct name name)
{
    const size_t len = sizeof ARCHIVED_SUFFIX - 1;

    return name.len > len &&
           strncmp(path + name.at + name.len - len, ARCHIVED_SUFFIX, len) == 0;
}

bool directory_is_finished(const struct file_ops *files, const char *dir)
{
    char path[DIRECTORY_PATH_MAX + sizeof "/MANIFEST"];
    int fd;

    snprintf(path, sizeof path, "%s/MANIFEST", dir);
    if (files->open_read(files->state, path, &fd))
        return false;
    (void)files->close(files->state, fd);
    return true;
}

void directory_beside(const struct file_ops *files, const char *dir, uint64_t number,
                      char ret[static DIRECTORY_PATH_MAX])
{
    struct name name = last_name(dir);

    if (strspn(dir + name.at, ".") >= name.len) /* it has no name to be replaced */
        snprintf(ret, DIRECTORY_PATH_MAX, "%.*s/../%0*" PRIu64, (int)(name.at + name.len), dir,
                 NUMBER_DIGITS, number);
    else
        snprintf(ret, DIRECTORY_PATH_MAX, "%.*s%0*" PRIu64, (int)name.at, dir, NUMBER_DIGITS,
                 number);
    /* Numbers are never given twice: there is the one or the other. */
    if (ends_archived(dir, name) && !directory_is_finished(files, ret))
        strcat(ret, ARCHIVED_SUFFIX);
}

bool directory_split(const char *path, char ret_data_dir[static DIRECTORY_PATH_MAX],
                     uint64_t *ret_number)
{
    static const char middle[] = "/checkpoints/";
    const size_t len = sizeof middle - 1;
    struct name name = last_name(path);
    size_t n_digits = strspn(path + name.at, "0123456789");
    uint64_t number = strtoull(path + name.at, NULL, 10);

    if (n_digits == 0 || n_digits > NUMBER_DIGITS || number == 0 ||
        number >= DIRECTORY_NUMBER_MAX ||
        (n_digits != name.len &&
         !(ends_archived(path, name) && n_digits + sizeof ARCHIVED_SUFFIX - 1 == name.len)))
        return false;
    if (name.at <= len || name.at >= DIRECTORY_PATH_MAX ||
        strncmp(path + name.at - len, middle, len) != 0)
        return false;
    snprintf(ret_data_dir, DIRECTORY_PATH_MAX, "%.*s", (int)(name.at - len), path);
    *ret_number = number;
    return true;
}

void directory_resolve(const struct file_ops *files, const char *path,
                       char ret[static DIRECTORY_PATH_MAX])
{
    char data_dir[DIRECTORY_PATH_MAX];
    uint64_t number;

    snprintf(ret, DIRECTORY_PATH_MAX, "%s", path);
    if (last_name(path).len >= NUMBER_DIGITS || !directory_split(path, data_dir, &number) ||
        directory_number_path(data_dir, number, ret, NULL))
        return;
    if (!directory_is_finished(files, ret))
        (void)!directory_archived_path(data_dir, number, ret, NULL);
}

/* Space for one more of `n` items: doubled when they fill a power of two. */
static void *reserve_item(void *items, size_t n, size_t item_bytes)
{
    return n & (n - 1) ? items : memory_try_realloc(items, (n ? n * 2 : 1) * item_bytes);
}

/* 0: the name is no number of ours; *ret_behind: what stands behind it. */
static uint64_t parse_number(const char *name, const char **ret_behind)
{
    uint64_t number;

    *ret_behind = name + NUMBER_DIGITS;
    if (strspn(name, "0123456789") != NUMBER_DIGITS)
        return 0;
    errno = 0;
    number = strtoull(name, NULL, 10);
    return errno || number >= DIRECTORY_NUMBER_MAX ? 0 : number;
}

/* While names are listed: those that end so behind their number. */
struct listing {
    struct directory_numbers *ret;
    const char *end;
};

static int add_number(void *arg, const char *name)
{
    const struct listing *listing = arg;
    struct directory_numbers *list = listing->ret;
    const char *behind;
    uint64_t number = parse_number(name, &behind), *items;

    if (!number || (*behind && strcmp(behind, ARCHIVED_SUFFIX) != 0))
        return 0;
    list->greatest = number > list->greatest ? number : list->greatest;
    if (strcmp(behind, listing->end) != 0)
        return 0;
    items = reserve_item(list->items, list->n, sizeof *items);
    if (!items)
        return -ENOMEM;
    list->items = items;
    items[list->n++] = number;
    return 0;
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x < y) - (x > y);
}

static int list_names(const struct file_ops *files, const char *base, const char *end,
                      struct directory_numbers *ret, struct err *err)
{
    struct listing listing = { ret, end };
    int status;

    *ret = (struct directory_numbers){ 0 };
    status = files->list(files->state, base, add_number, &listing);
    if (status && status != -ENOENT)
        return err_set(err, status, "cannot list: %s: %s", status_text(status), base);
    if (ret->n)
        qsort(ret->items, ret->n, sizeof *ret->items, descending);
    return 0;
}

int directory_list(const struct file_ops *files, const char *base,
                   struct directory_numbers *ret, struct err *err)
{
    return list_names(files, base, "", ret, err);
}

int directory_list_archived(const struct file_ops *files, const char *base,
                            struct directory_numbers *ret, struct err *err)
{
    return list_names(files, base, ARCHIVED_SUFFIX, ret, err);
}

int directory_make_dir(const struct file_ops *files, const char *path, const char *parent,
                       struct err *err)
{
    int status = files->mkdir(files->state, path);

    if (!status && parent)
        status = files->sync_dir(files->state, parent);
    return status ? err_set(err, status, "cannot make the directory: %s: %s",
                            status_text(status), path)
                  : 0;
}

int directory_archive(const struct file_ops *files, const char *data_dir, uint64_t number,
                      struct err *err)
{
    char base[DIRECTORY_PATH_MAX], from[DIRECTORY_PATH_MAX], to[DIRECTORY_PATH_MAX];
    int status = directory_path(data_dir, base, err);

    if (!status)
        status = directory_number_path(data_dir, number, from, err);
    if (!status)
        status = directory_archived_path(data_dir, number, to, err);
    if (status)
        return status;
    status = files->rename(files->state, from, to);
    if (!status)
        status = files->sync_dir(files->state, base);
    return status ? err_set(err, status, "cannot archive: %s: %s", status_text(status), from)
                  : 0;
}

/* The names of our files in a checkpoint's directory; anything else in it is not ours to
 * remove. */
struct names {
    char (*items)[NAME_MAX_BYTES]; /* owned */
    size_t n;
};

static int add_name(void *arg, const char *name)
{
    struct names *list = arg;
    char(*items)[NAME_MAX_BYTES];

    if (strlen(name) >= NAME_MAX_BYTES ||
        (strncmp(name, "MANIFEST", 8) != 0 && strncmp(name, "shard-", 6) != 0))
        return 0;
    items = reserve_item(list->items, list->n, sizeof *items);
    if (!items)
        return -ENOMEM;
    list->items = items;
    snprintf(items[list->n++], NAME_MAX_BYTES, "%s", name);
    return 0;
}

void directory_remove(const struct file_ops *files, const char *dir)
{
    char path[DIRECTORY_PATH_MAX + NAME_MAX_BYTES];
    struct names names = { 0 };
    int status;

    snprintf(path, sizeof path, "%s/MANIFEST", dir);
    status = files->unlink(files->state, path);
    if ((status == 0 || status == -ENOENT) && files->sync_dir(files->state, dir) == 0 &&
        files->list(files->state, dir, add_name, &names) == 0) {
        for (size_t i = 0; i < names.n; i++) {
            snprintf(path, sizeof path, "%s/%s", dir, names.items[i]);
            files->unlink(files->state, path);
        }
        files->rmdir(files->state, dir);
    }
    free(names.items);
}
