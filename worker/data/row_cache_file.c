#include "worker/data/row_cache_file.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Hashing a token of a few bytes costs less than calling a library for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/crc32c.h"
#include "common/memory.h"
#include "worker/data/parquet_file.h"

#define NAME_MAX_BYTES 100u /* of the file's own name in the cache's */

#define VERSION 1u
#define BLOCK_HEAD_BYTES 32u
#define MAGIC_ROWS UINT32_C(0x73776f72) /* "rows" */
#define MAGIC_END UINT32_C(0x21646e65)  /* "end!" */

/* The head of a block; see README.md. */
struct block_head {
    uint32_t magic, n_rows, n_bytes, crc;
    uint64_t first_row, text_bytes;
};

static_assert(sizeof(struct block_head) == BLOCK_HEAD_BYTES, "as the table says");

/* ---- the key ---- */

/* With its length, so that two texts after one another differ from two others. */
static void add_bytes(XXH3_state_t *x, const void *bytes, size_t n_bytes)
{
    uint64_t n = n_bytes;

    XXH3_64bits_update(x, &n, sizeof n);
    XXH3_64bits_update(x, bytes, n_bytes);
}

static void add_number(XXH3_state_t *x, uint64_t number)
{
    add_bytes(x, &number, sizeof number);
}

static void add_text(XXH3_state_t *x, const char *text)
{
    add_bytes(x, text ? text : "", text ? strlen(text) : 0);
}

/* All of the plan that decides what a line becomes, also the sentence of a refusal. */
static void add_plan(XXH3_state_t *x, const struct line_parser_plan *p, uint32_t n_labels)
{
    const uint64_t numbers[] = {
        p->n_columns,       (uint64_t)(p->names != NULL),
        (uint64_t)p->quote, p->n_labels ? p->label_columns[0] : UINT16_MAX,
        p->n_positive,      p->missing_has_key,
        p->numeric_as,      p->n_numeric,
        p->n_fields
    };

    add_bytes(x, numbers, sizeof numbers);
    if (n_labels > 1) /* names of caches with one are as they were before there were several */
        add_number(x, n_labels);
    for (uint32_t i = 1; i < p->n_labels; i++)
        add_number(x, p->label_columns[i]);
    for (uint32_t i = 0; p->names && i < p->n_columns; i++)
        add_text(x, p->names[i]);
    for (uint32_t i = 0; i < p->n_positive; i++)
        add_bytes(x, p->positive[i].at, p->positive[i].len);
    add_text(x, p->delimiter);
    add_text(x, p->missing);
    add_text(x, p->inner_separator);
    add_bytes(x, &p->numeric_missing, sizeof p->numeric_missing);
    add_bytes(x, p->numeric_columns, p->n_numeric * sizeof *p->numeric_columns);
    for (uint32_t i = 0; i < p->n_fields; i++) {
        add_number(x, p->fields[i].column | (uint64_t)p->fields[i].is_bucket << 32);
        if (p->fields[i].seed !=
            i) /* by position it is, as in caches from before there were seeds */
            add_number(x, p->fields[i].seed);
        if (p->fields[i].space) /* that of other caches is none */
            add_number(x, p->fields[i].space);
    }
    if (p->numeric_as == LINE_PARSER_STANDARDISE) {
        add_bytes(x, p->mean, p->n_numeric * sizeof *p->mean);
        add_bytes(x, p->std, p->n_numeric * sizeof *p->std);
    }
}

static int file_state(const char *file, uint64_t *ret_bytes, uint64_t *ret_ns)
{
    struct stat st;

    if (stat(file, &st) != 0)
        return -errno;
    *ret_bytes = (uint64_t)st.st_size;
    *ret_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
    return 0;
}

int row_cache_file_key_init(struct row_cache_file_key *key, const char *dir,
                            const struct file_ops *files, const char *file,
                            const struct schema *schema, const struct line_parser_plan *plan,
                            struct err *err)
{
    char real[PATH_MAX], *name;
    XXH3_state_t x;
    int n, status;

