#include "worker/data/cache_write.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/mem.h"

#define BLOCK_BYTES (256u * 1024u) /* a block ends with the record that passes this */

struct cache_write {
    struct cache_key key;
    char path[CACHE_KEY_PATH_MAX + 64]; /* until it is whole */
    int fd;                             /* -1: none */
    struct buf block;                   /* room for the head, then records */
    uint32_t n_rows;                    /* in the block */
    uint64_t first_row;                 /* of the block */
};

/* ---- names ---- */

struct leftovers {
    const struct file_ops *files;
    const char *dir, *name; /* of the cache */
};

/* CACHE.PID-RANDOM.tmp, where no process has that number any more. */
static int remove_dead(void *arg, const char *name)
{
    const struct leftovers *l = arg;
    size_t n = strlen(l->name);
    char path[CACHE_KEY_PATH_MAX + 64], *end;
    long pid;

    if (strncmp(name, l->name, n) != 0 || name[n] != '.')
        return 0;
    pid = strtol(name + n + 1, &end, 10);
    if (pid <= 0 || *end != '-' || strlen(end) < 4 ||
        strcmp(end + strlen(end) - 4, ".tmp") != 0)
        return 0;
    if (kill((pid_t)pid, 0) == 0 || errno != ESRCH)
        return 0;
    snprintf(path, sizeof path, "%s/%s", l->dir, name);
    return l->files->unlink(l->files->state, path) == -ENOMEM ? -ENOMEM : 0;
}

/* What cannot be removed stays: it harms nobody. */
static void remove_leftovers(const struct cache_key *key, const char *dir)
{
    struct leftovers l = { key->files, dir, strrchr(key->path, '/') + 1 };

    if (key->files->list(key->files->state, dir, remove_dead, &l) != 0)
        return;
}

static void name_it(struct cache_write *w)
{
    uint64_t random = 0;

    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = (uint64_t)(uintptr_t)w;
    snprintf(w->path, sizeof w->path, "%s.%ld-%016llx.tmp", w->key.path, (long)getpid(),
             (unsigned long long)random);
}

/* ---- bytes ---- */

static int begin_block(struct cache_write *w)
{
    buf_consume(&w->block, buf_len(&w->block));
    w->first_row += w->n_rows;
    w->n_rows = 0;
    if (!buf_reserve(&w->block, CACHE_KEY_BLOCK_BYTES))
        return -ENOMEM;
    buf_commit(&w->block, CACHE_KEY_BLOCK_BYTES);
    return 0;
}

static int write_block(struct cache_write *w, uint32_t magic, uint64_t text_bytes)
{
    const struct file_ops *f = w->key.files;
    uint8_t *at = w->block.bytes + w->block.start;
    struct cache_key_block head = { .magic = magic,
                                    .n_rows = w->n_rows,
                                    .n_bytes =
                                        (uint32_t)(buf_len(&w->block) - CACHE_KEY_BLOCK_BYTES),
                                    .first_row = w->first_row,
                                    .text_bytes = text_bytes };
    int status;

    head.crc = cache_key_crc(&head, at + CACHE_KEY_BLOCK_BYTES);
    memcpy(at, &head, sizeof head);
    status = f->write_all(f->state, w->fd, at, buf_len(&w->block));
    return status ? status : begin_block(w);
}

static int failed(struct cache_write *w, int status, struct err *err)
{
    return err_set(err, status, "%s: cannot write: %s", w->key.path, status_text(status));
}

int cache_write_open(const struct cache_key *key, const char *dir, struct cache_write **ret,
                     struct err *err)
{
    const struct file_ops *f = key->files;
    struct cache_write *w = mem_try_alloc(sizeof *w);
    uint8_t header[CACHE_KEY_HEADER_BYTES];
    int status;

    if (!w)
        return err_set(err, -ENOMEM, "%s: no memory to write it", key->path);
    w->key = *key;
    w->fd = -1;
    status = f->mkdir(f->state, dir);
    if (!status) {
        remove_leftovers(key, dir);
        name_it(w);
        status = f->create(f->state, w->path, &w->fd);
    }
    if (!status) {
        cache_key_header(key, header);
        status = f->write_all(f->state, w->fd, header, sizeof header);
    }
    if (!status)
        status = begin_block(w);
    if (status) {
        failed(w, status, err);
        cache_write_abandon(w);
        return status;
    }
    *ret = w;
    return 0;
}

struct buf *cache_write_room(struct cache_write *w)
{
    return &w->block;
}

int cache_write_told(struct cache_write *w, uint64_t text_bytes, struct err *err)
{
    int status = 0;

    w->n_rows++;
    if (buf_len(&w->block) >= BLOCK_BYTES)
        status = write_block(w, CACHE_KEY_ROWS, text_bytes);
    return status ? failed(w, status, err) : 0;
}

int cache_write_finish(struct cache_write *w, uint64_t text_bytes, const char *file,
                       struct err *err)
{
    const struct file_ops *f = w->key.files;
    int status = w->n_rows ? write_block(w, CACHE_KEY_ROWS, text_bytes) : 0;

    if (!status)
        status = write_block(w, CACHE_KEY_END, text_bytes);
    if (!status) {
        status = f->close(f->state, w->fd);
        w->fd = -1;
    }
    if (!status && !cache_key_holds(&w->key, file)) {
        status = err_set(err, -ESTALE, "%s: the file changed while it was read", w->key.path);
        cache_write_abandon(w);
        return status;
    }
    if (!status)
        status = f->rename(f->state, w->path, w->key.path);
    if (status) {
        failed(w, status, err);
        cache_write_abandon(w);
        return status;
    }
    buf_deinit(&w->block);
    free(w);
    return 0;
}

void cache_write_abandon(struct cache_write *w)
{
    const struct file_ops *f;

    if (!w)
        return;
    f = w->key.files;
    if (w->fd >= 0 && f->close(f->state, w->fd) != 0)
        w->fd = -1; /* it is being removed: nothing is lost with it */
    if (w->path[0] && f->unlink(f->state, w->path) != 0)
        w->path[0] = '\0'; /* a later writer removes it */
    buf_deinit(&w->block);
    free(w);
}
