#include "worker/data/cache_read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define BLOCK_BYTES_MAX (64u * 1024u * 1024u)

struct cache_read {
    struct cache_key key;
    int fd;
    uint8_t *block; /* owned */
    size_t cap_bytes, at, end;
    uint64_t n_rows;     /* handed out or in the block */
    uint64_t text_bytes; /* once ended */
    bool ended;
};

static int corrupt(const struct cache_read *c, const char *what, struct err *err)
{
    return err_set(err, PS_ECORRUPT, "%s: %s behind row %llu", c->key.path, what,
                   (unsigned long long)c->n_rows);
}

/* All of n_bytes, PS_ECORRUPT when the file ends before. */
static int read_all(struct cache_read *c, void *to, size_t n_bytes, struct err *err)
{
    const struct file_ops *f = c->key.files;
    size_t n_read = 0;

    while (n_read < n_bytes) {
        int64_t n = f->read(f->state, c->fd, (uint8_t *)to + n_read, n_bytes - n_read);

        if (n < 0)
            return err_set(err, (int)n, "%s: cannot read: %s", c->key.path,
                           status_text((int)n));
        if (n == 0)
            return corrupt(c, "it ends too early", err);
        n_read += (size_t)n;
    }
    return 0;
}

static int check_header(struct cache_read *c, struct err *err)
{
    uint8_t found[CACHE_KEY_HEADER_BYTES], wanted[CACHE_KEY_HEADER_BYTES];
    struct cache_key other = c->key;
    int status = read_all(c, found, sizeof found, err);

    if (status)
        return status;
    cache_key_header(&c->key, wanted);
    if (memcmp(found, wanted, sizeof found) == 0)
        return 0;
    memcpy(&other.size_bytes, found + 24, 8);
    memcpy(&other.changed_ns, found + 32, 8);
    cache_key_header(&other, wanted);
    if (memcmp(found, wanted, sizeof found) == 0)
        return err_set(err, -ESTALE, "%s: the file has changed since", c->key.path);
    return err_set(err, PS_ECORRUPT, "%s: its header is not a cache's of this version",
                   c->key.path);
}

int cache_read_open(const struct cache_key *key, struct cache_read **ret, struct err *err)
{
    struct cache_read *c = mem_try_alloc(sizeof *c);
    int status;

    if (!c)
        return err_set(err, -ENOMEM, "%s: no memory to read it", key->path);
    c->key = *key;
    c->fd = -1;
    status = key->files->open_read(key->files->state, key->path, &c->fd);
    if (status)
        err_set(err, status, "%s: cannot open: %s", key->path, status_text(status));
    else
        status = check_header(c, err);
    if (status) {
        cache_read_close(c);
        return status;
    }
    *ret = c;
    return 0;
}

static bool records_are_sound(const struct cache_read *c, uint32_t n_rows)
{
    size_t at = 0;

    for (uint32_t i = 0; i < n_rows; i++) {
        struct record r;

        if (!record_is_sound(c->block + at, c->end - at, c->key.n_numeric, c->key.n_fields))
            return false;
        memcpy(&r, c->block + at, sizeof r);
        at += r.n_bytes;
    }
    return at == c->end;
}

static int reserve(struct cache_read *c, size_t n_bytes, struct err *err)
{
    uint8_t *moved;

    if (n_bytes <= c->cap_bytes)
        return 0;
    moved = mem_try_realloc(c->block, n_bytes);
    if (!moved)
        return err_set(err, -ENOMEM, "%s: no memory for a block of %zu bytes", c->key.path,
                       n_bytes);
    c->block = moved;
    c->cap_bytes = n_bytes;
    return 0;
}

static int read_block(struct cache_read *c, struct err *err)
{
    struct cache_key_block head;
    int status = read_all(c, &head, sizeof head, err);

    if (status)
        return status;
    if ((head.magic != CACHE_KEY_ROWS && head.magic != CACHE_KEY_END) ||
        head.n_bytes > BLOCK_BYTES_MAX || head.first_row != c->n_rows)
        return corrupt(c, "no block begins", err);
    c->at = c->end = 0;
    status = reserve(c, head.n_bytes + 8u, err);
    if (!status)
        status = read_all(c, c->block, head.n_bytes, err);
    if (status)
        return status;
    if (cache_key_crc(&head, c->block) != head.crc)
        return corrupt(c, "the checksum is wrong", err);
    c->end = head.n_bytes;
    if (!records_are_sound(c, head.n_rows)) {
        c->end = 0;
        return corrupt(c, "a block makes no sense", err);
    }
    c->n_rows += head.n_rows;
    c->ended = head.magic == CACHE_KEY_END;
    c->text_bytes = head.text_bytes;
    return 0;
}

int cache_read_next(struct cache_read *c, const struct record **ret, struct err *err)
{
    *ret = NULL;
    while (c->at == c->end) {
        int status = c->ended ? 0 : read_block(c, err);

        if (status || (c->ended && c->at == c->end))
            return status;
    }
    *ret = (const struct record *)(const void *)(c->block + c->at);
    c->at += (*ret)->n_bytes;
    return 0;
}

uint64_t cache_read_text_bytes(const struct cache_read *c)
{
    return c->text_bytes;
}

void cache_read_close(struct cache_read *c)
{
    if (!c)
        return;
    if (c->fd >= 0 && c->key.files->close(c->key.files->state, c->fd) != 0)
        c->fd = -1; /* it was only read */
    free(c->block);
    free(c);
}