    *key =
        (struct row_cache_file_key){ .files = files,
                                     .n_floats = plan->n_numeric + schema_n_labels(schema) - 1,
                                     .n_fields = plan->n_fields };
    status = file_state(file, &key->size_bytes, &key->changed_ns);
    if (!status && !realpath(file, real))
        status = -errno;
    if (status)
        return err_set(err, status, "%s: cannot look at it: %s", file, strerror(-status));
    XXH3_64bits_reset(&x);
    add_text(&x, real);
    add_number(&x, schema_has_header(schema));
    add_plan(&x, plan, schema_n_labels(schema));
    /* Under the key of text is what lines made of the file's bytes, in a version that knew lines alone. */
    if (parquet_file_is_one(file))
        add_text(&x, "parquet");
    key->fingerprint = XXH3_64bits_digest(&x);
    name = strrchr(real, '/') ? strrchr(real, '/') + 1 : real;
    n = snprintf(key->path, sizeof key->path, "%s/%.*s.%016llx.rows", dir, (int)NAME_MAX_BYTES,
                 name, (unsigned long long)key->fingerprint);
    if (n < 0 || (size_t)n + 40 > sizeof key->path)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", dir);
    return 0;
}

/* Size and time of the file are still those of the key. */
static bool is_current(const struct row_cache_file_key *key, const char *file)
{
    uint64_t bytes, ns;

    return file_state(file, &bytes, &ns) == 0 && bytes == key->size_bytes &&
           ns == key->changed_ns;
}

void row_cache_file_header(const struct row_cache_file_key *key,
                           uint8_t at[ROW_CACHE_FILE_HEADER_BYTES])
{
    const uint32_t version = VERSION;
    uint32_t crc;

    memset(at, 0, ROW_CACHE_FILE_HEADER_BYTES);
    memcpy(at, "psdrows", 8);
    memcpy(at + 8, &version, 4);
    memcpy(at + 16, &key->fingerprint, 8);
    memcpy(at + 24, &key->size_bytes, 8);
    memcpy(at + 32, &key->changed_ns, 8);
    memcpy(at + 40, &key->n_floats, 4);
    memcpy(at + 44, &key->n_fields, 4);
    crc = crc32c_extend(0, at, ROW_CACHE_FILE_HEADER_BYTES);
    memcpy(at + 12, &crc, 4);
}

/* crc-32c of a block: its head, crc taken as 0, and its bytes. */
static uint32_t block_crc(const struct block_head *head, const void *bytes)
{
    struct block_head h = *head;

    h.crc = 0;
    return crc32c_extend(crc32c_extend(0, &h, sizeof h), bytes, h.n_bytes);
}

/* ---- reading ---- */

#define BLOCK_BYTES_MAX (64u * 1024u * 1024u)

struct row_cache_file_reader {
    struct row_cache_file_key key;
    int fd;
    uint8_t *block; /* owned */
    size_t cap_bytes, at, end;
    uint64_t n_rows;     /* handed out or in the block */
    uint64_t text_bytes; /* once ended */
    bool ended;
};

static int corrupt(const struct row_cache_file_reader *c, const char *what, struct err *err)
{
    return err_set(err, PS_ECORRUPT, "%s: %s behind row %llu", c->key.path, what,
                   (unsigned long long)c->n_rows);
}

/* All of n_bytes, PS_ECORRUPT when the file ends before. */
static int read_all(struct row_cache_file_reader *c, void *to, size_t n_bytes, struct err *err)
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

static int check_header(struct row_cache_file_reader *c, struct err *err)
{
    uint8_t found[ROW_CACHE_FILE_HEADER_BYTES], wanted[ROW_CACHE_FILE_HEADER_BYTES];
    struct row_cache_file_key other = c->key;
    int status = read_all(c, found, sizeof found, err);

    if (status)
        return status;
    row_cache_file_header(&c->key, wanted);
    if (memcmp(found, wanted, sizeof found) == 0)
        return 0;
    memcpy(&other.size_bytes, found + 24, 8);
    memcpy(&other.changed_ns, found + 32, 8);
    row_cache_file_header(&other, wanted);
    if (memcmp(found, wanted, sizeof found) == 0)
        return err_set(err, -ESTALE, "%s: the file has changed since", c->key.path);
    return err_set(err, PS_ECORRUPT, "%s: its header is not a cache's of this version",
                   c->key.path);
}

int row_cache_file_open(const struct row_cache_file_key *key,
                        struct row_cache_file_reader **ret, struct err *err)
{
    struct row_cache_file_reader *c = memory_try_alloc(sizeof *c);
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
        row_cache_file_close(c);
        return status;
    }
    *ret = c;
    return 0;
}

static bool records_are_sound(const struct row_cache_file_reader *c, uint32_t n_rows)
{
    size_t at = 0;

    for (uint32_t i = 0; i < n_rows; i++) {
        struct parsed_row r;

        if (!parsed_row_is_sound(c->block + at, c->end - at, c->key.n_floats, c->key.n_fields))
            return false;
        memcpy(&r, c->block + at, sizeof r);
        at += r.n_bytes;
    }
    return at == c->end;
}

static int reserve(struct row_cache_file_reader *c, size_t n_bytes, struct err *err)
{
    uint8_t *moved;

    if (n_bytes <= c->cap_bytes)
        return 0;
    moved = memory_try_realloc(c->block, n_bytes);
    if (!moved)
        return err_set(err, -ENOMEM, "%s: no memory for a block of %zu bytes", c->key.path,
                       n_bytes);
    c->block = moved;
    c->cap_bytes = n_bytes;
    return 0;
}

static int read_block(struct row_cache_file_reader *c, struct err *err)
{
    struct block_head head;
    int status = read_all(c, &head, sizeof head, err);

    if (status)
        return status;
    if ((head.magic != MAGIC_ROWS && head.magic != MAGIC_END) ||
        head.n_bytes > BLOCK_BYTES_MAX || head.first_row != c->n_rows)
        return corrupt(c, "no block begins", err);
    c->at = c->end = 0;
    status = reserve(c, head.n_bytes + 8u, err);
    if (!status)
        status = read_all(c, c->block, head.n_bytes, err);
    if (status)
        return status;
    if (block_crc(&head, c->block) != head.crc)
        return corrupt(c, "the checksum is wrong", err);
    c->end = head.n_bytes;
    if (!records_are_sound(c, head.n_rows)) {
        c->end = 0;
        return corrupt(c, "a block makes no sense", err);
    }
    c->n_rows += head.n_rows;
    c->ended = head.magic == MAGIC_END;
    c->text_bytes = head.text_bytes;
    return 0;
}

int row_cache_file_next(struct row_cache_file_reader *c, const struct parsed_row **ret,
                        struct err *err)
{
    *ret = NULL;
    while (c->at == c->end) {
        int status = c->ended ? 0 : read_block(c, err);

        if (status || (c->ended && c->at == c->end))
            return status;
    }
    *ret = (const struct parsed_row *)(const void *)(c->block + c->at);
    c->at += (*ret)->n_bytes;
    return 0;
}

uint64_t row_cache_file_text_bytes(const struct row_cache_file_reader *c)
{
    return c->text_bytes;
}

void row_cache_file_close(struct row_cache_file_reader *c)
{
    if (!c)
        return;
    if (c->fd >= 0 && c->key.files->close(c->key.files->state, c->fd) != 0)
        c->fd = -1; /* it was only read */
    free(c->block);
    free(c);
}

/* ---- writing ---- */

#define BLOCK_BYTES (256u * 1024u) /* a block ends with the record that passes this */

struct row_cache_file_writer {
    struct row_cache_file_key key;
    char path[ROW_CACHE_FILE_PATH_MAX + 64]; /* until it is whole */
    int fd;                                  /* -1: none */
    struct bytes block;                      /* space for the head, then records */
    uint32_t n_rows;                         /* in the block */
    uint64_t first_row;                      /* of the block */
};

struct leftovers {
    const struct file_ops *files;
    const char *dir, *name; /* of the cache */
};

/* CACHE.PID-RANDOM.tmp, where no process has that number any more. */
static int remove_dead(void *arg, const char *name)
{
    const struct leftovers *l = arg;
    size_t n = strlen(l->name);
    char path[ROW_CACHE_FILE_PATH_MAX + 64], *end;
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
static void remove_leftovers(const struct row_cache_file_key *key, const char *dir)
{
    struct leftovers l = { key->files, dir, strrchr(key->path, '/') + 1 };

    if (key->files->list(key->files->state, dir, remove_dead, &l) != 0)
        return;
}

static void set_temporary_name(struct row_cache_file_writer *w)
{
    uint64_t random = 0;

    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = (uint64_t)(uintptr_t)w;
    snprintf(w->path, sizeof w->path, "%s.%ld-%016llx.tmp", w->key.path, (long)getpid(),
             (unsigned long long)random);
}

static int begin_block(struct row_cache_file_writer *w)
{
    bytes_consume(&w->block, bytes_len(&w->block));
    w->first_row += w->n_rows;
    w->n_rows = 0;
    if (!bytes_reserve(&w->block, BLOCK_HEAD_BYTES))
        return -ENOMEM;
    bytes_commit(&w->block, BLOCK_HEAD_BYTES);
    return 0;
}

static int write_block(struct row_cache_file_writer *w, uint32_t magic, uint64_t text_bytes)
{
    const struct file_ops *f = w->key.files;
    uint8_t *at = w->block.bytes + w->block.start;
    struct block_head head = { .magic = magic,
                               .n_rows = w->n_rows,
                               .n_bytes = (uint32_t)(bytes_len(&w->block) - BLOCK_HEAD_BYTES),
                               .first_row = w->first_row,
                               .text_bytes = text_bytes };
    int status;

    head.crc = block_crc(&head, at + BLOCK_HEAD_BYTES);
    memcpy(at, &head, sizeof head);
    status = f->write_all(f->state, w->fd, at, bytes_len(&w->block));
    return status ? status : begin_block(w);
}

static int failed(struct row_cache_file_writer *w, int status, struct err *err)
{
    return err_set(err, status, "%s: cannot write: %s", w->key.path, status_text(status));
}

int row_cache_file_create(const struct row_cache_file_key *key, const char *dir,
                          struct row_cache_file_writer **ret, struct err *err)
{
    const struct file_ops *f = key->files;
    struct row_cache_file_writer *w = memory_try_alloc(sizeof *w);
    uint8_t header[ROW_CACHE_FILE_HEADER_BYTES];
    int status;

    if (!w)
        return err_set(err, -ENOMEM, "%s: no memory to write it", key->path);
    w->key = *key;
    w->fd = -1;
    status = f->mkdir(f->state, dir);
    if (!status) {
        remove_leftovers(key, dir);
        set_temporary_name(w);
        status = f->create(f->state, w->path, &w->fd);
    }
    if (!status) {
        row_cache_file_header(key, header);
        status = f->write_all(f->state, w->fd, header, sizeof header);
    }
    if (!status)
        status = begin_block(w);
    if (status) {
        failed(w, status, err);
        row_cache_file_abort(w);
        return status;
    }
    *ret = w;
    return 0;
}

struct bytes *row_cache_file_space(struct row_cache_file_writer *w)
{
    return &w->block;
}

int row_cache_file_row_added(struct row_cache_file_writer *w, uint64_t text_bytes,
                             struct err *err)
{
    int status = 0;

    w->n_rows++;
    if (bytes_len(&w->block) >= BLOCK_BYTES)
        status = write_block(w, MAGIC_ROWS, text_bytes);
    return status ? failed(w, status, err) : 0;
}

int row_cache_file_commit(struct row_cache_file_writer *w, uint64_t text_bytes,
                          const char *file, struct err *err)
{
    const struct file_ops *f = w->key.files;
    int status = w->n_rows ? write_block(w, MAGIC_ROWS, text_bytes) : 0;

    if (!status)
        status = write_block(w, MAGIC_END, text_bytes);
    if (!status) {
        status = f->close(f->state, w->fd);
        w->fd = -1;
    }
    if (!status && !is_current(&w->key, file)) {
        status = err_set(err, -ESTALE, "%s: the file changed while it was read", w->key.path);
        row_cache_file_abort(w);
        return status;
    }
    if (!status)
        status = f->rename(f->state, w->path, w->key.path);
    if (status) {
        failed(w, status, err);
        row_cache_file_abort(w);
        return status;
    }
    bytes_deinit(&w->block);
    free(w);
    return 0;
}

void row_cache_file_abort(struct row_cache_file_writer *w)
{
    const struct file_ops *f;

    if (!w)
        return;
    f = w->key.files;
    if (w->fd >= 0 && f->close(f->state, w->fd) != 0)
        w->fd = -1; /* it is being removed: nothing is lost with it */
    if (w->path[0] && f->unlink(f->state, w->path) != 0)
        w->path[0] = '\0'; /* a later writer removes it */
    bytes_deinit(&w->block);
    free(w);
}
